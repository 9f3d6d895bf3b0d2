/* Topics: every policy, in place and by copy, tensors, evictions, deaths, and misuse. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static char address[64];

static slipring_publisher *publish(slipring_context *context, slipring_publisher_options options) {
    static int topics;
    slipring_publisher *publisher;
    snprintf(address, sizeof address, "slipring-topics-%ld-%d", (long)getpid(), topics++);
    OK(slipring_publisher_new(context, address, &options, sizeof options, &publisher));
    return publisher;
}

static slipring_subscriber *subscribe(slipring_context *context, int64_t policy, uint32_t flags) {
    slipring_subscriber *subscriber;
    OK(slipring_subscriber_new(context, address, policy, flags, HANG, &subscriber));
    return subscriber;
}

static void send_number(slipring_publisher *publisher, uint64_t number) {
    OK(slipring_publisher_send(publisher, &number, sizeof number, SLIPRING_DEFAULT));
}

static slipring_sample next(slipring_subscriber *subscriber) {
    slipring_sample sample;
    OK(slipring_subscriber_next(subscriber, HANG, &sample));
    return sample;
}

static uint64_t number_of(slipring_sample sample) {
    uint64_t number;
    CHECK(sample.kind == SLIPRING_KIND_MESSAGE && sample.len == sizeof number);
    memcpy(&number, sample.data, sizeof number);
    return number;
}

static void each_policy_gets_its_messages(slipring_context *context) {
    slipring_publisher *publisher = publish(context, (slipring_publisher_options){.slots = 64});
    slipring_subscriber *every = subscribe(context, SLIPRING_EVERY, 0);
    slipring_subscriber *five = subscribe(context, 5, 0);
    slipring_subscriber *latest = subscribe(context, SLIPRING_LATEST, 0);
    slipring_subscriber_info infos[4];
    slipring_subscriber_stats stats;
    slipring_publisher_stats counts;
    slipring_event event;
    slipring_sample sample;
    size_t count;
    IS(SLIPRING_WOULD_BLOCK, slipring_subscriber_next(every, SLIPRING_NONBLOCK, &sample));
    IS(SLIPRING_TIMED_OUT, slipring_subscriber_next(latest, SECOND / 100, &sample));
    for (uint64_t number = 0; number < 50; number++) {
        send_number(publisher, number);
    }
    for (uint64_t number = 0; number < 50; number++) {
        sample = next(every);
        CHECK(sample.sequence == number + 1 && sample.missed == 0 && sample.flags == 0);
        CHECK(number_of(sample) == number);
    }
    sample = next(five);
    CHECK(sample.sequence == 46 && sample.missed == 45 && number_of(sample) == 45);
    sample = next(latest);
    CHECK(sample.sequence == 50 && number_of(sample) == 49);
    IS(SLIPRING_WOULD_BLOCK, slipring_subscriber_next(latest, SLIPRING_NONBLOCK, &sample));
    OK(slipring_subscriber_get_stats(latest, &stats, sizeof stats));
    CHECK(stats.received == 1 && stats.missed == 49 && stats.held == 0);
    OK(slipring_publisher_get_stats(publisher, &counts, sizeof counts));
    CHECK(counts.sent == 50 && counts.subscribers == 3);
    OK(slipring_publisher_subscribers(publisher, infos, 4, &count));
    CHECK(count == 3 && infos[0].policy == SLIPRING_EVERY && infos[0].pid == getpid() && infos[0].lag <= 50);
    CHECK(infos[1].policy == 5 && infos[2].policy == SLIPRING_LATEST && infos[2].uid == getuid());
    OK(slipring_publisher_subscribers(publisher, NULL, 0, &count));
    CHECK(count == 3);
    for (int joined = 0; joined < 3; joined++) {
        OK(slipring_publisher_next_event(publisher, &event));
        CHECK(event.kind == SLIPRING_EVENT_JOINED && event.pid == getpid());
    }
    IS(SLIPRING_WOULD_BLOCK, slipring_publisher_next_event(publisher, &event));
    /* One is evicted, one leaves. */
    OK(slipring_publisher_evict(publisher, infos[1].id));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_publisher_evict(publisher, 12345));
    while (slipring_subscriber_next(five, HANG, &sample) == SLIPRING_OK) {
    }
    IS(SLIPRING_EVICTED, slipring_subscriber_next(five, HANG, &sample));
    OK(slipring_publisher_next_event(publisher, &event));
    CHECK(event.kind == SLIPRING_EVENT_EVICTED && event.subscriber == infos[1].id);
    OK(slipring_subscriber_free(five));
    OK(slipring_subscriber_free(latest));
    OK(slipring_subscriber_free(every));
    OK(slipring_publisher_free(publisher));
}

