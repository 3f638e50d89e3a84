/* Tests what stages promise: exact memory, limits, refusal of bad input, dropout and initialisation that do
 * not depend on the split, equal bits for equal calls, saved and restored state, and caches that agree with
 * whole passes. */
#include "engine/device/scalars.h"
#include "engine/seeded.h"

static const struct model_config small = {
    .arch = MODEL_LLAMA,
    .hidden = 48,
    .layers = 3,
    .heads = 6,
    .kv_heads = 2,
    .head_dim = 10,
    .ffn = 83,
    .vocab = 101,
    .max_positions = 256,
    .norm_eps = 1e-5,
    .rope = {.theta = 10000, .kind = ROPE_DEFAULT, .factor = 1},
    .tied = true,
};

/* A wider, untied model of odd sizes, with one key head a query head. */
static const struct model_config wide = {
    .arch = MODEL_LLAMA,
    .hidden = 264,
    .layers = 3,
    .heads = 5,
    .kv_heads = 5,
    .head_dim = 34,
    .ffn = 301,
    .vocab = 101,
    .max_positions = 256,
    .norm_eps = 1e-5,
    .rope = {.theta = 10000, .kind = ROPE_LINEAR, .factor = 2},
};

static const char *tested = "cpu"; /* the kind of device; every test runs on both kinds */

enum { SMALL_ROWS = SEEDED_ROWS, SMALL_TOKENS = SEEDED_TOKENS };

struct made {
    const struct model_config *config; /* NULL: the config `small` */
    const char *poisoned;
};

static int small_read(void *context, const char *name, uint64_t begin, uint64_t end, float *dst,
                      struct err *err)
{
    const struct made *made = context;
    const struct model_config *config = !made || !made->config ? &small : made->config;
    int status = seeded_read((void *)(uintptr_t)config, name, begin, end, dst, err);
    if (made && made->poisoned && strcmp(made->poisoned, name) == 0)
        dst[0] = NAN;
    return status;
}

static const struct weight_source small_source = {.read = small_read};

static struct stage_options small_options(uint32_t begin, uint32_t end)
{
    return (struct stage_options){
        .config = &small,
        .block_begin = begin,
        .block_end = end,
        .mode = STAGE_TRAIN,
        .lora = {.rank = 4, .alpha = 8, .dropout = 0.1, .targets = LORA_ALL | LORA_TABLES},
        .seed = 3,
        .micro_batches_in_flight = 2,
        .tokens_max = SMALL_TOKENS,
    };
}

static void batch_fill(struct micro_batch *mb, uint32_t first, uint32_t rows)
{
    seeded_batch(mb, first, rows, 5);
}

struct outcome {
    double loss;
    uint64_t labelled;
    float *gradients; /* the gradients of all parameters, in order of blocks */
    uint64_t count;
};

