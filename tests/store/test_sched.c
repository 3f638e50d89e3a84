/* Tests what only the leading scheduler may write, and only under its present epoch. */
#include "store_fixture.h"
#include "store/leader.h"

static int64_t number(struct fixture *fixture, const char *query)
{
    struct err err;
    struct pg_result *result = NULL;
    const struct pg_statement statement = {query, query, PG_READ};
    struct pg_conn *conn = pg_connect(fixture->postgres.conninfo, 5000, &err);
    assert_non_null(conn);
    if (pg_exec(conn, &statement, NULL, &result, &err) < 0)
        fail_msg("%s", err.text);
    int64_t value = pg_i64(result, 0, 0);
    pg_result_free(result);
    pg_disconnect(conn);
    return value;
}

#define FILE_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

/* Makes a run of job 1 on two devices with epoch 5, as the scheduler would write it. */
static int setup(void **state)
{
    fixture_setup(state);
    struct fixture *fixture = *state;
    fixture_sql(fixture,
                "INSERT INTO nodes (name, state) VALUES ('left', 'alive'), ('right', 'alive');"
                "INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) VALUES "
                "('left/cpu0', 'left', 'cpu', '{}', 'd', 1), ('right/cpu0', 'right', 'cpu', '{}', 'd', 1);"
                "INSERT INTO jobs (owner, name, state, spec, inputs, steps, attempt) "
                "VALUES (1, 'j', 'running', '{\"checkpoint\":{\"keep\":2}}', '{}', 100, 1);"
                "INSERT INTO runs (job, attempt, epoch, state, plan) VALUES (1, 1, 5, 'running', '{}');"
                "INSERT INTO assignments (run, rank, node, device, state, last_seq) VALUES "
                "(1, 0, 'left', 'left/cpu0', 'running', 3), (1, 1, 'right', 'right/cpu0', 'running', 3);"
                "INSERT INTO blobs (sha256, size) VALUES ('" FILE_A "', 1);"
                "UPDATE jobs SET run = 1; UPDATE leader SET epoch = 7;");
    return 0;
}

static json_t *rank_row(int rank, int64_t epoch, int64_t before, int64_t after)
{
    return json_pack("{s:i, s:I, s:i, s:I, s:I, s:s, s:s}", "run", 1, "epoch", (json_int_t)epoch, "rank",
                     rank, "seq_before", (json_int_t)before, "seq", (json_int_t)after, "before", "running",
                     "state", "running");
}

static enum err_code ingest(struct fixture *fixture, int64_t leader, json_t *rank, int64_t step)
{
    struct answer answer;
    json_t *ranks = json_array();
    json_array_append_new(ranks, rank);
    json_t *metrics = json_pack("[{s:i, s:s, s:i, s:I, s:{s:I, s:f}}]", "job", 1, "kind", "step", "rank", 0,
                                "step", (json_int_t)step, "document", "step", (json_int_t)step, "loss", 1.5);
    json_t *progress = json_pack("[{s:i, s:I, s:f}]", "job", 1, "step", (json_int_t)step + 1, "loss", 1.5);
    const struct store_ingest batch = {
        .leader = leader, .ranks = ranks, .metrics = metrics, .progress = progress};
    AWAIT(fixture, answer, store_ingest(fixture->store, &batch, on_done, &answer, E));
    json_decref(ranks);
    json_decref(metrics);
    json_decref(progress);
    return answer.err.code;
}

static void a_stale_epoch_writes_nothing_at_all(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(ingest(fixture, 7, rank_row(1, 4, 3, 4), 10),
                     ERR_CONFLICT); /* the event is of an earlier epoch of the run */
    assert_int_equal(ingest(fixture, 7, rank_row(1, 5, 2, 3), 10),
                     ERR_CONFLICT); /* the caller's view of the rank's seq is old */
    assert_int_equal(ingest(fixture, 6, rank_row(1, 5, 3, 4), 10),
                     ERR_STALE); /* the epoch of a former leader */
    assert_int_equal(number(fixture, "SELECT count(*) FROM metrics"), 0);
    assert_int_equal(number(fixture, "SELECT count(*) FROM events"), 0);
    assert_int_equal(number(fixture, "SELECT step FROM jobs WHERE id = 1"), 0);
    assert_int_equal(ingest(fixture, 7, rank_row(1, 5, 3, 4), 10), ERR_NONE);
    assert_int_equal(number(fixture, "SELECT count(*) FROM metrics"), 1);
    fixture_sql(fixture, "UPDATE runs SET state = 'lost'");
    assert_int_equal(ingest(fixture, 7, rank_row(1, 5, 4, 5), 11), ERR_CONFLICT); /* the run has ended */
    fixture_sql(fixture, "UPDATE runs SET state = 'running'");
}

