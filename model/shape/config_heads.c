/* The heads of layers without a window, where these have other heads than layers with one; those of latent
 * attention. */
#include "model/shape/config_heads.h"

#include <stdlib.h>
#include <string.h>

#include "model/shape/arch.h"
#include "model/shape/config_experts.h"

/* Reads what Gemma 4's small models (E2B, E4B) have beside the large ones. */
static int parse_small(struct json_reader *r, struct model_config *c)
{
    uint32_t vocab = 262144; /* this and the next: the class's defaults */
    c->per_layer = 256;
    jr_u32(r, "hidden_size_per_layer_input", JR_OPTIONAL, 0, CONFIG_HIDDEN_MAX, &c->per_layer);
    jr_u32(r, "vocab_size_per_layer_input", JR_OPTIONAL, 1, UINT32_MAX, &vocab);
    jr_u32(r, "num_kv_shared_layers", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &c->kv_borrowers);
    jr_bool(r, "use_double_wide_mlp", JR_OPTIONAL, &c->borrowers_wide);
    if (r->failed)
        return -1;
    if (c->per_layer > 0 && vocab != c->vocab)
        return err_set(r->err, ERR_UNSUPPORTED,
                       "vocab_size_per_layer_input: %u is not supported; only vocab_size, %u, is", vocab,
                       c->vocab);
    if ((uint64_t)c->per_layer * c->layers > CONFIG_HIDDEN_MAX)
        return jr_fail(r, "hidden_size_per_layer_input", "%u for each of %u layers are more than %d",
                       c->per_layer, c->layers, CONFIG_HIDDEN_MAX);
    if (c->kv_borrowers >= c->layers && c->kv_borrowers > 0)
        return jr_fail(r, "num_kv_shared_layers", "%u of %u layers leave none with keys and values",
                       c->kv_borrowers, c->layers);
    for (uint32_t i = c->layers - c->kv_borrowers; i < c->layers; i++)
        if (model_layer_lender(c, i) == i)
            return jr_fail(r, "num_kv_shared_layers", "no layer in front of the last %u is like layer %u",
                           c->kv_borrowers, i);
    return 0;
}

/* Reads per_layer_config, an object of the layers whose sizes differ from those beside it. */
static int parse_layers(struct json_reader *r, const json_t *layers, struct model_config *c)
{
    const char *name;
    json_t *sizes;
    uint32_t found = 0, full = 0;
    for (uint32_t i = 0; i < c->layers; i++)
        full += model_layer_window(c, i) == 0;
    json_object_foreach ((json_t *)(uintptr_t)layers, name, sizes) {
        struct json_reader of_layer;
        uint32_t head_dim = c->head_dim, kv_heads = c->kv_heads;
        char path[64], *end;
        unsigned long layer = strtoul(name, &end, 10);
        snprintf(path, sizeof(path), "per_layer_config.%.20s", name);
        if (!name[0] || *end || layer >= c->layers || model_layer_window(c, (uint32_t)layer) > 0)
            return err_set(r->err, ERR_UNSUPPORTED, "%s: is no layer without a window", path);
        jr_init(&of_layer, sizes, path, r->err);
        jr_u32(&of_layer, "head_dim", JR_OPTIONAL, 2, CONFIG_HEAD_DIM_MAX, &head_dim);
        jr_u32(&of_layer, "num_key_value_heads", JR_OPTIONAL, 1, CONFIG_HEADS_MAX, &kv_heads);
        if (of_layer.failed || jr_finish(&of_layer) < 0)
            return -1;
        if (found++ == 0) {
            c->full_head_dim = head_dim;
            c->full_kv_heads = kv_heads;
        } else if (head_dim != c->full_head_dim || kv_heads != c->full_kv_heads) {
            return err_set(r->err, ERR_UNSUPPORTED, "%s: the layers without a window must be alike", path);
        }
    }
    if (found > 0 && found < full)
        return err_set(r->err, ERR_UNSUPPORTED,
                       "per_layer_config: names %u of the %u layers without a window, which must be alike",
                       found, full);
    return 0;
}

