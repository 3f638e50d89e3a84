#include "planner/cost/noise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/profile_noise.h"
#include "planner/given/cluster.h"

static int head_compare(const void *left, const void *right)
{
    const struct profile_point *a = left, *b = right;
    return a->labelled < b->labelled ? -1 : a->labelled > b->labelled;
}

static int work_compare(const void *left, const void *right)
{
    const struct profile_point *a = left, *b = right;
    if (a->tokens != b->tokens)
        return a->tokens < b->tokens ? -1 : 1;
    return a->sum_sq < b->sum_sq ? -1 : a->sum_sq > b->sum_sq;
}

/* Returns the tokens that count as work: all tokens, but for a head only the labelled ones. */
static double noise_tokens_worked(enum profile_block kind, const struct profile_point *point)
{
    return kind == PROFILE_HEAD ? point->labelled : point->tokens;
}

double noise_fall(const struct device_profile *profile, enum profile_block kind, struct noise_fall *first,
                  struct err *err)
{
    uint32_t count = profile->point_count[kind];
    double most = 0;
    *first = (struct noise_fall){0};
    if (count < 2)
        return 0;
    struct profile_point *points = malloc(count * sizeof(*points));
    if (!points)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    memcpy(points, profile->points[kind], count * sizeof(*points));
    qsort(points, count, sizeof(*points), kind == PROFILE_HEAD ? head_compare : work_compare);
    const struct profile_point *slowest = &points[0];
    for (uint32_t i = 1; i < count; i++) {
        const struct profile_point *p = &points[i];
        bool more = noise_tokens_worked(kind, p) > noise_tokens_worked(kind, slowest) &&
                    p->tokens >= slowest->tokens && p->sum_sq >= slowest->sum_sq &&
                    p->labelled >= slowest->labelled;
        double whole = slowest->forward_s + slowest->backward_s;
        double fall = fmax(slowest->forward_s - p->forward_s, slowest->backward_s - p->backward_s);
        if (more && fall > NOISE_FALL_MOST * whole) {
            if (most == 0)
                *first = (struct noise_fall){.less = *slowest, .more = *p};
            most = fmax(most, fall / whole);
        }
        if (p->forward_s + p->backward_s > whole)
            slowest = p;
    }
    free(points);
    return most;
}

double noise_of(const struct device_profile *profile, struct err *err)
{
    static const enum profile_block kinds[] = {PROFILE_LAYER, PROFILE_HEAD};
    double noise = profile->waited_share > NOISE_WAITED_MOST ? profile->waited_share : 0;
    if (profile->spread > NOISE_SPREAD_MOST)
        noise = fmax(noise, profile->spread);
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        struct noise_fall first;
        double fall = noise_fall(profile, kinds[k], &first, err);
        if (fall < 0)
            return -1;
        noise = fmax(noise, fall);
    }
    return fmin(noise, 1);
}

double profile_noise(const json_t *document, struct err *err)
{
    const struct cluster_device device = {.name = json_string_value(json_object_get(document, "device")),
                                          .node = "node",
                                          .kind = "cpu",
                                          .memory_limit_bytes = 1};
    struct cluster *cluster = cluster_create(err);
    double noise = -1;
    if (cluster && cluster_add_device(cluster, &device, err) == 0 &&
        cluster_add_profile(cluster, document, err) == 0)
        noise = noise_of(&cluster->devices[0].profile, err);
    cluster_destroy(cluster);
    return noise;
}
