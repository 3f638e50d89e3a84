/* Routes of signing in by an OpenID provider (issuer.h).
 *
 * The page: POST /v1/oidc/login gives the browser a cookie with a random secret and the provider's address;
 * state, nonce and PKCE's verifier are digests of the secret, so that nothing is kept here, and any api
 * can go on. The provider sends the browser to /oidc/callback, a view of the page, which posts what came with
 * it to /v1/oidc/session. So the cookie is SameSite=Strict, the request is guarded as all of the page's are
 * (session.h), and no address leads anybody elsewhere.
 *
 * Programs: /v1/oidc/device and /v1/oidc/token pass on the device flow, since the client's secret is this
 * server's. They keep nothing either: whoever has the device's code is the device.
 */
#include "api/request/route.h"

#include "api/people/issuer.h"
#include "api/people/session.h"
#include "api/people/sign_in.h"
#include "api/request/wait.h"
#include "common/buf.h"
#include "common/digest.h"
#include "common/json.h"
#include "common/log.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

enum { LOGIN_SECONDS = 600, ADDRESS_BYTES_MAX = 65536, CODE_BYTES_MAX = 4096 };

/* What one request asks of the issuer, on its thread. */
struct oidc_work {
    struct issuer *issuer;
    struct issuer_grant grant;
    struct buf address;
    enum issuer_outcome outcome;
    json_t *answer; /* claims, or a device's code */
    char secret[SESSION_TOKEN_BYTES];
    char state[DIGEST_HEX_SIZE], nonce[DIGEST_HEX_SIZE], verifier[DIGEST_HEX_SIZE], redirect_uri[512];
};

/* Answers whether an issuer is configured; if not, the call was answered. */
static bool work_begin(struct call *call, struct oidc_work *work)
{
    *work = (struct oidc_work){.issuer = call->app->issuer, .address = {.limit = ADDRESS_BYTES_MAX}};
    if (!work->issuer)
        call_problem(call, 404, "not-found", NULL,
                     "nobody signs in by an OpenID provider here (oidc in the server's configuration)");
    return work->issuer != NULL;
}

static void work_end(struct oidc_work *work)
{
    OPENSSL_cleanse(work->secret, sizeof(work->secret));
    OPENSSL_cleanse(work->verifier, sizeof(work->verifier));
    buf_fini(&work->address);
    json_decref(work->answer);
}

static int derive(const char *what, const char *secret, char hex[DIGEST_HEX_SIZE], struct err *err)
{
    char text[SESSION_TOKEN_BYTES + 16];
    const int size = snprintf(text, sizeof(text), "%s %s", what, secret);
    const int rc = digest_sha256_hex(text, (size_t)size, hex, err);
    OPENSSL_cleanse(text, sizeof(text));
    return rc;
}

/* The path below which a web server serves the page, as a named one says; "" for none. */
static const char *page_base(const struct call *call)
{
    const char *base = httpd_request_proxied(call->request, "x-forwarded-prefix");
    const size_t size = base ? strlen(base) : 0;
    return size > 1 && size < 200 && base[0] == '/' && base[size - 1] != '/' &&
                   base[strspn(base,
                               "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/")] == '\0'
               ? base
               : "";
}

/* Makes of work->secret what this sign-in is bound to. */
static int bind_sign_in(const struct call *call, struct oidc_work *work, struct err *err)
{
    const char *host = httpd_head_get(httpd_request_head(call->request), "host");
    snprintf(work->redirect_uri, sizeof(work->redirect_uri), "%s://%.260s%s/oidc/callback",
             httpd_request_is_tls(call->request) ? "https" : "http", host ? host : "", page_base(call));
    work->grant.sign_in = (struct issuer_sign_in){.redirect_uri = work->redirect_uri,
                                                  .state = work->state,
                                                  .nonce = work->nonce,
                                                  .verifier = work->verifier};
    return derive("state", work->secret, work->state, err) < 0 ||
                   derive("nonce", work->secret, work->nonce, err) < 0
               ? -1
               : derive("verifier", work->secret, work->verifier, err);
}

static int oidc_run(struct call *call, int (*what)(void *arg, struct err *err), struct oidc_work *work,
                    struct err *err)
{
    return wait_work(call->app, call->app->sign_ins, what, work, err);
}

static int authorize(void *arg, struct err *err)
{
    struct oidc_work *work = arg;
    return issuer_authorize(work->issuer, &work->grant.sign_in, &work->address, err);
}

static int redeem(void *arg, struct err *err)
{
    struct oidc_work *work = arg;
    work->outcome = issuer_redeem(work->issuer, &work->grant, &work->answer, err);
    return work->outcome == ISSUER_FAILED ? -1 : 0;
}

static int device_begin(void *arg, struct err *err)
{
    struct oidc_work *work = arg;
    return issuer_device(work->issuer, &work->answer, err);
}

