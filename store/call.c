/* Runs statements and converts their results for a typed callback.
 *
 * Invariant: every store_call ends in exactly one call of the user's callback, or in -1 from the function
 * that was to start it.
 */
#include "store/call.sql.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "PostgreSQL: " /* common/pg_value.c puts it before every reason */

void store_map_err(const struct err *from, struct err *to)
{
    *to = *from;
    if (strstr(from->text, "MO001"))
        to->code = ERR_STALE;
    else if (strstr(from->text, "MO002"))
        to->code = ERR_CONFLICT;
    else if (strstr(from->text, "MO003"))
        err_set(to, ERR_INVALID, "group: there is no such group that you are in");
    else if (strstr(from->text, "MO004") || strstr(from->text, "MO005") || strstr(from->text, "MO006") ||
             strstr(from->text, "MO007")) {
        /* The text has the form "statement: PostgreSQL: path: reason (SQLSTATE …)". */
        const char *text = strstr(from->text, PREFIX);
        text = text ? text + strlen(PREFIX) : from->text;
        const char *end = strstr(text, " (SQLSTATE");
        err_set(to,
                strstr(from->text, "MO005")   ? ERR_CONFLICT
                : strstr(from->text, "MO006") ? ERR_LIMIT
                : strstr(from->text, "MO007") ? ERR_DENIED
                                              : ERR_INVALID,
                "%.*s", end ? (int)(end - text) : (int)strlen(text), text);
    } else if (strstr(from->text, "constraint leases_overlap)"))
        err_set(to, ERR_CONFLICT,
                "the device is leased to somebody within that time (motley leases; GET /v1/leases)");
}

bool store_err_is_refusal(const struct err *err)
{
    return strstr(err->text, PREFIX) && strstr(err->text, "(SQLSTATE");
}

bool store_err_is_of_statement(const struct err *err)
{
    /* The classes of SQLSTATE that name a fault of rows: cardinality, data, constraints, limits and what
     * functions raise, Motley's own among them. */
    static const char *const of_rows[] = {"21", "22", "23", "54", "P0", "MO"};
    static const char before[] = "(SQLSTATE ";
    const char *state = store_err_is_refusal(err) ? strstr(err->text, before) : NULL;
    for (size_t i = 0; state && i < sizeof(of_rows) / sizeof(of_rows[0]); i++)
        if (strncmp(state + sizeof(before) - 1, of_rows[i], 2) == 0)
            return false;
    return state != NULL;
}

int store_check_text(const char *what, const char *text, size_t max, struct err *err)
{
    size_t size = text ? strlen(text) : 0;
    if (size == 0 || size > max)
        return err_set(err, ERR_INVALID, "%s must have 1 to %zu bytes, not %zu", what, max, size);
    return 0;
}

void store_param_edges(struct pg_params *params, const struct state_machine *machine, int event)
{
    const char *from[JOB_STATES];
    const char *to[JOB_STATES];
    size_t count = 0;
    for (size_t i = 0; i < machine->edge_count && count < JOB_STATES; i++) {
        if (machine->edges[i].event == event) {
            from[count] = machine->states[machine->edges[i].from];
            to[count] = machine->states[machine->edges[i].to];
            count++;
        }
    }
    pg_param_text_array(params, from, count);
    pg_param_text_array(params, to, count);
}

struct store_call *store_call_create(store_deliver_fn *deliver,
                                     void (*fail)(struct store_call *, const struct err *),
                                     void (*done)(void), void *arg, const char *missing, struct err *err)
{
    struct store_call *call = calloc(1, sizeof(*call));
    if (!call) {
        err_set(err, ERR_NOMEM, "no memory for a database call");
        return NULL;
    }
    call->deliver = deliver;
    call->fail = fail;
    call->done = done;
    call->arg = arg;
    if (missing)
        snprintf(call->missing, sizeof(call->missing), "%s", missing);
    return call;
}

static void call_finished(void *arg, const struct pg_result *const *results, int count, const struct err *err)
{
    struct store_call *call = arg;
    if (err->code != ERR_NONE) {
        struct err mapped;
        store_map_err(err, &mapped);
        call->fail(call, &mapped);
    } else {
        call->deliver(call, results, count);
    }
    free(call);
}

int store_run(struct store *store, const struct pg_step *steps, int count, unsigned flags,
              struct store_call *call, struct err *err)
{
    if (!call)
        return -1;
    for (int i = 0; i < count; i++) {
        if (steps[i].params && steps[i].params->failed) {
            free(call);
            return err_set(err, ERR_INVALID, "%s: a parameter is too large or not valid UTF-8",
                           steps[i].statement->name);
        }
    }
    int rc = pg_query_with(store->pg, steps, count, 0, (flags & STORE_ALONE) != 0, call_finished, call, err);
    if (rc < 0)
        free(call);
    return rc;
}

/* ---- calls that answer a document ---- */

static void doc_fail(struct store_call *call, const struct err *err)
{
    ((store_doc_fn *)call->done)(call->arg, err, NULL);
}

