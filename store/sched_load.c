/* Reads everything that a scheduling decision depends on, in one transaction. */
#include "store/links.h"
#include "store/queue_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    Q_NOW,
    Q_ACTIVE,
    /* the whole queue, if it is to be compared; Q_CHANGES, which follows, reads what changed since */
    Q_WHOLE,
    Q_CHANGES,
    Q_RUNS,
    Q_RANKS,
    Q_NODES,
    Q_DEVICES,
    Q_REQUESTS,
    /* as Q_WHOLE and Q_CHANGES, for the links */
    Q_LINKS_WHOLE,
    Q_LINKS,
    Q_MEASURES,
    Q_ACCOUNTS,
    Q_USERS,
    Q_USES,
    Q_LEASES,
    Q_DEPENDENTS,
    Q_ARRAYS,
    Q_ASKED,
    Q_COUNT
};

/* clang-format off */
#define ACTIVE "('starting', 'running', 'stopping')"
/* The statements of Q_WHOLE and Q_CHANGES are store_queue_whole and store_queue_changes (queue.c); those of
 * Q_LINKS_WHOLE and Q_LINKS are in links.c. */
static const struct pg_statement statements[Q_COUNT] = {
    [Q_NOW] = {"sched_now",
               "SELECT " MICROS("now()") ", (SELECT " MICROS("min(greatest(not_before, begin_at))") " FROM jobs "
               "WHERE state = 'queued' AND greatest(not_before, begin_at) > now()), (SELECT coalesce(stddev_samp(ln(measured_s / step_s)), 0) "
               "  FROM (SELECT measured_s, step_s FROM runs WHERE measured_s > 0 AND step_s > 0 ORDER BY id DESC LIMIT 64) m HAVING count(*) >= 8)",
               PG_READ},
    [Q_ACTIVE] = {"sched_active",
                  "SELECT " JOB_COLUMNS " FROM jobs j "
                  "WHERE j.id IN (SELECT job FROM runs WHERE state IN " ACTIVE ") ORDER BY j.id",
                  PG_READ},
    [Q_RUNS] = {"sched_runs",
                "SELECT id, job, epoch, attempt, state, stop_why, " MICROS("created_at") ", " MICROS("started_at")
                ", " MICROS("stopping_at") ", " MICROS("killed_at") ", why, "
                "EXISTS (SELECT 1 FROM checkpoints c WHERE c.job = r.job AND c.complete AND c.step > r.start_step), "
                "(SELECT count(*) FROM runs p WHERE p.job = r.job AND p.state = 'lost' AND p.start_step = r.start_step), "
                "coalesce(step_s, 0), save_bytes, " MICROS("saved_at") ", " MICROS("save_asked_at") ", " MICROS("save_by")
                ", coalesce(save_for, 0), saves_missed, start_step, load_bytes, "
                "(SELECT t.document FROM trials t WHERE t.job = r.job AND t.open), coalesce(corrected, 0) FROM runs r WHERE state IN " ACTIVE " ORDER BY id",
                PG_READ},
    [Q_RANKS] = {"sched_ranks",
                 "SELECT a.run, a.id, a.rank, a.node, a.device, a.state, a.last_seq, a.address, a.identity, a.code, "
                 "a.why, a.own_fault, coalesce(a.busy_s, 0), coalesce(a.compute_s, 0), a.measured FROM assignments a JOIN runs r ON r.id = a.run WHERE r.state IN " ACTIVE
                 " ORDER BY a.run, a.rank",
                 PG_READ},
    [Q_NODES] = {"sched_nodes",
                 "SELECT name, boot, machine_id, address, state, last_seq, generation, redis_hash, seal_key, "
                 "redis_hash IS NOT NULL AND seal_key IS NOT NULL AND NOT barred, "
                 "CASE WHEN leaves_at IS NULL THEN 9223372036854775807 ELSE " MICROS("leaves_at") " END "
                 "FROM nodes WHERE removed_at IS NULL ORDER BY name",
                 PG_READ},
    [Q_DEVICES] = {"sched_devices",
                   "SELECT d.name, node, kind, digest, d.inventory, memory_limit_bytes, present, drained, "
                   "drain_why, health, coalesce(d.owner, 0), n.inventory -> 'lacking' ->> d.name, "
                   "CASE WHEN d.drain_at = 'infinity' THEN 9223372036854775807 ELSE " MICROS("nullif(d.drain_at, 'infinity')") " END FROM devices d "
                   "JOIN nodes n ON n.name = node AND n.removed_at IS NULL ORDER BY d.name",
                   PG_READ},
    [Q_REQUESTS] = {"sched_requests",
                    "SELECT id, kind, device, key, digest, tries, state, why, " MICROS("deadline_at") ", unreachable"
                    " FROM requests ORDER BY id",
                    PG_READ},
    [Q_MEASURES] = {"sched_measures",
                    "SELECT spec, inputs FROM measures WHERE until > now() ORDER BY until DESC LIMIT 16", PG_READ},
    [Q_ACCOUNTS] = {"sched_accounts",
                    "SELECT id, coalesce(parent, 0), name, weight, devices_max, running_max, month_seconds_max, slice_s "
                    "FROM groups ORDER BY id", PG_READ},
    [Q_USERS] = {"sched_users",
                 "SELECT id, name, disabled, devices_max, running_max, month_seconds_max FROM users ORDER BY id", PG_READ},
    [Q_USES] = {"sched_uses",
                "SELECT l.job, l.user_id, coalesce(g.id, 0), " MICROS("l.begins") ", " MICROS("l.ends")
                ", coalesce(l.closed, 0), l.speed * l.factor FROM ledger l LEFT JOIN groups g ON g.name = l.account "
                "WHERE l.ends IS NULL OR (l.closed > $1 AND l.ends > to_timestamp($2::bigint / 1e6)) "
                "ORDER BY l.closed NULLS LAST", PG_READ},
    [Q_LEASES] = {"sched_leases",
                  "SELECT l.id, l.device, u.name, " MICROS("l.begins") ", " MICROS("l.ends") ", l.opened, l.kind = 'maintenance' "
                  "FROM leases l JOIN users u ON u.id = l.user_id WHERE NOT l.settled ORDER BY l.id", PG_READ},
    [Q_DEPENDENTS] = {"sched_dependents",
                      "SELECT j.id, j.state, coalesce(d.open, 0), coalesce(b.id, 0), coalesce(b.state, 'succeeded') FROM jobs j "
                      "CROSS JOIN LATERAL (SELECT min(o.id) FILTER (WHERE o.state NOT IN ('succeeded', 'failed', 'cancelled')) AS open, "
                      "    min(o.id) FILTER (WHERE o.state IN ('failed', 'cancelled') AND NOT a.however) AS bad "
                      "  FROM job_after a JOIN jobs o ON o.id = a.after WHERE a.job = j.id) d LEFT JOIN jobs b ON b.id = d.bad "
                      "WHERE j.depends AND j.state IN ('held', 'queued') AND (b.id IS NOT NULL OR (j.state = 'queued' AND "
                      "  (d.open IS NULL OR d.open IS DISTINCT FROM j.wait_subject))) ORDER BY j.id LIMIT 1000", PG_READ},
    [Q_ARRAYS] = {"sched_arrays",
                  "SELECT j.id, j.state, j.stop_why, j.array_size, j.array_made, j.at_most, e.open, e.waiting, e.held, coalesce(b.bad, 0), "
                  "  coalesce(b.first, 0), CASE WHEN m.makes THEN j.spec END, CASE WHEN m.makes THEN j.inputs END FROM jobs j "
                  "CROSS JOIN LATERAL (SELECT count(*) AS open, count(*) FILTER (WHERE state = 'queued') AS waiting, "
                  "    count(*) FILTER (WHERE state = 'held') AS held FROM jobs o "
                  "  WHERE o.array_of = j.id AND o.state NOT IN ('succeeded', 'failed', 'cancelled')) e "
                  "CROSS JOIN LATERAL (SELECT j.state = 'queued' AND NOT j.depends AND j.array_made < j.array_size "
                  "    AND coalesce(greatest(j.not_before, j.begin_at) <= now(), true) AS makes) m "
                  "LEFT JOIN LATERAL (SELECT count(*) AS bad, min(o.id) AS first FROM jobs o WHERE o.array_of = j.id "
                  "    AND o.state IN ('failed', 'cancelled')) b ON e.open = 0 AND j.array_made = j.array_size "
                  "WHERE j.array_size > 0 AND j.state IN ('queued', 'running', 'stopping') ORDER BY j.id", PG_READ},
    [Q_ASKED] = {"sched_asked",
                 "SELECT json_build_object('sooner', (SELECT coalesce(json_agg(json_build_array(s.job, s.age)), '[]') FROM (SELECT job, extract(epoch FROM now() - asked_at) AS age FROM sooner "
                 "    WHERE answered_at IS NULL ORDER BY asked_at LIMIT 4) s), 'starts', (SELECT coalesce(json_agg(json_build_array("
                 "    extract(epoch FROM a.starts_at - a.said_at), extract(epoch FROM a.started_at - a.said_at), a.said_place, "
                 MICROS("a.started_at") ") ORDER BY a.started_at), '[]') FROM (SELECT * FROM arrivals WHERE said_at IS NOT NULL "
                 "    AND started_at > to_timestamp($1::bigint / 1e6) ORDER BY started_at DESC LIMIT 512) a))", PG_READ},
};
/* clang-format on */