static void a_step_once_reported_is_not_new_again(void **state)
{
    struct fixture *fixture = *state;
    int64_t before = number(fixture, "SELECT count(*) FROM events WHERE type = 'step'");
    assert_int_equal(ingest(fixture, 7, rank_row(1, 5, 4, 5), 20), ERR_NONE);
    assert_int_equal(ingest(fixture, 7, rank_row(1, 5, 5, 6), 20), ERR_NONE);
    assert_int_equal(ingest(fixture, 7, rank_row(1, 5, 6, 7), 15), ERR_NONE);
    assert_int_equal(number(fixture, "SELECT count(*) FROM metrics WHERE step = 20"), 1);
    assert_int_equal(number(fixture, "SELECT count(*) FROM events WHERE type = 'step'"), before + 2);
    assert_int_equal(number(fixture, "SELECT step FROM jobs WHERE id = 1"),
                     21); /* a lower step does not lower it */
}

static bool prune(struct fixture *fixture, unsigned rows)
{
    struct answer answer;
    const struct store_retention keep = {.event_days = 30,
                                         .history_days = 60,
                                         .dataset_days = 90,
                                         .rank_steps = 200,
                                         .rows = rows,
                                         .request_ms = 4 * 3600000};
    AWAIT_OK(fixture, answer, store_prune(fixture->store, 7, &keep, on_doc, &answer, E));
    bool more = json_is_true(json_object_get(answer.doc, "more"));
    json_decref(answer.doc);
    return more;
}

static void checkpoint(struct fixture *fixture, int64_t step, int rank, int parts, bool best,
                       const char *name)
{
    struct answer answer;
    json_t *rows =
        json_pack("[{s:i, s:i, s:I, s:i, s:i, s:b, s:{s:s}}]", "job", 1, "run", 1, "step", (json_int_t)step,
                  "rank", rank, "parts", parts, "best", (int)best, "blobs", name, FILE_A);
    const struct store_ingest batch = {.leader = 7, .checkpoints = rows};
    AWAIT_OK(fixture, answer, store_ingest(fixture->store, &batch, on_done, &answer, E));
    json_decref(rows);
}

static void a_checkpoint_is_complete_or_absent(void **state)
{
    struct fixture *fixture = *state;
    checkpoint(fixture, 10, 0, 2, false, "part0");
    assert_int_equal(number(fixture, "SELECT count(*) FROM checkpoints WHERE complete"), 0);
    checkpoint(fixture, 10, 0, 2, false, "part0"); /* a part that is reported twice counts once */
    assert_int_equal(number(fixture, "SELECT count(*) FROM checkpoints WHERE complete"), 0);
    checkpoint(fixture, 10, 1, 2, false, "part1");
    assert_int_equal(number(fixture, "SELECT count(*) FROM checkpoints WHERE complete"), 1);
    assert_int_equal(
        number(fixture, "SELECT count(*) FROM checkpoints, jsonb_object_keys(blobs) WHERE step = 10"), 2);
    checkpoint(fixture, 20, 0, 1, true, "x");
    checkpoint(fixture, 30, 0, 1, false, "x");
    checkpoint(fixture, 40, 0, 1, false, "x");
    checkpoint(fixture, 50, 0, 1, false, "x");
    assert_int_equal(number(fixture, "SELECT count(*) FROM checkpoints WHERE best"), 1);
    /* The job keeps two checkpoints (`keep`: 2), and the best one in addition to the last ones. */
    assert_int_equal(number(fixture, "SELECT count(*) FROM checkpoints"), 3);
    assert_int_equal(number(fixture, "SELECT min(step) FROM checkpoints"), 20);
    while (prune(fixture, 100)) {
    }
    assert_int_equal(number(fixture, "SELECT count(*) FROM checkpoints"), 3);
}

