/* A micro-batch through a stage: its description, forward block by block, backward in reverse. */
#include "engine/stage_private.h"

#include <string.h>

static int batch_check(const struct stage *stage, const struct micro_batch *batch, struct err *err)
{
    const struct stage_options *o = &stage->options;
    uint32_t tokens = batch->row_start[batch->rows];
    if (batch->rows > o->rows_max || tokens > o->tokens_max)
        return err_set(err, ERR_TOO_BIG,
                       "micro-batch %u: %u rows and %u tokens, the stage was made for %u and %u",
                       batch->index, batch->rows, tokens, o->rows_max, o->tokens_max);
    for (uint32_t row = 0; row < batch->rows; row++) {
        if (batch->row_start[row] > batch->row_start[row + 1] || (row == 0 && batch->row_start[0] != 0))
            return err_set(err, ERR_INVALID, "micro-batch %u: row %u begins at %u and ends at %u",
                           batch->index, row, batch->row_start[row], batch->row_start[row + 1]);
        if (batch->row_start[row + 1] - batch->row_start[row] > o->row_tokens_max)
            return err_set(err, ERR_TOO_BIG,
                           "micro-batch %u: row %u has %u tokens, the stage was made for %u", batch->index,
                           row, batch->row_start[row + 1] - batch->row_start[row], o->row_tokens_max);
    }
    if (stage->layout.has_embedding)
        for (uint32_t i = 0; i < tokens; i++)
            if (batch->ids[i] < 0 || (uint32_t)batch->ids[i] >= stage->layout.model->shape.vocab)
                return err_set(err, ERR_INVALID, "micro-batch %u: token %u has id %d, the vocabulary is %u",
                               batch->index, i, batch->ids[i], stage->layout.model->shape.vocab);
    return 0;
}

static int labels_collect(struct saved *slot, const struct micro_batch *batch, struct err *err)
{
    const struct footprint *l = &slot->stage->layout;
    uint32_t *index = (uint32_t *)(void *)(slot->staging + l->slot.label_index);
    int32_t *targets = (int32_t *)(void *)(slot->staging + l->slot.targets);
    slot->labelled = 0;
    if (!l->has_head || batch->labels == NULL)
        return 0;
    for (uint32_t row = 0; row < batch->rows; row++)
        for (uint32_t t = batch->row_start[row]; t + 1 < batch->row_start[row + 1]; t++) {
            int32_t label = batch->labels[t + 1];
            if (label == -100)
                continue;
            if (label < 0 || (uint32_t)label >= l->model->shape.vocab)
                return err_set(err, ERR_INVALID,
                               "micro-batch %u: token %u has label %d, the vocabulary is %u", batch->index,
                               t + 1, label, l->model->shape.vocab);
            if (slot->labelled == slot->stage->options.labelled_max)
                return err_set(err, ERR_TOO_BIG, "micro-batch %u: more than %u labelled tokens", batch->index,
                               slot->stage->options.labelled_max);
            index[slot->labelled] = t;
            targets[slot->labelled++] = label;
        }
    return 0;
}

int slot_take(struct stage *stage, const struct micro_batch *batch, struct saved **out, struct err *err)
{
    const struct footprint_slot *l = &stage->layout.slot;
    struct saved *slot;
    if (batch_check(stage, batch, err) != 0 || slot_find(stage, &slot, err) != 0)
        return -1;
    uint32_t *positions = (uint32_t *)(void *)(slot->staging + l->positions);
    uint32_t *row_ids = (uint32_t *)(void *)(slot->staging + l->row_ids);
    slot->rows = batch->rows;
    slot->tokens = batch->row_start[batch->rows];
    slot->step = batch->step;
    for (uint32_t row = 0; row < batch->rows; row++)
        for (uint32_t t = batch->row_start[row]; t < batch->row_start[row + 1]; t++) {
            positions[t] = t - batch->row_start[row];
            row_ids[t] = batch->row_ids == NULL ? row : batch->row_ids[row];
        }
    memcpy(slot->staging + l->row_start, batch->row_start, 4ull * (batch->rows + 1));
    if (stage->layout.has_embedding)
        memcpy(slot->staging + l->ids, batch->ids, 4ull * slot->tokens);
    if (labels_collect(slot, batch, err) != 0 || slot_write(slot, err) != 0)
        return -1;
    slot->taken = true;
    *out = slot;
    return 0;
}

