/* Attention: the host's side of kernels/attention.k.h. The kernel is chosen by the largest head_dim that it
 * supports. */
#include "engine/gpu/gpu.h"

static bool attention_heads_fit(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, enum dtype compute)
{
    return gpu_computes(compute) && head_dim > 0 && head_dim <= ATTENTION_WIDTH_MAX && kv_heads > 0 &&
           heads % kv_heads == 0 && heads <= UINT16_MAX;
}

static bool forward_fits(const struct gpu *gpu, const struct op *op)
{
    (void)gpu;
    return attention_heads_fit(op->attention.heads, op->attention.kv_heads, op->attention.head_dim,
                               op->attention.compute);
}

static bool backward_fits(const struct gpu *gpu, const struct op *op)
{
    (void)gpu;
    const struct op_attention *o = &op->attention_backward.forward;
    return attention_heads_fit(o->heads, o->kv_heads, o->head_dim, o->compute);
}

static bool cached_fits(const struct gpu *gpu, const struct op *op)
{
    (void)gpu;
    const struct op_attention_cached *o = &op->attention_cached;
    return attention_heads_fit(o->heads, o->kv_heads, o->head_dim, o->compute) &&
           o->begin <= UINT32_MAX - o->tokens;
}

/* Returns an upper bound on the number of tiles of all rows. It may exceed the number of tiles that there
 * are, since the host does not know the rows' lengths (row_start is on the device). */
static uint64_t tiles_most(uint32_t tokens, uint32_t rows)
{
    return rows == 0 || tokens == 0 ? 0 : tokens / ATTENTION_ROWS + (uint64_t)rows;
}

/* Chooses among consecutive kernels for heads of up to 64, 128, 256 and 512 values. */
static enum gpu_kernel kernel_for(enum gpu_kernel first, uint32_t head_dim)
{
    return (enum gpu_kernel)(first + (head_dim <= 64 ? 0 : head_dim <= 128 ? 1 : head_dim <= 256 ? 2 : 3));
}

/* Returns how many blocks share a head's values: each sums as many as registers hold. */
static uint32_t blocks_of_head(uint32_t head_dim)
{
    return head_dim <= ATTENTION_WIDTH_UNITS_MAX ? 1 : 2;
}

/* The kernels' description of an operand of rows of heads. */
static struct attention_matrix gpu_matrix_of(const struct operand *x, uint32_t ld)
{
    return (struct attention_matrix){.at = gpu_at(x), .ld = ld, .as = gpu_element(x->dtype)};
}

/* Can matrix units read the matrix? They take eight values of a head at a time, and 64 rows must lie within
 * 2^32 bytes. */
static bool matrix_wide(const struct attention_matrix *m, uint32_t head_dim)
{
    return m->at % 16 == 0 && m->ld % 8 == 0 && m->ld < 1u << 24 && head_dim % 8 == 0;
}

static bool by_units(const struct gpu *gpu, const struct attention_shape *shape, enum dtype compute)
{
    return gpu_by_units(gpu, compute) && shape->head_dim <= ATTENTION_WIDTH_UNITS_MAX &&
           matrix_wide(&shape->q, shape->head_dim) && matrix_wide(&shape->k, shape->head_dim) &&
           matrix_wide(&shape->v, shape->head_dim);
}

/* Sets window and compute as the kernels expect them, and computes bits_scale and bits_cap from scale and
 * cap. */
static void shape_finish(struct attention_shape *shape, uint32_t window, enum dtype compute)
{
    const double ln_2 = 0.69314718055994531;
    shape->window = window == 0 ? UINT32_MAX : window;
    shape->compute = gpu_element(compute);
    shape->bits_scale = (float)((double)shape->scale / ln_2);
    shape->bits_cap = (float)((double)shape->cap / ln_2);
}

static int forward_launch(struct gpu_call *call, const struct attention_forward_args *args,
                          enum dtype compute, uint64_t tiles)
{
    enum gpu_kernel first =
        by_units(call->gpu, &args->shape, compute) ? KERNEL_attention_units_64 : KERNEL_attention_64;
    return gpu_launch(call, kernel_for(first, args->shape.head_dim), tiles, args->shape.heads,
                      blocks_of_head(args->shape.head_dim), args, sizeof(*args));
}

static struct attention_shape attention_shape_of(const struct op_attention *o)
{
    struct attention_shape shape = {.q = gpu_matrix_of(&o->q, o->ld),
                                    .k = gpu_matrix_of(&o->k, o->ld),
                                    .v = gpu_matrix_of(&o->v, o->ld),
                                    .row_start = gpu_at(&o->row_start),
                                    .rows = o->rows,
                                    .tokens = o->tokens,
                                    .heads = o->heads,
                                    .kv_heads = o->kv_heads,
                                    .head_dim = o->head_dim,
                                    .scale = o->scale,
                                    .cap = o->cap};
    shape_finish(&shape, o->window, o->compute);
    return shape;
}

/* How many rows of the micro-batch a launch handles: all, or as many as a card with a watchdog allows, if
 * rows are of equal lengths (the host does not know them). A launch of some rows has blocks for all tiles;
 * those of other rows find nothing to do. `products` are those of each pair of query and key. */
static uint32_t attention_rows_a_launch(const struct gpu *gpu, const struct op_attention *o,
                                        uint32_t products)
{
    const double pairs = (double)o->tokens * o->tokens / (o->rows > 0 ? o->rows : 1) / 2;
    const uint64_t launches = gpu_launches(gpu, products * pairs * o->heads * o->head_dim);
    return launches < o->rows ? (uint32_t)gpu_blocks(o->rows, (uint32_t)launches) : 1;
}

