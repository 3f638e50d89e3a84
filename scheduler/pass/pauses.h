/* Computes how long the scheduler waits before it tries again, and before it gives up on a transfer or step
 * that stands still. The functions are pure. */
#ifndef MOTLEY_SCHEDULER_PASS_PAUSES_H
#define MOTLEY_SCHEDULER_PASS_PAUSES_H

#include <stdint.h>

/* Returns the milliseconds to wait before the attempt that follows loss number `losses` (from 1): min *
 * 2^(losses-1), at most max. */
uint32_t pause_backoff_ms(uint32_t losses, uint32_t min_ms, uint32_t max_ms);

/* Returns the milliseconds that a transfer or a step of a run may stand still before the run is given up:
 * `steps` times the plan's predicted step time, at least min_ms and at most max_ms; min_ms when max_ms is
 * less. */
uint32_t pause_wait_ms(double step_s, uint32_t steps, uint32_t min_ms, uint32_t max_ms);

#endif
