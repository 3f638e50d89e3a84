/* Micro-batch sizes worth trying, and what blocks cost at their mean load. For planner/ only. */
#ifndef MOTLEY_PLANNER_COST_MICRO_H
#define MOTLEY_PLANNER_COST_MICRO_H

#include "planner/cost/problem.h"

#define MICRO_SIZES_MAX 48u

/* Sizes in rows, rising: 1, 2, 3, 4, 6, 8, 12, … and the whole batch; or the one asked for. Returns how many.
 */
uint32_t micro_sizes(const struct problem *problem, uint32_t sizes[MICRO_SIZES_MAX]);
/* Does the specification allow it? */
bool micro_recompute_allowed(const struct problem *problem, bool recompute);

/* Seconds of blocks [begin, end). */
double micro_forward(const struct problem *problem, const struct micro_cost *cost, int32_t begin,
                     int32_t end);
double micro_backward(const struct problem *problem, const struct micro_cost *cost, int32_t begin,
                      int32_t end, bool recompute);
/* Share of the seconds of a backward of blocks [begin, end) (recomputation not counted) that only gradients
 * of parameters need, 0..1: what BACKWARD_WEIGHT takes. By FLOPs: a matrix takes as many for its input's
 * gradient as for its own, attention twice its forward's for its inputs alone, a frozen matrix none for
 * itself. */
double micro_weight_share(const struct problem *problem, int32_t begin, int32_t end,
                          const struct cost_load *load);

#endif
