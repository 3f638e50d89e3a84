/* Between a specification's method and adapter files as peft has them. */
#include <math.h>

#include "model/peft.h"
#include "model/spec.h"
#include "worker/session.h"

static uint32_t target_mask(const struct job_spec *spec)
{
    uint32_t mask = 0;
    for (uint32_t t = 0; t < spec->method.targets.count; t++)
        mask |= lora_target_from_name(spec->method.targets.names[t]);
    return mask;
}

json_t *adapter_config(const struct job_spec *spec, const char *base_model, struct err *err)
{
    struct peft_config config = {.rank = spec->method.rank,
                                 .alpha = spec->method.alpha,
                                 .dropout = spec->method.dropout,
                                 .targets = target_mask(spec)};
    return peft_config_to_json(&config, base_model, err);
}

int adapter_check(const struct buf *config_json, const struct buf *safetensors,
                  const struct model_config *config, const struct job_spec *spec, struct err *err)
{
    struct peft *peft = NULL;
    if (peft_open_memory(config_json->data, config_json->size, safetensors->data, safetensors->size, config,
                         &peft, err) < 0)
        return -1;
    const struct peft_config *found = peft_get_config(peft);
    int result = 0;
    if (found->rank != spec->method.rank)
        result =
            err_set(err, ERR_INVALID, "it has rank %u and method.rank is %u", found->rank, spec->method.rank);
    else if (fabs(found->alpha - spec->method.alpha) > 1e-12)
        result = err_set(err, ERR_INVALID, "it has alpha %g and method.alpha is %g", found->alpha,
                         spec->method.alpha);
    else if (found->targets != target_mask(spec))
        result = err_set(err, ERR_INVALID, "it adapts other matrices than method.targets says");
    peft_close(peft);
    return result;
}
