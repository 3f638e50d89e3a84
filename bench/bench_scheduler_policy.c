/* Measures one decision of the policies with warm plans: CPU time and memory by getrusage, medians over
 * seeds. Situations: everything is free; nine devices of ten are busy. Argument: seeds (20 by default). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/array.h"
#include "common/rand.h"
#include "tests/scheduler/generate.h"

/* Remembers the planner's answers, as the scheduler does. */
struct warm_answer {
    struct device_set among;
    uint32_t shape;
    uint16_t most;
    bool used;
    enum policy_fit fit;
    struct policy_plan plan;
};

enum { WARM_SLOTS = 1 << 17 };

struct warm_planner {
    struct policy_planner inner;
    struct warm_answer *answers; /* [WARM_SLOTS] */
    size_t asked, missed;
};

static enum policy_fit warm_best(void *arg, uint32_t shape, const struct device_set *among, uint16_t most,
                                 struct policy_plan *plan)
{
    struct warm_planner *warm = arg;
    uint64_t hash = (uint64_t)shape << 16 | most;
    for (size_t i = 0; i < DEVICE_SET_WORDS; i++)
        hash = (hash ^ among->words[i]) * UINT64_C(0x9e3779b97f4a7c15) + (hash >> 31);
    size_t at = (size_t)(hash >> 40) % WARM_SLOTS;
    warm->asked++;
    while (warm->answers[at].used && (warm->answers[at].shape != shape || warm->answers[at].most != most ||
                                      !device_set_equal(&warm->answers[at].among, among)))
        at = (at + 1) % WARM_SLOTS;
    struct warm_answer *answer = &warm->answers[at];
    if (!answer->used) {
        warm->missed++;
        *answer = (struct warm_answer){.among = *among, .shape = shape, .most = most, .used = true};
        answer->fit = warm->inner.best(warm->inner.arg, shape, among, most, &answer->plan);
    }
    *plan = answer->plan;
    return answer->fit;
}

static double cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static long peak_kb(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct bench_case {
    size_t jobs, devices, shapes;
    bool busy;
};

static struct policy_job *draw_jobs(const struct bench_case *of, const struct generated_world *world)
{
    struct policy_job *jobs = calloc(of->jobs, sizeof(*jobs));
    for (size_t i = 0; jobs && i < of->jobs; i++) {
        const struct simulated_job *from = &world->jobs[i % world->simulation.job_count];
        jobs[i] = (struct policy_job){.id = (int64_t)i,
                                      .eligible_us = (int64_t)i,
                                      .steps_left = from->steps,
                                      .shape = from->shape,
                                      .user = from->user,
                                      .account = from->account,
                                      .service = SERVICE_NORMAL};
    }
    return jobs;
}

static size_t draw_runs(const struct bench_case *of, const struct generated_world *world, uint64_t seed,
                        struct policy_run *runs)
{
    struct rand_stream stream;
    size_t count = 0;
    rand_stream_init(&stream, seed, 99);
    for (size_t d = 0; of->busy && d < of->devices; d++) {
        if (d % 10 == 0)
            continue;
        const struct simulated_job *job = &world->jobs[d % world->simulation.job_count];
        runs[count] = (struct policy_run){.job = -1 - (int64_t)d,
                                          .started_us = -1,
                                          .ends_us = (int64_t)(3.6e10 * rand_stream_unit(&stream)),
                                          .rate = world->devices[d].speed,
                                          .user = job->user,
                                          .account = job->account,
                                          .service = SERVICE_NORMAL};
        device_set_add(&runs[count++].devices, d);
    }
    return count;
}

/* Writes the milliseconds of a decision with remembered answers to *ms and the number of jobs that it starts
 * to *started. Returns 0 or -1. */
static int measure(const struct bench_case *of, uint64_t seed, double *ms, size_t *started, long *kb)
{
    const struct generate_request request = {.seed = seed,
                                             .devices = of->devices,
                                             .users = 200,
                                             .groups = 5,
                                             .shapes = of->shapes,
                                             .days = 30,
                                             .load = 0.2,
                                             .job_hours = 1,
                                             .spread = 1,
                                             .burst = 5};
    struct generated_world world;
    struct err err;
    if (generate_world(&request, &world, &err) < 0)
        return -1;
    struct warm_planner warm = {.inner = world.planner,
                                .answers = calloc(WARM_SLOTS, sizeof(struct warm_answer))};
    struct policy_job *jobs = draw_jobs(of, &world);
    struct policy_run *runs = calloc(of->devices, sizeof(*runs));
    int rc = warm.answers && jobs && runs ? 0 : -1;
    const struct policy_planner planner = {warm_best, &warm};
    struct policy_snapshot snapshot = {.account_count = world.simulation.account_count,
                                       .user_count = world.simulation.user_count,
                                       .job_count = of->jobs,
                                       .device_count = of->devices,
                                       .accounts = world.accounts,
                                       .users = world.users,
                                       .jobs = jobs,
                                       .runs = runs};
    for (size_t d = 0; d < of->devices; d++)
        device_set_add(&snapshot.present, d);
    if (rc == 0)
        snapshot.run_count = draw_runs(of, &world, seed, runs);
    *ms = 1e9;
    const long before_kb = peak_kb();
    for (int round = 0; round < 4 && rc == 0; round++) {
        const double begin_s = cpu_s();
        struct policy_decision decision;
        rc = policy_decide(&snapshot, &policy_defaults, &planner, 0, &decision, &err);
        const double took_ms = 1e3 * (cpu_s() - begin_s);
        *ms = round > 0 && took_ms < *ms ? took_ms : *ms;
        *started = 0;
        for (size_t i = 0; rc == 0 && i < decision.count; i++)
            *started += decision.actions[i].verdict == VERDICT_START ? 1 : 0;
        policy_decision_fini(&decision);
    }
    *kb = peak_kb() - before_kb;
    free(warm.answers);
    free(jobs);
    free(runs);
    generated_world_fini(&world);
    return rc;
}

int main(int argc, char **argv)
{
    static const struct bench_case cases[] = {
        {1000, 8, 12, false}, {1000, 8, 12, true}, {100000, 1000, 50, true}, {100000, 1000, 50, false}};
    const size_t seeds = argc > 1 ? (size_t)strtoul(argv[1], NULL, 10) : 20;
    double *times_ms = calloc(seeds + 1, sizeof(*times_ms));
    for (size_t c = 0; times_ms && c < sizeof(cases) / sizeof(cases[0]); c++) {
        size_t started = 0;
        long kb = 0, kb_max = 0;
        for (size_t seed = 0; seed < seeds; seed++) {
            if (measure(&cases[c], seed + 1, &times_ms[seed], &started, &kb) < 0)
                return 1;
            kb_max = kb > kb_max ? kb : kb_max;
        }
        qsort(times_ms, seeds, sizeof(*times_ms), compare_doubles);
        printf(
            "%6zu jobs, %4zu devices (%s), %2zu shapes: median %.2f ms, worst %.2f ms of %zu seeds; the last "
            "starts %zu; peak memory grows by %.1f MB\n",
            cases[c].jobs, cases[c].devices, cases[c].busy ? "nine of ten busy" : "all free", cases[c].shapes,
            times_ms[seeds / 2], times_ms[seeds - 1], seeds, started, (double)kb_max / 1024);
    }
    free(times_ms);
    return 0;
}
