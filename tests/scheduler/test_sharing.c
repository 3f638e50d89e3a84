/* Tests which job starts next under a real scheduler process: shares, limits, service classes, begin times,
 * and the ledger of all runs. */
#include "scheduler/world.h"
#include "store/usage.h"

static struct world world;
static struct principal bob;

static void fresh_agents(void)
{
    for (int i = 0; i < WORLD_AGENTS; i++) {
        world.agents[i]->silent = false;
        world.agents[i]->steps_max = 0;
        world.agents[i]->saves_late = false;
        fake_forget(world.agents[i]);
    }
}

static void sql(const char *text)
{
    world_sql(&world, text);
}

static int64_t number(const char *query)
{
    return world_select(&world, query);
}

static int64_t run_of(int64_t id)
{
    json_t *doc = world_job(&world, id);
    int64_t run = json_integer_value(json_object_get(json_object_get(doc, "run"), "id"));
    json_decref(doc);
    return run;
}

/* Starts a job that holds left/cpu0 until the test lets its steps go on. */
static int64_t hold_left(void)
{
    fresh_agents();
    world.agents[0]->steps_max = 2;
    const struct world_job job = {.name = "holder", .devices = "left/cpu0", .steps = 6, .every = 3};
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, world_is(&world, id, "running"));
    return id;
}

static void who_used_less_goes_first_however_many_jobs_the_other_has(void **state)
{
    (void)state;
    int64_t ids[6], holder = hold_left();
    const struct world_job many = {
        .name = "many", .devices = "left/cpu0", .steps = 6, .every = 3, .priority = 9};
    const struct world_job one = {
        .name = "many", .devices = "left/cpu0", .steps = 6, .every = 3, .owner = &bob};
    for (int i = 0; i < 6; i++)
        ids[i] = world_submit(&world, &many);
    int64_t last = world_submit(&world, &one);
    WORLD_UNTIL(&world, world_says(&world, last, "waits for left/cpu0 (busy)"));
    WORLD_UNTIL(&world, number("SELECT count(*) FROM jobs, motley_place(id) p WHERE state = 'queued' AND "
                               "p.why LIKE '%; job % goes first'") == 6);
    char query[200];
    snprintf(query, sizeof(query),
             "SELECT count(*) FROM jobs, motley_place(id) p WHERE id = %lld AND p.place = 1 AND p.code = "
             "wait_code AND wait_code = 'devices' AND wait_subject = %lld AND starts_at IS NOT NULL",
             (long long)last, (long long)holder);
    assert_int_equal(number(query), 1);
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, last, "succeeded"));
    for (int i = 0; i < 6; i++) {
        WORLD_UNTIL(&world, world_is(&world, ids[i], "succeeded"));
        assert_true(run_of(ids[i]) > run_of(last));
        assert_true(i == 0 || run_of(ids[i]) > run_of(ids[i - 1]));
    }
    assert_true(world_is(&world, holder, "succeeded"));
}

static void urgent_jobs_go_before_and_scavengers_after_all(void **state)
{
    (void)state;
    hold_left();
    const struct world_job kinds[] = {
        {.name = "s", .devices = "left/cpu0", .steps = 4, .every = 2, .service = 1},
        {.name = "n", .devices = "left/cpu0", .steps = 4, .every = 2},
        {.name = "u", .devices = "left/cpu0", .steps = 4, .every = 2, .service = -1}};
    int64_t ids[3];
    for (int i = 0; i < 3; i++)
        ids[i] = world_submit(&world, &kinds[i]);
    WORLD_UNTIL(&world, world_says(&world, ids[2], "waits for left/cpu0"));
    world.agents[0]->steps_max = 0;
    for (int i = 0; i < 3; i++)
        WORLD_UNTIL(&world, world_is(&world, ids[i], "succeeded"));
    assert_true(run_of(ids[2]) < run_of(ids[1]) && run_of(ids[1]) < run_of(ids[0]));
    char query[200];
    snprintf(query, sizeof(query), "SELECT count(*) FROM ledger WHERE factor = 0.25 AND job = %lld",
             (long long)ids[0]);
    assert_int_equal(number(query), 1);
}

