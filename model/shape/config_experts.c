/* Reads the keys of a config.json that describe a mixture of experts: numbers, widths, routers, dense layers.
 */
#include "model/shape/config_experts.h"

#include <string.h>

#include "model/shape/arch.h"

int config_refuse_value(struct json_reader *r, const char *key, double value, double only)
{
    return err_set(r->err, ERR_UNSUPPORTED, "%s: %g is not supported; only %g is", key, value, only);
}

/* Marks the layers outside of [begin, last], and those between begin and last whose number, counted from 1,
 * is no multiple of `step`. */
static void mark_dense(struct model_config *c, uint32_t begin, uint32_t last, uint32_t step)
{
    for (uint32_t i = 0; i < c->layers; i++)
        if (i < begin || i > last || (i + 1) % step != 0)
            model_layer_mark(c->dense_layer, i);
}

static int parse_dense_range(struct json_reader *r, struct model_config *c)
{
    const struct arch *a = arch_of(c->arch);
    uint32_t begin = a->dense_default, step = 1;
    int64_t last = -1;
    if (a->dense == ARCH_DENSE_FIRST) {
        jr_u32(r, "first_k_dense_replace", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &begin);
    } else {
        jr_u32(r, "moe_layer_start_index", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &begin);
        jr_i64(r, "moe_layer_end_index", JR_OPTIONAL, -1, MODEL_LAYERS_MAX, &last);
        if (jr_u32(r, "moe_layer_interval", JR_OPTIONAL, 1, MODEL_LAYERS_MAX, &step) > 0 && step != 1)
            return config_refuse_value(r, "moe_layer_interval", step, 1);
    }
    mark_dense(c, begin, last < 0 ? c->layers : (uint32_t)last, 1);
    return r->failed ? -1 : 0;
}

/* Reads mlp_layer_types, which names each layer's kind; absent: the first layers are dense. */
static int parse_dense_types(struct json_reader *r, struct model_config *c)
{
    const json_t *types = NULL;
    jr_array(r, "mlp_layer_types", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &types);
    if (r->failed)
        return -1;
    if (types && json_array_size(types) != c->layers)
        return jr_fail(r, "mlp_layer_types", "has %zu entries for num_hidden_layers, %u",
                       json_array_size(types), c->layers);
    if (!types)
        mark_dense(c, arch_of(c->arch)->dense_default, c->layers, 1);
    for (uint32_t i = 0; types && i < c->layers; i++)
        if (strcmp(json_string_value(json_array_get(types, i)), "sparse") != 0)
            model_layer_mark(c->dense_layer, i);
    return 0;
}

static int parse_dense_layers(struct json_reader *r, struct model_config *c)
{
    const json_t *only = NULL;
    uint32_t step = 1;
    if (arch_of(c->arch)->dense == ARCH_DENSE_TYPES)
        return parse_dense_types(r, c);
    if (arch_of(c->arch)->dense != ARCH_DENSE_LISTED)
        return parse_dense_range(r, c);
    jr_u32(r, "decoder_sparse_step", JR_OPTIONAL, 1, MODEL_LAYERS_MAX, &step);
    jr_array(r, "mlp_only_layers", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &only);
    if (r->failed)
        return -1;
    mark_dense(c, 0, c->layers, step);
    for (size_t k = 0; only && k < json_array_size(only); k++) {
        const json_t *item = json_array_get(only, k);
        json_int_t i = json_integer_value(item);
        if (!json_is_integer(item) || i < 0 || i >= (json_int_t)c->layers)
            return jr_fail(r, "mlp_only_layers", "element %zu is no layer below num_hidden_layers, %u", k,
                           c->layers);
        model_layer_mark(c->dense_layer, (uint32_t)i);
    }
    return 0;
}

/* Refuses a choice of experts within groups, which Motley does not compute. */
static int refuse_groups(struct json_reader *r)
{
    static const char *const keys[] = {"n_group", "topk_group"};
    for (size_t i = 0; i < 2; i++) {
        uint32_t groups = 1;
        if (jr_u32(r, keys[i], JR_OPTIONAL, 0, MODEL_EXPERTS_MAX, &groups) > 0 && groups != 1)
            return config_refuse_value(r, keys[i], groups, 1);
    }
    return 0;
}

/* Refuses another choice of experts than the largest probabilities, weights that are divided by their sum,
 * and dense layers between those with experts, which DeepSeek's own code knows and transformers does not. */
static int refuse_choice(struct json_reader *r, const struct model_config *c)
{
    const char *method = "greedy", *scores = "softmax";
    uint32_t freq = 1;
    jr_str(r, "topk_method", JR_OPTIONAL, 1, 64, &method);
    jr_str(r, "scoring_func", JR_OPTIONAL, 1, 64, &scores);
    jr_u32(r, "moe_layer_freq", JR_OPTIONAL, 0, MODEL_LAYERS_MAX, &freq);
    if (!r->failed && strcmp(method, "greedy") != 0)
        return err_set(r->err, ERR_UNSUPPORTED, "topk_method: \"%.64s\" is not supported; only greedy is",
                       method);
    if (!r->failed && strcmp(scores, "softmax") != 0)
        return err_set(r->err, ERR_UNSUPPORTED, "scoring_func: \"%.64s\" is not supported; only softmax is",
                       scores);
    if (!r->failed && freq != 1)
        return config_refuse_value(r, "moe_layer_freq", freq, 1);
    if (!r->failed && c->router_renormalise)
        return err_set(r->err, ERR_UNSUPPORTED, "norm_topk_prob: not supported; it must be false");
    return r->failed ? -1 : 0;
}

