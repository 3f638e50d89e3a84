/* Ops on flat arrays and plain rows. */
#include "engine/gpu/gpu.h"

static int run_add(struct gpu_call *call, const struct op *op)
{
    const struct op_add *o = &op->add;
    struct add_rows_args args = {.x = gpu_at(&o->x),
                                 .y = gpu_at(&o->y),
                                 .count = (uint64_t)o->rows * o->width,
                                 .width = o->width,
                                 .ldx = o->ldx,
                                 .ldy = o->ldy,
                                 .alpha = o->alpha};
    return gpu_launch(call, KERNEL_add_rows, gpu_blocks(args.count, 256), 1, 1, &args, sizeof args);
}

static int run_copy(struct gpu_call *call, const struct op *op)
{
    const struct op_copy *o = &op->copy;
    struct copy_rows_args args = {.x = gpu_at(&o->x),
                                  .y = gpu_at(&o->y),
                                  .count = (uint64_t)o->rows * o->width,
                                  .width = o->width,
                                  .ldx = o->ldx,
                                  .ldy = o->ldy};
    return gpu_launch(call, KERNEL_copy_rows, gpu_blocks(args.count, 256), 1, 1, &args, sizeof args);
}

const struct gpu_op gpu_flat_ops[] = {
    {.kind = OP_ADD, .run = run_add}, {.kind = OP_COPY, .run = run_copy}, {.run = NULL}};
