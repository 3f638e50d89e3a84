/* Converts a specification's method to a peft config and compares adapters with it. */
#include <math.h>
#include <string.h>

#include "model/shape/arch.h"
#include "model/adapters/peft.h"

struct peft_config peft_config_of(const struct job_spec *spec, const struct model_config *model)
{
    const struct spec_method_part *method = &spec->method;
    struct peft_config config = {.rank = method->rank,
                                 .alpha = method->alpha,
                                 .dropout = method->dropout,
                                 .lora = spec_lora_rules(method, model),
                                 .rslora = method->rslora,
                                 .w_names = arch_of(model->arch)->w_names};
    for (uint32_t i = 0; i < method->modules_to_save.count; i++) {
        bool embedding = strcmp(method->modules_to_save.names[i], "embed_tokens") == 0;
        config.saves_embedding = config.saves_embedding || embedding;
        config.saves_head = config.saves_head || (!embedding && !model->tied);
    }
    config.tied = model->tied && config.saves_embedding;
    return config;
}

/* Checks that every matrix has the same rank and factor in both adapters. */
static int check_same(const struct lora_sites *found, const struct lora_sites *asked,
                      const struct model_config *model, struct err *err)
{
    for (uint32_t i = 0; i < model->layers * LORA_TARGET_COUNT; i++) {
        uint32_t layer = i / LORA_TARGET_COUNT, site = i % LORA_TARGET_COUNT;
        uint32_t has = lora_rank_at(found, layer, site), wants = lora_rank_at(asked, layer, site);
        double scale = lora_scale_at(found, layer, site), other = lora_scale_at(asked, layer, site);
        const char *name = lora_target_name_in(model, 1u << site);
        if ((has > 0) != (wants > 0))
            return err_set(err, ERR_INVALID,
                           "it adapts other matrices than method.targets says: %s of layer %u %s. Give the "
                           "job the targets, rank and alpha (r, lora_alpha) of its adapter_config.json",
                           name, layer, has > 0 ? "too" : "is missing");
        if (has != wants)
            return err_set(err, ERR_INVALID, "it has rank %u on %s of layer %u and method says %u", has, name,
                           layer, wants);
        if (fabs(scale - other) > 1e-9 * fabs(other))
            return err_set(err, ERR_INVALID,
                           "it is scaled by %g on %s of layer %u and method's alpha says %g", scale, name,
                           layer, other);
    }
    return 0;
}

int peft_config_same(const struct peft_config *found, const struct peft_config *asked,
                     const struct model_config *model, struct err *err)
{
    struct lora_sites has, wants;
    if (found->rslora != asked->rslora)
        return err_set(err, ERR_INVALID, "its use_rslora is %s, method.rslora is %s",
                       found->rslora ? "true" : "false", asked->rslora ? "true" : "false");
    if (found->saves_head != asked->saves_head || found->saves_embedding != asked->saves_embedding)
        return err_set(err, ERR_INVALID, "it holds other modules than method.modules_to_save says");
    if (peft_sites(found, model, &has, err) < 0 || peft_sites(asked, model, &wants, err) < 0)
        return -1;
    return check_same(&has, &wants, model, err);
}
