/* Norms, rotary embeddings and sums over rows: the host's side of kernels/rows.k.h. */
#include "engine/gpu/gpu.h"

enum {
    WARP_WIDTH_MAX = 1024, /* a warp normalises vectors of up to this width; a wider vector takes a block */
    CHUNKS_MAX = 64,       /* most chunks of rows in a sum over rows */
    CHUNK_ROWS_MIN = 64,
    /* Half of the scratch memory is for what vectors are normed with, half for partial sums. */
    NORMS_MAX = GPU_SCRATCH_BYTES / 2 / 8,
    PARTIALS_MAX = GPU_SCRATCH_BYTES / 2 / 8
};

/* Number of blocks if each vector is handled by a warp or a block. Warps of 64 handle two vectors each. */
static uint64_t vector_blocks(uint64_t vectors, bool by_block)
{
    return by_block ? vectors : gpu_blocks(vectors, 256 / 32);
}

static bool rmsnorm_fits(const struct gpu *gpu, const struct op *op)
{
    (void)gpu;
    return (op->rmsnorm.weight.buffer || op->rmsnorm.width <= NORM_ALONE_MAX) &&
           (uint64_t)op->rmsnorm.rows * op->rmsnorm.vectors <= UINT32_MAX;
}

static int run_rmsnorm(struct gpu_call *call, const struct op *op)
{
    const struct op_rmsnorm *o = &op->rmsnorm;
    struct rmsnorm_args args = {.x = gpu_at(&o->x),
                                .weight = gpu_at(&o->weight),
                                .bias = gpu_at(&o->bias),
                                .y = gpu_at(&o->y),
                                .count = o->rows * o->vectors,
                                .width = o->width,
                                .vectors = o->vectors,
                                .ldx = o->ldx,
                                .ldy = o->ldy,
                                .y_as = gpu_element(o->y.dtype),
                                .by_block = o->width > WARP_WIDTH_MAX,
                                .centred = o->centred,
                                .eps = o->eps,
                                .offset = o->offset};
    args.wide = gpu_fours(args.x, 4, o->ldx) && gpu_fours(args.y, dtype_bytes(o->y.dtype), o->ldy) &&
                gpu_fours(args.weight, 4, o->width) && gpu_fours(args.bias, 4, o->width);
    return gpu_launch(call, KERNEL_rmsnorm, vector_blocks(args.count, args.by_block), 1, 1, &args,
                      sizeof(args));
}

/* y[width] += sums over rows, in strips of columns if the scratch memory cannot hold all columns. The caller
 * sets x, dy, norms, rows, vectors, ldx and lddy of args. */
static int sum_columns(struct gpu_call *call, struct column_sums_args args, uint32_t width, gpu_address y)
{
    const uint32_t rows = device_pass_size(args.rows / args.vectors) * args.vectors;
    uint32_t most = (uint32_t)gpu_blocks(rows, CHUNK_ROWS_MIN);
    args.partial = gpu_scratch(call) + GPU_SCRATCH_BYTES / 2;
    for (uint32_t done = 0; args.rows > 0 && done < width; done += args.width) {
        struct column_sums_args strip = args;
        strip.width = width - done < PARTIALS_MAX ? width - done : PARTIALS_MAX;
        uint32_t chunks = PARTIALS_MAX / strip.width < most ? PARTIALS_MAX / strip.width : most;
        chunks = chunks < CHUNKS_MAX ? chunks : CHUNKS_MAX;
        strip.chunk_rows = (uint32_t)gpu_blocks(rows, chunks);
        chunks = (uint32_t)gpu_blocks(args.rows, strip.chunk_rows);
        struct column_sums_add_args add = {
            .partial = args.partial, .y = y + 4ull * done, .width = strip.width, .chunks = chunks};
        strip.x += 4ull * done;
        strip.dy += strip.dy == 0 ? 0 : 4ull * done;
        if (gpu_launch(call, KERNEL_column_sums, gpu_blocks(strip.width, 32), chunks, 1, &strip,
                       sizeof(strip)) != 0 ||
            gpu_launch(call, KERNEL_column_sums_add, gpu_blocks(strip.width, 256), 1, 1, &add, sizeof(add)) !=
                0)
            return -1;
        args.width = strip.width;
    }
    return 0;
}

static int run_column_sum(struct gpu_call *call, const struct op *op)
{
    const struct op_column_sum *o = &op->column_sum;
    return sum_columns(
        call, (struct column_sums_args){.x = gpu_at(&o->x), .rows = o->rows, .vectors = 1, .ldx = o->ldx},
        o->width, gpu_at(&o->y));
}

