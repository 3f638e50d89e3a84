/* The simulator: runs a plan's own programs against numbers.
 *
 * Execution as docs/PROGRAM.md has it: queues in order, `after`, meetings. A compute instruction takes its
 * seconds; a transfer starts when both sides are ready, occupies its wire for bytes/rate, frees the sender
 * then and the receiver one latency later; a collective ends for all members some seconds after the last is
 * ready. Transfers that share a wire go in the order in which they become ready.
 *
 * Pure. A simulator belongs to one thread; the plan is borrowed for its life.
 */
#ifndef MOTLEY_PLANNER_SIMULATE_H
#define MOTLEY_PLANNER_SIMULATE_H

#include "program/graph.h"
#include "program/program.h"
#include "program/trace.h"

struct sim_wire {
    double latency_s, bytes_per_s;
    uint32_t number; /* transfers with the same number share it; below sim_costs.wire_count */
};

/* What instructions cost; called once per instruction and run. */
struct sim_costs {
    void *context;
    /* Seconds on the compute or copy queue. */
    double (*compute_s)(void *context, uint32_t rank, const struct instr *instr);
    /* Bytes that a SEND or PUSH moves; negative: the micro-batch is empty, it is done at once. */
    double (*bytes)(void *context, uint32_t rank, const struct instr *instr);
    void (*wire)(void *context, uint32_t from_rank, uint32_t to_rank, struct sim_wire *wire);
    /* Seconds of a collective after its last member is ready. */
    double (*collective_s)(void *context, const struct plan_group *group, uint32_t rank,
                           const struct instr *instr);
    uint32_t wire_count;
};

struct sim_rank {
    double compute_s, end_s; /* busy on compute; end of its last instruction */
    double send_s;           /* its sends' occupancy */
};

struct sim;

/* Prepares programs of one kind. ERR_INVALID when they do not fit together. */
int sim_create(const struct plan *plan, int kind, struct sim **out, struct err *err);
void sim_destroy(struct sim *sim);
/* One run. Writes the end of the last instruction to *seconds, per-rank sums to ranks[rank_count] (may be
 * NULL), and events to trace (may be NULL) under `step`. ERR_INVALID when it cannot end. */
int sim_run(struct sim *sim, const struct sim_costs *costs, double *seconds, struct sim_rank *ranks,
            struct trace *trace, uint32_t step, struct err *err);
/* Start, end and readiness of every instruction of the last run, by global number; borrowed. */
const double *sim_ends(const struct sim *sim);
const struct plan_graph *sim_graph(const struct sim *sim);

#endif
