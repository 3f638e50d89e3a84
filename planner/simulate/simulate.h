/* The simulator runs a plan's own programs with given costs.
 *
 * Execution follows docs/PROGRAM.md: queues run in order, with `after` and meetings. A compute instruction
 * takes its seconds. A transfer starts when both sides are ready; a receive is ready when its buffer is
 * free, so rings of buffers bound how much is in flight. A transfer frees the sender after bytes/rate. The
 * data arrives one latency later, but the receiver's queue is free at the same time as the sender, so
 * latencies of successive transfers overlap. A collective ends for all members some seconds after the last
 * member is ready. Scalars go up and down a tree: the root waits for the others' messages and goes on, and
 * the others wait for its answer. What matters is the length of a step in a long series of steps. The root
 * may be ready one round trip later than the others without lost time, because the others begin their next
 * step that much later. So a member's message must be ready one round trip before the root, and all
 * members end together.
 *
 * Shared resources: pairs of ranks may share the wire between two nodes or a node's network card. A
 * resource admits one transfer after another and is busy with each for bytes/its own rate. Two slow links
 * therefore run side by side on a fast card, and no card passes more than its rate. The waiting transfer
 * that can start earliest goes first, ties by number. (Processor sharing would give the same throughput
 * and the same end of the last transfer. It differs in which transfer ends early, and every start would
 * change the ends of all others.) Collectives that move tensors keep the resources along their ring busy
 * too; collectives of scalars do not.
 *
 * Jitter multiplies each instruction's seconds by a log-normal factor of mean 1 drawn from (seed,
 * instruction); the same seed gives the same run.
 *
 * Pure. A simulator belongs to one thread; the plan is borrowed for the simulator's life.
 */
#ifndef MOTLEY_PLANNER_SIMULATE_SIMULATE_H
#define MOTLEY_PLANNER_SIMULATE_SIMULATE_H

#include "planner/simulate/wire.h"
#include "program/graph.h"
#include "program/program.h"
#include "program/trace.h"

/* Costs of instructions. Each function is called once per instruction and run; `wire` once per pair and
 * run. */
struct sim_costs {
    void *context;
    /* Returns an instruction's seconds on the compute queue. */
    double (*compute_s)(void *context, uint32_t rank, const struct instr *instr);
    /* Returns the bytes that a SEND or PUSH moves; negative: the micro-batch is empty, and the instruction
     * takes no time. */
    double (*bytes)(void *context, uint32_t rank, const struct instr *instr);
    void (*wire)(void *context, uint32_t from_rank, uint32_t to_rank, struct sim_wire *wire);
    /* Returns the seconds of a collective after its last member is ready. */
    double (*collective_s)(void *context, const struct plan_group *group, uint32_t rank,
                           const struct instr *instr);
    /* Returns the seconds by which a member must be ready before the collective begins. NULL: 0 for all. */
    double (*lead_s)(void *context, const struct plan_group *group, uint32_t rank, const struct instr *instr);
    double jitter_sigma; /* relative deviation of an instruction's seconds; 0: none */
    uint64_t jitter_seed;
};

struct sim_rank {
    double compute_s, end_s; /* seconds on the compute queue; end of the rank's last instruction */
    double send_s;           /* seconds for which the rank's sends occupy a wire */
};

struct sim;

/* Prepares the plan's programs of one kind. ERR_INVALID if sends, receives and collectives do not match. */
int sim_create(const struct plan *plan, int kind, struct sim **out, struct err *err);
void sim_destroy(struct sim *sim);
/* Runs the programs once. Writes the end of the last instruction to *seconds, sums per rank to
 * ranks[rank_count] (may be NULL), and events to trace (may be NULL) under the number `step`. ERR_INVALID
 * for a deadlock. */
int sim_run(struct sim *sim, const struct sim_costs *costs, double *seconds, struct sim_rank *ranks,
            struct trace *trace, uint32_t step, struct err *err);
const struct plan_graph *sim_graph(const struct sim *sim);

#endif
