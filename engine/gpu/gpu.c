/* The GPU device: implements engine/device/backend_private.h over any driver (driver.h). */
#include "common/clock.h"
#include "common/log.h"
#include "engine/gpu/code.h"
#include "engine/gpu/gpu.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const uint64_t SYNC_TIMEOUT_NS = 600ull * 1000 * 1000 * 1000;
enum { PAUSE_LEAST_NS = 20000, PAUSE_MOST_NS = 500000, PAUSE_PART = 32 };

static struct gpu *gpu_of(const struct device *device)
{
    return (struct gpu *)device;
}

static void gpu_close(struct device *device)
{
    struct gpu *gpu = gpu_of(device);
    const struct gpu_driver *driver = gpu->driver;
    struct err ignored; /* nobody could handle the errors at this point */
    for (int i = 0; i < DEVICE_QUEUES; i++)
        if (gpu->queues[i])
            driver->queue_sync(gpu->queues[i], &ignored);
    gpu_library_close(gpu);
    for (int i = 0; i < DEVICE_QUEUES; i++) {
        if (gpu->scratch[i] != 0)
            driver->memory_destroy(gpu->context, gpu->scratch[i], &ignored);
        driver->queue_destroy(gpu->queues[i]);
    }
    for (int i = 0; i < GPU_GRAPHS_MAX; i++)
        if (gpu->passes[i].graph)
            driver->graph_destroy(gpu->passes[i].graph);
    if (gpu->module)
        driver->module_unload(gpu->module);
    free(gpu->image);
    if (gpu->context)
        driver->context_destroy(gpu->context);
    driver->close(gpu->library);
    free(gpu);
}

static int kernels_load(struct gpu *gpu, struct err *err)
{
#define NAME(kernel, threads) #kernel,
    static const char *const names[GPU_KERNEL_COUNT] = {GPU_KERNEL_LIST(NAME)};
    uint64_t bytes = 0;
    gpu->matrix = gpu->info.matrix;
    if (gpu->driver->takes_code &&
        gpu_code_load(gpu->driver->kind, gpu->info.arch, false, &gpu->image, &bytes, &gpu->matrix, err) != 0)
        return -1;
    const bool text = gpu->driver->takes_code && strcmp(gpu->driver->kind, "cuda") == 0;
    const uint64_t began_ns = clock_mono_ns();
    if (text)
        log_event(LOG_LEVEL_INFO, "kernels_loading",
                  "arch=%s note=\"the driver translates them the first time, for up to two minutes\"",
                  gpu->info.arch);
    if (gpu->driver->module_load(gpu->context, gpu->image, bytes, &gpu->module, err) != 0)
        return -1;
    if (text)
        log_event(LOG_LEVEL_INFO, "kernels_loaded", "seconds=%.1f",
                  (double)(clock_mono_ns() - began_ns) * 1e-9);
    for (int i = 0; i < GPU_KERNEL_COUNT; i++)
        if (gpu->driver->function(gpu->module, names[i], &gpu->functions[i], err) != 0)
            return -1;
    return 0;
}

static int gpu_start(struct gpu *gpu, const struct device_options *options, struct err *err)
{
    const struct gpu_driver *driver = gpu->driver;
    if (driver->info(gpu->library, options->index, options->isa, &gpu->info, err) != 0 ||
        driver->context_create(gpu->library, options->index, options->isa, options->memory_limit_bytes,
                               &gpu->context, err) != 0 ||
        kernels_load(gpu, err) != 0)
        return -1;
    for (int i = 0; i < DEVICE_QUEUES; i++)
        if (driver->queue_create(gpu->context, &gpu->queues[i], err) != 0 ||
            driver->memory_create(gpu->context, gpu_scratch_bytes(gpu->info.arch, (enum device_queue)i),
                                  &gpu->scratch[i], err) != 0)
            return -1;
    return 0;
}

static int gpu_open(const struct gpu_driver *driver, const struct device_options *options,
                    struct device **out, struct err *err)
{
    struct gpu *gpu = calloc(1, sizeof(*gpu));
    uint32_t version;
    if (!gpu)
        return err_set(err, ERR_NOMEM, "out of memory for a device");
    gpu->driver = driver;
    if (driver->open(&gpu->library, &version, err) != 0) {
        free(gpu);
        return -1;
    }
    if (gpu_start(gpu, options, err) != 0) {
        gpu_close(&gpu->base);
        return -1;
    }
    gpu_library_open(gpu, version);
    gpu->base.isa = gpu->info.arch;
    gpu->base.base_bytes = gpu_base_bytes(&gpu->info, gpu->products != NULL);
    *out = &gpu->base;
    return 0;
}

