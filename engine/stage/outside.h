/* The check before a run that callers have bound the areas which a stage does not keep itself: a block's
 * frozen parameters, its trained values and their gradients (engine/stage/stage.h, state from outside). */
#ifndef MOTLEY_ENGINE_STAGE_OUTSIDE_H
#define MOTLEY_ENGINE_STAGE_OUTSIDE_H

#include "engine/stage/stage_state.h"

/* Refuses to run blocks [begin, end) if an outside area of one is not bound. */
int blocks_bound(const struct stage *stage, uint32_t begin, uint32_t end, bool gradients, struct err *err);

#endif
