/* Creates and destroys the store, and checks the database's schema. */
#include "store/store.sql.h"

#include <event2/event.h>
#include <stdlib.h>
#include <string.h>

enum { WATCH_SECONDS = 5 };

static unsigned or_default(unsigned value, unsigned fallback)
{
    return value > 0 ? value : fallback;
}

int store_create(struct event_base *base, const struct store_config *config, struct store **out,
                 struct err *err)
{
    if (!config->conninfo)
        return err_set(err, ERR_INVALID, "the store needs a PostgreSQL connection string");
    struct store *store = calloc(1, sizeof(*store));
    if (!store)
        return err_set(err, ERR_NOMEM, "no memory for the store");
    store->base = base;
    store->config = *config;
    store->config.conninfo = NULL;
    store->config.job_batch_max = or_default(config->job_batch_max, 128);
    store->config.job_batches_max = or_default(config->job_batches_max, 2);
    const struct pg_config pg = {
        .conninfo = config->conninfo,
        .connections = or_default(config->connections, 4),
        .queue_max = or_default(config->queue_max, 8192),
        .timeout_ms = or_default(config->statement_ms_max, 10000),
        .backoff_ms_max = 500,
        .application_name = "motley",
        .trouble = config->trouble,
        .arg = config->trouble_arg,
    };
    store->pg = pg_create(base, &pg, err);
    if (!store->pg || store_batcher_create(store, err) < 0) {
        store_destroy(store);
        return -1;
    }
    *out = store;
    return 0;
}

void store_destroy(struct store *store)
{
    if (!store)
        return;
    if (store->watch)
        event_free(store->watch);
    store->watch = NULL;
    store_batcher_destroy(store);
    pg_destroy(store->pg);
    free(store);
}

int store_listen(struct store *store, const char *channel, store_notify_fn *notify, void *arg,
                 struct err *err)
{
    return pg_listen(store->pg, channel, notify, arg, err);
}

static void ping_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    store_done_fn *done = (store_done_fn *)call->done;
    int64_t there = pg_i64(results[count - 1], 0, 0);
    int64_t wanted = store_schema_version();
    if (there != wanted) {
        struct err err;
        err_set(&err, there > wanted ? ERR_RELEASE : ERR_UNSUPPORTED,
                "the database's schema is version %lld, this program needs %lld%s", (long long)there,
                (long long)wanted, there < wanted ? ": run motley-scheduler --migrate" : "");
        done(call->arg, &err);
        return;
    }
    done(call->arg, NULL);
}

static void ping_fail(struct store_call *call, const struct err *err)
{
    struct err why = *err;
    if (strstr(err->text, "42P01")) /* SQLSTATE undefined_table */
        err_set(&why, ERR_UNSUPPORTED, "the database has no schema yet: run motley-scheduler --migrate");
    ((store_done_fn *)call->done)(call->arg, &why);
}

int store_ping(struct store *store, store_done_fn *done, void *arg, struct err *err)
{
    const struct pg_step step = {&store_schema_version_sql, NULL};
    return store_run(store, &step, 1, 0,
                     store_call_create(ping_deliver, ping_fail, (void (*)(void))done, arg, NULL, err), err);
}

static void schema_looked(void *arg, const struct err *err)
{
    struct store *store = arg;
    const struct timeval pause = {.tv_sec = WATCH_SECONDS};
    if (err && err->code == ERR_RELEASE)
        store->newer(store->newer_arg, err);
    else if (store->watch) /* not while the store is being destroyed */
        event_add(store->watch, &pause);
}

static void store_schema_look(evutil_socket_t fd, short what, void *arg)
{
    struct store *store = arg;
    struct err err;
    (void)fd, (void)what;
    if (store_ping(store, schema_looked, store, &err) < 0)
        schema_looked(store, &err);
}

int store_watch_schema(struct store *store, store_newer_fn *newer, void *arg, struct err *err)
{
    const struct timeval pause = {.tv_sec = WATCH_SECONDS};
    store->newer = newer;
    store->newer_arg = arg;
    store->watch = evtimer_new(store->base, store_schema_look, store);
    return !store->watch || event_add(store->watch, &pause) < 0
               ? err_set(err, ERR_NOMEM, "no memory to watch the database's schema")
               : 0;
}
