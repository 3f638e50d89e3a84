/* Tests the placer over the real planner: the scheduler's rows become its question, and its plan becomes an
 * answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "program/codec.h"
#include "scheduler/ask.h"
#include "scheduler/placer/placer_private.h"
#include "support/must.h"

static void a_plan_comes_back_sealed_with_a_device_a_rank(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    (void)state;
    ask_make(&ask, "pipeline", (uint64_t)400 << 20);
    if (placer_planner.plan(&ask.request, &answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(answer.fits);
    assert_int_equal(answer.rank_count, 2);
    struct plan *plan = plan_from_json(answer.plan, &err);
    assert_non_null(plan);
    for (size_t i = 0; i < answer.rank_count; i++)
        assert_string_equal(plan->ranks[i].device, answer.ranks[i].device);
    assert_string_equal(json_string_value(json_object_get(answer.answer, "verdict")), "fits");
    plan_destroy(plan);
    placer_answer_fini(&answer);
    ask_fini(&ask);
}

/* A whole plan is checked before its slices are sent. A slice that is too large for agents to decode is
 * refused, and the error says what to change. */
static void a_plan_is_checked_before_it_is_sent(void **state)
{
    const struct frame_limits few = {.bytes_max = 1 << 20, .depth_max = 32, .count_max = 100},
                              small = {.bytes_max = 2000, .depth_max = 32, .count_max = 1 << 20};
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    (void)state;
    ask_make(&ask, "pipeline", (uint64_t)400 << 20);
    must(placer_planner.plan(&ask.request, &answer, &err), &err);
    struct plan *plan = plan_from_json(answer.plan, &err);
    must(placer_plan_check(plan, answer.plan, &frame_limits_default, &err), &err);
    assert_int_equal(placer_plan_check(plan, answer.plan, &small, &err), -1);
    assert_int_equal(err.code, ERR_TOO_BIG);
    assert_non_null(strstr(err.text, "2000 bytes"));
    assert_non_null(strstr(err.text, "placement.micro_batch_rows"));
    assert_int_equal(placer_plan_check(plan, answer.plan, &few, &err), -1);
    assert_int_equal(err.code, ERR_TOO_BIG);
    plan->ranks[1].programs[PROGRAM_TRAIN].instrs[0].slot_out = 99;
    assert_int_equal(placer_plan_check(plan, answer.plan, &frame_limits_default, &err), -1);
    assert_int_equal(err.code, ERR_INTERNAL);
    assert_non_null(strstr(err.text, "rank 1 train instruction 0"));
    plan_destroy(plan);
    placer_answer_fini(&answer);
    ask_fini(&ask);
}

/* Routing in the job's inputs reaches the planner, which refuses it by name for a model without experts. */
static void measured_routing_is_in_the_question(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    (void)state;
    ask_make(&ask, "auto", (uint64_t)400 << 20);
    json_object_set_new(ask.inputs, "expert_share", json_pack("[n, [f, f]]", 0.25, 0.75));
    assert_int_equal(placer_planner.plan(&ask.request, &answer, &err), -1);
    assert_non_null(strstr(err.text, "expert_share: the model has no experts"));
    json_t *problem = placer_problem(&ask.request, &err);
    assert_true(
        json_equal(json_object_get(problem, "expert_share"), json_object_get(ask.inputs, "expert_share")));
    json_decref(problem);
    placer_answer_fini(&answer);
    ask_fini(&ask);
}

/* A profile that cannot be read costs its own device. A job that has no other device waits: it is not the
 * job's fault. */
static void a_wrong_profile_costs_its_own_device(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    json_t *wrong = json_pack("{s:s, s:[]}", "device", "right/cpu0", "points");
    (void)state;
    ask_make(&ask, "auto", (uint64_t)400 << 20);
    ask.placed[1].profile = wrong;
    must(placer_planner.plan(&ask.request, &answer, &err), &err);
    assert_true(answer.fits);
    assert_int_equal(answer.rank_count, 1);
    assert_string_equal(answer.ranks[0].device, "left/cpu0");
    const json_t *left = json_array_get(json_object_get(answer.answer, "left_out"), 0);
    assert_string_equal(json_string_value(json_object_get(left, "device")), "right/cpu0");
    assert_non_null(strstr(json_string_value(json_object_get(left, "why")), "points"));
    placer_answer_fini(&answer);
    ask.request.devices = &ask.placed[1];
    ask.request.device_count = 1;
    assert_int_equal(placer_planner.plan(&ask.request, &answer, &err), -1);
    assert_int_equal(err.code, ERR_BUSY);
    assert_non_null(strstr(err.text, "right/cpu0"));
    json_decref(wrong);
    ask_fini(&ask);
}

