/* Tests statements of the scheduler that the database refuses: each one once, and each one for one job, node
 * or device alone. The rest of the lab goes on, and the part at fault is named. */
#include "scheduler/world.h"

#include "scheduler/faults.h"
#include "store/health.h"

static struct world world;

#define BOTH "left/cpu0 right/cpu0"

static void fresh_agents(void)
{
    for (int i = 0; i < WORLD_AGENTS; i++) {
        world.agents[i]->steps_max = 0;
        world.agents[i]->is_busy = world.agents[i]->silent = false;
        fake_forget(world.agents[i]);
    }
}

static json_t *health(void)
{
    struct answer answer;
    AWAIT_OK(world.fixture, answer, store_health_get(world.fixture->store, on_doc, &answer, E));
    return answer.doc;
}

/* Whether the scheduler is in this state, and nothing is set aside. */
static bool health_is(const char *state)
{
    json_t *doc = health();
    const bool is = strcmp(json_string_value(json_object_get(doc, "state")), state) == 0 &&
                    json_integer_value(json_object_get(doc, "set_aside_count")) == 0;
    json_decref(doc);
    return is;
}

/* Whether the scheduler says that it fails because of the statement. */
static bool fails_by(const char *statement)
{
    json_t *doc = health();
    const char *why = json_string_value(json_object_get(doc, "why"));
    const bool is = strcmp(json_string_value(json_object_get(doc, "state")), "failing") == 0 && why &&
                    strstr(why, statement);
    json_decref(doc);
    return is;
}

static int64_t submit(const char *name, const char *devices, bool held)
{
    const struct world_job job = {
        .name = name, .devices = devices, .steps = 6, .every = 3, .retries = 3, .held = held};
    return world_submit(&world, &job);
}

static void release(int64_t id)
{
    json_decref(world_command(&world, id, JOB_EVENT_RELEASE, 0));
}

/* Jobs of one shape that start in one pass from a doubtful profile all want the same measurement. */
static void starts_that_want_one_measurement_start_together(void **state)
{
    (void)state;
    int64_t ids[4];
    fresh_agents();
    world.agents[0]->is_busy = world.agents[1]->is_busy = true;
    const struct world_job first = {.name = "shape", .steps = 2, .tokens = 90};
    ids[0] = world_submit(&world, &first);
    WORLD_UNTIL(&world, world_is(&world, ids[0], "succeeded"));
    world_kill(&world, 0, SIGTERM);
    for (int i = 0; i < 4; i++)
        ids[i] = world_submit(&world, &first);
    world_spawn(&world, 0);
    for (int i = 0; i < 4; i++)
        WORLD_UNTIL(&world, world_is(&world, ids[i], "succeeded"));
    assert_int_equal(world_select(&world, "SELECT count(*) FROM measures"), 1);
    assert_false(world_has_logged(&world, "cannot affect row a second time"));
}

/* ---- each statement once ---- */

/* Jobs that go through everything that a scheduler writes of jobs. */
static void run_everything(void)
{
    int64_t ids[4];
    fresh_agents();
    const struct world_job array = {.name = "array",
                                    .steps = 4,
                                    .every = 2,
                                    .array = "{\"train.learning_rate\": [0.1, 0.2, 0.3]}",
                                    .elements = 3};
    world.agents[0]->compute_s = world.agents[1]->compute_s = 0.1; /* slower than planned */
    const struct world_job both = {.name = "both", .devices = BOTH, .steps = 90, .every = 10, .retries = 3};
    ids[0] = world_submit(&world, &both);
    ids[1] = world_submit(&world, &array);
    const struct world_job after = {.name = "after", .steps = 4, .every = 2, .after = ids[0]};
    ids[2] = world_submit(&world, &after);
    for (int i = 0; i < 3; i++)
        WORLD_UNTIL(&world, world_is(&world, ids[i], "succeeded"));
    world_check_metrics(&world, ids[0], 90);
    fresh_agents();
    world.agents[1]->steps_max = 5;
    ids[3] = submit("lost", "right/cpu0", false);
    WORLD_UNTIL(&world, fake_living(world.agents[1]) && fake_living(world.agents[1])->step == 5);
    fake_forget(world.agents[1]); /* and its agent comes back without it */
    fake_boot(world.agents[1]);
    fake_hello(world.agents[1]);
    WORLD_UNTIL(&world, world_number(&world, ids[3], "losses") == 1);
    fresh_agents();
    WORLD_UNTIL(&world, world_is(&world, ids[3], "succeeded"));
    world_check_metrics(&world, ids[3], 6);
    world_health(&world, 0, 1, (uint64_t)450 << 20);
    world_sql(
        &world,
        "INSERT INTO leases (device, user_id, kind, begins, ends) VALUES ('left/cpu0', 1, 'lease', now(), "
        "now() + interval '100 ms'); NOTIFY motley_jobs");
    WORLD_UNTIL(&world, world_select(&world, "SELECT count(*) FROM leases WHERE NOT settled") == 0);
}

