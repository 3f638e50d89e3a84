/* Dispatch to the implementations, and the allocator's books: every buffer is counted here, whatever the
 * device. */
#include "engine/backend_private.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "model/footprint.h"

enum { HUGE_PAGE_BYTES = 2 << 20 }; /* x86-64 and most others; elsewhere only the alignment is less apt */

static const struct backend *const backends[] = {&backend_cpu, &backend_checked};

int device_open(const struct device_options *options, struct device **out, struct err *err)
{
    *out = NULL;
    if (options->threads > 64)
        return err_set(err, ERR_INVALID, "device %s: %u threads, at most 64", options->name,
                       options->threads);
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        if (strcmp(backends[i]->kind, options->kind) != 0)
            continue;
        struct device *device = NULL;
        if (backends[i]->device->open(options, &device, err) != 0)
            return err_wrap(err, "device %s", options->name);
        device->backend = backends[i];
        device->threads = options->threads == 0 ? 1 : options->threads;
        device->account.limit = options->memory_limit_bytes;
        snprintf(device->name, sizeof device->name, "%s",
                 options->name == NULL ? options->kind : options->name);
        *out = device;
        return 0;
    }
    return err_set(err, ERR_INVALID, "device %s: no kind '%s' (cpu, checked)", options->name, options->kind);
}

void device_close(struct device *device)
{
    if (device != NULL)
        device->backend->device->close(device);
}

const char *device_name(const struct device *device)
{
    return device->name;
}

const char *device_kind(const struct device *device)
{
    return device->backend->kind;
}

const char *device_isa(const struct device *device)
{
    return device->isa;
}

uint32_t device_threads(const struct device *device)
{
    return device->threads;
}

uint64_t device_cache_bytes(const struct device *device)
{
    return device->cache_bytes;
}

void device_memory(const struct device *device, struct mem_account *out)
{
    *out = device->account;
}

void device_memory_reset_peak(struct device *device)
{
    memcpy(device->account.peak, device->account.held, sizeof device->account.peak);
    device->account.peak_total = device->account.held_total;
}

const char *mem_purpose_name(enum mem_purpose purpose)
{
    static const char *const names[MEM_PURPOSES] = {
        [MEM_WEIGHTS] = "weights",         [MEM_ADAPTERS] = "adapters", [MEM_OPTIMIZER] = "optimizer",
        [MEM_ACTIVATIONS] = "activations", [MEM_BUFFERS] = "buffers",
    };
    return (unsigned)purpose < MEM_PURPOSES ? names[purpose] : "unknown";
}

/* A mapping that begins where a huge page may, so that large buffers take few entries of the address
 * translation's cache and are laid out alike in every process; NULL when refused. */
