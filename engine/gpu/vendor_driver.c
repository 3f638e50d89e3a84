/* The driver table over a vendor's library.
 *
 * Every call first makes its context current for the calling thread, which is cheap; threads come and go. A
 * context remembers the first error that ends the use of its card and returns it from then on. Calls that
 * release resources are still tried, because the process may outlive the device.
 */
#include "engine/gpu/vendor_private.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHARED_UNASKED = 48 << 10, JIT_LOG_BYTES = 4096, NAME_BYTES = 64 };

struct gpu_queue {
    struct gpu_context *context;
    void *stream;
};

struct gpu_event {
    struct gpu_context *context;
    void *handle;
};

struct gpu_graph {
    struct gpu_context *context;
    void *executable;
};

struct gpu_function {
    struct gpu_function *next;
    struct gpu_context *context;
    void *handle;
    uint32_t shared; /* most bytes of dynamic shared memory that the kernel was allowed */
    char name[NAME_BYTES];
};

struct gpu_module {
    struct gpu_context *context;
    void *handle;
    struct gpu_function *functions; /* owned */
};

/* Calls `member` of a library's API and classifies its error. */
#define ASK(library, member, what, ...)                                                                      \
    vendor_result((library), offsetof(struct vendor_api, member), (library)->api.member(__VA_ARGS__),        \
                  (what), err)
/* Calls `member` of the API on a context, which must be current, and classifies its error. */
#define CALL(context, member, what, ...)                                                                     \
    vendor_context_result((context), offsetof(struct vendor_api, member),                                    \
                          (context)->library->api.member(__VA_ARGS__), (what), err)
/* Calls `member` of the API to release something on a context; errors are ignored. */
#define GIVE(context, member, ...)                                                                           \
    do {                                                                                                     \
        (context)->library->vendor->context_enter(context);                                                  \
        (context)->library->api.member(__VA_ARGS__);                                                         \
    } while (0)

static int context_enter(struct gpu_context *context, struct err *err)
{
    const struct vendor *vendor = context->library->vendor;
    if (context->failed) {
        pthread_mutex_lock(&context->lock);
        *err = context->error;
        pthread_mutex_unlock(&context->lock);
        return -1;
    }
    return vendor_context_result(context, vendor->enter_at, vendor->context_enter(context), "a context", err);
}

/* --- the library and its cards */

static int cuda_open(struct gpu_library **out, uint32_t *version, struct err *err)
{
    return vendor_open(&vendor_cuda, out, version, err);
}

static int hip_open(struct gpu_library **out, uint32_t *version, struct err *err)
{
    return vendor_open(&vendor_hip, out, version, err);
}

static void library_close(struct gpu_library *library)
{
    free(library); /* the shared library stays open (vendor.c) */
}

static int device_count(struct gpu_library *library, uint32_t *out, struct err *err)
{
    int count = 0, result = library->api.count(&count);
    *out = 0;
    if (result == VENDOR_ERROR_NO_DEVICE)
        return 0;
    if (vendor_result(library, offsetof(struct vendor_api, count), result, library->file, err) != 0)
        return -1;
    *out = count < 0 ? 0 : (uint32_t)count;
    return 0;
}

static int device_find(struct gpu_library *library, uint32_t index, int *device, struct err *err)
{
    uint32_t count;
    if (device_count(library, &count, err) != 0)
        return -1;
    if (index >= count)
        return err_set(err, ERR_NOT_FOUND, "no %s device %u: %s shows %u", library->vendor->kind, index,
                       library->file, count);
    return ASK(library, device_get, "a device", device, (int)index);
}

static int attribute(struct gpu_library *library, int device, int name, uint32_t *out, struct err *err)
{
    int value = 0;
    char what[32];
    snprintf(what, sizeof(what), "attribute %d", name);
    if (ASK(library, device_attribute, what, &value, name, device) != 0)
        return -1;
    *out = value < 0 ? 0 : (uint32_t)value;
    return 0;
}

