/* Answers a job's metrics in buckets of steps, for curves.
 *
 * A bucket is 2^k steps wide and begins at a multiple of its width; k is the smallest for which the allowed
 * number of buckets holds all steps that were asked for. So bucket boundaries do not move while a job goes
 * on; when k grows, two neighbours become one. Means are computed from sums of decimal numbers, so that they
 * do not depend on the order of the rows.
 */
#include "store/jobs.h"
#include "store/jobs_series.sql.h"

#include <string.h>

int store_job_buckets(struct store *store, int64_t id, const char *kind, const int64_t steps[2],
                      unsigned buckets, store_doc_fn *done, void *arg, struct err *err)
{
    if (strcmp(kind, "step") != 0 && strcmp(kind, "eval") != 0)
        return err_set(err, ERR_INVALID, "kind: \"%.40s\" has no buckets; step and eval have", kind);
    struct pg_params params;
    sql_job_metrics_buckets(&params, id, kind, steps[0], steps[1], buckets);
    return store_one_doc(store, &params, NULL, done, arg, err);
}
