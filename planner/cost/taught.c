#include "planner/cost/taught.h"

#include <math.h>
#include <stdlib.h>

/* Standard deviations of ln(measured / forecast) while too few runs are known: of all that persists from run
 * to run, and of a run's noise. Measured over ten pairs of runs of five kinds on two CPUs
 * (bench/results/2026-11-28-kinds.txt): 0.10 and 0.07. */
#define PERSISTS 0.10
#define NOISE 0.07
/* Both count as much as this many measurements of the cluster's own runs. Rule of thumb. */
#define PRIOR_RUNS 4.0
/* The parts of what persists, by variance. In those runs the means of a kind agreed between services, which
 * measure their devices anew; falsified tables are an error of the devices alone. Rule of thumb. */
#define PART_KIND 0.5
#define PART_DEVICES 0.25
#define PART_BOTH 0.25

struct taught {
    double persists; /* variance of all that persists */
    uint32_t count;
    struct taught_run runs[TAUGHT_RUNS_MAX];
    double weights[TAUGHT_RUNS_MAX]; /* the inverse of the runs' covariances, times their log_times */
    uint64_t *devices;               /* [device_count] taught_device of each */
};

/* Returns the share of what persists that two runs have in common. */
static double common_share(const struct taught_run *a, const struct taught_run *b)
{
    const bool kind = a->placement == b->placement;
    const bool devices = a->alike && b->alike && a->devices == b->devices;
    return PART_KIND * kind + PART_DEVICES * devices + PART_BOTH * (kind && devices);
}

static int compare_runs(const void *left, const void *right)
{
    const struct taught_run *a = left, *b = right;
    if (a->age_days != b->age_days)
        return a->age_days < b->age_days ? -1 : 1;
    if (a->log_times != b->log_times)
        return a->log_times < b->log_times ? -1 : 1;
    return a->devices < b->devices ? -1 : a->devices > b->devices;
}

/* Estimates the variances of noise, and of what persists, by the runs' own: within groups of runs of one kind
 * on the same devices, and of these groups' means (analysis of variance, by moments). */
static double variances(struct taught *t)
{
    double within = PRIOR_RUNS * NOISE * NOISE, freedom = PRIOR_RUNS;
    double between = PRIOR_RUNS * PERSISTS * PERSISTS, groups = PRIOR_RUNS;
    double mean[TAUGHT_RUNS_MAX] = {0}, size[TAUGHT_RUNS_MAX] = {0};
    uint32_t group[TAUGHT_RUNS_MAX];
    for (uint32_t i = 0; i < t->count; i++) {
        group[i] = i;
        for (uint32_t k = 0; k < i && group[i] == i; k++)
            if (common_share(&t->runs[i], &t->runs[k]) >= 1)
                group[i] = group[k];
        size[group[i]]++;
        mean[group[i]] += (t->runs[i].log_times - mean[group[i]]) / size[group[i]];
    }
    for (uint32_t i = 0; i < t->count; i++) {
        const double away = t->runs[i].log_times - mean[group[i]];
        within += away * away;
        freedom += group[i] != i;
    }
    const double noise = within / freedom;
    for (uint32_t i = 0; i < t->count; i++) {
        between += size[i] > 0 ? fmax(0, mean[i] * mean[i] - noise / size[i]) : 0;
        groups += size[i] > 0;
    }
    t->persists = between / groups;
    return noise;
}

/* Solves for the weights by Cholesky's decomposition of the covariances, which noise makes positive definite.
 */
static void solve(struct taught *t, double (*l)[TAUGHT_RUNS_MAX], double noise)
{
    double *x = t->weights;
    for (uint32_t i = 0; i < t->count; i++) {
        for (uint32_t k = 0; k <= i; k++) {
            double sum = t->persists * common_share(&t->runs[i], &t->runs[k]);
            sum += i == k ? t->persists * !t->runs[i].alike * (1 - PART_KIND) +
                                noise * exp2(t->runs[i].age_days / TAUGHT_HALF_LIFE_DAYS)
                          : 0;
            for (uint32_t j = 0; j < k; j++)
                sum -= l[i][j] * l[k][j];
            l[i][k] = i == k ? sqrt(sum) : sum / l[k][k];
        }
        x[i] = t->runs[i].log_times;
        for (uint32_t k = 0; k < i; k++)
            x[i] -= l[i][k] * x[k];
        x[i] /= l[i][i];
    }
    for (uint32_t i = t->count; i-- > 0;) {
        for (uint32_t k = i + 1; k < t->count; k++)
            x[i] -= l[k][i] * x[k];
        x[i] /= l[i][i];
    }
}

int taught_init(struct problem *p, struct err *err)
{
    const struct cluster *cluster = p->cluster;
    struct taught_run *all = NULL;
    uint32_t count = 0;
    for (uint32_t d = 0; d < p->device_count; d++) /* as if those that no plan may use were not there */
        count += p->usable[d] ? cluster->devices[d].taught_count : 0;
    if (count == 0)
        return 0;
    double(*factor)[TAUGHT_RUNS_MAX] = arena_get(&p->arena, TAUGHT_RUNS_MAX, sizeof(*factor));
    struct taught *t = arena_get(&p->arena, 1, sizeof(*t));
    ARENA_ARRAY(&p->arena, all, count);
    if (!p->arena.failed)
        ARENA_ARRAY(&p->arena, t->devices, p->device_count);
    if (p->arena.failed)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    count = 0;
    for (uint32_t d = 0; d < p->device_count; d++) {
        t->devices[d] = taught_device(cluster->devices[d].name);
        for (uint32_t i = 0; p->usable[d] && i < cluster->devices[d].taught_count; i++)
            all[count++] = cluster->devices[d].taught[i];
    }
    qsort(all, count, sizeof(*all), compare_runs); /* of more than TAUGHT_RUNS_MAX the latest count */
    t->count = count < TAUGHT_RUNS_MAX ? count : TAUGHT_RUNS_MAX;
    for (uint32_t i = 0; i < t->count; i++)
        t->runs[i] = all[i];
    solve(t, factor, variances(t));
    p->taught = t;
    return 0;
}

/* Returns the predicted ln(measured / forecast) of a plan, and how many runs it comes from. */
static double predicted(const struct taught *t, const struct taught_run *plan, uint32_t *runs)
{
    double sum = 0;
    *runs = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const double share = common_share(&t->runs[i], plan);
        sum += t->persists * share * t->weights[i];
        *runs += share > 0;
    }
    return sum;
}

uint64_t taught_part(const struct problem *p, uint32_t device)
{
    return p->taught ? p->taught->devices[device] : 0;
}

double taught_factor(const struct problem *p, enum plan_placement placement, uint64_t devices, uint32_t *runs)
{
    const struct taught_run plan = {.placement = placement, .alike = true, .devices = devices};
    uint32_t found = 0;
    const double log_factor = p->taught ? predicted(p->taught, &plan, &found) : 0;
    if (runs)
        *runs = found;
    return found > 0 ? exp(log_factor) : 1;
}

double taught_least(const struct problem *p)
{
    const struct taught *t = p->taught;
    double least = 0;
    uint32_t ignored;
    for (uint32_t i = 0; t && i <= t->count; i++) {
        struct taught_run plan = {.alike = i < t->count, .devices = i < t->count ? t->runs[i].devices : 0};
        for (int kind = 0; kind < PLACE_COUNT; kind++) {
            plan.placement = (enum plan_placement)kind;
            least = fmin(least, predicted(t, &plan, &ignored));
        }
    }
    return exp(least);
}