static int boundary_check(const struct stage *stage, const struct buffer *buffer, uint32_t tokens,
                          bool wanted, const char *what, struct err *err)
{
    uint64_t bytes = 4ull * tokens * stage->layout.model->shape.hidden;
    if (!wanted)
        return 0;
    if (buffer == NULL)
        return err_set(err, ERR_INVALID, "stage of blocks %u..%u: no buffer for %s",
                       stage->options.block_begin, stage->options.block_end, what);
    if (buffer_bytes(buffer) < bytes || buffer_device(buffer) != stage->device)
        return err_set(err, ERR_INVALID,
                       "stage of blocks %u..%u: the buffer for %s is too small or elsewhere",
                       stage->options.block_begin, stage->options.block_end, what);
    return 0;
}

static void embed(struct pass *pass, struct operand out)
{
    const struct stage *stage = pass->stage;
    queue_op(&pass->queue, &(struct op){.kind = OP_EMBED,
                                        .embed = {.tokens = pass->tokens,
                                                  .hidden = stage->layout.model->shape.hidden,
                                                  .vocab = stage->layout.model->shape.vocab,
                                                  .ids = pass_meta(pass, stage->layout.slot.ids, DTYPE_I32),
                                                  .table = f32_at(stage->table, 0),
                                                  .out = out}});
}

/* Through embedding and layers, to `out`: the caller's buffer, or the workspace's d before the head. */
static void blocks_forward(struct pass *pass, struct buffer *in, struct operand out, bool keep)
{
    const struct footprint *l = &pass->stage->layout;
    uint32_t layers = l->layers, hidden = l->model->shape.hidden;
    struct operand first = layers > 0 ? pass_x(pass, 0) : out;
    if (l->has_embedding)
        embed(pass, first);
    else
        queue_copy(&pass->queue, pass->tokens, hidden, f32_at(in, 0), hidden, first, hidden);
    for (uint32_t i = 0; i < layers; i++) {
        struct operand x = pass_x(pass, keep ? i : 0);
        struct operand next = i + 1 == layers ? out : pass_x(pass, keep ? i + 1 : 0);
        layer_forward(pass, i, x, next, false);
    }
}

static struct pass pass_of(struct stage *stage, struct saved *slot, struct err *err)
{
    return (struct pass){
        .stage = stage,
        .queue = {.device = stage->device, .err = err, .exact = stage->exact},
        .slot = slot,
        .tokens = slot->tokens,
        .rows = slot->rows,
    };
}

int stage_forward(struct stage *stage, const struct micro_batch *batch, struct buffer *in, struct buffer *out,
                  struct saved **saved, struct err *err)
{
    const struct footprint *l = &stage->layout;
    uint32_t tokens = batch->row_start[batch->rows];
    struct saved *slot;
    if (saved != NULL)
        *saved = NULL;
    if (saved != NULL && stage->options.mode != STAGE_TRAIN)
        return err_set(err, ERR_INVALID, "a stage made for inference saves nothing for backward");
    if (boundary_check(stage, in, tokens, !l->has_embedding, "its input", err) != 0 ||
        boundary_check(stage, out, tokens, !l->has_head, "its output", err) != 0 ||
        slot_take(stage, batch, &slot, err) != 0)
        return -1;
    struct pass pass = pass_of(stage, slot, err);
    pass.dropout = saved != NULL && stage->options.lora.dropout > 0;
    struct operand end = l->has_head ? pass_workspace(&pass, l->workspace.d) : f32_at(out, 0);
    if (tokens > 0)
        blocks_forward(&pass, in, end, saved != NULL);
    if (tokens > 0 && l->has_head)
        head_forward(&pass, end, saved != NULL);
    if (pass.queue.failed || saved == NULL)
        slot_give(slot);
    else
        *saved = slot;
    if (pass.queue.failed)
        return -1;
    stage->labelled += slot->labelled;
    return 0;
}