/* Messages of every length, in the slot and in the pool, are read in place and copied. */
static void messages_of_all_lengths_arrive(slipring_context *context) {
    slipring_publisher *publisher = publish(context, (slipring_publisher_options){.slots = 4, .slot_len = 65536});
    slipring_subscriber *every = subscribe(context, SLIPRING_EVERY, 0);
    unsigned char *bytes = malloc(SIZES[COUNT - 1]);
    slipring_sample sample;
    size_t len;
    void *room;
    for (int size = 0; size < COUNT; size++) {
        for (int is_in_place = 0; is_in_place < 2; is_in_place++) {
            if (is_in_place) {
                OK(slipring_publisher_reserve(publisher, SIZES[size], &room));
                fill(room, SIZES[size]);
                IS(SLIPRING_WRONG_STATE, slipring_publisher_send(publisher, "x", 1, HANG));
                OK(slipring_publisher_publish(publisher));
            } else {
                fill(bytes, SIZES[size]);
                OK(slipring_publisher_send(publisher, bytes, SIZES[size], HANG));
            }
            sample = next(every);
            CHECK(sample.len == SIZES[size] && (sample.len == 0 || is_filled(sample.data, sample.len)));
            OK(slipring_subscriber_check(every));
            if (sample.len > 0) {
                IS(SLIPRING_BUFFER_TOO_SHORT, slipring_subscriber_copy(every, bytes, sample.len - 1, &len));
                CHECK(len == SIZES[size]);
            }
            memset(bytes, 0, SIZES[size]);
            OK(slipring_subscriber_copy(every, bytes, SIZES[COUNT - 1], &len));
            CHECK(len == SIZES[size] && is_filled(bytes, len));
        }
    }
    OK(slipring_publisher_reserve(publisher, 100, &room));
    OK(slipring_publisher_discard(publisher));
    IS(SLIPRING_WRONG_STATE, slipring_publisher_discard(publisher));
    IS(SLIPRING_WRONG_STATE, slipring_publisher_publish(publisher));
    OK(slipring_subscriber_release(every));
    IS(SLIPRING_WRONG_STATE, slipring_subscriber_copy(every, bytes, 10, &len));
    IS(SLIPRING_WRONG_STATE, slipring_subscriber_check(every));
    IS(SLIPRING_WOULD_BLOCK, slipring_subscriber_next(every, SLIPRING_NONBLOCK, &sample));
    free(bytes);
    OK(slipring_subscriber_free(every));
    OK(slipring_publisher_free(publisher));
}

static slipring_tensor *frame(slipring_context *context, size_t len) {
    slipring_tensor *tensor;
    slipring_tensor_view view;
    OK(slipring_tensor_new(context, SLIPRING_DTYPE_UINT8, &len, 1, 0, HANG, &tensor));
    OK(slipring_tensor_get_view(tensor, &view, sizeof view));
    fill(view.data, view.len);
    return tensor;
}

static void tensors_go_to_all(slipring_context *context) {
    slipring_publisher *publisher = publish(context, (slipring_publisher_options){0});
    slipring_subscriber *subscribers[2];
    slipring_tensors *set;
    slipring_tensor *tensor;
    slipring_tensor_view view;
    slipring_sample sample;
    size_t count;
    subscribers[0] = subscribe(context, SLIPRING_EVERY, SLIPRING_NO_RECONNECT);
    subscribers[1] = subscribe(context, 8, SLIPRING_NO_RECONNECT);
    OK(slipring_publisher_send_tensor(publisher, frame(context, 100000), SLIPRING_DEFAULT));
    OK(slipring_tensors_new(&set));
    OK(slipring_tensors_add(set, "left", frame(context, 1000)));
    OK(slipring_tensors_add(set, "right", frame(context, 2000)));
    OK(slipring_publisher_send_tensors(publisher, set, HANG));
    OK(slipring_publisher_send(publisher, "end", 3, SLIPRING_NONBLOCK));
    for (int at = 0; at < 2; at++) {
        sample = next(subscribers[at]);
        CHECK(sample.kind == SLIPRING_KIND_TENSORS && sample.data == NULL);
        OK(slipring_subscriber_take_tensors(subscribers[at], &set));
        IS(SLIPRING_WRONG_STATE, slipring_subscriber_take_tensors(subscribers[at], &set));
        OK(slipring_tensors_take(set, 0, &tensor));
        OK(slipring_tensors_free(set));
        OK(slipring_tensor_get_view(tensor, &view, sizeof view));
        CHECK(view.len == 100000 && is_filled(view.data, view.len));
        next(subscribers[at]);
        OK(slipring_subscriber_take_tensors(subscribers[at], &set));
        OK(slipring_tensors_count(set, &count));
        CHECK(count == 2);
        OK(slipring_tensors_free(set));
        sample = next(subscribers[at]);
        CHECK(sample.len == 3 && memcmp(sample.data, "end", 3) == 0);
        IS(SLIPRING_OTHER_KIND, slipring_subscriber_take_tensors(subscribers[at], &set));
        /* It stays readable. */
        if (at == 1) {
            OK(slipring_publisher_free(publisher));
            IS(SLIPRING_END, slipring_subscriber_next(subscribers[at], HANG, &sample));
        }
        CHECK(is_filled(view.data, view.len));
        OK(slipring_tensor_free(tensor));
    }
    OK(slipring_subscriber_free(subscribers[0]));
    OK(slipring_subscriber_free(subscribers[1]));
}

