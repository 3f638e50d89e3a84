#include "agent/enrol.h"

#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/doc.h"
#include "common/document.h"
#include "common/file.h"
#include "common/http.h"
#include "common/log.h"
#include "common/tls.h"

enum { DOCUMENT_MAX = 65536, RETRY_MS = 200, RENEW_MS = 10000, ASK_MS = 3000 };

static int paths_make(const char *home, struct agent_identity *identity, struct err *err)
{
    return file_path(identity->ca_file, sizeof(identity->ca_file), err, "%s/tls/ca.crt", home) < 0 ||
                   file_path(identity->trust_file, sizeof(identity->trust_file), err, "%s/tls/trust/ca.crt",
                             home) < 0 ||
                   file_path(identity->cert_file, sizeof(identity->cert_file), err, "%s/tls/node.crt", home) <
                       0 ||
                   file_path(identity->key_file, sizeof(identity->key_file), err, "%s/tls/node.key", home) <
                       0 ||
                   file_path(identity->file, sizeof(identity->file), err, "%s/agent.json", home) < 0
               ? -1
               : 0;
}

#define TEXT(key, member, needed, ...) DOC_CHARS(key, agent_identity, member, needed, 0, "", __VA_ARGS__)

static const struct doc_field redis_fields[] = {
    TEXT("address", redis, JR_REQUIRED),
    TEXT("user", user, JR_OPTIONAL, .flags = DOC_SPARSE),
    TEXT("password", password, JR_OPTIONAL, .flags = DOC_SPARSE),
    DOC_FLAG("tls", agent_identity, redis_tls, JR_OPTIONAL, false, ""),
};
static const struct doc redis_doc = DOC(agent_identity, redis_fields, .loose = true);

static int seal_read(struct json_reader *reader, const struct doc_field *field, void *at)
{
    const char *text = NULL;
    if (jr_str(reader, field->key, JR_REQUIRED, 0, 2 * SEAL_KEY_SIZE, &text) <= 0)
        return -1;
    return digest_unhex(text, at, SEAL_KEY_SIZE) == 0
               ? 1
               : jr_fail(reader, field->key, "no key of %d bytes in hex", SEAL_KEY_SIZE);
}

static int seal_write(const struct doc_field *field, const void *at, json_t *object)
{
    char text[2 * SEAL_KEY_SIZE + 1];
    digest_hex(at, SEAL_KEY_SIZE, text);
    const int bad = json_object_set_new(object, field->key, json_string(text));
    explicit_bzero(text, sizeof(text));
    return bad;
}

/* What an enrolment's answer tells, and, with node and api, what agent.json keeps. */
static const struct doc_form seal_form = {.read = seal_read, .write = seal_write};
static const struct doc_field joined_fields[] = {
    TEXT("token", token, JR_REQUIRED),
    DOC_WITHIN("redis", JR_OPTIONAL, &redis_doc, "", DOC_GIVEN_IN(agent_identity, has_redis)),
    DOC_OTHER("seal", agent_identity, seal_key, &seal_form, ""),
};
static const struct doc joined_doc = DOC(agent_identity, joined_fields);
static const struct doc_field identity_fields[] = {
    TEXT("node", node, JR_REQUIRED),
    TEXT("api", api, JR_REQUIRED),
    DOC_WITHIN(NULL, JR_OPTIONAL, &joined_doc, ""),
};
static const struct doc identity_doc = DOC(agent_identity, identity_fields, .loose = true);

static int certificate_load(struct agent_identity *identity, struct err *err)
{
    struct buf text;
    struct agent_certificate *certificate = &identity->certificate;
    buf_init(&text, DOCUMENT_MAX);
    int result = file_read_all(identity->cert_file, DOCUMENT_MAX, &text, err);
    if (result == 0) {
        result = tls_certificate_read(buf_str(&text), certificate->identity, &certificate->issued_s,
                                      &certificate->ends_s, err);
    }
    buf_fini(&text);
    return result < 0 ? err_wrap(err, "\"%s\"", identity->cert_file) : 0;
}

/* Stores the CAs in their two places, or the copy alone. */
static int ca_keep(const struct agent_identity *identity, const char *ca, bool both, struct err *err)
{
    char folder[sizeof(identity->trust_file)];
    snprintf(folder, sizeof(folder), "%s", identity->trust_file);
    *strrchr(folder, '/') = '\0';
    return file_mkdirs(folder, 0700, err) < 0 ||
                   file_write_atomic(identity->trust_file, ca, strlen(ca), 0644, err) < 0 ||
                   (both && file_write_atomic(identity->ca_file, ca, strlen(ca), 0644, err) < 0)
               ? -1
               : 0;
}

