/* Other processes: a peer that is killed is named, and a forked child learns what its parent owns. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static void wait_for(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void a_killed_peer_is_named(const char *address) {
    slipring_context *context;
    slipring_listener *listener;
    slipring_connection *link;
    slipring_peer peer;
    char buffer[8], name[32];
    size_t len;
    /* Before there is a context, so that the child starts like any program. */
    pid_t child = fork_alone();
    CHECK(child >= 0);
    if (child == 0) {
        context = patient();
        OK(slipring_connect(context, address, HANG, &link));
        OK(slipring_send(link, "alive", 5, SLIPRING_DEFAULT));
        pause();
        _exit(1);
    }
    context = patient();
    OK(slipring_listen(context, address, &listener));
    OK(slipring_accept(listener, HANG, &link));
    OK(slipring_recv(link, buffer, 8, &len, HANG));
    CHECK(len == 5);
    OK(slipring_connection_peer(link, &peer));
    CHECK(peer.pid == child);
    CHECK(kill(child, SIGKILL) == 0);
    IS(SLIPRING_PEER_DIED, slipring_recv(link, buffer, 8, &len, HANG));
    snprintf(name, sizeof name, "%ld", (long)child);
    SAYS("the peer died");
    SAYS(name);
    CHECK(strcmp(slipring_last_error_kind(), "PeerDied") == 0);
    IS(SLIPRING_PEER_DIED, slipring_send(link, "x", 1, SLIPRING_DEFAULT));
    IS(SLIPRING_PEER_DIED, slipring_connection_close(link));
    IS(SLIPRING_INVALID_HANDLE, slipring_connection_close(link));
    CHECK(waitpid(child, NULL, 0) == child);
    OK(slipring_listener_free(listener));
    OK(slipring_context_free(context));
}

/* A child of a fork with `size` bytes reserved, and as many peeked at. */
static void a_forked_child_is_told(size_t size) {
    slipring_context *context, *own;
    slipring_listener *listener;
    slipring_connection *near, *far, *fresh, *other;
    slipring_options *options;
    slipring_message message;
    slipring_stats stats;
    slipring_peer peer;
    char buffer[8], address[64];
    size_t len;
    int descriptor;
    int64_t nanoseconds;
    void *room;
    OK(slipring_options_new(&options));
    context = patient();
    snprintf(address, sizeof address, "slipring-fork-%ld", (long)getpid());
    OK(slipring_listen(context, address, &listener));
    OK(slipring_pair(context, &near, &far));
    OK(slipring_reserve(near, size, SLIPRING_DEFAULT, &room));
    fill(room, size);
    OK(slipring_publish(near));
    OK(slipring_peek(far, SLIPRING_DEFAULT, &message));
    OK(slipring_reserve(near, size, SLIPRING_DEFAULT, &room));
    fill(room, size);
    pid_t child = fork_alone();
    CHECK(child >= 0);
    if (child == 0) {
        IS(SLIPRING_FORKED, slipring_publish(near));
        SAYS("this handle belongs to the parent process");
        IS(SLIPRING_FORKED, slipring_publish_first(near, 1));
        IS(SLIPRING_FORKED, slipring_discard(near));
        IS(SLIPRING_FORKED, slipring_send(near, "x", 1, SLIPRING_DEFAULT));
        IS(SLIPRING_FORKED, slipring_recv(near, buffer, 8, &len, SLIPRING_DEFAULT));
        IS(SLIPRING_FORKED, slipring_release(far));
        IS(SLIPRING_FORKED, slipring_peek(far, SLIPRING_DEFAULT, &message));
        IS(SLIPRING_FORKED, slipring_send(far, "x", 1, SLIPRING_DEFAULT));
        IS(SLIPRING_FORKED, slipring_reserve(far, size, SLIPRING_DEFAULT, &room));
        IS(SLIPRING_FORKED, slipring_batch_begin(far));
        IS(SLIPRING_FORKED, slipring_pair(context, &fresh, &other));
        IS(SLIPRING_FORKED, slipring_connect(context, address, SLIPRING_DEFAULT, &fresh));
        IS(SLIPRING_FORKED, slipring_accept(listener, SLIPRING_NONBLOCK, &fresh));
        OK(slipring_connection_peer(far, &peer));
        IS(SLIPRING_FORKED, slipring_connection_get_stats(far, &stats, sizeof stats));
        IS(SLIPRING_FORKED, slipring_connection_descriptor(far, &descriptor));
        IS(SLIPRING_FORKED, slipring_connection_take_turns(far));
        IS(SLIPRING_FORKED, slipring_connection_rest(near, &nanoseconds));
        IS(SLIPRING_FORKED, slipring_connection_close(near));
        IS(SLIPRING_FORKED, slipring_connection_close(far));
        OK(slipring_listener_free(listener));
        OK(slipring_context_free(context));
        OK(slipring_options_free(options));
        /* With a context of its own, the child connects. */
        own = patient();
        OK(slipring_connect(own, address, HANG, &fresh));
        OK(slipring_send(fresh, "child", 5, SLIPRING_DEFAULT));
        OK(slipring_connection_close(fresh));
        OK(slipring_context_free(own));
        _exit(0);
    }
    /* A child that failed does not connect. */
    slipring_status status;
    while ((status = slipring_accept(listener, SECOND / 10, &fresh)) == SLIPRING_TIMED_OUT) {
        CHECK(waitpid(child, NULL, WNOHANG) == 0);
    }
    OK(status);
    OK(slipring_recv(fresh, buffer, 8, &len, HANG));
    CHECK(len == 5);
    IS(SLIPRING_END, slipring_recv(fresh, buffer, 8, &len, HANG));
    OK(slipring_connection_close(fresh));
    wait_for(child);
    /* The parent's connection goes on. */
    CHECK(message.len == size && is_filled(message.data, size));
    OK(slipring_release(far));
    OK(slipring_publish(near));
    OK(slipring_peek(far, HANG, &message));
    CHECK(message.len == size && is_filled(message.data, size));
    OK(slipring_release(far));
    OK(slipring_connection_close(near));
    OK(slipring_connection_close(far));
    OK(slipring_listener_free(listener));
    OK(slipring_context_free(context));
    OK(slipring_options_free(options));
}

