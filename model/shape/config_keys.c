/* The declared fields of transformers 5.24's config classes, for the keys that Motley reads. */
#include "model/shape/config_keys.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "common/json.h"

/* Sets of architectures, as bits. */
#define SET_OF(arch) (1ull << (arch))
#define LLAMA SET_OF(MODEL_LLAMA)
#define MISTRAL SET_OF(MODEL_MISTRAL)
#define QWEN2 SET_OF(MODEL_QWEN2)
#define QWEN3 SET_OF(MODEL_QWEN3)
#define MIXTRAL SET_OF(MODEL_MIXTRAL)
#define QWEN3_MOE SET_OF(MODEL_QWEN3_MOE)
#define OLMOE SET_OF(MODEL_OLMOE)
#define GEMMA (SET_OF(MODEL_GEMMA2) | SET_OF(MODEL_GEMMA3))
#define PHI3 SET_OF(MODEL_PHI3)
#define SMOLLM3 SET_OF(MODEL_SMOLLM3)
#define GEMMA1 SET_OF(MODEL_GEMMA)
#define GRANITE_HYBRID SET_OF(MODEL_GRANITE_HYBRID)
#define GRANITE_SHARED (SET_OF(MODEL_GRANITE_SHARED) | GRANITE_HYBRID)
#define GRANITE_MOE (SET_OF(MODEL_GRANITE_MOE) | GRANITE_SHARED)
#define GRANITE (SET_OF(MODEL_GRANITE) | GRANITE_MOE)
#define OLMO2 SET_OF(MODEL_OLMO2)
#define OLMO3 SET_OF(MODEL_OLMO3)
#define HELIUM SET_OF(MODEL_HELIUM)
#define ERNIE SET_OF(MODEL_ERNIE)
#define GLM SET_OF(MODEL_GLM)
#define GLM4 SET_OF(MODEL_GLM4)
#define SEED SET_OF(MODEL_SEED_OSS)
#define INTERNLM3 SET_OF(MODEL_INTERNLM3)
#define MINISTRAL SET_OF(MODEL_MINISTRAL)
#define MINISTRAL3 SET_OF(MODEL_MINISTRAL3)
#define CWM SET_OF(MODEL_CWM)
#define LFM2 SET_OF(MODEL_LFM2)
#define QWEN2_5_VL SET_OF(MODEL_QWEN2_5_VL)
#define QWEN3_VL SET_OF(MODEL_QWEN3_VL)
#define GEMMA4 SET_OF(MODEL_GEMMA4)
#define QWEN3_5_MOE SET_OF(MODEL_QWEN3_5_MOE)
#define QWEN3_NEXT SET_OF(MODEL_QWEN3_NEXT)
#define QWEN3_5 (SET_OF(MODEL_QWEN3_5) | QWEN3_5_MOE | QWEN3_NEXT)
#define QWEN2_MOE SET_OF(MODEL_QWEN2_MOE)
#define GLM4_MOE SET_OF(MODEL_GLM4_MOE)
#define DOTS1 SET_OF(MODEL_DOTS1)
#define ERNIE_MOE SET_OF(MODEL_ERNIE_MOE)
#define GPT_OSS SET_OF(MODEL_GPT_OSS)
#define GLM4_LITE SET_OF(MODEL_GLM4_LITE)
#define DEEPSEEK2 SET_OF(MODEL_DEEPSEEK2)
#define DEEPSEEK3 SET_OF(MODEL_DEEPSEEK3)
#define LATENT (GLM4_LITE | DEEPSEEK2 | DEEPSEEK3)
#define STARCODER2 SET_OF(MODEL_STARCODER2)
#define NEOX SET_OF(MODEL_GPT_NEOX)
#define PHI SET_OF(MODEL_PHI)
#define COHERE SET_OF(MODEL_COHERE)
#define LAYER_NORMS (STARCODER2 | NEOX | PHI | COHERE)
#define EVERY (SET_OF(MODEL_ARCH_COUNT) - 1)

/* Types that a value may have, as bits. */
enum { WHOLE = 1, REAL = 2, TRUTH = 4, TEXT = 8, WHOLES = 16, TEXTS = 32, OBJECT = 64 };