static int gpu_emulated_open(const struct device_options *options, struct device **out, struct err *err)
{
    return gpu_open(&gpu_driver_emulated, options, out, err);
}

static int cuda_open(const struct device_options *options, struct device **out, struct err *err)
{
    return gpu_open(&gpu_driver_cuda, options, out, err);
}

static int hip_open(const struct device_options *options, struct device **out, struct err *err)
{
    return gpu_open(&gpu_driver_hip, options, out, err);
}

/* Waits with a deadline. It polls busily at first, because most waits are short, and then sleeps between
 * polls, each time for a fraction of the time waited so far. */
static int gpu_event_await(const struct gpu *gpu, struct gpu_event *event, uint64_t timeout_ns,
                           struct err *err)
{
    struct timespec begin, now, pause = {0};
    bool done = false;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (uint32_t turn = 0;; turn++) {
        if (gpu->driver->event_done(event, &done, err) != 0)
            return -1;
        if (done)
            return 0;
        clock_gettime(CLOCK_MONOTONIC, &now);
        uint64_t waited = (uint64_t)(now.tv_sec - begin.tv_sec) * 1000000000u + (uint64_t)now.tv_nsec -
                          (uint64_t)begin.tv_nsec;
        if (waited >= timeout_ns)
            return err_set(err, ERR_TIMEOUT, "what was queued is not done after %llu ms",
                           (unsigned long long)(timeout_ns / 1000000));
        if (turn > 200) {
            uint64_t part = waited / PAUSE_PART;
            pause.tv_nsec = (long)(part < PAUSE_LEAST_NS  ? PAUSE_LEAST_NS
                                   : part > PAUSE_MOST_NS ? PAUSE_MOST_NS
                                                          : part);
            nanosleep(&pause, NULL);
        }
    }
}

/* Returns the driver's queue to a caller who is about to queue something, and counts that call. */
static struct gpu_queue *queue_use(struct gpu *gpu, enum device_queue queue)
{
    gpu->queued[queue]++;
    return gpu->queues[queue];
}

static int queue_finish(struct gpu *gpu, enum device_queue queue, struct err *err)
{
    struct gpu_event *event;
    uint64_t queued = gpu->queued[queue];
    if (gpu->finished[queue] == queued)
        return 0;
    if (gpu->driver->event_create(gpu->context, false, &event, err) != 0)
        return -1;
    int status = gpu->driver->event_record(event, gpu->queues[queue], err);
    if (status == 0)
        status = gpu_event_await(gpu, event, SYNC_TIMEOUT_NS, err);
    gpu->driver->event_destroy(event);
    if (status == 0)
        gpu->finished[queue] = queued;
    return status;
}

static int gpu_sync(struct device *device, struct err *err)
{
    for (int i = 0; i < DEVICE_QUEUES; i++)
        if (queue_finish(gpu_of(device), (enum device_queue)i, err) != 0)
            return err_wrap(err, "device %s", device->name);
    return 0;
}

/* --- recorded passes */

static struct gpu_pass *pass_find(struct gpu *gpu, uint64_t key)
{
    for (int i = 0; i < GPU_GRAPHS_MAX; i++)
        if (gpu->passes[i].key == key)
            return &gpu->passes[i];
    return NULL;
}

/* Did a pass with this key come before? The key is then removed here, because the pass will be recorded now.
 */
static bool pass_seen(struct gpu *gpu, uint64_t key)
{
    for (int i = 0; i < GPU_SEEN_MAX; i++)
        if (gpu->seen[i] == key) {
            gpu->seen[i] = 0;
            return true;
        }
    gpu->seen[gpu->seen_count++ % GPU_SEEN_MAX] = key;
    return false;
}

static struct gpu_pass *pass_oldest(struct gpu *gpu)
{
    struct gpu_pass *oldest = &gpu->passes[0];
    for (int i = 1; i < GPU_GRAPHS_MAX; i++)
        if (gpu->passes[i].used < oldest->used)
            oldest = &gpu->passes[i];
    return oldest;
}

