/* What the enumerators of the oracle share (oracle_rows.h, oracle_stages.h, oracle_tensor.h,
 * oracle_expert.h).
 *
 * They know nothing of the planner's search: every candidate of a placement is built up choice by choice,
 * emitted and simulated. A branch is left early only where a bound proves that nothing in it beats what is
 * known: a rank's work, which no schedule shortens, and what must be moved before or after it. The bounds use
 * the same prices as the simulator (problem_seconds, cluster_link, memory_*), so they say nothing of whether
 * those are right; the enumerators are tested against themselves without bounds (test_oracle_walks.c).
 *
 * What a placement may be is taken from docs/PLANNER.md, Decisions: which devices in which order, cuts, size
 * of micro-batches (every one of 1 to the batch), windows, who recomputes, of replicas and shards rows,
 * micro-batches and share of each member and how many layers are gathered at once. Not looked at: rows of a
 * member in micro-batches of unlike size (a member has m micro-batches of μ rows), and boundary dtypes (the
 * workload's).
 *
 * What is continuous (shares of state, columns, rows of the vocabulary) is enumerated on a grid, or filled
 * like water where one number decides; said where it is done. */
#ifndef TEST_ORACLE_H
#define TEST_ORACLE_H

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
#define LOOKS_PER_SIMULATION 40u /* bounds that take about as long as a simulation */

struct oracle {
    const struct problem *p;
    bool uniform;                              /* devices differ by one factor in layers and head */
    bool unpruned;                             /* no bounds: to test them */
    double best;                               /* seconds to beat */
    uint64_t simulated, looked, simulated_max; /* more are not looked at, and the case counts as unfinished */
    double rate_best;                          /* bytes/s of the cluster's fastest link */
    struct candidate found;                    /* the candidate that beat it, if any; its arrays below */
    struct candidate_stage found_stages[ORACLE_BLOCKS];
    struct member found_members[ORACLE_DEVICES];
    uint8_t owner[ORACLE_BLOCKS * ORACLE_ROWS], found_owner[ORACLE_BLOCKS * ORACLE_ROWS]; /* hybrids' */
    struct candidate c;                                                                   /* being built */
    struct candidate_stage stages[ORACLE_BLOCKS];
    struct member members[ORACLE_DEVICES];
    bool taken[ORACLE_DEVICES];
    uint32_t micro_batches;
    /* seconds of micro-batches, block by block; and of their backwards what is not for parameters alone */
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

/* Simulates the candidate in hand; INFINITY when it does not fit. */
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
        for (uint32_t b = 0; b < p->device_count; b++) {
            double latency, rate;
            bool emulated;
            if (a == b)
                continue;
            cluster_link(p->cluster, a, b, &latency, &rate, &emulated);
            o->rate_best = fmax(o->rate_best, rate);
        }
    }
}

static inline void candidate_start(struct oracle *o, enum plan_placement placement)
{
    o->c = (struct candidate){.placement = placement, .stages = o->stages, .members = o->members};
}

static inline void link_of(const struct oracle *o, uint32_t from, uint32_t to, double *latency, double *rate)
{
    bool emulated;
    cluster_link(o->p->cluster, from, to, latency, rate, &emulated);
}

/* Seconds of rows [begin, end) of a priced step through blocks on a device, there and back. */
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

/* The same in micro-batches, mean over the priced steps. */
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

/* Places for gathered layers that make a difference. */
static inline uint32_t layers_most(const struct problem *p)
{
    return (uint32_t)p->block_count - 1 - !p->blocks.tied;
}

#endif
