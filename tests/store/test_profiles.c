/* Tests imported profiles: a plan uses one only for the device that it was measured on, and only while that
 * device has no measured profile. */
#include "store_fixture.h"

#include <math.h>

#include "store/nodes.h"
#include "store/sched.h"

#define KEY "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static int setup(void **state)
{
    struct err err;
    fixture_setup(state);
    struct fixture *fixture = *state;
    struct pg_conn *conn = pg_connect(fixture->postgres.conninfo, 5000, &err);
    assert_non_null(conn);
    if (pg_script(conn,
                  "INSERT INTO nodes (name, state) VALUES ('left', 'alive'), ('right', 'alive');"
                  "INSERT INTO devices (name, node, kind, inventory, digest, memory_limit_bytes) VALUES "
                  "('left/cpu0', 'left', 'cpu', '{}', 'd', 1), ('right/cpu0', 'right', 'cpu', '{}', 'd', 1);"
                  "INSERT INTO profiles (device, key, content, digest, document) VALUES "
                  "('left/cpu0', '" KEY "', 'm', 'd', '{\"device\": \"left/cpu0\", \"here\": true}');",
                  &err) < 0)
        fail_msg("%s", err.text);
    pg_disconnect(conn);
    return 0;
}

static json_t *imported(const char *device, const char *digest, int number)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:{s:s, s:i}}", "device", device, "key", KEY, "content", "m",
                     "digest", digest, "document", "device", device, "number", number);
}

static int64_t import(struct fixture *fixture, json_t *row)
{
    struct answer answer;
    json_t *rows = json_array();
    json_array_append_new(rows, row);
    AWAIT_OK(fixture, answer,
             store_profile_import(fixture->store, &fixture->user, rows, "another lab",
                                  &(struct sharing){.visibility = VISIBLE_EVERYONE}, on_doc, &answer, E));
    int64_t count = json_integer_value(json_object_get(answer.doc, "imported"));
    json_decref(answer.doc);
    json_decref(rows);
    return count;
}

/* Returns the profile that a plan would use for a device, borrowed from *all, or NULL. */
static const json_t *planned(struct fixture *fixture, const char *device, json_t **all)
{
    struct answer answer;
    size_t index;
    const json_t *row, *found = NULL;
    AWAIT_OK(fixture, answer, store_profile_plan(fixture->store, &fixture->user, KEY, on_doc, &answer, E));
    *all = answer.doc;
    json_array_foreach (answer.doc, index, row)
        if (strcmp(json_string_value(json_object_get(row, "device")), device) == 0) {
            assert_null(found); /* a plan gets at most one profile for a device */
            found = row;
        }
    return found;
}

static void a_measured_profile_is_never_replaced(void **state)
{
    struct fixture *fixture = *state;
    json_t *all;
    assert_int_equal(import(fixture, imported("left/cpu0", "d", 1)), 1);
    const json_t *row = planned(fixture, "left/cpu0", &all);
    assert_non_null(row);
    assert_true(json_is_true(json_object_get(json_object_get(row, "document"), "here")));
    assert_true(json_is_false(json_object_get(row, "imported")));
    json_decref(all);
}

static void an_imported_one_serves_the_same_device_until_it_is_measured(void **state)
{
    struct fixture *fixture = *state;
    json_t *all;
    assert_null(planned(fixture, "right/cpu0", &all));
    json_decref(all);
    import(fixture,
           imported("right/cpu0", "another inventory", 1)); /* the name is the same, the inventory is not */
    assert_null(planned(fixture, "right/cpu0", &all));
    json_decref(all);
    import(fixture, imported("right/cpu0", "d", 2));
    const json_t *row = planned(fixture, "right/cpu0", &all);
    assert_non_null(row);
    assert_true(json_is_true(json_object_get(row, "imported")));
    const json_t *document = json_object_get(row, "document");
    assert_string_equal(json_string_value(json_object_get(document, "origin")), "imported");
    assert_int_equal(json_integer_value(json_object_get(document, "number")), 2); /* the later import */
    json_decref(all);
    /* The scheduler does not use imported profiles, because it can have the device measured. */
    struct answer answer;
    AWAIT_OK(fixture, answer, store_profiles_get(fixture->store, KEY, 60000, on_doc, &answer, E));
    assert_int_equal(json_array_size(answer.doc), 1);
    json_decref(answer.doc);
}

