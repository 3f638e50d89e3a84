/* Shared parts of the two fake driver libraries (CUDA and HIP). They run on the emulated driver and behave to
 * their callers as the vendors' libraries do. Every handle is looked up, and refused when it is not alive, is
 * of another kind, or belongs to a context that is not current. A test can make any call fail. A call that
 * frees or destroys an object does so even when it returns an error, as the real ones do, since such an error
 * comes from earlier work. The calls have the vendors' names and follow the vendors' public documentation. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The switches and counters of a fake library, exported as `fake_control`. Tests set and read them from one
 * thread at a time. */
struct fake_control {
    uint64_t calls;   /* calls so far, except those that only give an error's name or text */
    uint64_t fail_at; /* the call, counted from 1, that fails; 0: none */
    int fail_with;
    int version, devices;
    int capability; /* compute capability: 86 is 8.6 */
    int compute_mode;
    int integrated, watchdog;
    size_t free_more;     /* free bytes that are told beyond those that there are */
    const char *arch;     /* AMD's architecture with its features */
    uint64_t live;        /* handles and allocations that were not released */
    uint64_t misuses;     /* calls with handles that are not alive, or of another kind or context */
    char misuse[128];     /* a description of the last misuse */
    char trace[8192];     /* the names of the calls, each preceded by a space */
    uint32_t block_bytes; /* bytes of the last launch's arguments */
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

/* Error numbers that both vendors share. */
enum {
    FAKE_INVALID_VALUE = 1,
    FAKE_OUT_OF_MEMORY = 2,
    FAKE_NOT_INITIALIZED = 3,
    FAKE_NO_DEVICE = 100,
    FAKE_INVALID_DEVICE = 101,
    FAKE_INVALID_IMAGE = 200,
    FAKE_INVALID_CONTEXT = 201,
    FAKE_NO_BINARY = 209, /* no code for this card, or of a version that the driver does not know */
    FAKE_PTX_TOO_NEW = 222,
    FAKE_INVALID_HANDLE = 400,
    FAKE_NOT_FOUND = 500,
    FAKE_NOT_READY = 600,
    FAKE_DEVICES = 2,
    FAKE_IPC_BYTES = 64
};

struct fake_ipc {
    uint8_t bytes[FAKE_IPC_BYTES];
};

/* Defined by each vendor's file. */
extern struct fake_control fake_control;
extern const char *const fake_warps;    /* the emulated device's option for its cards' warps: "warp32" */
extern const uintptr_t fake_extra_end;  /* the value that ends the `extra` list of a launch's arguments */
struct fake_object *fake_current(void); /* Returns the calling thread's current context, or NULL. */
/* Returns NULL for an image that the driver of fake_control.version takes. Otherwise returns what the driver
 * would say of it, and writes the driver's error number to *result. */
const char *fake_image_refuse(const char *image, int *result);
/* Whether the loaded code of a kernel is known to have arguments of another size. */
bool fake_args_refuse(const char *kernel, size_t bytes);

/* Counts the call. Returns the error that it must fail with, or 0. */
int fake_enter(const char *name);

/* Returns a device's context with one more reference; it is made on first use. NULL: the device does not
 * exist, or memory is short. */
struct fake_object *fake_context_retain(int device);
int fake_context_release(int device);
/* As fake_context_retain, but holds one reference for ever, and the context is not counted in `live`. */
struct fake_object *fake_context_keep(int device);
bool fake_context_alive(const void *context);
/* Counts a misuse and returns the error number of an invalid handle. */
int fake_misuse(const char *name, const char *what);

/* The calls themselves, in the order of struct vendor_api. Each call is counted under `name`. */
int fake_count(const char *name, int *count);
int fake_device(const char *name, int device); /* Returns 0 when the device exists. */
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
