/* PyTorch's numbers for a tiny model of every family: losses, gradient norms, gradients, adapters; whole and
 * split. */
#include "engine/golden.h"

static void every_family_matches_fp64_under_lora(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < FAMILIES; i++)
        run_golden(families[i], "lora", "cpu", 1, (struct train_options){0});
}

static void every_family_matches_fp64_when_all_is_trained(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < FAMILIES; i++)
        run_golden(families[i], "full", "cpu", 1, (struct train_options){0});
}

/* The loss is over layers of one stage, of two and of three. */
static void mixtures_match_fp64_with_the_load_balancing_loss(void **state)
{
    (void)state;
    const char *const mixtures[] = {"mixtral", "qwen3-moe", "olmoe"};
    for (uint32_t i = 0; i < 3; i++)
        run_golden(
            mixtures[i], "full_aux", i < 2 ? "cpu" : "checked", 2,
            (struct train_options){.cuts = {2, 3}, .cut_count = i, .micro_batch_rows = 2, .split = i == 1});
}

static void golden_matches_on_the_checked_device(void **state)
{
    (void)state;
    const char *const some[] = {"llama", "qwen3", "mixtral"};
    for (uint32_t i = 0; i < 3; i++)
        run_golden(some[i], i == 1 ? "full" : "lora", "checked", 1,
                   (struct train_options){.cuts = {2}, .cut_count = 1, .micro_batch_rows = 2});
}

static void golden_matches_for_every_split_and_micro_batch(void **state)
{
    (void)state;
    const uint32_t cuts[][3] = {{3}, {1, 4}, {1, 3, 4}};
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t rows = 1; rows <= 4; rows *= 2) {
            struct train_options o = {
                .cut_count = i + 1, .micro_batch_rows = rows, .recompute = rows == 2, .split = rows == 4};
            memcpy(o.cuts, cuts[i], sizeof cuts[i]);
            run_golden(families[(3 * i + rows) % FAMILIES], "lora", "cpu", 1 + i % 2, o);
        }
}

/* An adapter whose ranks and factors differ from layer to layer, and which some matrices lack: made by peft
 * (tools/make_golden.py llama-patterns), alone and over cuts. */
static void patterns_over_layers_match_fp64(void **state)
{
    (void)state;
    char model[512], file[600], init[600], after[600];
    struct dataset data;
    struct peft *peft;
    struct err err;
    snprintf(model, sizeof model, "%s/llama", golden);
    snprintf(file, sizeof file, "%s/llama/expected.json", golden);
    snprintf(init, sizeof init, "%s/llama-patterns/adapter_init", golden);
    snprintf(after, sizeof after, "%s/llama-patterns/adapter_after_20", golden);
    json_t *expected = json_of(file);
    dataset_parse(json_object_get(expected, "batches"), &data);
    snprintf(file, sizeof file, "%s/llama-patterns/expected.json", golden);
    json_t *want = json_of(file);
    struct train_options o = {
        .model = model, .adapter = init, .data = &data, .steps = 20, .warmup = 4, .peak_lr = 5e-3};
    struct model_config config;
    check(model_config_load(model, &config, &err));
    check(peft_open(init, &config, &peft, &err));
    o.lora = (struct lora_options){.rank = 4, .alpha = 8, .sites = *peft_get_sites(peft)};
    o.lora.targets = lora_sites_targets(&o.lora.sites);
    peft_close(peft);
    for (uint32_t turn = 0; turn < 3; turn++) {
        struct trainer trainer;
        struct train_result result;
        struct device *device = device_make("cpu", 1);
        o.cut_count = turn;
        o.cuts[0] = 2;
        o.cuts[1] = 4;
        o.micro_batch_rows = 2 * turn;
        o.split = turn == 2;
        trainer_init(&trainer, device, &o);
        trainer_run(&trainer, &result);
        assert_true(worst_relative(result.loss, json_object_get(want, "loss"), 20) <= 1e-6);
        assert_true(worst_relative(result.norm, json_object_get(want, "grad_norm"), 20) <= 1e-5);
        assert_true(adapter_distance(&trainer, after, init, true, 1e-4) <= 1e-4);
        trainer_fini(&trainer);
        device_close(device);
    }
    dataset_free(&data);
    json_decref(expected);
    json_decref(want);
}

