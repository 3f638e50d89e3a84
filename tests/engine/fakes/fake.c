/* The fake driver libraries' calls, implemented by the emulated driver. */
#include "engine/fakes/fake.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/gpu/driver.h"

static const struct gpu_driver *const driver = &gpu_driver_emulated;
static const uint64_t MEMORY_BYTES = 512ull << 20;

struct fake_object {
    struct fake_object *next;
    enum fake_sort sort;
    struct fake_object *context; /* the context that the object belongs to */
    uint64_t address;            /* address of an allocation */
    void *real;                  /* the emulated driver's object */
    const char *name;            /* name of a function */
    unsigned flags, uses;
    int device;
    bool recorded;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_object *objects;
static struct fake_object *contexts[FAKE_DEVICES];

int fake_enter(const char *name)
{
    int result = 0;
    pthread_mutex_lock(&lock);
    size_t at = strlen(fake_control.trace);
    snprintf(fake_control.trace + at, sizeof(fake_control.trace) - at, " %s", name);
    if (++fake_control.calls == fake_control.fail_at)
        result = fake_control.fail_with;
    pthread_mutex_unlock(&lock);
    return result;
}

int fake_misuse(const char *name, const char *what)
{
    pthread_mutex_lock(&lock);
    fake_control.misuses++;
    snprintf(fake_control.misuse, sizeof(fake_control.misuse), "%s: %s", name, what);
    pthread_mutex_unlock(&lock);
    return FAKE_INVALID_HANDLE;
}

static struct fake_object *object_add(enum fake_sort sort, struct fake_object *context, void *real)
{
    struct fake_object *object = calloc(1, sizeof(*object));
    if (!object)
        return NULL;
    object->sort = sort;
    object->context = context;
    object->real = real;
    pthread_mutex_lock(&lock);
    object->next = objects;
    objects = object;
    fake_control.live += sort != FAKE_FUNCTION; /* Functions live as long as their module. */
    pthread_mutex_unlock(&lock);
    return object;
}

static void object_drop(struct fake_object *object)
{
    pthread_mutex_lock(&lock);
    struct fake_object **at = &objects;
    while (*at != object)
        at = &(*at)->next;
    *at = object->next;
    fake_control.live -= object->sort != FAKE_FUNCTION;
    pthread_mutex_unlock(&lock);
    free(object);
}

/* Returns the living object of this kind with this handle or address, or NULL after counting a misuse. */
static struct fake_object *object_given(const char *name, enum fake_sort sort, const void *handle,
                                        uint64_t address)
{
    struct fake_object *found;
    pthread_mutex_lock(&lock);
    for (found = objects; found != NULL; found = found->next)
        if (found->sort == sort && (!handle || found == handle) &&
            (address == 0 || found->address == address))
            break;
    pthread_mutex_unlock(&lock);
    if (found && (handle || address != 0))
        return found;
    fake_misuse(name, "a handle that is not alive");
    return NULL;
}

/* Returns the living object with this handle or address, or NULL after counting a misuse. Its context must be
 * the thread's current one, which calls that only release an object do not need. */
static struct fake_object *object_find(const char *name, enum fake_sort sort, const void *handle,
                                       uint64_t address)
{
    struct fake_object *found = object_given(name, sort, handle, address);
    if (!found || found->context == fake_current())
        return found;
    fake_misuse(name, "the current context is not the handle's");
    return NULL;
}

static int result_of(const struct err *err)
{
    return err->code == ERR_NOMEM          ? FAKE_OUT_OF_MEMORY
           : err->code == ERR_DEVICE_FAULT ? 700
           : err->code == ERR_DEVICE_LOST  ? 999
           : err->code == ERR_NOT_FOUND    ? FAKE_NOT_FOUND
                                           : FAKE_INVALID_VALUE;
}

/* --- devices and contexts */

int fake_count(const char *name, int *count)
{
    int result = fake_enter(name);
    if (result == 0 && fake_control.devices == 0)
        result = FAKE_NO_DEVICE;
    if (result == 0)
        *count = fake_control.devices;
    return result;
}

int fake_device(const char *name, int device)
{
    int result = fake_enter(name);
    return result != 0 ? result : device < 0 || device >= fake_control.devices ? FAKE_INVALID_DEVICE : 0;
}

int fake_device_get(const char *name, int *device, int index)
{
    int result = fake_device(name, index);
    if (result == 0)
        *device = index;
    return result;
}

int fake_text(const char *name, int device, const char *text, char *out, int room)
{
    int result = fake_device(name, device);
    if (result == 0)
        snprintf(out, (size_t)room, "%s", text);
    return result;
}

int fake_memory_total(const char *name, size_t *bytes, int device)
{
    int result = fake_device(name, device);
    if (result == 0)
        *bytes = MEMORY_BYTES;
    return result;
}

int fake_uuid(const char *name, uint8_t *uuid, int device)
{
    int result = fake_device(name, device);
    for (int i = 0; result == 0 && i < 16; i++)
        uuid[i] = (uint8_t)(16 * device + i);
    return result;
}

struct fake_object *fake_context_retain(int device)
{
    struct gpu_context *real;
    struct err err;
    if (device < 0 || device >= fake_control.devices || device >= FAKE_DEVICES)
        return NULL;
    /* A card that hangs, or whose driver ends the process, as its number in the environment says. */
    const char *hangs = getenv("MOTLEY_FAKE_HANGS"), *aborts = getenv("MOTLEY_FAKE_ABORTS");
    if (hangs && strtol(hangs, NULL, 10) == device)
        pause();
    if (aborts && strtol(aborts, NULL, 10) == device)
        abort();
    if (!contexts[device]) {
        if (driver->context_create(NULL, (uint32_t)device, fake_warps, MEMORY_BYTES, &real, &err) != 0)
            return NULL;
        contexts[device] = object_add(FAKE_CONTEXT, NULL, real);
        contexts[device]->device = device;
    }
    contexts[device]->uses++;
    return contexts[device];
}

int fake_context_release(int device)
{
    struct fake_object *context = contexts[device];
    if (!context)
        return fake_misuse("a context", "released more often than retained");
    if (--context->uses == 0) {
        driver->context_destroy(context->real);
        object_drop(context);
        contexts[device] = NULL;
    }
    return 0;
}

struct fake_object *fake_context_keep(int device)
{
    if (!contexts[device] && fake_context_retain(device))
        fake_control.live--;
    return contexts[device];
}

bool fake_context_alive(const void *context)
{
    for (int i = 0; context && i < FAKE_DEVICES; i++)
        if (contexts[i] == context)
            return true;
    return false;
}

/* --- memory */

/* Returns the current context, or NULL after counting a misuse. */
static struct fake_object *current_of(const char *name)
{
    struct fake_object *context = fake_current();
    if (!context)
        fake_misuse(name, "no context is current");
    return context;
}

int fake_memory_info(const char *name, size_t *available, size_t *total)
{
    int result = fake_enter(name);
    uint64_t bytes[2];
    struct err err;
    struct fake_object *context = current_of(name);
    if (result != 0 || !context)
        return result != 0 ? result : FAKE_INVALID_CONTEXT;
    driver->memory_info(context->real, &bytes[0], &bytes[1], &err);
    *available = bytes[0] + fake_control.free_more;
    *total = bytes[1];
    return 0;
}

static int address_keep(struct fake_object *context, enum fake_sort sort, uint64_t address, uint64_t *out)
{
    struct fake_object *object = object_add(sort, context, NULL);
    if (!object)
        return FAKE_OUT_OF_MEMORY;
    object->address = address;
    *out = address;
    return 0;
}

int fake_memory_alloc(const char *name, uint64_t *out, size_t bytes)
{
    int result = fake_enter(name);
    gpu_address address;
    struct err err;
    struct fake_object *context = current_of(name);
    if (result != 0 || !context)
        return result != 0 ? result : FAKE_INVALID_CONTEXT;
    if (driver->memory_create(context->real, bytes, &address, &err) != 0)
        return result_of(&err);
    return address_keep(context, FAKE_MEMORY, address, out);
}

/* Waits for the context's streams, because memory is released only when nothing can use it. */
static void streams_wait(const struct fake_object *context)
{
    struct err ignored;
    for (struct fake_object *object = objects; object != NULL; object = object->next)
        if (object->sort == FAKE_STREAM && object->context == context)
            driver->queue_sync(object->real, &ignored);
}

static int memory_give(const char *name, enum fake_sort sort, uint64_t address)
{
    int result = fake_enter(name);
    struct err err;
    struct fake_object *memory = object_given(name, sort, NULL, address);
    if (!memory)
        return FAKE_INVALID_VALUE;
    streams_wait(memory->context);
    if (driver->memory_destroy(memory->context->real, address, &err) != 0)
        return result_of(&err);
    object_drop(memory);
    return result;
}

int fake_memory_free(const char *name, uint64_t address)
{
    return memory_give(name, FAKE_MEMORY, address);
}

int fake_ipc_close(const char *name, uint64_t address)
{
    return memory_give(name, FAKE_IMPORT, address);
}

int fake_host_alloc(const char *name, void **out, size_t bytes)
{
    int result = fake_enter(name);
    void *memory;
    struct err err;
    struct fake_object *context = current_of(name);
    if (result != 0 || !context)
        return result != 0 ? result : FAKE_INVALID_CONTEXT;
    if (driver->host_create(context->real, bytes, &memory, &err) != 0)
        return result_of(&err);
    *out = memory;
    return address_keep(context, FAKE_HOST, (uintptr_t)memory, &(uint64_t){0});
}

int fake_host_free(const char *name, void *memory)
{
    int result = fake_enter(name);
    struct fake_object *object = object_given(name, FAKE_HOST, NULL, (uintptr_t)memory);
    if (!object)
        return FAKE_INVALID_VALUE;
    streams_wait(object->context);
    free(memory);
    object_drop(object);
    return result;
}

int fake_ipc_get(const char *name, struct fake_ipc *handle, uint64_t address)
{
    int result = fake_enter(name);
    struct err err;
    struct fake_object *memory = object_find(name, FAKE_MEMORY, NULL, address);
    if (result != 0 || !memory)
        return result != 0 ? result : FAKE_INVALID_VALUE;
    return driver->memory_export(memory->context->real, address, handle->bytes, &err) == 0 ? 0
                                                                                           : result_of(&err);
}

int fake_ipc_open(const char *name, uint64_t *out, struct fake_ipc handle)
{
    int result = fake_enter(name);
    gpu_address address;
    struct err err;
    struct fake_object *context = current_of(name);
    if (result != 0 || !context)
        return result != 0 ? result : FAKE_INVALID_CONTEXT;
    if (driver->memory_import(context->real, handle.bytes, &address, &err) != 0)
        return result_of(&err);
    return address_keep(context, FAKE_IMPORT, address, out);
}

int fake_peer_can(const char *name, int *can, int device, int peer)
{
    int result = fake_device(name, device);
    if (result == 0 && (peer < 0 || peer >= fake_control.devices))
        result = FAKE_INVALID_DEVICE;
    if (result == 0)
        *can = device != peer;
    return result;
}

/* --- streams and events */

int fake_stream_create(const char *name, void **out, unsigned flags)
{
    int result = fake_enter(name);
    struct gpu_queue *queue;
    struct err err;
    struct fake_object *context = current_of(name);
    if (result != 0 || !context)
        return result != 0 ? result : FAKE_INVALID_CONTEXT;
    if (flags > 1)
        return FAKE_INVALID_VALUE;
    if (driver->queue_create(context->real, &queue, &err) != 0)
        return result_of(&err);
    *out = object_add(FAKE_STREAM, context, queue);
    return 0;
}

int fake_stream_destroy(const char *name, void *stream)
{
    int result = fake_enter(name);
    struct fake_object *object = object_given(name, FAKE_STREAM, stream, 0);
    if (!object)
        return FAKE_INVALID_HANDLE;
    driver->queue_destroy(object->real);
    object_drop(object);
    return result;
}

int fake_stream_sync(const char *name, void *stream)
{
    int result = fake_enter(name);
    struct err err;
    struct fake_object *object = object_find(name, FAKE_STREAM, stream, 0);
    if (result != 0 || !object)
        return result != 0 ? result : FAKE_INVALID_HANDLE;
    return driver->queue_sync(object->real, &err) == 0 ? 0 : result_of(&err);
}

int fake_event_create(const char *name, void **out, unsigned flags)
{
    int result = fake_enter(name);
    struct gpu_event *event;
    struct err err;
    struct fake_object *context = current_of(name);
    if (result != 0 || !context)
        return result != 0 ? result : FAKE_INVALID_CONTEXT;
    if (flags > 3)
        return FAKE_INVALID_VALUE;
    if (driver->event_create(context->real, (flags & 2) == 0, &event, &err) != 0)
        return result_of(&err);
    struct fake_object *object = object_add(FAKE_EVENT, context, event);
    object->flags = flags;
    *out = object;
    return 0;
}

int fake_event_destroy(const char *name, void *event)
{
    int result = fake_enter(name);
    struct fake_object *object = object_given(name, FAKE_EVENT, event, 0);
    if (!object)
        return FAKE_INVALID_HANDLE;
    driver->event_destroy(object->real);
    object_drop(object);
    return result;
}

/* Finds the event and the stream of a call. */
static int pair_find(const char *name, void *event, void *stream, struct fake_object *pair[2])
{
    int result = fake_enter(name);
    pair[0] = object_find(name, FAKE_EVENT, event, 0);
    pair[1] = object_find(name, FAKE_STREAM, stream, 0);
    return result != 0 ? result : !pair[0] || !pair[1] ? FAKE_INVALID_HANDLE : 0;
}

int fake_event_record(const char *name, void *event, void *stream)
{
    struct fake_object *pair[2];
    struct err err;
    int result = pair_find(name, event, stream, pair);
    if (result != 0)
        return result;
    pair[0]->recorded = true;
    return driver->event_record(pair[0]->real, pair[1]->real, &err) == 0 ? 0 : result_of(&err);
}

int fake_stream_wait(const char *name, void *stream, void *event)
{
    struct fake_object *pair[2];
    struct err err;
    int result = pair_find(name, event, stream, pair);
    if (result != 0)
        return result;
    return driver->event_wait(pair[0]->real, pair[1]->real, &err) == 0 ? 0 : result_of(&err);
}

int fake_event_query(const char *name, void *event)
{
    int result = fake_enter(name);
    bool done = false;
    struct err err;
    struct fake_object *object = object_find(name, FAKE_EVENT, event, 0);
    if (result != 0 || !object)
        return result != 0 ? result : FAKE_INVALID_HANDLE;
    if (driver->event_done(object->real, &done, &err) != 0)
        return result_of(&err);
    return done ? 0 : FAKE_NOT_READY;
}

int fake_event_sync(const char *name, void *event)
{
    int result = fake_enter(name);
    struct err err;
    struct fake_object *object = object_find(name, FAKE_EVENT, event, 0);
    if (result != 0 || !object)
        return result != 0 ? result : FAKE_INVALID_HANDLE;
    return driver->event_sync(object->real, &err) == 0 ? 0 : result_of(&err);
}

int fake_event_elapsed(const char *name, float *milliseconds, void *from, void *to)
{
    int result = fake_enter(name);
    struct err err;
    struct fake_object *a = object_find(name, FAKE_EVENT, from, 0), *b = object_find(name, FAKE_EVENT, to, 0);
    if (result != 0 || !a || !b)
        return result != 0 ? result : FAKE_INVALID_HANDLE;
    if (((a->flags | b->flags) & 2) != 0 || !a->recorded || !b->recorded)
        return FAKE_INVALID_HANDLE;
    return driver->event_elapsed(a->real, b->real, milliseconds, &err) == 0 ? 0 : result_of(&err);
}

/* --- copies */

int fake_copy_in(const char *name, uint64_t to, const void *from, size_t bytes, void *stream)
{
    int result = fake_enter(name);
    struct err err;
    struct fake_object *object = object_find(name, FAKE_STREAM, stream, 0);
    if (result != 0 || !object)
        return result != 0 ? result : FAKE_INVALID_HANDLE;
    return driver->copy_in(object->real, to, from, bytes, &err) == 0 ? 0 : result_of(&err);
}

int fake_copy_out(const char *name, void *to, uint64_t from, size_t bytes, void *stream)
{
    int result = fake_enter(name);
    struct err err;
    struct fake_object *object = object_find(name, FAKE_STREAM, stream, 0);
    if (result != 0 || !object)
        return result != 0 ? result : FAKE_INVALID_HANDLE;
    return driver->copy_out(object->real, to, from, bytes, &err) == 0 ? 0 : result_of(&err);
}

int fake_copy(const char *name, uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    int result = fake_enter(name);
    struct err err;
    struct fake_object *object = object_find(name, FAKE_STREAM, stream, 0);
    if (result != 0 || !object)
        return result != 0 ? result : FAKE_INVALID_HANDLE;
    return driver->copy(object->real, to, from, bytes, &err) == 0 ? 0 : result_of(&err);
}

int fake_fill(const char *name, uint64_t to, uint8_t value, size_t bytes, void *stream)
{
    int result = fake_enter(name);
    struct err err;
    struct fake_object *object = object_find(name, FAKE_STREAM, stream, 0);
    if (result != 0 || !object)
        return result != 0 ? result : FAKE_INVALID_HANDLE;
    return driver->fill(object->real, to, value, bytes, &err) == 0 ? 0 : result_of(&err);
}

/* --- modules */

/* Writes an error to the log that the options name, as the JIT does. */
static void log_write(unsigned options, const int *names, void **values, const char *text)
{
    char *log = NULL;
    uintptr_t room = 0;
    for (unsigned i = 0; i < options; i++)
        if (names[i] == 5)
            log = values[i];
        else if (names[i] == 6)
            room = (uintptr_t)values[i];
    if (log)
        snprintf(log, room, "%s\n", text);
}

int fake_module_load(const char *name, void **out, const void *image, unsigned options, const int *names,
                     void **values)
{
    int result = fake_enter(name);
    struct gpu_module *module;
    struct err err;
    struct fake_object *context = current_of(name);
    if (result != 0 || !context)
        return result != 0 ? result : FAKE_INVALID_CONTEXT;
    const char *wrong = fake_image_refuse(image, &result);
    if (wrong) {
        log_write(options, names, values, wrong);
        return result;
    }
    if (driver->module_load(context->real, NULL, 0, &module, &err) != 0)
        return result_of(&err);
    *out = object_add(FAKE_MODULE, context, module);
    return 0;
}

int fake_module_unload(const char *name, void *module)
{
    int result = fake_enter(name);
    struct fake_object *object = object_given(name, FAKE_MODULE, module, 0), *function, *next;
    if (!object)
        return FAKE_INVALID_HANDLE;
    for (function = objects; function != NULL; function = next) {
        next = function->next;
        if (function->sort == FAKE_FUNCTION && function->address == (uintptr_t)module)
            object_drop(function);
    }
    driver->module_unload(object->real);
    object_drop(object);
    return result;
}

int fake_module_function(const char *name, void **out, void *module, const char *function)
{
    int result = fake_enter(name);
    struct gpu_function *found;
    struct err err;
    struct fake_object *object = object_find(name, FAKE_MODULE, module, 0);
    if (result != 0 || !object)
        return result != 0 ? result : FAKE_INVALID_HANDLE;
    if (driver->function(object->real, function, &found, &err) != 0)
        return result_of(&err);
    struct fake_object *made = object_add(FAKE_FUNCTION, object->context, found);
    made->address = (uintptr_t)module;
    made->name = function;
    *out = made;
    return 0;
}

/* Finds the block of arguments that is passed through `extra`. */
static const void *block_find(void **extra, size_t *bytes)
{
    const void *block = NULL;
    *bytes = 0;
    for (int i = 0; extra && i < 4; i += 2) {
        if ((uintptr_t)extra[i] == 1)
            block = extra[i + 1];
        if ((uintptr_t)extra[i] == 2)
            memcpy(bytes, extra[i + 1], sizeof(*bytes));
    }
    return extra && (uintptr_t)extra[4] == fake_extra_end ? block : NULL;
}

int fake_launch(const char *name, void *function, const unsigned blocks[3], const unsigned threads[3],
                unsigned shared, void *stream, void **parameters, void **extra)
{
    int result = fake_enter(name);
    struct err err;
    size_t bytes;
    struct fake_object *f = object_find(name, FAKE_FUNCTION, function, 0),
                       *s = object_find(name, FAKE_STREAM, stream, 0);
    if (result != 0 || !f || !s)
        return result != 0 ? result : FAKE_INVALID_HANDLE;
    const void *block = block_find(extra, &bytes);
    if (parameters || !block || threads[1] != 1 || threads[2] != 1 || fake_args_refuse(f->name, bytes)) {
        fake_misuse(name, "arguments or threads");
        return FAKE_INVALID_VALUE;
    }
    fake_control.block_bytes = (uint32_t)bytes;
    return driver->launch(s->real, f->real, (struct gpu_dims){blocks[0], blocks[1], blocks[2]}, threads[0],
                          shared, block, (uint32_t)bytes, &err) == 0
               ? 0
               : result_of(&err);
}

/* --- graphs: an instantiated one takes over what was recorded */

int fake_capture_begin(const char *name, void *stream)
{
    int result = fake_enter(name);
    struct err err;
    struct fake_object *object = object_find(name, FAKE_STREAM, stream, 0);
    if (result != 0 || !object)
        return result != 0 ? result : FAKE_INVALID_HANDLE;
    return driver->capture_begin(object->real, &err) == 0 ? 0 : result_of(&err);
}

int fake_capture_end(const char *name, void *stream, void **graph)
{
    int result = fake_enter(name);
    struct gpu_graph *real = NULL;
    struct err err;
    struct fake_object *object = object_given(name, FAKE_STREAM, stream, 0);
    if (!object)
        return FAKE_INVALID_HANDLE;
    if (driver->capture_end(object->real, &real, &err) != 0)
        return result_of(&err);
    if (result != 0) /* An invalidated recording ends, and gives no graph. */
        driver->graph_destroy(real);
    else
        *graph = object_add(FAKE_GRAPH, object->context, real);
    return result;
}

int fake_instantiate(const char *name, void **executable, void *graph)
{
    int result = fake_enter(name);
    struct fake_object *object = object_find(name, FAKE_GRAPH, graph, 0);
    if (result != 0 || !object)
        return result != 0 ? result : FAKE_INVALID_HANDLE;
    *executable = object_add(FAKE_EXECUTABLE, object->context, object->real);
    object->real = NULL;
    return 0;
}

int fake_graph_launch(const char *name, void *executable, void *stream)
{
    int result = fake_enter(name);
    struct err err;
    struct fake_object *e = object_find(name, FAKE_EXECUTABLE, executable, 0),
                       *s = object_find(name, FAKE_STREAM, stream, 0);
    if (result != 0 || !e || !s)
        return result != 0 ? result : FAKE_INVALID_HANDLE;
    return driver->graph_launch(e->real, s->real, &err) == 0 ? 0 : result_of(&err);
}

static int recording_destroy(const char *name, enum fake_sort sort, void *handle)
{
    int result = fake_enter(name);
    struct fake_object *object = object_given(name, sort, handle, 0);
    if (!object)
        return FAKE_INVALID_HANDLE;
    driver->graph_destroy(object->real);
    object_drop(object);
    return result;
}

int fake_executable_destroy(const char *name, void *executable)
{
    return recording_destroy(name, FAKE_EXECUTABLE, executable);
}

int fake_graph_destroy(const char *name, void *graph)
{
    return recording_destroy(name, FAKE_GRAPH, graph);
}
