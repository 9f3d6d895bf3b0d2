/* The peer in C of every pair of languages. `test_pairs.py` of the Python package has what the two sides say. */
#include "check.h"

enum { BATCH = 16, CALLS = 8, SAMPLES = 100 };

static const size_t LENGTHS[] = {0, 1, 8, 64, 4096, 100000, 5 << 20};
enum { MESSAGES = sizeof LENGTHS / sizeof LENGTHS[0], LONGEST = 5 << 20 };

static unsigned char buffer[LONGEST], expected[LONGEST];

static void said(const char *kind) {
    puts(kind);
    fflush(stdout);
}

static size_t receive(slipring_connection *link) {
    size_t len;
    OK(slipring_recv(link, buffer, sizeof buffer, &len, HANG));
    return len;
}

static void is(slipring_connection *link, const char *word) {
    CHECK(receive(link) == strlen(word) && memcmp(buffer, word, strlen(word)) == 0);
}

static void make(size_t len) {
    for (size_t at = 0; at < len; at++) {
        expected[at] = (unsigned char)((at * 7 + len) % 251);
    }
}

static slipring_tensor *take(slipring_tensors *set, const char *name, slipring_tensor_view *view) {
    slipring_tensor *tensor;
    size_t index;
    OK(slipring_tensors_find(set, name, &index));
    OK(slipring_tensors_take(set, index, &tensor));
    OK(slipring_tensor_get_view(tensor, view, sizeof *view));
    return tensor;
}

/* A set with one tensor. */
static slipring_tensors *alone(const char *name, slipring_tensor *tensor) {
    slipring_tensors *set;
    OK(slipring_tensors_new(&set));
    OK(slipring_tensors_add(set, name, tensor));
    return set;
}

static slipring_tensor *new_tensor(slipring_context *context, uint32_t dtype, const size_t *shape, size_t rank,
                                   uint32_t flags, slipring_tensor_view *view) {
    slipring_tensor *tensor;
    OK(slipring_tensor_new(context, dtype, shape, rank, flags, HANG, &tensor));
    OK(slipring_tensor_get_view(tensor, view, sizeof *view));
    return tensor;
}

static void send_in_place(slipring_connection *link, const void *bytes, size_t len) {
    void *room;
    OK(slipring_reserve(link, len, HANG, &room));
    if (len > 0) {
        memcpy(room, bytes, len);
    }
    OK(slipring_publish(link));
}

