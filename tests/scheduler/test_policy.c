/* Tests the policies of a shared cluster as tables: situation, action, reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include <math.h>

#include "scheduler/policy/policy.h"
#include "scheduler/policy_situations.h"
#include "scheduler/simulate/speeds.h"

/* A step takes a second on the reference card; device 3 is four times as slow. */
static const struct speed_shape shapes[] = {[ANY_CARD] = {.step_s = 1},
                                            [ALL_CARDS] = {.step_s = 1, .bytes = 100},
                                            [TWO_CARDS] = {.step_s = 1, .bytes = 50},
                                            [POOR_TOGETHER] = {.step_s = 1, .loss = 0.6},
                                            [TOO_BIG] = {.step_s = 1, .bytes = 1000},
                                            [NOT_PLANNED] = {.step_s = 1}};
static const struct speed_device devices[DEVICES] = {{1, 25}, {1, 25}, {1, 25}, {0.25, 25}};
static struct speed_model model = {DEVICES, 6, devices, shapes, NULL};

static enum policy_fit best(void *arg, uint32_t shape, const struct device_set *among, uint16_t most,
                            struct policy_plan *plan)
{
    return shape == NOT_PLANNED ? FIT_PENDING : speeds_best(arg, shape, among, most, plan);
}

static const struct policy_planner planner = {best, &model};

static const struct policy_account accounts[] = {
    {.parent = POLICY_NONE, .weight = 1}, {.parent = 0, .weight = 1}, {.parent = 0, .weight = 1}};
static const struct policy_user users[2] = {{.use = {0}}, {.use = {0}}};

static struct device_set set_of(unsigned bits)
{
    return (struct device_set){{bits}};
}

static struct policy_snapshot snapshot_of(const struct policy_job *jobs, size_t job_count,
                                          const struct policy_run *runs, size_t run_count)
{
    return (struct policy_snapshot){.account_count = 3,
                                    .user_count = 2,
                                    .job_count = job_count,
                                    .run_count = run_count,
                                    .device_count = DEVICES,
                                    .accounts = accounts,
                                    .users = users,
                                    .jobs = jobs,
                                    .runs = runs,
                                    .present = set_of(0xf)};
}

static struct policy_job job_of(int64_t id, uint32_t shape, int64_t steps)
{
    return (struct policy_job){.id = id,
                               .eligible_us = id,
                               .steps_left = steps,
                               .shape = shape,
                               .account = 1,
                               .service = SERVICE_NORMAL};
}

static struct policy_run run_of(int64_t job, unsigned bits, int64_t ends_us)
{
    return (struct policy_run){.job = job,
                               .started_us = NOW - HOUR,
                               .ends_us = ends_us,
                               .rate = 1,
                               .account = 1,
                               .devices = set_of(bits)};
}

static struct policy_decision decide(const struct policy_snapshot *snapshot,
                                     const struct policy_settings *settings)
{
    struct policy_decision decision;
    struct err err;
    if (policy_decide(snapshot, settings, &planner, NOW, &decision, &err) < 0)
        fail_msg("%s", err.text);
    return decision;
}

/* Returns the action that concerns the job with this id, or NULL. */
static const struct policy_action *action_of(const struct policy_snapshot *snapshot,
                                             const struct policy_decision *decision, int64_t id)
{
    for (size_t i = 0; i < decision->count; i++)
        if (snapshot->jobs[decision->actions[i].job].id == id)
            return &decision->actions[i];
    fail_msg("no action about job %lld", (long long)id);
    return NULL;
}

/* ---- tables: situation, action, reason ---- */

static const size_t situation_count = sizeof(situations) / sizeof(situations[0]);

static void switch_off(struct policy_settings *settings, const char *policy)
{
    settings->share = strcmp(policy, "share") != 0;
    settings->limits = strcmp(policy, "limits") != 0;
    settings->width = strcmp(policy, "width") != 0;
    settings->wait = strcmp(policy, "wait") != 0;
    settings->reserve = strcmp(policy, "reserve") != 0;
    settings->backfill = strcmp(policy, "backfill") != 0;
    settings->preempt = strcmp(policy, "preempt") != 0;
}

/* Copies a situation's jobs. A job without an account gets account 1, and one without a service the normal
 * service. */
static size_t jobs_of(const struct policy_job from[4], struct policy_job to[4])
{
    size_t count = 0;
    for (; count < 4 && from[count].id != 0; count++) {
        to[count] = from[count];
        to[count].account = from[count].account ? from[count].account : 1;
        if (from[count].service == SERVICE_URGENT && from[count].limit_us != URGENT)
            to[count].service = SERVICE_NORMAL;
    }
    return count;
}

