/* Tests the PostgreSQL client against a real server: groups, errors, restarts, deadlines, notifications. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <event2/event.h>

#include "common/pg.h"
#include "support/services.h"

static struct test_dir dir;
static struct test_postgres postgres;

static const struct pg_statement insert_item = {
    "insert_item", "INSERT INTO item (name, amount) VALUES ($1, $2) RETURNING id", PG_WRITE};
static const struct pg_statement count_items = {
    "count_items", "SELECT count(*), coalesce(sum(amount), 0) FROM item", PG_READ};
static const struct pg_statement echo_values = {
    "echo_values",
    "SELECT $1::text, $2::bigint, $3::float8, $4::boolean, $5::jsonb, $6::bytea, $7::text, $8::text[]",
    PG_READ};
static const struct pg_statement sleep_long = {"sleep_long", "SELECT pg_sleep(30)", PG_READ};
static const struct pg_statement notify_channel = {"notify_channel", "SELECT pg_notify('events', $1)",
                                                   PG_WRITE};
static const struct pg_statement bad_syntax = {"bad_syntax", "SELEKT 1", PG_READ};

static int services_up(void **state)
{
    (void)state;
    test_dir_make(&dir);
    test_postgres_start(&postgres, dir.path);
    return 0;
}

static int services_down(void **state)
{
    (void)state;
    test_postgres_stop(&postgres);
    test_dir_remove(&dir);
    return 0;
}

static struct pg_conn *fresh_tables(void)
{
    struct err err = {0};
    struct pg_conn *conn = pg_connect(postgres.conninfo, 5000, &err);
    if (!conn)
        fail_msg("%s", err.text);
    int made = pg_script(
        conn,
        "DROP TABLE IF EXISTS item;"
        "CREATE TABLE item (id bigserial PRIMARY KEY, name text UNIQUE, amount bigint CHECK (amount >= 0))",
        &err);
    if (made < 0)
        fail_msg("%s", err.text);
    return conn;
}

struct tally {
    struct event_base *base;
    int waited;
    int good;
    int failed;
    int conflicts;
    enum err_code last;
    char text[512];
    int64_t value;
};

static void tally_done(void *arg, const struct pg_result *const *results, int count, const struct err *err)
{
    struct tally *tally = arg;
    if (err->code == ERR_NONE) {
        tally->good++;
        if (count > 0 && pg_rows(results[count - 1]) > 0)
            tally->value = pg_i64(results[count - 1], 0, 0);
    } else {
        tally->failed++;
        tally->conflicts += err->code == ERR_CONFLICT;
        tally->last = err->code;
        snprintf(tally->text, sizeof(tally->text), "%s", err->text);
    }
    if (--tally->waited == 0)
        event_base_loopbreak(tally->base);
}

static void too_late(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    (void)arg;
    fprintf(stderr, "nothing happened for too long\n");
    exit(1);
}

static void loop(struct event_base *base, int timeout_ms)
{
    struct timeval wait = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    struct event *guard = evtimer_new(base, too_late, NULL);
    event_add(guard, &wait);
    event_base_dispatch(base);
    event_free(guard);
}

static struct pg *pool(struct event_base *base, uint32_t connections, uint32_t timeout_ms)
{
    struct err err = {0};
    struct pg_config config = {
        .conninfo = postgres.conninfo, .connections = connections, .timeout_ms = timeout_ms};
    struct pg *pg = pg_create(base, &config, &err);
    if (!pg)
        fail_msg("%s", err.text);
    return pg;
}

static void insert(struct pg *pg, const char *name, int64_t amount, struct tally *tally)
{
    struct err err = {0};
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, name);
    pg_param_i64(&params, amount);
    tally->waited++;
    assert_int_equal(pg_query(pg, &insert_item, &params, tally_done, tally, &err), 0);
    pg_params_fini(&params);
}

static void values_come_back_as_they_were_given(void **state)
{
    (void)state;
    struct err err = {0};
    struct pg_conn *conn = fresh_tables();
    struct pg_params params;
    pg_params_init(&params);
    json_t *document = json_pack("{s:i, s:s}", "a", 1, "b", "\xc3\xa9\"");
    const char *texts[] = {"plain", "with \"quotes\" and \\", NULL, ""};
    pg_param_text(&params, "it's");
    pg_param_i64(&params, INT64_MIN);
    pg_param_f64(&params, 0.1);
    pg_param_bool(&params, true);
    pg_param_json(&params, document);
    pg_param_bytes(&params, "\0\1\xff", 3);
    pg_param_null(&params);
    pg_param_text_array(&params, texts, 4);
    struct pg_result *result = NULL;
    if (pg_exec(conn, &echo_values, &params, &result, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(pg_rows(result), 1);
    assert_string_equal(pg_text(result, 0, 0), "it's");
    assert_true(pg_i64(result, 0, 1) == INT64_MIN);
    assert_true(pg_f64(result, 0, 2) == 0.1);
    assert_true(pg_bool(result, 0, 3));
    json_t *back = pg_json(result, 0, 4);
    assert_true(json_equal(back, document));
    uint8_t bytes[3];
    assert_int_equal(pg_bytes(result, 0, 5, bytes, sizeof(bytes)), 3);
    assert_memory_equal(bytes, "\0\1\xff", 3);
    assert_int_equal(pg_bytes(result, 0, 5, bytes, 2), -1);
    assert_true(pg_is_null(result, 0, 6));
    assert_string_equal(pg_text(result, 0, 7), "{plain,\"with \\\"quotes\\\" and \\\\\",NULL,\"\"}");
    json_decref(back);
    json_decref(document);
    pg_result_free(result);
    pg_params_fini(&params);
    pg_disconnect(conn);
}

static void one_bad_work_does_not_fail_its_neighbours(void **state)
{
    (void)state;
    pg_disconnect(fresh_tables());
    struct event_base *base = event_base_new();
    struct pg *pg = pool(base, 2, 0);
    struct tally good = {.base = base};
    struct tally bad = {.base = base};
    for (int i = 0; i < 500; i++) {
        char name[32];
        snprintf(name, sizeof(name), "item %d", i);
        insert(pg, name, 1, &good);
        if (i % 100 == 50) {
            good.waited++; /* 'good' waits for the answers to all inserts */
            insert(pg, name, 1, &bad);
            bad.waited = 1000000;
        }
    }
    good.waited -= 5;
    loop(base, 20000);
    while (bad.failed + bad.good < 5)
        event_base_loop(base, EVLOOP_ONCE);
    /* Which of two inserts with equal names succeeds is not defined. */
    assert_int_equal(good.good + bad.good, 500);
    assert_int_equal(good.conflicts + bad.conflicts, 5);
    struct tally count = {.base = base, .waited = 1};
    struct err err = {0};
    assert_int_equal(pg_query(pg, &count_items, NULL, tally_done, &count, &err), 0);
    loop(base, 5000);
    assert_int_equal(count.value, 500);
    pg_destroy(pg);
    event_base_free(base);
}

