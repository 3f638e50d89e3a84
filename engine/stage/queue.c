/* Helpers of all parts of a pass: queueing ops until the first failure, operands of named values, and slots
 * of micro-batches. */
#include "engine/stage/stage_private.h"

static const uint64_t WRITE_TIMEOUT_NS = 60ull * 1000 * 1000 * 1000;

void queue_op(struct queue *queue, const struct op *op)
{
    if (!queue->failed && op_submit(queue->device, op, queue->err) != 0)
        queue->failed = true;
}

void queue_gemm(struct queue *queue, const struct gemm *gemm)
{
    enum dtype dtype = gemm->b.at.dtype;
    queue_op(queue, &(struct op){.kind = OP_GEMM,
                                 .gemm = {.m = gemm->m,
                                          .n = gemm->n,
                                          .k = gemm->k,
                                          .transpose_a = gemm->order == GEMM_TN,
                                          .transpose_b = gemm->order == GEMM_NT,
                                          .alpha = gemm->alpha,
                                          .beta = gemm->beta,
                                          .a = gemm->a.at,
                                          .lda = gemm->a.ld,
                                          .b = gemm->b.at,
                                          .ldb = gemm->b.ld,
                                          .c = gemm->c.at,
                                          .ldc = gemm->c.ld,
                                          .pack = dtype == DTYPE_BF16  ? PACK_BF16
                                                  : dtype == DTYPE_F16 ? PACK_F16
                                                                       : PACK_F32,
                                          .compute = queue->compute}});
}

void queue_copy(struct queue *queue, uint32_t rows, uint32_t width, struct operand x, uint32_t ldx,
                struct operand y, uint32_t ldy)
{
    queue_op(queue,
             &(struct op){.kind = OP_COPY,
                          .copy = {.rows = rows, .width = width, .ldx = ldx, .ldy = ldy, .x = x, .y = y}});
}

void queue_zero(struct queue *queue, struct operand x, uint64_t count)
{
    if (!queue->failed && buffer_zero(x.buffer, x.at, dtype_bytes(x.dtype) * count, queue->err) != 0)
        queue->failed = true;
}

void queue_cast(struct queue *queue, uint64_t count, struct operand x, struct operand y)
{
    queue_op(queue, &(struct op){.kind = OP_CAST, .cast = {.count = count, .x = x, .y = y}});
}

struct operand pass_meta(const struct pass *pass, uint64_t at, enum dtype dtype)
{
    return (struct operand){.buffer = pass->slot->buffer, .at = at, .dtype = dtype};
}

struct operand pass_x(const struct pass *pass, uint32_t layer)
{
    const struct footprint_slot *slot = &pass->stage->layout.slot;
    return f32_at(pass->slot->buffer, slot->x + slot->x_stride * layer);
}

struct operand pass_middle(const struct pass *pass, uint32_t layer)
{
    const struct footprint_slot *slot = &pass->stage->layout.slot;
    return f32_at(pass->slot->buffer, slot->middle + slot->middle_stride * layer);
}

struct operand pass_workspace(const struct pass *pass, uint64_t at)
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
        operand = run_scratch(run, run->tape != NULL ? run->tape->value[value] : plan->forward[value]);
    if (value == VALUE_CHOSEN || value == VALUE_ROUTED_TOKEN || value == VALUE_ROUTED_PLACE ||
        value == VALUE_OFFSETS)
        operand.dtype = DTYPE_U32;
    if (plan->sixteen[value])
        operand.dtype = run->pass->stage->options.compute;
    return operand;
}

struct operand run_gradient(const struct layer_run *run, enum layer_value value)
{
    if (layer_gradient_is_stream(value))
        return pass_workspace(run->pass, run->pass->stage->layout.workspace.d);
    if (layer_gradient_in_place(value))
        return run_value(run, value);
    return run_scratch(run, run->tape->gradient[layer_gradient_of(value)]);
}

int slot_find(struct stage *stage, struct saved **out, struct err *err)
{
    for (uint32_t i = 0; i < stage->layout.slots; i++) {
        struct saved *slot = &stage->slots[i];
        if (slot->taken)
            continue;
        if (event_wait(slot->written, WRITE_TIMEOUT_NS, err) != 0)
            return -1;
        *out = slot;
        return 0;
    }
    return err_set(err, ERR_BUSY, "stage of blocks %u..%u: all %u micro-batches are in flight",
                   stage->options.block_begin, stage->options.block_end, stage->layout.slots);
}

int slot_write(struct saved *slot, struct err *err)
{
    if (buffer_write(slot->buffer, 0, slot->staging, slot->stage->layout.slot.meta_bytes, err) != 0)
        return -1;
    return event_record(slot->written, err);
}

void slot_give(struct saved *slot)
{
    slot->taken = false;
}
