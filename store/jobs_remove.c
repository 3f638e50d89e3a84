/* Removes finished jobs, and says what jobs left on the disk. */
#include "store/jobs.h"
#include "store/jobs_remove.sql.h"

int store_job_remove(struct store *store, const struct principal *principal, int64_t id, store_doc_fn *done,
                     void *arg, struct err *err)
{
    struct pg_params params;
    sql_job_remove(&params, id, principal);
    return store_job_update(store, id, &params, done, arg, err);
}

int store_storage_get(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                      struct err *err)
{
    struct pg_params params;
    sql_storage_get(&params, principal->admin ? 0 : principal->id);
    return store_one_doc(store, &params, NULL, done, arg, err);
}
