/* Tensors: made, written, shared, sent alone and in sets, received, and misused. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static const size_t WIDTHS[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 2, 1, 1};

static slipring_tensor_view view(const slipring_tensor *tensor) {
    slipring_tensor_view view;
    OK(slipring_tensor_get_view(tensor, &view, sizeof view));
    return view;
}

/* A tensor of bytes, filled. */
static slipring_tensor *bytes(slipring_context *context, size_t len, uint32_t flags) {
    slipring_tensor *tensor;
    OK(slipring_tensor_new(context, SLIPRING_DTYPE_UINT8, &len, 1, flags, SLIPRING_DEFAULT, &tensor));
    slipring_tensor_view found = view(tensor);
    CHECK(found.len == len && found.flags == SLIPRING_TENSOR_WRITABLE);
    fill(found.data, len);
    return tensor;
}

static void is_bytes(slipring_tensor *tensor, size_t len) {
    slipring_tensor_view found = view(tensor);
    CHECK(found.dtype == SLIPRING_DTYPE_UINT8 && found.rank == 1 && found.shape[0] == len);
    CHECK(found.len == len && is_filled(found.data, len));
    OK(slipring_tensor_check(tensor));
}

static void a_tensor_of_every_kind_arrives(slipring_context *context) {
    slipring_connection *near, *far;
    slipring_tensor *tensor;
    const size_t shape[] = {2, 3, 5};
    OK(slipring_pair(context, &near, &far));
    for (uint32_t dtype = SLIPRING_DTYPE_BOOL; dtype <= SLIPRING_DTYPE_FLOAT8_E5M2; dtype++) {
        if (dtype == SLIPRING_DTYPE_BYTES) {
            continue;
        }
        OK(slipring_tensor_new(context, dtype, shape, 3, SLIPRING_TENSOR_ZEROED, HANG, &tensor));
        slipring_tensor_view found = view(tensor);
        CHECK(found.len == 30 * WIDTHS[dtype] && (uintptr_t)found.data % 4096 == 0);
        for (size_t at = 0; at < found.len; at++) {
            CHECK(((unsigned char *)found.data)[at] == 0);
            ((unsigned char *)found.data)[at] = at % 3 == 0;
        }
        OK(slipring_send_tensor(near, tensor, SLIPRING_DEFAULT));
        OK(slipring_recv_tensor(far, HANG, &tensor));
        found = view(tensor);
        CHECK(found.dtype == dtype && found.rank == 3 && memcmp(found.shape, shape, sizeof shape) == 0);
        CHECK(found.shape[3] == 0 && found.flags == SLIPRING_TENSOR_ON_LOAN);
        for (size_t at = 0; at < found.len; at++) {
            CHECK(((unsigned char *)found.data)[at] == (at % 3 == 0));
        }
        OK(slipring_tensor_check(tensor));
        OK(slipring_tensor_free(tensor));
    }
    /* Strings. */
    const size_t count = 2;
    OK(slipring_tensor_new_encoded(context, 13, &count, 1, 0, SLIPRING_DEFAULT, &tensor));
    memcpy(view(tensor).data, "\5\0\0\0hello\0\0\0\0", 13);
    OK(slipring_send_tensor(near, tensor, HANG));
    OK(slipring_recv_tensor(far, SLIPRING_DEFAULT, &tensor));
    CHECK(view(tensor).dtype == SLIPRING_DTYPE_BYTES && view(tensor).len == 13);
    CHECK(memcmp(view(tensor).data, "\5\0\0\0hello\0\0\0\0", 13) == 0);
    OK(slipring_tensor_free(tensor));
    /* No element, and one without dimensions. */
    const size_t none[] = {3, 0};
    OK(slipring_tensor_new(context, SLIPRING_DTYPE_FLOAT32, none, 2, 0, SLIPRING_DEFAULT, &tensor));
    CHECK(view(tensor).data == NULL && view(tensor).len == 0);
    OK(slipring_send_tensor(near, tensor, HANG));
    OK(slipring_recv_tensor(far, HANG, &tensor));
    CHECK(view(tensor).rank == 2 && view(tensor).shape[0] == 3 && view(tensor).len == 0);
    OK(slipring_tensor_free(tensor));
    OK(slipring_tensor_new(context, SLIPRING_DTYPE_INT64, NULL, 0, 0, SLIPRING_DEFAULT, &tensor));
    *(int64_t *)view(tensor).data = -7;
    OK(slipring_send_tensor(near, tensor, HANG));
    OK(slipring_recv_tensor(far, HANG, &tensor));
    CHECK(view(tensor).rank == 0 && *(int64_t *)view(tensor).data == -7);
    OK(slipring_tensor_free(tensor));
    OK(slipring_connection_close(near));
    IS(SLIPRING_END, slipring_recv_tensor(far, HANG, &tensor));
    OK(slipring_connection_close(far));
}

