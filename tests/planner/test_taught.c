/* Tests forecasts that earlier runs correct: labs whose tables are wrong, and what the correction must not
 * do.
 */
#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/cost/price.h"
#include "planner/cost/taught.h"
#include "planner/given/cluster_private.h"

#define LABS 12u
#define RUNS 4u

struct lab {
    uint32_t count;
    double speed[4], wrong[4], rate, kind[PLACE_COUNT];
    struct model_config config;
    struct workload workload;
    json_t *runs; /* what was taught so far; all on the first device's list */
};

/* A standard normal value (Box and Muller 1958). */
static double normal(struct rand_stream *r)
{
    return sqrt(-2 * log(1 - rand_stream_unit(r))) * cos(2 * acos(-1) * rand_stream_unit(r));
}

static void lab_init(struct lab *lab, struct rand_stream *r)
{
    *lab = (struct lab){.count = 2 + rand_stream_below(r, 3), .config = fixture_config(6)};
    lab->workload = fixture_workload(&lab->config, 40, 8);
    lab->rate = 1e7 * pow(10, 2 * rand_stream_unit(r));
    for (uint32_t d = 0; d < lab->count; d++) {
        lab->speed[d] = 0.4 + 2 * rand_stream_unit(r);
        lab->wrong[d] = 0.7 + 0.6 * rand_stream_unit(r);
    }
    for (int kind = 0; kind < PLACE_COUNT; kind++)
        lab->kind[kind] = exp(0.1 * normal(r));
    lab->runs = json_array();
}

/* The lab as it is, or as its tables and runs say. */
static struct cluster *lab_cluster(const struct lab *lab, bool as_told, const json_t *runs)
{
    struct err err;
    struct cluster *cluster = cluster_create(&err);
    for (uint32_t d = 0; d < lab->count; d++) {
        char name[24], node[16];
        snprintf(node, sizeof(node), "n%u", d);
        snprintf(name, sizeof(name), "n%u/0", d);
        fixture_device(cluster, name, node, (uint64_t)600 << 20,
                       lab->speed[d] * (as_told ? lab->wrong[d] : 1));
    }
    assert_int_equal(cluster_set_defaults(cluster, 1e-5, 1e9, 1e-3, lab->rate, &err), 0);
    struct planner_device *first = &cluster->devices[0];
    if (taught_read(runs, &first->taught, &first->taught_count, &err) < 0)
        fail_msg("%s", err.text);
    return cluster;
}