/* Would a graph find a place? One that was used lately keeps its own: where more passes take turns than there
 * are places, each would be recorded anew and again, which takes longer than queueing its ops. */
static bool pass_has_place(struct gpu *gpu)
{
    const struct gpu_pass *oldest = pass_oldest(gpu);
    return !oldest->graph || gpu->pass_count - oldest->used >= GPU_UNUSED_MIN;
}

/* Keeps a graph in place of the least recently used one. */
static void pass_keep(struct gpu *gpu, uint64_t key, struct gpu_graph *graph)
{
    struct gpu_pass *oldest = pass_oldest(gpu);
    struct err ignored; /* wait, because the graph may be running */
    if (oldest->graph)
        queue_finish(gpu, DEVICE_COMPUTE, &ignored);
    gpu->driver->graph_destroy(oldest->graph);
    *oldest = (struct gpu_pass){.key = key, .graph = graph, .used = gpu->pass_count};
}

static int gpu_pass_begin(struct device *device, uint64_t key, bool *replayed, struct err *err)
{
    struct gpu *gpu = gpu_of(device);
    if (!gpu->driver->capture_begin || gpu->records_nothing)
        return 0;
    struct gpu_pass *pass = pass_find(gpu, key);
    gpu->pass_count++;
    if (pass) {
        pass->used = gpu->pass_count;
        *replayed = true;
        gpu->counts.replayed++;
        return gpu->driver->graph_launch(pass->graph, queue_use(gpu, DEVICE_COMPUTE), err);
    }
    if (!pass_seen(gpu, key) || !pass_has_place(gpu))
        return 0;
    struct err refused; /* what cannot be recorded is queued op by op; if the device is lost, the next op
                           reports it */
    if (gpu->driver->capture_begin(gpu->queues[DEVICE_COMPUTE], &refused) == 0)
        gpu->recording = key;
    else
        gpu->records_nothing = true;
    return 0;
}

/* A recording fails if an op cannot be recorded by the driver or memory for graphs is short; training then
 * goes on without recordings. */
static int gpu_pass_end(struct device *device, bool queued, bool *again, struct err *err)
{
    struct gpu *gpu = gpu_of(device);
    struct gpu_graph *graph = NULL;
    struct err refused;
    uint64_t key = gpu->recording;
    if (key == 0)
        return 0;
    gpu->recording = 0;
    int status = gpu->driver->capture_end(gpu->queues[DEVICE_COMPUTE], &graph, &refused);
    if (status != 0 || !queued) {
        gpu->driver->graph_destroy(graph);
        gpu->records_nothing = *again = true;
        return 0;
    }
    pass_keep(gpu, key, graph);
    gpu->counts.recorded++;
    return gpu->driver->graph_launch(graph, queue_use(gpu, DEVICE_COMPUTE), err);
}

static void gpu_pass_counts(const struct device *device, struct pass_counts *out)
{
    *out = ((const struct gpu *)device)->counts;
}

/* --- memory */

/* Page-locked memory, or ordinary memory where a limit forbids more of it. */
static int gpu_host_create(struct device *device, uint64_t bytes, void **out, struct err *err)
{
    struct gpu *gpu = gpu_of(device);
    if (gpu->driver->host_create(gpu->context, bytes, out, err) == 0)
        return 0;
    if (err->code != ERR_NOMEM)
        return -1;
    struct gpu_pageable *block = malloc(sizeof(*block));
    *out = block ? pages_alloc(bytes) : NULL;
    if (!*out) {
        free(block);
        return err_wrap(err, "neither page-locked nor ordinary memory of the host");
    }
    *block = (struct gpu_pageable){.memory = *out, .bytes = bytes};
    pthread_mutex_lock(&device->lock);
    const bool first = !gpu->pageable;
    block->next = gpu->pageable;
    gpu->pageable = block;
    pthread_mutex_unlock(&device->lock);
    if (first)
        log_event(
            LOG_LEVEL_WARN, "memory_not_page_locked",
            "bytes=%llu why=\"%s\" note=\"copies to and from ordinary memory take longer: raise the limit of "
            "locked memory (ulimit -l, LimitMEMLOCK=infinity; under WSL2, memory in .wslconfig; under MPS, "
            "its pinned limit)\"",
            (unsigned long long)bytes, err->text);
    return 0;
}

