/* Enrolment turns a join token, which can be used once, into a certificate, a Redis user, a seal key and a
 * bearer token for one node. Renewal turns a node's bearer token and its key into a new certificate.
 *
 * The order of enrolment: first the join token is checked, before anything else is done for the caller, and
 * then the request; then the certificate is made; then one statement uses up the token and makes the node, so
 * of two callers with one token exactly one succeeds. The scheduler makes the Redis user from the node's row,
 * and again whenever Redis has lost it.
 */
#include "api/request/route.h"

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

enum { PEM_BYTES_MAX = 65536, JOIN_SECONDS = 3600 };

struct enrolment {
    struct pool_task task; /* must come first: a pointer to the task is cast to the enrolment */
    struct call *call;
    bool renewal; /* a renewal has no join token, since the node already has a bearer token */
    char node[65], address[256];
    char *csr;
    uint8_t key_hash[TLS_FINGERPRINT_SIZE]; /* hash of the key that signed the request */
    uint8_t join_hash[32];
    char token[65];
    uint8_t token_hash[32];
    char redis_password[65], seal[65]; /* each is 32 random bytes in hex */
    uint8_t redis_hash[32], seal_key[32];
    struct buf certificate, ca;
    int64_t generation;
    struct err err;
};

static void enrolment_free(struct enrolment *e)
{
    buf_fini(&e->certificate);
    buf_fini(&e->ca);
    free(e->csr);
    explicit_bzero(e, sizeof(*e));
    free(e);
}

static void enrolment_fail(struct enrolment *e, const struct err *err)
{
    call_fail(e->call, err);
    enrolment_free(e);
}

/* Answers an error in the request: in the join token, or in the rest. */
static void enrolment_refuse(struct enrolment *e, const struct err *err)
{
    if (err->code == ERR_AUTH)
        call_wrong_token(e->call, err);
    else
        call_refuse(e->call, err);
    enrolment_free(e);
}

static void renewal_refuse(struct enrolment *e, const struct err *err)
{
    struct err mine = *err;
    mine.code = err->code == ERR_NOT_FOUND ? ERR_DENIED : err->code;
    enrolment_fail(e, &mine);
}

/* Where Redis is, which may have moved since the node was enrolled. Its user and password stay as they were.
 */
static json_t *redis_place(const struct api_config *config)
{
    return config->has_redis
               ? json_pack("{s:s, s:b}", "address", config->redis.address, "tls", (int)config->redis.tls)
               : json_null();
}

static void renewal_answer(struct enrolment *e)
{
    struct httpd_field fields[] = {{"Cache-Control", "no-store"}, {NULL, NULL}};
    call_json(e->call, 200,
              json_pack("{s:s, s:s, s:s, s:I, s:o}", "node", e->node, "certificate", buf_str(&e->certificate),
                        "ca", buf_str(&e->ca), "generation", (json_int_t)e->generation, "redis",
                        redis_place(e->call->app->config)),
              fields);
    enrolment_free(e);
}

static void enrolment_answer(struct enrolment *e)
{
    const struct api_config *config = e->call->app->config;
    char user[80];
    snprintf(user, sizeof(user), "agent-%s", e->node);
    json_t *redis = config->has_redis
                        ? json_pack("{s:s, s:s, s:s, s:b}", "address", config->redis.address, "user", user,
                                    "password", e->redis_password, "tls", (int)config->redis.tls)
                        : json_null();
    struct httpd_field fields[] = {{"Cache-Control", "no-store"}, {NULL, NULL}};
    call_json(e->call, 201,
              json_pack("{s:s, s:s, s:s, s:o, s:s, s:s, s:I}", "node", e->node, "certificate",
                        buf_str(&e->certificate), "ca", buf_str(&e->ca), "redis", redis, "token", e->token,
                        "seal", e->seal, "generation", (json_int_t)e->generation),
              fields);
    enrolment_free(e);
}

static void enrolled(void *arg, const struct err *err, int64_t generation)
{
    struct enrolment *e = arg;
    (void)generation; /* equals the signed generation, else store_enrol would have failed */
    if (err)
        enrolment_refuse(e, err);
    else
        enrolment_answer(e);
}

static void renewed(void *arg, const struct err *err, int64_t generation)
{
    struct enrolment *e = arg;
    (void)generation;
    if (err)
        renewal_refuse(e, err);
    else
        renewal_answer(e);
}