/* ---- memory: a view's arrays and texts are allocated in order and freed as a whole ---- */

enum { BLOCK_BYTES = 65536 };

struct view_block {
    struct view_block *next;
    size_t size, used;
    max_align_t bytes[];
};

/* Returns zeroed memory that lives as long as the view; NULL without memory, and the view is then
 * incomplete. */
static void *view_alloc(struct store_view *view, size_t size)
{
    struct view_block *block = view->memory;
    size = (size + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    if (!block || block->size - block->used < size) {
        size_t room = size > BLOCK_BYTES ? size : BLOCK_BYTES;
        block = calloc(1, sizeof(*block) + room);
        if (!block) {
            view->incomplete = true;
            return NULL;
        }
        *block = (struct view_block){.next = view->memory, .size = room};
        view->memory = block;
    }
    block->used += size;
    return (char *)block->bytes + block->used - size;
}

void store_view_destroy(struct store_view *view)
{
    if (!view)
        return;
    for (size_t i = 0; i < view->device_count; i++)
        json_decref(view->devices[i].health);
    for (struct view_block *block = view->memory, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    json_decref(view->documents);
    free(view);
}

char *store_view_text(struct store_view *view, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = view_alloc(view, size);
    return copy ? memcpy(copy, text, size) : NULL;
}

/* ---- rows to structs ---- */

static char *text_of(struct store_view *view, const struct pg_result *result, int row, int column,
                     bool nullable)
{
    return nullable && pg_is_null(result, row, column) ? NULL
                                                       : store_view_text(view, pg_text(result, row, column));
}

/* Returns a column's document, which the view owns; NULL for null. A document that cannot be read counts as
 * JSON's null: it costs its own row what it says, and no other row the load. */
static json_t *document_of(struct store_view *view, const struct pg_result *result, int row, int column)
{
    if (pg_is_null(result, row, column))
        return NULL;
    json_t *read = pg_json(result, row, column), *document = read ? read : json_null();
    if (json_array_append_new(view->documents, document) == 0)
        return document;
    view->incomplete = true;
    return NULL;
}

static void *rows_of(struct store_view *view, const struct pg_result *result, size_t size, size_t *count)
{
    void *memory = view_alloc(view, (size_t)pg_rows(result) * size);
    *count = memory ? (size_t)pg_rows(result) : 0;
    return memory;
}

static enum stop_why stop_of(const struct pg_result *result, int row, int column)
{
    return stop_why_from_name(pg_is_null(result, row, column) ? NULL : pg_text(result, row, column));
}

static void read_jobs(struct store_view *view, const struct pg_result *active)
{
    view->jobs = rows_of(view, active, sizeof(*view->jobs), &view->job_count);
    for (size_t i = 0; i < view->job_count; i++) {
        store_read_job(active, (int)i, &view->jobs[i]);
        view->jobs[i].why = text_of(view, active, (int)i, JOB_WHY, true);
    }
}

/* Brings the queue up to date. If the queue was also read whole, the same changes are applied to that copy;
 * both are then of the same snapshot and can be compared. */
static int read_queue(struct store_view *view, struct store_queue *queue, const struct pg_result *whole,
                      const struct pg_result *changes, struct err *err)
{
    if (store_queue_take(queue, changes, err) < 0 || pg_rows(whole) == 0)
        return pg_rows(whole) == 0 ? 0 : -1;
    struct store_queue *fresh = store_queue_create(err);
    int rc = fresh ? store_queue_take(fresh, whole, err) : -1;
    rc = rc < 0 ? -1 : store_queue_take(fresh, changes, err);
    if (rc == 0 && store_queue_differs(queue, fresh, view->differs))
        store_queue_swap(queue, fresh);
    store_queue_destroy(fresh);
    return rc;
}

static void read_rank(struct store_view *view, const struct pg_result *result, int row,
                      struct store_sched_rank *rank)
{
    rank->assignment = pg_i64(result, row, 1);
    rank->rank = (uint32_t)pg_i64(result, row, 2);
    rank->node = text_of(view, result, row, 3, false);
    rank->device = text_of(view, result, row, 4, false);
    rank->state = (enum assignment_state)state_from_name(&assignment_machine, pg_text(result, row, 5));
    rank->last_seq = pg_i64(result, row, 6);
    rank->address = text_of(view, result, row, 7, true);
    rank->identity = text_of(view, result, row, 8, true);
    rank->code = text_of(view, result, row, 9, true);
    rank->why = text_of(view, result, row, 10, true);
    rank->own_fault = pg_bool(result, row, 11);
    rank->busy_s = pg_f64(result, row, 12);
    rank->compute_s = pg_f64(result, row, 13);
    rank->measured = (uint32_t)pg_i64(result, row, 14);
}

/* Both results are sorted by run, so one pass over the ranks assigns them to their runs. */
static void read_runs(struct store_view *view, const struct pg_result *runs, const struct pg_result *ranks)
{
    view->runs = rows_of(view, runs, sizeof(*view->runs), &view->run_count);
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
        run->why = text_of(view, runs, row, 10, true);
        run->advanced = pg_bool(runs, row, 11);
        run->lost_before = (uint32_t)pg_i64(runs, row, 12);
        run->step_s = pg_f64(runs, row, 13);
        run->save_bytes = (uint64_t)pg_i64(runs, row, 14);
        run->saved_us = pg_i64(runs, row, 15);
        run->save_asked_us = pg_i64(runs, row, 16);
        run->save_by_us = pg_i64(runs, row, 17);
        run->save_for = pg_i64(runs, row, 18);
        run->saves_missed = (uint32_t)pg_i64(runs, row, 19);
        run->start_step = pg_i64(runs, row, 20);
        run->load_bytes = (uint64_t)pg_i64(runs, row, 21);
        run->trial = document_of(view, runs, row, 22);
        run->corrected = pg_f64(runs, row, 23);
        while (at < total && pg_i64(ranks, at, 0) < run->id)
            at++;
        int end = at;
        while (end < total && pg_i64(ranks, end, 0) == run->id)
            end++;
        run->ranks = view_alloc(view, (size_t)(end - at) * sizeof(*run->ranks));
        for (; run->ranks && at < end; at++)
            read_rank(view, ranks, at, &run->ranks[run->rank_count++]);
    }
}

void store_sched_health(struct store_sched_device *device, json_t *health)
{
    const double heat = json_number_value(json_object_get(health, "heat"));
    const json_t *usable = json_object_get(health, "usable_bytes");
    const json_int_t bytes = json_integer_value(usable);
    if (health != device->health)
        json_decref(device->health);
    device->health = health;
    device->heat = heat > 0 && heat <= 1 ? heat : 1;
    device->usable_bytes =
        json_is_integer(usable) && bytes >= 0 && (uint64_t)bytes < device->memory_limit_bytes
            ? (uint64_t)bytes
            : device->memory_limit_bytes;
}

static void read_cluster(struct store_view *view, const struct pg_result *nodes,
                         const struct pg_result *devices)
{
    view->nodes = rows_of(view, nodes, sizeof(*view->nodes), &view->node_count);
    for (size_t i = 0; i < view->node_count; i++) {
        struct store_sched_node *node = &view->nodes[i];
        node->name = text_of(view, nodes, (int)i, 0, false);
        node->boot = text_of(view, nodes, (int)i, 1, true);
        node->machine_id = text_of(view, nodes, (int)i, 2, false);
        node->address = text_of(view, nodes, (int)i, 3, false);
        node->reachable = strcmp(pg_text(nodes, (int)i, 4), "alive") == 0;
        node->joining = strcmp(pg_text(nodes, (int)i, 4), "joining") == 0;
        node->last_seq = pg_i64(nodes, (int)i, 5);
        node->generation = pg_i64(nodes, (int)i, 6);
        node->admitted = pg_bool(nodes, (int)i, 9) &&
                         pg_bytes(nodes, (int)i, 7, node->redis_hash, 32) == 32 &&
                         pg_bytes(nodes, (int)i, 8, node->seal_key, 32) == 32;
        node->reachable = node->reachable && node->admitted;
        node->leaves_us = pg_i64(nodes, (int)i, 10);
    }
    view->devices = rows_of(view, devices, sizeof(*view->devices), &view->device_count);
    for (size_t i = 0; i < view->device_count; i++) {
        struct store_sched_device *device = &view->devices[i];
        device->name = text_of(view, devices, (int)i, 0, false);
        device->node = text_of(view, devices, (int)i, 1, false);
        device->kind = text_of(view, devices, (int)i, 2, false);
        device->digest = text_of(view, devices, (int)i, 3, false);
        device->inventory = document_of(view, devices, (int)i, 4);
        device->memory_limit_bytes = (uint64_t)pg_i64(devices, (int)i, 5);
        device->present = pg_bool(devices, (int)i, 6);
        device->drained = pg_bool(devices, (int)i, 7);
        device->drain_why = text_of(view, devices, (int)i, 8, true);
        device->owner = pg_i64(devices, (int)i, 10);
        device->lacks = text_of(view, devices, (int)i, 11, true);
        device->drain_at_us = pg_i64(devices, (int)i, 12);
        store_sched_health(device, pg_is_null(devices, (int)i, 9) ? NULL : pg_json(devices, (int)i, 9));
    }
}

static void read_requests(struct store_view *view, const struct pg_result *requests)
{
    view->requests = rows_of(view, requests, sizeof(*view->requests), &view->request_count);
    for (size_t i = 0; i < view->request_count; i++) {
        struct store_sched_request *request = &view->requests[i];
        request->id = pg_i64(requests, (int)i, 0);
        request->profile = strcmp(pg_text(requests, (int)i, 1), "profile") == 0;
        request->device = text_of(view, requests, (int)i, 2, false);
        request->key = text_of(view, requests, (int)i, 3, false);
        request->digest = text_of(view, requests, (int)i, 4, false);
        request->tries = (uint32_t)pg_i64(requests, (int)i, 5);
        request->failed = strcmp(pg_text(requests, (int)i, 6), "failed") == 0;
        request->why = text_of(view, requests, (int)i, 7, true);
        request->deadline_us = pg_i64(requests, (int)i, 8);
        request->unreachable = pg_bool(requests, (int)i, 9);
    }
}

static void read_wanted(struct store_view *view, const struct pg_result *measures)
{
    view->measures = rows_of(view, measures, sizeof(*view->measures), &view->measure_count);
    for (size_t i = 0; i < view->measure_count; i++) {
        view->measures[i].spec = document_of(view, measures, (int)i, 0);
        view->measures[i].inputs = document_of(view, measures, (int)i, 1);
    }
}

static struct store_limits limits_of(const struct pg_result *result, int row, int column)
{
    return (struct store_limits){.devices_max = (uint32_t)pg_i64(result, row, column),
                                 .running_max = (uint32_t)pg_i64(result, row, column + 1),
                                 .month_seconds_max = pg_f64(result, row, column + 2)};
}

static void read_sharing(struct store_view *view, const struct pg_result *accounts,
                         const struct pg_result *users, const struct pg_result *uses)
{
    view->accounts = rows_of(view, accounts, sizeof(*view->accounts), &view->account_count);
    for (size_t i = 0; i < view->account_count; i++)
        view->accounts[i] = (struct store_sched_account){.id = pg_i64(accounts, (int)i, 0),
                                                         .parent = pg_i64(accounts, (int)i, 1),
                                                         .name = text_of(view, accounts, (int)i, 2, false),
                                                         .weight = pg_f64(accounts, (int)i, 3),
                                                         .slice_s = pg_f64(accounts, (int)i, 7),
                                                         .limits = limits_of(accounts, (int)i, 4)};
    view->users = rows_of(view, users, sizeof(*view->users), &view->user_count);
    for (size_t i = 0; i < view->user_count; i++)
        view->users[i] = (struct store_sched_user){.id = pg_i64(users, (int)i, 0),
                                                   .name = text_of(view, users, (int)i, 1, false),
                                                   .disabled = pg_bool(users, (int)i, 2),
                                                   .limits = limits_of(users, (int)i, 3)};
    view->uses = rows_of(view, uses, sizeof(*view->uses), &view->use_count);
    for (size_t i = 0; i < view->use_count; i++)
        view->uses[i] = (struct store_sched_use){.job = pg_i64(uses, (int)i, 0),
                                                 .user = pg_i64(uses, (int)i, 1),
                                                 .account = pg_i64(uses, (int)i, 2),
                                                 .begins_us = pg_i64(uses, (int)i, 3),
                                                 .ends_us = pg_i64(uses, (int)i, 4),
                                                 .closed = pg_i64(uses, (int)i, 5),
                                                 .rate = pg_f64(uses, (int)i, 6)};
}

static void read_leases(struct store_view *view, const struct pg_result *leases)
{
    view->leases = rows_of(view, leases, sizeof(*view->leases), &view->lease_count);
    for (size_t i = 0; i < view->lease_count; i++)
        view->leases[i] = (struct store_sched_lease){.id = pg_i64(leases, (int)i, 0),
                                                     .device = text_of(view, leases, (int)i, 1, false),
                                                     .holder = text_of(view, leases, (int)i, 2, false),
                                                     .begins_us = pg_i64(leases, (int)i, 3),
                                                     .ends_us = pg_i64(leases, (int)i, 4),
                                                     .opened = pg_bool(leases, (int)i, 5),
                                                     .maintenance = pg_bool(leases, (int)i, 6)};
}

static void read_dependents(struct store_view *view, const struct pg_result *dependents)
{
    view->dependents = rows_of(view, dependents, sizeof(*view->dependents), &view->dependent_count);
    for (size_t i = 0; i < view->dependent_count; i++)
        view->dependents[i] = (struct store_sched_dependent){
            .id = pg_i64(dependents, (int)i, 0),
            .state = (enum job_state)state_from_name(&job_machine, pg_text(dependents, (int)i, 1)),
            .open = pg_i64(dependents, (int)i, 2),
            .bad = pg_i64(dependents, (int)i, 3),
            .bad_state = (enum job_state)state_from_name(&job_machine, pg_text(dependents, (int)i, 4))};
}

static void read_arrays(struct store_view *view, const struct pg_result *arrays)
{
    view->arrays = rows_of(view, arrays, sizeof(*view->arrays), &view->array_count);
    for (size_t i = 0; i < view->array_count; i++) {
        const int row = (int)i;
        const bool makes = !pg_is_null(arrays, row, 11);
        view->arrays[i] = (struct store_sched_array){
            .id = pg_i64(arrays, row, 0),
            .state = (enum job_state)state_from_name(&job_machine, pg_text(arrays, row, 1)),
            .stop_why = stop_of(arrays, row, 2),
            .size = (uint32_t)pg_i64(arrays, row, 3),
            .made = (uint32_t)pg_i64(arrays, row, 4),
            .at_most = (uint32_t)pg_i64(arrays, row, 5),
            .open = (uint32_t)pg_i64(arrays, row, 6),
            .waiting = (uint32_t)pg_i64(arrays, row, 7),
            .held = (uint32_t)pg_i64(arrays, row, 8),
            .bad = (uint32_t)pg_i64(arrays, row, 9),
            .first_bad = pg_i64(arrays, row, 10),
            .spec = makes ? document_of(view, arrays, row, 11) : NULL,
            .inputs = makes ? document_of(view, arrays, row, 12) : NULL};
    }
}

/* ---- the call ---- */

/* A load under way: what is kept in memory, and the caller's callback. */
struct load_call {
    struct store_queue *queue;
    struct store_links *links; /* may be NULL */
    /* values of store_queue_forgotten and store_links_forgotten when the load began */
    unsigned forgotten, links_forgotten;
    store_view_fn *done;
    void *arg;
};

static void view_fail(struct store_call *call, const struct err *err)
{
    struct load_call *load = call->arg;
    load->done(load->arg, err, NULL);
    free(load);
}

static void view_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    struct load_call load = *(struct load_call *)call->arg;
    struct store_view *view = calloc(1, sizeof(*view));
    struct err err;
    free(call->arg);
    err_set(&err, ERR_NOMEM, "no memory for the scheduler's view");
    if (view)
        view->documents = json_array();
    if (view && count == Q_COUNT) {
        view->now_us = pg_i64(results[Q_NOW], 0, 0);
        view->next_due_us = pg_i64(results[Q_NOW], 0, 1);
        view->forecast_spread = pg_is_null(results[Q_NOW], 0, 2) ? -1 : pg_f64(results[Q_NOW], 0, 2);
        read_jobs(view, results[Q_ACTIVE]);
        if (store_queue_forgotten(load.queue) != load.forgotten)
            view->incomplete = err_set(&err, ERR_CANCELLED, "the queue was forgotten meanwhile") < 0;
        else if (read_queue(view, load.queue, results[Q_WHOLE], results[Q_CHANGES], &err) < 0)
            view->incomplete = true;
        read_runs(view, results[Q_RUNS], results[Q_RANKS]);
        read_cluster(view, results[Q_NODES], results[Q_DEVICES]);
        read_requests(view, results[Q_REQUESTS]);
        if (load.links && store_links_forgotten(load.links) != load.links_forgotten)
            view->incomplete = err_set(&err, ERR_CANCELLED, "the links were forgotten meanwhile") < 0;
        else if (load.links &&
                 store_links_load(load.links, results[Q_LINKS_WHOLE], results[Q_LINKS], view, &err) < 0)
            view->incomplete = true;
        read_wanted(view, results[Q_MEASURES]);
        read_sharing(view, results[Q_ACCOUNTS], results[Q_USERS], results[Q_USES]);
        read_leases(view, results[Q_LEASES]);
        read_dependents(view, results[Q_DEPENDENTS]);
        read_arrays(view, results[Q_ARRAYS]);
        view->asked = document_of(view, results[Q_ASKED], 0, 0);
    }
    if (!view || count != Q_COUNT || view->incomplete) {
        store_view_destroy(view);
        load.done(load.arg, &err, NULL);
        return;
    }
    load.done(load.arg, NULL, view);
}

