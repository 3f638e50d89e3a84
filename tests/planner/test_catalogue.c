/* Tests the catalogue of devices: it has the devices that labs own, every number is plausible, and each entry
 * names its source. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/given/from_spec.h"

static void devices_that_labs_own_are_in_it(void **state)
{
    static const char *const wanted[] = {
        "titan-x",      "gtx-1080ti", "rtx-2080ti",   "rtx-3090",   "rtx-4090",   "rtx-5090",
        "a4000",        "a6000",      "t4",           "v100",       "p100",       "p40",
        "a10",          "a10g",       "a40",          "l4",         "l40s",       "a100x40",
        "a100x80",      "h100",       "h200",         "b200",       "mi50",       "mi60",
        "mi100",        "mi210",      "mi250x",       "mi300x",     "w7900",      "rx-7900xtx",
        "arc-a770",     "cpu-avx2",   "cpu-amx",      "cpu-avx512", "cpu-sse42",  "gh200",
        "h100-nvl",     "v100x32",    "titan-rtx",    "k80",        "gtx-1070",   "rtx-2070",
        "rtx-3060ti",   "rtx-3070",   "rtx-3080ti",   "rtx-3090ti", "rtx-4060ti", "rtx-4070ti-super",
        "rtx-5080",     "a4500",      "rx-6900xt",    "rx-7900xt",  "gtx-980ti",  "rtx-3050",
        "rtx-4000-ada", "rtx-5060ti", "rtx-pro-6000", "b300",       "gb10",       "mi325x",
        "mi355x",       "rx-9070xt",  "r9700",        "strix-halo", "h20"};
    (void)state;
    struct err err = {0};
    json_t *catalogue = cluster_catalogue(&err), *list = json_object_get(catalogue, "devices");
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        bool found = false;
        for (size_t k = 0; k < json_array_size(list); k++)
            found |=
                strcmp(json_string_value(json_object_get(json_array_get(list, k), "name")), wanted[i]) == 0;
        if (!found)
            fail_msg("%s is not in the catalogue", wanted[i]);
    }
    json_decref(catalogue);
}

static double number(const json_t *entry, const char *key)
{
    const json_t *value = json_object_get(entry, key);
    if (!json_is_number(value) || !isfinite(json_number_value(value)))
        fail_msg("%s has no %s", json_string_value(json_object_get(entry, "name")), key);
    return json_number_value(value);
}

static void every_entry_is_possible_and_names_its_source(void **state)
{
    (void)state;
    struct err err = {0};
    json_t *catalogue = cluster_catalogue(&err), *list = json_object_get(catalogue, "devices");
    uint32_t imported = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(e, "name"));
        const char *origin = json_string_value(json_object_get(e, "origin"));
        bool cpu = strcmp(json_string_value(json_object_get(e, "kind")), "cpu") == 0;
        assert_true(number(e, "memory_bytes") >= (double)(4ull << 30));
        assert_true(number(e, "flops_fp32") >= (cpu ? 1e10 : 1e12) && number(e, "flops_fp32") < 1e15);
        assert_true(number(e, "flops_16") >= 0 && number(e, "flops_16") < 1e16);
        assert_true(number(e, "memory_bytes_per_s") >= (cpu ? 1e9 : 1e11) &&
                    number(e, "memory_bytes_per_s") < 1e14);
        assert_true(number(e, "efficiency") > 0.1 && number(e, "efficiency") < 1);
        assert_true(number(e, "efficiency_16") > 0.1 && number(e, "efficiency_16") < 1);
        assert_true(number(e, "uncertainty") >= 0.2 && number(e, "uncertainty") <= 1);
        assert_true(strlen(json_string_value(json_object_get(e, "source"))) > 8);
        imported += strcmp(origin, "imported") == 0;
        assert_true(strcmp(origin, "imported") == 0 || strcmp(origin, "estimated") == 0);
        for (size_t k = 0; k < i; k++)
            if (strcmp(name, json_string_value(json_object_get(json_array_get(list, k), "name"))) == 0)
                fail_msg("%s is there twice", name);
    }
    print_message("%zu devices, %u of them with measured shares of their peaks\n", json_array_size(list),
                  imported);
    assert_true(imported >= 10);
    json_decref(catalogue);
}

/* Every entry can be planned on, and the answer states the entry's figures as its basis. */
static void every_entry_can_be_planned_on(void **state)
{
    (void)state;
    struct err err = {0};
    json_t *catalogue = cluster_catalogue(&err), *list = json_object_get(catalogue, "devices");
    struct model_config config = fixture_config(4);
    struct workload w = fixture_workload(&config, 40, 8);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(e, "name"));
        json_t *file = json_pack("{s:[{s:s,s:[{s:s,s:s}]}]}", "nodes", "name", "n", "devices", "name", "n/0",
                                 "like", name);
        struct cluster *cluster = cluster_from_json(file, &err);
        struct plan_answer *answer = NULL;
        struct plan_options options = {.evaluations = 100};
        if (!cluster || plan_search(&w, cluster, &options, &answer, &err) < 0)
            fail_msg("%s: %s", name, err.text);
        bool imported = strcmp(json_string_value(json_object_get(e, "origin")), "imported") == 0;
        assert_int_equal(answer->verdict, VERDICT_FITS);
        assert_true((imported ? answer->plan->costs.share_imported : answer->plan->costs.share_estimated) >
                    0.99);
        assert_true(answer->uncertainty > 0 && answer->warning_count == 0);
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
        json_decref(file);
    }
    workload_fini(&w);
    json_decref(catalogue);
}

