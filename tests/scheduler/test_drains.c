/* Tests drains of devices and nodes under a real scheduler process: at once, after the jobs, by a time, with
 * a reason that is kept; nodes that are drained because starts fail there; and that a job avoids the node on
 * which it died; from when on a lease is charged, and when an
 * idle one ends. */
#include "scheduler/world.h"

static struct world world;
static struct principal bob;

static void fresh_agents(void)
{
    for (int i = 0; i < WORLD_AGENTS; i++) {
        world.agents[i]->steps_max = 0;
        world.agents[i]->start_fails = world.agents[i]->refuses = false;
        fake_forget(world.agents[i]);
    }
}

/* Starts a job that stays in its third step until the test lets its steps go on. */
static int64_t run_on(const char *devices)
{
    fresh_agents();
    world.agents[0]->steps_max = world.agents[1]->steps_max = 3;
    const struct world_job job = {.name = "runs", .devices = devices, .steps = 30, .every = 10, .retries = 9};
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, world_is(&world, id, "running") && world_number(&world, id, "step") == 3);
    return id;
}

static json_t *drain(const struct store_drain *how)
{
    struct answer answer;
    AWAIT_OK(world.fixture, answer,
             store_device_drain(world.fixture->store, &principal_service, how, on_doc, &answer, E));
    return answer.doc;
}

static void a_drain_after_jobs_lets_what_runs_end_and_nothing_start(void **state)
{
    (void)state;
    int64_t runs = run_on("left/cpu0");
    json_t *doc =
        drain(&(struct store_drain){.name = "left", .drained = true, .after_jobs = true, .why = "a new fan"});
    assert_string_equal(json_string_value(json_object_get(doc, "drain_at")), "after jobs");
    assert_string_equal(json_string_value(json_object_get(doc, "drain_why")), "a new fan");
    assert_int_equal(json_array_size(json_object_get(doc, "devices")), 1);
    json_decref(doc);
    const struct world_job job = {.name = "waits", .devices = "left/cpu0", .steps = 4, .every = 2};
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, world_says(&world, id, "waits for left/cpu0 (drained: a new fan)"));
    assert_true(world_is(&world, runs, "running"));
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, runs, "succeeded"));
    assert_int_equal(world_number(&world, runs, "attempt"), 1);
    assert_true(world_is(&world, id, "queued"));
    doc = drain(&(struct store_drain){.name = "left/cpu0", .drained = true}); /* keeps the reason */
    assert_string_equal(json_string_value(json_object_get(doc, "drain_why")), "a new fan");
    assert_true(json_is_null(json_object_get(doc, "drain_at")));
    json_decref(doc);
    json_decref(drain(&(struct store_drain){.name = "left"}));
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
}

static void a_drain_by_a_time_moves_what_still_runs_then(void **state)
{
    char by[32];
    (void)state;
    int64_t runs = run_on(NULL);
    json_t *doc = world_job(&world, runs);
    const char *device = json_string_value(
        json_object_get(json_array_get(json_object_get(json_object_get(doc, "run"), "ranks"), 0), "device"));
    char name[80];
    snprintf(name, sizeof(name), "%s", device);
    json_decref(doc);
    clock_rfc3339(clock_wall_us() + 600000, by);
    json_decref(drain(&(struct store_drain){.name = name, .drained = true, .by = by}));
    assert_true(world_is(&world, runs, "running"));
    WORLD_UNTIL(&world, world_number(&world, runs, "attempt") == 2);
    world.agents[0]->steps_max = world.agents[1]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, runs, "succeeded"));
    assert_int_equal(world_number(&world, runs, "losses"), 0);
    world_check_metrics(&world, runs, 30);
    json_decref(drain(&(struct store_drain){.name = name}));
}

static void a_job_avoids_the_node_on_which_it_died(void **state)
{
    (void)state;
    int64_t runs = run_on(NULL);
    int died = fake_living(world.agents[0]) ? 0 : 1;
    fake_kill_worker(world.agents[died], fake_living(world.agents[died]));
    WORLD_UNTIL(&world, world_number(&world, runs, "attempt") == 2 && world_is(&world, runs, "running"));
    assert_null(fake_living(world.agents[died]));
    assert_non_null(fake_living(world.agents[1 - died]));
    world.agents[0]->steps_max = world.agents[1]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, runs, "succeeded"));
    world_check_metrics(&world, runs, 30);
}

