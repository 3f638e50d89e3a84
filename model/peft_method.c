/* Between a specification's method and adapters as peft has them. */
#include <math.h>
#include <string.h>

#include "model/arch.h"
#include "model/peft.h"

struct peft_config peft_config_of(const struct job_spec *spec, const struct model_config *model)
{
    const struct spec_method_part *method = &spec->method;
    struct peft_config config = {.rank = method->rank,
                                 .alpha = method->alpha,
                                 .dropout = method->dropout,
                                 .rslora = method->rslora,
                                 .w_names = arch_of(model->arch)->w_names};
    for (uint32_t t = 0; t < method->targets.count; t++) {
        uint32_t bit = lora_target_from_name(method->targets.names[t]);
        for (uint32_t i = 0; i < LORA_TARGET_COUNT; i++)
            if (bit == 1u << i) {
                config.target_rank[i] = method->target_rank[t];
                config.target_alpha[i] = method->target_alpha[t];
            }
        config.targets |= bit;
    }
    for (uint32_t i = 0; i < method->modules_to_save.count; i++) {
        bool embedding = strcmp(method->modules_to_save.names[i], "embed_tokens") == 0;
        config.saves_embedding = config.saves_embedding || embedding;
        config.saves_head = config.saves_head || (!embedding && !model->tied);
    }
    config.tied = model->tied && config.saves_embedding;
    return config;
}

/* Rank and factor of every target alike. */
static int check_same(const struct peft_config *found, const struct peft_config *asked, struct err *err)
{
    for (uint32_t bit = 1; bit <= LORA_ALL; bit <<= 1) {
        if (!(asked->targets & bit))
            continue;
        uint32_t has = peft_rank(found, bit), wants = peft_rank(asked, bit);
        if (has != wants)
            return err_set(err, ERR_INVALID, "it has rank %u on %s and method says %u", has,
                           lora_target_name(bit), wants);
        if (fabs(peft_scale(found, bit) - peft_scale(asked, bit)) > 1e-12)
            return err_set(err, ERR_INVALID, "it is scaled by %g on %s and method's alpha says %g",
                           peft_scale(found, bit), lora_target_name(bit), peft_scale(asked, bit));
    }
    return 0;
}

int peft_config_same(const struct peft_config *found, const struct peft_config *asked,
                     const struct model_config *model, struct err *err)
{
    uint32_t has = model_lora_targets(model);
    if (found->rslora != asked->rslora)
        return err_set(err, ERR_INVALID, "its use_rslora is %s, method.rslora is %s",
                       found->rslora ? "true" : "false", asked->rslora ? "true" : "false");
    if ((found->targets & has) != (asked->targets & has))
        return err_set(err, ERR_INVALID, "it adapts other matrices than method.targets says");
    if (found->saves_head != asked->saves_head || found->saves_embedding != asked->saves_embedding)
        return err_set(err, ERR_INVALID, "it holds other modules than method.modules_to_save says");
    return check_same(found, asked, err);
}
