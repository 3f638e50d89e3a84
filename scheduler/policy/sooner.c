/* Asks the policies what would let a waiting job start sooner. */
#include "scheduler/policy/sooner.h"

#include <stdlib.h>
#include <string.h>

enum {
    RUNS_ASKED = 16, /* number of runs whose earlier end is tried, those that are predicted to end first */
    RUNS_KEPT = 2,
    STEPS_ASKED = 6,
    PLAYED_MAX = 40, /* most decisions for which the queue is simulated */
};

struct asker {
    const struct policy_snapshot *snapshot;
    const struct policy_settings *settings;
    const struct policy_planner *planner;
    /* A start before before_us counts as sooner. INT64_MAX: the job's start is unknown, and only a start at
     * once counts as sooner. */
    int64_t now_us, before_us;
    size_t job;
    struct policy_action
        /* the decision about the job when nothing is changed; its plan is not valid */
        action;
    struct sooner_change *found;
    int count;
    struct err *err;
};

/* Decides about the snapshot. Writes the decision about the job to *action. */
static int sooner_ask(const struct asker *asker, const struct policy_snapshot *snapshot,
                      struct policy_action *action)
{
    struct policy_decision decision;
    if (policy_decide(snapshot, asker->settings, asker->planner, asker->now_us, &decision, asker->err) < 0)
        return -1;
    for (size_t i = 0; i < decision.count; i++)
        if (decision.actions[i].job == asker->job)
            *action = decision.actions[i];
    policy_decision_fini(&decision);
    return 0;
}

/* A copy of the snapshot in which jobs start and runs end as predicted. */
struct played {
    struct policy_account *accounts;
    struct policy_user *users;
    struct policy_job *jobs;
    struct policy_run *runs;
    size_t job_count, run_count;
};

/* Counts a run that begins, or one that ends, in what its user and account hold. */
static void sooner_count_use(struct policy_account *accounts, struct policy_user *users,
                             const struct policy_run *run, bool begins)
{
    const uint32_t devices = (uint32_t)device_set_count(&run->devices);
    struct policy_use *const uses[] = {&accounts[run->account].use, &users[run->user].use};
    for (size_t i = 0; i < 2; i++) {
        uses[i]->devices += begins ? devices : -devices;
        uses[i]->running += begins ? 1u : -1u;
    }
}

/* Starts the jobs that the decision starts, and drops them from the queue. Returns whether the job `id` is
 * one of them. */
static bool take_starts(struct played *played, const struct policy_decision *decision, int64_t now_us,
                        int64_t id)
{
    bool started = false;
    size_t kept = 0;
    for (size_t i = 0; i < decision->count; i++) {
        const struct policy_action *action = &decision->actions[i];
        struct policy_job *job = &played->jobs[action->job];
        if (action->verdict != VERDICT_START)
            continue;
        const double us = 1e6 * action->plan->step_s * (double)job->steps_left;
        started = started || job->id == id;
        played->runs[played->run_count++] =
            (struct policy_run){.job = job->id,
                                .started_us = now_us,
                                .ends_us = us < 9e17 ? now_us + (int64_t)us + 1 : INT64_MAX,
                                .rate = action->plan->rate,
                                .user = job->user,
                                .account = job->account,
                                .service = job->service,
                                .devices = action->plan->devices};
        sooner_count_use(played->accounts, played->users, &played->runs[played->run_count - 1], true);
        job->id = -1;
    }
    for (size_t i = 0; i < played->job_count; i++)
        if (played->jobs[i].id >= 0)
            played->jobs[kept++] = played->jobs[i];
    played->job_count = kept;
    return started;
}

/* Ends the runs with the earliest predicted end. Returns that time, or INT64_MAX when no run has a predicted
 * end. */
