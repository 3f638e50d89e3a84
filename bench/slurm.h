/* Slurm's published algorithms as a policy of the simulator, to compare Motley's policy with: multifactor
 * priority, and EASY backfill with one reservation on the first type of device that fits.
 *
 * Priority is the sum of 10000 times the Fair Tree factor, 1000 times the age over seven days, and 1000 times
 * the fraction of all devices that a job asks for (the weights of the example in Slurm's "Multifactor
 * Priority Plugin"). A job asks for devices of one type: as many as the planner's widest plan on that type
 * whose throughput per charged device-second reaches settings->width_least, or the fewest that hold the job.
 * Types are tried in the order of their speeds, the fastest first. Time limits are Motley's predictions. The
 * planner is speeds_best.
 */
#ifndef MOTLEY_BENCH_SLURM_H
#define MOTLEY_BENCH_SLURM_H

#include <stdlib.h>

#include "scheduler/policy/policy.h"
#include "scheduler/simulate/speeds.h"

enum { TYPES_MAX = 16 };

struct slurm_type {
    struct speed_device like;
    struct device_set devices;
};

/* Number of devices of each type that the jobs of a shape ask for; 0: the shape does not fit on that type. */
struct slurm_request {
    bool found;
    uint16_t devices[TYPES_MAX];
};

struct slurm_rank {
    double priority;
    int64_t id;
    size_t job;
};

struct slurm {
    const struct policy_snapshot *snapshot;
    const struct policy_settings *settings;
    const struct policy_planner *planner;
    const struct speed_model *model;
    int64_t now_us;
    bool fewest;
    struct slurm_type types[TYPES_MAX];
    size_t type_count;
    struct slurm_request *requests; /* [shape] */
    struct slurm_rank *ranks;
    struct device_set free, reserved;
    int64_t free_us[POLICY_DEVICES_MAX];
    int64_t shadow_us; /* start of the job with the reservation; INT64_MAX: there is no reservation */
};

/* Groups the devices into types and sorts the types by speed, the fastest first. */
static inline void find_types(struct slurm *s)
{
    for (size_t d = 0; d < s->snapshot->device_count; d++) {
        const struct speed_device *device = &s->model->devices[d];
        size_t at = 0;
        while (at < s->type_count &&
               (s->types[at].like.speed != device->speed || s->types[at].like.bytes != device->bytes))
            at++;
        if (at == s->type_count && s->type_count < TYPES_MAX) {
            s->type_count++;
            while (at > 0 && s->types[at - 1].like.speed < device->speed) {
                s->types[at] = s->types[at - 1];
                at--;
            }
            s->types[at] = (struct slurm_type){.like = *device};
        }
        device_set_add(&s->types[at < TYPES_MAX ? at : TYPES_MAX - 1].devices, d);
    }
}

static inline uint16_t devices_asked(const struct slurm *s, uint32_t shape, const struct slurm_type *type)
{
    uint16_t asked = 0;
    double best = 0;
    const size_t count = device_set_count(&type->devices);
    for (uint16_t most = 1; most <= count; most = (uint16_t)(s->fewest ? most + 1 : most * 2)) {
        struct policy_plan plan;
        if (s->planner->best(s->planner->arg, shape, &type->devices, most, &plan) != FIT_YES)
            continue;
        const double worth = 1 / (plan.step_s * plan.rate);
        best = worth > best ? worth : best;
        if (worth >= s->settings->width_least * best)
            asked = (uint16_t)device_set_count(&plan.devices);
        if (s->fewest && asked > 0)
            break;
    }
    return asked;
}

static inline const struct slurm_request *request_of(struct slurm *s, uint32_t shape)
{
    struct slurm_request *request = &s->requests[shape];
    for (size_t type = 0; type < s->type_count && !request->found; type++)
        request->devices[type] = devices_asked(s, shape, &s->types[type]);
    request->found = true;
    return request;
}

