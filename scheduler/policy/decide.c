/* Makes one decision: each job, in the order of the queue, starts on free devices or waits with a reason. */
#include <stdlib.h>

#include "scheduler/policy/policy_private.h"

struct decision {
    const struct policy_snapshot *snapshot;
    const struct policy_settings *settings;
    struct limits_state limits;
    struct width_answers answers;
    struct reserve_state reserve;
    struct preempt_state preempt;
    uint32_t all_set, there_set;
    size_t there_count; /* devices in there_set */
    /* number of dated reservations so far, for jobs that wait for present devices, and for absent ones */
    uint32_t claims, absent_claims;
    size_t waiting; /* jobs that have not started */
    struct err *err;
};

/* A job while the decision considers it. */
struct considered {
    const struct policy_job *job;
    struct device_set among; /* devices that are present and fit, and that the job may claim */
    struct width_question question;
    struct policy_action *action;
    /* index of the job's plan; action->plan is set at the end, since the array of plans may still be
     * reallocated */
    uint32_t plan;
};

#define NO_PLAN UINT32_MAX
/* Jobs lie in memory in another order than that of the queue: the processor fetches them so many ahead. */
enum { JOBS_AHEAD = 16 };

static int wait_for(struct considered *c, enum policy_reason reason, int64_t subject)
{
    c->action->verdict = VERDICT_WAIT;
    c->action->reason = reason;
    c->action->subject = subject;
    return 0;
}

/* Looks for a plan on free devices with which the job ends before those devices are reserved for other jobs.
 * Returns an enum policy_fit with *start, or -1. *reserved is a device whose reservation begins too early for
 * the job, or POLICY_DEVICES_MAX. */
static int find_now(struct decision *x, struct considered *c, struct reserve_start *start, size_t *reserved)
{
    *reserved = POLICY_DEVICES_MAX;
    if (reserve_windows(&x->reserve, &x->answers, x->err) < 0)
        return -1;
    for (size_t window = 0; window < x->reserve.window_count;) {
        c->question.set = x->reserve.windows[window].set;
        const int fit = width_choose(&x->answers, &c->question, &start->plan, x->err);
        if (fit != FIT_YES)
            return fit;
        const struct policy_plan *plan = &x->answers.plans[start->plan];
        start->starts_us = x->reserve.now_us;
        start->ends_us = reserve_end(start->starts_us, c->job, plan);
        const size_t kept = reserve_kept_before(&x->reserve, plan, start);
        if (kept == POLICY_DEVICES_MAX)
            return FIT_YES;
        if (*reserved == POLICY_DEVICES_MAX)
            *reserved = kept;
        const int64_t needed_us =
            x->reserve.leaving ? reserve_reach(&x->reserve, plan, start->starts_us) : start->ends_us;
        for (window++; window < x->reserve.window_count; window++)
            if (x->reserve.windows[window].until_us >= needed_us)
                break;
    }
    return FIT_NO;
}

/* Does the same as find_now, on the devices of `only` alone. */
static int find_now_within(struct decision *x, struct considered *c, const struct device_set *only,
                           struct reserve_start *start, size_t *reserved)
{
    const struct device_set free_devices = x->reserve.free;
    device_set_intersect(&x->reserve.free, only);
    if (device_set_equal(&free_devices, &x->reserve.free))
        return find_now(x, c, start, reserved);
    x->reserve.changed = true;
    const int fit = find_now(x, c, start, reserved);
    x->reserve.free = free_devices;
    x->reserve.changed = true;
    return fit;
}

static void start_job(struct decision *x, struct considered *c, const struct reserve_start *start,
                      bool backfilled)
{
    const struct policy_plan *plan = &x->answers.plans[start->plan];
    const double seconds = plan->rate * 1e-6 * (double)(start->ends_us - start->starts_us);
    c->action->verdict = VERDICT_START;
    c->action->reason = backfilled ? REASON_BACKFILL : REASON_FITS;
    c->action->subject = -1;
    c->action->starts_us = start->starts_us;
    c->plan = start->plan;
    x->waiting--;
    preempt_started(&x->preempt, c->job);
    reserve_take(&x->reserve, plan, c->job->id, start->ends_us);
    limits_take(&x->limits, x->snapshot, c->job, device_set_count(&plan->devices), seconds);
}

