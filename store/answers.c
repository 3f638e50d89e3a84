/* Claims idempotency keys of requests and keeps the requests' answers. */
#include "store/answers.h"
#include "store/answers.sql.h"

int store_answer_claim(struct store *store, const struct store_answer_key *key, store_doc_fn *done, void *arg,
                       struct err *err)
{
    struct pg_params params;
    sql_answer_claim(&params, key->asker, key->key, key->digest);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_answer_keep(struct store *store, const struct store_answer_key *key, int status, const char *body,
                      bool kept, store_done_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_answer_keep(&params, key->asker, key->key, key->digest, status, kept ? body : NULL, kept);
    return store_one_done(store, &params, done, arg, err);
}

int store_answer_drop(struct store *store, const struct store_answer_key *key, store_done_fn *done, void *arg,
                      struct err *err)
{
    struct pg_params params;
    sql_answer_drop(&params, key->asker, key->key, key->digest);
    return store_one_done(store, &params, done, arg, err);
}
