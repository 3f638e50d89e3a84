/* Tests faults: the leader, Redis and its data, PostgreSQL or an agent dies, and messages come twice, late
 * or never. Each time the job succeeds, every step is reported once, and nothing is written under an old
 * epoch. */
#include "scheduler/placer/facts.h"
#include "scheduler/world.h"
#include "store/health.h"

static struct world world;

#define BOTH "left/cpu0 right/cpu0"

static void fresh_agents(void)
{
    for (int i = 0; i < WORLD_AGENTS; i++) {
        struct fake_agent *agent = world.agents[i];
        agent->silent = false;
        agent->steps_max = 0;
        agent->drop_percent = agent->double_percent = agent->shuffle_percent = 0;
        fake_forget(agent);
    }
}

static int64_t start(const char *name, int steps)
{
    fresh_agents();
    const struct world_job job = {.name = name, .devices = BOTH, .steps = steps, .every = 10, .retries = 3};
    return world_submit(&world, &job);
}

static bool all_reached(int64_t step)
{
    for (int i = 0; i < WORLD_AGENTS; i++) {
        const struct fake_worker *worker = fake_living(world.agents[i]);
        if (!worker || worker->step < step)
            return false;
    }
    return true;
}

static void finish(int64_t id, int64_t steps, int64_t attempts)
{
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    world_check_metrics(&world, id, steps);
    if (world_number(&world, id, "attempt") != attempts)
        world_logs(&world);
    assert_int_equal(world_number(&world, id, "attempt"), attempts);
}

static void emulated_links_are_told_and_not_measured(void **state)
{
    (void)state;
    int64_t id = start("emulated", 3);
    finish(id, 3, 1);
    assert_int_equal(world.agents[0]->links_told, 2); /* one link for each direction */
    /* limits.wait is at least limits.wait_ms_min, 60 s. */
    assert_true(world.agents[0]->wait_told >= 60 && world.agents[0]->wait_told < 600);
    assert_int_equal(world.agents[0]->link_requests + world.agents[1]->link_requests, 0);
    struct answer answer;
    AWAIT_OK(world.fixture, answer,
             store_cluster_get(world.fixture->store, &principal_service, NULL, on_doc, &answer, E));
    json_t *link = json_array_get(json_object_get(answer.doc, "links"), 0);
    assert_true(json_is_true(json_object_get(link, "emulated")));
    assert_true(json_number_value(json_object_get(link, "bytes_per_s")) == 125e6);
    json_decref(answer.doc);
}

static void a_node_confirms_only_its_own_messages(void **state)
{
    (void)state;
    fresh_agents();
    world.agents[1]->silent = true; /* the agent does not confirm its assignment */
    world.agents[0]->steps_max = 1;
    const struct world_job job = {
        .name = "confirmed", .devices = BOTH, .steps = 12, .every = 6, .retries = 3};
    unsigned before = world.agents[1]->assigns;
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, world.agents[1]->assigns > before);
    for (int64_t message = 1; message < 200; message++)
        fake_pass(world.agents[0], "received", json_pack("{s:I}", "message", (json_int_t)message));
    unsigned repeats = world.agents[1]->repeats;
    /* The assignment is still sent again. */
    WORLD_UNTIL(&world, world.agents[1]->repeats > repeats + 1);
    world.agents[1]->silent = false;
    world.agents[0]->steps_max = 0;
    finish(id, 12, 1);
}

static void a_standby_takes_over_from_a_killed_leader_within_2_s(void **state)
{
    (void)state;
    int64_t id = start("leaderless", 150);
    WORLD_UNTIL(&world, all_reached(20));
    world_spawn(&world, 1);
    WORLD_UNTIL(&world, all_reached(40));
    world_kill(&world, 0, SIGKILL);
    /* The new leader's work shows in a second job that only it can start. */
    uint64_t begin_ns = clock_mono_ns();
    world_drain(&world, "left/cpu0", false);
    WORLD_UNTIL(&world, world_number(&world, id, "step") >= 100);
    print_message("leader killed: progress committed again after %.2f s\n",
                  (double)(clock_mono_ns() - begin_ns) / 1e9);
    assert_true(clock_mono_ns() - begin_ns < 4000000000u);
    finish(id, 150, 1);
    world_spawn(&world, 0);
}

