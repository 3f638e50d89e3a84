/* What the planner promises: estimates are near the simulation, more never hurts, nonsense is refused by
 * path, and small pipelines are the best there are. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/given/from_spec.h"
#include "planner/pipeline/pipeline.h"
#include "planner/search/polish.h"

#define MIB ((uint64_t)1 << 20)

static struct plan_answer *search(const struct workload *w, const struct cluster *cluster, bool exhaustive)
{
    struct err err = {0};
    struct plan_options options = {.programs = true, .exhaustive_off = !exhaustive};
    struct plan_answer *answer = NULL;
    if (plan_search(w, cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    return answer;
}

/* The estimate of a pipeline is what its emitted programs take in the simulator. */
static void estimates_are_near_the_simulation(void **state)
{
    (void)state;
    struct model_config config = fixture_config(8);
    struct workload w = fixture_workload(&config, 16, 16); /* one batch: every step is the same one */
    struct err err = {0};
    struct cluster *cluster = cluster_create(&err);
    fixture_device(cluster, "a/0", "a", 2000 * MIB, 1);
    fixture_device(cluster, "b/0", "b", 2000 * MIB, 1.7);
    fixture_device(cluster, "c/0", "c", 2000 * MIB, 0.6);
    w.shuffle = false;
    struct problem p;
    assert_int_equal(problem_init(&p, &w, cluster, &err), 0);
    struct choice_list *list = calloc(1, sizeof(*list));
    list->evaluations_max = 20000;
    assert_int_equal(place_pipeline.propose(&p, list, &err), 0);
    assert_true(list->count > 4);
    for (uint32_t i = 0; i < list->count; i++) {
        double seconds = choice_simulate(&p, &list->choices[i], 32, &err);
        if (fabs(seconds / list->choices[i].estimate_s - 1) > 0.02)
            fail_msg("choice %u: estimate %g, simulated %g", i, list->choices[i].estimate_s, seconds);
    }
    choice_list_fini(list);
    free(list);
    problem_fini(&p);
    cluster_destroy(cluster);
    workload_fini(&w);
}

struct shape {
    uint32_t devices;
    uint64_t memory[6];
    double speed[6], rate;
};

static double step_of(const struct workload *w, const struct shape *shape, bool exhaustive)
{
    struct err err = {0};
    struct cluster *cluster = cluster_create(&err);
    for (uint32_t d = 0; d < shape->devices; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d);
        snprintf(name, sizeof(name), "n%u/0", d);
        fixture_device(cluster, name, node, shape->memory[d], shape->speed[d]);
    }
    assert_int_equal(cluster_set_defaults(cluster, 1e-5, 1e10, 1e-3, shape->rate, &err), 0);
    struct plan_answer *answer = search(w, cluster, exhaustive);
    double seconds = answer->plan ? answer->step_s : INFINITY;
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    return seconds;
}

static void more_never_makes_a_step_slower(void **state)
{
    (void)state;
    uint32_t slower = 0;
    double worst = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct rand_stream r;
        rand_stream_init(&r, seed, 3);
        struct model_config config = fixture_config(3 + rand_stream_below(&r, 6));
        config.vocab = 4096;
        struct workload w = fixture_workload(&config, 40, 8);
        struct shape before = {.devices = 1 + rand_stream_below(&r, 3),
                               .rate = 1e7 * (1 + rand_stream_below(&r, 100))};
        for (uint32_t d = 0; d < 4; d++) {
            before.memory[d] = (40 + rand_stream_below(&r, 100)) * MIB;
            before.speed[d] = 0.4 + rand_stream_unit(&r);
        }
        struct shape after = before;
        uint32_t which = rand_stream_below(&r, after.devices);
        switch (rand_stream_below(&r, 4)) {
        case 0:
            after.memory[which] *= 2;
            break;
        case 1:
            after.speed[which] *= 1.5;
            break;
        case 2:
            after.rate *= 4;
            break;
        default:
            after.devices++;
        }
        double a = step_of(&w, &before, true), b = step_of(&w, &after, true);
        if (b > a * (1 + 1e-9)) {
            slower++;
            worst = fmax(worst, b / a);
            print_message("seed %llu: %g s before, %g s after\n", (unsigned long long)seed, a, b);
        }
        workload_fini(&w);
    }
    print_message("%u of 60 changes made it slower, worst %.4f\n", slower, worst);
    assert_true(worst < 1.03);
}

/* All orders, splits, windows and sizes, by the recurrence; written without the planner's own search. */
struct oracle {
    const struct problem *p;
    uint32_t rows, stages, order[4], windows[4];
    int32_t end[4];
    double best;
};

