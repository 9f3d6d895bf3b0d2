/* Messages in one process: by copy, in place, in batches, with deadlines, by descriptor; counts and ends. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static slipring_context *context;

static int is_readable(int descriptor) {
    struct pollfd asked = {.fd = descriptor, .events = POLLIN, .revents = 0};
    return poll(&asked, 1, 0) == 1;
}

/* Sends back each message, in turn by copy and in place. */
static void *echo(void *argument) {
    slipring_connection *link = argument;
    unsigned char *copy = malloc(8 << 20);
    for (int turn = 0;; turn++) {
        if (turn % 2 == 0) {
            size_t len;
            slipring_status status = slipring_recv(link, copy, 8 << 20, &len, SLIPRING_FOREVER);
            if (status == SLIPRING_END) {
                break;
            }
            OK(status);
            OK(slipring_send(link, copy, len, SLIPRING_DEFAULT));
        } else {
            slipring_message message;
            void *room;
            slipring_status status = slipring_peek(link, HANG, &message);
            if (status == SLIPRING_END) {
                break;
            }
            OK(status);
            CHECK(message.kind == SLIPRING_KIND_MESSAGE);
            OK(slipring_reserve(link, message.len, HANG, &room));
            if (message.len > 0) {
                memcpy(room, message.data, message.len);
            }
            OK(slipring_release(link));
            OK(slipring_publish(link));
        }
    }
    free(copy);
    OK(slipring_connection_close(link));
    return NULL;
}

static void sizes(void) {
    slipring_connection *near, *far;
    pthread_t thread;
    unsigned char *sent = malloc(8 << 20), *received = malloc(8 << 20);
    OK(slipring_pair(context, &near, &far));
    CHECK(pthread_create(&thread, NULL, echo, far) == 0);
    for (int turn = 0; turn < 2; turn++) {
        for (int size = 0; size < COUNT; size++) {
            size_t len = SIZES[size], got = 1;
            fill(sent, len);
            OK(slipring_send(near, sent, len, HANG));
            memset(received, 0xee, len);
            OK(slipring_recv(near, received, 8 << 20, &got, HANG));
            CHECK(got == len && is_filled(received, len));
        }
        /* The other way of each size. */
        OK(slipring_send(near, "x", 1, SLIPRING_FOREVER));
        size_t got;
        OK(slipring_recv(near, received, 1, &got, SLIPRING_DEFAULT));
    }
    OK(slipring_connection_close(near));
    CHECK(pthread_join(thread, NULL) == 0);
    free(sent);
    free(received);
}

static void short_buffers_keep_the_message(void) {
    slipring_connection *near, *far;
    char buffer[16];
    size_t len = 77;
    OK(slipring_pair(context, &near, &far));
    OK(slipring_send(near, "hello, world", 12, SLIPRING_NONBLOCK));
    IS(SLIPRING_BUFFER_TOO_SHORT, slipring_recv(far, buffer, 11, &len, HANG));
    CHECK(len == 12);
    SAYS("message of 12 bytes, the buffer takes 11");
    CHECK(strcmp(slipring_last_error_kind(), "BufferTooShort") == 0);
    IS(SLIPRING_BUFFER_TOO_SHORT, slipring_recv(far, NULL, 0, &len, SLIPRING_NONBLOCK));
    CHECK(len == 12);
    OK(slipring_recv(far, buffer, 12, &len, HANG));
    CHECK(len == 12 && memcmp(buffer, "hello, world", 12) == 0);
    IS(SLIPRING_WOULD_BLOCK, slipring_recv(far, buffer, 12, &len, SLIPRING_NONBLOCK));
    CHECK(len == 0);
    OK(slipring_connection_close(near));
    IS(SLIPRING_END, slipring_recv(far, buffer, 12, &len, SLIPRING_NONBLOCK));
    /* The sender learns of the end a moment later. */
    slipring_status status;
    do {
        status = slipring_send(far, "x", 1, HANG);
    } while (status == SLIPRING_OK);
    IS(SLIPRING_PEER_CLOSED, status);
    OK(slipring_connection_close(far));
}

