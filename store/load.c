/* Sums up what devices did, from the loads of minutes and hours and from the ledger. */
#include "store/nodes.h"
#include "store/load.sql.h"

int store_load_get(struct store *store, int64_t from_us, int64_t to_us, const char *device, const char *by,
                   store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_load_get(&params, from_us, to_us, device, by);
    return store_one_doc(store, &params, NULL, done, arg, err);
}
