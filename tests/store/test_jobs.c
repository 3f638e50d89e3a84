/* Tests jobs in the database: submits, idempotency keys, pages, and people's commands. */
#include "store_fixture.h"

static json_t *small_spec(void)
{
    return json_pack("{s:s, s:{s:i, s:f}, s:{s:i}}", "name", "tiny", "train", "steps", 100, "learning_rate",
                     2e-4, "checkpoint", "keep", 2);
}

static int64_t submit(struct fixture *fixture, const char *name, const char *key)
{
    struct answer answer;
    json_t *spec = small_spec();
    json_t *inputs = json_pack("{s:s}", "model", "m");
    struct store_job_new job = fixture_job(fixture, name, spec, inputs);
    job.idempotency_key = key;
    AWAIT_OK(fixture, answer, store_job_insert(fixture->store, &job, on_made, &answer, E));
    json_decref(spec);
    json_decref(inputs);
    return answer.made.id;
}

static void a_job_comes_back_as_it_was_submitted(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    int64_t id = submit(fixture, "first", NULL);
    AWAIT_OK(fixture, answer, store_job_get(fixture->store, &fixture->user, id, on_doc, &answer, E));
    json_t *spec = small_spec();
    assert_true(json_equal(spec, json_object_get(answer.doc, "spec")));
    assert_string_equal(json_string_value(json_object_get(answer.doc, "state")), "queued");
    assert_string_equal(json_string_value(json_object_get(answer.doc, "owner")), "ada");
    assert_true(json_is_null(json_object_get(answer.doc, "run")));
    json_decref(spec);
    json_decref(answer.doc);
    const struct principal somebody = fixture_person(fixture->user.id + 1, "bob");
    AWAIT(fixture, answer, store_job_get(fixture->store, &somebody, id, on_doc, &answer, E));
    assert_int_equal(answer.err.code, ERR_NOT_FOUND);
    AWAIT(fixture, answer, store_job_get(fixture->store, &principal_service, 999999, on_doc, &answer, E));
    assert_int_equal(answer.err.code, ERR_NOT_FOUND);
    assert_non_null(strstr(answer.err.text, "999999"));
}

static void one_idempotency_key_makes_one_job(void **state)
{
    struct fixture *fixture = *state;
    struct answer answers[20];
    json_t *spec = small_spec();
    json_t *inputs = json_object();
    struct store_job_new job = fixture_job(fixture, "keyed", spec, inputs);
    struct err err;
    job.idempotency_key = "the-key";
    memset(answers, 0, sizeof(answers));
    for (int i = 0; i < 20; i++)
        assert_int_equal(store_job_insert(fixture->store, &job, on_made, &answers[i], &err), 0);
    int fresh = 0;
    for (int i = 0; i < 20; i++) {
        await_answer(fixture, &answers[i]);
        assert_int_equal(answers[i].err.code, ERR_NONE);
        assert_int_equal(answers[i].made.id, answers[0].made.id);
        fresh += answers[i].made.repeated ? 0 : 1;
    }
    assert_int_equal(fresh, 1);
    const uint8_t other[32] = {9};
    struct answer answer;
    job.request_digest = other;
    AWAIT(fixture, answer, store_job_insert(fixture->store, &job, on_made, &answer, E));
    assert_int_equal(answer.err.code, ERR_CONFLICT);
    json_decref(spec);
    json_decref(inputs);
}

static void note_woken(void *arg, const char *channel, const char *payload)
{
    (void)channel, (void)payload;
    ++*(int *)arg;
}

/* Turns the loop for some milliseconds, or until the scheduler was woken. */
static void turn_ms(struct fixture *fixture, const int *woken, unsigned ms)
{
    const uint64_t deadline = clock_mono_ns() + (uint64_t)ms * 1000000;
    while ((!woken || *woken == 0) && clock_mono_ns() < deadline) {
        const struct timeval slice = {.tv_usec = 20000};
        event_base_loopexit(fixture->base, &slice);
        event_base_loop(fixture->base, EVLOOP_ONCE);
    }
}

/* A client whose submit was answered by a lost connection sends it again. If the job was made then, the
 * scheduler may not know. */