static void peeks_and_reservations(void) {
    slipring_connection *near, *far;
    slipring_message message, again;
    void *room;
    char buffer[8];
    size_t len;
    OK(slipring_pair(context, &near, &far));
    /* What is discarded is not sent. */
    for (size_t size = 8; size <= 800000; size *= 10) {
        OK(slipring_reserve(near, size, SLIPRING_DEFAULT, &room));
        memset(room, 1, size);
        OK(slipring_discard(near));
    }
    IS(SLIPRING_WOULD_BLOCK, slipring_peek(far, SLIPRING_NONBLOCK, &message));
    /* The first bytes alone. */
    OK(slipring_reserve(near, 100, SLIPRING_NONBLOCK, &room));
    memcpy(room, "first, then more", 16);
    OK(slipring_publish_first(near, 5));
    OK(slipring_send(near, "second", 6, HANG));
    OK(slipring_peek(far, SLIPRING_NONBLOCK, &message));
    CHECK(message.len == 5 && memcmp(message.data, "first", 5) == 0);
    /* The next one stays the next one. */
    OK(slipring_peek(far, SLIPRING_NONBLOCK, &again));
    CHECK(again.len == 5 && again.data == message.data);
    OK(slipring_recv(far, buffer, 8, &len, SLIPRING_NONBLOCK));
    CHECK(len == 5 && memcmp(buffer, "first", 5) == 0);
    OK(slipring_peek(far, HANG, &message));
    CHECK(message.len == 6 && memcmp(message.data, "second", 6) == 0);
    OK(slipring_release(far));
    IS(SLIPRING_WOULD_BLOCK, slipring_peek(far, SLIPRING_NONBLOCK, &message));
    /* What is reserved when the connection closes is not sent. */
    OK(slipring_reserve(near, 500000, SLIPRING_DEFAULT, &room));
    OK(slipring_connection_close(near));
    IS(SLIPRING_END, slipring_peek(far, SLIPRING_FOREVER, &message));
    OK(slipring_connection_close(far));
}

