/* Plans for two unlike devices: what the demo does, with made-up profiles. */
#include "planner/plan_fixture.h"

#include "common/buf.h"
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_small_devices_get_a_pipeline_that_passes_the_checker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
