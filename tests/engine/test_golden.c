/* Compares a tiny model of every family with PyTorch: losses, gradient norms, gradients and adapters, on one
 * stage and on several. */
#include "engine/golden.h"

#include "common/file.h"
#include "common/json.h"
#include "support/scratch.h"

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

/* Returns how many steps the checked device trains (0: all). It protects pages before and after every op,
 * which costs the kernel more than the op; the first steps run every op, and later ones, in `make equality`,
 * repeat them. */
static uint32_t checked_steps(void)
{
    return getenv("MOTLEY_EQUALITY") ? 0 : 5;
}

/* Families that golden/families.json has: 20 steps each, whole and cut, recomputed and with split backward.
 */
static void further_families_match_fp64(void **state)
{
    (void)state;
    json_t *cases = formula_cases(NULL), *one;
    size_t i;
    json_array_foreach (cases, i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        const char *lora = "lora", *full = strstr(name, "-experts") ? lora : "full"; /* adapters alone */
        struct train_options cut = {.cuts = {1 + (uint32_t)i % 4, 5}, .cut_count = 1 + (uint32_t)i % 2};
        run_golden(name, lora, "cpu", 1, (struct train_options){0});
        if (full != lora)
            run_golden(name, full, "cpu", 1, (struct train_options){0});
        cut.micro_batch_rows = 2;
        cut.recompute = i % 2;
        cut.split = !cut.recompute;
        cut.steps = i % 4 ? 0 : checked_steps();
        run_golden(name, i % 3 ? lora : full, i % 4 ? "cpu" : "checked", 1, cut);
        run_golden(name, i % 3 ? full : lora, "cpu", 1,
                   (struct train_options){.cuts = {3}, .cut_count = 1, .split = true, .steps = 3});
    }
    json_decref(cases);
}

enum { CHOSEN_TOKENS = 64 };

/* Goes on choosing tokens behind row[0, *count), whose last logits are given, up to `end`; the
 * last logits must be those of one pass over the whole row. */
static void cache_agrees_with_one_pass(struct stage *stage, struct kv_cache *cache, int32_t row[],
                                       uint32_t end, uint32_t count, uint32_t vocab, float *logits)
{
    float *whole = malloc(4ull * vocab);
    double apart = 0, size = 0;
    struct err err;
    for (; count < end; count++) {
        row[count] = sample_greedy(logits, vocab);
        check(stage_infer(stage, cache, &row[count], 1, NULL, NULL, logits, &err));
    }
    kv_cache_clear(cache);
    check(stage_infer(stage, cache, row, count, NULL, NULL, whole, &err));
    for (uint32_t i = 0; i < vocab; i++) {
        apart = fmax(apart, fabs((double)whole[i] - (double)logits[i]));
        size = fmax(size, fabs((double)whole[i]));
    }
    assert_true(apart <= 1e-4 * size);
    assert_int_equal(sample_greedy(whole, vocab), sample_greedy(logits, vocab));
    free(whole);
}