/* Fills in all statements, and the parameters of those that have some. */
static void load_steps(const struct store_sched_want *want, struct pg_step steps[Q_COUNT],
                       struct pg_params params[Q_COUNT])
{
    const char *snapshot = store_queue_snapshot(want->queue);
    for (int i = 0; i < Q_COUNT; i++) {
        pg_params_init(&params[i]);
        steps[i] = (struct pg_step){&statements[i], &params[i]};
    }
    steps[Q_WHOLE].statement = &store_queue_whole;
    pg_param_bool(&params[Q_WHOLE], want->check && snapshot);
    steps[Q_CHANGES].statement = snapshot ? &store_queue_changes : &store_queue_whole;
    if (snapshot)
        pg_param_text(&params[Q_CHANGES], snapshot);
    else
        pg_param_bool(&params[Q_CHANGES], true);
    const char *linked = want->links ? store_links_snapshot(want->links) : NULL;
    steps[Q_LINKS_WHOLE].statement = &store_links_whole;
    pg_param_bool(&params[Q_LINKS_WHOLE], want->check && linked);
    steps[Q_LINKS].statement = linked ? &store_links_changes : &store_links_whole;
    if (linked)
        pg_param_text(&params[Q_LINKS], linked);
    else
        pg_param_bool(&params[Q_LINKS], want->links != NULL);
    pg_param_i64(&params[Q_USES], want->closed);
    pg_param_i64(&params[Q_USES], want->use_from_us);
    pg_param_i64(&params[Q_ASKED], want->started_us);
}