static void oracle_windows(struct oracle *o, uint32_t s)
{
    const struct problem *p = o->p;
    uint32_t count = micro_count(p, o->rows);
    if (s == UINT32_MAX) {
        struct place_stage stages[4];
        struct place_member members[4];
        struct err err;
        for (uint32_t k = 0; k < o->stages; k++) {
            stages[k] = (struct place_stage){k ? o->end[k - 1] : 0, o->end[k], k, 1};
            members[k] = (struct place_member){.device = o->order[k],
                                               .micro_rows = o->rows,
                                               .micro_count = count,
                                               .state_share = 1,
                                               .window = o->windows[k]};
        }
        struct place_choice choice = {.placement = o->stages > 1 ? PLACE_PIPELINE : PLACE_SINGLE,
                                      .micro_batch_rows = o->rows,
                                      .stage_count = o->stages,
                                      .member_count = o->stages,
                                      .stages = stages,
                                      .members = members};
        double seconds = choice_simulate(p, &choice, 32, &err);
        if (seconds > 0 && seconds < o->best)
            o->best = seconds;
        return;
    }
    uint32_t least = s + 1 < o->stages ? o->windows[s + 1] : 1, most = s + 1 < o->stages ? least + 3 : 1;
    for (uint32_t w = least; w <= most && w <= count; w++) {
        o->windows[s] = w;
        oracle_windows(o, s - 1);
    }
}

static void oracle_splits(struct oracle *o, uint32_t s)
{
    int32_t begin = s ? o->end[s - 1] : 0;
    if (s + 1 == o->stages) {
        o->end[s] = o->p->block_count;
        oracle_windows(o, o->stages - 1);
        return;
    }
    for (int32_t end = begin + 1; end < o->p->block_count - (int32_t)(o->stages - s - 2); end++) {
        o->end[s] = end;
        oracle_splits(o, s + 1);
    }
}

static void oracle_orders(struct oracle *o, uint32_t chosen, bool taken[4], uint32_t wanted)
{
    if (chosen == wanted) {
        o->stages = wanted;
        oracle_splits(o, 0);
        return;
    }
    for (uint32_t d = 0; d < o->p->device_count; d++) {
        if (taken[d])
            continue;
        taken[d] = true;
        o->order[chosen] = d;
        oracle_orders(o, chosen + 1, taken, wanted);
        taken[d] = false;
    }
}

static void small_pipelines_are_near_the_best_there_are(void **state)
{
    (void)state;
    double mean = 0, worst = 0, large = 0;
    uint32_t cases = 0;
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct rand_stream r;
        struct err err = {0};
        rand_stream_init(&r, seed, 11);
        struct model_config config = fixture_config(1 + rand_stream_below(&r, 4));
        config.vocab = 2048;
        struct workload w = fixture_workload(&config, 24, 8);
        w.place = PLACE_PIPELINE;
        w.recompute = RECOMPUTE_NO;
        w.sample_tokens = w.prompt_tokens = 0;
        w.micro_batch_rows = 1 + rand_stream_below(&r, 2);
        struct cluster *cluster = cluster_create(&err);
        uint32_t devices = 2 + rand_stream_below(&r, 2);
        for (uint32_t d = 0; d < devices; d++) {
            char name[40], node[16];
            snprintf(node, sizeof(node), "n%u", d);
            snprintf(name, sizeof(name), "n%u/0", d);
            fixture_device(cluster, name, node, (60 + rand_stream_below(&r, 60)) * MIB,
                           0.4 + rand_stream_unit(&r));
        }
        struct plan_answer *answer = search(&w, cluster, true), *heuristic = search(&w, cluster, false);
        struct problem p;
        assert_int_equal(problem_init(&p, &w, cluster, &err), 0);
        struct oracle o = {.p = &p, .rows = w.micro_batch_rows, .best = INFINITY};
        for (uint32_t wanted = 2; wanted <= devices; wanted++)
            oracle_orders(&o, 0, (bool[4]){false}, wanted);
        if (answer->plan || o.best < INFINITY) {
            double ratio = answer->step_s / o.best;
            assert_non_null(answer->plan);
            mean += ratio;
            worst = fmax(worst, ratio);
            large += heuristic->plan ? heuristic->step_s / o.best : 2;
            cases++;
        }
        plan_answer_destroy(heuristic);
        plan_answer_destroy(answer);
        problem_fini(&p);
        cluster_destroy(cluster);
        workload_fini(&w);
    }
    print_message("%u cases: mean ratio %.4f, worst %.4f; searched like a large one %.4f\n", cases,
                  mean / cases, worst, large / cases);
    assert_true(cases > 12 && mean / cases < 1.005 && worst < 1.03 && large / cases < 1.05);
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

/* A device with twice the memory bound takes what one alone cannot; the shortfall is said in bytes. */
static void what_fits_nowhere_says_how_much_is_missing(void **state)
{
    (void)state;
    struct err err = {0};
    struct model_config config = fixture_config(30);
    struct workload w = fixture_workload(&config, 40, 8);
    struct cluster *cluster = cluster_create(&err);
    fixture_device(cluster, "a/0", "a", 100 * MIB, 1);
    fixture_device(cluster, "b/0", "b", 100 * MIB, 1);
    struct plan_answer *answer = search(&w, cluster, true);
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
        cmocka_unit_test(more_never_makes_a_step_slower),
        cmocka_unit_test(small_pipelines_are_near_the_best_there_are),
        cmocka_unit_test(cluster_files_are_refused_by_path),
        cmocka_unit_test(a_cluster_file_is_planned_without_a_server),
        cmocka_unit_test(what_fits_nowhere_says_how_much_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
