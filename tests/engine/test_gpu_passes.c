/* Tests recorded passes of stages: they give the same bits as without recording; from the third step on only
 * recorded passes run, with any method, any number of micro-batches in flight, and new dropout masks and
 * noise every step; what cannot be recorded runs op by op. */
#include "engine/seeded.h"

#include <dlfcn.h>

#include "engine/device/op.h"
#include "engine/fakes/fake.h"
#include "engine/gpu/code.h"

enum { STEPS = 4, CUT = 2, PARTS = 2, VALUES_MAX = 1 << 18 };

struct way {
    const char *name;
    const struct model_config *config;
    struct stage_options options; /* the options of both stages */
    double router_scale;
    uint32_t rows; /* rows of a micro-batch; all micro-batches of a step are in flight at once */
};

static const struct lora_options lora = {.rank = 4, .alpha = 8, .targets = LORA_Q | LORA_V | LORA_O};
static const struct lora_options dropped = {.rank = 4, .alpha = 8, .dropout = 0.1, .targets = LORA_Q};

static const struct lora_options dropped_down = {
    .rank = 4, .alpha = 8, .dropout = 0.1, .targets = LORA_Q | LORA_DOWN};

static struct model_config dense; /* two layers, untied */

enum { HALVES, WHOLE, EXPERTS };
static const struct way ways[] = {
    [HALVES] = {.name = "adapters on NF4, backward in two halves, two in flight",
                .config = &dense,
                .options = {.lora = lora, .base = LAYER_BASE_NF4, .double_quant = true, .split = true},
                .rows = 2},
    [WHOLE] = {.name = "everything, recomputed",
               .config = &dense,
               .options = {.full = true, .recompute = true},
               .rows = 4},
    [EXPERTS] = {.name = "experts, their load balanced",
                 .config = &seeded_experts,
                 .options = {.full = true},
                 .router_scale = 0.02,
                 .rows = 4},
    {.name = "dropout, recomputed",
     .config = &dense,
     .options = {.lora = dropped, .recompute = true},
     .rows = 4},
    {.name = "dropout and noise, backward in two halves, two in flight",
     .config = &dense,
     .options = {.lora = dropped, .embed_noise = 5, .split = true},
     .rows = 2},
    {.name = "dropout before the product that a gate feeds, in 16 bits",
     .config = &dense,
     .options = {.lora = dropped_down, .compute = DTYPE_BF16},
     .rows = 2},
};

/* A model in two stages on one device. */
struct run {
    struct device *device;
    struct stage *stages[2];
    struct buffer *activation,
        *gradient; /* the boundary tensors between the stages; micro-batches use them in turn */
    double losses[STEPS], squares[STEPS];
    uint64_t value_count;
    float values[VALUES_MAX];        /* the trained values after the last step */
    struct pass_counts counts, last; /* of the whole run; of the last step's passes */
    uint64_t norm, update; /* launches of the last step: for sums of squares, and for the optimiser */
};

static void run_open(struct run *run, const struct way *way, const char *kind, const char *isa)
{
    struct err err;
    struct weight_source source = seeded_source(way->config);
    uint64_t bytes = 4ull * SEEDED_TOKENS * way->config->hidden + 8ull * SEEDED_ROWS * way->config->experts;
    memset(run, 0, sizeof(*run));
    check(device_open(&(struct device_options){.kind = kind, .name = kind, .isa = isa}, &run->device, &err));
    for (uint32_t s = 0; s < 2; s++) {
        struct stage_options o = way->options;
        o.config = way->config;
        o.block_begin = s == 0 ? 0 : CUT;
        o.block_end = s == 0 ? CUT : way->config->layers + 2;
        o.micro_batches_in_flight = PARTS;
        o.tokens_max = SEEDED_TOKENS;
        o.seed = 3;
        check(stage_create_from(run->device, &source, &o, &run->stages[s], &err));
    }
    check(buffer_create(run->device, bytes, MEM_BUFFERS, "boundary", &run->activation, &err));
    check(buffer_create(run->device, bytes, MEM_BUFFERS, "boundary", &run->gradient, &err));
}

/* Runs all micro-batches forward, then all backward. */
static void passes(struct run *run, const struct way *way, uint64_t step)
{
    struct err err;
    struct micro_batch mb;
    struct saved *saved[SEEDED_ROWS][2];
    for (uint32_t first = 0; first < SEEDED_ROWS; first += way->rows) {
        seeded_batch(&mb, first, way->rows, step);
        mb.router_scale = way->router_scale;
        check(stage_forward(run->stages[0], &mb, NULL, run->activation, &saved[first][0], &err));
        check(stage_forward(run->stages[1], &mb, run->activation, NULL, &saved[first][1], &err));
    }
    for (uint32_t first = 0; first < SEEDED_ROWS; first += way->rows) {
        seeded_batch(&mb, first, way->rows, step);
        mb.router_scale = way->router_scale;
        check(stage_backward(run->stages[1], &mb, saved[first][1], NULL, run->gradient, &err));
        check(stage_backward(run->stages[0], &mb, saved[first][0], run->gradient, NULL, &err));
    }
}

