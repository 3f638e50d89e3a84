/* Answers what a config says about a layer, and writes a config as a file; config_parse.c reads it. */
#include "model/shape/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/shape/arch.h"
#include "model/shape/packing.h"
#include "model/shape/rope.h"

static bool layer_bit(const uint8_t *mask, uint32_t layer)
{
    return layer < MODEL_LAYERS_MAX && (mask[layer / 8] >> (layer % 8) & 1) != 0;
}

void model_layer_mark(uint8_t *mask, uint32_t layer)
{
    mask[layer / 8] |= (uint8_t)(1u << (layer % 8));
}

bool model_layer_is_sparse(const struct model_config *config, uint32_t layer)
{
    return config->experts > 0 && layer < config->layers && !layer_bit(config->dense_layer, layer);
}

bool model_layer_is_delta(const struct model_config *config, uint32_t layer)
{
    return layer_bit(config->delta_layer, layer);
}

bool model_layer_is_conv(const struct model_config *config, uint32_t layer)
{
    return layer_bit(config->conv_layer, layer);
}

uint32_t model_layer_window(const struct model_config *config, uint32_t layer)
{
    return layer_bit(config->window_layer, layer) ? config->window : 0;
}

struct model_heads model_layer_heads(const struct model_config *c, uint32_t layer)
{
    bool full = !layer_bit(c->window_layer, layer);
    struct model_heads h = {.heads = c->heads,
                            .kv_heads = full && c->full_kv_heads ? c->full_kv_heads : c->kv_heads,
                            .head_dim = full && c->full_head_dim ? c->full_head_dim : c->head_dim,
                            .borrowed = layer >= c->layers - c->kv_borrowers};
    h.k_is_v = full && c->full_k_is_v && !h.borrowed;
    h.q = h.heads * h.head_dim;
    h.kv = h.kv_heads * h.head_dim;
    h.qkv = h.q + 2 * h.kv;
    return h;
}

uint32_t model_layer_lender(const struct model_config *c, uint32_t layer)
{
    uint32_t own = c->layers - c->kv_borrowers, lender = own;
    while (layer >= own && lender > 0)
        if (layer_bit(c->window_layer, --lender) == layer_bit(c->window_layer, layer))
            return lender;
    return layer;
}

bool model_layer_lends(const struct model_config *c, uint32_t layer)
{
    for (uint32_t i = c->layers - c->kv_borrowers; i < c->layers; i++)
        if (model_layer_lender(c, i) == layer)
            return true;
    return false;
}

uint32_t model_layer_ffn(const struct model_config *c, uint32_t layer)
{
    return c->borrowers_wide && layer >= c->layers - c->kv_borrowers ? 2 * c->ffn : c->ffn;
}

uint32_t model_rotary(const struct model_config *c, bool local)
{
    return c->rotary_dim ? c->rotary_dim : !local && c->full_head_dim ? c->full_head_dim : c->head_dim;
}

uint32_t model_layer_rotary(const struct model_config *c, uint32_t layer)
{
    return model_rotary(c, model_layer_rope(c, layer) == &c->rope_local);
}

bool model_layer_rotates(const struct model_config *config, uint32_t layer)
{
    return !layer_bit(config->no_rope_layer, layer);
}

const struct rope_config *model_layer_rope(const struct model_config *config, uint32_t layer)
{
    bool local = config->rope_local_set && model_layer_window(config, layer) > 0;
    return local ? &config->rope_local : &config->rope;
}

int model_rope_frequencies(const struct model_config *config, uint32_t positions, double *inv_freq,
                           struct err *err)
{
    return model_rope_frequencies_of(&config->rope, model_rotary(config, false), positions, inv_freq, err);
}

