/* Searching layered placements: what data with sharded state and server share. For this room only; pure. */
#ifndef MOTLEY_PLANNER_SHARDED_SHARDED_SEARCH_H
#define MOTLEY_PLANNER_SHARDED_SHARDED_SEARCH_H

#include "planner/sharded/sharded.h"

#define SHARDED_DEVICES_MAX 256u
#define SHARDED_FEW 16u             /* devices up to which more is tried */
#define SHARDED_ROUNDING_BYTES 4096 /* a member's needs are rounded up to granules */

/* One device that may take part. */
struct candidate {
    uint32_t device;
    double per_row, step_s; /* least seconds a row, forward and backward; of the optimiser for all state */
    double (*seconds)[COST_CLASSES][COST_WAYS]; /* [batch + 1]: of a micro-batch of that many rows, */
    double *through_s;                          /* [batch + 1]: and of all blocks, forward and backward */
};

/* A block's work beside a block's transfers, as often as they come together. */
struct overlap {
    uint32_t times;
    int computes; /* class; −1: nothing */
    bool backward;
    double gathered, reduced; /* bytes */
};

/* How fast bytes come and go, seconds a byte; latency of each transfer; one after the other, or beside each
 * other. */
struct moving {
    double gather_s, reduce_s, hop_s;
    bool beside;
};

struct sharded_search {
    const struct problem *p;
    struct choice_list *list;
    uint32_t batch, unit, candidate_count; /* rows are given out in units */
    struct candidate *candidates;          /* fastest first */
    uint32_t way_count;
    struct split_option *ways; /* rows × count, by total: room is minus the need */
    int64_t
        *first_room; /* the same of taken[0], where it needs something else than the others; NULL: alike */
    double least_need, row_need; /* what is needed for n rows is at least least_need + n · row_need */
    struct sharded_buffers buffers;
    uint32_t overlap_count;
    struct overlap *overlaps;
    /* of the set of devices looked at */
    uint32_t count;
    const struct candidate *taken[SHARDED_DEVICES_MAX];
    struct split_member members[SHARDED_DEVICES_MAX];
    struct split_option chosen[SHARDED_DEVICES_MAX];
};

/* Returns 1; 0 when the batch cannot be given out in few enough parts, or fewer than two devices may be used;
 * −1 ERR_NOMEM. Released by sharded_search_fini in any case. */
int sharded_search_init(struct sharded_search *s, const struct problem *problem, struct choice_list *list,
                        struct err *err);
void sharded_search_fini(struct sharded_search *s);

/* What `count` micro-batches of `rows` take beside state; count 0: taking part without rows. */
typedef void sharded_need_fn(const struct sharded_search *s, uint32_t rows, uint32_t count, bool recompute,
                             struct memory_need *need);
/* Buffers, overlaps and ways for so many places of gathered layers; 0: all blocks come and go at once. */
int sharded_search_layers(struct sharded_search *s, uint32_t layers, sharded_need_fn *need, struct err *err);
/* After it: taken[0] needs something else than the others. */
int sharded_search_first(struct sharded_search *s, sharded_need_fn *need, struct err *err);

/* Seconds of a step for a member that works so. */
double sharded_search_seconds(const struct sharded_search *s, const struct candidate *c,
                              const struct split_option *o, const struct moving *moving);

/* The exact split of the batch over taken[0..count), each left at least least_room[m] bytes, Σ room ≥ state;
 * the first idle_count members may take no rows. Looks no further than `limit` seconds. Fills chosen[].
 * Returns 1, 0 when there is none, −1 ERR_NOMEM. */
int sharded_search_split(struct sharded_search *s, const struct moving *moving, const int64_t *least_room,
                         double state, uint32_t idle_count, double limit, struct err *err);

#endif
