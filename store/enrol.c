/* Enrolment, renewal and removal of nodes. */
#include "store/enrol.h"
#include "store/store_private.h"

#include <stdio.h>
#include <string.h>

#include "common/digest.h"
#include "store/users.h"

bool store_node_name_valid(const char *name)
{
    size_t size = strlen(name);
    return size >= 1 && size <= 64 && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == size;
}

static int check_name(const char *name, struct err *err)
{
    return store_node_name_valid(name)
               ? 0
               : err_set(err, ERR_INVALID,
                         "node: \"%.80s\" is not 1 to 64 of a-z, 0-9 and -, not beginning with -", name);
}

/* Checks a name, or the beginning of names with a * behind it. */
static int check_names(const char *names, struct err *err)
{
    char begin[66];
    const size_t size = strlen(names);
    if (size < 2 || size >= sizeof(begin) || names[size - 1] != '*')
        return check_name(names, err);
    snprintf(begin, sizeof(begin), "%.*s", (int)size - 1, names);
    return check_name(begin, err);
}

/* ---- join tokens ---- */

/* clang-format off */
static const struct pg_statement put_join_token = {
    "join_token_put",
    "WITH j AS (INSERT INTO join_tokens (hash, expires_at, user_id, node, replace, uses) "
    "VALUES ($1, to_timestamp($2::bigint / 1e6), nullif($3::bigint, 0), $4, $5, $6) RETURNING *) "
    AUDIT("$7", "'join-token.make'", "left(encode(j.hash, 'hex'), 12)", "NULL::json", "json_build_object('expires', motley_time(j.expires_at), 'node', j.node, 'replace', j.replace, 'uses', j.uses)", "j"),
    PG_WRITE};
static const struct pg_statement revoke_join_tokens = {
    "join_tokens_revoke",
    "WITH gone AS (UPDATE join_tokens SET expires_at = now() WHERE used_at IS NULL AND expires_at > now() "
    "  AND ($1::text IS NULL OR node = $1) RETURNING hash, node, uses), "
    "told AS (" AUDIT("$2", "'join-token.revoke'", "left(encode(gone.hash, 'hex'), 12)", "json_build_object('node', gone.node, 'uses', gone.uses)", "NULL::json", "gone") ") "
    "SELECT json_build_object('revoked', count(*)) FROM gone",
    PG_WRITE};
/* clang-format on */

int store_join_token_put(struct store *store, const struct principal *maker,
                         const struct store_join_token *token, store_done_fn *done, void *arg,
                         struct err *err)
{
    if (token->node && check_names(token->node, err) < 0)
        return -1;
    if (token->replace && (!token->node || strchr(token->node, '*') || token->uses > 1))
        return err_set(err, ERR_INVALID, "replace: needs node, the one name that may be taken over, once");
    if (token->uses > 1 && token->node && !strchr(token->node, '*'))
        return err_set(err, ERR_INVALID,
                       "uses: node \"%s\" is one name; of several machines it ends in *, as in \"%.60s-*\"",
                       token->node, token->node);
    struct pg_params params;
    pg_params_init(&params);
    pg_param_bytes(&params, token->hash, DIGEST_SIZE);
    pg_param_i64(&params, token->expires_us);
    pg_param_i64(&params, maker->id);
    pg_param_text(&params, token->node);
    pg_param_bool(&params, token->replace);
    pg_param_i64(&params, token->uses > 0 ? token->uses : 1);
    store_param_actor(&params, maker);
    return store_one_done(store, &put_join_token, &params, done, arg, err);
}

int store_join_tokens_revoke(struct store *store, const struct principal *principal, const char *node,
                             store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    if (node && check_names(node, err) < 0)
        return -1;
    pg_params_init(&params);
    pg_param_text(&params, node);
    store_param_actor(&params, principal);
    return store_one_doc(store, &revoke_join_tokens, &params, "", done, arg, err);
}

/* ---- joining ---- */

#define GOOD_TOKEN                                                                                           \
    "t.hash = $1 AND t.used_at IS NULL AND t.expires_at > now() AND (t.node IS NULL OR t.node = $2 "         \
    "  OR (right(t.node, 1) = '*' AND starts_with($2, left(t.node, -1)))) "                                  \
    "AND NOT EXISTS (SELECT 1 FROM users u WHERE u.id = t.user_id AND u.disabled)"

/* Result columns: whether the token is good; the generation that enrolment would give; whether the token
 * cannot take the name, whatever key the node has. */
static const struct pg_statement check_join = {
    "join_check",
    "SELECT t.hash IS NOT NULL, coalesce(n.generation, 0) + 1, "
    "       (n.last_seen IS NOT NULL OR n.removed_at IS NOT NULL) AND NOT t.replace "
    "       AND (t.node IS NULL OR n.key_hash IS NULL) "
    "FROM (SELECT 1) AS one LEFT JOIN join_tokens t ON " GOOD_TOKEN " LEFT JOIN nodes n ON n.name = $2",
    PG_READ};

