#include "signer/signer.h"

#include <errno.h>
#include <jansson.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/frame.h"
#include "common/json.h"
#include "common/log.h"
#include "common/sandbox.h"
#include "common/tls.h"

enum {
    BACKLOG = 64,
    ASK_MS = 2000,  /* limit for a request to arrive completely, and for its answer to be read */
    SIGN_MS = 5000, /* limit for the answer of the process with the key, which hangs if it takes longer */
    PEM_BYTES_MAX = 16384,
    FRAME_BYTES_MAX = 32768,
    LOCKED_BYTES = 32768, /* memory locked for the key, within the 64 KiB that any user may lock */
    LOCKED_BLOCK_MIN = 32
};

static const struct frame_limits frame_limits = {
    .bytes_max = FRAME_BYTES_MAX, .depth_max = 2, .count_max = 16};

/* ---- the process with the key ---- */

struct key_process {
    struct buf ca;
    char *key; /* PEM, in OpenSSL's locked memory */
    uint32_t lifetime_s;
};

static bool node_valid(const char *node)
{
    size_t size = strlen(node);
    return size >= 1 && size <= 64 && node[0] != '-' &&
           strspn(node, "abcdefghijklmnopqrstuvwxyz0123456789-") == size;
}

static int signer_sign(const struct key_process *k, const json_t *request, struct buf *certificate,
                       struct err *err)
{
    struct json_reader reader;
    const char *kind = NULL, *node = NULL, *csr = NULL;
    char asked[TLS_IDENTITY_SIZE], wanted[TLS_IDENTITY_SIZE], identity[TLS_IDENTITY_SIZE];
    uint8_t key[TLS_FINGERPRINT_SIZE];
    int64_t generation = 0;
    jr_init(&reader, request, "", err);
    jr_str(&reader, "kind", JR_REQUIRED, 1, 16, &kind);
    jr_str(&reader, "node", JR_REQUIRED, 1, 64, &node);
    jr_i64(&reader, "generation", JR_REQUIRED, 1, INT64_MAX, &generation);
    jr_str(&reader, "csr", JR_REQUIRED, 1, TLS_REQUEST_BYTES_MAX, &csr);
    if (jr_finish(&reader) < 0)
        return -1;
    if (strcmp(kind, "agent") != 0 || !node_valid(node))
        return err_set(err, ERR_INVALID, "only agents get certificates here, by names of a-z, 0-9 and -");
    snprintf(wanted, sizeof(wanted), "agent:%s", node);
    tls_agent_identity(node, generation, identity);
    if (tls_request_read(csr, asked, key, err) < 0)
        return -1;
    if (strcmp(asked, wanted) != 0)
        return err_set(err, ERR_INVALID, "csr: it asks for \"%s\", not for \"%s\"", asked, wanted);
    const struct tls_ca ca = {.cert_pem = buf_str(&k->ca), .key_pem = k->key};
    const struct tls_grant grant = {.identity = identity, .seconds = k->lifetime_s};
    return tls_issue(&ca, csr, &grant, certificate, err);
}

/* Reads a request with read(2): the sandbox allows read(2) and write(2), but not the calls of frame_recv and
 * frame_send. */
static int request_read(int fd, struct buf *in, json_t **request, struct err *err)
{
    size_t used;
    int taken;
    in->size = 0;
    while ((taken = frame_take(in->data, in->size, &frame_limits, request, &used, err)) == 0) {
        if (buf_reserve(in, 4096, err) < 0)
            return -1;
        ssize_t got = read(fd, in->data + in->size, 4096);
        if (got == 0)
            return 0;
        if (got < 0 && errno != EINTR)
            return err_errno(err, ERR_IO, errno, "could not read a request");
        in->size += got > 0 ? (size_t)got : 0;
    }
    return taken;
}

/* Writes and frees 'answer'. */
static int answer_write(int fd, json_t *answer, struct err *err)
{
    struct buf out;
    buf_init(&out, FRAME_BYTES_MAX);
    int rc = answer ? frame_put(answer, &out, err) : err_set(err, ERR_NOMEM, "no memory for an answer");
    for (size_t sent = 0; rc == 0 && sent < out.size;) {
        ssize_t wrote = write(fd, out.data + sent, out.size - sent);
        if (wrote < 0 && errno != EINTR)
            rc = err_errno(err, ERR_IO, errno, "could not answer");
        sent += wrote > 0 ? (size_t)wrote : 0;
    }
    json_decref(answer);
    buf_fini(&out);
    return rc;
}

