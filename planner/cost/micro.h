/* Lists the micro-batch sizes that the search tries, and prices blocks at their mean load. For planner/ only.
 */
#ifndef MOTLEY_PLANNER_COST_MICRO_H
#define MOTLEY_PLANNER_COST_MICRO_H

#include "planner/cost/problem.h"

#define MICRO_SIZES_MAX 48u

/* Writes the sizes in rows, rising: 1, 2, 3, 4, 6, 8, 12, … and the whole batch; or only the size that the
 * specification asks for. Returns their number. */
uint32_t micro_sizes(const struct problem *problem, uint32_t sizes[MICRO_SIZES_MAX]);
/* True if the specification allows recomputing (or not recomputing) activations. */
bool micro_recompute_allowed(const struct problem *problem, bool recompute);

/* Return the seconds of forward, and of backward (with recomputation if asked for), of blocks [begin, end).
 */
double micro_forward(const struct problem *problem, const struct micro_cost *cost, int32_t begin,
                     int32_t end);
double micro_backward(const struct problem *problem, const struct micro_cost *cost, int32_t begin,
                      int32_t end, bool recompute);
/* Returns the seconds of a backward of blocks [begin, end), of which those before `again_end` are recomputed
 * and the others are not. */
double micro_backward_again(const struct problem *problem, const struct micro_cost *cost, int32_t begin,
                            int32_t end, int32_t again_end);
/* Returns the share, 0..1, of a backward's seconds (without recomputation) for blocks [begin, end) that only
 * parameters' gradients need: the part that BACKWARD_WEIGHT takes. It is estimated by FLOPs. A trained matrix
 * needs as many for its input's gradient as for its own, and a frozen matrix none for its own. Attention
 * needs twice its forward's FLOPs, all for its inputs. */
double micro_weight_share(const struct problem *problem, int32_t begin, int32_t end,
                          const struct cost_load *load);

#endif
