/* The common part of the placements data and server: one stage whose members divide a step's rows. The step's
 * time is that of layered accumulation (docs/PLANNER.md, Time): while a block's forward is computed, the next
 * block's weights are gathered; while its backward is computed, weights are gathered and the previous block's
 * gradients are reduced. For planner/kind only; pure. */
#ifndef MOTLEY_PLANNER_KIND_SHARDS_H
#define MOTLEY_PLANNER_KIND_SHARDS_H

#include "planner/cost/micro.h"
#include "planner/emit/layered.h"
#include "planner/kind/kind.h"
#include "planner/kind/split.h"

#define SHARDS_MEMBERS_MAX 256u

/* How long the transfers of a block take: seconds per byte (…_s) and latency in seconds (…_hop_s) of
 * gathering its weights and of reducing its gradients. beside: both run at the same time, else one after the
 * other. */
struct transfer_rates {
    double gather_s, reduce_s, gather_hop_s, reduce_hop_s;
    bool beside;
};

/* A block's computation and the transfers that run meanwhile, and how often this combination occurs in a
 * step. */
struct overlap {
    uint32_t times;
    int computes; /* enum cost_class of the block that is computed; −1: none */
    bool backward;
    double gathered, reduced; /* bytes */
};

struct shards {
    struct workbench *bench;
    const struct problem *p;
    struct candidate *c;
    struct layered_buffers buffers;
    struct arena arena; /* the arrays below, but for `options` */
    bool whole;         /* the members are whole replicas: nothing is transferred block by block */
    uint32_t overlap_count;
    struct overlap *overlaps;
    /* The fields below are tables for splitting the rows over the members. */
    uint32_t unit, size_count, way_count;
    uint32_t most; /* rows that a micro-batch may have at most */
    uint32_t *sizes;
    struct row_choice *ways; /* all ways to work on rows, sorted by their number of rows */
    struct row_cost *costs;  /* [member_count][size_count]: costs of a micro-batch of sizes[size] rows */
    double *per_row;         /* [member_count]: the least seconds of through_s per row, over all sizes */
    struct split_member *members;
    struct split_option *options, *chosen;
};

/* Prepares *s for a candidate whose devices and gathered_layers are set; gathered_layers is lowered to the
 * model's layers. ERR_NOMEM; shards_fini is needed then, too. */
int shards_init(struct shards *s, struct workbench *bench, struct candidate *candidate);
void shards_fini(struct shards *s);

/* Returns the bytes that a member needs without a part of the sharded state; a replica has room for a
 * micro-batch of s->most rows. */
uint64_t shards_need(const struct shards *s, uint32_t member, const struct member *as);
/* Makes the tables for shards_split. ERR_NOMEM. */
int shards_prepare(struct shards *s);
/* Splits the batch exactly over the members so that the step takes less than `limit` seconds. Each member
 * keeps at least least_room[m] bytes free (NULL: 0), and all members together `state` bytes. Sets rows,
 * counts, windows and recomputation. Returns 1, 0 if there is no such split, −1 ERR_NOMEM. */
int shards_split(struct shards *s, const struct transfer_rates *moving, const int64_t *least_room,
                 double state, double limit);
/* Returns the bytes that shards_split left free on that member for its part of the state. */
static inline int64_t shards_room(const struct shards *s, uint32_t member)
{
    return s->chosen[member].room;
}

/* Sets the candidate's estimate_s: the slowest member's seconds of layered accumulation plus after_s. Returns
 * 1; 0 if a member does not fit in memory. */
int shards_estimate(struct shards *s, const struct transfer_rates *moving, double after_s);
/* Call if no split was found. Records the memory that members lack for one row each, or together for `state`
 * bytes. Returns 0. */
int shards_short(struct shards *s, double state);

#endif
