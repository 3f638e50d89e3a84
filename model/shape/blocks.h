/* A model as the planner sees it: a list of blocks, and what each costs.
 *
 * Pure: a function of the config and a method, no files. Blocks are numbered 0 embedding, 1..L transformer
 * layers, L+1 final norm and head, everywhere in Motley. A block is one to three *parts*, so that placements
 * which separate attention from experts can price them alone. FLOPs count a multiply-add as 2, forward only;
 * "values" are elements (multiply by the bytes of the dtype they are kept in).
 */
#ifndef MOTLEY_MODEL_SHAPE_BLOCKS_H
#define MOTLEY_MODEL_SHAPE_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "model/shape/arch.h"
#include "model/shape/config.h"

/* The matrices a LoRA adapter may sit on; as bits in masks. */
enum lora_target {
    LORA_Q = 1 << 0,
    LORA_K = 1 << 1,
    LORA_V = 1 << 2,
    LORA_O = 1 << 3,
    LORA_GATE = 1 << 4,
    LORA_UP = 1 << 5,
    LORA_DOWN = 1 << 6,
    LORA_QKV = 1 << 7,       /* q, k and v as one matrix (Phi-3) */
    LORA_GATE_UP = 1 << 8,   /* gate and up as one */
    LORA_ALL = (1 << 9) - 1, /* every one that the architecture has: see model_lora_targets() */
    LORA_TARGET_COUNT = 9
};
_Static_assert((int)MODEL_MATRICES == (int)LORA_TARGET_COUNT, "a layer's matrices are the targets");
/* The targets among them that attention has; the rest are the FFN's. */
enum { LORA_ATTENTION = LORA_Q | LORA_K | LORA_V | LORA_O | LORA_QKV };

/* The matrices that a model of this config has, as a mask of enum lora_target: q, k, v, gate and up, or the
 * packed ones instead. */
uint32_t model_lora_targets(const struct model_config *config);

/* "q_proj" …; NULL for anything that is not exactly one bit. */
const char *lora_target_name(uint32_t target);
/* The bit for "q_proj" …, or 0. */
uint32_t lora_target_from_name(const char *name);
/* Rows (out features) and columns (in features) of the base matrix W [rows, cols] a target sits on, dense
 * layers. A is [rank, cols], B is [rows, rank]. */
void lora_target_shape(const struct model_config *config, uint32_t target, uint32_t *rows, uint32_t *cols);

enum block_kind { BLOCK_EMBEDDING, BLOCK_LAYER, BLOCK_HEAD };
enum part_kind { PART_EMBEDDING, PART_ATTENTION, PART_FFN, PART_ROUTER, PART_EXPERT, PART_HEAD };

enum { BLOCK_PARTS_MAX = 3 };

struct block_part {
    enum part_kind kind;
    uint32_t copies;        /* experts of the layer; 1 for all other parts */
    uint32_t active;        /* copies a token passes through: experts_active, or 1 */
    uint64_t params;        /* of one copy, norms and biases included. A tied head holds the norm alone */
    uint64_t matrix_params; /* the part of params that NF4 stores in 4 bits: the layer's 2-D projections */
    uint64_t lora_params;   /* adapter parameters of one copy: sum of rank * (rows + cols) over targets */
    /* forward FLOPs of one copy */
    double flops_per_token;
    double
        flops_per_square; /* causal attention: per unit of sum of squared row lengths; windows are ignored */
    double lora_flops_per_token; /* 2 * lora_params, on top of flops_per_token */
    /* values kept for backward per token that passes, without recomputation; an estimate (PLANNER.md, Memory)
     * for devices nobody has measured: attention h + 2q + 2kv, FFN h + 3f, router h + experts, expert h + 3f,
     * head h */
    uint64_t saved_per_token;
};

struct block {
    enum block_kind kind;
    uint32_t index; /* 0 .. L+1 */
    uint32_t part_count;
    struct block_part parts[BLOCK_PARTS_MAX];
    /* sums over parts and their copies */
    uint64_t params, matrix_params, lora_params;
    uint64_t active_params;                   /* of the copies that one token passes */
    double flops_per_token, flops_per_square; /* active copies only, adapters included */
    uint64_t saved_per_token;                 /* active copies only */
};

/* Where adapters are on a model: a plain value (lora_sites.h makes it). Layers that are alike share a way. */
enum { LORA_WAYS_MAX = 64 };

struct lora_way {
    uint32_t rank[LORA_TARGET_COUNT]; /* by number of the target's bit; 0: no adapter */
    double scale[LORA_TARGET_COUNT];  /* alpha / rank, or alpha / sqrt(rank) */
};

struct lora_sites {
    uint32_t ways; /* 0: no adapters at all */
    struct lora_way way[LORA_WAYS_MAX];
    uint8_t layer[MODEL_LAYERS_MAX]; /* its way */
};