static int64_t end_next(struct played *played, int64_t now_us)
{
    int64_t next_us = INT64_MAX;
    for (size_t i = 0; i < played->run_count; i++)
        if (played->runs[i].ends_us < next_us)
            next_us = played->runs[i].ends_us > now_us ? played->runs[i].ends_us : now_us;
    for (size_t i = 0; i < played->run_count && next_us < INT64_MAX;)
        if (played->runs[i].ends_us <= next_us) {
            sooner_count_use(played->accounts, played->users, &played->runs[i], false);
            played->runs[i] = played->runs[--played->run_count];
        } else {
            i++;
        }
    return next_us;
}

static void played_fini(struct played *played)
{
    free(played->accounts);
    free(played->users);
    free(played->jobs);
    free(played->runs);
}

/* Copies the snapshot. */
static int played_init(struct played *played, const struct asker *asker, const struct policy_snapshot *from)
{
    *played = (struct played){.accounts = calloc(from->account_count + 1, sizeof(*played->accounts)),
                              .users = calloc(from->user_count + 1, sizeof(*played->users)),
                              .jobs = calloc(from->job_count + 1, sizeof(*played->jobs)),
                              .runs = calloc(from->run_count + from->job_count + 1, sizeof(*played->runs)),
                              .job_count = from->job_count,
                              .run_count = from->run_count};
    if (!played->accounts || !played->users || !played->jobs || !played->runs) {
        played_fini(played);
        return err_set(asker->err, ERR_NOMEM, "no memory for a question");
    }
    memcpy(played->accounts, from->accounts, from->account_count * sizeof(*played->accounts));
    memcpy(played->users, from->users, from->user_count * sizeof(*played->users));
    memcpy(played->runs, from->runs, from->run_count * sizeof(*played->runs));
    memcpy(played->jobs, from->jobs, from->job_count * sizeof(*played->jobs));
    return 0;
}

/* Simulates the queue without new arrivals, in which each run lasts as long as predicted. Writes the job's
 * start to *starts_us: INT64_MAX if it does not start within PLAYED_MAX decisions. */
static int play(const struct asker *asker, const struct policy_snapshot *from, int64_t *starts_us)
{
    struct policy_snapshot snapshot = *from;
    struct played played;
    const int64_t id = from->jobs[asker->job].id;
    int64_t now_us = asker->now_us;
    int rc = 0;
    *starts_us = INT64_MAX;
    if (played_init(&played, asker, from) < 0)
        return -1;
    snapshot.accounts = played.accounts;
    snapshot.users = played.users;
    snapshot.jobs = played.jobs;
    snapshot.runs = played.runs;
    for (int i = 0; i < PLAYED_MAX && rc == 0 && now_us < INT64_MAX; i++) {
        struct policy_decision decision;
        snapshot.job_count = played.job_count;
        snapshot.run_count = played.run_count;
        rc = policy_decide(&snapshot, asker->settings, asker->planner, now_us, &decision, asker->err);
        if (rc == 0 && take_starts(&played, &decision, now_us, id)) {
            *starts_us = now_us;
            now_us = INT64_MAX;
        } else {
            now_us = end_next(&played, now_us);
        }
        policy_decision_fini(&decision);
    }
    played_fini(&played);
    return rc;
}

/* Keeps the change if the job starts sooner with it. At most SOONER_MAX changes are kept, and at most `most`
 * of one kind: those with the earliest starts. Returns 1 if it is kept, 0 if not, or -1. */