int store_sched_load(struct store *store, const struct store_sched_want *want, store_view_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params[Q_COUNT];
    struct pg_step steps[Q_COUNT];
    struct load_call *load = calloc(1, sizeof(*load));
    if (!load)
        return err_set(err, ERR_NOMEM, "no memory for a database call");
    if (!store_queue_snapshot(want->queue))
        store_queue_forget(want->queue);
    if (want->links && !store_links_snapshot(want->links))
        store_links_forget(want->links);
    *load = (struct load_call){want->queue,
                               want->links,
                               store_queue_forgotten(want->queue),
                               want->links ? store_links_forgotten(want->links) : 0,
                               done,
                               arg};
    load_steps(want, steps, params);
    int rc = store_run(store, steps, Q_COUNT, 0,
                       store_call_create(view_deliver, view_fail, NULL, load, NULL, err), err);
    for (int i = 0; i < Q_COUNT; i++)
        pg_params_fini(&params[i]);
    if (rc < 0)
        free(load);
    return rc;
}

/* ---- smaller reads ---- */

static const struct pg_statement get_profiles = {
    "profiles_get",
    "SELECT coalesce(json_agg(json_build_object('device', p.device, 'document', p.document, 'speed', "
    "CASE WHEN s.at > p.measured_at THEN s.speed END, 'taught', t.runs, 'stale', coalesce((s.speed < 0.9 "
    "AND s.at + $2::bigint * interval '1 ms' < now() AND p.measured_at < s.at + (now() - s.at) / 2 "
    "OR (p.document ->> 'noise')::float8 > 0 AND p.measured_at + $2::bigint * interval '10 ms' < now()) "
    "AND NOT EXISTS (SELECT 1 FROM assignments a WHERE a.device = p.device AND a.state IN ('sent', 'ready', "
    "'running')), "
    "false))), '[]'::json) FROM profiles p JOIN devices d ON d.name = p.device AND d.digest = p.digest "
    "LEFT JOIN device_speeds s ON s.device = p.device AND s.key = p.key "
    "LEFT JOIN " TAUGHT_RUNS " t ON t.device = p.device WHERE p.key = $1",
    PG_READ};
