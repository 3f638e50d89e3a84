/* What a plan's time rests on: how much of it was measured, imported, estimated, of devices and of links.
 * Links count with what the critical path spends on them (a transfer behind computation takes no time), the
 * rest is shared out by what every rank computes. For this room only; pure. */
#ifndef MOTLEY_PLANNER_ANSWER_PROVENANCE_H
#define MOTLEY_PLANNER_ANSWER_PROVENANCE_H

#include "planner/cost/price.h"
#include "planner/answer/answer.h"
#include "planner/simulate/timeline.h"

struct rests_on {
    double share[ORIGIN_COUNT]; /* of the step; together 1 */
    double links_share;         /* of it spent on links, whatever their origin */
    double uncertainty;         /* relative, of the step: each part's own by its share */
    bool links_emulated;        /* any link used is */
};

/* From a critical path of the priced plan, whose ranks' busy_s are filled. */
void rests_of_path(const struct price *price, const struct plan_graph *graph, const struct sim_path *path,
                   struct rests_on *rests);

/* Longer programs without a steady stretch are judged without a path, by busy seconds alone. */
#define PATH_INSTRUCTIONS_MAX 100000u

/* Simulates one step of answer->plan (programs needed; `run`, which may be NULL: what priced it, used where
 * that was the same step) and writes the shares, the sentence and emulated links into plan->costs, and
 * answer->uncertainty. ERR_NOMEM. */
int answer_rests(const struct problem *problem, struct plan_answer *answer, const struct price_run *run,
                 struct err *err);

#endif
