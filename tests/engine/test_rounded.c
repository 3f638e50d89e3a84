/* Tests training in 16 bits. Losses and norms are compared with those of PyTorch when it rounds the same
 * values (tools/golden_rounded.py), and with those of PyTorch's autocast. Splitting the model into stages,
 * repeating a run and another loss scale must change no bit. A loss scale that is too large must be reported,
 * and must leave the stage as it was. */
#include "engine/golden.h"
#include "engine/seeded.h"

/* --- beside PyTorch --- */

static double worst_of(const double *got, json_t *curve, const char *what, uint32_t count)
{
    return worst_relative(got, json_object_get(curve, what), count);
}

/* Bounds of relative differences. Where fp64 and fp32 round a value to different 16-bit neighbours, an
 * operand changes by 2^-8 (bf16) or 2^-11 (fp16), and later values with it: the curves then differ by about
 * as much as rounding changes them. In three of the 24 runs this happens nowhere in the first step, and its
 * loss is the reference's. A mixture's tokens may also go to other experts. autocast rounds the outputs of
 * all linear layers, too. */
struct bounds {
    double first;            /* bound of the first step's loss */
    double loss, norm, cast; /* bounds over all steps; cast: of the loss compared with autocast's */
};
/* [0]: bf16, [1]: fp16 */
static const struct bounds bounds_dense[] = {{5e-5, 5e-4, 1e-2, 1e-3}, {1e-5, 1e-4, 4e-3, 2e-4}};
static const struct bounds bounds_mixture[] = {{5e-5, 3e-3, 5e-2, 5e-3}, {1e-5, 3e-3, 2e-2, 3e-3}};
static const double first_norm = 2e-3, first_same = 2e-8;
enum { FIRST_SAME_MIN = 2, ROUNDED_STEPS = 6 };

/* Trains and compares with PyTorch. Returns whether the first step's loss equals the reference's to 2e-8. */
static bool run_rounded(json_t *values, const char *name, const char *method, const char *compute,
                        const char *device_kind, struct train_options o)
{
    char path[512], file[600], adapter[600], key[32];
    bool lora = strcmp(method, "lora") == 0, half = strcmp(compute, "fp16") == 0;
    const json_t *target;
    size_t i;
    snprintf(path, sizeof(path), "%s/%s", golden, name);
    snprintf(file, sizeof(file), "%s/expected.json", path);
    snprintf(adapter, sizeof(adapter), "%s/adapter_init", path);
    snprintf(key, sizeof(key), "%s_%s", method, compute);
    json_t *expected = json_of(file);
    json_t *curves = json_object_get(json_object_get(json_object_get(values, "families"), name), key);
    json_t *rounded = json_object_get(curves, "rounded"), *cast = json_object_get(curves, "autocast");
    const json_t *settings = json_object_get(expected, method);
    struct dataset data;
    struct trainer trainer;
    struct train_result result;
    dataset_parse(json_object_get(expected, "batches"), &data);
    o.model = path;
    o.data = &data;
    o.steps = o.steps == 0 ? ROUNDED_STEPS : o.steps;
    o.warmup = 4;
    o.full = !lora;
    o.compute = half ? DTYPE_F16 : DTYPE_BF16;
    o.loss_scale = half ? json_number_value(json_object_get(values, "scale_fp16")) : 1;
    o.peak_lr = json_number_value(json_object_get(settings, "peak_lr"));
    o.weight_decay = json_number_value(json_object_get(settings, "weight_decay"));
    if (lora) {
        o.adapter = adapter;
        o.lora = (struct lora_options){.rank = 16, .alpha = 32};
        json_array_foreach (json_object_get(settings, "targets"), i, target)
            o.lora.targets |= lora_target_from_name(json_string_value(target));
    }
    struct device *device = device_make(device_kind, 1);
    trainer_init(&trainer, device, &o);
    trainer_run(&trainer, &result);
    double loss = worst_of(result.loss, rounded, "loss", o.steps);
    double norm = worst_of(result.norm, rounded, "grad_norm", o.steps);
    double from_cast = worst_of(result.loss, cast, "loss", o.steps);
    double first = worst_of(result.loss, rounded, "loss", 1);
    print_message("    %s %s on %s: loss %.1e, first %.1e, norm %.1e; from autocast: loss %.1e\n", name, key,
                  device_kind, loss, first, norm, from_cast);
    bool mixture = model_get_config(trainer.model)->experts > 0;
    const struct bounds *bounds = &(mixture ? bounds_mixture : bounds_dense)[half];
    assert_true(first <= bounds->first && worst_of(result.norm, rounded, "grad_norm", 1) <= first_norm);
    assert_true(loss <= bounds->loss && norm <= bounds->norm && from_cast <= bounds->cast);
    trainer_fini(&trainer);
    device_close(device);
    dataset_free(&data);
    json_decref(expected);
    return first <= first_same;
}

