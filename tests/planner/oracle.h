/* Shared parts of the oracle's enumerators (oracle_rows.h, oracle_stages.h, oracle_tensor.h,
 * oracle_expert.h). The oracle enumerates all candidates of a placement and simulates them, independently of
 * the planner's search. A branch is cut only where a lower bound proves that nothing in it beats the best
 * step time known: the bound counts a rank's compute time, which no schedule shortens, and the transfers that
 * must precede or follow it. The bounds use the simulator's own prices (problem_seconds, cluster_link,
 * memory_*), so they do not test those prices. test_oracle_walks.c tests the enumerators against themselves
 * without bounds. The choices follow docs/PLANNER.md, "Decisions": devices and their order, cuts, the
 * micro-batch size (every one from 1 to the batch), windows, recomputation; for replicas and shards each
 * member's rows, micro-batches and share, and how many layers are gathered at once. Two choices are not
 * enumerated: micro-batches of unlike size within one member (a member has m micro-batches of μ rows), and
 * boundary dtypes (the workload's is used). Continuous choices (shares of state, columns, rows of the
 * vocabulary) are enumerated on a grid, or solved by water filling where one number decides; comments say
 * which. */
#ifndef TEST_ORACLE_H
#define TEST_ORACLE_H
#pragma GCC optimize("O1") /* it enumerates long (tests/CMakeLists.txt: tests are compiled at -O0) */

#include "planner/plan_fixture.h"

#include <math.h>

#include "common/buf.h"
#include "planner/cost/price.h"
#include "planner/cost/tensor_cost.h"
#include "planner/emit/layered.h"
#include "planner/emit/tensor.h"
#include "planner/expert_fixture.h"
#include "planner/schedule/order.h"

#define ORACLE_DEVICES 5
#define ORACLE_ROWS 8
#define ORACLE_BLOCKS 10
#define ORACLE_STEPS 2
#define LOOKS_PER_SIMULATION 40u /* About so many bounds take as long as one simulation. */

struct oracle {
    const struct problem *p;
    bool uniform;  /* The devices' speeds differ by one factor, the same for layers and head. */
    bool unpruned; /* Switches the bounds off, to test them. */
    double best;   /* seconds to beat */
    uint64_t simulated, looked, simulated_max; /* simulated_max limits the simulations; a case that reaches it
                                                  counts as unfinished. */
    double rate_best;                          /* bandwidth of the cluster's fastest link, bytes/s */
    struct candidate found; /* the best candidate so far, if one was found; the arrays below belong to it */
    struct candidate_stage found_stages[ORACLE_BLOCKS];
    struct member found_members[ORACLE_DEVICES];
    uint8_t owner[ORACLE_BLOCKS * ORACLE_ROWS],
        found_owner[ORACLE_BLOCKS * ORACLE_ROWS]; /* of hybrid candidates */
    struct candidate c;                           /* the candidate that is being built */
    struct candidate_stage stages[ORACLE_BLOCKS];
    struct member members[ORACLE_DEVICES];
    bool taken[ORACLE_DEVICES];
    uint32_t micro_batches;
    /* Seconds of each micro-batch per block, and the part of its backward pass that computes input gradients.
     */
    double table[ORACLE_DEVICES][ORACLE_STEPS][ORACLE_ROWS][ORACLE_BLOCKS][COST_WAYS];
    double input[ORACLE_STEPS][ORACLE_ROWS];
};

static inline double seconds_of(const struct problem *p, const struct candidate *candidate)
{
    struct err err = {0};
    double seconds = INFINITY;
    struct plan *plan = kinds[candidate->placement]->emit(p, candidate, true, &err);
    if (plan && price_plan(p, plan, WORKLOAD_SAMPLE_STEPS, &seconds, &err) < 0)
        seconds = INFINITY;
    plan_destroy(plan);
    return seconds;
}

/* Simulates the candidate that is being built and returns its step's seconds; INFINITY when it does not fit.
 */
