/* Which layers of a model have gated delta nets, state spaces or short convolutions, and the sizes of these.
 */
#include "model/shape/config_delta.h"

#include <math.h>
#include <string.h>

#include "model/shape/config_experts.h"

enum {
    HEADS_MAX = 4096,
    WIDTH_MAX = 1 << 17,
    DELTA_DIM_MAX = 128, /* values of a head: that of op_delta (engine/device/op.h) */
    CONV_TAPS_MAX = 4    /* tokens of a convolution: CONV_TAPS, likewise */
};

/* Reads which layers have a gated delta net: those of layer_types, or all but each
 * full_attention_interval-th. Without layer_types all layers of Mamba-2 are state spaces. transformers knows
 * two older names of the types. */
static int parse_delta_layers(struct json_reader *r, struct model_config *c)
{
    const json_t *types = NULL;
    uint32_t period = 4;
    if (!c->delta_scan)
        jr_u32(r, "full_attention_interval", JR_OPTIONAL, 1, MODEL_LAYERS_MAX, &period);
    jr_array(r, "layer_types", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &types);
    if (r->failed)
        return -1;
    if (types && json_array_size(types) != c->layers)
        return jr_fail(r, "layer_types", "has %zu entries for num_hidden_layers, %u", json_array_size(types),
                       c->layers);
    for (uint32_t i = 0; i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool linear = types ? type && (strcmp(type, "linear_attention") == 0 || strcmp(type, "mamba") == 0)
                            : c->delta_scan || (i + 1) % period != 0;
        if (linear)
            model_layer_mark(c->delta_layer, i);
        else if (types && (!type || (strcmp(type, "full_attention") != 0 && strcmp(type, "attention") != 0)))
            return err_set(r->err, ERR_UNSUPPORTED,
                           "layer_types[%u]: only %s are known in a model of type \"%s\"", i,
                           c->delta_scan ? "mamba and attention" : "linear_attention and full_attention",
                           model_arch_name(c->arch));
    }
    return 0;
}

int config_delta_parse(struct json_reader *r, struct model_config *c)
{
    uint32_t taps = MODEL_DELTA_TAPS;
    c->delta_key_heads = 16;
    c->delta_value_heads = 32;
    c->delta_key_dim = c->delta_value_dim = 128;
    jr_u32(r, "linear_conv_kernel_dim", JR_OPTIONAL, 1, 64, &taps);
    jr_u32(r, "linear_num_key_heads", JR_OPTIONAL, 1, HEADS_MAX, &c->delta_key_heads);
    jr_u32(r, "linear_num_value_heads", JR_OPTIONAL, 1, HEADS_MAX, &c->delta_value_heads);
    jr_u32(r, "linear_key_head_dim", JR_OPTIONAL, 1, DELTA_DIM_MAX, &c->delta_key_dim);
    jr_u32(r, "linear_value_head_dim", JR_OPTIONAL, 1, DELTA_DIM_MAX, &c->delta_value_dim);
    if (r->failed || parse_delta_layers(r, c) < 0)
        return -1;
    if (taps != MODEL_DELTA_TAPS)
        return err_set(r->err, ERR_UNSUPPORTED, "linear_conv_kernel_dim: %u is not supported; only %d is",
                       taps, MODEL_DELTA_TAPS);
    if (c->delta_value_heads % c->delta_key_heads != 0)
        return jr_fail(r, "linear_num_value_heads", "%u is no multiple of linear_num_key_heads, %u",
                       c->delta_value_heads, c->delta_key_heads);
    if (c->delta_key_heads * c->delta_key_dim > WIDTH_MAX ||
        c->delta_value_heads * c->delta_value_dim > WIDTH_MAX)
        return jr_fail(r, "linear_num_value_heads", "the heads of a gated delta net are wider than %d",
                       WIDTH_MAX);
    return 0;
}

/* Refuses limits of dt, to which transformers holds it in training, but not token by token. */
static int config_delta_limits_check(struct json_reader *r)
{
    const json_t *given = json_object_get(r->object, "time_step_limit");
    const json_t *high = json_array_get(given, 1);
    const char *endless = json_string_value(json_object_get(high, "__float__"));
    bool any = (endless && strcmp(endless, "Infinity") == 0) || isinf(json_number_value(high));
    if (!given || (json_number_value(json_array_get(given, 0)) == 0 && any))
        return 0;
    return err_set(r->err, ERR_UNSUPPORTED,
                   "time_step_limit: not supported; it must be absent, or from 0 to infinity");
}

