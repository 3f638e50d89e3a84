/* What a step ends with: loss, norm, update; and the state of parameters by name. */
#include "engine/moments.h"
#include "engine/stage_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int train_check(const struct stage *stage, const char *what, struct err *err)
{
    if (stage->options.mode == STAGE_TRAIN)
        return 0;
    return err_set(err, ERR_INVALID, "%s of a stage made for inference", what);
}

int stage_step_begin(struct stage *stage, struct err *err)
{
    const struct stage_options *o = &stage->options;
    stage->labelled = 0;
    if (buffer_zero(stage->scalars, 0, 16, err) != 0)
        return -1;
    for (uint32_t b = o->block_begin; b < o->block_end; b++) {
        const struct block_state *block = stage_block(stage, b);
        if (block->gradients != NULL &&
            buffer_zero(block->gradients, 0, block->tensors->trained_bytes, err) != 0)
            return -1;
    }
    return stage->table.gradients == NULL
               ? 0
               : buffer_zero(stage->table.gradients, 0, stage->layout.table_bytes, err);
}

uint32_t stage_parameter_count(const struct stage *stage)
{
    return stage->layout.parameters;
}

struct parameter stage_parameter_at(const struct stage *stage, uint32_t index)
{
    const struct parameter_place *place = &stage->parameters[index];
    return (struct parameter){.name = place->name,
                              .rows = place->tensor->rows,
                              .columns = place->tensor->columns,
                              .vector = place->tensor->vector};
}

int stage_parameter_find(const struct stage *stage, const char *name, uint32_t *index, struct err *err)
{
    for (uint32_t i = 0; i < stage_parameter_count(stage); i++)
        if (strcmp(stage->parameters[i].name, name) == 0) {
            *index = i;
            return 0;
        }
    return err_set(err, ERR_NOT_FOUND, "stage of blocks %u..%u trains no parameter '%s'",
                   stage->options.block_begin, stage->options.block_end, name);
}

static uint64_t values_of(const struct parameter_place *place)
{
    return (uint64_t)place->tensor->rows * place->tensor->columns;
}

/* Where a parameter lies in its block's trained values and gradients. */
static uint64_t place_at(const struct parameter_place *place)
{
    return place->tensor->at + place->tensor->stride * place->copy;
}

/* Sums of squares of each parameter's values or gradients into stage->sums. Waits. */
static int square_sums(struct stage *stage, bool gradients, struct err *err)
{
    uint32_t count = stage_parameter_count(stage);
    struct queue queue = {.device = stage->device, .err = err};
    for (uint32_t i = 0; i < count; i++) {
        const struct parameter_place *place = &stage->parameters[i];
        const struct block_state *block = stage_block(stage, place->block);
        queue_op(
            &queue,
            &(struct op){
                .kind = OP_SQUARE_SUM,
                .square_sum = {.count = values_of(place),
                               .x = f32_at(gradients ? block->gradients : block->trained, place_at(place)),
                               .out = {.buffer = stage->scalars, .at = 16 + 8ull * i, .dtype = DTYPE_F64}}});
    }
    if (queue.failed || (count > 0 && buffer_read(stage->scalars, 16, stage->sums, 8ull * count, err) != 0))
        return -1;
    return device_sync(stage->device, err);
}

int stage_grad_square_sum(struct stage *stage, double *sum, struct err *err)
{
    *sum = 0;
    if (train_check(stage, "gradients", err) != 0 || square_sums(stage, true, err) != 0)
        return -1;
    for (uint32_t i = 0; i < stage_parameter_count(stage); i++) {
        if (!isfinite(stage->sums[i]))
            return err_set(err, ERR_NOT_FINITE, "the gradient of %s is not finite",
                           stage->parameters[i].name);
        *sum += stage->sums[i];
    }
    return 0;
}

