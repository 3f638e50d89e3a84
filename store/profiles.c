/* Reads measured and imported profiles as people and planners see them, and imports profiles. */
#include "store/nodes.h"
#include "store/profiles.sql.h"

int store_profile_list(struct store *store, const struct principal *principal, const char *content,
                       store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_profile_list(&params, content, principal);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_link_list(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_link_list(&params);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_profile_plan(struct store *store, const struct principal *principal, const char *key,
                       store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_profile_plan(&params, key, principal);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_profile_import(struct store *store, const struct principal *owner, const json_t *profiles,
                         const char *source, const struct sharing *sharing, store_doc_fn *done, void *arg,
                         struct err *err)
{
    struct pg_params params;
    sql_profile_import(&params, profiles, source, owner, sharing);
    return store_one_doc(store, &params, NULL, done, arg, err);
}
