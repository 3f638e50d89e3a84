/* The loss scale of a run whose gradients pass through fp16, by the rule of torch.amp.GradScaler
 * (Micikevicius et al. 2017, section 3.2): 65536 at first, halved when a step's gradients or loss are not
 * finite (the step is skipped), doubled after 2000 good steps in a row. Every rank keeps a scale and changes
 * it by the result of the step's reductions, which is the same everywhere, so all ranks have the same scale.
 * Pure.
 *
 * The value scales the mean loss, as in other libraries. Stages accumulate gradients of sums over labelled
 * tokens, so they get the scale divided by the step's labelled tokens, rounded down to a power of two.
 * Multiplying by a power of two changes no bit of a value that stays in range.
 */
#ifndef MOTLEY_WORKER_PROGRAM_SCALE_H
#define MOTLEY_WORKER_PROGRAM_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "model/job/spec.h"
#include "program/program.h"

#define LOSS_SCALE_FIRST 65536.0
#define LOSS_SCALE_MAX 16777216.0 /* 2^24; the scale does not grow beyond this */
enum { LOSS_SCALE_GROWS_AFTER = 2000 };

struct loss_scale {
    bool on;        /* whether gradients are scaled; when false the other fields are 0 */
    double value;   /* in [1, LOSS_SCALE_MAX] */
    uint32_t good;  /* steps in a row that updated parameters since the value last changed */
    bool loss_lost; /* the loss of the previous step was not finite */
};

/* Turns scaling on when matrix products or boundary tensors use fp16. All ranks decide alike, because they
 * know the same specification and plan. */
void loss_scale_init(struct loss_scale *scale, const struct job_spec *spec, const struct plan *plan);
/* Returns the factor that stages use (stage_loss_scale_set) in a step of `labelled` labelled tokens: a power
 * of two; 1 when scaling is off. */
double loss_scale_of_sums(const struct loss_scale *scale, uint64_t labelled);
/* Records a step that updated the parameters. */
void loss_scale_good(struct loss_scale *scale);
/* Records a skipped step; `loss` says that the loss itself was not finite. ERR_NOT_FINITE when training
 * cannot continue: the scale would fall below 1, or the loss, which no scale changes, was not finite twice in
 * a row. */
int loss_scale_bad(struct loss_scale *scale, bool loss, struct err *err);

#endif
