/* Tests trial steps under a real scheduler process with fake agents: a job's first steps run on its best
 * plans in turn, the fastest is kept, and whatever ends a trial costs no step. */
#include "scheduler/world.h"

static struct world world;

static void fresh_agents(double left_s, double right_s)
{
    for (int i = 0; i < WORLD_AGENTS; i++) {
        world.agents[i]->silent = false;
        world.agents[i]->steps_max = 0;
        world.agents[i]->compute_s = i == 0 ? left_s : right_s;
        fake_forget(world.agents[i]);
    }
}

/* Submits a long job whose first plan is on left/cpu0 and whose other plan is on right/cpu0. */
static int64_t submit(void)
{
    const struct world_job job = {
        .name = "tried", .steps = 1000000, .every = 100000, .tokens = 69, .retries = 3};
    return world_submit(&world, &job);
}

static bool trial_is(int64_t id, const char *state)
{
    json_t *doc = world_job(&world, id);
    const char *is = json_string_value(json_object_get(json_object_get(doc, "trial"), "state"));
    const bool same = is && strcmp(is, state) == 0;
    json_decref(doc);
    return same;
}

static json_int_t chosen_of(int64_t id)
{
    json_t *doc = world_job(&world, id);
    const json_int_t chosen = json_integer_value(json_object_get(json_object_get(doc, "trial"), "chosen"));
    json_decref(doc);
    return chosen;
}

static bool runs_on(int64_t id, const char *device)
{
    json_t *doc = world_job(&world, id);
    const json_t *run = json_object_get(doc, "run");
    const char *on =
        json_string_value(json_object_get(json_array_get(json_object_get(run, "ranks"), 0), "device"));
    const bool same = world_is(&world, id, "running") && on && strcmp(on, device) == 0;
    json_decref(doc);
    return same;
}

/* Cancels the job, and checks that each of its steps was reported once and that no attempt was lost. */
static void end_without_a_gap(int64_t id)
{
    json_decref(world_command(&world, id, JOB_EVENT_CANCEL, 0));
    WORLD_UNTIL(&world, world_is(&world, id, "cancelled"));
    world_check_metrics(&world, id, world_number(&world, id, "step"));
}

static void the_fastest_plan_is_kept(void **state)
{
    (void)state;
    fresh_agents(0.02, 0.01);
    int64_t id = submit();
    WORLD_UNTIL(&world, trial_is(id, "done"));
    assert_int_equal(chosen_of(id), 1);
    assert_true(
        world_logged(&world, id,
                     "trial steps: single on left/cpu0 took 20.0 ms per step (10.0 ms predicted); single on "
                     "right/cpu0 took 10.0 ms per step (12.0 ms predicted). It keeps single, which saves "));
    WORLD_UNTIL(&world, runs_on(id, "right/cpu0"));
    assert_int_equal(world_number(&world, id, "attempt"), 2);
    assert_int_equal(world_number(&world, id, "losses"), 0);
    end_without_a_gap(id);
}

static void a_job_returns_to_its_first_plan_if_that_was_fastest(void **state)
{
    (void)state;
    fresh_agents(0.01, 0.02);
    int64_t id = submit();
    WORLD_UNTIL(&world, trial_is(id, "done"));
    assert_int_equal(chosen_of(id), 0);
    WORLD_UNTIL(&world, world_number(&world, id, "attempt") == 3 && runs_on(id, "left/cpu0"));
    assert_true(world_logged(&world, id, "It keeps the first plan; the trial took "));
    assert_int_equal(world_number(&world, id, "losses"), 0);
    end_without_a_gap(id);
}

/* What is decided stands in the database: the next leader goes on with the trial. */
static void a_scheduler_that_is_killed_in_a_trial_costs_nothing(void **state)
{
    (void)state;
    fresh_agents(0.02, 0.01);
    world.agents[0]->steps_max = 30;
    int64_t id = submit();
    WORLD_UNTIL(&world, world_number(&world, id, "step") == 30);
    world_kill(&world, 0, SIGKILL);
    world.agents[0]->steps_max = 0;
    world_spawn(&world, 0);
    WORLD_UNTIL(&world, world_number(&world, id, "attempt") == 2);
    world_kill(&world, 0, SIGKILL);
    world_spawn(&world, 0);
    WORLD_UNTIL(&world, trial_is(id, "done"));
    assert_int_equal(chosen_of(id), 1);
    WORLD_UNTIL(&world, runs_on(id, "right/cpu0"));
    assert_int_equal(world_number(&world, id, "losses"), 0);
    end_without_a_gap(id);
}