/* Locks the token's row first, so that another caller with the same token waits, and then the name's row.
 * Result columns: whether the token was good; the new generation (NULL: not enrolled). last_seen is not
 * cleared, so the name stays taken. */
static const struct pg_statement enrol_node = {
    "node_enrol",
    "WITH good AS (SELECT t.hash, t.user_id, t.node, t.replace FROM join_tokens t WHERE " GOOD_TOKEN
    " FOR UPDATE), "
    "made AS (INSERT INTO nodes AS n (name, address, key_hash, certified_until, redis_hash, seal_key) "
    "         SELECT $2, $3, $6, to_timestamp($8::bigint), $9, $10 FROM good "
    "         ON CONFLICT (name) DO UPDATE SET address = excluded.address, generation = n.generation + 1, "
    "           key_hash = excluded.key_hash, certified_until = excluded.certified_until, removed_at = NULL, "
    "           redis_hash = excluded.redis_hash, seal_key = excluded.seal_key, refused = 0, mark = NULL, "
    "           marked_at = NULL, barred = false, "
    "           boot = NULL, state = 'joining', enrolled_at = now() "
    "         WHERE n.generation + 1 = $7 AND ((n.last_seen IS NULL AND n.removed_at IS NULL) "
    "           OR (SELECT replace OR (node IS NOT NULL AND n.key_hash = $6) FROM good)) "
    "         RETURNING n.name, n.generation), "
    "used AS (UPDATE join_tokens j SET uses = j.uses - 1, used_by = $2, "
    "           used_at = CASE WHEN j.uses <= 1 THEN now() END "
    "         FROM good, made WHERE j.hash = good.hash RETURNING 1), "
    "old AS (UPDATE tokens SET revoked_at = now() FROM made WHERE tokens.node = made.name "
    "        AND revoked_at IS NULL RETURNING 1), "
    "token AS (INSERT INTO tokens (hash, node, scopes) SELECT $4, name, $5::integer FROM made RETURNING 1), "
    "said AS (INSERT INTO audit (who, user_id, what, object, after) SELECT 'node:' || made.name, g.user_id, "
    "  'node.enrol', made.name, json_build_object('generation', made.generation) FROM made, good g) "
    "SELECT EXISTS (SELECT 1 FROM good), (SELECT generation FROM made), "
    /* wakes the scheduler, which then reads the nodes again */
    "       (SELECT count(pg_notify('motley_jobs', '')) FROM made)",
    PG_WRITE};

static void id_fail(struct store_call *call, const struct err *err)
{
    ((store_id_fn *)call->done)(call->arg, err, 0);
}

/* Answers ERR_AUTH when the token is not good, ERR_CONFLICT (text: call->missing) when the name is taken, and
 * otherwise 'id'. */
static void join_answer(struct store_call *call, bool good, bool taken, int64_t id)
{
    store_id_fn *done = (store_id_fn *)call->done;
    struct err err;
    if (!good) {
        err_set(&err, ERR_AUTH,
                "token: this join token is not good here: unknown, expired, used or for another node");
        done(call->arg, &err, 0);
    } else if (taken) {
        err_set(&err, ERR_CONFLICT, "%s", call->missing);
        done(call->arg, &err, 0);
    } else {
        done(call->arg, NULL, id);
    }
}

static void check_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    const struct pg_result *answer = results[count - 1];
    join_answer(call, pg_bool(answer, 0, 0), !pg_is_null(answer, 0, 2) && pg_bool(answer, 0, 2),
                pg_i64(answer, 0, 1));
}

static void enrol_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    const struct pg_result *answer = results[count - 1];
    bool taken = pg_is_null(answer, 0, 1);
    join_answer(call, pg_bool(answer, 0, 0), taken, taken ? 0 : pg_i64(answer, 0, 1));
}

static int run_join(struct store *store, const struct pg_statement *statement, struct pg_params *params,
                    store_deliver_fn *deliver, const char *node, store_id_fn *done, void *arg,
                    struct err *err)
{
    char taken[320];
    snprintf(
        taken, sizeof(taken),
        "the name \"%.64s\" is taken. Unless it was removed, its own machine comes back with its old key "
        "and a token of --node %.64s; any other takes its place with one that an administrator makes "
        "with --replace",
        node, node);
    const struct pg_step step = {statement, params};
    int rc = store_run(store, &step, 1, STORE_ALONE,
                       store_call_create(deliver, id_fail, (void (*)(void))done, arg, taken, err), err);
    pg_params_fini(params);
    return rc;
}

int store_join_check(struct store *store, const uint8_t hash[32], const char *node, store_id_fn *done,
                     void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_bytes(&params, hash, DIGEST_SIZE);
    pg_param_text(&params, node);
    return run_join(store, &check_join, &params, check_deliver, node, done, arg, err);
}