static uint8_t *pages_map(uint64_t bytes)
{
    const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    uint8_t *memory;
    if (bytes < HUGE_PAGE_BYTES) {
        memory = mmap(NULL, bytes, protection, flags, -1, 0);
        return memory == MAP_FAILED ? NULL : memory;
    }
    uint64_t whole = footprint_counted(bytes);
    memory = mmap(NULL, whole + HUGE_PAGE_BYTES, protection, flags, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    uint64_t skip = (HUGE_PAGE_BYTES - (uintptr_t)memory % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (skip > 0)
        munmap(memory, skip);
    if (skip < HUGE_PAGE_BYTES)
        munmap(memory + skip + whole, HUGE_PAGE_BYTES - skip);
    madvise(memory + skip, whole, MADV_HUGEPAGE); /* a hint: refused, pages stay small */
    return memory + skip;
}

void *pages_alloc(uint64_t bytes)
{
    if (bytes == 0 || bytes > SIZE_MAX / 2)
        return NULL;
    uint8_t *memory = pages_map(bytes);
    if (memory == NULL)
        return NULL;
    /* Touch each page now: what the plan counts is then what the process holds, and no step pays for it. */
    for (uint64_t at = 0; at < bytes; at += FOOTPRINT_GRANULE)
        ((volatile uint8_t *)memory)[at] = 0;
    return memory;
}

void pages_free(void *memory, uint64_t bytes)
{
    if (memory != NULL)
        munmap(memory, bytes);
}

static int account_take(struct device *device, const struct buffer *buffer, const char *what, struct err *err)
{
    struct mem_account *account = &device->account;
    uint64_t held = account->held_total;
    if (account->limit != 0 && (held > account->limit || buffer->accounted > account->limit - held))
        return err_set(
            err, ERR_NOFIT,
            "device %s is out of memory: %s (%s) asked for %llu bytes, %llu are held, %llu are allowed",
            device->name, what, mem_purpose_name(buffer->purpose), (unsigned long long)buffer->accounted,
            (unsigned long long)held, (unsigned long long)account->limit);
    account->held[buffer->purpose] += buffer->accounted;
    account->held_total += buffer->accounted;
    if (account->held[buffer->purpose] > account->peak[buffer->purpose])
        account->peak[buffer->purpose] = account->held[buffer->purpose];
    if (account->held_total > account->peak_total)
        account->peak_total = account->held_total;
    return 0;
}

static void account_give(struct device *device, const struct buffer *buffer)
{
    device->account.held[buffer->purpose] -= buffer->accounted;
    device->account.held_total -= buffer->accounted;
}

int buffer_create(struct device *device, uint64_t bytes, enum mem_purpose purpose, const char *what,
                  struct buffer **out, struct err *err)
{
    *out = NULL;
    if (bytes > UINT64_MAX / 4)
        return err_set(err, ERR_NOMEM, "device %s: %s asked for %llu bytes", device->name, what,
                       (unsigned long long)bytes);
    struct buffer *buffer = calloc(1, sizeof *buffer);
    if (buffer == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for a buffer handle");
    buffer->device = device;
    buffer->purpose = purpose;
    buffer->bytes = bytes;
    buffer->accounted = footprint_counted(bytes);
    struct mem_account before = device->account;
    if (account_take(device, buffer, what, err) != 0)
        goto fail;
    if (device->backend->buffer->create(buffer, err) != 0) {
        device->account = before;
        err_set(
            err, ERR_NOMEM,
            "device %s: the system refused %llu bytes for %s, %llu are held, %llu are allowed (0: no limit)",
            device->name, (unsigned long long)buffer->accounted, what,
            (unsigned long long)device->account.held_total, (unsigned long long)device->account.limit);
        goto fail;
    }
    *out = buffer;
    return 0;
fail:
    free(buffer);
    return -1;
}

void buffer_destroy(struct buffer *buffer)
{
    if (buffer == NULL)
        return;
    buffer->device->backend->buffer->destroy(buffer);
    account_give(buffer->device, buffer);
    free(buffer);
}

uint64_t buffer_bytes(const struct buffer *buffer)
{
    return buffer->bytes;
}

struct device *buffer_device(const struct buffer *buffer)
{
    return buffer->device;
}

static int range_check(const struct buffer *buffer, uint64_t at, uint64_t bytes, const char *what,
                       struct err *err)
{
    if (at <= buffer->bytes && bytes <= buffer->bytes - at)
        return 0;
    return err_set(err, ERR_INVALID, "device %s: %s of %llu bytes at %llu leaves a buffer of %llu",
                   buffer->device->name, what, (unsigned long long)bytes, (unsigned long long)at,
                   (unsigned long long)buffer->bytes);
}

int buffer_write(struct buffer *buffer, uint64_t at, const void *src, uint64_t bytes, struct err *err)
{
    if (range_check(buffer, at, bytes, "a write", err) != 0)
        return -1;
    return bytes == 0 ? 0 : buffer->device->backend->buffer->write(buffer, at, src, bytes, err);
}

int buffer_read(struct buffer *buffer, uint64_t at, void *dst, uint64_t bytes, struct err *err)
{
    if (range_check(buffer, at, bytes, "a read", err) != 0)
        return -1;
    return bytes == 0 ? 0 : buffer->device->backend->buffer->read(buffer, at, dst, bytes, err);
}

int buffer_copy(struct buffer *dst, uint64_t dst_at, struct buffer *src, uint64_t src_at, uint64_t bytes,
                struct err *err)
{
    if (range_check(dst, dst_at, bytes, "a copy", err) != 0 ||
        range_check(src, src_at, bytes, "a copy", err) != 0)
        return -1;
    if (dst->device != src->device)
        return err_set(err, ERR_INVALID, "a copy between devices %s and %s", src->device->name,
                       dst->device->name);
    return bytes == 0 ? 0 : dst->device->backend->buffer->copy(dst, dst_at, src, src_at, bytes, err);
}

int buffer_zero(struct buffer *buffer, uint64_t at, uint64_t bytes, struct err *err)
{
    if (range_check(buffer, at, bytes, "zeroing", err) != 0)
        return -1;
    return bytes == 0 ? 0 : buffer->device->backend->buffer->zero(buffer, at, bytes, err);
}

int event_create(struct device *device, struct event **out, struct err *err)
{
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for an event");
    (*out)->device = device;
    return 0;
}

void event_destroy(struct event *event)
{
    free(event);
}

int event_record(struct event *event, struct err *err)
{
    return event->device->backend->event->record(event, err);
}

int event_wait(struct event *event, uint64_t timeout_ns, struct err *err)
{
    return event->device->backend->event->wait(event, timeout_ns, err);
}

bool event_done(const struct event *event)
{
    return event->device->backend->event->done(event);
}

int device_sync(struct device *device, struct err *err)
{
    return device->backend->device->sync(device, err);
}
