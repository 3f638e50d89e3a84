/* Simulates months of a shared cluster: our policies beside the same without backfill and beside Slurm's
 * algorithms, on the same arrivals. Prints medians over seeds.
 *
 * The bounded slowdown of a job is the time from its arrival to its end over its seconds on the fewest of the
 * cluster's devices that hold it, which are the same for every policy, at least 10 s (Feitelson 2001); jobs
 * that have not ended count up to the end of the simulation. Arguments: seeds (20), days (30). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "tests/scheduler/generate.h"
#include "bench/slurm.h"

enum { OURS = 3, POLICIES = 5, SEEDS_MAX = 100 };

struct compared_policy {
    const char *name;
    simulated_policy *policy;
    bool backfill, reserve;
};

static const struct compared_policy policies[POLICIES] = {
    {"ours", policy_decide, true, true},
    {"ours, reserved devices idle", policy_decide, false, true},
    {"ours, nothing reserved", policy_decide, true, false},
    {"Slurm, jobs ask for what pays", slurm_decide, true, true},
    {"Slurm, jobs ask for the fewest", slurm_decide_fewest, true, true},
};

struct figures {
    double slowdown, wait_h, wait_worst_h, used, ended;
};

static double seconds_of(const struct generated_world *world, const struct simulated_job *job)
{
    struct device_set all = {0};
    struct policy_plan plan = {.step_s = 1};
    for (size_t d = 0; d < world->simulation.device_count; d++)
        device_set_add(&all, d);
    uint16_t most = job->devices_least > 1 ? job->devices_least : 1;
    while (most < world->simulation.device_count &&
           speeds_best((void *)&world->model, job->shape, &all, most, &plan) != FIT_YES)
        most++;
    return fmax(10, plan.step_s * (double)job->steps);
}

static struct figures figures_of(const struct generated_world *world, const struct simulation_result *result)
{
    const size_t count = world->simulation.job_count;
    const int64_t last_us = world->simulation.ends_us;
    struct figures f = {.used = result->held_s / result->there_s};
    for (size_t i = 0; i < count; i++) {
        const struct simulated_outcome *outcome = &result->outcomes[i];
        const int64_t ends_us = outcome->ends_us < last_us ? outcome->ends_us : last_us;
        const int64_t starts_us = outcome->starts_us < last_us ? outcome->starts_us : last_us;
        const double slowdown =
            1e-6 * (double)(ends_us - world->jobs[i].arrives_us) / seconds_of(world, &world->jobs[i]);
        const double wait_h = (double)(starts_us - world->jobs[i].arrives_us) / 3.6e9;
        f.slowdown += fmax(1, slowdown) / (double)count;
        f.wait_h += wait_h / (double)count;
        f.wait_worst_h = fmax(f.wait_worst_h, wait_h);
        f.ended += outcome->ends_us < INT64_MAX ? 1 / (double)count : 0;
    }
    return f;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare_doubles);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static int simulate(const struct generate_request *request, struct figures of[POLICIES], struct err *err)
{
    struct generated_world world;
    int rc = generate_world(request, &world, err);
    /* Slurm knows no job that asks for devices of several types. */
    const size_t count = request->wide > 0 ? OURS : POLICIES;
    for (size_t p = 0; p < count && rc == 0; p++) {
        struct policy_settings settings = policy_defaults;
        struct simulation_result result;
        settings.backfill = policies[p].backfill;
        settings.reserve = policies[p].reserve;
        settings.move_s = 1e300; /* runs of the simulator do not move */
        world.simulation.policy = policies[p].policy;
        world.simulation.settings = &settings;
        rc = simulation_run(&world.simulation, &result, err);
        if (rc == 0) {
            of[p] = figures_of(&world, &result);
            simulation_result_fini(&result);
        }
    }
    generated_world_fini(&world);
    return rc;
}

