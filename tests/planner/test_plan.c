/* Tests plans for two unlike devices as in the demo, with invented profiles. */
#include "planner/plan_fixture.h"

#include "common/buf.h"
#include "planner/candidate/from_plan.h"
#include "planner/emit/pipeline.h"
#include "show/print.h"

#define MIB ((uint64_t)1 << 20)

static void two_small_devices_get_a_pipeline_that_passes_the_checker(void **state)
{
    (void)state;
    struct err err = {0};
    struct model_config config = fixture_config(30);
    struct workload w = fixture_workload(&config, 400, 16);
    struct cluster *cluster = cluster_create(&err);
    fixture_device(cluster, "left/cpu0", "left", 450 * MIB, 1.6);
    fixture_device(cluster, "right/cpu0", "right", 450 * MIB, 1);
    struct plan_options options = {.programs = true};
    struct plan_answer *answer = NULL;
    if (plan_search(&w, cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    struct buf text;
    buf_init(&text, 1 << 20);
    answer_print(answer, &text, &err);
    print_message("%s", buf_str(&text));
    assert_int_equal(answer->verdict, VERDICT_FITS);
    assert_int_equal(answer->plan->placement, PLACE_PIPELINE);
    if (plan_check(answer->plan, &err) < 0)
        fail_msg("%s", err.text);
    json_t *json = plan_to_json(answer->plan, &err);
    struct plan *again = plan_from_json(json, &err);
    if (!again)
        fail_msg("%s", err.text);
    assert_string_equal(again->digest, answer->plan->digest);
    char *dump = json_dumps(json, JSON_COMPACT);
    print_message("plan: %zu bytes of JSON\n", strlen(dump));
    free(dump);
    json_decref(json);
    plan_destroy(again);
    json = answer_to_json(answer, &err);
    assert_non_null(json);
    dump = json_dumps(json, JSON_INDENT(1));
    print_message("%s\n", dump);
    free(dump);
    json_decref(json);
    buf_clear(&text);
    answer_print_program(answer, &w, cluster, 20, &text, &err);
    print_message("%s", buf_str(&text));
    buf_fini(&text);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

/* A forecast whose devices count as slower or faster than they were measured says so. */
static void a_corrected_forecast_says_so(void **state)
{
    (void)state;
    static const struct {
        double speed;
        const char *words; /* NULL: nothing is said */
    } cases[] = {{0.8, "left/cpu0 25 % slower than measured"},
                 {1.25, "left/cpu0 20 % faster than measured"},
                 {1, NULL}};
    struct model_config config = fixture_config(4);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        struct workload w = fixture_workload(&config, 40, 16);
        struct cluster *cluster = cluster_create(&err);
        struct plan_answer *answer = NULL;
        fixture_device(cluster, "left/cpu0", "left", 2000 * MIB, 1);
        cluster->devices[0].speed = cases[i].speed;
        if (plan_search(&w, cluster, NULL, &answer, &err) < 0)
            fail_msg("%s", err.text);
        const char *text = answer->plan->costs.text;
        if (cases[i].words ? !strstr(text, cases[i].words) : strstr(text, "than measured") != NULL)
            fail_msg("%s", text);
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
        workload_fini(&w);
    }
}

/* The cut between two unlike devices falls within a layer, which both have. */
static void a_pipeline_is_balanced_finer_than_a_layer(void **state)
{
    (void)state;
    struct err err = {0};
    struct model_config config = fixture_config(6);
    struct workload w = fixture_workload(&config, 640, 64);
    struct cluster *cluster = cluster_create(&err);
    struct plan_options options = {.programs = true};
    struct plan_answer *answer = NULL;
    struct problem problem;
    struct candidate candidate;
    w.place = PLACE_PIPELINE;
    w.micro_batch_rows = 1;
    fixture_device(cluster, "left/cpu0", "left", 900 * MIB, 1.37);
    fixture_device(cluster, "right/cpu0", "right", 900 * MIB, 1);
    if (plan_search(&w, cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    struct plan *plan = answer->plan;
    assert_int_equal(plan->ranks[0].block_end, plan->ranks[1].block_begin + 1);
    print_message("%.4f s a step, %.4f s at least\n", plan->costs.step_s, plan->costs.lower_bound_s);
    assert_true(plan->costs.lower_bound_s > 0.96 * plan->costs.step_s);

    /* Read back as a candidate, it gives the same programs. */
    assert_int_equal(problem_init(&problem, &w, cluster, &err), 0);
    assert_int_equal(candidate_from_plan(&problem, plan, &candidate, &err), 0);
    assert_true(candidate.members[0].next_count > 0 && candidate.members[0].next_count < 64);
    struct plan *again = pipeline_emit(&problem, &candidate, true, &err);
    assert_non_null(again);
    assert_int_equal(plan_seal(again, &err), 0);
    for (uint32_t r = 0; r < 2; r++)
        assert_string_equal(again->ranks[r].programs_digest, plan->ranks[r].programs_digest);
    plan_destroy(again);
    candidate_fini(&candidate);
    problem_fini(&problem);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

/* placement.micro_batch_rows limits the micro-batches of pipelines, shards, servers and tensor groups. */
static void no_micro_batch_has_more_rows_than_the_job_asks_for(void **state)
{
    (void)state;
    struct model_config config = fixture_config(6);
    static const enum plan_placement places[] = {PLACE_PIPELINE, PLACE_DATA, PLACE_SERVER, PLACE_TENSOR};
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        for (uint32_t asked = 1; asked <= 3; asked += 2) {
            struct err err = {0};
            struct workload w = fixture_workload(&config, 640, 60);
            struct cluster *cluster = cluster_create(&err);
            w.place = places[i];
            w.micro_batch_rows = asked;
            fixture_device(cluster, "left/cpu0", "left", 8192 * MIB, 1.37);
            fixture_device(cluster, "right/cpu0", "right", 8192 * MIB, 1);
            struct plan_answer *answer = fixture_search(&w, cluster);
            const struct plan *plan = answer->plan;
            assert_int_equal(answer->verdict, VERDICT_FITS);
            for (uint32_t m = 0; m < plan->micro_batch_count; m++)
                assert_in_range(plan->micro_batch_start[m + 1] - plan->micro_batch_start[m], 1, asked);
            plan_answer_destroy(answer);
            cluster_destroy(cluster);
            workload_fini(&w);
        }
    }
}

/* The memory that a device takes for itself (context, code) is not available to plans, is stated for each
 * rank, and survives in the plan's document. */
static void what_a_device_takes_for_itself_is_left_to_it(void **state)
{
    (void)state;
    struct err err = {0};
    struct model_config config = fixture_config(4);
    struct workload w = fixture_workload(&config, 40, 8);
    static const uint64_t bases[] = {0, 140 * MIB, 2000 * MIB};
    for (size_t i = 0; i < sizeof(bases) / sizeof(*bases); i++) {
        struct cluster *cluster = cluster_create(&err);
        struct cluster_device device = {.name = "a/cuda0",
                                        .node = "a",
                                        .kind = "cuda",
                                        .like = "v100",
                                        .memory_limit_bytes = 2000 * MIB,
                                        .base_bytes = bases[i]};
        struct plan_options options = {.programs = true};
        struct plan_answer *answer = NULL;
        assert_int_equal(cluster_add_device(cluster, &device, &err), 0);
        assert_int_equal(plan_search(&w, cluster, &options, &answer, &err), 0);
        assert_int_equal(answer->verdict, bases[i] < 2000 * MIB ? VERDICT_FITS : VERDICT_DOES_NOT_FIT);
        if (answer->verdict == VERDICT_FITS) {
            const struct plan_rank *rank = &answer->plan->ranks[0];
            assert_true(rank->memory_limit_bytes == 2000 * MIB - bases[i]);
            assert_true(rank->device_base_bytes == bases[i]);
            json_t *json = plan_to_json(answer->plan, &err);
            struct plan *again = plan_from_json(json, &err);
            assert_true(again->ranks[0].device_base_bytes == bases[i]);
            json_decref(json);
            plan_destroy(again);
            json = answer_to_json(answer, &err);
            const json_t *told = json_array_get(json_object_get(json, "ranks"), 0);
            assert_true((uint64_t)json_integer_value(json_object_get(told, "device_base_bytes")) == bases[i]);
            json_decref(json);
        }
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
    }
    workload_fini(&w);
}

/* Full fine-tuning includes the tied embedding; every pipeline and hybrid of replicas can run it. */
static void a_tied_model_is_trained_by_pipelines_and_replicas(void **state)
{
    static const enum plan_placement placements[] = {PLACE_PIPELINE, PLACE_DATA, PLACE_HYBRID};
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct err err = {0};
        struct model_config config = fixture_config(12);
        struct workload w = fixture_workload(&config, 64, 8);
        struct cluster *cluster = cluster_create(&err);
        struct plan_options options = {.programs = true, .runnable_only = true, .evaluations = 500};
        struct plan_answer *answer = NULL;
        assert_true(config.tied);
        for (int d = 0; d < 3; d++) {
            static const char *const names[] = {"a/cpu0", "b/cpu0", "c/cpu0"}, *const nodes[] = {"a", "b",
                                                                                                 "c"};
            fixture_device(cluster, names[d], nodes[d], (uint64_t)16 << 30, 1 + d / 4.0);
        }
        w.method = i < 3 ? METHOD_FULL : METHOD_LORA;
        w.saves_embedding = i >= 3;
        w.place = placements[i % 3];
        if (plan_search(&w, cluster, &options, &answer, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(answer->verdict, VERDICT_FITS);
        assert_int_equal(answer->plan->placement, placements[i % 3]);
        assert_true(answer->runnable && answer->plan->trains_embedding);
        if (plan_check(answer->plan, &err) < 0)
            fail_msg("%s", err.text);
        for (uint32_t r = 0; r < answer->plan->rank_count; r++) {
            const struct plan_rank *rank = &answer->plan->ranks[r];
            bool head = rank->block_end == answer->plan->block_count;
            assert_int_equal(rank->copies_tied, head && rank->block_begin > 0);
        }
        plan_answer_destroy(answer);
        cluster_destroy(cluster);
        workload_fini(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_corrected_forecast_says_so),
        cmocka_unit_test(a_pipeline_is_balanced_finer_than_a_layer),
        cmocka_unit_test(no_micro_batch_has_more_rows_than_the_job_asks_for),
        cmocka_unit_test(what_a_device_takes_for_itself_is_left_to_it),
        cmocka_unit_test(a_tied_model_is_trained_by_pipelines_and_replicas),
        cmocka_unit_test(two_small_devices_get_a_pipeline_that_passes_the_checker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
