/* Requests to the issuer, and what is kept of its answers. */
#include "api/people/issuer.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/people/jwt.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/file.h"
#include "common/http.h"
#include "common/json.h"
#include "common/outside.h"

#define SECONDS UINT64_C(1000000000)
#define WELL_KNOWN "/.well-known/openid-configuration"
#define DEVICE_GRANT "urn:ietf:params:oauth:grant-type:device_code"

enum {
    REPLY_BYTES_MAX = 256 << 10,
    REPLY_DEPTH_MAX = 16,
    SECRET_BYTES_MAX = 4096,
    VALUE_BYTES_MAX = 4096, /* of a value in a form */
    FORM_BYTES_MAX = 64 << 10,
    CONNECT_MS = 5000,
    ANSWER_MS = 10000,
    REST_S = 3,           /* after an answer that came too late */
    KEEP_S = 3600,        /* how long a document and keys are kept */
    KEYS_AGAIN_S = 1,     /* unknown keys are asked for no more often */
    DEVICE_INTERVAL_S = 5 /* RFC 8628, section 3.2: where the issuer names none */
};

struct issuer {
    const struct api_oidc *config;
    json_t *document, *keys; /* or NULL */
    uint64_t document_ns, keys_ns, late_ns;
    struct err late; /* of the last request, if it took too long: at late_ns */
    atomic_bool stopped;
};

struct issuer *issuer_create(const struct api_oidc *config, struct err *err)
{
    struct issuer *issuer = calloc(1, sizeof(*issuer));
    if (!issuer)
        err_set(err, ERR_NOMEM, "out of memory for an issuer");
    else
        issuer->config = config;
    return issuer;
}

void issuer_destroy(struct issuer *issuer)
{
    if (!issuer)
        return;
    json_decref(issuer->document);
    json_decref(issuer->keys);
    free(issuer);
}

void issuer_stop(struct issuer *issuer)
{
    if (issuer)
        atomic_store(&issuer->stopped, true);
}

static bool issuer_is_stopped(const void *arg)
{
    return atomic_load(&((struct issuer *)(uintptr_t)arg)->stopped);
}

static bool is_fresh(uint64_t since_ns, unsigned seconds)
{
    return clock_mono_ns() - since_ns < seconds * SECONDS;
}

/* ---- requests ---- */

struct issuer_question {
    const char *address, *form, *bearer, *basic; /* form: NULL: a GET; bearer, basic: or NULL */
    char error[64]; /* afterwards: the refusal's error (RFC 6749, section 5.2), or "" */
};

/* Makes the error of an answer that no caller of the api is to blame for, with the issuer's name. It reaches
 * terminals: printable ASCII alone. */
static int issuer_failed(const struct issuer *issuer, struct err *err)
{
    switch (err->code) {
    case ERR_DENIED:
    case ERR_NOMEM:
    case ERR_NET:
    case ERR_TIMEOUT:
    case ERR_UNSUPPORTED:
    case ERR_CANCELLED:
        break;
    case ERR_IO: /* the text has a path, which is no client's to know */
        err_set(err, ERR_IO, "this server cannot use the file of oidc.ca or oidc.client_secret_file");
        break;
    default:
        err->code = ERR_PEER;
    }
    for (char *at = err->text; *at; at++)
        *at = *at < ' ' || *at > '~' ? '?' : *at;
    return err_wrap(err, "the issuer %.200s", issuer->config->issuer);
}

/* Reads an OAuth refusal, {"error", "error_description"}. */
static void refusal_read(struct issuer_question *question, const struct buf *text, struct err *err)
{
    struct err ignored;
    json_t *object = json_parse_limited(buf_str(text), text->size, REPLY_DEPTH_MAX, &ignored);
    const char *error = json_text_of(object, "error"), *why = json_text_of(object, "error_description");
    if (*error) {
        snprintf(question->error, sizeof(question->error), "%s", error);
        err_set(err, ERR_DENIED, "it refuses: %.60s%s%.170s", error, *why ? ": " : "", why);
    }
    json_decref(object);
}