static void a_repeated_submit_wakes_the_scheduler_again(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    static int woken; /* the listener stays */
    struct err err;
    assert_int_equal(store_listen(fixture->store, "motley_jobs", note_woken, &woken, &err), 0);
    const int64_t id = submit(fixture, "again", "again-key");
    turn_ms(fixture, NULL, 500); /* the listener's beginning, and the wake of the submit itself */
    assert_true(woken > 0);
    woken = 0;
    json_t *spec = small_spec();
    const struct store_job_new job = fixture_job(fixture, "again", spec, spec);
    AWAIT_OK(
        fixture, answer,
        store_job_find(fixture->store, &fixture->user, "again-key", job.request_digest, on_made, &answer, E));
    assert_int_equal(answer.made.id, id);
    turn_ms(fixture, &woken, 10000);
    assert_int_equal(woken, 1);
    json_decref(spec);
}

static void one_bad_submit_does_not_spoil_those_beside_it(void **state)
{
    const struct principal nobody_there = fixture_person(424242, "nobody");
    struct fixture *fixture = *state;
    struct answer answers[10];
    json_t *spec = small_spec();
    json_t *inputs = json_object();
    struct store_job_new good = fixture_job(fixture, "good", spec, inputs);
    struct err err;
    memset(answers, 0, sizeof(answers));
    for (int i = 0; i < 10; i++) {
        struct store_job_new job = good;
        if (i == 4)
            job.owner = &nobody_there;
        assert_int_equal(store_job_insert(fixture->store, &job, on_made, &answers[i], &err), 0);
    }
    for (int i = 0; i < 10; i++) {
        await_answer(fixture, &answers[i]);
        assert_int_equal(answers[i].err.code, i == 4 ? ERR_INVALID : ERR_NONE);
    }
    json_decref(spec);
    json_decref(inputs);
}

static json_t *command(struct fixture *fixture, int64_t id, enum job_event event, int64_t more,
                       enum err_code want)
{
    struct answer answer;
    AWAIT(fixture, answer,
          store_job_command(fixture->store, &fixture->user, id, event, more, on_doc, &answer, E));
    if (answer.err.code != want)
        fail_msg("event %d: %s", (int)event, answer.err.text);
    return answer.doc;
}

static void expect_state(struct fixture *fixture, int64_t id, enum job_event event, const char *wanted)
{
    json_t *doc = command(fixture, id, event, 0, ERR_NONE);
    assert_string_equal(json_string_value(json_object_get(doc, "state")), wanted);
    json_decref(doc);
}

static void commands_follow_the_table_and_nothing_else(void **state)
{
    struct fixture *fixture = *state;
    int64_t id = submit(fixture, "commanded", NULL);
    command(fixture, id, JOB_EVENT_RELEASE, 0, ERR_CONFLICT);
    expect_state(fixture, id, JOB_EVENT_HOLD, "held");
    command(fixture, id, JOB_EVENT_HOLD, 0, ERR_CONFLICT);
    expect_state(fixture, id, JOB_EVENT_RELEASE, "queued");
    command(fixture, id, JOB_EVENT_RESUME, 0, ERR_CONFLICT);
    expect_state(fixture, id, JOB_EVENT_CANCEL, "cancelled");
    expect_state(fixture, id, JOB_EVENT_CANCEL, "cancelled");
    expect_state(fixture, id, JOB_EVENT_RESUME, "queued");
    json_t *doc = command(fixture, id, JOB_EVENT_CANCEL, 0, ERR_NONE);
    json_decref(doc);
    doc = command(fixture, id, JOB_EVENT_RESUME, 7, ERR_NONE);
    assert_int_equal(json_integer_value(json_object_get(doc, "steps")), 7);
    json_decref(doc);
    struct answer answer;
    AWAIT_OK(fixture, answer, store_job_get(fixture->store, &principal_service, id, on_doc, &answer, E));
    json_t *train = json_object_get(json_object_get(answer.doc, "spec"), "train");
    assert_int_equal(json_integer_value(json_object_get(train, "steps")), 7);
    json_decref(answer.doc);
    command(fixture, 31415926, JOB_EVENT_CANCEL, 0, ERR_NOT_FOUND);
}

