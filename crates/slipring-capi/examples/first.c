/* Two processes: one listens and answers, the other connects and asks. Prints "answer: HELLO". */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "slipring.h"

static void ok(slipring_status status) {
    if (status != SLIPRING_OK) {
        fprintf(stderr, "%s: %s\n", slipring_status_name(status), slipring_last_error());
        exit(1);
    }
}

static void serve(slipring_context *context, const char *address) {
    slipring_listener *listener;
    slipring_connection *link;
    slipring_message question;
    slipring_status status;
    ok(slipring_listen(context, address, &listener));
    ok(slipring_accept(listener, SLIPRING_FOREVER, &link));
    while ((status = slipring_peek(link, SLIPRING_FOREVER, &question)) == SLIPRING_OK) {
        const char *from = question.data; /* in the memory of the peer */
        void *to;                         /* in this process, where the peer will read it */
        ok(slipring_reserve(link, question.len, SLIPRING_DEFAULT, &to));
        for (size_t at = 0; at < question.len; at++) {
            ((char *)to)[at] = (char)toupper((unsigned char)from[at]);
        }
        ok(slipring_release(link));
        ok(slipring_publish(link));
    }
    ok(status == SLIPRING_END ? SLIPRING_OK : status); /* SLIPRING_END: the peer has closed */
    ok(slipring_connection_close(link));
    ok(slipring_listener_free(listener));
}

static void ask(slipring_context *context, const char *address) {
    slipring_connection *link;
    char answer[64];
    size_t len;
    ok(slipring_connect(context, address, 10000000000, &link)); /* 10 s, until somebody listens */
    ok(slipring_send(link, "hello", 5, SLIPRING_DEFAULT));
    ok(slipring_recv(link, answer, sizeof answer, &len, SLIPRING_FOREVER));
    printf("answer: %.*s\n", (int)len, answer);
    ok(slipring_connection_close(link));
}

int main(void) {
    char address[64];
    snprintf(address, sizeof address, "@first-%ld", (long)getpid()); /* an abstract socket */
    pid_t child = fork(); /* before the context, which is of one process */
    slipring_context *context;
    ok(slipring_context_new(NULL, &context));
    (child == 0 ? serve : ask)(context, address);
    ok(slipring_context_free(context));
    return child == 0 || waitpid(child, NULL, 0) == child ? 0 : 1;
}