/* The loss is not finite: say which trained parameter of this stage is not, or that none is. */
static int loss_refuse(struct stage *stage, double loss, struct err *err)
{
    if (square_sums(stage, false, err) != 0)
        return -1;
    for (uint32_t i = 0; i < stage_parameter_count(stage); i++)
        if (!isfinite(stage->sums[i]))
            return err_set(err, ERR_NOT_FINITE, "the loss is not finite: %s holds values that are not",
                           stage->parameters[i].name);
    return err_set(err, ERR_NOT_FINITE,
                   "the logits, and so the loss (%g over %llu labelled tokens), are not finite", loss,
                   (unsigned long long)stage->labelled);
}

int stage_loss(struct stage *stage, double *loss_sum, uint64_t *labelled, struct err *err)
{
    *labelled = stage->labelled;
    if (buffer_read(stage->scalars, 0, loss_sum, sizeof *loss_sum, err) != 0 ||
        device_sync(stage->device, err) != 0)
        return -1;
    return isfinite(*loss_sum) ? 0 : loss_refuse(stage, *loss_sum, err);
}

int stage_router_loss(struct stage *stage, double *sum, struct err *err)
{
    if (buffer_read(stage->scalars, 8, sum, sizeof *sum, err) != 0)
        return -1;
    return device_sync(stage->device, err);
}

struct step_constants {
    const struct step_update *update;
    double correction1, correction2;
};

static void adamw_queue(struct queue *queue, const struct block_state *block, uint64_t at, uint64_t count,
                        uint64_t moment, double decay, const struct step_constants *c)
{
    queue_op(queue, &(struct op){.kind = OP_ADAMW,
                                 .adamw = {.count = count,
                                           .learning_rate = c->update->learning_rate,
                                           .beta1 = c->update->beta1,
                                           .beta2 = c->update->beta2,
                                           .eps = c->update->eps,
                                           .weight_decay = decay,
                                           .grad_scale = c->update->grad_scale,
                                           .bias_correction1 = c->correction1,
                                           .bias_correction2 = c->correction2,
                                           .value = f32_at(block->trained, at),
                                           .gradient = f32_at(block->gradients, at),
                                           .moment1 = f32_at(block->moment1, moment),
                                           .moment2 = f32_at(block->moment2, moment)}});
}

static struct operand bytes_at(struct buffer *buffer, uint64_t at)
{
    return (struct operand){.buffer = buffer, .at = at, .dtype = DTYPE_U8};
}

static void adamw8_queue(struct queue *queue, const struct block_state *block,
                         const struct parameter_place *place, double decay, const struct step_constants *c)
{
    const struct layer_tensor *tensor = place->tensor;
    uint64_t moment = tensor->moment + tensor->moment_stride * place->copy;
    queue_op(queue, &(struct op){.kind = OP_ADAMW8,
                                 .adamw8 = {.count = values_of(place),
                                            .learning_rate = c->update->learning_rate,
                                            .beta1 = c->update->beta1,
                                            .beta2 = c->update->beta2,
                                            .eps = c->update->eps,
                                            .weight_decay = decay,
                                            .grad_scale = c->update->grad_scale,
                                            .bias_correction1 = c->correction1,
                                            .bias_correction2 = c->correction2,
                                            .value = f32_at(block->trained, place_at(place)),
                                            .gradient = f32_at(block->gradients, place_at(place)),
                                            .code1 = bytes_at(block->moment1, moment),
                                            .code2 = bytes_at(block->moment2, moment),
                                            .absmax1 = f32_at(block->moment1, moment + tensor->absmax8),
                                            .absmax2 = f32_at(block->moment2, moment + tensor->absmax8)}});
}

static double decay_of(const struct parameter_place *place, const struct step_update *update)
{
    return place->tensor->vector ? update->vector_decay : update->weight_decay;
}

/* Parameters [index, …) that lie side by side and decay alike, as one. Padding between them is zero in
 * values, gradients and moments and stays so. Returns the first after them. */
