/* The supported architectures as a table: what distinguishes them in files and in arithmetic.
 *
 * An architecture is one entry in arch_table.c: its names in config.json and GGUF metadata, the defaults of
 * absent keys, its switches, and the tensor names that differ from Llama's. Adding a dense family takes one
 * entry and one golden case. Code outside this table asks a model's config for its switches, not for its
 * architecture. All functions are pure. */
#ifndef MOTLEY_MODEL_SHAPE_ARCH_H
#define MOTLEY_MODEL_SHAPE_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/shape/config.h"

enum { ARCH_NAME_MAX = 128 }; /* bytes of a tensor's name, the NUL included */

/* The role of a tensor, independent of its name in a file. Norms are vectors; a matrix may have a bias beside
 * it. */
enum arch_tensor {
    ARCH_EMBEDDING,
    ARCH_HEAD,
    ARCH_NORM_FINAL,
    ARCH_NORM_INPUT,          /* the norm before attention */
    ARCH_NORM_ATTENTION_POST, /* the norm of attention's output (Gemma) */
    ARCH_NORM_FFN,            /* the norm before the FFN */
    ARCH_NORM_FFN_POST,       /* the norm of the FFN's output (Gemma) */
    ARCH_NORM_DENSE_POST,     /* where experts stand beside a dense FFN: the norm of the FFN's own output, */
    ARCH_NORM_EXPERT,         /* the norm before the experts, */
    ARCH_NORM_EXPERT_POST,    /* and that of their sum (Gemma 4) */
    ARCH_NORM_Q,
    ARCH_NORM_K,
    ARCH_NORM_PER_LAYER, /* the norm of what a layer makes of its own input (Gemma 4 E2B, E4B) */
    ARCH_NORM_Q_LATENT,  /* the norms of latent attention's narrow vectors */
    ARCH_NORM_KV_LATENT,
    ARCH_Q, /* the values from here to Q_B have the order of enum lora_target */
    ARCH_K,
    ARCH_V,
    ARCH_O,
    ARCH_GATE,
    ARCH_UP,
    ARCH_DOWN,
    ARCH_QKV,
    ARCH_GATE_UP,
    ARCH_DELTA_QKV, /* the matrices of a gated delta net */
    ARCH_DELTA_Z,
    ARCH_DELTA_B,
    ARCH_DELTA_A,
    ARCH_DELTA_OUT,
    ARCH_SHARED_GATE, /* matrices of the shared expert of a mixture, which every token passes */
    ARCH_SHARED_UP,
    ARCH_SHARED_DOWN,
    ARCH_DELTA_QKVZ, /* the packed matrices of a gated delta net */
    ARCH_DELTA_BA,
    ARCH_CONV_IN,        /* the first matrix of a short convolution or a state space; the last is
                            ARCH_DELTA_OUT */
    ARCH_SHARED_GATE_UP, /* gate and up of the shared expert as one matrix */
    ARCH_PER_LAYER_GATE, /* the two matrices between the stream and a layer's own input */
    ARCH_PER_LAYER_OUT,
    ARCH_PER_LAYER_MODEL, /* makes every layer's own input from the embedding; of block 0 */
    ARCH_Q_A,             /* the two matrices of a q with a latent; those of k and v are ARCH_K and ARCH_V */
    ARCH_Q_B,
    ARCH_DELTA_CONV,    /* [channels, 1, taps]: the convolution of q, k and v, or of a short convolution */
    ARCH_DELTA_DECAY,   /* A_log, which has no suffix */
    ARCH_DELTA_DT_BIAS, /* dt_bias, which has no suffix */
    ARCH_DELTA_NORM,    /* the norm of each head's output, or of a state space's */
    ARCH_DELTA_SKIP,    /* D of a state space, which has no suffix */
    ARCH_SINKS,         /* one score of each head in attention's softmax, without a suffix */
    ARCH_LAYER_SCALE,   /* the number that multiplies a layer's output, without a suffix */
    ARCH_ROUTER,
    ARCH_EXPERT_GATE, /* the matrix of one expert */
    ARCH_EXPERT_UP,
    ARCH_EXPERT_DOWN,
    ARCH_ROUTER_SCALE,    /* the weights of the norm before the router, without a suffix (Gemma 4) */
    ARCH_EXPERT_SCALE,    /* one factor of each expert's weights, without a suffix */
    ARCH_ROUTER_BIAS,     /* added to the router's probabilities for the choice alone; never trained */
    ARCH_SHARED_SCORE,    /* the row whose logistic product with a token weighs the shared expert */
    ARCH_PER_LAYER_TABLE, /* the tokens' part of every layer's own input */
    ARCH_PER_LAYER_NORM,  /* the norm of the embedding's part */
    ARCH_EXPERTS_GATE_UP, /* gate and up of all experts of a layer, where a file has one tensor of them */
    ARCH_EXPERTS_DOWN,    /* the same of down */
    ARCH_TENSOR_COUNT
};