static json_t *signer_refusal(const struct err *why)
{
    return json_pack("{s:s, s:s}", "code", err_code_name(why->code), "error", why->text);
}

static int answer_request(const struct key_process *k, int fd, const json_t *request, struct err *err)
{
    struct buf certificate;
    struct err why = {0};
    buf_init(&certificate, PEM_BYTES_MAX);
    json_t *answer = signer_sign(k, request, &certificate, &why) == 0
                         ? json_pack("{s:s}", "certificate", buf_str(&certificate))
                         : signer_refusal(&why);
    buf_fini(&certificate);
    return answer_write(fd, answer, err);
}

static int key_lock(struct key_process *k, const char *path, struct err *err)
{
    struct buf key;
    buf_init(&key, PEM_BYTES_MAX);
    if (CRYPTO_secure_malloc_init(LOCKED_BYTES, LOCKED_BLOCK_MIN) != 1 || prctl(PR_SET_DUMPABLE, 0) < 0)
        return err_set(err, ERR_NOMEM, "could not lock %d bytes of memory for the CA's key", LOCKED_BYTES);
    int rc = file_read_all(path, PEM_BYTES_MAX - 1, &key, err);
    if (rc == 0 && !(k->key = OPENSSL_secure_zalloc(key.size + 1)))
        rc = err_set(err, ERR_NOMEM, "no locked memory for the CA's key");
    if (rc == 0)
        memcpy(k->key, key.data, key.size);
    if (key.data)
        OPENSSL_cleanse(key.data, key.size);
    buf_fini(&key);
    return rc;
}

/* Signs once, which proves that key and certificate belong together and makes the library build its tables,
 * so that it opens no file later. */
static int trial_sign(const struct key_process *k, struct err *err)
{
    struct buf key, csr, made;
    buf_init(&key, PEM_BYTES_MAX);
    buf_init(&csr, PEM_BYTES_MAX);
    buf_init(&made, PEM_BYTES_MAX);
    json_t *request = NULL;
    int rc = tls_request_create("agent:trial", &key, &csr, err);
    if (rc == 0)
        request = json_pack("{s:s, s:s, s:i, s:s}", "kind", "agent", "node", "trial", "generation", 1, "csr",
                            buf_str(&csr));
    if (rc == 0)
        rc = signer_sign(k, request, &made, err);
    json_decref(request);
    buf_fini(&key);
    buf_fini(&csr);
    buf_fini(&made);
    return rc;
}

int signer_keep(const struct signer_options *options, int fd, struct err *err)
{
    static const struct sandbox_limits limits = {
        .cpu_s = UINT32_MAX - 1}; /* unlimited, because it lives as long as its front */
    struct key_process k = {.lifetime_s = options->lifetime_s};
    struct buf in;
    struct err ignored;
    json_t *request = NULL;
    buf_init(&k.ca, PEM_BYTES_MAX);
    buf_init(&in, FRAME_BYTES_MAX + 4096);
    int rc = key_lock(&k, options->key_file, err);
    if (rc == 0)
        rc = file_read_all(options->ca_file, PEM_BYTES_MAX, &k.ca, err);
    if (rc == 0 && trial_sign(&k, err) < 0)
        rc = err_wrap(err, "\"%s\", \"%s\"", options->ca_file, options->key_file);
    if (rc == 0)
        rc = sandbox_enter(&limits, err);
    if (answer_write(fd, rc < 0 ? signer_refusal(err) : json_pack("{s:b}", "ready", 1), &ignored) < 0)
        rc = -1;
    while (rc == 0 && (rc = request_read(fd, &in, &request, err)) == 1) {
        rc = answer_request(&k, fd, request, err);
        json_decref(request);
    }
    OPENSSL_secure_clear_free(k.key, k.key ? strlen(k.key) : 0);
    buf_fini(&k.ca);
    buf_fini(&in);
    return rc;
}

