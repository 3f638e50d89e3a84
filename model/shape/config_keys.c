/* The fields of the config classes of transformers 5.24, of those keys that are read here. */
#include "model/shape/config_keys.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "common/json.h"

enum {
    LLAMA = 1 << MODEL_LLAMA,
    MISTRAL = 1 << MODEL_MISTRAL,
    QWEN2 = 1 << MODEL_QWEN2,
    QWEN3 = 1 << MODEL_QWEN3,
    MIXTRAL = 1 << MODEL_MIXTRAL,
    QWEN3_MOE = 1 << MODEL_QWEN3_MOE,
    OLMOE = 1 << MODEL_OLMOE,
    GEMMA = 1 << MODEL_GEMMA2 | 1 << MODEL_GEMMA3,
    PHI3 = 1 << MODEL_PHI3,
    SMOLLM3 = 1 << MODEL_SMOLLM3,
    EVERY = (1 << MODEL_ARCH_COUNT) - 1
};

/* What a value may be. */
enum { WHOLE = 1, REAL = 2, TRUTH = 4, TEXT = 8, WHOLES = 16, TEXTS = 32, OBJECT = 64 };

static const struct key {
    const char *name;
    uint32_t types, declared, nullable; /* the last two are sets of architectures */
} keys[] = {
    {"architectures", TEXTS, EVERY, EVERY},
    {"attention_bias", TRUTH, LLAMA | QWEN3 | QWEN3_MOE | OLMOE | GEMMA | SMOLLM3, 0},
    {"attention_dropout", WHOLE | REAL, EVERY, LLAMA | GEMMA},
    {"attn_logit_softcapping", REAL, GEMMA, GEMMA},
    {"bos_token_id", WHOLE, EVERY, EVERY},
    {"clip_qkv", REAL, OLMOE, OLMOE},
    {"decoder_sparse_step", WHOLE, QWEN3_MOE, 0},
    {"embd_pdrop", WHOLE | REAL, PHI3, 0},
    {"eos_token_id", WHOLE | WHOLES, EVERY, EVERY},
    {"final_logit_softcapping", REAL, GEMMA, GEMMA},
    {"head_dim", WHOLE, EVERY, LLAMA | MISTRAL | MIXTRAL},
    {"hidden_act", TEXT, EVERY & ~GEMMA, 0},
    {"hidden_activation", TEXT, GEMMA, 0},
    {"hidden_size", WHOLE, EVERY, 0},
    {"initializer_range", REAL, EVERY, 0},
    {"intermediate_size", WHOLE, EVERY, 0},
    {"layer_types", TEXTS, QWEN2 | QWEN3 | GEMMA | SMOLLM3, QWEN2 | QWEN3 | GEMMA | SMOLLM3},
    {"max_position_embeddings", WHOLE, EVERY, 0},
    {"max_window_layers", WHOLE, QWEN2 | QWEN3, 0},
    {"mlp_bias", TRUTH, LLAMA | SMOLLM3, 0},
    {"mlp_only_layers", WHOLES, QWEN3_MOE, QWEN3_MOE},
    {"moe_intermediate_size", WHOLE, QWEN3_MOE, 0},
    {"no_rope_layer_interval", WHOLE, SMOLLM3, 0},
    {"no_rope_layers", WHOLES, SMOLLM3, SMOLLM3},
    {"norm_topk_prob", TRUTH, QWEN3_MOE | OLMOE, 0},
    {"num_attention_heads", WHOLE, EVERY, 0},
    {"num_experts", WHOLE, QWEN3_MOE | OLMOE, 0},
    {"num_experts_per_tok", WHOLE, MIXTRAL | QWEN3_MOE | OLMOE, 0},
    {"num_hidden_layers", WHOLE, EVERY, 0},
    {"num_key_value_heads", WHOLE, EVERY, LLAMA | QWEN2 | QWEN3 | OLMOE | PHI3 | SMOLLM3},
    {"num_local_experts", WHOLE, MIXTRAL, 0},
    {"original_max_position_embeddings", WHOLE, PHI3, 0},
    {"output_router_logits", TRUTH, MIXTRAL | QWEN3_MOE | OLMOE, 0},
    {"pad_token_id", WHOLE, EVERY, EVERY},
    {"pretraining_tp", WHOLE, LLAMA, LLAMA},
    {"query_pre_attn_scalar", WHOLE, GEMMA, 0},
    {"resid_pdrop", WHOLE | REAL, PHI3, 0},
    {"rms_norm_eps", REAL, EVERY, 0},
    {"rope_parameters", OBJECT, EVERY, EVERY},
    {"router_aux_loss_coef", REAL, MIXTRAL | QWEN3_MOE | OLMOE, 0},
    {"router_jitter_noise", REAL, MIXTRAL, 0},
    {"sliding_window", WHOLE, EVERY & ~(LLAMA | OLMOE), EVERY},
    {"tie_word_embeddings", TRUTH, EVERY, 0},
    {"use_bidirectional_attention", TRUTH, GEMMA, GEMMA},
    {"use_cache", TRUTH, EVERY, 0},
    {"use_sliding_window", TRUTH, QWEN2 | QWEN3 | QWEN3_MOE | SMOLLM3, 0},
    {"vocab_size", WHOLE, EVERY, 0},
};

static bool list_of(const json_t *value, uint32_t type)
{
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        if (type == WHOLES ? !json_is_integer(item) : !json_is_string(item))
            return false;
    }
    return true;
}

static bool has_type(const json_t *value, uint32_t types)
{
    switch (json_typeof(value)) {
    case JSON_INTEGER:
        return types & WHOLE;
    case JSON_REAL:
        return types & REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return types & TRUTH;
    case JSON_STRING:
        return types & TEXT;
    case JSON_ARRAY:
        return ((types & WHOLES) && list_of(value, WHOLES)) || ((types & TEXTS) && list_of(value, TEXTS));
    case JSON_OBJECT:
        return types & OBJECT;
    default:
        return false;
    }
}

static const char *types_name(uint32_t types)
{
    return types == WHOLE              ? "a whole number"
           : types == REAL             ? "a number with a point, as 1e-6 or 1.0,"
           : types == (WHOLE | REAL)   ? "a number"
           : types == TRUTH            ? "true or false"
           : types == TEXT             ? "a text"
           : types == WHOLES           ? "a list of whole numbers"
           : types == TEXTS            ? "a list of texts"
           : types == (WHOLE | WHOLES) ? "a whole number or a list of them"
                                       : "an object";
}

int config_keys_check(const json_t *config, enum model_arch arch, const char *path, struct err *err)
{
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const struct key *key = &keys[i];
        const json_t *value = json_object_get(config, key->name);
        bool null_may_be = key->nullable >> arch & 1;
        if (!value || !(key->declared >> arch & 1) || has_type(value, key->types) ||
            (json_is_null(value) && null_may_be))
            continue;
        return err_set(err, ERR_INVALID,
                       "%s%s%s: must be %s%s, is %s; a model of type \"%s\" has no other (transformers "
                       "refuses it as well)",
                       path, path[0] ? "." : "", key->name, types_name(key->types),
                       null_may_be ? " or null" : "", json_is_null(value) ? "null" : "of another type",
                       model_arch_name(arch));
    }
    return 0;
}
