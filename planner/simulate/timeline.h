/* What a simulated run looks like from outside: each rank's time (computing, waiting and on whom, idle, its
 * sends), its memory, and the critical path.
 *
 * Pure; read off the last run of a simulator, which must not run again meanwhile. Seconds from the step's
 * beginning.
 */
#ifndef MOTLEY_PLANNER_SIMULATE_TIMELINE_H
#define MOTLEY_PLANNER_SIMULATE_TIMELINE_H

#include "planner/simulate/simulate.h"

enum sim_span_kind { SPAN_COMPUTE, SPAN_WAIT, SPAN_IDLE, SPAN_SEND };

struct sim_span {
    uint32_t rank, kind; /* enum sim_span_kind */
    uint32_t number;     /* global number of the instruction: computing, sending, or waiting to begin */
    int32_t on;          /* rank waited for or sent to; −1: none */
    double begin_s, end_s;
};

struct sim_rank_time {
    double compute_s, wait_s, idle_s; /* together the whole step; idle: after its last instruction */
    double send_s;                    /* beside them */
    int32_t waits_on;                 /* rank it waits for longest; −1: it does not wait */
    double waits_on_s;
};

/* Spans of a rank follow one another: those of its compute queue cover the step without gap or overlap, those
 * of its sends come after them. */
struct sim_timeline {
    double step_s;
    uint32_t rank_count, span_count;
    struct sim_rank_time *ranks;
    struct sim_span *spans; /* by rank */
    uint32_t *first;        /* [rank_count + 1]: spans of a rank */
};

/* Fills *timeline (sim_timeline_fini). ERR_NOMEM. */
int sim_timeline(const struct sim *sim, struct sim_timeline *timeline, struct err *err);
void sim_timeline_fini(struct sim_timeline *timeline);

enum sim_path_kind {
    PATH_COMPUTE,
    PATH_TRANSFER, /* bytes and latency of a link */
    PATH_COLLECTIVE,
    PATH_SHARED, /* waiting for a wire or card that another transfer holds */
};

struct sim_path_part {
    uint32_t kind;   /* enum sim_path_kind */
    uint32_t number; /* instruction; of a transfer: the sending one */
    uint32_t rank;   /* of it */
    int32_t peer;    /* receiver of a transfer; −1 */
    double begin_s, end_s;
};

/* What the step's end waited for, back to its beginning: parts in time order that cover the step without gap
 * or overlap. Where several things ended at once, one of them. */
struct sim_path {
    uint32_t count;
    struct sim_path_part *parts;
};
int sim_path(const struct sim *sim, struct sim_path *path, struct err *err);
void sim_path_fini(struct sim_path *path);

/* Bytes in use on a rank: what it holds all along (its predicted peak less what its rings hold at most) and
 * the buffers between their first writer and what frees them. */
struct sim_memory_point {
    double at_s, bytes; /* from then on */
};
struct sim_memory {
    uint32_t count;
    struct sim_memory_point *points;
    double peak_bytes;
};
/* bytes(): of one instance of a slot for a micro-batch (−1: the whole step's). ERR_NOMEM. */
int sim_memory(const struct sim *sim, uint32_t rank,
               double (*bytes)(void *context, uint32_t rank, uint32_t slot, int32_t micro_batch),
               void *context, struct sim_memory *memory, struct err *err);
void sim_memory_fini(struct sim_memory *memory);

#endif
