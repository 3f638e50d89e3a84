/* Creates all parts in order, waits for the database, serves, and destroys the parts. They are destroyed in
 * an order in which none calls another that no longer exists: first, new requests are refused; then the pool
 * ends; the store (whose callbacks answer the remaining requests); the followers; the connections.
 */
#include "api/serve.h"

#include "api/people/auth.h"
#include "api/people/issuer.h"
#include "api/request/blob_dir.h"
#include "api/check/check.h"
#include "api/request/dataset.h"
#include "api/blobs/known.h"
#include "api/request/route.h"
#include "api/request/wait.h"
#include "api/jobs/fetches.h"
#include "api/jobs/notices.h"
#include "api/jobs/plans.h"
#include "api/jobs/stream.h"
#include "api/blobs/sweep.h"
#include "api/http/address.h"
#include "api/http/wrong.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/process.h"
#include "common/tls.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum {
    POOL_QUEUE_MAX = 1024,
    FETCH_THREADS = 2,
    FETCH_QUEUE_MAX = 32,
    SIGN_IN_QUEUE_MAX = 64,
    TELLER_THREADS = NOTICES_AT_ONCE,
    STOP_SECONDS_MAX = 5,
    HEAD_SECONDS_MAX = 15,
    PENDING_BYTES_MAX = 8 << 20,
    PING_MS = 200,
    FILES_BESIDE = 512, /* open files and sockets that are not clients' connections */
};

struct serve {
    struct app app;
    char parser_path[4096];
    struct event *term, *interrupt, *hangup, *timer;
    struct api_config *config;
    const char *path;     /* path of the configuration file */
    uint64_t deadline_ns; /* time at which the stopping server no longer waits for answers */
    bool ready;
    struct err last; /* the database's last error while it could not be reached */
    struct err err;  /* the error for which the server cannot start */
};

/* ---- starting ---- */

static int create_tls(struct serve *serve, struct err *err)
{
    const struct api_config *config = serve->app.config;
    if (config->has_tls) {
        struct tls_files files = {config->tls.ca, config->tls.cert, config->tls.key};
        serve->app.tls = tls_context_create(&files, TLS_ROLE_SERVER, err);
        if (!serve->app.tls)
            return -1;
    }
    return 0;
}

static int create_store(struct serve *serve, struct err *err)
{
    struct app *app = &serve->app;
    const struct api_config *config = app->config;
    struct store_config store = {.conninfo = config->postgres,
                                 .connections = config->connections,
                                 .statement_ms_max = config->wait_seconds * 1000};
    return store_create(app->base, &store, &app->store, err);
}

/* Starts the parser and asks it one question now. So a machine without a sandbox is reported here, and not as
 * an error of some file. */
static int create_parser(struct serve *serve, struct err *err)
{
    struct app *app = &serve->app;
    const struct api_config *config = app->config;
    json_t *answer = NULL, *question = json_pack("{s:s}", "do", "ready");
    const struct parse_question ready = {.document = question};
    app->parser = (struct parser){.program = serve->parser_path,
                                  .memory_bytes = config->parser.memory_bytes,
                                  .seconds = config->parser.seconds};
    int rc = 0;
    if (config->parser.program)
        rc = file_path(serve->parser_path, sizeof(serve->parser_path), err, "%s", config->parser.program);
    else
        rc = process_sibling("motley-parse", serve->parser_path, sizeof(serve->parser_path), err);
    if (rc == 0)
        rc = parse_ask(&app->parser, &ready, NULL, NULL, &answer, err);
    json_decref(answer);
    json_decref(question);
    return rc;
}

static int create_sign_ins(struct serve *serve, struct err *err)
{
    struct app *app = &serve->app;
    if (!app->config->has_oidc)
        return 0;
    app->issuer = issuer_create(&app->config->oidc, err);
    app->sign_ins = app->issuer ? pool_create(app->base, 1, SIGN_IN_QUEUE_MAX, err) : NULL;
    return app->sign_ins ? 0 : -1;
}

static int create_parts(struct serve *serve, struct err *err)
{
    struct app *app = &serve->app;
    app->base = httpd_event_base(err);
    if (!app->base)
        return -1;
    if (create_tls(serve, err) < 0 || blob_dir_open(app->config->blobs, &app->blobs, err) < 0)
        return -1;
    if (create_parser(serve, err) < 0)
        return -1;
    app->known = known_files_create(err);
    if (!app->known)
        return -1;
    app->pool = pool_create(app->base, app->config->threads, POOL_QUEUE_MAX, err);
    app->fetches = app->pool ? pool_create(app->base, FETCH_THREADS, FETCH_QUEUE_MAX, err) : NULL;
    app->tellers = app->fetches ? pool_create(app->base, TELLER_THREADS, TELLER_THREADS, err) : NULL;
    if (!app->tellers || create_sign_ins(serve, err) < 0 || create_store(serve, err) < 0)
        return -1;
    app->auth = auth_create(app->store, err);
    app->wrong = app->auth ? wrong_create(err) : NULL;
    if (!app->wrong || waits_create(app, &app->waits, err) < 0 || datasets_create(&app->datasets, err) < 0 ||
        submits_create(app, &app->submits, err) < 0 || plans_create(app, &app->plans, err) < 0 ||
        fetches_create(app, &app->job_fetches, err) < 0 || notices_create(app, &app->notices, err) < 0)
        return -1;
    app->sweep = sweep_create(app, err);
    if (!app->sweep || followers_create(app, &app->followers, err) < 0)
        return -1;
    return feed_create(app, &app->feed, err);
}

