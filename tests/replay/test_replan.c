/* Tests the decision whether a run stays on its devices or moves. */
#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/cost/problem.h"
#include "planner/given/cluster_private.h"
#include "replay/replan.h"

struct lab {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct plan_answer *answer;
};

static struct cluster *lab_cluster(double second_speed, uint32_t devices)
{
    struct err err;
    struct cluster *cluster = cluster_create(&err);
    static const char *const names[] = {"left/0", "right/0", "far/0"}, *const nodes[] = {"left", "right",
                                                                                         "far"};
    for (uint32_t d = 0; d < devices; d++)
        fixture_device(cluster, names[d], nodes[d], (uint64_t)460 << 20, d == 1 ? second_speed : 1);
    assert_int_equal(cluster_set_defaults(cluster, 1e-5, 1e9, 1e-3, 1e8, &err), 0);
    return cluster;
}

static void lab_init(struct lab *lab)
{
    struct err err = {0};
    struct plan_options options = {.programs = true};
    lab->config = fixture_config(16);
    lab->workload = fixture_workload(&lab->config, 160, 16);
    lab->cluster = lab_cluster(1, 2);
    if (plan_search(&lab->workload, lab->cluster, &options, &lab->answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_non_null(lab->answer->plan);
}

static void lab_fini(struct lab *lab)
{
    plan_answer_destroy(lab->answer);
    cluster_destroy(lab->cluster);
    workload_fini(&lab->workload);
}

static struct replan_decision decide(struct lab *lab, const struct cluster *cluster, uint64_t steps,
                                     double restart_s, struct replan_state *state)
{
    struct err err = {0};
    struct replan_decision decision;
    struct replan_input input = {.old = lab->answer->plan,
                                 .workload = &lab->workload,
                                 .cluster = cluster,
                                 .steps_left = steps,
                                 .restart_s = restart_s};
    if (replan_decide(&input, state, &decision, &err) < 0)
        fail_msg("%s", err.text);
    return decision;
}

static void nothing_changed_nothing_moves(void **state)
{
    (void)state;
    struct lab lab;
    struct replan_state windows = {0};
    lab_init(&lab);
    for (int look = 0; look < 3; look++) {
        struct replan_decision d = decide(&lab, lab.cluster, 1000000, 1, &windows);
        assert_int_equal(d.verdict, REPLAN_STAY);
        assert_true(fabs(d.old_step_s / lab.answer->step_s - 1) < 1e-9);
        assert_int_equal(windows.windows, 0);
        replan_decision_fini(&d);
    }
    lab_fini(&lab);
}

static void a_slow_device_moves_the_job_at_the_second_look(void **state)
{
    (void)state;
    struct lab lab;
    struct replan_state windows = {0};
    lab_init(&lab);
    struct cluster *slow = lab_cluster(0.5, 2);
    struct replan_decision d = decide(&lab, slow, 10000, 30, &windows);
    assert_int_equal(d.verdict, REPLAN_STAY);
    assert_true(d.gain > REPLAN_GAIN);
    assert_int_equal(windows.windows, 1);
    assert_non_null(strstr(d.words, "Stay for now"));
    replan_decision_fini(&d);
    d = decide(&lab, slow, 10000, 30, &windows);
    assert_int_equal(d.verdict, REPLAN_MOVE);
    assert_non_null(d.plan);
    assert_true(fabs(d.saves_s - (d.old_step_s - d.new_step_s) * 10000) < 1e-6 * d.saves_s);
    assert_true(d.saves_s > d.costs_s && d.costs_s >= 30 && d.migration_bytes > 0);
    assert_int_equal(windows.windows, 0);
    assert_int_equal(plan_check(d.plan, &(struct err){0}), 0);
    replan_decision_fini(&d);
    cluster_destroy(slow);
    lab_fini(&lab);
}

static void a_gain_that_comes_and_goes_does_not_count_twice(void **state)
{
    (void)state;
    struct lab lab;
    struct replan_state windows = {0};
    lab_init(&lab);
    struct cluster *slow = lab_cluster(0.5, 2);
    for (int look = 0; look < 6; look++) {
        struct replan_decision d = decide(&lab, look % 2 ? lab.cluster : slow, 10000, 30, &windows);
        assert_int_equal(d.verdict, REPLAN_STAY);
        replan_decision_fini(&d);
    }
    cluster_destroy(slow);
    lab_fini(&lab);
}

static void a_small_gain_is_not_worth_it(void **state)
{
    (void)state;
    struct lab lab;
    struct replan_state windows = {0};
    lab_init(&lab);
    struct cluster *slower = lab_cluster(0.97, 2);
    for (int look = 0; look < 3; look++) {
        struct replan_decision d = decide(&lab, slower, 100000000, 1, &windows);
        assert_int_equal(d.verdict, REPLAN_STAY);
        assert_true(d.gain < REPLAN_GAIN);
        replan_decision_fini(&d);
    }
    cluster_destroy(slower);
    lab_fini(&lab);
}

static void the_last_steps_are_done_where_they_are(void **state)
{
    (void)state;
    struct lab lab;
    struct replan_state windows = {0};
    lab_init(&lab);
    struct cluster *slow = lab_cluster(0.5, 2);
    for (int look = 0; look < 3; look++) {
        struct replan_decision d = decide(&lab, slow, 3, 300, &windows);
        assert_int_equal(d.verdict, REPLAN_STAY);
        assert_non_null(strstr(d.words, "would save only"));
        replan_decision_fini(&d);
    }
    /* The gain is the same, but more steps remain. */
    struct replan_decision d = decide(&lab, slow, 1000000, 300, &windows);
    assert_int_equal(d.verdict, REPLAN_MOVE);
    json_t *json = replan_to_json(&d, &(struct err){0});
    assert_string_equal(json_string_value(json_object_get(json, "verdict")), "move");
    json_decref(json);
    replan_decision_fini(&d);
    cluster_destroy(slow);
    lab_fini(&lab);
}

static void a_device_that_is_gone_is_left_at_once(void **state)
{
    (void)state;
    struct lab lab;
    struct replan_state windows = {0};
    struct err err;
    lab_init(&lab);
    struct cluster *other = cluster_create(&err);
    fixture_device(other, "left/0", "left", (uint64_t)460 << 20, 1);
    fixture_device(other, "far/0", "far", (uint64_t)460 << 20, 1);
    struct replan_decision d = decide(&lab, other, 10, 300, &windows);
    assert_int_equal(d.verdict, REPLAN_MUST);
    assert_non_null(d.plan);
    assert_non_null(strstr(d.words, "right/0"));
    replan_decision_fini(&d);
    struct cluster *alone = cluster_create(&err);
    fixture_device(alone, "left/0", "left", (uint64_t)150 << 20, 1);
    d = decide(&lab, alone, 10, 300, &windows);
    assert_int_equal(d.verdict, REPLAN_STUCK);
    assert_null(d.plan);
    replan_decision_fini(&d);
    cluster_destroy(alone);
    cluster_destroy(other);
    lab_fini(&lab);
}

/* Blocks 5..8 go from the first device to the second. Their base and the state of their adapters have to be
 * moved. */
static void what_moves_is_what_was_not_there(void **state)
{
    (void)state;
    struct lab lab;
    struct err err = {0};
    struct problem problem;
    uint64_t bytes = 0;
    double seconds = 0, expected = 0;
    lab_init(&lab);
    struct plan *from = plan_create(2, 1, 16, 1, &err), *to = plan_create(2, 1, 16, 1, &err);
    struct plan *plans[2] = {from, to};
    for (int p = 0; p < 2; p++) {
        plans[p]->block_count = 18;
        for (int r = 0; r < 2; r++) {
            struct plan_rank *rank = &plans[p]->ranks[r];
            rank->device = strdup(r ? "right/0" : "left/0");
            rank->node = strdup(r ? "right" : "left");
            rank->block_begin = r ? (p ? 5 : 8) : 0;
            rank->block_end = r ? 18 : p ? 5 : 8;
            rank->state_share = 1;
        }
    }
    assert_int_equal(problem_init(&problem, &lab.workload, lab.cluster, &err), 0);
    for (int b = 5; b < 8; b++)
        expected += 4.0 * (double)problem.blocks.blocks[b].params +
                    12.0 * (double)problem.blocks.blocks[b].lora_params;
    assert_int_equal(replan_migration(&lab.workload, lab.cluster, from, to, &bytes, &seconds, &err), 0);
    assert_true(fabs((double)bytes - expected) <= 3);
    assert_true(fabs(seconds - (expected / 1e8 + 3 * 1e-3)) < 1e-6);
    /* Moving back moves as many bytes, and staying moves none. */
    assert_int_equal(replan_migration(&lab.workload, lab.cluster, to, from, &bytes, &seconds, &err), 0);
    assert_true(fabs((double)bytes - expected) <= 3);
    assert_int_equal(replan_migration(&lab.workload, lab.cluster, from, from, &bytes, &seconds, &err), 0);
    assert_true(bytes == 0 && seconds == 0);
    problem_fini(&problem);
    plan_destroy(from);
    plan_destroy(to);
    lab_fini(&lab);
}

/* Six times a thousandth of a step are wake-ups and timers; half of a step is the device's own slowness. */
static void a_rank_that_hardly_computes_tells_nothing_of_its_device(void **state)
{
    (void)state;
    struct lab lab;
    struct err err;
    lab_init(&lab);
    const struct plan *plan = lab.answer->plan;
    struct cluster *cluster = lab_cluster(1000, 2); /* the second device's part takes next to nothing */
    assert_int_equal(plan->rank_count, 2);
    const uint32_t second = strcmp(plan->ranks[1].device, "right/0") == 0;
    const double busy_s = plan->ranks[1 - second].busy_s, part_s = plan->ranks[second].busy_s / 1000;
    double compute_s[2], factors[2];
    compute_s[1 - second] = 2 * busy_s;
    compute_s[second] = 6 * part_s;
    assert_int_equal(replan_factors(&lab.workload, cluster, plan, compute_s, factors, &err), 0);
    assert_true(factors[second] == 1 && fabs(factors[1 - second] - 0.5) < 0.01);
    compute_s[second] = 0.5 * busy_s;
    assert_int_equal(replan_factors(&lab.workload, cluster, plan, compute_s, factors, &err), 0);
    assert_true(factors[second] < 0.01);
    cluster_destroy(cluster);
    lab_fini(&lab);
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    struct lab lab;
    struct err err = {0};
    struct replan_state windows = {0};
    struct replan_decision decision;
    lab_init(&lab);
    struct replan_input input = {.old = lab.answer->plan,
                                 .workload = &lab.workload,
                                 .cluster = lab.cluster,
                                 .steps_left = 10,
                                 .restart_s = NAN};
    assert_int_equal(replan_decide(&input, &windows, &decision, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    lab_fini(&lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_changed_nothing_moves),
        cmocka_unit_test(a_slow_device_moves_the_job_at_the_second_look),
        cmocka_unit_test(a_gain_that_comes_and_goes_does_not_count_twice),
        cmocka_unit_test(a_small_gain_is_not_worth_it),
        cmocka_unit_test(the_last_steps_are_done_where_they_are),
        cmocka_unit_test(a_device_that_is_gone_is_left_at_once),
        cmocka_unit_test(what_moves_is_what_was_not_there),
        cmocka_unit_test(a_rank_that_hardly_computes_tells_nothing_of_its_device),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
