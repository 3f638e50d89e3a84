/* Addresses (a buffer and a byte) of the values of a stage, a pass and a layer. */
#include "engine/stage/layer.h"

struct operand pass_meta(const struct stage_pass *pass, uint64_t at, enum dtype dtype)
{
    return (struct operand){.buffer = pass->slot->buffer, .at = at, .dtype = dtype};
}

struct operand pass_x(const struct stage_pass *pass, uint32_t layer)
{
    const struct footprint_slot *slot = &pass->stage->layout.slot;
    return f32_at(pass->slot->buffer, slot->x + slot->x_stride * layer);
}

struct operand pass_middle(const struct stage_pass *pass, uint32_t layer)
{
    const struct footprint_slot *slot = &pass->stage->layout.slot;
    return f32_at(pass->slot->buffer, slot->middle + slot->middle_stride * layer);
}

struct operand pass_workspace(const struct stage_pass *pass, uint64_t at)
{
    return f32_at(pass->stage->workspace, at);
}

struct block_state *stage_block(const struct stage *stage, uint32_t block)
{
    return &stage->blocks[block - stage->options.block_begin];
}

struct operand tensor_at(const struct block_state *block, const struct layer_tensor *tensor)
{
    enum dtype dtype = tensor->pack == PACK_BF16  ? DTYPE_BF16
                       : tensor->pack == PACK_F16 ? DTYPE_F16
                       : tensor->pack == PACK_F32 ? DTYPE_F32
                                                  : DTYPE_U8;
    uint64_t at = tensor->at + (tensor->trained ? block->trained_at : block->frozen_at);
    return (struct operand){
        .buffer = tensor->trained ? block->trained : block->frozen, .at = at, .dtype = dtype};
}

struct operand tensor_gradient(const struct block_state *block, const struct layer_tensor *tensor)
{
    return f32_at(tensor->trained ? block->gradients : NULL, block->gradients_at + tensor->at);
}

static struct operand per_token(const struct layer_run *run, struct operand base, uint64_t bytes)
{
    base.at += bytes * run->pass->stage->layout.tokens;
    return base;
}

struct operand run_scratch(const struct layer_run *run, uint64_t bytes)
{
    return per_token(run, run->inner, bytes);
}

struct operand run_kept(const struct layer_run *run, uint64_t bytes)
{
    return per_token(run, run->kept, bytes);
}

struct operand run_value(const struct layer_run *run, enum layer_value value)
{
    const struct layer_plan *plan = run->plan;
    struct operand operand;
    if (value == VALUE_X)
        return run->x;
    if (value == VALUE_OUT)
        return run->out;
    if (value == VALUE_OFFSETS)
        operand = run_kept(run, plan->saved_bytes + (run->pass->stage->layout.split ? plan->split_bytes : 0));
    else if (plan->kept[value])
        operand = run_kept(run, plan->saved[value]);
    else
        operand = run_scratch(run, run->tape ? run->tape->value[value] : plan->forward[value]);
    if (value == VALUE_CHOSEN || value == VALUE_ROUTED_TOKEN || value == VALUE_ROUTED_PLACE ||
        value == VALUE_ROUTED_EXPERT || value == VALUE_SHARED_CHOSEN || value == VALUE_OFFSETS)
        operand.dtype = DTYPE_U32;
    if (plan->sixteen[value])
        operand.dtype = run->pass->stage->options.compute;
    return operand;
}

bool run_rounds_products(const struct layer_run *run, uint32_t width)
{
    const enum dtype compute = run->pass->stage->options.compute;
    const struct op op = {
        .kind = OP_GEMM,
        .gemm = {.m = 1, .n = 1, .k = 1, .ldc = width, .c = {.dtype = compute}, .compute = compute}};
    return compute != DTYPE_F32 && op_supports(run->pass->queue.device, &op);
}

/* Is the gradient stored in 16 bits? ACT's is, where one product writes it and the gate's backward, which
 * rounds its own result, is its only reader. */
static bool gradient_is_rounded(const struct layer_run *run, enum layer_value value)
{
    const struct layer_plan *plan = run->plan;
    return value == VALUE_ACT && plan->sixteen[VALUE_ACT] && plan->width[VALUE_CHOSEN] == 0 &&
           run_rounds_products(run, plan->width[VALUE_ACT]);
}

struct operand run_gradient(const struct layer_run *run, enum layer_value value)
{
    if (layer_gradient_is_stream(value))
        return pass_workspace(run->pass, run->pass->stage->layout.workspace.d);
    if (layer_gradient_in_place(value))
        return run_value(run, value);
    struct operand d = run_scratch(run, run->tape->gradient[layer_gradient_of(value)]);
    if (gradient_is_rounded(run, value))
        d.dtype = run->pass->stage->options.compute;
    return d;
}
