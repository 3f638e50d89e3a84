/* Writes and reads how the scheduler's passes go. */
#include "store/health.h"

#include "store/store_private.h"

/* clang-format off */
/* Parameters: $1: the leader's epoch; $2: its name; $3, $4: ms since the last good pass and since the failing
 * began, or null; $5: failures; $6: task; $7: why; $8: the asides; $9: their number. */
static const struct pg_statement put_health = {
    "health_put",
    "INSERT INTO scheduler_health AS h (name, good_at, failing_since, failures, task, why, asides, aside_count) "
    "SELECT $2, now() - coalesce($3::bigint, 0) * interval '1 ms', now() - $4::bigint * interval '1 ms', $5::bigint, $6, $7, $8::json, "
    "  $9::bigint FROM leader WHERE epoch = $1 "
    "ON CONFLICT (one) DO UPDATE SET name = excluded.name, at = now(), failing_since = excluded.failing_since, "
    "  good_at = CASE WHEN $3::bigint IS NULL THEN h.good_at ELSE excluded.good_at END, failures = excluded.failures, "
    "  task = excluded.task, why = excluded.why, asides = excluded.asides, aside_count = excluded.aside_count",
    PG_WRITE};
static const struct pg_statement get_health = {
    "health_get",
    "SELECT json_strip_nulls(json_build_object(" SCHEDULER_MEMBERS ", 'age_s', s.age, 'failures', coalesce(s.failures, 0), "
    "  'set_aside', coalesce(s.asides, '[]'::json))) FROM " SCHEDULER_ROW,
    PG_READ};
/* clang-format on */

static void param_ms(struct pg_params *params, int64_t ms)
{
    if (ms < 0)
        pg_param_null(params);
    else
        pg_param_i64(params, ms);
}

int store_health_put(struct store *store, const struct store_health *health, store_done_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, health->leader);
    pg_param_text(&params, health->name);
    param_ms(&params, health->good_ms);
    param_ms(&params, health->failing_ms);
    pg_param_i64(&params, health->failures);
    pg_param_text(&params, health->task);
    pg_param_text(&params, health->why);
    pg_param_json(&params, health->asides);
    pg_param_i64(&params, (int64_t)health->aside_count);
    return store_one_done(store, &put_health, &params, done, arg, err);
}

int store_health_get(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    return store_one_doc(store, &get_health, NULL, NULL, done, arg, err);
}
