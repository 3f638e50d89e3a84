/* Enrolment turns a join token into a certificate, a Redis user, a seal key and a
 * bearer token for one node. Renewal turns a node's bearer token and its key into a new certificate.
 *
 * The order of enrolment: first the join token is checked, before anything else is done for the caller, and
 * then the request; then the certificate is made; then one statement uses up the token and makes the node, so
 * of two callers with a token for one machine exactly one succeeds. The scheduler makes the Redis user from
 * the node's row, and again whenever Redis has lost it.
 */
#include "api/request/route.h"
#include "api/request/wait.h"

#include "api/people/auth.h"
#include "api/nodes/signing.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/file.h"
#include "common/json.h"
#include "common/tls.h"
#include "store/enrol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEM_BYTES_MAX = 65536, JOIN_SECONDS = 3600, JOIN_SECONDS_MAX = 90 * 86400, JOIN_USES_MAX = 1000 };

struct enrolment {
    const struct api_config *config;
    char node[65], address[256];
    const char *csr;                        /* borrowed from the request's body */
    uint8_t key_hash[TLS_FINGERPRINT_SIZE]; /* hash of the key that signed the request */
    uint8_t join_hash[32];
    char token[65];
    uint8_t token_hash[32];
    char redis_password[65], seal[65]; /* each is 32 random bytes in hex */
    uint8_t redis_hash[32], seal_key[32];
    struct buf certificate, ca;
    int64_t generation, certified_until_s;
};

struct generation_wait {
    struct wait wait; /* must come first, since wait_done takes its address */
    int64_t generation;
};

static void generation_came(void *arg, const struct err *err, int64_t generation)
{
    ((struct generation_wait *)arg)->generation = generation;
    wait_done(arg, err);
}

struct certificate_wait {
    struct wait wait; /* must come first, since wait_done takes its address */
    struct enrolment *e;
};

static void certificate_came(void *arg, const struct err *err, const char *certificate)
{
    struct enrolment *e = ((struct certificate_wait *)arg)->e;
    char identity[TLS_IDENTITY_SIZE];
    int64_t issued_s;
    struct err failed = {0};
    if (!err && (buf_append(&e->certificate, certificate, strlen(certificate), &failed) < 0 ||
                 tls_certificate_read(certificate, identity, &issued_s, &e->certified_until_s, &failed) < 0))
        err = &failed;
    wait_done(arg, err);
}

/* Has the certificate signed for the node's generation. */
static int certificate_sign(struct app *app, struct enrolment *e, struct err *err)
{
    struct certificate_wait wait = {wait_of(app), e};
    return wait_end(&wait.wait,
                    signing_ask(app->base, app->config->ca_signer, e->node, e->generation, e->csr,
                                certificate_came, &wait, err),
                    err);
}

static void enrolment_begin(struct enrolment *e, const struct call *call)
{
    *e = (struct enrolment){.config = call->app->config};
    buf_init(&e->certificate, PEM_BYTES_MAX);
    buf_init(&e->ca, PEM_BYTES_MAX);
}

static void enrolment_end(struct enrolment *e)
{
    buf_fini(&e->certificate);
    buf_fini(&e->ca);
    explicit_bzero(e, sizeof(*e));
}

/* Answers an error in the request: in the join token, or in the rest. */
static void enroll_answer_refusal(struct call *call, const struct err *err)
{
    if (err->code == ERR_AUTH)
        call_wrong_token(call, err);
    else
        call_refuse(call, err);
}

/* Where Redis is, which may have moved since the node was enrolled. Its user and password stay as they were.
 */
static json_t *redis_place(const struct api_config *config)
{
    return config->has_redis
               ? json_pack("{s:s, s:b}", "address", config->redis.address, "tls", (int)config->redis.tls)
               : json_null();
}

static void answer_enrolment(struct call *call, const struct enrolment *e)
{
    const struct api_config *config = e->config;
    char user[80];
    snprintf(user, sizeof(user), "agent-%s", e->node);
    json_t *redis = config->has_redis
                        ? json_pack("{s:s, s:s, s:s, s:b}", "address", config->redis.address, "user", user,
                                    "password", e->redis_password, "tls", (int)config->redis.tls)
                        : json_null();
    struct httpd_field fields[] = {{"Cache-Control", "no-store"}, {NULL, NULL}};
    call_json(call, 201,
              json_pack("{s:s, s:s, s:s, s:o, s:s, s:s, s:I}", "node", e->node, "certificate",
                        buf_str(&e->certificate), "ca", buf_str(&e->ca), "redis", redis, "token", e->token,
                        "seal", e->seal, "generation", (json_int_t)e->generation),
              fields);
}

/* Runs on a pool thread: checks that the certificate request is for this node, and makes the node's
 * secrets. */