/* One that reads nothing is waited for, and evicted. */
static void a_stalled_subscriber_is_evicted(slipring_context *context) {
    slipring_publisher_options options = {.slots = 4, .stall_after = SECOND / 100};
    slipring_publisher *publisher = publish(context, options);
    slipring_subscriber *every = subscribe(context, SLIPRING_EVERY, 0);
    slipring_sample sample;
    slipring_status status;
    slipring_event event;
    uint64_t sent = 0;
    while (slipring_publisher_send(publisher, &sent, sizeof sent, SLIPRING_NONBLOCK) == SLIPRING_OK) {
        sent++;
        CHECK(sent < 100);
    }
    CHECK(sent == 3);
    send_number(publisher, sent);
    OK(slipring_publisher_next_event(publisher, &event));
    OK(slipring_publisher_next_event(publisher, &event));
    CHECK(event.kind == SLIPRING_EVENT_EVICTED);
    while ((status = slipring_subscriber_next(every, HANG, &sample)) == SLIPRING_OK) {
    }
    IS(SLIPRING_EVICTED, status);
    OK(slipring_subscriber_free(every));
    OK(slipring_publisher_free(publisher));
}

static void a_descriptor_tells(slipring_context *context) {
    slipring_publisher *publisher = publish(context, (slipring_publisher_options){0});
    slipring_subscriber *latest = subscribe(context, SLIPRING_LATEST, SLIPRING_NO_RECONNECT);
    slipring_sample sample;
    int64_t nanoseconds;
    struct pollfd events = {.events = POLLIN};
    OK(slipring_subscriber_take_turns(latest));
    OK(slipring_subscriber_descriptor(latest, &events.fd));
    for (uint64_t number = 0; number < 20; number++) {
        IS(SLIPRING_WOULD_BLOCK, slipring_subscriber_next(latest, SLIPRING_NONBLOCK, &sample));
        OK(slipring_subscriber_rest(latest, &nanoseconds));
        send_number(publisher, number);
        CHECK(poll(&events, 1, 60000) == 1);
        CHECK(number_of(next(latest)) == number);
    }
    slipring_status status;
    while ((status = slipring_subscriber_next(latest, SLIPRING_NONBLOCK, &sample)) == SLIPRING_WOULD_BLOCK) {
        OK(slipring_publisher_free(publisher));
        publisher = NULL;
        CHECK(poll(&events, 1, 60000) == 1);
    }
    IS(SLIPRING_END, status);
    OK(slipring_subscriber_free(latest));
}

/* A publisher that is killed, and one that comes again. */
static void a_publisher_dies(slipring_context *context) {
    slipring_subscriber *every, *again;
    slipring_sample sample;
    slipring_status status;
    int told[2];
    char word;
    snprintf(address, sizeof address, "slipring-topics-%ld-dies", (long)getpid());
    CHECK(pipe(told) == 0);
    pid_t child = fork_alone();
    CHECK(child >= 0);
    if (child == 0) {
        slipring_context *own = patient();
        slipring_publisher *publisher;
        slipring_publisher_options options = {.history = 1};
        OK(slipring_publisher_new(own, address, &options, sizeof options, &publisher));
        send_number(publisher, 7);
        CHECK(read(told[0], &word, 1) == 1);
        kill(getpid(), SIGKILL);
    }
    every = subscribe(context, SLIPRING_EVERY, SLIPRING_NO_RECONNECT);
    again = subscribe(context, SLIPRING_LATEST, 0);
    CHECK(number_of(next(every)) == 7 && number_of(next(again)) == 7);
    CHECK(write(told[1], "x", 1) == 1);
    IS(SLIPRING_PEER_DIED, slipring_subscriber_next(every, HANG, &sample));
    CHECK(waitpid(child, NULL, 0) == child);
    IS(SLIPRING_TIMED_OUT, slipring_subscriber_next(again, SECOND / 10, &sample));
    slipring_publisher *publisher;
    slipring_publisher_options options = {.history = 1};
    OK(slipring_publisher_new(context, address, &options, sizeof options, &publisher));
    send_number(publisher, 8);
    OK(slipring_subscriber_next(again, HANG, &sample));
    CHECK(number_of(sample) == 8 && sample.flags == SLIPRING_SAMPLE_RESTARTED);
    status = slipring_subscriber_new(context, "slipring-topics-nobody", SLIPRING_EVERY, 0, SLIPRING_NONBLOCK, &every);
    IS(SLIPRING_NOBODY_LISTENS, status);
    OK(slipring_subscriber_free(every));
    OK(slipring_subscriber_free(again));
    OK(slipring_publisher_free(publisher));
    close(told[0]);
    close(told[1]);
}