static void *receive(void *connection) {
    char buffer[8];
    size_t len;
    OK(slipring_recv(connection, buffer, sizeof buffer, &len, HANG));
    return NULL;
}

/* A child of a fork during which another thread waits in the receiving half. */
static void a_fork_beside_a_thread_that_waits_leaves_no_half_busy(void) {
    slipring_connection *near, *far;
    slipring_context *context = patient();
    pthread_t waiter;
    char buffer[8];
    size_t len;
    OK(slipring_pair(context, &near, &far));
    CHECK(pthread_create(&waiter, NULL, receive, far) == 0);
    /* Two threads that enter within the same nanoseconds are not told. */
    do {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    } while (slipring_connection_take_turns(far) != SLIPRING_BUSY);
    pid_t child = fork_alone();
    CHECK(child >= 0);
    if (child == 0) {
        IS(SLIPRING_FORKED, slipring_recv(far, buffer, 8, &len, SLIPRING_NONBLOCK));
        IS(SLIPRING_FORKED, slipring_send(far, "x", 1, SLIPRING_NONBLOCK));
        IS(SLIPRING_FORKED, slipring_connection_close(far));
        IS(SLIPRING_FORKED, slipring_connection_close(near));
        OK(slipring_context_free(context));
        _exit(0);
    }
    wait_for(child);
    IS(SLIPRING_BUSY, slipring_connection_close(far));
    OK(slipring_send(near, "go", 2, HANG));
    CHECK(pthread_join(waiter, NULL) == 0);
    OK(slipring_connection_close(near));
    OK(slipring_connection_close(far));
    OK(slipring_context_free(context));
}

int main(void) {
    char address[64];
    snprintf(address, sizeof address, "slipring-processes-%ld", (long)getpid());
    a_killed_peer_is_named(address);
    a_forked_child_is_told(100);
    a_forked_child_is_told(100000);
    a_fork_beside_a_thread_that_waits_leaves_no_half_busy();
    return 0;
}
