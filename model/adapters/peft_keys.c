#include "model/adapters/peft_keys.h"

#include <stdio.h>
#include <string.h>

#include "model/shape/blocks.h"

void peft_key(uint32_t layer, uint32_t target, char which, char name[128])
{
    const char *last = lora_target_name(target), *module = lora_target_module(target);
    char of_layer[24] = "";
    if (target != LORA_PER_LAYER_MODEL)
        snprintf(of_layer, sizeof(of_layer), "layers.%u.", layer);
    snprintf(name, 128, "base_model.model.model.%s%s%s%s.lora_%c.weight", of_layer, module,
             module[0] ? "." : "", last ? last : "none", which);
}

int peft_name(const struct model_config *model, const char *parameter, char *name, size_t size)
{
    bool inner = model->nested && strncmp(parameter, "model.", strlen("model.")) == 0;
    int length = snprintf(name, size, "%s%s%s", PEFT_PREFIX, inner ? PEFT_OUTER : "",
                          parameter + (inner ? strlen("model.") : 0));
    return length >= 0 && (size_t)length < size ? 0 : -1;
}

bool peft_default_key(const char *key, char other[PEFT_KEY_BYTES])
{
    size_t length = strlen(key), end = strlen(".lora_A.weight");
    if (length < end || strncmp(key + length - end, ".lora_", 6) != 0)
        return false;
    return snprintf(other, PEFT_KEY_BYTES, "%.*s.default.weight", (int)(length - strlen(".weight")), key) <
           PEFT_KEY_BYTES;
}

static const struct safetensors_tensor *find_either(const struct safetensors *weights, const char *key)
{
    char other[PEFT_KEY_BYTES];
    const struct safetensors_tensor *tensor = safetensors_find(weights, key);
    return tensor || !peft_default_key(key, other) ? tensor : safetensors_find(weights, other);
}

const struct safetensors_tensor *peft_find(const struct safetensors *weights, const char *key)
{
    char name[PEFT_KEY_BYTES];
    const struct model_config nested = {.nested = true};
    const struct safetensors_tensor *tensor = find_either(weights, key);
    if (tensor || strncmp(key, PEFT_PREFIX, strlen(PEFT_PREFIX)) != 0 ||
        peft_name(&nested, key + strlen(PEFT_PREFIX), name, sizeof(name)) < 0)
        return tensor;
    return find_either(weights, name);
}
