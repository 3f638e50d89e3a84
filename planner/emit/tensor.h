/* Plans of tensor groups: tensor.c makes groups, memory and slots, tensor_program.c the instruction lists.
 * For planner/emit and planner/kind/tensor.c. */
#ifndef MOTLEY_PLANNER_EMIT_TENSOR_H
#define MOTLEY_PLANNER_EMIT_TENSOR_H

#include "planner/candidate/candidate.h"

/* For a step of `micro_batches` micro-batches: tensor_together returns how many form a unit (they are
 * computed in turns, so that all-reduces overlap computing); tensor_partials returns how many buffers of a
 * boundary tensor's size a rank of stage s has. Windows are in units. */
uint32_t tensor_together(const struct candidate *candidate, uint32_t micro_batches);
uint32_t tensor_partials(const struct candidate *candidate, uint32_t s, uint32_t micro_batches);
/* Returns the depth, in units, of the ring of boundary buffers between two stages with these windows. */
uint32_t tensor_ring(uint32_t window, uint32_t next);

/* Makes the plan of a candidate, as `emit` in struct placement_kind (planner/kind/kind.h) says. */
struct plan *tensor_emit(const struct problem *problem, const struct candidate *candidate,
                         enum emit_programs programs, struct err *err);

#endif
