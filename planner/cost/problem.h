/* A planning problem, prepared: the workload's blocks, the batches that are priced, and a cost table for
 * every device.
 *
 * Built once per search; read-only afterwards. For planner/ and replay/.
 */
#ifndef MOTLEY_PLANNER_COST_PROBLEM_H
#define MOTLEY_PLANNER_COST_PROBLEM_H

#include "model/shape/blocks.h"
#include "model/shape/footprint.h"
#include "planner/cost/cost.h"
#include "planner/given/cluster_private.h"
#include "planner/given/workload.h"

/* The rows of one priced step, as running sums: what rows [a, b) hold is sum[b] − sum[a]. */
struct problem_step {
    uint32_t rows;
    struct cost_load *sum; /* [rows + 1] */
};

/* Parameters of all blocks before one: all, those of matrices that NF4 packs, adapters'. */
struct problem_params {
    uint64_t all, matrices, adapters;
};

/* Seconds of one block of each class on a device, at the mean micro-batch (of up to batch_rows rows). */
struct micro_cost {
    double seconds[COST_CLASSES][COST_WAYS];
};

#define PROBLEM_SAME 1e-9 /* relative: seconds this near are equal; sums in another order differ by less */

struct problem_link { /* from one node's devices to another's */
    double latency_s, bytes_per_s;
};

struct problem {
    const struct workload *workload; /* borrowed */
    const struct cluster *cluster;   /* borrowed */
    struct block_list blocks;
    int32_t block_count;
    uint32_t (*prefix)[COST_CLASSES]; /* [block_count + 1]: how many of each class come before a block */
    struct problem_params *params;    /* [block_count + 1] */
    uint32_t device_count;            /* of the cluster */
    const uint32_t *listed;           /* [device_count]: where the devices are, as they were given; borrowed;
                                         NULL: there */
    struct cost_device *costs;        /* [device_count] */
    bool *usable;                     /* [device_count]: asked for and not excluded */
    uint32_t step_count;
    struct problem_step *steps;
    struct cost_load mean_row; /* of the priced steps */
    struct cost_load mean_step;
    /* Largest sums over any k rows, k = 0..batch_rows: what a micro-batch of k rows may hold. */
    uint64_t *top_tokens, *top_labelled; /* [batch_rows + 1] */
    uint32_t longest;                    /* row, tokens */
    uint32_t sequence_bound;             /* longest row, or sample */
    double bytes_per_token;              /* of a boundary tensor */
    double bytes_per_row; /* beside them, forward: what the load-balancing loss sums over a row's layers
                             (counts and probabilities of experts); half of it goes back */
    struct footprint_model footprint;
    struct micro_cost *means;   /* [sizes][device_count], by mean_of[rows of a micro-batch]; NULL: many */
    uint32_t *mean_of;          /* [batch_rows + 1] */
    struct problem_link *links; /* [node_count²], from row to column; NULL: too many nodes */
    bool runnable_only;         /* leave out what a worker of this release cannot run */
};

int problem_init(struct problem *problem, const struct workload *workload, const struct cluster *cluster,
                 struct err *err);
void problem_fini(struct problem *problem);

/* The i-th device as they were given: for what people read. */
static inline uint32_t problem_listed(const struct problem *problem, uint32_t i)
{
    return problem->listed ? problem->listed[i] : i;
}

/* Bytes of a boundary activation. */
static inline double problem_boundary_bytes(const struct problem *problem, double tokens, double rows)
{
    return problem->bytes_per_token * tokens + problem->bytes_per_row * rows;
}

/* Devices that may be used. */
static inline uint32_t problem_usable_count(const struct problem *problem)
{
    uint32_t count = 0;
    for (uint32_t d = 0; d < problem->device_count; d++)
        count += problem->usable[d];
    return count;
}

/* Which of the problem's steps is number t of `steps` that are priced: the first, the last, and evenly
 * between. */
static inline uint32_t problem_step_priced(const struct problem *problem, uint32_t t, uint32_t steps)
{
    return steps > 1 ? (uint32_t)((uint64_t)t * (problem->step_count - 1) / (steps - 1)) : 0;
}

/* What so many mean rows hold. */
struct cost_load problem_mean_rows(const struct problem *problem, double rows);
/* What rows [begin, end) of a priced step hold; cut off at the rows it has. */
struct cost_load problem_load(const struct problem *problem, uint32_t step, uint32_t begin, uint32_t end);

/* The link from one device to another. */
static inline struct problem_link problem_link(const struct problem *problem, uint32_t from, uint32_t to)
{
    const struct cluster *cluster = problem->cluster;
    struct problem_link link;
    bool emulated;
    if (problem->links)
        return problem
            ->links[(size_t)cluster->devices[from].node * cluster->node_count + cluster->devices[to].node];
    cluster_link(cluster, from, to, &link.latency_s, &link.bytes_per_s, &emulated);
    return link;
}

/* Seconds of blocks [begin, end) on a device for a load. */
double problem_seconds(const struct problem *problem, uint32_t device, int32_t begin, int32_t end,
                       enum cost_way way, const struct cost_load *load);
/* Seconds of the optimiser's step for blocks [begin, end). */
double problem_step_seconds(const struct problem *problem, uint32_t device, int32_t begin, int32_t end);

/* Most tokens and labelled tokens of a micro-batch of that many rows; tokens also cover the sample's prompt.
 */
uint32_t problem_tokens_bound(const struct problem *problem, uint32_t micro_batch_rows);
uint32_t problem_labelled_bound(const struct problem *problem, uint32_t micro_batch_rows);

/* Micro-batches of a step that is cut at so many rows. */
uint32_t micro_count(const struct problem *problem, uint32_t micro_batch_rows);
/* A mean micro-batch of a step cut into so many. */
struct cost_load micro_load_mean(const struct problem *problem, uint32_t micro_batches);

/* At the mean micro-batch of up to so many rows. */
void micro_cost_init(struct micro_cost *cost, const struct problem *problem, uint32_t device,
                     uint32_t micro_batch_rows);
/* The same at a given load. */
void micro_cost_load(struct micro_cost *cost, const struct problem *problem, uint32_t device,
                     const struct cost_load *load);

#endif
