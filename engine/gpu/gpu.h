/* Shared by the files that run ops on GPUs: gpu.c (the device), run.c (the table of ops), one file for each
 * family of ops (flat.c, rows.c, tables.c, random.c, loss.c, optimizer.c, unpack.c, product.c, experts.c,
 * attention.c) beside its kernels/….k.h, and product_library.c (products by the vendor's library).
 *
 * An op is one or a few launches on one queue. op_submit has checked sizes and ranges. gpu_scratch lends
 * memory to an op that needs some: it has a fixed size, and each queue has its own, so all ops on one queue
 * may use it.
 */
#ifndef MOTLEY_ENGINE_GPU_GPU_H
#define MOTLEY_ENGINE_GPU_GPU_H

#include "engine/device/backend_private.h"
#include "engine/gpu/driver.h"
#include "engine/gpu/kernels/list.h"

#define GPU_KERNEL_NAME(kernel, threads) KERNEL_##kernel,
enum gpu_kernel { GPU_KERNEL_LIST(GPU_KERNEL_NAME) GPU_KERNEL_COUNT };
#undef GPU_KERNEL_NAME

enum {
    GPU_SCRATCH_BYTES = 4 << 20, /* least scratch memory of a queue; the device's account does not count it */
    GPU_GRAPHS_MAX = 64,         /* most recorded passes that are kept */
    GPU_UNUSED_MIN = 8 * GPU_GRAPHS_MAX, /* a recorded pass keeps its place until so many others have passed
                                            by: then it comes less than an eighth as often as its fellows */
    GPU_SEEN_MAX = 128 /* most keys remembered of passes that came once; a pass is recorded when it comes the
                          second time */
};

/* A recorded pass. */
struct gpu_pass {
    uint64_t key;
    struct gpu_graph *graph;
    uint64_t used; /* pass count at its last use; the least recently used is dropped */
};

/* Host memory that the driver refused to page-lock: its copies go through the driver's own locked memory. */
struct gpu_pageable {
    struct gpu_pageable *next;
    void *memory;
    uint64_t bytes;
};

/* A trace in progress (trace.h). */
struct gpu_trace {
    struct gpu_event **events; /* [2 * room]: one before and one after each launch */
    uint8_t *kinds;            /* [room]: the op of each launch */
    uint32_t room, count;
    bool recorded_nothing; /* value of records_nothing before the trace */
};

struct gpu {
    struct device base;
    const struct gpu_driver *driver;
    struct gpu_library *library;
    struct gpu_context *context;
    struct gpu_info info;
    struct gpu_module *module;
    void *image;     /* the code that the module was made from; owned */
    uint32_t matrix; /* GPU_MATRIX_…: the types that the module's kernels multiply with matrix units */
    struct gpu_function *functions[GPU_KERNEL_COUNT];
    struct gpu_queue *queues[DEVICE_QUEUES];
    _Atomic uint64_t queued[DEVICE_QUEUES],
        finished[DEVICE_QUEUES]; /* number of calls queued and finished; equal if nothing is in progress */
    gpu_address scratch[DEVICE_QUEUES];
    struct products *products; /* the vendor's library (product_library.c); NULL: none */
    gpu_address stages[2];     /* areas for operands that are converted for the library; 0: none */
    uint64_t stage_bytes;      /* bytes of each area */
    struct gpu_pass passes[GPU_GRAPHS_MAX];
    uint64_t seen[GPU_SEEN_MAX]; /* keys of passes seen once, as a ring; 0: empty */
    uint64_t pass_count, seen_count;
    uint64_t recording;   /* key of the pass that is being recorded; 0: none */
    bool records_nothing; /* a recording failed: passes are queued op by op */
    bool bf16_told;       /* the log says that the card has matrix units for fp16 alone */
    struct pass_counts counts;
    struct gpu_trace *trace;       /* NULL: no trace */
    struct gpu_pageable *pageable; /* guarded by base.lock */
};

/* The context in which an op is queued. */
struct gpu_call {
    struct gpu *gpu;
    enum device_queue queue;
    enum op_kind kind; /* of the op that is being queued */
    struct err *err;
};

/* The ops that a file runs. fits tells whether the device takes an op of these sizes and dtypes, which
 * op_operands allows; NULL: it always does. */
struct gpu_op {
    enum op_kind kind;
    bool (*fits)(const struct gpu *gpu, const struct op *op);
    int (*run)(struct gpu_call *call, const struct op *op);
};
extern const struct gpu_op gpu_flat_ops[], gpu_rows_ops[], gpu_tables_ops[], gpu_random_ops[], gpu_loss_ops[],
    gpu_optimizer_ops[], gpu_unpack_ops[], gpu_product_ops[], gpu_experts_ops[], gpu_attention_ops[],
    gpu_delta_ops[]; /* each array ends with an entry whose run is NULL */

/* op_supports for a GPU. Pure. */
bool gpu_runs(const struct gpu *gpu, const struct op *op);
/* Queue an op that the device supports. */
int gpu_run(struct gpu_call *call, const struct op *op);

