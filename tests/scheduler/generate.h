/* Draws a cluster and the jobs of its users, which tests and benchmarks run in the simulator. Equal seeds
 * draw equal worlds. */
#ifndef MOTLEY_TESTS_SCHEDULER_GENERATE_H
#define MOTLEY_TESTS_SCHEDULER_GENERATE_H

#include <math.h>
#include <stdlib.h>

#include "scheduler/simulate/simulate.h"
#include "scheduler/simulate/speeds.h"
#include "common/array.h"
#include "common/rand.h"

struct generate_request {
    uint64_t seed;
    size_t devices, users, groups, shapes;
    double days;
    /* work of all jobs, as a fraction of the work that the devices can do in `days` days */
    double load;
    double job_hours;    /* median of a job's hours on the reference card */
    double spread;       /* sigma of the lognormal distribution of the hours */
    double error;        /* sigma of the lognormal ratio of a run's seconds to the predicted ones */
    double failures;     /* failures of one device per 30 days; the median absence is an hour */
    double burst;        /* mean number of jobs that a user submits at once */
    double wide;         /* fraction of the jobs that ask for at least half of the devices */
    bool from_the_start; /* all jobs arrive at the beginning */
};

struct generated_world {
    struct policy_account *accounts; /* the root, groups of weights 1, 2, 3 …, and users of weight 1 or 2 */
    struct policy_user *users;
    struct simulated_job *jobs;
    struct simulated_change *changes;
    struct speed_device *devices; /* of three types: speed 1, 1/2 and 1/4 */
    struct speed_shape *shapes;
    double *affinity;
    size_t job_capacity, change_capacity;
    struct speed_model model;
    struct policy_planner planner;
    struct simulation
        /* borrows the arrays above; its settings are the defaults, and its policy is policy_decide */
        simulation;
};

#define SECOND_US 1000000.0
#define DAY_S 86400.0

/* The streams of random numbers, one for each kind of draw. */
enum { DRAW_SHAPES, DRAW_USERS, DRAW_JOBS, DRAW_FAILURES };

static inline double lognormal(struct rand_stream *stream, double median, double sigma)
{
    return median * exp(sigma * rand_stream_normal(stream));
}

static inline int compare_jobs(const void *a, const void *b)
{
    const struct simulated_job *x = a, *y = b;
    if (x->arrives_us != y->arrives_us)
        return x->arrives_us < y->arrives_us ? -1 : 1;
    if (x->user != y->user)
        return x->user < y->user ? -1 : 1;
    return x->steps < y->steps ? -1 : x->steps > y->steps;
}

static inline int compare_changes(const void *a, const void *b)
{
    const struct simulated_change *x = a, *y = b;
    if (x->at_us != y->at_us)
        return x->at_us < y->at_us ? -1 : 1;
    return x->device < y->device ? -1 : x->device > y->device;
}

static inline void generate_devices(const struct generate_request *request, struct generated_world *world)
{
    static const struct speed_device types[] = {{1, 80e9}, {0.5, 40e9}, {0.25, 24e9}};
    struct rand_stream stream;
    rand_stream_init(&stream, request->seed, DRAW_SHAPES);
    for (size_t d = 0; d < request->devices; d++)
        world->devices[d] = types[d % 3];
    for (size_t i = 0; i < request->shapes; i++) {
        const double kind = rand_stream_unit(&stream);
        const double gb = kind < 0.6 ? 20 : kind < 0.85 ? 40 : kind < 0.95 ? 80 : 160;
        world->shapes[i] = (struct speed_shape){.step_s = lognormal(&stream, 1, 0.5),
                                                .bytes = gb * 1e9 * (0.5 + 0.5 * rand_stream_unit(&stream)),
                                                .loss = 0.02 + 0.3 * rand_stream_unit(&stream)};
        for (size_t d = 0; d < request->devices; d++) /* all devices of a type have the same affinity */
            world->affinity[i * request->devices + d] =
                d < 3 ? 0.7 + 0.6 * rand_stream_unit(&stream) : world->affinity[i * request->devices + d % 3];
    }
}

static inline void generate_users(const struct generate_request *request, struct generated_world *world)
{
    struct rand_stream stream;
    rand_stream_init(&stream, request->seed, DRAW_USERS);
    world->accounts[0] = (struct policy_account){.parent = POLICY_NONE, .weight = 1};
    for (size_t i = 0; i < request->groups; i++)
        world->accounts[1 + i] = (struct policy_account){.parent = 0, .weight = (double)(i + 1)};
    for (size_t i = 0; i < request->users; i++)
        world->accounts[1 + request->groups + i] =
            (struct policy_account){.parent = (uint16_t)(1 + i % request->groups),
                                    .weight = 1 + (double)rand_stream_below(&stream, 2)};
}

/* Draws when a burst arrives: three of four bursts arrive in the first twelve hours of a day. */
static inline int64_t generate_arrival(const struct generate_request *request, struct rand_stream *stream)
{
    const double day = floor(rand_stream_unit(stream) * request->days);
    const double part = rand_stream_unit(stream) < 0.75 ? 0.5 * rand_stream_unit(stream)
                                                        : 0.5 + 0.5 * rand_stream_unit(stream);
    const double at_s = (day + part) * DAY_S;
    return request->from_the_start ? 0 : (int64_t)(fmin(at_s, request->days * DAY_S) * SECOND_US);
}

/* Draws bursts of jobs until their work reaches the requested load. A job's work is counted on as many
 * reference cards as its memory needs or as the job asks for, whichever is more. */