static void three_failed_starts_of_two_people_drain_the_node(void **state)
{
    (void)state;
    fresh_agents();
    world.agents[0]->start_fails = true;
    const struct world_job adas = {
        .name = "adas", .devices = "left/cpu0", .steps = 4, .every = 2, .retries = 0};
    const struct world_job bobs = {
        .name = "bobs", .devices = "left/cpu0", .steps = 4, .every = 2, .retries = 0, .owner = &bob};
    int64_t first = world_submit(&world, &adas);
    WORLD_UNTIL(&world,
                world_number(&world, first, "attempt") >= 4);   /* one person's jobs alone drain nothing */
    assert_int_equal(world_number(&world, first, "losses"), 0); /* the node's faults are none of the job's */
    assert_false(world_says(&world, first, "drained"));
    /* The reason beside it says when it is tried again, so this sentence must not say it in another way. */
    assert_true(
        world_select(&world, "SELECT count(*) FROM events WHERE body ->> 'why' LIKE '%was not started (%)'") >
        0);
    assert_int_equal(
        world_select(&world, "SELECT count(*) FROM events WHERE body ->> 'why' LIKE '%tried again after%'"),
        0);
    int64_t second = world_submit(&world, &bobs);
    WORLD_UNTIL(&world,
                world_says(&world, second, "of 2 people failed on left within a day; the last: no room"));
    world.agents[0]->start_fails = false;
    json_decref(drain(&(struct store_drain){.name = "left"}));
    WORLD_UNTIL(&world, world_is(&world, second, "succeeded"));
    WORLD_UNTIL(&world, world_is(&world, first, "succeeded"));
}

/* `motley down` ends agents and scheduler at once: their last refusals are read when the next agents have
 * said hello. They are a fault of nobody. */
static void starts_that_an_ending_agent_refused_drain_nothing_and_are_no_loss(void **state)
{
    (void)state;
    fresh_agents();
    world.agents[0]->refuses = true;
    const struct world_job adas = {
        .name = "adas", .devices = "left/cpu0", .steps = 4, .every = 2, .retries = 0};
    const struct world_job bobs = {
        .name = "bobs", .devices = "left/cpu0", .steps = 4, .every = 2, .retries = 0, .owner = &bob};
    int64_t first = world_submit(&world, &adas);
    int64_t second = world_submit(&world, &bobs);
    WORLD_UNTIL(&world,
                world_number(&world, first, "attempt") >= 2 && world_number(&world, second, "attempt") >= 2);
    assert_int_equal(world_number(&world, first, "losses"), 0);
    assert_int_equal(world_number(&world, second, "losses"), 0);
    assert_int_equal(world_select(&world, "SELECT count(*) FROM devices WHERE drained"), 0);
    world.agents[0]->refuses = false;
    WORLD_UNTIL(&world, world_is(&world, first, "succeeded") && world_is(&world, second, "succeeded"));
    assert_int_equal(world_select(&world, "SELECT count(*) FROM devices WHERE drained"), 0);
}

/* The node of this name, as people see it (new). */
static json_t *node_shown(const char *name)
{
    struct answer answer;
    AWAIT_OK(world.fixture, answer, store_node_list(world.fixture->store, on_doc, &answer, E));
    size_t i;
    json_t *node, *found = NULL;
    json_array_foreach (json_object_get(answer.doc, "nodes"), i, node) {
        if (strcmp(json_string_value(json_object_get(node, "name")), name) == 0)
            found = json_incref(node);
    }
    json_decref(answer.doc);
    assert_non_null(found);
    return found;
}

static bool left_lacks(void)
{
    json_t *left = node_shown("left");
    bool lacks = !json_is_null(json_object_get(left, "lacking"));
    json_decref(left);
    return lacks;
}

static void a_device_that_cannot_run_a_worker_gets_no_job_and_says_why(void **state)
{
    (void)state;
    fresh_agents();
    world.agents[0]->lacking = "libopenblas.so.0 is missing";
    fake_hello(world.agents[0]);
    WORLD_UNTIL(&world, left_lacks()); /* a job that came before the hello would start */
    const struct world_job job = {.name = "lacks", .devices = "left/cpu0", .steps = 4, .every = 2};
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world,
                world_says(&world, id, "left/cpu0 (cannot run a worker: libopenblas.so.0 is missing)"));
    assert_int_equal(world_number(&world, id, "attempt"), 0);
    json_t *left = node_shown("left"), *right = node_shown("right");
    assert_string_equal(json_string_value(json_object_get(left, "why")),
                        "left/cpu0: libopenblas.so.0 is missing");
    assert_true(json_is_null(json_object_get(right, "lacking")));
    assert_string_equal(json_string_value(json_object_get(right, "release")), "1");
    json_decref(left);
    json_decref(right);
    world.agents[0]->lacking = NULL;
    fake_hello(world.agents[0]);
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
}