/* Runs one step on stages cut at `cuts`, with micro-batches of `rows` rows. */
static struct outcome one_step_as(enum dtype compute, const char *kind, uint32_t threads,
                                  const uint32_t *cuts, uint32_t cut_count, uint32_t rows, bool recompute)
{
    struct err err;
    struct device *device = device_make(kind, threads);
    struct stage *stages[4];
    struct buffer *x[4], *d[4];
    uint32_t count = cut_count + 1;
    struct outcome outcome = {.gradients = calloc(1 << 18, 4)};
    for (uint32_t s = 0; s < count; s++) {
        struct stage_options o = small_options(s == 0 ? 0 : cuts[s - 1], s + 1 == count ? 5 : cuts[s]);
        o.recompute = recompute;
        o.compute = compute;
        check(stage_create_from(device, &small_source, &o, &stages[s], &err));
        check(buffer_create(device, 4 * SMALL_TOKENS * 48, MEM_BUFFERS, "x", &x[s], &err));
        check(buffer_create(device, 4 * SMALL_TOKENS * 48, MEM_BUFFERS, "d", &d[s], &err));
        check(stage_step_begin(stages[s], &err));
    }
    for (uint32_t first = 0; first < SMALL_ROWS; first += rows) {
        struct micro_batch mb;
        struct saved *saved[4];
        batch_fill(&mb, first, rows);
        for (uint32_t s = 0; s < count; s++)
            check(stage_forward(stages[s], &mb, s == 0 ? NULL : x[s], s + 1 == count ? NULL : x[s + 1],
                                &saved[s], &err));
        for (uint32_t s = count; s-- > 0;)
            check(stage_backward(stages[s], &mb, saved[s], s + 1 == count ? NULL : d[s + 1],
                                 s == 0 ? NULL : d[s], &err));
    }
    for (uint32_t s = 0; s < count; s++) {
        double part;
        uint64_t labelled;
        check(stage_loss(stages[s], &part, &labelled, &err));
        outcome.loss += part;
        outcome.labelled += labelled;
        for (uint32_t i = 0; i < stage_parameter_count(stages[s]); i++) {
            struct parameter p = stage_parameter_at(stages[s], i);
            check(stage_state_read(stages[s], i, STATE_GRADIENT, outcome.gradients + outcome.count, &err));
            outcome.count += (uint64_t)p.rows * p.columns;
        }
    }
    for (uint32_t s = 0; s < count; s++) {
        stage_destroy(stages[s]);
        buffer_destroy(x[s]);
        buffer_destroy(d[s]);
    }
    device_close(device);
    return outcome;
}

static struct outcome one_step(const char *kind, uint32_t threads, const uint32_t *cuts, uint32_t cut_count,
                               uint32_t rows, bool recompute)
{
    return one_step_as(DTYPE_F32, kind, threads, cuts, cut_count, rows, recompute);
}

static void outcomes_compare(struct outcome *a, struct outcome *b, double tolerance)
{
    assert_int_equal(a->labelled, b->labelled);
    assert_int_equal(a->count, b->count);
    if (tolerance == 0) {
        assert_memory_equal(&a->loss, &b->loss, sizeof(a->loss));
        assert_memory_equal(a->gradients, b->gradients, 4 * a->count);
    } else {
        assert_true(fabs(a->loss - b->loss) <= tolerance * a->loss);
        assert_true(tensor_distance(a->gradients, b->gradients, a->count, 1) <= tolerance);
    }
    free(b->gradients);
}

static void equal_calls_give_equal_bits(void **state)
{
    (void)state;
    struct outcome a = one_step(tested, 2, NULL, 0, 4, false), b = one_step(tested, 2, NULL, 0, 4, false);
    outcomes_compare(&a, &b, 0);
    free(a.gradients);
}

static void splits_threads_and_recomputing_change_no_bit(void **state)
{
    (void)state;
    const uint32_t cuts[] = {1, 3, 4};
    struct outcome a = one_step(tested, 1, NULL, 0, 2, false), b = one_step(tested, 1, cuts, 3, 2, true);
    outcomes_compare(&a, &b, 0);
    b = one_step(tested, 2, cuts + 1, 1, 2, false);
    outcomes_compare(&a, &b, 0);
    b = one_step("checked", 1, cuts, 2, 2, true);
    outcomes_compare(&a, &b, 0);
    free(a.gradients);
}

/* With 16-bit compute, dropout's input is in fp32 or copied to fp32. */
static void neither_do_they_with_dropout_in_16_bits(void **state)
{
    (void)state;
    const uint32_t cuts[] = {1, 3};
    for (uint32_t i = 0; i < 2; i++) {
        enum dtype compute = i == 0 ? DTYPE_BF16 : DTYPE_F16;
        struct outcome a = one_step_as(compute, tested, 1, NULL, 0, 2, false),
                       b = one_step_as(compute, "checked", 2, cuts, 2, 2, true);
        outcomes_compare(&a, &b, 0);
        free(a.gradients);
    }
}

static void micro_batches_change_nothing_with_dropout(void **state)
{
    (void)state;
    struct outcome a = one_step(tested, 1, NULL, 0, 4, false), b = one_step(tested, 1, NULL, 0, 1, false);
    outcomes_compare(&a, &b, 1e-6);
    free(a.gradients);
}

