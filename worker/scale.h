/* The loss scale of a run whose gradients pass through fp16, by the rule of torch.amp.GradScaler
 * (Micikevicius et al. 2017, section 3.2): 65536 at first, halved when a step's gradients or loss are not
 * finite (the step is skipped), doubled after 2000 good steps in a row. Every rank keeps one and moves it by
 * what the step's reductions told all of them alike, so all have the same. Pure.
 *
 * It is the scale of the mean loss, as others have it. Stages add up gradients of sums over labelled tokens,
 * so what they are given is the scale divided by the step's labelled tokens, rounded down to a power of two,
 * which changes no bit of what stays within range. */
#ifndef MOTLEY_WORKER_SCALE_H
#define MOTLEY_WORKER_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "model/spec.h"
#include "program/program.h"

#define LOSS_SCALE_FIRST 65536.0
#define LOSS_SCALE_MAX 16777216.0 /* 2^24; where it stops growing */
enum { LOSS_SCALE_GROWS_AFTER = 2000 };

struct loss_scale {
    bool on;        /* else the gradients are not scaled, and all below is 0 */
    double value;   /* in [1, LOSS_SCALE_MAX] */
    uint32_t good;  /* steps in a row that were stepped with, since it last moved */
    bool loss_lost; /* the loss of the step before was not finite */
};

/* On where products or boundary tensors are in fp16: a function of what all ranks know. */
void loss_scale_init(struct loss_scale *scale, const struct job_spec *spec, const struct plan *plan);
/* What stages multiply by in a step of so many labelled tokens: a power of two; 1 where it is off. */
double loss_scale_of_sums(const struct loss_scale *scale, uint64_t labelled);
/* After a step that was stepped with. */
void loss_scale_good(struct loss_scale *scale);
/* After one that was skipped, loss: the loss itself was not finite. ERR_NOT_FINITE where going on is no use:
 * the scale is below 1, or the loss, which no scale changes, was lost twice in a row. */
int loss_scale_bad(struct loss_scale *scale, bool loss, struct err *err);

#endif