static void pages_walk_all_jobs_once_newest_first(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    for (int i = 0; i < 25; i++)
        submit(fixture, "paged", NULL);
    const int states[] = {-1, JOB_QUEUED};
    for (int s = 0; s < 2; s++) {
        for (int owner = 0; owner < 2; owner++) {
            struct store_job_filter filter = {.states = states[s] < 0 ? 0 : 1u << states[s], .limit = 10};
            const struct principal *principal = owner ? &fixture->user : &principal_service;
            int64_t last = INT64_MAX;
            int seen = 0;
            do {
                AWAIT_OK(fixture, answer,
                         store_job_page(fixture->store, principal, &filter, on_doc, &answer, E));
                size_t i;
                json_t *job;
                json_array_foreach (json_object_get(answer.doc, "jobs"), i, job) {
                    int64_t id = json_integer_value(json_object_get(job, "id"));
                    assert_true(id < last);
                    last = id;
                    seen++;
                }
                filter.before_id = json_integer_value(json_object_get(answer.doc, "next"));
                json_decref(answer.doc);
            } while (filter.before_id != 0);
            assert_true(seen >= 25);
        }
    }
    AWAIT_OK(fixture, answer, store_counts(fixture->store, on_doc, &answer, E));
    const json_t *counts = json_object_get(answer.doc, "jobs");
    assert_true(json_integer_value(json_object_get(counts, "queued")) >= 25);
    assert_int_equal(json_object_size(counts), JOB_STATES);
    json_decref(answer.doc);
}

static void events_of_a_job_are_listed_in_order_and_from_an_id(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    int64_t id = submit(fixture, "watched", NULL);
    expect_state(fixture, id, JOB_EVENT_HOLD, "held");
    expect_state(fixture, id, JOB_EVENT_RELEASE, "queued");
    AWAIT_OK(fixture, answer, store_event_list(fixture->store, id, NULL, 0, 100, on_doc, &answer, E));
    json_t *events = json_object_get(answer.doc, "events");
    assert_int_equal(json_array_size(events), 2);
    int64_t first = json_integer_value(json_object_get(json_array_get(events, 0), "id"));
    json_decref(answer.doc);
    AWAIT_OK(fixture, answer, store_event_list(fixture->store, id, "state", first, 100, on_doc, &answer, E));
    assert_int_equal(json_array_size(json_object_get(answer.doc, "events")), 1);
    json_decref(answer.doc);
    AWAIT_OK(fixture, answer, store_event_list(fixture->store, id, "log", 0, 100, on_doc, &answer, E));
    assert_int_equal(json_array_size(json_object_get(answer.doc, "events")), 0);
    json_decref(answer.doc);
}

static void absent_plans_metrics_and_runs_are_said_so(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    int64_t id = submit(fixture, "young", NULL);
    AWAIT(fixture, answer, store_job_plan(fixture->store, id, on_doc, &answer, E));
    assert_int_equal(answer.err.code, ERR_NOT_FOUND);
    AWAIT(fixture, answer, store_job_trace(fixture->store, id, on_doc, &answer, E));
    assert_int_equal(answer.err.code, ERR_NOT_FOUND);
    AWAIT_OK(fixture, answer, store_job_runs(fixture->store, id, 0, 100, on_doc, &answer, E));
    assert_int_equal(json_array_size(json_object_get(answer.doc, "runs")), 0);
    json_decref(answer.doc);
    AWAIT_OK(fixture, answer, store_job_metrics(fixture->store, id, "all", -1, 100, on_doc, &answer, E));
    assert_int_equal(json_array_size(json_object_get(answer.doc, "lines")), 0);
    json_decref(answer.doc);
}

static struct answer submit_as(struct fixture *fixture, const char *account, uint32_t devices)
{
    struct answer answer;
    json_t *spec = json_object(), *inputs = json_object();
    struct store_job_new job = fixture_job(fixture, "limited", spec, inputs);
    job.account = account;
    job.devices_least = devices;
    AWAIT(fixture, answer, store_job_insert(fixture->store, &job, on_made, &answer, E));
    json_decref(spec);
    json_decref(inputs);
    return answer;
}

static void change(struct fixture *fixture, const char *text)
{
    struct err err;
    struct pg_conn *conn = pg_connect(fixture->postgres.conninfo, 5000, &err);
    assert_non_null(conn);
    if (pg_script(conn, text, &err) < 0)
        fail_msg("%s", err.text);
    pg_disconnect(conn);
}