static void a_trial_is_given_up_when_another_job_wants_devices(void **state)
{
    (void)state;
    fresh_agents(0.01, 0.01);
    world.agents[0]->steps_max = 50;
    int64_t id = submit();
    WORLD_UNTIL(&world, world_number(&world, id, "step") == 50);
    const struct world_job other = {
        .name = "other", .devices = "left/cpu0 right/cpu0", .steps = 5, .every = 1000};
    int64_t behind = world_submit(&world, &other);
    WORLD_UNTIL(&world, trial_is(id, "given up"));
    assert_true(world_logged(&world, id, "trial steps were given up: other jobs wait for devices"));
    assert_true(runs_on(id, "left/cpu0"));
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, world_number(&world, id, "step") > 300);
    assert_int_equal(world_number(&world, id, "attempt"), 1);
    end_without_a_gap(id);
    WORLD_UNTIL(&world, world_is(&world, behind, "succeeded"));
}

/* A run that has to leave its device ends the trial; the job goes on elsewhere from its checkpoint. */
static void a_run_that_is_stopped_in_a_trial_ends_it(void **state)
{
    (void)state;
    fresh_agents(0.01, 0.01);
    world.agents[0]->steps_max = 50;
    int64_t id = submit();
    WORLD_UNTIL(&world, world_number(&world, id, "step") == 50);
    world_drain(&world, "left/cpu0", true);
    WORLD_UNTIL(&world, trial_is(id, "given up"));
    WORLD_UNTIL(&world, runs_on(id, "right/cpu0"));
    WORLD_UNTIL(&world, world_number(&world, id, "step") > 300);
    assert_int_equal(world_number(&world, id, "attempt"), 2);
    assert_int_equal(world_number(&world, id, "losses"), 0);
    end_without_a_gap(id);
    world_drain(&world, "left/cpu0", false);
}

static void a_job_that_is_cancelled_in_a_trial_ends(void **state)
{
    (void)state;
    fresh_agents(0.01, 0.01);
    world.agents[0]->steps_max = 50;
    int64_t id = submit();
    WORLD_UNTIL(&world, world_number(&world, id, "step") == 50);
    assert_true(trial_is(id, "trying"));
    end_without_a_gap(id);
    assert_true(trial_is(id, "given up"));
}

/* Measured steps outweigh a forecast: a job does not move to a plan that was no faster when it was tried. */
static void a_plan_that_was_tried_and_slower_is_not_moved_to(void **state)
{
    (void)state;
    fresh_agents(0.01, 0.02);
    int64_t id = submit();
    WORLD_UNTIL(&world, world_number(&world, id, "attempt") == 3 && runs_on(id, "left/cpu0"));
    world.agents[0]->compute_s = 0.015;
    WORLD_UNTIL(&world,
                world_logged(&world, id, " It stays, as the new plan was no faster in its trial steps."));
    assert_true(runs_on(id, "left/cpu0"));
    assert_int_equal(world_number(&world, id, "attempt"), 3);
    end_without_a_gap(id);
}

static int make(void **state)
{
    world.lost_ms = WORLD_PATIENT_MS; /* nodes are only drained here */
    world_make(&world, state);
    return 0;
}

static int end(void **state)
{
    (void)state;
    world_end(&world);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--scheduler") == 0)
        return world_scheduler_main(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_plan_is_kept),
        cmocka_unit_test(a_job_returns_to_its_first_plan_if_that_was_fastest),
        cmocka_unit_test(a_scheduler_that_is_killed_in_a_trial_costs_nothing),
        cmocka_unit_test(a_trial_is_given_up_when_another_job_wants_devices),
        cmocka_unit_test(a_run_that_is_stopped_in_a_trial_ends_it),
        cmocka_unit_test(a_job_that_is_cancelled_in_a_trial_ends),
        /* the last one: what its run measures of left/cpu0 is kept */
        cmocka_unit_test(a_plan_that_was_tried_and_slower_is_not_moved_to),
    };
    return cmocka_run_group_tests(tests, make, end);
}