static void a_statement_that_fails_once_costs_nothing(void **state)
{
    (void)state;
    world_kill(&world, 0, SIGTERM);
    faults_clear();
    faults->once = true;
    world_spawn(&world, 0);
    run_everything();
    for (int i = 0; i < faults->seen_count; i++)
        print_message("failed once: %s\n", faults->seen[i]);
    assert_true(faults->seen_count >= 50); /* about 60: of one transaction only one fails */
    WORLD_UNTIL(&world, health_is("deciding"));
    faults_clear();
    assert_int_equal(world_select(&world, "SELECT count(*) FROM nodes WHERE refused > 0"), 0);
}

/* ---- each statement for one job alone ---- */

/* A statement that fails for one unit whenever it has a row of it. */
struct victim {
    const char *statement,
        *key;         /* key: the member of the rows that has `row`; NULL: `row` is a bare number */
    const char *part; /* what is set aside, before the id; NULL: "job " */
    bool starts;      /* the job runs all the same */
    int64_t id, row;  /* row: as in the statement's rows; 0: the id */
    int fault;
    bool named;
};

static void arm(struct victim *victim)
{
    char match[FAULT_NAME];
    snprintf(match, sizeof(match), "%s%s%s%lld", victim->key ? "\"" : "", victim->key ? victim->key : "",
             victim->key ? "\":" : "", (long long)(victim->row ? victim->row : victim->id));
    victim->fault = fault_add(victim->statement, match);
}

/* Returns how many of the victims have been named so far: their statement has failed, and their part was set
 * aside. */
static int count_named(struct victim *victims, int count)
{
    json_t *doc = health(), *aside;
    int named = 0;
    for (int i = 0; i < count; i++) {
        char part[80];
        size_t k;
        snprintf(part, sizeof(part), "%s%lld", victims[i].part ? victims[i].part : "job ",
                 (long long)victims[i].id);
        json_array_foreach (json_object_get(doc, "set_aside"), k, aside)
            victims[i].named =
                victims[i].named || strcmp(json_string_value(json_object_get(aside, "part")), part) == 0;
        named += victims[i].named && faults->at[victims[i].fault].hits > 0 ? 1 : 0;
    }
    json_decref(doc);
    return named;
}

static void a_job_that_cannot_be_written_costs_itself_alone(void **state)
{
    (void)state;
    static struct victim victims[] = {
        {.statement = "sched_numbers"},
        {.statement = "decide_runs_new", .key = "job"},
        {.statement = "decide_jobs", .key = "job"},
        {.statement = "decide_messages", .key = "job"},
        {.statement = "decide_places", .key = "job", .part = "places of job ", .starts = true},
        {.statement = "records_arrivals", .key = "job", .part = "arrivals of job ", .starts = true},
    };
    enum { COUNT = sizeof(victims) / sizeof(victims[0]) };
    const int64_t before = world_select(&world, "SELECT last_value FROM runs_id_seq");
    faults_clear();
    fresh_agents();
    world.agents[0]->steps_max = 3; /* the first job stays on its device, so that the others wait */
    const int64_t first = submit("first", "left/cpu0", false);
    WORLD_UNTIL(&world, world_number(&world, first, "step") == 3);
    for (int i = 0; i < COUNT; i++) {
        victims[i].id = submit("victim", "left/cpu0", true);
        arm(&victims[i]);
        release(victims[i].id);
    }
    const int64_t healthy = submit("healthy", "left/cpu0", false);
    WORLD_UNTIL(&world, count_named(victims, COUNT) >= 2 && world_number(&world, healthy, "place") > 0);
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, count_named(victims, COUNT) == COUNT && world_is(&world, healthy, "succeeded"));
    for (int i = 0; i < COUNT; i++)
        WORLD_UNTIL(&world, victims[i].starts ? world_is(&world, victims[i].id, "succeeded")
                                              : world_says(&world, victims[i].id, "is set aside until"));
    faults_clear();
    for (int i = 0; i < COUNT; i++)
        WORLD_UNTIL(&world, world_is(&world, victims[i].id, "succeeded"));
    WORLD_UNTIL(&world, health_is("deciding"));
    print_message("%lld ids of runs for %d runs\n",
                  (long long)(world_select(&world, "SELECT last_value FROM runs_id_seq") - before),
                  COUNT + 2);
}