static void limits_of_owner_and_groups_refuse_what_can_never_start(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        const char *account, *reason; /* reason NULL: accepted */
        uint32_t devices;
    } cases[] = {
        {"inner", NULL, 2},
        {NULL, NULL, 4},
        {"inner", "placement: it needs 3 devices at once, and group outer may hold 2", 3},
        {NULL, "placement: it needs 5 devices at once, and user ada may hold 4", 5},
        {"others", "account: there is no group \"others\" that ada is in", 1},
        {"nowhere", "account: there is no group \"nowhere\" that ada is in", 1},
        {"inner", NULL, 1},
        {"inner", "account: group outer may have 2 jobs in the queue and has 2", 1},
    };
    change(fixture,
           "UPDATE jobs SET state = 'succeeded'; INSERT INTO groups (name, devices_max, queued_max) VALUES "
           "('outer', 2, 2), "
           "('others', 0, 0); INSERT INTO groups (name, parent) SELECT 'inner', id FROM groups WHERE name = "
           "'outer'; INSERT INTO group_members SELECT id, 1 FROM groups WHERE name = 'inner';"
           "UPDATE users SET devices_max = 4 WHERE id = 1;");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct answer answer = submit_as(fixture, cases[i].account, cases[i].devices);
        const bool full = cases[i].reason && strncmp(cases[i].reason, "account: group", 14) == 0;
        assert_int_equal(answer.err.code, full ? ERR_LIMIT : cases[i].reason ? ERR_INVALID : ERR_NONE);
        if (cases[i].reason)
            assert_string_equal(answer.err.text, cases[i].reason);
    }
    change(fixture, "UPDATE users SET queued_max = 5, account = (SELECT id FROM groups WHERE name = "
                    "'others') WHERE id = 1");
    struct answer many[4];
    struct err err;
    json_t *spec = json_object(), *inputs = json_object();
    struct store_job_new job = fixture_job(fixture, "many", spec, inputs);
    memset(many, 0, sizeof(many));
    for (int i = 0; i < 4; i++) /* all four jobs go into one batch */
        assert_int_equal(store_job_insert(fixture->store, &job, on_made, &many[i], &err), 0);
    int taken = 0;
    for (int i = 0; i < 4; i++) {
        await_answer(fixture, &many[i]);
        taken += many[i].err.code == ERR_NONE;
    }
    assert_int_equal(taken,
                     2); /* three jobs of the cases above are in the queue, and the user may have five */
    struct answer answer;
    job.idempotency_key = "again";
    change(fixture, "UPDATE users SET queued_max = 6 WHERE id = 1");
    AWAIT_OK(fixture, answer, store_job_insert(fixture->store, &job, on_made, &answer, E));
    AWAIT_OK(fixture, answer, store_job_insert(fixture->store, &job, on_made, &answer, E));
    assert_true(
        answer.made.repeated); /* the repeated request is answered with its job, although the queue is full */
    /* an array counts once, whatever elements it has in the queue */
    change(fixture, "UPDATE jobs SET state = 'succeeded'; UPDATE users SET queued_max = 2 WHERE id = 1");
    job.idempotency_key = NULL;
    job.array_size = 9;
    AWAIT_OK(fixture, answer, store_job_insert(fixture->store, &job, on_made, &answer, E));
    change(fixture,
           "INSERT INTO jobs (owner, name, state, spec, inputs, array_of, array_index) SELECT owner, name, "
           "state, spec, inputs, id, n FROM jobs, generate_series(0, 4) n WHERE array_size = 9");
    AWAIT_OK(fixture, answer, store_job_insert(fixture->store, &job, on_made, &answer, E));
    AWAIT(fixture, answer, store_job_insert(fixture->store, &job, on_made, &answer, E));
    assert_string_equal(answer.err.text, "account: user ada may have 2 jobs in the queue and has 2");
    json_decref(spec);
    json_decref(inputs);
    change(fixture, "UPDATE users SET disabled = true, queued_max = 0, account = NULL WHERE id = 1");
    assert_string_equal(submit_as(fixture, NULL, 1).err.text, "user: ada is disabled");
    change(
        fixture,
        "UPDATE users SET disabled = false, queued_max = 0, devices_max = 0 WHERE id = 1; UPDATE groups SET "
        "queued_max = 0");
}