static void a_frozen_leader_is_deposed_and_writes_nothing_when_it_wakes(void **state)
{
    (void)state;
    world_kill(&world, 0, SIGKILL); /* then the other scheduler is the leader */
    int64_t id = start("frozen", 150);
    WORLD_UNTIL(&world, all_reached(10));
    world_spawn(&world, 0);
    kill(world.schedulers[1], SIGSTOP);
    int64_t reached = world_number(&world, id, "step");
    WORLD_UNTIL(&world, world_number(&world, id, "step") > reached + 20);
    kill(world.schedulers[1], SIGCONT);
    finish(id, 150, 1);
}

static void a_leader_killed_at_any_moment_loses_nothing(void **state)
{
    (void)state;
    int64_t ids[3];
    uint64_t rng = 7;
    for (int i = 0; i < 3; i++)
        ids[i] = start("restarted", 30);
    for (int kills = 0; kills < 8; kills++) {
        uint64_t until_ns;
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        until_ns = clock_mono_ns() + (rng >> 33) % 250000000u;
        while (clock_mono_ns() < until_ns)
            world_turn(&world);
        world_kill(&world, kills % 2, SIGKILL);
        world_spawn(&world, kills % 2);
    }
    for (int i = 0; i < 3; i++)
        finish(ids[i], 30, 1);
}

static void a_wiped_redis_loses_nothing(void **state)
{
    (void)state;
    int64_t id = start("flushed", 120);
    for (int i = 0; i < 6; i++) {
        uint64_t until_ns = clock_mono_ns() + 90000000u;
        world_flush(&world);
        while (clock_mono_ns() < until_ns)
            world_turn(&world);
    }
    finish(id, 120, 1);
}

/* Whether the scheduler is in this state, and names Redis if it fails. */
static bool says_of_redis(const char *state)
{
    struct answer answer;
    AWAIT_OK(world.fixture, answer, store_health_get(world.fixture->store, on_doc, &answer, E));
    const char *why = json_string_value(json_object_get(answer.doc, "why"));
    const bool is = strcmp(json_string_value(json_object_get(answer.doc, "state")), state) == 0 &&
                    (strcmp(state, "failing") != 0 || (why && strstr(why, "Redis does not answer")));
    json_decref(answer.doc);
    return is;
}

static void a_restarted_redis_loses_nothing(void **state)
{
    (void)state;
    int64_t id = start("redisless", 100);
    WORLD_UNTIL(&world, all_reached(10));
    test_redis_kill(&world.redis);
    /* The pause is longer than unreachable_ms, because silence while Redis is away must not count. */
    uint64_t until_ns = clock_mono_ns() + 900000000u;
    while (clock_mono_ns() < until_ns)
        world_turn(&world);
    WORLD_UNTIL(&world, says_of_redis("failing"));
    test_redis_start(&world.redis, world.fixture->dir.path);
    finish(id, 100, 1);
    WORLD_UNTIL(&world, says_of_redis("deciding"));
}

static void a_crashed_postgresql_loses_nothing(void **state)
{
    (void)state;
    int64_t id = start("baseless", 150);
    WORLD_UNTIL(&world, all_reached(20));
    test_postgres_end(&world.fixture->postgres, SIGQUIT);
    test_postgres_resume(&world.fixture->postgres);
    finish(id, 150, 1);
}

