/* Sessions (session.h) and their routes. */
#include "api/people/session.h"

#include "api/people/access.h"
#include "api/people/auth.h"
#include "api/request/route.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <openssl/crypto.h>

enum { SESSION_SECONDS = 12 * 3600, CODE_SECONDS = 600, CODE_BYTES = 20 };

/* ---- the cookie ---- */

static void cookie_name(const struct call *call, const char *what, char name[32])
{
    if (httpd_request_is_tls(call->request))
        snprintf(name, 32, "__Host-motley%s", what);
    else
        snprintf(name, 32, "motley%s-%u", what, httpd_server_port(call->app->server));
}

bool session_cookie_get(const struct call *call, const char *what, char value[SESSION_TOKEN_BYTES])
{
    char name[32];
    const char *at = httpd_head_get(httpd_request_head(call->request), "cookie");
    cookie_name(call, what, name);
    while (at && *at) {
        size_t size = strcspn(at, ";"), named = strlen(name);
        if (size > named && strncmp(at, name, named) == 0 && at[named] == '=' &&
            size - named - 1 < SESSION_TOKEN_BYTES) {
            snprintf(value, SESSION_TOKEN_BYTES, "%.*s", (int)(size - named - 1), at + named + 1);
            return *value != '\0';
        }
        at += size;
        at += strspn(at, "; ");
    }
    return false;
}

void session_cookie(const struct call *call, const char *what, const char *value, int64_t seconds,
                    char text[SESSION_COOKIE_BYTES])
{
    char name[32];
    cookie_name(call, what, name);
    snprintf(text, SESSION_COOKIE_BYTES, "%s=%s; Path=/; Max-Age=%lld; HttpOnly; SameSite=Strict%s", name,
             value, (long long)seconds, httpd_request_is_tls(call->request) ? "; Secure" : "");
}

const char *session_proxy_user(const struct call *call)
{
    const char *header = call->app->config->proxy_user;
    const char *user = header ? httpd_request_proxied(call->request, header) : NULL;
    for (const char *at = user; at && *at != '\0'; at++)
        if (*at <= ' ' || *at > '~')
            return NULL; /* no name of a user has it */
    return user;
}

/* ---- protection against requests from other sites ---- */

int session_host(const struct call *call, struct err *err)
{
    const char *host = httpd_head_get(httpd_request_head(call->request), "host");
    char name[300] = "";
    if (httpd_request_is_tls(call->request))
        return 0;
    if (host && *host == '[')
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(host + 1, "]"), host + 1);
    else if (host)
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(host, ":"), host);
    if (api_config_is_loopback(name))
        return 0;
    return err_set(err, ERR_DENIED, "Host: \"%.80s\" is no name of this machine's own, and there is no TLS",
                   name);
}

int session_guard(const struct call *call, bool changes, struct err *err)
{
    const struct httpd_head *head = httpd_request_head(call->request);
    const char *site = httpd_head_get(head, "sec-fetch-site");
    const char *origin = httpd_head_get(head, "origin"), *host = httpd_head_get(head, "host");
    const char *scheme = httpd_request_is_tls(call->request) ? "https://" : "http://";
    size_t size = strlen(scheme);
    if (session_host(call, err) < 0)
        return -1;
    if (site && strcmp(site, "same-origin") != 0 && strcmp(site, "none") != 0)
        return err_set(err, ERR_DENIED,
                       "Sec-Fetch-Site: a session is for the page itself, not for other sites");
    if (!changes)
        return 0;
    if (!httpd_head_get(head, "x-motley"))
        return err_set(err, ERR_DENIED,
                       "X-Motley: with a session, a request that changes something needs it");
    if (!origin || !host || strncmp(origin, scheme, size) != 0 || strcasecmp(origin + size, host) != 0)
        return err_set(err, ERR_DENIED, "Origin: \"%.80s\" is not this server's", origin ? origin : "");
    return 0;
}

/* ---- routes ---- */

/* A random token that an answer carries (a sign-in code or a session's token), with its SHA-256 and the end
 * of its validity. It is wiped when the call ends. */
struct session_made {
    char token[SESSION_TOKEN_BYTES];
    uint8_t hash[32];
    int64_t expires_us;
    bool program; /* it is a token for programs and goes into the answer, not into a cookie */
};

static void session_made_free(void *state)
{
    OPENSSL_cleanse(state, sizeof(struct session_made));
    free(state);
}

/* Makes a random token of `bytes` bytes for the call's answer. Returns NULL when the call was answered. */
static struct session_made *session_make(struct call *call, size_t bytes)
{
    struct err err = {0};
    struct session_made *made = calloc(1, sizeof(*made));
    if (!made) {
        err_set(&err, ERR_NOMEM, "out of memory for a session");
    } else {
        call->state = made;
        call->state_free = session_made_free;
        if (random_hex(made->token, bytes, &err) == 0 &&
            digest_sha256(made->token, 2 * bytes, made->hash, &err) == 0)
            return made;
    }
    call_fail(call, &err);
    return NULL;
}

static const struct httpd_field not_stored = {"Cache-Control", "no-store"};