static inline int generate_jobs(const struct generate_request *request, struct generated_world *world,
                                struct err *err)
{
    struct rand_stream stream;
    double speed = 0, work = 0;
    size_t count = 0;
    for (size_t d = 0; d < request->devices; d++)
        speed += world->devices[d].speed;
    const double wanted = request->load * speed * request->days * DAY_S;
    rand_stream_init(&stream, request->seed, DRAW_JOBS);
    while (work < wanted) {
        const uint32_t shape = rand_stream_below(&stream, (uint32_t)request->shapes);
        const uint32_t user = rand_stream_below(&stream, (uint32_t)request->users);
        const double size = 1 - request->burst * log(1 - rand_stream_unit(&stream));
        const int64_t arrives_us = generate_arrival(request, &stream);
        const struct speed_shape *of = &world->shapes[shape];
        const double cards = ceil(of->bytes / 80e9);
        const double least = rand_stream_unit(&stream) < request->wide
                                 ? ceil((1 + rand_stream_unit(&stream)) * 0.5 * (double)request->devices)
                                 : 0;
        for (size_t i = 0; i < (size_t)size && work < wanted; i++) {
            double hours = lognormal(&stream, request->job_hours, request->spread);
            hours = fmin(fmax(hours, request->job_hours / 30), request->job_hours * 30);
            if (ARRAY_RESERVE(world->jobs, world->job_capacity, count + 1, err) < 0)
                return -1;
            world->jobs[count++] = (struct simulated_job){.arrives_us = arrives_us + (int64_t)i * 1000000,
                                                          .steps = (int64_t)ceil(hours * 3600 / of->step_s),
                                                          .error = lognormal(&stream, 1, request->error),
                                                          .shape = shape,
                                                          .user = (uint16_t)user,
                                                          .account = (uint16_t)(1 + request->groups + user),
                                                          .devices_least = (uint16_t)least,
                                                          .service = SERVICE_NORMAL};
            work += hours * 3600 * (1 + of->loss * (fmax(cards, least) - 1));
        }
    }
    if (count > 0)
        qsort(world->jobs, count, sizeof(*world->jobs), compare_jobs);
    world->simulation.job_count = count;
    return 0;
}

static inline int generate_failures(const struct generate_request *request, struct generated_world *world,
                                    struct err *err)
{
    struct rand_stream stream;
    size_t count = 0;
    rand_stream_init(&stream, request->seed, DRAW_FAILURES);
    for (size_t d = 0; d < request->devices && request->failures > 0; d++) {
        double at_s = 0;
        for (;;) {
            at_s += -log(1 - rand_stream_unit(&stream)) * 30 * DAY_S / request->failures;
            if (at_s >= request->days * DAY_S)
                break;
            const double back_s = at_s + lognormal(&stream, 3600, 1);
            if (ARRAY_RESERVE(world->changes, world->change_capacity, count + 2, err) < 0)
                return -1;
            world->changes[count++] =
                (struct simulated_change){(int64_t)(at_s * SECOND_US), (uint32_t)d, false};
            world->changes[count++] =
                (struct simulated_change){(int64_t)(back_s * SECOND_US), (uint32_t)d, true};
            at_s = back_s;
        }
    }
    if (count > 0)
        qsort(world->changes, count, sizeof(*world->changes), compare_changes);
    world->simulation.change_count = count;
    return 0;
}

static inline void generated_world_fini(struct generated_world *world)
{
    free(world->accounts);
    free(world->users);
    free(world->jobs);
    free(world->changes);
    free(world->devices);
    free(world->shapes);
    free(world->affinity);
    *world = (struct generated_world){0};
}

/* Fills *world, which the caller ends with generated_world_fini and does not move. Returns 0, or -1 with
 * ERR_NOMEM. */
static inline int generate_world(const struct generate_request *request, struct generated_world *world,
                                 struct err *err)
{
    const size_t accounts = 1 + request->groups + request->users;
    *world = (struct generated_world){0};
    world->accounts = calloc(accounts, sizeof(*world->accounts));
    world->users = calloc(request->users, sizeof(*world->users));
    world->devices = calloc(request->devices, sizeof(*world->devices));
    world->shapes = calloc(request->shapes, sizeof(*world->shapes));
    world->affinity = calloc(request->shapes * request->devices, sizeof(*world->affinity));
    if (!world->accounts || !world->users || !world->devices || !world->shapes || !world->affinity) {
        generated_world_fini(world);
        return err_set(err, ERR_NOMEM, "no memory for %zu users and %zu devices", request->users,
                       request->devices);
    }
    generate_devices(request, world);
    generate_users(request, world);
    if (generate_jobs(request, world, err) < 0 || generate_failures(request, world, err) < 0) {
        generated_world_fini(world);
        return -1;
    }
    world->model = (struct speed_model){request->devices, request->shapes, world->devices, world->shapes,
                                        world->affinity};
    world->planner = (struct policy_planner){speeds_best, &world->model};
    struct simulation *simulation = &world->simulation;
    simulation->account_count = accounts;
    simulation->user_count = request->users;
    simulation->device_count = request->devices;
    simulation->accounts = world->accounts;
    simulation->users = world->users;
    simulation->jobs = world->jobs;
    simulation->changes = world->changes;
    simulation->settings = &policy_defaults;
    simulation->planner = &world->planner;
    simulation->policy = policy_decide;
    simulation->ends_us = (int64_t)(request->days * DAY_S * SECOND_US);
    simulation->checkpoint_us = 600000000;
    simulation->measure_us = 60000000;
    simulation->again_us = 600000000;
    return 0;
}

#endif