static void a_silent_node_is_given_up_and_its_old_epoch_writes_nothing(void **state)
{
    (void)state;
    static const char given_up_at[] =
        "SELECT (extract(epoch FROM lost_at) * 1e6)::bigint FROM nodes WHERE name = 'right'";
    world_kill(&world, 0, SIGTERM);
    world_kill(&world, 1, SIGTERM);
    world.lost_ms = 10000;
    world_spawn(&world, 0);
    int64_t id = start("silent", 60);
    world.agents[0]->steps_max = 18; /* a real worker would wait for its silent peer */
    WORLD_UNTIL(&world, all_reached(15));
    WORLD_UNTIL(&world, world_number(&world, id, "step") >= 10);
    world.agents[1]->silent = true; /* the agent's worker goes on */
    WORLD_UNTIL(&world, world_logged(&world, id, "node right has not been heard for"));
    /* Silence counts anew once Redis is back, so the attempt is given up later than was said. */
    const int64_t said = world_select(&world, given_up_at);
    test_redis_kill(&world.redis);
    test_redis_start(&world.redis, world.fixture->dir.path);
    WORLD_UNTIL(&world, world_select(&world, given_up_at) > said);
    world_kill(&world, 0, SIGKILL);
    world.lost_ms = 0;
    world_spawn(&world, 0);
    world_spawn(&world, 1);
    WORLD_UNTIL(&world, world_number(&world, id, "losses") == 1);
    world.agents[0]->steps_max = 0;
    struct fake_worker *old = &world.agents[1]->workers[0];
    WORLD_UNTIL(&world, old->step == old->steps); /* the worker has "finished" under the old epoch */
    unsigned kills = world.agents[1]->kills;
    world.agents[1]->silent = false;
    /* The scheduler refuses what the old worker reports now and tells it to end; the new attempt does all
     * remaining steps. */
    finish(id, 60, 2);
    WORLD_UNTIL(&world, json_array_size(old->journal) == 0);
    WORLD_UNTIL(&world, world.agents[1]->kills > kills);
    struct answer answer;
    AWAIT_OK(world.fixture, answer, store_job_runs(world.fixture->store, id, 0, 100, on_doc, &answer, E));
    json_t *first = json_array_get(json_object_get(answer.doc, "runs"), 1);
    assert_string_equal(json_string_value(json_object_get(first, "state")), "lost");
    json_t *rank = json_array_get(json_object_get(first, "ranks"), 1);
    assert_string_equal(json_string_value(json_object_get(rank, "state")), "lost");
    json_decref(answer.doc);
}

static void a_short_silence_is_not_a_loss(void **state)
{
    (void)state;
    int64_t id = start("hiccup", 100);
    WORLD_UNTIL(&world, all_reached(15));
    world.agents[1]->silent = true;
    uint64_t until_ns = clock_mono_ns() + 900000000u;
    while (clock_mono_ns() < until_ns)
        world_turn(&world);
    world.agents[1]->silent = false;
    finish(id, 100, 1);
}

static void an_agent_that_comes_back_without_its_worker_costs_the_attempt(void **state)
{
    (void)state;
    int64_t id = start("amnesia", 40);
    world.agents[0]->steps_max = 18;
    WORLD_UNTIL(&world, all_reached(12));
    struct fake_agent *agent = world.agents[1];
    fake_forget(agent); /* the agent's journal is gone too */
    fake_boot(agent);
    fake_hello(agent);
    WORLD_UNTIL(&world, world_number(&world, id, "losses") == 1);
    world.agents[0]->steps_max = 0;
    finish(id, 40, 2);
}

static void an_agent_that_comes_back_with_its_worker_costs_nothing(void **state)
{
    (void)state;
    int64_t id = start("reborn", 100);
    WORLD_UNTIL(&world, all_reached(12));
    struct fake_agent *agent = world.agents[1];
    fake_boot(agent);
    finish(id, 100, 1); /* the scheduler sees the new boot in a heartbeat and asks for a hello */
}

static void lost_doubled_and_reordered_messages_change_nothing(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        int64_t id = start("noisy", 40);
        for (int i = 0; i < WORLD_AGENTS; i++) {
            world.agents[i]->rng = seed * 7919 + (uint64_t)i;
            world.agents[i]->drop_percent = 20;
            world.agents[i]->double_percent = 30;
            world.agents[i]->shuffle_percent = 30;
        }
        WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
        if (world_number(&world, id, "attempt") != 1)
            world_logs(&world);
        world_check_metrics(&world, id, 40);
    }
    fresh_agents();
}

