/* Tests profile documents: they have what the planner needs, and were measured in the memory that a stage
 * will take. */
#include "engine/trainer.h"

#include <time.h>

#include "common/clock.h"
#include "engine/profile.h"
#include "engine/seeded.h"

static const struct model_config small = {
    .arch = MODEL_LLAMA,
    .hidden = 64,
    .layers = 2,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 16,
    .ffn = 96,
    .vocab = 300,
    .max_positions = 256,
    .norm_eps = 1e-5,
    .rope = {.theta = 10000, .kind = ROPE_DEFAULT, .factor = 1},
    .tied = true,
};

static struct profile_request small_request(void)
{
    return (struct profile_request){
        .config = &small,
        .sequence_tokens = 64,
        .seconds = 0.05,
        .now_ns = clock_mono_ns,
        .method = {.lora = {.rank = 4, .alpha = 8, .dropout = 0.05, .targets = LORA_Q | LORA_V}}};
}

static double number(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("a point lacks %s", key);
    return json_number_value(value);
}

enum { EMBEDDING, LAYER, HEAD, ATTENTION, FFN, ROUTER, EXPERT, ATTENTION_CUT, FFN_CUT, KINDS };

static int kind_of(const char *block)
{
    static const char *const names[KINDS] = {"embedding", "layer",  "head",          "attention", "ffn",
                                             "router",    "expert", "attention_cut", "ffn_cut"};
    for (int kind = 0; kind < KINDS; kind++)
        if (strcmp(block, names[kind]) == 0)
            return kind;
    fail_msg("a point of a %s", block);
    return -1;
}

static void a_profile_has_points_of_every_block_and_leaves_nothing(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make("cpu", 1);
    struct profile_request request = small_request();
    struct mem_account account;
    json_t *document, *point;
    size_t i;
    uint32_t seen[KINDS] = {0};
    check(profile_measure(device, &request, &document, &err));
    json_array_foreach (json_object_get(document, "points"), i, point) {
        const char *block = json_string_value(json_object_get(point, "block"));
        int kind = kind_of(block);
        seen[kind]++;
        assert_true(number(point, "forward_s") > 0);
        assert_true(number(point, "backward_s") > 0);
        if (kind == FFN) /* Recomputation repeats all products of the FFN except down's, 2 of 3. */
            assert_true(fabs(number(point, "recompute_s") / number(point, "forward_s") - 2.0 / 3) < 1e-9);
        if (kind == LAYER) /* Recomputation repeats all products of a layer except down's, 96 of 2·64 + 2·32 +
                              3·96 columns. */
            assert_true(fabs(number(point, "recompute_s") / number(point, "forward_s") - 0.8) < 1e-9);
        assert_true(number(point, "sum_sq") <= number(point, "tokens") * number(point, "tokens"));
        if (kind >= ATTENTION)
            continue;
        assert_true(number(point, "tokens") >= number(point, "labelled"));
        assert_true(number(point, "boundary_bytes") == 4 * 64 * number(point, "tokens"));
    }
    assert_true(seen[EMBEDDING] >= 2 && seen[LAYER] >= 4 && seen[HEAD] >= 4);
    assert_true(seen[ATTENTION] == seen[LAYER] && seen[FFN] == seen[LAYER]);
    /* Halves with half of the heads and columns: every second point. */
    assert_true(seen[ATTENTION_CUT] == (seen[LAYER] + 1) / 2 && seen[FFN_CUT] == seen[ATTENTION_CUT]);
    json_t *share = json_object_get(document, "cut_share");
    assert_true(number(share, "attention_cut") == 0.5 && number(share, "ffn_cut") == 32.0 / 96);
    assert_true(seen[ROUTER] == 0 && seen[EXPERT] == 0);
    struct stage_options o = {.config = &small,
                              .block_begin = 1,
                              .block_end = 2,
                              .lora = request.method.lora,
                              .micro_batches_in_flight = 1,
                              .tokens_max = 64};
    struct stage_memory predicted;
    check(stage_memory_predict(&o, &predicted, &err));
    assert_true(number(json_object_get(document, "weights_bytes"), "layer") ==
                (double)predicted.bytes[MEM_WEIGHTS]);
    assert_true(number(json_object_get(document, "adapter_bytes"), "layer") ==
                (double)predicted.bytes[MEM_ADAPTERS]);
    device_memory(device, &account);
    assert_int_equal(account.held_total, 0);
    json_decref(document);
    device_close(device);
}

