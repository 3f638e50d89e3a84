/* A planning problem: the workload's blocks, the batches that are priced, and a cost table for every
 * device.
 *
 * Built once per search; read-only afterwards. For planner/ and replay/.
 */
#ifndef MOTLEY_PLANNER_COST_PROBLEM_H
#define MOTLEY_PLANNER_COST_PROBLEM_H

#include "common/arena.h"
#include "model/shape/blocks.h"
#include "model/shape/footprint.h"
#include "planner/cost/cost.h"
#include "planner/given/cluster_private.h"
#include "planner/given/workload.h"

/* The rows of one priced step as running sums: rows [a, b) hold sum[b] − sum[a]. */
struct problem_step {
    uint32_t rows;
    struct cost_load *sum; /* [rows + 1] sums over the first rows of the step */
};

/* Sums over all blocks before a block: all parameters, parameters in matrices that NF4 packs, and adapters'
 * parameters; bytes of the engine's frozen and trained areas (a tied head's are counted with block 0); bytes
 * of one optimiser moment of the trained areas; and bytes of gradients of parameters that all members of a
 * tensor group hold as equal copies. */
struct problem_params {
    uint64_t all, matrices, adapters;
    uint64_t frozen_bytes, trained_bytes, moment_bytes, shared_bytes;
};

/* Seconds of one block of each cost class (embedding, dense layer, layer with experts, head) on a device for
 * a mean micro-batch. */
struct micro_cost {
    double seconds[COST_CLASSES][COST_WAYS];
};

/* Relative tolerance within which two times in seconds count as equal. Sums of the same terms in another
 * order differ by less. */
#define PROBLEM_SAME 1e-9

struct problem_link { /* link from the devices of one node to those of another */
    double latency_s, bytes_per_s;
};

struct taught;

struct problem {
    const struct workload *workload; /* borrowed */
    const struct cluster *cluster;   /* borrowed */
    struct arena arena;              /* the arrays below, but for those of blocks and costs */
    struct block_list blocks;
    int32_t block_count;
    uint32_t (*prefix)[COST_CLASSES]; /* [block_count + 1]: how many blocks of each class precede a block */
    struct problem_params *params;    /* [block_count + 1]: sums over the blocks before a block */
    uint32_t device_count;            /* devices of the cluster */
    /* [device_count]: the order in which the user listed the devices; borrowed; NULL: the cluster's own
     * order */
    const uint32_t *listed;
    struct cost_device *costs; /* [device_count]: each device's cost curves */
    /* [device_count]: allowed by the specification, not excluded, and its costs are known */
    bool *usable;
    bool *planned_only; /* [device_count]: estimated, and no worker of this release runs there */
    char **lacks;       /* [device_count]: why the costs of a device that is asked for are unknown, or NULL */
    uint32_t step_count;
    struct problem_step *steps;
    struct cost_load mean_row; /* contents of a mean row, and of a mean step, over the priced steps */
    struct cost_load mean_step;
    /* The largest sums over k rows of one batch, k = 0..batch_rows, which bound the contents of a micro-batch
     * of k rows. A row counts as often as k rows of the job's order can hold it. */
    uint64_t *top_tokens, *top_labelled; /* [batch_rows + 1], indexed by the number of rows */
    uint32_t longest;                    /* tokens of the longest row */
    uint32_t sequence_bound;             /* tokens of the longest row or sample */
    double bytes_per_token;              /* bytes of a boundary tensor per token, at most */
    uint64_t beside;                     /* those of them that pass by the residual stream, which are fp32 */
    /* Bytes of a boundary tensor per row, in the forward direction: the sums of the load-balancing loss
     * over a row's layers (counts and probabilities of experts). Half of them travel back. */
    double bytes_per_row;
    struct footprint_model footprint;
    /* Memory layouts of a layer cut over a tensor group (planner/cost/tensor_parts.h): with the fewest heads
     * and columns, with all heads, and with all columns; NULL: tensor plans are impossible (tensor_lacks
     * gives the reason) or not asked for. Columns are cut at multiples of column_unit, because a packed base
     * has blocks of values. */
    struct footprint_model *part_least, *part_heads, *part_columns;
    uint32_t column_unit;
    struct micro_cost *means;   /* [sizes][device_count]: costs of a mean micro-batch; the first index is
                                   mean_of[rows of a micro-batch]; NULL: too many to store */
    uint32_t *mean_of;          /* [batch_rows + 1], indexed by the rows of a micro-batch: the first index
                                   into means */
    struct problem_link *links; /* [node_count²], sender first; NULL: there are too many nodes */
    bool runnable_only;         /* exclude plans that a worker of this release cannot run */
    struct taught *taught;      /* what earlier runs tell of forecasts (taught.h); NULL: nothing */
};