static void steps_of_one_work_stand_or_fall_together(void **state)
{
    (void)state;
    pg_disconnect(fresh_tables());
    struct event_base *base = event_base_new();
    struct pg *pg = pool(base, 1, 0);
    struct err err = {0};
    struct pg_params first, second;
    pg_params_init(&first);
    pg_params_init(&second);
    pg_param_text(&first, "a");
    pg_param_i64(&first, 1);
    pg_param_text(&second, "b");
    pg_param_i64(&second, -1);
    struct pg_step steps[] = {{&insert_item, &first}, {&insert_item, &second}};
    struct tally tally = {.base = base, .waited = 1};
    assert_int_equal(pg_query_with(pg, steps, 2, 0, false, tally_done, &tally, &err), 0);
    loop(base, 5000);
    assert_int_equal(tally.last, ERR_INVALID); /* the table's check on 'amount' refuses the row */
    struct tally count = {.base = base, .waited = 1, .value = -1};
    assert_int_equal(pg_query(pg, &count_items, NULL, tally_done, &count, &err), 0);
    loop(base, 5000);
    assert_int_equal(count.value, 0);
    pg_params_fini(&first);
    pg_params_fini(&second);
    pg_destroy(pg);
    event_base_free(base);
}

static void a_statement_that_cannot_be_prepared_fails_alone(void **state)
{
    (void)state;
    struct event_base *base = event_base_new();
    struct pg *pg = pool(base, 1, 0);
    struct err err = {0};
    struct tally bad = {.base = base, .waited = 1000};
    struct tally good = {.base = base, .waited = 3};
    assert_int_equal(pg_query(pg, &count_items, NULL, tally_done, &good, &err), 0);
    assert_int_equal(pg_query(pg, &bad_syntax, NULL, tally_done, &bad, &err), 0);
    assert_int_equal(pg_query(pg, &count_items, NULL, tally_done, &good, &err), 0);
    assert_int_equal(pg_query(pg, &count_items, NULL, tally_done, &good, &err), 0);
    loop(base, 5000);
    while (bad.failed == 0)
        event_base_loop(base, EVLOOP_ONCE);
    assert_int_equal(good.good, 3);
    assert_non_null(strstr(bad.text, "bad_syntax"));
    assert_non_null(strstr(bad.text, "42601"));
    pg_destroy(pg);
    event_base_free(base);
}

