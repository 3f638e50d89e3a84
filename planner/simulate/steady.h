/* Steady stretches are not simulated turn by turn.
 *
 * Programs of many equal micro-batches repeat: in the middle of each rank's list, instruction i + q is
 * instruction i for the micro-batch m later, on every rank with the same m: a turn. Which of the turns are
 * taken out does not matter, so a plan with R turns fewer is simulated instead, and it is looked whether its
 * times have become periodic: over a stretch of time in which all ranks are in the middle of their lists,
 * every end comes again exactly D later, p turns on. What a simulated moment depends on lies within that
 * stretch, so with p turns more everything after it would come D later, and by induction with R more R/p·D
 * later: that is added, and nothing is approximated. Where no period shows, more turns are kept, up to half
 * of them; then the caller simulates all.
 *
 * Pure; the plan is borrowed.
 */
#ifndef MOTLEY_PLANNER_SIMULATE_STEADY_H
#define MOTLEY_PLANNER_SIMULATE_STEADY_H

#include "planner/simulate/simulate.h"

struct steady;

/* micro_class[micro_batch_count]: micro-batches of equal number cost alike on each rank and move the same
 * bytes. Returns 0 with *out NULL when the programs have no stretch worth it; −1: ERR_NOMEM. */
int steady_create(const struct plan *plan, int kind, const uint32_t *micro_class, struct steady **out,
                  struct err *err);
void steady_destroy(struct steady *steady);
/* 1: *seconds and ranks[] (may be NULL) are what sim_run gives, up to rounding. 0: no period was found,
 * simulate all. −1: as sim_run. Jitter has no period. */
int steady_run(struct steady *steady, const struct sim_costs *costs, double *seconds, struct sim_rank *ranks,
               struct err *err);
/* The shortened run itself, borrowed: what it shows of paths and shares is that of the steady stretch and of
 * both ends, the stretch not drawn out. NULL before a run. */
const struct sim *steady_sim(const struct steady *steady);
#endif