/* The same numbers on each run. */
static uint32_t pick(uint32_t below) {
    static uint64_t state = 29;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

/* Every way to send and to receive, in any order, over many turns of the ring. What waits is counted in a queue. */
static void any_order(void) {
    static const size_t LENS[] = {0, 1, 8, 55, 56, 57, 63, 64, 65, 120, 504, 505, 511, 512, 513, 2000, 40000};
    enum { LENGTHS = sizeof LENS / sizeof LENS[0], QUEUE = 256 };
    static unsigned char buffer[40000];
    size_t queue[QUEUE], first = 0, waiting = 0, len, sent[3];
    slipring_connection *near, *far;
    slipring_message message, again;
    void *room;
    OK(slipring_pair(context, &near, &far));
    for (int step = 0; step < 200000; step++) {
        size_t count = 0;
        sent[0] = LENS[pick(LENGTHS)];
        uint32_t way = waiting + 3 > QUEUE ? 5 + pick(5) : pick(10);
        slipring_status status = SLIPRING_OK;
        switch (way) {
        case 0:
            fill(buffer, sent[0]);
            status = slipring_send(near, buffer, sent[0], SLIPRING_NONBLOCK);
            count = 1;
            break;
        case 1:
        case 2:
        case 3:
            status = slipring_reserve(near, sent[0], SLIPRING_NONBLOCK, &room);
            if (status != SLIPRING_OK) {
                break;
            }
            IS(SLIPRING_WRONG_STATE, slipring_send(near, "x", 1, SLIPRING_NONBLOCK));
            if (way == 1) {
                fill(room, sent[0]);
                OK(slipring_publish(near));
            } else if (way == 2) {
                IS(SLIPRING_INVALID_ARGUMENT, slipring_publish_first(near, sent[0] + 1));
                sent[0] -= sent[0] / 3;
                fill(room, sent[0]);
                OK(slipring_publish_first(near, sent[0]));
            } else {
                memset(room, 7, sent[0]);
                OK(slipring_discard(near));
                break;
            }
            IS(SLIPRING_WRONG_STATE, slipring_publish(near));
            count = 1;
            break;
        case 4:
            OK(slipring_batch_begin(near));
            for (size_t at = 0; at < 3; at++) {
                sent[at] = LENS[pick(LENGTHS - 1)];
                status = slipring_batch_reserve(near, sent[at], SLIPRING_NONBLOCK, &room);
                if (status != SLIPRING_OK) {
                    break;
                }
                fill(room, sent[at]);
                count += 1;
            }
            OK(slipring_publish(near));
            break;
        default:
            if (waiting == 0) {
                IS(SLIPRING_WOULD_BLOCK, slipring_peek(far, SLIPRING_NONBLOCK, &message));
                IS(SLIPRING_WRONG_STATE, slipring_release(far));
                IS(SLIPRING_WOULD_BLOCK, slipring_recv(far, buffer, sizeof buffer, &len, SLIPRING_NONBLOCK));
                break;
            }
            size_t wanted = queue[first];
            if (way % 2 == 1) {
                OK(slipring_peek(far, SLIPRING_NONBLOCK, &message));
                CHECK(message.len == wanted && is_filled(message.data, wanted));
            }
            if (way == 6 || way == 7) {
                OK(slipring_peek(far, SLIPRING_NONBLOCK, &again));
                CHECK(again.len == wanted && is_filled(again.data, wanted));
            }
            if (wanted > 0 && way == 8) {
                IS(SLIPRING_BUFFER_TOO_SHORT, slipring_recv(far, buffer, wanted - 1, &len, SLIPRING_NONBLOCK));
                CHECK(len == wanted);
            }
            if (way == 5 || way == 6) {
                OK(slipring_release(far));
            } else {
                OK(slipring_recv(far, buffer, sizeof buffer, &len, SLIPRING_NONBLOCK));
                CHECK(len == wanted && is_filled(buffer, wanted));
            }
            IS(SLIPRING_WRONG_STATE, slipring_release(far));
            first = (first + 1) % QUEUE;
            waiting -= 1;
        }
        if (status == SLIPRING_WOULD_BLOCK && way != 4) {
            count = 0;
        }
        CHECK(status == SLIPRING_OK || status == SLIPRING_WOULD_BLOCK);
        for (size_t at = 0; at < count; at++) {
            queue[(first + waiting) % QUEUE] = sent[at];
            waiting += 1;
        }
    }
    OK(slipring_connection_close(near));
    while (waiting > 0) {
        OK(slipring_recv(far, buffer, sizeof buffer, &len, SLIPRING_NONBLOCK));
        CHECK(len == queue[first] && is_filled(buffer, len));
        first = (first + 1) % QUEUE;
        waiting -= 1;
    }
    IS(SLIPRING_END, slipring_recv(far, buffer, sizeof buffer, &len, HANG));
    OK(slipring_connection_close(far));
}

static void batches(void) {
    slipring_connection *near, *far;
    slipring_message message;
    void *room;
    OK(slipring_pair(context, &near, &far));
    OK(slipring_batch_begin(near));
    OK(slipring_batch_push(near, "one", 3, SLIPRING_DEFAULT));
    OK(slipring_batch_push(near, NULL, 0, SLIPRING_NONBLOCK));
    OK(slipring_batch_reserve(near, 5, HANG, &room));
    memcpy(room, "three", 5);
    IS(SLIPRING_WOULD_BLOCK, slipring_peek(far, SLIPRING_NONBLOCK, &message));
    OK(slipring_publish(near));
    const char *wanted[] = {"one", "", "three"};
    for (int at = 0; at < 3; at++) {
        OK(slipring_peek(far, SLIPRING_NONBLOCK, &message));
        CHECK(message.len == strlen(wanted[at]) && memcmp(message.data, wanted[at], message.len) == 0);
        OK(slipring_release(far));
    }
    /* More than the first ring holds, written after all rooms are there. */
    enum { ROOMS = 100, LEN = 1000 };
    void *rooms[ROOMS];
    OK(slipring_batch_begin(near));
    for (int at = 0; at < ROOMS; at++) {
        OK(slipring_batch_reserve(near, LEN, HANG, &rooms[at]));
    }
    for (int at = 0; at < ROOMS; at++) {
        memset(rooms[at], at, LEN);
    }
    OK(slipring_publish(near));
    for (int at = 0; at < ROOMS; at++) {
        OK(slipring_peek(far, HANG, &message));
        const unsigned char *bytes = message.data;
        CHECK(message.len == LEN && bytes[0] == at && bytes[LEN - 1] == at);
        OK(slipring_release(far));
    }
    OK(slipring_batch_begin(near));
    OK(slipring_batch_push(near, "never", 5, SLIPRING_DEFAULT));
    OK(slipring_discard(near));
    OK(slipring_batch_begin(near));
    IS(SLIPRING_TOO_LARGE, slipring_batch_reserve(near, 1 << 20, SLIPRING_DEFAULT, &room));
    /* A batch longer than what is free waits, and stays as it was. */
    OK(slipring_publish(near));
    slipring_status status;
    do {
        status = slipring_send(near, "0123456789", 10, SLIPRING_NONBLOCK);
    } while (status == SLIPRING_OK);
    IS(SLIPRING_WOULD_BLOCK, status);
    OK(slipring_batch_begin(near));
    IS(SLIPRING_WOULD_BLOCK, slipring_batch_push(near, "x", 1, SLIPRING_NONBLOCK));
    IS(SLIPRING_TIMED_OUT, slipring_batch_push(near, "x", 1, 1000000));
    OK(slipring_discard(near));
    OK(slipring_connection_close(far));
    OK(slipring_connection_close(near));
}

static void *send_later(void *argument) {
    struct timespec pause = {0, 20000000};
    nanosleep(&pause, NULL);
    OK(slipring_send(argument, "late", 4, SLIPRING_DEFAULT));
    return NULL;
}

static void deadlines(void) {
    slipring_connection *near, *far;
    slipring_message message;
    char buffer[8];
    size_t len;
    void *room;
    pthread_t thread;
    OK(slipring_pair(context, &near, &far));
    IS(SLIPRING_TIMED_OUT, slipring_recv(far, buffer, 8, &len, 1000000));
    SAYS("timed out after");
    IS(SLIPRING_TIMED_OUT, slipring_peek(far, 1, &message));
    CHECK(pthread_create(&thread, NULL, send_later, near) == 0);
    OK(slipring_recv(far, buffer, 8, &len, HANG));
    CHECK(len == 4);
    CHECK(pthread_join(thread, NULL) == 0);
    slipring_status status;
    do {
        status = slipring_send(near, "0123456789", 10, SLIPRING_NONBLOCK);
    } while (status == SLIPRING_OK);
    IS(SLIPRING_WOULD_BLOCK, status);
    IS(SLIPRING_TIMED_OUT, slipring_send(near, "0123456789", 10, 1000000));
    SAYS("makes no room");
    IS(SLIPRING_TIMED_OUT, slipring_reserve(near, 10, 1000000, &room));
    IS(SLIPRING_WOULD_BLOCK, slipring_reserve(near, 10, SLIPRING_NONBLOCK, &room));
    OK(slipring_connection_abort(far));
    OK(slipring_connection_close(near));
}

/* A process that connects once it is told to, and sends back one message. It forks before there is a context. */
static pid_t fork_echo(const char *address, const int ends[2]) {
    slipring_connection *near;
    slipring_message message;
    char byte;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(ends[1]);
        CHECK(read(ends[0], &byte, 1) == 1);
        slipring_context *own = patient();
        OK(slipring_connect(own, address, HANG, &near));
        OK(slipring_peek(near, HANG, &message));
        OK(slipring_send(near, message.data, message.len, HANG));
        OK(slipring_release(near));
        IS(SLIPRING_END, slipring_peek(near, HANG, &message));
        OK(slipring_connection_close(near));
        OK(slipring_context_free(own));
        _exit(0);
    }
    return child;
}

