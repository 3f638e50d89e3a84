/* Tests jobs whose devices change, under a real scheduler process with fake agents: what happens when a
 * forced kind of placement no longer fits, and when a run moves to other devices. */
#include "scheduler/world.h"

static struct world world;

static void fresh_agents(void **state)
{
    (void)state;
    for (int i = 0; i < WORLD_AGENTS; i++) {
        world.agents[i]->silent = false;
        world.agents[i]->steps_max = 0;
        world.agents[i]->compute_s = 0;
        fake_forget(world.agents[i]);
    }
}

/* Returns the number of ranks of the job's run, as the api shows it. */
static size_t ranks_of(int64_t id)
{
    json_t *doc = world_job(&world, id);
    size_t count = json_array_size(json_object_get(json_object_get(doc, "run"), "ranks"));
    json_decref(doc);
    return count;
}

/* Submits a pipeline over both devices and takes one of them away after nine steps. */
static int64_t pipeline_without_right(const char *name, const char *fallback)
{
    world.agents[0]->steps_max = world.agents[1]->steps_max = 9;
    const struct world_job job = {
        .name = name, .kind = "pipeline", .fallback = fallback, .steps = 30, .every = 5, .retries = 3};
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, world_number(&world, id, "step") == 9);
    assert_int_equal(ranks_of(id), 2);
    world_drain(&world, "right/cpu0", true);
    for (int i = 0; i < WORLD_AGENTS; i++) {
        WORLD_UNTIL(&world, world.agents[i]->workers[0].phase == FAKE_ENDED);
        world.agents[i]->steps_max = 0;
    }
    return id;
}

static void a_forced_kind_waits_and_says_for_what(void **state)
{
    fresh_agents(state);
    int64_t id = pipeline_without_right("waits", NULL);
    WORLD_UNTIL(&world, world_says(&world, id,
                                   "waits for right/cpu0 (drained), as placement.kind is pipeline; with "
                                   "placement.fallback: any it need not"));
    world_drain(&world, "right/cpu0", false);
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    assert_int_equal(ranks_of(id), 2);
    world_check_metrics(&world, id, 30);
}

static void a_kind_is_not_blamed_where_no_device_that_is_named_is_there(void **state)
{
    fresh_agents(state);
    world_drain(&world, "right/cpu0", true);
    const int64_t id = world_submit(
        &world, &(struct world_job){.name = "named", .devices = "right/cpu0", .kind = "single", .steps = 5});
    WORLD_UNTIL(&world, world_says(&world, id, "waits for right/cpu0 (drained)"));
    assert_false(world_says(&world, id, "placement.kind"));
    world_drain(&world, "right/cpu0", false);
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
}

static void a_forced_kind_falls_back_when_its_devices_are_gone(void **state)
{
    fresh_agents(state);
    int64_t id = pipeline_without_right("falls", "any");
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    assert_int_equal(ranks_of(id), 1);
    world_check_metrics(&world, id, 30);
    assert_true(
        world_logged(&world, id,
                     "placement.kind: pipeline does not fit the devices that are there (a pipeline needs two "
                     "devices; 1 can be used); as placement.fallback is any, it runs as single"));
    world_drain(&world, "right/cpu0", false);
}

/* Busy devices are no reason to use the fallback. */
static void a_forced_kind_waits_for_busy_devices_whatever_its_fallback(void **state)
{
    fresh_agents(state);
    world.agents[1]->steps_max = 3;
    const struct world_job first = {.name = "first", .devices = "right/cpu0", .steps = 6};
    const struct world_job job = {.name = "behind", .kind = "pipeline", .fallback = "any", .steps = 5};
    int64_t holder = world_submit(&world, &first);
    WORLD_UNTIL(&world, world_number(&world, holder, "step") == 3);
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, world_says(&world, id, "waits for right/cpu0 (busy)"));
    world.agents[1]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    assert_int_equal(ranks_of(id), 2);
}

/* Whether the script ran without an error. */
static bool script(const char *sql)
{
    struct err err;
    struct pg_conn *conn = pg_connect(world.fixture->postgres.conninfo, 5000, &err);
    const bool good = conn && pg_script(conn, sql, &err) == 0;
    pg_disconnect(conn);
    return good;
}

