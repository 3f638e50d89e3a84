/* Routes of tokens: a person's own, and for administrators those of everybody. A token is shown once, when it
 * is made; the database stores only its hash. */
#include "api/request/route.h"

#include "api/people/access.h"
#include "api/people/auth.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <openssl/crypto.h>

void tokens_list(struct call *call)
{
    struct err err = {0};
    if (call_list(call, "tokens id") == 0 &&
        store_token_list(call->app->store, &call->principal, call_answer_list, call, &err) < 0)
        call_fail(call, &err);
}

void whoami_get(struct call *call)
{
    const struct principal *principal = &call->principal;
    char expires[32];
    json_t *answer = json_pack("{s:s, s:s, s:o, s:s?}", "name", principal->name, "kind",
                               principal->kind == PRINCIPAL_AGENT ? "agent" : "user", "scopes",
                               access_scope_names(principal->scopes), "expires",
                               principal->expires_us ? clock_rfc3339(principal->expires_us, expires) : NULL);
    if (answer && principal->kind == PRINCIPAL_USER)
        json_object_set_new(answer, "priority_max", json_integer(principal->priority_max));
    call_json(call, 200, answer, NULL);
}

struct new_token {
    char token[65];
    uint8_t hash[32];
    unsigned scopes;
    int64_t expires_us;
    char note[128];
    char user[201];
};

static void token_made(void *arg, const struct err *err, int64_t id)
{
    struct call *call = arg;
    struct new_token *made = call->state;
    if (err) {
        call_fail(call, err);
        return;
    }
    char expires[32];
    struct httpd_field fields[] = {{"Cache-Control", "no-store"}, {NULL, NULL}};
    call_json(call, 201,
              json_pack("{s:I, s:s, s:s, s:o, s:s?}", "id", (json_int_t)id, "user", made->user, "token",
                        made->token, "scopes", access_scope_names(made->scopes), "expires",
                        made->expires_us ? clock_rfc3339(made->expires_us, expires) : NULL),
              fields);
}

static int take_scopes(struct json_reader *reader, unsigned *scopes)
{
    const json_t *list = NULL;
    *scopes = 0;
    int rc = jr_array(reader, "scopes", JR_OPTIONAL, 1, 16, &list);
    if (rc != 1)
        return rc;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        unsigned bit = name ? store_scope_from_name(name) : 0;
        if (!bit || bit == SCOPE_AGENT)
            return jr_fail(reader, "scopes", "\"%.40s\" is no scope to give", name ? name : "");
        *scopes |= bit;
    }
    return 1;
}

static void token_free(void *state)
{
    OPENSSL_cleanse(state, sizeof(struct new_token));
    free(state);
}

void tokens_post(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    const char *user = call->principal.name, *note = "";
    double seconds = 0;
    struct new_token *made = calloc(1, sizeof(*made));
    if (!made) {
        err_set(&err, ERR_NOMEM, "out of memory for a token");
        call_fail(call, &err);
        return;
    }
    call->state = made;
    call->state_free = token_free;
    call_reader(call, &reader, &err);
    jr_str(&reader, "user", JR_OPTIONAL, 1, sizeof(made->user) - 1, &user);
    jr_str(&reader, "note", JR_OPTIONAL, 0, sizeof(made->note) - 1, &note);
    jr_seconds(&reader, "expires_in", JR_OPTIONAL, 1, 10.0 * 365 * 86400, &seconds);
    take_scopes(&reader, &made->scopes);
    call_plain(&reader, "user", user);
    call_plain(&reader, "note", note);
    const char *wrong = strpbrk(user, "/ ");
    if (wrong && strcmp(user, call->principal.name) != 0)
        jr_fail(&reader, "user", "\"%.80s\" holds a '%c'", user, *wrong);
    if (jr_finish(&reader) < 0) {
        call_refuse(call, &err);
        return;
    }
    snprintf(made->user, sizeof(made->user), "%s", user);
    snprintf(made->note, sizeof(made->note), "%s", note);
    made->expires_us = seconds > 0 ? clock_wall_us() + (int64_t)(seconds * 1e6) : 0;
    struct store_token_new token = {.hash = made->hash, .note = made->note};
    if (access_token(&call->principal, made->user, &made->scopes, &made->expires_us, &err) < 0 ||
        auth_token_make(made->token, made->hash, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    token.scopes = made->scopes;
    token.expires_us = made->expires_us;
    if (store_token_put(call->app->store, &call->principal, made->user, &token, token_made, call, &err) < 0)
        call_fail(call, &err);
}

static void token_revoked(void *arg, const struct err *err)
{
    struct call *call = arg;
    auth_forget(call->app->auth);
    if (err)
        call_fail(call, err);
    else
        call_empty(call, 204);
}

void tokens_revoke(struct call *call)
{
    int64_t id;
    struct err err = {0};
    if (call_id(call, 0, "token", &id) < 0)
        return;
    if (id == call->principal.token)
        call_problem(call, 409, "conflict", NULL,
                     "token %lld is the one you ask with: revoke it with another", (long long)id);
    else if (store_token_revoke(call->app->store, &call->principal, id, token_revoked, call, &err) < 0)
        call_fail(call, &err);
}
