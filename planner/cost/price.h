/* Pricing a plan: what each instruction costs on the cluster, the bridge from cost tables to the simulator.
 * For planner/ and replay/; pure. */
#ifndef MOTLEY_PLANNER_COST_PRICE_H
#define MOTLEY_PLANNER_COST_PRICE_H

#include "planner/cost/problem.h"
#include "planner/simulate/simulate.h"
#include "planner/simulate/simulate.h"

struct expert_price;

struct price_group { /* the worst of a group's ring */
    bool known;
    double latency_s, bytes_per_s;
    /* seconds a byte gathered from, or scattered to, the group's shards: every link of the ring passes all of
     * them but one (docs/PLANNER.md, Time) */
    double gather_s, scatter_s;
};

struct price_again { /* what an instruction took: micro-batches are mostly alike */
    bool known;
    uint32_t rank;
    int32_t block_begin, block_end;
    uint16_t flags;
    struct cost_load load;
    double seconds;
};

struct price {
    const struct problem *problem;
    const struct plan *plan;
    uint32_t *device;            /* [rank_count]: cluster device of each rank */
    struct price_group *groups;  /* [group_count]: found when first asked for */
    uint32_t step;               /* priced step */
    bool free_links;             /* for comparisons: transfers take no time */
    struct expert_price *expert; /* of plans with attention and experts apart (expert.h); else NULL */
    struct price_again again[2]; /* the forward and the backward priced last */
};

int price_init(struct price *price, const struct problem *problem, const struct plan *plan, struct err *err);
void price_fini(struct price *price);
/* What the simulator asks for; borrows price until the run ends. */
struct sim_costs price_costs(struct price *price);
/* Seconds of one step of the price, price->step; sums[rank_count] as the simulator's. *sim: made when it is
 * needed, kept for the next step, destroyed by the caller; NULL at first. */
int price_step(struct price *price, struct sim **sim, double *seconds, struct sim_rank *sums,
               struct err *err);
/* The run that priced a plan last, for callers that read its times: borrows the plan and its programs. */
struct price_run {
    bool ran;
    uint32_t step;   /* priced step */
    struct sim *sim; /* NULL: it was longer than asked for */
};
void price_run_fini(struct price_run *run);
/* Mean step over the priced steps; fills the ranks' busy_s and plan->costs. steps_max: at most that many of
 * them. */
int price_plan(const struct problem *problem, struct plan *plan, uint32_t steps_max, double *step_s,
               struct err *err);
/* The same; *run (price_run_fini) is of the last of them, if that is up to so many
 * instructions. */
int price_plan_run(const struct problem *problem, struct plan *plan, uint32_t steps_max,
                   uint64_t instructions_most, double *step_s, struct price_run *run, struct err *err);

#endif