static void every_family_matches_pytorch_with_rounded_products(void **state)
{
    char path[512];
    uint32_t same_first = 0;
    (void)state;
    snprintf(path, sizeof(path), "%s/rounded.json", golden);
    json_t *values = json_of(path);
    for (uint32_t i = 0; i < FAMILIES; i++) {
        same_first += run_rounded(values, families[i], "lora", i % 2 ? "bf16" : "fp16",
                                  i % 4 == 1 ? "checked" : "cpu", (struct train_options){0});
        same_first +=
            run_rounded(values, families[i], "full", i % 2 ? "fp16" : "bf16", "cpu",
                        (struct train_options){.cuts = {2}, .cut_count = i % 3 == 0, .micro_batch_rows = 2});
    }
    assert_in_range(same_first, FIRST_SAME_MIN, 2 * FAMILIES);
    json_decref(values);
}

/* Tests the GPUs' kernels, which sum in fp32. */
static void emulated_gpus_match_pytorch_with_rounded_products(void **state)
{
    char path[512];
    (void)state;
    snprintf(path, sizeof(path), "%s/rounded.json", golden);
    json_t *values = json_of(path);
    run_rounded(values, "phi3", "lora", "fp16", "emulated",
                (struct train_options){.steps = 3, .micro_batch_rows = 2});
    run_rounded(values, "olmoe", "full", "bf16", "emulated",
                (struct train_options){.steps = 3, .micro_batch_rows = 4});
    json_decref(values);
}

/* --- what changes no number --- */

/* A model that is wider than those of seeded.h. */
static const struct model_config seeded_wide = {
    .arch = MODEL_LLAMA,
    .hidden = 320,
    .layers = 2,
    .heads = 5,
    .kv_heads = 1,
    .head_dim = 64,
    .ffn = 448,
    .vocab = 101,
    .max_positions = 256,
    .norm_eps = 1e-5,
    .rope = {.theta = 10000, .kind = ROPE_DEFAULT, .factor = 1},
    .tied = true,
};

enum { STEPS = 2, VALUES_MAX = 1 << 19 };

struct plan {
    const char *device; /* NULL: cpu */
    const struct model_config *config;
    enum dtype compute;
    enum layer_base base; /* of all blocks; but block 0 is in fp32 when it is a stage of its own */
    double loss_scale;
    uint32_t threads, cut, rows; /* cut: the first block of the second stage; 0: one stage */
    bool recompute, split;
};

struct outcome {
    double loss[STEPS];
    float *values; /* all trained values after the steps */
    uint64_t count;
};

static struct stage *plan_stage(const struct plan *p, struct device *device, uint32_t begin, uint32_t end)
{
    struct err err;
    struct stage *stage;
    struct weight_source source = seeded_source(p->config);
    struct stage_options o = {.config = p->config,
                              .block_begin = begin,
                              .block_end = end,
                              .mode = STAGE_TRAIN,
                              .lora = {.rank = 4, .alpha = 8, .targets = LORA_ALL | LORA_TABLES},
                              .base = end == 1 ? LAYER_BASE_F32 : p->base,
                              .compute = p->compute,
                              .seed = 3,
                              .micro_batches_in_flight = 1,
                              .tokens_max = SEEDED_TOKENS,
                              .recompute = p->recompute,
                              .split = p->split};
    check(stage_create_from(device, &source, &o, &stage, &err));
    check(stage_loss_scale_set(stage, p->loss_scale == 0 ? 1 : p->loss_scale, &err));
    return stage;
}

static void plan_pass(const struct plan *p, struct stage *const *stages, uint32_t count, struct buffer *x,
                      struct buffer *d, uint64_t step)
{
    struct err err;
    for (uint32_t first = 0; first < SEEDED_ROWS; first += p->rows) {
        struct micro_batch mb;
        struct saved *saved[2];
        seeded_batch(&mb, first, p->rows, step);
        for (uint32_t s = 0; s < count; s++)
            check(
                stage_forward(stages[s], &mb, s == 0 ? NULL : x, s + 1 == count ? NULL : x, &saved[s], &err));
        for (uint32_t s = count; s-- > 0;)
            check(
                stage_backward(stages[s], &mb, saved[s], s + 1 == count ? NULL : d, s == 0 ? NULL : d, &err));
    }
}

