/* Whole experts of every layer from the shares of a candidate's members. For planner/ only. */
#ifndef MOTLEY_PLANNER_EMIT_EXPERT_SPLIT_H
#define MOTLEY_PLANNER_EMIT_EXPERT_SPLIT_H

#include "planner/candidate/candidate.h"
#include "planner/cost/expert_price.h"

/* Which rank holds which expert of which sparse layer. */
struct expert_split {
    uint32_t experts, sparse_count, member_count;
    uint16_t *owner;             /* [sparse_count · experts]: member */
    struct expert_layer *layers; /* [member_count · sparse_count] */
};
/* Whole experts from shares: each layer's are dealt out longest-first (by the tokens they get) to whoever is
 * furthest below its share, and what a member is short of or beyond it is carried to the next layer. Shares
 * that are multiples of 1/experts give the same experts in every layer. `share` as in workload.h, NULL: even.
 * ERR_NOMEM. */
int expert_split_init(struct expert_split *split, const struct expert_model *model, const double *share,
                      const struct member *members, uint32_t member_count, struct err *err);
void expert_split_fini(struct expert_split *split);

#endif