/* Sends a request, and reads the answer, a JSON object. Without TLS it reaches this machine alone. */
static int issuer_ask(struct issuer *issuer, struct issuer_question *question, json_t **out, struct err *err)
{
    struct outside_url url;
    struct buf answer = {.limit = REPLY_BYTES_MAX}, refusal = {.limit = REPLY_BYTES_MAX};
    const char *const headers[] = {"Accept: application/json", question->basic, NULL};
    if (issuer->late.code && is_fresh(issuer->late_ns, REST_S)) {
        *err = issuer->late;
        return -1;
    }
    if (outside_url_read(question->address, &url, err) < 0)
        return issuer_failed(issuer, err);
    struct http *http = http_create(&(struct http_options){.url = url.origin,
                                                           .bearer = question->bearer,
                                                           .ca_file = issuer->config->ca,
                                                           .web = true,
                                                           .no_redirects = true,
                                                           .secret = true,
                                                           .connect_ms = CONNECT_MS},
                                    err);
    const struct http_request request = {
        .method = question->form ? "POST" : "GET",
        .path = url.path,
        .content_type = question->form ? "application/x-www-form-urlencoded" : NULL,
        .body = question->form,
        .body_bytes = question->form ? strlen(question->form) : 0,
        .headers = headers,
        .response = &answer,
        .refusal = &refusal,
        .timeout_ms = ANSWER_MS,
        .stopped = issuer_is_stopped,
        .stopped_arg = issuer,
    };
    int rc = http ? http_perform(http, &request, NULL, err) : -1;
    if (rc < 0)
        refusal_read(question, &refusal, err);
    else if (!(*out = json_parse_limited(buf_str(&answer), answer.size, REPLY_DEPTH_MAX, err)))
        rc = -1;
    else if (!json_is_object(*out)) {
        json_decref(*out);
        rc = err_set(err, ERR_PEER, "its answer is no JSON object");
    }
    if (answer.size > 0)
        OPENSSL_cleanse(answer.data, answer.size);
    buf_fini(&answer);
    buf_fini(&refusal);
    http_destroy(http);
    rc = rc < 0 ? issuer_failed(issuer, err) : 0;
    issuer->late = rc < 0 && err->code == ERR_TIMEOUT ? *err : (struct err){0};
    issuer->late_ns = clock_mono_ns();
    return rc;
}

/* Has the issuer's document at hand. */
static int document_get(struct issuer *issuer, struct err *err)
{
    const char *name = issuer->config->issuer;
    char address[OUTSIDE_URL_BYTES + sizeof(WELL_KNOWN)];
    json_t *fresh = NULL;
    size_t size = strlen(name);
    if (issuer->document && is_fresh(issuer->document_ns, KEEP_S))
        return 0;
    while (size > 0 && name[size - 1] == '/')
        size--;
    snprintf(address, sizeof(address), "%.*s" WELL_KNOWN, (int)size, name);
    if (issuer_ask(issuer, &(struct issuer_question){.address = address}, &fresh, err) < 0)
        return -1;
    if (strcmp(json_text_of(fresh, "issuer"), name) != 0) {
        err_set(err, ERR_PEER, "its document says that it is \"%.200s\": oidc.issuer must be the same text",
                json_text_of(fresh, "issuer"));
        json_decref(fresh);
        return issuer_failed(issuer, err);
    }
    json_decref(issuer->document);
    issuer->document = fresh;
    issuer->document_ns = clock_mono_ns();
    return 0;
}

/* Returns an address of the document, borrowed; NULL with ERR_UNSUPPORTED. */
static const char *endpoint(struct issuer *issuer, const char *key, struct err *err)
{
    if (document_get(issuer, err) < 0)
        return NULL;
    const char *address = json_text_of(issuer->document, key);
    if (*address)
        return address;
    err_set(err, ERR_UNSUPPORTED, "it has no %s", key);
    issuer_failed(issuer, err);
    return NULL;
}

