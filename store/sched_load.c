/* Reads everything that a scheduling decision depends on, in one transaction. */
#include "store/sched.h"
#include "store/store_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MICROS(column) "coalesce((extract(epoch FROM " column ") * 1e6)::bigint, 0)"

static const char *const stop_names[STOP_WHYS] = {
    [STOP_CANCEL] = "cancel", [STOP_HOLD] = "hold",   [STOP_DRAIN] = "drain", [STOP_TIME] = "time",
    [STOP_LOST] = "lost",     [STOP_FAULT] = "fault", [STOP_YIELD] = "yield",
};

const char *stop_why_name(enum stop_why why)
{
    return why > STOP_NONE && why < STOP_WHYS ? stop_names[why] : NULL;
}

enum stop_why stop_why_from_name(const char *name)
{
    for (int i = STOP_NONE + 1; name != NULL && i < STOP_WHYS; i++) {
        if (strcmp(stop_names[i], name) == 0) {
            return (enum stop_why)i;
        }
    }
    return STOP_NONE;
}

enum {
    Q_NOW,
    Q_ACTIVE,
    Q_QUEUED,
    Q_RUNS,
    Q_RANKS,
    Q_NODES,
    Q_DEVICES,
    Q_REQUESTS,
    Q_LINKS,
    Q_MEASURES,
    Q_COUNT
};

/* clang-format off */
#define ACTIVE "('starting', 'running', 'stopping')"
#define DUE "SELECT id FROM jobs WHERE state = 'queued' AND (not_before IS NULL OR not_before <= now())"
#define JOB_COLUMNS \
    "j.id, j.owner, j.priority, j.state, j.stop_why, j.attempt, j.losses, j.retries_max, j.time_limit_ms, " \
    "j.used_ms, " MICROS("j.not_before") ", j.steps, coalesce(j.run, 0), j.why"

static const struct pg_statement statements[Q_COUNT] = {
    [Q_NOW] = {"sched_now",
               "SELECT " MICROS("now()") ", (SELECT " MICROS("min(not_before)") " FROM jobs "
               "WHERE state = 'queued' AND not_before > now())",
               PG_READ},
    [Q_ACTIVE] = {"sched_active",
                  "SELECT " JOB_COLUMNS " FROM jobs j "
                  "WHERE j.id IN (SELECT job FROM runs WHERE state IN " ACTIVE ") ORDER BY j.id",
                  PG_READ},
    [Q_QUEUED] = {"sched_queued",
                  "SELECT " JOB_COLUMNS ", j.spec, j.inputs, coalesce(c.step, -1), c.blobs, j.step, "
                  "  (SELECT min((m.document ->> 'loss')::float8) FROM metrics m "
                  "   WHERE m.job = j.id AND m.kind = 'eval' AND m.step <= c.step) "
                  "FROM (SELECT * FROM jobs WHERE id IN ((" DUE " ORDER BY priority DESC, id LIMIT $1) UNION ALL "
                  "      (" DUE " AND (priority < $2 OR (priority = $2 AND id > $3)) "
                  "       ORDER BY priority DESC, id LIMIT $1))) j "
                  "LEFT JOIN LATERAL (SELECT step, blobs FROM checkpoints WHERE job = j.id AND complete "
                  "                   ORDER BY step DESC LIMIT 1) c ON true ORDER BY j.priority DESC, j.id",
                  PG_READ},
    [Q_RUNS] = {"sched_runs",
                "SELECT id, job, epoch, attempt, state, stop_why, " MICROS("created_at") ", " MICROS("started_at")
                ", " MICROS("stopping_at") ", " MICROS("killed_at") ", why, "
                "EXISTS (SELECT 1 FROM checkpoints c WHERE c.job = r.job AND c.complete AND c.step > r.start_step), "
                "(SELECT count(*) FROM runs p WHERE p.job = r.job AND p.state = 'lost' AND p.start_step = r.start_step) "
                "FROM runs r WHERE state IN " ACTIVE " ORDER BY id",
                PG_READ},
    [Q_RANKS] = {"sched_ranks",
                 "SELECT a.run, a.id, a.rank, a.node, a.device, a.state, a.last_seq, a.address, a.identity, a.code, "
                 "a.why, a.own_fault FROM assignments a JOIN runs r ON r.id = a.run WHERE r.state IN " ACTIVE
                 " ORDER BY a.run, a.rank",
                 PG_READ},
    [Q_NODES] = {"sched_nodes",
                 "SELECT name, boot, machine_id, address, state, last_seq, generation, redis_hash, seal_key, "
                 "redis_hash IS NOT NULL AND seal_key IS NOT NULL AND NOT barred "
                 "FROM nodes WHERE removed_at IS NULL ORDER BY name",
                 PG_READ},
    [Q_DEVICES] = {"sched_devices",
                   "SELECT d.name, node, kind, digest, d.inventory, memory_limit_bytes, present, drained, "
                   "drain_why, health FROM devices d "
                   "JOIN nodes n ON n.name = node AND n.removed_at IS NULL ORDER BY d.name",
                   PG_READ},
    [Q_REQUESTS] = {"sched_requests",
                    "SELECT id, kind, device, key, digest, tries, state, why, " MICROS("deadline_at")
                    " FROM requests ORDER BY id",
                    PG_READ},
    [Q_LINKS] = {"sched_links", "SELECT from_node, to_node, document FROM links", PG_READ},
    [Q_MEASURES] = {"sched_measures",
                    "SELECT spec, inputs FROM measures WHERE until > now() ORDER BY until DESC LIMIT 16", PG_READ},
};
/* clang-format on */

