/* Reads jobs as documents. The database builds the JSON, so a further field is one change in a statement. */
#include "store/health.h"
#include "store/jobs.h"
#include "store/jobs_read.sql.h"

#include <stdio.h>
#include <string.h>

int store_job_get(struct store *store, const struct principal *principal, int64_t id, store_doc_fn *done,
                  void *arg, struct err *err)
{
    char missing[80];
    struct pg_params params;
    snprintf(missing, sizeof(missing), STORE_NO_JOB, (long long)id);
    sql_job_get(&params, id, principal);
    return store_one_doc(store, &params, missing, done, arg, err);
}

int store_jobs_unseen(struct store *store, const int64_t *jobs, const int64_t *viewers, size_t count,
                      store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_jobs_unseen(&params, jobs, count, viewers);
    return store_one_doc(store, &params, "", done, arg, err);
}

/* ---- pages: one statement for each kind of filter, so that PostgreSQL plans each with its own index ---- */

/* Writes the names of the states of the set, or of all states if it is empty. Returns how many. */
static size_t state_names(unsigned states, const char *names[JOB_STATES])
{
    size_t count = 0;
    for (int state = 0; state < JOB_STATES; state++)
        if (!states || (states & 1u << state) != 0)
            names[count++] = state_name(&job_machine, state);
    return count;
}

/* Returns the labels with a value as a new object, or NULL if there are none, and writes the keys of those
 * with any value. */
static json_t *split_labels(const json_t *labels, const char *keys[STORE_LABELS_MAX], size_t *count)
{
    json_t *valued = json_object(), *value;
    const char *key;
    json_object_foreach ((json_t *)(uintptr_t)labels, key, value)
        if (json_is_null(value) && *count < STORE_LABELS_MAX)
            keys[(*count)++] = key;
        else
            json_object_set(valued, key, value);
    if (json_object_size(valued) > 0)
        return valued;
    json_decref(valued);
    return NULL;
}

/* A filter's number; NULL for 0, which filters nothing. */
static const int64_t *given(const int64_t *value)
{
    return *value ? value : NULL;
}

/* Fills the parameters of a page with all filters. An administrator's statement has the same ones. */
static void page_filtered(struct pg_params *params, const struct principal *principal,
                          const struct store_job_filter *filter, int64_t before)
{
    const char *names[JOB_STATES], *keys[STORE_LABELS_MAX];
    size_t key_count = 0;
    json_t *valued = split_labels(filter->labels, keys, &key_count);
    const struct sql_job_page_filtered of = {.before = before,
                                             .most = filter->limit,
                                             .principal = principal,
                                             .states = names,
                                             .states_count = state_names(filter->states, names),
                                             .owner = filter->owner,
                                             .group = filter->group,
                                             .valued = valued,
                                             .keys = key_count > 0 ? keys : NULL,
                                             .keys_count = key_count,
                                             .from_us = given(&filter->from_us),
                                             .to_us = given(&filter->to_us),
                                             .array = given(&filter->array)};
    (principal->admin ? sql_job_page_filtered : sql_job_page_seen_filtered)(params, &of);
    json_decref(valued);
}

int store_job_page(struct store *store, const struct principal *principal,
                   const struct store_job_filter *filter, store_doc_fn *done, void *arg, struct err *err)
{
    if (filter->limit < 1 || filter->limit > STORE_PAGE_MAX)
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..%d", filter->limit, STORE_PAGE_MAX);
    if (filter->states >= 1u << JOB_STATES)
        return err_set(err, ERR_INVALID, "state: there is no such job state");
    const int64_t before = filter->before_id > 0 ? filter->before_id : INT64_MAX;
    const char *names[JOB_STATES];
    struct pg_params params;
    if (filter->owner || filter->group || filter->labels || filter->from_us || filter->to_us || filter->array)
        page_filtered(&params, principal, filter, before);
    else if (filter->states)
        (principal->admin ? sql_job_page_state : sql_job_page_both)(
            &params, before, filter->limit, principal, names, state_names(filter->states, names));
    else
        (principal->admin ? sql_job_page_all : sql_job_page_seen)(&params, before, filter->limit, principal);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_counts(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_counts(&params, job_machine.states, job_machine.state_count);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

/* ---- metrics ---- */

static const char *const metric_kinds[] = {"step", "eval", "sample", "ranks"};

int store_job_metrics(struct store *store, int64_t id, const char *kind, int64_t after_step, unsigned limit,
                      store_doc_fn *done, void *arg, struct err *err)
{
    const char *const *kinds = metric_kinds;
    size_t count = 3;
    if (strcmp(kind, "all") != 0) {
        count = 1;
        size_t i = 0;
        while (i < 4 && strcmp(metric_kinds[i], kind) != 0)
            i++;
        if (i == 4) {
            return err_set(err, ERR_INVALID, "kind: \"%.40s\" is none of step, eval, sample, ranks, all",
                           kind);
        }
        kinds = &metric_kinds[i];
    }
    if (limit < 1 || limit > 10000)
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..10000", limit);
    struct pg_params params;
    sql_job_metrics(&params, id, kinds, count, after_step, limit);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

/* ---- runs, plans, traces ---- */

static int read_by_job(struct store *store, void (*fill)(struct pg_params *params, int64_t job),
                       const char *missing_what, int64_t id, store_doc_fn *done, void *arg, struct err *err)
{
    char missing[96];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "job %lld has no %s", (long long)id, missing_what);
    fill(&params, id);
    return store_one_doc(store, &params, missing, done, arg, err);
}

int store_job_plan(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err)
{
    return read_by_job(store, sql_job_plan, "plan yet", id, done, arg, err);
}

int store_job_lanes(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err)
{
    return read_by_job(store, sql_job_lanes, "plan yet", id, done, arg, err);
}

int store_job_runs(struct store *store, int64_t id, int64_t before_id, unsigned limit, store_doc_fn *done,
                   void *arg, struct err *err)
{
    if (limit < 1 || limit > STORE_PAGE_MAX)
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..%d", limit, STORE_PAGE_MAX);
    struct pg_params params;
    sql_job_runs(&params, id, before_id > 0 ? before_id : INT64_MAX, limit);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_job_trace(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err)
{
    return read_by_job(store, sql_job_trace, "trace", id, done, arg, err);
}
