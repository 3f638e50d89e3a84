/* Parts of the emulated driver: memory.c (an arena that only kernels may access), shadow.c (who accessed
 * what), fibers.c (launches), driver.c (queues and the driver table). */
#ifndef MOTLEY_ENGINE_GPU_EMULATED_EMULATED_H
#define MOTLEY_ENGINE_GPU_EMULATED_EMULATED_H

#include <pthread.h>

#include "engine/device/lend.h"
#include "engine/gpu/driver.h"
#include "engine/gpu/emulated/dialect_emulated.h"

enum {
    EMULATED_BLOCK_THREADS_MAX = 1024,
    EMULATED_SHARED_BYTES = 48 << 10, /* bytes that every card since Maxwell and GCN gives a block */
    EMULATED_ALIGNMENT = 256          /* alignment of allocations, as in cuMemAlloc */
};

/* Device memory. Device addresses are a range that the host cannot access; the same pages are mapped a second
 * time for kernels and copies. Behind the arena's own half is a half for memory imported from other
 * processes. */
struct emulated_span {
    uint64_t begin, bytes; /* begin: offset in the arena (from emulated_memory_find: an address); bytes: the
                              size that the caller wanted, not rounded up */
};
struct emulated_memory {
    uint8_t *addresses; /* the device addresses, mapped with PROT_NONE */
    uint8_t *pages;     /* the mapping that kernels and copies use */
    uint64_t half, limit, held;
    int file;
    struct emulated_span *spans; /* sorted by begin */
    uint32_t count, room;
    struct lender *lender;          /* lends `file`; NULL before the first export */
    struct emulated_shadow *shadow; /* NULL: accesses are checked for their bounds only */
    pthread_mutex_t lock;
};
int emulated_memory_init(struct emulated_memory *memory, uint64_t limit, bool checks, struct err *err);
void emulated_memory_fini(struct emulated_memory *memory);
/* Allocate and free device memory. ERR_NOMEM beyond the limit; ERR_INVALID for 0 bytes. */
int emulated_memory_take(struct emulated_memory *memory, uint64_t bytes, gpu_address *out, struct err *err);
int emulated_memory_give(struct emulated_memory *memory, gpu_address address, struct err *err);
/* Finds the allocation that contains [address, address + bytes); false: there is none. */
bool emulated_memory_find(struct emulated_memory *memory, gpu_address address, uint64_t bytes,
                          struct emulated_span *out);
/* The host address of a range, NULL if it is in no allocation. written: a copy will write all of it. */
void *emulated_memory_at(struct emulated_memory *memory, gpu_address address, uint64_t bytes, bool written);
int emulated_memory_export(struct emulated_memory *memory, gpu_address address, uint8_t handle[GPU_IPC_BYTES],
                           struct err *err);
int emulated_memory_import(struct emulated_memory *memory, const uint8_t handle[GPU_IPC_BYTES],
                           gpu_address *out, struct err *err);

/* Shadow of an arena: which bytes were ever written, and the accesses of the current launch. */
struct emulated_shadow;
int emulated_shadow_create(uint64_t bytes, struct emulated_shadow **out, struct err *err);
void emulated_shadow_destroy(struct emulated_shadow *shadow);
/* marks bytes as never written */
void emulated_shadow_forget(struct emulated_shadow *shadow, uint64_t at, uint64_t bytes);
/* marks bytes as written by a copy */
void emulated_shadow_write(struct emulated_shadow *shadow, uint64_t at, uint64_t bytes);

/* Who makes an access. Barriers order accesses of the same block. */
struct emulated_who {
    uint32_t launch, block, thread, warp;
    uint32_t epoch, warp_epoch; /* number of barriers of the block, and of the warp, so far */
};
/* NULL, or a description of what is wrong with the access; *other gets the other thread of a race. */
const char *emulated_shadow_access(struct emulated_shadow *shadow, uint64_t at, uint32_t bytes,
                                   enum emulated_access access, const struct emulated_who *who,
                                   struct emulated_who *other);

/* A kernel of this build. */
struct gpu_function {
    const char *name;
    uint32_t threads;
    void (*run)(const void *args);
};
/* All kernels, compiled for any CPU and for CPUs with fused multiply-add; both give equal bits. */
extern const struct gpu_function emulated_functions_any[], emulated_functions_fma[];
extern const uint32_t emulated_function_count;

/* Runs a launch to its end on the calling thread. ERR_DEVICE_FAULT names the kernel, block and thread. rdna:
 * as in the kernels' dialect. */
int emulated_launch(struct emulated_memory *memory, const struct gpu_function *function, uint32_t warp_size,
                    uint32_t rdna, struct gpu_dims blocks, uint32_t threads, const void *args,
                    struct err *err);

#endif
