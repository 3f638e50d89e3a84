/* Plans of tensor groups: tensor.c makes groups, memory and slots, tensor_program.c the instruction lists.
 * For planner/emit and planner/kind/tensor.c. */
#ifndef MOTLEY_PLANNER_EMIT_TENSOR_H
#define MOTLEY_PLANNER_EMIT_TENSOR_H

#include "planner/candidate/candidate.h"

/* For a step of that many micro-batches: how many are worked on in turns (a unit), and how many buffers of
 * a boundary tensor's size a rank of stage s has. Windows are in units. */
uint32_t tensor_together(const struct candidate *candidate, uint32_t micro_batches);
uint32_t tensor_partials(const struct candidate *candidate, uint32_t s, uint32_t micro_batches);
/* Depth, in units, of the ring between two stages with these windows. */
uint32_t tensor_ring(uint32_t window, uint32_t next);

/* See emit in struct placement_kind. */
struct plan *tensor_emit(const struct problem *problem, const struct candidate *candidate, bool programs,
                         struct err *err);

#endif
