/* Slots for micro-batches: finds a free one, fills in the micro-batch's description, and frees the slot. */
#include "engine/stage/slot.h"

#include <string.h>

static const uint64_t WRITE_TIMEOUT_NS = 60ull * 1000 * 1000 * 1000;

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

static uint32_t padded_count(uint32_t count, uint32_t most)
{
    const uint32_t padded = device_pass_size(count);
    return padded < most ? padded : most;
}

/* Describes padding tokens behind the micro-batch's own. They are one more row, token 0 at position 0 and
 * without labels, so what they leave is finite and their gradients are zero. Mixtures of experts are not
 * padded, because padding would take part in the routers' counts. */
static void slot_pad(struct saved *slot)
{
    const struct stage *stage = slot->stage;
    const struct footprint_slot *l = &stage->layout.slot;
    const struct stage_options *o = &stage->options;
    slot->padded = device_records_passes(stage->device) && stage->config.experts == 0;
    slot->tokens_padded = slot->padded ? padded_count(slot->tokens, o->tokens_max) : slot->tokens;
    slot->labelled_padded = slot->padded ? padded_count(slot->labelled, o->labelled_max) : slot->labelled;
    uint64_t skip = 4ull * slot->tokens, bytes = 4ull * (slot->tokens_padded - slot->tokens);
    memset(slot->staging + l->positions + skip, 0, bytes);
    memset(slot->staging + l->row_ids + skip, 0, bytes);
    if (stage->layout.has_embedding)
        memset(slot->staging + l->ids + skip, 0, bytes);
    memcpy(slot->staging + l->row_start + 4ull * (slot->rows + 1), &slot->tokens_padded, 4);
    skip = 4ull * slot->labelled;
    bytes = 4ull * (slot->labelled_padded - slot->labelled);
    memset(slot->staging + l->label_index + skip, 0, bytes);
    memset(slot->staging + l->targets + skip, 0xff, bytes); /* -1: no target */
    if (stage->layout.head_drops) {
        memset(slot->staging + l->label_positions + skip, 0, bytes);
        memset(slot->staging + l->label_rows + skip, 0, bytes);
    }
}

static int labels_collect(struct saved *slot, const struct micro_batch *batch, struct err *err)
{
    const struct footprint *l = &slot->stage->layout;
    uint32_t *index = (uint32_t *)(void *)(slot->staging + l->slot.label_index);
    int32_t *targets = (int32_t *)(void *)(slot->staging + l->slot.targets);
    uint32_t *positions = (uint32_t *)(void *)(slot->staging + l->slot.label_positions),
             *rows = (uint32_t *)(void *)(slot->staging + l->slot.label_rows);
    slot->labelled = 0;
    if (!l->has_head || !batch->labels)
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
            if (l->head_drops) {
                positions[slot->labelled] = t - batch->row_start[row];
                rows[slot->labelled] = !batch->row_ids ? row : batch->row_ids[row];
            }
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
    slot->router_scale = batch->router_scale;
    for (uint32_t row = 0; row < batch->rows; row++)
        for (uint32_t t = batch->row_start[row]; t < batch->row_start[row + 1]; t++) {
            positions[t] = t - batch->row_start[row];
            row_ids[t] = !batch->row_ids ? row : batch->row_ids[row];
        }
    memcpy(slot->staging + l->row_start, batch->row_start, 4ull * (batch->rows + 1));
    *(uint32_t *)(void *)(slot->staging + l->step) = (uint32_t)batch->step;
    if (stage->layout.has_embedding)
        memcpy(slot->staging + l->ids, batch->ids, 4ull * slot->tokens);
    if (labels_collect(slot, batch, err) != 0)
        return -1;
    slot_pad(slot);
    if (slot_write(slot, err) != 0)
        return -1;
    slot->taken = true;
    *out = slot;
    return 0;
}

int slot_of_batch(struct stage *stage, const struct micro_batch *batch, struct saved *earlier,
                  struct saved **slot, struct err *err)
{
    if (!earlier)
        return slot_take(stage, batch, slot, err);
    *slot = earlier;
    if (earlier->stage == stage && earlier->taken && earlier->rows == batch->rows &&
        earlier->tokens == batch->row_start[batch->rows] && earlier->step == batch->step)
        return 0;
    return err_set(err, ERR_INVALID, "micro-batch %u: its place is that of another", batch->index);
}

void slot_give(struct saved *slot)
{
    slot->taken = false;
}
