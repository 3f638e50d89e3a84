/* Ops of mixtures of experts: routing, sorting by expert, combining. Grouped products are in product.c. */
#include "engine/gpu/gpu.h"

enum { SORT_PIECES_MAX = 64, SORT_BATCH = 256, ROUTER_ACTIVE_MAX = 64 };

static bool gpu_router_fits(uint32_t tokens, uint32_t experts, uint32_t active, uint32_t rows)
{
    return tokens == 0 ||
           (active >= 1 && active <= experts && active <= ROUTER_ACTIVE_MAX &&
            experts <= ROUTER_EXPERTS_MAX && (uint64_t)tokens * active <= UINT32_MAX && rows <= 65535);
}

static bool route_fits(const struct gpu *gpu, const struct op *op)
{
    const struct op_route *o = &op->route;
    (void)gpu;
    return gpu_router_fits(o->tokens, o->experts, o->active, o->rows);
}

static bool route_backward_fits(const struct gpu *gpu, const struct op *op)
{
    const struct op_route_backward *o = &op->route_backward;
    (void)gpu;
    return gpu_router_fits(o->tokens, o->experts, o->active, o->rows);
}

static bool route_sort_fits(const struct gpu *gpu, const struct op *op)
{
    const struct op_route_sort *o = &op->route_sort;
    (void)gpu;
    return o->experts <= ROUTER_EXPERTS_MAX && (uint64_t)o->tokens * o->active <= UINT32_MAX - SORT_BATCH;
}

/* Number of blocks for kernels in which each of `count` items gets a warp of 32; warps of 64 take two items
 * one after the other. */
static uint64_t warp_blocks(uint64_t count)
{
    return gpu_blocks(count, 4);
}

static int route_run(struct gpu_call *call, const struct op *op)
{
    const struct op_route *o = &op->route;
    if (o->tokens == 0)
        return 0;
    struct route_args args = {.scores = gpu_at(&o->scores),
                              .chosen = gpu_at(&o->chosen),
                              .weight = gpu_at(&o->weight),
                              .bias = gpu_at(&o->bias),
                              .tokens = o->tokens,
                              .experts = o->experts,
                              .active = o->active,
                              .renormalise = o->renormalise,
                              .sigmoid = o->sigmoid,
                              .scale = o->scale};
    if (gpu_launch(call, KERNEL_route, warp_blocks(o->tokens), 1, 1, &args, sizeof(args)) != 0)
        return -1;
    if (!o->counts.buffer)
        return 0;
    struct route_count_args count = {.probabilities = args.scores,
                                     .chosen = args.chosen,
                                     .row_start = gpu_at(&o->row_start),
                                     .counts = gpu_at(&o->counts),
                                     .sums = gpu_at(&o->sums),
                                     .tokens = o->tokens,
                                     .experts = o->experts,
                                     .active = o->active};
    return gpu_launch(call, KERNEL_route_count, gpu_blocks(o->experts, 32), o->rows, 1, &count,
                      sizeof(count));
}

static int route_backward_run(struct gpu_call *call, const struct op *op)
{
    const struct op_route_backward *o = &op->route_backward;
    struct route_backward_args args = {.probabilities = gpu_at(&o->probabilities),
                                       .chosen = gpu_at(&o->chosen),
                                       .dweight = gpu_at(&o->dweight),
                                       .dscores = gpu_at(&o->dscores),
                                       .row_start = gpu_at(&o->row_start),
                                       .counts = gpu_at(&o->counts),
                                       .rows = o->rows,
                                       .tokens = o->tokens,
                                       .experts = o->experts,
                                       .active = o->active,
                                       .renormalise = o->renormalise,
                                       .sigmoid = o->sigmoid,
                                       .aux = o->aux,
                                       .scale = o->scale};
    return gpu_launch(call, KERNEL_route_backward, warp_blocks(o->tokens), 1, 1, &args, sizeof(args));
}

