/* Prices of plans with attention on some devices and experts on others: computing, memory and transfers.
 * Pure; the structs belong to one thread. */
#ifndef MOTLEY_PLANNER_COST_EXPERT_PRICE_H
#define MOTLEY_PLANNER_COST_EXPERT_PRICE_H

#include "planner/cost/memory.h"
#include "planner/cost/problem.h"
#include "program/program.h"

/* Facts about a model with experts, collected from its blocks once. */
struct expert_model {
    uint32_t experts, active; /* experts of a sparse layer, and experts that a token uses */
    uint32_t sparse_count;    /* layers with experts */
    int32_t *sparse;          /* [sparse_count] block indices of the layers with experts, rising */
    /* parts of the first sparse layer; borrowed from the problem */
    const struct block_part *attention, *router, *expert;
    double routed_bytes; /* bytes of one token that is sent to or from a rank with experts */
    uint32_t hidden;
    /* memory layouts of a stage with all blocks but experts, and of a stage with the experts of one layer */
    struct footprint_model *attention_model, *experts_model;
    uint32_t held; /* number of experts that experts_model describes; 0: experts_model is not filled */
};
/* Fills *model. ERR_UNSUPPORTED if the model has no layer with experts; ERR_NOMEM. */
int expert_model_init(struct expert_model *model, const struct problem *problem, struct err *err);
void expert_model_fini(struct expert_model *model);
/* Fills model->experts_model for a stage with `count` experts of a layer. */
int expert_model_hold(struct expert_model *model, const struct problem *problem, uint32_t count,
                      struct err *err);

/* Return the bytes of routed tokens [tokens, hidden] with the weights and indices of their experts
 * (ROUTED_TOKENS), of the gradients of tokens and weights (ROUTED_GRADIENTS), or of experts' outputs, as a
 * slot holds them: each matrix begins at a multiple of 64 bytes. All are fp32. */
enum expert_routed { ROUTED_TOKENS, ROUTED_GRADIENTS, ROUTED_OUTPUTS };
uint64_t expert_routed_bytes(const struct expert_model *model, uint64_t tokens, enum expert_routed what);

/* Bytes that are sent before the payload for each expert that a token chose: the expert's index and weight.
 */
#define ROUTE_ENTRY_BYTES 8.0

/* Returns the share of tokens that use at least one of a set of experts to which the share `load` of all
 * routed tokens goes: 1 − Π (1 − load·N/(N − j)) over j < active. It is exact for even routing (drawing
 * without replacement). */
double expert_touched(uint32_t experts, uint32_t active, double load);

/* The links between ranks, looked up once. */
struct expert_links {
    struct arena arena; /* the arrays */
    uint32_t n, node_count;
    uint32_t *node;             /* [n] index of the rank's node, below node_count */
    double *nic;                /* [node_count] rate of each node's network card in bytes/s; 0: unlimited */
    double *latency_s, *byte_s; /* [n · n], sender first: seconds, and seconds per byte; 0 on the diagonal */
    double *wire_byte_s;        /* [node_count · node_count], sender first: the wires' seconds per byte */
    double *pair, *in_s;        /* scratch memory: [node_count · node_count] and [n] */
};
int expert_links_init(struct expert_links *links, const struct cluster *cluster, const uint32_t *device,
                      uint32_t n, struct err *err);
void expert_links_fini(struct expert_links *links);

/* Returns the seconds to send routed tokens from attention to experts; the way back takes as long. tokens[i]
 * are the tokens of member i's rows, and the share touched[j] of them goes to member j. The result is the
 * latency and the longest of: egress and ingress of each rank, each wire between a pair of nodes, and each
 * network card. 0 if nothing leaves a rank. */
double expert_exchange_seconds(struct expert_links *links, const double *tokens, const double *touched,
                               double token_bytes);
/* True if some wire or network card is used in the same direction by the way to the experts and by the way
 * back, so that the two cannot overlap. Call it after expert_exchange_seconds. */