static int write_address(const struct serve *serve, struct err *err)
{
    const struct api_config *config = serve->app.config;
    char text[300];
    bool v6 = strchr(config->host, ':') != NULL;
    int n = snprintf(text, sizeof(text), "%s%s%s:%u\n", v6 ? "[" : "", config->host, v6 ? "]" : "",
                     httpd_server_port(serve->app.server));
    log_event(LOG_LEVEL_INFO, "api_listening", "address=%.*s tls=%s", n - 1, text,
              config->has_tls ? "yes" : "no");
    return config->address_file ? file_write_atomic(config->address_file, text, (size_t)n, 0644, err) : 0;
}

static void serve_pinged(void *arg, const struct err *err);

static void serve_ping(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct serve *serve = arg;
    struct err err = {0};
    if (store_ping(serve->app.store, serve_pinged, serve, &err) < 0)
        serve_pinged(serve, &err);
}

/* Called with the database's answer at the start: it is ready, or another try may succeed, or it can never be
 * used. */
static void serve_pinged(void *arg, const struct err *err)
{
    struct serve *serve = arg;
    if (serve->ready || serve->err.code)
        return;
    if (!err) {
        serve->ready = true;
    } else if (err->code == ERR_NET || err->code == ERR_TIMEOUT || err->code == ERR_BUSY) {
        struct timeval pause = {0, PING_MS * 1000};
        serve->last = *err;
        event_base_once(serve->app.base, -1, EV_TIMEOUT, serve_ping, serve, &pause);
    } else {
        serve->err = *err;
    }
}

static void on_patience(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct serve *serve = arg;
    if (!serve->ready && !serve->err.code)
        err_set(&serve->err, ERR_TIMEOUT, "PostgreSQL does not answer after %u s%s%s",
                serve->app.config->start_seconds, serve->last.code ? ": " : "", serve->last.text);
}

static int wait_for_database(struct serve *serve, struct err *err)
{
    struct timeval patience = {(time_t)serve->app.config->start_seconds, 0};
    int checked = store_session_check(serve->app.config->postgres, err);
    if (checked < 0 && err->code == ERR_UNSUPPORTED)
        return -1;
    event_base_once(serve->app.base, -1, EV_TIMEOUT, on_patience, serve, &patience);
    serve_ping(-1, 0, serve);
    while (!serve->ready && !serve->err.code && !serve->app.stopping)
        event_base_loop(serve->app.base, EVLOOP_ONCE);
    if (serve->err.code) {
        *err = serve->err;
        return -1;
    }
    return checked < 0 && !serve->app.stopping ? store_session_check(serve->app.config->postgres, err) : 0;
}

/* ---- stopping ---- */

static void serve_on_signal(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct serve *serve = arg;
    serve->app.stopping = true;
    event_base_loopbreak(serve->app.base);
}

/* The database is of a newer release now: the server ends, and says so by its status. */
static void serve_outgrown(void *arg, const struct err *why)
{
    struct serve *serve = arg;
    serve->err = *why;
    serve->app.stopping = true;
    event_base_loopbreak(serve->app.base);
}

/* Handles SIGHUP: takes over what has changed in the configuration file, or logs why nothing is taken
 * over. */
static void on_hangup(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct serve *serve = arg;
    struct err err = {0};
    if (api_config_reload(serve->path, serve->config, &err) < 0)
        log_event(LOG_LEVEL_ERROR, "config_refused", "why=\"%s\"", err.text);
    else
        log_event(LOG_LEVEL_INFO, "config_reloaded", "file=%s", serve->path);
}

static void serve_on_timer(evutil_socket_t fd, short what, void *arg)
{
    /* The timer only wakes the loop, so that drain() checks its deadline. */
    (void)fd, (void)what, (void)arg;
}

static void serve_drain(struct serve *serve)
{
    struct app *app = &serve->app;
    struct timeval step = {0, 50000};
    httpd_server_stop(app->server);
    waits_stop(app->waits);      /* who waits for measurements is answered now */
    app->fetches_stopped = true; /* what came is kept, and the next fetch goes on from there */
    notices_stop(app->notices);
    issuer_stop(app->issuer);
    serve->timer = event_new(app->base, -1, EV_PERSIST, serve_on_timer, serve);
    if (serve->timer)
        event_add(serve->timer, &step);
    serve->deadline_ns = clock_mono_ns() + STOP_SECONDS_MAX * UINT64_C(1000000000);
    while (httpd_server_busy(app->server) && clock_mono_ns() < serve->deadline_ns)
        event_base_loop(app->base, EVLOOP_ONCE);
}

