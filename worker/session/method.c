#include "worker/session/method.h"

#include <string.h>

static int method_sites_set(const struct spec_method_part *method, const struct model_config *config,
                            struct lora_options *lora, struct err *err)
{
    if (spec_lora_sites(method, config, &lora->sites, err) < 0)
        return -1;
    lora->targets = lora_sites_targets(&lora->sites);
    return 0;
}

static enum layer_base base_of(const struct spec_method_part *method)
{
    switch (method->base) {
    case SPEC_BASE_BF16:
        return LAYER_BASE_BF16;
    case SPEC_BASE_FP16:
        return LAYER_BASE_F16;
    case SPEC_BASE_NF4:
        return LAYER_BASE_NF4;
    case SPEC_BASE_PACKED:
        return LAYER_BASE_PACKED;
    default:
        return LAYER_BASE_F32;
    }
}

/* An assignment's specification says what its plan computes in, so `auto` is only that of a profile's
 * request, which says so beside it. */
static const enum dtype computes[] = {[SPEC_COMPUTE_AUTO] = DTYPE_F32,
                                      [SPEC_COMPUTE_FP32] = DTYPE_F32,
                                      [SPEC_COMPUTE_BF16] = DTYPE_BF16,
                                      [SPEC_COMPUTE_FP16] = DTYPE_F16};

int method_options(const struct job_spec *spec, struct stage_options *options, struct err *err)
{
    const struct spec_method_part *method = &spec->method;
    options->seed = spec->train.seed;
    options->compute = computes[spec->train.compute];
    options->moments8 = method->optimizer == SPEC_OPTIMIZER_ADAMW8BIT;
    options->label_smoothing = spec->train.label_smoothing;
    options->embed_noise = spec->train.neftune_alpha;
    options->full = method->kind == SPEC_METHOD_FULL;
    if (options->full)
        return 0; /* full fine-tuning keeps fp32 parameters, whatever dtype the file has */
    options->base = base_of(method);
    options->double_quant = method->double_quant;
    options->lora = (struct lora_options){
        .rank = method->rank, .alpha = method->alpha, .rslora = method->rslora, .dropout = method->dropout};
    for (uint32_t i = 0; i < method->modules_to_save.count; i++) {
        bool embedding = strcmp(method->modules_to_save.names[i], "embed_tokens") == 0;
        options->train_embedding = options->train_embedding || embedding;
        options->train_head = options->train_head || !embedding;
    }
    return method_sites_set(method, options->config, &options->lora, err);
}

double method_router_scale(const struct job_spec *spec, const struct model_config *config, uint64_t labelled,
                           uint64_t tokens)
{
    double asked = spec->train.router_aux;
    double coefficient = asked == SPEC_ROUTER_AUX_MODEL ? config->router_aux_coef : asked;
    return config->experts == 0 || tokens == 0 ? 0 : coefficient * (double)labelled / (double)tokens;
}
