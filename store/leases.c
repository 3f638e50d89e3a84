/* Reads, makes and changes leases of devices. */
#include "store/leases.h"

#include <stdio.h>

#include "store/leases.sql.h"

int store_lease_list(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_lease_list(&params);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_lease_put(struct store *store, const struct principal *principal,
                    const struct store_lease_new *lease, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params made, said;
    const char *kind = lease->maintenance ? "maintenance" : "lease";
    if (lease->device)
        sql_lease_make(&made, principal->id, lease->device, kind, lease->note, lease->begins, lease->seconds,
                       LEASE_AHEAD_MAX, principal->admin);
    else
        sql_lease_make_any(&made, principal->id, lease->any, kind, lease->note, lease->begins, lease->seconds,
                           LEASE_AHEAD_MAX, principal->admin);
    sql_lease_made(&said, principal);
    const struct pg_step steps[] = {store_step(&made), store_step(&said)};
    int rc = store_run_doc(store, steps, 2, 0, NULL, done, arg, err);
    pg_params_fini(&made);
    pg_params_fini(&said);
    return rc;
}

int store_lease_change(struct store *store, const struct principal *principal, int64_t id, int64_t seconds,
                       store_doc_fn *done, void *arg, struct err *err)
{
    char missing[80], thing[80];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no lease %lld that is not over", (long long)id);
    snprintf(thing, sizeof(thing), "lease %lld", (long long)id);
    sql_lease_change(&params, principal, id, seconds);
    return store_one_change(store, &params, missing, thing, done, arg, err);
}
