/* The common part of data and server: one stage whose members divide a step's rows. The time is that of
 * layered accumulation (docs/PLANNER.md, Time): each block's forward overlaps the gather of the next
 * block, and each block's backward overlaps the next gather and the previous reduction. For planner/kind
 * only; pure. */
#ifndef MOTLEY_PLANNER_KIND_SHARDS_H
#define MOTLEY_PLANNER_KIND_SHARDS_H

#include "planner/cost/micro.h"
#include "planner/emit/layered.h"
#include "planner/kind/kind.h"
#include "planner/kind/split.h"

#define SHARDS_MEMBERS_MAX 256u

/* Rates of a block's transfers in seconds per byte, and the latency of each. beside: gather and reduction
 * run at the same time, else one after the other. */
struct transfer_rates {
    double gather_s, reduce_s, gather_hop_s, reduce_hop_s;
    bool beside;
};

/* The work of a block that overlaps a block's transfers, and how often this combination occurs. */
struct overlap {
    uint32_t times;
    int computes; /* enum cost_class of the block; −1: nothing */
    bool backward;
    double gathered, reduced; /* bytes */
};

struct shards {
    struct workbench *bench;
    const struct problem *p;
    struct candidate *c;
    struct layered_buffers buffers;
    bool whole; /* replicas: no transfers block by block */
    uint32_t overlap_count;
    struct overlap *overlaps;
    /* The members below are for splitting rows. */
    uint32_t unit, size_count, way_count;
    uint32_t most; /* rows of the largest micro-batch that is allowed */
    uint32_t *sizes;
    struct row_choice *ways;  /* sorted by total */
    struct micro_cost *costs; /* [member_count][size_count] */
    double *through_s; /* [member_count][size_count][2]: seconds of forward and backward of all blocks; [1]
                          with recomputation */
    double *per_row;   /* [member_count]: the least through_s per row */
    struct split_member *members;
    struct split_option *options, *chosen;
};

/* Can a stage of two or more members train the workload? `who` names it in the message. */
bool shards_supports(const struct problem *problem, const char *who, struct err *err);

/* Prepares a candidate with its members' devices and gathered_layers, which is limited to the layers there
 * are. ERR_NOMEM; shards_fini is needed then, too. */
int shards_init(struct shards *s, struct workbench *bench, struct candidate *candidate);
void shards_fini(struct shards *s);

/* Bytes that a member needs; replicas have room for micro-batches of s->most rows. */
uint64_t shards_need(const struct shards *s, uint32_t member, const struct member *as);
/* Makes the tables for shards_split. ERR_NOMEM. */
int shards_prepare(struct shards *s);
/* Splits the batch exactly over the members so that the step takes less than `limit` seconds. Each member
 * keeps at least least_room[m] bytes free (NULL: 0), and all members together `state` bytes. Sets rows,
 * counts, windows and recomputation. Returns 1, 0 if there is no such split, −1 ERR_NOMEM. */
int shards_split(struct shards *s, const struct transfer_rates *moving, const int64_t *least_room,
                 double state, double limit);
/* Bytes that the split left free on that member for state. */
static inline int64_t shards_room(const struct shards *s, uint32_t member)
{
    return s->chosen[member].room;
}

/* Sets estimate_s: the layered time of the slowest member plus after_s. Returns 1; 0 if a member does not
 * fit. */
int shards_estimate(struct shards *s, const struct transfer_rates *moving, double after_s);
/* Call when settling failed. Records the memory that members lack with one row each, or for that much
 * state. Returns 0. */
int shards_short(struct shards *s, double state);

#endif