static int request_work(void *arg, struct err *err)
{
    struct enrolment *e = arg;
    char asked[TLS_IDENTITY_SIZE], identity[TLS_IDENTITY_SIZE];
    snprintf(identity, sizeof(identity), "agent:%s", e->node);
    if (tls_request_read(e->csr, asked, e->key_hash, err) < 0) {
        err->code = ERR_INVALID;
        return err_wrap(err, "csr");
    }
    if (strcmp(asked, identity) != 0)
        return err_set(err, ERR_INVALID, "csr: it asks for the identity \"%s\", the node's is \"%s\"", asked,
                       identity);
    if (file_read_all(e->config->ca_cert, PEM_BYTES_MAX, &e->ca, err) < 0 ||
        auth_token_make(e->token, e->token_hash, err) < 0 || random_hex(e->redis_password, 32, err) < 0 ||
        digest_sha256(e->redis_password, strlen(e->redis_password), e->redis_hash, err) < 0 ||
        random_hex(e->seal, sizeof(e->seal_key), err) < 0)
        return -1;
    digest_unhex(e->seal, e->seal_key, sizeof(e->seal_key));
    return 0;
}

static int take_enrolment(struct call *call, struct enrolment *e, struct err *err)
{
    struct json_reader reader;
    const char *token = NULL, *node = NULL, *csr = NULL, *address = "";
    char secret[96];
    uint8_t ca[TLS_FINGERPRINT_SIZE];
    call_reader(call, &reader, err);
    jr_str(&reader, "token", JR_REQUIRED, 1, TLS_JOIN_TOKEN_SIZE, &token);
    jr_str(&reader, "node", JR_REQUIRED, 1, 64, &node);
    jr_str(&reader, "csr", JR_REQUIRED, 1, TLS_REQUEST_BYTES_MAX, &csr);
    jr_str(&reader, "address", JR_OPTIONAL, 0, sizeof(e->address) - 1, &address);
    if (jr_finish(&reader) < 0)
        return -1;
    if (tls_join_token_parse(token, secret, ca, err) < 0)
        return err_set(err, ERR_AUTH, "token: it is not a join token");
    snprintf(e->node, sizeof(e->node), "%s", node);
    snprintf(e->address, sizeof(e->address), "%s", address);
    e->csr = csr;
    return digest_sha256(secret, strlen(secret), e->join_hash, err);
}

static bool has_ca(struct call *call)
{
    if (call->app->config->ca_cert)
        return true;
    call_problem(call, 503, "busy", NULL, "this server has no CA: nobody can be enrolled here");
    return false;
}

/* Checks the join token, then the request, has the certificate signed, and makes the node. */
static int node_enrol(struct call *call, struct enrolment *e, struct err *err)
{
    struct app *app = call->app;
    struct generation_wait checked = {.wait = wait_of(app)}, made = checked;
    if (take_enrolment(call, e, err) < 0 ||
        wait_end(&checked.wait,
                 store_join_check(app->store, e->join_hash, e->node, generation_came, &checked, err),
                 err) < 0)
        return -1;
    if (!store_node_name_valid(e->node))
        return err_set(err, ERR_INVALID,
                       "node: \"%s\" is not 1 to 64 of a-z, 0-9 and -, not beginning with -", e->node);
    e->generation = checked.generation;
    if (wait_work(app, app->pool, request_work, e, err) < 0 || certificate_sign(app, e, err) < 0)
        return -1;
    const struct store_enrol enrol = {.join_hash = e->join_hash,
                                      .node = e->node,
                                      .address = e->address,
                                      .agent_hash = e->token_hash,
                                      .key_hash = e->key_hash,
                                      .redis_hash = e->redis_hash,
                                      .seal_key = e->seal_key,
                                      .generation = e->generation,
                                      .certified_until_s = e->certified_until_s};
    return wait_end(&made.wait, store_enrol(app->store, &enrol, generation_came, &made, err), err);
}

void enroll_post(struct call *call)
{
    struct err err = {0};
    struct enrolment e;
    if (!has_ca(call))
        return;
    enrolment_begin(&e, call);
    if (node_enrol(call, &e, &err) < 0)
        enroll_answer_refusal(call, &err);
    else
        answer_enrolment(call, &e);
    enrolment_end(&e);
}

/* Checks the request and the node's key, and has a new certificate signed. */
static int node_renew(struct call *call, struct enrolment *e, struct err *err)
{
    struct app *app = call->app;
    struct generation_wait checked = {.wait = wait_of(app)}, made = checked;
    struct json_reader reader;
    snprintf(e->node, sizeof(e->node), "%.64s", call->principal.name);
    call_reader(call, &reader, err);
    jr_str(&reader, "csr", JR_REQUIRED, 1, TLS_REQUEST_BYTES_MAX, &e->csr);
    if (jr_finish(&reader) < 0 || wait_work(app, app->pool, request_work, e, err) < 0)
        return -1;
    if (wait_end(&checked.wait,
                 store_renew_check(app->store, e->node, e->key_hash, generation_came, &checked, err),
                 err) < 0) {
        err->code = err->code == ERR_NOT_FOUND ? ERR_DENIED : err->code;
        return -1;
    }
    e->generation = checked.generation;
    if (certificate_sign(app, e, err) < 0)
        return -1;
    if (wait_end(&made.wait,
                 store_node_renew(app->store, e->node, e->key_hash, e->generation, e->certified_until_s,
                                  generation_came, &made, err),
                 err) == 0)
        return 0;
    err->code = err->code == ERR_NOT_FOUND ? ERR_DENIED : err->code;
    return -1;
}

