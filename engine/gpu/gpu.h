/* What the files that run ops on GPUs share: gpu.c (the device), run.c (which op is whose), and a file a
 * family of ops (flat.c, rows.c, tables.c, random.c, loss.c, optimizer.c, unpack.c, product.c, experts.c,
 * attention.c), each beside its kernels/….k.h; product_library.c (products by the vendor's library).
 *
 * An op is one launch or a few on one queue. Sizes and ranges were checked by op_submit. Where an op needs
 * memory of its own, gpu_scratch lends it: of a fixed size, one for each queue, so that ops on one queue may
 * all use it.
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
    GPU_SCRATCH_BYTES = 4 << 20, /* of each queue; beside what the account counts */
    GPU_GRAPHS_MAX = 32,         /* passes kept */
    GPU_SEEN_MAX = 128           /* keys of passes that came once: with the second they are recorded */
};

/* A pass that was recorded. */
struct gpu_pass {
    uint64_t key;
    struct gpu_graph *graph;
    uint64_t used; /* counts passes: the least goes */
};

/* Under way (trace.h). */
struct gpu_trace {
    struct gpu_event **events; /* [2 * room]: before and after each launch */
    uint32_t room, count;
    bool recorded_nothing; /* records_nothing before */
};

struct gpu {
    struct device base;
    const struct gpu_driver *driver;
    struct gpu_library *library;
    struct gpu_context *context;
    struct gpu_info info;
    struct gpu_module *module;
    void *image;     /* it was made of; owned */
    uint32_t matrix; /* GPU_MATRIX_… that its kernels have */
    struct gpu_function *functions[GPU_KERNEL_COUNT];
    struct gpu_queue *queues[DEVICE_QUEUES];
    _Atomic uint64_t queued[DEVICE_QUEUES],
        finished[DEVICE_QUEUES]; /* calls: equal when nothing is under way */
    gpu_address scratch[DEVICE_QUEUES];
    struct products *products; /* the vendor's library (product_library.c); NULL: none */
    gpu_address stages[2];     /* operands on their way to it; 0: none */
    uint64_t stage_bytes;      /* of each */
    struct gpu_pass passes[GPU_GRAPHS_MAX];
    uint64_t seen[GPU_SEEN_MAX]; /* a ring; 0: none */
    uint64_t pass_count, seen_count;
    uint64_t recording;   /* the key of the pass that is being recorded; 0: none */
    bool records_nothing; /* a recording failed: passes are queued as they come */
    struct pass_counts counts;
    struct gpu_trace *trace; /* NULL: none */
};

/* An op on its way. */
struct gpu_call {
    struct gpu *gpu;
    enum device_queue queue;
    struct err *err;
};

/* Which ops a file runs. fits: NULL, or whether it takes an op of these sizes and dtypes, which op_operands
 * allows. */
struct gpu_op {
    enum op_kind kind;
    bool (*fits)(const struct gpu *gpu, const struct op *op);
    int (*run)(struct gpu_call *call, const struct op *op);
};
extern const struct gpu_op gpu_flat_ops[], gpu_rows_ops[], gpu_tables_ops[], gpu_random_ops[], gpu_loss_ops[],
    gpu_optimizer_ops[], gpu_unpack_ops[], gpu_product_ops[], gpu_experts_ops[],
    gpu_attention_ops[]; /* each ends with run NULL */

/* op_supports of a GPU. Pure. */
bool gpu_runs(const struct gpu *gpu, const struct op *op);
/* Queue an op that it supports. */
int gpu_run(struct gpu_call *call, const struct op *op);

/* Queue a kernel over x * y * z blocks, which may be 0: then nothing is done. args: its struct …_args. */
int gpu_launch(struct gpu_call *call, enum gpu_kernel kernel, uint64_t x, uint64_t y, uint64_t z,
               const void *args, uint32_t args_bytes);
/* Fill with zeros. */
int gpu_zero(struct gpu_call *call, gpu_address at, uint64_t bytes);

/* Where an operand lies; 0: absent. */
static inline gpu_address gpu_at(const struct operand *operand)
{
    return operand->buffer == NULL ? 0 : (gpu_address)(uintptr_t)operand->buffer->memory + operand->at;
}

/* trace.c: an event before or after a launch, where there is a trace. */
int gpu_trace_mark(struct gpu_call *call, bool after);

/* GPU_SCRATCH_BYTES of the call's queue. */
static inline gpu_address gpu_scratch(const struct gpu_call *call)
{
    return call->gpu->scratch[call->queue];
}

static inline uint64_t gpu_blocks(uint64_t count, uint32_t per_block)
{
    return (count + per_block - 1) / per_block;
}

/* Blocks of 256 threads, each of which takes per_thread values of a row. */
static inline uint64_t gpu_row_blocks(uint64_t rows, uint32_t width, uint32_t per_thread)
{
    return gpu_blocks(rows * gpu_blocks(width, per_thread), 256);
}

/* May four values of so many bytes be one access in all rows ld values apart? See kernels/four.h. */
static inline bool gpu_fours(gpu_address at, uint32_t bytes, uint64_t ld)
{
    return at % (4 * bytes) == 0 && ld % 4 == 0;
}

/* The kernels' name of a dtype of floating-point numbers. */
static inline uint32_t gpu_element(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? ELEMENT_F32 : dtype == DTYPE_BF16 ? ELEMENT_BF16 : ELEMENT_F16;
}

/* May products and attention round their factors to it? */
static inline bool gpu_computes(enum dtype compute)
{
    return compute == DTYPE_F32 || compute == DTYPE_BF16 || compute == DTYPE_F16;
}

/* By matrix units, where the card has them for this type; elsewhere factors are rounded and multiplied in
 * fp32. */
static inline bool gpu_by_units(const struct gpu *gpu, enum dtype compute)
{
    return (compute == DTYPE_BF16 && (gpu->matrix & GPU_MATRIX_BF16) != 0) ||
           (compute == DTYPE_F16 && (gpu->matrix & GPU_MATRIX_F16) != 0);
}

/* y[count] = x: flat.c, for other files too. */
int gpu_cast(struct gpu_call *call, gpu_address x, enum dtype from, gpu_address y, enum dtype to,
             uint64_t count);

/* Bytes of a card with so much memory that a device takes for itself when it opens: gpu_scratch of each queue
 * and, with a vendor's library of products, two areas for operands on their way to it. Pure. */
uint64_t gpu_base_bytes(uint64_t memory, bool products);

/* The vendor's library of products, where there is one: product_library.c. Close it before the context. */
void gpu_library_open(struct gpu *gpu, uint32_t driver_version);
void gpu_library_close(struct gpu *gpu);
/* Queue a product by it; *done: false where it is not for the library, and nothing was queued that matters.
 */
int gpu_library_gemm(struct gpu_call *call, const struct op_gemm *op, bool *done);

/* The kernels' name of a kind of blocks (kernels/unpack.k.h): unpack.c. */
uint32_t gpu_unpack_kind(enum pack_kind pack);

#endif