static const struct key {
    const char *name;
    /* types: that the value may have; declared, nullable: architectures whose class has the key, or accepts
     * null */
    uint32_t types;
    uint64_t declared, nullable;
} keys[] = {
    {"architectures", TEXTS, EVERY, EVERY},
    {"attention_k_eq_v", TRUTH, GEMMA4, 0},
    {"attention_bias", TRUTH,
     LLAMA | QWEN3 | QWEN3_MOE | OLMOE | GEMMA | SMOLLM3 | GEMMA1 | GRANITE | OLMO2 | OLMO3 | HELIUM | GLM |
         GLM4 | SEED | INTERNLM3 | QWEN3_VL | QWEN3_5 | GLM4_MOE | DOTS1 | GPT_OSS | GEMMA4 | LATENT | NEOX |
         COHERE,
     0},
    {"attention_dropout", WHOLE | REAL, EVERY & ~(ERNIE | ERNIE_MOE | LFM2),
     LLAMA | GEMMA | GEMMA4 | GLM | QWEN2_5_VL | DOTS1 | DEEPSEEK2 | DEEPSEEK3 | PHI | COHERE},
    {"attention_multiplier", WHOLE | REAL, GRANITE, 0},
    {"attention_out_bias", TRUTH, SEED, 0},
    {"attn_logit_softcapping", REAL, GEMMA, GEMMA},
    {"auto_map", OBJECT, EVERY, 0},
    {"block_auto_adjust_ff_dim", TRUTH, LFM2, 0},
    {"block_ff_dim", WHOLE, LFM2, 0},
    {"block_ffn_dim_multiplier", WHOLE | REAL, LFM2, 0},
    {"block_multiple_of", WHOLE, LFM2, 0},
    {"bos_token_id", WHOLE, EVERY, EVERY & ~CWM},
    {"clip_qkv", REAL, OLMOE, OLMOE},
    {"conv_L_cache", WHOLE, LFM2, 0},
    {"conv_bias", TRUTH, LFM2, 0},
    {"decoder_sparse_step", WHOLE, QWEN3_MOE | QWEN2_MOE | QWEN3_NEXT, 0},
    {"embedding_multiplier", WHOLE | REAL, GRANITE, 0},
    {"embd_pdrop", WHOLE | REAL, PHI3 | PHI, 0},
    {"hidden_dropout", WHOLE | REAL, NEOX, 0},
    {"embedding_dropout", WHOLE | REAL, STARCODER2, 0},
    {"eos_token_id", WHOLE | WHOLES, EVERY, EVERY},
    {"enable_moe_block", TRUTH, GEMMA4, 0},
    {"final_logit_softcapping", REAL, GEMMA | GEMMA4, GEMMA | GEMMA4},
    {"first_k_dense_replace", WHOLE, GLM4_MOE | DOTS1 | DEEPSEEK2 | DEEPSEEK3, DOTS1},
    {"full_attn_idxs", WHOLES, LFM2, LFM2},
    {"head_dim", WHOLE, EVERY & ~(LFM2 | LAYER_NORMS),
     LLAMA | MISTRAL | MIXTRAL | ERNIE | GLM | SEED | INTERNLM3 | MINISTRAL | DEEPSEEK2},
    {"hidden_act", TEXT, EVERY & ~(GEMMA | GEMMA4 | LFM2), 0},
    {"hidden_activation", TEXT, GEMMA | GEMMA4, 0},
    {"hidden_size", WHOLE, EVERY, 0},
    {"hidden_size_per_layer_input", WHOLE, GEMMA4, 0},
    {"id2label", OBJECT, EVERY, EVERY},
    {"initializer_range", REAL, EVERY, 0},
    {"intermediate_size", WHOLE, EVERY, 0},
    {"kv_lora_rank", WHOLE, LATENT, 0},
    {"layer_norm_eps", REAL, NEOX | PHI | COHERE, 0},
    {"layer_types", TEXTS,
     QWEN2 | QWEN3 | GEMMA | GEMMA4 | SMOLLM3 | OLMO3 | MINISTRAL | CWM | LFM2 | QWEN2_5_VL | QWEN3_5 |
         QWEN2_MOE | DOTS1 | GPT_OSS | GRANITE_HYBRID,
     QWEN2 | QWEN3 | GEMMA | GEMMA4 | SMOLLM3 | OLMO3 | MINISTRAL | CWM | LFM2 | QWEN2_5_VL | QWEN3_5 |
         QWEN2_MOE | DOTS1 | GPT_OSS | GRANITE_HYBRID},
    {"linear_conv_kernel_dim", WHOLE, QWEN3_5, 0},
    {"linear_key_head_dim", WHOLE, QWEN3_5, 0},
    {"linear_num_key_heads", WHOLE, QWEN3_5, 0},
    {"linear_num_value_heads", WHOLE, QWEN3_5, 0},
    {"linear_value_head_dim", WHOLE, QWEN3_5, 0},
    {"logit_scale", REAL, COHERE, 0},
    {"logits_scaling", WHOLE | REAL, GRANITE, 0},
    {"mamba_conv_bias", TRUTH, GRANITE_HYBRID, 0},
    {"mamba_d_conv", WHOLE, GRANITE_HYBRID, 0},
    {"mamba_d_head", WHOLE | TEXT, GRANITE_HYBRID, 0},
    {"mamba_d_state", WHOLE, GRANITE_HYBRID, 0},
    {"mamba_expand", WHOLE, GRANITE_HYBRID, 0},
    {"mamba_n_groups", WHOLE, GRANITE_HYBRID, 0},
    {"mamba_n_heads", WHOLE, GRANITE_HYBRID, 0},
    {"mamba_proj_bias", TRUTH, GRANITE_HYBRID, 0},
    {"max_position_embeddings", WHOLE, EVERY, 0},
    {"max_window_layers", WHOLE, QWEN2 | QWEN3 | QWEN2_5_VL | QWEN2_MOE | DOTS1, QWEN2_5_VL | DOTS1},
    {"mlp_bias", TRUTH, LLAMA | DEEPSEEK2 | SMOLLM3 | SET_OF(MODEL_GRANITE) | HELIUM | SEED | INTERNLM3 | CWM,
     0},
    {"mlp_layer_types", TEXTS, GLM4_LITE, GLM4_LITE},
    {"mlp_only_layers", WHOLES, QWEN3_MOE | QWEN2_MOE | QWEN3_NEXT, QWEN3_MOE | QWEN2_MOE | QWEN3_NEXT},
    {"moe_intermediate_size", WHOLE,
     QWEN3_MOE | QWEN2_MOE | QWEN3_5_MOE | QWEN3_NEXT | GLM4_MOE | DOTS1 | ERNIE_MOE | LATENT, 0},
    {"moe_k", WHOLE, ERNIE_MOE, ERNIE_MOE},
    {"moe_layer_end_index", WHOLE, ERNIE_MOE, ERNIE_MOE},
    {"moe_layer_interval", WHOLE, ERNIE_MOE, ERNIE_MOE},
    {"moe_layer_start_index", WHOLE, ERNIE_MOE, ERNIE_MOE},
    {"moe_norm_min", REAL, ERNIE_MOE, ERNIE_MOE},
    {"moe_num_experts", WHOLE, ERNIE_MOE, ERNIE_MOE},
    {"moe_num_shared_experts", WHOLE, ERNIE_MOE, ERNIE_MOE},
    {"n_group", WHOLE, GLM4_MOE | DOTS1 | LATENT, DOTS1 | DEEPSEEK2},
    {"n_routed_experts", WHOLE, GLM4_MOE | DOTS1 | LATENT, DOTS1},
    {"n_shared_experts", WHOLE, GLM4_MOE | DOTS1 | LATENT, DOTS1},
    {"no_rope_layer_interval", WHOLE, SMOLLM3, 0},
    {"no_rope_layers", WHOLES, SMOLLM3, SMOLLM3},
    {"norm_topk_prob", TRUTH, QWEN3_MOE | OLMOE | QWEN2_MOE | QWEN3_NEXT | GLM4_MOE | DOTS1 | LATENT,
     DOTS1 | DEEPSEEK2},
    {"norm_eps", REAL, LFM2, 0},
    {"norm_epsilon", REAL, STARCODER2, 0},
    {"num_attention_heads", WHOLE, EVERY, 0},
    {"num_experts", WHOLE, QWEN3_MOE | OLMOE | QWEN2_MOE | QWEN3_5_MOE | QWEN3_NEXT | GEMMA4, GEMMA4},
    {"num_experts_per_tok", WHOLE,
     MIXTRAL | QWEN3_MOE | OLMOE | QWEN2_MOE | QWEN3_5_MOE | QWEN3_NEXT | GLM4_MOE | DOTS1 | GPT_OSS |
         GRANITE_MOE | LATENT,
     DOTS1},
    {"num_hidden_layers", WHOLE, EVERY, 0},
    {"num_key_value_heads", WHOLE, EVERY & ~NEOX,
     LLAMA | QWEN2 | QWEN3 | OLMOE | PHI3 | SMOLLM3 | GRANITE | OLMO2 | OLMO3 | ERNIE | GLM | SEED |
         INTERNLM3 | QWEN2_5_VL | QWEN3_VL | QWEN2_MOE | DOTS1 | ERNIE_MOE | DEEPSEEK2 | DEEPSEEK3 | PHI |
         COHERE},
    {"num_kv_shared_layers", WHOLE, GEMMA4, 0},
    {"num_labels", WHOLE, EVERY, 0},
    {"num_local_experts", WHOLE, MIXTRAL | GPT_OSS | GRANITE_MOE, 0},
    {"original_max_position_embeddings", WHOLE, PHI3, 0},
    {"output_hidden_states", TRUTH, EVERY, EVERY},
    {"output_router_logits", TRUTH,
     GPT_OSS | MIXTRAL | QWEN3_MOE | OLMOE | QWEN2_MOE | QWEN3_5_MOE | QWEN3_NEXT | GLM4_MOE | DOTS1 |
         ERNIE_MOE | GRANITE_MOE | LATENT,
     ERNIE_MOE},
    {"pad_token_id", WHOLE, EVERY, EVERY},
    {"per_layer_config", OBJECT, GEMMA4, GEMMA4},
    {"position_embedding_type", TEXT, GRANITE_HYBRID, GRANITE_HYBRID},
    {"pretraining_tp", WHOLE, LLAMA | SEED | CWM | GLM4_LITE | DEEPSEEK3, LLAMA | DEEPSEEK3},
    {"qk_layernorm", TRUTH, PHI, 0},
    {"q_lora_rank", WHOLE, LATENT, LATENT},
    {"qk_nope_head_dim", WHOLE, LATENT, 0},
    {"qk_rope_head_dim", WHOLE, LATENT, 0},
    {"query_pre_attn_scalar", WHOLE, GEMMA, 0},
    {"resid_pdrop", WHOLE | REAL, PHI3 | PHI, 0},
    {"residual_dropout", WHOLE | REAL, SEED | STARCODER2, 0},
    {"residual_multiplier", WHOLE | REAL, GRANITE, 0},
    {"return_dict", TRUTH, EVERY, EVERY},
    {"rms_norm_eps", REAL, EVERY & ~(LFM2 | LAYER_NORMS), 0},
    {"rope_interleave", TRUTH, GLM4_LITE | DEEPSEEK3, 0},
    {"rope_parameters", OBJECT, EVERY, EVERY},
    {"router_aux_loss_coef", REAL,
     GPT_OSS | MIXTRAL | QWEN3_MOE | OLMOE | QWEN2_MOE | QWEN3_5_MOE | QWEN3_NEXT | ERNIE_MOE | GRANITE_MOE,
     ERNIE_MOE},
    {"routed_scaling_factor", REAL, GLM4_MOE | DOTS1 | LATENT, 0},
    {"shared_expert_intermediate_size", WHOLE, QWEN2_MOE | QWEN3_5_MOE | QWEN3_NEXT, 0},
    {"shared_intermediate_size", WHOLE, GRANITE_SHARED, 0},
    {"router_jitter_noise", REAL, MIXTRAL, 0},
    {"sliding_window", WHOLE,
     EVERY & ~(LLAMA | OLMOE | GEMMA1 | GRANITE | OLMO2 | HELIUM | ERNIE | GLM | GLM4 | SEED | INTERNLM3 |
               LFM2 | QWEN3_VL | QWEN3_5 | GLM4_MOE | ERNIE_MOE | LATENT | NEOX | PHI | COHERE),
     EVERY & ~(CWM | GEMMA4)},
    {"swiglu_alpha", REAL, GPT_OSS, 0},
    {"swiglu_limit", REAL, GPT_OSS, 0},
    {"tie_embedding", TRUTH, LFM2, 0},
    {"tie_word_embeddings", TRUTH, EVERY, 0},
    {"transformers_version", TEXT, EVERY, EVERY},
    {"top_k_experts", WHOLE, GEMMA4, GEMMA4},
    {"topk_group", WHOLE, GLM4_MOE | DOTS1 | LATENT, DOTS1 | DEEPSEEK2},
    {"topk_method", TEXT, DEEPSEEK2, 0},
    {"use_bias", TRUTH, ERNIE | ERNIE_MOE | STARCODER2, ERNIE | ERNIE_MOE},
    {"use_bidirectional_attention", TEXT, GEMMA4, GEMMA4},
    {"use_bidirectional_attention", TRUTH, GEMMA | GEMMA1, GEMMA | GEMMA1},
    {"use_cache", TRUTH, EVERY, ERNIE},
    {"use_double_wide_mlp", TRUTH, GEMMA4, 0},
    {"use_parallel_residual", TRUTH, NEOX, 0},
    {"use_qk_norm", TRUTH, GLM4_MOE | COHERE, COHERE},
    {"use_sliding_window", TRUTH, QWEN2 | QWEN3 | QWEN3_MOE | SMOLLM3 | QWEN2_5_VL | QWEN2_MOE, QWEN2_5_VL},
    {"v_head_dim", WHOLE, LATENT, 0},
    {"vocab_size", WHOLE, EVERY, 0},
    {"vocab_size_per_layer_input", WHOLE, GEMMA4, 0},
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

/* Keys of transformers' base class, which any model's config may have, each with its list of accepted texts,
 * separated by blanks; null is accepted, too. dtypes are the names of torch's types. The implementation of
 * attention, experts or a cache matters only when transformers itself runs the model, so any known one is
 * accepted here. */
static const char dtypes[] =
    "float32 float bfloat16 float16 half float64 double float8_e4m3fn float8_e4m3fnuz float8_e5m2 "
    "float8_e5m2fnuz float8_e8m0fnu int8 uint8 int16 int32 int64";
static const char attentions[] = "eager sdpa flash_attention_2 flash_attention_3 flex_attention";
static const char experts[] = "eager batched_mm grouped_mm";
static const char caches[] = "static offloaded_static dynamic offloaded quantized sliding_window hybrid "
                             "hybrid_chunked offloaded_hybrid offloaded_hybrid_chunked";
static const char problems[] = "regression single_label_classification multi_label_classification";
static const char nothing[] = ""; /* accepts null alone, because any other value changes the model */

static const struct word_key {
    const char *name, *words;
} word_keys[] = {
    {"_attn_implementation", attentions},
    {"attn_implementation", attentions},
    {"cache_implementation", caches},
    {"decoder", nothing},
    {"dtype", dtypes},
    {"_experts_implementation", experts},
    {"experts_implementation", experts},
    {"mlp_layer_types", nothing},
    {"per_layer_config", nothing},
    {"problem_type", problems},
    {"torch_dtype", dtypes},
    {"transformers_weights", nothing},
};

/* Names of methods and of fixed attributes of transformers' config classes. A config.json key with such a
 * name would overwrite the attribute, and the class fails to load. */
static const char *const taken[] = {"_check_received_keys",
                                    "_encode_special_floats",
                                    "_getattr_without_heterogeneous_validation",
                                    "_iter_config_keys_with_heterogeneous_adjustment",
                                    "_remove_keys_not_serialized",
                                    "_update_heterogeneous_to_dict_output",
                                    "attribute_map",
                                    "base_model_ep_plan",
                                    "base_model_fsdp_plan",
                                    "base_model_pp_plan",
                                    "base_model_tp_plan",
                                    "configuration_files",
                                    "default_config_fields",
                                    "default_rope_type",
                                    "default_theta",
                                    "dict_dtype_to_str",
                                    "get_text_config",
                                    "ignore_keys_at_rope_validation",
                                    "is_heterogeneous",
                                    "nested_rope_parameter_keys",
                                    "per_layer_attributes",
                                    "standardize_rope_params",
                                    "sub_configs",
                                    "to_dict",
                                    "to_diff_dict",
                                    "to_json_string",
                                    "use_return_dict"};

static int taken_check(const json_t *config, const char *path, struct err *err)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)config, key, value) {
        bool is_taken = strncmp(key, "_validate_", strlen("_validate_")) == 0;
        for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
            is_taken = is_taken || strcmp(key, taken[i]) == 0;
        if (is_taken)
            return err_set(err, ERR_INVALID,
                           "%s%s%s: transformers' config class has this name for something of its own and "
                           "does not load the file; take the key out",
                           path, path[0] ? "." : "", key);
    }
    return 0;
}