static double step_on(const char *like, enum workload_base base, uint32_t *passes)
{
    struct err err = {0};
    struct model_config config = fixture_config(4);
    struct workload w = fixture_workload(&config, 40, 8);
    struct plan_answer *answer = NULL;
    struct plan_options options = {.programs = true};
    json_t *file =
        json_pack("{s:[{s:s,s:[{s:s,s:s}]}]}", "nodes", "name", "n", "devices", "name", "n/0", "like", like);
    struct cluster *cluster = cluster_from_json(file, &err);
    w.base = base;
    w.compute = COMPUTE_BF16;
    w.place = PLACE_SINGLE;
    w.micro_batch_rows = 2;
    w.recompute = RECOMPUTE_NO;
    if (!cluster || plan_search(&w, cluster, &options, &answer, &err) < 0)
        fail_msg("%s: %s", like, err.text);
    double step_s = answer->step_s;
    *passes = 2 * answer->plan->micro_batch_count;
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
    json_decref(file);
    return step_s;
}

/* Each pass through a layer with 4-bit weights first unpacks them: at the card's memory rate it reads 0.516
 * bytes a parameter and writes 2. */
static void four_bit_weights_are_unpacked_before_each_pass(void **state)
{
    (void)state;
    uint32_t passes;
    double plain = step_on("a100x80", BASE_BF16, &passes);
    double packed = step_on("a100x80", BASE_NF4, &passes);
    struct model_config c = fixture_config(4);
    double matrices = 2.0 * c.hidden * c.heads * c.head_dim + 2.0 * c.hidden * c.kv_heads * c.head_dim +
                      3.0 * c.hidden * c.ffn;
    double unpack = c.layers * matrices * 2.516 / 2039e9;
    print_message("bf16 %.6f s, NF4 %.6f s, unpacking %.6f s\n", plain, packed, passes * unpack);
    assert_true(fabs(packed - plain - passes * unpack) < 1e-9);
}

/* Makes a profile whose layers reach 5 TFLOP/s at the largest measured point. */
static json_t *profile_of(const char *device, const char *compute)
{
    /* The second point is 1e12 FLOP in 0.2 s; the first is small and slow, and the third is not of a layer.
     */
    static const struct {
        const char *block;
        double tokens, forward_s;
    } points[] = {{"layer", 10, 1}, {"layer", 100, 0.2}, {"head", 900, 0.001}};
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++)
        json_array_append_new(list, json_pack("{s:s,s:f,s:f,s:f,s:f,s:f}", "block", points[i].block, "tokens",
                                              points[i].tokens, "labelled", points[i].tokens, "sum_sq",
                                              points[i].tokens * points[i].tokens, "forward_s",
                                              points[i].forward_s, "backward_s", points[i].forward_s));
    return json_pack("{s:s, s:s, s:{s:f, s:f}, s:o}", "device", device, "compute", compute, "layer_flops",
                     "token", 9e9, "square", 1e7, "points", list);
}

static void a_measured_card_says_how_far_the_catalogue_is_off(void **state)
{
    (void)state;
    const struct catalogue_entry *v100 = catalogue_find("v100");
    json_t *full = profile_of("a/cuda0", "fp32"), *half = profile_of("a/cuda0", "fp16");
    json_t *said = catalogue_difference("Tesla V100-SXM2-16GB", full);
    assert_string_equal(json_string_value(json_object_get(said, "entry")), "v100");
    assert_true(fabs(json_number_value(json_object_get(said, "flops_per_s")) - 5e12) < 1);
    assert_true(json_number_value(json_object_get(said, "estimated_flops_per_s")) ==
                v100->flops_fp32 * v100->efficiency);
    assert_true(fabs(json_number_value(json_object_get(said, "ratio")) -
                     5e12 / (v100->flops_fp32 * v100->efficiency)) < 1e-9);
    json_decref(said);
    json_object_set_new(
        full, "heat",
        json_real(0.5)); /* The device was throttled to half of its speed while it was measured. */
    said = catalogue_difference("v100", full);
    assert_true(fabs(json_number_value(json_object_get(said, "flops_per_s")) - 1e13) < 1);
    json_decref(said);
    said = catalogue_difference("v100", half);
    assert_true(json_number_value(json_object_get(said, "estimated_flops_per_s")) ==
                v100->flops_16 * v100->efficiency_16);
    json_decref(said);
    assert_null(catalogue_difference("a card nobody knows", full));
    assert_null(catalogue_difference(NULL, full));
    json_object_del(full, "layer_flops");
    assert_null(catalogue_difference("v100", full));
    json_decref(full);
    json_decref(half);
}