/* Rank (0: none) and factor on the target whose bit has this number; layer from 0. */
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
    uint32_t target_rank[LORA_TARGET_COUNT]; /* of a target by number of its bit; 0: lora_rank */
    bool saves_embedding, saves_head;        /* trained whole beside the adapters, and counted with them */
    uint32_t lora_targets; /* mask of enum lora_target; those that the model has count. On MoE layers gate, up
                              and down mean every expert's */
    /* Where layers differ (lora_sites.h): in the place of the three above. Borrowed for the call; NULL: not
     */
    const struct lora_sites *sites;
};

struct block_list {
    uint32_t count; /* layers + 2 */
    struct block *blocks;
    bool tied;                   /* head (L+1) multiplies with the embedding's matrix (0) */
    uint64_t tied_params;        /* vocab * hidden when tied: what a second holder keeps as a copy; else 0 */
    uint64_t boundary_per_token; /* values that cross from any block to the next: hidden */
    uint64_t params, lora_params;
    uint64_t
        active_params; /* that one token passes: what "A3B" in a model's name counts, embedding included */
};

/* Fill *list; block_list_fini() releases it. Errors: ERR_INVALID for options out of range or targets of which
 * the model has none, ERR_NOMEM. */
int model_blocks(const struct model_config *config, const struct block_options *options,
                 struct block_list *list, struct err *err);
void block_list_fini(struct block_list *list);

/* How a block is used: by which method, kept how, and on what. */
enum block_base { BLOCK_BASE_FP32, BLOCK_BASE_BF16, BLOCK_BASE_NF4 };
/* Bytes of an NF4 parameter: 4 bits, and 8-bit scales of 64 with an fp32 scale of 256 of them. */
#define BLOCK_NF4_BYTES 0.516

struct block_use {
    bool full;             /* every parameter is trained; else the adapters of the list's options alone */
    enum block_base base;  /* how frozen weights are kept; full fine-tuning trains what is kept, so not NF4 */
    bool compute_bf16;     /* activations and products in bf16; else fp32 */
    bool recompute;        /* backward runs forward again from the block's input */
    double tokens, sum_sq; /* of the micro-batch: Σ length and Σ length² of its rows */
};

/* What a part (one copy, or those a token passes) or a block costs. FLOPs of backward are those for the
 * input's gradient and for the trained weights'; attention's scores cost twice their forward. Bytes: weights
 * as kept (NF4 with double quantisation 0.516 a parameter of its matrices, QLoRA, Dettmers et al. 2023,
 * section 3; norms, embedding and head in bf16), gradients in fp32 (bf16 when weights of full fine-tuning
 * are), optimiser AdamW's two fp32 moments and the fp32 master copy of bf16 weights that are trained
 * (docs/PLANNER.md, Memory: 16 a parameter). */
struct block_cost {
    double forward_flops, input_flops, weight_flops, recompute_flops;
    double weight_bytes, adapter_bytes, gradient_bytes, optimizer_bytes;
    double saved_bytes;    /* kept from forward to backward: all of it, or the block's input with recompute */
    double boundary_bytes; /* crosses to the next block, or to and from experts, for each token that does */
};

/* One copy of a part on `use->tokens` tokens; a part inside a block keeps no input of its own with recompute
 * but the block's first. */
void block_part_cost(const struct block_list *list, const struct block *block, uint32_t part,
                     const struct block_use *use, struct block_cost *cost);
/* The whole block: each token passes `active` copies of its experts; weights, gradients and optimiser of all
 * copies. */
void block_cost(const struct block_list *list, uint32_t block, const struct block_use *use,
                struct block_cost *cost);

/* Mean bytes of a value of the layers' matrices, and of embedding and head, as the file packs them
 * (config->packing); 0 where nothing is. */
void model_packed_bytes(const struct model_config *config, double *matrices, double *tables);

/* One tensor that a model of this config has, under its Hugging Face name; of experts, one for each. */
struct block_tensor {
    char name[ARCH_NAME_MAX];
    enum arch_tensor what;
    bool bias;       /* the bias beside that matrix */
    uint32_t expert; /* 0 where there are none */
    uint32_t block;  /* 0 .. L+1; a tied head's matrix is not listed: it is block 0's */
    uint32_t rank;   /* dimensions, 1 or 2 */
    uint32_t shape[2];
};

/* Call 'visit' for every tensor of blocks [begin, end), in order, until it returns non-zero; returns that. */
int model_block_tensors(const struct model_config *config, uint32_t begin, uint32_t end,
                        int (*visit)(const struct block_tensor *tensor, void *arg), void *arg);

/* Parameters in all; a tied head is counted once. */
uint64_t model_config_params(const struct model_config *config);

#endif