/* Renews a node's certificate. The bearer token says which node asks (the route requires SCOPE_AGENT), and
 * the node must use the key that it was enrolled with. */
void renew_post(struct call *call)
{
    struct httpd_field fields[] = {{"Cache-Control", "no-store"}, {NULL, NULL}};
    struct err err = {0};
    struct enrolment e;
    if (!has_ca(call))
        return;
    enrolment_begin(&e, call);
    if (node_renew(call, &e, &err) < 0)
        enroll_answer_refusal(call, &err);
    else
        call_json(call, 200,
                  json_pack("{s:s, s:s, s:s, s:I, s:o}", "node", e.node, "certificate",
                            buf_str(&e.certificate), "ca", buf_str(&e.ca), "generation",
                            (json_int_t)e.generation, "redis", redis_place(e.config)),
                  fields);
    enrolment_end(&e);
}

/* ---- join tokens ---- */

static int make_join_token(struct call *call, char text[TLS_JOIN_TOKEN_SIZE], uint8_t hash[32],
                           struct err *err)
{
    struct buf ca;
    uint8_t fingerprint[TLS_FINGERPRINT_SIZE];
    char secret[65];
    buf_init(&ca, PEM_BYTES_MAX);
    /* The file is read on the loop's thread, since it is small and local. */
    int rc = file_read_all(call->app->config->ca_cert, PEM_BYTES_MAX, &ca, err);
    if (rc < 0)
        err_set(err, ERR_INTERNAL, "the cluster's CA certificate cannot be read");
    if (rc == 0 && tls_fingerprint(buf_str(&ca), fingerprint, err) == 0 && random_hex(secret, 32, err) == 0 &&
        tls_join_token_format(secret, fingerprint, text, err) == 0)
        rc = digest_sha256(secret, strlen(secret), hash, err);
    else
        rc = -1;
    buf_fini(&ca);
    return rc;
}

/* Reads {"expires_in"?, "node"?, "replace"?, "uses"?}. The texts are borrowed from the body. */
static int take_join_token(struct call *call, struct store_join_token *token, struct err *err)
{
    struct json_reader reader;
    double seconds = JOIN_SECONDS;
    if (call->body) {
        call_reader(call, &reader, err);
        jr_seconds(&reader, "expires_in", JR_OPTIONAL, 1, JOIN_SECONDS_MAX, &seconds);
        jr_str(&reader, "node", JR_OPTIONAL, 1, 64, &token->node);
        jr_bool(&reader, "replace", JR_OPTIONAL, &token->replace);
        jr_u32(&reader, "uses", JR_OPTIONAL, 1, JOIN_USES_MAX, &token->uses);
        if (jr_finish(&reader) < 0)
            return -1;
    }
    if (token->replace && !call->principal.admin)
        return err_set(err, ERR_DENIED,
                       "replace: only an administrator may give a name that is taken to another");
    token->expires_us = clock_wall_us() + (int64_t)(seconds * 1e6);
    return 0;
}

void join_tokens_post(struct call *call)
{
    struct httpd_field fields[] = {{"Cache-Control", "no-store"}, {NULL, NULL}};
    struct wait wait = wait_of(call->app);
    struct err err = {0};
    uint8_t hash[32];
    char text[TLS_JOIN_TOKEN_SIZE], expires[32];
    struct store_join_token token = {.hash = hash, .uses = 1};
    if (!has_ca(call))
        return;
    if (take_join_token(call, &token, &err) < 0)
        call_refuse(call, &err);
    else if (make_join_token(call, text, hash, &err) < 0)
        call_fail(call, &err);
    else if (store_join_token_put(call->app->store, &call->principal, &token, wait_done, &wait, &err) < 0)
        call_refuse(call, &err);
    else if (wait_end(&wait, 0, &err) < 0)
        call_fail(call, &err);
    else
        call_json(call, 201,
                  json_pack("{s:s, s:s}", "token", text, "expires", clock_rfc3339(token.expires_us, expires)),
                  fields);
}

void join_tokens_revoke(struct call *call)
{
    struct err err = {0};
    if (store_join_tokens_revoke(call->app->store, &call->principal, call_query(call, "node"),
                                 call_answer_doc, call, &err) < 0)
        call_refuse(call, &err);
}