static int compare(size_t devices, double load, double wide, size_t seeds, double days)
{
    static double values[POLICIES][6][SEEDS_MAX], ratio[2][SEEDS_MAX], gain[SEEDS_MAX];
    const size_t count = wide > 0 ? OURS : POLICIES;
    for (size_t seed = 0; seed < seeds; seed++) {
        const struct generate_request request = {.seed = seed + 1,
                                                 .devices = devices,
                                                 .users = 200,
                                                 .groups = 5,
                                                 .shapes = 50,
                                                 .days = days,
                                                 .load = load,
                                                 .job_hours = 1,
                                                 .spread = 1,
                                                 .error = 0.1,
                                                 .failures = 1,
                                                 .burst = 5,
                                                 .wide = wide};
        struct figures of[POLICIES] = {{0}};
        struct err err;
        if (simulate(&request, of, &err) < 0) {
            fprintf(stderr, "%s\n", err.text);
            return -1;
        }
        for (size_t p = 0; p < count; p++) {
            values[p][0][seed] = of[p].slowdown;
            values[p][1][seed] = of[p].wait_h;
            values[p][2][seed] = of[p].wait_worst_h;
            values[p][3][seed] = of[p].used;
            values[p][4][seed] = of[p].ended;
        }
        ratio[0][seed] = of[0].slowdown / of[3].slowdown;
        ratio[1][seed] = of[0].slowdown / of[4].slowdown;
        gain[seed] = of[0].used / of[1].used - 1;
    }
    printf("\n%zu devices, offered load %.1f, %.0f %% of the jobs ask for half of the devices or more, %.0f "
           "days, "
           "seeds 1 to %zu\n",
           devices, load, 100 * wide, days, seeds);
    for (size_t p = 0; p < count; p++)
        printf("  %-30s slowdown %7.2f  mean wait %6.2f h  longest %6.1f h  held %4.1f %%  ended %5.1f %%\n",
               policies[p].name, median(values[p][0], seeds), median(values[p][1], seeds),
               median(values[p][2], seeds), 100 * median(values[p][3], seeds),
               100 * median(values[p][4], seeds));
    if (count > OURS)
        printf("  ratio of mean bounded slowdowns to Slurm: %.2f (what pays), %.2f (the fewest)\n",
               median(ratio[0], seeds), median(ratio[1], seeds));
    printf("  use gained by backfill: %.1f %%\n", 100 * median(gain, seeds));
    fflush(stdout);
    return 0;
}

/* 100,000 jobs of 200 users on 64 devices. */
static int many(void)
{
    const struct generate_request request = {.seed = 1,
                                             .devices = 64,
                                             .users = 200,
                                             .groups = 5,
                                             .shapes = 50,
                                             .days = 30,
                                             .load = 0.9,
                                             .job_hours = 0.115,
                                             .spread = 1,
                                             .error = 0.1,
                                             .failures = 1,
                                             .burst = 5};
    struct generated_world world;
    struct simulation_result result;
    struct rusage usage;
    struct err err;
    if (generate_world(&request, &world, &err) < 0)
        return -1;
    getrusage(RUSAGE_SELF, &usage);
    const double before_s = (double)usage.ru_utime.tv_sec + 1e-6 * (double)usage.ru_utime.tv_usec;
    const int rc = simulation_run(&world.simulation, &result, &err);
    getrusage(RUSAGE_SELF, &usage);
    const double after_s = (double)usage.ru_utime.tv_sec + 1e-6 * (double)usage.ru_utime.tv_usec;
    if (rc == 0) {
        printf("\n%zu jobs of 30 days on 64 devices: %.1f s of CPU, %llu decisions, queue of at most %zu\n",
               world.simulation.job_count, after_s - before_s, (unsigned long long)result.decisions,
               result.queue_max);
        simulation_result_fini(&result);
    }
    generated_world_fini(&world);
    return rc;
}

int main(int argc, char **argv)
{
    static const double loads[] = {0.6, 0.9, 1.1};
    size_t seeds = argc > 1 ? (size_t)strtoul(argv[1], NULL, 10) : 20;
    const double days = argc > 2 ? strtod(argv[2], NULL) : 30;
    seeds = seeds < 1 ? 1 : seeds > SEEDS_MAX ? SEEDS_MAX : seeds;
    for (size_t i = 0; i < 3; i++)
        if (compare(8, loads[i], 0, seeds, days) < 0)
            return 1;
    if (compare(8, 0.9, 0.1, seeds, days) < 0 || compare(8, 1.1, 0.1, seeds, days) < 0 ||
        compare(64, 0.9, 0, seeds > 3 ? 3 : seeds, days) < 0)
        return 1;
    return many() < 0 ? 1 : 0;
}