int config_heads_parse(struct json_reader *r, struct model_config *c)
{
    const json_t *layers = json_object_get(r->object, "per_layer_config");
    if (parse_small(r, c) < 0)
        return -1;
    jr_bool(r, "attention_k_eq_v", JR_OPTIONAL, &c->full_k_is_v);
    c->full_kv_heads = c->kv_heads;
    c->full_head_dim = c->head_dim;
    if (json_is_object(layers)) {
        if (parse_layers(r, layers, c) < 0)
            return -1;
    } else {
        c->full_head_dim = 512; /* the class's default */
        jr_u32(r, "global_head_dim", JR_OPTIONAL, 2, CONFIG_HEAD_DIM_MAX, &c->full_head_dim);
        /* the class reads this key only where k is v */
        if (c->full_k_is_v)
            jr_u32(r, "num_global_key_value_heads", JR_OPTIONAL, 1, CONFIG_HEADS_MAX, &c->full_kv_heads);
    }
    if (r->failed)
        return -1;
    if (c->heads % c->full_kv_heads != 0)
        return jr_fail(r, "num_global_key_value_heads", "%u does not divide num_attention_heads, %u",
                       c->full_kv_heads, c->heads);
    if (c->full_head_dim % 2 != 0 || (uint64_t)c->heads * c->full_head_dim > CONFIG_HIDDEN_MAX)
        return jr_fail(r, "global_head_dim", "%u heads of %u are wider than %d, or not of an even width",
                       c->heads, c->full_head_dim, CONFIG_HIDDEN_MAX);
    return 0;
}

int config_latent_parse(struct json_reader *r, struct model_config *c)
{
    static const char *const off[] = {"attention_bias", "mlp_bias"};
    const struct arch *a = arch_of(c->arch);
    uint32_t key_dim = a->latent.key_dim, rotary = a->latent.rotary_dim, given;
    c->kv_latent = a->latent.kv;
    c->q_latent = json_is_null(json_object_get(r->object, "q_lora_rank")) ? 0 : a->latent.q;
    c->value_dim = a->latent.value_dim;
    jr_u32(r, "kv_lora_rank", JR_OPTIONAL, 1, CONFIG_HIDDEN_MAX, &c->kv_latent);
    jr_u32(r, "q_lora_rank", JR_OPTIONAL, 1, CONFIG_HIDDEN_MAX, &c->q_latent);
    jr_u32(r, "qk_nope_head_dim", JR_OPTIONAL, 1, CONFIG_HEAD_DIM_MAX, &key_dim);
    jr_u32(r, "qk_rope_head_dim", JR_OPTIONAL, 2, CONFIG_HEAD_DIM_MAX, &rotary);
    jr_u32(r, "v_head_dim", JR_OPTIONAL, 1, CONFIG_HEAD_DIM_MAX, &c->value_dim);
    for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++) {
        bool biased = false;
        if (jr_bool(r, off[i], JR_OPTIONAL, &biased) > 0 && biased)
            return err_set(r->err, ERR_UNSUPPORTED,
                           "%s: not supported with latent attention; it must be false", off[i]);
    }
    given = rotary;
    jr_u32(r, "head_dim", JR_OPTIONAL, 2, CONFIG_HEAD_DIM_MAX, &given);
    if (r->failed)
        return -1;
    if (given != rotary) /* the classes differ in what they take then */
        return config_refuse_value(r, "head_dim", given, rotary);
    if (c->kv_heads != c->heads)
        return config_refuse_value(r, "num_key_value_heads", c->kv_heads, c->heads);
    if (rotary % 2 != 0)
        return jr_fail(r, "qk_rope_head_dim", "%u is not even", rotary);
    if (c->value_dim > key_dim + rotary)
        return err_set(r->err, ERR_UNSUPPORTED,
                       "v_head_dim: %u is not supported; at most %u, the width of q, is", c->value_dim,
                       key_dim + rotary);
    c->rotary_dim = rotary;
    c->head_dim = key_dim + rotary;
    return 0;
}
