/* Streams that work by themselves, and events, within a process and between processes. */
#include "fake_cuda.h"

struct event {
    struct event *next;
    CUevent handle;
    struct context *context;
    struct shared *state; /* of a private event: memory of this process, with neither key nor name */
    enum { PRIVATE, EXPORTABLE, IMPORTED } kind;
    uint64_t number;
    uint32_t pid;
    int refs; /* the handle, operations that are not done, and threads that wait */
};

/* What a stream does, in order. */
struct operation {
    struct operation *next;
    enum { COPY, SET, RECORD, WAIT, WRITE_WORD, WAIT_WORD } kind;
    char *to;
    const char *from;
    size_t len;
    unsigned char value;
    struct memory *uses[2];
    struct event *event;
    uint64_t ticket; /* in a queue that streams share */
    uint64_t count; /* of the event: the record that this is, or waits for; of a word: its value */
};

/*
 * A stream is in the table until its work is done, also when it was destroyed. It is never freed, because a thread may
 * wait for it then. So many operations were queued, and are done; `first` is at work while it is in the list.
 */
struct stream {
    struct stream *next;
    CUstream handle;
    struct context *context;
    int priority;
    uint64_t number, queued, done;
    struct operation *first, **last;
    bool closed;
};

static struct event *events;
static struct stream *streams;

static void unref(struct event *event)
{
    if (--event->refs > 0)
        return;
    if (event->kind == PRIVATE)
        free(event->state);
    else
        unmap_shared(event->state, NULL);
    free(event);
}

/* Whether a record is done. The work of a process that died will never be done, and nobody waits for it. */
static bool is_done(struct event *event, uint64_t count, bool look)
{
    struct shared *state = event->state;
    if (state->completed >= count)
        return true;
    uint64_t recorder = state->recorder;
    /* It may have completed it before it died, and is not looked for in vain. */
    return look && !settings.stuck && !alive(recorder) && recorder == state->recorder;
}

static void wait_for(struct event *event, uint64_t count)
{
    /* Whether a process lives is asked less often: that takes some microseconds. */
    for (unsigned round = 0; !is_done(event, count, round % 32 == 0); round++)
        usleep(20);
}

static void run(struct operation *operation)
{
    if (operation->kind != WAIT && operation->kind != WAIT_WORD)
        nanosleep(&settings.delay, NULL);
    switch (operation->kind) {
    case COPY:
        memmove(operation->to, operation->from, operation->len);
        break;
    case SET:
        memset(operation->to, operation->value, operation->len);
        break;
    case RECORD: {
        _Atomic uint64_t *completed = &operation->event->state->completed;
        uint64_t seen = *completed;
        while (seen < operation->count && !atomic_compare_exchange_weak(completed, &seen, operation->count))
            ;
        break;
    }
    case WAIT:
        wait_for(operation->event, operation->count);
        break;
    case WRITE_WORD:
        atomic_store((_Atomic uint64_t *)operation->to, operation->count);
        break;
    case WAIT_WORD:
        /* Nobody looks whether the writer lives: it waits until somebody writes the word. */
        while ((int64_t)(atomic_load((_Atomic uint64_t *)operation->to) - operation->count) < 0)
            usleep(20);
        break;
    }
}