static uint32_t run_update(struct stage *stage, struct queue *queue, uint32_t index,
                           const struct step_constants *c)
{
    const struct parameter_place *first = &stage->parameters[index], *last = first;
    const struct block_state *block = stage_block(stage, first->block);
    double decay = decay_of(first, c->update);
    if (first->tensor->moments8) {
        adamw8_queue(queue, block, first, decay, c);
        return index + 1;
    }
    uint64_t begin = place_at(first), end = begin + 4 * values_of(first);
    uint64_t moment = first->tensor->moment + first->tensor->moment_stride * first->copy;
    for (uint32_t i = index + 1; i < stage_parameter_count(stage) && !stage->options.moments8; i++) {
        const struct parameter_place *next = &stage->parameters[i];
        uint64_t at = place_at(next);
        if (next->block != first->block || at < end || at - end >= 64 || decay_of(next, c->update) != decay)
            break;
        end = at + 4 * values_of(next);
        last = next;
    }
    adamw_queue(queue, block, begin, (end - begin) / 4, moment, decay, c);
    return (uint32_t)(last - stage->parameters) + 1;
}

int stage_update(struct stage *stage, const struct step_update *update, struct err *err)
{
    struct queue queue = {.device = stage->device, .err = err};
    if (train_check(stage, "an update", err) != 0)
        return -1;
    double step = (double)++stage->updates;
    struct step_constants constants = {.update = update,
                                       .correction1 = 1 - pow(update->beta1, step),
                                       .correction2 = 1 - pow(update->beta2, step)};
    for (uint32_t i = 0; i < stage_parameter_count(stage);)
        i = run_update(stage, &queue, i, &constants);
    return queue.failed ? -1 : 0;
}

static int state_place(const struct stage *stage, uint32_t index, enum stage_state state,
                       struct buffer **buffer, uint64_t *at, uint64_t *bytes, struct err *err)
{
    if (index >= stage_parameter_count(stage))
        return err_set(err, ERR_NOT_FOUND, "parameter %u of %u", index, stage_parameter_count(stage));
    const struct parameter_place *place = &stage->parameters[index];
    const struct block_state *block = stage_block(stage, place->block);
    struct buffer *const buffers[] = {
        [STATE_VALUE] = block->trained,
        [STATE_GRADIENT] = block->gradients,
        [STATE_MOMENT1] = block->moment1,
        [STATE_MOMENT2] = block->moment2,
    };
    bool moment = state == STATE_MOMENT1 || state == STATE_MOMENT2;
    *buffer = buffers[state];
    if (*buffer == NULL)
        return err_set(err, ERR_INVALID, "a stage made for inference has no gradients or moments");
    *at = moment ? place->tensor->moment + place->tensor->moment_stride * place->copy : place_at(place);
    *bytes = 4ull * values_of(place);
    return 0;
}

static bool moment_in_8_bits(const struct stage *stage, uint32_t index, enum stage_state state)
{
    return (state == STATE_MOMENT1 || state == STATE_MOMENT2) && stage->parameters[index].tensor->moments8;
}

