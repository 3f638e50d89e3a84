/* Tests how an agent ends: it says that its node leaves, its workers have the configured time to end their
 * step and store a checkpoint, and it does so by itself before its machine is taken away. */
#include "agent/daemon_world.h"

static double leaves_s_of(struct world *world)
{
    json_t *hello = await(world, "node_hello", -1);
    const json_t *leaves = json_object_get(hello, "leaves_s");
    const double seconds = leaves ? json_number_value(leaves) : -1;
    json_decref(hello);
    return seconds;
}

/* Waits for the hello by which the node leaves at once. */
static void await_leaving(struct world *world)
{
    while (leaves_s_of(world) != 0)
        ;
}

/* Starts the agent, again if one runs, with this line in its configuration. */
static void start_again(struct world *world, const char *line)
{
    if (world->agent > 0)
        agent_kill(world, SIGTERM);
    world_configure(world, line);
    events_forget(world);
    agent_start(world);
}

/* The step takes longer than the 5 s that were the limit once. */
static void a_step_under_way_ends_and_is_stored(void **state)
{
    struct world *world = *state;
    start_again(world, "grace: 60s");
    await_lacking(world, NULL);
    say(world, assign(1, 1, "left/cpu0", "stops:5500"));
    json_decref(await(world, "started", 1));
    assert_int_equal(kill(world->agent, SIGTERM), 0);
    await_leaving(world);
    say(world, assign(2, 2, "left/cpu1", "steps:1")); /* on its way when the node said that it leaves */
    json_t *refused = await(world, "failed", 2);
    assert_string_equal(json_string_value(json_object_get(refused, "code")), "cancelled");
    json_decref(refused);
    json_decref(await(world, "step", 1));
    json_decref(await(world, "stopped", 1));
    assert_int_equal(agent_wait(world), 0);
    assert_int_equal(processes_of(world->home), 0);
    start_again(world, "grace: 1s"); /* a hello of the next agent says nothing of leaving */
    assert_true(leaves_s_of(world) < 0);
    await_lacking(world, NULL);
}

static void a_worker_that_does_not_stop_is_killed_after_the_grace(void **state)
{
    struct world *world = *state;
    start_again(world, "grace: 1s");
    await_lacking(world, NULL);
    say(world, assign(3, 3, "left/cpu0", "stubborn"));
    json_decref(await(world, "worker_ready", 3));
    const uint64_t begin_ns = clock_mono_ns();
    assert_int_equal(kill(world->agent, SIGTERM), 0);
    json_t *failed = await(world, "failed", 3);
    assert_true(clock_mono_ns() - begin_ns > 900000000u);
    assert_string_equal(json_string_value(json_object_get(failed, "code")), "cancelled");
    json_decref(failed);
    assert_int_equal(agent_wait(world), 0);
}

static void a_second_signal_kills_at_once(void **state)
{
    struct world *world = *state;
    start_again(world, "grace: 60s");
    await_lacking(world, NULL);
    say(world, assign(4, 4, "left/cpu0", "stubborn"));
    json_decref(await(world, "worker_ready", 4));
    assert_int_equal(kill(world->agent, SIGTERM), 0);
    await_leaving(world);
    assert_int_equal(kill(world->agent, SIGTERM), 0);
    json_decref(await(world, "failed", 4));
    assert_int_equal(agent_wait(world), 0);
    assert_int_equal(processes_of(world->home), 0);
}

static void a_node_leaves_by_itself_before_its_allocation_ends(void **state)
{
    struct world *world = *state;
    char ends[32];
    snprintf(ends, sizeof(ends), "%lld", (long long)(clock_wall_us() / 1000000 + 5));
    setenv("SLURM_JOB_END_TIME", ends, 1);
    start_again(world, "grace: 2s");
    const double leaves_s = leaves_s_of(world);
    assert_true(leaves_s > 0 && leaves_s <= 3);
    say(world, assign(5, 5, "left/cpu0", "stops:500"));
    await_leaving(world);
    assert_int_equal(kill(world->agent, SIGTERM), 0); /* of sbatch --signal: the first, so it kills nothing */
    json_decref(await(world, "stopped", 5));
    assert_int_equal(agent_wait(world), 0);
    assert_true(clock_wall_us() / 1000000 < strtoll(ends, NULL, 10));
    agent_start(world); /* the time is over */
    assert_int_equal(agent_wait(world), 4);
    unsetenv("SLURM_JOB_END_TIME");
    char line[64], at[32];
    snprintf(line, sizeof(line), "until: %s", clock_rfc3339(clock_wall_us() + INT64_C(3600000000), at));
    world_configure(world, line); /* the configuration's own time goes before the environment's */
    agent_start(world);
    assert_true(leaves_s_of(world) > 3400);
}

int main(int argc, char **argv)
{
    world_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_under_way_ends_and_is_stored),
        cmocka_unit_test(a_worker_that_does_not_stop_is_killed_after_the_grace),
        cmocka_unit_test(a_second_signal_kills_at_once),
        cmocka_unit_test(a_node_leaves_by_itself_before_its_allocation_ends),
    };
    return cmocka_run_group_tests(tests, world_up, world_down);
}
