/* Private servers for tests: a temporary folder, PostgreSQL and Redis on unix sockets in it.
 *
 *     struct test_dir dir;            test_dir_make(&dir);
 *     struct test_postgres postgres;  test_postgres_start(&postgres, dir.path);
 *     … pg_connect(postgres.conninfo, …) …
 *     test_postgres_stop(&postgres);  test_dir_remove(&dir);
 *
 * A start takes about one second; the servers trust every local connection. Failures print the reason and end
 * the test program with status 1. The servers die with the thread that started them. As root PostgreSQL runs
 * as the user postgres (or nobody). One thread.
 */
#ifndef MOTLEY_TESTS_SERVICES_H
#define MOTLEY_TESTS_SERVICES_H

#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/file.h"
#include "common/pg.h"
#include "common/process.h"

struct test_dir {
    char path[96];
};

struct test_postgres {
    char dir[112]; /* folder with data and socket */
    char conninfo[256];
    pid_t pid; /* 0: not running */
};

struct test_redis {
    char dir[112];
    char address[160]; /* for redis_config.address */
    char acl[2048];    /* further lines of its configuration, set before it starts, or "" */
    pid_t pid;
};

static inline void test_services_fail(const char *what, const char *why)
{
    fprintf(stderr, "test services: %s: %s\n", what, why);
    exit(1);
}

/* Ends the test program with the last 2,000 bytes of a server's log. */
static inline void test_server_fail(const char *what, const char *why, const char *log)
{
    char tail[2001];
    FILE *file = fopen(log, "rb");
    if (file && (fseek(file, -(long)(sizeof(tail) - 1), SEEK_END) == 0 || fseek(file, 0, SEEK_SET) == 0))
        fwrite(tail, 1, fread(tail, 1, sizeof(tail) - 1, file), stderr);
    test_services_fail(what, why);
}

/* A TCP port of the loopback address on which nothing listens, below those that Linux gives to outgoing
 * connections (32768 and up), so that no connection takes it before the caller's server does. Programs that
 * ask at once begin at different ports. */
