/* Tests the ledger. Each assignment has a row, which is opened and closed together with it, in whichever way
 * it ends. Sums by day have the same total as the rows that they replace. */
#include "store_fixture.h"

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

static int setup(void **state)
{
    fixture_setup(state);
    fixture_sql(*state,
                "INSERT INTO nodes (name, state) VALUES ('left', 'alive');"
                "INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) VALUES "
                "('left/cpu0', 'left', 'cpu', '{}', 'd', 1), ('left/cpu1', 'left', 'cpu', '{}', 'd', 1);"
                "INSERT INTO groups (name) VALUES ('vision'); UPDATE leader SET epoch = 7;");
    return 0;
}

/* Checks the ledger against the assignments. Each statement counts rows that contradict a rule; one that
 * finds any is printed. */
static void check_books(struct fixture *fixture)
{
    static const char *const wrong[] = {
        "SELECT count(*) FROM assignments a FULL JOIN ledger l ON l.assignment = a.id WHERE a.id IS NULL OR "
        "l.assignment IS NULL",
        "SELECT count(*) FROM assignments a JOIN ledger l ON l.assignment = a.id WHERE (a.state IN ('sent', "
        "'ready', "
        "'running')) <> (l.ends IS NULL)",
        "SELECT count(*) FROM ledger l JOIN runs r ON r.id = l.run WHERE l.begins <> r.created_at OR "
        "(r.ended_at IS "
        "NOT NULL AND (l.ends IS NULL OR l.ends > greatest(r.ended_at, l.begins)))",
        "SELECT count(*) FROM ledger WHERE ends < begins OR (ends IS NULL) <> (closed IS NULL)",
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        if (number(fixture, wrong[i]) != 0)
            fail_msg("%s", wrong[i]);
}

static void decide(struct fixture *fixture, const struct store_decision *decision)
{
    struct answer answer;
    AWAIT_OK(fixture, answer, store_decide(fixture->store, decision, on_doc, &answer, E));
    json_decref(answer.doc);
}

/* Makes run `id` of a job on both devices. */
static void begin(struct fixture *fixture, int64_t job, int64_t id)
{
    json_t *runs = json_pack(
        "[{s:I, s:I, s:I, s:I, s:{}, s:{}, s:i, s:[{s:I, s:i, s:s, s:s, s:f, s:s, s:f}, {s:I, s:i, s:s, "
        "s:s}]}]",
        "run", (json_int_t)id, "job", (json_int_t)job, "attempt", (json_int_t)id, "epoch", (json_int_t)id,
        "plan", "answer", "start_step", 0, "ranks", "assignment", (json_int_t)(2 * id), "rank", 0, "node",
        "left", "device", "left/cpu0", "speed", 0.5, "origin", "profile: left/cpu1", "factor", 2.0,
        "assignment", (json_int_t)(2 * id + 1), "rank", 1, "node", "left", "device", "left/cpu1");
    const struct store_decision decision = {.leader = 7, .runs_new = runs};
    assert_non_null(runs);
    decide(fixture, &decision);
    json_decref(runs);
}

static void rank_ends(struct fixture *fixture, int64_t run, int rank, const char *state)
{
    struct answer answer;
    json_t *ranks =
        json_pack("[{s:I, s:I, s:i, s:i, s:i, s:s, s:s}]", "run", (json_int_t)run, "epoch", (json_int_t)run,
                  "rank", rank, "seq_before", 0, "seq", 1, "before", "sent", "state", state);
    const struct store_ingest batch = {.leader = 7, .ranks = ranks};
    AWAIT_OK(fixture, answer, store_ingest(fixture->store, &batch, on_done, &answer, E));
    json_decref(ranks);
}

static void run_ends(struct fixture *fixture, int64_t run)
{
    json_t *runs =
        json_pack("[{s:I, s:s, s:s}]", "run", (json_int_t)run, "before", "starting", "state", "lost");
    const struct store_decision decision = {.leader = 7, .runs = runs};
    decide(fixture, &decision);
    json_decref(runs);
}

static int64_t new_job(struct fixture *fixture)
{
    struct answer answer;
    json_t *spec = json_object(), *inputs = json_object();
    const struct store_job_new job = fixture_job(fixture, "j", spec, inputs);
    AWAIT_OK(fixture, answer, store_job_insert(fixture->store, &job, on_made, &answer, E));
    json_decref(spec);
    json_decref(inputs);
    return answer.made.id;
}

/* 40 runs, of which a seed decides how they end: a rank ends first, a rank is lost first, the clock is set
 * back, or both ranks end with the run. */
static void the_ledger_is_the_assignments_intervals_however_they_end(void **state)
{
    struct fixture *fixture = *state;
    static const char *const ends[] = {"done", "failed", "stopped"};
    uint32_t seed = 12345;
    int64_t job = new_job(fixture);
    fixture_sql(fixture, "UPDATE jobs SET account = 1");
    for (int64_t run = 1; run <= 40; run++) {
        seed = seed * 1664525u + 1013904223u;
        begin(fixture, job, run);
        check_books(fixture);
        if (seed >> 30 == 0)
            rank_ends(fixture, run, 0, ends[run % 3]);
        if (seed >> 30 == 1) {
            json_t *lost = json_pack("[{s:I, s:i, s:s}]", "run", (json_int_t)run, "rank", 1, "why", "gone");
            const struct store_decision decision = {.leader = 7, .ranks_lost = lost};
            decide(fixture, &decision);
            json_decref(lost);
        }
        if (seed >> 30 == 2)
            fixture_sql(
                fixture,
                "UPDATE ledger SET begins = begins + interval '1 hour' WHERE ends IS NULL;"
                "UPDATE runs SET created_at = created_at + interval '1 hour' WHERE state = 'starting';");
        if (seed >> 30 != 2)
            check_books(fixture);
        run_ends(fixture, run);
        if (seed >> 30 == 2) /* the clock was an hour ahead when the run ended, and now it is right */
            fixture_sql(
                fixture,
                "UPDATE runs SET created_at = created_at - interval '1 hour' WHERE created_at > now();"
                "UPDATE ledger SET begins = begins - interval '1 hour', ends = ends - interval '1 hour' "
                "WHERE begins > now();");
        check_books(fixture);
    }
    assert_int_equal(number(fixture, "SELECT count(*) FROM ledger"), 80);
    assert_int_equal(number(fixture, "SELECT count(*) FROM ledger WHERE account = 'vision' AND user_id = 1"),
                     80);
    assert_int_equal(
        number(fixture, "SELECT count(*) FROM ledger WHERE device = 'left/cpu0' AND speed = 0.5 AND factor = "
                        "2 AND origin = 'profile: left/cpu1'"),
        40);
    assert_int_equal(
        number(fixture,
               "SELECT count(*) FROM ledger WHERE device = 'left/cpu1' AND speed = 1 AND origin = ''"),
        40);
}

static void old_rows_become_sums_by_day_of_the_same_total(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    /* some rows last 36 hours over two midnights, others end exactly at midnight */
    fixture_sql(fixture,
                "UPDATE ledger SET begins = timestamptz '2020-03-01 18:00:00.000123+00' + assignment * "
                "interval '1 minute', "
                "ends = timestamptz '2020-03-03 06:00:00.000456+00' + assignment * interval '1 minute' "
                "WHERE assignment < 60;"
                "UPDATE ledger SET begins = '2020-03-05 22:00:00+00', ends = '2020-03-06 00:00:00+00' WHERE "
                "assignment = 60;");
    int64_t held = number(
        fixture,
        "SELECT sum((extract(epoch FROM ends - begins) * 1e6)::bigint) FROM ledger WHERE assignment <= 60");
    number(fixture,
           "WITH made AS (INSERT INTO device_load (device, begins, seconds, compute_s, temperature_c) "
           "SELECT 'left/cpu0', date_trunc('hour', now()) - interval '4 days' + n * interval '1 minute', 60, "
           "n, n FROM generate_series(0, 149) n RETURNING 1) SELECT count(*) FROM made");
    const struct store_retention keep = {.event_days = 30,
                                         .history_days = 60,
                                         .dataset_days = 90,
                                         .ledger_days = 100,
                                         .usage_days = 1000000,
                                         .rank_steps = 200,
                                         .rows = 20};
    bool more = true;
    while (more) {
        AWAIT_OK(fixture, answer, store_prune(fixture->store, 7, &keep, on_doc, &answer, E));
        more = json_is_true(json_object_get(answer.doc, "more"));
        json_decref(answer.doc);
    }
    assert_int_equal(number(fixture, "SELECT count(*) FROM ledger"), 80 - 59);
    /* minutes of devices became hours of the same total */
    assert_int_equal(number(fixture, "SELECT count(*) FROM device_load WHERE seconds = 3600"), 3);
    assert_int_equal(number(fixture, "SELECT count(*) FROM device_load WHERE seconds = 60"), 0);
    assert_int_equal(number(fixture, "SELECT sum(compute_s)::bigint FROM device_load"), 149 * 150 / 2);
    assert_int_equal(number(fixture, "SELECT max(temperature_c)::bigint FROM device_load"), 149);
    assert_int_equal(number(fixture, "SELECT sum(held_us) FROM usage_days"), held);
    assert_int_equal(number(fixture, "SELECT count(DISTINCT day) FROM usage_days WHERE held_us > 0"), 4);
    assert_int_equal(number(fixture,
                            "SELECT max(held_us) FROM usage_days WHERE day = '2020-03-02' AND device = "
                            "'left/cpu0'"),
                     number(fixture, "SELECT 29 * 86400::bigint * 1000000"));
    assert_int_equal(
        number(fixture,
               "SELECT count(*) FROM usage_days WHERE device = 'left/cpu0' AND abs(charged_s * 1e6 - "
               "held_us) > 1"),
        0);
    const struct store_retention two_years = {.event_days = 30,
                                              .history_days = 60,
                                              .dataset_days = 90,
                                              .ledger_days = 100,
                                              .usage_days = 730,
                                              .rank_steps = 200,
                                              .rows = 20};
    AWAIT_OK(fixture, answer, store_prune(fixture->store, 7, &two_years, on_doc, &answer, E));
    json_decref(answer.doc);
    assert_int_equal(number(fixture, "SELECT count(*) FROM usage_days"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ledger_is_the_assignments_intervals_however_they_end),
        cmocka_unit_test(old_rows_become_sums_by_day_of_the_same_total),
    };
    return cmocka_run_group_tests(tests, setup, fixture_teardown);
}