static void values_append(struct outcome *out, struct stage *stage)
{
    struct err err;
    for (uint32_t i = 0; i < stage_parameter_count(stage); i++) {
        struct parameter p = stage_parameter_at(stage, i);
        assert_true(out->count + (uint64_t)p.rows * p.columns <= VALUES_MAX);
        check(stage_state_read(stage, i, STATE_VALUE, out->values + out->count, &err));
        out->count += (uint64_t)p.rows * p.columns;
    }
}

static struct outcome plan_run(const struct plan *p)
{
    struct err err;
    struct device *device = device_make(!p->device ? "cpu" : p->device, p->threads);
    struct stage *stages[2];
    struct buffer *x, *d;
    struct outcome out = {.values = calloc(VALUES_MAX, 4)};
    uint32_t last = p->config->layers + 2, count = p->cut == 0 ? 1 : 2;
    for (uint32_t s = 0; s < count; s++)
        stages[s] = plan_stage(p, device, s == 0 ? 0 : p->cut, s + 1 == count ? last : p->cut);
    check(buffer_create(device, 4ull * SEEDED_TOKENS * p->config->hidden, MEM_BUFFERS, "x", &x, &err));
    check(buffer_create(device, 4ull * SEEDED_TOKENS * p->config->hidden, MEM_BUFFERS, "d", &d, &err));
    for (uint32_t step = 0; step < STEPS; step++) {
        uint64_t labelled;
        double square;
        for (uint32_t s = 0; s < count; s++)
            check(stage_step_begin(stages[s], &err));
        plan_pass(p, stages, count, x, d, step);
        check(stage_loss(stages[count - 1], &out.loss[step], &labelled, &err));
        for (uint32_t s = 0; s < count; s++) {
            check(stage_grad_square_sum(stages[s], &square, &err));
            check(stage_update(stages[s], seeded_update(), &err));
        }
    }
    for (uint32_t s = 0; s < count; s++) {
        values_append(&out, stages[s]);
        stage_destroy(stages[s]);
    }
    buffer_destroy(x);
    buffer_destroy(d);
    device_close(device);
    return out;
}

/* Compares the losses of the first `steps` steps. */
static void same(const struct plan *a, const struct plan *b, int steps, double tolerance)
{
    struct outcome first = plan_run(a), second = plan_run(b);
    assert_int_equal(first.count, second.count);
    for (int step = 0; step < steps; step++)
        if (!(fabs(first.loss[step] / second.loss[step] - 1) <= tolerance))
            fail_msg("compute %d, %s, cut %u and %u: loss %.17g and %.17g at step %d", a->compute,
                     a->config->hidden == 320 ? "wide" : "narrow", a->cut, b->cut, first.loss[step],
                     second.loss[step], step);
    if (tolerance == 0)
        assert_memory_equal(first.values, second.values, 4 * first.count);
    free(first.values);
    free(second.values);
}

static const struct model_config *const configs[] = {&seeded_dense, &seeded_experts, &seeded_wide};

static void splits_repeats_and_threads_change_no_bit(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        struct plan whole = {.config = configs[i / 2],
                             .compute = i % 2 ? DTYPE_F16 : DTYPE_BF16,
                             .base = i % 2 ? LAYER_BASE_F32 : LAYER_BASE_BF16,
                             .loss_scale = i % 2 ? 64 : 1,
                             .threads = 1,
                             .rows = 4},
                    cut = whole, rows = whole;
        cut.threads = 3;
        cut.cut = 2;
        cut.recompute = i % 3 == 0;
        cut.split = i % 3 == 1;
        same(&whole, &cut, STEPS, 0);
        rows.rows = 2;
        same(&whole, &rows, STEPS, 2e-5);
    }
}

/* Frozen fp32 weights are rounded to the values of a 16-bit base, so both give the same numbers. (The
 * embedding, which is not rounded, is on another stage here.) */
static void a_base_in_fp32_is_rounded_to_what_16_bits_keep(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct model_config untied = i / 2 ? seeded_wide : seeded_dense;
        untied.tied = false;
        struct plan kept = {.config = &untied,
                            .compute = i % 2 ? DTYPE_F16 : DTYPE_BF16,
                            .base = i % 2 ? LAYER_BASE_F16 : LAYER_BASE_BF16,
                            .threads = 2,
                            .cut = 1,
                            .rows = 4},
                    wide = kept;
        wide.base = LAYER_BASE_F32;
        /* Only the first step is compared: a base in fp32 computes q, k and v by one product, so the last
         * bits differ, and AdamW amplifies the difference. */
        same(&kept, &wide, 1, 1e-6);
    }
}

/* Experts' weights that are kept packed give the same losses on an emulated GPU as on the CPU, though a GPU
 * takes all experts at once and a CPU, unless it computes in 16 bits, unpacks one after the other. */
