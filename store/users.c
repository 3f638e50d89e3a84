/* Reads and changes users and tokens. */
#include "store/store_private.h"
#include "store/users.h"

#include <stdio.h>
#include <string.h>

#include "common/digest.h"

static const char *const scope_names[] = {"jobs:read",   "jobs:write",  "nodes:read",
                                          "nodes:write", "models:read", "models:write",
                                          "admin",       "agent",       "leases:write"};
#define SCOPE_COUNT (sizeof(scope_names) / sizeof(scope_names[0]))

const char *store_scope_name(unsigned bit)
{
    for (unsigned i = 0; i < SCOPE_COUNT; i++)
        if (bit == 1u << i)
            return scope_names[i];
    return NULL;
}

unsigned store_scope_from_name(const char *name)
{
    for (unsigned i = 0; i < SCOPE_COUNT; i++)
        if (strcmp(name, scope_names[i]) == 0)
            return 1u << i;
    return 0;
}

/* ---- the principal of a token ---- */

static const struct pg_statement find_token = {
    "token_find",
    "SELECT coalesce(t.user_id, 0), t.id, coalesce(u.name, t.node), t.scopes, "
    "       coalesce((extract(epoch FROM t.expires_at) * 1e6)::bigint, 0), u.priority_max "
    "FROM tokens t LEFT JOIN users u ON u.id = t.user_id "
    "WHERE t.hash = $1 AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now()) "
    "AND NOT coalesce(u.disabled, false) "
    "AND (t.parent IS NULL OR EXISTS (SELECT 1 FROM tokens p WHERE p.id = t.parent AND p.revoked_at IS NULL "
    "     AND (p.expires_at IS NULL OR p.expires_at > now())))",
    PG_READ};

static void principal_fail(struct store_call *call, const struct err *err)
{
    ((store_principal_fn *)call->done)(call->arg, err, NULL);
}

static void principal_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    store_principal_fn *done = (store_principal_fn *)call->done;
    const struct pg_result *found = results[count - 1];
    if (pg_rows(found) == 0) {
        struct err err;
        err_set(&err, ERR_AUTH,
                "the token is not known, has expired or was revoked, or its user is disabled");
        done(call->arg, &err, NULL);
        return;
    }
    struct principal principal = {
        .kind = pg_i64(found, 0, 0) > 0 ? PRINCIPAL_USER : PRINCIPAL_AGENT,
        .id = pg_i64(found, 0, 0),
        .token = pg_i64(found, 0, 1),
        .scopes = (unsigned)pg_i64(found, 0, 3),
        .expires_us = pg_i64(found, 0, 4),
        .priority_max = (int32_t)pg_i64(found, 0, 5),
    };
    principal.admin = principal.kind == PRINCIPAL_USER && (principal.scopes & SCOPE_ADMIN) != 0;
    snprintf(principal.name, sizeof(principal.name), "%s", pg_text(found, 0, 2));
    done(call->arg, NULL, &principal);
}

int store_token_find(struct store *store, const uint8_t hash[32], store_principal_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_bytes(&params, hash, DIGEST_SIZE);
    const struct pg_step step = {&find_token, &params};
    int rc = store_run(
        store, &step, 1, 0,
        store_call_create(principal_deliver, principal_fail, (void (*)(void))done, arg, NULL, err), err);
    pg_params_fini(&params);
    return rc;
}

/* ---- users and their tokens ---- */

static const struct pg_statement put_user = {
    "user_put",
    "INSERT INTO users (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id",
    PG_WRITE};
/* clang-format off */
static const struct pg_statement put_token = {
    "token_put",
    "WITH u AS (INSERT INTO users (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = excluded.name "
    "  RETURNING id, name), "
    "t AS (INSERT INTO tokens (hash, user_id, scopes, note, expires_at, made_by, parent) "
    "SELECT $2, id, $3, $4, CASE WHEN $5::bigint > 0 THEN to_timestamp($5::bigint / 1e6) END, "
    "  nullif($6::bigint, 0), (SELECT parent FROM tokens WHERE id = $6::bigint) FROM u "
    "  RETURNING id, scopes, note, expires_at), "
    "said AS ("
    AUDIT("$7", "'token.make'", "t.id::text", "NULL::json", "json_build_object('user', u.name, 'scopes', t.scopes, 'note', t.note, 'expires', " "motley_time(t.expires_at))", "t, u")
    "  ) "
    "SELECT id FROM t",
    PG_WRITE};
static const struct pg_statement revoke_token = {
    "token_revoke",
    "WITH t AS (UPDATE tokens SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1 AND "
    "  motley_owns(user_id, $2, $3) RETURNING id, user_id, node), "
    "said AS ("
    AUDIT("$4", "'token.revoke'", "t.id::text", "json_build_object('user', (SELECT name FROM users WHERE id = t.user_id), 'node', t.node)", "NULL::json", "t")
    "  ) "
    "SELECT id FROM t",
    PG_WRITE};
static const struct pg_statement list_users = {
    "user_list",
    "SELECT json_build_object('users', coalesce(json_agg(json_build_object('id', u.id, 'name', u.name, "
    " 'created', motley_time(u.created_at), 'priority_max', u.priority_max, 'disabled', u.disabled, "
    " 'account', (SELECT g.name FROM groups g WHERE g.id = u.account), " LIMITS_OF("u") ", 'groups', "
    " (SELECT coalesce(json_agg(g.name ORDER BY g.name), '[]'::json) FROM group_members m "
    "  JOIN groups g ON g.id = m.grp WHERE m.user_id = u.id)) ORDER BY u.id), '[]'::json)) FROM users u",
    PG_READ};
