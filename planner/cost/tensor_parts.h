/* Tells which layers can be cut over a tensor group, and makes descriptions of their parts. Pure. */
#ifndef MOTLEY_PLANNER_COST_TENSOR_PARTS_H
#define MOTLEY_PLANNER_COST_TENSOR_PARTS_H

#include "common/err.h"
#include "model/shape/footprint.h"

struct problem;

/* Returns why the engine cannot cut this workload's layers, or NULL. */
const char *tensor_lacks(const struct problem *problem);
/* Fills part_least, part_heads and part_columns of the problem, if tensor plans are possible; the problem's
 * model and workload are filled before. ERR_NOMEM. */
int tensor_parts_init(struct problem *problem, struct err *err);
/* Describes the memory of layers with `heads` key heads and `columns` FFN columns in **out, which it
 * allocates if it is NULL. */
int tensor_part_make(const struct problem *problem, uint32_t heads, uint32_t columns,
                     struct footprint_model **out, struct err *err);

#endif