static void descriptors_and_listeners(const char *address, pid_t child, int go) {
    slipring_listener *listener;
    slipring_listener_stats counts;
    slipring_connection *near, *far;
    slipring_peer peer;
    slipring_message message;
    int listens, reads;
    OK(slipring_listen(context, address, &listener));
    OK(slipring_listener_descriptor(listener, &listens));
    IS(SLIPRING_WOULD_BLOCK, slipring_accept(listener, SLIPRING_NONBLOCK, &far));
    IS(SLIPRING_TIMED_OUT, slipring_accept(listener, 1000000, &far));
    slipring_listener *second;
    IS(SLIPRING_ADDRESS_IN_USE, slipring_listen(context, address, &second));
    SAYS(address);
    CHECK(slipring_last_error_number() != 0);

    CHECK(!is_readable(listens));
    CHECK(write(go, "x", 1) == 1);
    OK(slipring_accept(listener, HANG, &far));
    OK(slipring_connection_peer(far, &peer));
    CHECK(peer.pid == child && peer.uid == geteuid() && peer.gid == getegid());
    OK(slipring_listener_get_stats(listener, &counts, sizeof counts));
    CHECK(counts.accepted == 1 && counts.refused == 0 && counts.silent == 0);
    OK(slipring_connection_descriptor(far, &reads));
    OK(slipring_connection_take_turns(far));
    OK(slipring_send(far, "there and back", 14, SLIPRING_DEFAULT));
    for (;;) {
        slipring_status status = slipring_peek(far, SLIPRING_NONBLOCK, &message);
        if (status != SLIPRING_WOULD_BLOCK) {
            OK(status);
            break;
        }
        int64_t rest;
        OK(slipring_connection_rest(far, &rest));
        struct pollfd asked = {.fd = reads, .events = POLLIN, .revents = 0};
        CHECK(poll(&asked, 1, rest == SLIPRING_FOREVER ? 60000 : (int)(rest / 1000000)) >= 0);
        CHECK(asked.revents != 0 || rest != SLIPRING_FOREVER);
    }
    CHECK(message.len == 14 && memcmp(message.data, "there and back", 14) == 0);
    OK(slipring_release(far));
    OK(slipring_connection_close(far));
    OK(slipring_listener_free(listener));
    IS(SLIPRING_NOBODY_LISTENS, slipring_connect(context, address, 5000000, &near));
    SAYS(address);
}