/* When an estimated card could be used, the answer says how measured cards compared with their estimates.
 * Without an estimated card it does not. */
static void forecasts_say_what_measured_cards_found(void **state)
{
    (void)state;
    struct err err = {0};
    struct model_config config = fixture_config(4);
    struct workload w = fixture_workload(&config, 40, 8);
    for (int estimated = 0; estimated < 2; estimated++) {
        struct cluster *cluster = cluster_create(&err);
        struct cluster_device other = {
            .name = "b/cuda0", .node = "b", .kind = "cuda", .like = "v100", .memory_limit_bytes = 1ull << 33};
        fixture_device(cluster, "a/cuda0", "a", 1ull << 33, 1);
        json_t *profile = profile_of("a/cuda0", "fp32");
        json_object_set_new(profile, "catalogue", json_pack("{s:s, s:f}", "entry", "v100", "ratio", 0.625));
        if (cluster_add_profile(cluster, profile, &err) < 0)
            fail_msg("%s", err.text);
        json_decref(profile);
        if (estimated)
            assert_int_equal(cluster_add_device(cluster, &other, &err), 0);
        struct plan_answer *answer = fixture_search(&w, cluster);
        bool said = false;
        for (uint32_t i = 0; i < answer->warning_count; i++)
            said |= strstr(answer->warnings[i], "a/cuda0, which was measured, reaches 0.625 of it") != NULL;
        assert_int_equal(said, estimated);
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
    }
    workload_fini(&w);
}

/* A profile that was measured beside other programs, or on a machine whose speed changed, is reported as
 * doubtful. */
static void a_profile_measured_under_noise_is_doubted(void **state)
{
    (void)state;
    struct err err = {0};
    struct model_config config = fixture_config(4);
    struct workload w = fixture_workload(&config, 40, 8);
    const struct {
        const char *key;
        double quiet, noisy;
        const char *said;
    } cases[] = {{"waited_share", 0.04, 0.31, "took its cores for 31 %"},
                 {"spread", 0.1, 0.4, "took up to 40 % longer"}};
    for (int i = 0; i < 4; i++) {
        struct cluster *cluster = cluster_create(&err);
        fixture_device(cluster, "a/cuda0", "a", 1ull << 33, 1);
        json_t *profile = profile_of("a/cuda0", "fp32");
        json_object_set_new(profile, cases[i / 2].key,
                            json_real(i % 2 ? cases[i / 2].noisy : cases[i / 2].quiet));
        if (cluster_add_profile(cluster, profile, &err) < 0)
            fail_msg("%s", err.text);
        json_decref(profile);
        struct plan_answer *answer = fixture_search(&w, cluster);
        bool said = false;
        for (uint32_t k = 0; k < answer->warning_count; k++)
            said |= strstr(answer->warnings[k], cases[i / 2].said) != NULL;
        assert_int_equal(said, i % 2);
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
    }
    workload_fini(&w);
}

/* No worker runs on such a card, whether or not the plan that is kept can be read back as a candidate. */
static void a_plan_that_is_kept_says_whether_it_can_run(void **state)
{
    (void)state;
    struct err err = {0};
    struct model_config config = fixture_config(4);
    struct workload w = fixture_workload(&config, 40, 8);
    json_t *file = json_pack("{s:[{s:s,s:[{s:s,s:s},{s:s,s:s}]}]}", "nodes", "name", "n", "devices", "name",
                             "n/0", "like", "arc-a770", "name", "n/1", "like", "arc-a770");
    struct cluster *cluster = cluster_from_json(file, &err);
    w.place = PLACE_DATA;
    for (int turn = 0; turn < 2; turn++) {
        struct plan_options options = {.programs = true};
        struct plan_answer *first = NULL, *again = NULL;
        if (!cluster || plan_search(&w, cluster, &options, &first, &err) < 0)
            fail_msg("%s", err.text);
        assert_false(first->runnable);
        if (turn == 1) { /* its micro-batches hold other rows than its ranks take */
            first->plan->ranks[0].rows++;
            first->plan->ranks[1].rows--;
            assert_int_equal(plan_seal(first->plan, &err), 0);
        }
        options.from = first->plan;
        if (plan_search(&w, cluster, &options, &again, &err) < 0)
            fail_msg("%s", err.text);
        assert_string_equal(again->from_words, "The plan given is kept.");
        assert_false(again->runnable);
        plan_answer_destroy(again);
        plan_answer_destroy(first);
    }
    cluster_destroy(cluster);
    workload_fini(&w);
    json_decref(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_that_labs_own_are_in_it),
        cmocka_unit_test(every_entry_is_possible_and_names_its_source),
        cmocka_unit_test(every_entry_can_be_planned_on),
        cmocka_unit_test(a_plan_that_is_kept_says_whether_it_can_run),
        cmocka_unit_test(a_measured_card_says_how_far_the_catalogue_is_off),
        cmocka_unit_test(forecasts_say_what_measured_cards_found),
        cmocka_unit_test(a_profile_measured_under_noise_is_doubted),
        cmocka_unit_test(four_bit_weights_are_unpacked_before_each_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
