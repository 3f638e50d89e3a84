/* Compares the whole engine on the emulated GPU with PyTorch, on one stage and on several, with warps of 32
 * and 64 threads. test_gpu_checks.c (make emulated-check) runs all families with every access checked. */
#include "engine/golden.h"

static void families_match_fp64_on_gpus(void **state)
{
    (void)state;
    setenv("MOTLEY_EMULATED", "warp64", 1);
    run_golden("mixtral", "full", "emulated", 1,
               (struct train_options){.steps = 5, .micro_batch_rows = 2, .recompute = true});
    setenv("MOTLEY_EMULATED", "warp32", 1);
    run_golden("gemma2", "lora", "emulated", 1,
               (struct train_options){.cuts = {2}, .cut_count = 1, .micro_batch_rows = 2, .split = true});
    run_golden("granite", "full", "emulated", 1,
               (struct train_options){.steps = 2, .micro_batch_rows = 2, .recompute = true});
    run_golden("olmo2", "lora", "emulated", 1, (struct train_options){.steps = 2, .micro_batch_rows = 2});
    run_golden("glm4", "full", "emulated", 1, (struct train_options){.steps = 2, .micro_batch_rows = 4});
    run_golden("qwen3_5", "full", "emulated", 1,
               (struct train_options){.cuts = {2}, .cut_count = 1, .steps = 2, .micro_batch_rows = 2});
    /* what passes by the stream crosses a cut, and is padded */
    run_golden("gemma4_small", "full", "emulated", 1,
               (struct train_options){.cuts = {3, 5}, .cut_count = 2, .steps = 2, .micro_batch_rows = 1});
    /* adapters on the tables, of which the head's is on another stage */
    run_golden("granite-tables", "lora", "emulated", 1,
               (struct train_options){.cuts = {3}, .cut_count = 1, .steps = 2, .micro_batch_rows = 1});
    /* adapters on tensors of all experts */
    run_golden("gpt_oss-experts", "lora", "emulated", 1,
               (struct train_options){.cuts = {3}, .cut_count = 1, .steps = 2, .micro_batch_rows = 2});
    /* latent attention, with v narrower than q */
    run_golden("glm4_moe_lite", "lora", "emulated", 1,
               (struct train_options){.cuts = {2}, .cut_count = 1, .steps = 2, .micro_batch_rows = 1});
    run_golden("deepseek_v2", "full", "emulated", 1,
               (struct train_options){.steps = 2, .micro_batch_rows = 2, .recompute = true});
    run_golden("qwen3_5-nested", "lora", "emulated", 1,
               (struct train_options){.steps = 2, .micro_batch_rows = 4});
    run_golden("granitemoehybrid", "full", "emulated", 1,
               (struct train_options){.steps = 2, .micro_batch_rows = 2});
    run_golden("starcoder2", "full", "emulated", 1,
               (struct train_options){.cuts = {3}, .cut_count = 1, .steps = 2, .micro_batch_rows = 2});
    run_golden("gpt_neox", "full", "emulated", 1, (struct train_options){.steps = 2, .micro_batch_rows = 2});
    run_golden("phi", "full", "emulated", 1, (struct train_options){.steps = 2, .micro_batch_rows = 2});
    run_golden("cohere", "lora", "emulated", 1, (struct train_options){.steps = 2, .micro_batch_rows = 2});
    unsetenv("MOTLEY_EMULATED");
}

/* Trains the tiny Mixtral with experts in NF4, whose scales have 8 bits. */
static void experts_train(const char *kind, struct train_result *result)
{
    char model[512], expected[512];
    struct err err;
    struct dataset data;
    struct trainer trainer;
    struct device *device;
    snprintf(model, sizeof(model), "%s/mixtral", golden);
    snprintf(expected, sizeof(expected), "%s/mixtral/expected.json", golden);
    json_t *document = json_of(expected);
    dataset_parse(json_object_get(document, "batches"), &data);
    struct train_options o = {.model = model,
                              .data = &data,
                              .steps = 2,
                              .warmup = 1,
                              .peak_lr = 1e-3,
                              .base = LAYER_BASE_NF4,
                              .double_quant = true};
    o.lora = (struct lora_options){.rank = 4, .alpha = 8, .targets = LORA_Q | LORA_O | LORA_EXPERTS};
    check(device_open(&(struct device_options){.kind = kind, .name = kind}, &device, &err));
    trainer_init(&trainer, device, &o);
    trainer_run(&trainer, result);
    trainer_fini(&trainer);
    device_close(device);
    dataset_free(&data);
    json_decref(document);
}

/* A GPU multiplies packed experts directly, all at once; the CPU unpacks them one after the other. Both must
 * train alike. */
static void packed_experts_train_as_unpacked_ones(void **state)
{
    (void)state;
    struct train_result gpu = {0}, cpu = {0};
    experts_train("emulated", &gpu);
    experts_train("cpu", &cpu);
    for (int i = 0; i < 2; i++) {
        assert_true(cpu.loss[i] > 0 && fabs(gpu.loss[i] - cpu.loss[i]) <= 1e-5 * cpu.loss[i]);
        assert_true(fabs(gpu.norm[i] - cpu.norm[i]) <= 1e-4 * cpu.norm[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_match_fp64_on_gpus),
        cmocka_unit_test(packed_experts_train_as_unpacked_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