static double train_loss(struct stage *stage, bool backward)
{
    struct err err;
    struct micro_batch mb;
    struct saved *saved;
    double loss;
    uint64_t labelled;
    batch_fill(&mb, 0, 4);
    check(stage_step_begin(stage, &err));
    check(stage_forward(stage, &mb, NULL, NULL, &saved, &err));
    if (backward)
        check(stage_backward(stage, &mb, saved, NULL, NULL, &err));
    else
        stage_saved_release(saved);
    check(stage_loss(stage, &loss, &labelled, &err));
    return loss;
}

static double moved_loss(struct stage *stage, uint32_t index, const float *values, const float *direction,
                         double by)
{
    struct err err;
    struct parameter p = stage_parameter_at(stage, index);
    uint32_t count = p.rows * p.columns;
    float *moved = malloc(4ull * count);
    for (uint32_t j = 0; j < count; j++)
        moved[j] = values[j] + (float)by * direction[j];
    check(stage_state_write(stage, index, STATE_VALUE, moved, &err));
    double loss = train_loss(stage, false);
    check(stage_state_write(stage, index, STATE_VALUE, values, &err));
    free(moved);
    return loss;
}

static void gradient_check(struct stage *stage, uint32_t index, struct rand_stream *stream, double tolerance)
{
    struct err err;
    struct parameter p = stage_parameter_at(stage, index);
    uint32_t count = p.rows * p.columns;
    float *values = malloc(4ull * count), *gradient = malloc(4ull * count), *direction = malloc(4ull * count);
    double along = 0, h = 1e-2 / sqrt(count);
    train_loss(stage, true);
    check(stage_state_read(stage, index, STATE_GRADIENT, gradient, &err));
    check(stage_state_read(stage, index, STATE_VALUE, values, &err));
    double norm = 0;
    for (uint32_t j = 0; j < count; j++)
        norm += (double)gradient[j] * (double)gradient[j];
    /* The direction is the gradient plus as much noise, so that the slope is large compared with rounding. */
    for (uint32_t j = 0; j < count; j++) {
        direction[j] = (float)((double)gradient[j] / sqrt(norm / count) + rand_stream_normal(stream));
        along += (double)direction[j] * (double)gradient[j];
    }
    double slope =
        (moved_loss(stage, index, values, direction, h) - moved_loss(stage, index, values, direction, -h)) /
        (2 * h);
    if (!(fabs(slope - along) <= tolerance * fabs(slope)))
        fail_msg("%s: gradient along a direction %.6f, differences say %.6f", p.name, along, slope);
    free(values);
    free(gradient);
    free(direction);
}

static void gradients_check(const struct model_config *config, double tolerance)
{
    struct err err;
    struct device *device = device_make(tested, 1);
    struct stage *stage;
    struct rand_stream stream;
    struct made made = {.config = config};
    struct weight_source source = {.read = small_read, .context = &made};
    struct stage_options o = small_options(0, 5);
    o.config = config;
    rand_stream_init(&stream, 5, 0);
    check(stage_create_from(device, &source, &o, &stage, &err));
    for (uint32_t i = 0; i < stage_parameter_count(stage); i++) {
        struct parameter p = stage_parameter_at(stage, i);
        if (!strstr(p.name, "lora_B") && !strstr(p.name, "lora_embedding_"))
            continue;
        float *values = malloc(4ull * p.rows * p.columns);
        for (uint32_t j = 0; j < p.rows * p.columns; j++)
            values[j] = (float)(0.1 * rand_stream_normal(&stream));
        check(stage_state_write(stage, i, STATE_VALUE, values, &err));
        free(values);
    }
    for (uint32_t i = 0; i < stage_parameter_count(stage); i++)
        gradient_check(stage, i, &stream, tolerance);
    stage_destroy(stage);
    device_close(device);
}

