/* Decides whether a running job should move to another plan.
 *
 * A job moves if its remaining steps take longer on the present plan than moving and going on with the new
 * plan: (T_old − T_new)·steps left > migration + restart (docs/PLANNER.md, Search). There is hysteresis:
 * the new plan must be at least REPLAN_GAIN faster in REPLAN_WINDOWS successive decisions, because
 * measured costs vary and each move costs time. A plan that cannot run any more (a device is gone, or too
 * small now) is left at once.
 *
 * Pure: the caller measures, keeps the state between decisions, and chooses when to decide.
 */
#ifndef MOTLEY_REPLAY_REPLAN_H
#define MOTLEY_REPLAY_REPLAN_H

#include <jansson.h>

#include "planner/answer/plan.h"

#define REPLAN_GAIN 0.05  /* least gain for a move, as a share of the old plan's seconds per step */
#define REPLAN_WINDOWS 2u /* successive decisions that must show the gain */
/* A rank that computes for less than this share of a step, planned and measured, tells nothing of its device:
 * what is measured of a few milliseconds are wake-ups and timers. */
#define REPLAN_PART 0.1

/* State between decisions; zeros at first and after a move. */
struct replan_state {
    uint32_t windows; /* successive decisions that showed the gain */
};

enum replan_verdict {
    REPLAN_STAY,
    REPLAN_MOVE,
    REPLAN_MUST, /* the old plan cannot run any more, and there is another */
    REPLAN_STUCK /* the old plan cannot run any more, and nothing fits */
};

struct replan_input {
    const struct plan *old;          /* the plan that runs, with its programs */
    const struct workload *workload; /* the workload that it was planned for */
    const struct cluster *cluster;   /* the present cluster: devices, costs, links */
    uint64_t steps_left;
    double restart_s; /* seconds from the last step on the old plan to the first on the new one without
                         migration: checkpoint, stop, start, connect */
    const struct plan_options
        *options; /* options of the search; NULL: defaults. `from` is replaced by `old` */
};

struct replan_decision {
    enum replan_verdict verdict;
    double old_step_s;        /* seconds of a step of the old plan at the present costs; 0: it cannot run */
    double old_corrected;     /* the factor in old_step_s that earlier runs taught; 0: there is none */
    double new_step_s;        /* seconds of a step of the new plan; 0: no plan fits */
    double gain;              /* 1 − new/old; 0 if one of them is missing */
    double migration_s;       /* seconds of migration; 0 if the old plan stays */
    uint64_t migration_bytes; /* bytes of the whole migration */
    double saves_s;           /* seconds that the new plan saves: (old − new)·steps left */
    double costs_s;           /* seconds that moving costs: migration + restart */
    uint32_t windows;         /* successive decisions that showed the gain, including this one */
    char *words;              /* the decision and its numbers as a sentence for people */
    struct plan *plan;        /* the new plan, sealed; NULL if the old plan stays or nothing fits; owned */
};

/* Decides once and advances *state. Returns 0 and fills *decision (replan_decision_fini); −1: ERR_INVALID
 * for invalid input (restart_s negative or not finite, a plan without programs), else as plan_search. */
int replan_decide(const struct replan_input *input, struct replan_state *state,
                  struct replan_decision *decision, struct err *err);
/* As replan_decide, with the answer of a search that has been made: for time, with input->old as `from`
 * (input->options are not read). Takes the answer's plan if it differs from the old one. ERR_INVALID,
 * ERR_NOMEM. */
int replan_weigh(const struct replan_input *input, struct plan_answer *answer, struct replan_state *state,
                 struct replan_decision *decision, struct err *err);
void replan_decision_fini(struct replan_decision *decision);

/* The migration from one plan to another. For each rank of the new plan, the blocks that its device did
 * not hold (base weights, adapters, optimiser state) come from a device that did, over the given links.
 * Base weights that no device of the cluster holds are downloaded again and not counted here. A device
 * sends and receives one block after another; different devices work at the same time. Writes total bytes
 * and seconds. ERR_NOMEM. */
int replan_migration(const struct workload *workload, const struct cluster *cluster, const struct plan *from,
                     const struct plan *to, uint64_t *bytes, double *seconds, struct err *err);

/* Writes to factors[plan->rank_count] how much faster than the cluster's tables say the device of each rank
 * computed, where the rank took compute_s[rank] seconds a step (0: unknown, factor 1; so are ranks of a small
 * part, REPLAN_PART). A device of several ranks has one factor. A plan on a device that the cluster lacks has
 * factors of 1. ERR_INVALID, ERR_NOMEM. */
int replan_factors(const struct workload *workload, const struct cluster *cluster, const struct plan *plan,
                   const double *compute_s, double *factors, struct err *err);

/* Returns {"verdict", "old_step_s", "old_corrected"?, "new_step_s", "gain", "saves_s", "costs_s",
 * "migration_s", "migration_bytes", "windows", "words"}, new, or NULL with ERR_NOMEM. */
json_t *replan_to_json(const struct replan_decision *decision, struct err *err);

#endif