static void the_list_says_where_each_comes_from(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    uint32_t measured = 0, from_elsewhere = 0;
    size_t index;
    const json_t *row;
    AWAIT_OK(fixture, answer, store_profile_list(fixture->store, &fixture->user, "m", on_doc, &answer, E));
    json_array_foreach (json_object_get(answer.doc, "profiles"), index, row) {
        const char *origin = json_string_value(json_object_get(row, "origin"));
        measured += strcmp(origin, "measured") == 0;
        from_elsewhere += strcmp(origin, "imported") == 0;
        assert_string_equal(json_string_value(json_object_get(row, "key")), KEY);
    }
    assert_int_equal(measured, 1);
    assert_int_equal(from_elsewhere, 2);
    json_decref(answer.doc);
    AWAIT_OK(fixture, answer,
             store_profile_list(fixture->store, &fixture->user, "other", on_doc, &answer, E));
    assert_int_equal(json_array_size(json_object_get(answer.doc, "profiles")), 0);
    json_decref(answer.doc);
}

/* Returns a number of what the run of that placement taught; NAN: no such run, or no such number. */
static double taught(struct fixture *fixture, const char *placement, const char *key)
{
    struct answer answer;
    size_t index;
    const json_t *run;
    double found = NAN;
    AWAIT_OK(fixture, answer, store_profiles_get(fixture->store, KEY, 60000, on_doc, &answer, E));
    json_array_foreach (json_object_get(json_array_get(answer.doc, 0), "taught"), index, run)
        if (strcmp(json_string_value(json_object_get(run, "placement")), placement) == 0) {
            const json_t *value = json_object_get(run, key);
            found = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
        }
    json_decref(answer.doc);
    return found;
}

/* Six seconds of a step were measured where four were said, of which a correction by 0.8 was a part. */
static void runs_teach_what_their_tables_and_speeds_do_not_say(void **state)
{
    struct fixture *fixture = *state;
    struct err err;
    struct pg_conn *conn = pg_connect(fixture->postgres.conninfo, 5000, &err);
    assert_non_null(conn);
    if (pg_script(
            conn,
            "UPDATE profiles SET measured_at = now() - interval '3 days';"
            "INSERT INTO jobs (owner, name, state, spec, inputs, steps) "
            "SELECT id, 'taught', 'succeeded', '{}', '{}', 9 FROM users LIMIT 1;"
            "INSERT INTO runs (job, attempt, epoch, state, plan, step_s, corrected, measured_s, key, "
            "placement, created_at, ended_at) SELECT max(j.id), k, 900 + k, 'done', '{}', 4, 0.8, 6, '" KEY
            "', (ARRAY['data', 'tensor'])[k], now() - interval '2 days', now() - interval '49 hours' "
            "FROM jobs j, generate_series(1, 2) k GROUP BY k;"
            "INSERT INTO assignments (run, rank, node, device, state, busy_s, compute_s, measured) "
            "SELECT r.id, k, 'left', (ARRAY['left/cpu0', 'right/cpu0'])[k + 1], 'done', 3, 3.75, 9 "
            "FROM runs r, generate_series(0, 1) k WHERE r.key IS NOT NULL;",
            &err) < 0)
        fail_msg("%s", err.text);
    assert_true(fabs(taught(fixture, "data", "times") - 1.2) < 1e-9);
    assert_true(taught(fixture, "data", "alike") == 1 && taught(fixture, "data", "age_days") == 2);
    /* Measured anew since: a whole-layer run tells only what its slower computing does not. */
    assert_int_equal(pg_script(conn, "UPDATE profiles SET measured_at = now()", &err), 0);
    assert_true(taught(fixture, "data", "alike") == 0);
    assert_true(fabs(taught(fixture, "data", "times") - 1.2 * 3 / 3.75) < 1e-9);
    assert_true(fabs(taught(fixture, "tensor", "times") - 1.2) < 1e-9);
    /* The run priced its plan itself, when it set speeds. */
    assert_int_equal(pg_script(conn, "UPDATE runs SET priced_s = 5 WHERE placement = 'data'", &err), 0);
    assert_true(fabs(taught(fixture, "data", "times") - 1.2) < 1e-9);
    assert_int_equal(pg_script(conn, "UPDATE runs SET measured_s = NULL", &err), 0);
    assert_true(isnan(taught(fixture, "data", "times")));
    pg_disconnect(conn);
}

