/* Should a running job move to another plan?
 *
 * A job moves when what it still has to do takes longer on the plan it runs than moving and going on with the
 * new one: (T_old − T_new)·steps left > migration + restart (docs/PLANNER.md, Search). With hysteresis: the
 * new plan must be at least REPLAN_GAIN faster in REPLAN_WINDOWS looks in a row, because measured costs
 * wander and each move costs. A plan that can no longer run (a device gone, or too small now) is left at
 * once.
 *
 * Pure: the caller measures, keeps the state between looks, and decides when a look is due.
 */
#ifndef MOTLEY_REPLAY_REPLAN_H
#define MOTLEY_REPLAY_REPLAN_H

#include <jansson.h>

#include "planner/answer/plan.h"

#define REPLAN_GAIN 0.05  /* of the old plan's step */
#define REPLAN_WINDOWS 2u /* looks in a row that show it */

/* Between looks; zeros at first and after a move. */
struct replan_state {
    uint32_t windows; /* looks in a row that showed the gain */
};

enum replan_verdict {
    REPLAN_STAY,
    REPLAN_MOVE,
    REPLAN_MUST, /* the old plan cannot run any more, and there is another */
    REPLAN_STUCK /* it cannot run any more, and nothing fits */
};

struct replan_input {
    const struct plan *old;          /* running now, with its programs */
    const struct workload *workload; /* as it was planned for */
    const struct cluster *cluster;   /* as it is now: devices, new costs, links */
    uint64_t steps_left;
    double restart_s; /* from the last step on the old plan to the first on the new one, nothing
                         moved: checkpoint, stopping, starting, connecting */
    const struct plan_options *options; /* of the search; NULL: the defaults. `from` is set to old */
};

struct replan_decision {
    enum replan_verdict verdict;
    double old_step_s;        /* under the new costs; 0: it cannot run */
    double new_step_s;        /* 0: nothing fits */
    double gain;              /* 1 − new/old; 0 where one is missing */
    double migration_s;       /* to move what changes place; 0 where the old plan is kept */
    uint64_t migration_bytes; /* in all */
    double saves_s;           /* (old − new)·steps left */
    double costs_s;           /* migration + restart */
    uint32_t windows;         /* looks in a row that showed the gain, this one among them */
    char *words;              /* a sentence with the numbers */
    struct plan *plan;        /* the new one, sealed; NULL when it is the old one or nothing fits; owned */
};

/* One look. Advances *state. Returns 0 and fills *decision (replan_decision_fini); −1: ERR_INVALID for
 * nonsense (restart_s negative or not finite, a plan without programs), else as plan_search. */
int replan_decide(const struct replan_input *input, struct replan_state *state,
                  struct replan_decision *decision, struct err *err);
/* The same from an answer that is there: of a search for time with input->old as `from` (input->options are
 * not read). Takes the answer's plan where that is another one. ERR_INVALID, ERR_NOMEM. */
int replan_weigh(const struct replan_input *input, struct plan_answer *answer, struct replan_state *state,
                 struct replan_decision *decision, struct err *err);
void replan_decision_fini(struct replan_decision *decision);

/* What must be moved from plan to plan: for each rank of the new one, the blocks that its device did not hold
 * (base weights, adapters, optimiser state), from a device that did, over the links as they are; base weights
 * that no device of the cluster holds any more are fetched anew and not counted here. A device sends and
 * receives one thing after another, different ones at once. Writes bytes in all and seconds. ERR_NOMEM. */
int replan_migration(const struct workload *workload, const struct cluster *cluster, const struct plan *from,
                     const struct plan *to, uint64_t *bytes, double *seconds, struct err *err);

/* {"verdict", "old_step_s", "new_step_s", "gain", "saves_s", "costs_s", "migration_s", "migration_bytes",
 * "windows", "words"}. Returns new, or NULL with ERR_NOMEM. */
json_t *replan_to_json(const struct replan_decision *decision, struct err *err);

#endif
