/* Strict orders: the order of a pipeline rank's forwards and backwards that follows from the schedule alone,
 * not from times. Pure. */
#ifndef MOTLEY_PLANNER_SCHEDULE_ORDER_H
#define MOTLEY_PLANNER_SCHEDULE_ORDER_H

#include <stdint.h>

#include "program/program.h"

enum schedule_kind { EVENT_FORWARD, EVENT_BACKWARD, EVENT_INPUT, EVENT_WEIGHT };

struct schedule_event {
    uint32_t stage, micro_batch;
    /* EVENT_BACKWARD computes gradients of inputs and of weights, EVENT_INPUT those of inputs alone,
     * EVENT_WEIGHT those of weights alone. */
    enum schedule_kind kind;
};

struct order_of { /* the input of order_fill, for one rank */
    enum plan_schedule schedule;
    uint32_t groups, stages, micro_batches; /* groups: stages that a micro-batch passes before it comes to a
                                               rank again (candidate_groups) */
    bool alone;                             /* every stage has one rank */
    uint32_t stage;                         /* the first of the rank's stages */
    uint32_t count;                         /* forwards of the rank in a step, of all its stages together */
    const uint32_t *mine;   /* [count]: the rank's micro-batches, ascending in each of its stages; not used if
                               interleaved and `alone` */
    uint32_t window, delay; /* window: micro-batches in flight, ≥ 1; delay: by how many micro-batches
                               EVENT_WEIGHT follows EVENT_INPUT, for split schedules */
};

/* Writes 2 · count events (split: 3 · count): `window` forwards, then one backward and one forward in turn.
 * This is 1F1B, and GPipe if the window is all micro-batches. Interleaved (stages / groups ranges of blocks
 * per rank), if each rank is alone in its stages: as many micro-batches as there are ranks pass all of a
 * rank's ranges before the next ones do, or a few more if the number of micro-batches is no multiple of the
 * ranks (Narayanan et al. 2021, section 2.2, requires a multiple). A window below order_window_least() is
 * raised to it. Interleaved with several ranks a stage: all micro-batches pass one range of blocks before the
 * first passes the next one, forward and then backward (Zorse; breadth-first, Lamy-Poirier 2023), so each
 * range's weights are gathered twice a step. */
void order_fill(const struct order_of *order, struct schedule_event *events);

/* Returns the fewest micro-batches that a rank of an interleaved pipeline must have in flight; with fewer,
 * some rank would wait for a result of its own. laps: ranges of blocks per rank. */
uint32_t order_window_least(uint32_t ranks, uint32_t laps, uint32_t micro_batches, uint32_t rank);

#endif
