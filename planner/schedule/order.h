/* Strict orders: in which order a rank of a pipeline works, whatever the times. Pure. */
#ifndef MOTLEY_PLANNER_SCHEDULE_ORDER_H
#define MOTLEY_PLANNER_SCHEDULE_ORDER_H

#include <stdint.h>

#include "program/program.h"

enum schedule_kind { EVENT_FORWARD, EVENT_BACKWARD, EVENT_INPUT, EVENT_WEIGHT };

struct schedule_event {
    uint32_t stage, micro_batch;
    enum schedule_kind kind; /* EVENT_BACKWARD is whole; EVENT_INPUT and EVENT_WEIGHT are its halves */
};

struct order_of { /* one rank */
    enum plan_schedule schedule;
    uint32_t ranks, stages, micro_batches;
    uint32_t rank, stage;   /* its first stage */
    uint32_t count;         /* of forwards, all its stages together */
    const uint32_t *mine;   /* [count]: its micro-batches, rising (one stage a rank) */
    uint32_t window, delay; /* at least 1; split: of BACKWARD_WEIGHT */
};

/* Writes 2 · count events (split: 3 · count): `window` forwards, then one backward and one forward in turn
 * (1F1B; GPipe where the window is all). Interleaved (stages / ranks ranges a rank), micro-batches go round
 * in groups of as many as there are ranks, or a few more where they are no multiple of it (Narayanan et al.
 * 2021, section 2.2, needs one), and a window below order_window_least() is taken as that. */
void order_fill(const struct order_of *order, struct schedule_event *events);

/* The least window of a rank of an interleaved pipeline: below it some rank would wait for itself. */
uint32_t order_window_least(uint32_t ranks, uint32_t laps, uint32_t micro_batches, uint32_t rank);

#endif