static bool config_keys_is_word(const char *words, const char *text)
{
    const size_t length = strlen(text);
    for (const char *at = words; length && (at = strstr(at, text)); at++)
        if ((at == words || at[-1] == ' ') && (at[length] == ' ' || at[length] == 0))
            return true;
    return false;
}

static int key_check(const struct key *key, const json_t *value, enum model_arch arch, const char *path,
                     struct err *err)
{
    const bool null_may_be = key->nullable >> arch & 1;
    if (!value || !(key->declared >> arch & 1) || (json_is_null(value) && null_may_be) ||
        has_type(value, key->types))
        return 0;
    return err_set(err, ERR_INVALID,
                   "%s%s%s: must be %s%s, is %s; a model of type \"%s\" has no other (transformers "
                   "refuses it as well)",
                   path, path[0] ? "." : "", key->name, types_name(key->types), null_may_be ? " or null" : "",
                   json_is_null(value) ? "null" : "of another type", model_arch_name(arch));
}

/* Returns whether keys[] has the key for this architecture. */
static bool keyed(const char *name, enum model_arch arch)
{
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(keys[i].name, name) == 0)
            return arch < MODEL_ARCH_COUNT && keys[i].declared >> arch & 1;
    return false;
}

static int words_check(const json_t *config, enum model_arch arch, const char *path, struct err *err)
{
    const json_t *dtype = json_object_get(config, "dtype");
    for (size_t i = 0; i < sizeof(word_keys) / sizeof(word_keys[0]); i++) {
        const struct word_key *key = &word_keys[i];
        const json_t *value = json_object_get(config, key->name);
        if (!value || json_is_null(value) || keyed(key->name, arch) ||
            (json_is_string(value) && config_keys_is_word(key->words, json_string_value(value))) ||
            /* dtype takes precedence over torch_dtype */
            (strcmp(key->name, "torch_dtype") == 0 && dtype && !json_is_null(dtype)))
            continue;
        return err_set(err, ERR_INVALID, "%s%s%s: must be null%s%s (transformers takes nothing else)", path,
                       path[0] ? "." : "", key->name, key->words[0] ? " or one of " : "", key->words);
    }
    return 0;
}

