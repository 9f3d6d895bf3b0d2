/*
 * Virtual memory: allocations that are exported as descriptors, and mapped where addresses were reserved.
 *
 * An allocation is a sealed memfd: its bytes, and after them a page that tells what it is, by which a descriptor of
 * something else is known.
 */
#include "fake_cuda.h"

#define GRANULARITY ((size_t)2 << 20)

typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct { int type, id; } CUmemLocation;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;
typedef struct {
    int type, requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    unsigned char flags[8];
} CUmemAllocationProp;

enum { PINNED = 1, POSIX_FD = 1, DEVICE = 1 };

struct label {
    uint64_t magic, number, size;
    uint32_t pid, device; /* in the process that made it */
    unsigned char uuid[16];
};
static const uint64_t LABEL = 0x6d6d762d656b6166;

struct allocation {
    struct allocation *next;
    CUmemGenericAllocationHandle handle;
    struct label label;
    struct context *context; /* where its bytes count, which they do not of what is imported */
    int fd;
    int device; /* in this process */
    bool exportable;
    bool released;
    int retained; /* handles beside the first one */
    int mappings;
};

struct reservation {
    struct reservation *next;
    CUdeviceptr base;
    size_t size;
};

/* Which allocation is mapped at an address. */
struct mapping {
    struct mapping *next;
    CUdeviceptr base;
    struct allocation *allocation;
};

static struct allocation *allocations;
static struct reservation *reservations;
static struct mapping *mappings;

static bool is_granular(size_t size) { return size > 0 && size % GRANULARITY == 0; }

static struct allocation *find_allocation(CUmemGenericAllocationHandle handle, CUresult *code)
{
    for (struct allocation *allocation = allocations; allocation; allocation = allocation->next)
        if (allocation->handle == handle && !allocation->released) {
            arg("alloc:%u.%llu", allocation->label.pid, (unsigned long long)allocation->label.number);
            return allocation;
        }
    arg("alloc:?");
    if (*code == SUCCESS)
        *code = misuse(INVALID_VALUE, "no such allocation");
    return NULL;
}

/* It lives while its handle or a mapping does. */
static void collect(struct allocation *allocation)
{
    if (!allocation->released || allocation->mappings > 0)
        return;
    for (struct allocation **at = &allocations; *at; at = &(*at)->next)
        if (*at == allocation) {
            *at = allocation->next;
            break;
        }
    if (allocation->context)
        allocation->context->used -= allocation->label.size;
    close(allocation->fd);
    free(allocation);
}

static int device_of(const unsigned char *uuid)
{
    int device = 0;
    while (device < settings.devices - 1 && memcmp(contexts[device].uuid, uuid, 16) != 0)
        device++;
    return device;
}

static struct allocation *add_allocation(int fd, struct label label, struct context *context, bool exportable)
{
    struct allocation *allocation = calloc(1, sizeof *allocation);
    if (!allocation)
        return NULL;
    allocation->device = device_of(label.uuid);
    allocation->next = allocations;
    allocation->handle = 0x7000000000 + 16 * next_number();
    allocation->label = label;
    allocation->context = context;
    allocation->fd = fd;
    allocation->exportable = exportable;
    allocations = allocation;
    if (context)
        context->used += label.size;
    arg("alloc:%u.%llu", label.pid, (unsigned long long)label.number);
    return allocation;
}