/* The gradient of the weight, for as many rows at a time as there is room for their norms. */
static int norm_weight_gradient(struct gpu_call *call, const struct op_rmsnorm_backward *o,
                                struct rmsnorm_backward_args args)
{
    uint32_t most = NORMS_MAX / o->vectors;
    args.dx = 0;
    args.norms = gpu_scratch(call);
    for (uint32_t row = 0; row < o->rows; row += most) {
        uint32_t rows = o->rows - row < most ? o->rows - row : most;
        args.x = gpu_at(&o->x) + 4ull * row * o->ldx;
        args.count = rows * o->vectors;
        struct column_sums_args sums = {.x = args.x,
                                        .dy = gpu_at(&o->dy) + 4ull * row * o->lddy,
                                        .norms = args.norms,
                                        .rows = args.count,
                                        .vectors = o->vectors,
                                        .ldx = o->ldx,
                                        .lddy = o->lddy};
        if (gpu_launch(call, KERNEL_rmsnorm_backward, vector_blocks(args.count, args.by_block), 1, 1, &args,
                       sizeof(args)) != 0 ||
            sum_columns(call, sums, o->width, gpu_at(&o->dweight)) != 0)
            return -1;
    }
    return 0;
}

static bool rmsnorm_backward_fits(const struct gpu *gpu, const struct op *op)
{
    (void)gpu;
    return (op->rmsnorm_backward.weight.buffer || op->rmsnorm_backward.width <= NORM_ALONE_MAX) &&
           op->rmsnorm_backward.vectors <= NORMS_MAX &&
           (uint64_t)op->rmsnorm_backward.rows * op->rmsnorm_backward.vectors <= UINT32_MAX;
}

/* The weight's gradient comes first, because dx may overwrite dy. */
static int run_rmsnorm_backward(struct gpu_call *call, const struct op *op)
{
    const struct op_rmsnorm_backward *o = &op->rmsnorm_backward;
    struct rmsnorm_backward_args args = {.x = gpu_at(&o->x),
                                         .weight = gpu_at(&o->weight),
                                         .dy = gpu_at(&o->dy),
                                         .dx = gpu_at(&o->dx),
                                         .count = o->rows * o->vectors,
                                         .width = o->width,
                                         .vectors = o->vectors,
                                         .ldx = o->ldx,
                                         .lddy = o->lddy,
                                         .lddx = o->lddx,
                                         .accumulate = o->accumulate,
                                         .by_block = o->width > WARP_WIDTH_MAX,
                                         .centred = o->centred,
                                         .eps = o->eps,
                                         .offset = o->offset};
    args.wide = gpu_fours(args.x, 4, o->ldx) && gpu_fours(args.dy, 4, o->lddy) &&
                gpu_fours(args.dx, 4, o->lddx) && gpu_fours(args.weight, 4, o->width);
    if (o->dweight.buffer && norm_weight_gradient(call, o, args) != 0)
        return -1;
    if (args.dx == 0)
        return 0;
    return gpu_launch(call, KERNEL_rmsnorm_backward, vector_blocks(args.count, args.by_block), 1, 1, &args,
                      sizeof(args));
}

static bool rope_fits(const struct gpu *gpu, const struct op *op)
{
    const struct op_rope *o = &op->rope;
    (void)gpu;
    return o->rotary_dim % 2 == 0 && o->rotary_dim <= o->head_dim &&
           (o->y.buffer ? o->rotary_dim == o->head_dim : o->copied == 0) &&
           (uint64_t)o->tokens * (o->heads + o->copied) <= UINT32_MAX;
}

static int run_rope(struct gpu_call *call, const struct op *op)
{
    const struct op_rope *o = &op->rope;
    const struct operand *y = o->y.buffer ? &o->y : &o->x;
    struct rope_args args = {.x = gpu_at(&o->x),
                             .y = gpu_at(y),
                             .y_as = gpu_element(y->dtype),
                             .positions = gpu_at(&o->positions),
                             .table = gpu_at(&o->table),
                             .tokens = o->tokens,
                             .heads = o->heads + o->copied,
                             .rotated = o->heads,
                             .head_dim = o->head_dim,
                             .half = o->rotary_dim / 2,
                             .ldx = o->ldx,
                             .table_rows = o->table_rows,
                             .adjacent = o->adjacent,
                             .sign = o->inverse ? -1.0f : 1.0f};
    args.wide = gpu_fours(args.x, 4, o->ldx) && gpu_fours(args.y, dtype_bytes(y->dtype), o->ldx) &&
                gpu_fours(args.table, 4, args.half) && o->head_dim % 4 == 0;
    return gpu_launch(call, KERNEL_rope, gpu_row_blocks((uint64_t)o->tokens * args.heads, args.half, 4), 1, 1,
                      &args, sizeof(args));
}

const struct gpu_op gpu_rows_ops[] = {
    {.kind = OP_RMSNORM, .fits = rmsnorm_fits, .run = run_rmsnorm},
    {.kind = OP_RMSNORM_BACKWARD, .fits = rmsnorm_backward_fits, .run = run_rmsnorm_backward},
    {.kind = OP_ROPE, .fits = rope_fits, .run = run_rope},
    {.kind = OP_COLUMN_SUM, .run = run_column_sum},
    {.run = NULL}};
