/* Tests certificates, which peers are admitted and how others are refused, and the HTTP client over plain TCP
 * and TLS. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <openssl/err.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>

#include "common/clock.h"
#include "common/digest.h"
#include "common/http.h"
#include "support/cluster.h"
#include "support/services.h"

static struct test_dir dir;
static struct test_cluster ours, theirs;
static struct test_cert server_cert, left_cert, right_cert, stranger_cert, poser_cert;

static int cluster_up(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    test_dir_make(&dir);
    test_cluster_make(&ours, dir.path, "ours");
    test_cluster_make(&theirs, dir.path, "theirs");
    test_cert_make(&server_cert, &ours, dir.path, "server:api");
    test_cert_make(&left_cert, &ours, dir.path, "agent:left");
    test_cert_make(&right_cert, &ours, dir.path, "agent:right");
    /* This certificate names the api's host too. */
    test_cert_make(&poser_cert, &ours, dir.path, "client:poser");
    test_cert_make(&stranger_cert, &theirs, dir.path, "agent:stranger");
    return 0;
}

static int cluster_down(void **state)
{
    (void)state;
    test_cluster_fini(&ours);
    test_cluster_fini(&theirs);
    test_dir_remove(&dir);
    return 0;
}

static SSL_CTX *context(const struct test_cluster *cluster, const struct test_cert *cert, enum tls_role role)
{
    struct err err = {0};
    struct tls_files files = {.ca_file = cluster->ca_file,
                              .cert_file = !cert ? NULL : cert->cert_file,
                              .key_file = !cert ? NULL : cert->key_file};
    SSL_CTX *made = tls_context_create(&files, role, &err);
    if (!made)
        fail_msg("%s", err.text);
    return made;
}

/* ---- TLS connections in memory ---- */

struct pair {
    SSL *client, *server;
    int client_result, server_result;
    unsigned long client_code, server_code;
};

/* Does a handshake in memory, then sends one byte each way so that late refusals arrive. */
static void pair_shake(struct pair *pair, SSL_CTX *client, SSL_CTX *server, const char *host)
{
    struct err err;
    BIO *one, *two;
    assert_int_equal(BIO_new_bio_pair(&one, 0, &two, 0), 1);
    ERR_clear_error();
    pair->client = tls_client_create(client, host, &err);
    pair->server = SSL_new(server);
    assert_true(pair->client && pair->server);
    SSL_set_bio(pair->client, one, one);
    SSL_set_bio(pair->server, two, two);
    SSL_set_accept_state(pair->server);
    pair->client_code = pair->server_code = 0;
    for (int turn = 0; turn < 20; turn++) {
        char byte = 'x';
        pair->client_result = SSL_do_handshake(pair->client);
        if (pair->client_result == 1) {
            SSL_write(pair->client, &byte, 1);
            pair->client_result = SSL_read(pair->client, &byte, 1);
        }
        if (pair->client_result <= 0 && SSL_get_error(pair->client, pair->client_result) == SSL_ERROR_SSL &&
            pair->client_code == 0) {
            pair->client_code = ERR_get_error();
        }
        ERR_clear_error();
        pair->server_result = SSL_do_handshake(pair->server);
        if (pair->server_result == 1)
            SSL_write(pair->server, &byte, 1);
        else if (SSL_get_error(pair->server, pair->server_result) == SSL_ERROR_SSL && pair->server_code == 0)
            pair->server_code = ERR_get_error();
        ERR_clear_error();
    }
}

static void pair_free(struct pair *pair)
{
    SSL_free(pair->client);
    SSL_free(pair->server);
}

