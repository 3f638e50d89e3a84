/* What a vendor's driver does for us, as a table: cuda.c and hip.c fill it from a library opened at run time,
 * emulated/ runs the same kernels on the CPU. One host file (gpu.c) stands above all three.
 *
 * Handles are the driver's own, opaque here. Addresses are those of the device: the host never follows one.
 * A queue is in order; different queues run at once and are tied by events alone. Everything queued on a
 * context after a fault fails with that fault.
 *
 * Errors: -1 with *err, typed so that the scheduler can act:
 *   ERR_NOMEM         the device or the host has no memory for this now
 *   ERR_DEVICE_LOST   the context or the card is gone: the worker must end, the card may be tried again
 *   ERR_DEVICE_FAULT  it computes wrongly or a launch failed: an uncorrectable memory error, an illegal
 *                     address, an assertion of a kernel
 *   ERR_UNSUPPORTED   the driver or card cannot do this; the text says what would be needed
 *   ERR_NOT_FOUND     no library, no such device
 *   ERR_TIMEOUT       a deadline passed
 *   ERR_INVALID, ERR_INTERNAL  we called it wrongly
 * Threads: a queue belongs to one thread at a time; everything else may be called from any thread that holds
 * the context's device (gpu.c makes the context current where the driver wants that).
 */
#ifndef MOTLEY_ENGINE_GPU_DRIVER_H
#define MOTLEY_ENGINE_GPU_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef uint64_t gpu_address; /* 0: none */

struct gpu_library; /* the opened driver: one a process */
struct gpu_context; /* of one card */
struct gpu_queue;
struct gpu_event;
struct gpu_module;
struct gpu_function;
struct gpu_graph;
struct products_vendor; /* products.h */

/* Products of two matrices of such values, with sums in fp32, that a card's matrix units do. */
enum { GPU_MATRIX_F16 = 1, GPU_MATRIX_BF16 = 2 };

/* A card, before anything was made on it. */
struct gpu_info {
    char name[128];  /* as its vendor calls it */
    char arch[32];   /* "sm_80", "gfx90a", "warp32" */
    char pci[16];    /* "0000:01:00.0"; "" where there is none */
    char uuid[48];   /* "" where the driver has none */
    uint32_t warp;   /* threads that run in step: 32 or 64 */
    uint32_t units;  /* multiprocessors, compute units */
    uint32_t shared; /* bytes of shared memory that one block may have */
    uint32_t matrix; /* of the emulated device: GPU_MATRIX_…; of a card its code object says it (code.h) */
    uint64_t memory; /* bytes, all of it */
    uint32_t clock_khz;
    bool exclusive;  /* somebody's compute mode lets one process in; */
    bool prohibited; /* or none */
};

struct gpu_dims {
    uint32_t x, y, z; /* blocks, each ≥ 1 */
};

enum { GPU_IPC_BYTES = 64 };

struct gpu_driver {
    const char *kind;                       /* "cuda", "hip", "emulated": the kind of device */
    bool takes_code;                        /* module_load wants a code object */
    const struct products_vendor *products; /* the vendor's library of matrix products; NULL: none */

    /* Open the library; ERR_NOT_FOUND without one, ERR_UNSUPPORTED with one that is too old, naming the least
     * version. *version: as the driver numbers itself (12040 is CUDA 12.4), 0 where it does not. */
    int (*open)(struct gpu_library **out, uint32_t *version, struct err *err);
    void (*close)(struct gpu_library *library);
    int (*count)(struct gpu_library *library, uint32_t *out, struct err *err);
    /* `options` are the emulated device's own text (device_options.isa), which others take no notice of; or
     * NULL. */
    int (*info)(struct gpu_library *library, uint32_t index, const char *options, struct gpu_info *out,
                struct err *err);

    /* `limit`: bytes of memory that the emulated device has; 0: its default. */
    int (*context_create)(struct gpu_library *library, uint32_t index, const char *options, uint64_t limit,
                          struct gpu_context **out, struct err *err);
    void (*context_destroy)(struct gpu_context *context);
    int (*memory_info)(struct gpu_context *context, uint64_t *free, uint64_t *total, struct err *err);

