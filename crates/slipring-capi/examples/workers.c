/* A pool of workers behind one epoll loop. Each has one job at a time, and the job of one that dies goes to another.
 *
 *     ./workers [WORKERS] [JOBS]      kills one worker in the middle, and prints "done: 1000 jobs, 1 worker died"
 */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "slipring.h"

enum { MOST = 64 };

typedef struct {
    slipring_connection *link;
    uint64_t call, job;
    int is_busy;
} worker;

static void ok(slipring_status status) {
    if (status != SLIPRING_OK) {
        fprintf(stderr, "%s: %s\n", slipring_status_name(status), slipring_last_error());
        exit(1);
    }
}

/* In a worker: the answer to a job is its square. */
static void work(const char *address) {
    slipring_context *context;
    slipring_connection *link;
    slipring_call request;
    slipring_status status;
    ok(slipring_context_new(NULL, &context));
    ok(slipring_connect(context, address, 10000000000, &link));
    while ((status = slipring_recv_request(link, SLIPRING_FOREVER, &request)) == SLIPRING_OK) {
        uint64_t job;
        memcpy(&job, request.data, sizeof job);
        job *= job;
        ok(slipring_respond(link, request.id, &job, sizeof job, SLIPRING_DEFAULT));
    }
    ok(status == SLIPRING_END ? SLIPRING_OK : status);
    ok(slipring_connection_close(link));
    ok(slipring_context_free(context));
}

/* The jobs that are to be done: those that came back, and then those that follow. */
static uint64_t back[MOST], next_job, jobs;
static int came_back;

static int take_job(uint64_t *job) {
    if (came_back > 0) {
        *job = back[--came_back];
        return 1;
    }
    *job = next_job;
    return next_job < jobs ? next_job++, 1 : 0;
}

/* Gives a worker its next job, if there is one. One that is gone shows it at its next event. */
static void give(worker *worker) {
    worker->is_busy = take_job(&worker->job);
    if (worker->is_busy &&
        slipring_submit(worker->link, &worker->job, sizeof worker->job, SLIPRING_DEFAULT, &worker->call) != SLIPRING_OK) {
        back[came_back++] = worker->job;
        worker->is_busy = 0;
    }
}

int main(int count, char **words) {
    int size = count > 1 ? atoi(words[1]) : 4, died = 0;
    uint64_t done = 0;
    worker workers[MOST];
    pid_t processes[MOST];
    slipring_context *context;
    slipring_listener *listener;
    char address[64];
    jobs = count > 2 ? strtoull(words[2], NULL, 10) : 1000;
    if (size < 2 || size > MOST) {
        fprintf(stderr, "workers: from 2 to %d workers\n", MOST);
        return 2;
    }
    snprintf(address, sizeof address, "@workers-%ld", (long)getpid());
    for (int at = 0; at < size; at++) { /* before the context, which is of one process */
        processes[at] = fork();
        if (processes[at] == 0) {
            work(address);
            return 0;
        }
    }
    int loop = epoll_create1(EPOLL_CLOEXEC);
    ok(slipring_context_new(NULL, &context));
    ok(slipring_listen(context, address, &listener));
    for (int at = 0; at < size; at++) {
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = &workers[at]};
        int descriptor;
        ok(slipring_accept(listener, SLIPRING_FOREVER, &workers[at].link));
        ok(slipring_connection_descriptor(workers[at].link, &descriptor)); /* before the first receive */
        epoll_ctl(loop, EPOLL_CTL_ADD, descriptor, &wanted);
        give(&workers[at]);
    }
    while (done < jobs) {
        struct epoll_event event;
        int is_killed = done >= jobs / 2 && processes[0] != 0;
        if (is_killed) {
            kill(processes[0], SIGKILL);
            waitpid(processes[0], NULL, 0);
            processes[0] = 0;
        }
        /* All that has come is taken before each sleep: the descriptor tells of what comes after that. */
        for (int at = 0; at < size; at++) {
            worker *worker = &workers[at];
            slipring_call answer;
            slipring_status status = SLIPRING_WOULD_BLOCK;
            while (worker->link != NULL && worker->is_busy &&
                   (status = slipring_wait(worker->link, worker->call, SLIPRING_NONBLOCK, &answer)) == SLIPRING_OK) {
                uint64_t square;
                memcpy(&square, answer.data, sizeof square);
                if (square != worker->job * worker->job) {
                    fprintf(stderr, "workers: a wrong answer\n");
                    return 1;
                }
                done++;
                give(worker);
            }
            if (worker->link != NULL && !worker->is_busy) { /* idle, or gone */
                slipring_message message;
                status = slipring_peek(worker->link, SLIPRING_NONBLOCK, &message);
            }
            if (worker->link != NULL && status != SLIPRING_WOULD_BLOCK) {
                fprintf(stderr, "a worker is gone: %s\n", slipring_last_error());
                if (worker->is_busy) {
                    back[came_back++] = worker->job;
                }
                (void)slipring_connection_close(worker->link); /* and its descriptor leaves the loop */
                worker->link = NULL;
                died++;
            }
        }
        for (int at = 0; at < size && came_back > 0; at++) {
            if (workers[at].link != NULL && !workers[at].is_busy) {
                give(&workers[at]);
            }
        }
        if (done < jobs && epoll_wait(loop, &event, 1, -1) < 0) {
            perror("epoll_wait");
            return 1;
        }
    }
    for (int at = 0; at < size; at++) {
        if (workers[at].link != NULL) {
            ok(slipring_connection_close(workers[at].link));
        }
    }
    ok(slipring_listener_free(listener));
    ok(slipring_context_free(context));
    close(loop);
    for (int at = 0; at < size; at++) {
        if (processes[at] != 0) {
            waitpid(processes[at], NULL, 0);
        }
    }
    printf("done: %llu jobs, %d worker%s died\n", (unsigned long long)done, died, died == 1 ? "" : "s");
    return 0;
}
