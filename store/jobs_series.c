/* Answers a job's metrics in buckets of steps, for curves.
 *
 * A bucket is 2^k steps wide and begins at a multiple of its width; k is the smallest for which the allowed
 * number of buckets holds all steps that were asked for. So bucket boundaries do not move while a job goes
 * on; when k grows, two neighbours become one. Means are computed from sums of decimal numbers, so that they
 * do not depend on the order of the rows.
 */
#include "store/jobs.h"
#include "store/store_private.h"

#include <string.h>

/* clang-format off */
#define SERIES(name, value, mean) \
    "'" name "', CASE WHEN count(" value ") > 0 THEN json_build_object('least', min(" value "), 'mean', " mean ", " \
    "'most', max(" value "), 'last', (max(ARRAY[step::float8, " value "]) FILTER (WHERE " value " IS NOT NULL))[2]) END, "
#define MEAN(value) "avg((" value ")::numeric)::float8"

/* Parameters: $1: job; $2: kind; $3: first step; $4: the step after the last one; $5: most buckets. */
static const struct pg_statement bucket_metrics = {
    "job_metrics_buckets",
    "WITH r AS (SELECT min(step) AS lo, max(step) AS hi FROM metrics WHERE job = $1 AND kind = $2 AND step >= $3 AND step < $4), "
    "w AS (SELECT (SELECT min(k) FROM generate_series(0, 62) k WHERE (hi >> k) - (lo >> k) < $5::bigint) AS k FROM r WHERE hi IS NOT NULL), "
    "d AS (SELECT m.step, m.step >> w.k AS bucket, x.loss, x.grad_norm, x.learning_rate, x.loss_scale, x.tokens, x.seconds, "
    "    CASE WHEN x.seconds > 0 THEN x.tokens / x.seconds END AS speed, coalesce(x.skipped, false) AS skipped "
    "  FROM w, metrics m, LATERAL json_to_record(m.document) AS x(loss float8, grad_norm float8, learning_rate float8, "
    "    loss_scale float8, tokens float8, seconds float8, skipped boolean) "
    "  WHERE m.job = $1 AND m.kind = $2 AND m.step >= $3 AND m.step < $4), "
    "b AS (SELECT bucket, json_build_object('step', min(bucket << (SELECT k FROM w)), 'first', min(step), 'last', max(step), "
    "  'steps', count(*), 'skipped', count(*) FILTER (WHERE skipped), "
    SERIES("loss", "loss", MEAN("loss"))
    SERIES("grad_norm", "grad_norm", MEAN("grad_norm"))
    SERIES("learning_rate", "learning_rate", MEAN("learning_rate"))
    SERIES("loss_scale", "loss_scale", MEAN("loss_scale"))
    SERIES("seconds", "seconds", MEAN("seconds"))
    SERIES("tokens_per_s", "speed", "(sum(tokens::numeric) FILTER (WHERE seconds > 0) / sum(seconds::numeric) FILTER (WHERE seconds > 0))::float8")
    "  'tokens', sum(tokens::numeric)) AS line FROM d GROUP BY bucket) "
    "SELECT json_build_object('lines', '[]'::json, 'width', (SELECT 1::bigint << k FROM w), "
    "  'buckets', coalesce((SELECT json_agg(line ORDER BY bucket) FROM b), '[]'::json), 'next', null)",
    PG_READ};
/* clang-format on */

int store_job_buckets(struct store *store, int64_t id, const char *kind, const int64_t steps[2],
                      unsigned buckets, store_doc_fn *done, void *arg, struct err *err)
{
    if (strcmp(kind, "step") != 0 && strcmp(kind, "eval") != 0)
        return err_set(err, ERR_INVALID, "kind: \"%.40s\" has no buckets; step and eval have", kind);
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, id);
    pg_param_text(&params, kind);
    pg_param_i64(&params, steps[0]);
    pg_param_i64(&params, steps[1]);
    pg_param_i64(&params, buckets);
    return store_one_doc(store, &bucket_metrics, &params, NULL, done, arg, err);
}