/* The tokens that a model chooses with a cache of keys and values are those of the whole forward pass. */
static void further_families_choose_the_tokens_of_transformers(void **state)
{
    (void)state;
    json_t *cases = formula_cases(NULL), *one;
    size_t c;
    json_array_foreach (cases, c, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        json_t *want = json_object_get(one, "greedy");
        uint32_t prompt = (uint32_t)json_integer_value(json_object_get(one, "greedy_prompt"));
        char dir[512], file[640];
        struct err err;
        struct model *model;
        struct stage *stage;
        struct kv_cache *cache;
        struct dataset data;
        golden_folder(name, dir, sizeof(dir));
        snprintf(file, sizeof(file), "%s/expected.json", dir);
        json_t *expected = json_of(file);
        dataset_parse(json_object_get(expected, "batches"), &data);
        struct device *device = device_make("cpu", 1);
        check(model_open_path(dir, &model, &err));
        const struct model_config *config = model_get_config(model);
        struct stage_options o = {.config = config,
                                  .mode = STAGE_INFER,
                                  .tokens_max = 80,
                                  .positions_max = 80,
                                  .block_end = config->layers + 2};
        check(stage_create(device, model, &o, &stage, &err));
        check(kv_cache_create(stage, 80, &cache, &err));
        float *logits = malloc(4ull * config->vocab);
        int32_t row[80];
        memcpy(row, data.batches[0].ids, 4ull * prompt);
        check(stage_infer(stage, cache, data.batches[0].ids, prompt, NULL, NULL, logits, &err));
        for (size_t i = 0; i < json_array_size(want); i++) {
            int32_t next = sample_greedy(logits, config->vocab);
            if (next != json_integer_value(json_array_get(want, i)))
                fail_msg("%s: token %zu is %d, transformers chooses %lld", name, i, next,
                         (long long)json_integer_value(json_array_get(want, i)));
            row[prompt + i] = next;
            check(stage_infer(stage, cache, &next, 1, NULL, NULL, logits, &err));
        }
        cache_agrees_with_one_pass(stage, cache, row, prompt + CHOSEN_TOKENS,
                                   prompt + (uint32_t)json_array_size(want), config->vocab, logits);
        free(logits);
        kv_cache_destroy(cache);
        stage_destroy(stage);
        device_close(device);
        model_close(model);
        dataset_free(&data);
        json_decref(expected);
    }
    json_decref(cases);
}

enum { PACKED_ROWS = 4, PACKED_TOKENS = 111, PACKED_WIDTH = 32 };

/* x and the gradient of y, or y and the gradient of x */
struct packed_values {
    float of[2][PACKED_TOKENS * PACKED_WIDTH];
};

/* Runs the layers of a stage on rows [first, end) in one micro-batch. */
static void rows_pass(struct device *device, struct stage *stage, struct buffer *buffers[2], uint32_t first,
                      uint32_t end, const struct packed_values *in, struct packed_values *out)
{
    static const uint32_t starts[PACKED_ROWS + 1] = {0, 31, 48, 88, PACKED_TOKENS}, ids[] = {7, 3, 9, 100};
    static int32_t tokens[PACKED_TOKENS];
    uint32_t cut[PACKED_ROWS + 1];
    uint64_t at = (uint64_t)starts[first] * PACKED_WIDTH,
             bytes = 4ull * (starts[end] - starts[first]) * PACKED_WIDTH;
    struct saved *saved;
    struct err err;
    for (uint32_t i = first; i <= end; i++)
        cut[i - first] = starts[i] - starts[first];
    struct micro_batch mb = {
        .rows = end - first, .row_ids = ids + first, .row_start = cut, .ids = tokens, .labels = tokens};
    check(buffer_write(buffers[0], 0, in->of[0] + at, bytes, &err));
    check(stage_forward(stage, &mb, buffers[0], buffers[1], &saved, &err));
    check(buffer_read(buffers[1], 0, out->of[0] + at, bytes, &err));
    check(buffer_write(buffers[0], 0, in->of[1] + at, bytes, &err));
    check(stage_backward(stage, &mb, saved, buffers[0], buffers[1], &err));
    check(buffer_read(buffers[1], 0, out->of[1] + at, bytes, &err));
    check(device_sync(device, &err));
}

/* What leaves the layers for a row, forward and backward, are the same bits whether other rows are packed
 * into its micro-batch or not. Layers with experts are left out: the tokens given to an expert choose the
 * kernel. */
