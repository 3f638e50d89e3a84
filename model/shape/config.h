/* A model's config: the sizes and switches of a `config.json`, or of a GGUF's metadata, checked.
 *
 * All code that plans, counts, reads or runs a model uses this struct. Parsing refuses what contradicts
 * itself or is out of range (ERR_INVALID naming the key), an unknown architecture (ERR_UNSUPPORTED with the
 * list of known ones), and switches that change the arithmetic in a way that Motley does not compute
 * (ERR_UNSUPPORTED naming the key). A parsed config is a plain value that may be copied and shared between
 * threads. */
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
    MODEL_DELTA_TAPS = 4,   /* tokens that a gated delta net's convolution reads */
    ROPE_FACTORS_MAX = 128, /* frequencies that longrope may scale */
    MODEL_MATRICES = 26,    /* matrices of a layer: LORA_TARGET_COUNT (blocks.h) */
    /* entries of model_packing.matrix: different sets of formats that the layers of a file may have */
    MODEL_PACKINGS_MAX = 16,
    MODEL_CONFIG_BYTES_MAX = 4 << 20 /* bytes of a config.json */
};

enum model_arch {
    MODEL_LLAMA,
    MODEL_MISTRAL,
    MODEL_QWEN2,
    MODEL_QWEN3,
    MODEL_MIXTRAL,
    MODEL_QWEN3_MOE,
    MODEL_OLMOE,
    MODEL_QWEN2_MOE,
    MODEL_QWEN3_5_MOE,
    MODEL_QWEN3_NEXT,
    MODEL_GLM4_MOE,
    MODEL_DOTS1,
    MODEL_ERNIE_MOE,
    MODEL_GLM4_LITE,
    MODEL_DEEPSEEK2,
    MODEL_DEEPSEEK3,
    MODEL_GPT_OSS,
    MODEL_GRANITE_MOE,
    MODEL_GRANITE_SHARED,
    MODEL_GRANITE_HYBRID,
    MODEL_GEMMA2,
    MODEL_GEMMA3,
    MODEL_PHI3,
    MODEL_SMOLLM3,
    MODEL_GEMMA,
    MODEL_GRANITE,
    MODEL_OLMO2,
    MODEL_OLMO3,
    MODEL_HELIUM,
    MODEL_ERNIE,
    MODEL_GLM,
    MODEL_GLM4,
    MODEL_SEED_OSS,
    MODEL_INTERNLM3,
    MODEL_MINISTRAL,
    MODEL_MINISTRAL3,
    MODEL_CWM,
    MODEL_LFM2,
    MODEL_QWEN2_5_VL,
    MODEL_QWEN3_VL,
    MODEL_GEMMA4,
    MODEL_QWEN3_5,
    MODEL_STARCODER2,
    MODEL_GPT_NEOX,
    MODEL_PHI,
    MODEL_COHERE,
    MODEL_ARCH_COUNT
};

/* The activation of the FFN. */
enum model_act { ACT_SILU, ACT_GELU_TANH, ACT_GELU, ACT_RELU2 };

/* How rotary frequencies are scaled. ROPE_OTHER stands for a GGUF's unknown scaling; such a model is planned
 * but not run. */
enum rope_kind {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_LLAMA3,
    ROPE_YARN,         /* Peng et al. 2023 */
    ROPE_LONGROPE,     /* Ding et al. 2024; "su" in Phi-3's first files */
    ROPE_DYNAMIC,      /* NTK: equals ROPE_DEFAULT up to max_positions; longer rows are refused */
    ROPE_PROPORTIONAL, /* the frequencies of the first `partial` of a head's pairs; the others are 0 (Gemma 4)
                        */
    ROPE_OTHER
};

