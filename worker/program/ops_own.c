/* This rank's contributions to reductions, and the tag and queue of its messages. */
#include <math.h>

#include "worker/program/ops_private.h"

uint64_t ops_tag(const struct ops *ops, const struct instr *instr)
{
    return mesh_tag((uint8_t)instr->tag, (uint16_t)ops->run_number, (uint16_t)instr->block_begin,
                    (uint32_t)instr->micro_batch);
}

int ops_group_queue(const struct ops *ops, int32_t group, uint32_t rank, uint32_t *queue, struct err *err)
{
    const struct plan *plan = ops->options.plan;
    uint32_t before = 0;
    for (int32_t g = 0; g < group; g++)
        before += plan_group_position(&plan->groups[g], rank) >= 0 &&
                  plan_group_position(&plan->groups[g], ops->options.rank) >= 0;
    if (before >= OPS_QUEUE_GROUP_COUNT)
        return err_set(err, ERR_UNSUPPORTED,
                       "group %d is the %uth that ranks %u and %u share, and this worker keeps apart %d",
                       (int)group, before + 1, ops->options.rank, rank, OPS_QUEUE_GROUP_COUNT);
    *queue = OPS_QUEUE_GROUPS + before;
    return 0;
}

/* A value that is not finite ends the step on all ranks together instead of ending the run on this one. */
static int note_not_finite(struct ops *ops, struct err *err)
{
    if (err->code != ERR_NOT_FINITE)
        return -1;
    if (ops->step->not_finite.code == ERR_NONE)
        ops->step->not_finite = *err;
    err_clear(err);
    return 0;
}

/* Adds the load-balancing loss, which is a part of the reported loss as in transformers. */
static int add_router_loss(struct ops *ops, double *loss_sum, struct err *err)
{
    double sum;
    if (ops->step->router_scale == 0)
        return 0;
    if (stages_router_loss(ops->options.stages, &sum, err) < 0)
        return -1;
    *loss_sum += ops->step->router_scale * sum;
    return 0;
}

int ops_own_scalars(struct ops *ops, struct plan_step_scalars *scalars, struct err *err)
{
    *scalars = (struct plan_step_scalars){.control = ops->step->control};
    if (stages_loss(ops->options.stages, &scalars->loss_sum, &scalars->labelled, err) < 0) {
        if (note_not_finite(ops, err) < 0)
            return -1;
        scalars->loss_sum = 0;
        scalars->control |= CONTROL_NOT_FINITE;
    }
    if (add_router_loss(ops, &scalars->loss_sum, err) < 0)
        return -1;
    if (ops->options.rank == 0) /* every rank knows the step's tokens, so only rank 0 counts them */
        scalars->tokens = ops->batch->tokens;
    return 0;
}

int ops_own_norm(struct ops *ops, double *square, struct err *err)
{
    *square = ops->norm_square;
    /* norm_square is already the sum over the ranks that own parameters; this rank only passes it on. */
    if (ops->norm_reduced)
        return 0;
    if (stages_grad_square_sum(ops->options.stages, ops->options.plan, ops->options.rank, square, err) == 0)
        return 0;
    if (note_not_finite(ops, err) < 0)
        return -1;
    *square = NAN;
    return 0;
}