static void decide_keep(struct decision *x, const struct policy_job *job, const struct reserve_start *start)
{
    struct reserve_start kept = *start;
    if (!x->settings->backfill)
        kept.starts_us = x->reserve.now_us;
    if (x->settings->reserve)
        reserve_keep(&x->reserve, &x->answers.plans[start->plan], job->id, &kept);
}

/* Says for whom a job waits that would start on the plan later: who leaves one of the plan's devices last. */
static void name_last(struct decision *x, struct considered *c, const struct reserve_start *start,
                      enum policy_reason reason)
{
    const struct policy_plan *plan = &x->answers.plans[start->plan];
    const size_t last = reserve_last(&x->reserve, &plan->devices);
    const struct reserve_kept *before = reserve_before(&x->reserve, plan, start->starts_us);
    /* If all devices are free before the job's start, a reservation or a booking delays the job. */
    const size_t booked = x->reserve.free_us[last] < start->starts_us
                              ? reserve_kept_before(&x->reserve, plan, start)
                              : POLICY_DEVICES_MAX;
    const struct device_claim *device = &x->reserve.devices[booked < POLICY_DEVICES_MAX ? booked : last];
    if (before && before->ends_us > x->reserve.free_us[last])
        wait_for(c, reason == REASON_DEVICES ? REASON_RESERVED : reason, before->job);
    else if (device->held_by == HOLDER_NONE && device->kept_by == HOLDER_JOB)
        wait_for(c, reason, device->reserved_for);
    else if (device->held_by == HOLDER_INTERVAL && reason == REASON_DEVICES)
        wait_for(c, REASON_INTERVAL, device->holder);
    else if (device->kept_by == HOLDER_INTERVAL && (device->held_by == HOLDER_NONE || booked == last))
        wait_for(c, REASON_INTERVAL, device->reserved_for);
    else
        wait_for(c, reason, device->holder);
}

/* Reserves *start for the job, which waits for the devices of its plan. */
static void keep_start(struct decision *x, struct considered *c, const struct reserve_start *start,
                       enum policy_reason reason)
{
    name_last(x, c, start, reason);
    if (reserve_is_dated(&x->reserve, &x->answers.plans[start->plan], start->starts_us))
        c->action->starts_us = start->starts_us;
    c->plan = start->plan;
    decide_keep(x, c->job, start);
}

/* Handles a job whose plan is being searched for. Jobs behind it may start meanwhile, but not on the devices
 * to which it moves: the move would become a wait. */
static int wait_for_plan(struct decision *x, struct considered *c)
{
    struct policy_plan held = {0};
    if (c->job->moves_to) {
        held.devices = *c->job->moves_to;
        device_set_intersect(&held.devices, &x->reserve.free);
        reserve_take(&x->reserve, &held, c->job->id, x->reserve.now_us + POLICY_MOVE_PLAN_US);
    }
    return wait_for(c, REASON_PLANNING, -1);
}

/* Handles a job that fits only on absent or unfit devices, or on none. */
static int wait_for_absent(struct decision *x, struct considered *c)
{
    uint32_t plan;
    c->question.set = x->all_set;
    const int fit = width_choose(&x->answers, &c->question, &plan, x->err);
    if (fit != FIT_YES)
        return fit < 0 ? -1 : wait_for(c, fit == FIT_NO ? REASON_NOFIT : REASON_PLANNING, -1);
    struct device_set missing = x->answers.plans[plan].devices;
    device_set_subtract(&missing, &x->reserve.there);
    wait_for(c, REASON_ABSENT, (int64_t)device_set_next(&missing, 0));
    if (x->absent_claims < POLICY_RESERVATIONS_MAX && x->settings->reserve) {
        struct reserve_start start = {.ends_us = INT64_MAX};
        const int found =
            reserve_find(&x->reserve, &x->answers, c->job, c->question, &x->reserve.all, &start, x->err);
        if (found < 0)
            return -1;
        if (found == FIT_YES) {
            x->absent_claims++;
            c->plan = start.plan;
            decide_keep(x, c->job, &start);
        }
    }
    return 0;
}

/* Asks runs to yield to a job that would otherwise end at ends_us. Returns 1 when some yield, 0 when none
 * does, or -1. */