static void check_yields(const struct situation *s, const struct policy_snapshot *snapshot,
                         const struct policy_decision *decision)
{
    if (decision->preemption_count != (s->rule == RULE_NONE ? 0u : 1u))
        fail_msg("%s: %zu runs yield, not %d", s->what, decision->preemption_count, s->rule != RULE_NONE);
    if (s->rule == RULE_NONE)
        return;
    const struct policy_preemption *one = &decision->preemptions[0];
    if (one->rule != s->rule || snapshot->runs[one->run].job != s->subject ||
        snapshot->jobs[one->job].id != s->id || !(one->gain_s > one->loss_s))
        fail_msg("%s: run of job %lld yields to job %lld by rule %d", s->what,
                 (long long)snapshot->runs[one->run].job, (long long)snapshot->jobs[one->job].id,
                 (int)one->rule);
}

static double hours_from_now(int64_t at_us)
{
    return at_us == INT64_MAX ? INFINITY : (double)(at_us - NOW) / (double)HOUR;
}

static void check_situation(const struct situation *s)
{
    struct policy_account tree[3];
    struct policy_user people[2] = {{.limits = s->user, .use = s->user_use}, {.use = {0}}};
    int64_t away_us[DEVICES] = {s->away_us, s->away_us, s->away_us, s->away_us};
    struct policy_settings settings = policy_defaults;
    struct policy_job waiting[4];
    size_t runs = 0;
    const size_t jobs = jobs_of(s->jobs, waiting);
    while (runs < 3 && s->runs[runs].job != 0)
        runs++;
    memcpy(tree, accounts, sizeof(tree));
    tree[0].limits = s->root;
    tree[1].limits = s->account;
    tree[1].use = s->use;
    struct policy_snapshot snapshot = snapshot_of(waiting, jobs, s->runs, runs);
    snapshot.accounts = tree;
    snapshot.users = people;
    snapshot.present.words[0] &= ~(uint64_t)s->absent;
    snapshot.unfit.words[0] = s->unfit;
    snapshot.away_since_us = away_us;
    snapshot.intervals = &s->interval;
    snapshot.interval_count = s->interval.id != 0 ? 1 : 0;
    uint16_t owners[DEVICES];
    for (size_t d = 0; d < DEVICES; d++)
        owners[d] = s->owned >> d & 1 ? 1 : POLICY_NONE;
    snapshot.owners = owners;
    const struct device_set avoid = set_of(s->avoid);
    waiting[0].avoid = s->avoid ? &avoid : NULL;
    if (s->off)
        switch_off(&settings, s->off);
    struct policy_decision decision = decide(&snapshot, &settings);
    const struct policy_action *action = action_of(&snapshot, &decision, s->id);
    const uint64_t taken = action->plan ? action->plan->devices.words[0] : 0;
    check_yields(s, &snapshot, &decision);
    if (action->verdict != s->verdict || action->reason != s->reason || action->subject != s->subject ||
        (s->starts_us != 0 && action->starts_us != s->starts_us) || (s->devices != 0 && taken != s->devices))
        fail_msg("%s: verdict %d, reason %d of %lld, start in %.3f h on devices %llx; wanted verdict %d, "
                 "reason %d "
                 "of %lld, start in %.3f h on %llx (enums of policy.h; -1 h and 0: any)",
                 s->what, (int)action->verdict, (int)action->reason, (long long)action->subject,
                 hours_from_now(action->starts_us), (unsigned long long)taken, (int)s->verdict,
                 (int)s->reason, (long long)s->subject, s->starts_us ? hours_from_now(s->starts_us) : -1,
                 (unsigned long long)s->devices);
    policy_decision_fini(&decision);
}

static void situations_have_their_actions_and_reasons(void **state)
{
    (void)state;
    for (size_t i = 0; i < situation_count; i++)
        check_situation(&situations[i]);
}

/* ---- the order ---- */

struct order_case {
    const char *what;
    struct policy_job jobs[4];
    double decayed[3];
    bool no_share;
    int64_t ids[4]; /* expected order of the jobs */
};

