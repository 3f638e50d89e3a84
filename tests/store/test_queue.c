/* Tests that the queue in memory is the one in the database after every change, in whatever order
 * transactions commit, and that jobs of one class have the same digest. */
#include "store_fixture.h"
#include "common/rand.h"
#include "common/doc.h"
#include "model/job/plan_class.h"
#include "model/job/spec.h"
#include "store/links.h"
#include "store/queue.h"

enum { ROUNDS = 400, CONNECTIONS = 3 };

struct loaded {
    bool come;
    struct err err;
    char differs[200];
};

static void on_view(void *arg, const struct err *err, struct store_view *view)
{
    struct loaded *loaded = arg;
    loaded->come = true;
    err_clear(&loaded->err);
    if (err)
        loaded->err = *err;
    else
        snprintf(loaded->differs, sizeof(loaded->differs), "%s", view->differs);
    store_view_destroy(view);
}

static void ask_with(struct fixture *fixture, struct store_queue *queue, struct store_links *links,
                     bool check, struct loaded *loaded)
{
    struct err err;
    const struct store_sched_want want = {.queue = queue, .links = links, .check = check};
    *loaded = (struct loaded){0};
    if (store_sched_load(fixture->store, &want, on_view, loaded, &err) < 0)
        fail_msg("%s", err.text);
}

static void ask(struct fixture *fixture, struct store_queue *queue, bool check, struct loaded *loaded)
{
    ask_with(fixture, queue, NULL, check, loaded);
}

static void await(struct fixture *fixture, const struct loaded *loaded)
{
    const uint64_t deadline = clock_mono_ns() + 20000000000u;
    while (!loaded->come && clock_mono_ns() < deadline) {
        const struct timeval slice = {.tv_usec = 50000};
        event_base_loopexit(fixture->base, &slice);
        event_base_loop(fixture->base, EVLOOP_ONCE);
    }
    assert_true(loaded->come);
}

/* Brings the queue up to date, and fails when it then differs from the database. */
static void load(struct fixture *fixture, struct store_queue *queue, bool check)
{
    struct loaded loaded;
    ask(fixture, queue, check, &loaded);
    await(fixture, &loaded);
    if (loaded.err.code != ERR_NONE || loaded.differs[0] != '\0')
        fail_msg("%s%s", loaded.err.text, loaded.differs);
}

static struct store_queue *queue_new(void)
{
    struct err err;
    struct store_queue *queue = store_queue_create(&err);
    assert_non_null(queue);
    return queue;
}

static struct pg_conn *connect_to(struct fixture *fixture)
{
    struct err err;
    struct pg_conn *conn = pg_connect(fixture->postgres.conninfo, 5000, &err);
    assert_non_null(conn);
    return conn;
}

static void run(struct pg_conn *conn, const char *text)
{
    struct err err;
    if (pg_script(conn, text, &err) < 0)
        fail_msg("%s: %s", text, err.text);
}

static int64_t number(struct fixture *fixture, const char *query)
{
    struct err err;
    int64_t value = 0;
    struct pg_conn *conn = connect_to(fixture);
    if (pg_ask(conn, query, &value, &err) < 0)
        fail_msg("%s", err.text);
    pg_disconnect(conn);
    return value;
}

/* Changes a job, or makes one, within whatever transaction the connection has open. Rows that another open
 * transaction has changed are passed over. */
static void change(struct pg_conn *conn, struct rand_stream *random)
{
    static const char *const sets[] = {
        "state = 'queued'",
        "state = 'queued', not_before = now() + interval '1 h'",
        "state = 'starting', wait_code = NULL",
        "state = 'running', step = step + 1",
        "step = step + 1",
        "state = 'held'",
        "state = 'cancelled'",
        "depends = NOT depends",
        "priority = priority + 1",
        "wait_subject = id % 7 + 1, wait_code = 'account-running', starts_at = now()",
        "why = 'waits for ' || id",
        "why = NULL",
        "service = 2, account = 3",
        "spec = '{\"train\": {\"steps\": 5}}'",
        "inputs = '{\"model\": \"n\"}'",
        "attempt = 1"};
    char text[600];
    const uint64_t seed = rand_stream_u64(random);
    if (seed % 4 == 0)
        snprintf(text, sizeof(text),
                 "INSERT INTO jobs (owner, name, state, spec, inputs, steps, array_size) SELECT %d, 'j', "
                 "'%s', '{\"model\": "
                 "\"m%d\", \"train\": {\"seed\": 3}}', '{}', 9, %d FROM generate_series(1, %d)",
                 (int)(1 + seed / 4 % 2), seed / 8 % 4 == 0 ? "held" : "queued", (int)(seed / 32 % 3),
                 seed / 128 % 8 == 0 ? 2 : 0, (int)(1 + seed / 1024 % 3));
    else
        snprintf(text, sizeof(text),
                 "WITH x AS (SELECT id FROM jobs ORDER BY md5(id || 'x%llu') LIMIT %d FOR UPDATE SKIP "
                 "LOCKED) UPDATE jobs "
                 "SET %s WHERE id IN (SELECT id FROM x)",
                 (unsigned long long)seed, (int)(1 + seed / 64 % 3),
                 sets[seed / 1024 % (sizeof(sets) / sizeof(sets[0]))]);
    run(conn, text);
}

