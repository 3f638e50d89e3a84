/* What the two fake vendors' libraries share: the emulated driver below, and above it the habits of a
 * vendor's library that our drivers must live with. Every handle is looked up and refused when it is not
 * alive, of another sort or of another context; a call that needs a current context has one. Any call can be
 * made to fail. One that gives something back gives it back also when it fails, as the real ones do: they
 * tell of earlier mistakes then.
 *
 * The calls' names are the vendors'; what they do is told by their public documentation.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exported by each library as `fake_control`; a test sets and reads it, one thread at a time. */
struct fake_control {
    uint64_t calls;   /* so far, but of those that name errors and tell versions of a library */
    uint64_t fail_at; /* the call, counted from 1, that fails; 0: none */
    int fail_with;
    int version, devices;
    int capability; /* 86 is 8.6 */
    int compute_mode;
    const char *arch;     /* of AMD: with its features */
    uint64_t live;        /* handles and memory not given back */
    uint64_t misuses;     /* calls with handles that are not alive, of another sort or context */
    char misuse[128];     /* the last of them */
    char trace[8192];     /* names of calls, each behind a space */
    uint32_t block_bytes; /* of arguments of the last launch */
};

enum fake_sort {
    FAKE_CONTEXT,
    FAKE_MEMORY,
    FAKE_HOST,
    FAKE_IMPORT,
    FAKE_STREAM,
    FAKE_EVENT,
    FAKE_MODULE,
    FAKE_FUNCTION,
    FAKE_GRAPH,
    FAKE_EXECUTABLE
};

/* Numbers that both vendors have. */
enum {
    FAKE_INVALID_VALUE = 1,
    FAKE_OUT_OF_MEMORY = 2,
    FAKE_NOT_INITIALIZED = 3,
    FAKE_NO_DEVICE = 100,
    FAKE_INVALID_DEVICE = 101,
    FAKE_INVALID_IMAGE = 200,
    FAKE_INVALID_CONTEXT = 201,
    FAKE_INVALID_HANDLE = 400,
    FAKE_NOT_FOUND = 500,
    FAKE_NOT_READY = 600,
    FAKE_DEVICES = 2,
    FAKE_IPC_BYTES = 64
};

struct fake_ipc {
    uint8_t bytes[FAKE_IPC_BYTES];
};

/* Each vendor's file says these. */
extern struct fake_control fake_control;
extern const char *const fake_warps;              /* of its cards: "warp32" */
extern const uintptr_t fake_extra_end;            /* of a launch's arguments */
struct fake_object *fake_current(void);           /* the context of the calling thread, NULL: none */
const char *fake_image_refuse(const char *image); /* NULL, or what is wrong with it */

/* Count the call; the number it must fail with, or 0. */
int fake_enter(const char *name);

/* The context of a device, made on first use; retained. NULL: no such device or no memory. */
struct fake_object *fake_context_retain(int device);
int fake_context_release(int device);
/* The same, retained once for ever and not counted as alive. */
struct fake_object *fake_context_keep(int device);
bool fake_context_alive(const void *context);
/* Count a misuse; the number of an invalid handle. */
int fake_misuse(const char *name, const char *what);

/* The calls proper, in the order of struct vendor_api. Each counts itself under `name`. */
int fake_count(const char *name, int *count);
int fake_device(const char *name, int device); /* is there such a one? */
int fake_device_get(const char *name, int *device, int index);
int fake_text(const char *name, int device, const char *text, char *out, int room);
int fake_memory_total(const char *name, size_t *bytes, int device);
int fake_uuid(const char *name, uint8_t *uuid, int device);
int fake_memory_info(const char *name, size_t *available, size_t *total);
int fake_memory_alloc(const char *name, uint64_t *out, size_t bytes);
int fake_memory_free(const char *name, uint64_t address);
int fake_host_alloc(const char *name, void **out, size_t bytes);
int fake_host_free(const char *name, void *memory);
int fake_ipc_get(const char *name, struct fake_ipc *handle, uint64_t address);
int fake_ipc_open(const char *name, uint64_t *out, struct fake_ipc handle);
int fake_ipc_close(const char *name, uint64_t address);
int fake_peer_can(const char *name, int *can, int device, int peer);
int fake_stream_create(const char *name, void **out, unsigned flags);
int fake_stream_destroy(const char *name, void *stream);
int fake_stream_sync(const char *name, void *stream);
int fake_stream_wait(const char *name, void *stream, void *event);
int fake_event_create(const char *name, void **out, unsigned flags);
int fake_event_destroy(const char *name, void *event);
int fake_event_record(const char *name, void *event, void *stream);
int fake_event_query(const char *name, void *event);
int fake_event_sync(const char *name, void *event);
int fake_event_elapsed(const char *name, float *milliseconds, void *from, void *to);
int fake_copy_in(const char *name, uint64_t to, const void *from, size_t bytes, void *stream);
int fake_copy_out(const char *name, void *to, uint64_t from, size_t bytes, void *stream);
int fake_copy(const char *name, uint64_t to, uint64_t from, size_t bytes, void *stream);
int fake_fill(const char *name, uint64_t to, uint8_t value, size_t bytes, void *stream);
int fake_module_load(const char *name, void **out, const void *image, unsigned options, const int *names,
                     void **values);
int fake_module_unload(const char *name, void *module);
int fake_module_function(const char *name, void **out, void *module, const char *function);
int fake_launch(const char *name, void *function, const unsigned blocks[3], const unsigned threads[3],
                unsigned shared, void *stream, void **parameters, void **extra);
int fake_capture_begin(const char *name, void *stream);
int fake_capture_end(const char *name, void *stream, void **graph);
int fake_instantiate(const char *name, void **executable, void *graph);
int fake_graph_launch(const char *name, void *executable, void *stream);
int fake_executable_destroy(const char *name, void *executable);
int fake_graph_destroy(const char *name, void *graph);

#define FAKE_EXPORT __attribute__((visibility("default")))