static void code_made(void *arg, const struct err *err)
{
    struct call *call = arg;
    const struct session_made *made = call->state;
    char expires[32];
    const struct httpd_field fields[] = {not_stored, {NULL, NULL}};
    if (err && err->code == ERR_NOT_FOUND)
        call_problem(call, 403, "denied", NULL, "%s", err->text);
    else if (err)
        call_fail(call, err);
    else
        call_json(
            call, 201,
            json_pack("{s:s, s:s}", "code", made->token, "expires", clock_rfc3339(made->expires_us, expires)),
            fields);
}

void session_codes_post(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    if (call->body) {
        call_reader(call, &reader, &err);
        if (jr_finish(&reader) < 0) {
            call_refuse(call, &err);
            return;
        }
    }
    struct session_made *made = session_make(call, CODE_BYTES);
    if (!made)
        return;
    made->expires_us = clock_wall_us() + CODE_SECONDS * INT64_C(1000000);
    if (store_session_code_put(call->app->store, &call->principal, made->hash, made->expires_us, code_made,
                               call, &err) < 0)
        call_fail(call, &err);
}

static void session_opened(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    const struct session_made *made = call->state;
    char cookie[SESSION_COOKIE_BYTES];
    if (err && err->code == ERR_NOT_FOUND && json_object_size(call->body) == 0) {
        call_problem(call, 403, "denied", NULL, "%s", err->text);
    } else if (err && err->code == ERR_NOT_FOUND) {
        struct err unknown;
        err_set(&unknown, ERR_AUTH, "%s: %s", json_object_get(call->body, "code") ? "code" : "token",
                err->text);
        call_wrong_token(call, &unknown);
    } else if (err) {
        call_fail(call, err);
    } else {
        if (made->program)
            json_object_set_new(doc, "token", json_string(made->token));
        session_cookie(call, COOKIE_SESSION, made->token, json_integer_value(json_object_get(doc, "seconds")),
                       cookie);
        const struct httpd_field fields[] = {
            not_stored, {made->program ? NULL : "Set-Cookie", cookie}, {NULL, NULL}};
        unsigned scopes = (unsigned)json_integer_value(json_object_get(doc, "scopes"));
        call_json(call, 201,
                  json_pack("{s:O, s:o, s:O, s:O*}", "user", json_object_get(doc, "user"), "scopes",
                            access_scope_names(scopes), "expires", json_object_get(doc, "expires"), "token",
                            json_object_get(doc, "token")),
                  fields);
    }
}

void session_post(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    const char *code = NULL, *token = NULL;
    uint8_t shown[32];
    char address[PRINCIPAL_ADDRESS_BYTES];
    if (session_guard(call, true, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    call_reader(call, &reader, &err);
    jr_str(&reader, "code", JR_OPTIONAL, 1, 512, &code);
    jr_str(&reader, "token", JR_OPTIONAL, 1, 512, &token);
    const char *user = code || token ? NULL : session_proxy_user(call);
    if (!user && !code == !token)
        jr_fail(&reader, "code", "either it or a token must be given");
    const char *secret = code ? code : token;
    if (jr_finish(&reader) < 0 || (!secret && !user)) {
        call_refuse(call, &err);
        return;
    }
    struct session_made *made = session_make(call, 32);
    if (!made)
        return;
    call_address(call, address);
    struct store *store = call->app->store;
    const struct store_signed_in who = {
        .user = user, .address = address, .scopes = SCOPES_USER, .seconds = SESSION_SECONDS};
    int rc = user ? store_session_open_user(store, &who, made->hash, session_opened, call, &err)
                  : digest_sha256(secret, strlen(secret), shown, &err);
    if (rc == 0 && !user)
        rc = store_session_open(store, shown, made->hash, SESSION_SECONDS, address, session_opened, call,
                                &err);
    if (rc < 0)
        call_fail(call, &err);
}

void session_sign_in(struct call *call, struct store_signed_in *who)
{
    struct err err = {0};
    struct session_made *made = session_make(call, 32);
    if (!made)
        return;
    made->program = !who->session;
    who->seconds = who->seconds ? who->seconds : SESSION_SECONDS;
    if (store_identity_sign_in(call->app->store, who, made->hash, session_opened, call, &err) < 0)
        call_fail(call, &err);
}

static void session_closed(void *arg, const struct err *err)
{
    struct call *call = arg;
    char cookie[SESSION_COOKIE_BYTES];
    auth_forget(call->app->auth);
    if (err && err->code == ERR_NOT_FOUND) {
        call_problem(call, 409, "conflict", NULL, "%s", err->text);
    } else if (err) {
        call_fail(call, err);
    } else {
        session_cookie(call, COOKIE_SESSION, "", 0, cookie);
        const struct httpd_field fields[] = {{"Set-Cookie", cookie}, {NULL, NULL}};
        call_count(call, 204);
        httpd_reply(call->request, 204, NULL, fields, NULL, 0);
    }
}

void session_delete(struct call *call)
{
    struct err err = {0};
    if (store_session_close(call->app->store, &call->principal, session_closed, call, &err) < 0)
        call_fail(call, &err);
}