static void destroy_parts(struct serve *serve)
{
    struct app *app = &serve->app;
    app->fetches_stopped = true;
    if (app->fetches)
        pool_stop(app->fetches);
    if (app->tellers)
        pool_stop(app->tellers);
    issuer_stop(app->issuer);
    if (app->sign_ins)
        pool_stop(app->sign_ins);
    if (app->pool)
        pool_stop(app->pool);
    plans_stop(app->plans);
    store_destroy(app->store);
    sweep_destroy(app->sweep);
    followers_destroy(app->followers);
    feed_destroy(app->feed);
    httpd_server_destroy(app->server);
    fetches_destroy(app->job_fetches);
    notices_destroy(app->notices);
    submits_destroy(app->submits);
    plans_destroy(app->plans);
    datasets_destroy(app->datasets);
    waits_destroy(app->waits);
    wrong_destroy(app->wrong);
    auth_destroy(app->auth);
    pool_destroy(app->sign_ins);
    issuer_destroy(app->issuer);
    pool_destroy(app->tellers);
    pool_destroy(app->fetches);
    pool_destroy(app->pool);
    blob_dir_close(app->blobs);
    known_files_destroy(app->known);
    tls_context_free(app->tls);
    if (serve->term)
        event_free(serve->term);
    if (serve->interrupt)
        event_free(serve->interrupt);
    if (serve->hangup)
        event_free(serve->hangup);
    if (serve->timer)
        event_free(serve->timer);
    if (app->base)
        event_base_free(app->base);
}

/* Returns the number of connections that this process may hold: the configured number, or as many as the
 * limit of open files allows. */
static int connections_possible(const struct api_config *config)
{
    struct rlimit files = {0};
    rlim_t wanted = config->connections_max + (rlim_t)FILES_BESIDE;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return (int)config->connections_max;
    if (files.rlim_cur < wanted) {
        files.rlim_cur = files.rlim_max < wanted ? files.rlim_max : wanted;
        /* raising the soft limit up to the hard limit is always allowed */
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (files.rlim_cur >= wanted)
        return (int)config->connections_max;
    int possible = files.rlim_cur > FILES_BESIDE ? (int)(files.rlim_cur - FILES_BESIDE) : 1;
    log_event(LOG_LEVEL_WARN, "connections_limited",
              "configured=%u possible=%d why=\"the limit of open files is %llu\"", config->connections_max,
              possible, (unsigned long long)files.rlim_cur);
    return possible;
}

static int begin_listening(struct serve *serve, struct err *err)
{
    struct app *app = &serve->app;
    struct httpd_limits limits = {.connections_max = connections_possible(app->config),
                                  .connections_per_address_max =
                                      (int)app->config->connections_per_address_max,
                                  .bytes_per_second_min = app->config->bytes_per_second_min,
                                  .head_seconds_max = HEAD_SECONDS_MAX,
                                  .idle_seconds_max = (int)app->config->idle_seconds_max,
                                  .pending_bytes_max = PENDING_BYTES_MAX};
    size_t i;
    json_t *proxy;
    json_array_foreach (app->config->proxies, i, proxy)
        address_parse(json_string_value(proxy), limits.proxies[limits.proxy_count++]);
    struct httpd_hooks hooks = route_hooks(app);
    app->server =
        httpd_server_create(app->base, app->config->host, app->config->port, app->tls, &limits, &hooks, err);
    if (!app->server || (app->config->has_unix_socket &&
                         httpd_server_listen_unix(app->server, app->config->unix_socket.path, err) < 0))
        return -1;
    return write_address(serve, err);
}

int api_serve(struct api_config *config, const char *path, struct err *err)
{
    struct serve serve = {.app = {.config = config}, .config = config, .path = path};
    int rc = create_parts(&serve, err);
    if (rc == 0) {
        serve.term = evsignal_new(serve.app.base, SIGTERM, serve_on_signal, &serve);
        serve.interrupt = evsignal_new(serve.app.base, SIGINT, serve_on_signal, &serve);
        serve.hangup = evsignal_new(serve.app.base, SIGHUP, on_hangup, &serve);
        if (!serve.term || !serve.interrupt || !serve.hangup || event_add(serve.term, NULL) < 0 ||
            event_add(serve.interrupt, NULL) < 0 || event_add(serve.hangup, NULL) < 0)
            rc = err_set(err, ERR_NOMEM, "out of memory for signals");
    }
    umask(077);
    if (rc == 0)
        rc = wait_for_database(&serve, err);
    if (rc == 0 && !serve.app.stopping)
        rc = store_watch_schema(serve.app.store, serve_outgrown, &serve, err) < 0
                 ? -1
                 : begin_listening(&serve, err);
    while (rc == 0 && !serve.app.stopping)
        event_base_loop(serve.app.base, EVLOOP_NO_EXIT_ON_EMPTY);
    if (rc == 0 && serve.err.code) {
        *err = serve.err;
        rc = -1;
    }
    if (serve.app.server)
        serve_drain(&serve);
    destroy_parts(&serve);
    log_event(LOG_LEVEL_INFO, "api_ended", "clean=%s", rc == 0 ? "yes" : "no");
    return rc;
}
