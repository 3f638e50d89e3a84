/* Ops on rows of tables that indices select: the host's side of kernels/tables.k.h. */
#include "engine/gpu/gpu.h"

static bool embed_fits(const struct gpu *gpu, const struct op *op)
{
    const struct op_embed *o = &op->embed;
    (void)gpu;
    return !pack_from_file(o->pack) || o->hidden % pack_block(o->pack) == 0;
}

static int run_embed(struct gpu_call *call, const struct op *op)
{
    const struct op_embed *o = &op->embed;
    struct embed_args args = {.ids = gpu_at(&o->ids),
                              .table = gpu_at(&o->table),
                              .out = gpu_at(&o->out),
                              .tokens = o->tokens,
                              .hidden = o->hidden,
                              .vocab = o->vocab,
                              .turned = o->turned,
                              .packed = pack_from_file(o->pack),
                              .scale = o->scale};
    args.table_as = args.packed ? gpu_unpack_kind(o->pack) : gpu_element(o->table.dtype);
    args.wide = gpu_fours(args.out, 4, o->hidden) &&
                (args.packed || o->turned || gpu_fours(args.table, dtype_bytes(o->table.dtype), o->hidden));
    return gpu_launch(call, KERNEL_embed, gpu_row_blocks(o->tokens, o->hidden, 4), 1, 1, &args, sizeof(args));
}

/* Handles as many tokens at a time as there is scratch memory for their links. */
static int run_embed_backward(struct gpu_call *call, const struct op *op)
{
    const struct op_embed_backward *o = &op->embed_backward;
    const uint32_t most = GPU_SCRATCH_BYTES / (uint32_t)sizeof(struct embed_link);
    for (uint32_t done = 0; done < o->tokens; done += most) {
        uint32_t tokens = o->tokens - done < most ? o->tokens - done : most;
        struct embed_chain_args links = {
            .ids = gpu_at(&o->ids) + 4ull * done, .chain = gpu_scratch(call), .tokens = tokens};
        struct embed_backward_args args = {.ids = links.ids,
                                           .chain = links.chain,
                                           .dout = gpu_at(&o->dout) + 4ull * done * o->hidden,
                                           .dtable = gpu_at(&o->dtable),
                                           .hidden = o->hidden,
                                           .vocab = o->vocab,
                                           .turned = o->turned,
                                           .scale = o->scale};
        args.wide = gpu_fours(args.dout, 4, o->hidden) && (o->turned || gpu_fours(args.dtable, 4, o->hidden));
        if (gpu_launch(call, KERNEL_embed_chain, gpu_blocks(tokens, 256), 1, 1, &links, sizeof(links)) != 0 ||
            gpu_launch(call, KERNEL_embed_backward, tokens, 1, 1, &args, sizeof(args)) != 0)
            return -1;
    }
    return 0;
}

static int run_gather_rows(struct gpu_call *call, const struct op *op)
{
    const struct op_gather_rows *o = &op->gather_rows;
    struct gather_rows_args args = {.x = gpu_at(&o->x),
                                    .index = gpu_at(&o->index),
                                    .y = gpu_at(&o->y),
                                    .rows = o->rows,
                                    .width = o->width,
                                    .x_rows = o->x_rows};
    args.wide = gpu_fours(args.x, 4, o->width) && gpu_fours(args.y, 4, o->width);
    return gpu_launch(call, KERNEL_gather_rows, gpu_row_blocks(o->rows, o->width, 4), 1, 1, &args,
                      sizeof(args));
}

static int run_scatter_rows(struct gpu_call *call, const struct op *op)
{
    const struct op_scatter_rows *o = &op->scatter_rows;
    struct scatter_rows_args args = {.x = gpu_at(&o->x),
                                     .index = gpu_at(&o->index),
                                     .y = gpu_at(&o->y),
                                     .rows = o->rows,
                                     .width = o->width,
                                     .y_rows = o->y_rows,
                                     .scale = o->scale};
    args.wide = gpu_fours(args.x, 4, o->width) && gpu_fours(args.y, 4, o->width);
    if (gpu_zero(call, args.y, 4ull * o->y_rows * o->width) != 0)
        return -1;
    return gpu_launch(call, KERNEL_scatter_rows, gpu_row_blocks(o->rows, o->width, 4), 1, 1, &args,
                      sizeof(args));
}

const struct gpu_op gpu_tables_ops[] = {{.kind = OP_EMBED, .fits = embed_fits, .run = run_embed},
                                        {.kind = OP_EMBED_BACKWARD, .run = run_embed_backward},
                                        {.kind = OP_GATHER_ROWS, .run = run_gather_rows},
                                        {.kind = OP_SCATTER_ROWS, .run = run_scatter_rows},
                                        {.run = NULL}};
