/* The arena of an emulated device: one memory file, mapped twice. */
#include "engine/gpu/emulated/emulated.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, POISON_BYTES = 1 << 20 };

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

int emulated_memory_init(struct emulated_memory *memory, uint64_t limit, bool checks, struct err *err)
{
    memset(memory, 0, sizeof(*memory));
    memory->limit = limit;
    /* twice the limit, because address space costs nothing and fragmentation could otherwise exhaust it */
    memory->half = round_up(2 * limit + (64ull << 20), PAGE);
    memory->file = memfd_create("motley-emulated", MFD_CLOEXEC);
    uint64_t whole = 2 * memory->half;
    if (memory->file < 0 || ftruncate(memory->file, (off_t)memory->half) != 0) {
        if (memory->file >= 0)
            close(memory->file);
        return err_set(err, ERR_NOMEM, "the system gives no memory file for an emulated device");
    }
    void *addresses = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *pages = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool mapped = addresses != MAP_FAILED && pages != MAP_FAILED &&
                  mmap(pages, memory->half, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                       memory->file, 0) != MAP_FAILED;
    if (!mapped || (checks && emulated_shadow_create(whole, &memory->shadow, err) != 0)) {
        if (addresses != MAP_FAILED)
            munmap(addresses, whole);
        if (pages != MAP_FAILED)
            munmap(pages, whole);
        close(memory->file);
        return err_set(err, ERR_NOMEM, "no address space for an emulated device of %llu bytes",
                       (unsigned long long)limit);
    }
    memory->addresses = addresses;
    memory->pages = pages;
    pthread_mutex_init(&memory->lock, NULL);
    return 0;
}

void emulated_memory_fini(struct emulated_memory *memory)
{
    lender_destroy(memory->lender);
    munmap(memory->addresses, 2 * memory->half);
    munmap(memory->pages, 2 * memory->half);
    close(memory->file);
    emulated_shadow_destroy(memory->shadow);
    free(memory->spans);
    pthread_mutex_destroy(&memory->lock);
}

/* Inserts an allocation in the first sufficient gap of [begin, end), with space behind every allocation so
 * that an access just beyond it is noticed. Returns the index of the new span, or UINT32_MAX. Called with the
 * lock held. */
static uint32_t span_insert(struct emulated_memory *memory, uint64_t begin, uint64_t end, uint64_t bytes)
{
    if (memory->count == memory->room) {
        uint32_t room = memory->room == 0 ? 64 : 2 * memory->room;
        struct emulated_span *spans = realloc(memory->spans, room * sizeof(*spans));
        if (!spans)
            return UINT32_MAX;
        memory->spans = spans;
        memory->room = room;
    }
    uint64_t at = begin;
    uint32_t i = 0;
    for (; i < memory->count; i++) {
        if (memory->spans[i].begin < begin)
            continue;
        if (memory->spans[i].begin >= end ||
            (at <= memory->spans[i].begin && bytes <= memory->spans[i].begin - at))
            break;
        at = round_up(memory->spans[i].begin + memory->spans[i].bytes + EMULATED_ALIGNMENT,
                      EMULATED_ALIGNMENT);
    }
    if (at > end || bytes > end - at)
        return UINT32_MAX;
    memmove(memory->spans + i + 1, memory->spans + i, (memory->count - i) * sizeof(*memory->spans));
    memory->spans[i] = (struct emulated_span){.begin = at, .bytes = bytes};
    memory->count++;
    return i;
}

int emulated_memory_take(struct emulated_memory *memory, uint64_t bytes, gpu_address *out, struct err *err)
{
    int rc = -1;
    *out = 0;
    if (bytes == 0)
        return err_set(err, ERR_INVALID, "an allocation of 0 bytes");
    pthread_mutex_lock(&memory->lock);
    uint64_t counted = round_up(bytes, EMULATED_ALIGNMENT);
    uint32_t span = UINT32_MAX;
    if (counted <= memory->limit && memory->held <= memory->limit - counted)
        span = span_insert(memory, 0, memory->half, bytes);
    if (span == UINT32_MAX) {
        err_set(err, ERR_NOMEM, "the emulated device has %llu bytes, %llu are held, %llu were asked for",
                (unsigned long long)memory->limit, (unsigned long long)memory->held,
                (unsigned long long)bytes);
    } else {
        uint64_t at = memory->spans[span].begin;
        memory->held += counted;
        *out = (uintptr_t)(memory->addresses + at);
        /* Reads before a write give NaN. Only the beginning of large allocations is filled, because each page
         * takes time. */
        memset(memory->pages + at, 0xff, bytes < POISON_BYTES ? bytes : POISON_BYTES);
        if (memory->shadow)
            emulated_shadow_forget(memory->shadow, at, bytes);
        rc = 0;
    }
    pthread_mutex_unlock(&memory->lock);
    return rc;
}

