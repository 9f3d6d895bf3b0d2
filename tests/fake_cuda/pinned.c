/* Memory of the host that is registered: pinned for copies. */
#include "fake_cuda.h"

struct range {
    struct range *next;
    uintptr_t start;
    size_t size;
};

static struct range *ranges;

/* Whether all of the range is mapped, readable, and writable if that is asked for. */
static bool is_mapped(uintptr_t start, size_t size, bool to_write)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512], rights[8];
    uintptr_t done = start;
    while (maps && done < start + size && fgets(line, sizeof line, maps)) {
        unsigned long long from, to;
        if (sscanf(line, "%llx-%llx %4s", &from, &to, rights) != 3 || to <= done)
            continue;
        if (from > done || rights[0] != 'r' || (to_write && rights[1] != 'w'))
            break;
        done = to;
    }
    if (maps)
        fclose(maps);
    return done >= start + size;
}

CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags)
{
    uintptr_t start = (uintptr_t)pointer;
    CUresult code = enter("cuMemHostRegister_v2", CONTEXT);
    arg("host %zu %u", size, flags);
    bool read_only = flags & 8;
    if (code == SUCCESS && (!pointer || size == 0 || flags > 15))
        code = INVALID_VALUE;
    if (code == SUCCESS && settings.no_pins)
        code = NOT_SUPPORTED;
    if (code == SUCCESS && read_only && settings.no_read_only_pins)
        code = NOT_SUPPORTED;
    if (code == SUCCESS && (start % PAGE || size % PAGE))
        code = misuse(INVALID_VALUE, "the range is not one of whole pages");
    for (struct range *range = ranges; range; range = range->next)
        if (code == SUCCESS && start < range->start + range->size && range->start < start + size)
            code = ALREADY_REGISTERED;
    pthread_mutex_unlock(&lock);
    nanosleep(&settings.registering, NULL);
    pthread_mutex_lock(&lock);
    if (code == SUCCESS && !is_mapped(start, size, !read_only))
        code = misuse(INVALID_VALUE, "the range is not mapped%s", read_only ? "" : ", or not for writing");
    if (code == SUCCESS) {
        struct range *range = malloc(sizeof *range);
        *range = (struct range){ranges, start, size};
        ranges = range;
    }
    return leave(code);
}

CUresult cuMemHostUnregister(void *pointer)
{
    CUresult code = enter("cuMemHostUnregister", CONTEXT);
    arg("host");
    struct range **at = &ranges;
    while (*at && (*at)->start != (uintptr_t)pointer)
        at = &(*at)->next;
    if (code == SUCCESS && !*at)
        code = misuse(NOT_REGISTERED, "nothing is registered there");
    if (code == SUCCESS) {
        struct range *range = *at;
        if (!is_mapped(range->start, range->size, false))
            misuse(0, "the range was unmapped before");
        *at = range->next;
        free(range);
        /* As the driver may: it waits for all work on the device. */
        drain(current());
    }
    return leave(code);
}

static int pages;

/* Pinned memory of the host. */
CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned flags)
{
    CUresult code = enter("cuMemHostAlloc", CONTEXT);
    arg("%zu %u", size, flags);
    if (code == SUCCESS && (!pointer || size == 0 || flags > 7))
        code = INVALID_VALUE;
    void *memory = NULL;
    if (code == SUCCESS && posix_memalign(&memory, PAGE, size))
        code = OUT_OF_MEMORY;
    if (code == SUCCESS) {
        memset(memory, 0xa5, size);
        *pointer = memory;
        pages++;
    }
    return leave(code);
}

/* As the driver may: it waits for all work on the device. */
CUresult cuMemFreeHost(void *pointer)
{
    CUresult code = enter("cuMemFreeHost", CONTEXT);
    arg("host");
    if (code == SUCCESS && (!pointer || pages == 0))
        code = misuse(INVALID_VALUE, "this is not what cuMemHostAlloc gave");
    if (code == SUCCESS) {
        drain(current());
        pages--;
        free(pointer);
    }
    return leave(code);
}

void count_registered(void)
{
    if (pages > 0)
        misuse(0, "%d allocations of the host are left", pages);
    int left = 0;
    for (struct range *range = ranges; range; range = range->next)
        left++;
    if (left > 0)
        misuse(0, "%d ranges of the host are left registered", left);
}
