/*
 * A CUDA driver without a GPU, for tests: a library that answers the calls of the driver API that slipring makes.
 *
 *   fake_cuda.c  the process: environment, trace, calls that fail on demand, devices, contexts
 *   shared.c     objects that other processes open, and who of them lives
 *   memory.c     memory, and its handles for other processes
 *   stream.c     streams that work by themselves, and events, within a process and between processes
 *   vmm.c        virtual memory: allocations that are exported as descriptors
 *   pinned.c     memory of the host that is registered
 *
 * It is as strict as the driver, and stricter where CUDA leaves the outcome of a misuse undefined: then the trace gets
 * a line that starts with MISUSE. A device address is never an address of this process's memory: whoever touches it
 * without a call dies of SIGSEGV, as with a real device. All processes live in one PID namespace.
 *
 * Read once, when the library is loaded:
 *
 *   FAKE_CUDA_DEVICES    how many devices (1)
 *   FAKE_CUDA_UUID       UUID of the first, 32 hex digits; the last byte of the next is one more
 *   FAKE_CUDA_VERSION    of the driver (13000)
 *   FAKE_CUDA_ATTRIBUTES the last attribute of devices that the driver knows (200)
 *   FAKE_CUDA_BYTES      memory of a device; each process has as much for itself (4 GiB)
 *   FAKE_CUDA_DELAY_US   how long a stream waits before each copy, memset and record (0)
 *   FAKE_CUDA_STUCK      1: what a process had recorded when it died is never over (0)
 *   FAKE_CUDA_SESSION    objects are /dev/shm/fake-cuda-<session>-... ("none")
 *   FAKE_CUDA_TRACE      file that gets a line for each call
 *   FAKE_CUDA_FAIL       call:code[:nth[:more]],...  the nth (1) call of this process and `more` (0) after it fail
 *   FAKE_CUDA_GATE       call:file, a call that waits at its beginning while the file exists; it then makes `file`.reached
 *   FAKE_CUDA_NO_IPC     1: devices cannot share memory or events
 *   FAKE_CUDA_NO_DESCRIPTORS  1: devices export no memory as descriptors
 *   FAKE_CUDA_NO_WORDS   1: streams neither write nor wait for words of 64 bits
 *   FAKE_CUDA_NO_PEERS   <device>-<device>,...  the first of each pair cannot use memory of the second ("")
 *   FAKE_CUDA_NO_PINS    1: devices register no memory of the host
 *   FAKE_CUDA_NO_READ_ONLY_PINS  1: they register none that the process may only read
 *   FAKE_CUDA_NO_DEVICE  1: cuInit finds no device
 *   FAKE_CUDA_REGISTER_MS     how long memory of the host takes to be registered; other calls go on meanwhile (0)
 *   FAKE_CUDA_CONNECTIONS     1: streams of one device and priority share a queue, and do their work in the order in which
 *                        they got it, as with CUDA_DEVICE_MAX_CONNECTIONS=1 (0: each has its own)
 *   FAKE_CUDA_NO_PRIORITIES   1: all streams have the same priority
 *   FAKE_CUDA_LOCKED     1: what frees, closes, unmaps or unregisters memory waits for all work on the device, and on those
 *                        that have access to it, and every other call waits for that
 *   FAKE_CUDA_CAPTURING  1: every stream is being captured into a graph, and what it is given is a misuse
 *
 * A test that holds up a call names it: `fakeHang(call)`. The next call of this name waits before it begins, `fakeHangs()` is 1
 * then, and the call goes on after `fakeGoOn()`.
 *
 * A line of the trace, written at once:
 *   <pid> <tid> <device of the current context, or -> <call> <argument>... = <code>
 *   MISUSE <pid> <tid> <call>: <what>
 * Arguments: dev:<ordinal> (and in place of a context), mem:<pid>.<number>[+<offset>], event:<pid>.<number>,
 * stream:<number> (0: the legacy stream), alloc:<pid>.<number>, `?` for what is none, and plain numbers. pid is the
 * process that made the object, so that all processes name it alike. What a call gives is an argument, too.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* As in cuda.h, whose types are the interface. */
typedef int32_t CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context *CUcontext;
typedef struct event_handle *CUevent;
typedef struct stream_handle *CUstream;
typedef struct { char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMemHandle;
typedef struct { char reserved[64]; } CUipcEventHandle;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    ALREADY_MAPPED = 208,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    NOT_READY = 600,
    CONTEXT_IS_DESTROYED = 709,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    NOT_SUPPORTED = 801,
};

#define PAGE 4096

/* What is not the interface is nobody else's. */
#pragma GCC visibility push(hidden)

/* A device and its primary context, which lives while somebody retains it. */
struct context {
    CUdevice device;
    int refs;
    unsigned char uuid[16];
    unsigned unreachable; /* the devices, by their bits, whose memory this one cannot use */
    size_t used; /* bytes of memory of this process */
    struct stream *legacy;
    uint64_t issued[2], served[2]; /* of the two priorities: operations of streams that share a queue */
};

