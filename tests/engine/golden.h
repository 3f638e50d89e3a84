/* A tiny model of every family trained for 20 steps beside PyTorch's numbers: losses, gradient norms,
 * gradients and adapters. The CPU's bounds are narrower than those of GPUs, whose kernels add up in another
 * order. */
#pragma once

#include "engine/trainer.h"

#include "common/rand.h"
#include "support/formula_model.h"

static const char *const golden = MOTLEY_TEST_DATA "/golden";

static inline double worst_relative(const double *got, json_t *want, uint32_t count)
{
    double worst = 0;
    for (uint32_t i = 0; i < count; i++) {
        double expected = json_real_value(json_array_get(want, i));
        worst = fmax(worst, fabs(got[i] - expected) / fabs(expected));
    }
    return worst;
}

static const char *const families[] = {"llama",     "llama3-rope", "mistral", "qwen2",  "qwen3", "mixtral",
                                       "qwen3-moe", "olmoe",       "gemma2",  "gemma3", "phi3",  "smollm3"};
enum { FAMILIES = sizeof(families) / sizeof(families[0]), GOLDEN_STEPS = 20 };

/* Sets what the adapter in a folder adapts. */
static inline void adapter_options(const char *model, const char *adapter, struct lora_options *lora)
{
    struct model_config config;
    struct peft *peft;
    struct err err;
    check(model_config_load(model, &config, &err));
    check(peft_open(adapter, &config, &peft, &err));
    lora->sites = *peft_get_sites(peft);
    lora->targets = lora_sites_targets(&lora->sites);
    peft_close(peft);
}

/* Trains a golden model. kind is "lora", "full" or "full_aux" (with the load-balancing loss). o.steps says
 * how many of the golden run's 20 steps run; 0: all. After all steps of LoRA the adapter is compared, too. */
static inline void run_golden(const char *name, const char *kind, const char *device_kind, uint32_t threads,
                              struct train_options o)
{
    char path[5][640], dir[512], key[32];
    const char *const files[] = {"", "expected.json", "adapter_init", "adapter_after_20",
                                 strcmp(kind, "lora") == 0 ? "grads_lora_step1.safetensors"
                                                           : "grads_full_step0.safetensors"};
    bool lora = strcmp(kind, "lora") == 0;
    size_t i;
    golden_folder(name, dir, sizeof(dir));
    for (i = 0; i < 5; i++)
        snprintf(path[i], sizeof(path[i]), "%s/%s", dir, files[i]);
    snprintf(key, sizeof(key), "%s_fp64", kind);
    json_t *expected = json_of(path[1]), *want = json_object_get(expected, key);
    const json_t *settings = json_object_get(expected, lora ? "lora" : "full");
    struct dataset data;
    struct trainer trainer;
    struct train_result result;
    dataset_parse(json_object_get(expected, "batches"), &data);
    o.model = path[0];
    o.data = &data;
    o.steps = o.steps == 0 ? GOLDEN_STEPS : o.steps;
    o.warmup = 4;
    o.full = !lora;
    o.peak_lr = json_number_value(json_object_get(settings, "peak_lr"));
    o.weight_decay = json_number_value(json_object_get(settings, "weight_decay"));
    if (lora) {
        o.adapter = path[2];
        o.lora = (struct lora_options){.rank = (uint32_t)json_integer_value(json_object_get(settings, "r")),
                                       .alpha = json_number_value(json_object_get(settings, "alpha"))};
        adapter_options(path[0], path[2], &o.lora);
    }
    /* models whose weights come from a formula have losses and norms alone */
    o.gradients = strcmp(kind, "full_aux") == 0 || !file_exists(path[4]) ? NULL : path[4];
    o.gradient_step = lora ? 1 : 0;
    o.gradient_tolerance = 1e-4; /* The required bound; about 1e-6 is measured. */
    struct device *device = device_make(device_kind, threads);
    trainer_init(&trainer, device, &o);
    if (strcmp(kind, "full_aux") == 0)
        o.router_aux = model_get_config(trainer.model)->router_aux_coef;
    trainer_run(&trainer, &result);
    double loss = worst_relative(result.loss, json_object_get(want, "loss"), o.steps);
    double norm = worst_relative(result.norm, json_object_get(want, "grad_norm"), o.steps);
    bool whole = lora && o.steps == GOLDEN_STEPS && file_exists(path[3]);
    /* AdamW divides a gradient near zero by its own magnitude, so the last bits of fp32 sums become whole
     * steps: one tensor of qwen3-moe ends 1.1e-4 away, all others within 5e-5. */
    double adapter = whole ? adapter_distance(&trainer, path[3], path[2], true, 2e-4) : 0;
    print_message("    %s %s on %s, %u stages, rows %u: loss %.1e, norm %.1e, adapter %.1e\n", name, kind,
                  device_kind, trainer.count, o.micro_batch_rows, loss, norm, adapter);
    bool on_cpu = strcmp(device_kind, "cpu") == 0 || strcmp(device_kind, "checked") == 0;
    assert_true(loss <= (on_cpu ? 1e-6 : 1e-5));
    assert_true(norm <= (on_cpu ? 1e-5 : 1e-4));
    trainer_fini(&trainer);
    device_close(device);
    dataset_free(&data);
    json_decref(expected);
}