/* Deletes the devices' speeds that runs measured. */
static void forget_speeds(void)
{
    assert_true(script("DELETE FROM device_speeds"));
}

/* Whether a speed was stored, which the scheduler does when it decides about a run of whole layers by its
 * measured times. */
static bool was_weighed(void)
{
    return script(
        "DO $$ BEGIN IF NOT EXISTS (SELECT 1 FROM device_speeds) THEN RAISE 'none'; END IF; END $$");
}

/* The times that ranks measure are enough to leave a slow device, without any report of its clock or heat.
 * The next job of that shape avoids the device. */
static void a_device_slower_than_planned_is_left_when_that_pays(void **state)
{
    fresh_agents(state);
    world.agents[0]->compute_s = 2.5 * WORLD_BUSY_S;
    world.agents[1]->compute_s = WORLD_BUSY_S;
    const struct world_job job = {.name = "slow", .steps = 200, .every = 1000, .tokens = 65};
    world.agents[0]->steps_max = 30;
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, was_weighed());
    const unsigned before = world.agents[0]->profiles;
    world.agents[1]->steps_max = 150;
    world.agents[0]->steps_max = 60; /* the scheduler decides again after further steps */
    WORLD_UNTIL(
        &world,
        world_logged(&world, id,
                     "as left/cpu0 computes 0.025 s of a step where 0.01 s were planned. Move: slowest 0.40, "
                     "look 2"));
    WORLD_UNTIL(&world, fake_living(world.agents[1]));
    assert_false(world_logged(&world, id, "is free")); /* the device was free when the run was planned */
    assert_string_equal(world.agents[0]->last_stop, "yield");
    assert_string_equal(world.agents[1]->workers[0].device, "right/cpu0");
    /* The device may be fast again. It is measured while it is free, and then the scheduler decides about the
     * run once more. */
    WORLD_UNTIL(&world, world_logged(&world, id, "left/cpu0 is free. Stay: slowest 1.00, look 0"));
    assert_true(world.agents[0]->profiles > before);
    world.agents[1]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    world_check_metrics(&world, id, 200);
    assert_int_equal(world.agents[0]->worker_count, 1);
    assert_int_equal(world_number(&world, id, "losses"), 0);
    assert_int_equal(world_number(&world, id, "attempt"), 2);
}

/* While its run ends, and while the plan with which it goes on is searched for, nobody takes the device to
 * which a job moves: its move would become a wait. */
static void where_a_job_moves_to_is_kept_for_it(void **state)
{
    fresh_agents(state);
    forget_speeds();
    world.agents[0]->compute_s = 2.5 * WORLD_BUSY_S;
    world.agents[1]->compute_s = WORLD_BUSY_S;
    const struct world_job job = {.name = "short-search", .steps = 200, .every = 1000, .tokens = 68};
    const struct world_job other = {.name = "behind", .devices = "right/cpu0", .steps = 4, .every = 1000};
    world.agents[0]->steps_max = 30;
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, was_weighed());
    world.agents[1]->steps_max = 150;
    world.agents[0]->steps_max = 60;
    WORLD_UNTIL(&world, world_logged(&world, id, ". Move: slowest 0.40"));
    int64_t behind = world_submit(&world, &other);
    WORLD_UNTIL(&world, world_number(&world, behind, "attempt") > 0);
    assert_int_equal(world_number(&world, id, "attempt"), 2); /* it went on before the other one started */
    world.agents[0]->steps_max = world.agents[1]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded") && world_is(&world, behind, "succeeded"));
    assert_int_equal(world_number(&world, id, "losses"), 0);
    forget_speeds();
}

/* What the parts of divided layers take says nothing about whole layers: later plans do not begin with it. */
static void a_tensor_run_corrects_no_speeds_of_its_devices(void **state)
{
    fresh_agents(state);
    forget_speeds();
    for (int i = 0; i < 2; i++)
        world.agents[i]->compute_s = 2.5 * WORLD_BUSY_S;
    const struct world_job job = {.name = "divided",
                                  .devices = "left/cpu0 right/cpu0",
                                  .kind = "tensor",
                                  .move = "never",
                                  .steps = 100000,
                                  .every = 1000,
                                  .tokens = 67};
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, world_logged(&world, id, "s were planned. "));
    assert_int_equal(ranks_of(id), 2);
    json_decref(world_command(&world, id, JOB_EVENT_CANCEL, 0));
    WORLD_UNTIL(&world, world_is(&world, id, "cancelled"));
    assert_false(was_weighed());
}