static void gradients_of_every_target_match_differences_under_dropout(void **state)
{
    (void)state;
    gradients_check(&small, 2e-3);
    /* In fp32 the loss of about 100 has a rounding error of 1e-5, and the differences are about 0.01. */
    gradients_check(&wide, 1e-2);
}

static void memory_is_what_was_predicted(void **state)
{
    (void)state;
    struct err err;
    struct rand_stream stream;
    rand_stream_init(&stream, 11, 0);
    for (int trial = 0; trial < 40; trial++) {
        struct device *device = device_make(tested, 1);
        struct stage *stage;
        struct stage_memory predicted;
        struct mem_account account;
        uint32_t begin = rand_stream_below(&stream, 5),
                 end = begin + 1 + rand_stream_below(&stream, 5 - begin);
        struct stage_options o = small_options(begin, end);
        o.lora.targets = rand_stream_below(&stream, model_lora_targets(&small) + 1);
        o.lora.rank = 1 + rand_stream_below(&stream, 20);
        o.lora.dropout = rand_stream_below(&stream, 2) * 0.1;
        if (trial % 3 == 0) { /* The layers' adapters differ, and some layers have none. */
            o.lora.sites.ways = 3;
            for (uint32_t way = 0; way < 2; way++)
                for (uint32_t site = 0; site < 7; site++)
                    o.lora.sites.way[way].rank[site] = rand_stream_below(&stream, 9);
            for (uint32_t layer = 0; layer < small.layers; layer++)
                o.lora.sites.layer[layer] = (uint8_t)rand_stream_below(&stream, 3);
            o.lora.targets = lora_sites_targets(&o.lora.sites);
        }
        o.recompute = rand_stream_below(&stream, 2) == 1;
        o.split = !o.recompute && rand_stream_below(&stream, 2) == 1;
        o.compute = (enum dtype[]){DTYPE_F32, DTYPE_BF16, DTYPE_F16}[rand_stream_below(&stream, 3)];
        o.mode = rand_stream_below(&stream, 4) == 0 ? STAGE_INFER : STAGE_TRAIN;
        o.micro_batches_in_flight = 1 + rand_stream_below(&stream, 4);
        o.tokens_max = 1 + rand_stream_below(&stream, 3000);
        check(stage_memory_predict(&o, &predicted, &err));
        check(stage_create_from(device, &small_source, &o, &stage, &err));
        device_memory(device, &account);
        for (int i = 0; i < MEM_PURPOSES; i++)
            assert_int_equal(account.held[i], predicted.bytes[i]);
        assert_int_equal(account.peak_total, predicted.total);
        stage_destroy(stage);
        device_memory(device, &account);
        assert_int_equal(account.held_total, 0);
        device_close(device);
    }
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make(tested, 1);
    struct stage *stage;
    struct mem_account before, after;
    struct micro_batch mb;
    struct saved *saved;
    struct stage_options o = small_options(0, 5);
    check(stage_create_from(device, &small_source, &o, &stage, &err));
    device_memory(device, &before);
    batch_fill(&mb, 0, 4);
    check(stage_forward(stage, &mb, NULL, NULL, &saved, &err));
    assert_true(stage_saved_bytes(stage) == stage_saved_place_bytes(stage));
    check(stage_backward(stage, &mb, saved, NULL, NULL, &err));
    check(stage_update(
        stage, &(struct step_update){.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8}, &err));
    device_memory(device, &after);
    assert_int_equal(before.peak_total, after.peak_total);
    assert_int_equal(stage_saved_bytes(stage), 0);
    stage_destroy(stage);
    device_close(device);
}

