/* Tests recorded passes of stages: they give the same bits as without recording; from the third step on only
 * recorded passes run, with any method, any number of micro-batches in flight, and new dropout masks and
 * noise every step; what cannot be recorded runs op by op. */
#include "engine/seeded.h"

#include <dlfcn.h>

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

enum { HALVES, WHOLE };
static const struct way ways[] = {
    [HALVES] = {.name = "adapters on NF4, backward in two halves, two in flight",
                .config = &dense,
                .options = {.lora = lora, .base = LAYER_BASE_NF4, .double_quant = true, .split = true},
                .rows = 2},
    [WHOLE] = {.name = "everything, recomputed",
               .config = &dense,
               .options = {.full = true, .recompute = true},
               .rows = 4},
    {.name = "experts, their load balanced",
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
        assert_int_equal(recorded->last.launches, 0);
        assert_int_equal(recorded->norm, 0);
        assert_true(plain->norm > 0 && plain->update > 0);
        assert_int_equal(recorded->last.replayed, 2 * kinds * turns);
        assert_int_equal(recorded->counts.recorded,
                         2 * kinds * turns + 2); /* plus one recording of each stage's norm */
        free(recorded);
        free(plain);
    }
}

/* Another shape, position, buffer or factor makes another pass, and an earlier pass is found again. */
static void what_differs_is_not_run_again(void **state)
{
    (void)state;
    struct err err;
    const struct way *way = &ways[WHOLE];
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
    assert_int_equal(recorded->last.replayed, 2);
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
    assert_int_equal(launched,
                     12); /* two stages × two micro-batches × (forward and the backward pass's two halves) */
    assert_null(strstr(control->trace, " cuLaunchKernel"));
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
        cmocka_unit_test(a_step_on_a_card_launches_graphs_alone),
    };
    dense = seeded_dense;
    dense.layers = 2;
    dense.tied = false;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
