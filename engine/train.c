/* What a step ends with: loss, norm, update; and the state of parameters by name. */
#include "engine/stage_private.h"

#include <math.h>
#include <string.h>

static int train_check(const struct stage *stage, const char *what, struct err *err)
{
    if (stage->options.mode == STAGE_TRAIN)
        return 0;
    return err_set(err, ERR_INVALID, "%s of a stage made for inference", what);
}

int stage_step_begin(struct stage *stage, struct err *err)
{
    stage->labelled = 0;
    if (buffer_zero(stage->scalars, 0, 8, err) != 0)
        return -1;
    if (stage->options.mode != STAGE_TRAIN)
        return 0;
    return buffer_zero(stage->gradients, 0, stage->layout.adapter_bytes, err);
}

/* Where parameter `index` lies: floats into the layer's adapter, and its shape. */
static uint64_t parameter_place(const struct stage *stage, uint32_t index, uint32_t *layer, uint32_t *rows,
                                uint32_t *columns)
{
    const struct footprint *l = &stage->layout;
    uint32_t rank = l->model->rank, within = index % l->model->parameters;
    *layer = index / l->model->parameters;
    for (int g = 0; g < GROUP_COUNT; g++) {
        const struct lora_group *group = &l->model->groups[g];
        if (within >= 2 * group->count) {
            within -= 2 * group->count;
            continue;
        }
        const struct lora_member *member = &group->members[within / 2];
        bool is_b = within % 2 == 1;
        *rows = is_b ? member->outputs : rank;
        *columns = is_b ? rank : group->inputs;
        return is_b ? member->b : group->a + (uint64_t)(within / 2) * rank * group->inputs;
    }
    *rows = *columns = 0;
    return 0;
}

uint32_t stage_parameter_count(const struct stage *stage)
{
    return stage->layout.model->parameters * stage->layout.layers;
}

struct parameter stage_parameter_at(const struct stage *stage, uint32_t index)
{
    struct parameter parameter = {.name = stage->names[index]};
    uint32_t layer;
    parameter_place(stage, index, &layer, &parameter.rows, &parameter.columns);
    return parameter;
}

int stage_parameter_find(const struct stage *stage, const char *name, uint32_t *index, struct err *err)
{
    for (uint32_t i = 0; i < stage_parameter_count(stage); i++)
        if (strcmp(stage->names[i], name) == 0) {
            *index = i;
            return 0;
        }
    return err_set(err, ERR_NOT_FOUND, "stage of blocks %u..%u trains no parameter '%s'",
                   stage->options.block_begin, stage->options.block_end, name);
}

/* Sums of squares of each parameter's part of `buffer` into stage->sums. Waits. */
static int square_sums(struct stage *stage, struct buffer *buffer, struct err *err)
{
    uint32_t count = stage_parameter_count(stage);
    struct queue queue = {.device = stage->device, .err = err};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t layer, rows, columns;
        uint64_t at = parameter_place(stage, i, &layer, &rows, &columns);
        queue_op(&queue, &(struct op){
                             .kind = OP_SQUARE_SUM,
                             .square_sum = {
                                 .count = (uint64_t)rows * columns,
                                 .x = adapter_at(stage, buffer, layer, at),
                                 .out = {.buffer = stage->scalars, .at = 8 + 8ull * i, .dtype = DTYPE_F64}}});
    }
    if (queue.failed || (count > 0 && buffer_read(stage->scalars, 8, stage->sums, 8ull * count, err) != 0))
        return -1;
    return device_sync(stage->device, err);
}

int stage_grad_square_sum(struct stage *stage, double *sum, struct err *err)
{
    *sum = 0;
    if (train_check(stage, "gradients", err) != 0 || square_sums(stage, stage->gradients, err) != 0)
        return -1;
    for (uint32_t i = 0; i < stage_parameter_count(stage); i++) {
        if (!isfinite(stage->sums[i]))
            return err_set(err, ERR_NOT_FINITE, "the gradient of %s is not finite", stage->names[i]);
        *sum += stage->sums[i];
    }
    return 0;
}

/* The loss is not finite: say which trained parameter of this stage is not, or that none is. */
static int loss_refuse(struct stage *stage, double loss, struct err *err)
{
    if (square_sums(stage, stage->values, err) != 0)
        return -1;
    for (uint32_t i = 0; i < stage_parameter_count(stage); i++)
        if (!isfinite(stage->sums[i]))
            return err_set(err, ERR_NOT_FINITE, "the loss is not finite: %s holds values that are not",
                           stage->names[i]);
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

int stage_update(struct stage *stage, const struct step_update *update, struct err *err)
{
    struct queue queue = {.device = stage->device, .err = err};
    uint64_t count = stage->layout.adapter_bytes / 4;
    if (train_check(stage, "an update", err) != 0)
        return -1;
    double step = (double)++stage->updates;
    if (count == 0)
        return 0;
    /* Padding between parameters is zero in all four and stays so. */
    queue_op(&queue, &(struct op){.kind = OP_ADAMW,
                                  .adamw = {.count = count,
                                            .learning_rate = update->learning_rate,
                                            .beta1 = update->beta1,
                                            .beta2 = update->beta2,
                                            .eps = update->eps,
                                            .weight_decay = update->weight_decay,
                                            .grad_scale = update->grad_scale,
                                            .bias_correction1 = 1 - pow(update->beta1, step),
                                            .bias_correction2 = 1 - pow(update->beta2, step),
                                            .value = f32_at(stage->values, 0),
                                            .gradient = f32_at(stage->gradients, 0),
                                            .moment1 = f32_at(stage->moment1, 0),
                                            .moment2 = f32_at(stage->moment2, 0)}});
    return queue.failed ? -1 : 0;
}

static int state_place(const struct stage *stage, uint32_t index, enum stage_state state,
                       struct buffer **buffer, uint64_t *at, uint64_t *bytes, struct err *err)
{
    struct buffer *const buffers[] = {
        [STATE_VALUE] = stage->values,
        [STATE_GRADIENT] = stage->gradients,
        [STATE_MOMENT1] = stage->moment1,
        [STATE_MOMENT2] = stage->moment2,
    };
    uint32_t layer, rows, columns;
    if (index >= stage_parameter_count(stage))
        return err_set(err, ERR_NOT_FOUND, "parameter %u of %u", index, stage_parameter_count(stage));
    *buffer = buffers[state];
    if (*buffer == NULL)
        return err_set(err, ERR_INVALID, "a stage made for inference has no gradients or moments");
    uint64_t place = parameter_place(stage, index, &layer, &rows, &columns);
    *at = 4 * (stage->layout.model->adapter_floats * layer + place);
    *bytes = 4ull * rows * columns;
    return 0;
}

int stage_state_read(struct stage *stage, uint32_t index, enum stage_state state, float *dst, struct err *err)
{
    struct buffer *buffer;
    uint64_t at, bytes;
    if (state_place(stage, index, state, &buffer, &at, &bytes, err) != 0 ||
        buffer_read(buffer, at, dst, bytes, err) != 0)
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
    for (uint64_t i = 0; i < bytes / 4; i++)
        if (!isfinite(src[i]))
            return err_set(err, ERR_NOT_FINITE, "%s: a value to be loaded is not finite",
                           stage->names[index]);
    if (buffer_write(buffer, at, src, bytes, err) != 0)
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
