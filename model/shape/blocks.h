/* Describes a model as the planner sees it: a list of blocks and their costs.
 *
 * All functions are pure: they depend on the config and a method, not on files. Throughout Motley, block 0 is
 * the embedding, blocks 1..L are the transformer layers and block L+1 is the final norm and head. A block has
 * one to three *parts*, so that placements which separate attention from experts can price each of them.
 * FLOPs count a multiply-add as 2 and cover forward only; "values" are elements, to be multiplied by the
 * bytes of their dtype. */
#ifndef MOTLEY_MODEL_SHAPE_BLOCKS_H
#define MOTLEY_MODEL_SHAPE_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "model/shape/arch.h"
#include "model/shape/config.h"

/* The matrices that a LoRA adapter may be attached to, as bits of a mask. */
enum lora_target {
    LORA_Q = 1 << 0,
    LORA_K = 1 << 1,
    LORA_V = 1 << 2,
    LORA_O = 1 << 3,
    LORA_GATE = 1 << 4,
    LORA_UP = 1 << 5,
    LORA_DOWN = 1 << 6,
    LORA_QKV = 1 << 7,       /* q, k and v as one matrix (Phi-3) */
    LORA_GATE_UP = 1 << 8,   /* gate and up as one matrix (Phi-3) */
    LORA_DELTA_QKV = 1 << 9, /* in_proj_qkv … out_proj of a gated delta net */
    LORA_DELTA_Z = 1 << 10,
    LORA_DELTA_B = 1 << 11,
    LORA_DELTA_A = 1 << 12,
    LORA_DELTA_OUT = 1 << 13,
    LORA_SHARED_GATE =
        1 << 14, /* the shared expert's matrices; in most families they are called gate_proj … */
    LORA_SHARED_UP = 1 << 15,
    LORA_SHARED_DOWN = 1 << 16,
    LORA_DELTA_QKVZ = 1 << 17, /* in_proj_qkvz and in_proj_ba of a packed gated delta net */
    LORA_DELTA_BA = 1 << 18,
    /* in_proj of a short convolution or a state space, whose out_proj is LORA_DELTA_OUT */
    LORA_CONV_IN = 1 << 19,
    LORA_SHARED_GATE_UP = 1 << 20, /* the shared expert's gate and up as one matrix (Granite) */
    LORA_PER_LAYER_GATE = 1 << 21, /* per_layer_input_gate and per_layer_projection of a layer, and */
    LORA_PER_LAYER_OUT = 1 << 22,
    LORA_PER_LAYER_MODEL = 1 << 23, /* per_layer_model_projection of block 0 (Gemma 4 E2B, E4B) */
    /* With latent attention LORA_K is kv_a_proj_with_mqa and LORA_V is kv_b_proj; q_proj is two matrices
     * where q has a latent, too: */
    LORA_Q_A = 1 << 24,
    LORA_Q_B = 1 << 25,
    LORA_ALL = (1 << 26) - 1, /* every matrix that the architecture has: see model_lora_targets() */
    LORA_EMBEDDING = 1 << 26, /* the tables, which every model has; a tied one may have both adapters */
    LORA_HEAD = 1 << 27,
    LORA_TABLES = LORA_EMBEDDING | LORA_HEAD,
    /* Adapters on tensors of all experts of a layer (peft's target_parameters). Each expert has an A and a B:
     * gate and up together one A and one B, in which gate's rows are above up's. */
    LORA_EXPERT_GATE_UP = 1 << 28,
    LORA_EXPERT_DOWN = 1 << 29,
    LORA_EXPERTS = LORA_EXPERT_GATE_UP | LORA_EXPERT_DOWN,
    LORA_TARGET_COUNT = 30
};
_Static_assert((1 << MODEL_MATRICES) - 1 == LORA_ALL,
               "a layer's matrices are the targets that are no tables");
/* The targets in attention, or in the gated delta net or the convolution in its place; the others are in the
 * FFN. */
