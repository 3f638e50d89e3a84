#include "worker/program/scale.h"

#include <math.h>

enum { SUMS_EXPONENT_MAX = 24 }; /* the bound of stage_loss_scale_set in engine/stage/stage.h */

static bool plan_has_f16(const struct plan *plan)
{
    for (uint32_t r = 0; r < plan->rank_count; r++)
        for (uint32_t s = 0; s < plan->ranks[r].slot_count; s++)
            if (plan->ranks[r].slots[s].dtype == PLAN_F16)
                return true;
    return false;
}

void loss_scale_init(struct loss_scale *scale, const struct job_spec *spec, const struct plan *plan)
{
    *scale = (struct loss_scale){.on = spec->train.compute == SPEC_COMPUTE_FP16 || plan_has_f16(plan)};
    if (scale->on)
        scale->value = LOSS_SCALE_FIRST;
}

double loss_scale_of_sums(const struct loss_scale *scale, uint64_t labelled)
{
    int exponent;
    if (!scale->on)
        return 1;
    frexp(scale->value / (double)(labelled > 0 ? labelled : 1), &exponent);
    exponent -= 1; /* frexp's fraction is in [1/2, 1) */
    exponent = exponent > SUMS_EXPONENT_MAX ? SUMS_EXPONENT_MAX : exponent;
    return ldexp(1, exponent < -SUMS_EXPONENT_MAX ? -SUMS_EXPONENT_MAX : exponent);
}

void loss_scale_good(struct loss_scale *scale)
{
    scale->loss_lost = false;
    if (!scale->on || ++scale->good < LOSS_SCALE_GROWS_AFTER)
        return;
    scale->good = 0;
    scale->value = fmin(2 * scale->value, LOSS_SCALE_MAX);
}

int loss_scale_bad(struct loss_scale *scale, bool loss, struct err *err)
{
    if (loss && scale->loss_lost)
        return err_set(err, ERR_NOT_FINITE,
                       "the loss is not finite for the second step in a row, and no loss scale changes that: "
                       "values grow beyond what fp16 holds (65504), or the training has diverged");
    scale->loss_lost = loss;
    scale->good = 0;
    if (scale->value / 2 < 1)
        return err_set(err, ERR_NOT_FINITE,
                       "the %s not finite at a loss scale of %g, the least there is: "
                       "the training has diverged, or needs train.compute: bf16 or fp32",
                       loss ? "loss is" : "gradients are", scale->value);
    scale->value /= 2;
    return 0;
}