static void a_device_too_small_says_what_was_asked_held_and_allowed(void **state)
{
    (void)state;
    struct err err;
    struct device *device;
    struct stage *stage;
    struct mem_account account;
    struct stage_memory predicted;
    struct stage_options o = small_options(0, 5);
    check(stage_memory_predict(&o, &predicted, &err));
    struct device_options options = {
        .kind = tested, .name = "left/cpu0", .threads = 1, .memory_limit_bytes = predicted.total};
    check(device_open(&options, &device, &err));
    check(stage_create_from(device, &small_source, &o, &stage, &err));
    stage_destroy(stage);
    device_close(device);
    options.memory_limit_bytes = predicted.total - 1;
    check(device_open(&options, &device, &err));
    assert_int_equal(stage_create_from(device, &small_source, &o, &stage, &err), -1);
    assert_int_equal(err.code, ERR_NOFIT);
    assert_non_null(strstr(err.text, "left/cpu0"));
    assert_non_null(strstr(err.text, "asked for"));
    assert_non_null(strstr(err.text, "are held"));
    char allowed[64];
    snprintf(allowed, sizeof(allowed), "%llu are allowed", (unsigned long long)options.memory_limit_bytes);
    assert_non_null(strstr(err.text, allowed));
    device_memory(device, &account);
    assert_int_equal(account.held_total, 0);
    device_close(device);
}

static void refused(struct stage *stage, const struct micro_batch *mb, enum err_code code, const char *word)
{
    struct err err;
    struct saved *saved;
    assert_int_equal(stage_forward(stage, mb, NULL, NULL, &saved, &err), -1);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, word))
        fail_msg("'%s' does not say '%s'", err.text, word);
}

static void bad_micro_batches_are_refused_and_leave_the_stage_usable(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make("checked", 1);
    struct stage *stage;
    struct stage_options o = small_options(0, 5);
    o.row_tokens_max = 20;
    o.labelled_max = 30;
    check(stage_create_from(device, &small_source, &o, &stage, &err));
    struct micro_batch mb;
    batch_fill(&mb, 0, 4);
    int32_t ids[50], labels[50];
    memcpy(ids, mb.ids, sizeof(int32_t) * SMALL_TOKENS);
    memcpy(labels, mb.labels, sizeof(int32_t) * SMALL_TOKENS);
    mb.ids = ids;
    mb.labels = labels;
    ids[20] = 101;
    refused(stage, &mb, ERR_INVALID, "token 20 has id 101");
    ids[20] = -1;
    refused(stage, &mb, ERR_INVALID, "id -1");
    ids[20] = 0;
    labels[22] = 4000;
    refused(stage, &mb, ERR_INVALID, "label 4000");
    labels[22] = -7;
    refused(stage, &mb, ERR_INVALID, "label -7");
    labels[22] = 0;
    const uint32_t long_row[] = {0, 21}, backwards[] = {0, 9, 4}, many[] = {0, 20, 40, 60};
    mb.rows = 1;
    mb.row_start = long_row;
    refused(stage, &mb, ERR_TOO_BIG, "row 0 has 21 tokens");
    mb.rows = 2;
    mb.row_start = backwards;
    refused(stage, &mb, ERR_INVALID, "row 1");
    mb.rows = 3;
    mb.row_start = many;
    refused(stage, &mb, ERR_TOO_BIG, "60 tokens");
    struct saved *saved[3];
    batch_fill(&mb, 0, 4);
    check(stage_forward(stage, &mb, NULL, NULL, &saved[0], &err));
    check(stage_forward(stage, &mb, NULL, NULL, &saved[1], &err));
    refused(stage, &mb, ERR_BUSY, "in flight");
    stage_saved_release(saved[0]);
    check(stage_backward(stage, &mb, saved[1], NULL, NULL, &err));
    assert_int_equal(stage_backward(stage, &mb, saved[1], NULL, NULL, &err), -1);
    const uint32_t nothing[] = {0};
    mb.rows = 0;
    mb.row_start = nothing;
    check(stage_forward(stage, &mb, NULL, NULL, &saved[0], &err));
    check(stage_backward(stage, &mb, saved[0], NULL, NULL, &err));
    check(device_sync(device, &err));
    stage_destroy(stage);
    device_close(device);
}

