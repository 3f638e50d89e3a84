/* Writes and reads what simulations need. The writes are parts of the scheduler's decisions. */
#include "store/records.h"

#include "store/records.sql.h"

int store_records_get(struct store *store, int64_t from_us, int64_t to_us, store_doc_fn *done, void *arg,
                      struct err *err)
{
    struct pg_params params;
    sql_records_get(&params, from_us, to_us);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_sooner_ask(struct store *store, int64_t job, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_sooner_ask(&params, job);
    return store_one_doc(store, &params, "there is no such job", done, arg, err);
}

int store_arrivals_page(struct store *store, int64_t from_us, int64_t to_us, int64_t after, unsigned limit,
                        store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_records_page(&params, from_us, to_us, after, limit);
    return store_one_doc(store, &params, NULL, done, arg, err);
}
