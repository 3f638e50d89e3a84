/* Cutting blocks over stages that stand in an order: the least period, exactly but for whole blocks and for
 * windows guessed from the tail. For planner/kind only; pure. */
#ifndef MOTLEY_PLANNER_KIND_CUT_H
#define MOTLEY_PLANNER_KIND_CUT_H

#include "planner/kind/kind.h"

/* What a stage would be with blocks [begin, end). */
struct cut_stage {
    double period_s; /* between two of its micro-batches; INFINITY: it does not fit */
    double pass_s;   /* of one micro-batch, forward and backward */
};

struct cut_rule {
    /* Of stage s as its members stand, blocks [begin, end), with `window` micro-batches under way. */
    struct cut_stage (*look)(struct workbench *bench, struct candidate *candidate, uint32_t s, int32_t begin,
                             int32_t end, uint32_t window);
};

/* Sets every stage's blocks: bisection over the period; at each, stages take as many blocks as they can from
 * the tail, each with the window that a micro-batch's way behind it asks for. Returns 1, or 0 when nothing
 * fits (the blocks are as before). */
int cut_blocks(struct workbench *bench, struct candidate *candidate, const struct cut_rule *rule);

#endif