static void signed_for(void *arg, const struct err *err, const char *certificate)
{
    struct enrolment *e = arg;
    struct store *store = e->call->app->store;
    char identity[TLS_IDENTITY_SIZE];
    int64_t issued_s, ends_s;
    if (err) {
        enrolment_refuse(e, err);
        return;
    }
    if (buf_append(&e->certificate, certificate, strlen(certificate), &e->err) < 0 ||
        tls_certificate_read(certificate, identity, &issued_s, &ends_s, &e->err) < 0) {
        enrolment_fail(e, &e->err);
        return;
    }
    if (e->renewal) {
        if (store_node_renew(store, e->node, e->key_hash, e->generation, ends_s, renewed, e, &e->err) < 0)
            enrolment_fail(e, &e->err);
        return;
    }
    struct store_enrol enrol = {.join_hash = e->join_hash,
                                .node = e->node,
                                .address = e->address,
                                .agent_hash = e->token_hash,
                                .key_hash = e->key_hash,
                                .redis_hash = e->redis_hash,
                                .seal_key = e->seal_key,
                                .generation = e->generation,
                                .certified_until_s = ends_s};
    if (store_enrol(store, &enrol, enrolled, e, &e->err) < 0)
        enrolment_fail(e, &e->err);
}

static void sign(struct enrolment *e)
{
    const struct app *app = e->call->app;
    if (signing_ask(app->base, app->config->ca_signer, e->node, e->generation, e->csr, signed_for, e,
                    &e->err) < 0)
        enrolment_fail(e, &e->err);
}

static void renewable(void *arg, const struct err *err, int64_t generation)
{
    struct enrolment *e = arg;
    if (err) {
        renewal_refuse(e, err);
        return;
    }
    e->generation = generation;
    sign(e);
}

/* Runs on a pool thread: checks that the certificate request is for this node, and makes the node's
 * secrets. */
static void request_work(struct pool_task *task)
{
    struct enrolment *e = (struct enrolment *)task;
    struct err *err = &e->err;
    char asked[TLS_IDENTITY_SIZE], identity[TLS_IDENTITY_SIZE];
    snprintf(identity, sizeof(identity), "agent:%s", e->node);
    if (tls_request_read(e->csr, asked, e->key_hash, err) < 0) {
        err->code = ERR_INVALID;
        err_wrap(err, "csr");
    } else if (strcmp(asked, identity) != 0) {
        err_set(err, ERR_INVALID, "csr: it asks for the identity \"%s\", the node's is \"%s\"", asked,
                identity);
    } else if (file_read_all(e->call->app->config->ca_cert, PEM_BYTES_MAX, &e->ca, err) == 0 &&
               auth_token_make(e->token, e->token_hash, err) == 0 &&
               random_hex(e->redis_password, 32, err) == 0 &&
               digest_sha256(e->redis_password, strlen(e->redis_password), e->redis_hash, err) == 0 &&
               random_hex(e->seal, sizeof(e->seal_key), err) == 0) {
        digest_unhex(e->seal, e->seal_key, sizeof(e->seal_key));
    }
}

static void request_done(struct pool_task *task)
{
    struct enrolment *e = (struct enrolment *)task;
    pool_ran(task, &e->err);
    if (e->err.code)
        enrolment_refuse(e, &e->err);
    else if (!e->renewal)
        sign(e);
    else if (store_renew_check(e->call->app->store, e->node, e->key_hash, renewable, e, &e->err) < 0)
        enrolment_fail(e, &e->err);
}

static void look_at_request(struct enrolment *e)
{
    e->task.work = request_work;
    e->task.done = request_done;
    if (pool_run(e->call->app->pool, &e->task, &e->err) < 0)
        enrolment_fail(e, &e->err);
}

static void token_checked(void *arg, const struct err *err, int64_t generation)
{
    struct enrolment *e = arg;
    if (err) {
        enrolment_refuse(e, err);
        return;
    }
    if (!store_node_name_valid(e->node)) {
        err_set(&e->err, ERR_INVALID, "node: \"%s\" is not 1 to 64 of a-z, 0-9 and -, not beginning with -",
                e->node);
        enrolment_refuse(e, &e->err);
        return;
    }
    e->generation = generation;
    look_at_request(e);
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
    e->csr = strdup(csr);
    if (!e->csr)
        return err_set(err, ERR_NOMEM, "out of memory for an enrolment");
    return digest_sha256(secret, strlen(secret), e->join_hash, err);
}