/* ---- memory ---- */

static void free_jobs(struct store_view *view)
{
    for (size_t i = 0; i < view->job_count; i++) {
        free(view->jobs[i].why);
        json_decref(view->jobs[i].spec);
        json_decref(view->jobs[i].inputs);
        json_decref(view->jobs[i].checkpoint_blobs);
    }
    free(view->jobs);
}

static void free_runs(struct store_view *view)
{
    for (size_t i = 0; i < view->run_count; i++) {
        struct store_sched_run *run = &view->runs[i];
        for (uint32_t k = 0; k < run->rank_count; k++) {
            struct store_sched_rank *rank = &run->ranks[k];
            free(rank->node);
            free(rank->device);
            free(rank->address);
            free(rank->identity);
            free(rank->code);
            free(rank->why);
        }
        free(run->ranks);
        free(run->why);
    }
    free(view->runs);
}

static void free_cluster(struct store_view *view)
{
    for (size_t i = 0; i < view->node_count; i++) {
        free(view->nodes[i].name);
        free(view->nodes[i].boot);
        free(view->nodes[i].machine_id);
        free(view->nodes[i].address);
    }
    free(view->nodes);
    for (size_t i = 0; i < view->device_count; i++) {
        free(view->devices[i].name);
        free(view->devices[i].node);
        free(view->devices[i].kind);
        free(view->devices[i].digest);
        free(view->devices[i].drain_why);
        json_decref(view->devices[i].inventory);
        json_decref(view->devices[i].health);
    }
    free(view->devices);
    for (size_t i = 0; i < view->request_count; i++) {
        free(view->requests[i].device);
        free(view->requests[i].key);
        free(view->requests[i].digest);
        free(view->requests[i].why);
    }
    free(view->requests);
    for (size_t i = 0; i < view->link_count; i++) {
        free(view->links[i].from);
        free(view->links[i].to);
        json_decref(view->links[i].document);
    }
    free(view->links);
    for (size_t i = 0; i < view->measure_count; i++) {
        json_decref(view->measures[i].spec);
        json_decref(view->measures[i].inputs);
    }
    free(view->measures);
}

void store_view_destroy(struct store_view *view)
{
    if (view != NULL) {
        free_jobs(view);
        free_runs(view);
        free_cluster(view);
        free(view);
    }
}

/* ---- rows to structs; `bad` is set by the first allocation that fails ---- */

static char *text_of(const struct pg_result *result, int row, int column, bool nullable, bool *bad)
{
    if (nullable && pg_is_null(result, row, column)) {
        return NULL;
    }
    char *copy = strdup(pg_text(result, row, column));
    *bad = *bad || copy == NULL;
    return copy;
}

static void *rows_of(const struct pg_result *result, size_t size, size_t *count, bool *bad)
{
    int rows = pg_rows(result);
    void *memory = calloc(rows > 0 ? (size_t)rows : 1, size);
    *bad = *bad || memory == NULL;
    *count = memory != NULL ? (size_t)rows : 0;
    return memory;
}

static enum stop_why stop_of(const struct pg_result *result, int row, int column)
{
    return stop_why_from_name(pg_is_null(result, row, column) ? NULL : pg_text(result, row, column));
}