static void nodes_of_one_cluster_know_each_other(void **state)
{
    (void)state;
    struct err err = {0};
    SSL_CTX *client = context(&ours, &left_cert, TLS_ROLE_PEER);
    SSL_CTX *server = context(&ours, &right_cert, TLS_ROLE_SERVER_MUTUAL);
    struct pair pair;
    pair_shake(&pair, client, server, NULL);
    assert_int_equal(pair.client_result, 1);
    char identity[TLS_IDENTITY_SIZE];
    assert_int_equal(tls_peer_identity(pair.client, identity, &err), 0);
    assert_string_equal(identity, "agent:right");
    assert_int_equal(tls_peer_check(pair.server, "agent:left", &err), 0);
    assert_int_equal(tls_peer_check(pair.server, "agent:middle", &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    assert_string_equal(err.text, "the peer is agent:left, expected was agent:middle");
    assert_string_equal(SSL_get_version(pair.client), "TLSv1.3");
    assert_int_equal(SSL_session_reused(pair.client), 0);
    pair_free(&pair);
    SSL_CTX_free(client);
    SSL_CTX_free(server);
}

static void another_cluster_is_refused_by_both_ends_in_words(void **state)
{
    (void)state;
    struct err err = {0};
    struct pair pair;
    SSL_CTX *server = context(&ours, &right_cert, TLS_ROLE_SERVER_MUTUAL);
    SSL_CTX *client = context(&theirs, &stranger_cert, TLS_ROLE_PEER);
    pair_shake(&pair, client, server, NULL); /* the client does not trust the server */
    assert_int_not_equal(pair.client_result, 1);
    tls_error(pair.client, "right", pair.client_code, &err);
    assert_int_equal(err.code, ERR_PEER);
    assert_non_null(strstr(err.text, "peer right belongs to another cluster"));
    pair_free(&pair);
    SSL_CTX_free(client);
    client = context(&ours, &stranger_cert, TLS_ROLE_PEER); /* the server does not trust the client */
    pair_shake(&pair, client, server, NULL);
    assert_int_not_equal(pair.server_result, 1);
    tls_error(pair.server, "stranger", pair.server_code, &err);
    assert_non_null(strstr(err.text, "peer stranger belongs to another cluster"));
    tls_error(pair.client, "right", pair.client_code, &err);
    assert_int_equal(err.code, ERR_PEER);
    assert_non_null(strstr(err.text, "peer right refused our certificate: it belongs to another cluster"));
    pair_free(&pair);
    SSL_CTX_free(client);
    client = context(&ours, NULL, TLS_ROLE_PEER); /* the client has no certificate */
    pair_shake(&pair, client, server, NULL);
    tls_error(pair.client, "right", pair.client_code, &err);
    assert_string_equal(err.text, "peer right: a certificate is required");
    pair_free(&pair);
    SSL_CTX_free(client);
    SSL_CTX_free(server);
}

static void host_names_are_checked_when_asked_for(void **state)
{
    (void)state;
    struct err err = {0};
    struct pair pair;
    SSL_CTX *server = context(&ours, &server_cert, TLS_ROLE_SERVER);
    SSL_CTX *client = context(&ours, NULL, TLS_ROLE_CLIENT);
    static const char *const good[] = {"localhost", "127.0.0.1", "::1"};
    for (int i = 0; i < 3; i++) {
        pair_shake(&pair, client, server, good[i]);
        assert_int_equal(pair.client_result, 1);
        pair_free(&pair);
    }
    pair_shake(&pair, client, server, "example.org");
    tls_error(pair.client, "example.org", pair.client_code, &err);
    assert_string_equal(err.text, "peer example.org has a certificate for another host");
    pair_free(&pair);
    SSL_CTX_set_min_proto_version(client, TLS1_2_VERSION);
    SSL_CTX_set_max_proto_version(client, TLS1_2_VERSION);
    pair_shake(&pair, client, server, NULL); /* nothing below TLS 1.3 is accepted */
    assert_int_not_equal(pair.client_result, 1);
    pair_free(&pair);
    SSL_CTX_free(client);
    SSL_CTX_free(server);
}

/* Every certificate of the cluster has a chain to the cluster's CA, so only the identity in a certificate
 * makes it a server's. */
static void no_other_certificate_of_the_cluster_can_pose_as_a_server(void **state)
{
    (void)state;
    const struct test_cert *const posers[] = {&poser_cert, &left_cert};
    for (int i = 0; i < 2; i++) {
        struct err err = {0};
        struct pair pair;
        SSL_CTX *server = context(&ours, posers[i], TLS_ROLE_SERVER);
        SSL_CTX *client = context(&ours, NULL, TLS_ROLE_CLIENT);
        pair_shake(&pair, client, server, i == 0 ? "127.0.0.1" : NULL);
        assert_int_not_equal(pair.client_result, 1);
        tls_error(pair.client, "api", pair.client_code, &err);
        assert_int_equal(err.code, ERR_PEER);
        assert_non_null(strstr(err.text, "peer api is no server of this cluster"));
        pair_free(&pair);
        SSL_CTX_free(client);
        SSL_CTX_free(server);
    }
}

static void a_certificate_tells_its_identity_and_its_times(void **state)
{
    (void)state;
    struct err err = {0};
    struct buf key, csr, again, cert;
    char identity[TLS_IDENTITY_SIZE], longest[65];
    uint8_t first[TLS_FINGERPRINT_SIZE], second[TLS_FINGERPRINT_SIZE];
    int64_t issued_s = 0, ends_s = 0, now_s = clock_wall_us() / 1000000;
    buf_init(&key, 65536);
    buf_init(&csr, 65536);
    buf_init(&again, 65536);
    buf_init(&cert, 65536);
    assert_int_equal(tls_request_create("agent:left", &key, &csr, &err), 0);
    /* A second request uses the same key. */
    assert_int_equal(tls_request_create("agent:left", &key, &again, &err), 0);
    assert_int_equal(tls_request_read(buf_str(&csr), identity, first, &err), 0);
    assert_int_equal(tls_request_read(buf_str(&again), identity, second, &err), 0);
    assert_memory_equal(first, second, sizeof(first));
    memset(longest, 'n', 64);
    longest[64] = '\0';
    tls_agent_identity(longest, INT64_MAX, identity);
    const struct tls_ca ca = {.cert_pem = buf_str(&ours.ca_cert), .key_pem = buf_str(&ours.ca_key)};
    struct tls_grant grant = {.identity = identity, .seconds = 300};
    assert_int_equal(tls_issue(&ca, buf_str(&csr), &grant, &cert, &err), 0);
    char found[TLS_IDENTITY_SIZE];
    assert_int_equal(tls_certificate_read(buf_str(&cert), found, &issued_s, &ends_s, &err), 0);
    assert_string_equal(found, identity);
    assert_true(issued_s >= now_s - 2 && issued_s <= now_s + 10);
    assert_int_equal(ends_s - issued_s, 300);
    const char *host = "127.0.0.1";
    grant = (struct tls_grant){.identity = "agent:left:1", .hosts = &host, .host_count = 1, .seconds = 300};
    assert_int_equal(tls_issue(&ca, buf_str(&csr), &grant, &cert, &err), -1);
    assert_non_null(strstr(err.text, "no host"));
    buf_fini(&key);
    buf_fini(&csr);
    buf_fini(&again);
    buf_fini(&cert);
}

static void bad_requests_and_tokens_are_refused(void **state)
{
    (void)state;
    struct err err = {0};
    struct buf key, csr, out;
    buf_init(&key, 65536);
    buf_init(&csr, 65536);
    buf_init(&out, 65536);
    char identity[TLS_IDENTITY_SIZE];
    uint8_t digest[TLS_FINGERPRINT_SIZE];
    assert_int_equal(tls_request_create("agent:bad name", &key, &csr, &err), -1);
    assert_int_equal(tls_request_create("agent:left", &key, &csr, &err), 0);
    assert_int_equal(tls_request_read(buf_str(&csr), identity, digest, &err), 0);
    assert_string_equal(identity, "agent:left");
    const char *hosts[] = {"good.example", "bad,DNS:evil"};
    struct tls_ca issuer = {.cert_pem = buf_str(&ours.ca_cert), .key_pem = buf_str(&ours.ca_key)};
    struct tls_grant grant = {.identity = "server:left", .hosts = hosts, .host_count = 2, .seconds = 10};
    assert_int_equal(tls_issue(&issuer, buf_str(&csr), &grant, &out, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    issuer.key_pem = buf_str(&theirs.ca_key);
    grant = (struct tls_grant){.identity = "agent:left", .seconds = 10};
    assert_int_equal(tls_issue(&issuer, "nonsense", &grant, &out, &err), -1);
    csr.data[csr.size / 2] ^= 1;
    assert_int_equal(tls_request_read(buf_str(&csr), identity, digest, &err), -1);
    char secret[96], token[TLS_JOIN_TOKEN_SIZE];
    uint8_t ca[32], back[32];
    assert_int_equal(tls_fingerprint(buf_str(&ours.ca_cert), ca, &err), 0);
    assert_int_equal(tls_join_token_format("abc", ca, token, &err), 0);
    assert_int_equal(tls_join_token_parse(token, secret, back, &err), 0);
    assert_string_equal(secret, "abc");
    assert_memory_equal(ca, back, 32);
    static const char *const bad[] = {"", "abc", "abc.", ".00", "abc.0011", "a.b.c"};
    for (int i = 0; i < 6; i++)
        assert_int_equal(tls_join_token_parse(bad[i], secret, back, &err), -1);
    buf_fini(&key);
    buf_fini(&csr);
    buf_fini(&out);
}

/* ---- a small HTTP server ---- */

struct server {
    int listener;
    int port;
    SSL_CTX *tls;
    pthread_t thread;
    atomic_bool stopping;
    atomic_int connections;
    char heads[8192]; /* request line and headers of the last request */
    struct buf body;
};

struct peer {
    int fd;
    SSL *ssl;
};

static ssize_t peer_read(struct peer *peer, void *data, size_t size)
{
    return peer->ssl ? SSL_read(peer->ssl, data, (int)size) : recv(peer->fd, data, size, 0);
}

static void peer_write(struct peer *peer, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t wrote = peer->ssl ? SSL_write(peer->ssl, data, (int)size) : send(peer->fd, data, size, 0);
        if (wrote <= 0)
            return;
        data += wrote;
        size -= (size_t)wrote;
    }
}

static void answer(struct peer *peer, const char *status, const char *type, const char *body)
{
    char head[512];
    int size = snprintf(head, sizeof(head),
                        "HTTP/1.1 %s\r\nContent-Type: %s\r\nETag: \"e1\"\r\nContent-Length: %zu\r\n\r\n",
                        status, type, strlen(body));
    peer_write(peer, head, (size_t)size);
    peer_write(peer, body, strlen(body));
}

static void route(struct server *server, struct peer *peer)
{
    const char *path = strchr(server->heads, ' ') + 1;
    if (strncmp(path, "/echo", 5) == 0) {
        answer(peer, "200 OK", "application/json", buf_str(&server->body));
    } else if (strncmp(path, "/range", 6) == 0) {
        answer(peer, strstr(server->heads, "Range: bytes=2-5\r\n") ? "206 Partial Content" : "200 OK",
               "application/octet-stream", strstr(server->heads, "Range:") ? "cdef" : "abcdefgh");
    } else if (strncmp(path, "/deaf", 5) == 0) {
        answer(peer, "200 OK", "application/octet-stream", "abcdefgh");
    } else if (strncmp(path, "/problem", 8) == 0) {
        answer(peer, "422 Unprocessable", "application/problem+json",
               "{\"title\":\"No\",\"detail\":\"rank 1 lacks 12 MiB\",\"code\":\"no-fit\",\"status\":422}");
    } else if (strncmp(path, "/plain", 6) == 0) {
        answer(peer, "404 Not Found", "text/plain", "what?");
    } else if (strncmp(path, "/moved", 6) == 0) {
        answer(peer, "302 Found", "text/plain", "");
    } else if (strncmp(path, "/silent", 7) == 0) {
        peer_write(peer, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab", 41);
        char byte;
        peer_read(peer, &byte, 1); /* this returns when the client gives up */
    } else if (strncmp(path, "/short", 6) == 0) {
        peer_write(peer, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab", 41);
        shutdown(peer->fd, SHUT_RDWR);
    } else {
        answer(peer, "200 OK", "application/json",
               strstr(server->heads, "Bearer secret") ? "{\"ok\":true}" : "{}");
    }
}

/* Reads one request into heads and body. Returns false at the end of the connection. */
static bool request_read(struct server *server, struct peer *peer)
{
    size_t used = 0;
    char *end = NULL;
    while (!end) {
        ssize_t got = peer_read(peer, server->heads + used, sizeof(server->heads) - 1 - used);
        if (got <= 0)
            return false;
        used += (size_t)got;
        server->heads[used] = '\0';
        end = strstr(server->heads, "\r\n\r\n");
    }
    struct err err;
    const char *length = strstr(server->heads, "Content-Length: ");
    size_t want = length && length < end ? strtoul(length + 16, NULL, 10) : 0;
    buf_clear(&server->body);
    buf_append(&server->body, end + 4, used - (size_t)(end + 4 - server->heads), &err);
    while (server->body.size < want) {
        char chunk[65536];
        ssize_t got = peer_read(peer, chunk, sizeof(chunk));
        if (got <= 0)
            return false;
        buf_append(&server->body, chunk, (size_t)got, &err);
    }
    return true;
}

static void *server_main(void *arg)
{
    struct server *server = arg;
    while (!server->stopping) {
        struct pollfd entry = {.fd = server->listener, .events = POLLIN};
        if (poll(&entry, 1, 20) <= 0)
            continue;
        struct peer peer = {.fd = accept(server->listener, NULL, NULL)};
        server->connections++;
        bool good = true;
        if (server->tls) {
            peer.ssl = SSL_new(server->tls);
            SSL_set_fd(peer.ssl, peer.fd);
            good = SSL_accept(peer.ssl) == 1;
        }
        while (good && request_read(server, &peer))
            route(server, &peer);
        SSL_free(peer.ssl);
        close(peer.fd);
        ERR_clear_error();
    }
    return NULL;
}

static void server_start(struct server *server, SSL_CTX *tls)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(where);
    memset(server, 0, sizeof(*server));
    server->tls = tls;
    buf_init(&server->body, 64 << 20);
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(server->listener, (struct sockaddr *)&where, sizeof(where)), 0);
    assert_int_equal(listen(server->listener, 8), 0);
    assert_int_equal(getsockname(server->listener, (struct sockaddr *)&where, &size), 0);
    server->port = ntohs(where.sin_port);
    assert_int_equal(pthread_create(&server->thread, NULL, server_main, server), 0);
}

static void server_stop(struct server *server)
{
    server->stopping = true;
    pthread_join(server->thread, NULL);
    close(server->listener);
    buf_fini(&server->body);
}

static struct http *client(const struct server *server, const char *ca, const uint8_t *pin)
{
    char url[64];
    struct err err = {0};
    snprintf(url, sizeof(url), "%s://127.0.0.1:%d/", server->tls ? "https" : "http", server->port);
    struct http_options options = {.url = url, .bearer = "secret", .ca_file = ca, .ca_sha256 = pin};
    struct http *http = http_create(&options, &err);
    if (!http)
        fail_msg("%s", err.text);
    return http;
}

static int64_t upload_some(void *arg, void *dst, size_t size, struct err *err)
{
    (void)err;
    uint64_t *left = arg;
    size = size < *left ? size : (size_t)*left;
    memset(dst, 'u', size);
    *left -= size;
    return (int64_t)size;
}

static int sink_stop(void *arg, const void *data, size_t size, struct err *err)
{
    (void)arg;
    (void)data;
    (void)size;
    return err_set(err, ERR_CANCELLED, "enough");
}

static void requests_answers_and_refusals(void **state)
{
    (void)state;
    struct server server;
    server_start(&server, NULL);
    struct http *http = client(&server, NULL, NULL);
    struct err err = {0};
    json_t *body = json_pack("{s:s}", "name", "x");
    json_t *out = NULL;
    assert_int_equal(http_json(http, "GET", "/v1/x", NULL, 0, &out, &err), 0);
    assert_true(json_is_true(json_object_get(out, "ok"))); /* the bearer token was sent */
    json_decref(out);
    assert_int_equal(http_json(http, "POST", "/echo", body, 0, &out, &err), 0);
    assert_true(json_equal(out, body));
    json_decref(out);
    assert_int_equal(http_json(http, "DELETE", "/v1/x", NULL, 0, NULL, &err), 0);
    assert_non_null(strstr(server.heads, "DELETE /v1/x"));
    assert_int_equal(http_json(http, "POST", "/problem", body, 0, &out, &err), -1);
    assert_int_equal(err.code, ERR_NOFIT);
    assert_string_equal(err.text, "rank 1 lacks 12 MiB");
    assert_int_equal(http_json(http, "GET", "/plain", NULL, 0, &out, &err), -1);
    assert_int_equal(err.code, ERR_NOT_FOUND);
    assert_int_equal(http_json(http, "GET", "/moved", NULL, 0, &out, &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    uint64_t left = 5000000;
    struct buf got;
    buf_init(&got, 8 << 20);
    struct http_answer told;
    struct http_request put = {.method = "PUT",
                               .path = "/echo",
                               .upload = upload_some,
                               .upload_arg = &left,
                               .upload_bytes = 5000000,
                               .response = &got};
    assert_int_equal(http_perform(http, &put, &told, &err), 0);
    assert_int_equal(got.size, 5000000);
    assert_string_equal(told.content_type, "application/json");
    assert_string_equal(told.etag, "\"e1\"");
    assert_int_equal(server.connections, 1); /* one connection served all requests */
    json_decref(body);
    buf_fini(&got);
    http_destroy(http);
    server_stop(&server);
}

static void ranges_and_limits_are_kept(void **state)
{
    (void)state;
    struct server server;
    server_start(&server, NULL);
    struct http *http = client(&server, NULL, NULL);
    struct err err = {0};
    struct buf got;
    buf_init(&got, 6);
    struct http_request request = {
        .method = "GET", .path = "/range", .range_begin = 2, .range_bytes = 4, .response = &got};
    assert_int_equal(http_perform(http, &request, NULL, &err), 0);
    assert_string_equal(buf_str(&got), "cdef");
    buf_clear(&got);
    request.path = "/deaf"; /* for this path the server ignores the range */
    assert_int_equal(http_perform(http, &request, NULL, &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    request.range_bytes = 0;
    assert_int_equal(http_perform(http, &request, NULL, &err), -1);
    assert_int_equal(err.code, ERR_TOO_BIG);
    request.response = NULL;
    request.sink = sink_stop;
    assert_int_equal(http_perform(http, &request, NULL, &err), -1);
    assert_int_equal(err.code, ERR_CANCELLED);
    request.path = "/silent";
    request.sink = NULL;
    request.timeout_ms = 200;
    assert_int_equal(http_perform(http, &request, NULL, &err), -1);
    assert_int_equal(err.code, ERR_TIMEOUT);
    request.timeout_ms = UINT32_MAX;
    request.idle_ms = 200;
    assert_int_equal(http_perform(http, &request, NULL, &err), -1);
    assert_int_equal(err.code, ERR_TIMEOUT);
    request.path = "/short";
    assert_int_equal(http_perform(http, &request, NULL, &err), -1);
    assert_int_equal(err.code, ERR_NET);
    http_destroy(http);
    server_stop(&server);
    http = client(&server, NULL, NULL);
    request.idle_ms = 0;
    request.timeout_ms = 2000;
    /* Nothing listens at that address. */
    assert_int_equal(http_perform(http, &request, NULL, &err), -1);
    assert_int_equal(err.code, ERR_NET);
    http_destroy(http);
    struct http_options bad = {.url = "ftp://x"};
    assert_null(http_create(&bad, &err));
    assert_int_equal(err.code, ERR_INVALID);
    char escaped[32];
    assert_int_equal(http_escape("a b/\xc3\xa9", escaped, sizeof(escaped), &err), 0);
    assert_string_equal(escaped, "a%20b%2f%c3%a9");
    assert_int_equal(http_escape("123456", escaped, 6, &err), -1);
    buf_fini(&got);
}

static void secrets_leave_this_machine_only_by_tls(void **state)
{
    (void)state;
    static const uint8_t pin[TLS_FINGERPRINT_SIZE];
    /* The address is of a network for documents, which leads nowhere. */
    struct http_options options[] = {{.url = "http://192.0.2.1:9", .bearer = "secret", .connect_ms = 100},
                                     {.url = "http://[2001:db8::1]:9", .ca_sha256 = pin, .connect_ms = 100},
                                     {.url = "http://192.0.2.1:9", .connect_ms = 100}};
    for (int i = 0; i < 3; i++) {
        struct err err = {0};
        struct http *http = http_create(&options[i], &err);
        assert_non_null(http);
        assert_int_equal(http_json(http, "GET", "/", NULL, 0, NULL, &err), -1);
        if ((err.code == ERR_INVALID) != (i < 2))
            fail_msg("%s: %s", options[i].url, err.text);
        http_destroy(http);
    }
}

static void a_joining_node_trusts_only_the_pinned_ca(void **state)
{
    (void)state;
    struct server server;
    struct err err = {0};
    json_t *out = NULL;
    SSL_CTX *tls = context(&ours, &server_cert, TLS_ROLE_SERVER);
    server_start(&server, tls);
    /* An enrolled agent knows the CA's certificate. */
    struct http *http = client(&server, ours.ca_file, NULL);
    assert_int_equal(http_json(http, "GET", "/", NULL, 0, &out, &err), 0);
    json_decref(out);
    http_destroy(http);
    uint8_t pin[32];
    assert_int_equal(tls_fingerprint(buf_str(&ours.ca_cert), pin, &err), 0);
    http = client(&server, NULL, pin);
    assert_int_equal(http_json(http, "GET", "/", NULL, 0, &out, &err), 0);
    json_decref(out);
    http_destroy(http);
    assert_int_equal(tls_fingerprint(buf_str(&theirs.ca_cert), pin, &err), 0);
    http = client(&server, NULL, pin);
    assert_int_equal(http_json(http, "GET", "/", NULL, 0, &out, &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    assert_non_null(strstr(err.text, "not the cluster expected"));
    http_destroy(http);
    http = client(&server, theirs.ca_file, NULL);
    assert_int_equal(http_json(http, "GET", "/", NULL, 0, &out, &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    http_destroy(http);
    server_stop(&server);
    SSL_CTX_free(tls);
}

static _Atomic int64_t clock_shift_s;

/* Replaces the C library's time(), by which OpenSSL checks certificates, by a clock that a test can shift. */
__attribute__((visibility("default"))) time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec += clock_shift_s;
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

static void a_clock_that_jumped_is_named(void **state)
{
    (void)state;
    static const struct {
        int64_t shift_s;
        const char *says;
    } cases[] = {{-172800, "is not valid yet by this machine's clock"},
                 {3600ll * 24 * 365 * 30, "has expired by this machine's clock"}};
    struct server server;
    struct err err = {0};
    json_t *out = NULL;
    SSL_CTX *tls = context(&ours, &server_cert, TLS_ROLE_SERVER);
    server_start(&server, tls);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct http *http = client(&server, ours.ca_file, NULL);
        clock_shift_s = cases[i].shift_s;
        assert_int_equal(http_json(http, "GET", "/", NULL, 0, &out, &err), -1);
        clock_shift_s = 0;
        assert_int_equal(err.code, ERR_PEER);
        if (!strstr(err.text, cases[i].says))
            fail_msg("%s", err.text);
        http_destroy(http);
    }
    server_stop(&server);
    SSL_CTX_free(tls);
}

/* The agent disconnects whether the CA is configured or pinned while it joins. */
static void an_agent_that_poses_as_the_api_is_left_at_once(void **state)
{
    (void)state;
    struct server server;
    struct err err = {0};
    json_t *out = NULL;
    uint8_t pin[32];
    SSL_CTX *tls = context(&ours, &poser_cert, TLS_ROLE_SERVER);
    server_start(&server, tls);
    assert_int_equal(tls_fingerprint(buf_str(&ours.ca_cert), pin, &err), 0);
    for (int i = 0; i < 2; i++) {
        struct http *http = client(&server, i == 0 ? ours.ca_file : NULL, i == 0 ? NULL : pin);
        assert_int_equal(http_json(http, "GET", "/", NULL, 0, &out, &err), -1);
        assert_int_equal(err.code, ERR_PEER);
        assert_non_null(strstr(err.text, "not a server's"));
        http_destroy(http);
    }
    server_stop(&server);
    SSL_CTX_free(tls);
}

/* A file of CAs: `first`, `second`, and what `by` vouches for. */
static void bundle_make(struct buf *out, const struct test_cluster *first, const struct test_cluster *second,
                        const struct test_cluster *by)
{
    struct err err = {0};
    out->size = 0;
    const char *certs[] = {buf_str((struct buf *)&first->ca_cert), buf_str((struct buf *)&second->ca_cert)};
    for (int i = 0; i < 2; i++)
        assert_int_equal(buf_append(out, certs[i], strlen(certs[i]), &err), 0);
    const struct tls_ca signer = {buf_str((struct buf *)&by->ca_cert), buf_str((struct buf *)&by->ca_key)};
    assert_int_equal(tls_vouch(&signer, certs[1], out, &err), 0);
}

static void a_ca_follows_only_one_that_vouches_for_it(void **state)
{
    (void)state;
    struct test_cluster third;
    struct buf bundle, one, cert, key;
    struct err err = {0};
    test_cluster_make(&third, dir.path, "third");
    buf_init(&bundle, 65536);
    buf_init(&one, 65536);
    buf_init(&cert, 65536);
    buf_init(&key, 65536);
    assert_int_equal(file_read_all(left_cert.cert_file, 65536, &cert, &err), 0);
    assert_int_equal(file_read_all(left_cert.key_file, 65536, &key, &err), 0);
    const char *known = buf_str(&ours.ca_cert);
    assert_int_equal(tls_bundle_follows(known, known, &err), 0);
    assert_int_equal(tls_bundle_follows(known, buf_str(&theirs.ca_cert), &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    bundle_make(&bundle, &ours, &theirs, &ours);
    assert_int_equal(tls_bundle_follows(known, buf_str(&bundle), &err), 0);
    assert_int_equal(tls_bundle_follows(buf_str(&third.ca_cert), buf_str(&bundle), &err), -1);
    /* Both CAs of a file are known; the file of one alone drops the other. */
    assert_int_equal(tls_bundle_follows(buf_str(&bundle), buf_str(&theirs.ca_cert), &err), 0);
    assert_int_equal(tls_bundle_at(buf_str(&bundle), 1, &one, &err), 1);
    assert_string_equal(buf_str(&one), buf_str(&theirs.ca_cert));
    assert_int_equal(tls_bundle_at(buf_str(&bundle), 2, &one, &err), 0);
    /* A voucher by the newcomer, one for another CA, and a damaged one are none. */
    bundle_make(&bundle, &ours, &theirs, &theirs);
    assert_int_equal(tls_bundle_follows(known, buf_str(&bundle), &err), -1);
    bundle_make(&bundle, &ours, &third, &ours);
    assert_int_equal(buf_append(&bundle, buf_str(&theirs.ca_cert), theirs.ca_cert.size, &err), 0);
    assert_int_equal(tls_bundle_follows(known, buf_str(&bundle), &err), -1);
    bundle_make(&bundle, &ours, &theirs, &ours);
    char *voucher = strstr(buf_str(&bundle), "MOTLEY VOUCHER-----\n") + 30;
    *voucher = *voucher == 'A' ? 'B' : 'A';
    assert_int_equal(tls_bundle_follows(known, buf_str(&bundle), &err), -1);
    assert_int_equal(tls_bundle_follows(known, "", &err), -1);
    /* A certificate by either CA is checked by the file of both. */
    bundle_make(&bundle, &theirs, &ours, &theirs);
    assert_int_equal(tls_certificate_check(buf_str(&cert), buf_str(&bundle), buf_str(&key), &err), 0);
    const struct tls_ca signer = {buf_str(&theirs.ca_cert), buf_str(&theirs.ca_key)};
    one.size = 0;
    assert_int_equal(tls_reissue(&signer, buf_str(&cert), 60, &one, &err), 0);
    assert_int_equal(tls_certificate_check(buf_str(&one), buf_str(&theirs.ca_cert), buf_str(&key), &err), 0);
    assert_int_equal(tls_certificate_check(buf_str(&one), known, buf_str(&key), &err), -1);
    struct buf *const bufs[] = {&bundle, &one, &cert, &key};
    for (int i = 0; i < 4; i++)
        buf_fini(bufs[i]);
    test_cluster_fini(&third);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ca_follows_only_one_that_vouches_for_it),
        cmocka_unit_test(nodes_of_one_cluster_know_each_other),
        cmocka_unit_test(another_cluster_is_refused_by_both_ends_in_words),
        cmocka_unit_test(host_names_are_checked_when_asked_for),
        cmocka_unit_test(no_other_certificate_of_the_cluster_can_pose_as_a_server),
        cmocka_unit_test(a_certificate_tells_its_identity_and_its_times),
        cmocka_unit_test(bad_requests_and_tokens_are_refused),
        cmocka_unit_test(requests_answers_and_refusals),
        cmocka_unit_test(ranges_and_limits_are_kept),
        cmocka_unit_test(secrets_leave_this_machine_only_by_tls),
        cmocka_unit_test(a_joining_node_trusts_only_the_pinned_ca),
        cmocka_unit_test(a_clock_that_jumped_is_named),
        cmocka_unit_test(an_agent_that_poses_as_the_api_is_left_at_once),
    };
    return cmocka_run_group_tests(tests, cluster_up, cluster_down);
}