bool expert_links_shared(const struct expert_links *links);

/* Seconds of one layer and one micro-batch in one direction, forward or backward. */
struct zebra {
    double attention_s, dispatch_s, experts_s, combine_s;
    double shared_s; /* the longest seconds of attention and experts together on a device that has both; 0: no
                        device has both */
    double wire_s;   /* seconds of dispatch and combine together, if they use the same wires; else 0 */
};
/* Returns the seconds of zebra order in closed form (docs/PLANNER.md, Time; HeterMoE, Wu et al. 2025, "Zebra
 * parallelism"). Layers run one after the other; within a layer, attention of one micro-batch overlaps
 * dispatch, experts and combine of others. Exact if all micro-batches cost the same. */
double zebra_seconds(const struct zebra *z, uint32_t layers, uint32_t micro_batches);

/* A rank's part of a layer with experts. */
struct expert_layer {
    double count, load; /* number of the rank's experts, and their share of the layer's routed tokens */
};

/* The work and the contents of a rank of an expert plan, from which its memory follows. */
struct expert_role {
    uint32_t rows, all_rows;           /* rows whose attention the rank computes (0: none), and rows of a
                                          whole micro-batch */
    const struct expert_layer *layers; /* [sparse_count] the experts that the rank holds; NULL: none */
    uint64_t routed_bytes; /* bytes of the routed tokens that this rank may receive: the sum over all ranks
                              that compute attention */
    uint32_t wave;         /* micro-batches in a wave */
    bool recompute;        /* attention is recomputed; experts never are */
    bool samples;          /* the rank computes attention when sampling */
};

/* Bytes that a rank must hold. Each value is for one sparse layer and one micro-batch, unless the value's own
 * comment says otherwise. */
struct expert_need {
    struct memory_need all;
    uint64_t boundary_bytes;   /* one boundary tensor of the rank's rows */
    uint64_t routed_own_bytes; /* routed tokens of the rank's rows */
    uint64_t routed_in_bytes;  /* routed tokens that may come to the rank's experts */
    uint64_t routed_out_bytes,
        routed_back_bytes;      /* bytes of what goes back for the tokens in routed_in_bytes: experts' outputs
                                   (or the gradients of these), and gradients of the tokens */
    uint64_t saved_layer_bytes; /* activations saved by attention and router, in the layer with most */
    uint64_t saved_layers_total;  /* saved_layer_bytes, summed over all layers */
    uint64_t saved_dense_bytes;   /* activations saved by all other blocks */
    uint64_t saved_experts_bytes; /* activations saved by experts, in the layer with most */
    uint64_t saved_experts_total; /* saved_experts_bytes, summed over all layers */
    /* bytes of gradients of the parameters that all ranks with attention share, and of the rank's experts */
    uint64_t gradient_bytes, expert_gradient_bytes;
    double trained; /* number of trained parameters on the rank */
};
/* Fills *need with what the engine allocates for a rank. ERR_NOMEM. */
int expert_need_fill(const struct problem *problem, struct expert_model *model,
                     const struct expert_role *role, struct expert_need *need, struct err *err);

/* Prices of an expert plan's instructions, from the rows and experts of its ranks. */
struct expert_price;
int expert_price_init(struct expert_price **out, const struct problem *problem, const struct plan *plan,
                      const uint32_t *device, struct err *err);
void expert_price_fini(struct expert_price *price);
/* Returns the seconds of an ATTENTION, ROUTE, EXPERTS or STEP instruction. `load` counts the rows and tokens
 * that the instruction works on. */
double expert_compute_seconds(const struct expert_price *price, uint32_t rank, const struct instr *instr,
                              const struct cost_load *load);
/* Returns the seconds of a DISPATCH or COMBINE instruction in step `step` of the priced steps. */
double expert_group_seconds(struct expert_price *price, const struct instr *instr, uint32_t step);

#endif