static void a_limit_is_waited_for_and_said_and_holds_up_nobody_else(void **state)
{
    (void)state;
    sql("INSERT INTO groups (name, running_max) VALUES ('lab', 1); INSERT INTO group_members SELECT id, 1 "
        "FROM groups;"
        "UPDATE users SET devices_max = 1 WHERE id = 1");
    int64_t holder = hold_left();
    const struct world_job more = {.name = "more", .devices = "right/cpu0", .steps = 4, .every = 2};
    const struct world_job other = {
        .name = "more", .devices = "right/cpu0", .steps = 4, .every = 2, .owner = &bob, .priority = -9};
    int64_t waits = world_submit(&world, &more);
    WORLD_UNTIL(&world, world_says(&world, waits, "waits: user ada may hold 1 device at once"));
    int64_t runs = world_submit(&world, &other);
    WORLD_UNTIL(&world, world_is(&world, runs, "succeeded"));
    assert_true(world_is(&world, waits, "queued"));
    sql("UPDATE users SET devices_max = 0 WHERE id = 1; NOTIFY motley_jobs");
    WORLD_UNTIL(&world, world_is(&world, waits, "succeeded"));
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, holder, "succeeded"));

    world.agents[0]->steps_max = 2;
    const struct world_job in_lab = {
        .name = "holder", .devices = "left/cpu0", .steps = 6, .every = 3, .account = "lab"};
    const struct world_job second = {
        .name = "more", .devices = "right/cpu0", .steps = 4, .every = 2, .account = "lab"};
    holder = world_submit(&world, &in_lab);
    WORLD_UNTIL(&world, world_is(&world, holder, "running"));
    waits = world_submit(&world, &second);
    WORLD_UNTIL(&world, world_says(&world, waits, "waits: group lab may run 1 job at once"));
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, waits, "succeeded"));
    assert_int_equal(number("SELECT count(*) FROM ledger WHERE account = 'lab'"), 2);
}

/* After SIGHUP the policies and limits of the file apply. A file that also changes a value for which a
 * restart is necessary is refused as a whole. */
static void the_configuration_is_read_again_without_a_restart(void **state)
{
    (void)state;
    char path[160];
    struct scheduler_config config;
    struct err err;
    sql("UPDATE users SET running_max = 1 WHERE id = 1");
    int64_t holder = hold_left();
    const struct world_job more = {.name = "more", .devices = "right/cpu0", .steps = 4, .every = 2};
    int64_t waits = world_submit(&world, &more);
    WORLD_UNTIL(&world, world_says(&world, waits, "waits: user ada may run 1 job at once"));

    world_configure(&world, 0, path);
    must(scheduler_config_load(path, &config, &err), &err);
    static const struct {
        const char *more, *words;
    } refused[] = {{"links: [{between: [left, right], rate: 1Gbit/s}]\nsharing: {limits: false}\n",
                    "links: another value"},
                   {"sharing: {limits: perhaps}\n", "sharing.limits"},
                   {"sharing: {luck: 1}\n", "sharing.luck"}};
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        world.more = refused[i].more;
        world_configure(&world, 0, path);
        assert_int_equal(scheduler_config_reload(path, &config, &err), -1);
        if (!strstr(err.text, refused[i].words))
            fail_msg("%s", err.text);
        assert_true(config.sharing.limits && json_array_size(config.links) == 0);
        kill(world.schedulers[0], SIGHUP);
    }
    scheduler_config_fini(&config);
    assert_true(world_is(&world, waits, "queued"));
    world.more = "sharing: {limits: false, half_life: 1h}\n";
    world_configure(&world, 0, path);
    kill(world.schedulers[0], SIGHUP);
    WORLD_UNTIL(&world, world_is(&world, waits, "succeeded"));
    assert_true(world_is(&world, holder, "running"));
    world.more = NULL;
    world_configure(&world, 0, path);
    kill(world.schedulers[0], SIGHUP);
    sql("UPDATE users SET running_max = 0 WHERE id = 1");
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, holder, "succeeded"));
}

static void a_job_that_a_limit_leaves_too_few_devices_waits_and_is_not_refused(void **state)
{
    (void)state;
    fresh_agents();
    world.agents[0]->steps_max = 2;
    const struct world_job holds = {
        .name = "holder", .devices = "left/cpu0", .steps = 6, .every = 3, .owner = &bob};
    const struct world_job both = {
        .name = "needs-two", .devices = "left/cpu0 right/cpu0", .steps = 4, .every = 2};
    int64_t holder = world_submit(&world, &holds);
    WORLD_UNTIL(&world, world_is(&world, holder, "running"));
    int64_t id = world_submit(&world, &both);
    WORLD_UNTIL(&world, world_says(&world, id, "waits for left/cpu0 (busy)"));
    sql("UPDATE users SET devices_max = 1 WHERE id = 1");
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, holder, "succeeded"));
    WORLD_UNTIL(&world, world_says(&world, id, "waits: its plan needs 2 devices at once"));
    sql("UPDATE users SET devices_max = 0 WHERE id = 1; NOTIFY motley_jobs");
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
}

static void a_job_does_not_start_before_it_is_to_begin(void **state)
{
    (void)state;
    fresh_agents();
    const struct world_job job = {.name = "later",
                                  .devices = "left/cpu0",
                                  .steps = 4,
                                  .every = 2,
                                  .begin_us = clock_wall_us() + 700000};
    const struct world_job tomorrow = {.name = "tomorrow",
                                       .devices = "left/cpu0",
                                       .steps = 4,
                                       .begin_us = clock_wall_us() + INT64_C(86400000000)};
    int64_t id = world_submit(&world, &job), later = world_submit(&world, &tomorrow);
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    assert_int_equal(
        number("SELECT count(*) FROM runs r JOIN jobs j ON j.id = r.job WHERE r.created_at < j.begin_at"), 0);
    assert_true(world_says(&world, later, "is to begin at 20"));
    json_decref(world_command(&world, later, JOB_EVENT_CANCEL, 0));
}

