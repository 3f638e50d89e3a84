/* Writes and reads how the scheduler's passes go. */
#include "store/health.h"

#include "store/health.sql.h"

int store_health_put(struct store *store, const struct store_health *health, store_done_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    const struct sql_health_put of = {.leader = health->leader,
                                      .name = health->name,
                                      .good_ms = health->good_ms < 0 ? NULL : &health->good_ms,
                                      .failing_ms = health->failing_ms < 0 ? NULL : &health->failing_ms,
                                      .failures = health->failures,
                                      .task = health->task,
                                      .why = health->why,
                                      .asides = health->asides,
                                      .aside_count = (int64_t)health->aside_count};
    sql_health_put(&params, &of);
    return store_one_done(store, &params, done, arg, err);
}

int store_health_get(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_health_get(&params);
    return store_one_doc(store, &params, NULL, done, arg, err);
}
