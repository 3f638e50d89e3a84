/* The scheduler's rows through the real planner and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "program/codec.h"
#include "scheduler/ask.h"

static void a_plan_comes_back_sealed_with_a_device_a_rank(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    (void)state;
    ask_make(&ask, "pipeline", (uint64_t)400 << 20);
    if (placer_planner.plan(&ask.request, &answer, &err) < 0) {
        fail_msg("%s", err.text);
    }
    assert_true(answer.fits);
    assert_int_equal(answer.rank_count, 2);
    struct plan *plan = plan_from_json(answer.plan, &err);
    assert_non_null(plan); /* what a worker will do with it */
    for (size_t i = 0; i < answer.rank_count; i++) {
        assert_string_equal(plan->ranks[i].device, answer.ranks[i].device);
    }
    assert_string_equal(json_string_value(json_object_get(answer.answer, "verdict")), "fits");
    plan_destroy(plan);
    placer_answer_fini(&answer);
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
    if (placer_planner.plan(&ask.request, &answer, &err) < 0) {
        fail_msg("%s", err.text);
    }
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
    ask_make(&ask, "auto", 100000); /* 100 kB */
    if (placer_planner.plan(&ask.request, &answer, &err) < 0) {
        fail_msg("%s", err.text);
    }
    assert_false(answer.fits);
    assert_null(answer.plan);
    assert_non_null(strpbrk(answer.words, "0123456789"));
    placer_answer_fini(&answer);
    ask_fini(&ask);
}

/* A look at a job that runs on one device, which keeps `heat` of its speed; the other is free. */
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
    if (placer_planner.plan(&request, &answer, &err) < 0) {
        fail_msg("%s", err.text);
    }
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

static void a_throttled_run_moves_when_the_rule_says_so(void **state)
{
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    (void)state;
    ask_make(&ask, "single", (uint64_t)400 << 20);
    ask.request.device_count = 1;
    if (placer_planner.plan(&ask.request, &answer, &err) < 0) {
        fail_msg("%s", err.text);
    }
    json_t *plan = json_incref(answer.plan);
    placer_answer_fini(&answer);
    ask.request.device_count = 2;
    verdict_is(looked_at(&ask, plan, 1, 1000000, 0), "stay", 0);
    json_t *decision = looked_at(&ask, plan, 0.5, 1000000, 0); /* once is no trend */
    double ratio = json_number_value(json_object_get(decision, "old_step_s")) /
                   json_number_value(json_object_get(decision, "new_step_s"));
    assert_true(ratio > 1.9 && ratio < 2.1); /* time is table / φ */
    verdict_is(decision, "stay", 1);
    verdict_is(looked_at(&ask, plan, 0.5, 1000000, 1), "move", 2);
    verdict_is(looked_at(&ask, plan, 0.5, 1, 1), "stay", 2); /* not for one step */
    ask.request.device_count = 1;                            /* nowhere to go */
    verdict_is(looked_at(&ask, plan, 0.5, 1000000, 1), "stay", 0);
    json_decref(plan);
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
        cmocka_unit_test(links_to_absent_nodes_do_not_matter),
        cmocka_unit_test(what_does_not_fit_is_said_with_numbers),
        cmocka_unit_test(a_throttled_run_moves_when_the_rule_says_so),
        cmocka_unit_test(a_wrong_specification_is_the_jobs_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