static bool node_is(const char *name, const char *state)
{
    json_t *node = node_shown(name);
    const bool is = strcmp(json_string_value(json_object_get(node, "state")), state) == 0;
    json_decref(node);
    return is;
}

/* An agent that ends says so before it ends its workers. */
static void a_job_moves_with_a_checkpoint_from_a_node_that_leaves(void **state)
{
    (void)state;
    int64_t runs = run_on(NULL);
    const int leaves = fake_living(world.agents[0]) ? 0 : 1;
    const char *const names[] = {"left", "right"};
    world.agents[leaves]->leaves = true;
    world.agents[leaves]->leaves_s = 0;
    fake_hello(world.agents[leaves]);
    WORLD_UNTIL(&world, node_is(names[leaves], "leaving"));
    WORLD_UNTIL(&world, world_number(&world, runs, "attempt") == 2 && world_is(&world, runs, "running"));
    assert_null(fake_living(world.agents[leaves]));
    assert_int_equal(world_number(&world, runs, "losses"), 0);
    assert_true(world_select(&world, "SELECT count(*) FROM runs WHERE start_step = 3 AND attempt = 2") > 0);
    char text[120];
    const struct world_job job = {
        .name = "waits", .devices = leaves ? "right/cpu0" : "left/cpu0", .steps = 4, .every = 2};
    int64_t waits = world_submit(&world, &job);
    snprintf(text, sizeof(text), "waits for %s/cpu0 (its agent is stopping)", names[leaves]);
    WORLD_UNTIL(&world, world_says(&world, waits, text));
    world.agents[0]->steps_max = world.agents[1]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, runs, "succeeded"));
    world_check_metrics(&world, runs, 30);
    world.agents[leaves]->leaves = false; /* the next agent of the same node */
    fake_hello(world.agents[leaves]);
    WORLD_UNTIL(&world, node_is(names[leaves], "alive") && world_is(&world, waits, "succeeded"));
}

/* A worker that its agent ended before a checkpoint was stored is no loss of the job's. */
static void a_worker_that_a_leaving_agent_ended_costs_the_job_nothing(void **state)
{
    (void)state;
    int64_t runs = run_on("left/cpu0");
    struct fake_agent *left = world.agents[0];
    left->leaves = true;
    left->leaves_s = 0;
    left->saves_late = true;
    struct fake_worker *worker = fake_living(left);
    fake_hello(left);
    fake_emit(
        left, worker, "failed",
        json_pack("{s:s, s:s, s:b}", "code", "cancelled", "text", "the worker was lost", "own_fault", 0));
    worker->phase = FAKE_ENDED;
    WORLD_UNTIL(&world, world_says(&world, runs, "waits for left/cpu0 (its agent is stopping)"));
    assert_int_equal(world_number(&world, runs, "losses"), 0);
    left->leaves = left->saves_late = false;
    left->steps_max = 0;
    fake_hello(left);
    WORLD_UNTIL(&world, world_is(&world, runs, "succeeded"));
    assert_int_equal(world_number(&world, runs, "losses"), 0);
}

/* A machine that is taken away at a known time: what runs there moves before. */
static void a_job_moves_before_its_machine_is_taken_away(void **state)
{
    (void)state;
    fresh_agents();
    world.agents[1]->leaves = true;
    world.agents[1]->leaves_s = 1e6;
    fake_hello(world.agents[1]);
    WORLD_UNTIL(&world, world_select(&world, "SELECT count(*) FROM nodes WHERE leaves_at > now()") == 1);
    int64_t runs = run_on("right/cpu0"); /* there is time enough for a checkpoint */
    assert_true(node_is("right", "alive"));
    world.agents[1]->leaves_s = 0.5;
    fake_hello(world.agents[1]);
    WORLD_UNTIL(&world, world_says(&world, runs, "waits for right/cpu0 (its agent is stopping)"));
    assert_int_equal(world_number(&world, runs, "losses"), 0);
    world.agents[1]->leaves_s =
        30; /* a move takes longer (sharing.move is 60 s): a long job does not start */
    const struct world_job job = {.name = "long", .devices = "right/cpu0", .steps = 100000, .every = 1000};
    int64_t waits = world_submit(&world, &job);
    world.agents[1]->steps_max = 0;
    fake_hello(world.agents[1]);
    WORLD_UNTIL(&world, world_is(&world, runs, "succeeded")); /* it ends before */
    WORLD_UNTIL(&world, world_says(&world, waits, "waits for right/cpu0 (its machine is taken away soon"));
    world.agents[1]->leaves = false;
    world.agents[1]->steps_max = 3;
    fake_hello(world.agents[1]);
    WORLD_UNTIL(&world, world_is(&world, waits, "running"));
    json_decref(world_command(&world, waits, JOB_EVENT_CANCEL, 0));
    WORLD_UNTIL(&world, world_is(&world, waits, "cancelled"));
    world_check_metrics(&world, runs, 30);
}

