/* Tests simulations of recorded arrivals: the planner that is fitted to recorded forecasts, and summaries
 * beside what happened. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/simulate/records.h"

#define HOUR_US 3600000000
#define BEGINS_US (1767225600 * (int64_t)1000000) /* 2026-01-01T00:00:00Z */

/* Two cards, the second half as fast and half as large. A class "1" that runs on either or both, and a class
 * "2" of which only plans on both and the failure on each are known. */
static const char records_text[] =
    "{\"sharing\": {\"half_life\": 86400, \"width_least\": 0.5},"
    " \"users\": [{\"name\": \"ada\"}, {\"name\": \"bob\", \"running_max\": 1}],"
    " \"groups\": [{\"name\": \"below\", \"parent\": \"lab\", \"weight\": 2}, {\"name\": \"lab\", "
    "\"parent\": null, \"weight\": 1}],"
    " \"devices\": [{\"name\": \"a/0\", \"bytes\": 80}, {\"name\": \"b/0\", \"bytes\": 40}],"
    " \"classes\": [{\"id\": 1, \"speeds\": {\"a/0\": 1, \"b/0\": 0.5}}, {\"id\": 2, \"speeds\": {\"a/0\": "
    "1, \"b/0\": 0.5}}],"
    " \"forecasts\": [{\"class\": 1, \"devices\": [\"a/0\"], \"step_s\": 1}, {\"class\": 1, \"devices\": "
    "[\"b/0\"], \"step_s\": 2.2},"
    "   {\"class\": 2, \"devices\": [\"a/0\"], \"step_s\": null}, {\"class\": 2, \"devices\": [\"b/0\"], "
    "\"step_s\": null},"
    "   {\"class\": 2, \"devices\": [\"a/0\", \"b/0\"], \"step_s\": 3}],"
    " \"leases\": []}";

static json_t *parse(const char *text)
{
    json_t *document = json_loads(text, 0, NULL);
    assert_non_null(document);
    return document;
}

/* Jobs of an hour on a/0 that arrive together, of ada below the root and of bob in the group `below`. In
 * truth each took twice as long as predicted. */
static json_t *arrivals_of(size_t count)
{
    json_t *arrivals = json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *row = parse(
            "{\"at\": \"2026-01-01T01:00:00Z\", \"class\": 1, \"service\": \"normal\", \"priority\": 0, "
            "\"steps\": 3600, \"started\": \"2026-01-01T02:00:00Z\", \"ended\": \"2026-01-01T04:00:00Z\", "
            "\"state\": \"succeeded\", \"devices\": [\"a/0\"], \"step_s\": 1, \"ran_s\": 7200}");
        json_object_set_new(row, "id", json_integer((json_int_t)i + 1));
        json_object_set_new(row, "user", json_string(i % 2 ? "bob" : "ada"));
        json_object_set_new(row, "group", i % 2 ? json_string("below") : json_null());
        json_array_append_new(arrivals, row);
    }
    return arrivals;
}

static void make(const json_t *records, const json_t *arrivals, const char *added,
                 struct recorded_world *world)
{
    struct err err;
    const char *const add[] = {added};
    if (recorded_world_make(records, arrivals, add, added ? 1 : 0, BEGINS_US, BEGINS_US + 48 * HOUR_US, world,
                            &err) < 0)
        fail_msg("%s", err.text);
}

static enum policy_fit ask(struct recorded_world *world, uint32_t class, unsigned devices,
                           struct policy_plan *plan)
{
    const struct device_set among = {{devices}};
    return world->asked.best(world->asked.arg, class, &among, 0, plan);
}

static void recorded_sets_have_their_forecasts_and_others_are_estimated(void **state)
{
    (void)state;
    json_t *records = parse(records_text), *arrivals = arrivals_of(2);
    struct recorded_world world;
    make(records, arrivals, "a/0", &world);
    struct policy_plan plan;
    assert_int_equal(ask(&world, 0, 2, &plan), FIT_YES);
    assert_true(plan.step_s == 2.2 && plan.rate == 0.5);
    assert_int_equal(ask(&world, 0, 1, &plan), FIT_YES);
    assert_true(plan.step_s == 1);
    assert_int_equal(ask(&world, 0, 4, &plan), FIT_YES); /* the further card is as good as a/0 */
    assert_true(fabs(plan.step_s - 1.05) < 0.06);
    assert_int_equal(ask(&world, 1, 1, &plan), FIT_NO);
    assert_int_equal(ask(&world, 1, 2, &plan), FIT_NO);
    assert_int_equal(ask(&world, 1, 3, &plan), FIT_YES);
    assert_true(plan.step_s == 3 && plan.rate == 1.5);
    assert_int_equal(ask(&world, 1, 6, &plan), FIT_YES);
    assert_true(fabs(plan.step_s - 3) < 1e-9);
    recorded_world_fini(&world);
    json_decref(records);
    json_decref(arrivals);
}

