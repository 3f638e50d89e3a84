/* Pricing of plans: the cost of each instruction on the cluster, in the form the simulator asks for. For
 * planner/ and replay/; pure. */
#ifndef MOTLEY_PLANNER_COST_PRICE_H
#define MOTLEY_PLANNER_COST_PRICE_H

#include "planner/cost/problem.h"
#include "planner/cost/ring.h"
#include "planner/simulate/simulate.h"

struct expert_price;

struct price_group {
    bool known;
    struct ring_figures ring;
};

struct price_again { /* cached cost of an instruction; successive micro-batches are mostly equal */
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
    uint32_t *device;           /* [rank_count]: index of each rank's device in the cluster */
    struct price_group *groups; /* [group_count]: filled on first use */
    double *host_s;  /* [rank_count]: what a token's sum takes of computing beside it (tensor groups) */
    uint32_t step;   /* the step that is priced */
    bool free_links; /* transfers take no time (used for comparisons) */
    /* Prices of an expert plan, in which attention and experts may be on different ranks (expert_price.h);
     * else NULL. */
    struct expert_price *expert;
    struct price_again again[2]; /* the last forward and the last backward that were priced */
};

int price_init(struct price *price, const struct problem *problem, const struct plan *plan, struct err *err);
void price_fini(struct price *price);
/* Returns the costs for a simulator; they borrow the price until the run ends. */
struct sim_costs price_costs(struct price *price);
/* Simulates step price->step and writes its seconds, each rank's totals (sums[rank_count], or NULL) and its
 * events (trace, or NULL). *sim is NULL at first, is created on first use, is reused for later steps, and is
 * destroyed by the caller. */
int price_step(struct price *price, struct sim **sim, double *seconds, struct sim_rank *sums,
               struct trace *trace, struct err *err);
/* The last simulated run of a priced plan, for callers that read its times. Borrows the plan and its
 * programs. */
struct price_run {
    bool ran;
    uint32_t step;   /* step that was simulated */
    struct sim *sim; /* NULL: the run has more instructions than the caller wanted */
};
void price_run_fini(struct price_run *run);
/* Writes the mean over at most steps_max priced steps to *step_s; fills the ranks' busy_s and plan->costs. */
int price_plan(const struct problem *problem, struct plan *plan, uint32_t steps_max, double *step_s,
               struct err *err);
/* Does what price_plan does. *run (price_run_fini) receives the last step's simulated run if it has at most
 * instructions_most instructions. */
int price_plan_run(const struct problem *problem, struct plan *plan, uint32_t steps_max,
                   uint64_t instructions_most, double *step_s, struct price_run *run, struct err *err);

#endif