static void packed_rows_have_the_bits_of_single_rows(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t layers;
    } some[] = {{"glm4_moe_lite", 1}, {"deepseek_v2", 1}, {"deepseek_v3", 2}, {"qwen3_5", 4}, {"lfm2", 4}};
    static struct packed_values in, packed, single;
    for (size_t m = 0; m < 2 * sizeof(some) / sizeof(some[0]); m++) {
        char dir[512];
        struct err err;
        struct model *model;
        struct stage *stage;
        struct buffer *buffers[2];
        struct rand_stream stream;
        struct device *device = device_make(m % 2 ? "emulated" : "cpu", 1);
        golden_folder(some[m / 2].name, dir, sizeof(dir));
        check(model_open_path(dir, &model, &err));
        const struct model_config *config = model_get_config(model);
        assert_int_equal(config->hidden, PACKED_WIDTH);
        struct stage_options o = {.config = config,
                                  .mode = STAGE_TRAIN,
                                  .full = true,
                                  .tokens_max = PACKED_TOKENS,
                                  .positions_max = PACKED_TOKENS,
                                  .micro_batches_in_flight = 1,
                                  .block_begin = 1,
                                  .block_end = some[m / 2].layers + 1};
        check(stage_create(device, model, &o, &stage, &err));
        check(stage_step_begin(stage, &err));
        for (int i = 0; i < 2; i++)
            check(buffer_create(device, sizeof(in.of[0]), MEM_BUFFERS, "rows", &buffers[i], &err));
        rand_stream_init(&stream, 41, m);
        for (uint32_t i = 0; i < PACKED_TOKENS * PACKED_WIDTH; i++) {
            in.of[0][i] = (float)rand_stream_normal(&stream);
            in.of[1][i] = (float)rand_stream_normal(&stream);
        }
        rows_pass(device, stage, buffers, 0, PACKED_ROWS, &in, &packed);
        for (uint32_t row = 0; row < PACKED_ROWS; row++)
            rows_pass(device, stage, buffers, row, row + 1, &in, &single);
        if (memcmp(&packed, &single, sizeof(packed)) != 0)
            fail_msg("%s: packed rows have other numbers", some[m / 2].name);
        assert_true(packed.of[1][0] != in.of[1][0] && packed.of[0][0] != in.of[0][0]);
        for (int i = 0; i < 2; i++)
            buffer_destroy(buffers[i]);
        stage_destroy(stage);
        device_close(device);
        model_close(model);
    }
}

/* The load-balancing loss covers layers on one, two and three stages. */
static void mixtures_match_fp64_with_the_load_balancing_loss(void **state)
{
    (void)state;
    const char *const mixtures[] = {"mixtral", "qwen3-moe", "olmoe"};
    for (uint32_t i = 0; i < 3; i++)
        run_golden(mixtures[i], "full_aux", i < 2 ? "cpu" : "checked", 2,
                   (struct train_options){.cuts = {2, 3},
                                          .cut_count = i,
                                          .micro_batch_rows = 2,
                                          .split = i == 1,
                                          .steps = i < 2 ? 0 : checked_steps()});
}

static void golden_matches_on_the_checked_device(void **state)
{
    (void)state;
    const char *const some[] = {"llama", "qwen3", "mixtral"};
    for (uint32_t i = 0; i < 3; i++)
        run_golden(some[i], i == 1 ? "full" : "lora", "checked", 1,
                   (struct train_options){
                       .cuts = {2}, .cut_count = 1, .micro_batch_rows = 2, .steps = checked_steps()});
}

static void golden_matches_for_every_split_and_micro_batch(void **state)
{
    (void)state;
    const uint32_t cuts[][3] = {{3}, {1, 4}, {1, 3, 4}};
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t rows = 1; rows <= 4; rows *= 2) {
            struct train_options o = {
                .cut_count = i + 1, .micro_batch_rows = rows, .recompute = rows == 2, .split = rows == 4};
            memcpy(o.cuts, cuts[i], sizeof(cuts[i]));
            run_golden(families[(3 * i + rows) % FAMILIES], "lora", "cpu", 1 + i % 2, o);
        }
}

/* An adapter of peft (tools/make_golden.py llama-patterns) whose ranks and scaling factors differ by layer
 * and which lacks some matrices, on one stage and on several. */