/* Tensor names without ".weight" or ".bias". The first %u is the layer, the second the expert. A GGUF file
 * holds all experts of a layer in one tensor; `gguf` is that tensor's name. */
struct arch_name {
    const char *hf, *gguf;
};

/* config.json's keys that say whether matrices have biases; NULL: they have none, whatever the file says. */
struct arch_biases {
    const char *qkv, *o, *ffn;
    bool ffn_default; /* the value of an absent key of the FFN, or of all models where there is no key */
    bool qkv_default; /* the value of an absent key of q, k and v */
    bool qkv_always;  /* q, k and v have biases in every model */
    bool o_default;   /* the value of an absent key of o */
};

/* The rule that decides which layers use the sliding window when the file has no layer_types. */
enum arch_window {
    ARCH_WINDOW_NONE,
    ARCH_WINDOW_EVERY,
    ARCH_WINDOW_SWITCHED, /* every layer, if use_sliding_window is true */
    /* For the following rules config.json may list the windowed layers in layer_types. */
    ARCH_WINDOW_FROM,      /* if use_sliding_window is true, layers from max_window_layers on */
    ARCH_WINDOW_BUT_LAST,  /* all but the last layer of each window_period layers (sliding_window_pattern) */
    ARCH_WINDOW_BUT_FIRST, /* all but the first layer of each window_period layers */
    ARCH_WINDOW_ALL,       /* every layer */
    ARCH_WINDOW_BEHIND,    /* layers from max_window_layers on */
    ARCH_WINDOW_EVEN,      /* if use_sliding_window is true, layers 0, 2 … below max_window_layers */
    ARCH_WINDOW_UNROTATED, /* if use_sliding_window is true, the layers without rotation */
};

/* config.json's keys that say which layers of a mixture are dense. */
enum arch_dense {
    ARCH_DENSE_NONE,
    ARCH_DENSE_LISTED, /* decoder_sparse_step, mlp_only_layers */
    ARCH_DENSE_FIRST,  /* first_k_dense_replace: the number of the first layers, which are dense */
    ARCH_DENSE_TYPES,  /* mlp_layer_types: each layer's kind; absent: the first is dense */
    ARCH_DENSE_OUTSIDE /* moe_layer_start_index, moe_layer_end_index and moe_layer_interval name the others */
};

/* How the only files that a family's class writes keep the experts of a layer. */
enum arch_fused {
    ARCH_FUSED_NONE,  /* each expert has tensors of its own; files with one tensor of all are read, too */
    ARCH_FUSED_ROWS,  /* one tensor of all experts, with gate's rows above up's */
    ARCH_FUSED_TURNED /* one tensor of all experts, transposed, in which gate and up alternate (gpt-oss) */
};