static void a_deadline_ends_a_work_and_the_pool_goes_on(void **state)
{
    (void)state;
    struct event_base *base = event_base_new();
    struct pg *pg = pool(base, 1, 300);
    struct err err = {0};
    struct tally slow = {.base = base, .waited = 1};
    uint64_t start_ns = clock_mono_ns();
    assert_int_equal(pg_query(pg, &sleep_long, NULL, tally_done, &slow, &err), 0);
    loop(base, 5000);
    assert_int_equal(slow.last, ERR_TIMEOUT);
    assert_true(clock_mono_ns() - start_ns < 2000000000u);
    struct tally next = {.base = base, .waited = 1};
    assert_int_equal(
        pg_query_with(pg, &(struct pg_step){&count_items, NULL}, 1, 4000, false, tally_done, &next, &err), 0);
    loop(base, 5000);
    assert_int_equal(next.good, 1);
    pg_destroy(pg);
    event_base_free(base);
}

static void works_wait_while_the_server_restarts(void **state)
{
    (void)state;
    pg_disconnect(fresh_tables());
    struct event_base *base = event_base_new();
    struct pg *pg = pool(base, 2, 8000);
    struct tally tally = {.base = base};
    insert(pg, "before", 1, &tally);
    loop(base, 5000);
    assert_int_equal(tally.good, 1);
    test_postgres_end(&postgres, SIGQUIT);
    /* The connection is already broken, so the result may be unknown. */
    insert(pg, "during", 1, &tally);
    event_base_loop(base, EVLOOP_NONBLOCK);
    event_base_loop(base, EVLOOP_NONBLOCK);
    insert(pg, "after", 1, &tally);
    test_postgres_resume(&postgres);
    loop(base, 9000);
    assert_int_equal(tally.good + tally.failed, 3);
    assert_true(tally.failed <= 1);
    assert_true(tally.failed == 0 || tally.last == ERR_NET);
    pg_destroy(pg);
    event_base_free(base);
}

static int trouble_count;
static char trouble_text[512];

static void note_trouble(void *arg, const struct err *why)
{
    (void)arg;
    trouble_count++;
    snprintf(trouble_text, sizeof(trouble_text), "%s", why->text);
}

