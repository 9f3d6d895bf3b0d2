/* Calls: several at once, answered in any order, with bytes and with tensors. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { CALLS = 8 };

static slipring_tensors *numbers(slipring_context *context, int32_t first) {
    const size_t three = 3;
    slipring_tensors *set;
    slipring_tensor *tensor;
    slipring_tensor_view view;
    OK(slipring_tensor_new(context, SLIPRING_DTYPE_INT32, &three, 1, 0, HANG, &tensor));
    OK(slipring_tensor_get_view(tensor, &view, sizeof view));
    for (int at = 0; at < 3; at++) {
        ((int32_t *)view.data)[at] = first + at;
    }
    OK(slipring_tensors_new(&set));
    OK(slipring_tensors_add(set, "x", tensor));
    return set;
}

static int32_t first_of(slipring_tensors *set) {
    slipring_tensor *tensor;
    slipring_tensor_view view;
    size_t index;
    OK(slipring_tensors_find(set, "x", &index));
    OK(slipring_tensors_take(set, index, &tensor));
    OK(slipring_tensor_get_view(tensor, &view, sizeof view));
    CHECK(view.dtype == SLIPRING_DTYPE_INT32 && view.shape[0] == 3);
    int32_t first = *(int32_t *)view.data;
    OK(slipring_tensor_free(tensor));
    OK(slipring_tensors_free(set));
    return first;
}

static void answers_come_in_any_order(slipring_context *context) {
    slipring_connection *near, *far;
    slipring_call calls[CALLS], answer;
    slipring_message message;
    uint64_t ids[CALLS];
    char text[32], buffer[8];
    size_t len;
    OK(slipring_pair(context, &near, &far));
    for (int call = 0; call < CALLS; call++) {
        len = (size_t)snprintf(text, sizeof text, "call %d", call);
        OK(slipring_submit(near, text, len, SLIPRING_DEFAULT, &ids[call]));
    }
    IS(SLIPRING_WOULD_BLOCK, slipring_wait(near, ids[0], SLIPRING_NONBLOCK, &answer));
    IS(SLIPRING_TIMED_OUT, slipring_wait(near, ids[0], SECOND / 100, &answer));
    OK(slipring_peek(far, HANG, &message));
    CHECK(message.kind == SLIPRING_KIND_REQUEST);
    for (int call = 0; call < CALLS; call++) {
        OK(slipring_recv_request(far, HANG, &calls[call]));
        snprintf(text, sizeof text, "call %d", call);
        CHECK(calls[call].len == 6 && memcmp(calls[call].data, text, 6) == 0);
    }
    IS(SLIPRING_WOULD_BLOCK, slipring_recv_request(far, SLIPRING_NONBLOCK, &answer));
    for (int call = CALLS - 1; call >= 0; call--) {
        snprintf(text, sizeof text, "answer %d", call);
        OK(slipring_respond(far, calls[call].id, text, 8, call % 2 == 0 ? SLIPRING_NONBLOCK : HANG));
    }
    /* A message between them is received later. */
    OK(slipring_send(far, "plain", 5, HANG));
    OK(slipring_abandon(near, ids[3]));
    for (int call = 0; call < CALLS; call++) {
        if (call == 3) {
            IS(SLIPRING_INVALID_ARGUMENT, slipring_wait(near, ids[call], HANG, &answer));
            continue;
        }
        OK(slipring_wait(near, ids[call], HANG, &answer));
        snprintf(text, sizeof text, "answer %d", call);
        CHECK(answer.id == ids[call] && answer.len == 8 && memcmp(answer.data, text, 8) == 0);
    }
    OK(slipring_recv(near, buffer, sizeof buffer, &len, HANG));
    CHECK(len == 5);
    /* An empty call and an empty answer. */
    OK(slipring_submit(near, NULL, 0, HANG, &ids[0]));
    OK(slipring_recv_request(far, HANG, &answer));
    CHECK(answer.len == 0);
    OK(slipring_respond(far, answer.id, NULL, 0, SLIPRING_DEFAULT));
    OK(slipring_wait(near, ids[0], SLIPRING_DEFAULT, &answer));
    CHECK(answer.len == 0);
    /* Misuse. */
    IS(SLIPRING_INVALID_ARGUMENT, slipring_wait(near, ids[0], SLIPRING_DEFAULT, &answer));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_wait(near, 12345, SLIPRING_DEFAULT, &answer));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_wait(near, 12345, SLIPRING_DEFAULT, NULL));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_submit(near, NULL, 3, HANG, &ids[0]));
    IS(SLIPRING_INVALID_HANDLE, slipring_submit(NULL, "x", 1, HANG, &ids[0]));
    OK(slipring_send(near, "plain", 5, HANG));
    IS(SLIPRING_OTHER_KIND, slipring_recv_request(far, HANG, &answer));
    OK(slipring_recv(far, buffer, sizeof buffer, &len, HANG));
    void *room;
    OK(slipring_reserve(near, 8, HANG, &room));
    IS(SLIPRING_WRONG_STATE, slipring_submit(near, "x", 1, HANG, &ids[0]));
    OK(slipring_discard(near));
    /* A call that nobody answers. */
    OK(slipring_submit(near, "x", 1, HANG, &ids[0]));
    OK(slipring_connection_close(far));
    IS(SLIPRING_PEER_CLOSED, slipring_wait(near, ids[0], HANG, &answer));
    OK(slipring_connection_close(near));
}

