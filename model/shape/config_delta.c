/* Which layers of a model have gated delta nets, and the sizes of these. */
#include "model/shape/config_delta.h"

#include <string.h>

enum {
    HEADS_MAX = 4096,
    WIDTH_MAX = 1 << 17,
    DELTA_DIM_MAX = 128 /* values of a head: that of op_delta (engine/device/op.h) */
};

/* Reads which layers have a gated delta net: those of layer_types, or all but each
 * full_attention_interval-th. */
static int parse_delta_layers(struct json_reader *r, struct model_config *c)
{
    const json_t *types = NULL;
    uint32_t period = 4;
    jr_u32(r, "full_attention_interval", JR_OPTIONAL, 1, MODEL_LAYERS_MAX, &period);
    jr_array(r, "layer_types", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &types);
    if (r->failed)
        return -1;
    if (types && json_array_size(types) != c->layers)
        return jr_fail(r, "layer_types", "has %zu entries for num_hidden_layers, %u", json_array_size(types),
                       c->layers);
    for (uint32_t i = 0; i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool linear = types ? type && strcmp(type, "linear_attention") == 0 : (i + 1) % period != 0;
        if (linear)
            model_layer_mark(c->delta_layer, i);
        else if (types && (!type || strcmp(type, "full_attention") != 0))
            return err_set(
                r->err, ERR_UNSUPPORTED,
                "layer_types[%u]: only linear_attention and full_attention are known in a model of "
                "type \"%s\"",
                i, model_arch_name(c->arch));
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