static int take_over(struct decision *x, struct considered *c, int64_t ends_us)
{
    struct reserve_start start;
    const struct preempt_job of = {.index = (size_t)(c->job - x->snapshot->jobs),
                                   .question = c->question,
                                   .among = &c->among,
                                   .ends_us = ends_us};
    const size_t before = x->preempt.count;
    const int fit = preempt_find(&x->preempt, &x->reserve, &x->answers, &of, &start, x->err);
    if (fit != FIT_YES)
        return fit < 0 ? -1 : 0;
    const struct policy_preemption *last = &x->preempt.list[before];
    for (size_t i = before; i < x->preempt.count; i++)
        if (x->snapshot->runs[x->preempt.list[i].run].save_s > x->snapshot->runs[last->run].save_s)
            last = &x->preempt.list[i];
    wait_for(c, REASON_YIELDS, x->snapshot->runs[last->run].job);
    c->action->number = last->rule;
    c->action->starts_us = start.starts_us;
    c->plan = start.plan;
    x->claims++;
    decide_keep(x, c->job, &start);
    return 1;
}

/* Whether the job waits only because fewer devices are free than placement.count.least asks for. */
static int is_too_narrow(struct decision *x, struct considered *c)
{
    struct width_question question = c->question;
    uint32_t plan;
    if (question.least <= 1)
        return 0;
    const int64_t number = width_set(&x->answers, &x->reserve.free, x->err);
    if (number < 0)
        return -1;
    question.least = 1;
    question.set = (uint32_t)number;
    const int fit = width_choose(&x->answers, &question, &plan, x->err);
    return fit < 0 ? -1 : fit == FIT_YES;
}

/* Gives the job a dated reservation, or has runs yield to the job. Returns 1 when that settles the job, 0
 * when no start is found, or -1. */
static int claim(struct decision *x, struct considered *c)
{
    struct reserve_start start = {.ends_us = INT64_MAX};
    const int found = reserve_find(&x->reserve, &x->answers, c->job, c->question, &c->among, &start, x->err);
    if (found < 0)
        return -1;
    if (found == FIT_PENDING) {
        wait_for_plan(x, c);
        return 1;
    }
    const int yields = take_over(x, c, start.ends_us);
    if (yields != 0 || found != FIT_YES)
        return yields;
    const int narrow = is_too_narrow(x, c);
    if (narrow < 0)
        return -1;
    x->claims++;
    keep_start(x, c, &start, REASON_DEVICES);
    if (narrow && c->action->reason == REASON_DEVICES) {
        c->action->reason = REASON_WIDTH;
        c->action->number = c->question.least;
    }
    return 1;
}

/* Handles a job that cannot start now: reserves a later start, if the decision may still make a
 * reservation. */
static int wait_for_release(struct decision *x, struct considered *c, size_t reserved)
{
    uint32_t plan;
    c->question.set = x->there_set;
    const int fit = width_choose(&x->answers, &c->question, &plan, x->err);
    if (fit < 0)
        return -1;
    if (fit == FIT_PENDING)
        return wait_for_plan(x, c);
    if (fit == FIT_NO)
        return wait_for_absent(x, c);
    const int claimed = x->claims < POLICY_RESERVATIONS_MAX ? claim(x, c) : 0;
    if (claimed != 0)
        return claimed < 0 ? -1 : 0;
    if (reserved < POLICY_DEVICES_MAX) {
        const struct device_claim *device = &x->reserve.devices[reserved];
        return wait_for(c, device->kept_by == HOLDER_INTERVAL ? REASON_INTERVAL : REASON_RESERVED,
                        device->reserved_for);
    }
    /* It waits for the last holder of the devices that it may claim, if it fits on these alone, else of all
     * devices that are there. */
    const int64_t among = width_set(&x->answers, &c->among, x->err);
    uint32_t own;
    if (among < 0)
        return -1;
    c->question.set = (uint32_t)among;
    const int claimable = width_choose(&x->answers, &c->question, &own, x->err);
    if (claimable < 0)
        return -1;
    if (claimable == FIT_YES)
        plan = own;
    const struct device_claim *last =
        &x->reserve.devices[reserve_last(&x->reserve, &x->answers.plans[plan].devices)];
    return wait_for(c, last->held_by == HOLDER_INTERVAL ? REASON_INTERVAL : REASON_DEVICES, last->holder);
}

