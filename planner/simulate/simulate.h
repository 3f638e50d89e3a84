/* The simulator: runs a plan's own programs against numbers.
 *
 * Execution as docs/PROGRAM.md has it: queues in order, `after`, meetings. A compute instruction takes its
 * seconds; a transfer starts when both sides are ready (a receive is ready when its buffer is free, so rings
 * of buffers bound what is in flight), frees the sender after bytes/rate and the receiver one latency later
 * (the receiver's queue with the sender: the next transfer does not wait for the last one's latency);
 * a collective ends for all members some seconds after the last is ready. Scalars go up and down a tree: its
 * root waits for the others' messages and goes on, they wait for its answer. What counts is not who is
 * through first but how long a step takes, step after step: the root may be ready a round trip later than the
 * others without anybody losing time, since they begin the next step as much later as they hear of its end.
 * So a member's message must be ready its round trip before the root's, and all are through together.
 *
 * What links share. A pair of ranks may share things with other pairs: the wire between two nodes, a node's
 * network card. Each admits one transfer after another and is busy with it for bytes/its own rate, so two
 * slow links run side by side on a fast card, and no card ever passes more than it can. First come, first
 * served: whichever waiting transfer can start earliest does, ties by number. (True sharing, all at once at a
 * part of the rate, gives the same throughput and the same end of the last; it differs in who is early, and
 * needs every end to be moved whenever something starts.) Collectives that move tensors keep the things
 * along their ring busy too; scalars do not count.
 *
 * Jitter, if asked for, multiplies each instruction's seconds by a log-normal factor of mean 1 drawn from
 * (seed, instruction): the same seed gives the same run.
 *
 * Pure. A simulator belongs to one thread; the plan is borrowed for its life.
 */
#ifndef MOTLEY_PLANNER_SIMULATE_SIMULATE_H
#define MOTLEY_PLANNER_SIMULATE_SIMULATE_H

#include "planner/simulate/wire.h"
#include "program/graph.h"
#include "program/program.h"
#include "program/trace.h"

/* What instructions cost; called once per instruction and run, wires once per pair and run. */
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
    /* Seconds by which a member of a collective must be ready before its beginning. NULL: none. */
    double (*lead_s)(void *context, const struct plan_group *group, uint32_t rank, const struct instr *instr);
    double jitter_sigma; /* relative deviation of an instruction's seconds; 0: none */
    uint64_t jitter_seed;
};

struct sim_rank {
    double compute_s, end_s; /* busy on compute; end of its last instruction */
    double send_s;           /* its sends' occupancy */
};

struct sim;

/* Prepares programs of one kind. ERR_INVALID when they do not fit together. */
int sim_create(const struct plan *plan, int kind, struct sim **out, struct err *err);
/* The same for programs from which equal turns were taken out (plan_graph_init_loose). */
int sim_create_loose(const struct plan *plan, int kind, struct sim **out, struct err *err);
void sim_destroy(struct sim *sim);
/* One run. Writes the end of the last instruction to *seconds, per-rank sums to ranks[rank_count] (may be
 * NULL), and events to trace (may be NULL) under `step`. ERR_INVALID when it cannot end. */
int sim_run(struct sim *sim, const struct sim_costs *costs, double *seconds, struct sim_rank *ranks,
            struct trace *trace, uint32_t step, struct err *err);
/* End and readiness of an instruction of the last run, by global number. */
double sim_end(const struct sim *sim, uint32_t number);
double sim_ready(const struct sim *sim, uint32_t number);
/* When the meeting of a transfer or collective began in the last run; of others, when they were ready. */
double sim_begin(const struct sim *sim, uint32_t number);
const struct plan_graph *sim_graph(const struct sim *sim);

#endif