static void a_server_that_is_away_is_told_and_waited_for_until_the_deadline(void **state)
{
    (void)state;
    struct event_base *base = event_base_new();
    struct err err = {0};
    char nowhere[200];
    snprintf(nowhere, sizeof(nowhere), "host=%s/nowhere dbname=postgres user=motley", dir.path);
    struct pg_config config = {
        .conninfo = nowhere, .connections = 2, .timeout_ms = 400, .trouble = note_trouble};
    struct pg *pg = pg_create(base, &config, &err);
    assert_non_null(pg);
    struct tally tally = {.base = base, .waited = 1};
    assert_int_equal(pg_query(pg, &count_items, NULL, tally_done, &tally, &err), 0);
    loop(base, 5000);
    assert_int_equal(tally.last, ERR_TIMEOUT);
    assert_non_null(strstr(tally.text, "not connected"));
    /* The pauses between attempts to connect grew. */
    assert_true(trouble_count >= 2 && trouble_count <= 20);
    assert_non_null(strstr(trouble_text, "nowhere"));
    pg_destroy(pg);
    config.conninfo = "host=x nonsense";
    assert_null(pg_create(base, &config, &err));
    assert_int_equal(err.code, ERR_INVALID);
    event_base_free(base);
}

static void a_full_queue_is_busy_and_destroy_answers_all(void **state)
{
    (void)state;
    struct event_base *base = event_base_new();
    struct err err = {0};
    struct pg_config config = {.conninfo = postgres.conninfo, .queue_max = 3};
    struct pg *pg = pg_create(base, &config, &err);
    struct tally tally = {.base = base, .waited = 100};
    for (int i = 0; i < 3; i++)
        assert_int_equal(pg_query(pg, &count_items, NULL, tally_done, &tally, &err), 0);
    assert_int_equal(pg_query(pg, &count_items, NULL, tally_done, &tally, &err), -1);
    assert_int_equal(err.code, ERR_BUSY);
    pg_destroy(pg);
    assert_int_equal(tally.failed, 3);
    assert_int_equal(tally.last, ERR_CANCELLED);
    event_base_free(base);
}

struct heard {
    struct event_base *base;
    int connections;
    char payload[64];
};

static void note_heard(void *arg, const char *channel, const char *payload)
{
    struct heard *heard = arg;
    assert_string_equal(channel, "events");
    if (!payload)
        heard->connections++;
    else
        snprintf(heard->payload, sizeof(heard->payload), "%s", payload);
    event_base_loopbreak(heard->base);
}

static void notifications_arrive_and_reconnections_are_told(void **state)
{
    (void)state;
    struct event_base *base = event_base_new();
    struct pg *pg = pool(base, 1, 8000);
    struct heard heard = {.base = base};
    struct err err = {0};
    assert_int_equal(pg_listen(pg, "events", note_heard, &heard, &err), 0);
    loop(base, 5000);
    assert_int_equal(heard.connections, 1);
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, "hello");
    assert_int_equal(pg_query(pg, &notify_channel, &params, NULL, NULL, &err), 0);
    while (heard.payload[0] == '\0')
        loop(base, 5000);
    assert_string_equal(heard.payload, "hello");
    test_postgres_end(&postgres, SIGINT);
    test_postgres_resume(&postgres);
    while (heard.connections < 2)
        loop(base, 9000);
    pg_params_fini(&params);
    pg_destroy(pg);
    event_base_free(base);
}

