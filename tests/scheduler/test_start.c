/* Tests how the program motley-scheduler starts, and that it says why it does not start. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>

#include "common/buf.h"
#include "store/store.h"
#include "support/services.h"

static struct test_dir dir;
static struct test_postgres postgres;
static struct test_redis redis;
static char program[512];

static void write_file(const char *name, const char *text)
{
    char path[160];
    struct err err;
    snprintf(path, sizeof(path), "%s/%s", dir.path, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), 0600, &err), 0);
}

static void write_config(const char *conninfo, const char *address, const char *more)
{
    char text[1200];
    snprintf(text, sizeof(text),
             "name: s\npostgres: \"%s\"\nredis: {address: \"%s\"}\nlimits: {start_wait_ms: 300, "
             "leader_poll_ms: 20}\n%s",
             conninfo, address, more);
    write_file("config.yaml", text);
}

/* Runs the program. Returns its exit status; its output is in `said`. */
static int run(const char *option, char *said, size_t size)
{
    char config[160], log[160];
    struct err err;
    struct buf text;
    pid_t pid = 0;
    int status = 0;
    snprintf(config, sizeof(config), "%s/config.yaml", dir.path);
    snprintf(log, sizeof(log), "%s/said", dir.path);
    unlink(log);
    const char *argv[] = {program, "--config", config, option, NULL};
    const struct process_options options = {
        .argv = argv, .stdout_path = log, .stderr_path = log, .own_group = true, .die_with_parent = true};
    assert_int_equal(process_spawn(&options, &pid, &err), 0);
    uint64_t deadline_ns = clock_mono_ns() + 20000000000u;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        assert_true(clock_mono_ns() < deadline_ns);
        poll(NULL, 0, 5);
    }
    buf_init(&text, 1 << 16);
    assert_int_equal(file_read_all(log, 1 << 16, &text, &err), 0);
    snprintf(said, size, "%s", buf_str(&text));
    buf_fini(&text);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect_says(const char *said, const char *part)
{
    if (!strstr(said, part))
        fail_msg("\"%s\" does not say \"%s\"", said, part);
}

static void a_wrong_configuration_is_named_by_its_path(void **state)
{
    char said[2000];
    (void)state;
    write_config(postgres.conninfo, redis.address, "limit: {}\n");
    assert_int_equal(run(NULL, said, sizeof(said)), 2);
    expect_says(said, "config.yaml");
    expect_says(said, "limit");
    write_file("config.yaml", "name: s\npostgres: x\nredis: {address: 'unix:/x'}\nlimits: {lost_ms: -5}\n");
    assert_int_equal(run(NULL, said, sizeof(said)), 2);
    expect_says(said, "limits.lost_ms");
    write_file("config.yaml",
               "name: s\npostgres: x\nredis: {address: 'unix:/x'}\nlinks: [{between: [a, a], rate: 1}]\n");
    assert_int_equal(run(NULL, said, sizeof(said)), 2);
    expect_says(said, "links");
    static const char *const sharing[][2] = {{"half_live: 3d", "sharing.half_live"},
                                             {"half_life: 1s", "sharing.half_life"},
                                             {"share: often", "sharing.share"},
                                             {"width_least: 0", "sharing.width_least"},
                                             {"scavenger_charge: -1", "sharing.scavenger_charge"}};
    for (size_t i = 0; i < sizeof(sharing) / sizeof(sharing[0]); i++) {
        char text[160];
        snprintf(text, sizeof(text), "name: s\npostgres: x\nredis: {address: 'unix:/x'}\nsharing: {%s}\n",
                 sharing[i][0]);
        write_file("config.yaml", text);
        assert_int_equal(run(NULL, said, sizeof(said)), 2);
        expect_says(said, sharing[i][1]);
    }
}

static void a_database_without_our_schema_is_refused_until_it_is_migrated(void **state)
{
    char said[2000];
    (void)state;
    write_config(postgres.conninfo, redis.address, "");
    assert_int_equal(run(NULL, said, sizeof(said)), 1);
    expect_says(said, "run motley-scheduler --migrate");
    assert_int_equal(run("--migrate", said, sizeof(said)), 0);
    expect_says(said, "schema version");
    assert_int_equal(run("--migrate", said, sizeof(said)), 0);
    expect_says(said, " 0 migrations applied");
}

static void postgresql_down_at_the_start_is_a_clear_error(void **state)
{
    char said[2000];
    (void)state;
    write_config("host=/nowhere/at/all dbname=postgres user=motley", redis.address, "");
    assert_int_equal(run(NULL, said, sizeof(said)), 1);
    expect_says(said, "PostgreSQL");
    expect_says(said, "/nowhere/at/all");
    assert_int_equal(run("--migrate", said, sizeof(said)), 1);
    expect_says(said, "/nowhere/at/all");
}

