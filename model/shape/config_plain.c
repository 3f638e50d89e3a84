/* Reads what config.json says of an FFN without gate, factors, and keys under other names than most families
 * have. */
#include "model/shape/config_plain.h"

#include "model/shape/arch.h"

json_t *config_renamed(const json_t *document)
{
    const char *type = json_string_value(json_object_get(document, "model_type"));
    int found = type ? arch_find(type) : -1;
    const char *(*keys)[2] = found < 0 ? NULL : arch_of((enum model_arch)found)->keys;
    if (!keys)
        return json_incref((json_t *)(uintptr_t)document);
    json_t *renamed = json_copy((json_t *)(uintptr_t)document);
    for (; renamed && (*keys)[0]; keys++) {
        json_t *value = json_object_get(renamed, (*keys)[0]);
        if (value && !json_object_get(renamed, (*keys)[1]))
            json_object_set(renamed, (*keys)[1], value);
        json_object_del(renamed, (*keys)[0]);
    }
    return renamed;
}

int config_plain_parse(struct json_reader *r, struct model_config *c)
{
    const struct arch *a = arch_of(c->arch);
    const char *name = a->act, *key = arch_act_key(a);
    bool normed = false;
    if (a->parallel_key)
        jr_bool(r, a->parallel_key, JR_OPTIONAL, &c->parallel);
    if (a->logit_scale > 0) {
        c->logit_scale = a->logit_scale;
        jr_f64(r, "logit_scale", JR_OPTIONAL, 1e-9, 1e9, &c->logit_scale);
        if (jr_bool(r, "use_qk_norm", JR_OPTIONAL, &normed) > 0 && normed)
            return err_set(r->err, ERR_UNSUPPORTED, "use_qk_norm: not supported; it must be false");
    }
    if (!name)
        return 0;
    jr_str(r, key, JR_OPTIONAL, 1, 64, &name);
    int act = arch_act_find(name);
    if (act < 0)
        return err_set(
            r->err, ERR_UNSUPPORTED,
            "%s: \"%.64s\" is not supported; gelu, gelu_new, gelu_pytorch_tanh, relu2 and silu are", key,
            name);
    c->act = (enum model_act)act;
    return r->failed ? -1 : 0;
}

void config_multipliers_parse(struct json_reader *r, struct model_config *c)
{
    double logits = 1;
    c->embed_scale = c->branch_scale = c->attn_scale = 1;
    jr_f64(r, "embedding_multiplier", JR_OPTIONAL, 1e-9, 1e9, &c->embed_scale);
    jr_f64(r, "residual_multiplier", JR_OPTIONAL, 1e-9, 1e9, &c->branch_scale);
    jr_f64(r, "attention_multiplier", JR_OPTIONAL, 1e-9, 1e9, &c->attn_scale);
    jr_f64(r, "logits_scaling", JR_OPTIONAL, 1e-9, 1e9, &logits);
    c->logit_scale = 1 / logits;
}