/* A booking begins while a job holds its device: until the job has left, the device is charged to the job
 * alone. */
static void a_lease_is_charged_once_the_job_has_left_its_device(void **state)
{
    (void)state;
    int64_t id = run_on("right/cpu0");
    world.agents[1]->silent = true; /* the end of the job's run is not heard */
    world_sql(
        &world,
        "INSERT INTO leases (device, user_id, kind, begins, ends) VALUES ('right/cpu0', 1, 'lease', now(), "
        "now() + "
        "interval '1 h'); NOTIFY motley_jobs");
    WORLD_UNTIL(&world, world_is(&world, id, "stopping"));
    assert_int_equal(world_select(&world, "SELECT count(*) FROM leases WHERE opened AND NOT settled"), 0);
    world.agents[1]->silent = false;
    world.agents[1]->steps_max = 0;
    WORLD_UNTIL(&world,
                world_select(&world, "SELECT count(*) FROM leases WHERE opened AND NOT settled") == 1);
    assert_int_equal(world_select(&world,
                                  "SELECT count(*) FROM ledger a JOIN ledger b ON a.device = b.device AND "
                                  "a.assignment < 0 AND b.ends > a.begins"),
                     0);
    world_sql(&world, "UPDATE leases SET ends = now() WHERE ends > now(); NOTIFY motley_jobs");
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
}

/* A job that would run into a booking says which. */
static void a_job_says_for_which_booking_it_waits(void **state)
{
    (void)state;
    fresh_agents();
    world_sql(
        &world,
        "INSERT INTO leases (device, user_id, kind, begins, ends) SELECT 'right/cpu0', id, 'lease', "
        "now() + interval '10 s', now() + interval '1 h' FROM users ORDER BY id LIMIT 1; NOTIFY motley_jobs");
    const struct world_job job = {.name = "long", .devices = "right/cpu0", .steps = 100000, .every = 1000};
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, world_says(&world, id, "waits for right/cpu0 (booked by "));
    json_decref(world_command(&world, id, JOB_EVENT_CANCEL, 0));
    world_sql(&world, "DELETE FROM leases WHERE NOT opened; NOTIFY motley_jobs");
}

/* A device that a person holds is not measured, so a job that needs it to be waits for that person. */
static void a_job_whose_device_is_leased_before_it_was_measured_says_so(void **state)
{
    (void)state;
    world_sql(
        &world,
        "INSERT INTO leases (device, user_id, kind, begins, ends) VALUES ('right/cpu0', 1, 'lease', now(), "
        "now() + interval '1 h'); NOTIFY motley_jobs");
    WORLD_UNTIL(&world,
                world_select(&world, "SELECT count(*) FROM leases WHERE opened AND NOT settled") == 1);
    const struct world_job job = {.name = "unpriced", .devices = "right/cpu0", .steps = 1, .tokens = 83};
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, world_says(&world, id, "waits for right/cpu0 (leased by "));
    world_sql(&world, "UPDATE leases SET ends = now() WHERE ends > now(); NOTIFY motley_jobs");
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
}

static bool left_says(const char *part)
{
    json_t *node = node_shown("left");
    const char *why = json_string_value(json_object_get(node, "why"));
    const bool said = part ? why && strstr(why, part) : !why;
    json_decref(node);
    return said;
}

