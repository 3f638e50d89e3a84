/* Tests the way of a plan of 64 ranks through store, schedulers and Redis: it is stored once, and each rank
 * is sent its slice. */
#include "scheduler/world.h"

#include "program/codec.h"
#include "scheduler/ask.h"

enum { RANKS = 64, EACH = RANKS / WORLD_AGENTS, MESSAGE_BYTES_MOST = 1 << 20 };

static struct world world;
static char plan_path[200], digest[PLAN_DIGEST_HEX];
/* The first assignment that came to each rank since `seen` was cleared. */
static struct {
    json_t *messages[RANKS];
    int count;
    size_t bytes_most;
} seen;

static void see(const json_t *message, size_t size)
{
    json_int_t rank = json_integer_value(json_object_get(message, "rank"));
    seen.bytes_most = size > seen.bytes_most ? size : seen.bytes_most;
    if (seen.messages[rank])
        return; /* this message was sent again */
    seen.messages[rank] = json_incref((json_t *)(uintptr_t)message);
    seen.count++;
}

static void seen_clear(void)
{
    for (int r = 0; r < RANKS; r++)
        json_decref(seen.messages[r]);
    memset(&seen, 0, sizeof(seen));
}

/* Reads the plan of a rank's message as the rank's worker does, and checks that it is its slice. */
static void rank_has(json_int_t rank)
{
    struct err err;
    const json_t *message = seen.messages[rank];
    struct plan *plan = plan_slice_from_json(json_object_get(message, "plan"), &err);
    if (!plan)
        fail_msg("rank %lld: %s", (long long)rank, err.text);
    assert_int_equal(plan->rank_count, RANKS);
    assert_string_equal(plan->ranks[rank].device, json_string_value(json_object_get(message, "device")));
    assert_true(plan->ranks[rank].programs[PROGRAM_TRAIN].instr_count > 0);
    assert_int_equal(plan->slice_rank, rank);
    assert_string_equal(plan->digest, digest);
    assert_string_equal(json_string_value(json_object_get(message, "plan_digest")), digest);
    plan_destroy(plan);
}

/* Makes a cluster of two nodes with 32 devices each, and a plan on all of them. */
static void plan_make(void)
{
    static struct store_sched_device devices[RANKS];
    static struct placer_device placed[RANKS];
    static char names[RANKS][24], kind[] = "cpu", device_digest[] = "d";
    struct ask ask;
    struct placer_answer answer;
    struct err err;
    ask_make(&ask, "data", (uint64_t)400 << 20);
    json_object_set_new(json_object_get(ask.spec, "train"), "batch_rows", json_integer(64 * RANKS));
    for (int i = 0; i < RANKS; i++) {
        snprintf(names[i], sizeof(names[i]), "%s/cpu%d", ask.devices[i / EACH].node, i % EACH);
        devices[i] = (struct store_sched_device){.name = names[i],
                                                 .node = ask.devices[i / EACH].node,
                                                 .kind = kind,
                                                 .digest = device_digest,
                                                 .inventory = ask.devices[0].inventory,
                                                 .memory_limit_bytes = (uint64_t)400 << 20,
                                                 .present = true};
        placed[i] = (struct placer_device){
            .device = &devices[i], .memory_bytes = devices[i].memory_limit_bytes, .heat = 1};
    }
    ask.request.devices = placed;
    ask.request.device_count = RANKS;
    must(placer_planner.plan(&ask.request, &answer, &err), &err);
    if (!answer.fits || answer.rank_count != RANKS)
        fail_msg("%zu ranks: %s", answer.rank_count, answer.words);
    snprintf(digest, sizeof(digest), "%s", json_string_value(json_object_get(answer.plan, "digest")));
    assert_int_equal(json_dump_file(answer.plan, plan_path, JSON_COMPACT), 0);
    placer_answer_fini(&answer);
    ask_fini(&ask);
}

static void heed(bool heeds)
{
    seen_clear();
    for (int i = 0; i < WORLD_AGENTS; i++)
        world.agents[i]->heedless = !heeds;
}

/* While nobody confirms, the database has 64 assignments and the plan once; a scheduler that takes over sends
 * the same slices from there. */
static void the_plan_is_stored_once_and_each_rank_is_sent_its_slice(void **state)
{
    (void)state;
    heed(false);
    const struct world_job job = {.name = "planned", .steps = 4, .every = 2};
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, seen.count == RANKS);
    for (int r = 0; r < RANKS; r++)
        rank_has(r);
    assert_int_equal(world_select(&world, "SELECT count(*) FROM runs"), 1);
    assert_int_equal(world_select(&world, "SELECT count(*) FROM outbox WHERE type = 'assign'"), RANKS);
    assert_int_equal(world_select(&world, "SELECT count(*) FROM outbox WHERE payload -> 'plan' IS NOT NULL"),
                     0);
    assert_int_equal(world_select(&world,
                                  "SELECT (SELECT count(*) FROM runs WHERE plan::text LIKE '%programs%') + "
                                  "(SELECT count(*) FROM outbox WHERE payload::text LIKE '%programs%')"),
                     1);
    int64_t plan = world_select(&world, "SELECT octet_length(plan::text) FROM runs"),
            outbox = world_select(&world, "SELECT sum(octet_length(payload::text))::bigint FROM outbox");
    assert_in_range(seen.bytes_most, 1, MESSAGE_BYTES_MOST - 1);
    print_message("plan %lld bytes, outbox %lld bytes, largest message %zu bytes\n", (long long)plan,
                  (long long)outbox, seen.bytes_most);
    heed(false);
    world_kill(&world, 0, SIGKILL);
    world_spawn(&world, 1);
    WORLD_UNTIL(&world, seen.count == RANKS);
    for (int r = 0; r < RANKS; r++)
        rank_has(r);
    heed(true);
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    assert_int_equal(world_select(&world, "SELECT count(*) FROM outbox"), 0);
}

static int setup(void **state)
{
    world.lost_ms = 30000; /* 64 messages at once take a busy machine a while */
    world_make(&world, state);
    snprintf(plan_path, sizeof(plan_path), "%s/plan.json", world.fixture->dir.path);
    setenv("WORLD_PLAN", plan_path, 1);
    plan_make();
    world_kill(&world, 0, SIGTERM); /* the next scheduler finds the plan in the database */
    for (int i = 0; i < WORLD_AGENTS; i++) {
        world.agents[i]->devices = EACH;
        world.agents[i]->on_assign = see;
        fake_hello(world.agents[i]);
    }
    world_spawn(&world, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    seen_clear();
    world_end(&world);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--scheduler") == 0)
        return world_scheduler_main(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_is_stored_once_and_each_rank_is_sent_its_slice),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