/* Codes of a moment and, behind them, the largest magnitudes of their blocks, as they lie on the device. */
static int moment8_read(struct stage *stage, uint32_t index, enum stage_state state, struct buffer *buffer,
                        uint64_t at, float *dst, struct err *err)
{
    const struct layer_tensor *tensor = stage->parameters[index].tensor;
    uint8_t *bytes = malloc(tensor->moment_stride);
    if (bytes == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for the moments of %s", stage->parameters[index].name);
    int status = buffer_read(buffer, at, bytes, tensor->moment_stride, err);
    if (status == 0)
        status = device_sync(stage->device, err);
    if (status == 0)
        moments8_unpack(state == STATE_MOMENT1, bytes, (const float *)(const void *)(bytes + tensor->absmax8),
                        values_of(&stage->parameters[index]), dst);
    free(bytes);
    return status;
}

static int moment8_write(struct stage *stage, uint32_t index, enum stage_state state, struct buffer *buffer,
                         uint64_t at, const float *src, struct err *err)
{
    const struct layer_tensor *tensor = stage->parameters[index].tensor;
    uint8_t *bytes = calloc(1, tensor->moment_stride);
    if (bytes == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for the moments of %s", stage->parameters[index].name);
    moments8_pack(state == STATE_MOMENT1, src, values_of(&stage->parameters[index]), bytes,
                  (float *)(void *)(bytes + tensor->absmax8));
    int status = buffer_write(buffer, at, bytes, tensor->moment_stride, err);
    if (status == 0)
        status = device_sync(stage->device, err);
    free(bytes);
    return status;
}

int stage_state_read(struct stage *stage, uint32_t index, enum stage_state state, float *dst, struct err *err)
{
    struct buffer *buffer;
    uint64_t at, bytes;
    if (state_place(stage, index, state, &buffer, &at, &bytes, err) != 0)
        return -1;
    if (moment_in_8_bits(stage, index, state))
        return moment8_read(stage, index, state, buffer, at, dst, err);
    if (buffer_read(buffer, at, dst, bytes, err) != 0)
        return -1;
    return device_sync(stage->device, err);
}

int stage_state_write(struct stage *stage, uint32_t index, enum stage_state state, const float *src,
                      struct err *err)
{
    struct buffer *buffer;
    uint64_t at, bytes;
    if (state_place(stage, index, state, &buffer, &at, &bytes, err) != 0)
        return -1;
    for (uint64_t i = 0; i < bytes / 4 && state != STATE_GRADIENT; i++) /* the norm tells of gradients */
        if (!isfinite(src[i]))
            return err_set(err, ERR_NOT_FINITE, "%s: a value to be loaded is not finite",
                           stage->parameters[index].name);
    if (moment_in_8_bits(stage, index, state))
        return moment8_write(stage, index, state, buffer, at, src, err);
    if (buffer_write(buffer, at, src, bytes, err) != 0)
        return -1;
    return device_sync(stage->device, err);
}

uint64_t stage_table_values(const struct stage *stage)
{
    const struct layer_tensor *table = &stage->model.embedding.list[0];
    return stage->layout.copies_table ? (uint64_t)table->rows * table->columns : 0;
}

/* NULL: the stage keeps no copy, or no gradient of it. */
static struct buffer *table_buffer(const struct stage *stage, enum stage_state state, struct err *err)
{
    struct buffer *buffer = state == STATE_VALUE      ? stage->table.trained
                            : state == STATE_GRADIENT ? stage->table.gradients
                                                      : NULL;
    if (buffer == NULL)
        err_set(err, ERR_INVALID, "stage of blocks %u..%u: no copy of a tied embedding, or not this of it",
                stage->options.block_begin, stage->options.block_end);
    return buffer;
}

int stage_table_read(struct stage *stage, enum stage_state state, float *dst, struct err *err)
{
    const struct layer_tensor *table = &stage->model.embedding.list[0];
    struct buffer *buffer = table_buffer(stage, state, err);
    if (buffer == NULL || buffer_read(buffer, table->at, dst, 4 * stage_table_values(stage), err) != 0)
        return -1;
    return device_sync(stage->device, err);
}

int stage_table_write(struct stage *stage, enum stage_state state, const float *src, struct err *err)
{
    const struct layer_tensor *table = &stage->model.embedding.list[0];
    struct buffer *buffer = table_buffer(stage, state, err);
    if (buffer == NULL || buffer_write(buffer, table->at, src, 4 * stage_table_values(stage), err) != 0)
        return -1;
    return device_sync(stage->device, err);
}

uint64_t stage_update_count(const struct stage *stage)
{
    return stage->updates;
}

void stage_update_count_set(struct stage *stage, uint64_t count)
{
    stage->updates = count;
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