/* A device that cannot be priced is not usable, and the others are planned with. Fails with ERR_NOFIT, which
 * names the first such device, if there is no other. */
int problem_init(struct problem *problem, const struct workload *workload, const struct cluster *cluster,
                 struct err *err);
void problem_fini(struct problem *problem);

/* Returns why a device is not usable, borrowed from the problem. */
const char *problem_why_unusable(const struct problem *problem, uint32_t device);

/* Returns the i-th device in the order of the user's list, for output that people read. */
static inline uint32_t problem_listed(const struct problem *problem, uint32_t i)
{
    return problem->listed ? problem->listed[i] : i;
}

/* Returns the bytes that plans may allocate on a device. */
static inline uint64_t problem_limit(const struct problem *problem, uint32_t device)
{
    return problem->cluster->devices[device].memory_limit_bytes;
}

/* Returns the bytes of a boundary tensor of a micro-batch. */
static inline double problem_boundary_bytes(const struct problem *problem, double tokens, double rows)
{
    return problem->bytes_per_token * tokens + problem->bytes_per_row * rows;
}

/* Returns whether block 0 trains anything, so that gradients go there. */
static inline bool problem_embedding_learns(const struct problem *problem)
{
    return problem->footprint.embedding.tensors.parameters > 0;
}
/* Returns the bytes per token of a boundary tensor, or of its gradient, in front of blocks begin to end, both
 * inclusive: of the widest of them. */
double problem_boundary_width(const struct problem *problem, int32_t begin, int32_t end, bool gradient);

/* Returns the number of devices that may be used. */
static inline uint32_t problem_usable_count(const struct problem *problem)
{
    uint32_t count = 0;
    for (uint32_t d = 0; d < problem->device_count; d++)
        count += problem->usable[d];
    return count;
}

/* If `steps` of the problem's steps are priced, returns the index of the t-th of them: the first, the
 * last, and the others evenly between. */
static inline uint32_t problem_step_priced(const struct problem *problem, uint32_t t, uint32_t steps)
{
    return steps > 1 ? (uint32_t)((uint64_t)t * (problem->step_count - 1) / (steps - 1)) : 0;
}

/* Returns the tensors of a block; for a tied head, without the table, as on a rank that also has the
 * embedding. */
static inline const struct layer_tensors *problem_tensors(const struct problem *problem, int32_t block)
{
    const struct footprint_model *m = &problem->footprint;
    return block == 0                         ? &m->embedding.tensors
           : block + 1 < problem->block_count ? &footprint_layer(m, (uint32_t)block - 1)->tensors
                                              : &m->head;
}

/* Returns the contents (tokens, Σ length², labelled tokens) of `rows` mean rows. */
struct cost_load problem_mean_rows(const struct problem *problem, double rows);
/* Returns the contents of rows [begin, end) of a priced step; `end` is limited to the step's rows. */
struct cost_load problem_load(const struct problem *problem, uint32_t step, uint32_t begin, uint32_t end);

/* Returns the link from one device to another. */
static inline struct problem_link problem_link(const struct problem *problem, uint32_t from, uint32_t to)
{
    const struct cluster *cluster = problem->cluster;
    if (problem->links)
        return problem
            ->links[(size_t)cluster->devices[from].node * cluster->node_count + cluster->devices[to].node];
    struct cluster_link link = cluster_link(cluster, from, to);
    return (struct problem_link){link.latency_s, link.bytes_per_s};
}

/* Returns the seconds of blocks [begin, end) on a device for a load. */
double problem_seconds(const struct problem *problem, uint32_t device, int32_t begin, int32_t end,
                       enum cost_way way, const struct cost_load *load);
/* Returns the seconds of the optimiser's step for blocks [begin, end). */
double problem_step_seconds(const struct problem *problem, uint32_t device, int32_t begin, int32_t end);

/* Return the most tokens, and the most labelled tokens, in a micro-batch of that many rows; tokens are at
 * least the length of the sample prompt. */
uint32_t problem_tokens_bound(const struct problem *problem, uint32_t micro_batch_rows);
uint32_t problem_labelled_bound(const struct problem *problem, uint32_t micro_batch_rows);

/* Returns the number of micro-batches of a step whose micro-batches have that many rows. */
uint32_t micro_count(const struct problem *problem, uint32_t micro_batch_rows);
/* Returns the contents of a mean micro-batch if a step is cut into that many micro-batches. */
struct cost_load micro_load_mean(const struct problem *problem, uint32_t micro_batches);

/* Fills the costs of a mean micro-batch of up to that many rows. */
void micro_cost_init(struct micro_cost *cost, const struct problem *problem, uint32_t device,
                     uint32_t micro_batch_rows);
/* Fills the costs of a micro-batch with a given load. */
void micro_cost_load(struct micro_cost *cost, const struct problem *problem, uint32_t device,
                     const struct cost_load *load);

#endif