static void garbage_on_the_stream_is_refused_and_nothing_stops(void **state)
{
    (void)state;
    static const char *const junk[] = {"", "x", "\xff\xff\xff\xff", "\x93\x01\x02\x03"};
    int64_t id = start("garbage", 30);
    for (size_t i = 0; i < 4; i++)
        fake_add(world.agents[0], junk[i], strlen(junk[i]));
    fake_pass(world.agents[0], "heartbeat", json_pack("{s:i}", "boot", 7));
    fake_pass(world.agents[0], "worker_ready", json_object());
    fake_pass(world.agents[0], "no-such-type", json_pack("{s:i, s:i, s:i}", "run", 1, "epoch", 1, "rank", 0));
    fake_pass(world.agents[0], "node_hello",
              json_pack("{s:s, s:[{s:s, s:i}]}", "boot", world.agents[0]->boot, "devices", "name",
                        /* The device belongs to another node. */
                        "right/cpu0", "memory_limit_bytes", 5));
    finish(id, 30, 1);
    struct answer answer;
    AWAIT_OK(world.fixture, answer,
             store_device_list(world.fixture->store, &principal_service, on_doc, &answer, E));
    assert_int_equal(json_array_size(json_object_get(answer.doc, "devices")), 2);
    json_decref(answer.doc);
}

static int setup(void **state)
{
    world.more = "links: [{between: [left, right], rate: 1Gbit/s, latency: 1ms}]\n";
    world_make(&world, state);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_end(&world);
    return 0;
}

static void count_arrival(void *arg)
{
    ++*(unsigned *)arg;
}

static void facts_that_no_pass_asks_for_are_dropped(void **state)
{
    unsigned arrived = 0, asked = 0;
    char key[DIGEST_HEX_SIZE];
    struct fact fact;
    struct err err;
    struct facts *facts = facts_create(world.fixture->store, 1000, count_arrival, &arrived, &err);
    (void)state;
    facts_begin(facts);
    for (; asked < 300; asked++) {
        snprintf(key, sizeof(key), "%064x", asked);
        assert_int_equal(facts_get(facts, FACT_CLASS, key, &fact, &err), 0);
    }
    WORLD_UNTIL(&world, arrived == asked);
    assert_int_equal(facts_count(facts), asked);
    for (int pass = 0; pass < 257; pass++)
        facts_begin(facts);
    assert_int_equal(facts_count(facts), 0);
    facts_destroy(facts);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--scheduler") == 0)
        return world_scheduler_main(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(emulated_links_are_told_and_not_measured),
        cmocka_unit_test(a_node_confirms_only_its_own_messages),
        cmocka_unit_test(a_standby_takes_over_from_a_killed_leader_within_2_s),
        cmocka_unit_test(a_frozen_leader_is_deposed_and_writes_nothing_when_it_wakes),
        cmocka_unit_test(a_leader_killed_at_any_moment_loses_nothing),
        cmocka_unit_test(a_wiped_redis_loses_nothing),
        cmocka_unit_test(a_restarted_redis_loses_nothing),
        cmocka_unit_test(a_crashed_postgresql_loses_nothing),
        cmocka_unit_test(a_silent_node_is_given_up_and_its_old_epoch_writes_nothing),
        cmocka_unit_test(a_short_silence_is_not_a_loss),
        cmocka_unit_test(an_agent_that_comes_back_without_its_worker_costs_the_attempt),
        cmocka_unit_test(an_agent_that_comes_back_with_its_worker_costs_nothing),
        cmocka_unit_test(lost_doubled_and_reordered_messages_change_nothing),
        cmocka_unit_test(garbage_on_the_stream_is_refused_and_nothing_stops),
        cmocka_unit_test(facts_that_no_pass_asks_for_are_dropped),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