static void read_job(const struct pg_result *result, int row, struct store_sched_job *job, bool *bad)
{
    job->id = pg_i64(result, row, 0);
    job->owner = pg_i64(result, row, 1);
    job->priority = (int32_t)pg_i64(result, row, 2);
    job->state = (enum job_state)state_from_name(&job_machine, pg_text(result, row, 3));
    job->stop_why = stop_of(result, row, 4);
    job->attempt = (uint32_t)pg_i64(result, row, 5);
    job->losses = (uint32_t)pg_i64(result, row, 6);
    job->retries_max = (uint32_t)pg_i64(result, row, 7);
    job->time_limit_ms = pg_i64(result, row, 8);
    job->used_ms = pg_i64(result, row, 9);
    job->not_before_us = pg_i64(result, row, 10);
    job->steps = pg_i64(result, row, 11);
    job->run = pg_i64(result, row, 12);
    job->why = text_of(result, row, 13, true, bad);
    job->checkpoint_step = -1;
}

static void read_jobs(struct store_view *view, const struct pg_result *active, const struct pg_result *queued,
                      bool *bad)
{
    size_t active_count = (size_t)pg_rows(active);
    size_t queued_count = (size_t)pg_rows(queued);
    view->jobs = calloc(active_count + queued_count + 1, sizeof(*view->jobs));
    if (view->jobs == NULL) {
        *bad = true;
        return;
    }
    for (size_t i = 0; i < active_count; i++) {
        read_job(active, (int)i, &view->jobs[view->job_count++], bad);
    }
    for (size_t i = 0; i < queued_count; i++) {
        struct store_sched_job *job = &view->jobs[view->job_count++];
        read_job(queued, (int)i, job, bad);
        job->spec = pg_json(queued, (int)i, 14);
        job->inputs = pg_json(queued, (int)i, 15);
        job->checkpoint_step = pg_i64(queued, (int)i, 16);
        job->checkpoint_blobs = pg_is_null(queued, (int)i, 17) ? NULL : pg_json(queued, (int)i, 17);
        job->reported = pg_i64(queued, (int)i, 18);
        job->best_loss = pg_is_null(queued, (int)i, 19) ? NAN : pg_f64(queued, (int)i, 19);
        *bad = *bad || job->spec == NULL || job->inputs == NULL;
    }
}

static void read_rank(const struct pg_result *result, int row, struct store_sched_rank *rank, bool *bad)
{
    rank->assignment = pg_i64(result, row, 1);
    rank->rank = (uint32_t)pg_i64(result, row, 2);
    rank->node = text_of(result, row, 3, false, bad);
    rank->device = text_of(result, row, 4, false, bad);
    rank->state = (enum assignment_state)state_from_name(&assignment_machine, pg_text(result, row, 5));
    rank->last_seq = pg_i64(result, row, 6);
    rank->address = text_of(result, row, 7, true, bad);
    rank->identity = text_of(result, row, 8, true, bad);
    rank->code = text_of(result, row, 9, true, bad);
    rank->why = text_of(result, row, 10, true, bad);
    rank->own_fault = pg_bool(result, row, 11);
}

/* Both results are ordered by run, so one pass over the ranks joins them. */
static void read_runs(struct store_view *view, const struct pg_result *runs, const struct pg_result *ranks,
                      bool *bad)
{
    view->runs = rows_of(runs, sizeof(*view->runs), &view->run_count, bad);
    int total = pg_rows(ranks);
    int at = 0;
    for (size_t i = 0; i < view->run_count; i++) {
        struct store_sched_run *run = &view->runs[i];
        int row = (int)i;
        run->id = pg_i64(runs, row, 0);
        run->job = pg_i64(runs, row, 1);
        run->epoch = pg_i64(runs, row, 2);
        run->attempt = (uint32_t)pg_i64(runs, row, 3);
        run->state = (enum run_state)state_from_name(&run_machine, pg_text(runs, row, 4));
        run->stop_why = stop_of(runs, row, 5);
        run->created_us = pg_i64(runs, row, 6);
        run->started_us = pg_i64(runs, row, 7);
        run->stopping_us = pg_i64(runs, row, 8);
        run->killed_us = pg_i64(runs, row, 9);
        run->why = text_of(runs, row, 10, true, bad);
        run->advanced = pg_bool(runs, row, 11);
        run->lost_before = (uint32_t)pg_i64(runs, row, 12);
        while (at < total && pg_i64(ranks, at, 0) < run->id) {
            at++;
        }
        int end = at;
        while (end < total && pg_i64(ranks, end, 0) == run->id) {
            end++;
        }
        run->ranks = calloc((size_t)(end - at) + 1, sizeof(*run->ranks));
        if (run->ranks == NULL) {
            *bad = true;
            return;
        }
        for (; at < end; at++) {
            read_rank(ranks, at, &run->ranks[run->rank_count++], bad);
        }
    }
}