/* The same of what a lab writes beside starts: an array's elements, a job that waited for another, the charge
 * of a lease, and the end of a run. */
static void what_does_not_start_and_cannot_be_written_costs_itself_alone(void **state)
{
    (void)state;
    static struct victim victims[] = {
        {.statement = "decide_elements", .key = "array"},
        {.statement = "decide_ready", .key = "job"},
        {.statement = "decide_leases_open", .key = "id", .part = "leases "},
        {.statement = "decide_runs", .key = "run"},
        {.statement = "records_ends", .key = "run", .part = "ends of job "},
    };
    enum { ARRAY, READY, LEASE, RUN, ENDS, COUNT };
    faults_clear();
    fresh_agents();
    const struct world_job array = {.name = "array",
                                    .steps = 4,
                                    .every = 2,
                                    .array = "{\"train.seed\": [1, 2]}",
                                    .elements = 2,
                                    .held = true};
    victims[ARRAY].id = world_submit(&world, &array);
    world.agents[0]->steps_max = world.agents[1]->steps_max = 3;
    victims[RUN].id = submit("runs", "left/cpu0", false);
    victims[ENDS].id = submit("ends", "right/cpu0", false);
    const struct world_job after = {.name = "after", .steps = 4, .every = 2, .after = victims[ENDS].id};
    victims[READY].id = world_submit(&world, &after);
    world_sql(
        &world,
        "INSERT INTO leases (device, user_id, kind, begins, ends) VALUES ('right/x1', 1, 'lease', now() + "
        "interval '1 h', now() + interval '2 h')");
    victims[LEASE].id = world_select(&world, "SELECT max(id) FROM leases");
    for (int i = RUN; i <= ENDS; i++) {
        char run[80];
        WORLD_UNTIL(&world, world_number(&world, victims[i].id, "step") == 3);
        snprintf(run, sizeof(run), "SELECT run FROM jobs WHERE id = %lld", (long long)victims[i].id);
        victims[i].row = world_select(&world, run);
    }
    for (int i = 0; i < COUNT; i++)
        arm(&victims[i]);
    const int64_t ids = world_select(&world, "SELECT last_value FROM jobs_id_seq");
    release(victims[ARRAY].id);
    world_sql(&world, "UPDATE leases SET begins = now() WHERE NOT opened; NOTIFY motley_jobs");
    world.agents[0]->steps_max = world.agents[1]->steps_max = 0;
    const int64_t healthy = submit("healthy", "right/cpu0", false);
    WORLD_UNTIL(&world, count_named(victims, COUNT) == COUNT && world_is(&world, healthy, "succeeded"));
    assert_true(world_is(&world, victims[ENDS].id, "succeeded")); /* what only informs holds nothing up */
    assert_true(world_is(&world, victims[RUN].id, "running"));
    assert_true(world_is(&world, victims[READY].id, "queued"));
    assert_int_equal(world_select(&world, "SELECT last_value FROM jobs_id_seq"),
                     ids + 1); /* only the healthy job's */
    faults_clear();
    for (int i = 0; i < COUNT; i++)
        WORLD_UNTIL(&world, i == LEASE || world_is(&world, victims[i].id, "succeeded"));
    WORLD_UNTIL(&world,
                world_select(&world, "SELECT count(*) FROM leases WHERE opened AND NOT settled") == 1);
    world_sql(&world, "UPDATE leases SET ends = now() WHERE NOT settled; NOTIFY motley_jobs");
    WORLD_UNTIL(&world, world_select(&world, "SELECT count(*) FROM leases WHERE NOT settled") == 0);
    WORLD_UNTIL(&world, health_is("deciding"));
}

/* A row that is wrong in the database itself: a rank that no run holds, on a device that looks free. A
 * conflict usually means that somebody was faster, so the pass is repeated twice before the job is blamed,
 * also while the pass is divided for another job. */