static void calls_have_tensors(slipring_context *context) {
    slipring_connection *near, *far;
    slipring_tensors *set;
    slipring_call answer;
    uint64_t ids[CALLS], id;
    OK(slipring_pair(context, &near, &far));
    for (int call = 0; call < CALLS; call++) {
        OK(slipring_submit_tensors(near, numbers(context, call), HANG, &ids[call]));
    }
    IS(SLIPRING_WOULD_BLOCK, slipring_wait_tensors(near, ids[0], SLIPRING_NONBLOCK, &set));
    IS(SLIPRING_OTHER_KIND, slipring_recv_request(far, HANG, &answer));
    for (int call = 0; call < CALLS; call++) {
        OK(slipring_recv_tensor_request(far, HANG, &id, &set));
        OK(slipring_respond_tensors(far, id, numbers(context, 100 + first_of(set)), HANG));
    }
    for (int call = CALLS - 1; call >= 0; call--) {
        OK(slipring_wait_tensors(near, ids[call], HANG, &set));
        CHECK(first_of(set) == 100 + call);
    }
    /* Tensors may answer bytes, and bytes tensors. */
    OK(slipring_submit(near, "x", 1, HANG, &ids[0]));
    IS(SLIPRING_OTHER_KIND, slipring_recv_tensor_request(far, HANG, &id, &set));
    OK(slipring_recv_request(far, HANG, &answer));
    OK(slipring_respond_tensors(far, answer.id, numbers(context, 7), HANG));
    OK(slipring_wait_tensors(near, ids[0], HANG, &set));
    CHECK(first_of(set) == 7);
    OK(slipring_submit_tensors(near, numbers(context, 1), HANG, &ids[0]));
    OK(slipring_recv_tensor_request(far, HANG, &id, &set));
    CHECK(first_of(set) == 1);
    OK(slipring_respond(far, id, "bytes", 5, HANG));
    IS(SLIPRING_OTHER_KIND, slipring_wait_tensors(near, ids[0], HANG, &set));
    OK(slipring_wait(near, ids[0], HANG, &answer));
    CHECK(answer.len == 5);
    /* What is not sent stays. */
    OK(slipring_connection_close(far));
    slipring_status status;
    /* The sending half learns of it a little later. */
    while ((status = slipring_submit_tensors(near, set = numbers(context, 9), HANG, &id)) == SLIPRING_OK) {
        OK(slipring_abandon(near, id));
    }
    IS(SLIPRING_PEER_CLOSED, status);
    CHECK(first_of(set) == 9);
    IS(SLIPRING_INVALID_HANDLE, slipring_submit_tensors(near, NULL, HANG, &id));
    OK(slipring_connection_close(near));
}

