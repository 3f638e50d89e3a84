/* What a specification asks of a model that this model does not have. */
#include <stdio.h>
#include <string.h>

#include "model/blocks.h"
#include "model/spec.h"

enum { NAMES_BYTES = 256, EXPERT_TARGETS = LORA_GATE | LORA_UP | LORA_DOWN };

static int no_such_target(const char *name, uint32_t has, struct err *err)
{
    char names[NAMES_BYTES] = "";
    size_t used = 0;
    for (uint32_t bit = 1; bit <= has && used < sizeof(names); bit <<= 1)
        if (has & bit)
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "",
                                     lora_target_name(bit));
    return err_set(err, ERR_INVALID,
                   "method.targets: \"%s\" matches no layer of this model; those that do: %s", name, names);
}

/* transformers 5 keeps gate and up of all experts as one tensor: one rank, and neither without the other. */
static int check_experts(const struct spec_method_part *method, uint32_t asked, struct err *err)
{
    if (!(asked & LORA_GATE) != !(asked & LORA_UP))
        return err_set(
            err, ERR_INVALID,
            "method.targets: gate_proj and up_proj of experts are one tensor to those who load the "
            "adapter; name both or neither");
    for (uint32_t t = 0; t < method->targets.count; t++) {
        const char *name = method->targets.names[t];
        if (!(lora_target_from_name(name) & EXPERT_TARGETS))
            continue;
        if (method->target_rank[t] != method->rank || method->target_alpha[t] != method->alpha)
            return err_set(err, ERR_UNSUPPORTED, "method.%s: %s of experts has the rank and alpha of method",
                           method->target_rank[t] != method->rank ? "rank_pattern" : "alpha_pattern", name);
    }
    return 0;
}

/* A base kept as the file's blocks needs a file that has some. */
static int check_packed(const struct model_packing *packing, struct err *err)
{
    if (packing->ways == 0)
        return err_set(
            err, ERR_INVALID,
            "method.base: packed keeps the quantised blocks of a GGUF, and this model's file has none");
    if (packing->ways > MODEL_PACKINGS_MAX)
        return err_set(err, ERR_UNSUPPORTED,
                       "method.base: packed: the file's layers are quantised in more than %d ways",
                       MODEL_PACKINGS_MAX);
    return 0;
}

int spec_check_model(const struct job_spec *spec, const struct model_config *config, struct err *err)
{
    const struct spec_method_part *method = &spec->method;
    uint32_t has = model_lora_targets(config), asked = 0;
    if (spec->train.router_aux != 0 && config->experts == 0)
        return err_set(
            err, ERR_INVALID,
            "train.router_aux: this model has no experts, and so no router whose loss could count");
    if (method->kind != SPEC_METHOD_LORA)
        return 0;
    for (uint32_t t = 0; t < method->targets.count; t++) {
        uint32_t bit = lora_target_from_name(method->targets.names[t]);
        if (!(bit & has))
            return no_such_target(method->targets.names[t], has, err);
        asked |= bit;
    }
    if (method->base == SPEC_BASE_PACKED && check_packed(&config->packing, err) < 0)
        return -1;
    if (config->experts > 0 && check_experts(method, asked, err) < 0)
        return -1;
    if (config->tied && method->modules_to_save.count == 1 &&
        strcmp(method->modules_to_save.names[0], "lm_head") == 0)
        return err_set(err, ERR_INVALID,
                       "method.modules_to_save: this model's head is its embedding: name embed_tokens");
    return 0;
}