static CUresult judge(const CUmemAllocationProp *prop)
{
    if (!prop || prop->type != PINNED || prop->location.type != DEVICE)
        return INVALID_VALUE;
    if (prop->location.id < 0 || prop->location.id >= settings.devices)
        return INVALID_DEVICE;
    if (prop->requestedHandleTypes & ~POSIX_FD)
        return INVALID_VALUE;
    return prop->requestedHandleTypes && settings.no_ipc ? NOT_SUPPORTED : SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option)
{
    CUresult code = enter("cuMemGetAllocationGranularity", INIT);
    if (code == SUCCESS)
        code = granularity && (option == 0 || option == 1) ? judge(prop) : INVALID_VALUE;
    if (code == SUCCESS)
        *granularity = GRANULARITY;
    return leave(code);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
    CUresult code = enter("cuMemCreate", INIT);
    arg("%zu", size);
    if (code == SUCCESS && settings.no_descriptors && prop && prop->requestedHandleTypes)
        code = NOT_SUPPORTED;
    if (code == SUCCESS)
        code = handle && flags == 0 && is_granular(size) ? judge(prop) : INVALID_VALUE;
    struct context *context = code == SUCCESS ? &contexts[prop->location.id] : NULL;
    if (code == SUCCESS && size > settings.bytes - context->used)
        code = OUT_OF_MEMORY;
    if (code == SUCCESS) {
        struct label label = {.magic = LABEL, .number = next_number(), .size = size, .pid = me >> 32,
                              .device = prop->location.id};
        memcpy(label.uuid, context->uuid, 16);
        struct allocation *allocation = NULL;
        int fd = memfd_create("fake-cuda", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd >= 0 && ftruncate(fd, size + PAGE) == 0 && pwrite(fd, &label, sizeof label, size) == sizeof label
            && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
            allocation = add_allocation(fd, label, context, prop->requestedHandleTypes & POSIX_FD);
        if (allocation) {
            *handle = allocation->handle;
        } else {
            if (fd >= 0)
                close(fd);
            code = OPERATING_SYSTEM;
        }
    }
    return leave(code);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult code = enter("cuMemRelease", INIT);
    struct allocation *allocation = find_allocation(handle, &code);
    if (code == SUCCESS && allocation->retained > 0) {
        allocation->retained--;
    } else if (code == SUCCESS) {
        allocation->released = true;
        collect(allocation);
    }
    return leave(code);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
                                      unsigned long long flags)
{
    CUresult code = enter("cuMemExportToShareableHandle", INIT);
    struct allocation *allocation = find_allocation(handle, &code);
    if (code == SUCCESS && (!shareable || type != POSIX_FD || flags != 0 || !allocation->exportable))
        code = INVALID_VALUE;
    if (code == SUCCESS) {
        int fd = fcntl(allocation->fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0)
            code = OPERATING_SYSTEM;
        else
            memcpy(shareable, &fd, sizeof fd);
    }
    return leave(code);
}

/* An address that is mapped gives a handle as any other, which is to be released once more. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult code = enter("cuMemRetainAllocationHandle", INIT);
    CUdeviceptr pointer = (uintptr_t)address;
    struct mapping *mapping = mappings;
    struct memory *memory = find_memory(pointer);
    while (mapping && (!memory || mapping->base != memory->base))
        mapping = mapping->next;
    if (code == SUCCESS && (!handle || !mapping))
        code = INVALID_VALUE;
    if (code == SUCCESS) {
        struct allocation *allocation = mapping->allocation;
        allocation->retained += !allocation->released;
        allocation->released = false;
        *handle = allocation->handle;
        arg("alloc:%u.%llu", allocation->label.pid, (unsigned long long)allocation->label.number);
    }
    return leave(code);
}

enum { DEVICE_ORDINAL = 9, MAPPING_SIZE = 18, MAPPING_BASE_ADDR = 19 };

static int device_at(const struct memory *memory)
{
    if (memory->context)
        return memory->context->device;
    struct mapping *mapping = mappings;
    while (mapping->base != memory->base)
        mapping = mapping->next;
    return mapping->allocation->device;
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer)
{
    CUresult code = enter("cuPointerGetAttribute", INIT);
    arg("%d", attribute);
    arg_memory(pointer);
    struct memory *memory = find_memory(pointer);
    bool of_mapping = attribute == MAPPING_SIZE || attribute == MAPPING_BASE_ADDR;
    if (code == SUCCESS
        && (!data || !memory || (of_mapping ? memory->kind != MAPPED : attribute != DEVICE_ORDINAL)))
        code = INVALID_VALUE;
    if (code == SUCCESS && of_mapping)
        *(uint64_t *)data = attribute == MAPPING_SIZE ? memory->size : memory->base;
    else if (code == SUCCESS)
        *(int *)data = device_at(memory);
    return leave(code);
}

/* It tells the kinds of handles, and not the length; and the device by its number where the allocation was made. */
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    CUresult code = enter("cuMemGetAllocationPropertiesFromHandle", INIT);
    struct allocation *allocation = find_allocation(handle, &code);
    if (code == SUCCESS && !prop)
        code = INVALID_VALUE;
    if (code == SUCCESS)
        *prop = (CUmemAllocationProp){.type = PINNED, .requestedHandleTypes = allocation->exportable ? POSIX_FD : 0,
                                      .location = {DEVICE, allocation->label.device}};
    return leave(code);
}

