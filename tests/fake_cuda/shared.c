/* Objects that other processes open, and who of them lives. */
#include "fake_cuda.h"

const uint64_t MEMORY = 0x6d656d2d656b6166, EVENT = 0x746e652d656b6166;

_Atomic uint64_t me;

/* The process that has this PID now; 0: none, or one that is dead and was not waited for. */
uint64_t identity(pid_t pid)
{
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t len = read(fd, text, sizeof text - 1);
    close(fd);
    if (len <= 0)
        return 0;
    text[len] = 0;
    /* proc_pid_stat(5): the name may hold anything; after it come the state (3rd field) and the start (22nd). */
    const char *at = strrchr(text, ')');
    char state = 0;
    unsigned long long start = 0;
    if (!at || sscanf(at + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                      &state, &start) != 2)
        return 0;
    if (state == 'Z' || state == 'X')
        return 0;
    return (uint64_t)pid << 32 | (uint32_t)start;
}

bool alive(uint64_t process)
{
    return process != 0 && (process == me || identity(process >> 32) == process);
}

static void path_of(char *path, size_t room, uint64_t magic, uint32_t pid, uint64_t number)
{
    const char *kind = magic == MEMORY ? "mem" : "event";
    snprintf(path, room, "/dev/shm/fake-cuda-%s-%s-%u-%llu", settings.session, kind, pid, (unsigned long long)number);
}

/* Maps the header of an object, and its bytes where it has some. */
static struct shared *map(int fd, size_t size, char **data)
{
    struct shared *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        return NULL;
    if (size > 0) {
        *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, PAGE);
        if (*data == MAP_FAILED) {
            munmap(shared, PAGE);
            return NULL;
        }
    }
    return shared;
}

struct shared *share(uint64_t magic, uint64_t number, const unsigned char *uuid, size_t size, char **data)
{
    char path[200];
    path_of(path, sizeof path, magic, me >> 32, number);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return NULL;
    struct shared *shared = NULL;
    uint64_t key = 0;
    if (ftruncate(fd, PAGE + size) == 0 && getrandom(&key, sizeof key, 0) == sizeof key)
        shared = map(fd, size, data);
    close(fd);
    if (!shared) {
        unlink(path);
        return NULL;
    }
    shared->magic = magic;
    shared->key = key;
    shared->owner = me;
    shared->number = number;
    shared->size = size;
    memcpy(shared->uuid, uuid, 16);
    return shared;
}

struct token token_of(const struct shared *shared)
{
    struct token token = {
        .magic = shared->magic,
        .key = shared->key,
        .number = shared->number,
        .size = shared->size,
        .pid = shared->owner >> 32,
    };
    memcpy(token.uuid, shared->uuid, 16);
    return token;
}

/* NULL: there is none that this is the token of, or its owner is dead or has freed it. */
struct shared *open_shared(const struct token *token, char **data)
{
    char path[200];
    path_of(path, sizeof path, token->magic, token->pid, token->number);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    struct stat stat;
    struct shared *shared = NULL;
    if (fstat(fd, &stat) == 0 && token->size < 1ull << 46 && (size_t)stat.st_size == PAGE + token->size)
        shared = map(fd, token->size, data);
    close(fd);
    if (!shared)
        return NULL;
    struct token truth = token_of(shared);
    if (memcmp(&truth, token, sizeof truth) != 0 || shared->gone || !alive(shared->owner) || !add_opener(shared)) {
        unmap_shared(shared, token->size > 0 ? *data : NULL);
        return NULL;
    }
    return shared;
}

void unlink_shared(const struct shared *shared)
{
    char path[200];
    path_of(path, sizeof path, shared->magic, shared->owner >> 32, shared->number);
    unlink(path);
}

void unmap_shared(struct shared *shared, char *data)
{
    if (data)
        munmap(data, shared->size);
    munmap(shared, PAGE);
}

bool opened_elsewhere(struct shared *shared)
{
    for (size_t i = 0; i < 256; i++) {
        uint64_t opener = shared->openers[i];
        if (opener != me && alive(opener))
            return true;
    }
    return false;
}

bool add_opener(struct shared *shared)
{
    for (size_t i = 0; i < 256; i++) {
        uint64_t opener = shared->openers[i];
        if (!alive(opener) && atomic_compare_exchange_strong(&shared->openers[i], &opener, me))
            return true;
    }
    return false;
}

void remove_opener(struct shared *shared)
{
    for (size_t i = 0; i < 256; i++) {
        uint64_t opener = me;
        if (atomic_compare_exchange_strong(&shared->openers[i], &opener, 0))
            return;
    }
}
