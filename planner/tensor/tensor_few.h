/* Pipelines of tensor groups of few devices: of all ordered groupings at all sizes of micro-batches, those
 * that promise most (planner/few/). For this room only; pure. */
#ifndef MOTLEY_PLANNER_TENSOR_TENSOR_FEW_H
#define MOTLEY_PLANNER_TENSOR_TENSOR_FEW_H

#include "planner/tensor/arrangement.h"

#define TENSOR_FEW_DEVICES 8u

/* Adds what it finds to the arrangement's list, which is used as it comes. Nothing where there are more than
 * TENSOR_FEW_DEVICES devices, or too few. Returns −1 on ERR_NOMEM only. */
int tensor_few_try(struct arrangement *a, struct err *err);

#endif
