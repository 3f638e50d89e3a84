/* The steps of an answer, for the files of this folder alone: the best plan, what it was compared with, what
 * looks wrong, and what would help. Pure. */
#ifndef MOTLEY_PLANNER_ANSWER_ANSWER_PRIVATE_H
#define MOTLEY_PLANNER_ANSWER_ANSWER_PRIVATE_H

#include "planner/answer/answer.h"
#include "planner/search/search.h"

#define LEFT_OUT_TRIED 16u /* most devices of a cluster in which unused devices are tried one by one */
#define DOUBTS_MAX 16u     /* most warnings; if there are more, one further sentence gives their number */

/* --- best.c, precision.c: the plan --- */

/* Does what plan_search does (plan.h), except for options->advise, gains and insight; an open workload
 * (compute_open) is planned in what `compute` says. */
int plan_best(const struct workload *workload, const struct cluster *cluster,
              const struct plan_options *options, struct plan_answer **answer, struct err *err);
/* Plans a workload as plan_best does, an open one in whichever of fp32, bf16 and fp16 is best for its
 * objective on the devices that it may use, which is set in the workload. 16 bits are tried where a device of
 * the cluster multiplies them faster, and chosen if they gain a fiftieth; where none does, the workload is
 * computed in fp32, and nothing else is searched. With a plan to start from, it is what that plan is computed
 * in. */
int precision_best(struct workload *workload, const struct cluster *cluster,
                   const struct plan_options *options, struct plan_answer **answer, struct err *err);
/* Plans a changed workload as precision_best does, without programs, with a small part of the default budget
 * and the seed of `options`. *answer stays NULL for a workload that cannot be planned. −1: ERR_NOMEM. */
int precision_short(struct workload *workload, const struct cluster *cluster,
                    const struct plan_options *options, struct plan_answer **answer, struct err *err);

/* --- alternatives.c: the plans that the chosen one was compared with --- */

/* Fills answer->alternatives: the best of every placement, every device alone, and the best plan that workers
 * of this release can run. ERR_NOMEM. */
int alternatives_fill(const struct problem *problem, const struct search_found *found,
                      struct plan_answer *answer, struct err *err);
/* Fills answer->left_out: for each device that the plan does not use, why, and the step's seconds with it.
 * Returns 0; 1 if a plan with such a device is better: *found then has it as the best, and nothing is filled;
 * −1 ERR_NOMEM. */
int left_out_fill(const struct problem *problem, const struct search_options *options,
                  struct search_found *found, struct plan_answer *answer, struct err *err);

/* --- rivals.c: plans that may be as fast as the answer's, for trial steps (docs/PLANNER.md) --- */

/* Fills answer->rivals with the best runnable plans of other placements than the answer's, at most `most`, as
 * far as each is predicted to take at most RIVAL_MOST times the answer's step. None where the job's objective
 * is not time, or the job is so short that a trial could not pay for one move. ERR_NOMEM. */
int rivals_fill(const struct problem *p, const struct search_found *found, uint32_t most,
                struct plan_answer *answer, struct err *err);

/* --- doubts.c: what looks wrong but can be planned with --- */

/* Fills answer->warnings for the problem's usable devices: times that such a device cannot reach, or that are
 * absurdly long (perhaps not in seconds), times that fall while the work rises, amounts in a wrong unit.
 * ERR_NOMEM. */
int problem_doubts(const struct problem *problem, struct plan_answer *answer, struct err *err);

/* --- insight_fill.c, would_fit.c, would_gain.c: what would help --- */

/* Fills answer->insight (insight.h). If the plan has no programs, or very long ones, nothing is filled.
 * options: those of the search that gave the answer. ERR_NOMEM, or as plan_search. */
int plan_insight_fill(const struct workload *workload, const struct cluster *cluster,
                      const struct plan_options *options, struct plan_answer *answer, struct err *err);
/* Where memory is all that an answer lacks, appends to its words what would fit, each found by short
 * searches: shorter rows, moments on the host, a base in NF4, or more memory on one device. ERR_NOMEM. */
int would_fit_say(const struct workload *workload, const struct cluster *cluster,
                  const struct plan_options *options, struct plan_answer *answer, struct err *err);
/* Plans the job shortly with one choice changed at a time, and fills answer->gains with the
 * ANSWER_GAINS_MAX best that gain at least a tenth in tokens per second: a base in NF4, twice the rows of a
 * step, 16 bits in the place of fp32 (unless `computed_open`: the planner has chosen), or a placement that
 * the planner chooses. `workload` is as the answer was planned. ERR_NOMEM. */
int would_gain_find(const struct workload *workload, bool computed_open, const struct cluster *cluster,
                    const struct plan_options *options, struct plan_answer *answer, struct err *err);

#endif