/* One tensor goes to two peers, and stays here. A received one can be sent on. */
static void clones_and_copies(slipring_context *context) {
    slipring_connection *near, *far, *other, *third;
    slipring_tensor *tensor, *clone, *copy, *received;
    OK(slipring_pair(context, &near, &far));
    OK(slipring_pair(context, &other, &third));
    for (uint32_t flags = 0; flags <= SLIPRING_TENSOR_FROZEN; flags++) {
        tensor = bytes(context, 100000, flags);
        IS(SLIPRING_WRONG_STATE, slipring_tensor_clone(tensor, &clone));
        SAYS("slipring_tensor_share");
        IS(SLIPRING_WRONG_STATE, slipring_tensor_copy(tensor, &copy));
        OK(slipring_tensor_share(tensor));
        OK(slipring_tensor_share(tensor));
        CHECK(view(tensor).flags == flags);
        OK(slipring_tensor_clone(tensor, &clone));
        OK(slipring_send_tensor(near, clone, HANG));
        OK(slipring_tensor_clone(tensor, &clone));
        OK(slipring_send_tensor(other, clone, HANG));
        OK(slipring_recv_tensor(far, HANG, &received));
        is_bytes(received, 100000);
        CHECK(view(received).flags == (flags == 0 ? SLIPRING_TENSOR_ON_LOAN : SLIPRING_TENSOR_FROZEN));
        if (flags == 0) {
            IS(SLIPRING_WRONG_STATE, slipring_tensor_clone(received, &clone));
            SAYS("slipring_tensor_copy");
        }
        OK(slipring_tensor_copy(received, &copy));
        OK(slipring_send_tensor(far, received, HANG));
        is_bytes(copy, 100000);
        CHECK(view(copy).flags == 0);
        OK(slipring_send_tensor(far, copy, HANG));
        for (int count = 0; count < 2; count++) {
            OK(slipring_recv_tensor(near, HANG, &received));
            is_bytes(received, 100000);
            OK(slipring_tensor_free(received));
        }
        OK(slipring_recv_tensor(third, HANG, &received));
        is_bytes(received, 100000);
        OK(slipring_tensor_free(received));
        OK(slipring_tensor_free(tensor));
    }
    OK(slipring_connection_close(near));
    OK(slipring_connection_close(far));
    OK(slipring_connection_close(other));
    OK(slipring_connection_close(third));
}

