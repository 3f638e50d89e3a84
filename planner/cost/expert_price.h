/* Prices of plans with attention on some devices and experts on others: computing, memory and transfers.
 * Pure; the structs belong to one thread. */
#ifndef MOTLEY_PLANNER_COST_EXPERT_PRICE_H
#define MOTLEY_PLANNER_COST_EXPERT_PRICE_H

#include "planner/cost/memory.h"
#include "planner/cost/problem.h"
#include "program/program.h"

/* Facts of the model, collected from the blocks once. */
struct expert_model {
    uint32_t experts, active; /* experts of a sparse layer, and how many of them a token uses */
    uint32_t sparse_count;    /* layers with experts */
    int32_t *sparse;          /* [sparse_count] their block indices, rising */
    /* parts of the first sparse layer; borrowed from the problem */
    const struct block_part *attention, *router, *expert;
    double routed_bytes; /* bytes of one token that is sent to or from a rank with experts */
};
/* ERR_UNSUPPORTED if the model has no layer with experts; ERR_NOMEM. */
int expert_model_init(struct expert_model *model, const struct problem *problem, struct err *err);
void expert_model_fini(struct expert_model *model);

/* Bytes per chosen expert of a token, sent before the payload: the expert's number and weight. */
#define ROUTE_ENTRY_BYTES 8.0

/* The share of tokens that use at least one of a set of experts to which the share `load` of all routed
 * tokens goes: 1 − Π (1 − load·N/(N − j)) over j < active. Exact for even routing (drawing without
 * replacement). */
double expert_touched(uint32_t experts, uint32_t active, double load);

/* The links between ranks, looked up once. */
struct expert_links {
    uint32_t n, node_count;
    uint32_t *node;             /* [n] index of the rank's node, below node_count */
    double *nic;                /* [node_count] bytes/s; 0: not limiting */
    double *latency_s, *byte_s; /* [n · n] from, to; seconds and seconds per byte; 0 on the diagonal */
    double *wire_byte_s;        /* [node_count · node_count] seconds per byte */
    double *pair, *in_s;        /* scratch: [node_count · node_count], [n] */
};
int expert_links_init(struct expert_links *links, const struct cluster *cluster, const uint32_t *device,
                      uint32_t n, struct err *err);
void expert_links_fini(struct expert_links *links);

/* Seconds to send routed tokens from attention to experts; the way back takes as long. tokens[i] are the
 * tokens of member i's rows, and the share touched[j] of them goes to member j. The result is the latency
 * and the longest of: egress and ingress of each rank, each wire between a pair of nodes, and each network
 * card. 0 if nothing leaves a rank. */
double expert_exchange_seconds(struct expert_links *links, const double *tokens, const double *touched,
                               double token_bytes);
/* Call after expert_exchange_seconds. True if some wire or card is used in the same direction on the way
 * there and on the way back, so that the two cannot overlap. */
bool expert_links_shared(const struct expert_links *links);

/* Seconds of one layer and one micro-batch in one direction, forward or backward. */
struct zebra {
    double attention_s, dispatch_s, experts_s, combine_s;
    double shared_s; /* the most that one device computes of attention and experts together, if a device does
                        both; else 0 */
    double wire_s;   /* dispatch and combine together, if they use the same wires; else 0 */
};
/* Seconds of zebra order in closed form (docs/PLANNER.md, Time; HeterMoE, Wu et al. 2025, "Zebra
 * parallelism"). Layers run one after the other; within a layer, attention of one micro-batch overlaps
 * dispatch, experts and combine of others. Exact if all micro-batches cost the same. */
double zebra_seconds(const struct zebra *z, uint32_t layers, uint32_t micro_batches);

/* A rank's part of a layer with experts. */
struct expert_layer {
    double count, load; /* number of experts, and their share of the layer's routed tokens */
};

/* Bytes that a rank must hold. Each value is for one sparse layer and one micro-batch, unless its comment
 * says otherwise. */
struct expert_need {
    struct memory_need all;
    uint64_t boundary_bytes;   /* one boundary tensor of the rank's rows */
    uint64_t routed_own_bytes; /* routed tokens of the rank's rows */
    uint64_t routed_all_bytes; /* routed tokens of all rows, which the rank's experts may receive */
    uint64_t saved_attention_bytes, saved_router_bytes;
    uint64_t saved_dense_bytes;   /* the largest of all ranges of other blocks */
    uint64_t saved_dense_total;   /* the sum over all those ranges */
    uint64_t saved_experts_bytes; /* the largest of all layers */
    uint64_t saved_experts_total; /* the sum over all layers */
    /* Gradients of shared parameters, and of the rank's experts. */
    uint64_t gradient_bytes, expert_gradient_bytes;
};
/* Fills *need for a rank that computes the attention of `rows` rows of each micro-batch (0: none) and
 * holds the experts of layers[sparse_count] (NULL: none), to which up to `tokens` tokens may be sent.
 * wave: micro-batches in a wave. */
void expert_need_fill(const struct problem *problem, const struct expert_model *model, uint32_t rows,
                      const struct expert_layer *layers, double tokens, uint32_t wave, bool recompute,
                      struct expert_need *need);

/* Prices of an expert plan's instructions, from the rows and experts of its ranks. */
struct expert_price;
int expert_price_init(struct expert_price **out, const struct problem *problem, const struct plan *plan,
                      const uint32_t *device, struct err *err);
void expert_price_fini(struct expert_price *price);
/* Seconds of ATTENTION, ROUTE, EXPERTS and STEP. load: what the instruction's rows hold. */
double expert_compute_seconds(const struct expert_price *price, uint32_t rank, const struct instr *instr,
                              const struct cost_load *load);
/* Seconds of DISPATCH and COMBINE in a priced step. */
double expert_group_seconds(struct expert_price *price, const struct instr *instr, uint32_t step);

#endif
