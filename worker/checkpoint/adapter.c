#include "worker/checkpoint/adapter.h"

json_t *adapter_config(const struct job_spec *spec, const struct model_config *model, const char *base_model,
                       struct err *err)
{
    struct peft_config config = peft_config_of(spec, model);
    return peft_config_to_json(&config, model, base_model, err);
}

int adapter_check(const struct buf *config_json, const struct buf *safetensors,
                  const struct model_config *config, const struct job_spec *spec, struct err *err)
{
    struct peft *peft = NULL;
    if (peft_open_memory(config_json->data, config_json->size, safetensors->data, safetensors->size, config,
                         &peft, err) < 0)
        return -1;
    const struct peft_config *found = peft_get_config(peft), asked = peft_config_of(spec, config);
    int result = peft_config_same(found, &asked, config, err);
    peft_close(peft);
    return result;
}