/* Opens, uses or ends a transaction of one of the connections. */
static void step(struct pg_conn *conns[CONNECTIONS], bool open[CONNECTIONS], struct rand_stream *random)
{
    const uint64_t seed = rand_stream_u64(random);
    const size_t i = seed % CONNECTIONS;
    if (open[i] && seed / 4 % 3 == 0) {
        run(conns[i], seed / 16 % 4 == 0 ? "ROLLBACK" : "COMMIT");
        open[i] = false;
        return;
    }
    if (!open[i] && seed / 64 % 2 == 0) {
        run(conns[i], "BEGIN");
        open[i] = true;
    }
    change(conns[i], random);
}

/* Random transactions of several connections, drawn from a printed seed, change jobs. After each one the
 * queue in memory must equal a queue that is read anew. */
static void the_queue_is_the_databases_after_every_change(void **state)
{
    struct fixture *fixture = *state;
    const char *given = getenv("MOTLEY_SEED");
    const uint64_t seed = given ? strtoull(given, NULL, 10) : 20261127;
    struct rand_stream random;
    struct pg_conn *conns[CONNECTIONS];
    bool open[CONNECTIONS] = {false};
    struct store_queue *queue = queue_new();
    size_t most = 0, late = 0;
    char text[200];
    rand_stream_init(&random, seed, 0);
    printf("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < CONNECTIONS; i++)
        conns[i] = connect_to(fixture);
    run(conns[0], "INSERT INTO users (name) VALUES ('bob')");
    for (int round = 0; round < ROUNDS; round++) {
        step(conns, open, &random);
        for (size_t i = 0; i < CONNECTIONS; i++)
            late += open[i];
        load(fixture, queue, round % 3 == 0);
        struct store_queue *fresh = queue_new();
        load(fixture, fresh, false);
        if (store_queue_differs(queue, fresh, text))
            fail_msg("round %d: %s", round, text);
        most = store_queue_count(queue) > most ? store_queue_count(queue) : most;
        store_queue_destroy(fresh);
        if (round % 100 == 99)
            store_queue_forget(queue);
    }
    assert_true(most > 20 && late > ROUNDS / 2);
    for (size_t i = 0; i < CONNECTIONS; i++)
        pg_disconnect(conns[i]);
    store_queue_destroy(queue);
}

/* A load that was under way when the queue was told to forget, as when leadership is lost, changes nothing.
 */
static void a_load_that_was_under_way_does_not_fill_a_queue_that_forgot(void **state)
{
    struct fixture *fixture = *state;
    struct store_queue *queue = queue_new();
    struct loaded loaded;
    load(fixture, queue, false);
    assert_true(store_queue_count(queue) > 0);
    ask(fixture, queue, false, &loaded);
    store_queue_forget(queue);
    await(fixture, &loaded);
    assert_int_equal(loaded.err.code, ERR_CANCELLED);
    assert_int_equal(store_queue_count(queue), 0);
    load(fixture, queue, true);
    assert_true(store_queue_count(queue) > 0);
    store_queue_destroy(queue);
}

/* A change that bypasses the table's triggers is found and corrected when the queue is compared with the
 * database. */
static void a_difference_is_found_and_mended(void **state)
{
    struct fixture *fixture = *state;
    struct store_queue *queue = queue_new();
    struct loaded loaded;
    struct pg_conn *conn = connect_to(fixture);
    load(fixture, queue, false);
    run(conn, "ALTER TABLE jobs DISABLE TRIGGER job_queue_changed; UPDATE jobs SET priority = 77 WHERE id = "
              "(SELECT min(id) "
              "FROM jobs WHERE state = 'queued' AND NOT depends AND array_size = 0); ALTER TABLE jobs ENABLE "
              "TRIGGER "
              "job_queue_changed");
    load(fixture, queue, false);
    ask(fixture, queue, true, &loaded);
    await(fixture, &loaded);
    assert_non_null(strstr(loaded.differs, ": priority"));
    load(fixture, queue, true);
    pg_disconnect(conn);
    store_queue_destroy(queue);
}

/* Random transactions of two connections write links. After each the links in memory must equal the table. */
static void the_links_are_the_databases_after_every_change(void **state)
{
    struct fixture *fixture = *state;
    struct err err;
    struct store_links *links = store_links_create(&err);
    struct store_queue *queue = queue_new();
    struct rand_stream random;
    struct pg_conn *conns[2] = {connect_to(fixture), connect_to(fixture)};
    bool open[2] = {false};
    char text[300];
    assert_non_null(links);
    rand_stream_init(&random, 44, 0);
    run(conns[0], "INSERT INTO nodes (name) SELECT 'n' || i FROM generate_series(0, 9) i");
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t seed = rand_stream_u64(&random);
        const size_t i = seed % 2;
        if (open[i] && seed / 2 % 3 == 0) {
            run(conns[i], seed / 8 % 4 == 0 ? "ROLLBACK" : "COMMIT");
            open[i] = false;
        } else if (!open[i]) {
            run(conns[i], "BEGIN");
            open[i] = true;
        }
        if (open[i]) { /* each connection has links of its own, as open transactions wait for each other */
            snprintf(
                text, sizeof(text),
                "INSERT INTO links (from_node, to_node, document) VALUES ('n%d', 'n%d', '{\"rate\": %d}') ON "
                "CONFLICT (from_node, to_node) DO UPDATE SET document = excluded.document, changed = "
                "excluded.changed",
                (int)(seed / 32 % 5 * 2 + i), (int)(seed / 256 % 10), (int)(seed / 4096 % 100));
            run(conns[i], text);
        }
        struct loaded loaded;
        ask_with(fixture, queue, links, round % 2 == 0, &loaded);
        await(fixture, &loaded);
        if (loaded.err.code != ERR_NONE || loaded.differs[0] != '\0')
            fail_msg("round %d: %s%s", round, loaded.err.text, loaded.differs);
        if (round % 100 == 99)
            store_links_forget(links);
    }
    run(conns[0], "COMMIT");
    run(conns[1], "COMMIT");
    struct loaded loaded;
    ask_with(fixture, queue, links, true, &loaded);
    await(fixture, &loaded);
    assert_string_equal(loaded.differs, "");
    run(conns[0], "DELETE FROM links WHERE from_node = 'n3'"); /* no program does */
    ask_with(fixture, queue, links, true, &loaded);
    await(fixture, &loaded);
    assert_non_null(strstr(loaded.differs, "link"));
    ask_with(fixture, queue, links, true, &loaded);
    await(fixture, &loaded);
    assert_string_equal(loaded.differs, "");
    for (size_t i = 0; i < 2; i++)
        pg_disconnect(conns[i]);
    store_links_destroy(links);
    store_queue_destroy(queue);
}