static int64_t submit_after(const char *name, int64_t after, int64_t after_any, bool held)
{
    const struct world_job job = {.name = name,
                                  .devices = "right/cpu0",
                                  .steps = 4,
                                  .every = 2,
                                  .held = held,
                                  .after = after,
                                  .after_any = after_any};
    return world_submit(&world, &job);
}

static bool waits_for(int64_t id, int64_t other)
{
    char query[160];
    snprintf(query, sizeof(query),
             "SELECT count(*) FROM jobs WHERE id = %lld AND state = 'queued' AND wait_code = 'after' AND "
             "wait_subject = %lld AND NOT EXISTS (SELECT FROM motley_place(id))",
             (long long)id, (long long)other);
    return number(query) == 1;
}

static bool failed_with(int64_t id, int64_t other, const char *state)
{
    char why[100];
    json_t *doc = world_job(&world, id);
    const char *code = json_string_value(json_object_get(doc, "code"));
    const char *said = json_string_value(json_object_get(doc, "why"));
    snprintf(why, sizeof(why), "it was to start after job %lld had succeeded, which is %s", (long long)other,
             state);
    const bool is = strcmp(json_string_value(json_object_get(doc, "state")), "failed") == 0 && code &&
                    strcmp(code, "dependency") == 0 && said && strcmp(said, why) == 0;
    json_decref(doc);
    return is;
}

static void a_job_after_another_starts_when_that_has_succeeded(void **state)
{
    (void)state;
    int64_t first = hold_left();
    int64_t second = submit_after("after", first, 0, false), third = submit_after("after", second, 0, false),
            ended = submit_after("after", 0, second, false);
    WORLD_UNTIL(&world, waits_for(second, first));
    WORLD_UNTIL(&world, waits_for(third, second));
    WORLD_UNTIL(&world, waits_for(ended, second));
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, third, "succeeded"));
    WORLD_UNTIL(&world, world_is(&world, ended, "succeeded"));
    assert_int_equal(
        number("SELECT count(*) FROM job_after a JOIN jobs o ON o.id = a.after JOIN runs r ON r.job = a.job "
               "WHERE r.created_at < o.ended_at"),
        0);
    assert_int_equal(
        number("SELECT count(*) FROM jobs j JOIN job_after a ON a.job = j.id JOIN jobs o ON o.id = a.after "
               "WHERE j.eligible_at < o.ended_at"),
        0);
}

static void a_job_fails_with_the_one_that_it_comes_after(void **state)
{
    (void)state;
    struct answer answer;
    int64_t first = hold_left();
    int64_t second = submit_after("after", first, 0, false), third = submit_after("after", second, 0, false),
            held = submit_after("after", second, 0, true), ended = submit_after("after", 0, second, false);
    WORLD_UNTIL(&world, waits_for(second, first));
    AWAIT_OK(world.fixture, answer,
             store_job_command(world.fixture->store, &principal_service, first, JOB_EVENT_CANCEL, 0, on_doc,
                               &answer, E));
    json_decref(answer.doc);
    WORLD_UNTIL(&world, failed_with(second, first, "cancelled"));
    WORLD_UNTIL(&world, failed_with(third, second, "failed"));
    WORLD_UNTIL(&world, failed_with(held, second, "failed"));
    WORLD_UNTIL(&world, world_is(&world, ended, "succeeded"));
    world.agents[0]->steps_max = 0;
    /* A resumed job fails again until the job that it depends on has succeeded. */
    AWAIT_OK(world.fixture, answer,
             store_job_command(world.fixture->store, &principal_service, second, JOB_EVENT_RESUME, 0, on_doc,
                               &answer, E));
    json_decref(answer.doc);
    WORLD_UNTIL(&world, failed_with(second, first, "cancelled"));
    const int64_t both[] = {first, second};
    for (int i = 0; i < 2; i++) {
        AWAIT_OK(world.fixture, answer,
                 store_job_command(world.fixture->store, &principal_service, both[i], JOB_EVENT_RESUME, 0,
                                   on_doc, &answer, E));
        json_decref(answer.doc);
    }
    WORLD_UNTIL(&world, world_is(&world, second, "succeeded"));
    assert_true(world_is(&world, first, "succeeded"));
}

static int64_t count_elements(int64_t array, const char *condition)
{
    char query[300];
    snprintf(query, sizeof(query), "SELECT count(*) FROM jobs WHERE array_of = %lld AND %s", (long long)array,
             condition);
    return number(query);
}

