/* Plans of tensor groups: tensor.c has groups, memory and slots, tensor_program.c the instruction lists.
 * For planner/emit and planner/kind/tensor.c. */
#ifndef MOTLEY_PLANNER_EMIT_TENSOR_H
#define MOTLEY_PLANNER_EMIT_TENSOR_H

#include "planner/candidate/candidate.h"

/* Of a step of so many micro-batches: how many are worked on in turns, and buffers of a boundary tensor's
 * size that a rank of stage s has. Windows are in units of micro-batches worked on in turns. */
uint32_t tensor_together(const struct candidate *candidate, uint32_t micro_batches);
uint32_t tensor_partials(const struct candidate *candidate, uint32_t s, uint32_t micro_batches);
/* Units between their forward and the next stage's: depth of the ring between stages with those windows. */
uint32_t tensor_ring(uint32_t window, uint32_t next);

/* As struct kind's emit. */
struct plan *tensor_emit(const struct problem *problem, const struct candidate *candidate, bool programs,
                         struct err *err);

#endif