/* Of the jobs of limits_of_owner_and_groups_refuse_what_can_never_start, all but the last two have ended. */
static void what_ended_jobs_left_counts_against_a_limit(void **state)
{
    struct fixture *fixture = *state;
    change(fixture, "UPDATE users SET kept_bytes_max = 3000 WHERE id = 1; "
                    "INSERT INTO blobs (sha256, size) VALUES (repeat('a', 64), 1536), (repeat('b', 64), "
                    "1024), (repeat('c', 64), 500); "
                    "WITH j AS (SELECT id, row_number() OVER (ORDER BY id) AS n FROM jobs WHERE state = "
                    "'succeeded' ORDER BY id "
                    "LIMIT 2) INSERT INTO artifacts (job, name, sha256, size) SELECT id, 'x', repeat(CASE n "
                    "WHEN 1 THEN 'a' ELSE 'b' END, 64), 0 "
                    "FROM j UNION ALL SELECT id, 'y', repeat('a', 64), 0 FROM j WHERE n = 2 UNION ALL SELECT "
                    "max(id), 'z', repeat('c', 64), 0 FROM jobs");
    assert_int_equal(submit_as(fixture, NULL, 1).err.code, ERR_NONE); /* the job of 'cc' has not ended */
    change(fixture, "UPDATE users SET kept_bytes_max = 2560 WHERE id = 1");
    struct answer answer = submit_as(fixture, NULL, 1);
    assert_int_equal(answer.err.code, ERR_LIMIT);
    assert_non_null(strstr(answer.err.text,
                           "account: user ada may keep 2.50 KiB of checkpoints and results of jobs "
                           "that have ended, and has 2.50 KiB: motley rm removes such jobs, and "
                           "your largest are "));
    assert_non_null(strstr(answer.err.text, " (1.50 KiB), "));
    change(fixture, "UPDATE users SET kept_bytes_max = 0 WHERE id = 1");
}