struct arch {
    const char *model_type, *class_name; /* model_type and architectures[0] of config.json */
    const char *class_too;               /* another class that architectures[0] may name, or NULL */
    /* general.architecture of GGUF metadata; NULL: llama.cpp does not know the family */
    const char *gguf;
    const char *gguf_key; /* the key that a GGUF has of this family, where another one has the same name */
    struct arch_name names[ARCH_TENSOR_COUNT]; /* names that differ from Llama's */
    const char *name_too; /* another name of the tensor name_too_of in Hugging Face files, or NULL */
    enum arch_tensor name_too_of;
    /* Defaults of keys that config.json lacks. 0 means that the key is required, unless the field's comment
     * says otherwise. */
    uint32_t hidden, layers, heads, ffn, vocab, max_positions;
    uint32_t kv_heads; /* 0: as many as heads */
    uint32_t head_dim; /* 0: hidden / heads */
    uint32_t window, window_period, max_window_layers;
    uint32_t pad; /* id of the padding token (pad_token_id) */
    double norm_eps, theta, theta_local, attention_cap, logit_cap, attention_scalar, aux_coef;
    bool tied;
    /* The architecture's switches. */
    struct arch_biases bias;
    enum arch_window windows;
    const char *qk_norm_key; /* config.json's key that says whether q and k are normed per head, or NULL */
    uint32_t qk_norm;        /* 0: no norms of q and k; 1: one per head; 2: one over their full width */
    bool packed_qkv, packed_gate_up, post_norms, no_pre_norms, gelu, embed_scaled, rope_adjacent;
    bool full_heads; /* layers without a window have heads of their own (global_head_dim, per_layer_config) */
    bool last_full;  /* the last layer has no window, whatever layer_types says */
    bool unit_scores;  /* attention's scores have no factor, and no keys of one or of a cap */
    bool v_norm;       /* v is normed per head, without weights */
    bool layer_scaled; /* a number multiplies each layer's output */
    bool attn_sinks;   /* each head has one more score in attention's softmax, which has no value */
    bool attn_gate;    /* q's matrix has the gate of each head's output behind the head's rows */
    bool delta;        /* layer_types may name linear_attention: gated delta nets */
    bool delta_packed; /* … whose q, k, v and z are one matrix (model_config.delta_packed) */
    bool scan;         /* … Mamba-2's state spaces, and num_local_experts may be 0: the shared expert alone */
    bool conv;         /* layer_types may name conv: short convolutions; the FFN's width is LFM2's */
    /* Defaults of latent attention's sizes (model_config.kv_latent); kv 0: there is none. `pairs_given`:
     * rope_interleave says whether rotated pairs are neighbours. */
    struct {
        uint32_t kv, q, key_dim, rotary_dim, value_dim;
        bool pairs_given;
    } latent;
    bool one_norm;      /* attention and FFN both read the layer's input after one norm */
    bool head_bias;     /* the head has a bias */
    bool qkv_by_head;   /* packed_qkv has the rows of each head's q, k and v together */
    bool own_tables;    /* embedding and head have names that only this table knows: they take no adapters */
    const char *prefix; /* what names of the layers' modules begin with, or NULL: "model." */
    const char *act;    /* of an FFN without gate: the activation of files that name none */
    bool layer_norm;    /* norms subtract the mean */
    bool norm_bias;     /* … and add a bias */
    double logit_scale; /* default of config.json's factor of the logits; 0: no such key */
    /* config.json's key that says whether the FFN reads the layer's input (default: yes), or NULL: no */
    const char *parallel_key;
    const char *(*keys)[2]; /* other names of config.json's keys, each before the usual one; NULL ends them */
    bool own_modules;       /* modules have other names than Llama's, by which adapters' configs name them */
    const char *norm_eps_key; /* config.json's key of the norms' epsilon, or NULL: rms_norm_eps */
    bool gelu_as_act;         /* the activation's key is hidden_act, where "gelu" means the tanh form, too */
    bool multipliers;   /* embedding_multiplier, residual_multiplier, attention_multiplier, logits_scaling */
    bool rope_sections; /* the rotary type "mrope" is default: rows of text have one position for all sections
                         */
    bool query_beta;    /* rotary settings have llama_4_scaling_beta */
    bool bias_alike;    /* all matrices have biases, or none has */
    double dropout;     /* default of attention_dropout and residual_dropout, which must be 0 to be run */
    double norm_offset;
    bool window_period_given; /* config.json may give window_period (sliding_window_pattern) */
    bool heads_fill_hidden;   /* the heads together must be as wide as hidden */
    bool whole_heads;         /* hidden must be a multiple of heads even where head_dim is given */
    const char *rope_default; /* rotary settings where config.json has none, as JSON, or NULL */
    bool rope_by_type;        /* windowed layers have a rotary setting of their own */
    /* windowed layers' own key of theta in config.json, or NULL: theta_local where rope_parameters lack it */
    const char *theta_local_key;
    /* default of partial_rotary_factor, the part of a head's values that is rotated; 0: config.json has no
     * such key */
    double partial_rotary;
    /* every no_rope_period-th layer is not rotated (default of no_rope_layer_interval); 0: all layers are
     * rotated */
    uint32_t no_rope_period;
    /* The following fields describe mixtures of experts. */
    bool sparse;
    const char *beside_key;        /* config.json's key that says whether there are experts, which stand
                                    * beside the dense FFN; NULL: they stand in its place */
    const char *experts_key;       /* config.json's key of the number of experts */
    const char *expert_ffn_key;    /* config.json's key of an expert's width, or NULL: intermediate_size */
    bool w_names;                  /* experts' gate, up and down are called w1, w3 and w2 */
    enum arch_dense dense;         /* config.json's keys that make layers dense */
    const char *active_key;        /* config.json's key of the chosen experts, or NULL: num_experts_per_tok */
    const char *shared_key;        /* config.json's key of the shared expert's width, or NULL */
    const char *shared_count_key;  /* … or of its width in experts, or NULL: there is no shared expert */
    bool shared_optional;          /* shared_key may be 0 or absent: there is no shared expert */
    bool shared_packed;            /* gate and up of the shared expert are one matrix */
    bool shared_scored;            /* a logistic score of the token weighs the shared expert */
    bool router_scaled;            /* the weights are multiplied by routed_scaling_factor */
    bool router_sigmoid;           /* scores are logistic */
    bool router_greedy;            /* topk_method must be greedy, and weights are not divided by their sum */
    bool router_biased;            /* there is an ARCH_ROUTER_BIAS */
    bool router_bias_row;          /* … which files keep as a matrix of one row */
    bool expert_bias;              /* router and experts have biases, which are trained */
    enum arch_fused fused;         /* … and experts of a layer are one tensor, so no modules to peft */
    double gate_limit, gate_alpha; /* defaults of swiglu_limit and swiglu_alpha; 0: no such keys */
    uint32_t dense_default;        /* default of first_k_dense_replace */
    /* The chosen experts' weights are always divided by their sum; if false, only if norm_topk_prob, whose
     * default is renormalise_default, is true. */
    bool renormalise, renormalise_default;
    /* The following fields say what the GGUF converter changes, and what llama.cpp assumes without a key in
     * the file. */
    bool gguf_permutes;    /* rows of q and k within each head are interleaved */
    bool gguf_renormalise; /* llama.cpp divides the weights by their sum where norm_topk_prob may be false */
    /* number of layers of the one size (27B) whose attention scores llama.cpp scales by 1 / sqrt(hidden /
     * heads); 0: none */
    uint32_t gguf_scaled_layers;
};