static const struct pg_statement get_run = {
    "sched_run_get",
    "SELECT json_build_object('spec', j.spec, 'inputs', j.inputs, 'plan', r.plan, 'steps', j.steps, 'step', "
    "j.step, "
    "'started_s', coalesce(extract(epoch FROM r.started_at - r.created_at), 0), 'moves', "
    "(SELECT count(*) FROM runs m WHERE m.job = j.id AND m.stop_why = 'yield') - coalesce((t.document ->> "
    "'moves')::integer, 0), 'trial', t.document) "
    "FROM runs r JOIN jobs j ON j.id = r.job LEFT JOIN trials t ON t.job = j.id WHERE r.id = $1",
    PG_READ};
/* clang-format off */
static const struct pg_statement get_trial = {
    "trial_get",
    "SELECT json_build_object('repeats', coalesce(r.answer ->> 'repeats', r.answer ->> 'digest'), "
    "  'started_s', coalesce(extract(epoch FROM r.started_at - r.created_at), 0), "
    "  'gap_s', (SELECT extract(epoch FROM r.started_at - p.stopping_at) FROM runs p "
    "    WHERE p.job = r.job AND p.attempt = r.attempt - 1 AND p.stop_why = 'yield'), "
    "  'lines', (SELECT coalesce(json_agg(json_build_array(m.seconds, m.tokens)), '[]') "
    "    FROM (SELECT " STEP_SECONDS " AS seconds, m.document -> 'tokens' AS tokens FROM metrics m "
    "      WHERE m.job = r.job AND m.kind = 'step' AND m.step > r.reported ORDER BY m.step LIMIT 256) m)) "
    "FROM runs r WHERE r.id = $1",
    PG_READ};