/* Queue a kernel with x * y * z blocks; with 0 blocks nothing is done. args is the kernel's struct …_args. */
int gpu_launch(struct gpu_call *call, enum gpu_kernel kernel, uint64_t x, uint64_t y, uint64_t z,
               const void *args, uint32_t args_bytes);
/* Queue a fill with zeros. */
int gpu_zero(struct gpu_call *call, gpu_address at, uint64_t bytes);

/* The address of an operand; 0: absent. */
static inline gpu_address gpu_at(const struct operand *operand)
{
    return !operand->buffer ? 0 : (gpu_address)(uintptr_t)operand->buffer->memory + operand->at;
}

/* trace.c: records an event before or after a launch, if there is a trace. */
int gpu_trace_mark(struct gpu_call *call, bool after);

/* The scratch memory of the call's queue, at least GPU_SCRATCH_BYTES. */
static inline gpu_address gpu_scratch(const struct gpu_call *call)
{
    return call->gpu->scratch[call->queue];
}

static inline uint64_t gpu_blocks(uint64_t count, uint32_t per_block)
{
    return (count + per_block - 1) / per_block;
}

/* Number of blocks of 256 threads if each thread handles per_thread values of a row. */
static inline uint64_t gpu_row_blocks(uint64_t rows, uint32_t width, uint32_t per_thread)
{
    return gpu_blocks(rows * gpu_blocks(width, per_thread), 256);
}

/* Can a kernel access four neighbouring values of `bytes` bytes each at once, in all rows of a matrix whose
 * rows are ld values apart (kernels/four.h)? */
static inline bool gpu_fours(gpu_address at, uint32_t bytes, uint64_t ld)
{
    return at % (4 * bytes) == 0 && ld % 4 == 0;
}

/* Converts a floating-point dtype to the ELEMENT_… value that kernels take (kernels/four.h). */
static inline uint32_t gpu_element(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? ELEMENT_F32 : dtype == DTYPE_BF16 ? ELEMENT_BF16 : ELEMENT_F16;
}

/* Can products and attention round their operands to this dtype? */
static inline bool gpu_computes(enum dtype compute)
{
    return compute == DTYPE_F32 || compute == DTYPE_BF16 || compute == DTYPE_F16;
}

/* Do matrix units compute products in this dtype? On other cards, operands are rounded and multiplied in
 * fp32. */
static inline bool gpu_by_units(const struct gpu *gpu, enum dtype compute)
{
    return (compute == DTYPE_BF16 && (gpu->matrix & GPU_MATRIX_BF16) != 0) ||
           (compute == DTYPE_F16 && (gpu->matrix & GPU_MATRIX_F16) != 0);
}

/* In how many launches such a number of multiplications is divided: one, unless the card's watchdog ends
 * kernels that take some seconds, and even a slow kernel (8 multiplications per unit and clock, where a
 * Pascal unit has 128 lanes) would take more than one. */
static inline uint64_t gpu_launches(const struct gpu *gpu, double multiplications)
{
    const double second = 8e3 * gpu->info.clock_khz * gpu->info.units;
    return gpu->info.watchdog && second > 0 ? 1 + (uint64_t)(multiplications / second) : 1;
}

/* flat.c: queues y[count] = x, converted from dtype `from` to dtype `to`. */
int gpu_cast(struct gpu_call *call, gpu_address x, enum dtype from, gpu_address y, enum dtype to,
             uint64_t count);

/* Bytes of a queue's gpu_scratch on a card of this architecture. Pure. */
uint64_t gpu_scratch_bytes(const char *arch, enum device_queue queue);
/* Bytes that a device takes for itself when it opens on a card: gpu_scratch of each queue and, with a
 * vendor's library of products, two areas for converted operands. Pure. */
uint64_t gpu_base_bytes(const struct gpu_info *card, bool products);

/* product_library.c: open and close the vendor's library of products, if there is one. Close it before the
 * context. */
void gpu_library_open(struct gpu *gpu, uint32_t driver_version);
void gpu_library_close(struct gpu *gpu);
/* product_library.c: queue a product by the vendor's library. *done is false if the library does not compute
 * this product: c is then unchanged, and the caller uses our kernels. */
int gpu_library_gemm(struct gpu_call *call, const struct op_gemm *op, bool *done);

/* unpack.c: converts a format of quantisation blocks to the UNPACK_… value that kernels take
 * (kernels/unpack.k.h). */
uint32_t gpu_unpack_kind(enum pack_kind pack);

/* Rows of a packed tensor to unpack: y[rows,width], with rows ldy values apart, as `type` (f32, bf16 or f16),
 * from values begin + row * ldx + column of x. begin and ldx are multiples of 4. */
struct gpu_unpacked {
    enum pack_kind pack; /* NF4 or blocks */
    enum dtype type;
    gpu_address x, absmax, scales, y;
    uint64_t begin, rows;
    uint32_t width, ldx, ldy;
};
int gpu_unpack(struct gpu_call *call, const struct gpu_unpacked *u);

#endif