void store_sched_health(struct store_sched_device *device, json_t *health)
{
    const double heat = json_number_value(json_object_get(health, "heat"));
    const json_t *usable = json_object_get(health, "usable_bytes");
    const json_int_t bytes = json_integer_value(usable);
    if (health != device->health) {
        json_decref(device->health);
    }
    device->health = health;
    device->heat = heat > 0 && heat <= 1 ? heat : 1;
    device->usable_bytes =
        json_is_integer(usable) && bytes >= 0 && (uint64_t)bytes < device->memory_limit_bytes
            ? (uint64_t)bytes
            : device->memory_limit_bytes;
}

static void read_cluster(struct store_view *view, const struct pg_result *nodes,
                         const struct pg_result *devices, bool *bad)
{
    view->nodes = rows_of(nodes, sizeof(*view->nodes), &view->node_count, bad);
    for (size_t i = 0; i < view->node_count; i++) {
        struct store_sched_node *node = &view->nodes[i];
        node->name = text_of(nodes, (int)i, 0, false, bad);
        node->boot = text_of(nodes, (int)i, 1, true, bad);
        node->machine_id = text_of(nodes, (int)i, 2, false, bad);
        node->address = text_of(nodes, (int)i, 3, false, bad);
        node->reachable = strcmp(pg_text(nodes, (int)i, 4), "alive") == 0;
        node->joining = strcmp(pg_text(nodes, (int)i, 4), "joining") == 0;
        node->last_seq = pg_i64(nodes, (int)i, 5);
        node->generation = pg_i64(nodes, (int)i, 6);
        node->admitted = pg_bool(nodes, (int)i, 9) &&
                         pg_bytes(nodes, (int)i, 7, node->redis_hash, 32) == 32 &&
                         pg_bytes(nodes, (int)i, 8, node->seal_key, 32) == 32;
        node->reachable = node->reachable && node->admitted;
    }
    view->devices = rows_of(devices, sizeof(*view->devices), &view->device_count, bad);
    for (size_t i = 0; i < view->device_count; i++) {
        struct store_sched_device *device = &view->devices[i];
        device->name = text_of(devices, (int)i, 0, false, bad);
        device->node = text_of(devices, (int)i, 1, false, bad);
        device->kind = text_of(devices, (int)i, 2, false, bad);
        device->digest = text_of(devices, (int)i, 3, false, bad);
        device->inventory = pg_json(devices, (int)i, 4);
        device->memory_limit_bytes = (uint64_t)pg_i64(devices, (int)i, 5);
        device->present = pg_bool(devices, (int)i, 6);
        device->drained = pg_bool(devices, (int)i, 7);
        device->drain_why = text_of(devices, (int)i, 8, true, bad);
        store_sched_health(device, pg_is_null(devices, (int)i, 9) ? NULL : pg_json(devices, (int)i, 9));
        *bad = *bad || device->inventory == NULL;
    }
}

static void read_measurements(struct store_view *view, const struct pg_result *requests,
                              const struct pg_result *links, bool *bad)
{
    view->requests = rows_of(requests, sizeof(*view->requests), &view->request_count, bad);
    for (size_t i = 0; i < view->request_count; i++) {
        struct store_sched_request *request = &view->requests[i];
        request->id = pg_i64(requests, (int)i, 0);
        request->profile = strcmp(pg_text(requests, (int)i, 1), "profile") == 0;
        request->device = text_of(requests, (int)i, 2, false, bad);
        request->key = text_of(requests, (int)i, 3, false, bad);
        request->digest = text_of(requests, (int)i, 4, false, bad);
        request->tries = (uint32_t)pg_i64(requests, (int)i, 5);
        request->failed = strcmp(pg_text(requests, (int)i, 6), "failed") == 0;
        request->why = text_of(requests, (int)i, 7, true, bad);
        request->deadline_us = pg_i64(requests, (int)i, 8);
    }
    view->links = rows_of(links, sizeof(*view->links), &view->link_count, bad);
    for (size_t i = 0; i < view->link_count; i++) {
        view->links[i].from = text_of(links, (int)i, 0, false, bad);
        view->links[i].to = text_of(links, (int)i, 1, false, bad);
        view->links[i].document = pg_json(links, (int)i, 2);
        *bad = *bad || view->links[i].document == NULL;
    }
}

static void read_wanted(struct store_view *view, const struct pg_result *measures, bool *bad)
{
    view->measures = rows_of(measures, sizeof(*view->measures), &view->measure_count, bad);
    for (size_t i = 0; i < view->measure_count; i++) {
        view->measures[i].spec = pg_json(measures, (int)i, 0);
        view->measures[i].inputs = pg_json(measures, (int)i, 1);
        *bad = *bad || view->measures[i].spec == NULL || view->measures[i].inputs == NULL;
    }
}

