/* Tests that the agent daemon's state survives full disks and restored databases. */
#include <sys/resource.h>

#include "agent/daemon_world.h"

static bool file_is_big(void *arg)
{
    struct stat status;
    return stat(arg, &status) == 0 && status.st_size > 7000; /* up to the last whole record */
}

/* The agent's files cannot grow beyond 8 KiB, as on a full disk, while a worker does 500 steps and the
 * scheduler is away. Then there is room again and the agent is killed. The worker must not have ended
 * meanwhile, because it still has the events that the journal could not store. */
static void what_the_journal_could_not_take_is_not_acknowledged_and_not_lost(void **state)
{
    struct world *world = *state;
    struct rlimit was, now;
    char path[256];
    snprintf(path, sizeof(path), "%s/journal/run-17-17-0.events", world->home);
    assert_int_equal(prlimit(world->agent, RLIMIT_FSIZE, NULL, &was), 0);
    now = was;
    now.rlim_cur = 8192;
    world->ack = false;
    assert_int_equal(prlimit(world->agent, RLIMIT_FSIZE, &now, NULL), 0);
    say(world, assign(17, 17, "left/cpu0", "steps:500"));
    json_decref(await(world, "done", 17)); /* it is sent at once, before it is durable */
    assert_true(test_wait_until(file_is_big, path, 5000));
    events_forget(world);
    say_quietly(world, json_pack("{s:s}", "type", "hello"));
    json_t *hello = await(world, "node_hello", -1);
    assert_int_equal(json_array_size(json_object_get(hello, "workers")), 1);
    const char *lacks = json_string_value(json_object_get(json_object_get(hello, "lacking"), "left/cpu0"));
    assert_non_null(lacks && strstr(lacks, "events cannot be stored in ") ? lacks : NULL);
    json_decref(hello);
    agent_kill(world, SIGKILL);
    events_forget(world);
    redisFree(world->client);
    world->client = NULL;
    test_redis_kill(&world->redis); /* all that Redis held is lost */
    test_redis_start(&world->redis, world->dir.path);
    world_connect(world);
    world->ack = true;
    agent_start(world);
    await_whole_run(world, 17, "done", 500);
}

#define LIFE_1 "0000000000000001-aaaaaaaa"
#define LIFE_2 "0000000000000002-bbbbbbbb"

static json_t *of_life(json_t *message, const char *incarnation)
{
    json_object_set_new(message, "incarnation", json_string(incarnation));
    return message;
}

/* After PostgreSQL was restored from a backup, epochs, runs and message ids start below those that the agent
 * knows. */
static void another_life_of_the_cluster_ends_the_workers_and_accepts_lower_ids(void **state)
{
    struct world *world = *state;
    say_quietly(world, of_life(json_pack("{s:s}", "type", "hello"), LIFE_1));
    json_t *message = of_life(assign(40, 40, "left/cpu0", "stubborn"), LIFE_1);
    json_object_set_new(message, "job", json_integer(4040));
    int64_t id = say(world, message);
    json_decref(await(world, "worker_ready", 40));
    await_received(world, id);
    uint64_t begin_ns = clock_mono_ns();
    events_forget(world);
    say_quietly(world, of_life(json_pack("{s:s}", "type", "hello"), LIFE_2));
    json_t *hello = NULL, *before = NULL;
    while (!before) { /* hellos of the life before may be under way */
        json_decref(hello);
        hello = await(world, "node_hello", -1);
        before = json_object_get(hello, "before");
    }
    print_message("a new life: %.2f s from the message to the hello\n",
                  (double)(clock_mono_ns() - begin_ns) / 1e9);
    assert_int_equal(json_array_size(json_object_get(hello, "workers")), 0);
    assert_string_equal(json_string_value(json_object_get(before, "incarnation")), LIFE_1);
    const json_t *runs = json_object_get(before, "runs");
    const json_t *last = json_array_get(runs, json_array_size(runs) - 1);
    assert_int_equal(json_integer_value(json_object_get(last, "job")), 4040);
    assert_int_equal(json_integer_value(json_object_get(last, "run")), 40);
    json_decref(hello);
    /* Sends the same message id and a lower epoch of the new incarnation, and then one of the old
     * incarnation. */
    message = of_life(assign(3, 3, "left/cpu0", "steps:7"), LIFE_2);
    json_object_set_new(message, "id", json_integer(id));
    say_quietly(world, message);
    await_whole_run(world, 3, "done", 7);
    say_quietly(world, of_life(assign(41, 41, "left/cpu0", "steps:7"), LIFE_1));
    agent_kill(world, SIGKILL); /* the next agent reads everything again and knows its incarnation */
    agent_start(world);
    events_forget(world);
    say(world, of_life(assign(4, 4, "left/cpu0", "steps:2"), LIFE_2));
    await_whole_run(world, 4, "done", 2);
    for (size_t i = 0; i < json_array_size(world->events); i++)
        assert_false(event_is(json_array_get(world->events, i), "worker_ready", 41));
}

int main(int argc, char **argv)
{
    world_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_journal_could_not_take_is_not_acknowledged_and_not_lost),
        cmocka_unit_test(another_life_of_the_cluster_ends_the_workers_and_accepts_lower_ids),
    };
    return cmocka_run_group_tests(tests, world_up, world_down);
}