static void an_array_is_one_row_until_its_elements_run_at_most_so_many_at_once(void **state)
{
    (void)state;
    fresh_agents();
    const struct world_job sweep = {
        .name = "sweep",
        .steps = 4,
        .every = 2,
        .array = "{\"train.learning_rate\": [0.001, 0.002], \"train.seed\": [1, 2, 3]}",
        .elements = 6,
        .at_most = 1};
    int64_t array = world_submit(&world, &sweep), last = submit_after("after", array, 0, false);
    WORLD_UNTIL(&world, world_says(&world, array, " of its 6 elements are jobs"));
    WORLD_UNTIL(&world, world_is(&world, last, "succeeded"));
    assert_true(world_is(&world, array, "succeeded"));
    assert_int_equal(
        count_elements(array, "state = 'succeeded' AND steps = 4 AND name = 'sweep[' || array_index || ']'"),
        6);
    assert_int_equal(
        count_elements(array, "(spec #>> '{train,seed}')::int = 1 + array_index % 3 AND "
                              "(spec #>> '{train,learning_rate}')::float8 = 0.001 * (1 + array_index / 3)"),
        6);
    assert_int_equal(
        number("SELECT count(*) FROM runs a JOIN jobs j ON j.id = a.job JOIN runs b ON b.id > a.id AND "
               "b.created_at < a.ended_at JOIN jobs k ON k.id = b.job WHERE j.array_of = k.array_of"),
        0);
    /* Elements that differ in learning rate and seed are of one class, so they share one plan. */
    assert_int_equal(
        number("SELECT count(DISTINCT a.class) FROM arrivals a JOIN jobs j ON j.id = a.job WHERE "
               "j.array_of IS NOT NULL"),
        1);
    assert_int_equal(
        number("SELECT count(*) FROM (SELECT state, count(*) AS n FROM jobs GROUP BY state) j FULL JOIN "
               "(SELECT state, sum(n) AS n FROM job_counts GROUP BY state HAVING sum(n) <> 0) c USING "
               "(state) WHERE j.n IS DISTINCT FROM c.n"),
        0);
}

static void tell(int64_t id, enum job_event event)
{
    struct answer answer;
    AWAIT_OK(world.fixture, answer,
             store_job_command(world.fixture->store, &world.fixture->user, id, event, 0, on_doc, &answer, E));
    json_decref(answer.doc);
}

static void an_array_is_held_released_and_cancelled_as_a_whole(void **state)
{
    (void)state;
    fresh_agents();
    for (int i = 0; i < WORLD_AGENTS; i++)
        world.agents[i]->steps_max = 2;
    const struct world_job sweep = {.name = "sweep",
                                    .steps = 6,
                                    .every = 3,
                                    .array = "{\"train.seed\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}",
                                    .elements = 9};
    int64_t array = world_submit(&world, &sweep);
    WORLD_UNTIL(&world, count_elements(array, "state = 'running'") == 2);
    WORLD_UNTIL(&world, count_elements(array, "state = 'queued'") == 2); /* one for each device */
    assert_int_equal(count_elements(array, "true"), 4);
    tell(array, JOB_EVENT_HOLD);
    WORLD_UNTIL(&world, count_elements(array, "state = 'held'") == 4);
    assert_true(world_is(&world, array, "held"));
    tell(array, JOB_EVENT_RELEASE);
    WORLD_UNTIL(&world, count_elements(array, "state = 'running'") == 2);
    tell(array, JOB_EVENT_CANCEL);
    WORLD_UNTIL(&world, count_elements(array, "state = 'cancelled'") == 4);
    assert_true(world_is(&world, array, "cancelled"));
    struct answer answer;
    AWAIT(world.fixture, answer,
          store_job_command(world.fixture->store, &world.fixture->user, array, JOB_EVENT_RESUME, 0, on_doc,
                            &answer, E));
    assert_int_equal(answer.err.code, ERR_CONFLICT);
    assert_non_null(strstr(answer.err.text, "resume its elements"));
    /* A cancelled array makes no further elements. */
    fresh_agents();
    const struct world_job other = {.name = "other", .devices = "left/cpu0", .steps = 4, .every = 2};
    int64_t id = world_submit(&world, &other);
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    assert_int_equal(count_elements(array, "true"), 4);
}

static void an_array_whose_elements_are_all_jobs_ends_with_the_last_of_them(void **state)
{
    (void)state;
    fresh_agents();
    for (int i = 0; i < WORLD_AGENTS; i++)
        world.agents[i]->steps_max = 2;
    const struct world_job sweep = {
        .name = "sweep", .steps = 6, .every = 3, .array = "{\"train.seed\": [1, 2, 3]}", .elements = 3};
    int64_t array = world_submit(&world, &sweep);
    WORLD_UNTIL(&world, world_is(&world, array, "running"));
    WORLD_UNTIL(&world, count_elements(array, "state = 'running'") == 2);
    char query[100], why[100];
    snprintf(query, sizeof(query), "SELECT id FROM jobs WHERE array_of = %lld AND state = 'queued'",
             (long long)array);
    int64_t third = number(query);
    tell(array, JOB_EVENT_HOLD); /* as a running job, it is held once its elements have stopped */
    WORLD_UNTIL(&world, world_is(&world, array, "held"));
    assert_int_equal(count_elements(array, "state = 'held'"), 3);
    tell(array, JOB_EVENT_RELEASE);
    tell(third, JOB_EVENT_CANCEL);
    for (int i = 0; i < WORLD_AGENTS; i++)
        world.agents[i]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, array, "failed"));
    snprintf(why, sizeof(why), "1 of 3 elements did not succeed, job %lld the first", (long long)third);
    assert_true(world_says(&world, array, why));
    assert_int_equal(count_elements(array, "state = 'succeeded'"), 2);
}