static int ca_load(const struct agent_identity *identity, struct buf *ca, struct err *err)
{
    buf_init(ca, DOCUMENT_MAX);
    return file_read_all(identity->ca_file, DOCUMENT_MAX, ca, err);
}

int agent_identity_load(const char *home, struct agent_identity *identity, struct err *err)
{
    char path[1024];
    memset(identity, 0, sizeof(*identity));
    if (paths_make(home, identity, err) < 0 || file_path(path, sizeof(path), err, "%s/agent.json", home) < 0)
        return -1;
    if (!file_exists(path))
        return 0;
    json_t *document = document_load(path, DOCUMENT_MAX, err);
    struct json_reader reader;
    jr_init(&reader, document, "agent.json", err);
    int result = document ? doc_take(&identity_doc, &reader, identity) : -1;
    if (result < 0 && err->code != ERR_IO) {
        err->code = ERR_CORRUPT;
        err_wrap(err, "\"%s\"", path);
    }
    json_decref(document);
    struct buf ca;
    if (result == 0 && !file_exists(identity->trust_file)) { /* an earlier release had no copy */
        result = ca_load(identity, &ca, err) < 0 ? -1 : ca_keep(identity, buf_str(&ca), false, err);
        buf_fini(&ca);
    }
    return result < 0 || certificate_load(identity, err) < 0 ? -1 : 1;
}

/* Checks that the answer's CA is the one that the join token names (over plain HTTP nothing else has checked
 * it), and that it signed the certificate for our key. */
static int answer_check(const char *ca, const char *cert, const struct buf *key,
                        const uint8_t pin[TLS_FINGERPRINT_SIZE], struct err *err)
{
    uint8_t is[TLS_FINGERPRINT_SIZE];
    struct buf first = {.limit = DOCUMENT_MAX};
    int result = -1;
    if (tls_bundle_at(ca, 0, &first, err) < 1 || tls_fingerprint(buf_str(&first), is, err) < 0)
        err_set(err, ERR_PEER, "the server's CA is no certificate");
    else if (!digest_equal(is, pin, sizeof(is)))
        err_set(err, ERR_PEER, "the server's CA is not the one the join token names: it is another cluster");
    else if (tls_bundle_follows(buf_str(&first), ca, err) == 0 &&
             tls_certificate_check(cert, ca, buf_str(key), err) == 0)
        result = 0;
    else
        err_wrap(err, "the server's answer");
    buf_fini(&first);
    return result;
}

static int identity_save(const struct agent_identity *identity, struct err *err)
{
    json_t *kept = doc_write(&identity_doc, identity, err);
    int result = document_save(identity->file, kept, false, 0600, err);
    json_decref(kept);
    return result;
}

static int answer_keep(const char *home, const json_t *answer, const uint8_t pin[TLS_FINGERPRINT_SIZE],
                       const struct buf *key, struct agent_identity *identity, struct err *err)
{
    const char *cert = NULL;
    const char *ca = NULL;
    struct json_reader reader;
    jr_init(&reader, answer, "", err);
    jr_str(&reader, "certificate", JR_REQUIRED, 1, DOCUMENT_MAX, &cert);
    jr_str(&reader, "ca", JR_REQUIRED, 1, DOCUMENT_MAX, &ca);
    if (doc_fields(&joined_doc, &reader, identity) < 0 || jr_finish_loose(&reader) < 0)
        return err_wrap(err, "the server's answer");
    char folder[1024];
    if (answer_check(ca, cert, key, pin, err) < 0 ||
        file_path(folder, sizeof(folder), err, "%s/tls", home) < 0 || file_mkdirs(folder, 0700, err) < 0 ||
        ca_keep(identity, ca, true, err) < 0 ||
        file_write_atomic(identity->cert_file, cert, strlen(cert), 0644, err) < 0 ||
        file_write_atomic(identity->key_file, key->data, key->size, 0600, err) < 0) {
        return -1;
    }
    return identity_save(identity, err) < 0 ? -1 : certificate_load(identity, err);
}

/* Loads the key that an earlier enrolment stored, if any. */
static int key_load(const struct agent_identity *identity, struct buf *key, struct err *err)
{
    return file_exists(identity->key_file) ? file_read_all(identity->key_file, DOCUMENT_MAX, key, err) : 0;
}

static void key_fini(struct buf *key)
{
    if (key->data)
        explicit_bzero(key->data, key->size);
    buf_fini(key);
}

