/* Claims idempotency keys of requests and keeps the requests' answers. */
#include "store/answers.h"
#include "store/store_private.h"

/* If another statement claims the same key and commits at this moment, the SELECT does not see its row yet;
 * the answer is then that of a request under way ("claimed" false, "status" null). */
static const struct pg_statement claim = {
    "answer_claim",
    "WITH made AS (INSERT INTO answers (asker, key, digest) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING "
    "RETURNING 1) "
    "SELECT json_build_object('claimed', EXISTS (SELECT 1 FROM made), 'same', coalesce(a.digest = $3, true), "
    "  'status', a.status, 'kept', a.kept, 'body', a.body, 'age_s', "
    "  coalesce(extract(epoch FROM now() - a.at), 0)) "
    "FROM (SELECT 1) x LEFT JOIN answers a ON a.asker = $1 AND a.key = $2",
    PG_WRITE};
static const struct pg_statement keep = {"answer_keep",
                                         "UPDATE answers SET status = $4, body = $5::json, kept = $6 WHERE "
                                         "asker = $1 AND key = $2 AND digest = $3",
                                         PG_WRITE};
static const struct pg_statement drop = {
    "answer_drop", "DELETE FROM answers WHERE asker = $1 AND key = $2 AND digest = $3 AND status IS NULL",
    PG_WRITE};

static void params_begin(struct pg_params *params, const struct store_answer_key *key)
{
    pg_params_init(params);
    pg_param_i64(params, key->asker);
    pg_param_text(params, key->key);
    pg_param_bytes(params, key->digest, sizeof(key->digest));
}

int store_answer_claim(struct store *store, const struct store_answer_key *key, store_doc_fn *done, void *arg,
                       struct err *err)
{
    struct pg_params params;
    params_begin(&params, key);
    return store_one_doc(store, &claim, &params, NULL, done, arg, err);
}

int store_answer_keep(struct store *store, const struct store_answer_key *key, int status, const char *body,
                      bool kept, store_done_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    params_begin(&params, key);
    pg_param_i64(&params, status);
    pg_param_text(&params, kept ? body : NULL);
    pg_param_bool(&params, kept);
    return store_one_done(store, &keep, &params, done, arg, err);
}

int store_answer_drop(struct store *store, const struct store_answer_key *key, store_done_fn *done, void *arg,
                      struct err *err)
{
    struct pg_params params;
    params_begin(&params, key);
    return store_one_done(store, &drop, &params, done, arg, err);
}