/* A job that waits for a drained device does not keep its other devices idle: a smaller job runs on them
 * first. */
static void a_claim_on_an_absent_device_holds_up_nobody_for_ever(void **state)
{
    (void)state;
    fresh_agents();
    world_drain(&world, "right/cpu0", true);
    const struct world_job both = {
        .name = "needs-two", .devices = "left/cpu0 right/cpu0", .steps = 5, .every = 5};
    const struct world_job small = {
        .name = "small", .devices = "left/cpu0", .steps = 4, .every = 2, .owner = &bob};
    int64_t first = world_submit(&world, &both);
    WORLD_UNTIL(&world, world_says(&world, first, "waits for right/cpu0 (drained)"));
    int64_t second = world_submit(&world, &small);
    WORLD_UNTIL(&world, world_is(&world, second, "succeeded"));
    assert_true(world_is(&world, first, "queued"));
    world_drain(&world, "right/cpu0", false);
    WORLD_UNTIL(&world, world_is(&world, first, "succeeded"));
}

/* Starts a long job of ada's that holds left/cpu0 in its third step. */
static int64_t run_long(int service)
{
    fresh_agents();
    world.agents[0]->steps_max = 3;
    const struct world_job job = {
        .name = "long", .devices = "left/cpu0", .steps = 100000, .every = 1000, .service = service};
    int64_t id = world_submit(&world, &job);
    WORLD_UNTIL(&world, world_number(&world, id, "step") == 3);
    return id;
}

static bool waits_with(int64_t id, const char *code, int64_t of)
{
    char query[200];
    snprintf(query, sizeof(query),
             "SELECT count(*) FROM jobs WHERE id = %lld AND wait_code = '%s' AND wait_subject = %lld",
             (long long)id, code, (long long)of);
    return number(query) == 1;
}

/* The run that yields is asked for a checkpoint, stops as soon as that is stored, goes on from it later and
 * keeps its place; it has no loss. */
static void check_yields(int64_t runs, const struct world_job *job)
{
    world.agents[0]->saves_late = true;
    const unsigned saves = world.agents[0]->saves;
    int64_t id = world_submit(&world, job);
    WORLD_UNTIL(&world, world.agents[0]->saves > saves && waits_with(id, "yields", runs));
    assert_true(world_is(&world, runs, "running"));
    fake_checkpoint(world.agents[0], fake_living(world.agents[0]), false);
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    assert_true(run_of(id) > run_of(runs) || world_number(&world, runs, "attempt") == 2);
    assert_int_equal(
        number("SELECT count(*) FROM runs WHERE stop_why = 'preempt' AND stopping_at >= save_by"), 0);
    WORLD_UNTIL(&world, world_number(&world, runs, "attempt") == 2 && world_is(&world, runs, "running") &&
                            world_number(&world, runs, "step") > 3);
    assert_int_equal(world_number(&world, runs, "losses"), 0);
    json_decref(world_command(&world, runs, JOB_EVENT_CANCEL, 0));
    WORLD_UNTIL(&world, world_is(&world, runs, "cancelled"));
    world_check_metrics(&world, runs, world_number(&world, runs, "step"));
}

static void scavengers_yield_and_others_to_urgent_jobs_and_owners(void **state)
{
    (void)state;
    const struct world_job normal = {
        .name = "normal", .devices = "left/cpu0", .steps = 4, .every = 2, .owner = &bob};
    const struct world_job urgent = {
        .name = "urgent", .devices = "left/cpu0", .steps = 4, .every = 2, .owner = &bob, .service = -1};
    const struct world_job own = {
        .name = "own", .devices = "left/cpu0", .steps = 4, .every = 2, .owner = &bob, .account = "vision"};
    check_yields(run_long(1), &normal);
    check_yields(run_long(0), &urgent);
    sql("INSERT INTO groups (name) VALUES ('vision'); INSERT INTO group_members SELECT g.id, u.id "
        "FROM groups g, users u WHERE g.name = 'vision' AND u.name = 'bob'; "
        "UPDATE devices SET owner = (SELECT id FROM groups WHERE name = 'vision') WHERE name = 'left/cpu0'");
    check_yields(run_long(0), &own);
    sql("UPDATE devices SET owner = NULL");
}