enum {
    LORA_DELTA = LORA_DELTA_QKV | LORA_DELTA_Z | LORA_DELTA_B | LORA_DELTA_A | LORA_DELTA_OUT |
                 LORA_DELTA_QKVZ | LORA_DELTA_BA,
    LORA_ATTENTION =
        LORA_Q | LORA_K | LORA_V | LORA_O | LORA_QKV | LORA_DELTA | LORA_CONV_IN | LORA_Q_A | LORA_Q_B,
    LORA_SHARED = LORA_SHARED_GATE | LORA_SHARED_UP | LORA_SHARED_DOWN | LORA_SHARED_GATE_UP,
    LORA_PER_LAYER = LORA_PER_LAYER_GATE | LORA_PER_LAYER_OUT | LORA_PER_LAYER_MODEL
};

/* Returns the mask of the matrices that a model of this config has: q, k, v, gate and up, or the packed
 * matrices in their place. */
uint32_t model_lora_targets(const struct model_config *config);
/* Returns all targets that the model has, tables and tensors of experts, too. */
uint32_t model_adapted_targets(const struct model_config *config);
/* Returns those of its matrices that layer 'layer' (from 0) has. */
uint32_t model_layer_targets(const struct model_config *config, uint32_t layer);

/* Returns the name of the module around a target: "self_attn", "linear_attn", "mlp", or "" where the layer or
 * the model itself has it. */
const char *lora_target_module(uint32_t target);
/* Returns the target's name, "q_proj" …, or NULL unless exactly one bit is set; and its name in a model,
 * which is another one with latent attention. */
const char *lora_target_name(uint32_t target);
const char *lora_target_name_in(const struct model_config *config, uint32_t target);
/* Writes the name of a parameter of LORA_EXPERTS in transformers 5,
 * "model.layers.3.mlp.experts.gate_up_proj". */
void lora_parameter_name(const struct model_config *config, uint32_t layer, uint32_t target,
                         char name[ARCH_NAME_MAX]);
/* Writes the name of one expert's part of it with a suffix, "model.layers.3.mlp.experts.5.gate_up_proj". */
void lora_expert_name(const struct model_config *config, uint32_t layer, uint32_t target, uint32_t expert,
                      const char *suffix, char name[ARCH_NAME_MAX]);
/* Returns the bit named "q_proj" …, or 0; of those with one name, the first. */
uint32_t lora_target_from_name(const char *name);
/* Writes rows (out features) and columns (in features) of the base matrix W [rows, cols] of a target in layer
 * `layer` (from 0), as a dense layer has it. The adapter's A is [rank, cols] and its B [rows, rank]. Of the
 * embedding, whose input is a token, these are hidden and vocab; of LORA_EXPERTS those of one expert. */
void lora_target_shape(const struct model_config *config, uint32_t layer, uint32_t target, uint32_t *rows,
                       uint32_t *cols);

enum block_kind { BLOCK_EMBEDDING, BLOCK_LAYER, BLOCK_HEAD };
enum part_kind { PART_EMBEDDING, PART_ATTENTION, PART_FFN, PART_ROUTER, PART_EXPERT, PART_HEAD };

enum { BLOCK_PARTS_MAX = 3 };

struct block_part {
    enum part_kind kind;
    uint32_t copies;        /* number of experts of the layer; 1 for all other parts */
    uint32_t active;        /* copies that a token passes through: experts_active, or 1 */
    uint64_t params;        /* parameters of one copy, norms and biases included; a tied head has the norm
                             * alone */
    uint64_t matrix_params; /* those of params that NF4 stores in 4 bits: the layer's 2-D projections */
    uint64_t lora_params;   /* adapter parameters of one copy: sum of rank * (rows + cols) over targets */
    /* forward FLOPs of one copy */
    double flops_per_token;
    double flops_per_square; /* causal attention: FLOPs per unit of the sum of squared row lengths; windows
                              * are ignored */
    double lora_flops_per_token; /* 2 * lora_params, on top of flops_per_token */
    /* Values kept for backward per token that passes, without recomputation. This is an estimate (PLANNER.md,
     * Memory) for devices that were not measured: attention h + 2q + 2kv (gated delta net or state space h
     * + its first product + 2v), FFN h + 3f, router h + experts,
     * expert h + 3f, head h. */
    uint64_t saved_per_token;
};