static void serve(slipring_context *context, const char *name) {
    slipring_publisher *publisher;
    slipring_listener *listener;
    slipring_connection *link;
    slipring_message message;
    slipring_tensors *set;
    slipring_tensor *tensor;
    slipring_tensor_view view, twice;
    slipring_call calls[CALLS];
    unsigned char numbers[BATCH][8];
    char topic[128];
    uint64_t id;
    size_t len;
    snprintf(topic, sizeof topic, "%s-topic", name);
    OK(slipring_publisher_new(context, topic, NULL, 0, &publisher));
    OK(slipring_listen(context, name, &listener));
    OK(slipring_accept(listener, HANG, &link));

    for (int at = 0; at < MESSAGES; at++) {
        len = receive(link);
        OK(slipring_send(link, buffer, len, HANG));
    }
    said("messages");

    for (int at = 0; at < MESSAGES; at++) {
        OK(slipring_peek(link, HANG, &message));
        len = message.len;
        if (len > 0) {
            memcpy(buffer, message.data, len);
        }
        OK(slipring_release(link));
        send_in_place(link, buffer, len);
    }
    said("in place");

    for (int at = 0; at < BATCH; at++) {
        CHECK(receive(link) == 8);
        memcpy(numbers[at], buffer, 8);
    }
    OK(slipring_batch_begin(link));
    for (int at = 0; at < BATCH; at++) {
        OK(slipring_batch_push(link, numbers[at], 8, HANG));
    }
    OK(slipring_publish(link));
    said("batch");

    for (uint32_t dtype = SLIPRING_DTYPE_BOOL; dtype <= SLIPRING_DTYPE_FLOAT8_E5M2; dtype++) {
        if (dtype != SLIPRING_DTYPE_BYTES) {
            OK(slipring_recv_tensors(link, HANG, &set));
            OK(slipring_send_tensors(link, set, HANG));
        }
    }
    said("tensors");

    OK(slipring_recv_tensors(link, HANG, &set));
    tensor = take(set, "weights", &view);
    CHECK(view.dtype == SLIPRING_DTYPE_INT64 && view.flags == SLIPRING_TENSOR_FROZEN);
    int64_t sum = 0;
    for (size_t at = 0; at < view.shape[0]; at++) {
        sum += ((const int64_t *)view.data)[at];
    }
    OK(slipring_send(link, &sum, sizeof sum, HANG));
    OK(slipring_tensor_free(tensor));
    OK(slipring_tensors_free(set));
    said("frozen");

    for (int call = 0; call < CALLS; call++) {
        OK(slipring_recv_request(link, HANG, &calls[call]));
        /* Its bytes are there until the next receive. */
        CHECK(calls[call].len == 6);
        for (size_t at = 0; at < 6; at++) {
            buffer[call * 6 + at] = ((const unsigned char *)calls[call].data)[5 - at];
        }
    }
    for (int call = CALLS - 1; call >= 0; call--) {
        OK(slipring_respond(link, calls[call].id, buffer + call * 6, 6, HANG));
    }
    said("calls");

    OK(slipring_recv_tensor_request(link, HANG, &id, &set));
    slipring_tensor *x = take(set, "x", &view);
    tensor = new_tensor(context, SLIPRING_DTYPE_INT32, view.shape, view.rank, 0, &twice);
    for (size_t at = 0; at < view.shape[0]; at++) {
        ((int32_t *)twice.data)[at] = ((const int32_t *)view.data)[at] * 2;
    }
    OK(slipring_tensor_check(x));
    OK(slipring_tensor_free(x));
    OK(slipring_tensors_free(set));
    OK(slipring_respond_tensors(link, id, alone("y", tensor), HANG));
    said("tensor calls");

    is(link, "joined");
    for (uint64_t number = 0; number < SAMPLES; number++) {
        if (number % 10 == 9) {
            const size_t shape[] = {100, 100};
            tensor = new_tensor(context, SLIPRING_DTYPE_UINT8, shape, 2, 0, &view);
            memset(view.data, (int)number, view.len);
            OK(slipring_publisher_send_tensor(publisher, tensor, HANG));
        } else {
            OK(slipring_publisher_send(publisher, &number, sizeof number, HANG));
        }
    }
    is(link, "seen");
    said("topic");

    IS(SLIPRING_END, slipring_recv(link, buffer, sizeof buffer, &len, HANG));
    OK(slipring_connection_close(link));
    OK(slipring_listener_free(listener));
    OK(slipring_publisher_free(publisher));
    said("end");
}

