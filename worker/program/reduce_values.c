/* Reads, adds and writes the values that collectives reduce. */
#include <string.h>

#include "worker/program/reduce_private.h"

struct wire_scalars { /* little-endian, without padding */
    double loss_sum, aux_sum;
    uint64_t labelled, tokens;
    uint64_t control;
};

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
        memcpy(reduce->own, &ops->step->token, sizeof(ops->step->token));
        return 0;
    case SLOT_PARTIAL:
        return 0; /* halves_begin has copied the contribution to reduce->own */
    default:
        memset(reduce->own, 0, reduce->size);
        return 0;
    }
}

void reduce_sum(uint8_t *sum, const uint8_t *more, size_t bytes)
{
    float *total = (float *)(void *)sum;
    const float *values = (const float *)(const void *)more;
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        total[i] += values[i];
}

void reduce_add(struct reduce *reduce, const uint8_t *value)
{
    uint8_t *sum = reduce->own;
    if (reduce->kind == SLOT_TOKEN) {
        memcpy(sum, value, reduce->size);
    } else if (reduce->kind == SLOT_STEP_SCALARS) {
        struct wire_scalars *total = (struct wire_scalars *)(void *)sum, more;
        memcpy(&more, value, sizeof(more));
        total->loss_sum += more.loss_sum;
        total->aux_sum += more.aux_sum;
        total->labelled += more.labelled;
        total->tokens += more.tokens;
        total->control |= more.control;
    } else if (reduce->kind == SLOT_NORM_SCALAR) {
        double more;
        memcpy(&more, value, sizeof(more));
        *(double *)(void *)sum += more;
    }
}

void reduce_write_result(struct reduce *reduce)
{
    struct ops *ops = reduce->ops;
    const struct wire_scalars *scalars = (const struct wire_scalars *)(const void *)reduce->own;
    switch (reduce->kind) {
    case SLOT_STEP_SCALARS:
        ops->step->sum = (struct plan_step_scalars){scalars->loss_sum, scalars->aux_sum, scalars->labelled,
                                                    scalars->tokens, (uint32_t)scalars->control};
        ops->scalars_reduced = true;
        break;
    case SLOT_NORM_SCALAR:
        memcpy(&ops->norm_square, reduce->own, sizeof(ops->norm_square));
        ops->norm_reduced = true;
        break;
    case SLOT_TOKEN:
        memcpy(&ops->step->token, reduce->own, sizeof(ops->step->token));
        break;
    case SLOT_PARTIAL:
        halves_arrived(reduce);
        break;
    default:
        break;
    }
}

size_t reduce_value_bytes(const struct reduce *reduce)
{
    switch (reduce->kind) {
    case SLOT_STEP_SCALARS:
        return sizeof(struct wire_scalars);
    case SLOT_TOKEN:
        return sizeof(int32_t);
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
