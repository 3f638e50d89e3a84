/* motley-scheduler --config FILE [--migrate | --restored]. Reads the configuration, waits at most
 * limits.start_wait_ms for PostgreSQL and Redis, and runs until SIGTERM or SIGINT. Exit status: 0 ended as
 * asked, 1 failed, 2 wrong usage or configuration, 5 the database is of a newer release. */
#include <event2/event.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/redis.h"
#include "common/tls.h"
#include "common/usage.h"
#include "scheduler/leader/scheduler.h"
#include "store/store.h"

struct options {
    const char *config;
    bool migrate, restored;
};

static const char usage[] =
    "usage: motley-scheduler --config FILE [--migrate | --restored]\n"
    "  --config FILE  YAML: docs/reference/files.md has its keys\n"
    "  --schema    print the file's JSON schema, then end\n"
    "  --migrate   bring the database's schema up to date, then end\n"
    "  --restored  the database came back from a backup: begin a new life with it, then end;\n"
    "              once, while no scheduler runs\n";

static int scheduler_read_options(int argc, char **argv, struct options *options)
{
    static const struct option known[] = {{"config", required_argument, NULL, 'c'},
                                          {"migrate", no_argument, NULL, 'm'},
                                          {"restored", no_argument, NULL, 'r'},
                                          {NULL, 0, NULL, 0}};
    int choice;
    while ((choice = getopt_long(argc, argv, "c:", known, NULL)) != -1)
        if (choice == 'c')
            options->config = optarg;
        else if (choice == 'm')
            options->migrate = true;
        else if (choice == 'r')
            options->restored = true;
        else
            return -1;
    return options->config && optind == argc && !(options->migrate && options->restored) ? 0 : -1;
}

static int scheduler_fail(const char *what, const struct err *err)
{
    fprintf(stderr, "motley-scheduler: %s: %s\n", what, err->text);
    return err->code == ERR_RELEASE ? 5 : 1;
}

static int migrate(const struct scheduler_config *config)
{
    struct err err;
    unsigned applied = 0;
    if (store_migrate(config->postgres, config->limits.start_wait_ms, &applied, &err) < 0)
        return scheduler_fail("migrating the database", &err);
    printf("schema version %u, %u migrations applied\n", store_schema_version(), applied);
    return 0;
}

/* Puts a restored backup into use. A backup of an older release is migrated first. */
static int restored(const struct scheduler_config *config)
{
    struct store_restored done;
    struct err err;
    if (migrate(config) != 0)
        return 1;
    if (store_restore(config->postgres, &done, &err) < 0)
        return scheduler_fail("beginning anew", &err);
    printf("incarnation %s; the backup was %lld s old; %lld jobs that ran are in the queue again\n",
           done.incarnation, (long long)done.seconds, (long long)done.jobs);
    return 0;
}

/* ---- waiting for PostgreSQL and Redis ---- */

struct probe {
    struct event_base *base;
    bool several; /* addresses of Redis: one that refuses does not end the start */
    struct redis *redis;
    bool redis_ok, postgres_ok, refused;
    struct err redis_err, postgres_err;
    struct store *store;
    struct event *again;
};

static void scheduler_check(struct probe *probe)
{
    if ((probe->redis_ok && probe->postgres_ok) || probe->refused)
        event_base_loopbreak(probe->base);
}

static void redis_up(void *arg)
{
    struct probe *probe = arg;
    probe->redis_ok = true;
    scheduler_check(probe);
}

static void redis_down(void *arg, const struct err *why)
{
    struct probe *probe = arg;
    probe->redis_err = *why;
    probe->refused = probe->refused || (!probe->several && (why->code == ERR_AUTH || why->code == ERR_PEER));
    scheduler_check(probe);
}

static void scheduler_pinged(void *arg, const struct err *err)
{
    struct probe *probe = arg;
    const struct timeval pause = {.tv_usec = 100000};
    if (!err) {
        probe->postgres_ok = true;
    } else {
        probe->postgres_err = *err;
        probe->refused = probe->refused || err->code == ERR_UNSUPPORTED || err->code == ERR_RELEASE ||
                         err->code == ERR_INTERNAL;
        if (err->code != ERR_CANCELLED)
            event_add(probe->again, &pause);
    }
    scheduler_check(probe);
}

static void scheduler_ping(evutil_socket_t fd, short what, void *arg)
{
    struct probe *probe = arg;
    (void)fd;
    (void)what;
    struct err err;
    if (store_ping(probe->store, scheduler_pinged, probe, &err) < 0)
        scheduler_pinged(probe, &err);
}

static void database_trouble(void *arg, const struct err *why)
{
    struct probe *probe = arg;
    probe->postgres_err = *why;
}

/* Runs the loop until both servers have answered, or until start_wait_ms has passed. */
static int wait_for_both(struct probe *probe, const struct scheduler_config *config)
{
    const struct timeval limit = {.tv_sec = config->limits.start_wait_ms / 1000,
                                  .tv_usec = config->limits.start_wait_ms % 1000 * 1000};
    event_base_loopexit(probe->base, &limit);
    scheduler_ping(-1, 0, probe);
    event_base_dispatch(probe->base);
    if (!probe->postgres_ok && probe->postgres_err.code != ERR_NONE)
        return scheduler_fail("PostgreSQL", &probe->postgres_err);
    if (!probe->redis_ok && probe->redis_err.code != ERR_NONE)
        return scheduler_fail("Redis", &probe->redis_err);
    if (!probe->postgres_ok || !probe->redis_ok) {
        fprintf(stderr, "motley-scheduler: %s does not answer within %u ms\n",
                probe->postgres_ok ? config->redis_address : "PostgreSQL", config->limits.start_wait_ms);
        return 1;
    }
    return 0;
}