static void doc_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    store_doc_fn *done = (store_doc_fn *)call->done;
    const struct pg_result *last = results[count - 1];
    struct err err;
    if (pg_rows(last) == 0 || pg_is_null(last, 0, 0)) {
        err_set(&err, ERR_NOT_FOUND, "%s", call->missing);
        done(call->arg, &err, NULL);
        return;
    }
    json_t *doc = pg_json(last, 0, 0);
    if (!doc) {
        err_set(&err, ERR_INTERNAL, "the database gave a document that is no JSON");
        done(call->arg, &err, NULL);
        return;
    }
    done(call->arg, NULL, doc);
    json_decref(doc);
}

int store_run_doc(struct store *store, const struct pg_step *steps, int count, unsigned flags,
                  const char *missing, store_doc_fn *done, void *arg, struct err *err)
{
    return store_run(store, steps, count, flags,
                     store_call_create(doc_deliver, doc_fail, (void (*)(void))done, arg, missing, err), err);
}

/* ---- calls that answer an id ---- */

static void call_id_fail(struct store_call *call, const struct err *err)
{
    ((store_id_fn *)call->done)(call->arg, err, 0);
}

static void id_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    store_id_fn *done = (store_id_fn *)call->done;
    const struct pg_result *last = results[count - 1];
    if (pg_rows(last) == 0 || pg_is_null(last, 0, 0)) {
        struct err err;
        err_set(&err, ERR_NOT_FOUND, "%s", call->missing);
        done(call->arg, &err, 0);
        return;
    }
    done(call->arg, NULL, pg_i64(last, 0, 0));
}

int store_run_id(struct store *store, const struct pg_step *steps, int count, unsigned flags,
                 const char *missing, store_id_fn *done, void *arg, struct err *err)
{
    return store_run(store, steps, count, flags,
                     store_call_create(id_deliver, call_id_fail, (void (*)(void))done, arg, missing, err),
                     err);
}

/* ---- calls that answer nothing ---- */

static void done_fail(struct store_call *call, const struct err *err)
{
    ((store_done_fn *)call->done)(call->arg, err);
}

static void done_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    (void)results;
    (void)count;
    ((store_done_fn *)call->done)(call->arg, NULL);
}

int store_run_done(struct store *store, const struct pg_step *steps, int count, unsigned flags,
                   store_done_fn *done, void *arg, struct err *err)
{
    return store_run(store, steps, count, flags,
                     store_call_create(done_deliver, done_fail, (void (*)(void))done, arg, NULL, err), err);
}

/* ---- calls of one statement ---- */

static int one_ran(struct pg_params *params, int rc)
{
    pg_params_fini(params);
    return rc;
}

int store_one_doc(struct store *store, struct pg_params *params, const char *missing, store_doc_fn *done,
                  void *arg, struct err *err)
{
    const struct pg_step step = store_step(params);
    return one_ran(params, store_run_doc(store, &step, 1, 0, missing, done, arg, err));
}

int store_one_id(struct store *store, struct pg_params *params, const char *missing, store_id_fn *done,
                 void *arg, struct err *err)
{
    const struct pg_step step = store_step(params);
    return one_ran(params, store_run_id(store, &step, 1, 0, missing, done, arg, err));
}

int store_one_done(struct store *store, struct pg_params *params, store_done_fn *done, void *arg,
                   struct err *err)
{
    const struct pg_step step = store_step(params);
    return one_ran(params, store_run_done(store, &step, 1, 0, done, arg, err));
}

static void touched_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    struct err err;
    if (pg_affected(results[count - 1]) > 0) {
        done_deliver(call, results, count);
        return;
    }
    err_set(&err, ERR_NOT_FOUND, "%s", call->missing);
    done_fail(call, &err);
}

int store_one_touched(struct store *store, struct pg_params *params, const char *missing, store_done_fn *done,
                      void *arg, struct err *err)
{
    const struct pg_step step = store_step(params);
    struct store_call *call =
        store_call_create(touched_deliver, done_fail, (void (*)(void))done, arg, missing, err);
    return one_ran(params, store_run(store, &step, 1, 0, call, err));
}

/* ---- transactions of the leader ---- */

void store_work_init(struct store_work *work, int64_t leader, const struct store_part *parts, int count)
{
    struct pg_params *fence = &work->params[STORE_PARTS_MAX];
    assert(count <= STORE_PARTS_MAX);
    for (int i = 0; i < STORE_PARTS_MAX; i++)
        pg_params_init(&work->params[i]);
    sql_store_fence(fence, leader);
    work->steps[0] = store_step(fence);
    work->count = 1;
    for (int i = 0; i < count; i++)
        if (json_array_size(parts[i].rows) > 0) {
            parts[i].fill(&work->params[i], parts[i].rows);
            work->steps[work->count++] = store_step(&work->params[i]);
        }
}

void store_work_fini(struct store_work *work)
{
    for (int i = 0; i <= STORE_PARTS_MAX; i++)
        pg_params_fini(&work->params[i]);
}