struct rope_config {
    double theta; /* base of the frequencies theta^(-2i/head_dim) */
    enum rope_kind kind;
    char kind_name[16]; /* the scaling's name in the file */
    /* The factor divides all frequencies (linear) or the low ones (llama3, yarn); 1 where it is unused. */
    double factor;
    double low_freq_factor, high_freq_factor; /* used by llama3 only */
    /* tokens; used by llama3, yarn and longrope. For dynamic it is max_positions */
    double original_max_positions;
    double attention; /* yarn, longrope: factor of cosines and sines; 0 stands for 1 */
    /* yarn: frequencies between these two numbers of turns within original_max_positions are blended */
    double beta_fast, beta_slow;
    /* Ministral 3 multiplies q by 1 + query_beta * log(1 + floor(position / original_max_positions)). That is
     * 1 up to original_max_positions; longer rows are refused. 0: no such factor */
    double query_beta;
    double scores_mscale;  /* yarn: mscale_all_dim, which with latent attention scales the scores, too */
    bool ramp_exact;       /* yarn: the blend's ends are not rounded outwards ("truncate": false) */
    double partial;        /* proportional: the share of the pairs that are rotated */
    uint32_t factor_count; /* longrope: half the number of rotated values */
    /* longrope: divisors of the frequencies for short and for long rows */
    float short_factor[ROPE_FACTORS_MAX], long_factor[ROPE_FACTORS_MAX];
};

/* The dtype of a model's file; quantised files count as MODEL_F32. */
enum model_dtype { MODEL_F32, MODEL_BF16, MODEL_F16 };

/* How a GGUF stores its matrices where some are in quantised blocks, which a base of kind `packed` keeps. The
 * values are of enum pack_kind (pack.h); layers whose matrices have the same formats share one entry of
 * matrix[]. */
struct model_packing {
    uint32_t ways; /* used entries of matrix[]. 0: no matrix of a layer is quantised. More than
                      MODEL_PACKINGS_MAX: layers differ too much */
    uint8_t embedding, head;
    /* storage kind of a layer's matrix, by the number of its bit in enum lora_target */
    uint8_t matrix[MODEL_PACKINGS_MAX][MODEL_MATRICES];
    uint8_t layer[MODEL_LAYERS_MAX]; /* each layer's index into matrix[] */
};