static void a_block_that_does_not_fit_has_no_points(void **state)
{
    (void)state;
    struct err err;
    struct device *device;
    struct profile_request request = small_request();
    struct model_config wide = small;
    json_t *document, *point;
    size_t i;
    wide.vocab = 40000; /* The embedding has 10 MB, and the limit is 6 MB. */
    request.config = &wide;
    check(device_open(&(struct device_options){.kind = "cpu", .name = "small", .memory_limit_bytes = 6 << 20},
                      &device, &err));
    check(profile_measure(device, &request, &document, &err));
    json_array_foreach (json_object_get(document, "points"), i, point)
        assert_in_set(kind_of(json_string_value(json_object_get(point, "block"))),
                      ((const uintmax_t[]){LAYER, ATTENTION, FFN, ATTENTION_CUT, FFN_CUT}), 5);
    assert_true(i > 0);
    json_decref(document);
    device_close(device);
}

/* Each method's profile has the bytes of its stages and names of its own. */
/* Whatever the memory holds, every point has times, none is there twice, and halves have the layer's points.
 * Some limits hold layers with the tokens of two rows, but a head only with those of one. */
static void every_point_has_times_whatever_the_memory(void **state)
{
    (void)state;
    struct profile_request request = small_request();
    struct model_config wide = small;
    uint32_t shrunk = 0;
    wide.vocab = 4000;
    request.config = &wide;
    request.seconds = 0.01;
    for (uint64_t limit = 1 << 20; limit < 6 << 20; limit += 64 << 10) {
        struct err err;
        struct device *device;
        json_t *document, *point, *other;
        size_t i, k;
        uint32_t layers = 0, heads = 0, attentions = 0;
        bool layer_of_rows = false, head_of_rows = false;
        if (device_open(&(struct device_options){.kind = "cpu", .name = "small", .memory_limit_bytes = limit},
                        &device, &err) != 0)
            continue;
        if (profile_measure(device, &request, &document, &err) == 0) {
            const json_t *points = json_object_get(document, "points");
            json_array_foreach (points, i, point) {
                const int kind = kind_of(json_string_value(json_object_get(point, "block")));
                layers += kind == LAYER;
                heads += kind == HEAD;
                attentions += kind == ATTENTION;
                layer_of_rows = layer_of_rows || (kind == LAYER && number(point, "tokens") > 64);
                head_of_rows = head_of_rows || (kind == HEAD && number(point, "tokens") > 64);
                assert_true(number(point, "forward_s") > 0 && number(point, "backward_s") > 0);
                json_array_foreach (points, k, other)
                    if (k != i &&
                        json_equal(json_object_get(point, "block"), json_object_get(other, "block")))
                        assert_false(
                            number(point, "tokens") == number(other, "tokens") &&
                            number(point, "sum_sq") == number(other, "sum_sq") &&
                            (kind >= ATTENTION || number(point, "labelled") == number(other, "labelled")));
            }
            if (attentions > 0)
                assert_int_equal(attentions, layers);
            shrunk += layer_of_rows && heads > 0 && !head_of_rows;
            json_decref(document);
        }
        device_close(device);
    }
    assert_true(shrunk > 0);
}

