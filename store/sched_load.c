/* Reads everything that a scheduling decision depends on, in one transaction. */
#include "store/sched_load.sql.h"
#include "store/links.h"
#include "store/links.sql.h"
#include "store/queue_private.h"
#include "store/queue.sql.h"

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

static char *sched_load_text_of(struct store_view *view, const struct pg_result *result, int row, int column,
                                bool nullable)
{
    return nullable && pg_is_null(result, row, column) ? NULL
                                                       : store_view_text(view, pg_text(result, row, column));
}

/* Returns a column's document, which the view owns; NULL for null. A document that cannot be read counts as
 * JSON's null: it costs its own row what it says, and no other row the load. */
static json_t *sched_load_document_of(struct store_view *view, const struct pg_result *result, int row,
                                      int column)
{
    if (pg_is_null(result, row, column))
        return NULL;
    json_t *read = pg_json(result, row, column), *document = read ? read : json_null();
    if (json_array_append_new(view->documents, document) == 0)
        return document;
    view->incomplete = true;
    return NULL;
}

static void *sched_load_rows_of(struct store_view *view, const struct pg_result *result, size_t size,
                                size_t *count)
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
    view->jobs = sched_load_rows_of(view, active, sizeof(*view->jobs), &view->job_count);
    for (size_t i = 0; i < view->job_count; i++) {
        store_read_job(active, (int)i, &view->jobs[i]);
        view->jobs[i].why = sched_load_text_of(view, active, (int)i, JOB_ROW_WHY, true);
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
    rank->assignment = pg_i64(result, row, SCHED_RANKS_ASSIGNMENT);
    rank->rank = (uint32_t)pg_i64(result, row, SCHED_RANKS_RANK);
    rank->node = sched_load_text_of(view, result, row, SCHED_RANKS_NODE, false);
    rank->device = sched_load_text_of(view, result, row, SCHED_RANKS_DEVICE, false);
    rank->state =
        (enum assignment_state)state_from_name(&assignment_machine, pg_text(result, row, SCHED_RANKS_STATE));
    rank->last_seq = pg_i64(result, row, SCHED_RANKS_LAST_SEQ);
    rank->address = sched_load_text_of(view, result, row, SCHED_RANKS_ADDRESS, true);
    rank->identity = sched_load_text_of(view, result, row, SCHED_RANKS_IDENTITY, true);
    rank->code = sched_load_text_of(view, result, row, SCHED_RANKS_CODE, true);
    rank->why = sched_load_text_of(view, result, row, SCHED_RANKS_WHY, true);
    rank->own_fault = pg_bool(result, row, SCHED_RANKS_OWN_FAULT);
    rank->busy_s = pg_f64(result, row, SCHED_RANKS_BUSY_S);
    rank->compute_s = pg_f64(result, row, SCHED_RANKS_COMPUTE_S);
    rank->measured = (uint32_t)pg_i64(result, row, SCHED_RANKS_MEASURED);
}