struct model_config {
    enum model_arch arch;
    uint32_t hidden;          /* width of the residual stream */
    uint32_t layers;          /* transformer layers L */
    uint32_t heads, kv_heads; /* query heads, a multiple of kv_heads */
    uint32_t head_dim;        /* even; heads * head_dim need not equal hidden */
    /* Layers without a window may have other heads (Gemma 4); 0: they have kv_heads and head_dim, too.
     * model_layer_heads() gives a layer's own. */
    uint32_t full_kv_heads, full_head_dim;
    bool full_k_is_v; /* layers without a window have no v_proj: k before its norm is v, too */
    uint32_t ffn;     /* width of the dense SwiGLU; 0 when every layer is a mixture of experts */
    /* Gemma 4's small models; all are zero in other configs. */
    uint32_t per_layer;    /* width of a token's own input to each layer; 0: layers have no such inputs */
    uint32_t kv_borrowers; /* last layers that have no k and v: model_layer_lender() names the layer whose k
                              and v they read */
    bool borrowers_wide;   /* their FFN is twice as wide as ffn */
    uint32_t vocab;
    uint32_t max_positions;
    double norm_eps;
    struct rope_config rope;
    bool tied;        /* the head's matrix is the embedding */
    bool nested;      /* the config was the text_config of a model that also reads images */
    uint8_t absent;   /* bit i: the file had no model_sizes[i], and the class's default stands for it */
    bool qkv_bias;    /* biases on q, k, v */
    bool o_bias;      /* bias on o */
    bool mlp_bias;    /* biases on gate, up, down */
    uint32_t qk_norm; /* 0: none; 1: RMSNorm per head (head_dim weights); 2: RMSNorm over the full width of q
                       * and k */
    bool v_norm;      /* each head of v is normed, without weights (Gemma 4) */
    uint32_t window;  /* tokens of sliding-window attention in the layers of window_layer; 0: none */
    uint8_t window_layer[MODEL_LAYERS_MAX / 8];  /* bit i: layer i attends to the window only */
    uint8_t no_rope_layer[MODEL_LAYERS_MAX / 8]; /* bit i: layer i does not rotate q and k (SmolLM3) */
    /* Features that Llama does not have; all are zero in its configs. */
    uint32_t rotary_dim; /* number of a head's values that are rotated; 0: all */
    bool rope_local_set; /* windowed layers are rotated by rope_local (Gemma 3); if false, all layers by rope
                          */
    struct rope_config rope_local;
    bool rope_adjacent; /* values 2i and 2i + 1 of a head are rotated as a pair; if false, i and i + half */
    bool attn_gate; /* each head's rows of q's matrix are followed by those of its output's gate (Qwen 3.5) */
    enum model_act act;  /* of the gate, or of up where the FFN is plain */
    bool plain_ffn;      /* the FFN has no gate: up, the activation, down (StarCoder 2) */
    bool parallel;       /* the FFN reads the layer's input, as attention does (GPT-NeoX) */
    bool one_norm;       /* … and both read it after one norm (Phi-2, Command R) */
    bool head_bias;      /* the logits have a bias (Phi-2) */
    bool qkv_by_head;    /* packed_qkv, with the rows of each head's q, k and v together (GPT-NeoX) */
    bool layer_norm;     /* norms are layer norms: the mean is subtracted first */
    bool norm_bias;      /* … and a bias is added */
    bool packed_qkv;     /* q, k and v are one matrix (Phi-3) */
    bool packed_gate_up; /* gate and up are one matrix (Phi-3, GLM) */
    bool post_norms;     /* attention's and the FFN's outputs are normed before they are added (Gemma) */
    bool no_pre_norms;   /* attention and the FFN read the residual stream without a norm (OLMo 2) */
    double norm_offset;  /* added to every norm's weight (Gemma: 1) */
    double embed_scale;  /* factor of the embedding; 0 stands for 1 */
    double branch_scale; /* factor of what attention and FFN add to the residual stream; 0 stands for 1 */
    double logit_scale;  /* factor of the logits; 0 stands for 1 */
    bool layer_scaled;   /* a layer's output is multiplied by a number, which is not trained (Gemma 4) */
    double attn_scale;   /* factor of the attention scores; 0 stands for 1 / sqrt(head_dim) */
    bool attn_sinks; /* each head has one more score in attention's softmax, which has no value (gpt-oss) */
    /* The gate is clamped (GLU_CLAMPED, engine/device/op.h); limit 0: it is not */
    double gate_limit, gate_alpha;
    double attn_softcap, logit_softcap; /* scores and logits become cap * tanh(x / cap); 0: no cap */
    enum model_dtype dtype;             /* dtype of the file's values */
    struct model_packing packing;       /* packing of a GGUF, or of a folder saved in NF4 */
    /* Layers with a gated delta net in the place of attention (Yang et al. 2024, Gated Delta Networks). */
    uint8_t delta_layer[MODEL_LAYERS_MAX / 8]; /* bit i: layer i is such a layer */
    /* its heads of q and k, its heads of v (a multiple of them), and the values of a head */
    uint32_t delta_key_heads, delta_value_heads, delta_key_dim, delta_value_dim;
    /* q, k, v and z are one matrix, and what sets rate and decay is another: each head of q and k has its
     * rows of all of them together (Qwen3-Next) */
    bool delta_packed;
    /* In their place Mamba-2's state space (Dao and Gu 2024, Transformers are SSMs): its groups, which share
     * B and C, are heads of k and q, its heads those of v, and its state's width is delta_key_dim */
    bool delta_scan;
    /* Layers with a gated short convolution in the place of attention (LFM2). */
    uint8_t conv_layer[MODEL_LAYERS_MAX / 8]; /* bit i: layer i is such a layer */
    uint32_t conv_taps;                       /* tokens that the convolution reads */
    /* Latent attention (DeepSeek-AI 2024, DeepSeek-V2): k and v, and mostly q, are products of narrow normed
     * vectors. kv_heads is heads; the last rotary_dim of a head's head_dim values are rotated in q, and in k
     * they are the same for all heads. */
    uint32_t kv_latent; /* width of the vector of k and v; 0: there is no such attention */
    uint32_t q_latent;  /* width of that of q; 0: q is a product of the layer's input */
    uint32_t value_dim; /* values of a head of v, at most head_dim */
    /* Mixture of experts; experts = 0 means a dense model. */
    uint32_t experts;        /* number of experts in a sparse layer */
    uint32_t experts_active; /* experts chosen for a token */
    uint32_t expert_ffn;     /* width of one expert */
    bool experts_beside; /* experts stand beside the dense FFN, and both have norms of their own (Gemma 4) */
    /* width of the shared expert beside the chosen ones; 0: none. In a model without experts it is the FFN */
    uint32_t shared_ffn;
    bool shared_packed;      /* its gate and up are one matrix */
    bool shared_scored;      /* a logistic score of the token weighs the shared expert */
    bool router_sigmoid;     /* the router's scores become logistic values; if false, their softmax */
    bool router_biased;      /* a vector that is not trained is added to them for the choice alone */
    bool expert_bias;        /* biases on the router and on the experts' matrices */
    double router_scale;     /* factor of the chosen experts' weights; 0 stands for 1 */
    bool router_renormalise; /* the weights of a token's chosen experts are divided by their sum */
    double router_aux_coef;  /* coefficient of the load-balancing loss */
    uint8_t dense_layer[MODEL_LAYERS_MAX / 8]; /* bit i: layer i of a mixture model is dense */
    /* Special tokens; -1 when the file names none. */
    int32_t bos, pad;
    uint32_t eos_count;
    int32_t eos[MODEL_EOS_MAX];
};