static void a_profile_is_that_of_the_method_asked_for(void **state)
{
    static const struct {
        const char *device, *method, *base, *compute;
        struct stage_options options;
    } cases[] = {
        {"cpu", "lora", "nf4", "fp32", {.base = LAYER_BASE_NF4, .double_quant = true}},
        {"cpu", "lora", "bf16", "bf16", {.base = LAYER_BASE_BF16, .compute = DTYPE_BF16}},
        {"cpu", "full", "fp32", "fp32", {.full = true, .moments8 = true}},
        {"emulated", "lora", "nf4", "fp16", {.base = LAYER_BASE_NF4, .compute = DTYPE_F16}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct err err;
        struct device *device = device_make(cases[i].device, 1);
        struct profile_request request = small_request();
        struct stage_memory predicted;
        json_t *document, *point;
        size_t k;
        request.sequence_tokens = strcmp(cases[i].device, "cpu") == 0 ? 32 : 4;
        request.seconds = 0.01;
        request.method = cases[i].options;
        if (!request.method.full)
            request.method.lora = (struct lora_options){.rank = 4, .alpha = 8, .targets = LORA_Q};
        check(profile_measure(device, &request, &document, &err));
        assert_string_equal(json_string_value(json_object_get(document, "method")), cases[i].method);
        assert_string_equal(json_string_value(json_object_get(document, "base")), cases[i].base);
        assert_string_equal(json_string_value(json_object_get(document, "compute")), cases[i].compute);
        struct stage_options o = request.method;
        o.config = &small;
        o.block_begin = 1;
        o.block_end = 2;
        o.micro_batches_in_flight = 1;
        o.tokens_max = o.row_tokens_max = 32;
        check(stage_memory_predict(&o, &predicted, &err));
        assert_true(number(json_object_get(document, "weights_bytes"), "layer") ==
                    (double)predicted.bytes[MEM_WEIGHTS]);
        assert_true(number(json_object_get(document, "optimizer_bytes"), "layer") ==
                    (double)predicted.bytes[MEM_OPTIMIZER]);
        json_array_foreach (json_object_get(document, "points"), k, point)
            assert_true(number(point, "forward_s") > 0 && number(point, "backward_s") > 0);
        assert_true(k > 4 && number(json_object_get(document, "step_s"), "layer") > 0);
        json_decref(document);
        device_close(device);
    }
}

/* Returns the seconds of the largest point of this kind, forward plus backward. */
static double largest_s(json_t *document, int kind)
{
    double most = 0, seconds = 0;
    json_t *point;
    size_t i;
    json_array_foreach (json_object_get(document, "points"), i, point)
        if (kind_of(json_string_value(json_object_get(point, "block"))) == kind &&
            number(point, "tokens") > most) {
            most = number(point, "tokens");
            seconds = number(point, "forward_s") + number(point, "backward_s");
        }
    return seconds;
}

/* In a mixture, attention, router and experts, and the FFN of dense layers, are measured separately. */
static void a_mixture_is_measured_in_parts(void **state)
{
    (void)state;
    static const struct {
        const char *device;
        struct stage_options options;
    } cases[] = {
        {"cpu", {.full = true}},
        {"cpu", {.base = LAYER_BASE_NF4, .lora = {.rank = 4, .alpha = 8, .targets = LORA_ALL}}},
        {"checked", {.lora = {.rank = 4, .alpha = 8, .dropout = 0.1, .targets = LORA_Q}}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        for (int dense = 0; dense < 2; dense++) {
            struct err err;
            struct device *device = device_make(cases[i].device, 1);
            struct profile_request request = small_request();
            struct model_config config = seeded_experts;
            struct mem_account account;
            uint32_t seen[KINDS] = {0};
            json_t *document, *point;
            size_t k;
            config.dense_layer[0] = (uint8_t)dense; /* whether the first layer is dense */
            request.config = &config;
            request.method = cases[i].options;
            request.sequence_tokens = 16;
            check(profile_measure(device, &request, &document, &err));
            json_array_foreach (json_object_get(document, "points"), k, point) {
                int kind = kind_of(json_string_value(json_object_get(point, "block")));
                seen[kind]++;
                assert_true(number(point, "forward_s") > 0 && number(point, "backward_s") > 0);
                assert_true(number(point, "tokens") >= 1);
            }
            assert_true(seen[ATTENTION] == seen[LAYER] && seen[ROUTER] == seen[LAYER]);
            assert_true(seen[FFN] == (dense ? seen[LAYER] : 0) && seen[EXPERT] >= 3);
            device_memory(device, &account);
            assert_int_equal(account.held_total, 0);
            json_decref(document);
            device_close(device);
        }
    }
}

/* Returns this process's CPU time, which other programs do not lengthen. */
static uint64_t computed_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Tests a model whose attention has much less work than its FFN, and one with the reverse. */
static void halves_take_the_time_of_their_own_work(void **state)
{
    (void)state;
    const uint32_t widths[2][2] = {{2, 2048}, {32, 64}}; /* {heads, ffn} */
    for (int i = 0; i < 2; i++) {
        struct err err;
        struct device *device = device_make("cpu", 1);
        struct profile_request request = small_request();
        struct model_config config = small;
        json_t *document;
        config.heads = config.kv_heads = widths[i][0];
        config.head_dim = 32;
        config.ffn = widths[i][1];
        request.config = &config;
        request.seconds = 0.2;
        request.now_ns = computed_ns;
        check(profile_measure(device, &request, &document, &err));
        double attention = largest_s(document, ATTENTION), ffn = largest_s(document, FFN);
        if (i == 0 ? ffn < 1.5 * attention : attention < 1.5 * ffn)
            fail_msg("attention of %u heads %g s, FFN of %u columns %g s", widths[i][0], attention,
                     widths[i][1], ffn);
        json_decref(document);
        device_close(device);
    }
}

/* A bias, or the weights of a router's norm, have one value a row, however wide the model is. */
static void wide_vectors_stay_in_their_buffer(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make("cpu", 1);
    struct profile_request request = small_request();
    struct model_config wide = small;
    json_t *document;
    wide.arch = MODEL_QWEN2;
    wide.hidden = 2048;
    wide.layers = 1;
    wide.heads = 2048 / wide.head_dim;
    wide.kv_heads = wide.heads;
    wide.qkv_bias = true;
    request.config = &wide;
    request.sequence_tokens = 4;
    request.seconds = 0.01;
    check(profile_measure(device, &request, &document, &err));
    json_decref(document);
    wide.arch = MODEL_GEMMA4;
    wide.qkv_bias = false;
    wide.post_norms = wide.experts_beside = true;
    wide.experts = 2;
    wide.experts_active = 1;
    wide.expert_ffn = 32;
    check(profile_measure(device, &request, &document, &err));
    json_decref(document);
    /* layers that read what earlier ones lend, without those */
    wide.experts_beside = false;
    wide.experts = 0;
    wide.hidden = 64;
    wide.heads = wide.kv_heads = 2;
    wide.layers = 24;
    wide.kv_borrowers = 12;
    wide.borrowers_wide = true;
    wide.per_layer = 8;
    wide.qk_norm = 1;
    check(profile_measure(device, &request, &document, &err));
    json_decref(document);
    device_close(device);
}

static void a_packed_base_is_measured_as_nf4(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make("cpu", 1);
    struct profile_request request = small_request();
    json_t *document;
    request.method.base = LAYER_BASE_PACKED;
    check(profile_measure(device, &request, &document, &err));
    assert_string_equal(json_string_value(json_object_get(document, "base")), "nf4");
    json_decref(document);
    device_close(device);
}

static uint64_t fake_ns, fake_calls, fake_disturbed;

/* A clock that advances one millisecond a call, and 20 before the disturbed call. */
static uint64_t fake_now_ns(void)
{
    fake_ns += ++fake_calls == fake_disturbed ? 20000000 : 1000000;
    return fake_ns;
}

/* Returns the largest relative fall of the embedding's time from one size to a larger one. */
static double embedding_fall(json_t *document)
{
    double most = 0, fall;
    size_t i, k;
    json_t *less, *more;
    json_array_foreach (json_object_get(document, "points"), i, less) {
        if (strcmp(json_string_value(json_object_get(less, "block")), "embedding") != 0)
            continue;
        json_array_foreach (json_object_get(document, "points"), k, more) {
            if (strcmp(json_string_value(json_object_get(more, "block")), "embedding") != 0 ||
                number(more, "tokens") <= number(less, "tokens"))
                continue;
            fall = fmax(number(less, "forward_s") - number(more, "forward_s"),
                        number(less, "backward_s") - number(more, "backward_s"));
            most = fmax(most, fall / (number(less, "forward_s") + number(less, "backward_s")));
        }
    }
    return most;
}

/* A disturbance in one of the three passes that the time allows is measured again until it no longer shows.
 */
static void what_slowed_one_shape_once_is_measured_away(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make("cpu", 1);
    struct profile_request request = small_request();
    json_t *document;
    request.seconds =
        1.2; /* 36 ms of it are for the embedding: enough for three passes over two shapes and a step. */
    request.now_ns = fake_now_ns;
    for (uint64_t call = 3; call < 36; call += 5) {
        fake_ns = fake_calls = 0;
        fake_disturbed = call;
        check(profile_measure(device, &request, &document, &err));
        if (embedding_fall(document) > 0.05)
            fail_msg("disturbed at question %llu of the clock: times fall by %.2f", (unsigned long long)call,
                     embedding_fall(document));
        json_decref(document);
    }
    device_close(device);
}

static bool always(void *context)
{
    (void)context;
    return true;
}

static void a_profile_stops_when_asked(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make("cpu", 1);
    struct profile_request request = small_request();
    json_t *document;
    request.seconds = 1000;
    request.stop = always;
    assert_int_equal(profile_measure(device, &request, &document, &err), -1);
    assert_int_equal(err.code, ERR_CANCELLED);
    assert_null(document);
    device_close(device);
}

/* Clocks of a test: each look at the time is 1 ms later than the one before. Until disturbed_until_ns the
 * threads wait for a CPU for half of the time. */
static uint64_t clock_ns, disturbed_until_ns;

static uint64_t ticking_ns(void)
{
    return clock_ns += 1000000;
}

static uint64_t waiting_ns(void)
{
    return clock_ns < disturbed_until_ns ? clock_ns / 2 : disturbed_until_ns / 2;
}

static void samples_beside_other_programs_are_taken_again(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make("cpu", 1);
    struct profile_request request = small_request();
    json_t *document;
    double took_s[3], waited[3];
    request.now_ns = ticking_ns;
    request.waited_ns = waiting_ns;
    request.seconds = 0.5;
    const uint64_t disturbed_ms[] = {0, 300, 1000000};
    for (int i = 0; i < 3; i++) {
        clock_ns = 0;
        disturbed_until_ns = disturbed_ms[i] * 1000000;
        check(profile_measure(device, &request, &document, &err));
        took_s[i] = (double)clock_ns * 1e-9;
        waited[i] = number(document, "waited_share");
        assert_true(number(document, "spread") >= 0);
        json_decref(document);
    }
    assert_true(waited[0] == 0);
    assert_true(waited[1] > 0.02 && waited[1] < 0.9 * waited[2]);
    assert_true(waited[2] >
                0.4); /* No measurement was undisturbed: the profile ends nevertheless, and says so. */
    assert_true(took_s[2] > took_s[0] && took_s[2] < 2.2 * request.seconds);
    device_close(device);
}

static uint64_t noisy_until_ns;
static struct rand_stream noise_stream;

/* A clock that advances one millisecond a call, and up to four while the machine is disturbed. The threads
 * never wait for a CPU. */
static uint64_t noisy_ns(void)
{
    double slowed = clock_ns < noisy_until_ns ? 1 + 3 * rand_stream_unit(&noise_stream) : 1;
    return clock_ns += (uint64_t)(1e6 * slowed);
}

/* Noise that ends in time is measured away. Noise that stays is reported and does not delay the profile. */
static void a_noisy_profile_is_taken_again_or_said_to_be_noisy(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make("cpu", 1);
    struct profile_request request = small_request();
    request.now_ns = noisy_ns;
    request.seconds = 1;
    double took_s[3], spread[3], layer_s[3];
    const uint64_t noisy_ms[] = {0, 600, 1000000}; /* The layers' measurement ends within 600 ms. */
    for (uint64_t seed = 1; seed <= 5; seed++) {
        for (int i = 0; i < 3; i++) {
            json_t *document;
            clock_ns = 0;
            noisy_until_ns = noisy_ms[i] * 1000000;
            rand_stream_init(&noise_stream, seed, 0);
            check(profile_measure(device, &request, &document, &err));
            took_s[i] = (double)clock_ns * 1e-9;
            spread[i] = number(document, "spread");
            layer_s[i] = largest_s(document, LAYER);
            json_decref(document);
        }
        if (!(spread[0] < 0.01 && spread[1] < 0.2 && spread[2] > 0.2))
            fail_msg("seed %llu: spreads %.2f %.2f %.2f", (unsigned long long)seed, spread[0], spread[1],
                     spread[2]);
        if (!(fabs(layer_s[1] / layer_s[0] - 1) < 0.05 && layer_s[2] > 1.2 * layer_s[0]))
            fail_msg("seed %llu: layers of %g, %g, %g s", (unsigned long long)seed, layer_s[0], layer_s[1],
                     layer_s[2]);
        assert_true(took_s[0] < 1.2 * request.seconds && took_s[2] < 2.3 * request.seconds);
    }
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_profile_has_points_of_every_block_and_leaves_nothing),
        cmocka_unit_test(samples_beside_other_programs_are_taken_again),
        cmocka_unit_test(a_block_that_does_not_fit_has_no_points),
        cmocka_unit_test(every_point_has_times_whatever_the_memory),
        cmocka_unit_test(a_profile_is_that_of_the_method_asked_for),
        cmocka_unit_test(a_mixture_is_measured_in_parts),
        cmocka_unit_test(halves_take_the_time_of_their_own_work),
        cmocka_unit_test(wide_vectors_stay_in_their_buffer),
        cmocka_unit_test(a_packed_base_is_measured_as_nf4),
        cmocka_unit_test(what_slowed_one_shape_once_is_measured_away),
        cmocka_unit_test(a_noisy_profile_is_taken_again_or_said_to_be_noisy),
        cmocka_unit_test(a_profile_stops_when_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