static void misuse(slipring_context *context) {
    slipring_publisher *publisher = publish(context, (slipring_publisher_options){.without_every = 1}), *other;
    slipring_subscriber *subscriber = subscribe(context, SLIPRING_LATEST, 0), *none = NULL;
    slipring_sample sample;
    char larger[sizeof(slipring_publisher_options) + 8] = {0};
    uint64_t number = 1;
    IS(SLIPRING_REFUSED, slipring_subscriber_new(context, address, SLIPRING_EVERY, 0, SLIPRING_NONBLOCK, &none));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_subscriber_new(context, address, 0, 0, SLIPRING_NONBLOCK, &none));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_subscriber_new(context, address, -3, 0, SLIPRING_NONBLOCK, &none));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_subscriber_new(context, address, 1, 2, SLIPRING_NONBLOCK, &none));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_subscriber_new(context, NULL, 1, 0, SLIPRING_NONBLOCK, &none));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_subscriber_new(context, address, 1, 0, SLIPRING_NONBLOCK, NULL));
    CHECK(none == NULL);
    IS(SLIPRING_ADDRESS_IN_USE, slipring_publisher_new(context, address, NULL, 0, &other));
    slipring_publisher_options wrong = {.slots = 3};
    IS(SLIPRING_INVALID_ARGUMENT, slipring_publisher_new(context, "slipring-topics-x", &wrong, sizeof wrong, &other));
    SAYS("slots");
    wrong = (slipring_publisher_options){.stall_after = -1};
    IS(SLIPRING_INVALID_ARGUMENT, slipring_publisher_new(context, "slipring-topics-x", &wrong, sizeof wrong, &other));
    /* A program with a newer header may set what this library does not know. */
    snprintf(address, sizeof address, "slipring-topics-%ld-newer", (long)getpid());
    OK(slipring_publisher_new(context, address, (void *)larger, sizeof larger, &other));
    OK(slipring_publisher_free(other));
    larger[sizeof(slipring_publisher_options)] = 1;
    IS(SLIPRING_INVALID_ARGUMENT, slipring_publisher_new(context, address, (void *)larger, sizeof larger, &other));
    IS(SLIPRING_INVALID_HANDLE, slipring_publisher_send(NULL, &number, 8, HANG));
    IS(SLIPRING_INVALID_HANDLE, slipring_publisher_send((slipring_publisher *)subscriber, &number, 8, HANG));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_publisher_send(publisher, NULL, 8, HANG));
    IS(SLIPRING_INVALID_HANDLE, slipring_publisher_send_tensor(publisher, NULL, HANG));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_subscriber_next(subscriber, -5, &sample));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_subscriber_next(subscriber, HANG, NULL));
    pid_t child = fork_alone();
    CHECK(child >= 0);
    if (child == 0) {
        IS(SLIPRING_FORKED, slipring_publisher_send(publisher, &number, 8, HANG));
        IS(SLIPRING_FORKED, slipring_subscriber_next(subscriber, HANG, &sample));
        OK(slipring_publisher_free(publisher));
        OK(slipring_subscriber_free(subscriber));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    send_number(publisher, 9);
    CHECK(number_of(next(subscriber)) == 9);
    OK(slipring_publisher_free(publisher));
    IS(SLIPRING_INVALID_HANDLE, slipring_publisher_free(publisher));
    OK(slipring_subscriber_free(subscriber));
    IS(SLIPRING_INVALID_HANDLE, slipring_subscriber_next(subscriber, HANG, &sample));
    OK(slipring_publisher_free(NULL));
    OK(slipring_subscriber_free(NULL));
}

int main(void) {
    slipring_context *context = patient();
    each_policy_gets_its_messages(context);
    messages_of_all_lengths_arrive(context);
    tensors_go_to_all(context);
    a_stalled_subscriber_is_evicted(context);
    a_descriptor_tells(context);
    a_publisher_dies(context);
    misuse(context);
    OK(slipring_context_free(context));
    return 0;
}
