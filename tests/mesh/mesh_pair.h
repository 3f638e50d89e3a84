/* Makes several ranks of a mesh in one process, connected over loopback. */
#pragma once

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "mesh/mesh.h"
#include "support/cluster.h"
#include "support/scratch.h"

enum { GROUP_MAX = 4 };

static inline uint64_t in_seconds(double s)
{
    return clock_mono_ns() + (uint64_t)(s * 1e9);
}

struct group {
    struct scratch scratch;
    struct test_cluster cluster;
    struct test_cert certs[GROUP_MAX];
    uint32_t count;
    struct mesh *mesh[GROUP_MAX];
    struct mesh_options options[GROUP_MAX];
    char address[GROUP_MAX][64];
    char identity[GROUP_MAX][64];
    struct mesh_peer peers[GROUP_MAX][GROUP_MAX]; /* [rank][…] the other ranks, in order */
    uint64_t connect_deadline_ns[GROUP_MAX];
    int status[GROUP_MAX];
    struct err err[GROUP_MAX];
};

/* Makes certificates and meshes and listens; nothing is connected. Options may be changed between group_init
 * and group_open. */
static inline void group_init(struct group *g, uint32_t count)
{
    memset(g, 0, sizeof(*g));
    g->count = count;
    assert_int_equal(scratch_make(&g->scratch), 0);
    test_cluster_make(&g->cluster, g->scratch.dir, "ours");
    for (uint32_t i = 0; i < count; i++) {
        g->connect_deadline_ns[i] = in_seconds(30);
        snprintf(g->identity[i], sizeof(g->identity[i]), "agent:n%u", i);
        test_cert_make(&g->certs[i], &g->cluster, g->scratch.dir, g->identity[i]);
        g->options[i] = (struct mesh_options){.rank = i,
                                              .epoch = 7,
                                              .run = 3,
                                              .cert_file = g->certs[i].cert_file,
                                              .key_file = g->certs[i].key_file,
                                              .ca_file = g->cluster.ca_file};
    }
}

static inline void group_open(struct group *g)
{
    struct err err;
    for (uint32_t i = 0; i < g->count; i++)
        if (mesh_create(&g->options[i], &g->mesh[i], &err) < 0 ||
            mesh_listen(g->mesh[i], "127.0.0.1:0", g->address[i], sizeof(g->address[i]), &err) < 0)
            fail_msg("%s", err.text);
    for (uint32_t i = 0; i < g->count; i++)
        for (uint32_t j = 0, k = 0; j < g->count; j++)
            if (j != i)
                g->peers[i][k++] =
                    (struct mesh_peer){.rank = j, .address = g->address[j], .identity = g->identity[j]};
}

struct group_member {
    struct group *group;
    uint32_t rank;
};

static inline void *group_connect_run(void *arg)
{
    struct group_member *m = arg;
    struct group *g = m->group;
    g->status[m->rank] = mesh_connect(g->mesh[m->rank], g->peers[m->rank], g->count - 1,
                                      g->connect_deadline_ns[m->rank], NULL, &g->err[m->rank]);
    return NULL;
}

/* Connects all ranks at once; status and err hold the outcomes. */
static inline void group_connect(struct group *g)
{
    pthread_t threads[GROUP_MAX];
    struct group_member members[GROUP_MAX];
    for (uint32_t i = 0; i < g->count; i++) {
        members[i] = (struct group_member){g, i};
        assert_int_equal(pthread_create(&threads[i], NULL, group_connect_run, &members[i]), 0);
    }
    for (uint32_t i = 0; i < g->count; i++)
        pthread_join(threads[i], NULL);
}

static inline void group_start(struct group *g, uint32_t count)
{
    group_init(g, count);
    group_open(g);
    group_connect(g);
    for (uint32_t i = 0; i < count; i++)
        if (g->status[i] < 0)
            fail_msg("rank %u: %s", i, g->err[i].text);
}

static inline void *group_close_run(void *arg)
{
    struct group_member *m = arg;
    struct group *g = m->group;
    g->status[m->rank] = mesh_close(g->mesh[m->rank], in_seconds(10), &g->err[m->rank]);
    return NULL;
}

/* Closes all ranks at once. */
static inline void group_close(struct group *g)
{
    pthread_t threads[GROUP_MAX];
    struct group_member members[GROUP_MAX];
    for (uint32_t i = 0; i < g->count; i++) {
        members[i] = (struct group_member){g, i};
        assert_int_equal(pthread_create(&threads[i], NULL, group_close_run, &members[i]), 0);
    }
    for (uint32_t i = 0; i < g->count; i++)
        pthread_join(threads[i], NULL);
}

static inline void group_end(struct group *g)
{
    for (uint32_t i = 0; i < g->count; i++)
        mesh_destroy(g->mesh[i]);
    test_cluster_fini(&g->cluster);
    scratch_remove(&g->scratch);
}

/* Counts completions and stores the last of each kind. */
struct tally {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t ok, failed;
    struct mesh_done last, last_failed;
};

static inline void tally_init(struct tally *t)
{
    memset(t, 0, sizeof(*t));
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

static inline void tally_done(const struct mesh_done *done)
{
    struct tally *t = done->arg;
    pthread_mutex_lock(&t->lock);
    *(done->ok ? &t->ok : &t->failed) += 1;
    *(done->ok ? &t->last : &t->last_failed) = *done;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

/* Waits until `count` operations have completed; false when they have not in time. */
static inline bool tally_wait(struct tally *t, uint32_t count, double seconds)
{
    uint64_t deadline = in_seconds(seconds);
    struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000u),
                             .tv_nsec = (long)(deadline % 1000000000u)};
    bool in_time = true;
    pthread_mutex_lock(&t->lock);
    while (t->ok + t->failed < count && in_time)
        in_time = pthread_cond_timedwait(&t->changed, &t->lock, &until) == 0;
    in_time = t->ok + t->failed >= count;
    pthread_mutex_unlock(&t->lock);
    return in_time;
}