static inline int compare_ranks(const void *a, const void *b)
{
    const struct slurm_rank *x = a, *y = b;
    if (x->priority != y->priority)
        return x->priority > y->priority ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static inline int rank_jobs(struct slurm *s, struct err *err)
{
    const struct policy_snapshot *snapshot = s->snapshot;
    uint32_t *rank = calloc(snapshot->account_count + 1, sizeof(*rank));
    const int rc = rank ? policy_rank(snapshot->accounts, snapshot->account_count, rank, err)
                        : err_set(err, ERR_NOMEM, "no memory for the order");
    uint32_t leaves = 0;
    for (size_t i = 0; rc == 0 && i < snapshot->account_count; i++)
        leaves += rank[i] != UINT32_MAX ? 1 : 0;
    for (size_t i = 0; rc == 0 && i < snapshot->job_count; i++) {
        const struct policy_job *job = &snapshot->jobs[i];
        const struct slurm_request *request = request_of(s, job->shape);
        const double days = 1e-6 * (double)(s->now_us - job->eligible_us) / 86400;
        double asked = 0;
        for (size_t type = s->type_count; type-- > 0;)
            asked = request->devices[type] > 0 ? request->devices[type] : asked;
        s->ranks[i] = (struct slurm_rank){
            .priority = 10000 * (1 - (double)rank[job->account] / (double)leaves) +
                        1000 * (days < 7 ? days / 7 : 1) + 1000 * asked / (double)snapshot->device_count,
            .id = job->id,
            .job = i,
        };
    }
    if (rc == 0)
        qsort(s->ranks, snapshot->job_count, sizeof(*s->ranks), compare_ranks);
    free(rank);
    return rc;
}

/* Makes the plan of a shape on the first `count` devices of `from`, and then of `other` if `from` has
 * fewer. */
static inline bool plan_on(const struct slurm *s, uint32_t shape, size_t count, const struct device_set *from,
                           const struct device_set *other, struct policy_plan *plan)
{
    struct device_set set = {0};
    for (size_t d = device_set_next(from, 0); d < POLICY_DEVICES_MAX && count > 0;
         d = device_set_next(from, d + 1), count--)
        device_set_add(&set, d);
    for (size_t d = other ? device_set_next(other, 0) : POLICY_DEVICES_MAX;
         d < POLICY_DEVICES_MAX && count > 0; d = device_set_next(other, d + 1), count--)
        device_set_add(&set, d);
    return count == 0 && s->planner->best(s->planner->arg, shape, &set, 0, plan) == FIT_YES;
}

static inline int64_t end_of(int64_t start_us, const struct policy_job *job, const struct policy_plan *plan)
{
    return start_us + (int64_t)(1e6 * plan->step_s * (double)job->steps_left);
}

/* Whether the job can start now: on devices that are not reserved, or on reserved ones if it ends before the
 * reservation. */
static inline bool fits_now(struct slurm *s, const struct policy_job *job, struct policy_plan *plan)
{
    const struct slurm_request *request = request_of(s, job->shape);
    for (size_t type = 0; type < s->type_count; type++) {
        struct device_set open = s->free, kept = s->free, none = {0};
        for (size_t w = 0; w < DEVICE_SET_WORDS; w++) {
            open.words[w] &= s->types[type].devices.words[w] & ~s->reserved.words[w];
            kept.words[w] &= s->types[type].devices.words[w] & s->reserved.words[w];
        }
        if (request->devices[type] == 0)
            continue;
        if (plan_on(s, job->shape, request->devices[type], &open, &none, plan))
            return true;
        if (s->shadow_us != INT64_MAX && plan_on(s, job->shape, request->devices[type], &open, &kept, plan) &&
            end_of(s->now_us, job, plan) <= s->shadow_us)
            return true;
    }
    return false;
}

/* Makes the one reservation: the devices of the type on which the job can start first. */
static inline void reserve(struct slurm *s, const struct policy_job *job)
{
    const struct slurm_request *request = request_of(s, job->shape);
    for (size_t type = 0; type < s->type_count; type++) {
        struct device_set chosen = {0};
        int64_t start_us = s->now_us;
        size_t count = 0;
        for (; count < request->devices[type]; count++) {
            size_t first = POLICY_DEVICES_MAX;
            for (size_t d = device_set_next(&s->types[type].devices, 0); d < POLICY_DEVICES_MAX;
                 d = device_set_next(&s->types[type].devices, d + 1))
                if (!device_set_has(&chosen, d) && device_set_has(&s->snapshot->present, d) &&
                    (first == POLICY_DEVICES_MAX || s->free_us[d] < s->free_us[first]))
                    first = d;
            if (first == POLICY_DEVICES_MAX)
                break;
            device_set_add(&chosen, first);
            start_us = s->free_us[first] > start_us ? s->free_us[first] : start_us;
        }
        if (count > 0 && count == request->devices[type] && start_us < s->shadow_us) {
            s->shadow_us = start_us;
            s->reserved = chosen;
        }
    }
}

static inline void find_free(struct slurm *s)
{
    s->free = s->snapshot->present;
    for (size_t d = 0; d < s->snapshot->device_count; d++)
        s->free_us[d] = s->now_us;
    for (size_t i = 0; i < s->snapshot->run_count; i++) {
        const struct policy_run *run = &s->snapshot->runs[i];
        device_set_subtract(&s->free, &run->devices);
        for (size_t d = device_set_next(&run->devices, 0); d < POLICY_DEVICES_MAX;
             d = device_set_next(&run->devices, d + 1))
            s->free_us[d] = run->ends_us > s->now_us ? run->ends_us : s->now_us;
    }
}

static inline void walk(struct slurm *s, struct policy_decision *decision)
{
    for (size_t i = 0; i < s->snapshot->job_count; i++) {
        const struct policy_job *job = &s->snapshot->jobs[s->ranks[i].job];
        struct policy_action *action = &decision->actions[i];
        struct policy_plan *plan = &decision->plans[decision->plan_count];
        *action = (struct policy_action){.job = s->ranks[i].job,
                                         .place = (uint32_t)i + 1,
                                         .verdict = VERDICT_WAIT,
                                         .reason = REASON_DEVICES,
                                         .subject = -1,
                                         .starts_us = INT64_MAX};
        if (device_set_is_empty(&s->free))
            continue;
        if (fits_now(s, job, plan)) {
            action->verdict = VERDICT_START;
            action->reason = s->shadow_us == INT64_MAX ? REASON_FITS : REASON_BACKFILL;
            action->starts_us = s->now_us;
            action->plan = plan;
            decision->plan_count++;
            device_set_subtract(&s->free, &plan->devices);
            for (size_t d = device_set_next(&plan->devices, 0); d < POLICY_DEVICES_MAX;
                 d = device_set_next(&plan->devices, d + 1))
                s->free_us[d] = end_of(s->now_us, job, plan);
        } else if (s->shadow_us == INT64_MAX) {
            reserve(s, job);
        }
    }
}

static inline int slurm_run(struct slurm *s, struct policy_decision *decision, struct err *err)
{
    const size_t jobs = s->snapshot->job_count;
    *decision = (struct policy_decision){.count = jobs};
    s->model = s->planner->arg;
    s->shadow_us = INT64_MAX;
    s->requests = calloc(s->model->shape_count + 1, sizeof(*s->requests));
    s->ranks = calloc(jobs + 1, sizeof(*s->ranks));
    decision->actions = calloc(jobs + 1, sizeof(*decision->actions));
    decision->plans = calloc(s->snapshot->device_count + 1, sizeof(*decision->plans));
    int rc = s->requests && s->ranks && decision->actions && decision->plans
                 ? 0
                 : err_set(err, ERR_NOMEM, "no memory for a decision");
    if (rc == 0) {
        find_types(s);
        rc = rank_jobs(s, err);
    }
    if (rc == 0) {
        find_free(s);
        walk(s, decision);
    } else {
        policy_decision_fini(decision);
    }
    free(s->requests);
    free(s->ranks);
    return rc;
}

/* Decides as Slurm's backfill scheduler would, with the arguments of policy_decide. Each job asks for as many
 * devices as settings->width_least allows. */
static inline int slurm_decide(const struct policy_snapshot *snapshot, const struct policy_settings *settings,
                               const struct policy_planner *planner, int64_t now_us,
                               struct policy_decision *decision, struct err *err)
{
    struct slurm s = {.snapshot = snapshot, .settings = settings, .planner = planner, .now_us = now_us};
    return slurm_run(&s, decision, err);
}

/* Does the same as slurm_decide for jobs that ask for the fewest devices that hold them. */
static inline int slurm_decide_fewest(const struct policy_snapshot *snapshot,
                                      const struct policy_settings *settings,
                                      const struct policy_planner *planner, int64_t now_us,
                                      struct policy_decision *decision, struct err *err)
{
    struct slurm s = {
        .snapshot = snapshot, .settings = settings, .planner = planner, .now_us = now_us, .fewest = true};
    return slurm_run(&s, decision, err);
}

#endif