static void a_job_takes_at_most_256_bytes(void **state)
{
    struct fixture *fixture = *state;
    struct store_queue *queue = queue_new();
    struct pg_conn *conn = connect_to(fixture);
    run(conn, "INSERT INTO jobs (owner, name, state, spec, inputs, steps) SELECT 1, 'many', 'queued', '{}', "
              "'{}', 9 FROM "
              "generate_series(1, 20000)");
    load(fixture, queue, false);
    const double each = (double)store_queue_bytes(queue) / (double)store_queue_count(queue);
    printf("%.0f bytes a job, of %zu\n", each, store_queue_count(queue));
    assert_true(each <= 256);
    pg_disconnect(conn);
    store_queue_destroy(queue);
}

static void what_no_plan_depends_on_makes_no_class(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(number(fixture, "SELECT count(DISTINCT motley_class(s, '{\"model\": \"m\"}')) FROM "
                                     "unnest(ARRAY['{\"train\": {\"steps\": 1}}', "
                                     "'{\"name\": \"a\", \"train\": {\"steps\": 1}}', '{\"train\": "
                                     "{\"seed\": 4, \"steps\": 1, \"betas\": [1, 2]}}', "
                                     "'{\"priority\": 3, \"train\" : {\"steps\":1, \"learning_rate\": 0.1}, "
                                     "\"account\": \"x\"}']::json[]) s"),
                     1);
    assert_int_equal(
        number(fixture,
               "SELECT count(DISTINCT motley_class(s, i)) FROM unnest(ARRAY['{\"train\": {\"steps\": 1}}', "
               "'{\"train\": "
               "{\"compute\": \"bf16\"}}', '{\"model\": \"m\"}', '{}', '[]', '{\"train\": 3}']::json[]) s, "
               "unnest(ARRAY['{}', '{\"model\": \"m\"}']::json[]) i"),
        12);
}