static void sets_have_names_and_an_order(slipring_context *context) {
    slipring_connection *near, *far;
    slipring_tensors *set;
    slipring_tensor *tensor;
    const char *name;
    size_t count, index, len;
    char long_name[257], buffer[8];
    memset(long_name, 'x', 256);
    long_name[256] = 0;
    OK(slipring_pair(context, &near, &far));
    OK(slipring_tensors_new(&set));
    tensor = bytes(context, 10, 0);
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensors_add(set, long_name, tensor));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensors_add(set, "\xff", tensor));
    OK(slipring_tensors_add(set, "ten", tensor));
    tensor = bytes(context, 20, 0);
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensors_add(set, "ten", tensor));
    SAYS("has this name");
    OK(slipring_tensors_add(set, NULL, tensor));
    OK(slipring_tensors_add(set, "", bytes(context, 30, SLIPRING_TENSOR_FROZEN)));
    OK(slipring_tensors_add(set, "f\xc3\xbcnf", bytes(context, 40000, 0)));
    OK(slipring_send_tensors(near, set, HANG));

    IS(SLIPRING_OTHER_KIND, slipring_recv(far, buffer, sizeof buffer, &len, HANG));
    OK(slipring_recv_tensors(far, HANG, &set));
    OK(slipring_tensors_count(set, &count));
    CHECK(count == 4);
    OK(slipring_tensors_name(set, 0, &name));
    CHECK(strcmp(name, "ten") == 0);
    OK(slipring_tensors_name(set, 1, &name));
    CHECK(strcmp(name, "") == 0);
    OK(slipring_tensors_find(set, "f\xc3\xbcnf", &index));
    CHECK(index == 3);
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensors_find(set, "six", &index));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensors_find(set, "", &index));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensors_name(set, 4, &name));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensors_take(set, 4, &tensor));
    OK(slipring_tensors_take(set, 3, &tensor));
    IS(SLIPRING_WRONG_STATE, slipring_send_tensors(far, set, HANG));
    is_bytes(tensor, 40000);
    IS(SLIPRING_WRONG_STATE, slipring_tensors_take(set, 3, &tensor));
    OK(slipring_tensor_free(tensor));
    OK(slipring_tensors_take(set, 0, &tensor));
    is_bytes(tensor, 10);
    OK(slipring_tensor_free(tensor));
    OK(slipring_tensors_free(set));

    /* A whole set goes back as it came. One tensor is no set of two. */
    OK(slipring_tensors_new(&set));
    OK(slipring_tensors_add(set, "a", bytes(context, 1, 0)));
    OK(slipring_tensors_add(set, "b", bytes(context, 2, 0)));
    OK(slipring_send_tensors(near, set, SLIPRING_NONBLOCK));
    OK(slipring_recv_tensors(far, SLIPRING_NONBLOCK, &set));
    OK(slipring_send_tensors(far, set, SLIPRING_DEFAULT));
    IS(SLIPRING_INVALID_TENSOR, slipring_recv_tensor(near, HANG, &tensor));
    IS(SLIPRING_WOULD_BLOCK, slipring_recv_tensor(near, SLIPRING_NONBLOCK, &tensor));
    IS(SLIPRING_WOULD_BLOCK, slipring_recv_tensors(near, SLIPRING_NONBLOCK, &set));
    IS(SLIPRING_TIMED_OUT, slipring_recv_tensors(near, SECOND / 100, &set));
    OK(slipring_send(near, "plain", 5, HANG));
    IS(SLIPRING_OTHER_KIND, slipring_recv_tensor(far, HANG, &tensor));
    IS(SLIPRING_OTHER_KIND, slipring_recv_tensors(far, HANG, &set));
    OK(slipring_recv(far, buffer, sizeof buffer, &len, HANG));
    OK(slipring_connection_close(near));
    OK(slipring_connection_close(far));
}

/* A send that has no room keeps the tensor, and so does one over a connection that is gone. */
static void what_is_not_sent_stays(slipring_context *context) {
    slipring_connection *near, *far;
    slipring_tensor *tensor;
    slipring_tensors *set;
    slipring_status status;
    int sent = 0;
    OK(slipring_pair(context, &near, &far));
    while ((status = slipring_send_tensor(near, tensor = bytes(context, 4096, 0), SLIPRING_NONBLOCK)) == SLIPRING_OK) {
        sent++;
        CHECK(sent < 1000000);
    }
    IS(SLIPRING_WOULD_BLOCK, status);
    is_bytes(tensor, 4096);
    IS(SLIPRING_TIMED_OUT, slipring_send_tensor(near, tensor, SECOND / 100));
    is_bytes(tensor, 4096);
    OK(slipring_tensors_new(&set));
    OK(slipring_tensors_add(set, "x", tensor));
    const char *name;
    OK(slipring_tensors_name(set, 0, &name));
    IS(SLIPRING_WOULD_BLOCK, slipring_send_tensors(near, set, SLIPRING_NONBLOCK));
    CHECK(strcmp(name, "x") == 0); /* as long as the set is there */
    IS(SLIPRING_TIMED_OUT, slipring_send_tensors(near, set, SECOND / 100));
    OK(slipring_recv_tensor(far, HANG, &tensor));
    OK(slipring_tensor_free(tensor));
    OK(slipring_send_tensors(near, set, HANG));
    OK(slipring_connection_close(far));
    /* The sending half learns of it a little later. */
    while ((status = slipring_send_tensor(near, tensor = bytes(context, 10, 0), HANG)) == SLIPRING_OK) {
    }
    IS(SLIPRING_PEER_CLOSED, status);
    is_bytes(tensor, 10);
    OK(slipring_connection_close(near));
    is_bytes(tensor, 10);
    OK(slipring_tensor_free(tensor));
}

/* Memory outlives its connection, and a peer that ends it takes it back. */
static void loans_end(slipring_context *context) {
    slipring_connection *near, *far;
    slipring_tensor *tensor;
    slipring_tensor_view found;
    OK(slipring_pair(context, &near, &far));
    OK(slipring_send_tensor(near, bytes(context, 5000, 0), HANG));
    OK(slipring_recv_tensor(far, HANG, &tensor));
    is_bytes(tensor, 5000);
    OK(slipring_connection_abort(near));
    IS(SLIPRING_LOAN_REVOKED, slipring_tensor_check(tensor));
    IS(SLIPRING_LOAN_REVOKED, slipring_tensor_get_view(tensor, &found, sizeof found));
    OK(slipring_tensor_free(tensor));
    OK(slipring_connection_close(far));
}

