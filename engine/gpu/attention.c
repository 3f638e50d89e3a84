/* Attention: the host's side of kernels/attention.k.h. The largest head_dim of a kernel chooses it. */
#include "engine/gpu/gpu.h"

static bool heads_fit(uint32_t heads, uint32_t kv_heads, uint32_t head_dim)
{
    return head_dim > 0 && head_dim <= ATTENTION_WIDTH_MAX && kv_heads > 0 && heads % kv_heads == 0 &&
           heads <= UINT16_MAX;
}

static bool forward_fits(const struct gpu *gpu, const struct op *op)
{
    (void)gpu;
    return heads_fit(op->attention.heads, op->attention.kv_heads, op->attention.head_dim);
}

static bool backward_fits(const struct gpu *gpu, const struct op *op)
{
    (void)gpu;
    const struct op_attention_backward *o = &op->attention_backward;
    return heads_fit(o->heads, o->kv_heads, o->head_dim);
}

static bool cached_fits(const struct gpu *gpu, const struct op *op)
{
    (void)gpu;
    const struct op_attention_cached *o = &op->attention_cached;
    return heads_fit(o->heads, o->kv_heads, o->head_dim) && o->begin <= UINT32_MAX - o->tokens;
}

/* Tiles of all rows, numbers that no tile has among them: what row_start says is not known here. */
static uint64_t tiles_most(uint32_t tokens, uint32_t rows)
{
    return rows == 0 || tokens == 0 ? 0 : tokens / ATTENTION_ROWS + (uint64_t)rows;
}

/* Of kernels for heads of up to 64, 128 and 256 values, which follow one another. */
static enum gpu_kernel kernel_for(enum gpu_kernel first, uint32_t head_dim)
{
    return (enum gpu_kernel)(first + (head_dim <= 64 ? 0 : head_dim <= 128 ? 1 : 2));
}

static int forward_launch(struct gpu_call *call, const struct attention_forward_args *args, uint64_t tiles)
{
    return gpu_launch(call, kernel_for(KERNEL_attention_64, args->shape.head_dim), tiles, args->shape.heads,
                      1, args, sizeof *args);
}

static int run_forward(struct gpu_call *call, const struct op *op)
{
    const struct op_attention *o = &op->attention;
    struct attention_forward_args args = {.shape = {.q = gpu_at(&o->q),
                                                    .k = gpu_at(&o->k),
                                                    .v = gpu_at(&o->v),
                                                    .row_start = gpu_at(&o->row_start),
                                                    .rows = o->rows,
                                                    .tokens = o->tokens,
                                                    .heads = o->heads,
                                                    .kv_heads = o->kv_heads,
                                                    .head_dim = o->head_dim,
                                                    .ldq = o->ld,
                                                    .ldk = o->ld,
                                                    .window = o->window == 0 ? UINT32_MAX : o->window,
                                                    .scale = o->scale,
                                                    .cap = o->cap},
                                          .out = gpu_at(&o->out),
                                          .lse = gpu_at(&o->lse)};
    return forward_launch(call, &args, tiles_most(o->tokens, o->rows));
}

static int run_cached(struct gpu_call *call, const struct op *op)
{
    const struct op_attention_cached *o = &op->attention_cached;
    struct attention_forward_args args = {.shape = {.q = gpu_at(&o->q),
                                                    .k = gpu_at(&o->k),
                                                    .v = gpu_at(&o->v),
                                                    .rows = 1,
                                                    .tokens = o->tokens,
                                                    .heads = o->heads,
                                                    .kv_heads = o->kv_heads,
                                                    .head_dim = o->head_dim,
                                                    .ldq = o->ldq,
                                                    .ldk = o->kv_heads * o->head_dim,
                                                    .window = o->window == 0 ? UINT32_MAX : o->window,
                                                    .offset = o->begin,
                                                    .scale = o->scale,
                                                    .cap = o->cap},
                                          .out = gpu_at(&o->out)};
    return forward_launch(call, &args, gpu_blocks(o->tokens, ATTENTION_ROWS));
}

static int run_backward(struct gpu_call *call, const struct op *op)
{
    const struct op_attention_backward *o = &op->attention_backward;
    struct attention_backward_args args = {.shape = {.q = gpu_at(&o->q),
                                                     .k = gpu_at(&o->k),
                                                     .v = gpu_at(&o->v),
                                                     .row_start = gpu_at(&o->row_start),
                                                     .rows = o->rows,
                                                     .tokens = o->tokens,
                                                     .heads = o->heads,
                                                     .kv_heads = o->kv_heads,
                                                     .head_dim = o->head_dim,
                                                     .ldq = o->ld,
                                                     .ldk = o->ld,
                                                     .window = o->window == 0 ? UINT32_MAX : o->window,
                                                     .scale = o->scale,
                                                     .cap = o->cap},
                                           .lse = gpu_at(&o->lse),
                                           .dout = gpu_at(&o->dout),
                                           .delta = gpu_at(&o->delta),
                                           .dq = gpu_at(&o->dq),
                                           .dk = gpu_at(&o->dk),
                                           .dv = gpu_at(&o->dv)};
    struct attention_delta_args delta = {.out = gpu_at(&o->out),
                                         .dout = args.dout,
                                         .delta = args.delta,
                                         .count = (uint64_t)o->tokens * o->heads,
                                         .width = o->head_dim};
    uint64_t tiles = tiles_most(o->tokens, o->rows);
    if (gpu_launch(call, KERNEL_attention_delta, gpu_blocks(delta.count, ATTENTION_DELTAS), 1, 1, &delta,
                   sizeof delta) != 0 ||
        gpu_launch(call, kernel_for(KERNEL_attention_queries_64, o->head_dim), tiles, o->heads, 1, &args,
                   sizeof args) != 0)
        return -1;
    return gpu_launch(call, kernel_for(KERNEL_attention_keys_64, o->head_dim), tiles, o->kv_heads,
                      o->head_dim <= 128 ? 1 : 2, &args, sizeof args);
}

const struct gpu_op gpu_attention_ops[] = {
    {.kind = OP_ATTENTION, .fits = forward_fits, .run = run_forward},
    {.kind = OP_ATTENTION_BACKWARD, .fits = backward_fits, .run = run_backward},
    {.kind = OP_ATTENTION_CACHED, .fits = cached_fits, .run = run_cached},
    {.run = NULL}};
