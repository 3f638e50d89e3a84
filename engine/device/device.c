/* Dispatches calls to the implementations, and accounts for memory: buffers of every device are counted here.
 */
#include "engine/device/backend_private.h"

#include <fcntl.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/shape/footprint.h"

/* Size of a huge page on x86-64 and most other machines. Where it is wrong, large buffers are only aligned
 * less usefully. */
enum { HUGE_PAGE_BYTES = 2 << 20 };

static const struct backend *const backends[] = {&backend_cpu,  &backend_checked, &backend_paced,
                                                 &backend_cuda, &backend_hip,     &backend_emulated};

int device_open(const struct device_options *options, struct device **out, struct err *err)
{
    *out = NULL;
    if (options->threads > 64)
        return err_set(err, ERR_INVALID, "device %s: %u threads, at most 64", options->name,
                       options->threads);
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        if (strcmp(backends[i]->kind, options->kind) != 0)
            continue;
        struct device *device = NULL;
        if (backends[i]->device->open(options, &device, err) != 0)
            return err_wrap(err, "device %s", options->name);
        device->backend = backends[i];
        device->threads = options->threads == 0 ? 1 : options->threads;
        device->account.limit = options->memory_limit_bytes;
        pthread_mutex_init(&device->lock, NULL);
        snprintf(device->name, sizeof(device->name), "%s", !options->name ? options->kind : options->name);
        *out = device;
        return 0;
    }
    return err_set(err, ERR_INVALID, "device %s: no kind '%s' (cpu, checked, paced, cuda, hip, emulated)",
                   options->name, options->kind);
}

void device_close(struct device *device)
{
    if (!device)
        return;
    pthread_mutex_destroy(&device->lock);
    lender_destroy(device->lender);
    device->backend->device->close(device);
}

const char *device_name(const struct device *device)
{
    return device->name;
}

uint64_t device_base_bytes(const struct device *device)
{
    return device->base_bytes;
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

/* Locks the account, which any thread may read. */
static struct device *device_lock(const struct device *device)
{
    struct device *own = (struct device *)device;
    pthread_mutex_lock(&own->lock);
    return own;
}

void device_memory(const struct device *device, struct mem_account *out)
{
    struct device *own = device_lock(device);
    *out = own->account;
    pthread_mutex_unlock(&own->lock);
}

void device_memory_reset_peak(struct device *device)
{
    device_lock(device);
    memcpy(device->account.peak, device->account.held, sizeof(device->account.peak));
    device->account.peak_total = device->account.held_total;
    device->account.host_peak = device->account.host_held;
    pthread_mutex_unlock(&device->lock);
}

const char *mem_purpose_name(enum mem_purpose purpose)
{
    static const char *const names[MEM_PURPOSES] = {
        [MEM_WEIGHTS] = "weights",         [MEM_ADAPTERS] = "adapters", [MEM_OPTIMIZER] = "optimizer",
        [MEM_ACTIVATIONS] = "activations", [MEM_BUFFERS] = "buffers",
    };
    return (unsigned)purpose < MEM_PURPOSES ? names[purpose] : "unknown";
}

/* Map memory that begins where a huge page may begin. Large buffers then need few entries of the address
 * translation cache and have the same layout in every process. NULL when the system refuses. */
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
    madvise(memory + skip, whole, MADV_HUGEPAGE); /* only a hint: if refused, pages stay small */
    return memory + skip;
}

void *pages_alloc(uint64_t bytes)
{
    if (bytes == 0 || bytes > SIZE_MAX / 2)
        return NULL;
    uint8_t *memory = pages_map(bytes);
    if (!memory)
        return NULL;
    /* Touch each page now, so that the process holds what the plan counts and no step pays for page faults.
     */
    for (uint64_t at = 0; at < bytes; at += FOOTPRINT_GRANULE)
        ((volatile uint8_t *)memory)[at] = 0;
    return memory;
}

void pages_free(void *memory, uint64_t bytes)
{
    if (memory)
        munmap(memory, bytes);
}

/* The contents of a handle of shared pages. */
struct shared_pages {
    struct loan loan;
    uint64_t bytes;
};

