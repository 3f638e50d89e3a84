/* Seconds of tensor groups in a pipeline, nearly: halves of blocks and the sums behind them in the order of
 * their programs, members waiting for each other at every sum, links between stages one transfer at a time;
 * buffers unbounded, sums of different groups and transfers beside each other. Several times faster than
 * emitting and simulating, to tell what is not worth that: nothing is answered by it. For this room only;
 * pure. */
#ifndef MOTLEY_PLANNER_TENSOR_TENSOR_QUICK_H
#define MOTLEY_PLANNER_TENSOR_TENSOR_QUICK_H

#include "planner/tensor/tensor.h"

struct tensor_quick;

/* For choices of one problem, over at most steps_max of its priced steps; it remembers what micro-batches
 * cost. New, or NULL with ERR_NOMEM. */
struct tensor_quick *tensor_quick_create(const struct problem *problem, uint32_t steps_max, struct err *err);
void tensor_quick_destroy(struct tensor_quick *quick);

/* Negative: it cannot say (another placement, too many stages or members). Memory is not looked at. */
double tensor_quick_seconds(struct tensor_quick *quick, const struct place_choice *choice);

#endif
