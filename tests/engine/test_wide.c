/* Compares models of odd and larger shapes with PyTorch on the kernels that users' models run on: heads that
 * no vector width divides, rows of 1 to 1,000 tokens, hidden sizes of 264 to 576. A formula that
 * tools/golden_wide.py shares gives the weights. */
#include "engine/golden.h"

/* Bounds for fp32 sums of up to 1,000 terms compared with fp64: ten times the measured errors. */
static const double loss_bound = 1e-5, norm_bound = 1e-4;

static void case_run(json_t *one, const char *kind, const struct scratch *scratch, struct train_options o)
{
    char model[512], adapter[512];
    bool lora = strcmp(kind, "lora") == 0;
    json_t *want = json_object_get(one, kind), *target;
    struct dataset data;
    struct trainer trainer;
    struct train_result result;
    size_t i;
    snprintf(model, sizeof(model), "%s", scratch->dir);
    snprintf(adapter, sizeof(adapter), "%s/adapter", scratch->dir);
    json_t *vocab = json_object_get(json_object_get(one, "config"), "vocab_size");
    json_t *batches = formula_batches(json_object_get(one, "rows"), (uint32_t)json_integer_value(vocab));
    dataset_parse(batches, &data);
    json_decref(batches);
    o.model = model;
    o.data = &data;
    o.steps = (uint32_t)json_integer_value(json_object_get(one, "steps"));
    o.warmup = 1;
    o.full = !lora;
    o.peak_lr = lora ? 5e-3 : 1e-3;
    o.weight_decay = lora ? 0 : 0.1;
    if (lora) {
        o.adapter = adapter;
        o.lora = (struct lora_options){.rank = 6, .alpha = 12};
        json_array_foreach (json_object_get(one, "targets"), i, target)
            o.lora.targets |= lora_target_from_name(json_string_value(target));
    }
    struct device *device = device_make("cpu", 1 + o.cut_count);
    trainer_init(&trainer, device, &o);
    trainer_run(&trainer, &result);
    double loss = worst_relative(result.loss, json_object_get(want, "loss"), o.steps);
    double norm = worst_relative(result.norm, json_object_get(want, "grad_norm"), o.steps);
    print_message("    %s %s, %u stages: loss %.1e, norm %.1e\n",
                  json_string_value(json_object_get(one, "name")), kind, trainer.count, loss, norm);
    if (!(loss <= loss_bound && norm <= norm_bound))
        fail_msg("beyond %g and %g", loss_bound, norm_bound);
    trainer_fini(&trainer);
    device_close(device);
    dataset_free(&data);
}

static void odd_and_larger_shapes_match_fp64(void **state)
{
    (void)state;
    json_t *cases = json_of(MOTLEY_TEST_DATA "/golden/wide.json"), *one;
    size_t i;
    json_array_foreach (cases, i, one) {
        struct scratch scratch;
        assert_int_equal(scratch_make(&scratch), 0);
        formula_folder(&scratch, one, "adapter");
        case_run(one, "full", &scratch, (struct train_options){0});
        case_run(one, "lora", &scratch, (struct train_options){0});
        case_run(
            one, "lora", &scratch,
            (struct train_options){.cuts = {2}, .cut_count = 1, .micro_batch_rows = 1, .recompute = true});
        scratch_remove(&scratch);
    }
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_and_larger_shapes_match_fp64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