static void redis_down_at_the_start_is_a_clear_error(void **state)
{
    char said[2000];
    (void)state;
    write_config(postgres.conninfo, "unix:/nowhere/redis.sock", "");
    assert_int_equal(run(NULL, said, sizeof(said)), 1);
    expect_says(said, "Redis");
    expect_says(said, "/nowhere/redis.sock");
}

static void a_wrong_redis_password_is_told_at_once(void **state)
{
    char said[2000], config[1000];
    (void)state;
    snprintf(config, sizeof(config),
             "name: s\npostgres: \"%s\"\nredis: {address: \"%s\", user: nobody, password: wrong}\n"
             "limits: {start_wait_ms: 60000}\n",
             postgres.conninfo, redis.address);
    write_file("config.yaml", config);
    uint64_t begin_ns = clock_mono_ns();
    assert_int_equal(run(NULL, said, sizeof(said)), 1);
    expect_says(said, "Redis");
    assert_true(clock_mono_ns() - begin_ns < 15000000000u);
}

static bool port_answers(void *arg)
{
    struct err err;
    struct pg_conn *conn = pg_connect(arg, 1000, &err);
    pg_disconnect(conn);
    return conn != NULL;
}

/* Starts a real pgbouncer in front of the server with pool mode `mode`. Returns its pid. */
static pid_t bouncer_start(const char *mode, const char *more)
{
    char text[1200], config[160], log[160], conninfo[256];
    const struct passwd *user = test_plain_user();
    snprintf(text, sizeof(text),
             "[databases]\npostgres = host=%s dbname=postgres user=motley\n[pgbouncer]\nlisten_addr =\n"
             "unix_socket_dir = %s\nlisten_port = 6432\nauth_type = any\npool_mode = %s\n"
             "ignore_startup_parameters = options,extra_float_digits\n%s\n",
             postgres.dir, postgres.dir, mode, more);
    write_file("bouncer.ini", text);
    snprintf(config, sizeof(config), "%s/bouncer.ini", dir.path);
    snprintf(log, sizeof(log), "%s/bouncer.log", dir.path);
    assert_int_equal(chmod(config, 0644), 0);
    const char *argv[] = {"pgbouncer", config, NULL};
    pid_t pid = test_spawn(argv, log, user);
    snprintf(conninfo, sizeof(conninfo), "host=%s port=6432 dbname=postgres user=motley", postgres.dir);
    assert_true(test_wait_until(port_answers, conninfo, 5000));
    return pid;
}

static void bouncer_end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void a_proxy_that_pools_transactions_is_refused_and_named(void **state)
{
    static const char *const kinds[] = {"", "server_round_robin = 1\nmin_pool_size = 3"};
    char said[2000], conninfo[256];
    struct err err;
    (void)state;
    if (access("/usr/sbin/pgbouncer", X_OK) != 0) {
        print_message("SKIP: pgbouncer is not installed\n");
        skip();
    }
    snprintf(conninfo, sizeof(conninfo), "host=%s port=6432 dbname=postgres user=motley", postgres.dir);
    for (size_t i = 0; i < 2; i++) {
        pid_t pid = bouncer_start("transaction", kinds[i]);
        write_config(conninfo, redis.address, "");
        uint64_t begin_ns = clock_mono_ns();
        assert_int_equal(run(NULL, said, sizeof(said)), 1);
        expect_says(said, "a proxy that pools transactions");
        assert_true(clock_mono_ns() - begin_ns < 5000000000u);
        bouncer_end(pid);
    }
    /* With pool mode `session` the scheduler has a database session of its own, and starts. */
    pid_t pid = bouncer_start("session", "");
    assert_int_equal(store_session_check(conninfo, &err), 0);
    bouncer_end(pid);
    assert_int_equal(store_session_check(postgres.conninfo, &err), 0);
}

static int setup(void **state)
{
    const char *bin = getenv("MOTLEY_BIN");
    struct err err;
    (void)state;
    if (bin)
        snprintf(program, sizeof(program), "%s/motley-scheduler", bin);
    else if (process_sibling("motley-scheduler", program, sizeof(program), &err) < 0)
        test_services_fail("motley-scheduler", err.text);
    test_dir_make(&dir);
    test_postgres_start(&postgres, dir.path);
    test_redis_start(&redis, dir.path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    test_redis_kill(&redis);
    test_postgres_stop(&postgres);
    test_dir_remove(&dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_configuration_is_named_by_its_path),
        cmocka_unit_test(a_database_without_our_schema_is_refused_until_it_is_migrated),
        cmocka_unit_test(postgresql_down_at_the_start_is_a_clear_error),
        cmocka_unit_test(redis_down_at_the_start_is_a_clear_error),
        cmocka_unit_test(a_wrong_redis_password_is_told_at_once),
        cmocka_unit_test(a_proxy_that_pools_transactions_is_refused_and_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