/* Whether the job should wait for better devices, because it would end earlier on them than on free ones. A
 * job that no other job competes with may instead start now and move later. */
static int weigh_waiting(struct decision *x, struct considered *c, const struct reserve_start *now,
                         struct reserve_start *later)
{
    if (!x->settings->wait || x->claims >= POLICY_RESERVATIONS_MAX)
        return 0;
    later->ends_us = now->ends_us; /* a later start counts only if it ends before a start now does */
    const int found = reserve_find(&x->reserve, &x->answers, c->job, c->question, &c->among, later, x->err);
    if (found < 0)
        return -1;
    if (found != FIT_YES || later->starts_us <= now->starts_us || later->ends_us >= now->ends_us)
        return 0;
    if (x->waiting > 1)
        return 1;
    /* A job that no other job competes with starts now and moves when the better devices are free, if its
     * steps until then save more time than the move costs. With competition it could not move, as runs move
     * only to devices that no job waits for. */
    const double until_s = 1e-6 * (double)(later->starts_us - now->starts_us);
    const double done = until_s / x->answers.plans[now->plan].step_s;
    return done * x->answers.plans[later->plan].step_s > x->settings->move_s ? 0 : 1;
}

/* Returns the largest power of two that is at most the number of devices per waiting or running job; 0 when
 * there is only one job. */
static uint16_t fair_part(const struct decision *x)
{
    uint16_t part = 1;
    if (x->waiting + x->snapshot->run_count <= 1)
        return 0;
    while ((size_t)part * 2 <= x->there_count / (x->waiting + x->snapshot->run_count))
        part = (uint16_t)(part * 2);
    return part;
}

/* Finds the devices that the job may claim. It leaves out devices whose owners have waiting jobs, and devices
 * that the job avoids if it fits on others. */
static int find_among(struct decision *x, struct considered *c)
{
    c->among = x->reserve.there;
    preempt_leave(&x->preempt, c->job, &c->among);
    if (!c->job->avoid)
        return 0;
    struct device_set others = c->among;
    device_set_subtract(&others, c->job->avoid);
    const int64_t number = width_set(&x->answers, &others, x->err);
    if (number < 0)
        return -1;
    struct width_question question = c->question;
    uint32_t plan;
    question.set = (uint32_t)number;
    const int fit = width_choose(&x->answers, &question, &plan, x->err);
    if (fit == FIT_YES)
        c->among = others;
    return fit;
}

/* Finds a start now for a job that no reservation holds up. The devices may include those whose owners have
 * waiting jobs, since these jobs were considered before. */
static int find_start(struct decision *x, struct considered *c, struct reserve_start *start, size_t *reserved)
{
    const int fit = find_among(x, c);
    if (!c->job->avoid || fit < 0)
        return fit < 0 ? -1 : find_now(x, c, start, reserved);
    if (fit == FIT_PENDING)
        return fit;
    struct device_set only = x->reserve.there;
    if (fit == FIT_YES)
        device_set_subtract(&only, c->job->avoid);
    return find_now_within(x, c, &only, start, reserved);
}

static int consider(struct decision *x, struct considered *c)
{
    struct reserve_start start, later;
    size_t reserved;
    uint16_t most;
    if (!limits_allow(&x->limits, x->snapshot, c->job, &most, c->action)) {
        c->action->verdict = VERDICT_WAIT;
        return 0;
    }
    c->question = (struct width_question){
        .shape = c->job->shape, .least = c->job->devices_least, .most = most, .fair = fair_part(x)};
    const int fit = find_start(x, c, &start, &reserved);
    if (fit < 0)
        return -1;
    if (fit == FIT_PENDING)
        return wait_for_plan(x, c);
    if (fit == FIT_NO)
        return wait_for_release(x, c, reserved);
    const int yields = take_over(x, c, start.ends_us);
    if (yields != 0)
        return yields < 0 ? -1 : 0;
    const int waits = weigh_waiting(x, c, &start, &later);
    if (waits < 0)
        return -1;
    if (waits) {
        x->claims++;
        keep_start(x, c, &later, REASON_SLOW);
    } else {
        start_job(x, c, &start, x->claims + x->absent_claims > 0);
    }
    return 0;
}

