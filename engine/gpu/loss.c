/* Cross-entropy: the host's side of kernels/loss.k.h. */
#include "engine/gpu/gpu.h"

enum {
    WARP_VOCAB_MAX = 1024, /* a warp handles rows of up to this width; a wider row takes a block */
    ROWS_MAX = GPU_SCRATCH_BYTES / 8
};

static int run_rows(struct gpu_call *call, struct cross_entropy_args args, gpu_address loss)
{
    struct loss_add_args add = {.losses = args.losses, .loss = loss, .count = args.rows};
    uint64_t blocks = args.by_block ? args.rows : gpu_blocks(args.rows, 512 / 32);
    if (gpu_launch(call, KERNEL_cross_entropy, blocks, 1, 1, &args, sizeof(args)) != 0)
        return -1;
    return gpu_launch(call, KERNEL_loss_add, 1, 1, 1, &add, sizeof(add));
}

/* Handles as many rows at a time as there is scratch memory for their losses. */
static int run_cross_entropy(struct gpu_call *call, const struct op *op)
{
    const struct op_cross_entropy *o = &op->cross_entropy;
    struct cross_entropy_args args = {.losses = gpu_scratch(call),
                                      .vocab = o->vocab,
                                      .gradient = o->gradient,
                                      .by_block = o->vocab > WARP_VOCAB_MAX,
                                      .smoothing = o->smoothing,
                                      .cap = o->cap,
                                      .scale = o->gradient_scale};
    args.wide = gpu_fours(gpu_at(&o->logits), 4, o->vocab);
    for (uint32_t row = 0; row < o->rows; row += ROWS_MAX) {
        args.rows = o->rows - row < ROWS_MAX ? o->rows - row : ROWS_MAX;
        args.logits = gpu_at(&o->logits) + 4ull * row * o->vocab;
        args.targets = gpu_at(&o->targets) + 4ull * row;
        if (run_rows(call, args, gpu_at(&o->loss)) != 0)
            return -1;
    }
    return 0;
}

const struct gpu_op gpu_loss_ops[] = {{.kind = OP_CROSS_ENTROPY, .run = run_cross_entropy}, {.run = NULL}};