static void a_value_that_is_not_finite_is_named(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make(tested, 1);
    struct stage *stage;
    struct made made = {.poisoned = "model.layers.1.mlp.up_proj.weight"};
    struct weight_source source = {.read = small_read, .context = &made};
    struct stage_options o = small_options(0, 5);
    assert_int_equal(stage_create_from(device, &source, &o, &stage, &err), -1);
    assert_int_equal(err.code, ERR_NOT_FINITE);
    assert_non_null(strstr(err.text, made.poisoned));
    check(stage_create_from(device, &small_source, &o, &stage, &err));
    struct micro_batch mb;
    struct saved *saved;
    double sum;
    uint32_t index;
    uint64_t labelled;
    float values[4 * 48];
    const char *name = "model.layers.2.self_attn.k_proj.lora_A.weight";
    check(stage_parameter_find(stage, name, &index, &err));
    for (int i = 0; i < 4 * 48; i++)
        values[i] = 1e30f;
    check(stage_state_write(stage, index, STATE_VALUE, values, &err));
    check(stage_parameter_find(stage, "model.layers.2.self_attn.k_proj.lora_B.weight", &index, &err));
    check(stage_state_write(stage, index, STATE_VALUE, values, &err));
    batch_fill(&mb, 0, 4);
    check(stage_step_begin(stage, &err));
    check(stage_forward(stage, &mb, NULL, NULL, &saved, &err));
    check(stage_backward(stage, &mb, saved, NULL, NULL, &err));
    assert_int_equal(stage_loss(stage, &sum, &labelled, &err), -1);
    assert_int_equal(err.code, ERR_NOT_FINITE);
    assert_non_null(strstr(err.text, "logits"));
    assert_int_equal(stage_grad_square_sum(stage, &sum, &err), -1);
    assert_int_equal(err.code, ERR_NOT_FINITE);
    assert_non_null(strstr(err.text, "model."));
    stage_destroy(stage);
    device_close(device);
}

static void steps_run(struct stage *stage, uint32_t from, uint32_t to)
{
    struct err err;
    for (uint32_t step = from; step < to; step++) {
        struct micro_batch mb;
        struct saved *saved;
        batch_fill(&mb, 0, 4);
        mb.step = step;
        check(stage_step_begin(stage, &err));
        check(stage_forward(stage, &mb, NULL, NULL, &saved, &err));
        check(stage_backward(stage, &mb, saved, NULL, NULL, &err));
        check(stage_update(
            stage,
            &(struct step_update){
                .learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .grad_scale = 0.01},
            &err));
    }
}

static void saved_state_goes_on_bit_by_bit_on_another_split(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make(tested, 1);
    struct stage *first, *second;
    struct stage_options o = small_options(0, 5);
    check(stage_create_from(device, &small_source, &o, &first, &err));
    check(stage_create_from(device, &small_source, &o, &second, &err));
    steps_run(first, 0, 2);
    for (uint32_t i = 0; i < stage_parameter_count(first); i++) {
        struct parameter p = stage_parameter_at(first, i);
        float *values = malloc(4ull * p.rows * p.columns);
        uint32_t at;
        check(stage_parameter_find(second, p.name, &at, &err));
        const enum stage_state kept[] = {STATE_VALUE, STATE_MOMENT1, STATE_MOMENT2};
        for (int k = 0; k < 3; k++) {
            check(stage_state_read(first, i, kept[k], values, &err));
            check(stage_state_write(second, at, kept[k], values, &err));
        }
        free(values);
    }
    stage_update_count_set(second, stage_update_count(first));
    steps_run(first, 2, 4);
    steps_run(second, 2, 4);
    for (uint32_t i = 0; i < stage_parameter_count(first); i++) {
        struct parameter p = stage_parameter_at(first, i);
        uint64_t bytes = 4ull * p.rows * p.columns;
        float *a = malloc(bytes), *b = malloc(bytes);
        check(stage_state_read(first, i, STATE_VALUE, a, &err));
        check(stage_state_read(second, i, STATE_VALUE, b, &err));
        assert_memory_equal(a, b, bytes);
        free(a);
        free(b);
    }
    stage_destroy(first);
    stage_destroy(second);
    device_close(device);
}