/* Starts a job on free devices of its own account while jobs of other accounts wait. Returns 1 when it
 * starts, 0 when it does not, or -1. */
static int start_on_own(struct decision *x, struct considered *c)
{
    struct policy_action refused;
    struct reserve_start start;
    struct device_set only = x->preempt.own[c->job->account];
    size_t reserved;
    uint16_t most;
    device_set_intersect(&only, &x->reserve.free);
    if (device_set_is_empty(&only) || !preempt_has_rivals(&x->preempt, c->job, x->waiting) ||
        !limits_allow(&x->limits, x->snapshot, c->job, &most, &refused))
        return 0;
    c->question = (struct width_question){
        .shape = c->job->shape, .least = c->job->devices_least, .most = most, .fair = fair_part(x)};
    const int fit = find_now_within(x, c, &only, &start, &reserved);
    if (fit != FIT_YES)
        return fit < 0 ? -1 : 0;
    start_job(x, c, &start, false);
    return 1;
}

/* Returns a new array [shape] of the charge of one step with the best plan on all known devices. The order of
 * the queue is computed with these charges. */
static double *step_charges(struct decision *x, size_t *shape_count)
{
    size_t count = 0;
    for (size_t i = 0; i < x->snapshot->job_count; i++)
        if (x->snapshot->jobs[i].shape >= count)
            count = (size_t)x->snapshot->jobs[i].shape + 1;
    double *charges = calloc(count + 1, sizeof(*charges));
    if (!charges) {
        err_set(x->err, ERR_NOMEM, "no memory for a decision");
        return NULL;
    }
    for (size_t i = 0; i < x->snapshot->job_count; i++) {
        uint32_t plan;
        const uint32_t shape = x->snapshot->jobs[i].shape;
        if (charges[shape] != 0)
            continue;
        const struct width_question question = {.shape = shape, .set = x->all_set, .fair = 1};
        const int fit = width_choose(&x->answers, &question, &plan, x->err);
        if (fit < 0) {
            free(charges);
            return NULL;
        }
        charges[shape] = fit == FIT_YES ? x->answers.plans[plan].step_s * x->answers.plans[plan].rate : -1;
    }
    *shape_count = count;
    return charges;
}

static int decide_check(const struct policy_snapshot *snapshot, struct err *err)
{
    if (snapshot->device_count > POLICY_DEVICES_MAX)
        return err_set(err, ERR_INVALID, "%zu devices: at most %d", snapshot->device_count,
                       POLICY_DEVICES_MAX);
    if (snapshot->account_count == 0)
        return err_set(err, ERR_INVALID, "a tree of accounts has a root");
    for (size_t i = 0; i < snapshot->run_count; i++) {
        const struct policy_run *run = &snapshot->runs[i];
        if (run->account >= snapshot->account_count || run->user >= snapshot->user_count)
            return err_set(err, ERR_INVALID, "run of job %lld: unknown account or user", (long long)run->job);
    }
    for (size_t i = 0; i < snapshot->job_count; i++) {
        const struct policy_job *job = &snapshot->jobs[i];
        if (job->user >= snapshot->user_count || job->shape > (uint32_t)1 << 24)
            return err_set(err, ERR_INVALID, "job %lld: unknown user or shape", (long long)job->id);
    }
    return 0;
}

static struct considered considered_at(const struct decision *x, const uint32_t *order,
                                       struct policy_action *actions, size_t i)
{
    return (struct considered){.job = &x->snapshot->jobs[order[i]], .action = &actions[i], .plan = NO_PLAN};
}

/* Lets jobs start on their accounts' own devices, before jobs of others take them. */
static int walk_owners(struct decision *x, const uint32_t *order, uint32_t *plans,
                       struct policy_action *actions)
{
    for (size_t i = 0; !device_set_is_empty(&x->preempt.owned) && i < x->snapshot->job_count; i++) {
        struct considered c = considered_at(x, order, actions, i);
        if (device_set_is_empty(&x->preempt.own[c.job->account]))
            continue;
        if (start_on_own(x, &c) < 0)
            return -1;
        plans[i] = c.plan;
    }
    return 0;
}