static void counts(void) {
    slipring_connection *near, *far;
    slipring_stats stats;
    char buffer[8];
    size_t len;
    OK(slipring_pair(context, &near, &far));
    OK(slipring_send(near, "hello", 5, SLIPRING_DEFAULT));
    OK(slipring_connection_get_stats(near, &stats, sizeof stats));
    CHECK(stats.sent.messages == 1 && stats.sent.bytes == 5 && stats.send_queue == 64);
    CHECK(stats.received.messages == 0 && stats.loans_out == 0);
    /* The connection works on. */
    OK(slipring_recv(far, buffer, 8, &len, SLIPRING_DEFAULT));
    OK(slipring_connection_get_stats(far, &stats, sizeof stats));
    CHECK(stats.received.messages == 1 && stats.received.bytes == 5 && stats.recv_queue == 0);
    /* A program of an older header knows less, one of a newer header more. */
    unsigned char words[sizeof stats + 8];
    memset(words, 0xee, sizeof words);
    OK(slipring_connection_get_stats(near, (slipring_stats *)(void *)words, 8));
    CHECK(words[0] == 1 && words[8] == 0xee);
    OK(slipring_connection_get_stats(near, (slipring_stats *)(void *)words, sizeof words));
    CHECK(words[sizeof stats] == 0);
    OK(slipring_connection_close(near));
    OK(slipring_connection_close(far));
}

static void options(void) {
    slipring_options *options;
    slipring_context *strict, *wrong;
    slipring_connection *near, *far;
    OK(slipring_options_new(&options));
    OK(slipring_options_set(options, SLIPRING_OPTION_HANDSHAKE_TIMEOUT, HANG));
    OK(slipring_options_set(options, SLIPRING_OPTION_MAX_MESSAGE, 100));
    OK(slipring_options_set(options, SLIPRING_OPTION_SPIN, 0));
    OK(slipring_options_set(options, SLIPRING_OPTION_PEER_POLICY, SLIPRING_PEERS_OF_ANYONE));
    OK(slipring_options_set(options, SLIPRING_OPTION_RELEASE_GRACE, SLIPRING_FOREVER));
    OK(slipring_options_set_loan_limit(options, 4, 1 << 20));
    OK(slipring_context_new(options, &strict));
    OK(slipring_pair(strict, &near, &far));
    IS(SLIPRING_TOO_LARGE, slipring_send(near, options, 101, SLIPRING_DEFAULT));
    SAYS("message of 101 bytes, the link takes 100");
    OK(slipring_connection_close(near));
    OK(slipring_connection_close(far));
    OK(slipring_context_trim(strict));
    OK(slipring_context_free(strict));
    OK(slipring_options_set(options, SLIPRING_OPTION_RING_CAPACITY, 5000));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_context_new(options, &wrong));
    SAYS("option ring_capacity is 5000");
    IS(SLIPRING_INVALID_ARGUMENT, slipring_options_set(options, 0, 1));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_options_set(options, 999, 1));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_options_set(options, SLIPRING_OPTION_PREFAULT, 2));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_options_set(options, SLIPRING_OPTION_PEER_POLICY, 2));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_options_set(options, SLIPRING_OPTION_LOAN_SLOTS, 1ULL << 32));
    OK(slipring_options_free(options));
}

int main(void) {
    CHECK(strcmp(slipring_last_error(), "") == 0);
    CHECK(strcmp(slipring_status_name(SLIPRING_OTHER), "SLIPRING_OTHER") == 0);
    CHECK(slipring_status_name(1000) == NULL);
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", SLIPRING_VERSION_MAJOR, SLIPRING_VERSION_MINOR,
             SLIPRING_VERSION_PATCH);
    CHECK(strcmp(slipring_version(), version) == 0);
    char address[64];
    int ends[2];
    snprintf(address, sizeof address, "@slipring-capi-%ld", (long)getpid());
    CHECK(pipe(ends) == 0);
    pid_t child = fork_echo(address, ends);
    close(ends[0]);
    context = patient();
    sizes();
    short_buffers_keep_the_message();
    peeks_and_reservations();
    any_order();
    batches();
    deadlines();
    descriptors_and_listeners(address, child, ends[1]);
    close(ends[1]);
    counts();
    options();
    OK(slipring_context_free(context));
    return 0;
}