/* Compares passes with and without a cache to within `tolerance`: attention with a cache sums in fp32, so a
 * result that is rounded to 16 bits afterwards may be the neighbouring value. */
static void cache_check(enum dtype compute, double tolerance)
{
    struct err err;
    struct device *device = device_make(tested, 1);
    struct stage *stage;
    struct kv_cache *cache;
    struct stage_options o = small_options(0, 5);
    o.positions_max = 64;
    o.compute = compute;
    check(stage_create_from(device, &small_source, &o, &stage, &err));
    check(kv_cache_create(stage, 16, &cache, &err));
    steps_run(stage, 0, 1);
    struct micro_batch mb;
    const uint32_t starts[] = {0, 16};
    float whole[16][101], got[101];
    batch_fill(&mb, 0, 4);
    mb.rows = 1;
    mb.row_start = starts;
    check(stage_logits(stage, &mb, NULL, &whole[0][0], &err));
    check(stage_infer(stage, cache, mb.ids, 9, NULL, NULL, got, &err));
    for (uint32_t t = 9; t <= 16; t++) {
        for (uint32_t i = 0; i < 101; i++)
            assert_true(fabs((double)got[i] - (double)whole[t - 1][i]) < tolerance);
        if (t < 16)
            check(stage_infer(stage, cache, mb.ids + t, 1, NULL, NULL, got, &err));
    }
    assert_int_equal(stage_infer(stage, cache, mb.ids, 1, NULL, NULL, got, &err), -1);
    assert_int_equal(err.code, ERR_TOO_BIG);
    kv_cache_clear(cache);
    check(stage_infer(stage, cache, mb.ids, 1, NULL, NULL, got, &err));
    kv_cache_destroy(cache);
    stage_destroy(stage);
    device_close(device);
}

static void a_cache_gives_the_logits_of_a_whole_pass(void **state)
{
    (void)state;
    cache_check(DTYPE_F32, 1e-5);
    cache_check(DTYPE_BF16, 2e-2);
    cache_check(DTYPE_F16, 2e-3);
}

static void sampling_is_greedy_seeded_and_bounded(void **state)
{
    (void)state;
    float logits[50];
    uint32_t seen[50] = {0};
    for (int i = 0; i < 50; i++)
        logits[i] = (float)((i * 17) % 50) * 0.1f;
    assert_int_equal(sample_greedy(logits, 50),
                     47); /* The largest logit is that of index 47, since 47 · 17 = 799 = 49 (mod 50). */
    for (uint64_t position = 0; position < 4000; position++) {
        int32_t a = sample_seeded(logits, 50, 1.0, 5, 9, position),
                b = sample_seeded(logits, 50, 1.0, 5, 9, position);
        assert_int_equal(a, b);
        seen[a]++;
    }
    double total = 0;
    for (int i = 0; i < 5; i++)
        total += exp(-0.1 * i);
    for (int i = 0; i < 50; i++) {
        int below = (int)lrintf((4.9f - logits[i]) * 10);
        double want = below < 5 ? 4000 * exp(-0.1 * below) / total : 0;
        assert_true(fabs(seen[i] - want) < 120);
    }
    assert_int_equal(sample_seeded(logits, 50, 1e-6, 0, 1, 1), 47);
}

