/* The parts of the emulated driver: memory.c (an arena that only kernels may touch), shadow.c (who accessed
 * what), fibers.c (launches), queues.c (threads that run queues), driver.c (the table). */
#ifndef MOTLEY_ENGINE_GPU_EMULATED_EMULATED_H
#define MOTLEY_ENGINE_GPU_EMULATED_EMULATED_H

#include <pthread.h>

#include "engine/gpu/driver.h"
#include "engine/gpu/emulated/dialect_emulated.h"

enum {
    EMULATED_BLOCK_THREADS_MAX = 1024,
    EMULATED_SHARED_BYTES = 48 << 10, /* what any card since Maxwell and GCN gives a block */
    EMULATED_ALIGNMENT = 256          /* of allocations, as cuMemAlloc has it */
};

/* Device memory. Addresses lie in a range that the host may not touch; the same pages are mapped a second
 * time for kernels and copies. Behind the arena's own half comes one for memory imported from others. */
struct emulated_span {
    uint64_t begin, bytes; /* from the arena's start, as asked; from emulated_memory_find: an address */
};
struct emulated_memory {
    uint8_t *addresses; /* PROT_NONE */
    uint8_t *pages;
    uint64_t half, limit, held;
    int file;
    struct emulated_span *spans; /* rising */
    uint32_t count, room;
    struct emulated_shadow *shadow; /* NULL: accesses are not checked beyond their bounds */
    pthread_mutex_t lock;
};
int emulated_memory_init(struct emulated_memory *memory, uint64_t limit, bool checks, struct err *err);
void emulated_memory_fini(struct emulated_memory *memory);
/* ERR_NOMEM beyond the limit; 0 bytes are refused: ERR_INVALID. */
int emulated_memory_take(struct emulated_memory *memory, uint64_t bytes, gpu_address *out, struct err *err);
int emulated_memory_give(struct emulated_memory *memory, gpu_address address, struct err *err);
/* The allocation that [address, address + bytes) lies in; false: in none. */
bool emulated_memory_find(struct emulated_memory *memory, gpu_address address, uint64_t bytes,
                          struct emulated_span *out);
/* Where the host finds it, NULL in none; written: a copy writes all of it. */
void *emulated_memory_at(struct emulated_memory *memory, gpu_address address, uint64_t bytes, bool written);
int emulated_memory_export(struct emulated_memory *memory, gpu_address address, uint8_t handle[GPU_IPC_BYTES],
                           struct err *err);
int emulated_memory_import(struct emulated_memory *memory, const uint8_t handle[GPU_IPC_BYTES],
                           gpu_address *out, struct err *err);

/* Shadow of an arena: what was written at all, and the accesses of the launch under way. */
struct emulated_shadow;
int emulated_shadow_create(uint64_t bytes, struct emulated_shadow **out, struct err *err);
void emulated_shadow_destroy(struct emulated_shadow *shadow);
void emulated_shadow_forget(struct emulated_shadow *shadow, uint64_t at, uint64_t bytes); /* never written */
void emulated_shadow_write(struct emulated_shadow *shadow, uint64_t at, uint64_t bytes);  /* by a copy */

/* Who accesses: ordered against others of the same block by barriers. */
struct emulated_who {
    uint32_t launch, block, thread, warp;
    uint32_t epoch, warp_epoch; /* barriers of the block, of the warp, so far */
};
/* NULL, or what is wrong with this access, in words; *other: the other thread of a race. */
const char *emulated_shadow_access(struct emulated_shadow *shadow, uint64_t at, uint32_t bytes,
                                   enum emulated_access access, const struct emulated_who *who,
                                   struct emulated_who *other);

/* A kernel of this build. */
struct gpu_function {
    const char *name;
    uint32_t threads;
    void (*run)(const void *args);
};
/* All of them, for any CPU and for those with fused multiply-add: equal bits. */
extern const struct gpu_function emulated_functions_any[], emulated_functions_fma[];
extern const uint32_t emulated_function_count;

/* Run a launch to its end on the calling thread. ERR_DEVICE_FAULT names kernel, block and thread. */
int emulated_launch(struct emulated_memory *memory, const struct gpu_function *function, uint32_t warp_size,
                    struct gpu_dims blocks, uint32_t threads, const void *args, struct err *err);

#endif
