/* One stage whose members divide a step's rows: what data and server share. Time by layered accumulation
 * (docs/PLANNER.md, Time): each block's forward hides the next one's gather, each block's backward the next
 * gather and the last reduction. For planner/kind only; pure.
 */
#ifndef MOTLEY_PLANNER_KIND_SHARDS_H
#define MOTLEY_PLANNER_KIND_SHARDS_H

#include "planner/cost/micro.h"
#include "planner/emit/layered.h"
#include "planner/kind/kind.h"
#include "planner/kind/split.h"

#define SHARDS_MEMBERS_MAX 256u

/* How fast a block's bytes come and go, seconds a byte; latency of each transfer; one after the other, or
 * beside each other. */
struct moving {
    double gather_s, reduce_s, gather_hop_s, reduce_hop_s;
    bool beside;
};

/* A block's work beside a block's transfers, as often as they come together. */
struct overlap {
    uint32_t times;
    int computes; /* enum cost_class; −1: nothing */
    bool backward;
    double gathered, reduced; /* bytes */
};

struct shards {
    struct workbench *bench;
    const struct problem *p;
    struct candidate *c;
    struct layered_buffers buffers;
    bool whole; /* replicas: nothing comes and goes by block */
    uint32_t overlap_count;
    struct overlap *overlaps;
    /* of splitting rows */
    uint32_t unit, size_count, way_count;
    uint32_t most; /* rows of the largest micro-batch allowed */
    uint32_t *sizes;
    struct way *ways;         /* by total */
    struct micro_cost *costs; /* [member_count][size_count] */
    double *through_s; /* [member_count][size_count][2]: of all blocks, both ways; with recomputation */
    double *per_row;   /* [member_count]: the least of through_s a row */
    struct split_member *members;
    struct split_option *options, *chosen;
};

/* May a stage of two members or more do the workload? `who` names it. */
bool shards_supports(const struct problem *problem, const char *who, struct err *err);

/* Of a candidate with its members' devices and gathered_layers, which is cut to what there is. ERR_NOMEM;
 * then, too, shards_fini. */
int shards_init(struct shards *s, struct workbench *bench, struct candidate *candidate);
void shards_fini(struct shards *s);

/* What a member must hold; of replicas with places for micro-batches of s->most rows. */
uint64_t shards_need(const struct shards *s, uint32_t member, const struct member *as);
/* Makes tables for shards_split. ERR_NOMEM. */
int shards_prepare(struct shards *s);
/* Splits the batch exactly over the members in less than `limit` seconds, each left at least least_room[m]
 * bytes (NULL: 0), all together `state`; sets their rows, counts, windows and recomputation. Returns 1, 0
 * when there is no such split, −1 ERR_NOMEM. */
int shards_split(struct shards *s, const struct moving *moving, const int64_t *least_room, double state,
                 double limit);
/* Bytes that the split left to that member for state. */
static inline int64_t shards_room(const struct shards *s, uint32_t member)
{
    return s->chosen[member].room;
}

/* Sets estimate_s: layered time of the slowest member, and after_s. Returns 1; 0 where a member does not fit.
 */
int shards_estimate(struct shards *s, const struct moving *moving, double after_s);
/* Settling failed: notes what the members lack with one row each, or for so much state. Returns 0. */
int shards_short(struct shards *s, double state);

#endif