static int walk(struct decision *x, const uint32_t *order, uint32_t *plans, struct policy_action *actions)
{
    for (size_t i = 0; i < x->snapshot->job_count; i++) {
        plans[i] = NO_PLAN;
        actions[i] = (struct policy_action){.job = order[i],
                                            .place = (uint32_t)i + 1,
                                            .verdict = VERDICT_WAIT,
                                            .subject = -1,
                                            .starts_us = INT64_MAX};
    }
    if (walk_owners(x, order, plans, actions) < 0)
        return -1;
    for (size_t i = 0; i < x->snapshot->job_count; i++) {
        struct considered c = considered_at(x, order, actions, i);
        if (i + JOBS_AHEAD < x->snapshot->job_count)
            __builtin_prefetch(&x->snapshot->jobs[order[i + JOBS_AHEAD]]);
        if (actions[i].verdict == VERDICT_START)
            continue;
        if (consider(x, &c) < 0)
            return -1;
        plans[i] = c.plan;
    }
    return 0;
}

static int decide_prepare(struct decision *x, const struct policy_planner *planner, int64_t now_us)
{
    if (decide_check(x->snapshot, x->err) < 0 ||
        limits_init(&x->limits, x->snapshot, x->settings, now_us, x->err) < 0 ||
        width_answers_init(&x->answers, planner, x->settings, x->err) < 0 ||
        preempt_init(&x->preempt, x->snapshot, x->settings, x->err) < 0)
        return -1;
    reserve_init(&x->reserve, x->snapshot, x->settings, now_us);
    const int64_t all = width_set(&x->answers, &x->reserve.all, x->err);
    const int64_t there = width_set(&x->answers, &x->reserve.there, x->err);
    x->all_set = (uint32_t)all;
    x->there_set = (uint32_t)there;
    x->there_count = device_set_count(&x->reserve.there);
    return all < 0 || there < 0 ? -1 : 0;
}

int policy_decide(const struct policy_snapshot *snapshot, const struct policy_settings *settings,
                  const struct policy_planner *planner, int64_t now_us, struct policy_decision *decision,
                  struct err *err)
{
    struct decision *x = calloc(1, sizeof(*x));
    uint32_t *order = calloc(snapshot->job_count + 1, sizeof(*order));
    uint32_t *plans = calloc(snapshot->job_count + 1, sizeof(*plans));
    struct policy_action *actions = calloc(snapshot->job_count + 1, sizeof(*actions));
    double *charges = NULL;
    size_t shape_count = 0;
    int rc = -1;
    *decision = (struct policy_decision){0};
    if (!x || !order || !plans || !actions) {
        err_set(err, ERR_NOMEM, "no memory for a decision");
        goto out;
    }
    *x = (struct decision){
        .snapshot = snapshot, .settings = settings, .waiting = snapshot->job_count, .err = err};
    if (decide_prepare(x, planner, now_us) < 0)
        goto out;
    charges = step_charges(x, &shape_count);
    if (!charges || policy_order(snapshot, settings, charges, shape_count, now_us, order, err) < 0 ||
        walk(x, order, plans, actions) < 0)
        goto out;
    for (size_t i = 0; i < snapshot->job_count; i++)
        actions[i].plan = plans[i] == NO_PLAN ? NULL : &x->answers.plans[plans[i]];
    *decision = (struct policy_decision){.count = snapshot->job_count,
                                         .actions = actions,
                                         .plan_count = x->answers.plan_count,
                                         .plans = x->answers.plans,
                                         .preemption_count = x->preempt.count,
                                         .preemptions = x->preempt.list};
    actions = NULL;
    x->preempt.list = NULL;
    x->answers.plans = NULL;
    rc = 0;
out:
    if (x) {
        limits_fini(&x->limits);
        width_answers_fini(&x->answers);
        preempt_fini(&x->preempt);
    }
    free(x);
    free(order);
    free(plans);
    free(actions);
    free(charges);
    return rc;
}

void policy_decision_fini(struct policy_decision *decision)
{
    free(decision->actions);
    free(decision->plans);
    free(decision->preemptions);
    *decision = (struct policy_decision){0};
}