/* Gives the shape the rows from `first` on, at most `count` of them. */
static void shape_rows(struct attention_shape *shape, const struct op_attention *o, uint32_t first,
                       uint32_t count)
{
    shape->rows = o->rows - first < count ? o->rows - first : count;
    shape->row_start = gpu_at(&o->row_start) + sizeof(uint32_t) * first;
}

static int run_forward(struct gpu_call *call, const struct op *op)
{
    const struct op_attention *o = &op->attention;
    struct attention_forward_args args = {.shape = attention_shape_of(o),
                                          .out = gpu_at(&o->out),
                                          .out_as = gpu_element(o->out.dtype),
                                          .lse = gpu_at(&o->lse),
                                          .sinks = gpu_at(&o->sinks)};
    const uint32_t count = attention_rows_a_launch(call->gpu, o, 2);
    for (uint32_t first = 0; first < o->rows; first += count) {
        shape_rows(&args.shape, o, first, count);
        if (forward_launch(call, &args, o->compute, tiles_most(o->tokens, o->rows)) != 0)
            return -1;
    }
    return 0;
}

static int run_cached(struct gpu_call *call, const struct op *op)
{
    const struct op_attention_cached *o = &op->attention_cached;
    uint32_t ldk = o->kv_heads * o->head_dim;
    struct attention_forward_args args = {.shape = {.q = gpu_matrix_of(&o->q, o->ldq),
                                                    .k = gpu_matrix_of(&o->k, ldk),
                                                    .v = gpu_matrix_of(&o->v, ldk),
                                                    .rows = 1,
                                                    .tokens = o->tokens,
                                                    .heads = o->heads,
                                                    .kv_heads = o->kv_heads,
                                                    .head_dim = o->head_dim,
                                                    .offset = o->begin,
                                                    .scale = o->scale,
                                                    .cap = o->cap},
                                          .out = gpu_at(&o->out),
                                          .out_as = gpu_element(o->out.dtype),
                                          .sinks = gpu_at(&o->sinks)};
    shape_finish(&args.shape, o->window, o->compute);
    return forward_launch(call, &args, o->compute, gpu_blocks(o->tokens, ATTENTION_ROWS));
}

static int attention_run_backward(struct gpu_call *call, const struct op *op)
{
    const struct op_attention_backward *b = &op->attention_backward;
    const struct op_attention *o = &b->forward;
    struct attention_backward_args args = {.shape = attention_shape_of(o),
                                           .dout = gpu_matrix_of(&b->dout, o->heads * o->head_dim),
                                           .lse = gpu_at(&o->lse),
                                           .delta = gpu_at(&b->delta),
                                           .dq = gpu_at(&b->dq),
                                           .dk = gpu_at(&b->dk),
                                           .dv = gpu_at(&b->dv)};
    struct attention_delta_args delta = {.out = gpu_at(&o->out),
                                         .out_as = gpu_element(o->out.dtype),
                                         .compute = args.shape.compute,
                                         .dout = gpu_at(&b->dout),
                                         .delta = args.delta,
                                         .count = (uint64_t)o->tokens * o->heads,
                                         .width = o->head_dim};
    bool units = by_units(call->gpu, &args.shape, o->compute) && matrix_wide(&args.dout, o->head_dim);
    const uint64_t tiles = tiles_most(o->tokens, o->rows);
    const uint32_t count = attention_rows_a_launch(call->gpu, o, 4);
    const enum gpu_kernel queries = units ? KERNEL_attention_units_queries_64 : KERNEL_attention_queries_64;
    const enum gpu_kernel keys = units ? KERNEL_attention_units_keys_64 : KERNEL_attention_keys_64;
    if (gpu_launch(call, KERNEL_attention_delta, gpu_blocks(delta.count, ATTENTION_DELTAS), 1, 1, &delta,
                   sizeof(delta)) != 0)
        return -1;
    for (uint32_t first = 0; first < o->rows; first += count) {
        shape_rows(&args.shape, o, first, count);
        if (gpu_launch(call, kernel_for(queries, o->head_dim), tiles, o->heads, blocks_of_head(o->head_dim),
                       &args, sizeof(args)) != 0 ||
            gpu_launch(call, kernel_for(keys, o->head_dim), tiles, o->kv_heads,
                       o->head_dim <= 128 ? 1 : 2 * blocks_of_head(o->head_dim), &args, sizeof(args)) != 0)
            return -1;
    }
    if (!o->sinks.buffer || !b->dsinks.buffer)
        return 0;
    struct attention_sinks_args sinks = {.sinks = gpu_at(&o->sinks),
                                         .lse = args.lse,
                                         .delta = args.delta,
                                         .dsinks = gpu_at(&b->dsinks),
                                         .tokens = o->tokens,
                                         .heads = o->heads};
    return gpu_launch(call, KERNEL_attention_sinks, o->heads, 1, 1, &sinks, sizeof(sinks));
}

const struct gpu_op gpu_attention_ops[] = {
    {.kind = OP_ATTENTION, .fits = forward_fits, .run = run_forward},
    {.kind = OP_ATTENTION_BACKWARD, .fits = backward_fits, .run = attention_run_backward},
    {.kind = OP_ATTENTION_CACHED, .fits = cached_fits, .run = run_cached},
    {.run = NULL}};