/* The account's slice is over: the job goes back behind those who wait, and goes on after them. */
static void a_job_longer_than_its_slice_makes_room(void **state)
{
    (void)state;
    sql("UPDATE groups SET slice_s = 0.2 WHERE name = 'vision'; INSERT INTO group_members SELECT g.id, 1 "
        "FROM groups g "
        "WHERE g.name = 'vision'");
    fresh_agents();
    world.agents[0]->steps_max = 3;
    const struct world_job sliced = {
        .name = "long", .devices = "left/cpu0", .steps = 100000, .every = 1000, .account = "vision"};
    const struct world_job other = {
        .name = "normal", .devices = "left/cpu0", .steps = 4, .every = 2, .owner = &bob};
    int64_t runs = world_submit(&world, &sliced);
    WORLD_UNTIL(&world, world_number(&world, runs, "step") == 3 && world_is(&world, runs, "running"));
    int64_t id = world_submit(&world, &other);
    WORLD_UNTIL(&world, world_number(&world, runs, "attempt") == 1 && !world_is(&world, runs, "running"));
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    WORLD_UNTIL(&world, world_number(&world, runs, "attempt") == 2 && world_is(&world, runs, "running"));
    assert_int_equal(world_number(&world, runs, "losses"), 0);
    char query[200];
    snprintf(query, sizeof(query), "SELECT count(*) FROM runs WHERE job = %lld AND stop_why = 'slice'",
             (long long)runs);
    assert_int_equal(number(query), 1);
    json_decref(world_command(&world, runs, JOB_EVENT_CANCEL, 0));
    WORLD_UNTIL(&world, world_is(&world, runs, "cancelled"));
    sql("UPDATE groups SET slice_s = 0");
}

static json_t *extend(int64_t id, int64_t seconds, const struct principal *asker, enum err_code wanted)
{
    struct answer answer;
    AWAIT(world.fixture, answer,
          store_job_extend(world.fixture->store, asker, id, seconds, on_doc, &answer, E));
    assert_int_equal(answer.err.code, wanted);
    return answer.doc;
}

/* In how many seconds the queue says that the job ends, and whether by its time limit. */
static int64_t ends_in_s(int64_t id, bool by_limit)
{
    struct answer answer;
    size_t i;
    json_t *row;
    int64_t ends_us = 0;
    AWAIT_OK(world.fixture, answer,
             store_queue_page(world.fixture->store, &world.fixture->user, 0, 100, on_doc, &answer, E));
    json_array_foreach (json_object_get(answer.doc, "queue"), i, row)
        if (json_integer_value(json_object_get(row, "id")) == id) {
            const char *ends = json_string_value(json_object_get(row, "ends"));
            assert_non_null(ends);
            assert_int_equal(clock_rfc3339_parse(ends, &ends_us), 0);
            assert_int_equal(json_is_string(json_object_get(row, "ends_by")), by_limit);
        }
    json_decref(answer.doc);
    return ends_us > clock_wall_us() ? (ends_us - clock_wall_us()) / 1000000 : 0;
}

static void a_time_limit_is_extended_where_no_reservation_moves(void **state)
{
    (void)state;
    fresh_agents();
    world.agents[0]->steps_max = 3;
    const struct world_job limited = {
        .name = "long", .devices = "left/cpu0", .steps = 100000, .every = 1000, .time_limit_ms = 60000};
    const struct world_job other = {
        .name = "normal", .devices = "left/cpu0", .steps = 4, .every = 2, .owner = &bob};
    int64_t runs = world_submit(&world, &limited);
    WORLD_UNTIL(&world, world_is(&world, runs, "running"));
    json_t *doc = extend(runs, 30, &world.fixture->user, ERR_NONE);
    assert_true(json_number_value(json_object_get(doc, "time_limit_s")) == 90);
    json_decref(doc);
    int64_t id = world_submit(&world, &other);
    char query[200];
    snprintf(query, sizeof(query),
             "SELECT count(*) FROM jobs WHERE id = %lld AND starts_at < now() + interval '92 s'",
             (long long)id);
    WORLD_UNTIL(&world, number(query) == 1);
    assert_in_range(ends_in_s(runs, true), 60, 90);
    extend(runs, 3600, &world.fixture->user, ERR_CONFLICT);
    extend(id, 3600, &bob, ERR_INVALID);
    extend(runs, 3600, &bob, ERR_NOT_FOUND);
    json_decref(extend(runs, 3600, &principal_service, ERR_NONE));
    assert_in_range(ends_in_s(runs, false), 600, 1000); /* its steps end before its limit now */
    /* A job that is told to stop is expected to end then, not after all its steps. */
    world.agents[0]->silent = true;
    json_decref(world_command(&world, runs, JOB_EVENT_CANCEL, 0));
    snprintf(query, sizeof(query),
             "SELECT count(*) FROM jobs WHERE id = %lld AND starts_at < now() + interval '15 s'",
             (long long)id);
    WORLD_UNTIL(&world, number(query) == 1);
    assert_true(world_is(&world, runs, "stopping"));
    assert_in_range(ends_in_s(runs, false), 0, 15);
    json_decref(world_command(&world, id, JOB_EVENT_CANCEL, 0));
    world.agents[0]->silent = false;
    WORLD_UNTIL(&world, world_is(&world, runs, "cancelled"));
    extend(runs, 3600, &principal_service, ERR_CONFLICT);
    /* A job without a time limit gets its group's. */
    sql("UPDATE groups SET time_limit_s = 600 WHERE name = 'vision'");
    const struct world_job in_vision = {.name = "held", .steps = 4, .held = true, .account = "vision"};
    id = world_submit(&world, &in_vision);
    snprintf(query, sizeof(query), "SELECT time_limit_ms FROM jobs WHERE id = %lld", (long long)id);
    assert_int_equal(number(query), 600000);
    json_decref(world_command(&world, id, JOB_EVENT_CANCEL, 0));
    sql("UPDATE groups SET time_limit_s = 0");
    fresh_agents();
}