/* Reads the request into a new enrolment; NULL after the call was answered. */
static struct enrolment *enrolment_begin(struct call *call)
{
    struct err err = {0};
    struct enrolment *e = call->app->config->ca_cert ? calloc(1, sizeof(*e)) : NULL;
    if (!call->app->config->ca_cert) {
        call_problem(call, 503, "busy", NULL, "this server has no CA: nobody can be enrolled here");
    } else if (!e) {
        err_set(&err, ERR_NOMEM, "out of memory for an enrolment");
        call_fail(call, &err);
    } else {
        e->call = call;
        buf_init(&e->certificate, PEM_BYTES_MAX);
        buf_init(&e->ca, PEM_BYTES_MAX);
    }
    return e;
}

void enroll_post(struct call *call)
{
    struct err err = {0};
    struct enrolment *e = enrolment_begin(call);
    if (!e)
        return;
    if (take_enrolment(call, e, &err) < 0)
        enrolment_refuse(e, &err);
    else if (store_join_check(call->app->store, e->join_hash, e->node, token_checked, e, &err) < 0)
        enrolment_fail(e, &err);
}

/* Renews a node's certificate. The bearer token says which node asks (the route requires SCOPE_AGENT), and
 * the node must use the key that it was enrolled with. */
void renew_post(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    const char *csr = NULL;
    struct enrolment *e = enrolment_begin(call);
    if (!e)
        return;
    e->renewal = true;
    snprintf(e->node, sizeof(e->node), "%.64s", call->principal.name);
    call_reader(call, &reader, &err);
    jr_str(&reader, "csr", JR_REQUIRED, 1, TLS_REQUEST_BYTES_MAX, &csr);
    if (jr_finish(&reader) == 0 && !(e->csr = strdup(csr)))
        err_set(&err, ERR_NOMEM, "out of memory for a renewal");
    if (err.code)
        enrolment_refuse(e, &err);
    else
        look_at_request(e);
}

/* ---- join tokens ---- */

struct join_token {
    char text[TLS_JOIN_TOKEN_SIZE];
    int64_t expires_us;
};

static void join_token_made(void *arg, const struct err *err)
{
    struct call *call = arg;
    struct join_token *join = call->state;
    char expires[32];
    if (err) {
        call_fail(call, err);
        return;
    }
    struct httpd_field fields[] = {{"Cache-Control", "no-store"}, {NULL, NULL}};
    call_json(
        call, 201,
        json_pack("{s:s, s:s}", "token", join->text, "expires", clock_rfc3339(join->expires_us, expires)),
        fields);
}

static int make_join_token(struct call *call, struct join_token *join, uint8_t hash[32], struct err *err)
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
        tls_join_token_format(secret, fingerprint, join->text, err) == 0)
        rc = digest_sha256(secret, strlen(secret), hash, err);
    else
        rc = -1;
    buf_fini(&ca);
    return rc;
}

/* Reads {"expires_in"?, "node"?, "replace"?}. The texts are borrowed from the body. */
static int take_join_token(struct call *call, struct join_token *join, struct store_join_token *token,
                           struct err *err)
{
    struct json_reader reader;
    double seconds = JOIN_SECONDS;
    if (call->body) {
        call_reader(call, &reader, err);
        jr_seconds(&reader, "expires_in", JR_OPTIONAL, 1, 86400, &seconds);
        jr_str(&reader, "node", JR_OPTIONAL, 1, 64, &token->node);
        jr_bool(&reader, "replace", JR_OPTIONAL, &token->replace);
        if (jr_finish(&reader) < 0)
            return -1;
    }
    if (token->replace && !call->principal.admin)
        return err_set(err, ERR_DENIED,
                       "replace: only an administrator may give a name that is taken to another");
    join->expires_us = token->expires_us = clock_wall_us() + (int64_t)(seconds * 1e6);
    return 0;
}

void join_tokens_post(struct call *call)
{
    struct err err = {0};
    uint8_t hash[32];
    struct store_join_token token = {.hash = hash};
    if (!call->app->config->ca_cert) {
        call_problem(call, 503, "busy", NULL, "this server has no CA: nobody can be enrolled here");
        return;
    }
    struct join_token *join = calloc(1, sizeof(*join));
    if (!join) {
        err_set(&err, ERR_NOMEM, "out of memory for a join token");
        call_fail(call, &err);
        return;
    }
    call->state = join;
    call->state_free = free;
    if (take_join_token(call, join, &token, &err) < 0)
        call_refuse(call, &err);
    else if (make_join_token(call, join, hash, &err) < 0)
        call_fail(call, &err);
    else if (store_join_token_put(call->app->store, &call->principal, &token, join_token_made, call, &err) <
             0)
        call_refuse(call, &err);
}