static uint64_t launches(const struct device *device)
{
    struct pass_counts counts;
    device_pass_counts(device, &counts);
    return counts.launches;
}

/* Computes the gradients' norm and updates the parameters. */
static void step_end(struct run *run, uint32_t number)
{
    struct err err;
    double square;
    uint64_t begin = launches(run->device);
    run->squares[number] = 0;
    for (uint32_t s = 0; s < 2; s++) {
        check(stage_grad_square_sum(run->stages[s], &square, &err));
        run->squares[number] += square;
    }
    run->norm = launches(run->device) - begin;
    for (uint32_t s = 0; s < 2; s++)
        check(stage_update(run->stages[s], seeded_update(), &err));
    run->update = launches(run->device) - begin - run->norm;
}

static void step(struct run *run, const struct way *way, uint32_t number)
{
    struct err err;
    struct pass_counts before;
    uint64_t labelled;
    for (uint32_t s = 0; s < 2; s++)
        check(stage_step_begin(run->stages[s], &err));
    check(device_sync(run->device, &err));
    device_pass_counts(run->device, &before);
    passes(run, way, number);
    check(device_sync(run->device, &err));
    device_pass_counts(run->device, &run->counts);
    run->last = (struct pass_counts){.recorded = run->counts.recorded - before.recorded,
                                     .replayed = run->counts.replayed - before.replayed,
                                     .launches = run->counts.launches - before.launches};
    check(stage_loss(run->stages[1], &run->losses[number], &labelled, &err));
    step_end(run, number);
}

static void run_close(struct run *run)
{
    struct err err;
    for (uint32_t s = 0; s < 2; s++) {
        for (uint32_t i = 0; i < stage_parameter_count(run->stages[s]); i++) {
            struct parameter p = stage_parameter_at(run->stages[s], i);
            uint64_t count = (uint64_t)p.rows * p.columns;
            assert_true(run->value_count + count <= VALUES_MAX);
            check(stage_state_read(run->stages[s], i, STATE_VALUE, run->values + run->value_count, &err));
            run->value_count += count;
        }
        stage_destroy(run->stages[s]);
    }
    buffer_destroy(run->activation);
    buffer_destroy(run->gradient);
    device_close(run->device);
}

static struct run *run_whole(const struct way *way, const char *kind, const char *isa)
{
    struct run *run = malloc(sizeof(*run));
    run_open(run, way, kind, isa);
    for (uint32_t i = 0; i < STEPS; i++)
        step(run, way, i);
    run_close(run);
    return run;
}

static void same_bits(const struct way *way, const struct run *a, const struct run *b)
{
    if (memcmp(a->losses, b->losses, sizeof(a->losses)) != 0 ||
        memcmp(a->squares, b->squares, sizeof(a->squares)) != 0 || a->value_count != b->value_count ||
        memcmp(a->values, b->values, a->value_count * sizeof(float)) != 0)
        fail_msg("%s: other bits where passes were recorded", way->name);
}

static void recorded_passes_give_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
        const struct way *way = &ways[i];
        uint32_t turns = SEEDED_ROWS / way->rows, kinds = way->options.split ? 3 : 2;
        /* The head's gradients are scattered outside of passes, and so are the five copies of boundary
         * tensors where passes are padded. */
        uint32_t outside = way->config->experts ? 1 : 5;
        struct run *recorded = run_whole(way, "emulated", "warp32");
        struct run *plain =
            run_whole(way, "emulated", "warp32,record=1"); /* "record=1" makes the first recording fail, so
                                                              that all passes run op by op. */
        same_bits(way, recorded, plain);
        assert_int_equal(plain->counts.recorded + plain->counts.replayed, 0);
        assert_true(plain->last.launches > 0);
        print_message("%s: %llu launches in the passes of a step and %llu for its norm, recorded %llu and "
                      "%llu, and %llu passes run again; %llu for the update\n",
                      way->name, (unsigned long long)plain->last.launches, (unsigned long long)plain->norm,
                      (unsigned long long)recorded->last.launches, (unsigned long long)recorded->norm,
                      (unsigned long long)recorded->last.replayed, (unsigned long long)recorded->update);
        assert_int_equal(recorded->last.launches, outside * turns);
        assert_int_equal(recorded->norm, 0);
        assert_true(plain->norm > 0 && plain->update > 0);
        assert_int_equal(recorded->last.replayed, (2 * kinds + 1) * turns); /* with one of the head */
        assert_int_equal(recorded->counts.recorded,
                         (2 * kinds + 1) * turns + 2); /* plus one recording of each stage's norm */
        free(recorded);
        free(plain);
    }
}