struct block {
    enum block_kind kind;
    uint32_t index; /* number of the block, 0 .. L+1 */
    uint32_t part_count;
    struct block_part parts[BLOCK_PARTS_MAX];
    /* Sums over the block's parts and their copies. */
    uint64_t params, matrix_params, lora_params;
    uint64_t active_params;                   /* parameters of the copies that one token passes */
    double flops_per_token, flops_per_square; /* counting active copies only, adapters included */
    uint64_t saved_per_token;                 /* counting active copies only */
};

/* The ranks and factors of a model's adapters, as a plain value that lora_sites.h makes. Layers with the same
 * ranks and factors share one entry of way[]. */
enum { LORA_WAYS_MAX = 64 };

struct lora_way {
    uint32_t rank[LORA_TARGET_COUNT]; /* indexed by the number of the target's bit; 0: no adapter */
    double
        scale[LORA_TARGET_COUNT]; /* factor of the adapter's product: alpha / rank, or alpha / sqrt(rank) */
};

struct lora_sites {
    uint32_t ways; /* number of used entries of way[]; 0: no adapters at all */
    struct lora_way way[LORA_WAYS_MAX];
    uint8_t layer[MODEL_LAYERS_MAX]; /* each layer's index into way[] */
};

/* These functions return the rank (0: no adapter) and the factor of the adapter on a matrix: 'layer' counts
 * from 0, 'site' is the number of the target's bit. */
static inline uint32_t lora_rank_at(const struct lora_sites *sites, uint32_t layer, uint32_t site)
{
    return sites->ways > 0 && site < LORA_TARGET_COUNT ? sites->way[sites->layer[layer]].rank[site] : 0;
}
static inline double lora_scale_at(const struct lora_sites *sites, uint32_t layer, uint32_t site)
{
    return sites->ways > 0 && site < LORA_TARGET_COUNT ? sites->way[sites->layer[layer]].scale[site] : 0;
}

struct block_options {
    bool lora;                               /* false: rank and targets are ignored */
    uint32_t lora_rank;                      /* >= 1 when lora */
    uint32_t target_rank[LORA_TARGET_COUNT]; /* rank by the number of the target's bit; 0 means lora_rank */
    /* embedding and head are trained whole beside the adapters; their parameters count as lora_params */
    bool saves_embedding, saves_head;
    uint32_t lora_targets; /* mask of enum lora_target; targets that the model lacks do not count. In MoE
                            * layers gate, up and down mean every expert's */
    /* Adapters that differ among layers (lora_sites.h), used in place of the three fields above. Borrowed for
     * the call; NULL when all layers are alike. */
    const struct lora_sites *sites;
};

struct block_list {
    uint32_t count; /* number of blocks: layers + 2 */
    struct block *blocks;
    bool tied;                   /* head (L+1) multiplies with the embedding's matrix (0) */
    uint64_t tied_params;        /* vocab * hidden when tied, which another rank that needs the matrix keeps
                                  * as a copy; else 0 */
    uint64_t boundary_per_token; /* values that cross from one block to the next: hidden */
    uint64_t params, lora_params;
    uint64_t
        active_params; /* parameters that one token passes, embedding included: the "A3B" in a model's name */
};

/* Fills *list; block_list_fini() releases it. Errors: ERR_INVALID for options out of range or when the model
 * has none of the targets, ERR_NOMEM. */
int model_blocks(const struct model_config *config, const struct block_options *options,
                 struct block_list *list, struct err *err);
void block_list_fini(struct block_list *list);

/* The dtype in which a block's frozen weights are kept. */
enum block_base { BLOCK_BASE_FP32, BLOCK_BASE_BF16, BLOCK_BASE_NF4 };
/* Bytes of an NF4 parameter: a 4-bit code, an 8-bit scale for each 64, and an fp32 scale for each 256 of
 * those. */
