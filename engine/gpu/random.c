/* Dropout and noise on embeddings: the host's side of kernels/random.k.h. */
#include "engine/gpu/gpu.h"
#include "engine/device/scalars.h"

static int run_dropout(struct gpu_call *call, const struct op *op)
{
    const struct op_dropout *o = &op->dropout;
    struct dropout_key key = dropout_key_of(o);
    struct dropout_args args = {.x = gpu_at(&o->x),
                                .positions = gpu_at(&o->positions),
                                .row_ids = gpu_at(&o->row_ids),
                                .step = gpu_at(&o->step),
                                .y = gpu_at(&o->y),
                                .key0 = key.key[0],
                                .key1 = key.key[1],
                                .site = key.site,
                                .tokens = o->tokens,
                                .width = o->width,
                                .keep_last = key.keep_last,
                                .scale = key.scale};
    args.wide = gpu_fours(args.x, 4, o->width) && gpu_fours(args.y, 4, o->width);
    return gpu_launch(call, KERNEL_dropout, gpu_row_blocks(o->tokens, o->width, 8), 1, 1, &args,
                      sizeof(args));
}

static int run_dropout_backward(struct gpu_call *call, const struct op *op)
{
    const struct op_dropout *o = &op->dropout_backward.forward;
    struct dropout_key key = dropout_key_of(o);
    struct dropout_backward_args args = {.x = gpu_at(&o->x),
                                         .positions = gpu_at(&o->positions),
                                         .row_ids = gpu_at(&o->row_ids),
                                         .step = gpu_at(&o->step),
                                         .t = gpu_at(&o->y),
                                         .dx = gpu_at(&op->dropout_backward.dx),
                                         .key0 = key.key[0],
                                         .key1 = key.key[1],
                                         .site = key.site,
                                         .tokens = o->tokens,
                                         .width = o->width,
                                         .keep_last = key.keep_last,
                                         .scale = key.scale};
    args.wide =
        gpu_fours(args.x, 4, o->width) && gpu_fours(args.t, 4, o->width) && gpu_fours(args.dx, 4, o->width);
    return gpu_launch(call, KERNEL_dropout_backward, gpu_row_blocks(o->tokens, o->width, 8), 1, 1, &args,
                      sizeof(args));
}

static bool embed_noise_fits(const struct gpu *gpu, const struct op *op)
{
    (void)gpu;
    return op->embed_noise.width <= EMBED_NOISE_WIDTH_MAX;
}

static int run_embed_noise(struct gpu_call *call, const struct op *op)
{
    const struct op_embed_noise *o = &op->embed_noise;
    struct embed_noise_args args = {.x = gpu_at(&o->x),
                                    .row_start = gpu_at(&o->row_start),
                                    .row_ids = gpu_at(&o->row_ids),
                                    .step = gpu_at(&o->step),
                                    .key0 = (uint32_t)o->seed,
                                    .key1 = (uint32_t)(o->seed >> 32),
                                    .rows = o->rows,
                                    .tokens = o->tokens,
                                    .width = o->width,
                                    .alpha = o->alpha};
    args.wide = gpu_fours(args.x, 4, o->width);
    return gpu_launch(call, KERNEL_embed_noise, gpu_row_blocks(o->tokens, o->width, 4), 1, 1, &args,
                      sizeof(args));
}

const struct gpu_op gpu_random_ops[] = {
    {.kind = OP_DROPOUT, .run = run_dropout},
    {.kind = OP_DROPOUT_BACKWARD, .run = run_dropout_backward},
    {.kind = OP_EMBED_NOISE, .fits = embed_noise_fits, .run = run_embed_noise},
    {.run = NULL}};