static void set_rope(json_t *out, const struct model_config *c)
{
    json_t *parameters = rope_to_json(&c->rope);
    if (c->rope_local_set)
        parameters = json_pack("{s:o, s:o}", "full_attention", parameters, "sliding_attention",
                               rope_to_json(&c->rope_local));
    double partial = arch_of(c->arch)->partial_rotary;
    if (!c->kv_latent && (c->rotary_dim || (partial > 0 && partial < 1)))
        json_object_set_new(parameters, "partial_rotary_factor",
                            json_real(c->rotary_dim ? (double)c->rotary_dim / c->head_dim : 1));
    json_object_set_new(out, "rope_parameters", parameters);
    if (arch_of(c->arch)->no_rope_period == 0)
        return;
    json_t *rotated = json_array();
    for (uint32_t i = 0; i < c->layers; i++)
        json_array_append_new(rotated, json_integer(model_layer_rotates(c, i)));
    json_object_set_new(out, "no_rope_layers", rotated);
}

static json_t *dense_types(const struct model_config *c)
{
    json_t *types = json_array();
    for (uint32_t i = 0; i < c->layers; i++)
        json_array_append_new(types, json_string(model_layer_is_sparse(c, i) ? "sparse" : "dense"));
    return types;
}

static void set_experts(json_t *out, const struct model_config *c)
{
    const struct arch *a = arch_of(c->arch);
    if (a->beside_key)
        json_object_set_new(out, a->beside_key, json_true());
    json_object_set_new(out, a->experts_key, json_integer(c->experts));
    json_object_set_new(out, a->active_key ? a->active_key : "num_experts_per_tok",
                        json_integer(c->experts_active));
    json_object_set_new(out, "router_aux_loss_coef", json_real(c->router_aux_coef));
    if (a->shared_key)
        json_object_set_new(out, a->shared_key, json_integer(c->shared_ffn));
    if (a->shared_count_key)
        json_object_set_new(out, a->shared_count_key, json_integer(c->shared_ffn / c->expert_ffn));
    if (a->gate_limit > 0) {
        json_object_set_new(out, "swiglu_limit", json_real(c->gate_limit));
        json_object_set_new(out, "swiglu_alpha", json_real(c->gate_alpha));
    }
    if (a->router_scaled)
        json_object_set_new(out, "routed_scaling_factor", json_real(c->router_scale));
    if (a->qk_norm_key)
        json_object_set_new(out, a->qk_norm_key, json_boolean(c->qk_norm));
    if (!a->renormalise)
        json_object_set_new(out, "norm_topk_prob", json_boolean(c->router_renormalise));
    if (a->expert_ffn_key)
        json_object_set_new(out, a->expert_ffn_key, json_integer(c->expert_ffn));
    if (a->dense == ARCH_DENSE_NONE)
        return;
    uint32_t first = 0, last = c->layers - 1;
    while (first < last && !model_layer_is_sparse(c, first))
        first++;
    while (last > first && !model_layer_is_sparse(c, last))
        last--;
    if (a->dense == ARCH_DENSE_FIRST)
        json_object_set_new(out, "first_k_dense_replace", json_integer(first));
    if (a->dense == ARCH_DENSE_OUTSIDE) {
        json_object_set_new(out, "moe_layer_start_index", json_integer(first));
        json_object_set_new(out, "moe_layer_end_index", json_integer(last));
    }
    if (a->dense == ARCH_DENSE_TYPES)
        json_object_set_new(out, "mlp_layer_types", dense_types(c));
    if (a->dense != ARCH_DENSE_LISTED)
        return;
    json_t *only = json_array();
    for (uint32_t i = 0; i < c->layers; i++)
        if (!model_layer_is_sparse(c, i))
            json_array_append_new(only, json_integer(i));
    json_object_set_new(out, "mlp_only_layers", only);
}

static void set_window(json_t *out, const struct model_config *c)
{
    uint32_t first = 0;
    while (first < c->layers && model_layer_window(c, first) == 0)
        first++;
    json_object_set_new(out, "sliding_window", c->window ? json_integer(c->window) : json_null());
    if (c->window || arch_of(c->arch)->window_period) {
        json_t *types = json_array();
        for (uint32_t i = 0; i < c->layers; i++)
            json_array_append_new(
                types, json_string(model_layer_window(c, i) ? "sliding_attention" : "full_attention"));
        json_object_set_new(out, "layer_types", types);
    }
    if (arch_of(c->arch)->windows == ARCH_WINDOW_FROM && c->window)
        json_object_set_new(out, "max_window_layers", json_integer(first));
    json_object_set_new(out, "use_sliding_window", json_boolean(c->window > 0));
}