/* The sizes that the shape rests on and transformers writes into every config.json that it saves (those of a
 * text_config only where they are no default). */
enum { MODEL_SIZES = 5 };
extern const char *const model_sizes[MODEL_SIZES];

/* Returns the value of struct model_config.absent for a config.json, or for what model_config_to_json()
 * wrote. */
uint8_t model_sizes_absent(const json_t *document);

enum { MODEL_DOUBT_BYTES = 400 };
/* Whether the config is one that transformers reads and yet hardly means: sizes are missing. Writes a
 * sentence. */
bool model_config_doubt(const struct model_config *config, char text[MODEL_DOUBT_BYTES]);

/* Reads a parsed config.json, which is borrowed. Fills *config, or leaves it zeroed on error. */
int model_config_parse(const json_t *document, struct model_config *config, struct err *err);

/* Reads a config.json from text[0..size). */
int model_config_parse_text(const char *text, size_t size, struct model_config *config, struct err *err);

/* Reads the config of what lies at 'path': a folder with a config.json (weights need not be there), a
 * config.json itself, or a GGUF file (its header only). */
int model_config_load(const char *path, struct model_config *config, struct err *err);

/* Returns a new config.json with Hugging Face's keys, which model_config_parse() reads back to the same
 * value. A GGUF's packing is under "motley_packing", a key that only Motley knows, and the sizes that the
 * file did not have are listed under "motley_defaults". */
json_t *model_config_to_json(const struct model_config *config, struct err *err);

/* Sets the bit of a layer in window_layer, no_rope_layer or dense_layer; layer < MODEL_LAYERS_MAX. */
void model_layer_mark(uint8_t *mask, uint32_t layer);

/* Returns true when layer 'layer' (from 0) has experts in place of a dense FFN. */
bool model_layer_is_sparse(const struct model_config *config, uint32_t layer);

/* Returns true when layer 'layer' (from 0) has a gated delta net, or a state space, in the place of
 * attention. */
bool model_layer_is_delta(const struct model_config *config, uint32_t layer);
/* Returns true when layer 'layer' (from 0) has a gated short convolution in the place of attention. */
bool model_layer_is_conv(const struct model_config *config, uint32_t layer);
/* Returns true when the FFN of every layer is the shared expert alone. */
static inline bool model_shared_alone(const struct model_config *config)
{
    return config->experts == 0 && config->shared_ffn > 0;
}
/* Return the widths of all q (or all k) and of all v of a gated delta net. */
static inline uint32_t model_delta_keys(const struct model_config *config)
{
    return config->delta_key_heads * config->delta_key_dim;
}
static inline uint32_t model_delta_values(const struct model_config *config)
{
    return config->delta_value_heads * config->delta_value_dim;
}
/* Returns the width of a state space's first product: z, x, B, C, and what dt is made of. */
static inline uint32_t model_scan_width(const struct model_config *config)
{
    return 2 * model_delta_values(config) + 2 * model_delta_keys(config) + config->delta_value_heads;
}

