/* A temporary cluster CA with certificates, for tests that use TLS. */
#ifndef MOTLEY_TESTS_CLUSTER_H
#define MOTLEY_TESTS_CLUSTER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/file.h"
#include "common/tls.h"

struct test_cluster {
    struct buf ca_cert;
    struct buf ca_key;
    char ca_file[448];
};

struct test_cert {
    char cert_file[448];
    char key_file[448];
};

static inline void test_cluster_check(int result, const struct err *err)
{
    if (result < 0) {
        fprintf(stderr, "test cluster: %s\n", err->text);
        exit(1);
    }
}

/* Makes CA files under 'dir' with 'name' in their names. */
static inline void test_cluster_make(struct test_cluster *cluster, const char *dir, const char *name)
{
    struct err err;
    buf_init(&cluster->ca_cert, 65536);
    buf_init(&cluster->ca_key, 65536);
    test_cluster_check(tls_ca_create(name, 30, &cluster->ca_cert, &cluster->ca_key, &err), &err);
    snprintf(cluster->ca_file, sizeof(cluster->ca_file), "%s/%s-ca.pem", dir, name);
    test_cluster_check(
        file_write_atomic(cluster->ca_file, cluster->ca_cert.data, cluster->ca_cert.size, 0644, &err), &err);
}

static inline void test_cluster_fini(struct test_cluster *cluster)
{
    buf_fini(&cluster->ca_cert);
    buf_fini(&cluster->ca_key);
}

/* Makes a certificate of the cluster for 'identity' in files under 'dir'. An agent's certificate names no
 * host; others are valid for localhost, 127.0.0.1 and ::1. */
static inline void test_cert_make(struct test_cert *cert, struct test_cluster *cluster, const char *dir,
                                  const char *identity)
{
    static const char *const hosts[] = {"localhost", "127.0.0.1", "::1"};
    struct err err;
    struct buf key, request, issued;
    buf_init(&key, 65536);
    buf_init(&request, 65536);
    buf_init(&issued, 65536);
    test_cluster_check(tls_request_create(identity, &key, &request, &err), &err);
    test_cluster_check(
        tls_issue(
            &(struct tls_ca){.cert_pem = buf_str(&cluster->ca_cert), .key_pem = buf_str(&cluster->ca_key)},
            buf_str(&request),
            &(struct tls_grant){.identity = identity,
                                .hosts = hosts,
                                .host_count = strncmp(identity, "agent:", 6) == 0 ? 0 : 3,
                                .seconds = 30 * 86400},
            &issued, &err),
        &err);
    char safe[80];
    snprintf(safe, sizeof(safe), "%s", identity);
    for (char *at = safe; *at != '\0'; at++)
        *at = *at == '/' || *at == ':' ? '-' : *at;
    snprintf(cert->cert_file, sizeof(cert->cert_file), "%s/%s.pem", dir, safe);
    snprintf(cert->key_file, sizeof(cert->key_file), "%s/%s.key", dir, safe);
    test_cluster_check(file_write_atomic(cert->cert_file, issued.data, issued.size, 0644, &err), &err);
    test_cluster_check(file_write_atomic(cert->key_file, key.data, key.size, 0600, &err), &err);
    buf_fini(&key);
    buf_fini(&request);
    buf_fini(&issued);
}

#endif
