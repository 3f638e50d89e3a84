#include "worker/checkpoint/adapter.h"

json_t *adapter_config(const struct job_spec *spec, const struct model_config *model, const char *base_model,
                       struct err *err)
{
    struct peft_config config = peft_config_of(spec, model);
    return peft_config_to_json(&config, model, base_model, err);
}

int adapter_open(const struct buf *config_json, struct safetensors *tensors,
                 const struct model_config *config, const struct job_spec *spec, struct peft **peft,
                 struct err *err)
{
    const struct peft_config asked = peft_config_of(spec, config);
    if (peft_open_tensors(config_json->data, config_json->size, tensors, config, peft, err) < 0)
        return -1;
    if (peft_config_same(peft_get_config(*peft), &asked, config, err) == 0)
        return 0;
    peft_close(*peft);
    *peft = NULL;
    return -1;
}