static void *file_map(int file, uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void *pages_alloc_shared(struct device *device, uint64_t bytes, uint8_t handle[64])
{
    pthread_mutex_lock(&device->lock);
    if (!device->lender)
        device->lender = lender_create();
    pthread_mutex_unlock(&device->lock);
    if (!device->lender || bytes == 0 || bytes > INT64_MAX / 2)
        return NULL;
    int file = memfd_create("motley-buffer", MFD_CLOEXEC);
    void *memory = file >= 0 && posix_fallocate(file, 0, (off_t)bytes) == 0 ? file_map(file, bytes) : NULL;
    struct shared_pages shared = {.bytes = bytes};
    lender_lend(device->lender, file, &shared.loan);
    memset(handle, 0, 64);
    memcpy(handle, &shared, sizeof(shared));
    if (!memory && file >= 0)
        close(file);
    return memory;
}

void *pages_import(const uint8_t handle[64], uint64_t bytes)
{
    struct shared_pages shared;
    struct stat about;
    memcpy(&shared, handle, sizeof(shared));
    int file = loan_take(&shared.loan);
    if (file < 0)
        return NULL;
    void *memory = shared.bytes == bytes && fstat(file, &about) == 0 && (uint64_t)about.st_size >= bytes
                       ? file_map(file, bytes)
                       : NULL;
    close(file);
    return memory;
}

void pages_release_shared(const uint8_t handle[64])
{
    struct shared_pages shared;
    memcpy(&shared, handle, sizeof(shared));
    close(shared.loan.file);
}

static int account_take(struct device *device, const struct buffer *buffer, const char *what, struct err *err)
{
    struct mem_account *account = &device_lock(device)->account;
    uint64_t held = account->held_total;
    if (account->limit != 0 && (held > account->limit || buffer->accounted > account->limit - held)) {
        err_set(err, ERR_NOFIT,
                "device %s is out of memory: %s (%s) asked for %llu bytes, %llu are held, %llu are allowed",
                device->name, what, mem_purpose_name(buffer->purpose), (unsigned long long)buffer->accounted,
                (unsigned long long)held, (unsigned long long)account->limit);
        pthread_mutex_unlock(&device->lock);
        return -1;
    }
    account->held[buffer->purpose] += buffer->accounted;
    account->held_total += buffer->accounted;
    pthread_mutex_unlock(&device->lock);
    return 0;
}

/* Raise the peaks to the bytes held, after the allocation succeeded. */
static void account_peak(struct device *device, const struct buffer *buffer)
{
    struct mem_account *account = &device_lock(device)->account;
    if (account->held[buffer->purpose] > account->peak[buffer->purpose])
        account->peak[buffer->purpose] = account->held[buffer->purpose];
    if (account->held_total > account->peak_total)
        account->peak_total = account->held_total;
    pthread_mutex_unlock(&device->lock);
}

static void account_give(struct device *device, const struct buffer *buffer)
{
    struct mem_account *account = &device_lock(device)->account;
    account->held[buffer->purpose] -= buffer->accounted;
    account->held_total -= buffer->accounted;
    pthread_mutex_unlock(&device->lock);
}

static int buffer_new(struct device *device, uint64_t bytes, enum mem_purpose purpose, bool shared,
                      const char *what, struct buffer **out, struct err *err)
{
    *out = NULL;
    if (bytes > UINT64_MAX / 4)
        return err_set(err, ERR_NOMEM, "device %s: %s asked for %llu bytes", device->name, what,
                       (unsigned long long)bytes);
    struct buffer *buffer = calloc(1, sizeof(*buffer));
    if (!buffer)
        return err_set(err, ERR_NOMEM, "out of memory for a buffer handle");
    buffer->device = device;
    buffer->purpose = purpose;
    buffer->bytes = bytes;
    uint64_t piece = shared ? device->backend->shared_piece : 0;
    buffer->accounted = piece > 0 ? (bytes + piece - 1) / piece * piece : footprint_counted(bytes);
    buffer->shared = shared;
    buffer->serial = ++device->buffers_made;
    if (account_take(device, buffer, what, err) != 0)
        goto fail;
    if (device->backend->buffer->create(buffer, err) != 0) {
        account_give(device, buffer);
        if (err->code == ERR_NOMEM)
            err_set(err, ERR_NOMEM,
                    "device %s: the system refused %llu bytes for %s, %llu are held, %llu are allowed "
                    "(0: no limit)",
                    device->name, (unsigned long long)buffer->accounted, what,
                    (unsigned long long)device->account.held_total,
                    (unsigned long long)device->account.limit);
        else
            err_wrap(err, "device %s: %s", device->name, what);
        goto fail;
    }
    account_peak(device, buffer);
    *out = buffer;
    return 0;
fail:
    free(buffer);
    return -1;
}

int buffer_create(struct device *device, uint64_t bytes, enum mem_purpose purpose, const char *what,
                  struct buffer **out, struct err *err)
{
    return buffer_new(device, bytes, purpose, false, what, out, err);
}

int buffer_create_shared(struct device *device, uint64_t bytes, enum mem_purpose purpose, const char *what,
                         struct buffer **out, struct err *err)
{
    if (!device->backend->buffer->export_handle)
        return err_set(err, ERR_UNSUPPORTED, "device %s (%s) shares no memory between processes",
                       device->name, device_kind(device));
    return buffer_new(device, bytes, purpose, true, what, out, err);
}

int buffer_export(struct buffer *buffer, struct buffer_handle *out, struct err *err)
{
    struct device *device = buffer->device;
    if (!buffer->shared || buffer->bytes == 0)
        return err_set(err, ERR_INVALID, "device %s: this buffer was not made to be shared", device->name);
    *out = (struct buffer_handle){.bytes = buffer->bytes};
    snprintf(out->kind, sizeof(out->kind), "%s", device_kind(device));
    return device->backend->buffer->export_handle(buffer, out->of_device, err);
}

int buffer_import(struct device *device, const struct buffer_handle *handle, struct buffer **out,
                  struct err *err)
{
    *out = NULL;
    if (strncmp(handle->kind, device_kind(device), sizeof(handle->kind)) != 0 || handle->bytes == 0 ||
        handle->bytes > UINT64_MAX / 4 || !device->backend->buffer->import_handle)
        return err_set(err, ERR_INVALID,
                       "device %s (%s) cannot use shared memory of kind '%.15s', %llu bytes", device->name,
                       device_kind(device), handle->kind, (unsigned long long)handle->bytes);
    struct buffer *buffer = calloc(1, sizeof(*buffer));
    if (!buffer)
        return err_set(err, ERR_NOMEM, "out of memory for a buffer handle");
    buffer->device = device;
    buffer->purpose = MEM_BUFFERS;
    buffer->bytes = handle->bytes;
    buffer->imported = true;
    buffer->serial = ++device->buffers_made;
    if (device->backend->buffer->import_handle(buffer, handle->of_device, err) != 0) {
        free(buffer);
        return err_wrap(err, "device %s", device->name);
    }
    *out = buffer;
    return 0;
}

void buffer_destroy(struct buffer *buffer)
{
    if (!buffer)
        return;
    buffer->device->backend->buffer->destroy(buffer);
    account_give(buffer->device, buffer); /* an imported buffer counts 0 bytes */
    free(buffer);
}

uint64_t buffer_serial(const struct buffer *buffer)
{
    return buffer->serial;
}

uint64_t buffer_bytes(const struct buffer *buffer)
{
    return buffer->bytes;
}

struct device *buffer_device(const struct buffer *buffer)
{
    return buffer->device;
}

int host_memory_create(struct device *device, uint64_t bytes, const char *what, void **out, struct err *err)
{
    const struct device_ops *ops = device->backend->device;
    *out = NULL;
    if (!ops->host_create)
        *out = pages_alloc(bytes);
    else if (bytes > 0 && ops->host_create(device, bytes, out, err) != 0)
        return err_wrap(err, "device %s: %s", device->name, what);
    if (!*out)
        return err_set(err, ERR_NOMEM, "device %s: the host refused %llu bytes for %s", device->name,
                       (unsigned long long)bytes, what);
    struct mem_account *account = &device_lock(device)->account;
    account->host_held += footprint_counted(bytes);
    if (account->host_peak < account->host_held)
        account->host_peak = account->host_held;
    pthread_mutex_unlock(&device->lock);
    return 0;
}

void host_memory_destroy(struct device *device, void *memory, uint64_t bytes)
{
    if (!memory)
        return;
    if (!device->backend->device->host_create)
        pages_free(memory, bytes);
    else
        device->backend->device->host_destroy(device, memory);
    device_lock(device)->account.host_held -= footprint_counted(bytes);
    pthread_mutex_unlock(&device->lock);
}

static int device_range_check(const struct buffer *buffer, uint64_t at, uint64_t bytes, const char *what,
                              struct err *err)
{
    if (at <= buffer->bytes && bytes <= buffer->bytes - at)
        return 0;
    return err_set(err, ERR_INVALID, "device %s: %s of %llu bytes at %llu leaves a buffer of %llu",
                   buffer->device->name, what, (unsigned long long)bytes, (unsigned long long)at,
                   (unsigned long long)buffer->bytes);
}

int buffer_write_on(enum device_queue queue, struct buffer *buffer, uint64_t at, const void *src,
                    uint64_t bytes, struct err *err)
{
    if (device_range_check(buffer, at, bytes, "a write", err) != 0)
        return -1;
    return bytes == 0 ? 0 : buffer->device->backend->buffer->write(queue, buffer, at, src, bytes, err);
}

int buffer_read_on(enum device_queue queue, struct buffer *buffer, uint64_t at, void *dst, uint64_t bytes,
                   struct err *err)
{
    if (device_range_check(buffer, at, bytes, "a read", err) != 0)
        return -1;
    return bytes == 0 ? 0 : buffer->device->backend->buffer->read(queue, buffer, at, dst, bytes, err);
}

int buffer_copy_on(enum device_queue queue, struct buffer *dst, uint64_t dst_at, struct buffer *src,
                   uint64_t src_at, uint64_t bytes, struct err *err)
{
    if (device_range_check(dst, dst_at, bytes, "a copy", err) != 0 ||
        device_range_check(src, src_at, bytes, "a copy", err) != 0)
        return -1;
    if (dst->device != src->device)
        return err_set(err, ERR_INVALID, "a copy between devices %s and %s", src->device->name,
                       dst->device->name);
    return bytes == 0 ? 0 : dst->device->backend->buffer->copy(queue, dst, dst_at, src, src_at, bytes, err);
}

int buffer_write(struct buffer *buffer, uint64_t at, const void *src, uint64_t bytes, struct err *err)
{
    return buffer_write_on(DEVICE_COMPUTE, buffer, at, src, bytes, err);
}

int buffer_read(struct buffer *buffer, uint64_t at, void *dst, uint64_t bytes, struct err *err)
{
    return buffer_read_on(DEVICE_COMPUTE, buffer, at, dst, bytes, err);
}

int buffer_copy(struct buffer *dst, uint64_t dst_at, struct buffer *src, uint64_t src_at, uint64_t bytes,
                struct err *err)
{
    return buffer_copy_on(DEVICE_COMPUTE, dst, dst_at, src, src_at, bytes, err);
}

int buffer_zero(struct buffer *buffer, uint64_t at, uint64_t bytes, struct err *err)
{
    if (device_range_check(buffer, at, bytes, "zeroing", err) != 0)
        return -1;
    return bytes == 0 ? 0 : buffer->device->backend->buffer->zero(DEVICE_COMPUTE, buffer, at, bytes, err);
}

static int event_new(struct device *device, bool timed, struct event **out, struct err *err)
{
    struct event *event = calloc(1, sizeof(*event));
    *out = NULL;
    if (!event)
        return err_set(err, ERR_NOMEM, "out of memory for an event");
    event->device = device;
    event->timed = timed;
    if (device->backend->event->create && device->backend->event->create(event, err) != 0) {
        free(event);
        return err_wrap(err, "device %s", device->name);
    }
    *out = event;
    return 0;
}

int event_create(struct device *device, struct event **out, struct err *err)
{
    return event_new(device, false, out, err);
}

bool device_has_clock(const struct device *device)
{
    return device->backend->event->elapsed != NULL;
}

int event_create_timed(struct device *device, struct event **out, struct err *err)
{
    *out = NULL;
    if (!device_has_clock(device))
        return err_set(err, ERR_UNSUPPORTED, "device %s (%s) has no clock of its own", device->name,
                       device_kind(device));
    return event_new(device, true, out, err);
}

int event_elapsed(const struct event *from, const struct event *to, double *seconds, struct err *err)
{
    const struct device *device = from->device;
    if (to->device != device || !from->timed || !to->timed)
        return err_set(err, ERR_INVALID, "device %s: time between events that are not timed, or elsewhere",
                       device->name);
    return device->backend->event->elapsed(from, to, seconds, err);
}

void event_destroy(struct event *event)
{
    if (event && event->device->backend->event->destroy)
        event->device->backend->event->destroy(event);
    free(event);
}

int event_record_on(enum device_queue queue, struct event *event, struct err *err)
{
    event->queue = queue;
    return event->device->backend->event->record(queue, event, err);
}

int event_record(struct event *event, struct err *err)
{
    return event_record_on(DEVICE_COMPUTE, event, err);
}

int event_wait(struct event *event, uint64_t timeout_ns, struct err *err)
{
    return event->device->backend->event->wait(event, timeout_ns, err);
}

bool event_done(const struct event *event)
{
    return event->device->backend->event->done(event);
}

int queue_wait(enum device_queue queue, struct event *event, struct err *err)
{
    return event->device->backend->event->queue_wait(queue, event, err);
}

int device_pass_begin(struct device *device, uint64_t key, bool *replayed, struct err *err)
{
    *replayed = false;
    if (key == 0 || !device->backend->device->pass_begin)
        return 0;
    return device->backend->device->pass_begin(device, key, replayed, err);
}

int device_pass_end(struct device *device, bool queued, bool *again, struct err *err)
{
    *again = false;
    if (!device->backend->device->pass_end)
        return 0;
    return device->backend->device->pass_end(device, queued, again, err);
}

uint32_t device_pass_size(uint32_t count)
{
    uint32_t power = 1;
    while (power <= count / 2)
        power *= 2;
    const uint32_t part = power < 8 ? 1 : power / 8 < 128 ? power / 8 : 128;
    return count > UINT32_MAX - part ? count : (count + part - 1) / part * part;
}

bool device_records_passes(const struct device *device)
{
    return device->backend->device->pass_begin != NULL;
}

void device_pass_counts(const struct device *device, struct pass_counts *out)
{
    *out = (struct pass_counts){0};
    if (device->backend->device->pass_counts)
        device->backend->device->pass_counts(device, out);
}

int device_sync(struct device *device, struct err *err)
{
    return device->backend->device->sync(device, err);
}