static int offer(struct asker *asker, const struct policy_snapshot *snapshot, struct sooner_change change,
                 int most)
{
    struct policy_action action = {.starts_us = INT64_MAX};
    int alike = 0, at = asker->count;
    if (sooner_ask(asker, snapshot, &action) < 0)
        return -1;
    if (action.starts_us > asker->now_us && (action.starts_us == INT64_MAX || asker->before_us == INT64_MAX))
        return 0;
    if (action.starts_us > asker->now_us && play(asker, snapshot, &action.starts_us) < 0)
        return -1;
    if (action.starts_us >= asker->before_us)
        return 0;
    change.starts_us = action.starts_us;
    for (int i = 0; i < asker->count; i++)
        alike += asker->found[i].kind == change.kind ? 1 : 0;
    /* the change with the latest start, of all or of this kind, makes room */
    if (asker->count == SOONER_MAX || alike == most) {
        int last = asker->count - 1;
        while (alike == most && asker->found[last].kind != change.kind)
            last--;
        if (asker->found[last].starts_us <= change.starts_us)
            return 0;
        memmove(&asker->found[last], &asker->found[last + 1],
                (size_t)(asker->count - 1 - last) * sizeof(*asker->found));
        at = --asker->count;
    }
    while (at > 0 && asker->found[at - 1].starts_us > change.starts_us)
        at--;
    memmove(&asker->found[at + 1], &asker->found[at], (size_t)(asker->count - at) * sizeof(*asker->found));
    asker->found[at] = change;
    asker->count++;
    return 1;
}

/* Asks what happens when `job` stands in the place of the job in question. */
static int ask_job(struct asker *asker, const struct policy_job *job, struct sooner_change change, int most)
{
    struct policy_snapshot changed = *asker->snapshot;
    struct policy_job *jobs = malloc((changed.job_count + 1) * sizeof(*jobs));
    if (!jobs)
        return err_set(asker->err, ERR_NOMEM, "no memory for a question");
    memcpy(jobs, changed.jobs, changed.job_count * sizeof(*jobs));
    jobs[asker->job] = *job;
    changed.jobs = jobs;
    const int kept = offer(asker, &changed, change, most);
    free(jobs);
    return kept;
}

static int ask_shapes(struct asker *asker, const uint32_t *shapes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct policy_job job = asker->snapshot->jobs[asker->job];
        job.shape = shapes[i];
        if (ask_job(asker, &job, (struct sooner_change){.kind = SOONER_SHAPE, .subject = shapes[i]},
                    SOONER_MAX) < 0)
            return -1;
    }
    return 0;
}

/* Asks whether the job would start sooner with fewer steps, half as many each time. */
static int ask_steps(struct asker *asker)
{
    struct policy_job job = asker->snapshot->jobs[asker->job];
    for (int i = 0; i < STEPS_ASKED && job.steps_left > 1; i++) {
        job.steps_left /= 2;
        const int kept = ask_job(
            asker, &job, (struct sooner_change){.kind = SOONER_STEPS, .number = (double)job.steps_left}, 1);
        if (kept != 0)
            return kept < 0 ? -1 : 0;
    }
    return 0;
}

static int compare_ends(const void *a, const void *b)
{
    const struct policy_run *const *x = a, *const *y = b;
    if ((*x)->ends_us != (*y)->ends_us)
        return (*x)->ends_us < (*y)->ends_us ? -1 : 1;
    return (*x)->job<(*y)->job ? -1 : (*x)->job>(*y)->job;
}

/* Asks, for the runs that are predicted to end first, whether the job would start sooner if they ended
 * now. */
static int ask_runs(struct asker *asker)
{
    struct policy_snapshot changed = *asker->snapshot;
    const size_t count = changed.run_count;
    const struct policy_run **order = calloc(count + 1, sizeof(*order));
    struct played without;
    if (!order || played_init(&without, asker, asker->snapshot) < 0) {
        free(order);
        return err_set(asker->err, ERR_NOMEM, "no memory for a question");
    }
    for (size_t i = 0; i < count; i++)
        order[i] = &asker->snapshot->runs[i];
    if (count > 0)
        qsort(order, count, sizeof(const struct policy_run *), compare_ends);
    changed.accounts = without.accounts;
    changed.users = without.users;
    changed.runs = without.runs;
    int rc = 0;
    for (size_t i = 0; i < count && i < RUNS_ASKED && rc >= 0; i++) {
        changed.run_count = 0;
        for (size_t k = 0; k < count; k++)
            if (&asker->snapshot->runs[k] != order[i])
                without.runs[changed.run_count++] = asker->snapshot->runs[k];
        sooner_count_use(without.accounts, without.users, order[i], false);
        rc = offer(asker, &changed, (struct sooner_change){.kind = SOONER_RUN, .subject = order[i]->job},
                   RUNS_KEPT);
        sooner_count_use(without.accounts, without.users, order[i], true);
    }
    free(order);
    played_fini(&without);
    return rc < 0 ? -1 : 0;
}