/* A model that also reads images and has a language model inside. */
struct arch_outer {
    const char *type, *class_name; /* model_type and architectures[0] of config.json */
    enum model_arch inner;         /* the language model, in text_config */
    bool flat;                     /* files without text_config have its keys beside those of the whole */
    bool tied;                     /* default of the whole's tie_word_embeddings */
    bool inner_ties; /* a text_config that says tie_word_embeddings ties, whatever the whole says */
};

/* Finds a model that also reads images by its model_type and that of its language model (NULL: the type's
 * first one); NULL when there is none. */
const struct arch_outer *arch_outer_find(const char *type, const char *inner_type);
/* Writes the types of the language models that a type is known with to text[size]; none: "". */
void arch_outer_list(const char *type, char *text, size_t size);

/* Returns the entry; never NULL for a value of the enum. */
const struct arch *arch_of(enum model_arch arch);

/* Returns config.json's key of the number of experts beside num_local_experts. */
const char *arch_experts_key(const struct arch *arch);
/* Returns config.json's key of the norms' epsilon. */
const char *arch_norm_eps_key(const struct arch *arch);
/* Returns config.json's key of the FFN's activation. */
const char *arch_act_key(const struct arch *arch);
/* Returns what the names of the layers' modules begin with, "model." in most families. */
const char *arch_prefix(const struct arch *arch);
/* Returns the name of an activation in config.json, and finds one by a name; -1: there is none. */
const char *arch_act_name(enum model_act act);
int arch_act_find(const char *name);

/* Finds an architecture by model_type; -1 when there is none. */
int arch_find(const char *model_type);
/* Finds an architecture by general.architecture, text[0..size); -1 when there is none. */
int arch_find_gguf(const char *text, size_t size, bool sparse);
/* Writes the list of known names, "llama, mistral, …" or those of GGUF, to text[size]. */
void arch_list(bool gguf, char *text, size_t size);

/* Copies the switches that no file states (packed_qkv, post_norms, gelu, the embedding's scale …) from the
 * table to config, whose arch and hidden are set. */
void arch_fill(struct model_config *config);

/* Writes a tensor's Hugging Face name with suffix (".weight", ".bias", ".lora_A.weight" or ""). Layers and
 * experts count from 0 and are ignored for tensors that have none. */
void arch_tensor_name(enum model_arch arch, enum arch_tensor tensor, uint32_t layer, uint32_t expert,
                      const char *suffix, char name[ARCH_NAME_MAX]);

/* Writes the tensor's GGUF name, which all experts of a layer share. Returns false where GGUF has no such
 * tensor. */
bool arch_gguf_name(enum model_arch arch, enum arch_tensor tensor, uint32_t layer, const char *suffix,
                    char name[ARCH_NAME_MAX]);

/* The role of a file's tensor. One tensor of a file may hold several of the model's tensors: those of all
 * experts of a layer (stacked: [experts, rows, columns]), where each expert may have gate's rows above up's
 * (part_count 2). */
struct arch_match {
    enum arch_tensor parts[2];
    uint32_t part_count;
    uint32_t layer, expert;
    bool stacked;       /* one tensor holds all experts; expert is 0 */
    const char *suffix; /* the rest behind the tensor's name, ".weight" or ".bias"; points into the name that
                         * was matched */
};

/* Recognises a Hugging Face or GGUF name; returns false for tensors that this architecture does not use. The
 * prefixes of a model inside another ("language_model.", "model.language_model.") are skipped. "model." may
 * be missing, as it is in a file saved from the model without its head. */
bool arch_match_hf(enum model_arch arch, const char *name, struct arch_match *match);
bool arch_match_gguf(enum model_arch arch, const char *name, struct arch_match *match);

#endif
