/* Boundary tensors in 16 bits: a split model with them gives the same bits as a split model in fp32 whose
 * boundary tensors are rounded by hand. */
#include "engine/seeded.h"

#include "common/half.h"

enum {
    CUT = 2,
    SCALE = 1024,
    VALUES_MAX = 1 << 18,
    BUFFER_BYTES = 4 * (SEEDED_TOKENS * 64 + 2 * SEEDED_ROWS * 8)
};

/* The model, and how its boundary tensors are passed. */
struct way {
    const struct model_config *config;
    const char *device;
    enum dtype boundary; /* the stages' boundary dtype */
    enum dtype by_hand;  /* the dtype to which the test rounds by hand; DTYPE_F32: no rounding */
    bool full;
    double router_scale, loss_scale;
};

struct pair {
    struct device *device;
    struct stage *stages[2];
    struct buffer *x, *d;
};

static float rounded(float value, enum dtype dtype)
{
    return dtype == DTYPE_BF16  ? f32_from_bf16(bf16_from_f32(value))
           : dtype == DTYPE_F16 ? f32_from_f16(f16_from_f32(value))
                                : value;
}

static struct stage_options options_of(const struct way *way, uint32_t begin, uint32_t end)
{
    return (struct stage_options){
        .config = way->config,
        .block_begin = begin,
        .block_end = end,
        .mode = STAGE_TRAIN,
        .lora = {.rank = way->full ? 0 : 4, .alpha = 8, .targets = LORA_ALL | LORA_TABLES},
        .full = way->full,
        .boundary_in = begin > 0 ? way->boundary : DTYPE_F32,
        .boundary_out = begin == 0 ? way->boundary : DTYPE_F32,
        .seed = 3,
        .micro_batches_in_flight = 1,
        .tokens_max = SEEDED_TOKENS,
        .positions_max = 64,
    };
}

static void pair_make(struct pair *pair, const struct way *way)
{
    struct err err;
    struct weight_source source = seeded_source(way->config);
    pair->device = device_make(way->device, 1);
    check(buffer_create(pair->device, BUFFER_BYTES, MEM_BUFFERS, "x", &pair->x, &err));
    check(buffer_create(pair->device, BUFFER_BYTES, MEM_BUFFERS, "d", &pair->d, &err));
    for (int s = 0; s < 2; s++) {
        struct stage_options o = options_of(way, s == 0 ? 0 : CUT, s == 0 ? CUT : way->config->layers + 2);
        check(stage_create_from(pair->device, &source, &o, &pair->stages[s], &err));
        check(stage_loss_scale_set(pair->stages[s], way->loss_scale, &err));
        check(stage_step_begin(pair->stages[s], &err));
    }
}

static void pair_end(struct pair *pair)
{
    stage_destroy(pair->stages[0]);
    stage_destroy(pair->stages[1]);
    buffer_destroy(pair->x);
    buffer_destroy(pair->d);
    device_close(pair->device);
}

/* Rounds an fp32 boundary tensor as sending it in 16 bits would. */
static void round_by_hand(const struct pair *pair, const struct way *way, struct buffer *buffer,
                          uint32_t tokens)
{
    struct err err;
    static float values[SEEDED_TOKENS * 64];
    uint32_t count = tokens * way->config->hidden;
    if (way->by_hand == DTYPE_F32)
        return;
    check(buffer_read(buffer, 0, values, 4ull * count, &err));
    check(device_sync(pair->device, &err));
    for (uint32_t i = 0; i < count; i++)
        values[i] = rounded(values[i], way->by_hand);
    check(buffer_write(buffer, 0, values, 4ull * count, &err));
    check(device_sync(pair->device, &err));
}