static void set_full_heads(json_t *out, const struct model_config *c)
{
    json_object_set_new(out, "attention_k_eq_v", json_boolean(c->full_k_is_v));
    json_t *layers = json_object();
    for (uint32_t i = 0; i < c->layers; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%u", i);
        if (model_layer_window(c, i) == 0)
            json_object_set_new(layers, name,
                                json_pack("{s:I, s:I}", "head_dim", (json_int_t)c->full_head_dim,
                                          "num_key_value_heads", (json_int_t)c->full_kv_heads));
    }
    json_object_set_new(out, "per_layer_config", layers);
    json_object_set_new(out, "hidden_size_per_layer_input", json_integer(c->per_layer));
    json_object_set_new(out, "vocab_size_per_layer_input", json_integer(c->vocab));
    json_object_set_new(out, "num_kv_shared_layers", json_integer(c->kv_borrowers));
    json_object_set_new(out, "use_double_wide_mlp", json_boolean(c->borrowers_wide));
}

static void set_latent(json_t *out, const struct model_config *c)
{
    json_object_set_new(out, "kv_lora_rank", json_integer(c->kv_latent));
    json_object_set_new(out, "q_lora_rank", c->q_latent ? json_integer(c->q_latent) : json_null());
    json_object_set_new(out, "qk_nope_head_dim", json_integer(c->head_dim - c->rotary_dim));
    json_object_set_new(out, "qk_rope_head_dim", json_integer(c->rotary_dim));
    json_object_set_new(out, "v_head_dim", json_integer(c->value_dim));
    json_object_set_new(out, "head_dim", json_integer(c->rotary_dim));
    json_object_set_new(out, "rope_interleave", json_boolean(c->rope_adjacent));
}

static void set_scan(json_t *out, const struct model_config *c)
{
    json_object_set_new(out, "mamba_n_groups", json_integer(c->delta_key_heads));
    json_object_set_new(out, "mamba_n_heads", json_integer(c->delta_value_heads));
    json_object_set_new(out, "mamba_d_state", json_integer(c->delta_key_dim));
    json_object_set_new(out, "mamba_d_head", json_integer(c->delta_value_dim));
    json_object_set_new(out, "mamba_d_conv", json_integer(MODEL_DELTA_TAPS));
    json_object_set_new(out, "mamba_expand", json_integer(model_delta_values(c) / c->hidden));
    json_object_set_new(out, "position_embedding_type",
                        model_layer_rotates(c, 0) ? json_string("rope") : json_null());
    json_object_set_new(out, "num_local_experts", json_integer(c->experts));
    json_object_set_new(out, "shared_intermediate_size", json_integer(c->shared_ffn));
}

static void set_delta(json_t *out, const struct model_config *c)
{
    json_t *types = json_array();
    for (uint32_t i = 0; i < c->layers; i++)
        json_array_append_new(
            types, json_string(model_layer_is_delta(c, i) ? "linear_attention" : "full_attention"));
    json_object_set_new(out, "layer_types", types);
    if (c->delta_scan) {
        set_scan(out, c);
        return;
    }
    json_object_set_new(out, "linear_conv_kernel_dim", json_integer(MODEL_DELTA_TAPS));
    json_object_set_new(out, "linear_num_key_heads", json_integer(c->delta_key_heads));
    json_object_set_new(out, "linear_num_value_heads", json_integer(c->delta_value_heads));
    json_object_set_new(out, "linear_key_head_dim", json_integer(c->delta_key_dim));
    json_object_set_new(out, "linear_value_head_dim", json_integer(c->delta_value_dim));
}

static void set_conv(json_t *out, const struct model_config *c)
{
    json_t *types = json_array();
    for (uint32_t i = 0; i < c->layers; i++)
        json_array_append_new(types, json_string(model_layer_is_conv(c, i) ? "conv" : "full_attention"));
    json_object_set_new(out, "layer_types", types);
    json_object_set_new(out, "conv_L_cache", json_integer(c->conv_taps));
    json_object_set_new(out, "block_auto_adjust_ff_dim", json_false());
}