static void digest_of(const json_t *spec, uint8_t digest[DIGEST_SIZE])
{
    struct err err;
    json_t *inputs = json_pack("{s:s}", "model", "m"), *class = plan_class_spec(spec);
    assert_int_equal(plan_class_digest(class, inputs, digest, &err), 0);
    json_decref(class);
    json_decref(inputs);
}

/* Whether another value of `key` in `part` makes another class, by plan_class.h and by the database alike. */
static void compare_definitions(struct fixture *fixture, json_t *spec, json_t *part, const char *key)
{
    uint8_t before[DIGEST_SIZE], after[DIGEST_SIZE];
    char query[20000];
    json_t *was = json_incref(json_object_get(part, key));
    char *text = json_dumps(spec, JSON_COMPACT);
    digest_of(spec, before);
    json_object_set_new(part, key, json_integer(777));
    char *changed = json_dumps(spec, JSON_COMPACT);
    digest_of(spec, after);
    snprintf(query, sizeof(query),
             "SELECT (motley_class($q$%s$q$, '{}') <> motley_class($q$%s$q$, '{}'))::int", text, changed);
    const bool differs = memcmp(before, after, sizeof(before)) != 0;
    if (number(fixture, query) != (differs ? 1 : 0))
        fail_msg("%s: another class by %s alone", key, differs ? "plan_class.c" : "motley_class");
    free(text);
    free(changed);
    if (was)
        json_object_set_new(part, key, was);
    else
        json_object_del(part, key);
}

static void compare_keys(struct fixture *fixture, json_t *spec, json_t *part, const json_t *names)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)names, key, value)
        if (part != spec || strcmp(key, "train") != 0)
            compare_definitions(fixture, spec, part, key);
}

static const struct pg_statement words_of_class = {
    "words_of_class",
    "SELECT DISTINCT m[1] FROM pg_proc, regexp_matches(prosrc, '''([a-z_]+)''', 'g') m WHERE proname = "
    "'motley_class'",
    PG_READ};

/* Every key that a specification may have, and every word of motley_class. */
static void the_database_and_submits_have_the_same_classes(void **state)
{
    struct fixture *fixture = *state;
    struct err err;
    struct job_spec spec;
    json_t *given = json_pack("{s:s, s:s, s:{s:s}, s:{s:i}}", "name", "n", "model", "m", "data", "train", "d",
                              "train", "steps", 3);
    if (spec_parse(given, &spec, &err) < 0)
        fail_msg("%s", err.text);
    json_t *whole = spec_to_json(&spec, &err), *schema = doc_schema(&spec_doc, &err), *words = json_object();
    const json_t *keys = json_object_get(schema, "properties"), *train_keys = NULL;
    json_unpack((json_t *)(uintptr_t)keys, "{s:{s:o}}", "train", "properties", &train_keys);
    struct pg_conn *conn = connect_to(fixture);
    struct pg_result *result;
    if (pg_exec(conn, &words_of_class, NULL, &result, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < pg_rows(result); i++)
        json_object_set_new(words, pg_text(result, i, 0), json_null());
    pg_result_free(result);
    assert_true(json_object_size(words) > 25);
    compare_keys(fixture, whole, whole, keys);
    compare_keys(fixture, whole, whole, words);
    json_t *train = json_object_get(whole, "train");
    compare_keys(fixture, whole, train, train_keys);
    compare_keys(fixture, whole, train, words);
    assert_true(json_object_size(keys) > 20 && json_object_size(train_keys) > 20);
    printf("%zu keys and %zu words compared\n", json_object_size(keys) + json_object_size(train_keys),
           json_object_size(words));
    pg_disconnect(conn);
    json_decref(words);
    json_decref(schema);
    json_decref(whole);
    json_decref(given);
    spec_fini(&spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_queue_is_the_databases_after_every_change),
        cmocka_unit_test(a_load_that_was_under_way_does_not_fill_a_queue_that_forgot),
        cmocka_unit_test(a_difference_is_found_and_mended),
        cmocka_unit_test(the_links_are_the_databases_after_every_change),
        cmocka_unit_test(a_job_takes_at_most_256_bytes),
        cmocka_unit_test(what_no_plan_depends_on_makes_no_class),
        cmocka_unit_test(the_database_and_submits_have_the_same_classes),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