static void a_clock_that_is_far_off_is_named(void **state)
{
    (void)state;
    fresh_agents();
    world.agents[0]->clock_ahead_us = INT64_C(86400000000) * 400;
    WORLD_UNTIL(&world, left_says("ahead of the scheduler's"));
    world.agents[0]->clock_ahead_us = -INT64_C(600000000);
    WORLD_UNTIL(&world, left_says("behind the scheduler's"));
    world_kill(&world, 0, SIGTERM); /* what the next one hears first is no word about the clock yet */
    world.agents[0]->clock_ahead_us = 0;
    world_sql(&world, "UPDATE nodes SET last_seen = 'epoch' WHERE name = 'left'");
    world_spawn(&world, 0);
    WORLD_UNTIL(&world, world_select(&world, "SELECT count(*) FROM nodes WHERE name = 'left' AND "
                                             "last_seen > 'epoch'") == 1);
    assert_true(left_says("behind the scheduler's"));
    const uint64_t begin_ns = clock_mono_ns();
    WORLD_UNTIL(&world, left_says(NULL));
    assert_true(clock_mono_ns() - begin_ns < 10000000000u); /* no need to wait for the next regular note */
}

static void a_lease_of_an_idle_device_ends_early(void **state)
{
    (void)state;
    world_sql(
        &world,
        "INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes, health) SELECT "
        "'right/x' || n, 'right', CASE WHEN n < 5 THEN 'cuda' ELSE 'cpu' END, '{}', '', 1000, (ARRAY["
        "'{\"others_bytes\": 0}', '{\"others_bytes\": 67108864}', '{\"others_bytes\": 0}', NULL, "
        "'{\"others_cores\": 0.1}', '{\"others_cores\": 1.5}'])[n]::json "
        "FROM generate_series(1, 6) n;"
        "INSERT INTO leases (device, user_id, kind, begins, ends) SELECT 'right/x' || n, 1, CASE n WHEN 3 "
        "THEN 'maintenance' ELSE 'lease' END, now(), now() + interval '1 h' FROM generate_series(1, 6) n; "
        "NOTIFY motley_jobs");
    WORLD_UNTIL(
        &world,
        world_select(&world,
                     "SELECT count(*) FROM leases WHERE device IN ('right/x1', 'right/x5') AND settled AND "
                     "ends < begins + interval '30 s' AND ends >= begins + interval '400 ms' AND note LIKE "
                     "'%idle%'") == 2);
    assert_int_equal(
        world_select(&world,
                     "SELECT count(*) FROM ledger g JOIN leases l ON g.assignment = -l.id WHERE g.device = "
                     "'right/x1' AND g.ends = l.ends"),
        1);
    assert_int_equal(
        world_select(&world, "SELECT count(*) FROM leases WHERE device LIKE 'right/x%' AND ends > now()"), 4);
    world_sql(&world, "UPDATE leases SET ends = now() WHERE ends > now(); NOTIFY motley_jobs");
    WORLD_UNTIL(&world, world_select(&world, "SELECT count(*) FROM leases WHERE NOT settled") == 0);
    world_sql(
        &world,
        "DELETE FROM ledger WHERE device LIKE 'right/x%'; DELETE FROM devices WHERE name LIKE 'right/x%'");
}

static int make(void **state)
{
    struct answer answer;
    world.lost_ms = WORLD_PATIENT_MS;
    world_make(&world, state);
    AWAIT_OK(world.fixture, answer, store_user_put(world.fixture->store, "bob", on_id, &answer, E));
    bob = fixture_person(answer.id, "bob");
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
        cmocka_unit_test(a_drain_after_jobs_lets_what_runs_end_and_nothing_start),
        cmocka_unit_test(a_drain_by_a_time_moves_what_still_runs_then),
        cmocka_unit_test(a_job_avoids_the_node_on_which_it_died),
        cmocka_unit_test(a_device_that_cannot_run_a_worker_gets_no_job_and_says_why),
        cmocka_unit_test(a_job_moves_with_a_checkpoint_from_a_node_that_leaves),
        cmocka_unit_test(a_worker_that_a_leaving_agent_ended_costs_the_job_nothing),
        cmocka_unit_test(a_job_moves_before_its_machine_is_taken_away),
        cmocka_unit_test(a_lease_is_charged_once_the_job_has_left_its_device),
        cmocka_unit_test(a_job_says_for_which_booking_it_waits),
        cmocka_unit_test(a_job_whose_device_is_leased_before_it_was_measured_says_so),
        cmocka_unit_test(a_clock_that_is_far_off_is_named),
        cmocka_unit_test(three_failed_starts_of_two_people_drain_the_node),
        cmocka_unit_test(starts_that_an_ending_agent_refused_drain_nothing_and_are_no_loss),
        cmocka_unit_test(a_lease_of_an_idle_device_ends_early),
    };
    return cmocka_run_group_tests(tests, make, end);
}