static json_t *cap_or_null(double cap)
{
    return cap > 0 ? json_real(cap) : json_null();
}

static void set_multipliers(json_t *out, const struct model_config *c)
{
    json_object_set_new(out, "embedding_multiplier", json_real(c->embed_scale));
    json_object_set_new(out, "residual_multiplier", json_real(c->branch_scale));
    json_object_set_new(out, "attention_multiplier", json_real(c->attn_scale));
    json_object_set_new(out, "logits_scaling", json_real(1 / c->logit_scale));
}

/* Writes query_pre_attn_scalar, whose square root divides the attention scores, and the caps. Published files
 * have a whole number, which 1 / attn_scale² may miss by a rounding error, so a value within 1e-9 of a whole
 * number is written as that number. */
static void set_scores(json_t *out, const struct model_config *c)
{
    if (arch_of(c->arch)->multipliers)
        set_multipliers(out, c);
    if (arch_of(c->arch)->unit_scores)
        json_object_set_new(out, "final_logit_softcapping", cap_or_null(c->logit_softcap));
    if (!(arch_of(c->arch)->attention_scalar > 0))
        return;
    double scalar = 1 / (c->attn_scale * c->attn_scale), whole = rint(scalar);
    json_object_set_new(out, "query_pre_attn_scalar",
                        fabs(scalar - whole) < 1e-9 * whole ? json_integer((json_int_t)whole)
                                                            : json_real(scalar));
    json_object_set_new(out, "attn_logit_softcapping", cap_or_null(c->attn_softcap));
    json_object_set_new(out, "final_logit_softcapping", cap_or_null(c->logit_softcap));
}

static void set_biases(json_t *out, const struct model_config *c)
{
    const struct arch_biases *keys = &arch_of(c->arch)->bias;
    if (keys->ffn)
        json_object_set_new(out, keys->ffn, json_boolean(c->mlp_bias));
    if (keys->o)
        json_object_set_new(out, keys->o, json_boolean(c->o_bias));
    if (keys->qkv)
        json_object_set_new(out, keys->qkv, json_boolean(c->qkv_bias));
}

static void set_tokens(json_t *out, const struct model_config *c)
{
    json_t *eos = json_array();
    for (uint32_t i = 0; i < c->eos_count; i++)
        json_array_append_new(eos, json_integer(c->eos[i]));
    json_object_set_new(out, "eos_token_id", eos);
    json_object_set_new(out, "bos_token_id", c->bos < 0 ? json_null() : json_integer(c->bos));
    json_object_set_new(out, "pad_token_id", c->pad < 0 ? json_null() : json_integer(c->pad));
}

const char *const model_sizes[MODEL_SIZES] = {"hidden_size", "num_hidden_layers", "num_attention_heads",
                                              "vocab_size", "intermediate_size"};

uint8_t model_sizes_absent(const json_t *document)
{
    const json_t *defaults = json_object_get(document, "motley_defaults"), *item;
    uint8_t absent = 0;
    size_t index;
    for (unsigned i = 0; i < MODEL_SIZES; i++) {
        if (!json_object_get(document, model_sizes[i]))
            absent |= (uint8_t)(1 << i);
        json_array_foreach ((json_t *)(uintptr_t)defaults, index, item)
            if (json_is_string(item) && strcmp(json_string_value(item), model_sizes[i]) == 0)
                absent |= (uint8_t)(1 << i);
    }
    if (json_object_get(document, "block_ff_dim")) /* LFM2's name of intermediate_size */
        absent &= (uint8_t)~(1 << (MODEL_SIZES - 1));
    return absent;
}

