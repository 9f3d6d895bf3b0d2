/* The process: environment, trace, calls that fail on demand, devices, contexts. */
#include "fake_cuda.h"

struct settings settings;
struct context contexts[16];
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, calls = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static bool initialised;
/* A child of a process that had initialised: nothing works there, as with the driver. */
static bool forked;
static int trace = -1;
static uint64_t numbers;

static struct failure {
    char call[48];
    CUresult code;
    long nth, more, seen;
} failures[16];

/* A call that waits while a file exists. */
static struct gate {
    char call[48], file[200], reached[210];
} gate;

/* The call that a thread makes, and its contexts. */
static __thread const char *call;
static __thread char args[320];
static __thread size_t args_len;
static __thread struct context *pushed[32];
static __thread int depth;

static long number_of(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

static void read_failures(void)
{
    const char *text = getenv("FAKE_CUDA_FAIL");
    char *rest = text ? strdup(text) : NULL, *all = rest, *one;
    for (size_t i = 0; rest && (one = strsep(&rest, ",")) && i < 16; i++) {
        struct failure *failure = &failures[i];
        int code = 0;
        failure->nth = 1;
        if (sscanf(one, "%47[^:]:%d:%ld:%ld", failure->call, &code, &failure->nth, &failure->more) < 2)
            failure->call[0] = 0;
        failure->code = code;
    }
    free(all);
}

static void read_gate(void)
{
    const char *text = getenv("FAKE_CUDA_GATE");
    if (!text || sscanf(text, "%47[^:]:%199s", gate.call, gate.file) < 2)
        gate.call[0] = 0;
    snprintf(gate.reached, sizeof gate.reached, "%s.reached", gate.file);
}

static void pass_gate(const char *name)
{
    if (strcmp(gate.call, name) != 0)
        return;
    while (access(gate.file, F_OK) == 0) {
        int reached = open(gate.reached, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (reached >= 0)
            close(reached);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

static void read_uuids(void)
{
    const char *text = getenv("FAKE_CUDA_UUID");
    if (!text || strlen(text) != 32)
        text = "fa4e0000000040008000000000000000";
    for (int device = 0; device < 16; device++) {
        contexts[device].device = device;
        for (int i = 0; i < 16; i++) {
            unsigned byte = 0;
            sscanf(text + 2 * i, "%2x", &byte);
            contexts[device].uuid[i] = byte + (i == 15 ? device : 0);
        }
    }
}

static void read_peers(void)
{
    const char *text = getenv("FAKE_CUDA_NO_PEERS");
    char *rest = text ? strdup(text) : NULL, *all = rest, *one;
    unsigned device, peer;
    while (rest && (one = strsep(&rest, ",")))
        if (sscanf(one, "%u-%u", &device, &peer) == 2 && device < 16 && peer < 16)
            contexts[device].unreachable |= 1u << peer;
    free(all);
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

static void in_child(void)
{
    pthread_mutex_unlock(&lock);
    forked = forked || initialised;
    me = identity(getpid());
}

__attribute__((constructor)) static void load(void)
{
    settings.devices = number_of("FAKE_CUDA_DEVICES", 1);
    if (settings.devices > 16)
        settings.devices = 16;
    settings.attributes = number_of("FAKE_CUDA_ATTRIBUTES", 200);
    settings.version = number_of("FAKE_CUDA_VERSION", 13000);
    settings.bytes = number_of("FAKE_CUDA_BYTES", 4L << 30);
    settings.stuck = number_of("FAKE_CUDA_STUCK", 0) != 0;
    long delay = number_of("FAKE_CUDA_DELAY_US", 0);
    settings.delay = (struct timespec){delay / 1000000, delay % 1000000 * 1000};
    settings.no_ipc = number_of("FAKE_CUDA_NO_IPC", 0);
    settings.no_descriptors = number_of("FAKE_CUDA_NO_DESCRIPTORS", 0);
    settings.no_words = number_of("FAKE_CUDA_NO_WORDS", 0);
    settings.no_pins = number_of("FAKE_CUDA_NO_PINS", 0);
    settings.no_read_only_pins = number_of("FAKE_CUDA_NO_READ_ONLY_PINS", 0);
    settings.no_device = number_of("FAKE_CUDA_NO_DEVICE", 0);
    long registering = number_of("FAKE_CUDA_REGISTER_MS", 0);
    settings.registering = (struct timespec){registering / 1000, registering % 1000 * 1000000};
    settings.connected = number_of("FAKE_CUDA_CONNECTIONS", 0) == 1;
    settings.no_priorities = number_of("FAKE_CUDA_NO_PRIORITIES", 0);
    settings.locked = number_of("FAKE_CUDA_LOCKED", 0);
    settings.capturing = number_of("FAKE_CUDA_CAPTURING", 0);
    const char *session = getenv("FAKE_CUDA_SESSION");
    settings.session = strdup(session && *session && strlen(session) < 100 ? session : "none");
    const char *file = getenv("FAKE_CUDA_TRACE");
    if (file && *file)
        trace = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    read_failures();
    read_gate();
    read_uuids();
    read_peers();
    me = identity(getpid());
    pthread_atfork(before_fork, after_fork, in_child);
}

/* Other processes keep what they have open; nobody opens it again. */
__attribute__((destructor)) static void unload(void)
{
    pthread_mutex_lock(&lock);
    if (!forked) {
        call = "exit";
        count_left();
        count_registered();
        forget_memories();
        forget_events();
    }
    pthread_mutex_unlock(&lock);
}

static void write_line(char *line, int len, size_t room)
{
    if ((size_t)len > room - 1)
        len = room - 1;
    line[len - 1] = '\n';
    /* One write to the end of the file is not torn by other processes' writes. */
    if (trace >= 0 && write(trace, line, len) != len)
        abort();
}

static pthread_mutex_t hanging = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static char to_hang[48];
static int hangs;

int fakeHang(const char *name)
{
    pthread_mutex_lock(&hanging);
    snprintf(to_hang, sizeof to_hang, "%s", name);
    pthread_mutex_unlock(&hanging);
    return SUCCESS;
}

int fakeHangs(void)
{
    pthread_mutex_lock(&hanging);
    int answer = hangs;
    pthread_mutex_unlock(&hanging);
    return answer;
}

int fakeGoOn(void)
{
    pthread_mutex_lock(&hanging);
    to_hang[0] = 0;
    hangs = 0;
    pthread_cond_broadcast(&told);
    pthread_mutex_unlock(&hanging);
    return SUCCESS;
}

/* Before the call takes a lock: the calls of other threads go on. */
static void hang_if_told(const char *name)
{
    pthread_mutex_lock(&hanging);
    if (strcmp(to_hang, name) == 0) {
        to_hang[0] = 0;
        hangs = 1;
        while (hangs)
            pthread_cond_wait(&told, &hanging);
    }
    pthread_mutex_unlock(&hanging);
}

CUresult enter(const char *name, enum needs needs)
{
    hang_if_told(name);
    call = name;
    args_len = 0;
    args[0] = 0;
    pass_gate(name);
    pthread_mutex_lock(&calls);
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&calls);
    if (forked)
        return NOT_INITIALIZED;
    CUresult code = SUCCESS;
    for (size_t i = 0; i < 16; i++) {
        struct failure *failure = &failures[i];
        if (strcmp(failure->call, name) == 0) {
            failure->seen++;
            if (failure->seen >= failure->nth && failure->seen - failure->nth <= failure->more)
                code = failure->code;
        }
    }
    if (code != SUCCESS)
        return code;
    if (needs >= INIT && !initialised)
        return NOT_INITIALIZED;
    if (needs < CONTEXT)
        return SUCCESS;
    if (depth == 0)
        return INVALID_CONTEXT;
    return current()->refs > 0 ? SUCCESS : misuse(CONTEXT_IS_DESTROYED, "the current context was released");
}

void arg(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    size_t room = sizeof args - args_len;
    int len = snprintf(args + args_len, room, " ");
    len += vsnprintf(args + args_len + len, room - len, format, list);
    va_end(list);
    args_len = (size_t)len < room ? args_len + len : sizeof args - 1;
    if (sizeof args - args_len < 2)
        args_len = sizeof args - 2;
}

CUresult leave(CUresult code)
{
    char line[480], context[16] = "-";
    if (depth > 0)
        snprintf(context, sizeof context, "%d", current()->device);
    int len = snprintf(line, sizeof line, "%d %d %s %s%s = %d\n", getpid(), gettid(), context, call, args, code);
    write_line(line, len, sizeof line);
    pthread_mutex_unlock(&lock);
    return code;
}

CUresult misuse(CUresult code, const char *format, ...)
{
    char line[480];
    va_list list;
    va_start(list, format);
    int len = snprintf(line, sizeof line, "MISUSE %d %d %s: ", getpid(), gettid(), call);
    len += vsnprintf(line + len, sizeof line - len - 1, format, list);
    va_end(list);
    write_line(line, len + 1, sizeof line);
    return code;
}

struct context *current(void) { return depth > 0 ? pushed[depth - 1] : NULL; }

bool is_current(const struct context *context, const char *what)
{
    if (context == current())
        return true;
    misuse(0, "the %s is of device %d, and the current context is not", what, context->device);
    return false;
}

uint64_t next_number(void) { return ++numbers; }

bool is_ours(const unsigned char *uuid)
{
    for (int i = 0; i < settings.devices; i++)
        if (memcmp(contexts[i].uuid, uuid, 16) == 0)
            return true;
    return false;
}

CUresult cuInit(unsigned flags)
{
    CUresult code = enter("cuInit", NOTHING);
    arg("%u", flags);
    if (code == SUCCESS && flags != 0)
        code = INVALID_VALUE;
    if (code == SUCCESS && (settings.no_device || settings.devices < 1))
        code = NO_DEVICE;
    if (code == SUCCESS)
        initialised = true;
    return leave(code);
}

CUresult cuDriverGetVersion(int *version)
{
    CUresult code = enter("cuDriverGetVersion", NOTHING);
    if (code == SUCCESS && !version)
        code = INVALID_VALUE;
    if (code == SUCCESS)
        *version = settings.version;
    return leave(code);
}

/* Pure: it needs no driver, and is not traced. */
CUresult cuGetErrorName(CUresult error, const char **name)
{
    static const struct { CUresult code; const char *name; } names[] = {
        {0, "CUDA_SUCCESS"}, {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
        {3, "CUDA_ERROR_NOT_INITIALIZED"}, {4, "CUDA_ERROR_DEINITIALIZED"}, {34, "CUDA_ERROR_STUB_LIBRARY"},
        {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"}, {100, "CUDA_ERROR_NO_DEVICE"}, {101, "CUDA_ERROR_INVALID_DEVICE"},
        {201, "CUDA_ERROR_INVALID_CONTEXT"}, {205, "CUDA_ERROR_MAP_FAILED"}, {206, "CUDA_ERROR_UNMAP_FAILED"},
        {208, "CUDA_ERROR_ALREADY_MAPPED"}, {211, "CUDA_ERROR_NOT_MAPPED"}, {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
        {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"}, {304, "CUDA_ERROR_OPERATING_SYSTEM"},
        {400, "CUDA_ERROR_INVALID_HANDLE"}, {401, "CUDA_ERROR_ILLEGAL_STATE"}, {500, "CUDA_ERROR_NOT_FOUND"},
        {600, "CUDA_ERROR_NOT_READY"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {702, "CUDA_ERROR_LAUNCH_TIMEOUT"},
        {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"}, {711, "CUDA_ERROR_TOO_MANY_PEERS"},
        {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"}, {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
        {719, "CUDA_ERROR_LAUNCH_FAILED"}, {800, "CUDA_ERROR_NOT_PERMITTED"}, {801, "CUDA_ERROR_NOT_SUPPORTED"},
        {802, "CUDA_ERROR_SYSTEM_NOT_READY"}, {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
        {999, "CUDA_ERROR_UNKNOWN"},
    };
    if (!name)
        return INVALID_VALUE;
    *name = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == error)
            *name = names[i].name;
    return *name ? SUCCESS : INVALID_VALUE;
}

/* A call about a device: whether it can go on. */
static CUresult enter_device(const char *name, CUdevice device)
{
    CUresult code = enter(name, INIT);
    arg("dev:%d", device);
    if (code == SUCCESS && (device < 0 || device >= settings.devices))
        code = INVALID_DEVICE;
    return code;
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult code = enter("cuDeviceGetCount", INIT);
    if (code == SUCCESS && !count)
        code = INVALID_VALUE;
    if (code == SUCCESS)
        *count = settings.devices;
    return leave(code);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult code = enter_device("cuDeviceGet", ordinal);
    if (code == SUCCESS && !device)
        code = INVALID_VALUE;
    if (code == SUCCESS)
        *device = ordinal;
    return leave(code);
}

CUresult cuDeviceGetName(char *name, int len, CUdevice device)
{
    CUresult code = enter_device("cuDeviceGetName", device);
    if (code == SUCCESS && (!name || len < 1))
        code = INVALID_VALUE;
    if (code == SUCCESS)
        snprintf(name, len, "Fake CUDA device %d", device);
    return leave(code);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CUresult code = enter_device("cuDeviceGetUuid_v2", device);
    if (code == SUCCESS && !uuid)
        code = INVALID_VALUE;
    if (code == SUCCESS)
        memcpy(uuid->bytes, contexts[device].uuid, 16);
    return leave(code);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult code = enter_device("cuDeviceTotalMem_v2", device);
    if (code == SUCCESS && !bytes)
        code = INVALID_VALUE;
    if (code == SUCCESS)
        *bytes = settings.bytes;
    return leave(code);
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    CUresult code = enter_device("cuDeviceGetAttribute", device);
    arg("%d", attribute);
    if (code == SUCCESS && (!value || attribute < 1 || attribute > settings.attributes))
        code = INVALID_VALUE;
    if (code == SUCCESS) {
        switch (attribute) {
        case 33: *value = device + 1; break;         /* PCI_BUS_ID */
        case 41: *value = 1; break;                  /* UNIFIED_ADDRESSING */
        case 75: *value = 9; break;                  /* COMPUTE_CAPABILITY_MAJOR */
        case 99: *value = !settings.no_pins; break;  /* HOST_REGISTER_SUPPORTED */
        case 113: *value = !settings.no_pins && !settings.no_read_only_pins; break; /* READ_ONLY_HOST_REGISTER_SUPPORTED */
        case 102: *value = 1; break;                 /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
        case 103:                                    /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
            *value = !settings.no_descriptors && !settings.no_ipc;
            break;
        case 122: *value = !settings.no_words; break; /* CAN_USE_64_BIT_STREAM_MEM_OPS */
        case 125: *value = !settings.no_ipc; break;  /* IPC_EVENT_SUPPORTED */
        default: *value = 0;                         /* COMPUTE_CAPABILITY_MINOR among them */
        }
    }
    return leave(code);
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    CUresult code = enter_device("cuDeviceCanAccessPeer", device);
    arg("dev:%d", peer);
    if (code == SUCCESS && (peer < 0 || peer >= settings.devices))
        code = INVALID_DEVICE;
    if (code == SUCCESS && !can)
        code = INVALID_VALUE;
    if (code == SUCCESS)
        *can = device != peer && !(contexts[device].unreachable & 1u << peer);
    return leave(code);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult code = enter_device("cuDevicePrimaryCtxRetain", device);
    if (code == SUCCESS && !context)
        code = INVALID_VALUE;
    if (code == SUCCESS) {
        *context = &contexts[device];
        contexts[device].refs++;
    }
    return leave(code);
}

/* The last release destroys what is in the context. Whoever leaves something there has forgotten it. */
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult code = enter_device("cuDevicePrimaryCtxRelease_v2", device);
    struct context *context = &contexts[device];
    if (code == SUCCESS && context->refs == 0)
        code = misuse(INVALID_CONTEXT, "nobody retains it");
    if (code == SUCCESS && --context->refs == 0) {
        drain(context);
        int left = end_work(context);
        for (struct memory *memory = memories, *next; memory; memory = next) {
            next = memory->next;
            if (memory->context == context) {
                left++;
                remove_memory(memory);
            }
        }
        if (left > 0)
            misuse(0, "%d objects are left in the context", left);
    }
    return leave(code);
}

static bool is_context(struct context *context)
{
    for (int i = 0; i < settings.devices; i++)
        if (context == &contexts[i])
            return true;
    return false;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult code = enter("cuCtxPushCurrent_v2", INIT);
    bool known = is_context(context);
    known ? arg("dev:%d", context->device) : arg("?");
    if (code == SUCCESS && (!known || context->refs == 0))
        code = misuse(INVALID_CONTEXT, "no such context");
    if (code == SUCCESS && depth == sizeof pushed / sizeof *pushed)
        code = misuse(INVALID_VALUE, "so many contexts are pushed that some were not popped");
    if (code == SUCCESS)
        pushed[depth++] = context;
    return leave(code);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult code = enter("cuCtxPopCurrent_v2", INIT);
    if (code == SUCCESS && depth == 0)
        code = misuse(INVALID_CONTEXT, "none was pushed");
    if (code == SUCCESS) {
        arg("dev:%d", current()->device);
        if (context)
            *context = current();
        depth--;
    }
    return leave(code);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult code = enter("cuCtxGetCurrent", INIT);
    if (code == SUCCESS && !context)
        code = INVALID_VALUE;
    if (code == SUCCESS)
        *context = current();
    return leave(code);
}
