/* What each test program has: a failed check says where and what, and ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "slipring.h"

#define SECOND 1000000000LL
#define HANG (60 * SECOND)

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

/* The call has this status. */
#define IS(wanted, call) \
    do { \
        slipring_status is = (call); \
        if (is != (wanted)) { \
            fprintf(stderr, "%s:%d: %s is %s (%s), not %s\n", __FILE__, __LINE__, #call, \
                    slipring_status_name(is), slipring_last_error(), #wanted); \
            exit(1); \
        } \
    } while (0)

#define OK(call) IS(SLIPRING_OK, call)

/* The text of the last error has this part. */
#define SAYS(part) \
    do { \
        if (strstr(slipring_last_error(), part) == NULL) { \
            fprintf(stderr, "%s:%d: %s is not in: %s\n", __FILE__, __LINE__, part, slipring_last_error()); \
            exit(1); \
        } \
    } while (0)

/* A context that gives up no handshake on a busy machine. */
static inline slipring_context *patient(void) {
    slipring_options *options;
    slipring_context *context;
    OK(slipring_options_new(&options));
    OK(slipring_options_set(options, SLIPRING_OPTION_HANDSHAKE_TIMEOUT, HANG));
    OK(slipring_context_new(options, &context));
    OK(slipring_options_free(options));
    return context;
}

/* The threads that run, this one among them. */
static inline int running(void) {
    DIR *threads = opendir("/proc/self/task");
    int count = 0;
    CHECK(threads != NULL);
    for (struct dirent *thread; (thread = readdir(threads)) != NULL;) {
        char path[300], text[300];
        FILE *file;
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", thread->d_name);
        if (thread->d_name[0] == '.' || (file = fopen(path, "r")) == NULL) {
            continue;
        }
        size_t len = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        text[len] = 0;
        char *state = strrchr(text, ')');
        count += state != NULL && state[2] != 'S';
    }
    closedir(threads);
    return count;
}

/* Forks while all other threads sleep. GCC 12's address sanitizer does not hold its own locks over a fork: a child of a
 * fork beside a thread that begins or ends can hang. */
static inline pid_t fork_alone(void) {
    while (running() > 1) {
        poll(NULL, 0, 1);
    }
    return fork();
}

static const size_t SIZES[] = {0, 1, 7, 8, 56, 57, 64, 100, 4095, 4096, 4097, 65536, 1 << 20, 5000001};
enum { COUNT = sizeof SIZES / sizeof SIZES[0] };

/* The bytes of a message of this length. */
static inline void fill(unsigned char *bytes, size_t len) {
    for (size_t at = 0; at < len; at++) {
        bytes[at] = (unsigned char)(at * 31 + len);
    }
}

static inline int is_filled(const unsigned char *bytes, size_t len) {
    for (size_t at = 0; at < len; at++) {
        if (bytes[at] != (unsigned char)(at * 31 + len)) {
            return 0;
        }
    }
    return 1;
}

#endif
