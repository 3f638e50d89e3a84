/* Tests the planner's promises: estimates are near the simulation, and invalid input is refused by path. */
#include "planner/any_candidate.h"

#include <math.h>

#include "planner/given/from_spec.h"
#include "planner/search/local.h"

#define MIB ((uint64_t)1 << 20)

/* The estimates of random pipelines are within 2 % of the simulated times of their emitted programs. */
static void estimates_are_near_the_simulation(void **state)
{
    (void)state;
    struct model_config config = fixture_config(8);
    struct workload w =
        fixture_workload(&config, 16, 16); /* The data is one batch, so every step is the same. */
    struct err err = {0};
    struct cluster *cluster = cluster_create(&err);
    struct rand_stream r;
    double worst = 0;
    uint32_t looked = 0;
    fixture_device(cluster, "a/0", "a", 2000 * MIB, 1);
    fixture_device(cluster, "b/0", "b", 2000 * MIB, 1.7);
    fixture_device(cluster, "c/0", "c", 2000 * MIB, 0.6);
    w.shuffle = false;
    struct problem p;
    assert_int_equal(problem_init(&p, &w, cluster, &err), 0);
    rand_stream_init(&r, 3, 3);
    for (uint32_t i = 0; i < 100; i++) {
        struct candidate c = {0};
        if (any_candidate(&p, kinds[PLACE_PIPELINE], &r, &c)) {
            double seconds = candidate_simulate(&p, &c, 32, 0, NULL, &err);
            if (seconds < INFINITY) {
                worst = fmax(worst, fabs(seconds / c.estimate_s - 1));
                looked++;
            }
        }
        candidate_fini(&c);
    }
    print_message("%u pipelines, estimates off by %.4f at worst\n", looked, worst);
    assert_true(looked > 20 && worst < 0.02);
    problem_fini(&p);
    cluster_destroy(cluster);
    workload_fini(&w);
}

static void refused(const char *spec, const char *cluster, const char *part)
{
    struct err err = {0};
    json_error_t why;
    struct plan_answer *answer = NULL;
    struct model_config config = fixture_config(4);
    json_t *s = json_loads(spec, 0, &why), *c = json_loads(cluster, 0, &why),
           *m = model_config_to_json(&config, &err);
    if (!s || !c || !m)
        fail_msg("%s", why.text);
    if (plan_from_cluster(s, c, m, NULL, &answer, &err) == 0)
        fail_msg("accepted: %s", cluster);
    if (!strstr(err.text, part))
        fail_msg("\"%s\" does not say \"%s\"", err.text, part);
    json_decref(s);
    json_decref(c);
    json_decref(m);
}

#define SPEC "{\"model\": \"m\", \"data\": {\"train\": \"d\"}}"
#define NODE(device) "{\"nodes\": [{\"name\": \"n1\", \"devices\": [" device "]}]}"
#define CARD "{\"name\": \"n1/0\", \"like\": \"a100x40\"}"

static void cluster_files_are_refused_by_path(void **state)
{
    (void)state;
    refused(SPEC, NODE("{\"name\": \"n1/0\", \"like\": \"abacus\"}"), "nodes[0].devices[0].like");
    refused(SPEC, NODE("{\"name\": \"n1/0\", \"like\": \"t4\", \"memory_bytes\": -1}"),
            "nodes[0].devices[0].memory_bytes");
    refused(SPEC, NODE("{\"name\": \"n1/0\", \"like\": \"t4\", \"speed\": 0}"), "nodes[0].devices[0].speed");
    refused(SPEC, NODE("{\"name\": \"n1/0\", \"liek\": \"t4\"}"), "nodes[0].devices[0].liek: unknown key");
    refused(SPEC, NODE("{\"name\": \"n1/0\"}"), "nodes[0].devices[0].memory_bytes: is required where");
    refused(SPEC, NODE(CARD "," CARD), "n1/0");
    refused(SPEC, "{\"nodes\": []}", "nodes");
    refused(SPEC, "{\"nodes\": [{\"name\": \"n1\", \"nic_bytes_per_s\": -5, \"devices\": [" CARD "]}]}",
            "nic_bytes_per_s");
    refused(SPEC,
            "{\"nodes\": [{\"name\": \"n1\", \"devices\": [" CARD
            "]}], \"links\": {\"pairs\": [{\"a\": \"n1\", \"b\": \"n9\", "
            "\"latency_s\": 1e-3, \"bytes_per_s\": 1e8}]}}",
            "links.pairs[0].b");
    refused(SPEC,
            "{\"nodes\": [{\"name\": \"n1\", \"devices\": [" CARD
            "]}], \"links\": {\"between\": {\"latency_s\": 1e-3, "
            "\"bytes_per_s\": 0}}}",
            "links.between.bytes_per_s");
    refused(SPEC,
            "{\"nodes\": [{\"name\": \"n1\", \"devices\": [" CARD
            "]}], \"links\": {\"within\": {\"latency\": 1e-3, \"bytes_per_s\": 1e8}}}",
            "links.within.latency: unknown key");
    refused(SPEC,
            "{\"nodes\": [{\"name\": \"n1\", \"devices\": [" CARD
            "]}], \"links\": {\"within\": {\"latency_s\": 1e-3}}}",
            "links.within.bytes_per_s: is required");
    refused(SPEC, "{\"nodes\": [{\"name\": \"n1\", \"devices\": [" CARD "], \"colour\": 1}]}", "colour");
    refused("{\"model\": \"m\", \"data\": {\"train\": \"d\"}, \"placement\": {\"devices\": [\"n7/3\"]}}",
            NODE(CARD), "n7/3");
}

