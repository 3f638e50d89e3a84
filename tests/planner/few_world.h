/* Few devices of unlike speed, two a machine, and rows of unlike length: for tests of what is searched among
 * them. */
#ifndef MOTLEY_TESTS_PLANNER_FEW_WORLD_H
#define MOTLEY_TESTS_PLANNER_FEW_WORLD_H

#include "planner/plan_fixture.h"

#include <math.h>

#include "planner/cost/problem.h"

#define MIB ((uint64_t)1 << 20)

struct few_world {
    struct model_config config;
    struct workload workload;
    struct cluster *cluster;
    struct problem problem;
};

/* The caller has filled config and workload; each device gets `least` bytes and up to `more` beside them.
 * few_world_fini. */
static inline void few_world_init(struct few_world *w, struct rand_stream *r, uint32_t devices, double least,
                                  double more)
{
    struct err err = {0};
    w->workload.sample_tokens = w->workload.prompt_tokens = 0;
    for (uint32_t i = 0; i < w->workload.row_count; i++) {
        w->workload.rows[i].tokens = 20 + rand_stream_below(r, 60);
        w->workload.rows[i].labelled = 10;
    }
    w->cluster = cluster_create(&err);
    for (uint32_t d = 0; d < devices; d++) {
        char name[40], node[16];
        snprintf(node, sizeof(node), "n%u", d / 2);
        snprintf(name, sizeof(name), "n%u/%u", d / 2, d);
        fixture_device(w->cluster, name, node, (uint64_t)(least + more * rand_stream_unit(r)),
                       0.3 + 1.5 * rand_stream_unit(r));
    }
    double between = 2e7 * pow(10, 2 * rand_stream_unit(r));
    assert_int_equal(cluster_set_defaults(w->cluster, 2e-5, 1e10, 1e-4, between, &err), 0);
    if (problem_init(&w->problem, &w->workload, w->cluster, &err) < 0)
        fail_msg("%s", err.text);
}

static inline void few_world_fini(struct few_world *w)
{
    problem_fini(&w->problem);
    cluster_destroy(w->cluster);
    workload_fini(&w->workload);
}

#endif
