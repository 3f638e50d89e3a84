/* Attention on some devices, experts on others: how the two are divided, what each rank holds, what crosses
 * between them. What place_expert.c searches with, expert_emit.c emits and expert_price.c prices. For this
 * room only.
 *
 * In a choice of this placement every member's micro_rows are the rows of each micro-batch whose attention it
 * computes (0: none; they follow each other in member order and sum to choice->micro_batch_rows), and
 * expert_share is its part of every layer's experts (0: none; they sum to 1). One stage; window:
 * micro-batches of a wave, which go through all layers forward and back before the next wave starts. */
#ifndef MOTLEY_PLANNER_EXPERT_EXPERT_H
#define MOTLEY_PLANNER_EXPERT_EXPERT_H

#include <jansson.h>

#include "planner/expert/zebra.h"
#include "planner/search/placement.h"

/* Of the tokens and token-expert pairs that an even routing brings a rank, this many times as many have room
 * in what its experts keep for backward; beyond it their input alone is kept and the rest computed again.
 * Rule of thumb. */
#define ROUTE_HEADROOM 1.5
#define ROUTE_ENTRY_BYTES                                                                                    \
    8.0 /* of each chosen expert of a token: its number and weight, ahead of the payload */

/* What the model is, read off the blocks once. */
struct expert_model {
    uint32_t experts, active; /* of a sparse layer, and of them a token's */
    uint32_t sparse_count;    /* layers with experts */
    int32_t *sparse;          /* [sparse_count] their blocks, rising */
    const struct block_part *attention, *router,
        *expert;         /* of the first of them; borrowed from the problem */
    double routed_bytes; /* of a token on its way to or from a rank's experts */
};

/* ERR_UNSUPPORTED when the model has no layer with experts; ERR_NOMEM. */
int expert_model_init(struct expert_model *model, const struct problem *problem, struct err *err);
void expert_model_fini(struct expert_model *model);

/* Which rank holds which expert of which sparse layer. */
struct expert_split {
    uint32_t experts, sparse_count, member_count;
    uint16_t *owner; /* [sparse_count · experts]: member */
    uint32_t *count; /* [member_count · sparse_count]: experts of a member in a layer */
    double *load;    /* [member_count · sparse_count]: share of the layer's routed tokens that go to them */
    uint32_t *total; /* [member_count]: over all layers */
};

/* Whole experts from shares: each layer's are dealt out longest-first (by the tokens they get) to whoever is
 * furthest below its share, and what a member is short of or beyond it is carried to the next layer. Shares
 * that are multiples of 1/experts give the same experts in every layer. `share` as in workload.h, NULL: even.
 * ERR_NOMEM. */
int expert_split_init(struct expert_split *split, const struct expert_model *model, const double *share,
                      const struct place_member *members, uint32_t member_count, struct err *err);
void expert_split_fini(struct expert_split *split);

/* Water-filling: shares x (Σ = 1) that minimise the largest base[i] + x[i]·each[i], none above cap[i];
 * each[i] is the time of all experts on i. False when the caps do not hold all. O(n²) at worst. */
bool expert_fill(uint32_t n, const double *base, const double *each, const double *cap, double *x);
/* The same in whole experts: count[i] experts each taking each[i]/experts, at most floor(cap[i]·experts). */
bool expert_fill_whole(uint32_t n, uint32_t experts, const double *base, const double *each,
                       const double *cap, uint32_t *count);

/* Rounds the members' shares to multiples of 1/units, by the largest part that is left; they sum to 1. */
void expert_shares_whole(struct place_member *members, uint32_t count, uint32_t units);

/* The share of tokens that have at least one of their `active` experts among those that get `load` of all
 * routed tokens: 1 − Π (1 − load·N/(N − j)) over j < active. Exact for even routing (drawing without
 * replacement). */
double expert_touched(uint32_t experts, uint32_t active, double load);

/* Tokens of one micro-batch whose attention a member computes at the mean, and all of it. */
struct cost_load expert_load_mean(const struct problem *problem, uint32_t micro_batches, double row_share);

