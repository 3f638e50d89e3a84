/* Finds runs that yield to a waiting job, and gives accounts precedence on the devices that they own. */
#include <math.h>
#include <stdlib.h>

#include "scheduler/policy/policy_private.h"

/* Most jobs for which one decision looks for runs that could yield. Jobs further back in the queue are
 * considered once those in front have started. */
enum { SEARCHES_MAX = 64 };

/* Finds the devices that each account's jobs may claim as their own (parents stand before their children),
 * and counts the waiting jobs of each account. */
static void preempt_find_owners(struct preempt_state *preempt)
{
    const struct policy_snapshot *snapshot = preempt->snapshot;
    for (size_t d = device_set_next(&preempt->owned, 0); d < POLICY_DEVICES_MAX;
         d = device_set_next(&preempt->owned, d + 1))
        device_set_add(&preempt->own[snapshot->owners[d]], d);
    for (size_t a = 1; a < snapshot->account_count; a++)
        device_set_unite(&preempt->own[a], &preempt->own[snapshot->accounts[a].parent]);
    for (size_t i = 0; i < snapshot->job_count; i++)
        for (uint16_t a = snapshot->jobs[i].account; a < snapshot->account_count;
             a = snapshot->accounts[a].parent)
            preempt->waiting[a]++;
}

int preempt_init(struct preempt_state *preempt, const struct policy_snapshot *snapshot,
                 const struct policy_settings *settings, struct err *err)
{
    *preempt = (struct preempt_state){.snapshot = snapshot, .settings = settings};
    for (size_t d = 0; snapshot->owners && d < snapshot->device_count; d++)
        if (snapshot->owners[d] < snapshot->account_count)
            device_set_add(&preempt->owned, d);
    for (size_t i = 0; i < snapshot->run_count; i++)
        preempt->yielding = preempt->yielding || snapshot->runs[i].save_s > 0;
    preempt->own = calloc(snapshot->account_count + 1, sizeof(*preempt->own));
    preempt->waiting = calloc(snapshot->account_count + 1, sizeof(*preempt->waiting));
    preempt->order = calloc(snapshot->run_count + 1, sizeof(*preempt->order));
    preempt->asked = calloc(snapshot->run_count + 1, sizeof(*preempt->asked));
    preempt->list = calloc(snapshot->run_count + 1, sizeof(*preempt->list));
    if (!preempt->own || !preempt->waiting || !preempt->order || !preempt->asked || !preempt->list)
        return err_set(err, ERR_NOMEM, "no memory for a decision");
    if (!device_set_is_empty(&preempt->owned))
        preempt_find_owners(preempt);
    return 0;
}

void preempt_fini(struct preempt_state *preempt)
{
    free(preempt->own);
    free(preempt->waiting);
    free(preempt->order);
    free(preempt->asked);
    free(preempt->list);
}

/* ---- owners ---- */

void preempt_started(struct preempt_state *preempt, const struct policy_job *job)
{
    const struct policy_snapshot *snapshot = preempt->snapshot;
    if (device_set_is_empty(&preempt->owned))
        return;
    for (uint16_t a = job->account; a < snapshot->account_count; a = snapshot->accounts[a].parent)
        preempt->waiting[a]--;
}

void preempt_leave(const struct preempt_state *preempt, const struct policy_job *job, struct device_set *set)
{
    const struct policy_snapshot *snapshot = preempt->snapshot;
    if (job->service == SERVICE_URGENT)
        return;
    for (size_t d = device_set_next(&preempt->owned, 0); d < POLICY_DEVICES_MAX;
         d = device_set_next(&preempt->owned, d + 1))
        if (preempt->waiting[snapshot->owners[d]] > 0 && !device_set_has(&preempt->own[job->account], d))
            device_set_remove(set, d);
}

bool preempt_has_rivals(const struct preempt_state *preempt, const struct policy_job *job, size_t waiting)
{
    const struct policy_snapshot *snapshot = preempt->snapshot;
    /* number of waiting jobs of the outermost account that owns a device and contains the job */
    size_t own = waiting;
    for (uint16_t a = job->account; a < snapshot->account_count; a = snapshot->accounts[a].parent)
        if (!device_set_is_empty(&preempt->own[a]))
            own = preempt->waiting[a];
    return waiting > own;
}

/* ---- runs that yield ---- */

/* Returns the rule by which the run yields to the job. *yields becomes the set of devices that the job then
 * gets. */
static enum policy_rule preempt_rule_of(const struct preempt_state *preempt, const struct policy_run *run,
                                        const struct policy_job *job, struct device_set *yields)
{
    *yields = run->devices;
    if (job->service == SERVICE_SCAVENGER)
        return RULE_NONE;
    if (run->service == SERVICE_SCAVENGER)
        return RULE_SCAVENGER;
    if (job->service == SERVICE_URGENT && run->service != SERVICE_URGENT)
        return RULE_URGENT;
    if (run->service == SERVICE_URGENT)
        return RULE_NONE;
    device_set_intersect(yields, &preempt->own[job->account]);
    device_set_subtract(yields, &preempt->own[run->account]);
    return device_set_is_empty(yields) ? RULE_NONE : RULE_OWNER;
}

