/* Attention on some devices, experts on others: what each takes and keeps, and what crosses between them.
 * Pure; structs belong to one thread. */
#ifndef MOTLEY_PLANNER_COST_EXPERT_PRICE_H
#define MOTLEY_PLANNER_COST_EXPERT_PRICE_H

#include "planner/cost/memory.h"
#include "planner/cost/problem.h"
#include "program/program.h"

/* What the model is, read off the blocks once. */
struct expert_model {
    uint32_t experts, active; /* of a sparse layer, and of them a token's */
    uint32_t sparse_count;    /* layers with experts */
    int32_t *sparse;          /* [sparse_count] their blocks, rising */
    /* of the first of them; borrowed from the problem */
    const struct block_part *attention, *router, *expert;
    double routed_bytes; /* of a token on its way to or from a rank's experts */
};
/* ERR_UNSUPPORTED when the model has no layer with experts; ERR_NOMEM. */
int expert_model_init(struct expert_model *model, const struct problem *problem, struct err *err);
void expert_model_fini(struct expert_model *model);

#define ROUTE_ENTRY_BYTES                                                                                    \
    8.0 /* of each chosen expert of a token: its number and weight, ahead of the payload */

/* The share of tokens that have at least one of their `active` experts among those that get `load` of all
 * routed tokens: 1 − Π (1 − load·N/(N − j)) over j < active. Exact for even routing (drawing without
 * replacement). */
double expert_touched(uint32_t experts, uint32_t active, double load);

/* The links between ranks, read once. */
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

/* Seconds of one layer and micro-batch, one direction. */
struct zebra {
    double attention_s, dispatch_s, experts_s, combine_s;
    double shared_s; /* the most that one device computes of attention and experts together, when one does
                        both; else 0 */
    double wire_s;   /* of dispatch and combine together, when they take the same wires; else 0 */
};
/* Zebra order in closed form (docs/PLANNER.md, Time; HeterMoE, Wu et al. 2025, "Zebra parallelism"): layers
 * one after the other, in each layer micro-batch after micro-batch, while attention of one micro-batch,
 * dispatch, experts and combine of others go on at once. Exact when all micro-batches cost the same. */
double zebra_seconds(const struct zebra *z, uint32_t layers, uint32_t micro_batches);

/* What a rank holds of a layer with experts. */
struct expert_layer {
    double count, load; /* experts, and the share of the layer's routed tokens that go to them */
};

/* What a rank must hold; of one sparse layer or the like, and one micro-batch, where nothing else is said. */
struct expert_need {
    struct memory_need all;
    uint64_t boundary_bytes;   /* one boundary tensor of its rows */
    uint64_t routed_own_bytes; /* routed tokens of its rows */
    uint64_t routed_all_bytes; /* routed tokens of all rows, which its experts may get */
    uint64_t saved_attention_bytes, saved_router_bytes;
    uint64_t saved_dense_bytes;                     /* the most of any range of other blocks */
    uint64_t saved_dense_total;                     /* of all those ranges */
    uint64_t saved_experts_bytes;                   /* the most of any layer */
    uint64_t saved_experts_total;                   /* of all of them */
    uint64_t gradient_bytes, expert_gradient_bytes; /* of what is trained: shared, and its experts' */
};
/* Of a rank that computes the attention of `rows` rows of each micro-batch (0: none) and holds experts as
 * layers[sparse_count] say (NULL: none), which may get `tokens` tokens, with so many micro-batches in a wave.
 */
void expert_need_fill(const struct problem *problem, const struct expert_model *model, uint32_t rows,
                      const struct expert_layer *layers, double tokens, uint32_t wave, bool recompute,
                      struct expert_need *need);

/* Pricing a plan with experts apart: rows and experts per rank, read off the plan. */
struct expert_price;
int expert_price_init(struct expert_price **out, const struct problem *problem, const struct plan *plan,
                      const uint32_t *device, struct err *err);
void expert_price_fini(struct expert_price *price);
/* ATTENTION, ROUTE, EXPERTS and STEP. `load`: of the instruction's rows. */
double expert_compute_seconds(const struct expert_price *price, uint32_t rank, const struct instr *instr,
                              const struct cost_load *load);
/* DISPATCH and COMBINE of a priced step. */
double expert_group_seconds(struct expert_price *price, const struct instr *instr, uint32_t step);

#endif
