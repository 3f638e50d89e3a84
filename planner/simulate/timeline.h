/* Reports on a simulated run: each rank's time (computing, waiting and for which rank, idle, sending), its
 * memory, and the critical path.
 *
 * Pure. Reads the last run of a simulator, which must not run again meanwhile. Times are seconds from the
 * step's beginning.
 */
#ifndef MOTLEY_PLANNER_SIMULATE_TIMELINE_H
#define MOTLEY_PLANNER_SIMULATE_TIMELINE_H

#include "planner/simulate/simulate.h"

struct sim_rank_time {
    double compute_s, wait_s, idle_s; /* seconds that sum to the step; idle: after the rank's last
                                         instruction */
    double send_s;                    /* seconds in which the rank sends; they overlap the other three */
    int32_t waits_on;                 /* rank for which this rank waits longest; −1: this rank never waits */
    double waits_on_s;
};

/* Fills ranks[rank_count] with each rank's times. ERR_NOMEM. */
int sim_rank_times(const struct sim *sim, struct sim_rank_time *ranks, struct err *err);

enum sim_path_kind {
    PATH_COMPUTE,
    PATH_TRANSFER, /* bytes and latency of a link */
    PATH_COLLECTIVE,
    PATH_SHARED, /* waiting for a wire or card that another transfer uses */
};

struct sim_path_part {
    uint32_t kind;   /* enum sim_path_kind */
    uint32_t number; /* number of the instruction; for a transfer, of the send */
    uint32_t rank;   /* rank of the instruction */
    int32_t peer;    /* receiver of a transfer; else −1 */
    double begin_s, end_s;
};

/* The critical path, from the step's beginning to its end: parts in time order that cover the step without
 * gaps or overlaps. Where several predecessors ended at once, one of them is taken. */
struct sim_path {
    uint32_t count;
    struct sim_path_part *parts;
};
int sim_path(const struct sim *sim, struct sim_path *path, struct err *err);
void sim_path_fini(struct sim_path *path);

/* Computes the peak of bytes in use on a rank: the bytes that it holds for the whole step (predicted peak
 * less the most that its slots' rings hold) plus each buffer from its first write until it is freed. bytes()
 * returns the size of one instance of a slot for a micro-batch (−1: for the whole step). ERR_NOMEM. */
int sim_memory_peak(const struct sim *sim, uint32_t rank,
                    double (*bytes)(void *context, uint32_t rank, uint32_t slot, int32_t micro_batch),
                    void *context, double *peak_bytes, struct err *err);

#endif