static int probe_servers(const struct scheduler_config *config)
{
    struct probe probe = {.base = event_base_new(), .several = strchr(config->redis_address, ',')};
    struct err err;
    SSL_CTX *tls = NULL;
    int rc = 1;
    const struct store_config store = {
        .conninfo = config->postgres, .connections = 1, .trouble = database_trouble, .trouble_arg = &probe};
    const struct redis_events events = {redis_up, redis_down};
    probe.again = evtimer_new(probe.base, scheduler_ping, &probe);
    err_set(&err, ERR_NOMEM, "no memory");
    if (config->redis_ca) {
        const struct tls_files files = {config->redis_ca, config->redis_cert, config->redis_key};
        tls = tls_context_create(&files, TLS_ROLE_CLIENT, &err);
        if (!tls) {
            rc = scheduler_fail("Redis", &err);
            goto out;
        }
    }
    const struct redis_config redis = {.address = config->redis_address,
                                       .user = config->redis_user,
                                       .password = config->redis_password,
                                       .tls = tls};
    probe.redis = redis_create(probe.base, &redis, &events, &probe, &err);
    if (!probe.redis || store_create(probe.base, &store, &probe.store, &err) < 0) {
        rc = scheduler_fail("start", &err);
        goto out;
    }
    rc = wait_for_both(&probe, config);
out:
    store_destroy(probe.store);
    redis_destroy(probe.redis);
    tls_context_free(tls);
    event_free(probe.again);
    event_base_free(probe.base);
    return rc;
}

/* Refuses a proxy that pools transactions before anything else is asked, since later calls would fail in many
 * ways. If the database was not reachable yet, the check is repeated once it answers. */
static int check_servers(const struct scheduler_config *config)
{
    struct err err;
    int checked = store_session_check(config->postgres, &err);
    if (checked < 0 && err.code == ERR_UNSUPPORTED)
        return scheduler_fail("PostgreSQL", &err);
    int rc = probe_servers(config);
    if (rc == 0 && checked < 0 && store_session_check(config->postgres, &err) < 0)
        rc = scheduler_fail("PostgreSQL", &err);
    return rc;
}

/* ---- running ---- */

static void scheduler_stop(evutil_socket_t signal_number, short what, void *arg)
{
    (void)what;
    log_event(LOG_LEVEL_INFO, "stopping", "signal=%d", (int)signal_number);
    event_base_loopbreak(arg);
}

struct scheduler_run {
    struct scheduler *scheduler;
    struct scheduler_config *config;
    const char *path; /* path of the configuration file */
};

/* Handles SIGHUP: takes over what has changed in the configuration file, or logs why nothing is taken
 * over. */
static void reload(evutil_socket_t signal_number, short what, void *arg)
{
    struct scheduler_run *running = arg;
    struct err err;
    (void)signal_number;
    (void)what;
    if (scheduler_config_reload(running->path, running->config, &err) < 0) {
        log_event(LOG_LEVEL_ERROR, "config_refused", "why=\"%s\"", err.text);
        return;
    }
    log_event(LOG_LEVEL_INFO, "config_reloaded", "file=%s", running->path);
    scheduler_reconfigured(running->scheduler);
}

static int scheduler_run(struct scheduler_config *config, const char *path)
{
    struct scheduler_run running = {.config = config, .path = path};
    struct err err;
    struct event_base *base = event_base_new();
    struct event *term = evsignal_new(base, SIGTERM, scheduler_stop, base);
    struct event *interrupt = evsignal_new(base, SIGINT, scheduler_stop, base);
    struct event *hangup = evsignal_new(base, SIGHUP, reload, &running);
    int rc = 1;
    event_add(term, NULL);
    event_add(interrupt, NULL);
    struct scheduler *scheduler = scheduler_create(base, config, &placer_planner, &err);
    running.scheduler = scheduler;
    if (!scheduler)
        rc = scheduler_fail("start", &err);
    else
        rc = event_add(hangup, NULL) < 0 || event_base_dispatch(base) < 0 ? 1 : 0;
    if (scheduler && scheduler_ended(scheduler, &err) < 0)
        rc = scheduler_fail("stepping down", &err);
    scheduler_destroy(scheduler);
    event_free(term);
    event_free(interrupt);
    event_free(hangup);
    event_base_free(base);
    return rc;
}

int main(int argc, char **argv)
{
    struct options options = {0};
    struct scheduler_config config;
    struct err err;
    int rc;
    if (usage_answered(argc, argv, usage) || usage_schema(argc, argv, &scheduler_config_doc))
        return 0;
    if (scheduler_read_options(argc, argv, &options) < 0) {
        fputs(usage, stderr);
        return 2;
    }
    if (scheduler_config_load(options.config, &config, &err) < 0) {
        scheduler_fail("configuration", &err);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    if (options.migrate || options.restored) {
        rc = options.migrate ? migrate(&config) : restored(&config);
    } else {
        rc = check_servers(&config);
        rc = rc == 0 ? scheduler_run(&config, options.config) : rc;
    }
    scheduler_config_fini(&config);
    return rc;
}
