/* The architectures as a table: what tells one from another, in files and in arithmetic.
 *
 * An architecture is one entry in arch.c: its names in config.json and GGUF metadata, the defaults of absent
 * keys, which switches it has, and what its tensors are called where that is not as in Llama. Adding a dense
 * family is one entry and one golden case. Nobody else asks which architecture a model is; they ask its
 * config. Pure.
 */
#ifndef MOTLEY_MODEL_SHAPE_ARCH_H
#define MOTLEY_MODEL_SHAPE_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/shape/config.h"

enum { ARCH_NAME_MAX = 128 }; /* bytes of a tensor's name, with its NUL */

/* What a tensor is, whatever it is called. Norms are vectors; a matrix may have a bias beside it. */
enum arch_tensor {
    ARCH_EMBEDDING,
    ARCH_HEAD,
    ARCH_NORM_FINAL,
    ARCH_NORM_INPUT,          /* before attention */
    ARCH_NORM_ATTENTION_POST, /* of attention's output (Gemma) */
    ARCH_NORM_FFN,            /* before the FFN */
    ARCH_NORM_FFN_POST,       /* of the FFN's output (Gemma) */
    ARCH_NORM_Q,
    ARCH_NORM_K,
    ARCH_Q, /* from here to GATE_UP in the order of enum lora_target */
    ARCH_K,
    ARCH_V,
    ARCH_O,
    ARCH_GATE,
    ARCH_UP,
    ARCH_DOWN,
    ARCH_QKV,
    ARCH_GATE_UP,
    ARCH_ROUTER,
    ARCH_EXPERT_GATE, /* of one expert */
    ARCH_EXPERT_UP,
    ARCH_EXPERT_DOWN,
    ARCH_TENSOR_COUNT
};

/* Names without ".weight" or ".bias"; %u is the layer, a second one the expert. In GGUF an expert's name is
 * that of the tensor which holds all of them. */
struct arch_name {
    const char *hf, *gguf;
};

enum arch_bias {
    ARCH_BIAS_NONE,
    ARCH_BIAS_QKV,       /* q, k and v, always */
    ARCH_BIAS_ATTENTION, /* q, k, v and o, if attention_bias */
    ARCH_BIAS_ALL        /* … and the FFN's, if mlp_bias */
};

/* Which layers have the window when the file has no layer_types. */
enum arch_window {
    ARCH_WINDOW_NONE,
    ARCH_WINDOW_EVERY,
    ARCH_WINDOW_SWITCHED, /* every layer, if use_sliding_window */
    /* from here on the file may have layer_types */
    ARCH_WINDOW_FROM,      /* if use_sliding_window, layers from max_window_layers */
    ARCH_WINDOW_BUT_LAST,  /* all but the last of each window_period, which is sliding_window_pattern */
    ARCH_WINDOW_UNROTATED, /* if use_sliding_window, the layers without rotation */
};

struct arch {
    const char *model_type, *class_name;       /* of config.json: model_type, architectures[0] */
    const char *outer_type, *outer_class;      /* of one that holds this in its text_config, or NULL */
    const char *gguf;                          /* general.architecture */
    struct arch_name names[ARCH_TENSOR_COUNT]; /* where they differ from Llama's */
    const char *router_too;                    /* the router's other name in Hugging Face files, or NULL */
    /* Values of absent keys; 0: the key is required, or as said. */
    uint32_t hidden, layers, heads, ffn, vocab, max_positions;
    uint32_t kv_heads; /* 0: as many as heads */
    uint32_t head_dim; /* 0: hidden / heads */
    uint32_t window, window_period, max_window_layers;
    uint32_t pad; /* pad_token_id */
    double norm_eps, theta, theta_local, attention_cap, logit_cap, attention_scalar, aux_coef;
    bool tied;
    /* What it has. */
    enum arch_bias bias;
    enum arch_window windows;
    uint32_t qk_norm; /* as in model_config */
    bool packed, post_norms, gelu, embed_scaled;
    double norm_offset;
    bool window_period_given; /* sliding_window_pattern is read */
    bool whole_heads;         /* hidden must be a multiple of heads even where head_dim is given */
    bool rope_by_type;        /* windowed layers have a rotary setting of their own */
    bool partial_rotary;      /* partial_rotary_factor is read */
    uint32_t no_rope_period;  /* the last of each is not rotated; no_rope_layer_interval, no_rope_layers */
    /* Mixtures of experts. */
    bool sparse;
    const char *experts_key;    /* how the file calls their number */
    const char *expert_ffn_key; /* … and their width, or NULL: intermediate_size */
    bool w_names;               /* experts' gate, up and down are called w1, w3 and w2 */
    bool dense_layers;          /* decoder_sparse_step, mlp_only_layers */
    bool renormalise;           /* always; else if norm_topk_prob */
    /* GGUF: what its converter does, and what llama.cpp knows beside the file. */
    bool gguf_permutes;          /* rows of q and k within each head are interleaved */
    bool gguf_renormalise;       /* llama.cpp divides chosen weights by their sum */
    uint32_t gguf_scaled_layers; /* with so many layers, scores are scaled by 1 / sqrt(hidden / heads) */
};

/* Never NULL for a value of the enum. */
const struct arch *arch_of(enum model_arch arch);

/* By model_type; -1. outer: among those with a text_config. */
int arch_find(const char *model_type, bool outer);
/* By general.architecture, text[0..size); -1. */
int arch_find_gguf(const char *text, size_t size, bool sparse);
/* "llama, mistral, …", or the names of GGUF, into text[size]. */
void arch_list(bool gguf, char *text, size_t size);

/* Switches of the table that no file says: packed, norms, gelu, embedding's scale … into config, whose arch
 * and hidden are set. */
void arch_fill(struct model_config *config);

/* The Hugging Face name, with suffix (".weight", ".bias", ".lora_A.weight" or ""). Layers and experts from 0;
 * ignored where there are none. */
void arch_tensor_name(enum model_arch arch, enum arch_tensor tensor, uint32_t layer, uint32_t expert,
                      const char *suffix, char name[ARCH_NAME_MAX]);

/* The same in GGUF, where all experts of a layer have one name; false where GGUF has none. */
bool arch_gguf_name(enum model_arch arch, enum arch_tensor tensor, uint32_t layer, const char *suffix,
                    char name[ARCH_NAME_MAX]);

/* A tensor of a file, recognised. A file's tensor may hold several of ours: all experts of a layer
 * (experts > 0: [experts, rows, columns]), and of each of them gate above up (part_count 2). */
struct arch_match {
    enum arch_tensor parts[2];
    uint32_t part_count;
    uint32_t layer, expert;
    bool stacked;       /* one for all experts; expert is 0 */
    const char *suffix; /* what is behind the name: ".weight", ".bias"; points into the name matched */
};

/* Recognise a Hugging Face or GGUF name; false for what this architecture does not use. Prefixes that a
 * text_config's model has ("language_model.", "model.language_model.") are taken as if not there; "model."
 * may be left out, as it is in a file saved from the model without its head. */
bool arch_match_hf(enum model_arch arch, const char *name, struct arch_match *match);
bool arch_match_gguf(enum model_arch arch, const char *name, struct arch_match *match);

#endif