/* Another shape, position, buffer or factor makes another pass, and an earlier pass is found again. Padded
 * passes do not depend on boundary tensors, which are copied outside of them. */
static void differences_are_found(const struct way *way, uint32_t replayed)
{
    struct err err;
    struct run *recorded = malloc(sizeof(*recorded)), *plain = malloc(sizeof(*plain));
    struct run *runs[2] = {recorded, plain};
    run_open(recorded, way, "emulated", "warp32");
    run_open(plain, way, "emulated", "warp32,record=1");
    for (uint32_t r = 0; r < 2; r++) {
        struct run *run = runs[r];
        struct way other = *way;
        for (uint32_t i = 0; i < STEPS; i++) {
            other.rows = i == 2 ? 2 : 4;
            step(run, &other, i);
            if (i == 1) { /* The boundary tensor moves. */
                struct buffer *moved;
                check(buffer_create(run->device, buffer_bytes(run->activation), MEM_BUFFERS, "boundary",
                                    &moved, &err));
                buffer_destroy(run->activation);
                run->activation = moved;
            }
        }
    }
    /* Step 3 has the shapes of steps 0 and 1, but its forward passes use another buffer. */
    assert_int_equal(recorded->last.replayed, replayed);
    assert_true(recorded->last.launches > 0 && recorded->last.launches < plain->last.launches);
    for (uint32_t r = 0; r < 2; r++) {
        step(runs[r], way, STEPS - 1);
        for (uint32_t s = 0; s < 2; s++)
            check(stage_loss_scale_set(runs[r]->stages[s], 8, &err));
        step(runs[r], way, STEPS - 1);
        run_close(runs[r]);
    }
    same_bits(way, recorded, plain);
    free(recorded);
    free(plain);
}

static void what_differs_is_not_run_again(void **state)
{
    (void)state;
    differences_are_found(&ways[EXPERTS], 3);
    differences_are_found(&ways[WHOLE], 5);
}

/* --- micro-batches of unlike lengths */

enum { UNLIKE_TOKENS = 96, UNLIKE_ROWS = 2, UNLIKE_STEPS = 40 };

/* A micro-batch of two rows of 8 to 48 tokens, some of them labelled: as a chat job's, no two are alike. */
static void unlike_batch(struct micro_batch *mb, uint64_t step)
{
    static uint32_t starts[UNLIKE_ROWS + 1], row_ids[UNLIKE_ROWS];
    static int32_t ids[UNLIKE_TOKENS], labels[UNLIKE_TOKENS];
    struct rand_stream stream;
    rand_stream_init(&stream, 11, step);
    for (uint32_t r = 0; r < UNLIKE_ROWS; r++) {
        uint32_t length = 8 + (uint32_t)rand_stream_below(&stream, 41);
        uint32_t asked = (uint32_t)rand_stream_below(&stream, length - 1);
        row_ids[r] = (uint32_t)step * UNLIKE_ROWS + r;
        starts[r + 1] = starts[r] + length;
        for (uint32_t t = 0; t < length; t++) {
            ids[starts[r] + t] = (int32_t)rand_stream_below(&stream, 101);
            labels[starts[r] + t] = t <= asked ? -100 : ids[starts[r] + t];
        }
    }
    *mb = (struct micro_batch){.rows = UNLIKE_ROWS,
                               .row_ids = row_ids,
                               .row_start = starts,
                               .ids = ids,
                               .labels = labels,
                               .step = step};
}

static struct stage *unlike_stage(struct device *device, const struct way *way, uint32_t tokens)
{
    struct err err;
    struct stage *stage;
    struct stage_options o = way->options;
    struct weight_source source = seeded_source(way->config);
    o.config = way->config;
    o.block_end = way->config->layers + 2;
    o.rows_max = UNLIKE_ROWS;
    o.tokens_max = tokens;
    o.micro_batches_in_flight = 1;
    o.seed = 3;
    check(stage_create_from(device, &source, &o, &stage, &err));
    return stage;
}