int store_enrol(struct store *store, const struct store_enrol *enrol, store_id_fn *done, void *arg,
                struct err *err)
{
    if (check_name(enrol->node, err) < 0)
        return -1;
    struct pg_params params;
    pg_params_init(&params);
    pg_param_bytes(&params, enrol->join_hash, DIGEST_SIZE);
    pg_param_text(&params, enrol->node);
    pg_param_text(&params, enrol->address);
    pg_param_bytes(&params, enrol->agent_hash, DIGEST_SIZE);
    pg_param_i64(&params, SCOPE_AGENT);
    pg_param_bytes(&params, enrol->key_hash, DIGEST_SIZE);
    pg_param_i64(&params, enrol->generation);
    pg_param_i64(&params, enrol->certified_until_s);
    for (int i = 0; i < 2; i++) {
        const uint8_t *secret = i == 0 ? enrol->redis_hash : enrol->seal_key;
        if (secret)
            pg_param_bytes(&params, secret, DIGEST_SIZE);
        else
            pg_param_text(&params, NULL);
    }
    return run_join(store, &enrol_node, &params, enrol_deliver, enrol->node, done, arg, err);
}

/* ---- renewal and removal ---- */

#define MAY_RENEW                                                                                            \
    " FROM nodes WHERE name = $1 AND removed_at IS NULL AND coalesce(key_hash, $2) = $2 "                    \
    "AND coalesce(certified_until > now(), true)"

static const struct pg_statement check_renewal = {"renew_check", "SELECT generation" MAY_RENEW, PG_READ};
static const struct pg_statement renew_node = {
    "node_renew",
    "UPDATE nodes SET key_hash = $2, certified_until = to_timestamp($4::bigint) "
    "WHERE name = (SELECT name" MAY_RENEW ") AND generation = $3 RETURNING generation",
    PG_WRITE};

static int run_renewal(struct store *store, const struct pg_statement *statement, const char *node,
                       struct pg_params *params, store_id_fn *done, void *arg, struct err *err)
{
    char missing[300];
    snprintf(
        missing, sizeof(missing),
        "node \"%.64s\" has another key, its certificate has ended, or it was removed: it comes back with a "
        "join token made with --node %.64s",
        node, node);
    return store_one_id(store, statement, params, missing, done, arg, err);
}

int store_renew_check(struct store *store, const char *node, const uint8_t key_hash[32], store_id_fn *done,
                      void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, node);
    pg_param_bytes(&params, key_hash, DIGEST_SIZE);
    return run_renewal(store, &check_renewal, node, &params, done, arg, err);
}

int store_node_renew(struct store *store, const char *node, const uint8_t key_hash[32], int64_t generation,
                     int64_t certified_until_s, store_id_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, node);
    pg_param_bytes(&params, key_hash, DIGEST_SIZE);
    pg_param_i64(&params, generation);
    pg_param_i64(&params, certified_until_s);
    return run_renewal(store, &renew_node, node, &params, done, arg, err);
}

/* clang-format off */
static const struct pg_statement remove_node = {
    "node_remove",
    "WITH gone AS (UPDATE nodes SET removed_at = now(), generation = generation + 1, key_hash = NULL, "
    "certified_until = NULL, redis_hash = NULL, seal_key = NULL, "
    "    boot = NULL, state = 'unreachable' WHERE name = $1 AND removed_at IS NULL RETURNING name, "
    "generation), "
    "old AS (UPDATE tokens SET revoked_at = now() FROM gone WHERE tokens.node = gone.name "
    "  AND revoked_at IS NULL RETURNING 1), "
    "unspent AS (DELETE FROM join_tokens j USING gone WHERE j.node = gone.name AND j.used_at IS NULL "
    "  RETURNING 1), "
    "unsent AS (DELETE FROM outbox o USING gone WHERE o.node = gone.name RETURNING 1), "
    "unasked AS (DELETE FROM requests r USING gone WHERE r.device = gone.name "
    "  OR starts_with(r.device, gone.name || '/') RETURNING 1), "
    "told AS (" AUDIT("$2", "'node.remove'", "gone.name", "NULL::json", "json_build_object('generation', gone.generation)", "gone") ") "
    "SELECT json_build_object('name', name, 'generation', generation), pg_notify('motley_jobs', '') FROM "
    "gone",
    PG_WRITE};
/* clang-format on */

int store_node_remove(struct store *store, const struct principal *principal, const char *node,
                      store_doc_fn *done, void *arg, struct err *err)
{
    char missing[160];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no node \"%.80s\"", node);
    pg_params_init(&params);
    pg_param_text(&params, node);
    store_param_actor(&params, principal);
    return store_one_doc(store, &remove_node, &params, missing, done, arg, err);
}