/* The expert shares that the newest complete checkpoint states become an input of the job's next plan. */
static void measured_routing_becomes_an_input(void **state)
{
    struct fixture *fixture = *state;
    static const char share_of_the_first_expert[] =
        "SELECT coalesce((inputs #>> '{expert_share,1,0}')::float8 * 100, -1)::bigint FROM jobs WHERE id = 1";
    fixture_sql(fixture, "UPDATE jobs SET inputs = '{\"model\": \"m\"}'");
    assert_int_equal(number(fixture, share_of_the_first_expert), -1);
    for (int parts = 2; parts > 0; parts--) {
        struct answer answer;
        json_t *rows = json_pack("[{s:i, s:i, s:i, s:i, s:i, s:{s:s}, s:[n, [f, f]]}, {s:i, s:i, s:i, s:i, "
                                 "s:i, s:{s:s}, s:[n, [f, f]]}]",
                                 "job", 1, "run", 1, "step", 70, "rank", 0, "parts", parts, "blobs", "x",
                                 FILE_A, "expert_share", 0.75, 0.25, "job", 1, "run", 1, "step", 60, "rank",
                                 0, "parts", parts, "blobs", "x", FILE_A, "expert_share", 0.5, 0.5);
        const struct store_ingest batch = {.leader = 7, .checkpoints = rows};
        assert_non_null(rows);
        AWAIT_OK(fixture, answer, store_ingest(fixture->store, &batch, on_done, &answer, E));
        json_decref(rows);
        assert_int_equal(number(fixture, share_of_the_first_expert), parts == 2 ? -1 : 75);
    }
    checkpoint(fixture, 80, 0, 1, false, "x"); /* A checkpoint without expert shares changes nothing. */
    assert_int_equal(number(fixture, share_of_the_first_expert), 75);
    assert_int_equal(number(fixture, "SELECT count(*) FROM jobs WHERE id = 1 AND inputs ->> 'model' = 'm'"),
                     1);
}

static void a_checkpoint_whose_files_are_gone_is_not_taken_and_the_older_one_stays(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    int64_t before = number(fixture, "SELECT max(step) FROM checkpoints WHERE complete");
    fixture_sql(fixture, "UPDATE blobs SET used_at = now() - interval '2 days'");
    json_t *rows = json_pack("[{s:i, s:i, s:i, s:i, s:i, s:b, s:{s:s, s:s}}]", "job", 1, "run", 1, "step", 90,
                             "rank", 0, "parts", 1, "best", 1, "blobs", "one", FILE_A, "two",
                             "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb");
    const struct store_ingest batch = {.leader = 7, .checkpoints = rows};
    AWAIT_OK(fixture, answer, store_ingest(fixture->store, &batch, on_done, &answer, E));
    json_decref(rows);
    assert_int_equal(number(fixture, "SELECT max(step) FROM checkpoints WHERE complete"), before);
    assert_int_equal(number(fixture, "SELECT count(*) FROM checkpoints WHERE best"), 1);
    assert_int_equal(number(fixture,
                            "SELECT count(*) FROM events WHERE job = 1 AND type = 'log' AND "
                            "body ->> 'text' LIKE 'the checkpoint after step 90 is not taken: 1 of its%'"),
                     1);
    checkpoint(
        fixture, 91, 0, 1, false,
        "one"); /* The file of an accepted checkpoint is marked as used, so it is not removed as unused. */
    assert_int_equal(
        number(fixture, "SELECT count(*) FROM blobs WHERE used_at > now() - interval '1 minute'"), 1);
}

