/* Keeps the tables bounded. One call is one transaction that removes at most `rows` rows of a table, so it
 * holds no lock for long. Of a job that has not ended it removes only old events and old lines of ranks, and
 * it takes no lock that a submit would wait for. */
#include "store/sched.h"
#include "store/call.sql.h"
#include "store/prune.sql.h"

int store_prune(struct store *store, int64_t leader, const struct store_retention *keep, store_doc_fn *done,
                void *arg, struct err *err)
{
    enum { PARTS = 10 };
    struct pg_params params[PARTS];
    struct pg_step steps[PARTS];
    sql_store_fence(&params[0], leader);
    sql_prune_events(&params[1], keep->event_days, keep->rows, (int64_t)keep->request_ms);
    sql_prune_ranks(&params[2], keep->rank_steps, keep->rows);
    sql_prune_jobs(&params[3], keep->history_days, keep->rows);
    sql_prune_jobs_mark(&params[4], keep->history_days, keep->rows);
    sql_prune_files(&params[5], keep->rows);
    sql_prune_datasets(&params[6], keep->dataset_days, keep->rows);
    sql_prune_ledger(&params[7], keep->ledger_days, keep->rows);
    sql_prune_load(&params[8], keep->usage_days, keep->rows);
    sql_prune_usage(&params[9], keep->usage_days, keep->rows);
    for (int i = 0; i < PARTS; i++)
        steps[i] = store_step(&params[i]);
    int rc = store_run_doc(store, steps, PARTS, STORE_ALONE, NULL, done, arg, err);
    for (int i = 0; i < PARTS; i++)
        pg_params_fini(&params[i]);
    return rc;
}
