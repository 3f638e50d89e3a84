/* What a simulated run looks like from outside: each rank's time (computing, waiting and on whom, idle, its
 * sends), its memory, and the critical path.
 *
 * Pure; read off the last run of a simulator, which must not run again meanwhile. Seconds from the step's
 * beginning.
 */
#ifndef MOTLEY_PLANNER_SIMULATE_TIMELINE_H
#define MOTLEY_PLANNER_SIMULATE_TIMELINE_H

#include "planner/simulate/simulate.h"

struct sim_rank_time {
    double compute_s, wait_s, idle_s; /* together the whole step; idle: after its last instruction */
    double send_s;                    /* beside them */
    int32_t waits_on;                 /* rank it waits for longest; −1: it does not wait */
    double waits_on_s;
};

/* Fills ranks[rank_count]. ERR_NOMEM. */
int sim_rank_times(const struct sim *sim, struct sim_rank_time *ranks, struct err *err);

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

/* The most bytes in use on a rank at once: what it holds all along (its predicted peak less what its rings
 * hold at most) and the buffers between their first writer and what frees them. bytes(): of one instance of a
 * slot for a micro-batch (−1: the whole step's). ERR_NOMEM. */
int sim_memory_peak(const struct sim *sim, uint32_t rank,
                    double (*bytes)(void *context, uint32_t rank, uint32_t slot, int32_t micro_batch),
                    void *context, double *peak_bytes, struct err *err);

#endif