/* ---- the call ---- */

static void view_fail(struct store_call *call, const struct err *err)
{
    ((store_view_fn *)call->done)(call->arg, err, NULL);
}

static void view_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    store_view_fn *done = (store_view_fn *)call->done;
    struct store_view *view = calloc(1, sizeof(*view));
    bool bad = view == NULL || count != Q_COUNT;
    if (!bad) {
        view->now_us = pg_i64(results[Q_NOW], 0, 0);
        view->next_due_us = pg_i64(results[Q_NOW], 0, 1);
        read_jobs(view, results[Q_ACTIVE], results[Q_QUEUED], &bad);
        read_runs(view, results[Q_RUNS], results[Q_RANKS], &bad);
        read_cluster(view, results[Q_NODES], results[Q_DEVICES], &bad);
        read_measurements(view, results[Q_REQUESTS], results[Q_LINKS], &bad);
        read_wanted(view, results[Q_MEASURES], &bad);
    }
    if (bad) {
        struct err err;
        store_view_destroy(view);
        err_set(&err, ERR_NOMEM, "no memory for the scheduler's view");
        done(call->arg, &err, NULL);
        return;
    }
    done(call->arg, NULL, view);
}

int store_sched_load(struct store *store, unsigned queue_max, const struct store_queue_mark *behind,
                     store_view_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    struct pg_step steps[Q_COUNT];
    pg_params_init(&params);
    pg_param_i64(&params, queue_max);
    if (behind->set) {
        pg_param_i64(&params, behind->priority);
        pg_param_i64(&params, behind->id);
    } else {
        pg_param_null(&params);
        pg_param_null(&params);
    }
    for (int i = 0; i < Q_COUNT; i++) {
        steps[i] = (struct pg_step){&statements[i], i == Q_QUEUED ? &params : NULL};
    }
    int rc = store_run(store, steps, Q_COUNT, 0,
                       store_call_create(view_deliver, view_fail, (void (*)(void))done, arg, NULL, err), err);
    pg_params_fini(&params);
    return rc;
}

/* ---- smaller reads ---- */

static const struct pg_statement get_profiles = {
    "profiles_get",
    "SELECT coalesce(json_agg(json_build_object('device', p.device, 'document', p.document)), '[]'::json) "
    "FROM profiles p JOIN devices d ON d.name = p.device AND d.digest = p.digest WHERE p.key = $1",
    PG_READ};
static const struct pg_statement get_run = {
    "sched_run_get",
    "SELECT json_build_object('spec', j.spec, 'inputs', j.inputs, 'plan', r.plan, 'steps', j.steps, 'step', "
    "j.step, "
    "'started_s', coalesce(extract(epoch FROM r.started_at - r.created_at), 0)) "
    "FROM runs r JOIN jobs j ON j.id = r.job WHERE r.id = $1",
    PG_READ};
static const struct pg_statement list_outbox = {
    "outbox_list",
    "SELECT json_build_object('incarnation', (SELECT incarnation FROM cluster), 'messages', "
    "(SELECT coalesce(json_agg(json_build_object('id', id, 'node', node, 'run', run, 'type', type, "
    "'payload', payload) ORDER BY id), '[]'::json) FROM outbox))",
    PG_READ};
static const struct pg_statement fresh_numbers = {
    "sched_numbers",
    "SELECT json_build_object('run', CASE WHEN $1::integer > 0 THEN nextval('runs_id_seq') END, "
    "'epoch', CASE WHEN $1 > 0 THEN nextval('run_epochs') END, 'assignments', "
    "(SELECT coalesce(json_agg(nextval('assignments_id_seq')), '[]'::json) FROM generate_series(1, $1)), "
    "'requests', (SELECT coalesce(json_agg(nextval('requests_id_seq')), '[]'::json) "
    "FROM generate_series(1, $2::integer)))",
    PG_WRITE};

int store_profiles_get(struct store *store, const char *key, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, key);
    return store_one_doc(store, &get_profiles, &params, NULL, done, arg, err);
}

int store_sched_run_get(struct store *store, int64_t run, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, run);
    return store_one_doc(store, &get_run, &params, NULL, done, arg, err);
}

int store_outbox_list(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    return store_one_doc(store, &list_outbox, NULL, NULL, done, arg, err);
}

int store_sched_numbers(struct store *store, unsigned ranks, unsigned requests, store_doc_fn *done, void *arg,
                        struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, ranks);
    pg_param_i64(&params, requests);
    return store_one_doc(store, &fresh_numbers, &params, "no numbers", done, arg, err);
}