static void ask(slipring_context *context, const char *name) {
    slipring_connection *link;
    slipring_subscriber *subscriber;
    slipring_message message;
    slipring_tensors *set;
    slipring_tensor *tensor;
    slipring_tensor_view view;
    slipring_sample sample;
    slipring_call answer;
    uint64_t ids[CALLS];
    char text[128];
    OK(slipring_connect(context, name, HANG, &link));

    for (int at = 0; at < MESSAGES; at++) {
        make(LENGTHS[at]);
        OK(slipring_send(link, expected, LENGTHS[at], HANG));
        CHECK(receive(link) == LENGTHS[at] && memcmp(buffer, expected, LENGTHS[at]) == 0);
    }
    said("messages");

    for (int at = 0; at < MESSAGES; at++) {
        make(LENGTHS[at]);
        send_in_place(link, expected, LENGTHS[at]);
        OK(slipring_peek(link, HANG, &message));
        CHECK(message.len == LENGTHS[at]);
        CHECK(message.len == 0 || memcmp(message.data, expected, message.len) == 0);
        OK(slipring_release(link));
    }
    said("in place");

    OK(slipring_batch_begin(link));
    for (uint64_t number = 0; number < BATCH; number++) {
        OK(slipring_batch_push(link, &number, sizeof number, HANG));
    }
    OK(slipring_publish(link));
    for (uint64_t number = 0; number < BATCH; number++) {
        CHECK(receive(link) == 8 && memcmp(buffer, &number, 8) == 0);
    }
    said("batch");

    for (uint32_t dtype = SLIPRING_DTYPE_BOOL; dtype <= SLIPRING_DTYPE_FLOAT8_E5M2; dtype++) {
        static const struct {
            const char *name;
            size_t rank, shape[3];
        } KINDS[] = {{"one", 3, {2, 3, 4}}, {"two", 2, {2, 4, 0}}};
        if (dtype == SLIPRING_DTYPE_BYTES) {
            continue;
        }
        OK(slipring_tensors_new(&set));
        for (int kind = 0; kind < 2; kind++) {
            tensor = new_tensor(context, dtype, KINDS[kind].shape, KINDS[kind].rank, 0, &view);
            for (size_t at = 0; at < view.len; at++) {
                ((unsigned char *)view.data)[at] = at % 3 == 0;
            }
            OK(slipring_tensors_add(set, KINDS[kind].name, tensor));
        }
        OK(slipring_send_tensors(link, set, HANG));
        OK(slipring_recv_tensors(link, HANG, &set));
        for (int kind = 0; kind < 2; kind++) {
            size_t rank = KINDS[kind].rank;
            tensor = take(set, KINDS[kind].name, &view);
            CHECK(view.dtype == dtype && view.rank == rank);
            CHECK(memcmp(view.shape, KINDS[kind].shape, rank * sizeof(size_t)) == 0);
            for (size_t at = 0; at < view.len; at++) {
                CHECK(((const unsigned char *)view.data)[at] == (at % 3 == 0));
            }
            OK(slipring_tensor_free(tensor));
        }
        OK(slipring_tensors_free(set));
    }
    said("tensors");

    const size_t thousand = 1000;
    tensor = new_tensor(context, SLIPRING_DTYPE_INT64, &thousand, 1, SLIPRING_TENSOR_FROZEN, &view);
    for (int64_t at = 0; at < 1000; at++) {
        ((int64_t *)view.data)[at] = at;
    }
    OK(slipring_send_tensors(link, alone("weights", tensor), HANG));
    const int64_t sum = 499500;
    CHECK(receive(link) == sizeof sum && memcmp(buffer, &sum, sizeof sum) == 0);
    said("frozen");

    for (int call = 0; call < CALLS; call++) {
        snprintf(text, sizeof text, "call %d", call);
        OK(slipring_submit(link, text, 6, HANG, &ids[call]));
    }
    for (int call = 0; call < CALLS; call++) {
        snprintf(text, sizeof text, "%d llac", call);
        OK(slipring_wait(link, ids[call], HANG, &answer));
        CHECK(answer.len == 6 && memcmp(answer.data, text, 6) == 0);
    }
    said("calls");

    const size_t three = 3;
    tensor = new_tensor(context, SLIPRING_DTYPE_INT32, &three, 1, 0, &view);
    for (int32_t at = 0; at < 3; at++) {
        ((int32_t *)view.data)[at] = at + 1;
    }
    OK(slipring_submit_tensors(link, alone("x", tensor), HANG, &ids[0]));
    OK(slipring_wait_tensors(link, ids[0], HANG, &set));
    tensor = take(set, "y", &view);
    CHECK(view.dtype == SLIPRING_DTYPE_INT32 && view.shape[0] == 3);
    for (int32_t at = 0; at < 3; at++) {
        CHECK(((const int32_t *)view.data)[at] == 2 * (at + 1));
    }
    OK(slipring_tensor_free(tensor));
    OK(slipring_tensors_free(set));
    said("tensor calls");

    snprintf(text, sizeof text, "%s-topic", name);
    OK(slipring_subscriber_new(context, text, SLIPRING_EVERY, 0, HANG, &subscriber));
    OK(slipring_send(link, "joined", 6, HANG));
    for (uint64_t number = 0; number < SAMPLES; number++) {
        OK(slipring_subscriber_next(subscriber, HANG, &sample));
        CHECK(sample.missed == 0);
        if (number % 10 == 9) {
            OK(slipring_subscriber_take_tensors(subscriber, &set));
            OK(slipring_tensors_take(set, 0, &tensor));
            OK(slipring_tensor_get_view(tensor, &view, sizeof view));
            CHECK(view.dtype == SLIPRING_DTYPE_UINT8 && view.rank == 2 && view.shape[0] == 100 && view.shape[1] == 100);
            for (size_t at = 0; at < view.len; at++) {
                CHECK(((const unsigned char *)view.data)[at] == number);
            }
            OK(slipring_tensor_free(tensor));
            OK(slipring_tensors_free(set));
        } else {
            CHECK(sample.len == sizeof number && memcmp(sample.data, &number, sizeof number) == 0);
        }
    }
    OK(slipring_send(link, "seen", 4, HANG));
    OK(slipring_subscriber_free(subscriber));
    said("topic");

    OK(slipring_connection_close(link));
    said("end");
}

int main(int count, char **words) {
    slipring_context *context = patient();
    CHECK(count == 3);
    if (strcmp(words[1], "serve") == 0) {
        serve(context, words[2]);
    } else {
        ask(context, words[2]);
    }
    OK(slipring_context_free(context));
    return 0;
}