static struct plan_answer *search(struct workload *w, const struct cluster *cluster)
{
    struct err err = {0};
    struct plan_answer *answer = NULL;
    const struct plan_options options = {.programs = true, .brief = true, .evaluations = 500};
    if (plan_search(w, cluster, &options, &answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_non_null(answer->plan);
    return answer;
}

/* Seconds of a step of the plan in the lab as it is, without the kind's own part. */
static double truth(const struct lab *lab, const struct plan *plan)
{
    struct err err;
    struct problem problem;
    struct cluster *cluster = lab_cluster(lab, false, NULL);
    json_t *document = plan_to_json(plan, &err);
    struct plan *copy = plan_from_json(document, &err);
    double step_s = 0;
    assert_int_equal(problem_init(&problem, &lab->workload, cluster, &err), 0);
    if (price_plan(&problem, copy, UINT32_MAX, &step_s, &err) < 0)
        fail_msg("%s", err.text);
    problem_fini(&problem);
    plan_destroy(copy);
    json_decref(document);
    cluster_destroy(cluster);
    return step_s;
}

static json_t *run_of(const struct plan *plan, double times, double age_days)
{
    json_t *devices = json_array();
    for (uint32_t r = 0; r < plan->rank_count; r++)
        json_array_append_new(devices, json_string(plan->ranks[r].device));
    return json_pack("{s:s,s:o,s:f,s:f,s:b}", "placement", plan_placement_name(plan->placement), "devices",
                     devices, "times", times, "age_days", age_days, "alike", 1);
}

/* Each run's plan is chosen and forecast by wrong tables and what the runs before it measured. */
static void runs_teach_what_tables_have_wrong(void **state)
{
    (void)state;
    double error[RUNS] = {0}, worst[RUNS] = {0};
    struct rand_stream r;
    rand_stream_init(&r, 41, 1);
    for (uint32_t n = 0; n < LABS; n++) {
        struct lab lab;
        lab_init(&lab, &r);
        for (uint32_t i = 0; i < RUNS; i++) {
            struct cluster *cluster = lab_cluster(&lab, true, lab.runs);
            struct plan_answer *answer = search(&lab.workload, cluster);
            const double true_s = truth(&lab, answer->plan) * lab.kind[answer->plan->placement];
            const double measured_s = true_s * exp(0.03 * normal(&r));
            const struct plan_costs *costs = &answer->plan->costs;
            const double factor = costs->corrected_runs ? costs->corrected : 1;
            const double off = fabs(log(answer->step_s / true_s));
            error[i] += off / LABS;
            worst[i] = fmax(worst[i], off);
            assert_true(answer->lower_bound_s <= answer->step_s);
            assert_true(costs->corrected_runs <= i);
            json_array_append_new(lab.runs, run_of(answer->plan, measured_s * factor / answer->step_s, 0));
            plan_answer_destroy(answer);
            cluster_destroy(cluster);
        }
        json_decref(lab.runs);
        workload_fini(&lab.workload);
    }
    for (uint32_t i = 0; i < RUNS; i++)
        printf("after %u runs: %.1f %% off at the mean, %.1f %% at worst\n", i, 100 * error[i],
               100 * worst[i]);
    assert_true(error[1] < 0.75 * error[0]);
    assert_true(error[3] < 0.4 * error[0]);
    assert_true(worst[3] < 0.6 * worst[0]);
}

/* The factor of the plan by these runs: {times, age in days}, in pairs. */
static double factor_by(const struct lab *lab, const struct plan *plan, const double *runs, uint32_t count,
                        enum plan_placement asked)
{
    struct err err;
    struct problem problem;
    uint64_t devices = 0;
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(list, run_of(plan, runs[2 * i], runs[2 * i + 1]));
    struct cluster *cluster = lab_cluster(lab, true, list);
    assert_int_equal(problem_init(&problem, &lab->workload, cluster, &err), 0);
    for (uint32_t r = 0; r < plan->rank_count; r++)
        devices += taught_part(&problem, cluster_device_find(cluster, plan->ranks[r].device));
    const double factor = taught_factor(&problem, asked, devices, NULL);
    assert_true(taught_least(&problem) <= fmin(factor, 1));
    problem_fini(&problem);
    cluster_destroy(cluster);
    json_decref(list);
    return factor;
}

static void few_old_and_other_runs_correct_less(void **state)
{
    (void)state;
    struct lab lab;
    struct rand_stream r;
    static const double same[] = {1.3, 0, 1.3, 0, 1.3, 0}, old[] = {1.3, 60}, wild[] = {1000, 0};
    static const double differ[] = {1.3, 0, 1.1, 0, 1.5, 0};
    rand_stream_init(&r, 43, 1);
    lab_init(&lab, &r);
    struct cluster *cluster = lab_cluster(&lab, true, NULL);
    struct plan_answer *answer = search(&lab.workload, cluster);
    const enum plan_placement kind = answer->plan->placement;
    const enum plan_placement other = kind == PLACE_TENSOR ? PLACE_DATA : PLACE_TENSOR;
    const double one = factor_by(&lab, answer->plan, same, 1, kind);
    const double three = factor_by(&lab, answer->plan, same, 3, kind);
    assert_true(factor_by(&lab, answer->plan, same, 0, kind) == 1);
    assert_true(one > 1.1 && one < three && three < 1.3);
    assert_true(factor_by(&lab, answer->plan, differ, 3, kind) < three);
    assert_true(factor_by(&lab, answer->plan, old, 1, kind) < one);
    assert_true(factor_by(&lab, answer->plan, same, 1, other) > 1);
    assert_true(factor_by(&lab, answer->plan, same, 1, other) < one);
    assert_true(factor_by(&lab, answer->plan, wild, 1, kind) < 4);
    plan_answer_destroy(answer);
    cluster_destroy(cluster);
    json_decref(lab.runs);
    workload_fini(&lab.workload);
}

static void a_list_that_is_wrong_is_refused_by_path(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"[{\"placement\": \"pairs\", \"devices\": [\"a\"], \"times\": 1, \"age_days\": 0, \"alike\": true}]",
         "taught[0].placement"},
        {"[{\"placement\": \"data\", \"devices\": [], \"times\": 1, \"age_days\": 0, \"alike\": true}]",
         "taught[0].devices"},
        {"[{\"placement\": \"data\", \"devices\": [\"a\"], \"times\": 0, \"age_days\": 0, \"alike\": true}]",
         "taught[0].times"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct taught_run *runs;
        uint32_t count;
        struct err err = {0};
        json_t *list = json_loads(wrong[i][0], 0, NULL);
        assert_int_equal(taught_read(list, &runs, &count, &err), -1);
        assert_non_null(strstr(err.text, wrong[i][1]));
        assert_null(runs);
        json_decref(list);
    }
}

static void the_choice_counts_with_what_runs_taught(void **state)
{
    (void)state;
    struct lab lab;
    struct rand_stream r;
    uint32_t other = 0;
    rand_stream_init(&r, 47, 1);
    for (uint32_t n = 0; n < 4; n++) {
        lab_init(&lab, &r);
        struct cluster *cluster = lab_cluster(&lab, true, NULL), *empty = lab_cluster(&lab, true, lab.runs);
        struct plan_answer *answer = search(&lab.workload, cluster), *same = search(&lab.workload, empty);
        assert_string_equal(answer->plan->digest, same->plan->digest);
        for (int i = 0; i < 3; i++)
            json_array_append_new(lab.runs, run_of(answer->plan, 3, i));
        struct cluster *taught = lab_cluster(&lab, true, lab.runs);
        struct plan_answer *now = search(&lab.workload, taught), *again = search(&lab.workload, taught);
        assert_string_equal(now->plan->digest, again->plan->digest);
        other += now->plan->placement != answer->plan->placement;
        /* without the correction no plan is faster than the first one */
        const double factor = now->plan->costs.corrected_runs ? now->plan->costs.corrected : 1;
        assert_true(now->step_s / factor > 0.99 * answer->step_s);
        assert_true(now->lower_bound_s <= now->step_s);
        struct plan_answer *const answers[] = {answer, same, now, again};
        for (size_t i = 0; i < 4; i++)
            plan_answer_destroy(answers[i]);
        cluster_destroy(cluster);
        cluster_destroy(empty);
        cluster_destroy(taught);
        json_decref(lab.runs);
        workload_fini(&lab.workload);
    }
    printf("%u of 4 labs chose another placement\n", other);
    assert_true(other >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_teach_what_tables_have_wrong),
        cmocka_unit_test(few_old_and_other_runs_correct_less),
        cmocka_unit_test(a_list_that_is_wrong_is_refused_by_path),
        cmocka_unit_test(the_choice_counts_with_what_runs_taught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
