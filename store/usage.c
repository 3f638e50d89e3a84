/* Reads sums over the ledger, the queue and the shares. */
#include "store/health.h"
#include "store/usage.sql.h"
#include "store/usage.h"

int store_usage_get(struct store *store, int64_t from_us, int64_t to_us, const char *by, store_doc_fn *done,
                    void *arg, struct err *err)
{
    struct pg_params params;
    sql_usage_get(&params, from_us, to_us, by);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_queue_page(struct store *store, const struct principal *principal, int64_t after, unsigned limit,
                     store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_queue_page(&params, principal, after, limit);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_shares_get(struct store *store, double half_life_s, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_shares_get(&params, half_life_s);
    return store_one_doc(store, &params, NULL, done, arg, err);
}