static inline int test_free_port(void)
{
    enum { FIRST = 20000, PORTS = 12768 };
    for (int i = 0; i < PORTS; i++) {
        int port = FIRST + (int)(((unsigned)getpid() * 7 + (unsigned)i) % PORTS);
        struct sockaddr_in where = {.sin_family = AF_INET,
                                    .sin_port = htons((uint16_t)port),
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool is_free = fd >= 0 && bind(fd, (struct sockaddr *)&where, sizeof(where)) == 0;
        if (fd >= 0)
            close(fd);
        if (is_free)
            return port;
    }
    test_services_fail("loopback", "no port is free");
    return 0;
}

/* Checks a condition every 2 ms until it holds, for processes that cannot be waited for in another way. False
 * when it is too late. */
static inline bool test_wait_until(bool (*condition)(void *), void *arg, int timeout_ms)
{
    uint64_t deadline_ns = clock_mono_ns() + (uint64_t)timeout_ms * 1000000;
    while (!condition(arg)) {
        if (clock_left_ms(deadline_ns, 1) == 0)
            return false;
        poll(NULL, 0, 2);
    }
    return true;
}

static inline void test_dir_make(struct test_dir *dir)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(dir->path, sizeof(dir->path), "%.70s/motley-test-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir->path) || chmod(dir->path, 0755) < 0)
        test_services_fail("temporary folder", "cannot be made");
}

static inline void test_dir_remove(struct test_dir *dir)
{
    struct err err;
    if (file_remove_tree(dir->path, &err) < 0)
        fprintf(stderr, "test services: %s\n", err.text);
}

static inline pid_t test_spawn(const char *const *argv, const char *log, const struct passwd *as)
{
    struct process_options options = {
        .argv = argv,
        .stdout_path = log,
        .stderr_path = log,
        .uid = as ? as->pw_uid : 0,
        .gid = as ? as->pw_gid : 0,
        .own_group = true,
        .die_with_parent = true,
        .dir = "/",
    };
    struct err err;
    pid_t pid = 0;
    if (process_spawn(&options, &pid, &err) < 0)
        test_services_fail(argv[0], err.text);
    return pid;
}

static inline const struct passwd *test_plain_user(void)
{
    if (getuid() != 0)
        return NULL;
    const struct passwd *user = getpwnam("postgres");
    return user ? user : getpwnam("nobody");
}

static inline void test_postgres_program(char *out, size_t size, const char *name)
{
    for (int version = 19; version >= 13; version--) {
        snprintf(out, size, "/usr/lib/postgresql/%d/bin/%s", version, name);
        if (access(out, X_OK) == 0)
            return;
    }
    test_services_fail(name, "PostgreSQL is not installed");
}

static inline bool test_postgres_answers(void *arg)
{
    struct test_postgres *postgres = arg;
    struct err err;
    if (waitpid(postgres->pid, NULL, WNOHANG) == postgres->pid) {
        char log[160];
        snprintf(log, sizeof(log), "%s/log", postgres->dir);
        test_server_fail("postgres", "ended at start", log);
    }
    struct pg_conn *conn = pg_connect(postgres->conninfo, 2000, &err);
    pg_disconnect(conn);
    return conn != NULL;
}

/* Starts the server of an existing data folder (again). */
static inline void test_postgres_resume(struct test_postgres *postgres)
{
    char program[128], data[160], log[160];
    test_postgres_program(program, sizeof(program), "postgres");
    snprintf(data, sizeof(data), "%s/data", postgres->dir);
    snprintf(log, sizeof(log), "%s/log", postgres->dir);
    const char *argv[] = {program,
                          "-D",
                          data,
                          "-k",
                          postgres->dir,
                          "-c",
                          "listen_addresses=",
                          "-c",
                          "max_connections=50",
                          "-c",
                          "shared_buffers=32MB",
                          NULL};
    postgres->pid = test_spawn(argv, log, test_plain_user());
    if (!test_wait_until(test_postgres_answers, postgres, 20000))
        test_services_fail("postgres", "does not answer");
}

/* Makes a database cluster under 'parent' and starts it. Where tests are run (MOTLEY_BUILD) it is a copy
 * without fsync, which takes a second less (postgres.sh); else it has the default durability. */
static inline void test_postgres_start(struct test_postgres *postgres, const char *parent)
{
    char program[128], script[1200], data[160], log[160];
    const struct passwd *user = test_plain_user();
    const char *source = getenv("MOTLEY_SOURCE"), *build = getenv("MOTLEY_BUILD");
    snprintf(postgres->dir, sizeof(postgres->dir), "%s/pg", parent);
    snprintf(postgres->conninfo, sizeof(postgres->conninfo), "host=%s dbname=postgres user=motley",
             postgres->dir);
    if (mkdir(postgres->dir, 0700) < 0 || (user && chown(postgres->dir, user->pw_uid, user->pw_gid) < 0))
        test_services_fail("postgres", "its folder cannot be made");
    test_postgres_program(program, sizeof(program), "initdb");
    snprintf(data, sizeof(data), "%s/data", postgres->dir);
    snprintf(log, sizeof(log), "%s/log", postgres->dir);
    const char *argv[] = {program, "-D",     data, "-N",   "-A",         "trust",
                          "-U",    "motley", "-E", "UTF8", "--locale=C", "--no-instructions",
                          NULL};
    snprintf(script, sizeof(script), "%.1000s/tests/support/postgres.sh", source ? source : "");
    const char *copy[] = {script, data, NULL};
    const bool copies = source && build;
    pid_t pid = test_spawn(copies ? copy : argv, log, copies ? NULL : user);
    int status = 0;
    if (waitpid(pid, &status, 0) != pid || status != 0)
        test_services_fail("initdb", "failed");
    test_postgres_resume(postgres);
}

/* Ends the server: SIGINT (fast shutdown), or SIGQUIT or SIGKILL for a crash. */
static inline void test_postgres_end(struct test_postgres *postgres, int signal_number)
{
    struct err err;
    if (postgres->pid > 0 && process_stop(postgres->pid, 0, signal_number, 10000, &err) < 0)
        test_services_fail("postgres", err.text);
    postgres->pid = 0;
}

static inline void test_postgres_stop(struct test_postgres *postgres)
{
    test_postgres_end(postgres, SIGINT);
}

/* Connects, because the socket exists a moment before the server listens. */
static inline bool test_redis_answers(void *arg)
{
    struct test_redis *redis = arg;
    if (waitpid(redis->pid, NULL, WNOHANG) == redis->pid) {
        char log[160];
        snprintf(log, sizeof(log), "%s/log", redis->dir);
        test_server_fail("redis-server", "ended at start", log);
    }
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    if ((size_t)snprintf(where.sun_path, sizeof(where.sun_path), "%s", redis->address + 5) >=
        sizeof(where.sun_path)) {
        test_services_fail("redis-server", "the path of its socket is too long");
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool answers = fd >= 0 && connect(fd, (struct sockaddr *)&where, sizeof(where)) == 0;
    if (fd >= 0)
        close(fd);
    return answers;
}

/* Starts Redis (again) on a unix socket without persistence, so a restart loses its data. Set redis->acl
 * before. */
static inline void test_redis_start(struct test_redis *redis, const char *parent)
{
    char config[160], log[160];
    struct err err;
    if (strncmp(redis->dir, parent, strlen(parent)) != 0) { /* else others may be reading where it is */
        snprintf(redis->dir, sizeof(redis->dir), "%s/redis", parent);
        snprintf(redis->address, sizeof(redis->address), "unix:%s/sock", redis->dir);
    }
    snprintf(config, sizeof(config), "%s/conf", redis->dir);
    snprintf(log, sizeof(log), "%s/log", redis->dir);
    char text[3072];
    int length = snprintf(text, sizeof(text),
                          "port 0\nunixsocket %s\nsave \"\"\nappendonly no\ndir %s\ndaemonize no\n%s\n",
                          redis->address + 5, redis->dir, redis->acl);
    if (file_mkdirs(redis->dir, 0700, &err) < 0 ||
        file_write_atomic(config, text, (size_t)length, 0600, &err) < 0) {
        test_services_fail("redis", err.text);
    }
    unlink(redis->address + 5);
    const char *argv[] = {"redis-server", config, NULL};
    redis->pid = test_spawn(argv, log, NULL);
    if (!test_wait_until(test_redis_answers, redis, 10000))
        test_services_fail("redis-server", "does not answer");
}

/* Ends Redis with SIGKILL: its data is lost. */
static inline void test_redis_kill(struct test_redis *redis)
{
    if (redis->pid > 0) {
        kill(redis->pid, SIGKILL);
        waitpid(redis->pid, NULL, 0);
        redis->pid = 0;
    }
}

#endif