static void links_to_absent_nodes_do_not_matter(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    (void)state;
    ask_make(&ask, "auto", (uint64_t)400 << 20);
    ask.request.device_count = 1;
    if (placer_planner.plan(&ask.request, &answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(answer.fits);
    assert_int_equal(answer.rank_count, 1);
    assert_string_equal(answer.ranks[0].device, "left/cpu0");
    placer_answer_fini(&answer);
    ask_fini(&ask);
}

static void what_does_not_fit_is_said_with_numbers(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    (void)state;
    ask_make(&ask, "auto", 100000); /* devices of 100 kB */
    if (placer_planner.plan(&ask.request, &answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_false(answer.fits);
    assert_null(answer.plan);
    assert_non_null(strpbrk(answer.words, "0123456789"));
    placer_answer_fini(&answer);
    ask_fini(&ask);
}

/* Returns the decision about a job that runs on one device at the fraction `heat` of its speed, while the
 * other device is free. */
static json_t *looked_at(struct ask *ask, const json_t *plan, double heat, uint64_t steps_left,
                         uint32_t windows)
{
    struct placer_answer answer;
    struct err err;
    const struct placer_move move = {
        .plan = plan, .steps_left = steps_left, .restart_s = 1, .windows = windows};
    struct placer_request request = ask->request;
    request.move = &move;
    ask->placed[0].heat = heat;
    if (placer_planner.plan(&request, &answer, &err) < 0)
        fail_msg("%s", err.text);
    json_t *decision = json_incref(answer.answer);
    placer_answer_fini(&answer);
    return decision;
}

static void verdict_is(json_t *decision, const char *verdict, int windows)
{
    assert_string_equal(json_string_value(json_object_get(decision, "verdict")), verdict);
    assert_int_equal(json_integer_value(json_object_get(decision, "windows")), windows);
    json_decref(decision);
}

/* Makes a question and returns the plan of a job on left/cpu0, beside which right/cpu0 is free. */
static json_t *planned_on_left(struct ask *ask)
{
    struct placer_answer answer;
    struct err err;
    ask_make(ask, "single", (uint64_t)400 << 20);
    ask->request.device_count = 1;
    if (placer_planner.plan(&ask->request, &answer, &err) < 0)
        fail_msg("%s", err.text);
    json_t *plan = json_incref(answer.plan);
    placer_answer_fini(&answer);
    ask->request.device_count = 2;
    return plan;
}

static void a_throttled_run_moves_when_the_rule_says_so(void **state)
{
    struct ask ask;
    (void)state;
    json_t *plan = planned_on_left(&ask);
    verdict_is(looked_at(&ask, plan, 1, 1000000, 0), "stay", 0);
    /* One throttled window is not enough to move. */
    json_t *decision = looked_at(&ask, plan, 0.5, 1000000, 0);
    double ratio = json_number_value(json_object_get(decision, "old_step_s")) /
                   json_number_value(json_object_get(decision, "new_step_s"));
    /* The predicted time is the profile's time divided by `heat`. */
    assert_true(ratio > 1.9 && ratio < 2.1);
    verdict_is(decision, "stay", 1);
    verdict_is(looked_at(&ask, plan, 0.5, 1000000, 1), "move", 2);
    /* A move for one remaining step does not pay. */
    verdict_is(looked_at(&ask, plan, 0.5, 1, 1), "stay", 2);
    ask.request.device_count = 1; /* there is no other device */
    verdict_is(looked_at(&ask, plan, 0.5, 1000000, 1), "stay", 0);
    json_decref(plan);
    ask_fini(&ask);
}

/* Before plans are compared, the devices' tables are corrected by the times that the run measured. The
 * decision states how fast each device was, and the next plan starts from that. */
static void what_a_run_measures_corrects_the_tables(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    (void)state;
    json_t *plan = planned_on_left(&ask);
    const double planned =
        json_number_value(json_object_get(json_array_get(json_object_get(plan, "ranks"), 0), "busy_s"));
    assert_true(planned > 0);
    ask.placed[0].speed = 1.25; /* the plan was made with another speed than the one known now */
    for (int slow = 0; slow < 2; slow++) {
        const double measured = slow ? 2 * planned : planned;
        const struct placer_move move = {.plan = plan,
                                         .compute_s = &measured,
                                         .rank_count = 1,
                                         .steps_left = 1000000,
                                         .restart_s = 1,
                                         .windows = 1};
        struct placer_request request = ask.request;
        request.move = &move;
        if (placer_planner.plan(&request, &answer, &err) < 0)
            fail_msg("%s", err.text);
        assert_string_equal(json_string_value(json_object_get(answer.answer, "verdict")),
                            slow ? "move" : "stay");
        const json_t *from = json_object_get(json_object_get(answer.answer, "old"), "devices");
        assert_string_equal(json_string_value(json_array_get(from, 0)), "left/cpu0");
        const json_t *to = json_object_get(json_object_get(answer.answer, "new"), "devices");
        assert_true(slow ? strcmp(json_string_value(json_array_get(to, 0)), "right/cpu0") == 0 : !to);
        const json_t *speeds = json_object_get(answer.answer, "speeds");
        const double speed = json_number_value(json_object_get(speeds, "left/cpu0"));
        assert_true(slow ? fabs(speed - 0.5) < 1e-6 : fabs(speed - 1) < 1e-6);
        placer_answer_fini(&answer);
    }
    /* A time that no step takes says nothing of the device: the run stays. */
    const double absurd = 1e300;
    const struct placer_move lied = {.plan = plan,
                                     .compute_s = &absurd,
                                     .rank_count = 1,
                                     .steps_left = 1000000,
                                     .restart_s = 1,
                                     .windows = 1};
    struct placer_request lie = ask.request;
    lie.move = &lied;
    if (placer_planner.plan(&lie, &answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(json_string_value(json_object_get(answer.answer, "verdict")), "stay");
    placer_answer_fini(&answer);
    /* Times measured before a card became hot do not show that it is fast now. */
    const struct placer_move fast = {.plan = plan,
                                     .compute_s = &planned,
                                     .rank_count = 1,
                                     .steps_left = 1000000,
                                     .restart_s = 1,
                                     .windows = 1};
    struct placer_request hot = ask.request;
    hot.move = &fast;
    ask.placed[0].speed = 1;
    ask.placed[0].heat = 0.3;
    if (placer_planner.plan(&hot, &answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(json_string_value(json_object_get(answer.answer, "verdict")), "move");
    placer_answer_fini(&answer);
    ask.placed[0].heat = 1;
    /* With the measured speed, a new plan uses the other device. */
    ask.placed[0].speed = 0.5;
    if (placer_planner.plan(&ask.request, &answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(answer.ranks[0].device, "right/cpu0");
    placer_answer_fini(&answer);
    json_decref(plan);
    ask_fini(&ask);
}

/* Makes the question of a job long enough for trials, which may try so many other plans. */
static void ask_long(struct ask *ask, int trials)
{
    ask_make(ask, "auto", (uint64_t)400 << 20);
    json_object_set_new(json_object_get(ask->spec, "train"), "steps", json_integer(10000000));
    json_object_set_new(json_object_get(ask->spec, "placement"), "trials", json_integer(trials));
}

/* Plans of other placements come with the answer, as many as the job asks for, the fastest first. */
static void rivals_come_with_the_plan_of_a_long_job(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    size_t i, before;
    json_t *rival;
    (void)state;
    for (int trials = 0; trials <= 2; trials++) {
        ask_long(&ask, trials);
        must(placer_planner.plan(&ask.request, &answer, &err), &err);
        double last = json_number_value(json_object_get(answer.answer, "step_s"));
        assert_int_equal(json_array_size(answer.rivals), trials);
        const double best = last;
        json_array_foreach (answer.rivals, i, rival) {
            const double seconds = json_number_value(json_object_get(rival, "step_s"));
            struct plan *plan = plan_from_json(json_object_get(rival, "plan"), &err);
            must(plan ? 0 : -1, &err);
            assert_true(seconds >= last && seconds <= 2 * best);
            assert_string_equal(plan->digest, json_string_value(json_object_get(rival, "digest")));
            assert_string_equal(plan_placement_name(plan->placement),
                                json_string_value(json_object_get(rival, "placement")));
            assert_string_not_equal(json_string_value(json_object_get(rival, "placement")),
                                    json_string_value(json_object_get(answer.answer, "placement")));
            for (before = 0; before < i; before++)
                assert_false(json_equal(json_object_get(json_array_get(answer.rivals, before), "placement"),
                                        json_object_get(rival, "placement")));
            plan_destroy(plan);
            last = seconds;
        }
        placer_answer_fini(&answer);
        ask_fini(&ask);
    }
}

static void a_short_job_and_one_that_never_moves_have_no_rivals(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    (void)state;
    ask_long(&ask, 2);
    json_object_set_new(json_object_get(ask.spec, "train"), "steps", json_integer(3));
    must(placer_planner.plan(&ask.request, &answer, &err), &err);
    assert_int_equal(json_array_size(answer.rivals), 0);
    placer_answer_fini(&answer);
    ask_fini(&ask);
    ask_long(&ask, 2);
    json_object_set_new(json_object_get(ask.spec, "placement"), "move", json_string("never"));
    must(placer_planner.plan(&ask.request, &answer, &err), &err);
    assert_int_equal(json_array_size(answer.rivals), 0);
    placer_answer_fini(&answer);
    ask_fini(&ask);
}

/* A pinned plan is the answer where its devices are there; elsewhere the job is planned as if nothing were.
 */
static void a_pinned_plan_is_the_answer_where_it_can_run(void **state)
{
    struct ask ask;
    struct placer_answer answer, again;
    struct err err;
    (void)state;
    ask_long(&ask, 2);
    must(placer_planner.plan(&ask.request, &answer, &err), &err);
    const json_t *rival = json_array_get(answer.rivals, 0);
    ask.request.pinned = json_object_get(rival, "plan");
    must(placer_planner.plan(&ask.request, &again, &err), &err);
    assert_true(again.fits);
    assert_true(json_equal(json_object_get(again.answer, "placement"), json_object_get(rival, "placement")));
    assert_true(json_equal(json_object_get(again.answer, "repeats"), json_object_get(rival, "digest")));
    placer_answer_fini(&again);
    ask.request.device_count = 1;
    must(placer_planner.plan(&ask.request, &again, &err), &err);
    assert_true(again.fits);
    assert_int_equal(again.rank_count, 1);
    assert_null(json_object_get(again.answer, "repeats"));
    placer_answer_fini(&again);
    placer_answer_fini(&answer);
    ask_fini(&ask);
}

static void a_wrong_specification_is_the_jobs_fault(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    (void)state;
    ask_make(&ask, "auto", (uint64_t)400 << 20);
    json_object_set_new(ask.spec, "no_such_key", json_true());
    assert_int_equal(placer_planner.plan(&ask.request, &answer, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    ask_fini(&ask);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_comes_back_sealed_with_a_device_a_rank),
        cmocka_unit_test(a_plan_is_checked_before_it_is_sent),
        cmocka_unit_test(measured_routing_is_in_the_question),
        cmocka_unit_test(a_wrong_profile_costs_its_own_device),
        cmocka_unit_test(links_to_absent_nodes_do_not_matter),
        cmocka_unit_test(what_does_not_fit_is_said_with_numbers),
        cmocka_unit_test(a_throttled_run_moves_when_the_rule_says_so),
        cmocka_unit_test(what_a_run_measures_corrects_the_tables),
        cmocka_unit_test(rivals_come_with_the_plan_of_a_long_job),
        cmocka_unit_test(a_short_job_and_one_that_never_moves_have_no_rivals),
        cmocka_unit_test(a_pinned_plan_is_the_answer_where_it_can_run),
        cmocka_unit_test(a_wrong_specification_is_the_jobs_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
