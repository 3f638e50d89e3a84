/* Assignment of whole experts of every layer, from the shares of a candidate's members. For planner/ only. */
#ifndef MOTLEY_PLANNER_EMIT_EXPERT_SPLIT_H
#define MOTLEY_PLANNER_EMIT_EXPERT_SPLIT_H

#include "planner/candidate/candidate.h"
#include "planner/cost/expert_price.h"

/* The rank of each expert of each sparse layer. */
struct expert_split {
    uint32_t experts, sparse_count, member_count;
    uint16_t *owner;             /* [sparse_count · experts]: index of the member that has the expert */
    struct expert_layer *layers; /* [member_count · sparse_count] each member's part of each layer with
                                    experts */
};
/* Assigns whole experts by shares. A member's experts of a layer are consecutive, because a stage of the
 * engine has one range of them. A member's excess or lack, by the tokens that its experts get, is carried to
 * the next layer. Under even routing, shares that are multiples of 1/experts give the same experts in every
 * layer. `share` as in workload.h; NULL: even routing. ERR_NOMEM. */
int expert_split_init(struct expert_split *split, const struct expert_model *model, const double *share,
                      const struct member *members, uint32_t member_count, struct err *err);
void expert_split_fini(struct expert_split *split);

#endif
