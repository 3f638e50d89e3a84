/* Tests what becomes of nodes that cannot connect to others, under a real scheduler process with fake agents.
 */
#include "scheduler/world.h"

static struct world world;

#define LINK_IS_UNREACHABLE                                                                                  \
    "SELECT count(*) FROM links WHERE from_node = 'left' AND (document ->> 'unreachable')::boolean"
#define BOTH_ARE_MEASURED                                                                                    \
    "SELECT (count(*) = 2)::integer FROM links WHERE (document ->> 'bytes_per_s')::float8 > 1"

static void run_on_both(void)
{
    const struct world_job job = {
        .name = "reach", .devices = "left/cpu0 right/cpu0", .steps = 3, .retries = 3};
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    assert_int_equal(world_number(&world, id, "attempt"), 1);
}

/* Rank 1 opens the connections, as rank 0 cannot. The job had not been planned before that was known. */
static void a_node_that_cannot_connect_is_connected_to(void **state)
{
    (void)state;
    run_on_both();
    assert_int_equal(world_select(&world, LINK_IS_UNREACHABLE), 1);
    assert_true(world.agents[0]->link_requests >= 3);
    const json_t *first = json_array_get(world.agents[1]->peers, 0),
                 *second = json_array_get(world.agents[1]->peers, 1);
    assert_string_equal(json_string_value(json_object_get(first, "identity")), "agent:left:1");
    assert_null(json_object_get(first, "dials"));
    assert_int_equal(json_array_size(json_object_get(second, "dials")), 1);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(second, "dials"), 0)), 0);
}

static void a_node_that_comes_back_is_measured_again(void **state)
{
    (void)state;
    world.agents[0]->unreached = false;
    fake_boot(world.agents[0]);
    fake_hello(world.agents[0]);
    WORLD_UNTIL(&world, world_select(&world, BOTH_ARE_MEASURED) == 1);
    run_on_both();
    assert_null(json_object_get(json_array_get(world.agents[0]->peers, 1), "dials"));
}

/* A run that could not connect has its links measured again, and the next is told who connects. */
static void a_link_that_closes_is_noticed(void **state)
{
    (void)state;
    const struct world_job job = {
        .name = "closed", .devices = "left/cpu0 right/cpu0", .steps = 3, .retries = 3};
    world.agents[0]->unreached = true;
    world.agents[0]->unconnected = world.agents[1]->unconnected = true;
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, world_select(&world, LINK_IS_UNREACHABLE) == 1);
    world.agents[0]->unconnected = world.agents[1]->unconnected = false;
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    assert_int_equal(json_array_size(json_object_get(json_array_get(world.agents[0]->peers, 1), "dials")), 1);
}

/* The node is away before it has tried three times, and will not try again: nobody waits for it. */
static void a_node_that_left_while_it_tried_holds_up_nobody(void **state)
{
    (void)state;
    const struct world_job job = {.name = "alone", .steps = 3, .retries = 3};
    fake_boot(world.agents[0]);
    fake_hello(world.agents[0]);
    WORLD_UNTIL(&world, world_select(&world, "SELECT count(*) FROM requests WHERE unreachable") == 1);
    world.agents[0]->silent = true;
    WORLD_UNTIL(&world, world_select(&world, "SELECT count(*) FROM nodes WHERE state = 'unreachable'") == 1);
    world_sql(&world, "UPDATE requests SET tries = 1 WHERE unreachable");
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
}

static int make(void **state)
{
    world.lost_ms = 20000; /* away after 6 s */
    world_make(&world, state);
    world.agents[0]->unreached = true;
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (int i = 0; i < WORLD_AGENTS; i++) {
        json_decref(world.agents[i]->peers);
        json_decref(world.agents[i]->asked);
    }
    world_end(&world);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--scheduler") == 0)
        return world_scheduler_main(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_that_cannot_connect_is_connected_to),
        cmocka_unit_test(a_node_that_comes_back_is_measured_again),
        cmocka_unit_test(a_link_that_closes_is_noticed),
        cmocka_unit_test(a_node_that_left_while_it_tried_holds_up_nobody),
    };
    return cmocka_run_group_tests(tests, make, end);
}
