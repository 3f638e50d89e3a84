/* The end of a step (loss, norm, update) and the state of parameters by name. The state itself is a shard of
 * whole blocks (shard.h). */
#include "engine/stage/shard_private.h"
#include "engine/stage/stage_state.h"

#include <math.h>
#include <string.h>

int stage_loss_scale_set(struct stage *stage, double scale, struct err *err)
{
    if (shard_loss_scale_set(stage->state, scale, err) != 0)
        return -1;
    stage->loss_scale = (float)scale;
    return 0;
}

int stage_step_begin(struct stage *stage, struct err *err)
{
    stage->labelled = 0;
    if (buffer_zero(stage->scalars, 0, 16, err) != 0)
        return -1;
    if (stage->table.gradients && buffer_zero(stage->table.gradients, 0, stage->layout.table_bytes, err) != 0)
        return -1;
    return shard_step_begin(stage->state, err);
}

uint32_t stage_parameter_count(const struct stage *stage)
{
    return shard_piece_count(stage->state);
}

struct parameter stage_parameter_at(const struct stage *stage, uint32_t index)
{
    return shard_piece_at(stage->state, index).of;
}

int stage_parameter_find(const struct stage *stage, const char *name, uint32_t *index, struct err *err)
{
    for (uint32_t i = 0; i < stage_parameter_count(stage); i++)
        if (strcmp(stage_parameter_at(stage, i).name, name) == 0) {
            *index = i;
            return 0;
        }
    return err_set(err, ERR_NOT_FOUND, "stage of blocks %u..%u trains no parameter '%s'",
                   stage->options.block_begin, stage->options.block_end, name);
}

int stage_grad_square_sum(struct stage *stage, double *sum, struct err *err)
{
    return shard_grad_square_sum(stage->state, sum, err);
}

int stage_grad_square_sum_from(struct stage *stage, uint32_t from, double *sum, struct err *err)
{
    return shard_grad_square_sum_from(stage->state, from, sum, err);
}

/* Reports a loss that is not finite: names the first trained parameter of this stage that is not finite
 * either, or says that all are finite. */
static int loss_refuse(struct stage *stage, double loss, struct err *err)
{
    const char *name;
    if (shard_not_finite(stage->state, &name, err) != 0)
        return -1;
    if (name)
        return err_set(err, ERR_NOT_FINITE, "the loss is not finite: %s holds values that are not", name);
    return err_set(err, ERR_NOT_FINITE,
                   "the logits, and so the loss (%g over %llu labelled tokens), are not finite", loss,
                   (unsigned long long)stage->labelled);
}

int stage_loss(struct stage *stage, double *loss_sum, uint64_t *labelled, struct err *err)
{
    *labelled = stage->labelled;
    if (buffer_read(stage->scalars, 0, loss_sum, sizeof(*loss_sum), err) != 0 ||
        device_sync(stage->device, err) != 0)
        return -1;
    return isfinite(*loss_sum) ? 0 : loss_refuse(stage, *loss_sum, err);
}

int stage_router_loss(struct stage *stage, double *sum, struct err *err)
{
    if (buffer_read(stage->scalars, 8, sum, sizeof(*sum), err) != 0)
        return -1;
    return device_sync(stage->device, err);
}

int stage_update(struct stage *stage, const struct step_update *update, struct err *err)
{
    return shard_update(stage->state, update, err);
}

int stage_state_read(struct stage *stage, uint32_t index, enum stage_state state, float *dst, struct err *err)
{
    return shard_state_read(stage->state, index, state, dst, err);
}

int stage_state_write(struct stage *stage, uint32_t index, enum stage_state state, const float *src,
                      struct err *err)
{
    return shard_state_write(stage->state, index, state, src, err);
}

int stage_part_read(struct stage *stage, const struct shard_part *part, float *dst, struct err *err)
{
    return shard_part_read(stage->state, part, dst, err);
}

int stage_part_write(struct stage *stage, const struct shard_part *part, const float *src, struct err *err)
{
    return shard_part_write(stage->state, part, src, err);
}

int stage_state_view(const struct stage *stage, uint32_t index, enum stage_state state, struct area_view *out,
                     struct err *err)
{
    return shard_state_view(stage->state, index, state, out, err);
}

uint64_t stage_table_values(const struct stage *stage)
{
    const struct layer_tensor *table = &stage->model.embedding.tensors.list[0];
    return stage->layout.copies_table ? (uint64_t)table->rows * table->columns : 0;
}

int stage_table_view(const struct stage *stage, enum stage_state state, struct area_view *out,
                     struct err *err)
{
    *out = (struct area_view){.buffer = state == STATE_VALUE      ? stage->table.trained
                                        : state == STATE_GRADIENT ? stage->table.gradients
                                                                  : NULL,
                              .at = stage->model.embedding.tensors.list[0].at};
    if (!out->buffer)
        return err_set(err, ERR_INVALID,
                       "stage of blocks %u..%u: no copy of a tied embedding, or not this of it",
                       stage->options.block_begin, stage->options.block_end);
    return 0;
}

uint64_t stage_update_count(const struct stage *stage)
{
    return shard_update_count(stage->state);
}

void stage_update_count_set(struct stage *stage, uint64_t count)
{
    shard_update_count_set(stage->state, count);
}

uint64_t stage_saved_place_bytes(const struct stage *stage)
{
    return footprint_counted(stage->layout.slot.bytes);
}

uint64_t stage_saved_bytes(const struct stage *stage)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < stage->layout.slots; i++)
        bytes += stage->slots[i].taken ? stage_saved_place_bytes(stage) : 0;
    return bytes;
}
