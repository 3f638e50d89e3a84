/* The values that collectives reduce: reading, adding and writing them. */
#include <string.h>

#include "worker/program/reduce_private.h"

struct wire_scalars { /* little-endian, without padding */
    double loss_sum, aux_sum;
    uint64_t labelled, tokens;
    uint64_t control;
};

/* Whether an instruction reduces a parameter: its block is in the instruction's range, or the range is empty.
 */
static bool is_reduced(const struct reduce *reduce, const struct parameter *parameter)
{
    const struct instr *instr = reduce->instr;
    int32_t block = (int32_t)parameter->block;
    return instr->block_begin == instr->block_end ||
           (block >= instr->block_begin && block < instr->block_end);
}

/* The stage whose copy of a tied embedding is reduced with the parameters; NULL when there is none. */
static struct stage *reduced_table(const struct reduce *reduce)
{
    const struct instr *instr = reduce->instr;
    bool first = instr->block_begin == 0 && instr->block_end > 0;
    return first ? stages_table(reduce->ops->options.stages) : NULL;
}

static size_t parameter_bytes(const struct reduce *reduce)
{
    struct stages *stages = reduce->ops->options.stages;
    size_t bytes = 0;
    for (uint32_t p = 0; p < stages_parameter_count(stages); p++) {
        struct parameter parameter = stages_parameter_at(stages, p);
        if (is_reduced(reduce, &parameter))
            bytes += (size_t)parameter.rows * parameter.columns * sizeof(float);
    }
    if (reduced_table(reduce))
        bytes += stage_table_values(reduced_table(reduce)) * sizeof(float);
    return bytes;
}

bool reduce_has_parameters(const struct reduce *reduce)
{
    return reduce->kind == SLOT_GRADIENTS || reduce->kind == SLOT_PARAMETERS;
}

/* Copies the parameters that are reduced, or their gradients, between the stages and `values`. */
static int copy_parameters(struct reduce *reduce, float *values, bool write, struct err *err)
{
    struct stages *stages = reduce->ops->options.stages;
    enum stage_state state = reduce->kind == SLOT_GRADIENTS ? STATE_GRADIENT : STATE_VALUE;
    for (uint32_t p = 0; p < stages_parameter_count(stages); p++) {
        struct parameter parameter = stages_parameter_at(stages, p);
        if (!is_reduced(reduce, &parameter))
            continue;
        int result = write ? stages_state_write(stages, p, state, values, err)
                           : stages_state_read(stages, p, state, values, err);
        if (result < 0)
            return -1;
        values += (size_t)parameter.rows * parameter.columns;
    }
    struct stage *table = reduced_table(reduce);
    if (!table)
        return 0;
    return write ? stage_table_write(table, state, values, err) : stage_table_read(table, state, values, err);
}

int reduce_read_own(struct reduce *reduce, struct err *err)
{
    struct ops *ops = reduce->ops;
    struct plan_step_scalars scalars;
    switch (reduce->kind) {
    case SLOT_STEP_SCALARS:
        if (ops_own_scalars(ops, &scalars, err) < 0)
            return -1;
        *(struct wire_scalars *)(void *)reduce->own = (struct wire_scalars){
            scalars.loss_sum, scalars.aux_sum, scalars.labelled, scalars.tokens, scalars.control};
        return 0;
    case SLOT_NORM_SCALAR:
        return ops_own_norm(ops, (double *)(void *)reduce->own, err);
    case SLOT_TOKEN:
        memcpy(reduce->own, &ops->step->token, sizeof ops->step->token);
        return 0;
    case SLOT_GRADIENTS:
    case SLOT_PARAMETERS:
        return copy_parameters(reduce, (float *)(void *)reduce->own, false, err);
    default:
        memset(reduce->own, 0, reduce->size);
        return 0;
    }
}

void reduce_add(const struct reduce *reduce, uint8_t *sum, const uint8_t *value, bool first)
{
    if (first || reduce->kind == SLOT_TOKEN) {
        if (value != sum)
            memcpy(sum, value, reduce->size);
    } else if (reduce->kind == SLOT_STEP_SCALARS) {
        struct wire_scalars *total = (struct wire_scalars *)(void *)sum, more;
        memcpy(&more, value, sizeof more);
        total->loss_sum += more.loss_sum;
        total->aux_sum += more.aux_sum;
        total->labelled += more.labelled;
        total->tokens += more.tokens;
        total->control |= more.control;
    } else if (reduce->kind == SLOT_NORM_SCALAR) {
        double more;
        memcpy(&more, value, sizeof more);
        *(double *)(void *)sum += more;
    } else if (reduce_has_parameters(reduce)) {
        float *total = (float *)(void *)sum;
        const float *more = (const float *)(const void *)value;
        for (size_t i = 0; i < reduce->size / sizeof(float); i++)
            total[i] += more[i];
    }
}

int reduce_write_result(struct reduce *reduce, const uint8_t *result, struct err *err)
{
    struct ops *ops = reduce->ops;
    const struct wire_scalars *scalars = (const struct wire_scalars *)(const void *)result;
    switch (reduce->kind) {
    case SLOT_STEP_SCALARS:
        ops->step->sum = (struct plan_step_scalars){scalars->loss_sum, scalars->aux_sum, scalars->labelled,
                                                    scalars->tokens, (uint32_t)scalars->control};
        ops->scalars_reduced = true;
        return 0;
    case SLOT_NORM_SCALAR:
        memcpy(&ops->norm_square, result, sizeof ops->norm_square);
        ops->norm_reduced = true;
        return 0;
    case SLOT_TOKEN:
        memcpy(&ops->step->token, result, sizeof ops->step->token);
        return 0;
    case SLOT_GRADIENTS:
    case SLOT_PARAMETERS:
        return copy_parameters(reduce, (float *)(uintptr_t)result, true, err);
    default:
        return 0;
    }
}

size_t reduce_value_bytes(const struct reduce *reduce)
{
    switch (reduce->kind) {
    case SLOT_STEP_SCALARS:
        return sizeof(struct wire_scalars);
    case SLOT_TOKEN:
        return sizeof(int32_t);
    case SLOT_GRADIENTS:
    case SLOT_PARAMETERS:
        return parameter_bytes(reduce);
    default:
        return sizeof(double);
    }
}

bool reduce_is_complete(const struct mesh_done *done, size_t bytes)
{
    const struct reduce *reduce = done->arg;
    struct err err = done->err;
    if (done->ok && done->size == bytes)
        return true;
    if (done->ok)
        err_set(&err, ERR_PEER, "rank %u sent %zu bytes where %zu are due", done->peer, done->size, bytes);
    exec_done(reduce_executor(reduce), reduce->number, &err);
    return false;
}
