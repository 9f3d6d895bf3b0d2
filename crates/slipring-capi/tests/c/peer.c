/* The other side of a Rust program: `peer echo ADDRESS` listens and sends back each message, `peer ask ADDRESS`
 * connects, sends a message of each size and checks the answer. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

enum { ROOM = 8 << 20 };

static void echo(slipring_context *context, const char *address) {
    slipring_listener *listener;
    slipring_connection *link;
    slipring_message message;
    slipring_status status;
    void *room;
    OK(slipring_listen(context, address, &listener));
    OK(slipring_accept(listener, HANG, &link));
    while ((status = slipring_peek(link, HANG, &message)) == SLIPRING_OK) {
        OK(slipring_reserve(link, message.len, HANG, &room));
        if (message.len > 0) {
            memcpy(room, message.data, message.len);
        }
        OK(slipring_release(link));
        OK(slipring_publish(link));
    }
    IS(SLIPRING_END, status);
    OK(slipring_connection_close(link));
    OK(slipring_listener_free(listener));
}

static void ask(slipring_context *context, const char *address) {
    slipring_connection *link;
    unsigned char *bytes = malloc(ROOM);
    OK(slipring_connect(context, address, HANG, &link));
    for (int size = 0; size < COUNT; size++) {
        size_t len = SIZES[size];
        fill(bytes, len);
        OK(slipring_send(link, bytes, len, HANG));
        memset(bytes, 0, len);
        OK(slipring_recv(link, bytes, ROOM, &len, HANG));
        CHECK(len == SIZES[size] && is_filled(bytes, len));
    }
    free(bytes);
    OK(slipring_connection_close(link));
}

/* Sends a set back whose two names look alike in C. */
static void forward(slipring_context *context, const char *address) {
    slipring_connection *link;
    slipring_tensors *set;
    const char *first, *second;
    OK(slipring_connect(context, address, HANG, &link));
    OK(slipring_recv_tensors(link, HANG, &set));
    OK(slipring_tensors_name(set, 0, &first));
    OK(slipring_tensors_name(set, 1, &second));
    CHECK(strcmp(first, "a") == 0 && strcmp(second, "a") == 0);
    OK(slipring_send_tensors(link, set, HANG));
    OK(slipring_connection_close(link));
}

int main(int count, char **arguments) {
    slipring_context *context;
    CHECK(count == 3);
    context = patient();
    if (strcmp(arguments[1], "echo") == 0) {
        echo(context, arguments[2]);
    } else if (strcmp(arguments[1], "forward") == 0) {
        forward(context, arguments[2]);
    } else {
        ask(context, arguments[2]);
    }
    OK(slipring_context_free(context));
    return 0;
}