static void step_pass(const struct pair *pair, const struct way *way)
{
    struct err err;
    for (uint32_t first = 0; first < SEEDED_ROWS; first += 2) {
        struct micro_batch mb;
        struct saved *saved[2];
        seeded_batch(&mb, first, 2, 5);
        mb.router_scale = way->router_scale;
        uint32_t tokens = mb.row_start[2];
        check(stage_forward(pair->stages[0], &mb, NULL, pair->x, &saved[0], &err));
        round_by_hand(pair, way, pair->x, tokens);
        check(stage_forward(pair->stages[1], &mb, pair->x, NULL, &saved[1], &err));
        check(stage_backward(pair->stages[1], &mb, saved[1], NULL, pair->d, &err));
        round_by_hand(pair, way, pair->d, tokens);
        check(stage_backward(pair->stages[0], &mb, saved[0], pair->d, NULL, &err));
    }
}

struct outcome {
    double loss, router;
    float *gradients;
    uint64_t count;
};

static struct outcome step_of(const struct way *way)
{
    struct err err;
    struct pair pair;
    struct outcome out = {.gradients = calloc(VALUES_MAX, 4)};
    uint64_t labelled;
    pair_make(&pair, way);
    step_pass(&pair, way);
    check(stage_loss(pair.stages[1], &out.loss, &labelled, &err));
    check(stage_router_loss(pair.stages[1], &out.router, &err));
    for (int s = 0; s < 2; s++)
        for (uint32_t i = 0; i < stage_parameter_count(pair.stages[s]); i++) {
            struct parameter p = stage_parameter_at(pair.stages[s], i);
            assert_true(out.count + (uint64_t)p.rows * p.columns <= VALUES_MAX);
            check(stage_state_read(pair.stages[s], i, STATE_GRADIENT, out.gradients + out.count, &err));
            out.count += (uint64_t)p.rows * p.columns;
        }
    pair_end(&pair);
    return out;
}

static void same_bits(const struct way *way)
{
    struct way hand = *way, plain = *way;
    hand.by_hand = way->boundary;
    hand.boundary = plain.boundary = DTYPE_F32;
    struct outcome narrow = step_of(way), by_hand = step_of(&hand), wide = step_of(&plain);
    assert_true(narrow.loss == by_hand.loss && narrow.router == by_hand.router);
    assert_true(way->router_scale == 0 || narrow.router > 0);
    assert_memory_equal(narrow.gradients, by_hand.gradients, 4 * narrow.count);
    /* The result differs from fp32's, but not much. */
    double distance = tensor_distance(narrow.gradients, wide.gradients, wide.count, 1);
    assert_true(distance > 1e-6 && distance < (way->boundary == DTYPE_BF16 ? 2e-2 : 3e-3));
    assert_true(narrow.loss != wide.loss && fabs(narrow.loss - wide.loss) < 1e-2 * wide.loss);
    free(narrow.gradients);
    free(by_hand.gradients);
    free(wide.gradients);
}

static void a_narrow_boundary_is_a_rounded_one(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "emulated"};
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16};
    for (size_t d = 0; d < 2; d++)
        for (size_t t = 0; t < 2; t++) {
            same_bits(&(struct way){
                .config = &seeded_dense, .device = devices[d], .boundary = dtypes[t], .loss_scale = SCALE});
            if (d == t) /* Each of the two dtypes is used once. */
                same_bits(&(struct way){.config = &seeded_experts,
                                        .device = devices[d],
                                        .boundary = dtypes[t],
                                        .full = true,
                                        .router_scale = 0.5,
                                        .loss_scale = SCALE});
        }
}

static void a_cache_takes_rounded_tensors(void **state)
{
    (void)state;
    struct err err;
    float logits[2][4][101];
    for (int hand = 0; hand < 2; hand++) {
        struct way way = {.config = &seeded_dense, .device = "cpu", .loss_scale = 1};
        struct pair pair;
        struct micro_batch mb;
        struct kv_cache *caches[2];
        *(hand ? &way.by_hand : &way.boundary) = DTYPE_BF16;
        pair_make(&pair, &way);
        seeded_batch(&mb, 0, 4, 5);
        for (int s = 0; s < 2; s++)
            check(kv_cache_create(pair.stages[s], 16, &caches[s], &err));
        for (uint32_t t = 0, at = 0; t < 4; at += t == 0 ? 7 : 1, t++) {
            uint32_t tokens = t == 0 ? 7 : 1;
            check(stage_infer(pair.stages[0], caches[0], mb.ids + at, tokens, NULL, pair.x, NULL, &err));
            round_by_hand(&pair, &way, pair.x, tokens);
            check(stage_infer(pair.stages[1], caches[1], NULL, tokens, pair.x, NULL, logits[hand][t], &err));
        }
        for (int s = 0; s < 2; s++)
            kv_cache_destroy(caches[s]);
        pair_end(&pair);
    }
    assert_memory_equal(logits[0], logits[1], sizeof(logits[0]));
}

