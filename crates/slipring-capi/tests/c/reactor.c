/* A reactor: callbacks get messages, requests, tensors and ends; tokens run functions; each user is dropped once. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

/* What a link's callbacks count. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    slipring_reactor *reactor; /* to free it from a callback */
    int messages, tensors, closed, dropped, triggered;
    slipring_status status;
    char text[256];
} diary;

static void begin(diary *diary) {
    memset(diary, 0, sizeof *diary);
    pthread_mutex_init(&diary->lock, NULL);
    pthread_cond_init(&diary->changed, NULL);
}

static void count(diary *diary, int *what) {
    pthread_mutex_lock(&diary->lock);
    ++*what;
    pthread_cond_broadcast(&diary->changed);
    pthread_mutex_unlock(&diary->lock);
}

static void wait_for(diary *diary, const int *what, int wanted) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += HANG / SECOND;
    pthread_mutex_lock(&diary->lock);
    while (*what < wanted) {
        CHECK(pthread_cond_timedwait(&diary->changed, &diary->lock, &end) == 0);
    }
    CHECK(*what == wanted);
    pthread_mutex_unlock(&diary->lock);
}

static void on_message(void *user, slipring_link *link, const slipring_message *message, uint64_t id) {
    if (message->len == 4 && memcmp(message->data, "free", 4) == 0) {
        OK(slipring_reactor_free(((diary *)user)->reactor));
    } else if (message->len == 3 && memcmp(message->data, "end", 3) == 0) {
        OK(slipring_link_close(link));
    } else if (message->kind == SLIPRING_KIND_REQUEST) {
        OK(slipring_link_respond(link, id, message->data, message->len));
    } else {
        OK(slipring_link_write(link, message->data, message->len));
    }
    count(user, &((diary *)user)->messages);
}

static void on_tensors(void *user, slipring_link *link, slipring_tensors *tensors, slipring_kind kind, uint64_t id) {
    if (kind == SLIPRING_KIND_TENSOR_REQUEST) {
        OK(slipring_link_respond_tensors(link, id, tensors));
    } else {
        OK(slipring_link_write_tensors(link, tensors));
    }
    count(user, &((diary *)user)->tensors);
}

static void on_closed(void *user, slipring_link *link, slipring_status status, const char *text) {
    diary *told = user;
    (void)link;
    told->status = status;
    snprintf(told->text, sizeof told->text, "%s", text);
    count(told, &told->closed);
}

static void drop(void *user) {
    count(user, &((diary *)user)->dropped);
}

static slipring_callbacks all(diary *diary) {
    return (slipring_callbacks){diary, on_message, on_tensors, on_closed, drop};
}

static slipring_tensors *one(slipring_context *context, size_t len) {
    slipring_tensors *set;
    slipring_tensor *tensor;
    slipring_tensor_view view;
    OK(slipring_tensor_new(context, SLIPRING_DTYPE_UINT8, &len, 1, 0, HANG, &tensor));
    OK(slipring_tensor_get_view(tensor, &view, sizeof view));
    fill(view.data, view.len);
    OK(slipring_tensors_new(&set));
    OK(slipring_tensors_add(set, "one", tensor));
    return set;
}

static void is_one(slipring_tensors *set, size_t len) {
    slipring_tensor *tensor;
    slipring_tensor_view view;
    OK(slipring_tensors_take(set, 0, &tensor));
    OK(slipring_tensor_get_view(tensor, &view, sizeof view));
    CHECK(view.len == len && is_filled(view.data, len));
    OK(slipring_tensor_free(tensor));
    OK(slipring_tensors_free(set));
}

