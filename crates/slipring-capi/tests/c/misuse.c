/* Each misuse that the header promises to tell of. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static slipring_context *context;

static void null_pointers(void) {
    slipring_connection *near, *far;
    slipring_message message;
    size_t len;
    char buffer[8];
    void *room;
    OK(slipring_pair(context, &near, &far));
    IS(SLIPRING_INVALID_HANDLE, slipring_send(NULL, "x", 1, SLIPRING_DEFAULT));
    SAYS("the handle is a null pointer");
    len = 77;
    IS(SLIPRING_INVALID_HANDLE, slipring_recv(NULL, buffer, 8, &len, SLIPRING_DEFAULT));
    CHECK(len == 0);
    IS(SLIPRING_INVALID_HANDLE, slipring_reserve(NULL, 8, SLIPRING_DEFAULT, &room));
    IS(SLIPRING_INVALID_HANDLE, slipring_peek(NULL, SLIPRING_DEFAULT, &message));
    IS(SLIPRING_INVALID_HANDLE, slipring_release(NULL));
    IS(SLIPRING_INVALID_HANDLE, slipring_publish(NULL));
    IS(SLIPRING_INVALID_HANDLE, slipring_batch_begin(NULL));
    IS(SLIPRING_INVALID_HANDLE, slipring_pair(NULL, &near, &far));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_pair(context, NULL, &far));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_context_new(NULL, NULL));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_options_new(NULL));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_listen(context, NULL, NULL));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_connect(context, NULL, SLIPRING_DEFAULT, &near));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_connect(context, "\xff", SLIPRING_DEFAULT, &near));
    SAYS("the text is no UTF-8");
    IS(SLIPRING_INVALID_ARGUMENT, slipring_connect(context, "", SLIPRING_DEFAULT, &near));
    SAYS("the name is empty");
    IS(SLIPRING_INVALID_ARGUMENT, slipring_send(near, NULL, 1, SLIPRING_DEFAULT));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_send(near, "x", SIZE_MAX, SLIPRING_DEFAULT));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_batch_push(near, NULL, 1, SLIPRING_DEFAULT));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_recv(near, NULL, 8, &len, SLIPRING_NONBLOCK));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_recv(near, buffer, 8, NULL, SLIPRING_NONBLOCK));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_reserve(near, 8, SLIPRING_DEFAULT, NULL));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_peek(near, SLIPRING_NONBLOCK, NULL));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_connection_peer(near, NULL));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_connection_descriptor(near, NULL));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_connection_rest(near, NULL));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_connection_get_stats(near, NULL, 8));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_send(near, "x", 1, -2));
    SAYS("the time to wait is negative");
    IS(SLIPRING_INVALID_ARGUMENT, slipring_connect_socket(context, -1, &near));
    /* None of this has broken anything. */
    OK(slipring_send(near, "x", 1, SLIPRING_DEFAULT));
    OK(slipring_recv(far, buffer, 8, &len, SLIPRING_DEFAULT));
    OK(slipring_connection_close(near));
    OK(slipring_connection_close(far));
    OK(slipring_connection_close(NULL));
    OK(slipring_connection_abort(NULL));
    OK(slipring_listener_free(NULL));
    OK(slipring_context_free(NULL));
    OK(slipring_options_free(NULL));
}