/* What was set aside while a call waited is the parent's. */
static void a_forked_child_gets_nothing_that_was_set_aside(slipring_context *context) {
    slipring_connection *near, *far;
    slipring_tensors *set;
    slipring_message message;
    slipring_call call, answer;
    uint64_t ids[3];
    char buffer[8];
    size_t len;
    OK(slipring_pair(context, &near, &far));
    for (int at = 0; at < 3; at++) {
        OK(slipring_submit(near, "x", 1, HANG, &ids[at]));
    }
    OK(slipring_send(far, "plain", 5, HANG));
    OK(slipring_send_tensors(far, numbers(context, 5), HANG));
    for (int at = 0; at < 3; at++) {
        OK(slipring_recv_request(far, HANG, &call));
        if (at == 1) {
            OK(slipring_respond_tensors(far, call.id, numbers(context, 6), HANG));
        } else {
            OK(slipring_respond(far, call.id, "yes", 3, HANG));
        }
    }
    OK(slipring_wait(near, ids[2], HANG, &answer));
    pid_t child = fork_alone();
    CHECK(child >= 0);
    if (child == 0) {
        IS(SLIPRING_FORKED, slipring_peek(near, SLIPRING_NONBLOCK, &message));
        IS(SLIPRING_FORKED, slipring_recv(near, buffer, sizeof buffer, &len, SLIPRING_NONBLOCK));
        IS(SLIPRING_FORKED, slipring_recv_tensors(near, SLIPRING_NONBLOCK, &set));
        IS(SLIPRING_FORKED, slipring_recv_request(near, SLIPRING_NONBLOCK, &call));
        IS(SLIPRING_FORKED, slipring_wait(near, ids[0], SLIPRING_NONBLOCK, &answer));
        IS(SLIPRING_FORKED, slipring_wait_tensors(near, ids[1], SLIPRING_NONBLOCK, &set));
        IS(SLIPRING_FORKED, slipring_submit(near, "x", 1, HANG, &ids[2]));
        IS(SLIPRING_FORKED, slipring_abandon(near, ids[0]));
        IS(SLIPRING_FORKED, slipring_connection_close(near));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(slipring_recv(near, buffer, sizeof buffer, &len, HANG));
    OK(slipring_recv_tensors(near, HANG, &set));
    CHECK(first_of(set) == 5);
    OK(slipring_wait_tensors(near, ids[1], HANG, &set));
    CHECK(first_of(set) == 6);
    OK(slipring_wait(near, ids[0], HANG, &answer));
    OK(slipring_connection_close(near));
    OK(slipring_connection_close(far));
}

static void a_server_dies(slipring_context *context) {
    slipring_listener *listener;
    slipring_connection *link;
    slipring_call call;
    char address[64];
    uint64_t id;
    snprintf(address, sizeof address, "slipring-calls-%ld", (long)getpid());
    pid_t child = fork_alone();
    CHECK(child >= 0);
    if (child == 0) {
        slipring_context *own = patient();
        OK(slipring_connect(own, address, HANG, &link));
        OK(slipring_recv_request(link, HANG, &call));
        OK(slipring_respond(link, call.id, "yes", 3, HANG));
        OK(slipring_recv_request(link, HANG, &call));
        kill(getpid(), SIGKILL);
    }
    OK(slipring_listen(context, address, &listener));
    OK(slipring_accept(listener, HANG, &link));
    OK(slipring_submit(link, "there?", 6, HANG, &id));
    OK(slipring_wait(link, id, HANG, &call));
    OK(slipring_submit(link, "still?", 6, HANG, &id));
    IS(SLIPRING_PEER_DIED, slipring_wait(link, id, HANG, &call));
    CHECK(waitpid(child, NULL, 0) == child);
    IS(SLIPRING_PEER_DIED, slipring_connection_close(link));
    OK(slipring_listener_free(listener));
}

int main(void) {
    slipring_context *context = patient();
    answers_come_in_any_order(context);
    calls_have_tensors(context);
    a_forked_child_gets_nothing_that_was_set_aside(context);
    a_server_dies(context);
    OK(slipring_context_free(context));
    return 0;
}