static void everything_comes_back(slipring_context *context) {
    slipring_connection *near, *far;
    slipring_reactor *reactor;
    slipring_link *link;
    slipring_tensors *set;
    slipring_call answer;
    static unsigned char bytes[1 << 20], back[1 << 20];
    uint64_t id;
    size_t len;
    diary diary;
    begin(&diary);
    slipring_callbacks callbacks = all(&diary);
    OK(slipring_reactor_new(context, &reactor));
    OK(slipring_pair(context, &near, &far));
    OK(slipring_reactor_adopt(reactor, far, &callbacks, sizeof callbacks, &link));
    IS(SLIPRING_INVALID_HANDLE, slipring_send(far, "x", 1, HANG));
    for (int round = 0; round < 100; round++) {
        len = (size_t)round * 10000;
        fill(bytes, len);
        OK(slipring_send(near, bytes, len, HANG));
        OK(slipring_recv(near, back, sizeof back, &len, HANG));
        CHECK(len == (size_t)round * 10000 && is_filled(back, len));
    }
    OK(slipring_submit(near, "ask", 3, HANG, &id));
    OK(slipring_wait(near, id, HANG, &answer));
    CHECK(answer.len == 3 && memcmp(answer.data, "ask", 3) == 0);
    OK(slipring_send_tensors(near, one(context, 5000), HANG));
    OK(slipring_recv_tensors(near, HANG, &set));
    is_one(set, 5000);
    OK(slipring_submit_tensors(near, one(context, 70000), HANG, &id));
    OK(slipring_wait_tensors(near, id, HANG, &set));
    is_one(set, 70000);
    /* From this thread. */
    slipring_tensor *tensor;
    OK(slipring_link_send(link, "sent", 4));
    set = one(context, 10);
    OK(slipring_tensors_take(set, 0, &tensor));
    IS(SLIPRING_WRONG_STATE, slipring_link_write_tensors(link, set));
    OK(slipring_tensors_free(set));
    OK(slipring_link_write_tensor(link, tensor));
    IS(SLIPRING_INVALID_HANDLE, slipring_link_write_tensor(link, tensor));
    OK(slipring_recv(near, back, sizeof back, &len, HANG));
    CHECK(len == 4);
    OK(slipring_recv_tensors(near, HANG, &set));
    is_one(set, 10);
    wait_for(&diary, &diary.messages, 101);
    wait_for(&diary, &diary.tensors, 2);
    OK(slipring_connection_close(near));
    wait_for(&diary, &diary.closed, 1);
    wait_for(&diary, &diary.dropped, 1);
    CHECK(diary.status == SLIPRING_OK && diary.text[0] == 0);
    IS(SLIPRING_PEER_CLOSED, slipring_link_send(link, "x", 1));
    OK(slipring_link_free(link));
    IS(SLIPRING_INVALID_HANDLE, slipring_link_free(link));
    OK(slipring_reactor_free(reactor));
    IS(SLIPRING_INVALID_HANDLE, slipring_reactor_free(reactor));
}

static void triggered(void *user, slipring_link *link) {
    OK(slipring_link_write(link, "run", 3));
    count(user, &((diary *)user)->triggered);
}

static void tokens_run_functions(slipring_context *context) {
    slipring_connection *near, *far;
    slipring_reactor *reactor;
    slipring_link *link, *other;
    uint32_t token;
    size_t len;
    char bytes[8];
    diary first, function, second;
    begin(&first);
    begin(&function);
    begin(&second);
    slipring_callbacks callbacks = {.user = &first, .drop = drop};
    OK(slipring_reactor_new(context, &reactor));
    OK(slipring_pair(context, &near, &far));
    OK(slipring_reactor_adopt(reactor, far, &callbacks, sizeof callbacks, &link));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_link_register(link, NULL, &second, drop, &token));
    CHECK(second.dropped == 1);
    OK(slipring_link_register(link, triggered, &function, drop, &token));
    for (int round = 0; round < 100; round++) {
        OK(slipring_trigger(near, token, round % 2 == 0 ? HANG : SLIPRING_DEFAULT));
        OK(slipring_recv(near, bytes, sizeof bytes, &len, HANG));
        CHECK(len == 3);
    }
    /* Over a link, too. */
    callbacks.user = &second;
    callbacks.on_message = on_message;
    OK(slipring_reactor_adopt(reactor, near, &callbacks, sizeof callbacks, &other));
    OK(slipring_link_trigger(other, token));
    wait_for(&function, &function.triggered, 101);
    wait_for(&second, &second.messages, 1);
    OK(slipring_link_unregister(link, token));
    OK(slipring_link_unregister(link, token));
    wait_for(&function, &function.dropped, 1);
    OK(slipring_link_close(link));
    wait_for(&first, &first.dropped, 1);
    wait_for(&second, &second.dropped, 2);
    OK(slipring_link_free(link));
    OK(slipring_link_free(other));
    OK(slipring_reactor_free(reactor));
}