static void what_grows_for_ever_is_bounded_and_finished_jobs_keep_their_summary(void **state)
{
    struct fixture *fixture = *state;
    fixture_sql(
        fixture,
        "INSERT INTO jobs (id, owner, name, state, spec, inputs, steps, attempt, ended_at) SELECT n, 1, "
        "'old', "
        "  'succeeded', '{}', '{\"train\":\"x\"}', 300, 3, now() - interval '61 days' FROM "
        "generate_series(1001, 1003) n;"
        "INSERT INTO jobs (id, owner, name, state, spec, inputs, steps, attempt, ended_at) VALUES "
        "  (1004, 1, 'young', 'succeeded', '{}', '{}', 300, 1, now() - interval '59 days'),"
        "  (1005, 1, 'waits', 'queued', '{}', json_build_object('train', repeat('5', 64)), 300, 0, NULL);"
        "INSERT INTO runs (id, job, attempt, epoch, state, plan, ended_at) SELECT 2000 + n * 10 + a, n, a, "
        "2000 + n * 10 "
        "  + a, 'done', '{}', now() - interval '61 days' FROM generate_series(1001, 1004) n, "
        "generate_series(1, 3) a;"
        "INSERT INTO assignments (run, rank, node, device, state) SELECT id, 0, 'left', 'left/cpu0', 'done' "
        "FROM runs "
        "  WHERE id > 2000;"
        "UPDATE jobs SET run = 2000 + id * 10 + 3 WHERE id BETWEEN 1001 AND 1004;"
        "INSERT INTO metrics (job, kind, step, rank, document) SELECT n, k, s, 0, '{}' FROM "
        "generate_series(1001, 1004) n,"
        "  unnest(ARRAY['step', 'eval', 'ranks']) k, generate_series(0, 299) s;"
        "INSERT INTO traces (run, rank, seq, document) SELECT id, 0, 1, '{}' FROM runs WHERE id > 2000;"
        "INSERT INTO events (job, type, body, at) SELECT 1001, 'step', '{}', now() - interval '31 days' "
        "  FROM generate_series(1, 500);"
        "INSERT INTO datasets (key, blob, stats, sizes, used_at) SELECT repeat(n::text, 64), 'b', '{}', '', "
        "  now() - interval '91 days' FROM generate_series(3, 5) n;"
        "UPDATE datasets SET used_at = now() - interval '89 days' WHERE key = repeat('3', 64);");
    /* A measurement that rests for hours keeps its tries, as they make its pauses longer. */
    fixture_sql(fixture, "INSERT INTO requests (kind, device, key, tries, state, deadline_at) VALUES "
                         "('profile', 'd', 'rests', 9, 'failed', now() - interval '3 h'), "
                         "('profile', 'd', 'forgotten', 9, 'failed', now() - interval '5 h')");
    fixture_sql(fixture,
                "INSERT INTO jobs (id, owner, name, state, spec, inputs, steps, attempt, step) VALUES "
                "  (1006, 1, 'runs', 'running', '{}', '{}', 900, 1, 300);"
                "INSERT INTO metrics (job, kind, step, rank, document) SELECT 1006, k, s, r, '{}' FROM "
                "  unnest(ARRAY['step', 'ranks']) k, generate_series(0, 299) s, generate_series(0, 1) r;");
    while (prune(fixture, 150) && number(fixture, "SELECT count(*) FROM metrics WHERE job = 1006") > 1000) {
    }
    assert_int_equal(number(fixture, "SELECT count(*) FROM metrics WHERE job = 1006 AND kind = 'step'"), 600);
    assert_int_equal(number(fixture, "SELECT count(*) FROM metrics WHERE job = 1006 AND kind = 'ranks'"),
                     400);
    fixture_sql(fixture, "DELETE FROM metrics WHERE job = 1006; DELETE FROM jobs WHERE id = 1006;");
    int64_t all = number(fixture, "SELECT count(*) FROM metrics");
    assert_true(prune(fixture, 100)); /* one call removes at most 100 rows */
    assert_int_equal(number(fixture, "SELECT count(*) FROM metrics"), all - 100);
    int calls = 1;
    while (prune(fixture, 100))
        assert_true(++calls < 100);
    prune(fixture, 100);
    assert_int_equal(number(fixture, "SELECT sum(tries) FROM requests WHERE key IN ('rests', 'forgotten')"),
                     9);
    for (int job = 1001; job <= 1003; job++) {
        char query[200];
        snprintf(query, sizeof(query), "SELECT count(*) FROM metrics WHERE job = %d AND kind <> 'eval'", job);
        assert_int_equal(number(fixture, query), 1);
        snprintf(query, sizeof(query), "SELECT step FROM metrics WHERE job = %d AND kind <> 'eval'", job);
        assert_int_equal(number(fixture, query), 299);
        snprintf(query, sizeof(query), "SELECT count(*) FROM metrics WHERE job = %d AND kind = 'eval'", job);
        assert_int_equal(number(fixture, query), 300);
        snprintf(query, sizeof(query), "SELECT count(*) FROM runs WHERE job = %d", job);
        assert_int_equal(number(fixture, query), 1);
    }
    assert_int_equal(number(fixture, "SELECT count(*) FROM metrics WHERE job = 1004"), 900);
    assert_int_equal(number(fixture, "SELECT count(*) FROM runs WHERE job = 1004"), 3);
    assert_int_equal(number(fixture, "SELECT count(*) FROM events WHERE job = 1001"), 0);
    assert_int_equal(number(fixture, "SELECT count(*) FROM traces WHERE run > 2000"), 0);
    /* Two data sets remain: one was used recently, and a job in the queue needs the other. */
    assert_int_equal(
        number(fixture, "SELECT count(*) FROM datasets WHERE key IN (repeat('3', 64), repeat('5', 64))"), 2);
    assert_int_equal(number(fixture, "SELECT count(*) FROM datasets WHERE key = repeat('4', 64)"), 0);
    fixture_sql(fixture, "DELETE FROM jobs WHERE id = 1005");
}