/* Asks whether the job would start sooner without the lease, absence or limit that the decision names as the
 * reason. */
static int ask_reason(struct asker *asker)
{
    struct policy_snapshot changed = *asker->snapshot;
    const struct policy_action *action = &asker->action;
    struct sooner_change change = {.subject = action->subject, .reason = action->reason};
    struct policy_account *accounts = malloc((changed.account_count + 1) * sizeof(*accounts));
    struct policy_user *users = malloc((changed.user_count + 1) * sizeof(*users));
    struct policy_interval *intervals = calloc(changed.interval_count + 1, sizeof(*intervals));
    int rc = accounts && users && intervals ? 1 : err_set(asker->err, ERR_NOMEM, "no memory for a question");
    if (rc > 0 && action->reason == REASON_INTERVAL && action->subject > 0) {
        change.kind = SOONER_LEASE;
        changed.interval_count = 0;
        for (size_t i = 0; i < asker->snapshot->interval_count; i++)
            if (asker->snapshot->intervals[i].id != action->subject)
                intervals[changed.interval_count++] = asker->snapshot->intervals[i];
        changed.intervals = intervals;
    } else if (rc > 0 && action->reason == REASON_ABSENT) {
        change.kind = SOONER_DEVICE;
        device_set_add(&changed.present, (size_t)action->subject);
        device_set_remove(&changed.unfit, (size_t)action->subject);
    } else if (rc > 0 && action->reason >= REASON_USER_DEVICES && action->subject >= 0) {
        change.kind = SOONER_LIMIT;
        memcpy(accounts, changed.accounts, changed.account_count * sizeof(*accounts));
        memcpy(users, changed.users, changed.user_count * sizeof(*users));
        struct policy_limits *limits = action->reason <= REASON_USER_MONTH
                                           ? &users[action->subject].limits
                                           : &accounts[action->subject].limits;
        *limits = (struct policy_limits){0};
        changed.accounts = accounts;
        changed.users = users;
    } else if (rc > 0) {
        rc = 0;
    }
    if (rc > 0)
        rc = offer(asker, &changed, change, 1);
    free(accounts);
    free(users);
    free(intervals);
    return rc < 0 ? -1 : 0;
}

int policy_sooner(const struct sooner_question *question, struct sooner_change found[SOONER_MAX],
                  int64_t *starts_us, struct err *err)
{
    const int64_t now_us = question->now_us;
    struct asker asker = {.snapshot = question->snapshot,
                          .settings = question->settings,
                          .planner = question->planner,
                          .now_us = now_us,
                          .before_us = INT64_MAX,
                          .job = question->job,
                          .found = found,
                          .err = err};
    int rc = sooner_ask(&asker, asker.snapshot, &asker.action);
    *starts_us = INT64_MAX;
    if (rc == 0 && asker.action.verdict == VERDICT_START)
        *starts_us = now_us;
    else if (rc == 0)
        rc = play(&asker, asker.snapshot, starts_us);
    if (rc == 0 && *starts_us != INT64_MAX)
        asker.before_us = *starts_us - (*starts_us - now_us) / 10;
    if (rc == 0 && asker.action.verdict == VERDICT_WAIT &&
        (ask_shapes(&asker, question->shapes, question->shape_count) < 0 || ask_reason(&asker) < 0 ||
         ask_steps(&asker) < 0 || ask_runs(&asker) < 0))
        rc = -1;
    return rc < 0 ? -1 : asker.count;
}