static void packed_experts_are_the_same_on_gpus(void **state)
{
    const enum layer_base bases[] = {LAYER_BASE_NF4, LAYER_BASE_BF16, LAYER_BASE_F16};
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct plan cpu = {.config = &seeded_experts, .base = bases[i], .threads = 1, .rows = 4}, gpu = cpu;
        gpu.device = "emulated";
        cpu.compute = gpu.compute = i == 2 ? DTYPE_F16 : DTYPE_F32;
        same(&cpu, &gpu, 1, i == 2 ? 1e-4 : 1e-6);
    }
}

static void a_loss_scale_changes_no_bit_where_exponents_are_wide(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct plan one = {.config = configs[i % 3],
                           .compute = i % 2 ? DTYPE_F32 : DTYPE_BF16,
                           .threads = 1,
                           .rows = 2},
                    scaled = one;
        scaled.loss_scale = i % 2 ? 4096 : 0x1p-10;
        same(&one, &scaled, STEPS, 0);
    }
}

/* --- a loss scale that is too large --- */

static void an_overflow_is_told_and_leaves_no_trace(void **state)
{
    struct plan p = {
        .config = &seeded_wide, .compute = DTYPE_F16, .loss_scale = 256, .threads = 1, .rows = 4};
    struct outcome plain = plan_run(&p), after = {.values = calloc(VALUES_MAX, 4)};
    struct device *device = device_make("cpu", 1);
    struct stage *stage = plan_stage(&p, device, 0, p.config->layers + 2);
    struct err err;
    uint64_t labelled;
    double loss, square = 0;
    (void)state;
    check(stage_loss_scale_set(stage, 0x1p24, &err));
    check(stage_step_begin(stage, &err));
    plan_pass(&p, &stage, 1, NULL, NULL, 0);
    check(stage_loss(stage, &loss, &labelled, &err)); /* The loss itself is not scaled. */
    assert_true(loss == plain.loss[0]);
    assert_int_equal(stage_grad_square_sum(stage, &square, &err), -1);
    assert_int_equal(err.code, ERR_NOT_FINITE);
    assert_non_null(strstr(err.text, "model."));
    assert_true(isnan(square));
    assert_int_equal(stage_update_count(stage), 0);
    check(stage_loss_scale_set(stage, 256, &err));
    for (uint32_t step = 0; step < STEPS; step++) {
        check(stage_step_begin(stage, &err));
        plan_pass(&p, &stage, 1, NULL, NULL, step);
        check(stage_loss(stage, &loss, &labelled, &err));
        assert_true(loss == plain.loss[step]);
        check(stage_grad_square_sum(stage, &square, &err));
        check(stage_update(stage, seeded_update(), &err));
    }
    values_append(&after, stage);
    assert_memory_equal(plain.values, after.values, 4 * plain.count);
    stage_destroy(stage);
    device_close(device);
    free(plain.values);
    free(after.values);
}

static void what_is_no_loss_scale_or_dtype_is_refused(void **state)
{
    const double scales[] = {0, -2, 3, 0x1p25, 0x1p-25, NAN, INFINITY};
    struct plan p = {.config = &seeded_dense, .compute = DTYPE_F16, .threads = 1, .rows = 4};
    struct device *device = device_make("cpu", 1);
    struct stage *stage = plan_stage(&p, device, 0, p.config->layers + 2);
    struct stage_memory memory;
    struct stage_options o;
    struct err err;
    (void)state;
    for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++) {
        assert_int_equal(stage_loss_scale_set(stage, scales[i], &err), -1);
        assert_int_equal(err.code, ERR_INVALID);
        assert_non_null(strstr(err.text, "loss scale"));
    }
    stage_options_get(stage, &o);
    o.compute = DTYPE_U8;
    assert_int_equal(stage_memory_predict(&o, &memory, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    assert_non_null(strstr(err.text, "products in dtype"));
    stage_destroy(stage);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_matches_pytorch_with_rounded_products),
        cmocka_unit_test(emulated_gpus_match_pytorch_with_rounded_products),
        cmocka_unit_test(splits_repeats_and_threads_change_no_bit),
        cmocka_unit_test(a_base_in_fp32_is_rounded_to_what_16_bits_keep),
        cmocka_unit_test(packed_experts_are_the_same_on_gpus),
        cmocka_unit_test(a_loss_scale_changes_no_bit_where_exponents_are_wide),
        cmocka_unit_test(an_overflow_is_told_and_leaves_no_trace),
        cmocka_unit_test(what_is_no_loss_scale_or_dtype_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
