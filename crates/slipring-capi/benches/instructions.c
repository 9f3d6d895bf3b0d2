/* Sends messages of 64 bytes in place from one end of a link to the other, in one thread: `instructions` counts what one takes.
 *
 *     ./c MESSAGES
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "slipring.h"

enum { LEN = 64 };

static void ok(slipring_status status) {
    if (status != SLIPRING_OK) {
        fprintf(stderr, "%s: %s\n", slipring_status_name(status), slipring_last_error());
        exit(1);
    }
}

int main(int count, char **arguments) {
    slipring_context *context;
    slipring_connection *near, *far;
    ok(slipring_context_new(NULL, &context));
    ok(slipring_pair(context, &near, &far));
    for (long left = count > 1 ? atol(arguments[1]) : 0; left > 0; left--) {
        slipring_message message;
        void *room;
        ok(slipring_reserve(near, LEN, SLIPRING_DEFAULT, &room));
        memset(room, 1, LEN);
        ok(slipring_publish(near));
        ok(slipring_peek(far, SLIPRING_FOREVER, &message));
        __asm__ volatile("" : : "r"(message.data) : "memory");
        ok(slipring_release(far));
    }
    ok(slipring_connection_close(near));
    ok(slipring_connection_close(far));
    ok(slipring_context_free(context));
    return 0;
}