    int (*memory_create)(struct gpu_context *context, uint64_t bytes, gpu_address *out, struct err *err);
    int (*memory_destroy)(struct gpu_context *context, gpu_address address, struct err *err);
    /* Page-locked host memory. */
    int (*host_create)(struct gpu_context *context, uint64_t bytes, void **out, struct err *err);
    int (*host_destroy)(struct gpu_context *context, void *memory, struct err *err);

    /* Device memory that another process of this node may import, as `handle`. */
    int (*memory_export)(struct gpu_context *context, gpu_address address, uint8_t handle[GPU_IPC_BYTES],
                         struct err *err);
    int (*memory_import)(struct gpu_context *context, const uint8_t handle[GPU_IPC_BYTES], gpu_address *out,
                         struct err *err);
    int (*memory_unimport)(struct gpu_context *context, gpu_address address, struct err *err);
    /* Does memory of `peer` answer to addresses used by `context`? Turned on where it can be. */
    int (*peer_enable)(struct gpu_context *context, struct gpu_context *peer, bool *can, struct err *err);

    int (*queue_create)(struct gpu_context *context, struct gpu_queue **out, struct err *err);
    void (*queue_destroy)(struct gpu_queue *queue);
    int (*queue_sync)(struct gpu_queue *queue, struct err *err);
    /* The vendor's own handle of it, whose context is current for the calling thread from then on: for
     * `products`. NULL without. */
    int (*queue_native)(struct gpu_queue *queue, void **out, struct err *err);

    /* timed: event_elapsed may be asked. */
    int (*event_create)(struct gpu_context *context, bool timed, struct gpu_event **out, struct err *err);
    void (*event_destroy)(struct gpu_event *event);
    int (*event_record)(struct gpu_event *event, struct gpu_queue *queue, struct err *err);
    /* What is queued later on `queue` waits for the event as it was last recorded. */
    int (*event_wait)(struct gpu_event *event, struct gpu_queue *queue, struct err *err);
    int (*event_done)(struct gpu_event *event, bool *done, struct err *err);
    int (*event_sync)(struct gpu_event *event, struct err *err);
    int (*event_elapsed)(struct gpu_event *from, struct gpu_event *to, float *milliseconds, struct err *err);

    int (*copy_in)(struct gpu_queue *queue, gpu_address to, const void *from, uint64_t bytes,
                   struct err *err);
    int (*copy_out)(struct gpu_queue *queue, void *to, gpu_address from, uint64_t bytes, struct err *err);
    int (*copy)(struct gpu_queue *queue, gpu_address to, gpu_address from, uint64_t bytes, struct err *err);
    int (*fill)(struct gpu_queue *queue, gpu_address to, uint8_t value, uint64_t bytes, struct err *err);

    /* image: a code object (PTX is NUL-terminated text); NULL where the driver takes none. */
    int (*module_load)(struct gpu_context *context, const void *image, uint64_t bytes,
                       struct gpu_module **out, struct err *err);
    void (*module_unload)(struct gpu_module *module);
    int (*function)(struct gpu_module *module, const char *name, struct gpu_function **out, struct err *err);
    /* One struct of arguments by value. shared: bytes of dynamic shared memory. */
    int (*launch)(struct gpu_queue *queue, struct gpu_function *function, struct gpu_dims blocks,
                  uint32_t threads, uint32_t shared, const void *args, uint32_t args_bytes, struct err *err);

    /* Record what is queued between the two instead of running it; NULL in both where the driver cannot. */
    int (*capture_begin)(struct gpu_queue *queue, struct err *err);
    int (*capture_end)(struct gpu_queue *queue, struct gpu_graph **out, struct err *err);
    int (*graph_launch)(struct gpu_graph *graph, struct gpu_queue *queue, struct err *err);
    void (*graph_destroy)(struct gpu_graph *graph);
};

extern const struct products_vendor products_cublaslt, products_rocblas; /* cublaslt.c, rocblas.c */
extern const struct gpu_driver gpu_driver_emulated;
extern const struct gpu_driver gpu_driver_cuda;
extern const struct gpu_driver gpu_driver_hip;
extern const struct gpu_driver *const gpu_drivers[]; /* all of them, NULL at the end */

#endif