static void freed_and_wrong_handles(void) {
    slipring_connection *near, *far;
    slipring_context *other;
    slipring_options *options;
    slipring_listener *listener;
    slipring_message message;
    OK(slipring_pair(context, &near, &far));
    OK(slipring_connection_close(near));
    IS(SLIPRING_INVALID_HANDLE, slipring_connection_close(near));
    SAYS("the handle was freed");
    IS(SLIPRING_INVALID_HANDLE, slipring_connection_abort(near));
    IS(SLIPRING_INVALID_HANDLE, slipring_send(near, "x", 1, SLIPRING_DEFAULT));
    IS(SLIPRING_INVALID_HANDLE, slipring_peek(near, SLIPRING_DEFAULT, &message));
    OK(slipring_connection_close(far));

    OK(slipring_context_new(NULL, &other));
    OK(slipring_context_free(other));
    IS(SLIPRING_INVALID_HANDLE, slipring_context_free(other));
    IS(SLIPRING_INVALID_HANDLE, slipring_context_trim(other));
    OK(slipring_options_new(&options));
    OK(slipring_options_free(options));
    IS(SLIPRING_INVALID_HANDLE, slipring_options_set(options, SLIPRING_OPTION_SPIN, 0));
    IS(SLIPRING_INVALID_HANDLE, slipring_context_new(options, &other));
    char address[64];
    snprintf(address, sizeof address, "slipring-misuse-%ld", (long)getpid());
    OK(slipring_listen(context, address, &listener));
    IS(SLIPRING_INVALID_HANDLE, slipring_send((void *)listener, "x", 1, SLIPRING_DEFAULT));
    SAYS("the handle is no slipring_connection");
    IS(SLIPRING_INVALID_HANDLE, slipring_connection_close((void *)context));
    IS(SLIPRING_INVALID_HANDLE, slipring_accept((void *)context, SLIPRING_DEFAULT, &near));
    SAYS("the handle is no slipring_listener");
    IS(SLIPRING_INVALID_HANDLE, slipring_context_free((void *)listener));
    SAYS("the handle is no slipring_context");
    IS(SLIPRING_INVALID_HANDLE, slipring_options_free((void *)context));
    IS(SLIPRING_INVALID_HANDLE, slipring_send((void *)((char *)listener + 1), "x", 1, SLIPRING_DEFAULT));
    OK(slipring_listener_free(listener));
    IS(SLIPRING_INVALID_HANDLE, slipring_listener_free(listener));
    IS(SLIPRING_INVALID_HANDLE, slipring_accept(listener, SLIPRING_DEFAULT, &near));

    /* The last 64 of each kind. */
    slipring_options *last[64];
    for (int at = 0; at < 64; at++) {
        OK(slipring_options_new(&last[at]));
    }
    for (int at = 0; at < 64; at++) {
        OK(slipring_options_free(last[at]));
    }
    for (int at = 0; at < 64; at++) {
        IS(SLIPRING_INVALID_HANDLE, slipring_options_free(last[at]));
        SAYS("the handle was freed");
    }
}

static void wrong_states(void) {
    slipring_connection *near, *far;
    slipring_message message;
    slipring_stats stats;
    int descriptor;
    char buffer[8];
    size_t len;
    void *room;
    OK(slipring_pair(context, &near, &far));
    for (int turn = 0; turn < 3; turn++) {
        IS(SLIPRING_WRONG_STATE, slipring_publish(near));
        SAYS("nothing is reserved");
        IS(SLIPRING_WRONG_STATE, slipring_publish_first(near, 0));
        IS(SLIPRING_WRONG_STATE, slipring_discard(near));
        IS(SLIPRING_WRONG_STATE, slipring_release(near));
        SAYS("no message is peeked at");
        IS(SLIPRING_WRONG_STATE, slipring_batch_push(near, "x", 1, SLIPRING_DEFAULT));
        IS(SLIPRING_WRONG_STATE, slipring_batch_reserve(near, 1, SLIPRING_DEFAULT, &room));

        size_t size = turn == 0 ? 8 : 100000;
        OK(slipring_reserve(near, size, SLIPRING_DEFAULT, &room));
        memset(room, turn, size);
        IS(SLIPRING_WRONG_STATE, slipring_reserve(near, 8, SLIPRING_DEFAULT, &room));
        SAYS("a message is reserved");
        IS(SLIPRING_WRONG_STATE, slipring_send(near, "x", 1, SLIPRING_DEFAULT));
        IS(SLIPRING_WRONG_STATE, slipring_batch_begin(near));
        IS(SLIPRING_WRONG_STATE, slipring_batch_push(near, "x", 1, SLIPRING_DEFAULT));
        IS(SLIPRING_WRONG_STATE, slipring_connection_get_stats(near, &stats, sizeof stats));
        IS(SLIPRING_WRONG_STATE, slipring_connection_descriptor(near, &descriptor));
        IS(SLIPRING_INVALID_ARGUMENT, slipring_publish_first(near, size + 1));
        IS(SLIPRING_WOULD_BLOCK, slipring_recv(near, buffer, 8, &len, SLIPRING_NONBLOCK));
        OK(slipring_publish(near));
        IS(SLIPRING_WRONG_STATE, slipring_publish(near));

        OK(slipring_peek(far, HANG, &message));
        CHECK(message.len == size && ((const char *)message.data)[size - 1] == turn);
        IS(SLIPRING_WRONG_STATE, slipring_connection_get_stats(far, &stats, sizeof stats));
        OK(slipring_release(far));
        IS(SLIPRING_WRONG_STATE, slipring_release(far));

        OK(slipring_batch_begin(near));
        IS(SLIPRING_WRONG_STATE, slipring_batch_begin(near));
        SAYS("a batch is open");
        IS(SLIPRING_WRONG_STATE, slipring_send(near, "x", 1, SLIPRING_DEFAULT));
        IS(SLIPRING_WRONG_STATE, slipring_reserve(near, 1, SLIPRING_DEFAULT, &room));
        IS(SLIPRING_WRONG_STATE, slipring_publish_first(near, 0));
        OK(slipring_discard(near));
    }
    OK(slipring_connection_close(near));
    OK(slipring_connection_close(far));
}

