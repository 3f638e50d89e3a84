/* Areas that callers bind to blocks. */
#ifndef MOTLEY_ENGINE_STAGE_OUTSIDE_H
#define MOTLEY_ENGINE_STAGE_OUTSIDE_H

#include "engine/stage/stage_state.h"

/* Refuses to run blocks [begin, end) if an outside area of one is not bound. */
int blocks_bound(const struct stage *stage, uint32_t begin, uint32_t end, bool gradients, struct err *err);

#endif