int config_scan_parse(struct json_reader *r, struct model_config *c)
{
    static const char *const flags[] = {"mamba_proj_bias", "mamba_conv_bias"};
    const json_t *head = json_object_get(r->object, "mamba_d_head");
    const char *rotation = NULL;
    uint32_t taps = MODEL_DELTA_TAPS, expand = 2;
    c->delta_scan = true;
    c->delta_key_heads = 1;
    c->delta_value_heads = 128;
    c->delta_key_dim = 256;
    jr_u32(r, "mamba_d_conv", JR_OPTIONAL, 1, 64, &taps);
    jr_u32(r, "mamba_expand", JR_OPTIONAL, 1, 64, &expand);
    jr_u32(r, "mamba_n_groups", JR_OPTIONAL, 1, HEADS_MAX, &c->delta_key_heads);
    jr_u32(r, "mamba_n_heads", JR_OPTIONAL, 1, HEADS_MAX, &c->delta_value_heads);
    jr_u32(r, "mamba_d_state", JR_OPTIONAL, 1, WIDTH_MAX, &c->delta_key_dim);
    c->delta_value_dim = expand * c->hidden / c->delta_value_heads;
    if (!json_is_string(head) || strcmp(json_string_value(head), "auto") != 0)
        jr_u32(r, "mamba_d_head", JR_OPTIONAL, 1, WIDTH_MAX, &c->delta_value_dim);
    jr_str(r, "position_embedding_type", JR_OPTIONAL, 0, 64, &rotation);
    for (uint32_t i = 0; i < c->layers && !(rotation && strcmp(rotation, "rope") == 0); i++)
        model_layer_mark(c->no_rope_layer, i);
    for (uint32_t i = 0; i < 2; i++) {
        bool value = i == 1;
        if (jr_bool(r, flags[i], JR_OPTIONAL, &value) > 0 && value != (i == 1))
            return err_set(r->err, ERR_UNSUPPORTED, "%s: not supported; it must be %s", flags[i],
                           i == 1 ? "true" : "false");
    }
    if (r->failed || config_delta_limits_check(r) < 0 || parse_delta_layers(r, c) < 0)
        return -1;
    if (taps != MODEL_DELTA_TAPS)
        return config_refuse_value(r, "mamba_d_conv", taps, MODEL_DELTA_TAPS);
    if (c->delta_key_heads != 1) /* each group has a norm of its own */
        return config_refuse_value(r, "mamba_n_groups", c->delta_key_heads, 1);
    if ((uint64_t)c->delta_value_heads * c->delta_value_dim != (uint64_t)expand * c->hidden)
        return jr_fail(r, "mamba_n_heads", "%u heads of %u are not mamba_expand, %u, times hidden_size, %u",
                       c->delta_value_heads, c->delta_value_dim, expand, c->hidden);
    bool any = false; /* Granite 4's models without them have these keys, too */
    for (uint32_t i = 0; i < c->layers; i++)
        any = any || model_layer_is_delta(c, i);
    if (any && (c->delta_key_dim > DELTA_DIM_MAX || c->delta_value_dim > DELTA_DIM_MAX))
        return err_set(r->err, ERR_UNSUPPORTED, "%s: %u is not supported; at most %d is",
                       c->delta_key_dim > DELTA_DIM_MAX ? "mamba_d_state" : "mamba_d_head",
                       c->delta_key_dim > DELTA_DIM_MAX ? c->delta_key_dim : c->delta_value_dim,
                       DELTA_DIM_MAX);
    if (expand * (uint64_t)c->hidden > WIDTH_MAX)
        return jr_fail(r, "mamba_expand", "makes a state space wider than %d", WIDTH_MAX);
    return 0;
}

int config_conv_parse(struct json_reader *r, struct model_config *c)
{
    const json_t *types = NULL, *full = NULL;
    uint8_t attention[sizeof(c->conv_layer)] = {0};
    c->conv_taps = 3;
    jr_u32(r, "conv_L_cache", JR_OPTIONAL, 1, 64, &c->conv_taps);
    jr_array(r, "layer_types", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &types);
    jr_array(r, "full_attn_idxs", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &full);
    if (r->failed)
        return -1;
    if (c->conv_taps < 2 || c->conv_taps > CONV_TAPS_MAX)
        return err_set(r->err, ERR_UNSUPPORTED, "conv_L_cache: %u is not supported; 2 to %d are",
                       c->conv_taps, CONV_TAPS_MAX);
    if (types && json_array_size(types) != c->layers)
        return jr_fail(r, "layer_types", "has %zu entries for num_hidden_layers, %u", json_array_size(types),
                       c->layers);
    for (size_t k = 0; k < json_array_size(full); k++) {
        json_int_t i = json_integer_value(json_array_get(full, k));
        if (i >= 0 && i < (json_int_t)c->layers)
            model_layer_mark(attention, (uint32_t)i);
    }
    for (uint32_t i = 0; i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool listed = !full || attention[i / 8] >> i % 8 & 1;
        if (types ? type && strcmp(type, "conv") == 0 : !listed)
            model_layer_mark(c->conv_layer, i);
        else if (types && (!type || strcmp(type, "full_attention") != 0))
            return err_set(
                r->err, ERR_UNSUPPORTED,
                "layer_types[%u]: only conv and full_attention are known in a model of type \"%s\"", i,
                model_arch_name(c->arch));
    }
    return 0;
}

int config_block_ffn_parse(struct json_reader *r, struct model_config *c)
{
    bool adjusted = true;
    uint32_t unit = 256;
    double factor = 1;
    jr_u32(r, "block_ff_dim", JR_OPTIONAL, 1, CONFIG_FFN_MAX, &c->ffn);
    jr_bool(r, "block_auto_adjust_ff_dim", JR_OPTIONAL, &adjusted);
    jr_u32(r, "block_multiple_of", JR_OPTIONAL, 1, CONFIG_FFN_MAX, &unit);
    jr_f64(r, "block_ffn_dim_multiplier", JR_OPTIONAL, 1e-6, 1e6, &factor);
    if (r->failed || !adjusted)
        return r->failed ? -1 : 0;
    double width = factor * (double)(2ull * c->ffn / 3);
    uint64_t rounded = width < CONFIG_FFN_MAX ? ((uint64_t)width + unit - 1) / unit * unit : 0;
    if (rounded == 0 || rounded > CONFIG_FFN_MAX)
        return jr_fail(r, "block_ffn_dim_multiplier",
                       "makes the FFN as wide as %g, which is not from 1 to %d", width, CONFIG_FFN_MAX);
    c->ffn = (uint32_t)rounded;
    return 0;
}