static void blocks_backward(struct pass *pass, struct buffer *grad_in, struct buffer *grad_out, double scale)
{
    const struct footprint *l = &pass->stage->layout;
    uint32_t layers = l->layers, hidden = l->model->shape.hidden;
    struct operand d = pass_workspace(pass, l->workspace.d);
    if (l->has_head)
        head_backward(pass, (float)scale);
    else
        queue_copy(&pass->queue, pass->tokens, hidden, f32_at(grad_in, 0), hidden, d, hidden);
    for (uint32_t i = layers; i-- > 0;)
        layer_backward(pass, i, pass_x(pass, i), i > 0 || grad_out != NULL);
    if (grad_out != NULL)
        queue_copy(&pass->queue, pass->tokens, hidden, d, hidden, f32_at(grad_out, 0), hidden);
}

int stage_backward(struct stage *stage, const struct micro_batch *batch, struct saved *saved,
                   struct buffer *grad_in, struct buffer *grad_out, double scale, struct err *err)
{
    const struct footprint *l = &stage->layout;
    if (saved == NULL || !saved->taken || saved->stage != stage)
        return err_set(err, ERR_INVALID, "micro-batch %u: backward without its forward", batch->index);
    struct pass pass = pass_of(stage, saved, err);
    pass.dropout = stage->options.lora.dropout > 0;
    slot_give(saved);
    if (batch->row_start[batch->rows] != saved->tokens || batch->rows != saved->rows ||
        batch->step != saved->step)
        return err_set(err, ERR_INVALID, "micro-batch %u: backward of another micro-batch than forward's",
                       batch->index);
    if (boundary_check(stage, grad_in, pass.tokens, !l->has_head, "the gradient of its output", err) != 0 ||
        boundary_check(stage, grad_out, pass.tokens, grad_out != NULL, "the gradient of its input", err) != 0)
        return -1;
    if (pass.tokens > 0)
        blocks_backward(&pass, grad_in, grad_out, scale);
    return pass.queue.failed ? -1 : 0;
}

void stage_saved_release(struct saved *saved)
{
    if (saved != NULL)
        slot_give(saved);
}

int stage_logits(struct stage *stage, const struct micro_batch *batch, struct buffer *in, float *logits,
                 struct err *err)
{
    const struct footprint *l = &stage->layout;
    uint32_t tokens = batch->row_start[batch->rows], vocab = l->model->shape.vocab;
    struct saved *slot;
    if (!l->has_head)
        return err_set(err, ERR_INVALID, "logits are asked of a stage without the head");
    if (boundary_check(stage, in, tokens, !l->has_embedding, "its input", err) != 0 ||
        slot_take(stage, batch, &slot, err) != 0)
        return -1;
    struct pass pass = pass_of(stage, slot, err);
    struct operand end = pass_workspace(&pass, l->workspace.d);
    if (tokens > 0)
        blocks_forward(&pass, in, end, false);
    slot_give(slot);
    for (uint32_t at = 0; at < tokens && !pass.queue.failed; at += l->head_rows) {
        uint32_t rows = tokens - at < l->head_rows ? tokens - at : l->head_rows;
        head_logits(&pass, operand_skip(end, (uint64_t)at * l->model->shape.hidden), rows);
        if (pass.queue.failed ||
            buffer_read(stage->workspace, l->workspace.logits, logits + (size_t)at * vocab,
                        4ull * rows * vocab, err) != 0 ||
            device_sync(stage->device, err) != 0)
            return -1;
    }
    return pass.queue.failed ? -1 : 0;
}
