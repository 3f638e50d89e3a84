/* Routes for operators: liveness, readiness, metrics, and the OpenAPI description. */
#include "api/request/route.h"

#include "api/request/blob_dir.h"
#include "common/clock.h"
#include "common/tls.h"
#include "store/health.h"
#include "store/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READY_SECONDS_MAX = 2 };

extern const char api_openapi_text[];
extern const unsigned api_openapi_size;

void openapi_get(struct call *call)
{
    struct httpd_field fields[] = {{"Cache-Control", "max-age=300"}, {NULL, NULL}};
    call_count(call, 200);
    httpd_reply(call->request, 200, "application/yaml", fields, api_openapi_text, api_openapi_size);
}

void health_get(struct call *call)
{
    call_json(call, 200, json_pack("{s:s}", "status", "alive"), NULL);
}

/* A readiness request. It is answered when the database answers or after READY_SECONDS_MAX, whichever comes
 * first. A scheduler that decides nothing does not make the api unready, since it serves all that there is;
 * the answer says so beside. */
struct ready {
    struct call *call; /* NULL once the request was answered */
    struct event *patience;
    bool pinging;
};

static void ready_answer(struct ready *ready, const struct err *err, const json_t *scheduler)
{
    static const char *const keys[] = {"state", "since", "age_s", "set_aside_count"}; /* no token is needed */
    struct call *call = ready->call;
    ready->call = NULL;
    if (call && call->app->stopping)
        call_problem(call, 503, "busy", NULL, "the server is stopping");
    else if (call && err)
        call_problem(call, 503, err_code_name(err->code), NULL, "the database does not answer: %s",
                     err->text);
    else if (call) {
        json_t *told = json_object();
        for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
            json_object_set(told, keys[i], json_object_get(scheduler, keys[i]));
        call_json(call, 200, json_pack("{s:s, s:o}", "status", "ready", "scheduler", told), NULL);
    }
    if (!ready->pinging) {
        if (ready->patience)
            event_free(ready->patience);
        free(ready);
    }
}

static void scheduler_found(void *arg, const struct err *err, json_t *scheduler)
{
    struct ready *ready = arg;
    ready->pinging = false;
    ready_answer(ready, err, scheduler);
}

static void ops_pinged(void *arg, const struct err *err)
{
    struct ready *ready = arg;
    struct err wrong;
    if (!err && ready->call && !ready->call->app->stopping &&
        store_health_get(ready->call->app->store, scheduler_found, ready, &wrong) == 0)
        return;
    scheduler_found(ready, err, NULL);
}

static void patience_over(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct err err = {0};
    err_set(&err, ERR_TIMEOUT, "nothing came within %d s", READY_SECONDS_MAX);
    ready_answer(arg, &err, NULL);
}