#define BLOCK_NF4_BYTES 0.516

struct block_use {
    bool full; /* every parameter is trained; if false, only the adapters and tables in the options of the
                  block list */
    enum block_base base;  /* dtype of frozen weights; full fine-tuning trains the stored weights, so it
                            * excludes NF4 */
    bool compute_bf16;     /* activations and products are bf16; if false, fp32 */
    bool recompute;        /* backward runs forward again from the block's input */
    double tokens, sum_sq; /* micro-batch: the sum of its rows' lengths, and of their squares */
};

/* The cost of a part (one copy, or the copies that a token passes) or of a block. FLOPs of backward are those
 * of the gradients of inputs and of trained weights; for attention's scores they are twice the forward's.
 * Weights have the bytes of their storage (0.516 bytes per matrix parameter in NF4 with double quantisation,
 * QLoRA, Dettmers et al. 2023, section 3; norms, embedding and head in bf16). Gradients are fp32, or bf16 in
 * full fine-tuning of bf16 weights. The optimiser has AdamW's two fp32 moments, and an fp32 master copy of
 * bf16 weights that are trained (docs/PLANNER.md, Memory: 16 bytes per parameter). */
struct block_cost {
    double forward_flops, input_flops, weight_flops, recompute_flops;
    double weight_bytes, adapter_bytes, gradient_bytes, optimizer_bytes;
    double saved_bytes; /* kept from forward to backward: all saved values, or with recompute the block's
                         * input */
    /* the tokens' hidden values, which are sent to the next block, or to and from experts on other ranks */
    double boundary_bytes;
};

/* Computes the cost of one copy of a part on `use->tokens` tokens. With recompute only the first part of a
 * block keeps its input. */
void block_part_cost(const struct block_list *list, const struct block *block, uint32_t part,
                     const struct block_use *use, struct block_cost *cost);
/* Computes the cost of a whole block: each token passes `active` copies of its experts, while weights,
 * gradients and optimiser cover all copies. */
void block_cost(const struct block_list *list, uint32_t block, const struct block_use *use,
                struct block_cost *cost);

/* Computes the mean bytes of a value of the layers' matrices, and of embedding and head, in the file's
 * packing (config->packing); 0 where nothing is packed. */
void model_packed_bytes(const struct model_config *config, double *matrices, double *tables);

/* One tensor that a model of this config has, under its Hugging Face name; each expert has tensors of its
 * own. */
struct block_tensor {
    char name[ARCH_NAME_MAX];
    enum arch_tensor what;
    bool bias;         /* the tensor is the bias beside the matrix `what` */
    bool fused;        /* files keep the experts of a layer as one tensor, so they are no modules to peft */
    uint32_t expert;   /* 0 for tensors without experts */
    uint32_t block;    /* 0 .. L+1; a tied head's matrix is not listed, because it belongs to block 0 */
    uint32_t rank;     /* number of dimensions, 1 to 3 */
    uint32_t shape[2]; /* where rank is 3, the file's shape is [shape[0], 1, shape[1]] */
};

/* Writes the layers, from 0, under whose numbers rules and packings list a tensor: its own, or all for those
 * of embedding and head. */
void block_tensor_layers(const struct model_config *config, const struct block_tensor *tensor,
                         uint32_t *begin, uint32_t *end);

/* Calls 'visit' for every tensor of blocks [begin, end) in order until it returns non-zero, and
 * returns that. */
int model_block_tensors(const struct model_config *config, uint32_t begin, uint32_t end,
                        int (*visit)(const struct block_tensor *tensor, void *arg), void *arg);
/* Calls 'visit' for the tensors of all blocks and for a tied head's, which may have an adapter of its own. */
int model_adapted_tensors(const struct model_config *config,
                          int (*visit)(const struct block_tensor *tensor, void *arg), void *arg);

/* Returns the number of parameters; a tied head is counted once. */
uint64_t model_config_params(const struct model_config *config);

#endif
