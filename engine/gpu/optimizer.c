/* Norms of gradients and the optimiser's steps: the host's side of kernels/optimizer.k.h. */
#include "engine/gpu/gpu.h"
#include "engine/device/scalars.h"

enum {
    SUM_BLOCKS_MAX = 1024,
    SUM_PER_BLOCK = 1 << 14, /* fewest values for a block */
    ADAMW8_BLOCKS_MAX =
        1024 /* blocks of threads: enough for any card, and few enough that each one's map costs little */
};

static int run_square_sum(struct gpu_call *call, const struct op *op)
{
    const struct op_square_sum *o = &op->square_sum;
    struct square_sums_args args = {.x = gpu_at(&o->x), .partial = gpu_scratch(call), .count = o->count};
    uint64_t per_block = gpu_blocks(o->count, SUM_BLOCKS_MAX);
    args.per_block = per_block < SUM_PER_BLOCK ? SUM_PER_BLOCK : gpu_blocks(per_block, 1024) * 1024;
    args.wide = gpu_fours(args.x, 4, 0);
    uint64_t blocks = gpu_blocks(o->count, (uint32_t)args.per_block);
    struct sums_add_args add = {.partial = args.partial, .out = gpu_at(&o->out), .count = (uint32_t)blocks};
    if (gpu_launch(call, KERNEL_square_sums, blocks, 1, 1, &args, sizeof(args)) != 0)
        return -1;
    return gpu_launch(call, KERNEL_sums_add, 1, 1, 1, &add, sizeof(add));
}

static struct adamw_args adamw_args_of(struct adamw_scalars s)
{
    return (struct adamw_args){.decay = s.decay,
                               .beta1 = s.beta1,
                               .beta2 = s.beta2,
                               .one_minus_beta1 = s.one_minus_beta1,
                               .one_minus_beta2 = s.one_minus_beta2,
                               .inverse_root_correction2 = s.inverse_root_correction2,
                               .eps = s.eps,
                               .step_size = s.step_size,
                               .grad_scale = s.grad_scale};
}

static int run_adamw(struct gpu_call *call, const struct op *op)
{
    const struct op_adamw *o = &op->adamw;
    struct adamw_args args = adamw_args_of(adamw_scalars_of(&o->rule));
    args.value = gpu_at(&o->value);
    args.gradient = gpu_at(&o->gradient);
    args.moment1 = gpu_at(&o->moment1);
    args.moment2 = gpu_at(&o->moment2);
    args.count = o->count;
    args.wide = gpu_fours(args.value, 4, 0) && gpu_fours(args.gradient, 4, 0) &&
                gpu_fours(args.moment1, 4, 0) && gpu_fours(args.moment2, 4, 0);
    return gpu_launch(call, KERNEL_adamw, gpu_blocks(o->count, 4 * 256), 1, 1, &args, sizeof(args));
}

static int run_adamw8(struct gpu_call *call, const struct op *op)
{
    const struct op_adamw8 *o = &op->adamw8;
    struct adamw8_args args = {.code1 = gpu_at(&o->code1),
                               .code2 = gpu_at(&o->code2),
                               .absmax1 = gpu_at(&o->absmax1),
                               .absmax2 = gpu_at(&o->absmax2),
                               .plain = adamw_args_of(adamw_scalars_of(&o->rule))};
    args.plain.value = gpu_at(&o->value);
    args.plain.gradient = gpu_at(&o->gradient);
    args.plain.count = o->count;
    uint64_t blocks = gpu_blocks(o->count, ADAMW8_BLOCK);
    return gpu_launch(call, KERNEL_adamw8, blocks < ADAMW8_BLOCKS_MAX ? blocks : ADAMW8_BLOCKS_MAX, 1, 1,
                      &args, sizeof(args));
}

const struct gpu_op gpu_optimizer_ops[] = {{.kind = OP_SQUARE_SUM, .run = run_square_sum},
                                           {.kind = OP_ADAMW, .run = run_adamw},
                                           {.kind = OP_ADAMW8, .run = run_adamw8},
                                           {.run = NULL}};