static void a_conflict_that_stays_costs_its_job_alone(void **state)
{
    (void)state;
    faults_clear();
    fresh_agents();
    world_sql(
        &world,
        "INSERT INTO assignments (id, run, rank, node, device, state) SELECT 999999, max(id), 7, 'left', "
        "'left/cpu0', "
        "'sent' FROM runs WHERE ended_at IS NOT NULL");
    static const char reloads[] = "decision_failed code=conflict";
    assert_false(world_has_logged(&world, reloads));
    world_kill(&world, 0, SIGTERM);
    struct victim other = {.statement = "decide_runs_new", .key = "job"};
    other.id = submit("other", "right/cpu0", false);
    arm(&other);
    const int64_t victim = submit("victim", "left/cpu0", false);
    const int64_t healthy = submit("healthy", "right/cpu0", false);
    world_spawn(&world, 0);
    WORLD_UNTIL(&world, world_is(&world, healthy, "succeeded"));
    WORLD_UNTIL(&world,
                world_says(&world, victim, "is set aside until") && world_says(&world, victim, "23505"));
    assert_true(world_has_logged(&world, reloads));
    faults_clear();
    world_sql(&world, "DELETE FROM assignments WHERE id = 999999");
    WORLD_UNTIL(&world, world_is(&world, victim, "succeeded") && world_is(&world, other.id, "succeeded"));
}

/* Events that cannot be stored: what only informs is lost with a line in the job's log, what ends a rank
 * fails it with that reason, and the node is marked. */
static void events_that_cannot_be_stored_cost_their_job_alone(void **state)
{
    (void)state;
    static struct victim victims[] = {{.statement = "ingest_metrics", .key = "job"},
                                      {.statement = "ingest_artifacts", .key = "job"}};
    faults_clear();
    fresh_agents();
    for (int i = 0; i < 2; i++) {
        victims[i].id = submit("victim", "right/cpu0", true);
        arm(&victims[i]);
        release(victims[i].id);
    }
    const int64_t healthy = submit("healthy", "left/cpu0", false);
    WORLD_UNTIL(&world, world_is(&world, healthy, "succeeded"));
    world_check_metrics(&world, healthy, 6);
    WORLD_UNTIL(&world, world_is(&world, victims[0].id, "succeeded"));
    assert_true(
        world_logged(&world, victims[0].id, "the event step of this worker was refused by the database"));
    assert_int_equal(world_number(&world, victims[0].id, "step"), 6);
    WORLD_UNTIL(&world, world_is(&world, victims[1].id, "failed"));
    assert_true(
        world_says(&world, victims[1].id, "the event done of this worker was refused by the database"));
    WORLD_UNTIL(
        &world,
        world_select(&world, "SELECT count(*) FROM nodes WHERE name = 'right' AND mark LIKE '%ingest_%'") ==
            1);
    faults_clear();
}

/* PostgreSQL refuses a document with U+0000, and the node would never be there. */
static void a_node_whose_hello_holds_nul_is_taken_all_the_same(void **state)
{
    (void)state;
    fresh_agents();
    world.agents[0]->says_nul = true;
    fake_boot(world.agents[0]);
    fake_hello(world.agents[0]);
    WORLD_UNTIL(&world,
                world_select(&world, "SELECT count(*) FROM nodes WHERE inventory::text LIKE '%\"1?x\"%'") ==
                    1);
    const int64_t id = submit("odd", "left/cpu0", false);
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
}

/* How many parts are set aside. */
static int64_t count_aside(void)
{
    json_t *doc = health();
    const int64_t count = json_integer_value(json_object_get(doc, "set_aside_count"));
    json_decref(doc);
    return count;
}

/* The queue stays as it is, so the list that is due again is the one that could not be written. */
static void a_list_of_the_queue_that_was_set_aside_is_written_later(void **state)
{
    (void)state;
    faults_clear();
    fresh_agents();
    world.agents[0]->steps_max = 3;
    const int64_t first = submit("first", "left/cpu0", false);
    WORLD_UNTIL(&world, world_number(&world, first, "step") == 3);
    fault_add("decide_listing", "chunks");
    const int64_t waiting = submit("waiting", "left/cpu0", false);
    WORLD_UNTIL(&world, count_aside() > 0);
    faults_clear();
    WORLD_UNTIL(&world, world_number(&world, waiting, "place") > 0);
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, waiting, "succeeded"));
}

/* What fails as a whole sets nothing aside, and is told with its reason while it lasts; the same for events
 * that cannot be stored. */