static double of(const json_t *summary, const char *key)
{
    return json_number_value(json_object_get(summary, key));
}

static void summaries_stand_beside_what_happened(void **state)
{
    (void)state;
    json_t *records = parse(records_text), *arrivals = arrivals_of(8);
    struct recorded_outcome outcomes[8];
    struct err err;
    struct recorded_world world;
    make(records, arrivals, NULL, &world);
    assert_true(world.settings.half_life_s == 86400 && world.settings.width_least == 0.5);
    assert_int_equal(world.simulation.job_count, 8);
    assert_true(world.jobs[0].error == 2);
    json_t *happened = recorded_summary(&world, world.happened, 2);
    assert_true(of(happened, "started") == 8 && of(happened, "ended") == 8 &&
                of(happened, "wait_mean_s") == 3600);
    assert_true(fabs(of(happened, "use") - 8 * 2 / 96.0) < 1e-9);
    assert_int_equal(recorded_world_run(&world, &world.settings, outcomes, &err), 0);
    json_t *simulated = recorded_summary(&world, outcomes, 2);
    assert_true(of(simulated, "ended") == 8 && of(simulated, "wait_longest_s") > 4 * 3600);
    for (size_t i = 0; i < 8; i++) /* bob runs one job at once */
        for (size_t k = i + 2; i % 2 && k < 8; k += 2)
            assert_true(outcomes[k].starts_us >= outcomes[i].ends_us ||
                        outcomes[i].starts_us >= outcomes[k].ends_us);
    const json_t *below = json_array_get(json_object_get(simulated, "groups"), 1);
    assert_string_equal(json_string_value(json_object_get(below, "name")), "below");
    assert_true(of(below, "jobs") == 4);
    recorded_world_fini(&world);

    make(records, arrivals, "a/0", &world);
    assert_int_equal(recorded_world_run(&world, &world.settings, outcomes, &err), 0);
    json_t *more = recorded_summary(&world, outcomes, 3);
    assert_true(of(more, "wait_mean_s") < of(simulated, "wait_mean_s"));
    recorded_world_fini(&world);
    json_decref(happened);
    json_decref(simulated);
    json_decref(more);
    json_decref(records);
    json_decref(arrivals);
}

static void what_left_the_queue_is_not_simulated_and_what_is_unknown_is_refused(void **state)
{
    (void)state;
    json_t *records = parse(records_text), *arrivals = arrivals_of(3);
    struct recorded_world world;
    struct err err;
    json_object_set_new(json_array_get(arrivals, 0), "started", json_null());
    json_object_set_new(json_array_get(arrivals, 1), "state", json_string("cancelled"));
    make(records, arrivals, NULL, &world);
    assert_true(world.left == 1 && world.simulation.job_count == 2);
    assert_true(world.jobs[0].steps == 7200 && world.jobs[0].error == 1);
    recorded_world_fini(&world);
    const char *const add[] = {"c/0"};
    assert_int_equal(recorded_world_make(records, arrivals, add, 1, BEGINS_US, BEGINS_US + 1, &world, &err),
                     -1);
    assert_string_equal(err.text, "--add c/0: there is no such device");
    json_object_set_new(json_array_get(arrivals, 1), "user", json_string("eve"));
    assert_int_equal(recorded_world_make(records, arrivals, NULL, 0, BEGINS_US, BEGINS_US + 1, &world, &err),
                     -1);
    assert_non_null(strstr(err.text, "job 2: its record names"));
    json_object_set_new(json_object_get(records, "sharing"), "half_life", json_string("soon"));
    assert_int_equal(recorded_world_make(records, arrivals, NULL, 0, BEGINS_US, BEGINS_US + 1, &world, &err),
                     -1);
    assert_non_null(strstr(err.text, "sharing.half_life"));
    json_decref(records);
    json_decref(arrivals);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_sets_have_their_forecasts_and_others_are_estimated),
        cmocka_unit_test(summaries_stand_beside_what_happened),
        cmocka_unit_test(what_left_the_queue_is_not_simulated_and_what_is_unknown_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