static void gpu_host_destroy(struct device *device, void *memory)
{
    struct gpu *gpu = gpu_of(device);
    struct err ignored;
    gpu_sync(device, &ignored); /* wait, because a copy may be running */
    pthread_mutex_lock(&device->lock);
    struct gpu_pageable **at = &gpu->pageable;
    while (*at && (*at)->memory != memory)
        at = &(*at)->next;
    struct gpu_pageable *block = *at;
    if (block)
        *at = block->next;
    pthread_mutex_unlock(&device->lock);
    if (block)
        pages_free(memory, block->bytes);
    else
        gpu->driver->host_destroy(gpu->context, memory, &ignored);
    free(block);
}

static int gpu_buffer_create(struct buffer *buffer, struct err *err)
{
    struct gpu *gpu = gpu_of(buffer->device);
    gpu_address address = 0;
    if (buffer->accounted == 0)
        return 0;
    if (gpu->driver->memory_create(gpu->context, buffer->accounted, &address, err) != 0)
        return -1;
    buffer->memory =
        (void *)(uintptr_t)address; // NOLINT(performance-no-int-to-ptr): a handle, never followed
    return 0;
}

static void gpu_buffer_destroy(struct buffer *buffer)
{
    struct gpu *gpu = gpu_of(buffer->device);
    gpu_address address = (gpu_address)(uintptr_t)buffer->memory;
    struct err ignored; /* a lost device has lost its memory, too */
    if (address == 0)
        return;
    gpu_sync(buffer->device, &ignored);
    if (buffer->imported)
        gpu->driver->memory_unimport(gpu->context, address, &ignored);
    else
        gpu->driver->memory_destroy(gpu->context, address, &ignored);
}

static int gpu_export(struct buffer *buffer, uint8_t handle[64], struct err *err)
{
    struct gpu *gpu = gpu_of(buffer->device);
    return gpu->driver->memory_export(gpu->context, (gpu_address)(uintptr_t)buffer->memory, handle, err);
}

static int gpu_import(struct buffer *buffer, const uint8_t handle[64], struct err *err)
{
    struct gpu *gpu = gpu_of(buffer->device);
    gpu_address address = 0;
    if (gpu->driver->memory_import(gpu->context, handle, &address, err) != 0)
        return -1;
    buffer->memory =
        (void *)(uintptr_t)address; // NOLINT(performance-no-int-to-ptr): a handle, never followed
    return 0;
}

static gpu_address buffer_at(const struct buffer *buffer, uint64_t at)
{
    return (gpu_address)(uintptr_t)buffer->memory + at;
}

static int gpu_write(enum device_queue queue, struct buffer *buffer, uint64_t at, const void *src,
                     uint64_t bytes, struct err *err)
{
    struct gpu *gpu = gpu_of(buffer->device);
    return gpu->driver->copy_in(queue_use(gpu, queue), buffer_at(buffer, at), src, bytes, err);
}

static int gpu_read(enum device_queue queue, struct buffer *buffer, uint64_t at, void *dst, uint64_t bytes,
                    struct err *err)
{
    struct gpu *gpu = gpu_of(buffer->device);
    return gpu->driver->copy_out(queue_use(gpu, queue), dst, buffer_at(buffer, at), bytes, err);
}

static int gpu_copy(enum device_queue queue, struct buffer *dst, uint64_t dst_at, struct buffer *src,
                    uint64_t src_at, uint64_t bytes, struct err *err)
{
    struct gpu *gpu = gpu_of(dst->device);
    return gpu->driver->copy(queue_use(gpu, queue), buffer_at(dst, dst_at), buffer_at(src, src_at), bytes,
                             err);
}

static int gpu_fill_zero(enum device_queue queue, struct buffer *buffer, uint64_t at, uint64_t bytes,
                         struct err *err)
{
    struct gpu *gpu = gpu_of(buffer->device);
    return gpu->driver->fill(queue_use(gpu, queue), buffer_at(buffer, at), 0, bytes, err);
}

/* --- ops and events */

static bool gpu_supports(const struct device *device, const struct op *op)
{
    return gpu_runs(gpu_of(device), op);
}