static void misuse(slipring_context *context) {
    slipring_connection *near, *far;
    slipring_tensor *tensor = NULL;
    slipring_tensors *set;
    slipring_tensor_view found;
    const size_t many[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    const size_t huge[2] = {SIZE_MAX / 2, 16};
    const size_t one = 1;
    OK(slipring_pair(context, &near, &far));
    IS(SLIPRING_INVALID_TENSOR, slipring_tensor_new(context, 0, &one, 1, 0, SLIPRING_DEFAULT, &tensor));
    IS(SLIPRING_INVALID_TENSOR, slipring_tensor_new(context, 17, &one, 1, 0, SLIPRING_DEFAULT, &tensor));
    IS(SLIPRING_INVALID_TENSOR, slipring_tensor_new(context, 256 + 2, &one, 1, 0, SLIPRING_DEFAULT, &tensor));
    IS(SLIPRING_INVALID_TENSOR, slipring_tensor_new(context, SLIPRING_DTYPE_INT8, many, 9, 0, SLIPRING_DEFAULT, &tensor));
    IS(SLIPRING_INVALID_TENSOR, slipring_tensor_new(context, SLIPRING_DTYPE_INT8, huge, 2, 0, SLIPRING_DEFAULT, &tensor));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensor_new(context, SLIPRING_DTYPE_INT8, NULL, 1, 0, SLIPRING_DEFAULT, &tensor));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensor_new(context, SLIPRING_DTYPE_INT8, &one, 1, 4, SLIPRING_DEFAULT, &tensor));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensor_new(context, SLIPRING_DTYPE_INT8, &one, 1, 0, -2, &tensor));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensor_new(context, SLIPRING_DTYPE_INT8, &one, 1, 0, SLIPRING_DEFAULT, NULL));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensor_new(context, SLIPRING_DTYPE_BYTES, &one, 1, 0, SLIPRING_DEFAULT, &tensor));
    SAYS("slipring_tensor_new_encoded");
    IS(SLIPRING_INVALID_HANDLE, slipring_tensor_new(NULL, SLIPRING_DTYPE_INT8, &one, 1, 0, SLIPRING_DEFAULT, &tensor));
    CHECK(tensor == NULL);
    IS(SLIPRING_INVALID_HANDLE, slipring_tensor_share(NULL));
    IS(SLIPRING_INVALID_HANDLE, slipring_tensor_share((slipring_tensor *)context));
    IS(SLIPRING_INVALID_HANDLE, slipring_send_tensor(near, NULL, HANG));
    IS(SLIPRING_INVALID_HANDLE, slipring_send_tensors(near, NULL, HANG));
    OK(slipring_tensor_free(NULL));
    OK(slipring_tensors_free(NULL));
    tensor = bytes(context, 3, 0);
    IS(SLIPRING_INVALID_HANDLE, slipring_send_tensor(NULL, tensor, HANG));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_send_tensor(near, tensor, -3));
    IS(SLIPRING_INVALID_ARGUMENT, slipring_tensor_get_view(tensor, NULL, sizeof found));
    IS(SLIPRING_INVALID_HANDLE, slipring_tensors_add((slipring_tensors *)tensor, "x", tensor));
    OK(slipring_send_tensor(near, tensor, HANG));
    /* A handle that a send took, and one that was freed. */
    IS(SLIPRING_INVALID_HANDLE, slipring_send_tensor(near, tensor, HANG));
    SAYS("freed");
    IS(SLIPRING_INVALID_HANDLE, slipring_tensor_free(tensor));
    OK(slipring_recv_tensor(far, HANG, &tensor));
    OK(slipring_tensor_free(tensor));
    IS(SLIPRING_INVALID_HANDLE, slipring_tensor_free(tensor));
    IS(SLIPRING_INVALID_HANDLE, slipring_tensor_get_view(tensor, &found, sizeof found));
    OK(slipring_tensors_new(&set));
    OK(slipring_send_tensors(near, set, HANG));
    IS(SLIPRING_INVALID_HANDLE, slipring_tensors_free(set));
    OK(slipring_recv_tensors(far, HANG, &set));
    OK(slipring_tensors_free(set));
    IS(SLIPRING_INVALID_HANDLE, slipring_tensors_free(set));
    OK(slipring_connection_close(near));
    OK(slipring_connection_close(far));
}