static void patterns_over_layers_match_fp64(void **state)
{
    (void)state;
    char model[512], file[600], init[600], after[600];
    struct dataset data;
    struct peft *peft;
    struct err err;
    snprintf(model, sizeof(model), "%s/llama", golden);
    snprintf(file, sizeof(file), "%s/llama/expected.json", golden);
    snprintf(init, sizeof(init), "%s/llama-patterns/adapter_init", golden);
    snprintf(after, sizeof(after), "%s/llama-patterns/adapter_after_20", golden);
    json_t *expected = json_of(file);
    dataset_parse(json_object_get(expected, "batches"), &data);
    snprintf(file, sizeof(file), "%s/llama-patterns/expected.json", golden);
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

/* Rotary scalings on the tiny Llama (tools/golden_rope.py losses): the loss of batch 0 equals transformers
 * 5.23 in double precision. transformers pads the rows to the longest one, whose length selects longrope's
 * factors. */
static void rotary_scalings_give_the_losses_of_transformers(void **state)
{
    (void)state;
    static const struct {
        const char *rope;
        double loss;
    } cases[] = {
        {"{'rope_type':'yarn','factor':4.0,'original_max_position_embeddings':16}", 5.726092648863499},
        {"{'rope_type':'longrope','factor':4.0,'original_max_position_embeddings':16,"
         "'short_factor':[1,1.1,1.2,1.3,1.4,1.5,1.6,1.7],'long_factor':[1.5,2.2,2.9,3.6,4.3,5,5.7,6.4]}",
         5.748681519393254},
        {"{'rope_type':'dynamic','factor':2.0}", 5.7522779399270725},
    };
    char path[600];
    struct dataset data;
    snprintf(path, sizeof(path), "%s/llama/expected.json", golden);
    json_t *expected = json_of(path);
    dataset_parse(json_object_get(expected, "batches"), &data);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct scratch scratch;
        struct trainer trainer;
        struct train_result result;
        struct err err;
        char text[512];
        struct buf weights = {.limit = 1 << 22}, written = {.limit = 1 << 16};
        assert_int_equal(scratch_make(&scratch), 0);
        snprintf(path, sizeof(path), "%s/llama/model.safetensors", golden);
        check(file_read_all(path, weights.limit, &weights, &err));
        check(file_write_atomic(scratch_path(&scratch, "model.safetensors"), weights.data, weights.size, 0600,
                                &err));
        snprintf(path, sizeof(path), "%s/llama/config.json", golden);
        snprintf(text, sizeof(text), "%s", cases[i].rope);
        for (char *c = text; *c != '\0'; c++)
            *c = *c == '\'' ? '"' : *c;
        json_t *config = json_of(path), *rope = json_loads(text, 0, NULL);
        json_t *old = json_object_get(config, "rope_parameters");
        json_object_set(rope, "rope_theta", json_object_get(old ? old : config, "rope_theta"));
        json_object_del(config, "rope_scaling");
        json_object_set_new(config, "rope_parameters", rope);
        check(json_print(config, false, &written, &err));
        check(
            file_write_atomic(scratch_path(&scratch, "config.json"), written.data, written.size, 0600, &err));
        struct train_options o = {
            .model = scratch.dir, .data = &data, .steps = 1, .warmup = 1, .peak_lr = 1e-3, .full = true};
        struct device *device = device_make("cpu", 1);
        trainer_init(&trainer, device, &o);
        trainer_run(&trainer, &result);
        if (!(fabs(result.loss[0] / cases[i].loss - 1) <= 1e-6))
            fail_msg("%s: loss %.10g, transformers has %.10g", cases[i].rope, result.loss[0], cases[i].loss);
        trainer_fini(&trainer);
        device_close(device);
        json_decref(config);
        buf_fini(&weights);
        buf_fini(&written);
        scratch_remove(&scratch);
    }
    dataset_free(&data);
    json_decref(expected);
}

