/* One camera, any number of viewers, and each frame in memory once.
 *
 *     ./camera publish NAME [FRAMES]      in one terminal: 60 frames a second, of 1080 x 1920 x 3 bytes
 *     ./camera view NAME [FRAMES]         in another, or in several
 *
 * A viewer prints a line each second. Kill the camera and start it again: the viewers go on.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "slipring.h"

static const size_t SHAPE[] = {1080, 1920, 3};

static void ok(slipring_status status) {
    if (status != SLIPRING_OK) {
        fprintf(stderr, "%s: %s\n", slipring_status_name(status), slipring_last_error());
        exit(1);
    }
}

static void publish(slipring_context *context, const char *name, long frames) {
    slipring_publisher_options options = {.slots = 64};
    slipring_publisher *camera;
    slipring_event event;
    ok(slipring_publisher_new(context, name, &options, sizeof options, &camera));
    for (long number = 0; number < frames; number++) {
        slipring_tensor *frame;
        slipring_tensor_view view;
        ok(slipring_tensor_new(context, SLIPRING_DTYPE_UINT8, SHAPE, 3, 0, SLIPRING_DEFAULT, &frame));
        ok(slipring_tensor_get_view(frame, &view, sizeof view));
        memset(view.data, (int)(number % 256), view.len);                    /* in the memory that all viewers read */
        ok(slipring_publisher_send_tensor(camera, frame, SLIPRING_DEFAULT)); /* the frame is theirs now */
        while (slipring_publisher_next_event(camera, &event) == SLIPRING_OK) {
            static const char *const WHAT[] = {"has come", "has left", "has died", "was evicted"};
            printf("viewer with pid %ld %s\n", (long)event.pid, event.kind < 4 ? WHAT[event.kind] : "changed");
            fflush(stdout);
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000000 / 60}, NULL);
    }
    ok(slipring_publisher_free(camera));
}

static void view(slipring_context *context, const char *name, long frames) {
    slipring_subscriber *camera;
    slipring_sample sample;
    slipring_tensors *set;
    slipring_tensor *frame;
    slipring_tensor_view view;
    slipring_status status;
    time_t last = time(NULL);
    long seen = 0, missed = 0;
    /* The newest frame, and those that come until it is looked at are missed. Wait for a camera that is not there yet. */
    ok(slipring_subscriber_new(context, name, SLIPRING_LATEST, 0, SLIPRING_FOREVER, &camera));
    for (long number = 0; number < frames; number++) {
        if ((status = slipring_subscriber_next(camera, SLIPRING_FOREVER, &sample)) == SLIPRING_END) {
            break;
        }
        ok(status);
        missed += (long)sample.missed;
        ok(slipring_subscriber_take_tensors(camera, &set));
        ok(slipring_tensors_take(set, 0, &frame));
        ok(slipring_tensors_free(set));
        ok(slipring_tensor_get_view(frame, &view, sizeof view));
        unsigned first = ((const unsigned char *)view.data)[0], last_byte = ((const unsigned char *)view.data)[view.len - 1];
        ok(slipring_tensor_check(frame)); /* what was read is what the camera sent */
        ok(slipring_tensor_free(frame));  /* its memory goes back to the camera */
        if (first != last_byte) {
            fprintf(stderr, "a frame of two: %u and %u\n", first, last_byte);
            exit(1);
        }
        seen++;
        if (time(NULL) != last) {
            printf("%ld frames, %ld missed\n", seen, missed);
            fflush(stdout);
            last = time(NULL);
        }
    }
    printf("done, %ld frames of %zu x %zu x %zu\n", seen, view.shape[0], view.shape[1], view.shape[2]);
    ok(slipring_subscriber_free(camera));
}

int main(int count, char **words) {
    slipring_context *context;
    long frames = count > 3 ? atol(words[3]) : 1000000000;
    if (count < 3 || (strcmp(words[1], "publish") != 0 && strcmp(words[1], "view") != 0)) {
        fprintf(stderr, "usage: camera publish|view NAME [FRAMES]\n");
        return 2;
    }
    ok(slipring_context_new(NULL, &context));
    (words[1][0] == 'p' ? publish : view)(context, words[2], frames);
    ok(slipring_context_free(context));
    return 0;
}
