/* The operations that we need of a vendor's driver, as a table of functions. cuda.c and hip.c fill it from a
 * library opened at run time; emulated/ runs the same kernels on the CPU. One host file (gpu.c) uses all
 * three.
 *
 * Handles are the driver's own and opaque here. Addresses are device addresses: the host never dereferences
 * one. A queue runs in order; different queues run at the same time, ordered only by events. After a fault,
 * everything queued on that context fails with the fault.
 *
 * Errors are -1 with *err, with a code that lets the scheduler act:
 *   ERR_NOMEM         the device or the host has no memory for this now
 *   ERR_DEVICE_LOST   the context or the card is gone: the worker must end, the card may be tried again
 *   ERR_DEVICE_FAULT  the card computes wrongly or a launch failed: an uncorrectable memory error, an illegal
 *                     address, an assertion of a kernel
 *   ERR_UNSUPPORTED   the driver or card cannot do this; the text says what would be needed
 *   ERR_NOT_FOUND     there is no library, or no such device
 *   ERR_TIMEOUT       a deadline passed
 *   ERR_INVALID, ERR_INTERNAL  our code called it wrongly
 * Threads: a queue belongs to one thread at a time. Everything else may be called from any thread that uses
 * the context's device (gpu.c makes the context current where the driver needs that).
 */
#ifndef MOTLEY_ENGINE_GPU_DRIVER_H
#define MOTLEY_ENGINE_GPU_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef uint64_t gpu_address; /* an address in device memory; 0: no memory */

struct gpu_library; /* the opened driver; one per process */
struct gpu_context; /* a context on one card */
struct gpu_queue;
struct gpu_event;
struct gpu_module;
struct gpu_function;
struct gpu_graph;
struct products_vendor; /* defined in products.h */

/* Types whose products a card's matrix units compute, with sums in fp32. */
enum { GPU_MATRIX_F16 = 1, GPU_MATRIX_BF16 = 2 };

/* Properties of a card, known before a context is made on it. */
struct gpu_info {
    char name[128];  /* the vendor's name for it */
    char arch[32];   /* such as "sm_80", "gfx90a" or "warp32" */
    char pci[16];    /* such as "0000:01:00.0"; "" if there is none */
    char uuid[48];   /* "" if the driver tells none */
    uint32_t warp;   /* threads that run in lockstep: 32 or 64 */
    uint32_t units;  /* multiprocessors or compute units */
    uint32_t shared; /* bytes of shared memory that one block may use */
    uint32_t
        matrix; /* GPU_MATRIX_… of the emulated device; for other cards the code object has it (code.h) */
    uint64_t memory; /* bytes of the card's memory in all */
    uint32_t clock_khz;
    bool exclusive;  /* the card's compute mode admits only one process */
    bool prohibited; /* the card's compute mode admits no process */
    bool watchdog; /* the driver ends kernels that run for some seconds, because the card drives a display */
    bool integrated; /* the card has no memory of its own, but the host's */
};

struct gpu_dims {
    uint32_t x, y, z; /* numbers of blocks, each ≥ 1 */
};

enum { GPU_IPC_BYTES = 64 };

struct gpu_driver {
    const char *kind;                       /* the kind of device: "cuda", "hip" or "emulated" */
    bool takes_code;                        /* module_load needs a code object */
    const struct products_vendor *products; /* the vendor's library of matrix products; NULL: none */

    /* Open the library. ERR_NOT_FOUND: there is none. ERR_UNSUPPORTED: it is too old; the text names the
     * oldest version that works. *version is the driver's own version number (12040 is CUDA 12.4), or 0 if it
     * has none. */
    int (*open)(struct gpu_library **out, uint32_t *version, struct err *err);
    void (*close)(struct gpu_library *library);
    int (*count)(struct gpu_library *library, uint32_t *out, struct err *err);
    /* `options` is the emulated device's option text (device_options.isa) or NULL; other drivers ignore it.
     */
    int (*info)(struct gpu_library *library, uint32_t index, const char *options, struct gpu_info *out,
                struct err *err);

    /* `limit`: bytes of memory of the emulated device; 0 takes its default. */
    int (*context_create)(struct gpu_library *library, uint32_t index, const char *options, uint64_t limit,
                          struct gpu_context **out, struct err *err);
    void (*context_destroy)(struct gpu_context *context);
    int (*memory_info)(struct gpu_context *context, uint64_t *free, uint64_t *total, struct err *err);