static void one_device_has_one_living_rank(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    json_t *runs = json_pack("[{s:i, s:i, s:i, s:i, s:{}, s:i, s:[{s:i, s:i, s:s, s:s}]}]", "run", 50, "job",
                             1, "attempt", 2, "epoch", 6, "plan", "start_step", 0, "ranks", "assignment", 900,
                             "rank", 0, "node", "left", "device", "left/cpu0");
    const struct store_decision decision = {.leader = 7, .runs_new = runs};
    AWAIT(fixture, answer, store_decide(fixture->store, &decision, on_doc, &answer, E));
    assert_int_equal(answer.err.code, ERR_CONFLICT);
    assert_int_equal(number(fixture, "SELECT count(*) FROM runs WHERE id = 50"), 0);
    json_decref(runs);
}

static void a_decision_rests_on_what_it_saw_or_is_not_made(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    json_t *jobs = json_pack("[{s:i, s:s, s:s}]", "job", 1, "before", "starting", "state", "running");
    json_t *messages =
        json_pack("[{s:s, s:n, s:s, s:{s:i}}, {s:s, s:i, s:s, s:{}}]", "node", "left", "run", "type", "hello",
                  "payload", "x", 1, "node", "right", "run", 1, "type", "stop", "payload");
    const struct store_decision wrong = {.leader = 7, .jobs = jobs, .messages = messages};
    AWAIT(fixture, answer, store_decide(fixture->store, &wrong, on_doc, &answer, E));
    assert_int_equal(answer.err.code, ERR_CONFLICT);
    assert_int_equal(number(fixture, "SELECT count(*) FROM outbox"), 0);
    const struct store_decision stale = {.leader = 6, .messages = messages};
    AWAIT(fixture, answer, store_decide(fixture->store, &stale, on_doc, &answer, E));
    assert_int_equal(answer.err.code, ERR_STALE);
    const struct store_decision good = {.leader = 7, .messages = messages};
    AWAIT_OK(fixture, answer, store_decide(fixture->store, &good, on_doc, &answer, E));
    assert_int_equal(json_array_size(answer.doc), 2);
    assert_true(json_integer_value(json_array_get(answer.doc, 0)) <
                json_integer_value(json_array_get(answer.doc, 1)));
    json_decref(answer.doc);
    /* When a run ends, its messages are dropped and its unfinished ranks become lost. */
    json_t *runs =
        json_pack("[{s:i, s:s, s:s, s:b}]", "run", 1, "before", "running", "state", "lost", "kill", 0);
    const struct store_decision end = {.leader = 7, .runs = runs};
    AWAIT_OK(fixture, answer, store_decide(fixture->store, &end, on_doc, &answer, E));
    json_decref(answer.doc);
    assert_int_equal(number(fixture, "SELECT count(*) FROM outbox"), 1);
    assert_int_equal(number(fixture, "SELECT count(*) FROM assignments WHERE state = 'lost'"), 2);
    json_decref(jobs);
    json_decref(messages);
    json_decref(runs);
}

/* ---- leading ---- */

struct candidate {
    struct store_leader *leader;
    int64_t epoch;
    unsigned losses;
};

static void on_gained(void *arg, int64_t epoch)
{
    ((struct candidate *)arg)->epoch = epoch;
}

