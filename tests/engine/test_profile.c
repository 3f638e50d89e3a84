/* A profile document says what a planner needs, in the bytes that a stage will take. */
#include "engine/trainer.h"

#include "common/clock.h"
#include "engine/profile.h"

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

static void a_profile_has_points_of_every_block_and_leaves_nothing(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make("cpu", 1);
    struct profile_request request = small_request();
    struct mem_account account;
    json_t *document, *point;
    size_t i;
    uint32_t seen[3] = {0};
    check(profile_measure(device, &request, &document, &err));
    json_array_foreach(json_object_get(document, "points"), i, point)
    {
        const char *block = json_string_value(json_object_get(point, "block"));
        int kind = strcmp(block, "embedding") == 0 ? 0 : strcmp(block, "layer") == 0 ? 1 : 2;
        seen[kind]++;
        assert_true(number(point, "forward_s") > 0);
        assert_true(number(point, "backward_s") > 0);
        if (kind == 1) /* all of a layer's products but down's: 96 of 2·64 + 2·32 + 3·96 */
            assert_true(fabs(number(point, "recompute_s") / number(point, "forward_s") - 0.8) < 1e-9);
        assert_true(number(point, "tokens") >= number(point, "labelled"));
        assert_true(number(point, "sum_sq") <= number(point, "tokens") * number(point, "tokens"));
        assert_true(number(point, "boundary_bytes") == 4 * 64 * number(point, "tokens"));
    }
    assert_true(seen[0] >= 2 && seen[1] >= 4 && seen[2] >= 4);
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
    wide.vocab = 40000; /* 10 MB of embedding against a limit of 6 */
    request.config = &wide;
    check(device_open(&(struct device_options){.kind = "cpu", .name = "small", .memory_limit_bytes = 6 << 20},
                      &device, &err));
    check(profile_measure(device, &request, &document, &err));
    json_array_foreach(json_object_get(document, "points"), i, point)
        assert_string_equal(json_string_value(json_object_get(point, "block")), "layer");
    assert_true(i > 0);
    json_decref(document);
    device_close(device);
}

/* Each with the bytes that a stage of that method takes, and its own names. */
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
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
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
        json_array_foreach(json_object_get(document, "points"), k, point)
            assert_true(number(point, "forward_s") > 0 && number(point, "backward_s") > 0);
        assert_true(k > 4 && number(json_object_get(document, "step_s"), "layer") > 0);
        json_decref(document);
        device_close(device);
    }
}

static void a_packed_base_is_refused_by_name(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make("cpu", 1);
    struct profile_request request = small_request();
    json_t *document;
    request.method.base = LAYER_BASE_PACKED;
    assert_int_equal(profile_measure(device, &request, &document, &err), -1);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "packed"));
    device_close(device);
}

static uint64_t fake_ns, fake_calls, fake_disturbed;

/* A millisecond between one question and the next; 20 before the disturbed one. */
static uint64_t fake_now_ns(void)
{
    fake_ns += ++fake_calls == fake_disturbed ? 20000000 : 1000000;
    return fake_ns;
}

/* The largest share by which a shape of an embedding takes less than one with fewer tokens. */
static double embedding_fall(json_t *document)
{
    double most = 0, fall;
    size_t i, k;
    json_t *less, *more;
    json_array_foreach(json_object_get(document, "points"), i, less)
    {
        if (strcmp(json_string_value(json_object_get(less, "block")), "embedding") != 0)
            continue;
        json_array_foreach(json_object_get(document, "points"), k, more)
        {
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

/* Something else ran for a moment of the three passes there is time for: measured on until it
 * no longer shows. */
static void what_slowed_one_shape_once_is_measured_away(void **state)
{
    (void)state;
    struct err err;
    struct device *device = device_make("cpu", 1);
    struct profile_request request = small_request();
    json_t *document;
    request.seconds = 1.2; /* of it 36 ms are the embedding's, three passes of 2 shapes and a step */
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
    assert_true(waited[2] > 0.4); /* nothing undisturbed: it ends all the same, and says so */
    assert_true(took_s[2] > took_s[0] && took_s[2] < 2.2 * request.seconds);
    device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_profile_has_points_of_every_block_and_leaves_nothing),
        cmocka_unit_test(samples_beside_other_programs_are_taken_again),
        cmocka_unit_test(a_block_that_does_not_fit_has_no_points),
        cmocka_unit_test(a_profile_is_that_of_the_method_asked_for),
        cmocka_unit_test(a_packed_base_is_refused_by_name),
        cmocka_unit_test(what_slowed_one_shape_once_is_measured_away),
        cmocka_unit_test(a_profile_stops_when_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