/* Both results are sorted by run, so one pass over the ranks assigns them to their runs. */
static void read_runs(struct store_view *view, const struct pg_result *runs, const struct pg_result *ranks)
{
    view->runs = sched_load_rows_of(view, runs, sizeof(*view->runs), &view->run_count);
    int total = pg_rows(ranks);
    int at = 0;
    for (size_t i = 0; i < view->run_count; i++) {
        struct store_sched_run *run = &view->runs[i];
        int row = (int)i;
        run->id = pg_i64(runs, row, SCHED_RUNS_ID);
        run->job = pg_i64(runs, row, SCHED_RUNS_JOB);
        run->epoch = pg_i64(runs, row, SCHED_RUNS_EPOCH);
        run->attempt = (uint32_t)pg_i64(runs, row, SCHED_RUNS_ATTEMPT);
        run->state = (enum run_state)state_from_name(&run_machine, pg_text(runs, row, SCHED_RUNS_STATE));
        run->stop_why = stop_of(runs, row, SCHED_RUNS_STOP_WHY);
        run->created_us = pg_i64(runs, row, SCHED_RUNS_CREATED_US);
        run->started_us = pg_i64(runs, row, SCHED_RUNS_STARTED_US);
        run->stopping_us = pg_i64(runs, row, SCHED_RUNS_STOPPING_US);
        run->killed_us = pg_i64(runs, row, SCHED_RUNS_KILLED_US);
        run->why = sched_load_text_of(view, runs, row, SCHED_RUNS_WHY, true);
        run->advanced = pg_bool(runs, row, SCHED_RUNS_ADVANCED);
        run->lost_before = (uint32_t)pg_i64(runs, row, SCHED_RUNS_LOST_BEFORE);
        run->step_s = pg_f64(runs, row, SCHED_RUNS_STEP_S);
        run->save_bytes = (uint64_t)pg_i64(runs, row, SCHED_RUNS_SAVE_BYTES);
        run->saved_us = pg_i64(runs, row, SCHED_RUNS_SAVED_US);
        run->save_asked_us = pg_i64(runs, row, SCHED_RUNS_SAVE_ASKED_US);
        run->save_by_us = pg_i64(runs, row, SCHED_RUNS_SAVE_BY_US);
        run->save_for = pg_i64(runs, row, SCHED_RUNS_SAVE_FOR);
        run->saves_missed = (uint32_t)pg_i64(runs, row, SCHED_RUNS_SAVES_MISSED);
        run->start_step = pg_i64(runs, row, SCHED_RUNS_START_STEP);
        run->load_bytes = (uint64_t)pg_i64(runs, row, SCHED_RUNS_LOAD_BYTES);
        run->trial = sched_load_document_of(view, runs, row, SCHED_RUNS_TRIAL);
        run->corrected = pg_f64(runs, row, SCHED_RUNS_CORRECTED);
        while (at < total && pg_i64(ranks, at, SCHED_RANKS_RUN) < run->id)
            at++;
        int end = at;
        while (end < total && pg_i64(ranks, end, SCHED_RANKS_RUN) == run->id)
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
    view->nodes = sched_load_rows_of(view, nodes, sizeof(*view->nodes), &view->node_count);
    for (size_t i = 0; i < view->node_count; i++) {
        struct store_sched_node *node = &view->nodes[i];
        node->name = sched_load_text_of(view, nodes, (int)i, SCHED_NODES_NAME, false);
        node->boot = sched_load_text_of(view, nodes, (int)i, SCHED_NODES_BOOT, true);
        node->machine_id = sched_load_text_of(view, nodes, (int)i, SCHED_NODES_MACHINE_ID, false);
        node->address = sched_load_text_of(view, nodes, (int)i, SCHED_NODES_ADDRESS, false);
        node->reachable = strcmp(pg_text(nodes, (int)i, SCHED_NODES_STATE), "alive") == 0;
        node->joining = strcmp(pg_text(nodes, (int)i, SCHED_NODES_STATE), "joining") == 0;
        node->last_seq = pg_i64(nodes, (int)i, SCHED_NODES_LAST_SEQ);
        node->generation = pg_i64(nodes, (int)i, SCHED_NODES_GENERATION);
        node->admitted = pg_bool(nodes, (int)i, SCHED_NODES_ADMITTED) &&
                         pg_bytes(nodes, (int)i, SCHED_NODES_REDIS_HASH, node->redis_hash, 32) == 32 &&
                         pg_bytes(nodes, (int)i, SCHED_NODES_SEAL_KEY, node->seal_key, 32) == 32;
        node->reachable = node->reachable && node->admitted;
        node->leaves_us = pg_i64(nodes, (int)i, SCHED_NODES_LEAVES_US);
    }
    view->devices = sched_load_rows_of(view, devices, sizeof(*view->devices), &view->device_count);
    for (size_t i = 0; i < view->device_count; i++) {
        struct store_sched_device *device = &view->devices[i];
        device->name = sched_load_text_of(view, devices, (int)i, SCHED_DEVICES_NAME, false);
        device->node = sched_load_text_of(view, devices, (int)i, SCHED_DEVICES_NODE, false);
        device->kind = sched_load_text_of(view, devices, (int)i, SCHED_DEVICES_KIND, false);
        device->digest = sched_load_text_of(view, devices, (int)i, SCHED_DEVICES_DIGEST, false);
        device->inventory = sched_load_document_of(view, devices, (int)i, SCHED_DEVICES_INVENTORY);
        device->memory_limit_bytes = (uint64_t)pg_i64(devices, (int)i, SCHED_DEVICES_MEMORY_LIMIT_BYTES);
        device->present = pg_bool(devices, (int)i, SCHED_DEVICES_PRESENT);
        device->drained = pg_bool(devices, (int)i, SCHED_DEVICES_DRAINED);
        device->drain_why = sched_load_text_of(view, devices, (int)i, SCHED_DEVICES_DRAIN_WHY, true);
        device->owner = pg_i64(devices, (int)i, SCHED_DEVICES_OWNER);
        device->lacks = sched_load_text_of(view, devices, (int)i, SCHED_DEVICES_LACKS, true);
        device->drain_at_us = pg_i64(devices, (int)i, SCHED_DEVICES_DRAIN_AT_US);
        store_sched_health(device, pg_is_null(devices, (int)i, SCHED_DEVICES_HEALTH)
                                       ? NULL
                                       : pg_json(devices, (int)i, SCHED_DEVICES_HEALTH));
    }
}

static void read_requests(struct store_view *view, const struct pg_result *requests)
{
    view->requests = sched_load_rows_of(view, requests, sizeof(*view->requests), &view->request_count);
    for (size_t i = 0; i < view->request_count; i++) {
        struct store_sched_request *request = &view->requests[i];
        request->id = pg_i64(requests, (int)i, SCHED_REQUESTS_ID);
        request->profile = strcmp(pg_text(requests, (int)i, SCHED_REQUESTS_KIND), "profile") == 0;
        request->device = sched_load_text_of(view, requests, (int)i, SCHED_REQUESTS_DEVICE, false);
        request->key = sched_load_text_of(view, requests, (int)i, SCHED_REQUESTS_KEY, false);
        request->digest = sched_load_text_of(view, requests, (int)i, SCHED_REQUESTS_DIGEST, false);
        request->tries = (uint32_t)pg_i64(requests, (int)i, SCHED_REQUESTS_TRIES);
        request->failed = strcmp(pg_text(requests, (int)i, SCHED_REQUESTS_STATE), "failed") == 0;
        request->why = sched_load_text_of(view, requests, (int)i, SCHED_REQUESTS_WHY, true);
        request->deadline_us = pg_i64(requests, (int)i, SCHED_REQUESTS_DEADLINE_US);
        request->unreachable = pg_bool(requests, (int)i, SCHED_REQUESTS_UNREACHABLE);
    }
}

static void read_wanted(struct store_view *view, const struct pg_result *measures)
{
    view->measures = sched_load_rows_of(view, measures, sizeof(*view->measures), &view->measure_count);
    for (size_t i = 0; i < view->measure_count; i++) {
        view->measures[i].spec = sched_load_document_of(view, measures, (int)i, SCHED_MEASURES_SPEC);
        view->measures[i].inputs = sched_load_document_of(view, measures, (int)i, SCHED_MEASURES_INPUTS);
    }
}

static struct store_limits sched_load_limits_of(const struct pg_result *result, int row, int column)
{
    return (struct store_limits){.devices_max = (uint32_t)pg_i64(result, row, column + LIMIT_ROW_DEVICES_MAX),
                                 .running_max = (uint32_t)pg_i64(result, row, column + LIMIT_ROW_RUNNING_MAX),
                                 .month_seconds_max =
                                     pg_f64(result, row, column + LIMIT_ROW_MONTH_SECONDS_MAX)};
}

static void read_sharing(struct store_view *view, const struct pg_result *accounts,
                         const struct pg_result *users, const struct pg_result *uses)
{
    view->accounts = sched_load_rows_of(view, accounts, sizeof(*view->accounts), &view->account_count);
    for (size_t i = 0; i < view->account_count; i++)
        view->accounts[i] = (struct store_sched_account){
            .id = pg_i64(accounts, (int)i, SCHED_ACCOUNTS_ID),
            .parent = pg_i64(accounts, (int)i, SCHED_ACCOUNTS_PARENT),
            .name = sched_load_text_of(view, accounts, (int)i, SCHED_ACCOUNTS_NAME, false),
            .weight = pg_f64(accounts, (int)i, SCHED_ACCOUNTS_WEIGHT),
            .slice_s = pg_f64(accounts, (int)i, SCHED_ACCOUNTS_SLICE_S),
            .limits = sched_load_limits_of(accounts, (int)i, SCHED_ACCOUNTS_DEVICES_MAX)};
    view->users = sched_load_rows_of(view, users, sizeof(*view->users), &view->user_count);
    for (size_t i = 0; i < view->user_count; i++)
        view->users[i] = (struct store_sched_user){
            .id = pg_i64(users, (int)i, SCHED_USERS_ID),
            .name = sched_load_text_of(view, users, (int)i, SCHED_USERS_NAME, false),
            .disabled = pg_bool(users, (int)i, SCHED_USERS_DISABLED),
            .limits = sched_load_limits_of(users, (int)i, SCHED_USERS_DEVICES_MAX)};
    view->uses = sched_load_rows_of(view, uses, sizeof(*view->uses), &view->use_count);
    for (size_t i = 0; i < view->use_count; i++)
        view->uses[i] = (struct store_sched_use){.job = pg_i64(uses, (int)i, SCHED_USES_JOB),
                                                 .user = pg_i64(uses, (int)i, SCHED_USES_USER_ID),
                                                 .account = pg_i64(uses, (int)i, SCHED_USES_ACCOUNT),
                                                 .begins_us = pg_i64(uses, (int)i, SCHED_USES_BEGINS_US),
                                                 .ends_us = pg_i64(uses, (int)i, SCHED_USES_ENDS_US),
                                                 .closed = pg_i64(uses, (int)i, SCHED_USES_CLOSED),
                                                 .rate = pg_f64(uses, (int)i, SCHED_USES_RATE)};
}

static void read_leases(struct store_view *view, const struct pg_result *leases)
{
    view->leases = sched_load_rows_of(view, leases, sizeof(*view->leases), &view->lease_count);
    for (size_t i = 0; i < view->lease_count; i++)
        view->leases[i] = (struct store_sched_lease){
            .id = pg_i64(leases, (int)i, SCHED_LEASES_ID),
            .device = sched_load_text_of(view, leases, (int)i, SCHED_LEASES_DEVICE, false),
            .holder = sched_load_text_of(view, leases, (int)i, SCHED_LEASES_HOLDER, false),
            .begins_us = pg_i64(leases, (int)i, SCHED_LEASES_BEGINS_US),
            .ends_us = pg_i64(leases, (int)i, SCHED_LEASES_ENDS_US),
            .opened = pg_bool(leases, (int)i, SCHED_LEASES_OPENED),
            .maintenance = pg_bool(leases, (int)i, SCHED_LEASES_MAINTENANCE)};
}

static void read_dependents(struct store_view *view, const struct pg_result *dependents)
{
    view->dependents =
        sched_load_rows_of(view, dependents, sizeof(*view->dependents), &view->dependent_count);
    for (size_t i = 0; i < view->dependent_count; i++)
        view->dependents[i] = (struct store_sched_dependent){
            .id = pg_i64(dependents, (int)i, SCHED_DEPENDENTS_ID),
            .state = (enum job_state)state_from_name(&job_machine,
                                                     pg_text(dependents, (int)i, SCHED_DEPENDENTS_STATE)),
            .open = pg_i64(dependents, (int)i, SCHED_DEPENDENTS_OPEN),
            .bad = pg_i64(dependents, (int)i, SCHED_DEPENDENTS_BAD),
            .bad_state = (enum job_state)state_from_name(
                &job_machine, pg_text(dependents, (int)i, SCHED_DEPENDENTS_BAD_STATE))};
}

static void read_arrays(struct store_view *view, const struct pg_result *arrays)
{
    view->arrays = sched_load_rows_of(view, arrays, sizeof(*view->arrays), &view->array_count);
    for (size_t i = 0; i < view->array_count; i++) {
        const int row = (int)i;
        const bool makes = !pg_is_null(arrays, row, SCHED_ARRAYS_SPEC);
        view->arrays[i] = (struct store_sched_array){
            .id = pg_i64(arrays, row, SCHED_ARRAYS_ID),
            .state = (enum job_state)state_from_name(&job_machine, pg_text(arrays, row, SCHED_ARRAYS_STATE)),
            .stop_why = stop_of(arrays, row, SCHED_ARRAYS_STOP_WHY),
            .size = (uint32_t)pg_i64(arrays, row, SCHED_ARRAYS_SIZE),
            .made = (uint32_t)pg_i64(arrays, row, SCHED_ARRAYS_MADE),
            .at_most = (uint32_t)pg_i64(arrays, row, SCHED_ARRAYS_AT_MOST),
            .open = (uint32_t)pg_i64(arrays, row, SCHED_ARRAYS_OPEN),
            .waiting = (uint32_t)pg_i64(arrays, row, SCHED_ARRAYS_WAITING),
            .held = (uint32_t)pg_i64(arrays, row, SCHED_ARRAYS_HELD),
            .bad = (uint32_t)pg_i64(arrays, row, SCHED_ARRAYS_BAD),
            .first_bad = pg_i64(arrays, row, SCHED_ARRAYS_FIRST_BAD),
            .spec = makes ? sched_load_document_of(view, arrays, row, SCHED_ARRAYS_SPEC) : NULL,
            .inputs = makes ? sched_load_document_of(view, arrays, row, SCHED_ARRAYS_INPUTS) : NULL};
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
        view->now_us = pg_i64(results[Q_NOW], 0, SCHED_NOW_NOW_US);
        view->next_due_us = pg_i64(results[Q_NOW], 0, SCHED_NOW_NEXT_DUE_US);
        view->forecast_spread = pg_is_null(results[Q_NOW], 0, SCHED_NOW_SPREAD)
                                    ? -1
                                    : pg_f64(results[Q_NOW], 0, SCHED_NOW_SPREAD);
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
        view->asked = sched_load_document_of(view, results[Q_ASKED], 0, 0);
    }
    if (!view || count != Q_COUNT || view->incomplete) {
        store_view_destroy(view);
        load.done(load.arg, &err, NULL);
        return;
    }
    load.done(load.arg, NULL, view);
}

/* Fills in all statements. */
static void load_steps(const struct store_sched_want *want, struct pg_step steps[Q_COUNT],
                       struct pg_params params[Q_COUNT])
{
    static void (*const plain[Q_COUNT])(struct pg_params *params) = {
        [Q_NOW] = sql_sched_now,           [Q_ACTIVE] = sql_sched_active,
        [Q_RUNS] = sql_sched_runs,         [Q_RANKS] = sql_sched_ranks,
        [Q_NODES] = sql_sched_nodes,       [Q_DEVICES] = sql_sched_devices,
        [Q_REQUESTS] = sql_sched_requests, [Q_MEASURES] = sql_sched_measures,
        [Q_ACCOUNTS] = sql_sched_accounts, [Q_USERS] = sql_sched_users,
        [Q_LEASES] = sql_sched_leases,     [Q_DEPENDENTS] = sql_sched_dependents,
        [Q_ARRAYS] = sql_sched_arrays,
    };
    const char *snapshot = store_queue_snapshot(want->queue);
    const char *linked = want->links ? store_links_snapshot(want->links) : NULL;
    for (int i = 0; i < Q_COUNT; i++)
        pg_params_init(&params[i]);
    sql_queue_whole(&params[Q_WHOLE], want->check && snapshot);
    if (snapshot)
        sql_queue_changes(&params[Q_CHANGES], snapshot);
    else
        sql_queue_whole(&params[Q_CHANGES], true);
    sql_links_whole(&params[Q_LINKS_WHOLE], want->check && linked);
    if (linked)
        sql_links_changes(&params[Q_LINKS], linked);
    else
        sql_links_whole(&params[Q_LINKS], want->links != NULL);
    sql_sched_uses(&params[Q_USES], want->closed, want->use_from_us);
    sql_sched_asked(&params[Q_ASKED], want->started_us);
    for (int i = 0; i < Q_COUNT; i++) {
        if (plain[i])
            plain[i](&params[i]);
        steps[i] = store_step(&params[i]);
    }
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

int store_profiles_get(struct store *store, const char *key, uint32_t remeasure_ms, store_doc_fn *done,
                       void *arg, struct err *err)
{
    struct pg_params params;
    sql_profiles_get(&params, key, remeasure_ms);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_sched_run_get(struct store *store, int64_t run, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_sched_run_get(&params, run);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_trial_get(struct store *store, int64_t run, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_trial_get(&params, run);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_outbox_list(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_outbox_list(&params);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_sched_numbers(struct store *store, const int64_t *jobs, size_t job_count, unsigned ranks,
                        unsigned requests, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_sched_numbers(&params, jobs, job_count, ranks, requests);
    return store_one_doc(store, &params, "no numbers", done, arg, err);
}
