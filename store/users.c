/* Reads and changes users and tokens. */
#include "store/users.sql.h"
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
        .kind = pg_i64(found, 0, TOKEN_FIND_USER) > 0 ? PRINCIPAL_USER : PRINCIPAL_AGENT,
        .id = pg_i64(found, 0, TOKEN_FIND_USER),
        .token = pg_i64(found, 0, TOKEN_FIND_TOKEN),
        .scopes = (unsigned)pg_i64(found, 0, TOKEN_FIND_SCOPES),
        .expires_us = pg_i64(found, 0, TOKEN_FIND_EXPIRES_US),
        .priority_max = (int32_t)pg_i64(found, 0, TOKEN_FIND_PRIORITY_MAX),
    };
    principal.admin = principal.kind == PRINCIPAL_USER && (principal.scopes & SCOPE_ADMIN) != 0;
    snprintf(principal.name, sizeof(principal.name), "%s", pg_text(found, 0, TOKEN_FIND_NAME));
    done(call->arg, NULL, &principal);
}

int store_token_find(struct store *store, const uint8_t hash[32], store_principal_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    sql_token_find(&params, hash);
    const struct pg_step step = store_step(&params);
    int rc = store_run(
        store, &step, 1, 0,
        store_call_create(principal_deliver, principal_fail, (void (*)(void))done, arg, NULL, err), err);
    pg_params_fini(&params);
    return rc;
}

/* ---- users and their tokens ---- */

int store_user_put(struct store *store, const char *name, store_id_fn *done, void *arg, struct err *err)
{
    if (store_check_text("a user's name", name, 200, err) < 0)
        return -1;
    struct pg_params params;
    sql_user_put(&params, name);
    return store_one_id(store, &params, NULL, done, arg, err);
}

int store_token_put(struct store *store, const struct principal *maker, const char *user,
                    const struct store_token_new *token, store_id_fn *done, void *arg, struct err *err)
{
    if (store_check_text("a user's name", user, 200, err) < 0)
        return -1;
    struct pg_params params;
    sql_token_put(&params, user, token->hash, token->scopes, token->note, token->expires_us, maker->token,
                  maker);
    return store_one_id(store, &params, NULL, done, arg, err);
}

int store_token_revoke(struct store *store, const struct principal *principal, int64_t token,
                       store_done_fn *done, void *arg, struct err *err)
{
    char missing[64];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no token %lld", (long long)token);
    sql_token_revoke(&params, token, principal);
    return store_one_touched(store, &params, missing, done, arg, err);
}

int store_user_list(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_user_list(&params);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_user_set(struct store *store, const struct principal *principal, const char *name,
                   const json_t *changes, store_doc_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no user \"%.220s\"", name);
    sql_user_set(&params, name, changes, principal);
    return store_one_doc(store, &params, missing, done, arg, err);
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
    sql_token_list(&params, principal);
    const struct pg_step step = store_step(&params);
    int rc =
        store_run(store, &step, 1, 0,
                  store_call_create(tokens_deliver, tokens_fail, (void (*)(void))done, arg, NULL, err), err);
    pg_params_fini(&params);
    return rc;
}