/* The head's use of a tied embedding has its gradient on another stage than the table. */
static void a_tied_embedding_is_trained_over_a_cut(void **state)
{
    (void)state;
    run_golden("qwen2", "full", "cpu", 1,
               (struct train_options){.cuts = {3}, .cut_count = 1, .micro_batch_rows = 2});
    run_golden("gemma2", "full", "checked", 1,
               (struct train_options){.cuts = {1, 4}, .cut_count = 2, .micro_batch_rows = 4});
}

/* `make equality`: every family and method on every cut and micro-batch, forward kept, made again, and
 * backward in halves. */
static void everything_matches_everywhere(void **state)
{
    (void)state;
    const uint32_t cuts[][3] = {{3}, {1, 4}, {1, 3, 4}};
    if (getenv("MOTLEY_EQUALITY") == NULL) {
        print_message("skipped: only make equality runs all of it\n");
        skip();
    }
    for (uint32_t i = 0; i < 3 * 3 * 2 * FAMILIES; i++) {
        const char *name = families[i % FAMILIES], *kind = i / FAMILIES % 2 == 0 ? "lora" : "full";
        uint32_t cut = i / (2 * FAMILIES) % 3, rows = 1u << (i / (6 * FAMILIES));
        struct train_options o = {
            .cut_count = cut + 1, .micro_batch_rows = rows, .recompute = rows == 2, .split = rows == 4};
        memcpy(o.cuts, cuts[cut], sizeof cuts[cut]);
        run_golden(name, kind, "cpu", 1 + cut % 2, o);
    }
}

/* A stage's blocks in parts, backward whole and in halves: the bits of a stage that does all at once. */
static void parts_and_halves_change_no_bit(void **state)
{
    (void)state;
    struct rand_stream stream;
    rand_stream_init(&stream, 23, 1);
    for (uint32_t i = 0; i < FAMILIES; i++) {
        char model[512], file[600];
        struct dataset data;
        struct train_result whole, parts;
        snprintf(model, sizeof model, "%s/%s", golden, families[i]);
        snprintf(file, sizeof file, "%s/expected.json", model);
        json_t *expected = json_of(file);
        dataset_parse(json_object_get(expected, "batches"), &data);
        struct train_options o = {.model = model,
                                  .data = &data,
                                  .steps = 3,
                                  .warmup = 1,
                                  .peak_lr = 1e-3,
                                  .full = rand_stream_below(&stream, 2) == 1,
                                  .lora = {.rank = 8, .alpha = 16, .targets = LORA_ALL},
                                  .micro_batch_rows = 2};
        struct device *device = device_make("cpu", 1);
        bool experts = i >= 5 && i < 8;
        o.lora.dropout = experts ? 0 : 0.2; /* which adapters of experts do not have */
        for (int turn = 0; turn < 3; turn++) {
            struct trainer trainer;
            o.part_blocks = turn == 0 ? 0 : 1 + rand_stream_below(&stream, 3);
            o.split = turn == 2;
            o.cuts[0] = 1 + rand_stream_below(&stream, 4);
            o.cut_count = turn == 0 || o.full ? 0 : rand_stream_below(&stream, 2);
            trainer_init(&trainer, device, &o);
            trainer_run(&trainer, turn == 0 ? &whole : &parts);
            trainer_fini(&trainer);
            for (uint32_t step = 0; step < o.steps && turn > 0; step++)
                if (parts.loss[step] != whole.loss[step] ||
                    !(fabs(parts.norm[step] - whole.norm[step]) <= 1e-12 * whole.norm[step]))
                    fail_msg("%s full %d, %s, parts of %u, %u stages, step %u: loss %.17g and %.17g, norm "
                             "%.17g and "
                             "%.17g",
                             families[i], o.full, o.split ? "halves" : "whole", o.part_blocks,
                             o.cut_count + 1, step, parts.loss[step], whole.loss[step], parts.norm[step],
                             whole.norm[step]);
        }
        device_close(device);
        dataset_free(&data);
        json_decref(expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_matches_fp64_under_lora),
        cmocka_unit_test(every_family_matches_fp64_when_all_is_trained),
        cmocka_unit_test(mixtures_match_fp64_with_the_load_balancing_loss),
        cmocka_unit_test(golden_matches_on_the_checked_device),
        cmocka_unit_test(golden_matches_for_every_split_and_micro_batch),
        cmocka_unit_test(patterns_over_layers_match_fp64),
        cmocka_unit_test(a_tied_embedding_is_trained_over_a_cut),
        cmocka_unit_test(parts_and_halves_change_no_bit),
        cmocka_unit_test(everything_matches_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