/* These functions return what differs from layer to layer; 'layer' counts from 0. */
/* Returns the tokens of the sliding window: a query sees itself and the window - 1 tokens before it; 0 means
 * all tokens before it. A window is returned even when max_positions is shorter, because rows beyond
 * max_positions are not refused. */
uint32_t model_layer_window(const struct model_config *config, uint32_t layer);
/* The heads of a layer's attention, and how wide all q, all k (or v), and the three together are. */
struct model_heads {
    uint32_t heads, kv_heads, head_dim, q, kv, qkv;
    bool k_is_v;   /* v is k before its norm */
    bool borrowed; /* k and v are those of an earlier layer */
};
struct model_heads model_layer_heads(const struct model_config *config, uint32_t layer);
/* Returns the layer whose k and v the layer reads: itself, or for a borrower the last layer in front of all
 * borrowers that has a window where the borrower has one, and none where it has none. */
uint32_t model_layer_lender(const struct model_config *config, uint32_t layer);
/* Returns true if later layers read the layer's k and v. */
bool model_layer_lends(const struct model_config *config, uint32_t layer);
/* Returns the width of the layer's dense FFN. */
uint32_t model_layer_ffn(const struct model_config *config, uint32_t layer);
/* Returns how many values of each head the layer's rotary table is for. */
uint32_t model_layer_rotary(const struct model_config *config, uint32_t layer);
/* Returns the values in a row of the rotary table of layers without a window, or with rope_local_set that of
 * layers with one (`local`). */
uint32_t model_rotary(const struct model_config *config, bool local);
/* Returns false where q and k are not rotated. */
bool model_layer_rotates(const struct model_config *config, uint32_t layer);
/* Returns the rotary setting of the layer, borrowed from config. */
const struct rope_config *model_layer_rope(const struct model_config *config, uint32_t layer);

/* Refuses by name what the engine does not compute: unknown rotary scalings of a GGUF (ERR_UNSUPPORTED). */
int model_config_runnable(const struct model_config *config, struct err *err);

/* Returns the `model_type`, "llama", "qwen3_moe" …; never NULL for a value of the enum. */
const char *model_arch_name(enum model_arch arch);

/* Computes the inverse frequencies of the rotary embedding (Su et al. 2021, RoFormer, eq. 15) for
 * config->rope on its rotary_dim values, in double precision and with scaling: llama3 as Meta published it
 * with Llama 3.1 (low frequencies are divided by factor, high ones kept, those between blended linearly);
 * yarn, longrope and dynamic as in transformers' modeling_rope_utils.py. positions is the longest row of the
 * run; longrope chooses its long or short factors by it for all rows. The engine computes its own frequencies
 * in single precision (engine/stage/rope.h). ERR_UNSUPPORTED for ROPE_OTHER, and for dynamic beyond
 * max_positions. */
int model_rope_frequencies(const struct model_config *config, uint32_t positions, double *inv_freq,
                           struct err *err);
/* Computes the dim/2 inverse frequencies of one setting on 'dim' values of a head (rotary_dim, or head_dim
 * where that is 0). */
int model_rope_frequencies_of(const struct rope_config *rope, uint32_t dim, uint32_t positions,
                              double *inv_freq, struct err *err);
/* Computes the ends of yarn's blend as indices of frequencies, which need not be whole: frequencies up to
 * *first are kept, those from *last on are divided by factor. *last > *first. */
void model_rope_ramp(const struct rope_config *rope, uint32_t dim, double *first, double *last);
/* Returns how many of the dim/2 frequencies a proportional setting does not set to 0. */
uint32_t model_rope_rotated(const struct rope_config *rope, uint32_t dim);
/* Returns the errors of model_rope_frequencies_of() without computing frequencies. */
int model_rope_check(const struct rope_config *rope, uint32_t positions, struct err *err);

#endif
