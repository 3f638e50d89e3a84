#include "scheduler/pass/pauses.h"

uint32_t pause_backoff_ms(uint32_t losses, uint32_t min_ms, uint32_t max_ms)
{
    uint64_t wait = min_ms;
    for (uint32_t i = 1; i < losses && wait < max_ms; i++)
        wait *= 2;
    return wait < max_ms ? (uint32_t)wait : max_ms;
}

uint32_t pause_wait_ms(double step_s, uint32_t steps, uint32_t min_ms, uint32_t max_ms)
{
    double wait_ms = step_s * 1e3 * (double)steps;
    if (!(wait_ms > (double)min_ms) || max_ms < min_ms)
        return min_ms;
    return wait_ms < (double)max_ms ? (uint32_t)wait_ms : max_ms;
}