/* The micro-batch's loss and gradients' sum of squares. */
static void unlike_step(struct stage *stage, uint64_t step, double out[2])
{
    struct err err;
    struct micro_batch mb;
    struct saved *saved;
    uint64_t labelled;
    unlike_batch(&mb, step);
    check(stage_step_begin(stage, &err));
    check(stage_forward(stage, &mb, NULL, NULL, &saved, &err));
    check(stage_backward(stage, &mb, saved, NULL, NULL, &err));
    check(stage_loss(stage, &out[0], &labelled, &err));
    check(stage_grad_square_sum(stage, &out[1], &err));
    check(stage_update(stage, seeded_update(), &err));
}

static struct device *emulated(const char *isa)
{
    struct err err;
    struct device *device;
    check(device_open(&(struct device_options){.kind = "emulated", .name = "emulated", .isa = isa}, &device,
                      &err));
    return device;
}

/* Rows of ever other lengths: nearly all passes are replayed, with the bits that they have queued op by op.
 */
static void unlike_lengths_replay_passes(void **state)
{
    (void)state;
    static const char *const isas[] = {"warp32", "warp32,record=1"};
    double results[2][UNLIKE_STEPS][2];
    struct pass_counts counts[2];
    for (int i = 0; i < 2; i++) {
        struct device *device = emulated(isas[i]);
        struct stage *stage = unlike_stage(device, &ways[HALVES], UNLIKE_TOKENS);
        for (uint32_t step = 0; step < UNLIKE_STEPS; step++)
            unlike_step(stage, step, results[i][step]);
        device_pass_counts(device, &counts[i]);
        stage_destroy(stage);
        device_close(device);
    }
    assert_memory_equal(results[0], results[1], sizeof(results[0]));
    print_message(
        "%u micro-batches of unlike lengths: %llu passes recorded, %llu replayed, %llu launches; %llu "
        "launches without recordings\n",
        UNLIKE_STEPS, (unsigned long long)counts[0].recorded, (unsigned long long)counts[0].replayed,
        (unsigned long long)counts[0].launches, (unsigned long long)counts[1].launches);
    assert_true(counts[0].launches < counts[1].launches / 3);
}

/* A micro-batch has the bits that it has where nothing is padded: on a stage that has room for its tokens
 * alone. */
static void padding_changes_no_bit(void **state)
{
    (void)state;
    struct micro_batch mb;
    uint64_t number = 0;
    do /* find one that needs padding */
        unlike_batch(&mb, ++number);
    while (mb.row_start[UNLIKE_ROWS] < 64 || mb.row_start[UNLIKE_ROWS] % 8 == 0);
    const uint32_t tokens = mb.row_start[UNLIKE_ROWS];
    for (size_t w = 0; w < sizeof(ways) / sizeof(*ways); w++) {
        double padded[2], exact[2];
        struct device *device = emulated(w == WHOLE ? "warp32,checks" : "warp32");
        struct stage *stage = unlike_stage(device, &ways[w], UNLIKE_TOKENS),
                     *alone = unlike_stage(device, &ways[w], tokens);
        unlike_step(stage, number, padded);
        unlike_step(alone, number, exact);
        for (uint32_t p = 0; p < stage_parameter_count(stage); p++) {
            static float values[2][VALUES_MAX];
            struct err err;
            const struct parameter of = stage_parameter_at(stage, p);
            check(stage_state_read(stage, p, STATE_VALUE, values[0], &err));
            check(stage_state_read(alone, p, STATE_VALUE, values[1], &err));
            assert_memory_equal(values[0], values[1], 4ull * of.rows * of.columns);
        }
        assert_memory_equal(padded, exact, sizeof(padded));
        stage_destroy(stage);
        stage_destroy(alone);
        device_close(device);
    }
}

static struct operand filled(struct device *device, uint64_t count, uint64_t begin)
{
    struct err err;
    struct rand_stream stream;
    struct operand made = {.dtype = DTYPE_F32};
    float *values = calloc(count, sizeof(*values));
    rand_stream_init(&stream, 5, 5);
    for (uint64_t i = 0; i < begin; i++)
        values[i] = (float)rand_stream_normal(&stream);
    check(buffer_create(device, 4 * count, MEM_BUFFERS, "values", &made.buffer, &err));
    check(buffer_write(made.buffer, 0, values, 4 * count, &err));
    check(device_sync(device, &err));
    free(values);
    return made;
}

/* Sums over many tokens are cut by the padded number of them, so zeros behind them change no bit; nor do rows
 * behind its own change a product's. */