static int gpu_submit(enum device_queue queue, struct device *device, const struct op *op, struct err *err)
{
    struct gpu_call call = {.gpu = gpu_of(device), .queue = queue, .kind = op->kind, .err = err};
    queue_use(call.gpu, queue);
    return gpu_run(&call, op) == 0 ? 0 : err_wrap(err, "device %s, op %s", device->name, op_name(op->kind));
}

static int gpu_event_create(struct event *event, struct err *err)
{
    struct gpu *gpu = gpu_of(event->device);
    struct gpu_event *made;
    if (gpu->driver->event_create(gpu->context, event->timed, &made, err) != 0)
        return -1;
    event->extra = made;
    return 0;
}

static void gpu_event_destroy(struct event *event)
{
    gpu_of(event->device)->driver->event_destroy(event->extra);
}

static int gpu_event_record(enum device_queue queue, struct event *event, struct err *err)
{
    struct gpu *gpu = gpu_of(event->device);
    return gpu->driver->event_record(event->extra, queue_use(gpu, queue), err);
}

static int gpu_event_wait(struct event *event, uint64_t timeout_ns, struct err *err)
{
    struct gpu *gpu = gpu_of(event->device);
    int status = gpu_event_await(gpu, event->extra, timeout_ns, err);
    return status == 0 ? 0 : err_wrap(err, "device %s", gpu->base.name);
}

static bool gpu_event_done(const struct event *event)
{
    bool done = false;
    struct err err;
    /* a failed device does nothing more, so the event counts as done, and whoever waits for it gets the error
     */
    return gpu_of(event->device)->driver->event_done(event->extra, &done, &err) != 0 || done;
}

static int gpu_queue_wait(enum device_queue queue, struct event *event, struct err *err)
{
    struct gpu *gpu = gpu_of(event->device);
    return gpu->driver->event_wait(event->extra, queue_use(gpu, queue), err);
}

static int gpu_elapsed(const struct event *from, const struct event *to, double *seconds, struct err *err)
{
    float milliseconds;
    if (gpu_of(from->device)->driver->event_elapsed(from->extra, to->extra, &milliseconds, err) != 0)
        return -1;
    *seconds = (double)milliseconds * 1e-3;
    return 0;
}

const struct gpu_driver *const gpu_drivers[] = {&gpu_driver_cuda, &gpu_driver_hip, &gpu_driver_emulated,
                                                NULL};

static const struct buffer_ops buffer_ops = {.create = gpu_buffer_create,
                                             .destroy = gpu_buffer_destroy,
                                             .write = gpu_write,
                                             .read = gpu_read,
                                             .copy = gpu_copy,
                                             .zero = gpu_fill_zero,
                                             .export_handle = gpu_export,
                                             .import_handle = gpu_import};
static const struct op_ops op_ops = {.supports = gpu_supports, .submit = gpu_submit};
static const struct event_ops event_ops = {.create = gpu_event_create,
                                           .destroy = gpu_event_destroy,
                                           .record = gpu_event_record,
                                           .wait = gpu_event_wait,
                                           .done = gpu_event_done,
                                           .queue_wait = gpu_queue_wait,
                                           .elapsed = gpu_elapsed};

/* Vendors' drivers share whole allocations and cut small ones out of pieces of 2 MiB; other contents of such
 * a piece would be shared, too. */
#define BACKEND(kind_name, open_function, piece)                                                             \
    {.kind = (kind_name),                                                                                    \
     .shared_piece = (piece),                                                                                \
     .device = &(const struct device_ops){.open = (open_function),                                           \
                                          .close = gpu_close,                                                \
                                          .sync = gpu_sync,                                                  \
                                          .pass_begin = gpu_pass_begin,                                      \
                                          .pass_end = gpu_pass_end,                                          \
                                          .pass_counts = gpu_pass_counts,                                    \
                                          .host_create = gpu_host_create,                                    \
                                          .host_destroy = gpu_host_destroy},                                 \
     .buffer = &buffer_ops,                                                                                  \
     .op = &op_ops,                                                                                          \
     .event = &event_ops}

const struct backend backend_emulated = BACKEND("emulated", gpu_emulated_open, 0);
const struct backend backend_cuda = BACKEND("cuda", cuda_open, 2 << 20);
const struct backend backend_hip = BACKEND("hip", hip_open, 2 << 20);
