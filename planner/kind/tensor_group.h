/* The seconds of a tensor group: what each member takes for its part of a layer, and what a unit of
 * micro-batches takes in the group. For planner/kind/tensor.c; pure. */
#ifndef MOTLEY_PLANNER_KIND_TENSOR_GROUP_H
#define MOTLEY_PLANNER_KIND_TENSOR_GROUP_H

#include "planner/cost/tensor_cost.h"
#include "planner/kind/chain.h"

#define GROUP_MAX 64u
#define TURNS_MAX 16u /* most micro-batches in turns; more hide hardly any transfer time */

/* Facts of an estimate that do not depend on how matrices are divided. A unit is a set of `together`
 * micro-batches that are worked on in turns. */
struct tensor_case {
    struct workbench *bench;
    const struct problem *p;
    struct candidate *c;
    uint32_t micro_batches, together, units;
    struct cost_load load;
};

enum { HALF_FIRST, HALF_SECOND, HALVES }; /* attention, FFN */

struct tensor_group {
    const struct candidate_stage *stage;
    struct member *members;
    struct micro_cost cost[GROUP_MAX];
    struct tensor_shares share[GROUP_MAX];
    /* Seconds of a layer's attention and FFN on a member that has whole matrices, and the share of them that
     * does not shrink with its part. */
    double half_s[GROUP_MAX][HALVES][COST_WAYS], fixed[GROUP_MAX][HALVES][COST_WAYS];
    uint32_t count, layers, s;
    int32_t layer; /* the group's first layer; only if layers > 0 */
    bool embedding, head;
    struct ring_figures ring;
    double sum_s, broadcast_s; /* of a micro-batch's boundary tensor */
    double host_s[GROUP_MAX];  /* what a sum takes of each member's computing meanwhile */
};

/* Attention, FFN, embedding, head. */
enum { PART_FIRST = HALF_FIRST, PART_SECOND = HALF_SECOND, PART_TABLE, PART_TOP, PARTS };

/* Fills the group of stage s; its members' parts are read from the candidate. */
void tensor_group_init(const struct tensor_case *t, uint32_t s, struct tensor_group *g);
/* Returns the seconds of a block of a class on a member that has its whole matrices: forward, or backward
 * with recomputation if `again`. */
double tensor_whole_seconds(const struct tensor_group *g, uint32_t i, enum cost_class cls, bool back,
                            bool again);
/* Writes a member's seconds of attention, FFN, embedding and head for a micro-batch, with its matrices. */
void tensor_member_seconds(const struct tensor_group *g, uint32_t i, bool back, bool again,
                           double seconds[PARTS]);
/* Returns the seconds of half a layer on a member with that share of its heads or columns, forward and
 * backward. */
double tensor_both_ways(const struct tensor_group *g, uint32_t i, int half, bool again, double share);
/* Writes the mean seconds of a unit, forward and backward. */
void tensor_group_price(const struct tensor_case *t, const struct tensor_group *g, bool again,
                        struct stage_price *price);

#endif