/* The links between members, read once. */
struct expert_links {
    uint32_t n, node_count;
    uint32_t *node;             /* [n] place among node_count */
    double *nic;                /* [node_count] bytes/s, 0: not limiting */
    double *latency_s, *byte_s; /* [n · n] from, to; 0 on the diagonal */
    double *wire_byte_s;        /* [node_count · node_count] */
    double *pair, *in_s;        /* scratch: [node_count · node_count], [n] */
};
int expert_links_init(struct expert_links *links, const struct cluster *cluster, const uint32_t *device,
                      uint32_t n, struct err *err);
void expert_links_fini(struct expert_links *links);

/* Seconds to move routed tokens from attention to experts (the way back is the same, turned round):
 * `tokens[i]` of member i's rows, the share `touched[j]` of them to member j. α + the longest of each rank's
 * egress and ingress, each wire that a pair of nodes shares and each network card. 0 when nothing leaves a
 * rank. */
double expert_exchange_seconds(struct expert_links *links, const double *tokens, const double *touched,
                               double token_bytes);

/* After expert_exchange_seconds: would the same on its way back need a wire or card in a direction that it
 * needed on the way there, so that the two cannot go at once? */
bool expert_links_shared(const struct expert_links *links);

/* What a member must hold. `largest` layers: counts of split. */
struct expert_need {
    struct memory_need all;
    uint64_t boundary_bytes;   /* one boundary tensor of its rows */
    uint64_t routed_own_bytes; /* routed tokens of its rows */
    uint64_t routed_all_bytes; /* routed tokens of all rows, which its experts may get */
    uint64_t saved_attention_bytes, saved_router_bytes; /* of one sparse layer and micro-batch */
    uint64_t saved_dense_bytes; /* the most of any range of other blocks, one micro-batch */
    uint64_t saved_dense_total; /* of all those ranges, one micro-batch */
    uint64_t saved_experts_bytes,
        saved_experts_total;                        /* the most of any layer, and of all, one micro-batch */
    uint64_t gradient_bytes, expert_gradient_bytes; /* of what is trained: shared, and its experts' */
};
void expert_member_need(const struct problem *problem, const struct expert_model *model,
                        const struct place_choice *choice, const struct expert_split *split, uint32_t member,
                        struct expert_need *need);

/* The same in two parts, for searching: what attention and all around it take (a little if there are no
 * rows), and what `count` experts of every layer add under even routing with `tokens` of a micro-batch in
 * all. */
uint64_t expert_attention_bytes(const struct problem *problem, const struct expert_model *model,
                                const struct place_member *member);
uint64_t expert_even_bytes(const struct problem *problem, const struct expert_model *model,
                           const struct place_member *member, double tokens, uint32_t count);

/* placement.emit: the plan of a choice. Returns new (plan_destroy), or NULL with ERR_NOFIT, ERR_NOMEM. */
struct plan *expert_emit(const struct problem *problem, const struct place_choice *choice, bool programs,
                         struct err *err);

/* Pricing a plan of this placement: rows and experts per rank, read off the plan. */
struct expert_price;
int expert_price_init(struct expert_price **out, const struct problem *problem, const struct plan *plan,
                      const uint32_t *device, struct err *err);
void expert_price_fini(struct expert_price *price);
/* ATTENTION, ROUTE, EXPERTS and STEP. `load`: of the instruction's rows. */
double expert_compute_seconds(const struct expert_price *price, uint32_t rank, const struct instr *instr,
                              const struct cost_load *load);
/* DISPATCH and COMBINE of a priced step. */
double expert_group_seconds(struct expert_price *price, const struct instr *instr, uint32_t step);

/* Rows · Σ over kinds of work of min over devices (t_d,kind / t_d) / Σ 1/t_d: the bound of docs/PLANNER.md,
 * which takes a row to pass all blocks on one device, made true where one device may be better at attention
 * and another at experts (the dual of sharing out the kinds of work, at prices 1/t_d). Equal to it when
 * devices differ in speed alone. */
double expert_lower_bound(const struct problem *problem);

/* A rank's experts in words (expert_words.c): "experts 0..12 of every layer"; "" for none. */
void expert_words(const struct plan_rank *rank, char *text, size_t size);
/* [[block, begin, end], …]; new, or NULL out of memory. */
json_t *expert_ranges_json(const struct plan_rank *rank);

#endif