/* Reads the shared expert's width, and the kinds of router and gate. */
static int parse_shared(struct json_reader *r, struct model_config *c)
{
    const struct arch *a = arch_of(c->arch);
    uint32_t count = 0;
    if (a->shared_key)
        jr_u32(r, a->shared_key, a->shared_optional ? JR_OPTIONAL : JR_REQUIRED, a->shared_optional ? 0 : 1,
               CONFIG_FFN_MAX, &c->shared_ffn);
    if (a->shared_count_key &&
        jr_u32(r, a->shared_count_key, JR_REQUIRED, 0, MODEL_EXPERTS_MAX, &count) > 0) {
        if ((uint64_t)count * c->expert_ffn > CONFIG_FFN_MAX)
            return jr_fail(r, a->shared_count_key, "%u experts of %u are wider than %d", count, c->expert_ffn,
                           CONFIG_FFN_MAX);
        c->shared_ffn = count * c->expert_ffn;
    }
    c->gate_limit = a->gate_limit;
    c->gate_alpha = a->gate_alpha;
    if (a->gate_limit > 0) {
        jr_f64(r, "swiglu_limit", JR_OPTIONAL, 1e-6, 1e6, &c->gate_limit);
        jr_f64(r, "swiglu_alpha", JR_OPTIONAL, -1e6, 1e6, &c->gate_alpha);
    }
    /* what experts add to the residual stream has the factor of all that is added */
    c->router_scale = c->branch_scale;
    if (a->router_scaled) {
        c->router_scale = 1;
        jr_f64(r, "routed_scaling_factor", JR_OPTIONAL, 1e-9, 1e9, &c->router_scale);
        if ((a->router_greedy ? refuse_choice(r, c) : refuse_groups(r)) < 0)
            return -1;
    }
    return r->failed ? -1 : 0;
}

int config_experts_parse(struct json_reader *r, struct model_config *c)
{
    const struct arch *a = arch_of(c->arch);
    if (a->beside_key)
        jr_bool(r, a->beside_key, JR_OPTIONAL, &c->experts_beside);
    if (r->failed || !a->sparse || (a->beside_key && !c->experts_beside))
        return r->failed ? -1 : 0;
    if (c->per_layer > 0 || c->kv_borrowers > 0)
        return err_set(r->err, ERR_UNSUPPORTED, "%s: true is not supported where %s is not 0", a->beside_key,
                       c->per_layer > 0 ? "hidden_size_per_layer_input" : "num_kv_shared_layers");
    uint32_t local = 0, total = 0;
    int has_local = jr_u32(r, "num_local_experts", JR_OPTIONAL, a->scan ? 0 : 1, MODEL_EXPERTS_MAX, &local);
    if (has_local > 0 && local == 0) { /* the shared expert alone */
        int status = parse_shared(r, c);
        c->ffn = c->shared_ffn;
        return status;
    }
    int has_total = jr_u32(r, arch_experts_key(a), JR_OPTIONAL, 1, MODEL_EXPERTS_MAX, &total);
    jr_u32(r, a->active_key ? a->active_key : "num_experts_per_tok", JR_REQUIRED, 1, MODEL_EXPERTS_MAX,
           &c->experts_active);
    c->router_aux_coef = a->aux_coef;
    jr_f64(r, "router_aux_loss_coef", JR_OPTIONAL, 0, 1e6, &c->router_aux_coef);
    c->expert_ffn = c->ffn;
    c->router_renormalise = a->renormalise || a->renormalise_default;
    if (!a->renormalise)
        jr_bool(r, "norm_topk_prob", JR_OPTIONAL, &c->router_renormalise);
    if (a->expert_ffn_key)
        jr_u32(r, a->expert_ffn_key, JR_REQUIRED, 1, CONFIG_FFN_MAX, &c->expert_ffn);
    if (r->failed)
        return -1;
    if (has_local <= 0 && has_total <= 0)
        return jr_fail(r, a->experts_key, "missing");
    if (has_local > 0 && has_total > 0 && local != total)
        return jr_fail(r, arch_experts_key(a), "%u contradicts num_local_experts, %u", total, local);
    c->experts = has_total > 0 ? total : local;
    if (c->experts_active > c->experts)
        return jr_fail(r, "num_experts_per_tok", "%u is more than the %u experts", c->experts_active,
                       c->experts);
    if ((a->dense != ARCH_DENSE_NONE && parse_dense_layers(r, c) < 0) || parse_shared(r, c) < 0)
        return -1;
    bool any_dense = false, any_sparse = false;
    for (uint32_t i = 0; i < c->layers; i++)
        *(model_layer_is_sparse(c, i) ? &any_sparse : &any_dense) = true;
    if (!any_sparse)
        return jr_fail(r,
                       a->dense == ARCH_DENSE_FIRST     ? "first_k_dense_replace"
                       : a->dense == ARCH_DENSE_OUTSIDE ? "moe_layer_start_index"
                       : a->dense == ARCH_DENSE_TYPES   ? "mlp_layer_types"
                                                        : "mlp_only_layers",
                       "leaves no layer with experts");
    if (!any_dense && !c->experts_beside)
        c->ffn = 0;
    return 0;
}
