/* What a model is: the sizes and switches of a `config.json`, or of a GGUF's metadata, checked.
 *
 * Everything that plans, counts, reads or runs a model asks this one struct. Parsing refuses what contradicts
 * itself or is out of range (ERR_INVALID naming the key), an architecture we do not know (ERR_UNSUPPORTED
 * with the list of those we do), and switches that change the arithmetic and that nobody here computes
 * (ERR_UNSUPPORTED naming the key). A parsed config is a plain value: copy it, share it between threads.
 */
#ifndef MOTLEY_MODEL_SHAPE_CONFIG_H
#define MOTLEY_MODEL_SHAPE_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum {
    MODEL_LAYERS_MAX = 1024,
    MODEL_EXPERTS_MAX = 1024,
    MODEL_EOS_MAX = 8,
    ROPE_FACTORS_MAX = 128,          /* frequencies of longrope */
    MODEL_MATRICES = 9,              /* of a layer: LORA_TARGET_COUNT (blocks.h) */
    MODEL_PACKINGS_MAX = 16,         /* ways in which layers of a file may be packed */
    MODEL_CONFIG_BYTES_MAX = 4 << 20 /* of a config.json */
};

enum model_arch {
    MODEL_LLAMA,
    MODEL_MISTRAL,
    MODEL_QWEN2,
    MODEL_QWEN3,
    MODEL_MIXTRAL,
    MODEL_QWEN3_MOE,
    MODEL_OLMOE,
    MODEL_GEMMA2,
    MODEL_GEMMA3,
    MODEL_PHI3,
    MODEL_SMOLLM3,
    MODEL_ARCH_COUNT
};

/* How rotary frequencies are scaled. ROPE_OTHER: planned but not computed, of a GGUF that names another. */
enum rope_kind {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_LLAMA3,
    ROPE_YARN,     /* Peng et al. 2023 */
    ROPE_LONGROPE, /* Ding et al. 2024; "su" in Phi-3's first files */
    ROPE_DYNAMIC,  /* NTK: as ROPE_DEFAULT up to max_positions, and not computed beyond */
    ROPE_OTHER
};

struct rope_config {
    double theta; /* base of the frequencies: theta^(-2i/head_dim) */
    enum rope_kind kind;
    char kind_name[16]; /* as the file says it */
    /* factor divides the frequencies (linear), or the low ones (llama3, yarn); 1 where unused */
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_max_positions;            /* llama3, yarn, longrope: tokens. dynamic: max_positions */
    double attention;            /* yarn, longrope: cosines and sines are multiplied by it; 0 stands for 1 */
    double beta_fast, beta_slow; /* yarn: turns within original_max_positions between which is blended */
    bool ramp_exact;             /* yarn: the blend's ends are not rounded outwards ("truncate": false) */
    uint32_t factor_count;       /* longrope: half the values that are rotated */
    float short_factor[ROPE_FACTORS_MAX], long_factor[ROPE_FACTORS_MAX]; /* longrope: divide frequencies */
};

/* What the values of a model's file are kept in; MODEL_F32 also for quantised ones. */
enum model_dtype { MODEL_F32, MODEL_BF16, MODEL_F16 };

/* How a GGUF keeps its matrices where some are in quantised blocks: what a base kept `packed` holds. Kinds
 * are those of enum pack_kind (pack.h); layers that are alike share a way. */
struct model_packing {
    uint32_t
        ways; /* 0: no matrix of a layer is quantised. Above MODEL_PACKINGS_MAX: layers differ too much */
    uint8_t embedding, head;
    uint8_t matrix[MODEL_PACKINGS_MAX][MODEL_MATRICES]; /* by the number of the target's bit */
    uint8_t layer[MODEL_LAYERS_MAX];                    /* its way */
};