static const struct order_case order_cases[] = {
    {.what = "priority, then who waits longer: a job that was held is not in front for its small id",
     .jobs = {JOB(.id = 1, .eligible_us = 50), JOB(.id = 2, .eligible_us = 20),
              JOB(.id = 3, .eligible_us = 30, .priority = 1)},
     .ids = {3, 2, 1}},
    {.what = "urgent jobs first, scavengers last",
     .jobs = {JOB(.id = 1, .priority = 9, .service = SERVICE_SCAVENGER), JOB(.id = 2),
              JOB(.id = 3, .limit_us = URGENT)},
     .ids = {3, 2, 1}},
    {.what = "the account that used less goes first, and accounts alternate",
     .jobs = {JOB(.id = 1, .steps_left = 60), JOB(.id = 2, .steps_left = 60),
              JOB(.id = 3, .steps_left = 60, .account = 2), JOB(.id = 4, .steps_left = 60, .account = 2)},
     .decayed = {0, 100, 50},
     .ids = {3, 1, 4, 2}},
    {.what = "without shares whoever waits longer goes first",
     .no_share = true,
     .jobs = {JOB(.id = 1, .eligible_us = 1), JOB(.id = 2, .eligible_us = 2),
              JOB(.id = 3, .account = 2, .eligible_us = 3)},
     .decayed = {0, 100, 50},
     .ids = {1, 2, 3}},
};

static void the_order_is_by_service_share_priority_and_waiting(void **state)
{
    (void)state;
    const double charges[] = {1, 1, 1, 1, 1, 1};
    for (size_t i = 0; i < sizeof(order_cases) / sizeof(order_cases[0]); i++) {
        const struct order_case *c = &order_cases[i];
        struct policy_account tree[3];
        struct policy_settings settings = policy_defaults;
        uint32_t order[4];
        struct policy_job jobs[4];
        struct err err;
        const size_t count = jobs_of(c->jobs, jobs);
        memcpy(tree, accounts, sizeof(tree));
        for (size_t k = 0; k < 3; k++)
            tree[k].decayed = c->decayed[k];
        struct policy_snapshot snapshot = snapshot_of(jobs, count, NULL, 0);
        snapshot.accounts = tree;
        settings.share = !c->no_share;
        assert_int_equal(policy_order(&snapshot, &settings, charges, 6, NOW, order, &err), 0);
        for (size_t k = 0; k < count; k++)
            if (jobs[order[k]].id != c->ids[k])
                fail_msg("%s: place %zu has job %lld", c->what, k + 1, (long long)jobs[order[k]].id);
    }
}

/* Fair Tree: a group that has used less than its share is ranked, with all its users, before its sibling. */
static void accounts_are_ranked_from_the_root_down(void **state)
{
    (void)state;
    static const struct policy_account tree[] = {{.parent = POLICY_NONE, .weight = 1},
                                                 {.parent = 0, .weight = 1},
                                                 {.parent = 0, .weight = 1},
                                                 {.parent = 1, .weight = 1, .decayed = 90},
                                                 {.parent = 1, .weight = 3, .decayed = 100},
                                                 {.parent = 2, .weight = 1, .decayed = 80},
                                                 {.parent = 2, .weight = 1, .decayed = 10}};
    uint32_t rank[7];
    struct err err;
    assert_int_equal(policy_rank(tree, 7, rank, &err), 0);
    assert_true(rank[6] == 0 && rank[5] == 1 && rank[4] == 2 && rank[3] == 3);
}

/* A job on all devices gets a reserved start although seventy jobs, held back by a limit, stand before it. */
static void a_wide_job_is_dated_wherever_it_stands(void **state)
{
    (void)state;
    struct policy_job jobs[71];
    const struct policy_run runs[] = {run_of(9, 0x1, NOW + HOUR)};
    struct policy_user people[2] = {{.limits = {.running_max = 1}, .use = {.running = 1}}, {.use = {0}}};
    for (int i = 0; i < 71; i++)
        jobs[i] = job_of(i + 1, ANY_CARD, 100);
    jobs[70].shape = ALL_CARDS;
    jobs[70].user = 1;
    struct policy_snapshot snapshot = snapshot_of(jobs, 71, runs, 1);
    snapshot.users = people;
    struct policy_decision decision = decide(&snapshot, &policy_defaults);
    assert_int_equal(action_of(&snapshot, &decision, 71)->starts_us, NOW + HOUR);
    assert_int_equal(action_of(&snapshot, &decision, 70)->reason, REASON_USER_RUNNING);
    policy_decision_fini(&decision);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(situations_have_their_actions_and_reasons),
        cmocka_unit_test(the_order_is_by_service_share_priority_and_waiting),
        cmocka_unit_test(accounts_are_ranked_from_the_root_down),
        cmocka_unit_test(a_wide_job_is_dated_wherever_it_stands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
