#include "store/notices.h"

#include "store/notices.sql.h"

int store_notices_claim(struct store *store, double seconds, int64_t most, store_doc_fn *done, void *arg,
                        struct err *err)
{
    struct pg_params params;
    sql_notice_claim(&params, seconds, most);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_notice_end(struct store *store, int64_t id, enum store_notice_end end, double retry_s,
                     const char *why, store_done_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_notice_end(&params, id, end == STORE_NOTICE_DELIVERED, end == STORE_NOTICE_FAILED, retry_s, why);
    return store_one_done(store, &params, done, arg, err);
}

int store_notices_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                       struct err *err)
{
    struct pg_params params;
    sql_notices_list(&params, principal);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_notify_set(struct store *store, const struct principal *principal, const json_t *changes,
                     store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_notify_set(&params, principal->id, changes, principal);
    return store_one_doc(store, &params, "only people are told, not nodes", done, arg, err);
}