    int (*memory_create)(struct gpu_context *context, uint64_t bytes, gpu_address *out, struct err *err);
    int (*memory_destroy)(struct gpu_context *context, gpu_address address, struct err *err);
    /* Allocates page-locked host memory. */
    int (*host_create)(struct gpu_context *context, uint64_t bytes, void **out, struct err *err);
    int (*host_destroy)(struct gpu_context *context, void *memory, struct err *err);

    /* Device memory that another process on this node can import through `handle`. */
    int (*memory_export)(struct gpu_context *context, gpu_address address, uint8_t handle[GPU_IPC_BYTES],
                         struct err *err);
    int (*memory_import)(struct gpu_context *context, const uint8_t handle[GPU_IPC_BYTES], gpu_address *out,
                         struct err *err);
    int (*memory_unimport)(struct gpu_context *context, gpu_address address, struct err *err);
    /* Can `context` address memory of `peer`? Enables it if possible. */
    int (*peer_enable)(struct gpu_context *context, struct gpu_context *peer, bool *can, struct err *err);

    int (*queue_create)(struct gpu_context *context, struct gpu_queue **out, struct err *err);
    void (*queue_destroy)(struct gpu_queue *queue);
    int (*queue_sync)(struct gpu_queue *queue, struct err *err);
    /* The vendor's own handle of the queue, for `products`; makes its context current for the calling thread.
     * NULL without such handles. */
    int (*queue_native)(struct gpu_queue *queue, void **out, struct err *err);

    /* timed: event_elapsed accepts the event. */
    int (*event_create)(struct gpu_context *context, bool timed, struct gpu_event **out, struct err *err);
    void (*event_destroy)(struct gpu_event *event);
    int (*event_record)(struct gpu_event *event, struct gpu_queue *queue, struct err *err);
    /* Work queued later on `queue` waits for the event as it was last recorded. */
    int (*event_wait)(struct gpu_event *event, struct gpu_queue *queue, struct err *err);
    int (*event_done)(struct gpu_event *event, bool *done, struct err *err);
    int (*event_sync)(struct gpu_event *event, struct err *err);
    int (*event_elapsed)(struct gpu_event *from, struct gpu_event *to, float *milliseconds, struct err *err);

    int (*copy_in)(struct gpu_queue *queue, gpu_address to, const void *from, uint64_t bytes,
                   struct err *err);
    int (*copy_out)(struct gpu_queue *queue, void *to, gpu_address from, uint64_t bytes, struct err *err);
    int (*copy)(struct gpu_queue *queue, gpu_address to, gpu_address from, uint64_t bytes, struct err *err);
    int (*fill)(struct gpu_queue *queue, gpu_address to, uint8_t value, uint64_t bytes, struct err *err);

    /* image: a code object (PTX is NUL-terminated text); NULL if the driver takes none. */
    int (*module_load)(struct gpu_context *context, const void *image, uint64_t bytes,
                       struct gpu_module **out, struct err *err);
    void (*module_unload)(struct gpu_module *module);
    int (*function)(struct gpu_module *module, const char *name, struct gpu_function **out, struct err *err);
    /* `args` is one struct of arguments, passed by value. shared: bytes of dynamic shared memory. */
    int (*launch)(struct gpu_queue *queue, struct gpu_function *function, struct gpu_dims blocks,
                  uint32_t threads, uint32_t shared, const void *args, uint32_t args_bytes, struct err *err);

    /* Record what is queued between begin and end instead of running it. Both NULL if the driver cannot
     * record. */
    int (*capture_begin)(struct gpu_queue *queue, struct err *err);
    int (*capture_end)(struct gpu_queue *queue, struct gpu_graph **out, struct err *err);
    int (*graph_launch)(struct gpu_graph *graph, struct gpu_queue *queue, struct err *err);
    void (*graph_destroy)(struct gpu_graph *graph);
};

extern const struct products_vendor products_cublaslt,
    products_rocblas; /* defined in cublaslt.c and rocblas.c */
extern const struct gpu_driver gpu_driver_emulated;
extern const struct gpu_driver gpu_driver_cuda;
extern const struct gpu_driver gpu_driver_hip;
extern const struct gpu_driver *const gpu_drivers[]; /* all drivers; NULL ends the array */

#endif