struct model_config {
    enum model_arch arch;
    uint32_t hidden;          /* width of the residual stream */
    uint32_t layers;          /* transformer layers L */
    uint32_t heads, kv_heads; /* heads is a multiple of kv_heads */
    uint32_t head_dim;        /* even; heads * head_dim need not equal hidden */
    uint32_t ffn;             /* width of the dense SwiGLU; 0 when every layer is a mixture of experts */
    uint32_t vocab;
    uint32_t max_positions;
    double norm_eps;
    struct rope_config rope;
    bool tied;        /* the head's matrix is the embedding */
    bool nested;      /* the config was the text_config of a model that sees, too */
    bool qkv_bias;    /* biases on q, k, v */
    bool o_bias;      /* bias on o */
    bool mlp_bias;    /* biases on gate, up, down */
    uint32_t qk_norm; /* 0 none; 1 RMSNorm per head (head_dim weights); 2 over the full width of q and k */
    uint32_t window;  /* tokens of sliding-window attention in the layers of window_layer; 0: none */
    uint8_t window_layer[MODEL_LAYERS_MAX / 8];  /* bit i: layer i attends to the window only */
    uint8_t no_rope_layer[MODEL_LAYERS_MAX / 8]; /* bit i: layer i does not rotate q and k (SmolLM3) */
    /* What other families than Llama's have; all zero there. */
    uint32_t rotary_dim; /* of a head's values so many are rotated; 0: all */
    bool rope_local_set; /* windowed layers have a rotary setting of their own (Gemma 3): */
    struct rope_config rope_local;
    bool gelu;          /* the gate is gelu by tanh, not silu */
    bool packed;        /* q, k, v are one matrix, and so are gate and up (Phi-3) */
    bool post_norms;    /* attention's and the FFN's outputs are normed before they are added (Gemma) */
    double norm_offset; /* added to every norm's weight (Gemma: 1) */
    double embed_scale; /* the embedding is multiplied by it; 0 stands for 1 */
    double attn_scale;  /* of the scores; 0 stands for 1 / sqrt(head_dim) */
    double attn_softcap, logit_softcap; /* cap * tanh(x / cap) of scores and logits; 0: none */
    enum model_dtype dtype;             /* of the file's values */
    struct model_packing packing;       /* of a GGUF's */
    /* mixture of experts; experts = 0: dense */
    uint32_t experts;                          /* per sparse layer */
    uint32_t experts_active;                   /* chosen per token */
    uint32_t expert_ffn;                       /* width of one expert */
    bool router_renormalise;                   /* chosen weights are divided by their sum */
    double router_aux_coef;                    /* of the load-balancing loss */
    uint8_t dense_layer[MODEL_LAYERS_MAX / 8]; /* bit i: layer i of a mixture model is dense */
    /* special tokens; -1: the file names none */
    int32_t bos, pad;
    uint32_t eos_count;
    int32_t eos[MODEL_EOS_MAX];
};

/* Read a parsed config.json. Fills *config or leaves it zeroed. Borrows 'document'. */
int model_config_parse(const json_t *document, struct model_config *config, struct err *err);

/* The same from text; size bytes. */
int model_config_parse_text(const char *text, size_t size, struct model_config *config, struct err *err);

/* Read the config of what lies at 'path': a folder with a config.json (weights need not be there), a
 * config.json itself, or a GGUF file (its header only). */
int model_config_load(const char *path, struct model_config *config, struct err *err);

/* As a config.json in Hugging Face's names, which model_config_parse() reads back to the same value
 * ("motley_packing" of a GGUF among it, which no config.json of theirs has). Returns new. */
json_t *model_config_to_json(const struct model_config *config, struct err *err);

/* Set the bit of a layer in window_layer, no_rope_layer or dense_layer; layer < MODEL_LAYERS_MAX. */
void model_layer_mark(uint8_t *mask, uint32_t layer);

/* True when layer 'layer' (from 0) holds experts rather than a dense FFN. */
bool model_layer_is_sparse(const struct model_config *config, uint32_t layer);

/* What differs from layer to layer; 'layer' from 0. */
/* Tokens of the sliding window: a query sees itself and window - 1 before it; 0: everything before it. Given
 * even when max_positions is shorter, because rows beyond max_positions are not refused. */
uint32_t model_layer_window(const struct model_config *config, uint32_t layer);
/* False where q and k are not rotated at all. */
bool model_layer_rotates(const struct model_config *config, uint32_t layer);
/* The rotary setting of the layer, borrowed from config. */
const struct rope_config *model_layer_rope(const struct model_config *config, uint32_t layer);

/* Refuse, by name, what the engine does not compute yet (ERR_UNSUPPORTED): rotary scalings of a GGUF that are
 * not known. */
int model_config_runnable(const struct model_config *config, struct err *err);

/* "llama", "qwen3_moe" … as `model_type` says it; never NULL for a value of the enum. */
const char *model_arch_name(enum model_arch arch);

/* Inverse frequencies of the rotary embedding, of config->rope on its rotary_dim, in double precision,
 * scaling applied: Su et al. 2021 (RoFormer) eq. 15; llama3 scaling as Meta published it with Llama 3.1 (low
 * frequencies divided by factor, high ones kept, linear blend between); yarn, longrope and dynamic as
 * transformers' modeling_rope_utils.py has them. positions: the longest row of the run, by which longrope
 * takes its long or its short factors for all of its rows. The engine computes its own in single precision
 * (engine/stage/rope.h). ERR_UNSUPPORTED for ROPE_OTHER, and for dynamic beyond max_positions. */
int model_rope_frequencies(const struct model_config *config, uint32_t positions, double *inv_freq,
                           struct err *err);
/* The same of one setting on 'dim' values of a head (rotary_dim, or head_dim where that is 0): dim/2 of them.
 */
int model_rope_frequencies_of(const struct rope_config *rope, uint32_t dim, uint32_t positions,
                              double *inv_freq, struct err *err);
/* The frequencies between which yarn blends (the first pure, the last divided by factor), as numbers of
 * frequencies that need not be whole; last > first. */
void model_rope_ramp(const struct rope_config *rope, uint32_t dim, double *first, double *last);
/* Refuses what model_rope_frequencies_of() does. */
int model_rope_check(const struct rope_config *rope, uint32_t positions, struct err *err);

#endif
