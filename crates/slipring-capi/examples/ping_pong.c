/* How fast two processes answer each other, and how fast one streams to the other in place.
 *
 *     gcc -O2 -I crates/slipring-capi/include crates/slipring-capi/examples/ping_pong.c -o ping_pong \
 *         -L target/release -lslipring_capi -Wl,-rpath,"$PWD/target/release"
 *     ./ping_pong [ROUNDS]
 *
 * Prints one line a row: its name, and nanoseconds a round trip or a message.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "slipring.h"

enum { SHORT = 8, LONG = 64 };

static void ok(slipring_status status) {
    if (status != SLIPRING_OK) {
        fprintf(stderr, "%s: %s\n", slipring_status_name(status), slipring_last_error());
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Each process on a CPU of its own. */
static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void echo(slipring_connection *link, long rounds) {
    char bytes[SHORT];
    size_t len;
    for (long round = 0; round < rounds; round++) {
        ok(slipring_recv(link, bytes, sizeof bytes, &len, SLIPRING_FOREVER));
        ok(slipring_send(link, bytes, len, SLIPRING_DEFAULT));
    }
}

static void ask(slipring_connection *link, long rounds) {
    char bytes[SHORT] = {0};
    size_t len;
    for (long round = 0; round < rounds; round++) {
        ok(slipring_send(link, bytes, sizeof bytes, SLIPRING_DEFAULT));
        ok(slipring_recv(link, bytes, sizeof bytes, &len, SLIPRING_FOREVER));
    }
}

/* Reads `messages` in place and answers the last one. */
static void drain(slipring_connection *link, long messages) {
    slipring_message message;
    unsigned char line[LONG];
    for (long at = 0; at < messages; at++) {
        ok(slipring_peek(link, SLIPRING_FOREVER, &message));
        memcpy(line, message.data, LONG);
        __asm__ volatile("" : : "r"(line) : "memory");
        ok(slipring_release(link));
    }
    ok(slipring_send(link, line, SHORT, SLIPRING_DEFAULT));
}

static void pour(slipring_connection *link, long messages) {
    char bytes[SHORT];
    size_t len;
    void *room;
    for (long at = 0; at < messages; at++) {
        ok(slipring_reserve(link, LONG, SLIPRING_DEFAULT, &room));
        memset(room, (int)at, LONG);
        ok(slipring_publish(link));
    }
    ok(slipring_recv(link, bytes, sizeof bytes, &len, SLIPRING_FOREVER));
}

int main(int count, char **arguments) {
    long rounds = count > 1 ? atol(arguments[1]) : 1000000;
    int ends[2];
    slipring_context *context;
    slipring_connection *link;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) {
        return 1;
    }
    pid_t child = fork(); /* before the context, which is of one process */
    pin(child == 0);
    close(ends[child == 0]);
    ok(slipring_context_new(NULL, &context));
    if (child == 0) {
        ok(slipring_accept_socket(context, ends[0], &link));
        echo(link, rounds / 10 + rounds);
        drain(link, rounds / 10);
        drain(link, rounds);
    } else {
        ok(slipring_connect_socket(context, ends[1], &link));
        ask(link, rounds / 10); /* warm */
        double start = now();
        ask(link, rounds);
        printf("copied 8 B, there and back: %.1f ns\n", (now() - start) / (double)rounds);
        pour(link, rounds / 10);
        start = now();
        pour(link, rounds);
        printf("64 B in place, one way: %.1f ns\n", (now() - start) / (double)rounds);
    }
    ok(slipring_connection_close(link));
    ok(slipring_context_free(context));
    return child == 0 || waitpid(child, NULL, 0) == child ? 0 : 1;
}