/* Has the issuer's keys at hand, fetched within the last `seconds`. */
static int keys_get(struct issuer *issuer, unsigned seconds, struct err *err)
{
    json_t *fresh = NULL;
    if (issuer->keys && is_fresh(issuer->keys_ns, seconds))
        return 0;
    const char *address = endpoint(issuer, "jwks_uri", err);
    if (!address || issuer_ask(issuer, &(struct issuer_question){.address = address}, &fresh, err) < 0)
        return -1;
    json_decref(issuer->keys);
    issuer->keys = fresh;
    issuer->keys_ns = clock_mono_ns();
    return 0;
}

/* ---- forms ---- */

/* Appends "&name=value", percent-encoded. */
static int issuer_add(struct buf *form, const char *name, const char *value, struct err *err)
{
    char text[3 * VALUE_BYTES_MAX + 1];
    if (http_escape(value, text, sizeof(text), err) < 0)
        return -1;
    return buf_printf(form, err, "%s%s=%s", form->size > 0 ? "&" : "", name, text);
}

/* Makes the header by which the client proves itself (RFC 6749, section 2.3.1). Takes `secret`. */
static int basic_make(const char *client_id, const char *secret, struct buf *header, struct err *err)
{
    char id[3 * VALUE_BYTES_MAX + 1], word[3 * SECRET_BYTES_MAX + 1];
    struct buf pair = {.limit = sizeof(id) + sizeof(word)};
    int rc = -1;
    if (http_escape(client_id, id, sizeof(id), err) == 0 &&
        http_escape(secret, word, sizeof(word), err) == 0 && buf_printf(&pair, err, "%s:%s", id, word) == 0 &&
        buf_text(header, "Authorization: Basic ", err) == 0 &&
        buf_reserve(header, 4 * (pair.size / 3 + 1) + 1, err) == 0) {
        const int size = EVP_EncodeBlock(header->data + header->size, pair.data, (int)pair.size);
        header->size += (size_t)size;
        rc = 0;
    }
    OPENSSL_cleanse(word, sizeof(word));
    if (pair.size > 0)
        OPENSSL_cleanse(pair.data, pair.size);
    buf_fini(&pair);
    return rc;
}

/* Whether the client's secret goes into a header, as the issuer prefers where it says nothing. */
static bool wants_basic(const struct issuer *issuer)
{
    const json_t *methods = json_object_get(issuer->document, "token_endpoint_auth_methods_supported");
    bool post = false;
    size_t i;
    json_t *one;
    json_array_foreach (methods, i, one) {
        const char *name = json_string_value(one);
        if (name && strcmp(name, "client_secret_basic") == 0)
            return true;
        post |= name && strcmp(name, "client_secret_post") == 0;
    }
    return !post;
}

/* Posts a form as the client that the configuration names. */
static int post(struct issuer *issuer, struct issuer_question *question, struct buf *form, json_t **out,
                struct err *err)
{
    const struct api_oidc *config = issuer->config;
    struct buf secret = {.limit = SECRET_BYTES_MAX}, basic = {.limit = FORM_BYTES_MAX};
    int rc = issuer_add(form, "client_id", config->client_id, err);
    if (rc == 0 && config->client_secret_file) {
        rc = file_read_line(config->client_secret_file, SECRET_BYTES_MAX, &secret, err);
        if (rc == 0 && wants_basic(issuer))
            rc = basic_make(config->client_id, buf_str(&secret), &basic, err);
        else if (rc == 0)
            rc = issuer_add(form, "client_secret", buf_str(&secret), err);
        if (rc < 0) {
            err->code = ERR_IO;
            rc = issuer_failed(issuer, err);
        }
    }
    question->form = buf_str(form);
    question->basic = basic.size > 0 ? buf_str(&basic) : NULL;
    rc = rc < 0 ? -1 : issuer_ask(issuer, question, out, err);
    if (secret.size > 0)
        OPENSSL_cleanse(secret.data, secret.size);
    if (basic.size > 0)
        OPENSSL_cleanse(basic.data, basic.size);
    buf_fini(&secret);
    buf_fini(&basic);
    return rc;
}