static void an_administrators_hold_is_released_by_administrators_alone(void **state)
{
    (void)state;
    struct answer answer;
    const struct world_job job = {
        .name = "held", .devices = "left/cpu0", .steps = 4, .held = true, .owner = &bob};
    int64_t id = world_submit(&world, &job);
    json_decref(world_command(&world, id, JOB_EVENT_RELEASE, 0));
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    sql("UPDATE devices SET drained = true");
    id = world_submit(&world, &job);
    json_decref(world_command(&world, id, JOB_EVENT_RELEASE, 0));
    json_decref(world_command(&world, id, JOB_EVENT_HOLD, 0));
    static const enum job_event events[] = {JOB_EVENT_RELEASE, JOB_EVENT_RESUME};
    for (size_t i = 0; i < 2; i++) {
        AWAIT(world.fixture, answer,
              store_job_command(world.fixture->store, &bob, id, events[i], 0, on_doc, &answer, E));
        assert_int_equal(answer.err.code, ERR_DENIED);
        assert_non_null(strstr(answer.err.text, "held by an administrator"));
    }
    sql("UPDATE devices SET drained = false");
    json_decref(world_command(&world, id, JOB_EVENT_RELEASE, 0));
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
}

static void a_run_without_a_checkpoint_in_time_keeps_its_devices(void **state)
{
    (void)state;
    int64_t runs = run_long(1);
    world.agents[0]->saves_late = true;
    const struct world_job job = {
        .name = "normal", .devices = "left/cpu0", .steps = 4, .every = 2, .owner = &bob};
    int64_t id = world_submit(&world, &job);
    ends_in_s(runs, false); /* it has no time limit */
    WORLD_UNTIL(&world, world_logged(&world, runs, "its checkpoint was not stored within"));
    assert_true(world_is(&world, runs, "running") && world_number(&world, runs, "attempt") == 1);
    WORLD_UNTIL(&world, waits_with(id, "devices", runs));
    json_decref(world_command(&world, id, JOB_EVENT_CANCEL, 0));
    json_decref(world_command(&world, runs, JOB_EVENT_CANCEL, 0));
    WORLD_UNTIL(&world, world_is(&world, runs, "cancelled"));
    fresh_agents();
}

static void everything_that_ran_is_in_the_ledger_and_nothing_is_open(void **state)
{
    (void)state;
    assert_true(number("SELECT count(*) FROM assignments") > 12);
    assert_int_equal(
        number("SELECT count(*) FROM assignments a FULL JOIN ledger l ON l.assignment = a.id JOIN runs r ON "
               "r.id = "
               "coalesce(a.run, l.run) WHERE a.id IS NULL OR l.ends IS NULL OR l.begins <> r.created_at "
               "OR l.ends > r.ended_at"),
        0);
}

/* A waiting job gets a range for its predicted start once enough earlier predictions can be compared with
 * real starts. It is also told that it would start at once if the job that holds its device ended, or on
 * other devices. */
static void a_waiting_job_has_a_range_and_is_told_what_would_be_sooner(void **state)
{
    (void)state;
    sql("INSERT INTO arrivals (job, arrived_at, said_at, starts_at, said_place, said_count, started_at, "
        "class) SELECT 1000000 + n, now() - interval '1 h', now() - interval '1 h', now() - interval '50 "
        "min', 1, 1, now() - n * interval '10 s' + interval '10 min', 1 FROM generate_series(1, 60) n");
    int64_t holder = hold_left();
    const struct world_job job = {.name = "waiter", .devices = "left/cpu0", .steps = 8, .every = 4};
    int64_t id = world_submit(&world, &job);
    char query[400];
    snprintf(query, sizeof(query),
             "SELECT count(*) FROM jobs WHERE id = %lld AND starts_from <= starts_to AND starts_to > "
             "starts_at - interval "
             "'1 day'",
             (long long)id);
    WORLD_UNTIL(&world, number(query) == 1);
    snprintf(query, sizeof(query), "INSERT INTO sooner (job) VALUES (%lld); NOTIFY motley_jobs",
             (long long)id);
    sql(query);
    snprintf(query, sizeof(query),
             "SELECT count(*) FROM sooner, json_array_elements(changes) c WHERE sooner.job = %lld AND c ->> "
             "'kind' = 'run' "
             "AND (c ->> 'job')::bigint = %lld AND c ->> 'owner' = 'ada' AND (c ->> 'starts')::timestamptz "
             "<= answered_at",
             (long long)id, (long long)holder);
    WORLD_UNTIL(&world, number(query) == 1);
    snprintf(query, sizeof(query),
             "SELECT count(*) FROM sooner, json_array_elements(changes) c WHERE sooner.job = %lld AND c ->> "
             "'kind' = "
             "'devices' AND (c ->> 'starts')::timestamptz <= answered_at",
             (long long)id);
    assert_int_equal(number(query), 1);
    world.agents[0]->steps_max = 0;
    WORLD_UNTIL(&world, world_is(&world, id, "succeeded"));
    sql("DELETE FROM arrivals WHERE job > 1000000");
}