static inline double leaf(struct oracle *o)
{
    o->simulated++;
    if (o->c.placement == PLACE_HYBRID) {
        o->c.owner = o->owner;
        o->c.owner_count = o->c.stage_count * o->micro_batches;
    }
    double seconds = seconds_of(o->p, &o->c);
    if (seconds >= o->best)
        return seconds;
    o->best = seconds;
    memcpy(o->found_stages, o->stages, sizeof(o->stages));
    memcpy(o->found_members, o->members, sizeof(o->members));
    o->found = o->c;
    o->found.stages = o->found_stages;
    o->found.members = o->found_members;
    memcpy(o->found_owner, o->owner, sizeof(o->owner));
    o->found.owner = o->c.owner ? o->found_owner : NULL;
    return seconds;
}

static inline bool exhausted(const struct oracle *o)
{
    return o->simulated > o->simulated_max || o->looked > LOOKS_PER_SIMULATION * o->simulated_max;
}

static inline bool hopeless(struct oracle *o, double lower)
{
    o->looked++;
    return (!o->unpruned && lower >= o->best * (1 - 1e-12)) || exhausted(o);
}

static inline void oracle_init(struct oracle *o, const struct problem *p, bool uniform, double best,
                               uint64_t simulated_max)
{
    *o = (struct oracle){.p = p, .uniform = uniform, .best = best, .simulated_max = simulated_max};
    for (uint32_t a = 0; a < p->device_count; a++) {
        for (uint32_t b = 0; b < p->device_count; b++)
            if (a != b)
                o->rate_best = fmax(o->rate_best, cluster_link(p->cluster, a, b).bytes_per_s);
    }
}

static inline void candidate_start(struct oracle *o, enum plan_placement placement)
{
    o->c = (struct candidate){.placement = placement, .stages = o->stages, .members = o->members};
}

static inline void link_of(const struct oracle *o, uint32_t from, uint32_t to, double *latency, double *rate)
{
    struct cluster_link link = cluster_link(o->p->cluster, from, to);
    *latency = link.latency_s;
    *rate = link.bytes_per_s;
}

/* Returns the seconds of forward and backward of rows [begin, end) of a priced step through a range of blocks
 * on a device. */
static inline double work(const struct problem *p, uint32_t step, uint32_t device, int32_t from, int32_t to,
                          bool recompute, uint32_t begin, uint32_t end)
{
    struct cost_load load = problem_load(p, step, begin, end);
    if (load.rows <= 0)
        return 0;
    return problem_seconds(p, device, from, to, COST_FORWARD, &load) +
           problem_seconds(p, device, from, to, COST_BACKWARD, &load) +
           (recompute ? problem_seconds(p, device, from, to, COST_RECOMPUTE, &load) : 0);
}

/* As work(), for rows cut into micro-batches, averaged over the priced steps. */
static inline double work_mean(const struct problem *p, uint32_t device, bool recompute, uint32_t row,
                               uint32_t rows, uint32_t micro)
{
    double seconds = 0;
    for (uint32_t t = 0; t < p->step_count; t++) {
        for (uint32_t at = row; at < row + rows; at += micro) {
            uint32_t end = at + micro < row + rows ? at + micro : row + rows;
            seconds += work(p, t, device, 0, p->block_count, recompute, at, end) / p->step_count;
        }
    }
    return seconds;
}

static inline bool allowed(const struct problem *p, int recompute)
{
    return micro_recompute_allowed(p, recompute);
}

static inline bool full_of(const struct problem *p)
{
    return p->workload->method == METHOD_FULL;
}

static inline uint64_t limit_of(const struct problem *p, uint32_t device)
{
    return p->cluster->devices[device].memory_limit_bytes;
}

/* Returns the largest useful number of buffers for gathered layers. */
static inline uint32_t layers_most(const struct problem *p)
{
    return (uint32_t)p->block_count - 1 - !p->blocks.tied;
}

#endif
