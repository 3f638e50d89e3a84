/* Enforces limits of users and accounts. An account's limit holds for all accounts below it. */
#include <stdlib.h>

#include "scheduler/policy/policy_private.h"

static void use_add(struct policy_use *use, uint32_t devices, uint32_t running, double seconds)
{
    use->devices += devices;
    use->running += running;
    use->month_seconds += seconds;
}

static bool has_limit(const struct policy_limits *limits)
{
    return limits->devices_max > 0 || limits->running_max > 0 || limits->month_seconds_max > 0;
}

int limits_init(struct limits_state *limits, const struct policy_snapshot *snapshot,
                const struct policy_settings *settings, int64_t now_us, struct err *err)
{
    *limits = (struct limits_state){.on = false};
    for (size_t i = 0; i < snapshot->account_count; i++)
        limits->on = limits->on || has_limit(&snapshot->accounts[i].limits);
    for (size_t i = 0; i < snapshot->user_count; i++)
        limits->on = limits->on || has_limit(&snapshot->users[i].limits);
    limits->on = limits->on && settings->limits;
    if (!limits->on)
        return 0;
    limits->accounts = calloc(snapshot->account_count + 1, sizeof(*limits->accounts));
    limits->users = calloc(snapshot->user_count + 1, sizeof(*limits->users));
    if (!limits->accounts || !limits->users)
        return err_set(err, ERR_NOMEM, "no memory for the limits");
    for (size_t i = 0; i < snapshot->account_count; i++)
        limits->accounts[i] = snapshot->accounts[i].use;
    for (size_t i = 0; i < snapshot->user_count; i++)
        limits->users[i] = snapshot->users[i].use;
    for (size_t i = 0; i < snapshot->run_count; i++) {
        const struct policy_run *run = &snapshot->runs[i];
        if (run->ends_us <= now_us || run->ends_us == INT64_MAX)
            continue;
        const double seconds = run->rate * 1e-6 * (double)(run->ends_us - now_us);
        limits->accounts[run->account].month_seconds += seconds;
        limits->users[run->user].month_seconds += seconds;
    }
    for (size_t i = snapshot->account_count; i-- > 1;) {
        const struct policy_use *use = &limits->accounts[i];
        use_add(&limits->accounts[snapshot->accounts[i].parent], use->devices, use->running,
                use->month_seconds);
    }
    return 0;
}

void limits_fini(struct limits_state *limits)
{
    free(limits->accounts);
    free(limits->users);
}

/* Whether one set of limits allows the job. Lowers *most to the number of devices that the limits leave. */
static bool allows(const struct policy_limits *limits, const struct policy_use *use,
                   const struct policy_job *job, uint16_t *most, enum policy_reason devices_reason,
                   struct policy_action *action)
{
    if (limits->running_max > 0 && use->running >= limits->running_max) {
        action->reason = devices_reason + (REASON_USER_RUNNING - REASON_USER_DEVICES);
        action->number = limits->running_max;
        return false;
    }
    if (limits->month_seconds_max > 0 && use->month_seconds >= limits->month_seconds_max) {
        action->reason = devices_reason + (REASON_USER_MONTH - REASON_USER_DEVICES);
        action->number = limits->month_seconds_max;
        return false;
    }
    if (limits->devices_max == 0)
        return true;
    const uint32_t least = job->devices_least > 0 ? job->devices_least : 1;
    const uint32_t left = limits->devices_max > use->devices ? limits->devices_max - use->devices : 0;
    if (left < least) {
        action->reason = devices_reason;
        action->number = limits->devices_max;
        return false;
    }
    if (*most == 0 || left < *most)
        *most = (uint16_t)(left < POLICY_DEVICES_MAX ? left : POLICY_DEVICES_MAX);
    return true;
}

bool limits_allow(const struct limits_state *limits, const struct policy_snapshot *snapshot,
                  const struct policy_job *job, uint16_t *most, struct policy_action *action)
{
    *most = job->devices_most;
    if (!limits->on)
        return true;
    if (job->user < snapshot->user_count) {
        action->subject = job->user;
        if (!allows(&snapshot->users[job->user].limits, &limits->users[job->user], job, most,
                    REASON_USER_DEVICES, action))
            return false;
    }
    for (uint16_t i = job->account; i != POLICY_NONE; i = snapshot->accounts[i].parent) {
        action->subject = i;
        if (!allows(&snapshot->accounts[i].limits, &limits->accounts[i], job, most, REASON_ACCOUNT_DEVICES,
                    action))
            return false;
    }
    action->subject = -1;
    return true;
}

void limits_take(struct limits_state *limits, const struct policy_snapshot *snapshot,
                 const struct policy_job *job, size_t devices, double seconds)
{
    if (!limits->on)
        return;
    if (job->user < snapshot->user_count)
        use_add(&limits->users[job->user], (uint32_t)devices, 1, seconds);
    for (uint16_t i = job->account; i != POLICY_NONE; i = snapshot->accounts[i].parent)
        use_add(&limits->accounts[i], (uint32_t)devices, 1, seconds);
}
