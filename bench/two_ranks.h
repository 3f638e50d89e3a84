/* Makes ranks of a mesh on loopback in one process for benchmarks, with their own certificates. Any failure
 * ends the program with status 2. */
#ifndef MOTLEY_BENCH_TWO_RANKS_H
#define MOTLEY_BENCH_TWO_RANKS_H

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/tls.h"
#include "mesh/mesh.h"

static inline void must(int status, const struct err *err)
{
    if (status >= 0)
        return;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, err->text);
    exit(2);
}

enum { BENCH_RANKS_MAX = 4 };

struct rank_files {
    char dir[64], ca[128], cert[BENCH_RANKS_MAX][128], key[BENCH_RANKS_MAX][128];
};

static inline void write_text(const char *path, const struct buf *text)
{
    struct err err;
    must(file_write_atomic(path, text->data, text->size, 0600, &err), &err);
}

/* Writes certificates and keys into a new folder, f->dir, which the caller removes. */
static inline void make_files(struct rank_files *f)
{
    struct err err;
    struct buf ca = {.limit = 65536}, ca_key = {.limit = 65536};
    snprintf(f->dir, sizeof(f->dir), "/tmp/motley-bench-XXXXXX");
    if (!mkdtemp(f->dir))
        exit(2);
    must(tls_ca_create("bench", 30, &ca, &ca_key, &err), &err);
    snprintf(f->ca, sizeof(f->ca), "%s/ca", f->dir);
    write_text(f->ca, &ca);
    for (int i = 0; i < BENCH_RANKS_MAX; i++) {
        struct buf key = {.limit = 65536}, csr = {.limit = 65536}, cert = {.limit = 65536};
        char identity[16];
        snprintf(identity, sizeof(identity), "agent:n%d", i);
        must(tls_request_create(identity, &key, &csr, &err), &err);
        must(tls_issue(&(struct tls_ca){.cert_pem = buf_str(&ca), .key_pem = buf_str(&ca_key)}, buf_str(&csr),
                       &(struct tls_grant){.identity = identity, .seconds = 30 * 86400}, &cert, &err),
             &err);
        snprintf(f->cert[i], sizeof(f->cert[i]), "%s/cert%d", f->dir, i);
        snprintf(f->key[i], sizeof(f->key[i]), "%s/key%d", f->dir, i);
        write_text(f->cert[i], &cert);
        write_text(f->key[i], &key);
        buf_fini(&key);
        buf_fini(&csr);
        buf_fini(&cert);
    }
    buf_fini(&ca);
    buf_fini(&ca_key);
}

struct pair {
    struct mesh *mesh[2];
    struct mesh_peer peer[2];
};

static inline void *pair_connect(void *arg)
{
    struct pair *p = arg;
    struct err err;
    must(mesh_connect(p->mesh[1], &p->peer[1], 1, clock_mono_ns() + 10000000000u, NULL, &err), &err);
    return NULL;
}

/* Opens both meshes and connects them; the caller destroys both. */
static inline void pair_open(struct pair *p, const struct rank_files *f)
{
    static const char *const identity[2] = {"agent:n0", "agent:n1"};
    static char address[2][64];
    struct err err;
    for (uint32_t i = 0; i < 2; i++) {
        struct mesh_options options = {
            .rank = i, .epoch = 1, .cert_file = f->cert[i], .key_file = f->key[i], .ca_file = f->ca};
        must(mesh_create(&options, &p->mesh[i], &err), &err);
        must(mesh_listen(p->mesh[i], "127.0.0.1:0", address[i], sizeof(address[i]), &err), &err);
        p->peer[1 - i] = (struct mesh_peer){.rank = i, .address = address[i], .identity = identity[i]};
    }
    pthread_t thread;
    pthread_create(&thread, NULL, pair_connect, p);
    must(mesh_connect(p->mesh[0], &p->peer[0], 1, clock_mono_ns() + 10000000000u, NULL, &err), &err);
    pthread_join(thread, NULL);
}

static inline int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static inline double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(double), compare_double);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

#endif