/* Answers what the issuer failed with. What was shown and refused counts as a wrong token; all else is for
 * whoever looks after the server, too. */
static void oidc_fail(struct call *call, const struct err *err)
{
    if (err->code == ERR_DENIED) {
        call_wrong_token(call, err);
        return;
    }
    log_event(LOG_LEVEL_WARN, "sign_in_failed", "why=\"%s\"", err->text);
    call_fail(call, err);
}

/* Signs in whom the claims mean. */
static void claims_sign_in(struct call *call, const struct oidc_work *work, bool session)
{
    const struct api_oidc *config = &call->app->config->oidc;
    if (json_is_false(json_object_get(work->answer, "email_verified")) &&
        strcmp(config->user_claim, "email") == 0) {
        call_problem(call, 403, "denied", NULL, "the issuer %.200s has not verified the address \"%.80s\"",
                     config->issuer, json_text_of(work->answer, "email"));
        return;
    }
    sign_in(call, &config->rules,
            &(struct sign_in_word){.issuer = config->issuer,
                                   .subject = json_text_of(work->answer, "sub"),
                                   .name = json_text_of(work->answer, config->user_claim),
                                   .groups = json_object_get(work->answer, config->groups_claim),
                                   .session = session});
}

void oidc_get(struct call *call)
{
    const struct api_config *config = call->app->config;
    call_json(call, 200,
              json_pack("{s:s?, s:s?}", "issuer", config->has_oidc ? config->oidc.issuer : NULL, "name",
                        config->has_oidc ? config->oidc.name : NULL),
              NULL);
}

void oidc_login_post(struct call *call)
{
    struct err err = {0};
    struct oidc_work work;
    char cookie[SESSION_COOKIE_BYTES];
    if (session_guard(call, true, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    if (!work_begin(call, &work))
        return;
    if (random_hex(work.secret, 32, &err) < 0 || bind_sign_in(call, &work, &err) < 0 ||
        oidc_run(call, authorize, &work, &err) < 0) {
        oidc_fail(call, &err);
    } else {
        session_cookie(call, COOKIE_OIDC, work.secret, LOGIN_SECONDS, cookie);
        const struct httpd_field fields[] = {
            {"Set-Cookie", cookie}, {"Cache-Control", "no-store"}, {NULL, NULL}};
        call_json(call, 201, json_pack("{s:s}", "location", buf_str(&work.address)), fields);
    }
    work_end(&work);
}

void oidc_session_post(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    struct oidc_work work;
    const char *state = "";
    if (session_guard(call, true, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    if (!work_begin(call, &work))
        return;
    call_reader(call, &reader, &err);
    jr_str(&reader, "code", JR_REQUIRED, 1, CODE_BYTES_MAX, &work.grant.code);
    jr_str(&reader, "state", JR_REQUIRED, 1, 512, &state);
    jr_str(&reader, "iss", JR_OPTIONAL, 1, 1000, &work.grant.iss);
    const bool begun = session_cookie_get(call, COOKIE_OIDC, work.secret);
    if (jr_finish(&reader) < 0)
        call_refuse(call, &err);
    else if (bind_sign_in(call, &work, &err) < 0)
        call_fail(call, &err);
    else if (!begun || strlen(state) != strlen(work.state) ||
             !digest_equal(state, work.state, strlen(work.state)))
        call_problem(
            call, 403, "denied", NULL,
            "state: this sign-in was not begun in this browser, or more than %d minutes ago: begin again",
            LOGIN_SECONDS / 60);
    else if (oidc_run(call, redeem, &work, &err) < 0)
        oidc_fail(call, &err);
    else
        claims_sign_in(call, &work, true);
    work_end(&work);
}

void oidc_device_post(struct call *call)
{
    static const struct httpd_field fields[] = {{"Cache-Control", "no-store"}, {NULL, NULL}};
    struct err err = {0};
    struct oidc_work work;
    if (!work_begin(call, &work))
        return;
    if (oidc_run(call, device_begin, &work, &err) < 0)
        oidc_fail(call, &err);
    else
        call_json(call, 201, json_incref(work.answer), fields);
    work_end(&work);
}

void oidc_token_post(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    struct oidc_work work;
    if (!work_begin(call, &work))
        return;
    call_reader(call, &reader, &err);
    jr_str(&reader, "device_code", JR_REQUIRED, 1, CODE_BYTES_MAX, &work.grant.device_code);
    if (jr_finish(&reader) < 0)
        call_refuse(call, &err);
    else if (oidc_run(call, redeem, &work, &err) < 0)
        oidc_fail(call, &err);
    else if (work.outcome == ISSUER_DONE)
        claims_sign_in(call, &work, false);
    else
        call_json(call, 202,
                  json_pack("{s:s}", "error",
                            work.outcome == ISSUER_SLOW_DOWN ? "slow_down" : "authorization_pending"),
                  NULL);
    work_end(&work);
}