static void *work(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stream->first && !stream->closed)
            pthread_cond_wait(&changed, &lock);
        struct operation *operation = stream->first;
        if (!operation)
            break;
        uint64_t *served = &stream->context->served[stream->priority];
        while (settings.connected && *served + 1 != operation->ticket)
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
        run(operation);
        pthread_mutex_lock(&lock);
        ++*served;
        stream->first = operation->next;
        if (!stream->first)
            stream->last = &stream->first;
        for (int i = 0; i < 2; i++)
            if (operation->uses[i])
                unuse(operation->uses[i]);
        if (operation->event)
            unref(operation->event);
        free(operation);
        stream->done++;
        pthread_cond_broadcast(&changed);
    }
    for (struct stream **at = &streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct stream *new_stream(struct context *context, uint64_t number, int priority)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    /* Never an address, and never that of another stream before. */
    stream->handle = (CUstream)(uintptr_t)(0x5000000000 + 16 * next_number());
    stream->context = context;
    stream->number = number;
    stream->priority = priority;
    stream->last = &stream->first;
    pthread_t thread;
    /* Signals are for the threads of whoever tests. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, work, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        free(stream);
        return NULL;
    }
    pthread_detach(thread);
    stream->next = streams;
    streams = stream;
    return stream;
}

static void close_stream(struct stream *stream)
{
    stream->closed = true;
    pthread_cond_broadcast(&changed);
}

/* NULL and the two constants are the legacy stream of the current context. */
static struct stream *find_stream(CUstream handle, CUresult *code)
{
    if ((uintptr_t)handle <= 2) {
        struct context *context = current();
        if (!context->legacy)
            context->legacy = new_stream(context, 0, 0);
        arg("stream:0");
        if (!context->legacy)
            *code = OPERATING_SYSTEM;
        return context->legacy;
    }
    for (struct stream *stream = streams; stream; stream = stream->next)
        if (stream->handle == handle && !stream->closed) {
            arg("stream:%llu", (unsigned long long)stream->number);
            if (is_current(stream->context, "stream"))
                return stream;
            *code = INVALID_CONTEXT;
            return NULL;
        }
    arg("stream:?");
    *code = misuse(INVALID_HANDLE, "no such stream");
    return NULL;
}

/* Queues what is not zero of an operation. */
static CUresult queue(struct stream *stream, struct operation operation)
{
    if (settings.capturing)
        misuse(0, "it becomes part of a graph");
    struct operation *queued = malloc(sizeof *queued);
    if (!queued)
        return OUT_OF_MEMORY;
    *queued = operation;
    queued->ticket = ++stream->context->issued[stream->priority];
    for (int i = 0; i < 2; i++)
        if (queued->uses[i])
            queued->uses[i]->uses++;
    if (queued->event)
        queued->event->refs++;
    *stream->last = queued;
    stream->last = &queued->next;
    stream->queued++;
    pthread_cond_broadcast(&changed);
    return SUCCESS;
}

static void finish(struct stream *stream)
{
    uint64_t all = stream->queued;
    while (stream->done < all)
        pthread_cond_wait(&changed, &lock);
}

void drain(struct context *context)
{
    if (settings.locked) {
        drain_if_locked(context);
        return;
    }
    for (struct stream *stream = streams; stream; stream = stream->next)
        if (stream->context == context)
            finish(stream);
}

void drain_if_locked(struct context *context)
{
    if (context)
        drain_all_if_locked(1u << context->device);
}

/* Every other call waits meanwhile. Whoever makes a call takes `calls` before `lock`. */
void drain_all_if_locked(unsigned devices)
{
    if (!settings.locked)
        return;
    pthread_mutex_unlock(&lock);
    pthread_mutex_lock(&calls);
    pthread_mutex_lock(&lock);
    for (struct stream *stream = streams; stream; stream = stream->next)
        if (devices & 1u << stream->context->device)
            finish(stream);
    pthread_mutex_unlock(&calls);
}

/* A call on a stream: whether it can go on. */
static CUresult enter_stream(const char *name, CUstream handle, struct stream **stream)
{
    CUresult code = enter(name, CONTEXT);
    if (code == SUCCESS)
        *stream = find_stream(handle, &code);
    return code;
}

/* Two priorities: 0, and -1 before it. */
static CUresult create(CUresult code, CUstream *handle, unsigned flags, int priority)
{
    static uint64_t number;
    arg("%u", flags);
    if (code == SUCCESS && (!handle || flags > 1))
        code = INVALID_VALUE;
    if (code == SUCCESS) {
        struct stream *stream = new_stream(current(), number + 1, priority < 0 && !settings.no_priorities);
        if (stream) {
            arg("stream:%llu", (unsigned long long)++number);
            *handle = stream->handle;
        } else {
            code = OUT_OF_MEMORY;
        }
    }
    return leave(code);
}

CUresult cuStreamCreate(CUstream *handle, unsigned flags)
{
    return create(enter("cuStreamCreate", CONTEXT), handle, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *handle, unsigned flags, int priority)
{
    return create(enter("cuStreamCreateWithPriority", CONTEXT), handle, flags, priority);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUresult code = enter("cuCtxGetStreamPriorityRange", CONTEXT);
    if (code == SUCCESS) {
        *least = 0;
        *greatest = settings.no_priorities ? 0 : -1;
    }
    return leave(code);
}

/* What is queued is still done. */
CUresult cuStreamDestroy_v2(CUstream handle)
{
    struct stream *stream;
    CUresult code = enter_stream("cuStreamDestroy_v2", handle, &stream);
    if (code == SUCCESS && stream == current()->legacy)
        code = misuse(INVALID_HANDLE, "the legacy stream stays");
    if (code == SUCCESS)
        close_stream(stream);
    return leave(code);
}

CUresult cuStreamQuery(CUstream handle)
{
    struct stream *stream;
    CUresult code = enter_stream("cuStreamQuery", handle, &stream);
    if (code == SUCCESS && stream->done < stream->queued)
        code = NOT_READY;
    return leave(code);
}

/* All streams are captured, or none. The mode is kept, so that whoever changes it can put it back. */
CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
    struct stream *stream;
    CUresult code = enter_stream("cuStreamIsCapturing", handle, &stream);
    if (code == SUCCESS)
        *status = settings.capturing;
    return leave(code);
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    static _Thread_local int current;
    CUresult code = enter("cuThreadExchangeStreamCaptureMode", INIT);
    if (code == SUCCESS && (*mode < 0 || *mode > 2))
        code = INVALID_VALUE;
    if (code == SUCCESS) {
        int before = current;
        current = *mode;
        *mode = before;
        arg("%d", current);
    }
    return leave(code);
}

CUresult cuStreamSynchronize(CUstream handle)
{
    struct stream *stream;
    CUresult code = enter_stream("cuStreamSynchronize", handle, &stream);
    if (code == SUCCESS)
        finish(stream);
    return leave(code);
}

/* One side of a copy. */
struct side {
    bool is_host;
    unsigned long long at;
};

static struct side host(const void *address) { return (struct side){true, (uintptr_t)address}; }
static struct side device(CUdeviceptr pointer) { return (struct side){false, pointer}; }

/* Where the bytes of a side are in truth. */
static char *resolve(struct side side, size_t len, bool any_context, struct memory **uses, CUresult *code)
{
    if (*code != SUCCESS || len == 0)
        return NULL;
    if (!side.is_host) {
        *uses = copied(side.at, len, any_context, code);
        return *uses ? (*uses)->host + (side.at - (*uses)->base) : NULL;
    }
    if (!side.at)
        *code = INVALID_VALUE;
    else if (find_memory(side.at))
        *code = misuse(INVALID_VALUE, "an address of a device in place of one of the host");
    return (char *)(uintptr_t)side.at;
}

/* Host memory is read and written when the stream comes to it, as if it were pinned. */
static CUresult copy(const char *name, struct side to, struct side from, size_t len, CUstream handle, bool wait)
{
    CUresult code = enter(name, CONTEXT);
    to.is_host ? arg("host") : arg_memory(to.at);
    from.is_host ? arg("host") : arg_memory(from.at);
    arg("%zu", len);
    struct stream *stream = code == SUCCESS ? find_stream(handle, &code) : NULL;
    /* Devices copy between each other under the context of either. */
    bool any_context = !to.is_host && !from.is_host;
    struct operation operation = {.kind = COPY, .len = len};
    operation.to = resolve(to, len, any_context, &operation.uses[0], &code);
    operation.from = resolve(from, len, any_context, &operation.uses[1], &code);
    if (code == SUCCESS && len > 0)
        code = queue(stream, operation);
    if (code == SUCCESS && wait)
        finish(stream);
    return leave(code);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t len, CUstream handle)
{
    return copy("cuMemcpyHtoDAsync_v2", device(to), host(from), len, handle, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t len, CUstream handle)
{
    return copy("cuMemcpyDtoHAsync_v2", host(to), device(from), len, handle, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t len, CUstream handle)
{
    return copy("cuMemcpyDtoDAsync_v2", device(to), device(from), len, handle, false);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t len)
{
    return copy("cuMemcpyHtoD_v2", device(to), host(from), len, NULL, true);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t len)
{
    return copy("cuMemcpyDtoH_v2", host(to), device(from), len, NULL, true);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t len, CUstream handle)
{
    CUresult code = enter("cuMemsetD8Async", CONTEXT);
    arg_memory(to);
    arg("%u %zu", value, len);
    struct stream *stream = code == SUCCESS ? find_stream(handle, &code) : NULL;
    struct memory *memory = NULL;
    if (code == SUCCESS && len > 0 && (memory = copied(to, len, false, &code)))
        code = queue(stream, (struct operation){
            .kind = SET, .to = memory->host + (to - memory->base), .len = len, .value = value, .uses = {memory}});
    return leave(code);
}

#ifndef WITHOUT_WORDS
/* The flags are those that slipring uses alone: a barrier before a write, and a wait for no less than a value. */
static CUresult word(const char *name, int kind, CUstream handle, CUdeviceptr pointer, uint64_t value, unsigned flags)
{
    struct stream *stream;
    CUresult code = enter_stream(name, handle, &stream);
    arg_memory(pointer);
    arg("%llu", (unsigned long long)value);
    if (code == SUCCESS && settings.no_words)
        code = NOT_SUPPORTED;
    if (code == SUCCESS && (flags != 0 || pointer % 8 != 0))
        code = INVALID_VALUE;
    struct memory *memory = NULL;
    if (code == SUCCESS && (memory = copied(pointer, 8, false, &code)))
        code = queue(stream, (struct operation){
            .kind = kind, .to = memory->host + (pointer - memory->base), .count = value, .uses = {memory}});
    return leave(code);
}

CUresult cuStreamWriteValue64_v2(CUstream handle, CUdeviceptr pointer, uint64_t value, unsigned flags)
{
    return word("cuStreamWriteValue64_v2", WRITE_WORD, handle, pointer, value, flags);
}

CUresult cuStreamWaitValue64_v2(CUstream handle, CUdeviceptr pointer, uint64_t value, unsigned flags)
{
    return word("cuStreamWaitValue64_v2", WAIT_WORD, handle, pointer, value, flags);
}
#endif

static struct event *find_event(CUevent handle, CUresult *code)
{
    for (struct event *event = events; event; event = event->next)
        if (event->handle == handle) {
            arg("event:%u.%llu", event->pid, (unsigned long long)event->number);
            if (event->kind == IMPORTED && event->state->gone && *code == SUCCESS)
                *code = misuse(INVALID_HANDLE, "the event was destroyed by its exporter");
            return event;
        }
    arg("event:?");
    if (*code == SUCCESS)
        *code = misuse(INVALID_HANDLE, "no such event");
    return NULL;
}

static CUresult enter_event(const char *name, CUevent handle, struct event **event)
{
    CUresult code = enter(name, CONTEXT);
    *event = find_event(handle, &code);
    if (code == SUCCESS && !is_current((*event)->context, "event"))
        code = INVALID_CONTEXT;
    return code;
}

static struct event *add_event(int kind, struct shared *state, uint64_t number)
{
    struct event *event = calloc(1, sizeof *event);
    if (!event)
        return NULL;
    event->next = events;
    event->handle = (CUevent)(uintptr_t)(0x6000000000 + 16 * next_number());
    event->context = current();
    event->state = state;
    event->kind = kind;
    event->number = number;
    event->pid = (kind == IMPORTED ? state->owner : me) >> 32;
    event->refs = 1;
    events = event;
    arg("event:%u.%llu", event->pid, (unsigned long long)number);
    return event;
}

/* Takes an event out of the table. It is unmapped when no operation uses it any more. */
static void remove_event(struct event *event)
{
    for (struct event **at = &events; *at; at = &(*at)->next)
        if (*at == event) {
            *at = event->next;
            break;
        }
    if (event->kind == EXPORTABLE) {
        event->state->gone = 1;
        unlink_shared(event->state);
    } else if (event->kind == IMPORTED) {
        remove_opener(event->state);
    }
    unref(event);
}

int end_work(struct context *context)
{
    int left = 0;
    for (struct event *event = events, *next; event; event = next) {
        next = event->next;
        if (event->context == context) {
            left++;
            remove_event(event);
        }
    }
    for (struct stream *stream = streams; stream; stream = stream->next)
        if (stream->context == context && !stream->closed) {
            left += stream != context->legacy;
            close_stream(stream);
        }
    context->legacy = NULL;
    return left;
}

void forget_events(void)
{
    for (struct event *event = events; event; event = event->next)
        if (event->kind == EXPORTABLE)
            unlink_shared(event->state);
}

/* Flags: 1 blocking, 2 without time, 4 for other processes, which have no time. */
CUresult cuEventCreate(CUevent *handle, unsigned flags)
{
    CUresult code = enter("cuEventCreate", CONTEXT);
    arg("%u", flags);
    bool shareable = flags & 4;
    if (code == SUCCESS && (!handle || flags > 7 || (shareable && !(flags & 2))))
        code = INVALID_VALUE;
    if (code == SUCCESS && shareable && settings.no_ipc)
        code = NOT_SUPPORTED;
    if (code == SUCCESS) {
        uint64_t number = next_number();
        struct shared *state = shareable ? share(EVENT, number, current()->uuid, 0, NULL) : calloc(1, sizeof *state);
        struct event *event = state ? add_event(shareable ? EXPORTABLE : PRIVATE, state, number) : NULL;
        if (event)
            *handle = event->handle;
        else
            code = OUT_OF_MEMORY;
    }
    return leave(code);
}

CUresult cuEventDestroy_v2(CUevent handle)
{
    CUresult code = enter("cuEventDestroy_v2", CONTEXT);
    /* That its exporter has destroyed it hinders no importer. */
    CUresult found = NOT_READY;
    struct event *event = find_event(handle, &found);
    if (code == SUCCESS && !event)
        code = misuse(INVALID_HANDLE, "no such event");
    if (code == SUCCESS && !is_current(event->context, "event"))
        code = INVALID_CONTEXT;
    if (code == SUCCESS) {
        if (event->kind == EXPORTABLE && opened_elsewhere(event->state))
            misuse(0, "another process has the event open");
        remove_event(event);
    }
    return leave(code);
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
    struct stream *stream = NULL;
    CUresult code = enter("cuEventRecord", CONTEXT);
    struct event *event = find_event(handle, &code);
    if (code == SUCCESS)
        stream = find_stream(stream_handle, &code);
    if (code == SUCCESS && event->context != stream->context)
        code = misuse(INVALID_HANDLE, "the event and the stream are of two contexts");
    if (code == SUCCESS) {
        event->state->recorder = me;
        uint64_t count = atomic_fetch_add(&event->state->issued, 1) + 1;
        arg("record:%llu", (unsigned long long)count);
        code = queue(stream, (struct operation){.kind = RECORD, .event = event, .count = count});
    }
    return leave(code);
}

/* Waits for the last record so far, and for none that comes later. */
CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags)
{
    struct stream *stream;
    CUresult code = enter_stream("cuStreamWaitEvent", stream_handle, &stream);
    struct event *event = find_event(handle, &code);
    if (code == SUCCESS && flags != 0)
        code = INVALID_VALUE;
    if (code == SUCCESS) {
        uint64_t count = event->state->issued;
        arg("record:%llu", (unsigned long long)count);
        code = queue(stream, (struct operation){.kind = WAIT, .event = event, .count = count});
    }
    return leave(code);
}

CUresult cuEventQuery(CUevent handle)
{
    struct event *event;
    CUresult code = enter_event("cuEventQuery", handle, &event);
    if (code == SUCCESS && !is_done(event, event->state->issued, true))
        code = NOT_READY;
    return leave(code);
}

CUresult cuEventSynchronize(CUevent handle)
{
    struct event *event;
    CUresult code = enter_event("cuEventSynchronize", handle, &event);
    if (code == SUCCESS) {
        uint64_t count = event->state->issued;
        event->refs++;
        pthread_mutex_unlock(&lock);
        wait_for(event, count);
        pthread_mutex_lock(&lock);
        unref(event);
    }
    return leave(code);
}

#ifndef WITHOUT_IPC_EVENTS
CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event_handle)
{
    struct event *event;
    CUresult code = enter_event("cuIpcGetEventHandle", event_handle, &event);
    if (code == SUCCESS && settings.no_ipc)
        code = NOT_SUPPORTED;
    if (code == SUCCESS && (!handle || event->kind == IMPORTED))
        code = INVALID_VALUE;
    if (code == SUCCESS && event->kind == PRIVATE)
        code = INVALID_HANDLE;
    if (code == SUCCESS) {
        struct token token = token_of(event->state);
        memcpy(handle, &token, sizeof token);
    }
    return leave(code);
}
#endif

CUresult cuIpcOpenEventHandle(CUevent *handle, CUipcEventHandle exported)
{
    CUresult code = enter("cuIpcOpenEventHandle", CONTEXT);
    struct token token;
    memcpy(&token, &exported, sizeof token);
    if (code == SUCCESS && settings.no_ipc)
        code = NOT_SUPPORTED;
    if (code == SUCCESS && (!handle || token.magic != EVENT || token.size != 0 || token.pid == me >> 32))
        code = INVALID_VALUE;
    if (code == SUCCESS && !is_ours(token.uuid))
        code = INVALID_DEVICE;
    struct shared *state = code == SUCCESS ? open_shared(&token, NULL) : NULL;
    if (code == SUCCESS && !state)
        code = INVALID_VALUE;
    if (code == SUCCESS) {
        for (struct event *event = events; event; event = event->next)
            if (event->kind == IMPORTED && event->state->key == token.key) {
                misuse(0, "this process has the event open");
                break;
            }
        struct event *event = add_event(IMPORTED, state, token.number);
        if (event)
            *handle = event->handle;
        else
            code = OUT_OF_MEMORY;
    } else {
        arg("event:?");
    }
    return leave(code);
}