/* ---- the front ---- */

static uint64_t in_ms(unsigned ms)
{
    return clock_mono_ns() + (uint64_t)ms * 1000000;
}

static int listen_at(const char *path, struct err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path))
        return err_set(err, ERR_TOO_BIG, "the path of a socket has at most %zu bytes: \"%.120s\"",
                       sizeof(address.sun_path) - 1, path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    mode_t before = umask(0117);
    int rc = fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, BACKLOG) < 0
                 ? -1
                 : 0;
    int number = errno;
    umask(before);
    if (rc == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return err_errno(err, ERR_IO, number, "could not listen on \"%s\"", path);
}

/* Serves one caller: checks its user, reads one request, writes one answer. -1 only when the process with the
 * key cannot be used any more. */
static int serve_one(const struct signer_options *options, int caller, int fd, struct err *err)
{
    struct ucred who;
    socklen_t size = sizeof(who);
    struct err why = {0};
    json_t *request = NULL, *answer = NULL;
    if (getsockopt(caller, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0 ||
        (who.uid != geteuid() && who.uid != options->peer)) {
        log_event(LOG_LEVEL_WARN, "caller_refused", "uid=%u", size == sizeof(who) ? (unsigned)who.uid : 0);
        return 0;
    }
    if (frame_recv(caller, &frame_limits, in_ms(ASK_MS), &request, &why) < 0) {
        log_event(LOG_LEVEL_WARN, "request_refused", "why=\"%s\"", why.text);
        return 0;
    }
    int rc = frame_send(fd, request, in_ms(SIGN_MS), err) < 0 ||
                     frame_recv(fd, &frame_limits, in_ms(SIGN_MS), &answer, err) < 0
                 ? err_wrap(err, "the process with the key")
                 : 0;
    if (rc == 0) {
        const char *refused = json_string_value(json_object_get(answer, "error"));
        log_event(
            refused ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, refused ? "not_signed" : "signed",
            "node=%.64s generation=%lld why=\"%s\"", json_string_value(json_object_get(request, "node")),
            (long long)json_integer_value(json_object_get(request, "generation")), refused ? refused : "");
        frame_send(caller, answer, in_ms(ASK_MS), &why);
    }
    json_decref(request);
    json_decref(answer);
    return rc;
}

static int signer_wait_ready(int fd, struct err *err)
{
    json_t *answer = NULL;
    if (frame_recv(fd, &frame_limits, in_ms(SIGN_MS), &answer, err) < 0)
        return err_wrap(err, "the process with the key");
    const char *why = json_string_value(json_object_get(answer, "error"));
    int rc =
        why ? err_set(err, err_code_from_name(json_string_value(json_object_get(answer, "code"))), "%s", why)
            : 0;
    json_decref(answer);
    return rc;
}

int signer_serve(const struct signer_options *options, int fd, struct err *err)
{
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    int signals = signalfd(-1, &ends, SFD_CLOEXEC), listener = -1, rc = signer_wait_ready(fd, err);
    if (rc == 0 && (listener = listen_at(options->socket, err)) < 0)
        rc = -1;
    if (rc == 0)
        log_event(LOG_LEVEL_INFO, "signer_listens", "socket=%s lifetime_s=%u", options->socket,
                  options->lifetime_s);
    for (bool over = false; rc == 0 && !over;) {
        struct pollfd wait[] = {{.fd = signals, .events = POLLIN},
                                {.fd = fd, .events = POLLIN},
                                {.fd = listener, .events = POLLIN}};
        if (poll(wait, 3, -1) < 0 && errno != EINTR)
            rc = err_errno(err, ERR_IO, errno, "could not wait");
        else if (wait[0].revents)
            over = true;
        else if (wait[1].revents)
            rc = err_set(err, ERR_PEER, "the process with the key has ended");
        int caller = rc == 0 && !over && wait[2].revents ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (caller >= 0) {
            rc = serve_one(options, caller, fd, err);
            close(caller);
        }
    }
    if (listener >= 0) {
        close(listener);
        unlink(options->socket);
    }
    close(signals);
    return rc;
}