static void long_sums_are_cut_alike(void **state)
{
    (void)state;
    enum { TOKENS = 1031, SIDE = 16, TERMS = 1031, OPS = 3 };
    struct err err;
    struct device *device = emulated("warp32");
    const uint32_t padded = device_pass_size(TOKENS);
    assert_true(padded > TOKENS + 64);
    struct operand a = filled(device, padded * TERMS, TOKENS * SIDE),
                   b = filled(device, padded * TERMS, TERMS * SIDE);
    for (int kind = 0; kind < OPS; kind++) {
        static float results[2][TOKENS * SIDE];
        for (int i = 0; i < 2; i++) {
            const uint32_t tokens = i == 0 ? TOKENS : padded;
            struct operand c = filled(device, padded * SIDE, 0);
            const struct op_gemm gradient = {.m = SIDE,
                                             .n = SIDE,
                                             .k = tokens,
                                             .transpose_a = true,
                                             .alpha = 1,
                                             .a = a,
                                             .b = b,
                                             .c = c,
                                             .lda = SIDE,
                                             .ldb = SIDE,
                                             .ldc = SIDE};
            struct op_gemm forward = gradient;
            forward.m = tokens;
            forward.k = TERMS;
            forward.transpose_a = false;
            forward.lda = TERMS;
            const struct op ops[OPS] = {
                {.kind = OP_GEMM, .gemm = gradient},
                {.kind = OP_GEMM, .gemm = forward},
                {.kind = OP_COLUMN_SUM,
                 .column_sum = {.rows = tokens, .width = SIDE, .ldx = SIDE, .x = a, .y = c}}};
            check(op_submit(device, &ops[kind], &err));
            check(buffer_read(c.buffer, 0, results[i], kind == 1 ? sizeof(results[i]) : 4 * SIDE, &err));
            check(device_sync(device, &err));
            buffer_destroy(c.buffer);
        }
        assert_true(results[0][SIDE - 1] != 0);
        assert_memory_equal(results[0], results[1], sizeof(results[0]));
    }
    buffer_destroy(a.buffer);
    buffer_destroy(b.buffer);
    device_close(device);
}

/* Tests the calls that a card would get: the unchanged CUDA driver runs on a fake libcuda. */
static void a_step_on_a_card_launches_graphs_alone(void **state)
{
    (void)state;
    struct err err;
    const struct way *way = &ways[HALVES];
    void *library = dlopen(MOTLEY_FAKES "/libfake_cuda.so", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    struct fake_control *control = !library ? NULL : dlsym(library, "fake_control");
    assert_non_null(control);
    if (!gpu_code_choose("cuda", "sm_86", &err)) {
        printf("skipped: %s\n", err.text);
        skip();
    }
    setenv("MOTLEY_CUDA_LIBRARY", MOTLEY_FAKES "/libfake_cuda.so", 1);
    control->capability = 86;
    struct run *run = malloc(sizeof(*run)), *emulated = run_whole(way, "emulated", "warp32");
    run_open(run, way, "cuda", NULL);
    for (uint32_t i = 0; i + 1 < STEPS; i++)
        step(run, way, i);
    check(device_sync(run->device, &err));
    for (uint32_t s = 0; s < 2; s++)
        check(stage_step_begin(run->stages[s], &err));
    control->trace[0] = '\0';
    passes(run, way, STEPS - 1);
    uint32_t launched = 0;
    for (const char *at = control->trace; (at = strstr(at, " cuGraphLaunch")) != NULL; at++)
        launched++;
    assert_int_equal(launched, 14); /* two micro-batches × (two stages × (forward and the backward pass's two
                                       halves) + the head) */
    launched = 0;
    for (const char *at = control->trace; (at = strstr(at, " cuLaunchKernel")) != NULL; at++)
        launched++;
    assert_int_equal(launched, 10); /* what is queued outside of passes, above */
    assert_null(strstr(control->trace, " cuStreamBeginCapture"));
    uint64_t labelled;
    check(stage_loss(run->stages[1], &run->losses[STEPS - 1], &labelled, &err));
    step_end(run, STEPS - 1);
    run_close(run);
    same_bits(way, emulated, run);
    assert_int_equal(control->live, 0);
    assert_int_equal(control->misuses, 0);
    free(run);
    free(emulated);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_passes_give_the_same_bits),
        cmocka_unit_test(what_differs_is_not_run_again),
        cmocka_unit_test(unlike_lengths_replay_passes),
        cmocka_unit_test(padding_changes_no_bit),
        cmocka_unit_test(long_sums_are_cut_alike),
        cmocka_unit_test(a_step_on_a_card_launches_graphs_alone),
    };
    dense = seeded_dense;
    dense.layers = 2;
    dense.tied = false;
    if (getenv("MOTLEY_FAKE_CUDA")) /* once more with an older driver, which no other test here asks */
        cmocka_set_test_filter("a_step_on_a_card_*");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