static const struct pg_statement set_user = {
    "user_set",
    "WITH d AS (SELECT $2::jsonb AS d), "
    "old AS (SELECT u.*, g.name AS account_name FROM users u LEFT JOIN groups g ON g.id = u.account WHERE u.name = $1 "
    "  FOR UPDATE OF u), "
    "u AS (UPDATE users SET priority_max = coalesce((d ->> 'priority_max')::integer, users.priority_max), "
    "  disabled = coalesce((d ->> 'disabled')::boolean, users.disabled), "
    "  account = CASE WHEN NOT d ? 'account' THEN users.account WHEN d ->> 'account' IS NULL THEN NULL "
    "    ELSE motley_group('group', d ->> 'account', 0, true) END, " SET_LIMITS("users")
    "  FROM old, d WHERE users.id = old.id RETURNING users.name, jsonb_build_object('priority_max', old.priority_max, "
    "    'disabled', old.disabled, 'account', old.account_name, " LIMITS_OF("old") ") AS was), "
    "forgotten AS (DELETE FROM identities WHERE user_id = (SELECT id FROM old) AND (SELECT d ? 'identity' FROM d)), "
    "said AS ("
    AUDIT("$3", "'user.set'", "u.name", "(SELECT json_object_agg(k, u.was -> k) FROM jsonb_object_keys(d.d) k)", "d.d::json", "u, d")
    "  ) "
    "SELECT d || jsonb_build_object('name', name) FROM u, d",
    PG_WRITE};
/* clang-format on */
static const struct pg_statement list_tokens = {
    "token_list",
    "SELECT json_build_object('tokens', coalesce(json_agg(json_build_object('id', t.id, 'user', u.name, "
    " 'scopes', t.scopes, 'note', t.note, 'created', motley_time(t.created_at), "
    " 'expires', motley_time(t.expires_at), 'made_by', t.made_by, 'session', t.session) ORDER BY t.id), "
    " '[]'::json)) FROM tokens t JOIN users u ON u.id = t.user_id WHERE t.revoked_at IS NULL "
    "AND (NOT t.session OR t.expires_at > now()) AND motley_owns(t.user_id, $1, $2)",
    PG_READ};

int store_user_put(struct store *store, const char *name, store_id_fn *done, void *arg, struct err *err)
{
    if (store_check_text("a user's name", name, 200, err) < 0)
        return -1;
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, name);
    return store_one_id(store, &put_user, &params, NULL, done, arg, err);
}

int store_token_put(struct store *store, const struct principal *maker, const char *user,
                    const struct store_token_new *token, store_id_fn *done, void *arg, struct err *err)
{
    if (store_check_text("a user's name", user, 200, err) < 0)
        return -1;
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, user);
    pg_param_bytes(&params, token->hash, DIGEST_SIZE);
    pg_param_i64(&params, token->scopes);
    pg_param_text(&params, token->note);
    pg_param_i64(&params, token->expires_us);
    pg_param_i64(&params, maker->token);
    store_param_actor(&params, maker);
    return store_one_id(store, &put_token, &params, NULL, done, arg, err);
}

int store_token_revoke(struct store *store, const struct principal *principal, int64_t token,
                       store_done_fn *done, void *arg, struct err *err)
{
    char missing[64];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no token %lld", (long long)token);
    pg_params_init(&params);
    pg_param_i64(&params, token);
    store_param_viewer(&params, principal);
    store_param_actor(&params, principal);
    return store_one_touched(store, &revoke_token, &params, missing, done, arg, err);
}

int store_user_list(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    return store_one_doc(store, &list_users, NULL, NULL, done, arg, err);
}

int store_user_set(struct store *store, const struct principal *principal, const char *name,
                   const json_t *changes, store_doc_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no user \"%.220s\"", name);
    store_params_change(&params, name, changes, principal);
    return store_one_doc(store, &set_user, &params, missing, done, arg, err);
}

/* Answers the tokens, with the scope bits replaced by names. */
static void tokens_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    store_doc_fn *done = (store_doc_fn *)call->done;
    json_t *doc = pg_json(results[count - 1], 0, 0);
    json_t *token;
    size_t i;
    struct err err;
    if (!doc) {
        err_set(&err, ERR_NOMEM, "no memory for the answer");
        done(call->arg, &err, NULL);
        return;
    }
    json_array_foreach (json_object_get(doc, "tokens"), i, token) {
        unsigned bits = (unsigned)json_integer_value(json_object_get(token, "scopes"));
        json_t *names = json_array();
        for (unsigned bit = 0; bit < SCOPE_COUNT; bit++)
            if ((bits & 1u << bit) != 0)
                json_array_append_new(names, json_string(scope_names[bit]));
        json_object_set_new(token, "scopes", names);
    }
    done(call->arg, NULL, doc);
    json_decref(doc);
}

static void tokens_fail(struct store_call *call, const struct err *err)
{
    ((store_doc_fn *)call->done)(call->arg, err, NULL);
}

int store_token_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    store_param_viewer(&params, principal);
    const struct pg_step step = {&list_tokens, &params};
    int rc =
        store_run(store, &step, 1, 0,
                  store_call_create(tokens_deliver, tokens_fail, (void (*)(void))done, arg, NULL, err), err);
    pg_params_fini(&params);
    return rc;
}