static void on_lost(void *arg, const struct err *why)
{
    (void)why;
    ((struct candidate *)arg)->epoch = 0;
    ((struct candidate *)arg)->losses++;
}

static void turn_until(struct fixture *fixture, const int64_t *epoch, bool leads)
{
    uint64_t deadline = clock_mono_ns() + 10000000000u;
    while ((*epoch != 0) != leads && clock_mono_ns() < deadline) {
        const struct timeval slice = {.tv_usec = 20000};
        event_base_loopexit(fixture->base, &slice);
        event_base_loop(fixture->base, EVLOOP_ONCE);
    }
    assert_int_equal(*epoch != 0, leads);
}

static void one_leads_and_the_next_has_a_higher_epoch(void **state)
{
    struct fixture *fixture = *state;
    struct candidate a = {0}, b = {0};
    struct err err;
    const struct store_leader_events events = {.gained = on_gained, .lost = on_lost};
    const struct store_leader_config config = {
        .conninfo = fixture->postgres.conninfo, .name = "a", .poll_ms = 50};
    a.leader = store_leader_create(fixture->base, &config, &events, &a, &err);
    turn_until(fixture, &a.epoch, true);
    int64_t first = a.epoch;
    b.leader = store_leader_create(fixture->base, &config, &events, &b, &err);
    /* PostgreSQL ends the session of leader a. It must notice, and a or b must then lead under a higher
     * epoch. */
    fixture_sql(fixture, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid IN "
                         "(SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)");
    uint64_t deadline = clock_mono_ns() + 10000000000u;
    while (a.losses == 0 && clock_mono_ns() < deadline) {
        const struct timeval slice = {.tv_usec = 20000};
        event_base_loopexit(fixture->base, &slice);
        event_base_loop(fixture->base, EVLOOP_ONCE);
    }
    assert_int_equal(a.losses, 1);
    struct candidate *next = NULL;
    while (!next && clock_mono_ns() < deadline) {
        const struct timeval slice = {.tv_usec = 20000};
        event_base_loopexit(fixture->base, &slice);
        event_base_loop(fixture->base, EVLOOP_ONCE);
        next = a.epoch != 0 ? &a : b.epoch != 0 ? &b : NULL;
    }
    assert_non_null(next);
    assert_true(next->epoch > first);
    assert_true(a.epoch == 0 || b.epoch == 0);
    store_leader_destroy(next->leader);
    struct candidate *other = next == &a ? &b : &a;
    turn_until(fixture, &other->epoch, true);
    assert_true(other->epoch > next->epoch);
    store_leader_destroy(other->leader);
}

/* A batch may hold a link twice, because an agent was asked twice or sent its answer again. */
static void a_link_that_is_told_twice_is_kept_once(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    json_t *links = json_pack("[{s:s, s:s, s:i, s:{s:i}}, {s:s, s:s, s:i, s:{s:i}}]", "from", "left", "to",
                              "right", "request", 1, "document", "rate", 1, "from", "left", "to", "right",
                              "request", 2, "document", "rate", 2);
    const struct store_ingest batch = {.leader = 7, .links = links};
    AWAIT_OK(fixture, answer, store_ingest(fixture->store, &batch, on_done, &answer, E));
    assert_int_equal(number(fixture, "SELECT (document ->> 'rate')::bigint FROM links"), 2);
    json_decref(links);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stale_epoch_writes_nothing_at_all),
        cmocka_unit_test(a_link_that_is_told_twice_is_kept_once),
        cmocka_unit_test(a_step_once_reported_is_not_new_again),
        cmocka_unit_test(a_checkpoint_is_complete_or_absent),
        cmocka_unit_test(measured_routing_becomes_an_input),
        cmocka_unit_test(a_checkpoint_whose_files_are_gone_is_not_taken_and_the_older_one_stays),
        cmocka_unit_test(what_grows_for_ever_is_bounded_and_finished_jobs_keep_their_summary),
        cmocka_unit_test(one_device_has_one_living_rank),
        cmocka_unit_test(a_decision_rests_on_what_it_saw_or_is_not_made),
        cmocka_unit_test(one_leads_and_the_next_has_a_higher_epoch),
    };
    return cmocka_run_group_tests(tests, setup, fixture_teardown);
}