/* Returns the device-seconds that are lost when the run yields: until the checkpoint, and by the move. */
static double loss_of(const struct preempt_state *preempt, const struct policy_run *run)
{
    return (run->save_s + preempt->settings->move_s) * run->rate;
}

/* Lists the runs that may yield to the job in preempt->order, the ones with the least loss first. */
static size_t list_runs(struct preempt_state *preempt, const struct policy_job *job)
{
    const struct policy_run *runs = preempt->snapshot->runs;
    struct device_set yields;
    size_t count = 0;
    for (size_t i = 0; i < preempt->snapshot->run_count; i++) {
        if (preempt->asked[i] || !(runs[i].save_s > 0) ||
            preempt_rule_of(preempt, &runs[i], job, &yields) == RULE_NONE)
            continue;
        size_t at = count++;
        for (; at > 0 && loss_of(preempt, &runs[preempt->order[at - 1]]) > loss_of(preempt, &runs[i]); at--)
            preempt->order[at] = preempt->order[at - 1];
        preempt->order[at] = i;
    }
    return count;
}

/* Compares the job's gain by a plan with the loss of the runs that must yield for it. Returns whether the
 * gain is greater; *start is then the start with this plan. */
static bool preempt_weigh(struct preempt_state *preempt, const struct reserve_state *reserve,
                          const struct preempt_job *of, const struct policy_plan *plan, size_t listed,
                          struct reserve_start *start)
{
    const struct policy_snapshot *snapshot = preempt->snapshot;
    const struct policy_job *job = &snapshot->jobs[of->index];
    const size_t before = preempt->count;
    double save_s = 0, loss_s = 0, gain_s = INFINITY;
    for (size_t i = 0; i < listed; i++) {
        const struct policy_run *run = &snapshot->runs[preempt->order[i]];
        struct device_set yields, left = plan->devices;
        const enum policy_rule rule = preempt_rule_of(preempt, run, job, &yields);
        device_set_subtract(&left, &yields);
        if (device_set_equal(&left, &plan->devices))
            continue;
        save_s = fmax(save_s, run->save_s);
        loss_s += loss_of(preempt, run);
        preempt->list[preempt->count++] =
            (struct policy_preemption){.run = preempt->order[i], .job = of->index, .rule = rule};
    }
    start->starts_us = reserve->now_us + (int64_t)(fmin(save_s, 1e9) * 1e6);
    start->ends_us = reserve_end(start->starts_us, job, plan);
    if (of->ends_us != INT64_MAX)
        gain_s = 1e-6 * (double)(of->ends_us - start->ends_us) * plan->rate;
    if (preempt->count == before || !(gain_s > loss_s) ||
        reserve_kept_before(reserve, plan, start) < POLICY_DEVICES_MAX) {
        preempt->count = before;
        return false;
    }
    for (size_t i = before; i < preempt->count; i++) {
        preempt->list[i].gain_s = gain_s;
        preempt->list[i].loss_s = loss_s;
        preempt->asked[preempt->list[i].run] = true;
    }
    return true;
}

int preempt_find(struct preempt_state *preempt, const struct reserve_state *reserve,
                 struct width_answers *answers, const struct preempt_job *of, struct reserve_start *start,
                 struct err *err)
{
    const struct policy_job *job = &preempt->snapshot->jobs[of->index];
    struct width_question question = of->question;
    struct device_set set = reserve->free;
    if (!preempt->settings->preempt || !preempt->yielding || preempt->searches >= SEARCHES_MAX)
        return FIT_NO;
    preempt->searches++;
    device_set_intersect(&set, of->among);
    const size_t listed = list_runs(preempt, job);
    for (size_t count = 0, next = 1; count < listed; next *= 2) {
        for (; count < next && count < listed; count++) {
            struct device_set yields;
            preempt_rule_of(preempt, &preempt->snapshot->runs[preempt->order[count]], job, &yields);
            device_set_intersect(&yields, of->among);
            device_set_unite(&set, &yields);
        }
        const int64_t number = width_set(answers, &set, err);
        if (number < 0)
            return -1;
        question.set = (uint32_t)number;
        const int fit = width_choose(answers, &question, &start->plan, err);
        if (fit < 0 || fit == FIT_PENDING)
            return fit;
        if (fit == FIT_YES && preempt_weigh(preempt, reserve, of, &answers->plans[start->plan], count, start))
            return FIT_YES;
    }
    return FIT_NO;
}
