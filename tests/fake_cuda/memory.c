/* Memory, and its handles for other processes. */
#include "fake_cuda.h"

struct memory *memories;

/* Device addresses: of this process, so that nobody else's are met, and of no use to it. */
CUdeviceptr reserve(size_t size, size_t alignment)
{
    size_t room = alignment > PAGE ? size + alignment : size;
    char *start = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return 0;
    if (room == size)
        return (uintptr_t)start;
    char *aligned = (char *)(((uintptr_t)start + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (aligned > start)
        munmap(start, aligned - start);
    munmap(aligned + size, start + room - (aligned + size));
    return (uintptr_t)aligned;
}

struct memory *find_memory(CUdeviceptr pointer)
{
    for (struct memory *memory = memories; memory; memory = memory->next)
        if (pointer >= memory->base && pointer - memory->base < memory->size)
            return memory;
    return NULL;
}

void arg_memory(CUdeviceptr pointer)
{
    struct memory *memory = find_memory(pointer);
    if (!memory)
        arg("mem:?");
    else if (pointer == memory->base)
        arg("mem:%u.%llu", memory->pid, (unsigned long long)memory->number);
    else
        arg("mem:%u.%llu+%llu", memory->pid, (unsigned long long)memory->number, pointer - memory->base);
}

static void unmap(struct memory *memory)
{
    /* The addresses of MAPPED memory are a reservation's, and its bytes alone are gone. */
    if (memory->kind == MAPPED) {
        munmap(memory->host, memory->size);
    } else {
        if (memory->kind == OPENED)
            remove_opener(memory->header);
        unmap_shared(memory->header, memory->host);
        munmap((void *)(uintptr_t)memory->base, memory->size);
    }
    free(memory);
}

void remove_memory(struct memory *memory)
{
    for (struct memory **at = &memories; *at; at = &(*at)->next)
        if (*at == memory) {
            *at = memory->next;
            break;
        }
    if (memory->kind == OWNED) {
        memory->header->gone = 1;
        unlink_shared(memory->header);
        memory->context->used -= memory->size;
    }
    memory->removed = true;
    if (memory->uses == 0)
        unmap(memory);
}

void unuse(struct memory *memory)
{
    if (--memory->uses == 0 && memory->removed)
        unmap(memory);
}

struct memory *copied(CUdeviceptr pointer, size_t len, bool any_context, CUresult *code)
{
    struct memory *memory = find_memory(pointer);
    if (!memory)
        *code = misuse(INVALID_VALUE, "no memory has this address");
    else if (len > memory->size - (pointer - memory->base))
        *code = misuse(INVALID_VALUE, "%zu bytes reach beyond the memory", len);
    else if (memory->kind == MAPPED && !(memory->access & 1u << current()->device))
        *code = misuse(INVALID_VALUE, "no access to this mapping was given");
    else if (memory->kind == OPENED && memory->header->gone)
        *code = misuse(INVALID_VALUE, "the memory was freed by its owner");
    else if (memory->context && !any_context && !is_current(memory->context, "memory"))
        *code = INVALID_CONTEXT;
    else
        return memory;
    return NULL;
}

void forget_memories(void)
{
    for (struct memory *memory = memories; memory; memory = memory->next)
        if (memory->kind == OWNED)
            unlink_shared(memory->header);
}

/* Takes an object into the table. */
static struct memory *add(int kind, struct shared *header, char *host)
{
    struct memory *memory = calloc(1, sizeof *memory);
    CUdeviceptr base = memory ? reserve(header->size, PAGE) : 0;
    if (!base) {
        free(memory);
        return NULL;
    }
    memory->next = memories;
    memory->kind = kind;
    memory->context = current();
    memory->header = header;
    memory->base = base;
    memory->size = header->size;
    memory->host = host;
    memory->pid = header->owner >> 32;
    memory->number = header->number;
    memories = memory;
    return memory;
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
    CUresult code = enter("cuMemGetInfo_v2", CONTEXT);
    if (code == SUCCESS && (!available || !total))
        code = INVALID_VALUE;
    if (code == SUCCESS) {
        *available = settings.bytes - current()->used;
        *total = settings.bytes;
    }
    return leave(code);
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    CUresult code = enter("cuMemAlloc_v2", CONTEXT);
    arg("%zu", size);
    if (code == SUCCESS && (!pointer || size == 0))
        code = INVALID_VALUE;
    if (code == SUCCESS && size > settings.bytes - current()->used)
        code = OUT_OF_MEMORY;
    if (code == SUCCESS) {
        char *host = NULL;
        struct shared *header = share(MEMORY, next_number(), current()->uuid, size, &host);
        struct memory *memory = header ? add(OWNED, header, host) : NULL;
        if (memory) {
            current()->used += size;
            *pointer = memory->base;
            arg_memory(memory->base);
        } else {
            if (header) {
                unlink_shared(header);
                unmap_shared(header, host);
            }
            code = OPERATING_SYSTEM;
        }
    }
    return leave(code);
}

/* Of what cuMemAlloc gave, it waits for all work of the context first. */
CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    CUresult code = enter("cuMemFree_v2", CONTEXT);
    arg_memory(pointer);
    if (code == SUCCESS)
        drain(current());
    struct memory *memory = find_memory(pointer);
    if (code == SUCCESS && (!memory || memory->base != pointer || memory->kind != OWNED))
        code = misuse(INVALID_VALUE, "this is not what cuMemAlloc gave");
    if (code == SUCCESS && !is_current(memory->context, "memory"))
        code = INVALID_CONTEXT;
    if (code == SUCCESS) {
        if (memory->uses > 0)
            misuse(0, "work of another context uses the memory");
        if (opened_elsewhere(memory->header))
            misuse(0, "another process has the memory open");
        remove_memory(memory);
    }
    return leave(code);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    CUresult code = enter("cuMemGetAddressRange_v2", CONTEXT);
    arg_memory(pointer);
    struct memory *memory = find_memory(pointer);
    if (code == SUCCESS && !memory)
        code = INVALID_VALUE;
    if (code == SUCCESS && base)
        *base = memory->base;
    if (code == SUCCESS && size)
        *size = memory->size;
    return leave(code);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    CUresult code = enter("cuIpcGetMemHandle", CONTEXT);
    arg_memory(pointer);
    if (code == SUCCESS && settings.no_ipc)
        code = NOT_SUPPORTED;
    struct memory *memory = find_memory(pointer);
    if (code == SUCCESS && (!handle || !memory || memory->kind != OWNED))
        code = INVALID_VALUE;
    if (code == SUCCESS && !is_current(memory->context, "memory"))
        code = INVALID_CONTEXT;
    if (code == SUCCESS) {
        struct token token = token_of(memory->header);
        memcpy(handle, &token, sizeof token);
    }
    return leave(code);
}

/* What an exporter has freed, or has left by its death, is an invalid value. */
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    CUresult code = enter("cuIpcOpenMemHandle_v2", CONTEXT);
    struct token token;
    memcpy(&token, &handle, sizeof token);
    token.magic == MEMORY ? arg("mem:%u.%llu", token.pid, (unsigned long long)token.number) : arg("mem:?");
    if (code == SUCCESS && settings.no_ipc)
        code = NOT_SUPPORTED;
    /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS is the only flag, and has to be there. */
    if (code == SUCCESS && (!pointer || flags != 1 || token.magic != MEMORY))
        code = INVALID_VALUE;
    if (code == SUCCESS && token.pid == me >> 32)
        code = INVALID_CONTEXT;
    if (code == SUCCESS && !is_ours(token.uuid))
        code = INVALID_DEVICE;
    for (struct memory *memory = memories; memory && code == SUCCESS; memory = memory->next)
        if (memory->kind == OPENED && memory->header->key == token.key && memory->pid == token.pid
            && memory->number == token.number)
            code = misuse(ALREADY_MAPPED, "this process has the memory open");
    if (code == SUCCESS) {
        char *host = NULL;
        struct shared *header = open_shared(&token, &host);
        struct memory *memory = header ? add(OPENED, header, host) : NULL;
        if (memory) {
            *pointer = memory->base;
        } else {
            if (header) {
                remove_opener(header);
                unmap_shared(header, host);
            }
            code = INVALID_VALUE;
        }
    }
    return leave(code);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    CUresult code = enter("cuIpcCloseMemHandle", CONTEXT);
    arg_memory(pointer);
    struct memory *memory = find_memory(pointer);
    if (code == SUCCESS && (!memory || memory->base != pointer || memory->kind != OPENED))
        code = misuse(INVALID_VALUE, "this is not what cuIpcOpenMemHandle gave");
    if (code == SUCCESS && !is_current(memory->context, "memory"))
        code = INVALID_CONTEXT;
    if (code == SUCCESS) {
        if (memory->uses > 0)
            misuse(0, "work that was queued still uses the memory");
        drain_if_locked(current());
        remove_memory(memory);
    }
    return leave(code);
}