/* Has a run tell that it measured left/cpu0 at `speed`; returns the speed that later plans begin with. */
static double speed_after(struct fixture *fixture, int run, double speed)
{
    struct answer answer;
    json_t *rows =
        json_pack("[{s:s, s:s, s:f, s:i}]", "device", "left/cpu0", "key", KEY, "speed", speed, "run", run);
    const struct store_decision decision = {.leader = 7, .speeds = rows};
    json_t *all = NULL;
    AWAIT_OK(fixture, answer, store_decide(fixture->store, &decision, on_doc, &answer, E));
    json_decref(answer.doc);
    json_decref(rows);
    const json_t *row = planned(fixture, "left/cpu0", &all);
    const double known = json_number_value(json_object_get(row, "speed"));
    json_decref(all);
    return known;
}

/* A run whose steps agree says all; one that is a tenth slower and faster for five steps in turn moves what
 * is known by a part of a change of 20 %, and by nothing of one of 5 %; weighed again, it counts once. */
static void a_run_moves_a_speed_as_far_as_its_steps_agree(void **state)
{
    struct fixture *fixture = *state;
    struct answer answer;
    json_t *spec = json_object(), *inputs = json_object();
    const struct store_job_new job = fixture_job(fixture, "j", spec, inputs);
    AWAIT_OK(fixture, answer, store_job_insert(fixture->store, &job, on_made, &answer, E));
    json_decref(spec);
    json_decref(inputs);
    fixture_sql(
        fixture,
        "UPDATE leader SET epoch = 7; UPDATE profiles SET measured_at = now() - interval '1 hour';"
        "INSERT INTO runs (id, job, attempt, epoch, state, plan) SELECT 7000 + n, (SELECT max(id) FROM "
        "jobs), n, 7000 + n, "
        "  'done', '{}' FROM generate_series(1, 2) n;"
        "INSERT INTO assignments (run, rank, node, device, state) SELECT 7000 + n, n, 'left', 'left/cpu0', "
        "'done' "
        "  FROM generate_series(1, 2) n;"
        "INSERT INTO metrics (job, kind, step, rank, document) SELECT (SELECT max(id) FROM jobs), 'step', s, "
        "0, "
        "  json_build_object('tokens', 100 + s) FROM generate_series(1, 20) s;"
        /* run 1's steps take as long as they have tokens */
        "INSERT INTO metrics (job, kind, step, rank, document) SELECT (SELECT max(id) FROM jobs), 'ranks', "
        "s, n, "
        "  json_build_object('compute_s', (100 + s) * CASE WHEN n = 1 THEN 1 ELSE exp(0.1 * (-1) ^ ((s - 1) "
        "/ 5)) END) "
        "  FROM generate_series(1, 20) s, generate_series(1, 2) n");
    assert_true(fabs(speed_after(fixture, 7001, 0.5) - 0.5) < 1e-9);
    const double noise = 0.01 * 4 / 3 / 4, away = log(1.2);
    const double part = 0.5 * exp(away * (1 - noise / (away * away)));
    assert_true(fabs(speed_after(fixture, 7002, 0.6) - part) < 1e-9);
    assert_true(fabs(speed_after(fixture, 7002, 0.6) - part) < 1e-9);
    assert_true(fabs(speed_after(fixture, 7002, 0.525) - 0.5) < 1e-9);
    fixture_sql(fixture,
                "UPDATE profiles SET measured_at = now()"); /* measured anew: nothing is known beside it */
    assert_true(fabs(speed_after(fixture, 7001, 0.8) - 0.8) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_measured_profile_is_never_replaced),
        cmocka_unit_test(an_imported_one_serves_the_same_device_until_it_is_measured),
        cmocka_unit_test(the_list_says_where_each_comes_from),
        cmocka_unit_test(runs_teach_what_their_tables_and_speeds_do_not_say),
        cmocka_unit_test(a_run_moves_a_speed_as_far_as_its_steps_agree),
    };
    return cmocka_run_group_tests(tests, setup, fixture_teardown);
}
