#include "result/state.h"

#include <stdlib.h>
#include <string.h>

double result_lora_scale(const struct lora_sites *sites, const char *module)
{
    uint32_t target = lora_target_of(module);
    if (target == LORA_PER_LAYER_MODEL || target & LORA_TABLES)
        return lora_scale_at(sites, 0, (uint32_t)__builtin_ctz(target));
    const char *number = strpbrk(module, "0123456789"); /* the layer's; names in front of it have no digits */
    if (!target || !number || number == module || number[-1] != '.')
        return 0;
    unsigned long layer = strtoul(number, NULL, 10);
    uint32_t joined = target == LORA_DOWN ? LORA_EXPERT_DOWN : LORA_EXPERT_GATE_UP;
    if (layer < MODEL_LAYERS_MAX && strstr(module, ".experts.")) {
        double scale = lora_scale_at(sites, (uint32_t)layer, (uint32_t)__builtin_ctz(joined));
        if (scale > 0)
            return scale;
    }
    return layer < MODEL_LAYERS_MAX ? lora_scale_at(sites, (uint32_t)layer, (uint32_t)__builtin_ctz(target))
                                    : 0;
}