/* The descriptor stays the caller's. One of something else is an invalid value. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
    CUresult code = enter("cuMemImportFromShareableHandle", INIT);
    int fd = (int)(intptr_t)shareable;
    if (code == SUCCESS && (!handle || type != POSIX_FD))
        code = INVALID_VALUE;
    struct stat stat;
    struct label label = {0};
    int seals = code == SUCCESS ? fcntl(fd, F_GET_SEALS) : -1;
    if (code == SUCCESS
        && (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &stat) != 0 || stat.st_size <= PAGE
            || pread(fd, &label, sizeof label, stat.st_size - PAGE) != sizeof label || label.magic != LABEL
            || label.size != (size_t)stat.st_size - PAGE || !is_granular(label.size)))
        code = INVALID_VALUE;
    if (code == SUCCESS && !is_ours(label.uuid))
        code = INVALID_DEVICE;
    if (code == SUCCESS) {
        int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        struct allocation *allocation = own >= 0 ? add_allocation(own, label, NULL, true) : NULL;
        if (allocation) {
            *handle = allocation->handle;
        } else {
            if (own >= 0)
                close(own);
            code = OPERATING_SYSTEM;
        }
    }
    return leave(code);
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags)
{
    CUresult code = enter("cuMemAddressReserve", INIT);
    arg("%zu %zu", size, alignment);
    (void)wish; /* A wish may be left unheard. */
    if (code == SUCCESS && (!pointer || flags != 0 || !is_granular(size) || (alignment & (alignment - 1))))
        code = INVALID_VALUE;
    if (code == SUCCESS) {
        struct reservation *reservation = calloc(1, sizeof *reservation);
        CUdeviceptr base = reserve(size, alignment > GRANULARITY ? alignment : GRANULARITY);
        if (reservation && base) {
            *reservation = (struct reservation){reservations, base, size};
            reservations = reservation;
            *pointer = base;
        } else {
            free(reservation);
            code = OUT_OF_MEMORY;
        }
    }
    return leave(code);
}