/* clang-format on */
static const struct pg_statement list_outbox = {
    "outbox_list",
    "SELECT json_build_object('incarnation', (SELECT incarnation FROM cluster), 'messages', "
    "(SELECT coalesce(json_agg(json_build_object('id', id, 'node', node, 'run', run, 'type', type, "
    "'payload', payload) ORDER BY id), '[]'::json) FROM outbox), 'plans', "
    "(SELECT coalesce(json_agg(json_build_object('run', id, 'plan', plan)), '[]'::json) FROM runs "
    "WHERE id IN (SELECT run FROM outbox WHERE type = 'assign' AND payload ->> 'plan_digest' IS NOT NULL)))",
    PG_READ};
static const struct pg_statement fresh_numbers = {
    "sched_numbers",
    "WITH s AS (SELECT * FROM unnest($1::bigint[]) WITH ORDINALITY AS s(id, n)) "
    "SELECT json_build_object('runs', (SELECT coalesce(json_agg(json_build_object('run', "
    "nextval('runs_id_seq'), "
    "'epoch', nextval('run_epochs'))), '[]'::json) FROM s), 'assignments', "
    "(SELECT coalesce(json_agg(nextval('assignments_id_seq')), '[]'::json) FROM generate_series(1, "
    "$2::integer)), "
    "'requests', (SELECT coalesce(json_agg(nextval('requests_id_seq')), '[]'::json) "
    "FROM generate_series(1, $3::integer)), "
    "'jobs', (SELECT coalesce(json_agg(json_build_object('spec', j.spec, 'inputs', j.inputs, 'step', "
    "coalesce(c.step, -1), "
    "'blobs', c.blobs, 'loss', (SELECT min((m.document ->> 'loss')::float8) FROM metrics m "
    "  WHERE m.job = j.id AND m.kind = 'eval' AND m.step <= c.step)) ORDER BY s.n), '[]'::json) "
    "FROM s LEFT JOIN jobs j USING (id) LEFT JOIN LATERAL (SELECT step, blobs FROM checkpoints WHERE job = "
    "s.id AND complete "
    "  ORDER BY step DESC LIMIT 1) c ON true))",
    PG_WRITE};

int store_profiles_get(struct store *store, const char *key, uint32_t remeasure_ms, store_doc_fn *done,
                       void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, key);
    pg_param_i64(&params, remeasure_ms);
    return store_one_doc(store, &get_profiles, &params, NULL, done, arg, err);
}

int store_sched_run_get(struct store *store, int64_t run, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, run);
    return store_one_doc(store, &get_run, &params, NULL, done, arg, err);
}

int store_trial_get(struct store *store, int64_t run, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, run);
    return store_one_doc(store, &get_trial, &params, NULL, done, arg, err);
}

int store_outbox_list(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    return store_one_doc(store, &list_outbox, NULL, NULL, done, arg, err);
}

int store_sched_numbers(struct store *store, const int64_t *jobs, size_t job_count, unsigned ranks,
                        unsigned requests, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64_array(&params, jobs, job_count);
    pg_param_i64(&params, ranks);
    pg_param_i64(&params, requests);
    return store_one_doc(store, &fresh_numbers, &params, "no numbers", done, arg, err);
}
