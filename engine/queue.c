/* What every part of a pass uses: ops queued until the first failure, operands by name, places of
 * micro-batches. */
#include "engine/stage_private.h"

static const uint64_t WRITE_TIMEOUT_NS = 60ull * 1000 * 1000 * 1000;

void queue_op(struct queue *queue, const struct op *op)
{
    struct op precise = *op;
    precise.exact = queue->exact;
    if (!queue->failed && op_submit(queue->device, &precise, queue->err) != 0)
        queue->failed = true;
}

void queue_gemm(struct queue *queue, enum gemm_order order, uint32_t m, uint32_t n, uint32_t k, float alpha,
                struct operand a, uint32_t lda, struct operand b, uint32_t ldb, float beta, struct operand c,
                uint32_t ldc)
{
    queue_op(queue, &(struct op){.kind = OP_GEMM,
                                 .gemm = {.m = m,
                                          .n = n,
                                          .k = k,
                                          .transpose_a = order == GEMM_TN,
                                          .transpose_b = order == GEMM_NT,
                                          .alpha = alpha,
                                          .beta = beta,
                                          .a = a,
                                          .lda = lda,
                                          .b = b,
                                          .ldb = ldb,
                                          .c = c,
                                          .ldc = ldc}});
}

void queue_copy(struct queue *queue, uint32_t rows, uint32_t width, struct operand x, uint32_t ldx,
                struct operand y, uint32_t ldy)
{
    queue_op(queue,
             &(struct op){.kind = OP_COPY,
                          .copy = {.rows = rows, .width = width, .ldx = ldx, .ldy = ldy, .x = x, .y = y}});
}

void queue_norm(struct queue *queue, const struct stage *stage, uint32_t rows, struct operand x,
                struct operand weight, struct operand y)
{
    queue_op(queue, &(struct op){.kind = OP_RMSNORM,
                                 .rmsnorm = {.rows = rows,
                                             .width = stage->layout.model->shape.hidden,
                                             .eps = (float)stage->config.norm_eps,
                                             .x = x,
                                             .weight = weight,
                                             .y = y}});
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

struct operand pass_workspace(const struct pass *pass, uint64_t at)
{
    return f32_at(pass->stage->workspace, at);
}

struct layer_save pass_save(const struct pass *pass, uint32_t layer)
{
    const struct footprint *l = &pass->stage->layout;
    struct footprint_save at = footprint_save_of(l->model, pass->tokens);
    struct operand base = l->slot.save_stride != 0
                              ? f32_at(pass->slot->buffer, l->slot.saves + l->slot.save_stride * layer)
                              : f32_at(pass->stage->workspace, l->workspace.save);
    struct layer_save save = {
        .qkv = operand_skip(base, at.qkv / 4),
        .att = operand_skip(base, at.att / 4),
        .lse = operand_skip(base, at.lse / 4),
        .mid = operand_skip(base, at.mid / 4),
        .gate_up = operand_skip(base, at.gate_up / 4),
    };
    for (int g = 0; g < GROUP_COUNT; g++)
        save.z[g] = operand_skip(base, at.z[g] / 4);
    return save;
}

struct operand layer_weight(const struct stage *stage, uint32_t layer, uint64_t at)
{
    return f32_at(stage->layers[layer], at);
}

struct operand adapter_at(const struct stage *stage, struct buffer *buffer, uint32_t layer, uint64_t at)
{
    return f32_at(buffer, 4 * (stage->layout.model->adapter_floats * layer + at));
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
