/* Trains a tiny model on devices of kind cuda and hip over the vendors' fake libraries. Losses and norms
 * equal, to the bit, those of the emulated device with the same warp size; passes are recorded as graphs. */
#include "engine/golden.h"

#include "engine/gpu/code.h"

enum { STEPS = 3 };

static void train(const char *kind, const char *isa, struct train_result *result)
{
    char model[512], adapter[512], expected[512];
    struct err err;
    struct dataset data;
    struct trainer trainer;
    struct device *device;
    snprintf(model, sizeof(model), "%s/llama", golden);
    snprintf(adapter, sizeof(adapter), "%s/llama/adapter_init", golden);
    snprintf(expected, sizeof(expected), "%s/llama/expected.json", golden);
    json_t *document = json_of(expected);
    dataset_parse(json_object_get(document, "batches"), &data);
    struct train_options o = {.model = model, .data = &data, .steps = STEPS, .warmup = 1};
    o.peak_lr = 1e-3;
    o.adapter = adapter;
    o.lora = (struct lora_options){.rank = 16, .alpha = 32};
    const json_t *target;
    size_t i;
    json_array_foreach (json_object_get(json_object_get(document, "lora"), "targets"), i, target)
        o.lora.targets |= lora_target_from_name(json_string_value(target));
    check(device_open(&(struct device_options){.kind = kind, .name = kind, .isa = isa}, &device, &err));
    trainer_init(&trainer, device, &o);
    trainer_run(&trainer, result);
    trainer_fini(&trainer);
    device_close(device);
    dataset_free(&data);
    json_decref(document);
}

static void training_gives_the_same_bits_behind_every_driver(void **state)
{
    (void)state;
    static const struct {
        const char *kind, *isa, *arch;
    } cases[] = {{"cuda", "warp32", "sm_86"}, {"hip", "warp64", "gfx90a"}};
    struct err err;
    setenv("MOTLEY_CUDA_LIBRARY", MOTLEY_FAKES "/libfake_cuda.so", 1);
    setenv("MOTLEY_HIP_LIBRARY", MOTLEY_FAKES "/libfake_hip.so", 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct train_result emulated = {0}, behind = {0};
        if (!gpu_code_choose(cases[i].kind, cases[i].arch, &err)) {
            printf("skipped: %s\n", err.text);
            skip();
        }
        train("emulated", cases[i].isa, &emulated);
        train(cases[i].kind, NULL, &behind);
        assert_true(emulated.loss[STEPS - 1] > 0);
        assert_memory_equal(emulated.loss, behind.loss, STEPS * sizeof(*emulated.loss));
        assert_memory_equal(emulated.norm, behind.norm, STEPS * sizeof(*emulated.norm));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(training_gives_the_same_bits_behind_every_driver)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