/* Prints a UUID as the vendors' tools do: NVIDIA's as "GPU-01234567-89ab-cdef-0123-456789abcdef", AMD's,
 * which is text, as "GPU-0123456789abcdef". AMD's cards without a UUID all have the text "XX", which prints
 * as "": they are told apart by their PCI addresses. */
static void uuid_print(const uint8_t uuid[16], bool text, char *out, size_t room)
{
    bool digits = true;
    for (int i = 0; i < 16; i++)
        digits = digits && isxdigit(uuid[i]);
    if (text) {
        snprintf(out, room, "%s%.16s", digits ? "GPU-" : "", digits ? (const char *)uuid : "");
        return;
    }
    size_t at = (size_t)snprintf(out, room, "GPU");
    for (int i = 0; i < 16; i++)
        at += (size_t)snprintf(out + at, room - at, "%s%02x",
                               i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static int names_read(struct gpu_library *library, int device, struct gpu_info *out, struct err *err)
{
    uint8_t uuid[16] = {0};
    if (ASK(library, device_name, "the name", out->name, (int)sizeof(out->name), device) != 0 ||
        ASK(library, device_pci, "the PCI address", out->pci, (int)sizeof(out->pci), device) != 0)
        return -1;
    out->name[sizeof(out->name) - 1] = '\0';
    out->pci[sizeof(out->pci) - 1] = '\0';
    for (char *c = out->pci; *c != '\0'; c++)
        *c = (char)tolower((unsigned char)*c);
    if (!library->api.device_uuid)
        return 0;
    if (ASK(library, device_uuid, "the UUID", uuid, device) != 0)
        return -1;
    uuid_print(uuid, library->vendor->uuid_is_text, out->uuid, sizeof(out->uuid));
    return 0;
}

static int device_info(struct gpu_library *library, uint32_t index, const char *options, struct gpu_info *out,
                       struct err *err)
{
    (void)options;
    const struct vendor *vendor = library->vendor;
    uint32_t mode = 0, watchdog = 0, integrated = 0;
    size_t memory = 0;
    int device = 0;
    memset(out, 0, sizeof(*out));
    if (device_find(library, index, &device, err) != 0 || names_read(library, device, out, err) != 0 ||
        vendor->arch(library, device, out, err) != 0 ||
        attribute(library, device, vendor->attribute_warp, &out->warp, err) != 0 ||
        attribute(library, device, vendor->attribute_units, &out->units, err) != 0 ||
        attribute(library, device, vendor->attribute_shared, &out->shared, err) != 0 ||
        attribute(library, device, vendor->attribute_clock, &out->clock_khz, err) != 0 ||
        attribute(library, device, vendor->attribute_mode, &mode, err) != 0 ||
        attribute(library, device, vendor->attribute_watchdog, &watchdog, err) != 0 ||
        attribute(library, device, vendor->attribute_integrated, &integrated, err) != 0 ||
        ASK(library, device_memory, "the memory", &memory, device) != 0)
        return err_wrap(err, "%s device %u", vendor->kind, index);
    out->memory = memory;
    out->watchdog = watchdog != 0;
    out->integrated = integrated != 0;
    out->exclusive = mode == VENDOR_MODE_EXCLUSIVE_THREAD || mode == VENDOR_MODE_EXCLUSIVE_PROCESS;
    out->prohibited = mode == VENDOR_MODE_PROHIBITED;
    if (out->warp != 32 && out->warp != 64)
        return err_set(err, ERR_UNSUPPORTED, "%s device %u: warps of %u threads; 32 and 64 are known",
                       vendor->kind, index, out->warp);
    return 0;
}

static int context_create(struct gpu_library *library, uint32_t index, const char *options, uint64_t limit,
                          struct gpu_context **out, struct err *err)
{
    (void)options;
    (void)limit;
    *out = NULL;
    struct gpu_context *context = calloc(1, sizeof(*context));
    if (!context)
        return err_set(err, ERR_NOMEM, "out of memory for a context");
    context->library = library;
    if (device_find(library, index, &context->device, err) != 0 ||
        library->vendor->context_retain(context, err) != 0) {
        free(context);
        return -1;
    }
    pthread_mutex_init(&context->lock, NULL);
    *out = context;
    return 0;
}

static void context_destroy(struct gpu_context *context)
{
    if (!context)
        return;
    context->library->vendor->context_release(context);
    pthread_mutex_destroy(&context->lock);
    free(context);
}

/* --- memory */

static int memory_info(struct gpu_context *context, uint64_t *available, uint64_t *total, struct err *err)
{
    size_t free_bytes = 0, all_bytes = 0;
    if (context_enter(context, err) != 0 ||
        CALL(context, memory_info, "the memory", &free_bytes, &all_bytes) != 0)
        return -1;
    *available = free_bytes < all_bytes ? free_bytes : all_bytes; /* an APU's driver may tell more than all */
    *total = all_bytes;
    return 0;
}

static int memory_create(struct gpu_context *context, uint64_t bytes, gpu_address *out, struct err *err)
{
    char what[64];
    *out = 0;
    snprintf(what, sizeof(what), "%llu bytes", (unsigned long long)bytes);
    if (context_enter(context, err) != 0)
        return -1;
    if (CALL(context, memory_alloc, what, out, bytes) == 0)
        return 0;
    size_t left = 0, total = 0;
    if (err->code == ERR_NOMEM && context->library->api.memory_info(&left, &total) == 0) {
        const struct err said = *err;
        err_set(err, ERR_NOMEM,
                "%s; %llu of the card's %llu bytes are free: %s names the programs that hold "
                "the others",
                said.text, (unsigned long long)left, (unsigned long long)total,
                context->library->vendor->lists_programs);
    }
    return -1;
}

static int memory_destroy(struct gpu_context *context, gpu_address address, struct err *err)
{
    context->library->vendor->context_enter(context);
    return ASK(context->library, memory_free, "memory", address);
}

static int host_create(struct gpu_context *context, uint64_t bytes, void **out, struct err *err)
{
    char what[64];
    *out = NULL;
    snprintf(what, sizeof(what), "%llu bytes of page-locked memory", (unsigned long long)bytes);
    return context_enter(context, err) != 0
               ? -1
               : CALL(context, host_alloc, what, out, bytes, VENDOR_HOST_PORTABLE);
}

static int host_destroy(struct gpu_context *context, void *memory, struct err *err)
{
    context->library->vendor->context_enter(context);
    return ASK(context->library, host_free, "page-locked memory", memory);
}

static int memory_export(struct gpu_context *context, gpu_address address, uint8_t handle[GPU_IPC_BYTES],
                         struct err *err)
{
    struct vendor_ipc ipc = {{0}};
    if (context_enter(context, err) != 0 || CALL(context, ipc_get, "shared memory", &ipc, address) != 0)
        return -1;
    memcpy(handle, ipc.bytes, GPU_IPC_BYTES);
    return 0;
}

static int memory_import(struct gpu_context *context, const uint8_t handle[GPU_IPC_BYTES], gpu_address *out,
                         struct err *err)
{
    const struct gpu_library *library = context->library;
    unsigned flags = library->version >= library->vendor->ipc_flag_since;
    struct vendor_ipc ipc;
    *out = 0;
    memcpy(ipc.bytes, handle, GPU_IPC_BYTES);
    return context_enter(context, err) != 0
               ? -1
               : CALL(context, ipc_open, "memory of another process", out, ipc, flags);
}

static int memory_unimport(struct gpu_context *context, gpu_address address, struct err *err)
{
    context->library->vendor->context_enter(context);
    return ASK(context->library, ipc_close, "memory of another process", address);
}

static int peer_enable(struct gpu_context *context, struct gpu_context *peer, bool *can, struct err *err)
{
    const struct vendor *vendor = context->library->vendor;
    int answer = 0;
    *can = context->device == peer->device;
    if (*can)
        return 0;
    if (context_enter(context, err) != 0 ||
        CALL(context, peer_can, "peer access", &answer, context->device, peer->device) != 0)
        return -1;
    if (answer == 0)
        return 0;
    int result = vendor->peer_enable(context, peer);
    if (result == VENDOR_ERROR_TOO_MANY_PEERS)
        return 0;
    *can = result == 0 || result == VENDOR_ERROR_PEER_ALREADY;
    return *can ? 0 : vendor_context_result(context, vendor->peer_at, result, "peer access", err);
}

/* --- queues and events */

static int queue_create(struct gpu_context *context, struct gpu_queue **out, struct err *err)
{
    *out = NULL;
    if (context_enter(context, err) != 0)
        return -1;
    struct gpu_queue *queue = calloc(1, sizeof(*queue));
    if (!queue)
        return err_set(err, ERR_NOMEM, "out of memory for a queue");
    queue->context = context;
    if (CALL(context, stream_create, "a queue", &queue->stream, VENDOR_STREAM_NON_BLOCKING) != 0) {
        free(queue);
        return -1;
    }
    *out = queue;
    return 0;
}

static void queue_destroy(struct gpu_queue *queue)
{
    if (!queue)
        return;
    GIVE(queue->context, stream_destroy, queue->stream);
    free(queue);
}

static int queue_sync(struct gpu_queue *queue, struct err *err)
{
    return context_enter(queue->context, err) != 0
               ? -1
               : CALL(queue->context, stream_sync, "a queue", queue->stream);
}

static int queue_native(struct gpu_queue *queue, void **out, struct err *err)
{
    *out = queue->stream;
    return context_enter(queue->context, err);
}

static int event_create(struct gpu_context *context, bool timed, struct gpu_event **out, struct err *err)
{
    *out = NULL;
    if (context_enter(context, err) != 0)
        return -1;
    struct gpu_event *event = calloc(1, sizeof(*event));
    if (!event)
        return err_set(err, ERR_NOMEM, "out of memory for an event");
    event->context = context;
    unsigned flags = VENDOR_EVENT_BLOCKING_SYNC | (timed ? 0 : VENDOR_EVENT_DISABLE_TIMING);
    if (CALL(context, event_create, "an event", &event->handle, flags) != 0) {
        free(event);
        return -1;
    }
    *out = event;
    return 0;
}

static void event_destroy(struct gpu_event *event)
{
    if (!event)
        return;
    GIVE(event->context, event_destroy, event->handle);
    free(event);
}

static int event_record(struct gpu_event *event, struct gpu_queue *queue, struct err *err)
{
    return context_enter(event->context, err) != 0
               ? -1
               : CALL(event->context, event_record, "an event", event->handle, queue->stream);
}

static int event_wait(struct gpu_event *event, struct gpu_queue *queue, struct err *err)
{
    return context_enter(queue->context, err) != 0
               ? -1
               : CALL(queue->context, stream_wait, "a wait for an event", queue->stream, event->handle, 0);
}

static int event_done(struct gpu_event *event, bool *done, struct err *err)
{
    struct gpu_context *context = event->context;
    *done = false;
    if (context_enter(context, err) != 0)
        return -1;
    int result = context->library->api.event_query(event->handle);
    *done = result == 0;
    return result == VENDOR_ERROR_NOT_READY
               ? 0
               : vendor_context_result(context, offsetof(struct vendor_api, event_query), result,
                                       "what was queued", err);
}

static int event_sync(struct gpu_event *event, struct err *err)
{
    return context_enter(event->context, err) != 0
               ? -1
               : CALL(event->context, event_sync, "what was queued", event->handle);
}

static int event_elapsed(struct gpu_event *from, struct gpu_event *to, float *milliseconds, struct err *err)
{
    *milliseconds = 0;
    return context_enter(to->context, err) != 0 ? -1
                                                : CALL(to->context, event_elapsed, "the time between events",
                                                       milliseconds, from->handle, to->handle);
}

/* --- copies */

static int copy_in(struct gpu_queue *queue, gpu_address to, const void *from, uint64_t bytes, struct err *err)
{
    return context_enter(queue->context, err) != 0
               ? -1
               : CALL(queue->context, copy_in, "a copy to the device", to, from, bytes, queue->stream);
}

static int copy_out(struct gpu_queue *queue, void *to, gpu_address from, uint64_t bytes, struct err *err)
{
    return context_enter(queue->context, err) != 0
               ? -1
               : CALL(queue->context, copy_out, "a copy from the device", to, from, bytes, queue->stream);
}

static int copy(struct gpu_queue *queue, gpu_address to, gpu_address from, uint64_t bytes, struct err *err)
{
    return context_enter(queue->context, err) != 0
               ? -1
               : CALL(queue->context, copy, "a copy on the device", to, from, bytes, queue->stream);
}

static int fill(struct gpu_queue *queue, gpu_address to, uint8_t value, uint64_t bytes, struct err *err)
{
    return context_enter(queue->context, err) != 0
               ? -1
               : CALL(queue->context, fill, "filling memory", to, value, bytes, queue->stream);
}

/* --- kernels */

/* Appends the messages of the driver's compiler, as one line, to the error. */
static void log_append(struct err *err, char log[JIT_LOG_BYTES])
{
    log[JIT_LOG_BYTES - 1] = '\0';
    for (char *c = log; *c != '\0'; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
    if (log[0] != '\0')
        err_set(err, err->code, "%s: %.300s", err->text, log);
}

static int module_load(struct gpu_context *context, const void *image, uint64_t bytes,
                       struct gpu_module **out, struct err *err)
{
    char log[JIT_LOG_BYTES] = "";
    int names[2] = {VENDOR_JIT_ERROR_LOG, VENDOR_JIT_ERROR_LOG_BYTES};
    uintptr_t log_bytes = JIT_LOG_BYTES;
    void *values[2] = {log, NULL};
    memcpy(&values[1], &log_bytes, sizeof(log_bytes)); /* the API passes a number as a pointer */
    (void)bytes;                                       /* an image contains its own length */
    *out = NULL;
    if (context_enter(context, err) != 0)
        return -1;
    struct gpu_module *module = calloc(1, sizeof(*module));
    if (!module)
        return err_set(err, ERR_NOMEM, "out of memory for a module");
    module->context = context;
    if (CALL(context, module_load, "the kernels", &module->handle, image,
             context->library->vendor->jit_log ? 2 : 0, names, values) != 0) {
        log_append(err, log);
        free(module);
        return -1;
    }
    *out = module;
    return 0;
}

static void module_unload(struct gpu_module *module)
{
    if (!module)
        return;
    GIVE(module->context, module_unload, module->handle);
    for (struct gpu_function *next, *function = module->functions; function != NULL; function = next) {
        next = function->next;
        free(function);
    }
    free(module);
}

static int module_function(struct gpu_module *module, const char *name, struct gpu_function **out,
                           struct err *err)
{
    *out = NULL;
    if (context_enter(module->context, err) != 0)
        return -1;
    struct gpu_function *function = calloc(1, sizeof(*function));
    if (!function)
        return err_set(err, ERR_NOMEM, "out of memory for a kernel");
    function->context = module->context;
    function->shared = SHARED_UNASKED;
    snprintf(function->name, sizeof(function->name), "kernel %s", name);
    if (CALL(module->context, module_function, function->name, &function->handle, module->handle, name) !=
        0) {
        free(function);
        return -1;
    }
    function->next = module->functions;
    module->functions = function;
    *out = function;
    return 0;
}

static int launch(struct gpu_queue *queue, struct gpu_function *function, struct gpu_dims blocks,
                  uint32_t threads, uint32_t shared, const void *args, uint32_t args_bytes, struct err *err)
{
    struct gpu_context *context = queue->context;
    const struct vendor *vendor = context->library->vendor;
    size_t size = args_bytes;
    uintptr_t words[5] = {VENDOR_PARAM_POINTER, (uintptr_t)args, VENDOR_PARAM_SIZE, (uintptr_t)&size,
                          vendor->param_end};
    void *extra[5];
    memcpy(extra, words, sizeof(extra));
    if (context_enter(context, err) != 0)
        return -1;
    if (shared > function->shared && vendor->shared_allow) {
        if (vendor->shared_allow(context, function->handle, shared, err) != 0)
            return err_wrap(err, "%s", function->name);
        function->shared = shared;
    }
    return CALL(context, launch, function->name, function->handle, blocks.x, blocks.y, blocks.z, threads, 1,
                1, shared, queue->stream, NULL, extra);
}

/* --- graphs */

static int capture_begin(struct gpu_queue *queue, struct err *err)
{
    return context_enter(queue->context, err) != 0
               ? -1
               : CALL(queue->context, capture_begin, "recording", queue->stream, VENDOR_CAPTURE_RELAXED);
}

static int capture_end(struct gpu_queue *queue, struct gpu_graph **out, struct err *err)
{
    struct gpu_context *context = queue->context;
    void *recorded = NULL;
    *out = NULL;
    if (context_enter(context, err) != 0 ||
        CALL(context, capture_end, "recording", queue->stream, &recorded) != 0)
        return -1;
    struct gpu_graph *graph = calloc(1, sizeof(*graph));
    if (!graph)
        err_set(err, ERR_NOMEM, "out of memory for a graph");
    else if (context->library->vendor->graph_instantiate(context, recorded, &graph->executable, err) != 0) {
        free(graph);
        graph = NULL;
    }
    context->library->api.graph_destroy(recorded);
    if (!graph)
        return -1;
    graph->context = context;
    *out = graph;
    return 0;
}

static int graph_launch(struct gpu_graph *graph, struct gpu_queue *queue, struct err *err)
{
    return context_enter(queue->context, err) != 0
               ? -1
               : CALL(queue->context, graph_launch, "a recorded graph", graph->executable, queue->stream);
}

static void graph_destroy(struct gpu_graph *graph)
{
    if (!graph)
        return;
    GIVE(graph->context, graph_executable_destroy, graph->executable);
    free(graph);
}

#define DRIVER(name, open_function, vendor_products)                                                         \
    {.kind = (name),                                                                                         \
     .takes_code = true,                                                                                     \
     .products = &(vendor_products),                                                                         \
     .open = (open_function),                                                                                \
     .close = library_close,                                                                                 \
     .count = device_count,                                                                                  \
     .info = device_info,                                                                                    \
     .context_create = context_create,                                                                       \
     .context_destroy = context_destroy,                                                                     \
     .memory_info = memory_info,                                                                             \
     .memory_create = memory_create,                                                                         \
     .memory_destroy = memory_destroy,                                                                       \
     .host_create = host_create,                                                                             \
     .host_destroy = host_destroy,                                                                           \
     .memory_export = memory_export,                                                                         \
     .memory_import = memory_import,                                                                         \
     .memory_unimport = memory_unimport,                                                                     \
     .peer_enable = peer_enable,                                                                             \
     .queue_create = queue_create,                                                                           \
     .queue_destroy = queue_destroy,                                                                         \
     .queue_native = queue_native,                                                                           \
     .queue_sync = queue_sync,                                                                               \
     .event_create = event_create,                                                                           \
     .event_destroy = event_destroy,                                                                         \
     .event_record = event_record,                                                                           \
     .event_wait = event_wait,                                                                               \
     .event_done = event_done,                                                                               \
     .event_sync = event_sync,                                                                               \
     .event_elapsed = event_elapsed,                                                                         \
     .copy_in = copy_in,                                                                                     \
     .copy_out = copy_out,                                                                                   \
     .copy = copy,                                                                                           \
     .fill = fill,                                                                                           \
     .module_load = module_load,                                                                             \
     .module_unload = module_unload,                                                                         \
     .function = module_function,                                                                            \
     .launch = launch,                                                                                       \
     .capture_begin = capture_begin,                                                                         \
     .capture_end = capture_end,                                                                             \
     .graph_launch = graph_launch,                                                                           \
     .graph_destroy = graph_destroy}

const struct gpu_driver gpu_driver_cuda = DRIVER("cuda", cuda_open, products_cublaslt);
const struct gpu_driver gpu_driver_hip = DRIVER("hip", hip_open, products_rocblas);
