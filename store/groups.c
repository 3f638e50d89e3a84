/* Groups of people, and the audit. */
#include "store/jobs.h"
#include "store/groups.sql.h"
#include "store/users.h"

#include <stdio.h>

int store_group_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    sql_group_list(&params, principal);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_group_put(struct store *store, const struct principal *principal, const char *name,
                    const char *const *members, size_t count, store_doc_fn *done, void *arg, struct err *err)
{
    if (store_check_text("a group's name", name, STORE_NAME_MAX, err) < 0)
        return -1;
    struct pg_params made, params;
    sql_group_make(&made, name);
    sql_group_set(&params, name, members, count, principal);
    const struct pg_step steps[] = {store_step(&made), store_step(&params)};
    int rc = store_run_doc(store, steps, 2, 0, NULL, done, arg, err);
    pg_params_fini(&made);
    pg_params_fini(&params);
    return rc;
}

int store_group_set(struct store *store, const struct principal *principal, const char *name,
                    const json_t *changes, store_doc_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no group \"%.220s\"", name);
    sql_group_change(&params, name, changes, principal);
    return store_one_doc(store, &params, missing, done, arg, err);
}

int store_group_remove(struct store *store, const struct principal *principal, const char *name,
                       store_done_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no group \"%.220s\"", name);
    sql_group_remove(&params, name, principal);
    return store_one_touched(store, &params, missing, done, arg, err);
}

/* ---- the audit ---- */

int store_audit_page(struct store *store, int64_t before_id, unsigned limit, store_doc_fn *done, void *arg,
                     struct err *err)
{
    if (limit < 1 || limit > STORE_PAGE_MAX)
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..%d", limit, STORE_PAGE_MAX);
    struct pg_params params;
    sql_audit_page(&params, before_id > 0 ? before_id : INT64_MAX, limit);
    return store_one_doc(store, &params, NULL, done, arg, err);
}