int emulated_memory_give(struct emulated_memory *memory, gpu_address address, struct err *err)
{
    int rc = -1;
    pthread_mutex_lock(&memory->lock);
    uint64_t at = address - (uintptr_t)memory->addresses;
    for (uint32_t i = 0; i < memory->count; i++) {
        if (memory->spans[i].begin != at)
            continue;
        uint64_t bytes = memory->spans[i].bytes;
        if (at < memory->half) {
            memory->held -= round_up(bytes, EMULATED_ALIGNMENT);
            uint64_t first = round_up(at, PAGE), last = (at + bytes) / PAGE * PAGE;
            if (first < last)
                fallocate(memory->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)first,
                          (off_t)(last - first));
        } else {
            mmap(memory->pages + at / PAGE * PAGE, round_up(bytes + at % PAGE, PAGE), PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        }
        memmove(memory->spans + i, memory->spans + i + 1, (memory->count - i - 1) * sizeof(*memory->spans));
        memory->count--;
        rc = 0;
        break;
    }
    pthread_mutex_unlock(&memory->lock);
    return rc == 0 ? 0 : err_set(err, ERR_INVALID, "no allocation begins at this address");
}

bool emulated_memory_find(struct emulated_memory *memory, gpu_address address, uint64_t bytes,
                          struct emulated_span *out)
{
    bool found = false;
    pthread_mutex_lock(&memory->lock);
    uint64_t at = address - (uintptr_t)memory->addresses;
    uint32_t begin = 0,
             end = memory->count; /* binary search for the last span that begins at or before the address */
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        if (memory->spans[middle].begin <= at)
            begin = middle + 1;
        else
            end = middle;
    }
    if (begin > 0) {
        *out = memory->spans[begin - 1];
        found = at - out->begin <= out->bytes && bytes <= out->bytes - (at - out->begin);
        out->begin += (uintptr_t)memory->addresses;
    }
    pthread_mutex_unlock(&memory->lock);
    return found;
}

void *emulated_memory_at(struct emulated_memory *memory, gpu_address address, uint64_t bytes, bool written)
{
    struct emulated_span span;
    if (!emulated_memory_find(memory, address, bytes, &span))
        return NULL;
    uint64_t at = address - (uintptr_t)memory->addresses;
    if (written && memory->shadow) {
        pthread_mutex_lock(&memory->lock);
        emulated_shadow_write(memory->shadow, at, bytes);
        pthread_mutex_unlock(&memory->lock);
    }
    return memory->pages + at;
}

/* The contents of a handle: the owner's file, and the range in it. */
struct shared_handle {
    struct loan loan;
    uint64_t at, bytes;
};

int emulated_memory_export(struct emulated_memory *memory, gpu_address address, uint8_t handle[GPU_IPC_BYTES],
                           struct err *err)
{
    struct emulated_span span;
    if (!emulated_memory_find(memory, address, 1, &span) || span.begin != address)
        return err_set(err, ERR_INVALID, "no allocation begins at this address");
    struct shared_handle shared = {.at = address - (uintptr_t)memory->addresses, .bytes = span.bytes};
    pthread_mutex_lock(&memory->lock);
    if (!memory->lender)
        memory->lender = lender_create();
    pthread_mutex_unlock(&memory->lock);
    if (!memory->lender)
        return err_set(err, ERR_NOMEM, "no socket or thread to share memory by");
    lender_lend(memory->lender, memory->file, &shared.loan);
    memset(handle, 0, GPU_IPC_BYTES);
    memcpy(handle, &shared, sizeof(shared));
    return 0;
}

int emulated_memory_import(struct emulated_memory *memory, const uint8_t handle[GPU_IPC_BYTES],
                           gpu_address *out, struct err *err)
{
    struct shared_handle shared;
    memcpy(&shared, handle, sizeof(shared));
    *out = 0;
    if (shared.bytes == 0 || shared.bytes > memory->half || shared.at > INT64_MAX / 2)
        return err_set(err, ERR_INVALID, "a handle of shared memory says %llu bytes",
                       (unsigned long long)shared.bytes);
    int file = loan_take(&shared.loan);
    struct stat about;
    if (file < 0)
        return err_set(err, ERR_NOT_FOUND, "the other process shares no memory any more");
    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size < 0 ||
        shared.at > (uint64_t)about.st_size || shared.bytes > (uint64_t)about.st_size - shared.at) {
        close(file);
        return err_set(err, ERR_INVALID, "a handle of shared memory names bytes that its process has not");
    }
    uint64_t skip = shared.at % PAGE, whole = round_up(skip + shared.bytes, PAGE);
    pthread_mutex_lock(&memory->lock);
    uint32_t span = span_insert(memory, memory->half, 2 * memory->half, whole + PAGE);
    int rc = -1;
    if (span != UINT32_MAX) {
        uint64_t at = round_up(memory->spans[span].begin, PAGE);
        void *pages = mmap(memory->pages + at, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
                           (off_t)(shared.at - skip));
        memory->spans[span] = (struct emulated_span){.begin = at + skip, .bytes = shared.bytes};
        *out = (uintptr_t)(memory->addresses + at + skip);
        if (memory->shadow)
            emulated_shadow_write(memory->shadow, at + skip, shared.bytes);
        rc = pages == MAP_FAILED ? -1 : 0;
    }
    pthread_mutex_unlock(&memory->lock);
    close(file);
    return rc == 0 ? 0 : err_set(err, ERR_NOMEM, "no address space for shared memory");
}