static int loader_check(const json_t *config, const char *path, struct err *err)
{
    const json_t *loader = json_object_get(json_object_get(config, "auto_map"), "AutoConfig");
    return !loader || json_is_string(loader)
               ? 0
               : err_set(err, ERR_INVALID, "%s%sauto_map.AutoConfig: must be a text", path,
                         path[0] ? "." : "");
}

/* Checks id2label and return_dict as transformers does: it converts the keys of id2label to numbers, and runs
 * no model with return_dict false. */
static int answers_check(const json_t *config, const char *path, struct err *err)
{
    const char *dot = path[0] ? "." : "", *key;
    json_t *label;
    json_object_foreach (json_object_get(config, "id2label"), key, label) {
        const char *digits = key + (key[0] == '-');
        if (digits[0] == 0 || digits[strspn(digits, "0123456789")] != 0)
            return err_set(err, ERR_INVALID, "%s%sid2label: its keys must be whole numbers, not \"%.40s\"",
                           path, dot, key);
    }
    return json_is_false(json_object_get(config, "return_dict"))
               ? err_set(err, ERR_INVALID, "%s%sreturn_dict: must be true; transformers runs no other model",
                         path, dot)
               : 0;
}

int config_keys_check_outer(const json_t *config, struct err *err)
{
    const json_t *vision = json_object_get(config, "vision_config");
    if (vision && !json_is_object(vision) && !json_is_null(vision))
        return err_set(err, ERR_INVALID, "vision_config: must be an object or null");
    return words_check(config, MODEL_ARCH_COUNT, "", err) < 0 || loader_check(config, "", err) < 0 ||
                   answers_check(config, "", err) < 0
               ? -1
               : taken_check(config, "", err);
}

int config_keys_check(const json_t *config, enum model_arch arch, const char *path, struct err *err)
{
    const json_t *inner = json_object_get(config, "text_config");
    if (inner && !json_is_null(inner))
        return err_set(err, ERR_UNSUPPORTED, "%s%stext_config: a model of type \"%s\" has none", path,
                       path[0] ? "." : "", model_arch_name(arch));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (key_check(&keys[i], json_object_get(config, keys[i].name), arch, path, err) < 0)
            return -1;
    const json_t *range = json_object_get(config, "initializer_range");
    if (arch == MODEL_LLAMA && range && !(json_number_value(range) >= 0 && json_number_value(range) <= 1))
        return err_set(err, ERR_INVALID,
                       "%s%sinitializer_range: must be from 0 to 1 in a model of type \"llama\"", path,
                       path[0] ? "." : "");
    return words_check(config, arch, path, err) < 0 || loader_check(config, path, err) < 0 ||
                   answers_check(config, path, err) < 0
               ? -1
               : taken_check(config, path, err);
}