extern struct settings {
    int devices, version, attributes;
    struct timespec delay, registering;
    bool stuck;
    size_t bytes;
    const char *session;
    bool no_ipc, no_device, no_descriptors, no_words, no_pins, no_read_only_pins, capturing, connected, no_priorities, locked;
} settings;

extern struct context contexts[16];

/*
 * One lock for all tables of the driver, held from `enter` to `leave`, so that the trace has a process's calls in the
 * order of their effects. Streams work without it. A call passes `calls` first, which a free may hold. `changed` says that an operation is done, or queued.
 */
extern pthread_mutex_t lock, calls;
extern pthread_cond_t changed;

/* A call begins: `enter`, then `arg` for what the trace shows, and `leave` with its answer at the end. */
enum needs { NOTHING, INIT, CONTEXT };
CUresult enter(const char *call, enum needs needs);
void arg(const char *format, ...) __attribute__((format(printf, 1, 2)));
CUresult leave(CUresult code);
/* Tells of a misuse in the trace, and gives the code that answers it. */
CUresult misuse(CUresult code, const char *format, ...) __attribute__((format(printf, 2, 3)));
struct context *current(void);
/* Whether an object of `context` may be used now; a misuse if not. */
bool is_current(const struct context *context, const char *what);
uint64_t next_number(void);

/*
 * shared.c. A process is named by its PID and, so that a later one is another, its start: `pid << 32 | start`.
 */
extern _Atomic uint64_t me;
uint64_t identity(pid_t pid);
bool alive(uint64_t process);

/* The first page of an object in /dev/shm, or, of an event that is private, of memory of its process. */
struct shared {
    uint64_t magic, key;
    uint64_t owner; /* process */
    uint64_t number, size;
    unsigned char uuid[16];
    _Atomic uint32_t gone; /* freed or destroyed by its owner */
    /* Of an event: how often it was recorded, the last record that is done, and who recorded it last. */
    _Atomic uint64_t issued, completed, recorder;
    _Atomic uint64_t openers[256]; /* processes, one place for each opening; 0 and the dead are free places */
};
_Static_assert(sizeof(struct shared) <= PAGE, "a header is one page");

/* What a handle for other processes holds. Who forges one does not know the key. */
struct token {
    uint64_t magic, key, number, size;
    uint32_t pid, reserved;
    unsigned char uuid[16];
    uint64_t rest;
};
_Static_assert(sizeof(struct token) == 64, "a handle is 64 bytes");

extern const uint64_t MEMORY, EVENT; /* magic */
/* Makes an object, and gives its header and, at `*data` where there is a size, its bytes. */
struct shared *share(uint64_t magic, uint64_t number, const unsigned char *uuid, size_t size, char **data);
struct shared *open_shared(const struct token *token, char **data);
struct token token_of(const struct shared *shared);
void unlink_shared(const struct shared *shared);
void unmap_shared(struct shared *shared, char *data);
bool opened_elsewhere(struct shared *shared);
bool add_opener(struct shared *shared);
void remove_opener(struct shared *shared);
bool is_ours(const unsigned char *uuid);

/* memory.c. Memory with a device address, `len` bytes at `host` in truth. */
struct memory {
    struct memory *next;
    enum { OWNED, OPENED, MAPPED } kind; /* cuMemAlloc, cuIpcOpenMemHandle, cuMemMap */
    struct context *context;             /* of MAPPED: NULL, it belongs to none */
    struct shared *header;               /* of MAPPED: NULL */
    CUdeviceptr base;
    size_t size;
    char *host;
    uint32_t pid; /* of the process that made it */
    uint64_t number;
    int uses; /* operations of streams that are not done */
    bool removed;
    unsigned access; /* of MAPPED: the devices, by their bits, to which cuMemSetAccess allowed it */
};
extern struct memory *memories;
struct memory *find_memory(CUdeviceptr pointer);
void arg_memory(CUdeviceptr pointer);
CUdeviceptr reserve(size_t size, size_t alignment);
/* Takes memory out of the table. It is unmapped when no operation uses it any more. */
void remove_memory(struct memory *memory);
void unuse(struct memory *memory);
/* The memory that a copy or memset means, or NULL and the answer at `*code`. */
struct memory *copied(CUdeviceptr pointer, size_t len, bool any_context, CUresult *code);
void forget_memories(void);

/* vmm.c. At the end of the process: a misuse tells what is left of virtual memory, and of its descriptors. */
void count_left(void);

/* pinned.c. At the end of the process: a misuse tells what is left allocated and registered. */
void count_registered(void);

/* stream.c */
void drain(struct context *context);
/* As `drain`, where frees hold up all calls. */
void drain_if_locked(struct context *context);
/* As above, for devices by their bits. */
void drain_all_if_locked(unsigned devices);
/* What is left of a context: how many streams and events, which end. */
int end_work(struct context *context);
void forget_events(void);

#pragma GCC visibility pop
#endif
