/* Strict orders: the order in which a pipeline's rank works, independent of times. Pure. */
#ifndef MOTLEY_PLANNER_SCHEDULE_ORDER_H
#define MOTLEY_PLANNER_SCHEDULE_ORDER_H

#include <stdint.h>

#include "program/program.h"

enum schedule_kind { EVENT_FORWARD, EVENT_BACKWARD, EVENT_INPUT, EVENT_WEIGHT };

struct schedule_event {
    uint32_t stage, micro_batch;
    /* EVENT_BACKWARD is a whole backward; EVENT_INPUT and EVENT_WEIGHT are its halves */
    enum schedule_kind kind;
};

struct order_of { /* the input of order_fill, for one rank */
    enum plan_schedule schedule;
    uint32_t ranks, stages, micro_batches;
    uint32_t rank, stage;   /* the rank's first stage */
    uint32_t count;         /* forwards of the rank, all its stages together */
    const uint32_t *mine;   /* [count]: the rank's micro-batches, rising; not used when interleaved */
    uint32_t window, delay; /* window ≥ 1; delay: of BACKWARD_WEIGHT in micro-batches, for split schedules */
};

/* Writes 2 · count events (split: 3 · count): `window` forwards, then one backward and one forward in
 * turn. This is 1F1B, and GPipe if the window is all micro-batches. Interleaved (stages / ranks ranges per
 * rank): micro-batches go round in groups of as many as there are ranks, or of a few more if the number of
 * micro-batches is not a multiple of the ranks (Narayanan et al. 2021, section 2.2, requires a multiple).
 * A window below order_window_least() is raised to it. */
void order_fill(const struct order_of *order, struct schedule_event *events);

/* The least window of a rank of an interleaved pipeline; with a smaller one some rank would wait for
 * itself. */
uint32_t order_window_least(uint32_t ranks, uint32_t laps, uint32_t micro_batches, uint32_t rank);

#endif