/* Sends the enrolment, and again for up to wait_ms while the server does not answer. The server accepts a
 * token once: if an earlier request used the token but its answer was lost, the next one ends with ERR_AUTH.
 */
static int enrol_ask(struct http *http, const json_t *body, unsigned wait_ms, json_t **answer,
                     struct err *err)
{
    uint64_t deadline_ns = clock_mono_ns() + (uint64_t)wait_ms * 1000000;
    for (bool told = false;;) {
        if (http_json(http, "POST", "/v1/enroll", body, 20000, answer, err) == 0)
            return *answer ? 0 : err_set(err, ERR_PEER, "the server's answer to enrolling is empty");
        bool later = err->code == ERR_NET || err->code == ERR_BUSY || err->code == ERR_TIMEOUT;
        if (!later || clock_left_ms(deadline_ns, 1) == 0)
            return -1;
        if (!told)
            log_event(LOG_LEVEL_WARN, "joining_again", "for_s=%u why=\"%s\"", wait_ms / 1000, err->text);
        told = true;
        poll(NULL, 0, RETRY_MS);
    }
}

int agent_enrol(const char *home, const char *api, const char *join, const char *node, const char *address,
                unsigned wait_ms, struct agent_identity *identity, struct err *err)
{
    char secret[96];
    char name[80];
    uint8_t pin[TLS_FINGERPRINT_SIZE];
    struct buf key;
    struct buf csr;
    buf_init(&key, DOCUMENT_MAX);
    buf_init(&csr, DOCUMENT_MAX);
    struct http *http = NULL;
    json_t *body = NULL;
    json_t *answer = NULL;
    int result = -1;
    memset(identity, 0, sizeof(*identity));
    snprintf(identity->node, sizeof(identity->node), "%s", node);
    snprintf(identity->api, sizeof(identity->api), "%s", api);
    snprintf(name, sizeof(name), "agent:%s", node);
    if (tls_join_token_parse(join, secret, pin, err) < 0 || paths_make(home, identity, err) < 0 ||
        key_load(identity, &key, err) < 0 || tls_request_create(name, &key, &csr, err) < 0) {
        goto out;
    }
    struct http_options options = {.url = api, .ca_sha256 = pin};
    http = http_create(&options, err);
    body = json_pack("{s:s, s:s, s:s, s:s}", "token", join, "node", node, "csr", buf_str(&csr), "address",
                     address);
    if (!http || enrol_ask(http, body, wait_ms, &answer, err) < 0)
        goto out;
    result = answer_keep(home, answer, pin, &key, identity, err);
    identity->certificate.fresh = result == 0;
out:
    if (result < 0)
        err_wrap(err, "joining %s as %s", api, node);
    http_destroy(http);
    json_decref(body);
    json_decref(answer);
    explicit_bzero(secret, sizeof(secret));
    key_fini(&key);
    buf_fini(&csr);
    return result;
}

/* Reads where Redis is; NULL is an api that does not say. */
static int place_read(const json_t *place, const char **address, bool *tls, struct err *err)
{
    struct json_reader reader;
    if (!place)
        return 0;
    jr_init(&reader, place, "redis", err);
    jr_str(&reader, "address", JR_REQUIRED, 1, sizeof(((struct agent_identity *)0)->redis) - 1, address);
    jr_bool(&reader, "tls", JR_OPTIONAL, tls);
    return jr_finish_loose(&reader);
}

/* Checks that a new certificate is for our key and signed by a CA that we trust, and takes over the CAs that
 * the server has now (NULL: it does not say), if they follow from ours. */
static int renewal_check(const struct agent_identity *identity, const struct buf *key, const char *cert,
                         const char *offered, struct err *err)
{
    struct buf ca;
    int result = ca_load(identity, &ca, err);
    if (result == 0 && offered && strcmp(offered, buf_str(&ca)) != 0) {
        result = tls_bundle_follows(buf_str(&ca), offered, err) < 0 ||
                         tls_certificate_check(cert, offered, buf_str(key), err) < 0
                     ? -1
                     : ca_keep(identity, offered, true, err);
        if (result == 0)
            log_event(LOG_LEVEL_INFO, "ca_changed", "node=%s", identity->node);
    } else if (result == 0) {
        result = tls_certificate_check(cert, buf_str(&ca), buf_str(key), err);
    }
    buf_fini(&ca);
    return result;
}

/* Checks that a new certificate is the cluster's, for this node and key, before it replaces the present one.
 */