static void a_forked_child_is_told(slipring_context *context) {
    slipring_connection *near, *far;
    slipring_tensor *made = bytes(context, 5000, 0), *shared = bytes(context, 5000, 0), *lent, *other;
    slipring_tensors *set;
    slipring_tensor_view found;
    const size_t one = 1;
    OK(slipring_pair(context, &near, &far));
    OK(slipring_tensor_share(shared));
    OK(slipring_send_tensor(near, bytes(context, 5000, 0), HANG));
    OK(slipring_recv_tensor(far, HANG, &lent));
    OK(slipring_tensors_new(&set));
    OK(slipring_tensors_add(set, "x", bytes(context, 5000, SLIPRING_TENSOR_FROZEN)));
    pid_t child = fork_alone();
    CHECK(child >= 0);
    if (child == 0) {
        IS(SLIPRING_FORKED, slipring_tensor_get_view(made, &found, sizeof found));
        IS(SLIPRING_FORKED, slipring_tensor_share(made));
        IS(SLIPRING_FORKED, slipring_tensor_clone(shared, &other));
        IS(SLIPRING_FORKED, slipring_tensor_copy(lent, &other));
        IS(SLIPRING_FORKED, slipring_tensor_check(lent));
        IS(SLIPRING_FORKED, slipring_send_tensor(near, made, HANG));
        IS(SLIPRING_FORKED, slipring_send_tensors(near, set, HANG));
        IS(SLIPRING_FORKED, slipring_recv_tensor(far, HANG, &other));
        IS(SLIPRING_FORKED, slipring_tensors_take(set, 0, &other));
        IS(SLIPRING_FORKED, slipring_tensor_new(context, SLIPRING_DTYPE_INT8, &one, 1, 0, HANG, &other));
        OK(slipring_tensor_free(made));
        OK(slipring_tensor_free(shared));
        OK(slipring_tensor_free(lent));
        OK(slipring_tensors_free(set));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    is_bytes(lent, 5000);
    OK(slipring_tensor_free(lent));
    OK(slipring_send_tensor(near, made, HANG));
    OK(slipring_recv_tensor(far, HANG, &lent));
    is_bytes(lent, 5000);
    OK(slipring_tensor_free(lent));
    OK(slipring_tensor_free(shared));
    OK(slipring_tensors_free(set));
    OK(slipring_connection_close(near));
    OK(slipring_connection_close(far));
}

/* What a killed peer had sent can be read, and memory that it held comes back. */
static void a_peer_dies(slipring_context *context) {
    slipring_listener *listener;
    slipring_connection *link;
    slipring_tensor *tensor, *clone, *received;
    slipring_stats stats;
    char address[64];
    snprintf(address, sizeof address, "slipring-tensors-%ld", (long)getpid());
    pid_t child = fork_alone();
    CHECK(child >= 0);
    if (child == 0) {
        slipring_context *own = patient();
        OK(slipring_connect(own, address, HANG, &link));
        OK(slipring_recv_tensor(link, HANG, &received));
        is_bytes(received, 70000);
        OK(slipring_send_tensor(link, bytes(own, 80000, 0), HANG));
        for (;;) {
            pause();
        }
    }
    OK(slipring_listen(context, address, &listener));
    OK(slipring_accept(listener, HANG, &link));
    tensor = bytes(context, 70000, 0);
    OK(slipring_tensor_share(tensor));
    OK(slipring_tensor_clone(tensor, &clone));
    OK(slipring_send_tensor(link, clone, HANG));
    OK(slipring_recv_tensor(link, HANG, &received));
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, NULL, 0) == child);
    IS(SLIPRING_PEER_DIED, slipring_recv_tensor(link, HANG, &clone));
    is_bytes(received, 80000);
    OK(slipring_tensor_free(received));
    is_bytes(tensor, 70000);
    OK(slipring_tensor_free(tensor));
    OK(slipring_connection_get_stats(link, &stats, sizeof stats));
    CHECK(stats.loans_held == 0 && stats.received.tensors == 1);
    IS(SLIPRING_PEER_DIED, slipring_connection_close(link));
    OK(slipring_listener_free(listener));
}

int main(void) {
    slipring_context *context = patient();
    a_tensor_of_every_kind_arrives(context);
    clones_and_copies(context);
    sets_have_names_and_an_order(context);
    what_is_not_sent_stays(context);
    loans_end(context);
    misuse(context);
    a_forked_child_is_told(context);
    a_peer_dies(context);
    OK(slipring_context_trim(context));
    OK(slipring_context_free(context));
    return 0;
}