static void *receive(void *argument) {
    slipring_message message;
    slipring_status status;
    do {
        status = slipring_peek(argument, HANG, &message);
    } while (status == SLIPRING_BUSY);
    OK(status);
    OK(slipring_release(argument));
    return NULL;
}

static void two_threads(void) {
    slipring_connection *near, *far;
    slipring_message message;
    slipring_stats stats;
    pthread_t thread;
    OK(slipring_pair(context, &near, &far));
    CHECK(pthread_create(&thread, NULL, receive, far) == 0);
    /* Nothing has come, so the thread is in its half from some time on. The pauses keep this one from entering too. */
    slipring_status status;
    do {
        struct timespec pause = {0, 2000000};
        nanosleep(&pause, NULL);
        status = slipring_peek(far, SLIPRING_NONBLOCK, &message);
    } while (status == SLIPRING_WOULD_BLOCK);
    IS(SLIPRING_BUSY, status);
    SAYS("another thread is in this half");
    char bytes[8];
    size_t len = 7;
    IS(SLIPRING_BUSY, slipring_recv(far, bytes, sizeof bytes, &len, SLIPRING_NONBLOCK));
    CHECK(len == 0);
    IS(SLIPRING_BUSY, slipring_connection_get_stats(far, &stats, sizeof stats));
    IS(SLIPRING_BUSY, slipring_connection_close(far));
    IS(SLIPRING_BUSY, slipring_connection_abort(far));
    /* The other half is free. */
    OK(slipring_send(far, "x", 1, SLIPRING_DEFAULT));
    OK(slipring_send(near, "x", 1, SLIPRING_DEFAULT));
    CHECK(pthread_join(thread, NULL) == 0);
    OK(slipring_connection_close(far));
    OK(slipring_connection_close(near));
}

static void *fail(void *argument) {
    CHECK(strcmp(slipring_last_error(), "") == 0);
    IS(SLIPRING_NOBODY_LISTENS, slipring_connect(context, "slipring-nobody", SLIPRING_DEFAULT, argument));
    SAYS("nobody listens on @slipring-nobody");
    return NULL;
}

static void texts_are_of_a_thread(void) {
    slipring_connection *none;
    pthread_t thread;
    IS(SLIPRING_INVALID_HANDLE, slipring_publish(NULL));
    const char *before = slipring_last_error();
    CHECK(pthread_create(&thread, NULL, fail, &none) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    /* The pointer stays until the next error. */
    CHECK(before == slipring_last_error() && strcmp(before, "the handle is a null pointer") == 0);
    CHECK(strcmp(slipring_last_error_kind(), "") == 0 && slipring_last_error_number() == 0);
}

static void taken_descriptors_are_closed(void) {
    slipring_connection *connection;
    int file = open("/dev/null", O_RDONLY);
    CHECK(file >= 0);
    IS(SLIPRING_INVALID_ARGUMENT, slipring_accept_socket(context, file, &connection));
    CHECK(fcntl(file, F_GETFD) == -1 && errno == EBADF);
    file = open("/dev/null", O_RDONLY);
    IS(SLIPRING_INVALID_HANDLE, slipring_connect_socket(NULL, file, &connection));
    CHECK(fcntl(file, F_GETFD) == -1 && errno == EBADF);
}

int main(void) {
    context = patient();
    null_pointers();
    freed_and_wrong_handles();
    wrong_states();
    two_threads();
    texts_are_of_a_thread();
    taken_descriptors_are_closed();
    OK(slipring_context_free(context));
    return 0;
}