void ready_get(struct call *call)
{
    struct err err = {0};
    struct timeval most = {READY_SECONDS_MAX, 0};
    struct ready *ready = calloc(1, sizeof(*ready));
    if (ready)
        ready->patience = event_new(call->app->base, -1, 0, patience_over, ready);
    if (!ready || !ready->patience || event_add(ready->patience, &most) < 0) {
        if (ready && ready->patience)
            event_free(ready->patience);
        free(ready);
        err_set(&err, ERR_NOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    ready->call = call;
    ready->pinging = true;
    if (store_ping(call->app->store, ops_pinged, ready, &err) < 0)
        ops_pinged(ready, &err);
}

/* ---- the disk ---- */

static void storage_found(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    if (!err) {
        const struct blob_dir *blobs = call->app->blobs;
        json_object_set_new(doc, "disk_bytes", json_integer((json_int_t)blob_dir_bytes(blobs)));
        json_object_set_new(doc, "free_bytes", json_integer((json_int_t)blob_dir_free_bytes(blobs)));
    }
    call_answer_doc(call, err, doc);
}

void storage_get(struct call *call)
{
    struct err err = {0};
    if (store_storage_get(call->app->store, &call->principal, storage_found, call, &err) < 0)
        call_fail(call, &err);
}

/* ---- metrics ---- */

static void ops_line(struct evbuffer *out, const char *name, const char *kind, const char *help, double value)
{
    evbuffer_add_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, kind, name, value);
}

static void write_metrics(struct app *app, struct evbuffer *out)
{
    const struct app_counters *c = &app->counters;
    ops_line(out, "motley_api_requests_total", "counter", "Requests begun.", (double)c->requests);
    evbuffer_add_printf(out,
                        "# HELP motley_api_answers_total Answers by class of status.\n"
                        "# TYPE motley_api_answers_total counter\n"
                        "motley_api_answers_total{class=\"2xx\"} %llu\n"
                        "motley_api_answers_total{class=\"4xx\"} %llu\n"
                        "motley_api_answers_total{class=\"5xx\"} %llu\n",
                        (unsigned long long)c->answers_2xx, (unsigned long long)c->answers_4xx,
                        (unsigned long long)c->answers_5xx);
    ops_line(out, "motley_api_connections", "gauge", "Open connections.",
             httpd_server_connections(app->server));
    ops_line(out, "motley_api_requests_under_way", "gauge", "Requests not yet answered.",
             httpd_server_requests(app->server));
    ops_line(out, "motley_api_wrong_tokens_total", "counter", "Tokens shown that are not valid.",
             (double)c->wrong_tokens);
    ops_line(out, "motley_api_late_tokens_total", "counter",
             "Of these, shown after too many of their address.", (double)c->late_tokens);
    ops_line(out, "motley_api_refused_connections_total", "counter",
             "Connections over a limit, closed at once.", (double)httpd_server_refused(app->server));
    ops_line(out, "motley_api_malformed_total", "counter", "Requests whose framing or size was refused.",
             (double)c->malformed);
    ops_line(out, "motley_api_parse_failures_total", "counter",
             "Files that their parser refused, or died of.", (double)atomic_load(&app->parse_failures));
    ops_line(out, "motley_api_followers", "gauge", "Open event streams.", (double)c->followers);
    ops_line(out, "motley_api_submits_total", "counter", "Jobs committed.", (double)c->submits);
    ops_line(out, "motley_api_submit_cache_hits_total", "counter", "Specifications whose check was shared.",
             (double)c->submit_cache_hits);
    ops_line(out, "motley_api_datasets_encoded_total", "counter", "Data sets encoded.",
             (double)c->datasets_encoded);
    ops_line(out, "motley_api_upload_bytes_total", "counter", "Bytes received as files.",
             (double)c->upload_bytes);
    ops_line(out, "motley_api_download_bytes_total", "counter", "Bytes sent as files.",
             (double)c->download_bytes);
    ops_line(out, "motley_files_disk_bytes", "gauge", "Size of the disk that holds jobs' files.",
             (double)blob_dir_bytes(app->blobs));
    ops_line(out, "motley_files_free_bytes", "gauge", "What is free of it.",
             (double)blob_dir_free_bytes(app->blobs));
    if (app->tls)
        ops_line(out, "motley_api_certificate_seconds", "gauge",
                 "How long the api's certificate is still good.",
                 (double)(tls_context_ends(app->tls) - clock_wall_us() / 1000000));
    ops_line(out, "motley_api_pool_waiting", "gauge", "Pieces of blocking work that wait for a thread.",
             pool_waiting(app->pool));
}

/* Writes `{WHAT="NAME"} `, with NAME escaped as the format asks. */
static void write_label(struct evbuffer *out, const char *what, const char *name)
{
    evbuffer_add_printf(out, "{%s=\"", what);
    for (; *name; name++) {
        if (*name == '\\' || *name == '"' || *name == '\n')
            evbuffer_add(out, "\\", 1);
        evbuffer_add(out, *name == '\n' ? "n" : name, 1);
    }
    evbuffer_add_printf(out, "\"} ");
}

/* Writes the metrics of devices, as their agents last reported them. */
static void write_devices(struct evbuffer *out, const json_t *devices)
{
    static const struct {
        const char *name, *key, *help;
    } gauges[] = {
        {"motley_device_temperature_celsius", "temperature_c", "Temperature."},
        {"motley_device_power_watts", "power_w", "Power drawn."},
        {"motley_device_clock_khz", "clock_khz", "Clock of its multiprocessors."},
        {"motley_device_heat", "heat", "What is left of its speed: 1, or less while it throttles."},
        {"motley_device_others_bytes", "others_bytes", "Memory that others hold."},
        {"motley_device_ecc_uncorrected", "ecc_uncorrected", "Memory errors that were not corrected."},
    };
    const json_t *device;
    size_t i;
    for (size_t k = 0; k < sizeof(gauges) / sizeof(*gauges); k++) {
        evbuffer_add_printf(out, "# HELP %s %s\n# TYPE %s gauge\n", gauges[k].name, gauges[k].help,
                            gauges[k].name);
        json_array_foreach ((json_t *)(uintptr_t)devices, i, device) {
            const json_t *value = json_object_get(json_object_get(device, "health"), gauges[k].key);
            if (!json_is_number(value))
                continue;
            evbuffer_add_printf(out, "%s", gauges[k].name);
            write_label(out, "device", json_string_value(json_object_get(device, "name")));
            evbuffer_add_printf(out, "%.17g\n", json_number_value(value));
        }
    }
    evbuffer_add_printf(out, "# HELP motley_device_drained Whether nothing new starts there.\n"
                             "# TYPE motley_device_drained gauge\n");
    json_array_foreach ((json_t *)(uintptr_t)devices, i, device) {
        evbuffer_add_printf(out, "motley_device_drained");
        write_label(out, "device", json_string_value(json_object_get(device, "name")));
        evbuffer_add_printf(out, "%d\n", json_is_true(json_object_get(device, "drained")));
    }
}

static void write_nodes(struct evbuffer *out, const json_t *nodes)
{
    static const char *const gauges[][3] = {
        {"motley_node_alive", "alive", "Whether the node is heard; not of one that left in good order."},
        {"motley_node_heard_seconds", "heard_s", "Since the node's last message; of the same nodes."},
        {"motley_node_certificate_seconds", "certified_s", "How long the node's certificate is still good."},
        {"motley_node_disk_bytes", "disk_bytes", "Size of the disk with the home of the node's agent."},
        {"motley_node_disk_free_bytes", "disk_free_bytes", "What is free of it."}};
    const json_t *node;
    size_t i;
    for (size_t k = 0; k < sizeof(gauges) / sizeof(*gauges); k++) {
        evbuffer_add_printf(out, "# HELP %s %s\n# TYPE %s gauge\n", gauges[k][0], gauges[k][2], gauges[k][0]);
        json_array_foreach ((json_t *)(uintptr_t)nodes, i, node) {
            const json_t *value = json_object_get(node, gauges[k][1]);
            if (!value || json_is_true(json_object_get(node, "left")))
                continue;
            evbuffer_add_printf(out, "%s", gauges[k][0]);
            write_label(out, "node", json_string_value(json_object_get(node, "name")));
            evbuffer_add_printf(out, "%.17g\n",
                                json_is_number(value) ? json_number_value(value) : json_is_true(value));
        }
    }
}

/* Writes how the scheduler's passes go. */
static void write_scheduler(struct evbuffer *out, const json_t *scheduler)
{
    const char *state = json_string_value(json_object_get(scheduler, "state"));
    const json_t *age = json_object_get(scheduler, "age_s");
    ops_line(out, "motley_scheduler_deciding", "gauge", "Whether a scheduler leads and its passes succeed.",
             state && strcmp(state, "deciding") == 0);
    if (json_is_number(age)) /* else no scheduler has ever led */
        ops_line(out, "motley_scheduler_pass_age_seconds", "gauge", "Since the last whole pass.",
                 json_number_value(age));
    ops_line(out, "motley_scheduler_set_aside", "gauge",
             "Parts that passes leave out, as the database refused them.",
             json_number_value(json_object_get(scheduler, "set_aside_count")));
}

static void metrics_counted(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    struct evbuffer *out = evbuffer_new();
    if (!out) {
        call_problem(call, 503, "no-memory", NULL, "out of memory for metrics");
        return;
    }
    write_metrics(call->app, out);
    ops_line(out, "motley_database_up", "gauge", "Whether the database answered.", err ? 0 : 1);
    if (!err) {
        const char *state;
        json_t *count;
        evbuffer_add_printf(out, "# HELP motley_jobs Jobs by state.\n# TYPE motley_jobs gauge\n");
        json_object_foreach (json_object_get(doc, "jobs"), state, count)
            evbuffer_add_printf(out, "motley_jobs{state=\"%s\"} %lld\n", state,
                                (long long)json_integer_value(count));
        evbuffer_add_printf(out, "# HELP motley_refused_events_total Events of agents that were refused.\n"
                                 "# TYPE motley_refused_events_total counter\n");
        json_object_foreach (json_object_get(doc, "refused"), state, count)
            evbuffer_add_printf(out, "motley_refused_events_total{reason=\"%s\"} %lld\n", state,
                                (long long)json_integer_value(count));
        write_devices(out, json_object_get(doc, "devices"));
        write_nodes(out, json_object_get(doc, "nodes"));
        write_scheduler(out, json_object_get(doc, "scheduler"));
        ops_line(out, "motley_queue_oldest_seconds", "gauge", "Since the oldest waiting job was submitted.",
                 json_number_value(json_object_get(doc, "waits_s")));
    }
    size_t size = evbuffer_get_length(out);
    call_count(call, 200);
    httpd_reply(call->request, 200, "text/plain; version=0.0.4; charset=utf-8", NULL,
                evbuffer_pullup(out, -1), size);
    evbuffer_free(out);
}

void metrics_get(struct call *call)
{
    struct err err = {0};
    if (store_counts(call->app->store, metrics_counted, call, &err) < 0)
        metrics_counted(call, &err, NULL);
}