static void a_pass_that_fails_as_a_whole_is_told(void **state)
{
    (void)state;
    static const char *const statements[] = {"sched_leases", "store_fence"};
    for (int i = 0; i < 2; i++) {
        faults_clear();
        fault_add(statements[i], "");
        const int64_t id = submit("told", "left/cpu0", false);
        WORLD_UNTIL(&world, fails_by(statements[i]));
        assert_true(world_is(&world, id, "queued"));
        faults_clear();
        WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
        WORLD_UNTIL(&world, health_is("deciding"));
    }
}

/* A database that refuses every decision is at fault, not the jobs. */
static void no_job_is_set_aside_while_every_decision_is_refused(void **state)
{
    (void)state;
    int64_t ids[4];
    bool aside = false;
    fresh_agents();
    world_kill(&world, 0, SIGTERM);
    faults_clear();
    for (int i = 0; i < 4; i++)
        ids[i] = submit("refused", NULL, false);
    fault_add("decide_*", "");
    world_spawn(&world, 0);
    WORLD_UNTIL(&world, fails_by("decide_"));
    const int hits = faults->at[0].hits;
    WORLD_UNTIL(&world, (aside = aside || count_aside() > 0) || faults->at[0].hits > hits + 50);
    assert_false(aside);
    faults_clear();
    for (int i = 0; i < 4; i++)
        WORLD_UNTIL(&world, world_is(&world, ids[i], "succeeded"));
    WORLD_UNTIL(&world, health_is("deciding"));
}

/* No event is lost and no job fails while the database lacks what a statement needs. */
static void events_wait_for_a_statement_that_the_database_cannot_run(void **state)
{
    (void)state;
    static const char refused[] = "SELECT coalesce(sum(refused), 0) FROM nodes";
    faults_clear();
    fresh_agents();
    const int64_t before = world_select(&world, refused);
    fault_add("ingest_artifacts", "");
    const int64_t id = submit("done", "left/cpu0", false);
    WORLD_UNTIL(&world, fails_by("ingest_artifacts"));
    assert_true(world_is(&world, id, "running"));
    faults_clear();
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    assert_int_equal(world_select(&world, refused), before);
    assert_int_equal(world_number(&world, id, "losses"), 0);
}

/* A clock that moved while nothing could be stored is named at once afterwards, not when it is written anyway
 * (every 15 s). */
static void a_clock_that_moved_meanwhile_is_named_at_once(void **state)
{
    (void)state;
    static const char named[] = "SELECT count(*) FROM nodes WHERE name = 'left' AND clock_ahead_s > 1e6";
    faults_clear();
    fresh_agents();
    const int fault = fault_add("ingest_seen", "left");
    world.agents[0]->clock_ahead_us = INT64_C(86400000000) * 400;
    WORLD_UNTIL(&world, faults->at[fault].hits > 0);
    faults_clear();
    const uint64_t began_ns = clock_mono_ns();
    WORLD_UNTIL(&world, world_select(&world, named) == 1);
    assert_true(clock_mono_ns() - began_ns < UINT64_C(9000000000));
    world.agents[0]->clock_ahead_us = 0;
}

static int setup(void **state)
{
    char path[200];
    world.lost_ms = WORLD_PATIENT_MS;
    world.aside_ms = 1000;
    snprintf(path, sizeof(path), "/tmp/motley-faults-%d", getpid());
    setenv("WORLD_FAULTS", path, 1);
    faults_map(path, false);
    world_make(&world, state);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_end(&world);
    unlink(getenv("WORLD_FAULTS"));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--scheduler") == 0) {
        faults_map(getenv("WORLD_FAULTS"), true);
        return world_scheduler_main(argv[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_that_want_one_measurement_start_together),
        cmocka_unit_test(a_statement_that_fails_once_costs_nothing),
        cmocka_unit_test(a_job_that_cannot_be_written_costs_itself_alone),
        cmocka_unit_test(what_does_not_start_and_cannot_be_written_costs_itself_alone),
        cmocka_unit_test(a_conflict_that_stays_costs_its_job_alone),
        cmocka_unit_test(events_that_cannot_be_stored_cost_their_job_alone),
        cmocka_unit_test(a_node_whose_hello_holds_nul_is_taken_all_the_same),
        cmocka_unit_test(a_list_of_the_queue_that_was_set_aside_is_written_later),
        cmocka_unit_test(a_pass_that_fails_as_a_whole_is_told),
        cmocka_unit_test(no_job_is_set_aside_while_every_decision_is_refused),
        cmocka_unit_test(events_wait_for_a_statement_that_the_database_cannot_run),
        cmocka_unit_test(a_clock_that_moved_meanwhile_is_named_at_once),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