/* The tables that simulations read are complete: jobs with their class and the times of their runs, and
 * forecasts, in which all runs are counted. */
static void everything_that_ran_is_recorded(void **state)
{
    (void)state;
    assert_int_equal(
        number("SELECT count(*) FROM runs r LEFT JOIN arrivals a ON a.job = r.job WHERE a.job IS NULL OR "
               "a.devices IS NULL OR a.step_s <= 0 OR a.started_at > r.created_at OR (a.ran_s <= 0 AND "
               "r.started_at IS NOT NULL) OR "
               "a.arrived_at > a.started_at OR (a.said_at IS NULL) <> (a.starts_at IS NULL)"),
        0);
    assert_int_equal(
        number(
            "SELECT count(*) FROM arrivals a LEFT JOIN forecasts f USING (class, devices) WHERE "
            "a.devices IS NOT NULL AND (f.runs IS NULL OR (f.runs > 0) <> (f.seconds > 0 AND f.steps > 0))"),
        0);
    /* Each run that did steps is counted once. A run all of whose steps a later run repeated may be missing.
     */
    assert_int_equal(
        number(
            "SELECT count(*) FROM (SELECT count(*) AS most, count(*) FILTER (WHERE coalesce((SELECT "
            "n.start_step FROM runs n WHERE n.job = r.job AND n.id > r.id ORDER BY n.id LIMIT 1), j.step) > "
            "r.start_step) AS least FROM runs r JOIN jobs j ON j.id = r.job WHERE j.step > r.start_step) c "
            "WHERE (SELECT sum(runs) FROM forecasts) BETWEEN least AND most"),
        1);
    assert_true(
        number("SELECT count(*) FROM arrivals WHERE starts_at >= said_at - interval '1 s' AND said_at <= "
               "started_at") >= 4);
    assert_int_equal(number("SELECT count(*) FROM arrivals a WHERE pg_column_size(a.*) > 170"), 0);
    assert_int_equal(
        number("SELECT count(*) FROM sharing WHERE (document ->> 'scavenger_charge')::float = 0.25"), 1);
}

static int make(void **state)
{
    struct answer answer;
    world.lost_ms = WORLD_PATIENT_MS;
    world.look_ms = 5000; /* the default: here a scheduling pass must have another reason than this timer */
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
        cmocka_unit_test(who_used_less_goes_first_however_many_jobs_the_other_has),
        cmocka_unit_test(urgent_jobs_go_before_and_scavengers_after_all),
        cmocka_unit_test(a_limit_is_waited_for_and_said_and_holds_up_nobody_else),
        cmocka_unit_test(the_configuration_is_read_again_without_a_restart),
        cmocka_unit_test(a_job_that_a_limit_leaves_too_few_devices_waits_and_is_not_refused),
        cmocka_unit_test(a_job_does_not_start_before_it_is_to_begin),
        cmocka_unit_test(a_job_after_another_starts_when_that_has_succeeded),
        cmocka_unit_test(a_job_fails_with_the_one_that_it_comes_after),
        cmocka_unit_test(an_array_is_one_row_until_its_elements_run_at_most_so_many_at_once),
        cmocka_unit_test(an_array_is_held_released_and_cancelled_as_a_whole),
        cmocka_unit_test(an_array_whose_elements_are_all_jobs_ends_with_the_last_of_them),
        cmocka_unit_test(a_claim_on_an_absent_device_holds_up_nobody_for_ever),
        cmocka_unit_test(scavengers_yield_and_others_to_urgent_jobs_and_owners),
        cmocka_unit_test(a_job_longer_than_its_slice_makes_room),
        cmocka_unit_test(a_time_limit_is_extended_where_no_reservation_moves),
        cmocka_unit_test(an_administrators_hold_is_released_by_administrators_alone),
        cmocka_unit_test(a_run_without_a_checkpoint_in_time_keeps_its_devices),
        cmocka_unit_test(everything_that_ran_is_in_the_ledger_and_nothing_is_open),
        cmocka_unit_test(a_waiting_job_has_a_range_and_is_told_what_would_be_sooner),
        cmocka_unit_test(everything_that_ran_is_recorded),
    };
    return cmocka_run_group_tests(tests, make, end);
}