/* Ends: the peer dies, this side closes, and the reactor is freed, also from inside of a callback. */
static void ends_are_told(slipring_context *context) {
    slipring_listener *listener;
    slipring_connection *near, *far;
    slipring_reactor *reactor;
    slipring_link *link;
    char address[64], bytes[8];
    size_t len;
    diary died, closed, freed;
    begin(&died);
    begin(&closed);
    begin(&freed);
    snprintf(address, sizeof address, "slipring-reactor-%ld", (long)getpid());
    pid_t child = fork_alone();
    CHECK(child >= 0);
    if (child == 0) {
        slipring_context *own = patient();
        OK(slipring_connect(own, address, HANG, &near));
        OK(slipring_send(near, "here", 4, HANG));
        OK(slipring_recv(near, bytes, sizeof bytes, &len, HANG));
        kill(getpid(), SIGKILL);
    }
    slipring_callbacks callbacks = all(&died);
    OK(slipring_reactor_new(context, &reactor));
    OK(slipring_listen(context, address, &listener));
    OK(slipring_accept(listener, HANG, &far));
    OK(slipring_reactor_adopt(reactor, far, &callbacks, sizeof callbacks, &link));
    wait_for(&died, &died.closed, 1);
    CHECK(died.status == SLIPRING_PEER_DIED && died.text[0] != 0);
    wait_for(&died, &died.dropped, 1);
    CHECK(waitpid(child, NULL, 0) == child);
    OK(slipring_link_free(link));
    OK(slipring_listener_free(listener));

    callbacks = all(&closed);
    OK(slipring_pair(context, &near, &far));
    OK(slipring_reactor_adopt(reactor, far, &callbacks, sizeof callbacks, &link));
    /* The link lives on without its handle. */
    OK(slipring_link_free(link));
    OK(slipring_send(near, "end", 3, HANG));
    IS(SLIPRING_END, slipring_recv(near, bytes, sizeof bytes, &len, HANG));
    OK(slipring_connection_close(near));
    wait_for(&closed, &closed.dropped, 1);

    freed.reactor = reactor;
    callbacks = all(&freed);
    OK(slipring_pair(context, &near, &far));
    OK(slipring_reactor_adopt(reactor, far, &callbacks, sizeof callbacks, &link));
    OK(slipring_send(near, "free", 4, HANG));
    wait_for(&freed, &freed.dropped, 1);
    CHECK(freed.closed == 1);
    IS(SLIPRING_END, slipring_recv(near, bytes, sizeof bytes, &len, HANG));
    OK(slipring_connection_close(near));
    OK(slipring_link_free(link));
}

static void misuse(slipring_context *context) {
    slipring_connection *near, *far;
    slipring_reactor *reactor;
    slipring_link *link;
    diary diary;
    begin(&diary);
    slipring_callbacks callbacks = all(&diary);
    IS(SLIPRING_INVALID_HANDLE, slipring_reactor_new(NULL, &reactor));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_reactor_new(context, NULL));
    OK(slipring_reactor_new(context, &reactor));
    OK(slipring_pair(context, &near, &far));
    IS(SLIPRING_INVALID_HANDLE, slipring_reactor_adopt(NULL, far, &callbacks, sizeof callbacks, &link));
    IS(SLIPRING_INVALID_HANDLE, slipring_reactor_adopt(reactor, NULL, &callbacks, sizeof callbacks, &link));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_reactor_adopt(reactor, far, &callbacks, sizeof callbacks, NULL));
    CHECK(diary.dropped == 3);
    /* A program with a newer header sets what this library does not know. */
    struct {
        slipring_callbacks known;
        void *unknown;
    } newer = {callbacks, &diary};
    IS(SLIPRING_INVALID_ARGUMENT, slipring_reactor_adopt(reactor, far, &newer.known, sizeof newer, &link));
    CHECK(diary.dropped == 4);
    IS(SLIPRING_INVALID_ARGUMENT, slipring_reactor_adopt(reactor, far, NULL, sizeof callbacks, &link));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_reactor_adopt(reactor, far, &callbacks, 12, &link));
    IS(SLIPRING_INVALID_HANDLE, slipring_link_write(NULL, "x", 1));
    IS(SLIPRING_INVALID_HANDLE, slipring_link_write((slipring_link *)reactor, "x", 1));
    OK(slipring_link_free(NULL));
    OK(slipring_reactor_free(NULL));
    OK(slipring_reactor_adopt(reactor, far, &callbacks, sizeof callbacks, &link));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_link_write(link, NULL, 1));
    pid_t child = fork_alone();
    CHECK(child >= 0);
    if (child == 0) {
        uint32_t token;
        IS(SLIPRING_FORKED, slipring_link_write(link, "x", 1));
        IS(SLIPRING_FORKED, slipring_link_send(link, "x", 1));
        IS(SLIPRING_FORKED, slipring_link_respond(link, 1, "x", 1));
        IS(SLIPRING_FORKED, slipring_link_trigger(link, 1));
        IS(SLIPRING_FORKED, slipring_link_register(link, triggered, &diary, NULL, &token));
        IS(SLIPRING_FORKED, slipring_link_close(link));
        OK(slipring_link_free(link));
        OK(slipring_reactor_free(reactor));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(slipring_link_abort(link));
    wait_for(&diary, &diary.dropped, 5);
    OK(slipring_link_free(link));
    OK(slipring_reactor_free(reactor));
    OK(slipring_connection_abort(near));
}

int main(void) {
    slipring_context *context = patient();
    everything_comes_back(context);
    tokens_run_functions(context);
    ends_are_told(context);
    misuse(context);
    OK(slipring_context_free(context));
    return 0;
}