/* The gradient of a tied embedding by the head arises on another stage than the table's. */
static void a_tied_embedding_is_trained_over_a_cut(void **state)
{
    (void)state;
    run_golden("qwen2", "full", "cpu", 1,
               (struct train_options){.cuts = {3}, .cut_count = 1, .micro_batch_rows = 2});
    run_golden("gemma2", "full", "checked", 1,
               (struct train_options){.cuts = {1, 4}, .cut_count = 2, .micro_batch_rows = 4});
}

/* `make equality`: every family and method with every cut and micro-batch size, with kept activations, with
 * recomputation, and with split backward passes. */
static void everything_matches_everywhere(void **state)
{
    (void)state;
    const uint32_t cuts[][3] = {{3}, {1, 4}, {1, 3, 4}};
    if (!getenv("MOTLEY_EQUALITY")) {
        print_message("skipped: only make equality runs all of it\n");
        skip();
    }
    for (uint32_t i = 0; i < 3 * 3 * 2 * FAMILIES; i++) {
        const char *name = families[i % FAMILIES], *kind = i / FAMILIES % 2 == 0 ? "lora" : "full";
        uint32_t cut = i / (2 * FAMILIES) % 3, rows = 1u << (i / (6 * FAMILIES));
        struct train_options o = {
            .cut_count = cut + 1, .micro_batch_rows = rows, .recompute = rows == 2, .split = rows == 4};
        memcpy(o.cuts, cuts[cut], sizeof(cuts[cut]));
        run_golden(name, kind, "cpu", 1 + cut % 2, o);
    }
}

/* Running a stage's blocks in parts, with whole or split backward passes, gives the same bits as running all
 * at once. */
static void parts_and_halves_change_no_bit(void **state)
{
    (void)state;
    struct rand_stream stream;
    rand_stream_init(&stream, 23, 1);
    for (uint32_t i = 0; i <= FAMILIES; i++) {
        const char *name =
            i < FAMILIES ? families[i] : "gemma4_small"; /* in which more than the stream passes */
        char model[512], file[600];
        struct dataset data;
        struct train_result whole, parts;
        golden_folder(name, model, sizeof(model));
        snprintf(file, sizeof(file), "%s/expected.json", model);
        json_t *expected = json_of(file);
        dataset_parse(json_object_get(expected, "batches"), &data);
        struct train_options o = {.model = model,
                                  .data = &data,
                                  .base = i < FAMILIES ? LAYER_BASE_F32 : LAYER_BASE_NF4,
                                  .double_quant = true,
                                  .steps = 3,
                                  .warmup = 1,
                                  .peak_lr = 1e-3,
                                  .full = i < FAMILIES && rand_stream_below(&stream, 2) == 1,
                                  .lora = {.rank = 8, .alpha = 16, .targets = LORA_ALL},
                                  .micro_batch_rows = 2};
        struct device *device = device_make("cpu", 1);
        bool experts = i >= 5 && i < 8;
        o.lora.dropout = experts ? 0 : 0.2; /* Adapters of experts have no dropout. */
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
                             name, o.full, o.split ? "halves" : "whole", o.part_blocks, o.cut_count + 1, step,
                             parts.loss[step], whole.loss[step], parts.norm[step], whole.norm[step]);
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
        cmocka_unit_test(further_families_match_fp64),
        cmocka_unit_test(further_families_choose_the_tokens_of_transformers),
        cmocka_unit_test(packed_rows_have_the_bits_of_single_rows),
        cmocka_unit_test(every_family_matches_fp64_when_all_is_trained),
        cmocka_unit_test(mixtures_match_fp64_with_the_load_balancing_loss),
        cmocka_unit_test(golden_matches_on_the_checked_device),
        cmocka_unit_test(golden_matches_for_every_split_and_micro_batch),
        cmocka_unit_test(patterns_over_layers_match_fp64),
        cmocka_unit_test(rotary_scalings_give_the_losses_of_transformers),
        cmocka_unit_test(a_tied_embedding_is_trained_over_a_cut),
        cmocka_unit_test(parts_and_halves_change_no_bit),
        cmocka_unit_test(everything_matches_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