static int renewal_keep(struct agent_identity *identity, const struct buf *key, const json_t *answer,
                        struct err *err)
{
    const char *cert = NULL;
    struct json_reader reader;
    struct agent_certificate made = {.fresh = true};
    char ours[TLS_IDENTITY_SIZE];
    const json_t *place = NULL;
    const char *redis = NULL, *offered = NULL;
    bool tls = false;
    jr_init(&reader, answer, "", err);
    jr_str(&reader, "certificate", JR_REQUIRED, 1, DOCUMENT_MAX, &cert);
    jr_str(&reader, "ca", JR_OPTIONAL, 1, DOCUMENT_MAX, &offered);
    jr_object(&reader, "redis", JR_OPTIONAL, &place);
    if (jr_finish_loose(&reader) < 0 || place_read(place, &redis, &tls, err) < 0 ||
        tls_certificate_read(cert, made.identity, &made.issued_s, &made.ends_s, err) < 0) {
        return err_wrap(err, "the server's answer");
    }
    int length = snprintf(ours, sizeof(ours), "agent:%s:", identity->node);
    if (strncmp(made.identity, ours, (size_t)length) != 0)
        return err_set(err, ERR_PEER, "the server answered with a certificate for %s", made.identity);
    if (renewal_check(identity, key, cert, offered, err) < 0)
        return err_wrap(err, "the server's answer");
    if (file_write_atomic(identity->cert_file, cert, strlen(cert), 0644, err) < 0)
        return -1;
    identity->certificate = made;
    if (!redis)
        return 0;
    snprintf(identity->redis, sizeof(identity->redis), "%s", redis);
    identity->redis_tls = tls;
    return identity_save(identity, err);
}

bool agent_redis_moved(const char *home, struct agent_identity *identity, struct err *err)
{
    struct agent_identity known;
    const bool moved = agent_identity_load(home, &known, err) == 1 &&
                       known.redis_tls == identity->redis_tls && strcmp(known.redis, identity->redis) != 0;
    if (moved)
        snprintf(identity->redis, sizeof(identity->redis), "%s", known.redis);
    explicit_bzero(&known, sizeof(known));
    return moved;
}

static struct http *server_open(const struct agent_identity *identity, uint32_t connect_ms, struct err *err)
{
    const bool tls = strncmp(identity->api, "https", 5) == 0;
    const struct http_options options = {.url = identity->api,
                                         .bearer = identity->token,
                                         .ca_file = tls ? identity->ca_file : NULL,
                                         .connect_ms = connect_ms};
    return http_create(&options, err);
}

int agent_server_ask(const struct agent_identity *identity, int64_t *server_s, struct err *err)
{
    struct http *http = server_open(identity, ASK_MS, err);
    struct http_answer answer = {0};
    const struct http_request request = {.method = "GET", .path = "/v1/whoami", .timeout_ms = ASK_MS};
    int result = http ? http_perform(http, &request, &answer, err) : -1;
    if (server_s)
        *server_s = answer.date_s;
    http_destroy(http);
    return result;
}

int agent_renew(struct agent_identity *identity, struct err *err)
{
    char name[80];
    struct buf key;
    struct buf csr;
    buf_init(&key, DOCUMENT_MAX);
    buf_init(&csr, DOCUMENT_MAX);
    struct http *http = server_open(identity, 0, err);
    json_t *body = NULL;
    json_t *answer = NULL;
    snprintf(name, sizeof(name), "agent:%s", identity->node);
    int result = !http || file_read_all(identity->key_file, DOCUMENT_MAX, &key, err) < 0 ||
                         tls_request_create(name, &key, &csr, err) < 0
                     ? -1
                     : 0;
    if (result == 0) {
        body = json_pack("{s:s}", "csr", buf_str(&csr));
        result = http_json(http, "POST", "/v1/renew", body, RENEW_MS, &answer, err);
    }
    if (result == 0)
        result = renewal_keep(identity, &key, answer, err);
    http_destroy(http);
    json_decref(body);
    json_decref(answer);
    key_fini(&key);
    buf_fini(&csr);
    return result < 0 ? err_wrap(err, "renewing the certificate") : 0;
}

int agent_leave(const char *home, const struct agent_identity *identity, struct err *err)
{
    char from[1024];
    char to[1024];
    if (file_path(from, sizeof(from), err, "%s/agent.json", home) < 0 ||
        file_path(to, sizeof(to), err, "%s/agent.json.removed", home) < 0) {
        return -1;
    }
    unlink(identity->key_file);
    return rename(from, to) < 0 ? err_set(err, ERR_IO, "could not rename \"%s\"", from) : 0;
}