/* A counting sort in three launches: count in each piece, sum up, place. */
static int route_sort_run(struct gpu_call *call, const struct op *op)
{
    const struct op_route_sort *o = &op->route_sort;
    uint32_t choices = o->tokens * o->active;
    uint32_t batches = (uint32_t)gpu_blocks(choices, SORT_BATCH);
    struct sort_count_args args = {.chosen = gpu_at(&o->chosen),
                                   .token = gpu_at(&o->token),
                                   .place = gpu_at(&o->place),
                                   .offsets = gpu_at(&o->offsets),
                                   .expert = gpu_at(&o->expert),
                                   .counts = gpu_scratch(call),
                                   .choices = choices,
                                   .active = o->active,
                                   .experts = o->experts,
                                   .piece = (uint32_t)gpu_blocks(batches, SORT_PIECES_MAX) * SORT_BATCH};
    args.pieces = choices == 0 ? 0 : (uint32_t)gpu_blocks(choices, args.piece);
    if (gpu_zero(call, args.counts, 4ull * args.pieces * o->experts) != 0 ||
        gpu_launch(call, KERNEL_sort_count, args.pieces, 1, 1, &args, sizeof(args)) != 0 ||
        gpu_launch(call, KERNEL_sort_scan, 1, 1, 1, &args, sizeof(args)) != 0)
        return -1;
    return gpu_launch(call, KERNEL_sort_place, args.pieces, 1, 1, &args, sizeof(args));
}

static int router_loss_run(struct gpu_call *call, const struct op *op)
{
    const struct op_router_loss *o = &op->router_loss;
    struct router_loss_args args = {.row_start = gpu_at(&o->row_start),
                                    .counts = gpu_at(&o->counts),
                                    .sums = gpu_at(&o->sums),
                                    .loss = gpu_at(&o->loss),
                                    .rows = o->rows,
                                    .experts = o->experts,
                                    .layers = o->layers};
    return gpu_launch(call, KERNEL_router_loss, 1, 1, 1, &args, sizeof(args));
}

static int combine_run(struct gpu_call *call, const struct op *op)
{
    const struct op_combine *o = &op->combine;
    struct combine_args args = {.x = gpu_at(&o->x),
                                .place = gpu_at(&o->place),
                                .weight = gpu_at(&o->weight),
                                .y = gpu_at(&o->y),
                                .tokens = o->tokens,
                                .active = o->active,
                                .width = o->width};
    return gpu_launch(call, KERNEL_combine, gpu_blocks((uint64_t)o->tokens * o->width, 256), 1, 1, &args,
                      sizeof(args));
}

static int combine_backward_run(struct gpu_call *call, const struct op *op)
{
    const struct op_combine_backward *o = &op->combine_backward;
    struct combine_backward_args args = {.x = gpu_at(&o->x),
                                         .place = gpu_at(&o->place),
                                         .weight = gpu_at(&o->weight),
                                         .dy = gpu_at(&o->dy),
                                         .dweight = gpu_at(&o->dweight),
                                         .tokens = o->tokens,
                                         .active = o->active,
                                         .width = o->width};
    return gpu_launch(call, KERNEL_combine_backward, warp_blocks((uint64_t)o->tokens * o->active), 1, 1,
                      &args, sizeof(args));
}

const struct gpu_op gpu_experts_ops[] = {
    {.kind = OP_ROUTE, .fits = route_fits, .run = route_run},
    {.kind = OP_ROUTE_BACKWARD, .fits = route_backward_fits, .run = route_backward_run},
    {.kind = OP_ROUTE_SORT, .fits = route_sort_fits, .run = route_sort_run},
    {.kind = OP_ROUTER_LOSS, .run = router_loss_run},
    {.kind = OP_COMBINE, .run = combine_run},
    {.kind = OP_COMBINE_BACKWARD, .run = combine_backward_run},
    {.run = NULL}};