/* Writes PKCE's challenge of a verifier (RFC 7636, section 4.2): its SHA-256 in base64url. */
static int challenge_of(const char *verifier, char challenge[48], struct err *err)
{
    uint8_t hash[DIGEST_SIZE];
    if (digest_sha256(verifier, strlen(verifier), hash, err) < 0)
        return -1;
    EVP_EncodeBlock((uint8_t *)challenge, hash, sizeof(hash));
    for (char *at = challenge; *at; at++)
        *at = *at == '+' ? '-' : *at == '/' ? '_' : *at == '=' ? '\0' : *at;
    return 0;
}

int issuer_authorize(struct issuer *issuer, const struct issuer_sign_in *sign_in, struct buf *address,
                     struct err *err)
{
    char challenge[48];
    struct buf form = {.limit = FORM_BYTES_MAX};
    const char *place = endpoint(issuer, "authorization_endpoint", err);
    if (!place || challenge_of(sign_in->verifier, challenge, err) < 0)
        return -1;
    const char *const fields[][2] = {{"response_type", "code"},
                                     {"client_id", issuer->config->client_id},
                                     {"redirect_uri", sign_in->redirect_uri},
                                     {"scope", issuer->config->scopes},
                                     {"state", sign_in->state},
                                     {"nonce", sign_in->nonce},
                                     {"code_challenge", challenge},
                                     {"code_challenge_method", "S256"}};
    int rc = 0;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) && rc == 0; i++)
        rc = issuer_add(&form, fields[i][0], fields[i][1], err);
    struct outside_url url;
    if (rc == 0 && outside_url_read(place, &url, err) < 0) /* a browser goes there: no javascript: */
        rc = issuer_failed(issuer, err);
    if (rc == 0)
        rc = buf_printf(address, err, "%s%c%s", place, strchr(place, '?') ? '&' : '?', buf_str(&form));
    buf_fini(&form);
    return rc;
}

/* ---- tokens ---- */

/* Checks an ID token by the issuer's keys, which are fetched again if its key is not among them. */
static int token_check(struct issuer *issuer, const json_t *answer, const char *nonce, json_t **claims,
                       struct err *err)
{
    const char *token = json_text_of(answer, "id_token");
    const struct jwt_asked asked = {.issuer = issuer->config->issuer,
                                    .client_id = issuer->config->client_id,
                                    .nonce = nonce,
                                    .now_s = clock_wall_us() / 1000000};
    if (!*token) {
        err_set(err, ERR_PEER, "its answer has no ID token: oidc.scopes must have openid");
        return issuer_failed(issuer, err);
    }
    if (keys_get(issuer, KEEP_S, err) < 0)
        return -1;
    int rc = jwt_verify(token, issuer->keys, claims, err);
    if (rc < 0 && err->code == ERR_NOT_FOUND) {
        if (keys_get(issuer, KEYS_AGAIN_S, err) < 0)
            return -1;
        rc = jwt_verify(token, issuer->keys, claims, err);
    }
    if (rc == 0)
        rc = jwt_check(*claims, &asked, err);
    if (rc == 0)
        return 0;
    err->code = ERR_DENIED;
    return issuer_failed(issuer, err);
}

/* Adds claims that the ID token lacks (OpenID Connect Core 1.0, section 5.3). An issuer without that endpoint
 * has none. */
static int userinfo_add(struct issuer *issuer, const json_t *answer, json_t *claims, struct err *err)
{
    const struct api_oidc *config = issuer->config;
    struct issuer_question question = {.address = json_text_of(issuer->document, "userinfo_endpoint"),
                                       .bearer = json_text_of(answer, "access_token")};
    json_t *more = NULL;
    if ((json_object_get(claims, config->user_claim) && json_object_get(claims, config->groups_claim)) ||
        !*question.address || !*question.bearer)
        return 0;
    if (issuer_ask(issuer, &question, &more, err) < 0)
        return -1;
    int rc = strcmp(json_text_of(more, "sub"), json_text_of(claims, "sub")) == 0
                 ? json_object_update_missing(claims, more)
                 : err_set(err, ERR_PEER, "its userinfo endpoint tells of another person than its ID token");
    json_decref(more);
    return rc < 0 ? issuer_failed(issuer, err) : 0;
}