static bool is_mapped(CUdeviceptr base, size_t size)
{
    for (struct memory *memory = memories; memory; memory = memory->next)
        if (base < memory->base + memory->size && memory->base < base + size)
            return true;
    return false;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
    CUresult code = enter("cuMemAddressFree", INIT);
    arg("%zu", size);
    struct reservation **at = &reservations;
    while (*at && (*at)->base != pointer)
        at = &(*at)->next;
    if (code == SUCCESS && (!*at || (*at)->size != size))
        code = misuse(INVALID_VALUE, "this was not reserved");
    if (code == SUCCESS && is_mapped(pointer, size))
        code = misuse(INVALID_VALUE, "something is mapped there");
    if (code == SUCCESS) {
        struct reservation *reservation = *at;
        *at = reservation->next;
        munmap((void *)(uintptr_t)pointer, size);
        free(reservation);
    }
    return leave(code);
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    CUresult code = enter("cuMemMap", INIT);
    arg("%zu %zu", size, offset);
    struct allocation *allocation = find_allocation(handle, &code);
    if (code == SUCCESS
        && (offset != 0 || flags != 0 || !is_granular(size) || size > allocation->label.size
            || pointer % GRANULARITY != 0))
        code = INVALID_VALUE;
    bool inside = false;
    for (struct reservation *one = reservations; one; one = one->next)
        inside |= pointer >= one->base && pointer - one->base < one->size && size <= one->size - (pointer - one->base);
    if (code == SUCCESS && !inside)
        code = misuse(INVALID_VALUE, "the addresses were not reserved");
    if (code == SUCCESS && is_mapped(pointer, size))
        code = misuse(ALREADY_MAPPED, "something is mapped there");
    if (code == SUCCESS) {
        struct memory *memory = calloc(1, sizeof *memory);
        struct mapping *mapping = calloc(1, sizeof *mapping);
        char *host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, allocation->fd, 0);
        if (memory && mapping && host != MAP_FAILED) {
            *memory = (struct memory){.next = memories, .kind = MAPPED, .base = pointer, .size = size, .host = host,
                                      .pid = allocation->label.pid, .number = allocation->label.number};
            memories = memory;
            *mapping = (struct mapping){mappings, pointer, allocation};
            mappings = mapping;
            allocation->mappings++;
        } else {
            if (host != MAP_FAILED)
                munmap(host, size);
            free(memory);
            free(mapping);
            code = OPERATING_SYSTEM;
        }
    }
    return leave(code);
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    CUresult code = enter("cuMemUnmap", INIT);
    arg_memory(pointer);
    arg("%zu", size);
    struct memory *memory = find_memory(pointer);
    if (code == SUCCESS && (!memory || memory->kind != MAPPED || memory->base != pointer || memory->size != size))
        code = misuse(INVALID_VALUE, "this was not mapped");
    if (code == SUCCESS) {
        if (memory->uses > 0)
            misuse(0, "work that was queued still uses the memory");
        drain_all_if_locked(memory->access | (current() ? 1u << current()->device : 0));
        struct mapping **at = &mappings;
        while ((*at)->base != pointer)
            at = &(*at)->next;
        struct mapping *mapping = *at;
        *at = mapping->next;
        mapping->allocation->mappings--;
        collect(mapping->allocation);
        free(mapping);
        remove_memory(memory);
    }
    return leave(code);
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access, size_t count)
{
    CUresult code = enter("cuMemSetAccess", INIT);
    arg_memory(pointer);
    arg("%zu", size);
    for (size_t i = 0; access && i < count; i++)
        arg("dev:%d", access[i].location.id);
    struct memory *memory = find_memory(pointer);
    if (code == SUCCESS && (!access || count == 0))
        code = INVALID_VALUE;
    if (code == SUCCESS && (!memory || memory->kind != MAPPED || memory->base != pointer || memory->size != size))
        code = misuse(INVALID_VALUE, "this was not mapped");
    /* A device that is not named keeps the access that it has, which is none at first. */
    for (size_t i = 0; i < count && code == SUCCESS; i++) {
        int id = access[i].location.id;
        if (access[i].location.type != DEVICE || (access[i].flags & ~3) || access[i].flags == 2)
            code = INVALID_VALUE;
        else if (id < 0 || id >= settings.devices)
            code = INVALID_DEVICE;
        else if (access[i].flags != 0 && contexts[id].unreachable & 1u << device_at(memory))
            code = misuse(INVALID_DEVICE, "device %d cannot use memory of device %d", id, device_at(memory));
        else if (access[i].flags == 3 && memory->access & 1u << id)
            code = misuse(0, "device %d has the access already", id);
        else if (access[i].flags == 3)
            memory->access |= 1u << id;
        else
            memory->access &= ~(1u << id);
    }
    return leave(code);
}

/* Descriptors of allocations that this process has open, those of its allocations left out. */
static int count_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 4096; fd++) {
        char path[40], name[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t len = readlink(path, name, sizeof name - 1);
        if (len <= 0)
            continue;
        name[len] = 0;
        bool ours = false;
        for (struct allocation *one = allocations; one; one = one->next)
            ours |= one->fd == fd;
        count += !ours && strncmp(name, "/memfd:fake-cuda ", 17) == 0;
    }
    return count;
}

/* Counts what this process has: allocations, mappings, reservations, descriptors. Returns the sum. */
static int count_all(int counts[4])
{
    memset(counts, 0, 4 * sizeof counts[0]);
    for (struct allocation *one = allocations; one; one = one->next)
        counts[0]++;
    for (struct mapping *one = mappings; one; one = one->next)
        counts[1]++;
    for (struct reservation *one = reservations; one; one = one->next)
        counts[2]++;
    counts[3] = count_descriptors();
    return counts[0] + counts[1] + counts[2] + counts[3];
}

/* Called with the lock. Threads of the process may be about to unmap and close what nobody uses: it waits for them. */
void count_left(void)
{
    int left[4];
    struct timespec pause = {0, 1000000};
    for (int looks = 0; count_all(left) > 0 && looks < 1000; looks++) {
        pthread_mutex_unlock(&lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
    }
    if (count_all(left) > 0)
        misuse(0, "%d allocations, %d mappings, %d reservations, %d descriptors are left", left[0], left[1], left[2],
               left[3]);
}