static void a_cluster_file_is_planned_without_a_server(void **state)
{
    (void)state;
    struct err err = {0};
    json_error_t why;
    struct plan_answer *answer = NULL;
    struct model_config config = fixture_config(30);
    json_t *spec = json_loads(SPEC, 0, &why), *model = model_config_to_json(&config, &err);
    json_t *cluster = json_loads(
        "{\"nodes\": [{\"name\": \"n1\", \"nic_bytes_per_s\": 1.25e8, \"devices\": ["
        "{\"name\": \"n1/0\", \"like\": \"a100x40\", \"memory_bytes\": 42949672960, \"speed\": 1.0},"
        "{\"name\": \"n1/1\", \"like\": \"t4\"}]}, {\"name\": \"n2\", \"devices\": [{\"name\": \"n2/0\", "
        "\"like\": \"titan-x\"}]}], \"links\": {\"within\": {\"latency_s\": 1e-5, \"bytes_per_s\": 1e10}, "
        "\"between\": {\"latency_s\": 1e-4, \"bytes_per_s\": 1.2e8}, \"pairs\": [{\"a\": \"n1\", \"b\": "
        "\"n2\", \"latency_s\": 2e-4, \"bytes_per_s\": 1e8}]}}",
        0, &why);
    if (plan_from_cluster(spec, cluster, model, NULL, &answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(answer->verdict, VERDICT_FITS);
    assert_true(answer->uncertainty > 0.2);
    assert_true(answer->lower_bound_s > 0 && answer->lower_bound_s <= answer->step_s);
    json_t *json = answer_to_json(answer, &err);
    static const char *const keys[] = {"verdict",       "placement",    "step_s",           "tokens_per_s",
                                       "lower_bound_s", "plan_s",       "micro_batch_rows", "micro_batches",
                                       "ranks",         "alternatives", "left_out"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        assert_non_null(json_object_get(json, keys[i]));
    json_decref(json);
    plan_answer_destroy(answer);
    json_decref(spec);
    json_decref(model);
    json_decref(cluster);
}

/* Two devices hold what one cannot, and the answer states the shortage in bytes. */
static void what_fits_nowhere_says_how_much_is_missing(void **state)
{
    (void)state;
    struct err err = {0};
    struct model_config config = fixture_config(30);
    struct workload w = fixture_workload(&config, 40, 8);
    struct cluster *cluster = cluster_create(&err);
    fixture_device(cluster, "a/0", "a", 100 * MIB, 1);
    fixture_device(cluster, "b/0", "b", 100 * MIB, 1);
    struct plan_answer *answer = fixture_search(&w, cluster);
    assert_int_equal(answer->verdict, VERDICT_DOES_NOT_FIT);
    assert_null(answer->plan);
    assert_true(answer->shortfall_bytes > 0);
    assert_non_null(strstr(answer->words, "Does not fit"));
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    workload_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(estimates_are_near_the_simulation),
        cmocka_unit_test(cluster_files_are_refused_by_path),
        cmocka_unit_test(a_cluster_file_is_planned_without_a_server),
        cmocka_unit_test(what_fits_nowhere_says_how_much_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