/* Whether the browser came from this issuer and not from another one, where it says so (RFC 9207). */
static int origin_check(const struct issuer *issuer, const char *iss, struct err *err)
{
    if (iss ? strcmp(iss, issuer->config->issuer) == 0
            : !json_is_true(
                  json_object_get(issuer->document, "authorization_response_iss_parameter_supported")))
        return 0;
    err_set(err, ERR_DENIED, "the browser came from \"%.100s\"", iss ? iss : "");
    return issuer_failed(issuer, err);
}

enum issuer_outcome issuer_redeem(struct issuer *issuer, const struct issuer_grant *grant, json_t **claims,
                                  struct err *err)
{
    struct buf form = {.limit = FORM_BYTES_MAX};
    struct issuer_question question = {.address = endpoint(issuer, "token_endpoint", err)};
    json_t *answer = NULL;
    int rc = question.address ? 0 : -1;
    *claims = NULL;
    if (rc == 0 && grant->device_code) {
        rc = issuer_add(&form, "grant_type", DEVICE_GRANT, err) < 0 ||
                     issuer_add(&form, "device_code", grant->device_code, err) < 0
                 ? -1
                 : 0;
    } else if (rc == 0) {
        rc = origin_check(issuer, grant->iss, err) < 0 ||
                     issuer_add(&form, "grant_type", "authorization_code", err) < 0 ||
                     issuer_add(&form, "code", grant->code, err) < 0 ||
                     issuer_add(&form, "redirect_uri", grant->sign_in.redirect_uri, err) < 0 ||
                     issuer_add(&form, "code_verifier", grant->sign_in.verifier, err) < 0
                 ? -1
                 : 0;
    }
    if (rc == 0)
        rc = post(issuer, &question, &form, &answer, err);
    if (rc == 0)
        rc = token_check(issuer, answer, grant->device_code ? NULL : grant->sign_in.nonce, claims, err);
    if (rc == 0)
        rc = userinfo_add(issuer, answer, *claims, err);
    json_decref(answer);
    buf_fini(&form);
    if (rc == 0)
        return ISSUER_DONE;
    json_decref(*claims);
    *claims = NULL;
    if (grant->device_code && strcmp(question.error, "authorization_pending") == 0)
        return ISSUER_PENDING;
    if (grant->device_code && strcmp(question.error, "slow_down") == 0)
        return ISSUER_SLOW_DOWN;
    return ISSUER_FAILED;
}

int issuer_device(struct issuer *issuer, json_t **answer, struct err *err)
{
    struct buf form = {.limit = FORM_BYTES_MAX};
    struct issuer_question question = {.address = endpoint(issuer, "device_authorization_endpoint", err)};
    struct outside_url url;
    json_t *got = NULL;
    if (!question.address || issuer_add(&form, "scope", issuer->config->scopes, err) < 0 ||
        post(issuer, &question, &form, &got, err) < 0) {
        buf_fini(&form);
        return -1;
    }
    buf_fini(&form);
    const char *complete = json_text_of(got, "verification_uri_complete");
    const json_int_t expires = json_integer_value(json_object_get(got, "expires_in")),
                     interval = json_integer_value(json_object_get(got, "interval"));
    int rc = 0;
    if (outside_url_read(json_text_of(got, "verification_uri"), &url, err) < 0 ||
        (*complete && outside_url_read(complete, &url, err) < 0))
        rc = -1;
    else if (!*json_text_of(got, "device_code") || !*json_text_of(got, "user_code") || expires < 1)
        rc = err_set(err, ERR_PEER, "its answer has no device_code, user_code or expires_in");
    else if (!(*answer =
                   json_pack("{s:s, s:s, s:s, s:s*, s:I, s:I}", "device_code",
                             json_text_of(got, "device_code"), "user_code", json_text_of(got, "user_code"),
                             "verification_uri", json_text_of(got, "verification_uri"),
                             "verification_uri_complete", *complete ? complete : NULL, "expires_in", expires,
                             "interval", interval > 0 ? interval : DEVICE_INTERVAL_S)))
        rc = err_set(err, ERR_NOMEM, "no memory for its answer");
    json_decref(got);
    return rc < 0 ? issuer_failed(issuer, err) : 0;
}
