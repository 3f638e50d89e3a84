/* Hands jobs to the api that fetches their model, and takes what came of it. */
#include "store/fetches.h"

#include <stdio.h>
#include <stdlib.h>

#include "store/call.sql.h"
#include "store/fetches.sql.h"

int store_fetch_claim(struct store *store, double seconds, int64_t most, store_doc_fn *done, void *arg,
                      struct err *err)
{
    struct pg_params params;
    sql_fetch_claim(&params, seconds, most);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_fetch_tell(struct store *store, int64_t job, double seconds, const char *why, store_id_fn *done,
                     void *arg, struct err *err)
{
    struct pg_params params;
    sql_fetch_tell(&params, job, seconds, why);
    return store_one_id(store, &params, "", done, arg, err);
}

struct ended_call {
    store_done_fn *done;
    void *arg;
};

static void ended(void *arg, const struct err *err, int64_t id)
{
    struct ended_call call = *(struct ended_call *)arg;
    (void)id;
    free(arg);
    call.done(call.arg, err);
}

/* Runs the statement behind the lock of events. Releases the parameters. */
static int end_run(struct store *store, struct pg_params *params, int64_t job, const struct ended_call *of,
                   struct err *err)
{
    const struct pg_step steps[] = {{&store_events_lock_sql, NULL}, store_step(params)};
    char missing[64];
    struct ended_call *call = malloc(sizeof(*call));
    int rc = call ? 0 : err_set(err, ERR_NOMEM, "no memory for a database call");
    snprintf(missing, sizeof(missing), "job %lld waits for no model", (long long)job);
    if (rc == 0) {
        *call = *of;
        rc = store_run_id(store, steps, 2, STORE_ALONE, missing, ended, call, err);
    }
    if (rc < 0)
        free(call);
    pg_params_fini(params);
    return rc;
}

int store_fetch_done(struct store *store, int64_t job, const struct store_fetched *fetched,
                     store_done_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_fetch_done(&params, job, fetched->spec, fetched->inputs, fetched->steps, fetched->held);
    return end_run(store, &params, job, &(struct ended_call){done, arg}, err);
}

int store_fetch_fail(struct store *store, int64_t job, const struct err *why, store_done_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    sql_fetch_fail(&params, job, err_code_name(why->code), why->text);
    return end_run(store, &params, job, &(struct ended_call){done, arg}, err);
}
