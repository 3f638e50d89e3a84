/* The api that an agent joins, on a thread of its own: it gives every node a certificate, one Redis and one
 * key. */
#ifndef MOTLEY_TESTS_FAKE_API_H
#define MOTLEY_TESTS_FAKE_API_H

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <jansson.h>

#include "common/json.h"
#include "support/cluster.h"

static const char seal_hex[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

struct api {
    struct test_cluster *cluster;
    const char *redis;
    int listener;
    char url[64], node[72];
    atomic_int enrolments, renewals;
    atomic_uint lifetime_s;                /* lifetime of its certificates */
    atomic_bool forgot;                    /* true: the api no longer knows any node */
    atomic_bool other_ca;                  /* true: it renews by a CA that is not the cluster's */
    uint8_t keys[2][TLS_FINGERPRINT_SIZE]; /* public keys of the first two enrolments */
    pthread_t thread;
    atomic_bool stopping;
};

static inline void api_answer(struct api *api, int fd)
{
    struct err err;
    struct buf text, cert;
    buf_init(&text, 1 << 20);
    buf_init(&cert, 65536);
    char *body = NULL;
    size_t want = 0;
    while (!body || text.size < want) {
        assert_int_equal(buf_reserve(&text, 65536, &err), 0);
        ssize_t got = recv(fd, text.data + text.size, 65536, 0);
        if (got <= 0)
            goto out;
        text.size += (size_t)got;
        text.data[text.size] = '\0';
        body = strstr((char *)text.data, "\r\n\r\n");
        char *length = strstr((char *)text.data, "Content-Length: ");
        if (body && length)
            want = (size_t)(body + 4 - (char *)text.data) + strtoul(length + 16, NULL, 10);
    }
    if (strncmp((char *)text.data, "GET ", 4) == 0) { /* who am I? */
        dprintf(fd, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
        goto out;
    }
    json_t *asked = json_parse_limited(body + 4, want - (size_t)(body + 4 - (char *)text.data), 8, &err);
    char identity[TLS_IDENTITY_SIZE], ignored[TLS_IDENTITY_SIZE];
    const char *node = json_string_value(json_object_get(asked, "node"));
    bool renews = !node;
    if (renews && api->forgot) {
        dprintf(fd, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
        json_decref(asked);
        goto out;
    }
    struct buf other_ca, other_key;
    buf_init(&other_ca, 65536);
    buf_init(&other_key, 65536);
    const bool other = renews && api->other_ca;
    if (other && tls_ca_create("another", 1, &other_ca, &other_key, &err) < 0) {
        fprintf(stderr, "api: %s\n", err.text);
        exit(1);
    }
    tls_agent_identity(renews ? api->node : node, 1, identity);
    if (!renews) {
        snprintf(api->node, sizeof(api->node), "%s", node);
        tls_request_read(json_string_value(json_object_get(asked, "csr")), ignored,
                         api->keys[api->enrolments == 0 ? 0 : 1], &err);
    }
    if (tls_issue(&(struct tls_ca){.cert_pem = buf_str(other ? &other_ca : &api->cluster->ca_cert),
                                   .key_pem = buf_str(other ? &other_key : &api->cluster->ca_key)},
                  json_string_value(json_object_get(asked, "csr")),
                  &(struct tls_grant){.identity = identity, .seconds = api->lifetime_s}, &cert, &err) < 0) {
        fprintf(stderr, "api: %s\n", err.text);
        exit(1);
    }
    json_t *answer = json_pack("{s:s, s:s, s:{s:s}, s:s, s:s}", "certificate", buf_str(&cert), "ca",
                               buf_str(&api->cluster->ca_cert), "redis", "address", api->redis, "token",
                               "bearer-1", "seal", seal_hex);
    char *dumped = json_dumps(answer, JSON_COMPACT);
    dprintf(fd, "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
            strlen(dumped), dumped);
    *(renews ? &api->renewals : &api->enrolments) += 1;
    free(dumped);
    json_decref(answer);
    json_decref(asked);
    buf_fini(&other_ca);
    buf_fini(&other_key);
out:
    buf_fini(&text);
    buf_fini(&cert);
}

static inline void *api_main(void *arg)
{
    struct api *api = arg;
    while (!api->stopping) {
        struct pollfd entry = {.fd = api->listener, .events = POLLIN};
        if (poll(&entry, 1, 50) > 0) {
            int fd = accept(api->listener, NULL, NULL);
            api_answer(api, fd);
            close(fd);
        }
    }
    return NULL;
}

static inline void api_start(struct api *api)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(where);
    api->lifetime_s = 600;
    api->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(api->listener, (struct sockaddr *)&where, sizeof(where)), 0);
    assert_int_equal(listen(api->listener, 8), 0);
    assert_int_equal(getsockname(api->listener, (struct sockaddr *)&where, &size), 0);
    snprintf(api->url, sizeof(api->url), "http://127.0.0.1:%d", ntohs(where.sin_port));
    assert_int_equal(pthread_create(&api->thread, NULL, api_main, api), 0);
}

#endif