static void groups_make_no_cycle(void **state)
{
    struct fixture *fixture = *state;
    struct err err;
    struct pg_conn *conn = pg_connect(fixture->postgres.conninfo, 5000, &err);
    static const char *const bad[] = {
        "UPDATE groups SET parent = id WHERE name = 'outer'",
        "UPDATE groups SET parent = (SELECT id FROM groups WHERE name = 'inner') WHERE name = 'outer'",
        "UPDATE groups SET weight = 0 WHERE name = 'outer'",
        "UPDATE groups SET weight = -1 WHERE name = 'outer'",
        "UPDATE groups SET weight = 'NaN' WHERE name = 'outer'",
        "UPDATE groups SET devices_max = -1 WHERE name = 'outer'",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (pg_script(conn, bad[i], &err) == 0)
            fail_msg("taken: %s", bad[i]);
    pg_disconnect(conn);
}

/* Submits three jobs at once, which share a statement; one more, with an account, chooses the other statement
 * for all of them. Returns the text of the last one's refusal, or "". */
static void submit_three(struct fixture *fixture, bool with_account, char refusal[512])
{
    static const uint8_t class_digest[32] = {7};
    struct answer answers[4];
    struct err err;
    json_t *spec = json_pack("{s:{s:s}}", "labels", "team", "a \"b\" \\c"), *inputs = json_object();
    memset(answers, 0, sizeof(answers));
    for (int i = 0; i < 3 + with_account; i++) {
        struct store_job_new job = fixture_job(fixture, with_account ? "full" : "plain", spec, inputs);
        if (i == 1) {
            job.held = true;
            job.priority = 5;
            job.service = 2;
            job.begin_us = 1900000000000000;
            job.array_size = 4;
            job.at_most = 2;
            job.time_limit_ms = 60000;
        }
        if (i == 2) {
            job.idempotency_key = with_account ? "full" : "plain";
            job.plan_class = class_digest;
        }
        job.account = i == 3 ? "mixed" : NULL;
        assert_int_equal(store_job_insert(fixture->store, &job, on_made, &answers[i], &err), 0);
    }
    for (int i = 0; i < 3 + with_account; i++)
        await_answer(fixture, &answers[i]);
    assert_int_equal(answers[0].err.code, ERR_NONE);
    assert_int_equal(answers[1].err.code, ERR_NONE);
    assert_true(answers[1].made.id > answers[0].made.id);
    snprintf(refusal, 512, "%s", answers[2].err.text);
    json_decref(spec);
    json_decref(inputs);
}

/* The statement of batches without accounts, dependencies and models to fetch follows the same rules. */
static void both_statements_make_equal_jobs_and_refuse_the_same(void **state)
{
    static const struct pg_statement compare = {
        "compare_jobs",
        "WITH jobs AS (SELECT name, row_number() OVER (PARTITION BY name ORDER BY id) AS n, to_jsonb(j) - "
        "ARRAY['id', 'name', "
        "  'idempotency_key', 'created_at', 'updated_at', 'eligible_at', 'changed'] || (SELECT "
        "jsonb_build_object('audit', "
        "    to_jsonb(a) - ARRAY['id', 'at', 'object', 'after']) FROM audit a WHERE a.object = j.id::text) "
        "AS row "
        "  FROM jobs j WHERE name IN ('plain', 'full')) "
        "SELECT count(*), string_agg(p.row::text, ' ') FILTER (WHERE p.row IS DISTINCT FROM f.row), "
        "  string_agg(f.row::text, ' ') FILTER (WHERE p.row IS DISTINCT FROM f.row), "
        "  count(*) FILTER (WHERE p.row -> 'labels' ->> 'team' = 'a \"b\" \\c' AND p.row -> 'audit' ->> "
        "'what' = 'job.submit') "
        "FROM jobs p JOIN jobs f USING (n) WHERE p.name = 'plain' AND f.name = 'full' AND n <= 3",
        PG_READ};
    struct fixture *fixture = *state;
    char plain[512], full[512];
    struct pg_result *result;
    struct err err;
    change(fixture, "INSERT INTO groups (name) VALUES ('mixed'); INSERT INTO group_members SELECT id, 1 FROM "
                    "groups WHERE name = 'mixed'");
    submit_three(fixture, false, plain);
    submit_three(fixture, true, full);
    assert_string_equal(plain, "");
    assert_string_equal(full, "");
    struct pg_conn *conn = pg_connect(fixture->postgres.conninfo, 5000, &err);
    assert_non_null(conn);
    assert_int_equal(pg_exec(conn, &compare, NULL, &result, &err), 0);
    assert_string_equal(pg_text(result, 0, 1), pg_text(result, 0, 2));
    assert_int_equal(pg_i64(result, 0, 0), 3);
    assert_int_equal(pg_i64(result, 0, 3), 3);
    pg_result_free(result);
    pg_disconnect(conn);
    for (int i = 0; i < 2; i++) {
        change(fixture,
               "DELETE FROM jobs WHERE name IN ('plain', 'full'); UPDATE jobs SET state = 'succeeded'; "
               "UPDATE users SET queued_max = 2 WHERE id = 1");
        submit_three(fixture, i == 1, i ? full : plain);
    }
    assert_string_equal(plain, "account: user ada may have 2 jobs in the queue and has 0");
    assert_string_equal(full, plain);
    change(fixture, "UPDATE users SET queued_max = 0 WHERE id = 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_comes_back_as_it_was_submitted),
        cmocka_unit_test(one_idempotency_key_makes_one_job),
        cmocka_unit_test(a_repeated_submit_wakes_the_scheduler_again),
        cmocka_unit_test(one_bad_submit_does_not_spoil_those_beside_it),
        cmocka_unit_test(commands_follow_the_table_and_nothing_else),
        cmocka_unit_test(pages_walk_all_jobs_once_newest_first),
        cmocka_unit_test(events_of_a_job_are_listed_in_order_and_from_an_id),
        cmocka_unit_test(absent_plans_metrics_and_runs_are_said_so),
        cmocka_unit_test(limits_of_owner_and_groups_refuse_what_can_never_start),
        cmocka_unit_test(what_ended_jobs_left_counts_against_a_limit),
        cmocka_unit_test(groups_make_no_cycle),
        cmocka_unit_test(both_statements_make_equal_jobs_and_refuse_the_same),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