static void blocking_errors_are_classified(void **state)
{
    (void)state;
    struct err err = {0};
    struct pg_conn *conn = fresh_tables();
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, "same");
    pg_param_i64(&params, 1);
    assert_int_equal(pg_exec(conn, &insert_item, &params, NULL, &err), 0);
    assert_int_equal(pg_exec(conn, &insert_item, &params, NULL, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    assert_non_null(strstr(err.text, "item_name_key"));
    assert_int_equal(pg_script(conn, "BEGIN; SELECT 1/0; COMMIT", &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    assert_int_equal(pg_script(conn, "ROLLBACK", &err), 0);
    pg_params_fini(&params);
    pg_disconnect(conn);
}

/* There are 16 callers with one insert in flight each, as in the api under load. */
struct caller {
    struct pg *pg;
    struct tally *tally;
    int *left;
    int number;
    int turn;
};

static void caller_next(struct caller *caller);

static void caller_done(void *arg, const struct pg_result *const *results, int count, const struct err *err)
{
    struct caller *caller = arg;
    (void)results;
    (void)count;
    assert_int_equal(err->code, ERR_NONE);
    caller->tally->good++;
    caller_next(caller);
}

static void caller_next(struct caller *caller)
{
    if (*caller->left == 0) {
        if (--caller->tally->waited == 0)
            event_base_loopbreak(caller->tally->base);
        return;
    }
    (*caller->left)--;
    char name[64];
    snprintf(name, sizeof(name), "caller %d turn %d", caller->number, caller->turn++);
    struct err err = {0};
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, name);
    pg_param_i64(&params, 1);
    assert_int_equal(pg_query(caller->pg, &insert_item, &params, caller_done, caller, &err), 0);
    pg_params_fini(&params);
}

static void many_callers_share_commits(void **state)
{
    (void)state;
    pg_disconnect(fresh_tables());
    struct event_base *base = event_base_new();
    struct pg *pg = pool(base, 4, 0);
    int left = 8000;
    struct tally tally = {.base = base, .waited = 64};
    struct caller callers[64];
    uint64_t start_ns = clock_mono_ns();
    for (int i = 0; i < 64; i++) {
        callers[i] = (struct caller){.pg = pg, .tally = &tally, .left = &left, .number = i};
        caller_next(&callers[i]);
    }
    loop(base, 60000);
    double seconds = (double)(clock_mono_ns() - start_ns) / 1e9;
    assert_int_equal(tally.good, 8000);
    print_message("8000 committed inserts of 64 callers in %.2f s: %.0f a second\n", seconds, 8000 / seconds);
    pg_destroy(pg);
    event_base_free(base);
}

/* As a machine that died, or whose PostgreSQL is frozen: connections open, and nothing is answered. */
static void a_host_that_is_silent_is_passed_over(void **state)
{
    (void)state;
    struct sockaddr_in silent = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(silent);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(bind(fd, (struct sockaddr *)&silent, sizeof(silent)) == 0 && listen(fd, 16) == 0 &&
                getsockname(fd, (struct sockaddr *)&silent, &size) == 0);
    char conninfo[512];
    snprintf(conninfo, sizeof(conninfo), "host=127.0.0.1,%s port=%d,5432 dbname=postgres user=motley",
             postgres.dir, ntohs(silent.sin_port));
    struct event_base *base = event_base_new();
    struct tally tally = {.base = base, .waited = 1};
    struct err err = {0};
    const struct pg_config config = {.conninfo = conninfo, .connections = 1, .timeout_ms = 400};
    struct pg *pg = pg_create(base, &config, &err);
    assert_non_null(pg);
    pg_disconnect(fresh_tables());
    const struct pg_step step = {&count_items, NULL};
    assert_int_equal(pg_query_with(pg, &step, 1, 8000, false, tally_done, &tally, &err), 0);
    loop(base, 10000);
    if (tally.good != 1)
        fail_msg("%s", tally.text);
    pg_destroy(pg);
    event_base_free(base);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_back_as_they_were_given),
        cmocka_unit_test(one_bad_work_does_not_fail_its_neighbours),
        cmocka_unit_test(steps_of_one_work_stand_or_fall_together),
        cmocka_unit_test(a_statement_that_cannot_be_prepared_fails_alone),
        cmocka_unit_test(a_deadline_ends_a_work_and_the_pool_goes_on),
        cmocka_unit_test(works_wait_while_the_server_restarts),
        cmocka_unit_test(a_host_that_is_silent_is_passed_over),
        cmocka_unit_test(a_server_that_is_away_is_told_and_waited_for_until_the_deadline),
        cmocka_unit_test(a_full_queue_is_busy_and_destroy_answers_all),
        cmocka_unit_test(notifications_arrive_and_reconnections_are_told),
        cmocka_unit_test(blocking_errors_are_classified),
        cmocka_unit_test(many_callers_share_commits),
    };
    return cmocka_run_group_tests(tests, services_up, services_down);
}