bool model_config_doubt(const struct model_config *c, char text[MODEL_DOUBT_BYTES])
{
    const uint32_t values[MODEL_SIZES] = {c->hidden, c->layers, c->heads, c->vocab,
                                          c->ffn ? c->ffn : c->expert_ffn};
    size_t used = (size_t)snprintf(text, MODEL_DOUBT_BYTES, "config.json lacks ");
    const char *between = "";
    for (unsigned i = 0; i < MODEL_SIZES; i++) {
        if (!(c->absent >> i & 1))
            continue;
        used += (size_t)snprintf(text + used, MODEL_DOUBT_BYTES - used, "%s%s (%u)", between, model_sizes[i],
                                 values[i]);
        between = ", ";
    }
    snprintf(text + used, MODEL_DOUBT_BYTES - used,
             ", which every file that transformers saves has: as there the defaults of %s stand for them",
             arch_of(c->arch)->class_name);
    return c->absent != 0;
}

json_t *model_config_to_json(const struct model_config *c, struct err *err)
{
    static const char *const dtypes[] = {"float32", "bfloat16", "float16"};
    const struct arch *a = arch_of(c->arch);
    json_t *out = json_object();
    if (!out) {
        err_set(err, ERR_NOMEM, "no memory for a model's config");
        return NULL;
    }
    json_object_set_new(out, "architectures", json_pack("[s]", a->class_name));
    json_object_set_new(out, "model_type", json_string(a->model_type));
    json_object_set_new(out, arch_act_key(a), json_string(arch_act_name(c->act)));
    json_object_set_new(out, "hidden_size", json_integer(c->hidden));
    /* A mixture without dense layers has no dense width, but the key is required; for Mixtral and OLMoE it is
     * the experts' width. */
    json_object_set_new(out, "intermediate_size", json_integer(c->ffn ? c->ffn : c->expert_ffn));
    json_object_set_new(out, "num_hidden_layers", json_integer(c->layers));
    json_object_set_new(out, "num_attention_heads", json_integer(c->heads));
    json_object_set_new(out, "num_key_value_heads", json_integer(c->kv_heads));
    json_object_set_new(out, "head_dim", json_integer(c->head_dim));
    json_object_set_new(out, "vocab_size", json_integer(c->vocab));
    json_object_set_new(out, "max_position_embeddings", json_integer(c->max_positions));
    json_object_set_new(out, arch_norm_eps_key(a), json_real(c->norm_eps));
    json_object_set_new(out, "tie_word_embeddings", json_boolean(c->tied));
    set_biases(out, c);
    if (a->dropout > 0) {
        json_object_set_new(out, "attention_dropout", json_real(0));
        json_object_set_new(out, "residual_dropout", json_real(0));
    }
    if (a->logit_scale > 0)
        json_object_set_new(out, "logit_scale", json_real(c->logit_scale));
    if (a->parallel_key)
        json_object_set_new(out, a->parallel_key, json_boolean(c->parallel));
    json_object_set_new(out, "torch_dtype", json_string(dtypes[c->dtype]));
    set_tokens(out, c);
    set_rope(out, c);
    set_window(out, c);
    set_scores(out, c);
    if (c->full_head_dim)
        set_full_heads(out, c);
    if (c->kv_latent)
        set_latent(out, c);
    if (c->delta_value_heads)
        set_delta(out, c);
    if (c->conv_taps)
        set_conv(out, c);
    if (c->experts)
        set_experts(out, c);
    json_t *packing = packing_to_json(c);
    if (packing)
        json_object_set_new(out, "motley_packing", packing);
    if (c->nested)
        json_object_set_new(out, "motley_nested", json_true());
    json_t *defaults = json_array();
    for (unsigned i = 0; i < MODEL_SIZES; i++)
        if (c->absent >> i & 1)
            json_array_append_new(defaults, json_string(model_sizes[i]));
    if (c->absent)
        json_object_set(out, "motley_defaults", defaults);
    json_decref(defaults);
    return out;
}

static int config_refuse(struct err *err, const struct model_config *c, const char *what)
{
    return err_set(err, ERR_UNSUPPORTED,
                   "a model of architecture \"%s\" with %s can be planned but not run yet",
                   model_arch_name(c->arch), what);
}

int model_config_runnable(const struct model_config *c, struct err *err)
{
    if (c->rope.kind == ROPE_OTHER)
        return config_refuse(err, c, c->rope.kind_name);
    if (c->rope_local_set && c->rope_local.kind == ROPE_OTHER)
        return config_refuse(err, c, c->rope_local.kind_name);
    return 0;
}