static void a_run_stays_where_it_is_when_moving_does_not_pay_or_is_not_wanted(void **state)
{
    static const char *const whys[] = {
        "where 0.01 s were planned. Stay: slowest 0.40, look 2",
        " It stays, as placement.move is never.",
    };
    for (int never = 0; never < 2; never++) {
        fresh_agents(state);
        forget_speeds();
        world.agents[0]->compute_s = 2.5 * WORLD_BUSY_S;
        const struct world_job job = {
            .name = "stays", .steps = never ? 100 : 60, .move = never ? "never" : NULL, .tokens = 66};
        world.agents[0]->steps_max = 9;
        int64_t id = world_submit(&world, &job);
        WORLD_UNTIL(&world, was_weighed()); /* the second decision comes only after further steps */
        world.agents[0]->steps_max = 40;
        WORLD_UNTIL(&world, world_logged(&world, id, whys[never]));
        assert_true(world_is(&world, id, "running"));
        world.agents[0]->steps_max = 0;
        WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
        assert_int_equal(world_number(&world, id, "attempt"), 1);
        world_check_metrics(&world, id, job.steps);
    }
    forget_speeds();
}

static void a_device_that_comes_back_is_weighed_once(void **state)
{
    fresh_agents(state);
    world.agents[1]->devices = 0;
    fake_hello(world.agents[1]);
    world.agents[0]->steps_max = 9;
    const struct world_job job = {.name = "alone", .steps = 100, .every = 1000};
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, world_number(&world, id, "step") == 9);
    assert_false(world_logged(&world, id, "is free"));
    world.agents[1]->devices = 1;
    fake_hello(world.agents[1]);
    WORLD_UNTIL(
        &world,
        world_logged(&world, id, "right/cpu0 is free. Stay: slowest 1.00, look 0, 91 steps left, 2 devices"));
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    assert_int_equal(world_number(&world, id, "attempt"), 1);
}

/* A job that has done steps waits for devices like its old ones, however the cluster has shrunk; a job that
 * never ran fails. */
static void steps_are_not_given_up_for_a_cluster_that_shrank(void **state)
{
    fresh_agents(state);
    int64_t id = pipeline_without_right("shrank", NULL);
    WORLD_UNTIL(&world, world_says(&world, id, "waits for right/cpu0 (drained)"));
    assert_true(script("UPDATE nodes SET removed_at = now() WHERE name = 'right'"));
    const struct world_job never = {.name = "never", .kind = "pipeline", .steps = 5};
    int64_t other = world_submit(&world, &never);
    WORLD_UNTIL(&world, world_is(&world, other, "failed"));
    WORLD_UNTIL(&world,
                world_says(&world, id,
                           "waits for devices like those it ran on: a pipeline needs two devices; 1 can be "
                           "used"));
    json_decref(world_command(&world, id, JOB_EVENT_CANCEL, 0));
    WORLD_UNTIL(&world, world_is(&world, id, "cancelled"));
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
        cmocka_unit_test(a_forced_kind_waits_and_says_for_what),
        cmocka_unit_test(a_kind_is_not_blamed_where_no_device_that_is_named_is_there),
        cmocka_unit_test(a_forced_kind_falls_back_when_its_devices_are_gone),
        cmocka_unit_test(a_forced_kind_waits_for_busy_devices_whatever_its_fallback),
        cmocka_unit_test(a_device_slower_than_planned_is_left_when_that_pays),
        cmocka_unit_test(where_a_job_moves_to_is_kept_for_it),
        cmocka_unit_test(a_tensor_run_corrects_no_speeds_of_its_devices),
        cmocka_unit_test(a_run_stays_where_it_is_when_moving_does_not_pay_or_is_not_wanted),
        cmocka_unit_test(a_device_that_comes_back_is_weighed_once),
        cmocka_unit_test(steps_are_not_given_up_for_a_cluster_that_shrank),
    };
    return cmocka_run_group_tests(tests, make, end);
}