/* A gradient beyond fp16's range becomes infinite when it is sent, and the receiving stage reports it. */
static void a_gradient_that_overflows_is_not_finite_below(void **state)
{
    (void)state;
    struct err err;
    struct way way = {.config = &seeded_dense, .device = "cpu", .boundary = DTYPE_F16, .loss_scale = 1 << 24};
    struct pair pair;
    double sum;
    pair_make(&pair, &way);
    step_pass(&pair, &way);
    assert_int_equal(stage_grad_square_sum(pair.stages[1], &sum, &err), 0);
    assert_int_equal(stage_grad_square_sum(pair.stages[0], &sum, &err), -1);
    assert_int_equal(err.code, ERR_NOT_FINITE);
    assert_true(isnan(sum));
    for (int s = 0; s < 2; s++) {
        check(stage_loss_scale_set(pair.stages[s], 1024, &err));
        check(stage_step_begin(pair.stages[s], &err));
    }
    step_pass(&pair, &way);
    check(stage_grad_square_sum(pair.stages[0], &sum, &err));
    assert_true(isfinite(sum) && sum > 0);
    pair_end(&pair);
}

static void refused(struct stage_options options, enum err_code code, const char *word)
{
    struct err err;
    struct stage_memory memory;
    assert_int_equal(stage_memory_predict(&options, &memory, &err), -1);
    if (err.code != code || !strstr(err.text, word))
        fail_msg("\"%s\" does not say \"%s\"", err.text, word);
}

/* A stage takes the same memory with 16-bit boundaries, because the workspace holds the rounded tensors. What
 * is not supported is refused. */
static void memory_is_as_before_and_what_cannot_be_is_refused(void **state)
{
    (void)state;
    struct err err;
    struct way narrow = {.config = &seeded_dense, .boundary = DTYPE_F16}, wide = {.config = &seeded_dense};
    for (uint32_t begin = 0; begin < 5; begin += CUT) {
        struct stage_options a = options_of(&narrow, begin, begin + 2),
                             b = options_of(&wide, begin, begin + 2);
        struct stage_memory one, two;
        if (begin + 2 > 5)
            break;
        check(stage_memory_predict(&a, &one, &err));
        check(stage_memory_predict(&b, &two, &err));
        assert_memory_equal(&one, &two, sizeof(one));
    }
    struct stage_options odd = options_of(&narrow, 0, CUT), part = options_of(&narrow, 1, 3);
    struct model_config config = seeded_dense;
    config.hidden = 47;
    odd.config = &config;
    refused(odd, ERR_UNSUPPORTED, "odd width, 47");
    part.part.kv_head_end = 1;
    refused(part, ERR_UNSUPPORTED, "parts of layers");
    struct stage_options number = options_of(&wide, 0, CUT);
    number.boundary_out = DTYPE_I32;
    refused(number, ERR_INVALID, "not fp32, bf16 or fp16");
    struct stage_options ends = options_of(&narrow, 1, 3);
    ends.enter_last = 3; /* behind the stage's blocks */
    refused(ends, ERR_INVALID, "enter up to 3");
    ends.enter_last = 2;
    ends.leave_first = 1; /* in front of them */
    refused(ends, ERR_INVALID, "leave from 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_narrow_boundary_is_a_rounded_one),
        cmocka_unit_test(a_cache_takes_rounded_tensors),
        cmocka_unit_test(a_gradient_that_overflows_is_not_finite_below),
        cmocka_unit_test(memory_is_as_before_and_what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