static void adapters_start_as_peft_starts_them(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make(tested, 1);
    struct stage *whole, *part;
    struct stage_options o = small_options(0, 5), p = small_options(2, 4);
    check(stage_create_from(device, &small_source, &o, &whole, &err));
    check(stage_create_from(device, &small_source, &p, &part, &err));
    for (uint32_t i = 0; i < stage_parameter_count(part); i++) {
        struct parameter parameter = stage_parameter_at(part, i);
        uint64_t count = (uint64_t)parameter.rows * parameter.columns;
        float *a = malloc(4 * count), *b = malloc(4 * count);
        uint32_t index;
        double bound = 1 / sqrt(parameter.columns), most = 0;
        check(stage_parameter_find(whole, parameter.name, &index, &err));
        check(stage_state_read(part, i, STATE_VALUE, a, &err));
        check(stage_state_read(whole, index, STATE_VALUE, b, &err));
        assert_memory_equal(a, b, 4 * count);
        for (uint64_t j = 0; j < count; j++)
            most = fmax(most, fabs((double)a[j]));
        if (strstr(parameter.name, "lora_A"))
            assert_true(most <= bound && most > 0.9 * bound);
        else
            assert_true(most == 0);
        free(a);
        free(b);
    }
    assert_int_equal(
        stage_parameter_find(part, "model.layers.0.self_attn.q_proj.lora_A.weight", &(uint32_t){0}, &err),
        -1);
    assert_int_equal(err.code, ERR_NOT_FOUND);
    stage_destroy(whole);
    stage_destroy(part);
    device_close(device);
}

static void what_the_engine_lacks_is_refused_by_name(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make(tested, 1);
    struct stage *stage;
    struct model_config config = small;
    struct stage_options o = small_options(0, 5);
    o.config = &config;
    config.rope.kind = ROPE_OTHER;
    snprintf(config.rope.kind_name, sizeof(config.rope.kind_name), "yarn");
    assert_int_equal(stage_create_from(device, &small_source, &o, &stage, &err), -1);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "yarn"));
    config = small;
    o.lora.rank = 5000;
    assert_int_equal(stage_create_from(device, &small_source, &o, &stage, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    o = small_options(3, 9);
    assert_int_equal(stage_create_from(device, &small_source, &o, &stage, &err), -1);
    device_close(device);
    assert_int_equal(
        device_open(&(struct device_options){.kind = tested, .name = "x", .isa = "altivec"}, &device, &err),
        -1);
    assert_non_null(strstr(err.text, "altivec"));
    assert_int_equal(device_open(&(struct device_options){.kind = "abacus", .name = "x"}, &device, &err), -1);
}

/* Features count up from a site, an eighth at a time: no matrix may reach another one's numbers. */
static void no_two_matrices_draw_the_same_numbers_for_dropout(void **state)
{
    (void)state;
    for (uint32_t a = 0; a < 4 * 32; a++)
        for (uint32_t b = 0; b < a; b++) {
            const struct op_dropout one = {.p = 0.1f, .layer = a / 32, .target = a % 32},
                                    other = {.p = 0.1f, .layer = b / 32, .target = b % 32};
            const uint32_t x = dropout_key_of(&one).site, y = dropout_key_of(&other).site;
            assert_true((x > y ? x - y : y - x) >= 1u << 15);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_two_matrices_draw_the_same_numbers_for_dropout),
        cmocka_unit_test(equal_calls_give_equal_bits),
        cmocka_unit_test(splits_threads_and_recomputing_change_no_bit),
        cmocka_unit_test(neither_do_they_with_dropout_in_16_bits),
        cmocka_unit_test(micro_batches_change_nothing_with_dropout),
        cmocka_unit_test(gradients_of_every_target_match_differences_under_dropout),
        cmocka_unit_test(memory_is_what_was_predicted),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(a_device_too_small_says_what_was_asked_held_and_allowed),
        cmocka_unit_test(bad_micro_batches_are_refused_and_leave_the_stage_usable),
        cmocka_unit_test(a_value_that_is_not_finite_is_named),
        cmocka_unit_test(saved_state_goes_on_bit_by_bit_on_another_split),
        cmocka_unit_test(a_cache_gives_the_logits_of_a_whole_pass),
        cmocka_unit_test(sampling_is_greedy_seeded_and_bounded),
        cmocka_unit_test(adapters_start_as_peft_starts_them),
        cmocka_unit_test(what_the_engine_lacks_is_refused_by_name),
    };
    int failed = cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
    tested = "checked";
    return failed + cmocka_run_group_tests_name("checked", tests, NULL, NULL);
}
