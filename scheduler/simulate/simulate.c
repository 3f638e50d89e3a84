#include "scheduler/simulate/simulate.h"

#include <math.h>
#include <stdlib.h>

#include "common/rand.h"

/* A job that runs in the simulation, with facts that the policy does not see. */
struct simulated_run {
    size_t job;
    double step_s; /* true seconds per step */
    int64_t steps, ends_us;
};

struct simulator {
    const struct simulation *of;
    struct simulation_result *result;
    struct policy_account *accounts;
    struct policy_user *users;
    struct policy_job *queue;
    struct policy_run *runs;       /* the runs in the policies' form */
    struct simulated_run *running; /* [run] further facts about the runs */
    int64_t *away_since_us;
    struct device_set present;
    struct start_history history;
    size_t queued, run_count, arrived, changed;
    int64_t now_us;
    struct err *err;
};

static void simulator_fini(struct simulator *s)
{
    free(s->accounts);
    free(s->users);
    free(s->queue);
    free(s->runs);
    free(s->running);
    free(s->away_since_us);
}

static void *simulate_copy_of(const void *from, size_t count, size_t size)
{
    char *to = calloc(count + 1, size);
    if (to && count > 0)
        memcpy(to, from, count * size);
    return to;
}

static int simulator_init(struct simulator *s, const struct simulation *of, struct simulation_result *result,
                          struct err *err)
{
    *s = (struct simulator){.of = of, .result = result, .now_us = of->begins_us, .err = err};
    *result = (struct simulation_result){0};
    s->accounts = simulate_copy_of(of->accounts, of->account_count, sizeof(*s->accounts));
    s->users = simulate_copy_of(of->users, of->user_count, sizeof(*s->users));
    s->queue = calloc(of->job_count + 1, sizeof(*s->queue));
    s->runs = calloc(of->device_count + 1, sizeof(*s->runs));
    s->running = calloc(of->device_count + 1, sizeof(*s->running));
    s->away_since_us = calloc(of->device_count + 1, sizeof(*s->away_since_us));
    result->outcomes = calloc(of->job_count + 1, sizeof(*result->outcomes));
    result->charged_s = calloc(of->account_count + 1, sizeof(*result->charged_s));
    if (!s->accounts || !s->users || !s->queue || !s->runs || !s->running || !s->away_since_us ||
        !result->outcomes || !result->charged_s)
        return err_set(err, ERR_NOMEM, "no memory for a simulation of %zu jobs", of->job_count);
    for (size_t i = 0; i < of->job_count; i++)
        result->outcomes[i] = (struct simulated_outcome){
            .starts_us = INT64_MAX, .ends_us = INT64_MAX, .dated_us = INT64_MAX, .dated_ends_us = INT64_MAX};
    for (size_t d = 0; d < of->device_count; d++)
        device_set_add(&s->present, d);
    return 0;
}

/* Advances the clock: charges the devices that jobs hold, and lets earlier use decay. */
static void pass_time(struct simulator *s, int64_t to_us)
{
    const double seconds = 1e-6 * (double)(to_us - s->now_us);
    const double half_life_s = s->of->settings->half_life_s;
    const double decay = exp2(-seconds / half_life_s);
    /* the charge at rate 1 over this time, decayed to its end */
    const double charged = (1 - decay) * half_life_s / log(2);
    for (size_t i = 0; i < s->of->account_count; i++)
        s->accounts[i].decayed *= decay;
    for (size_t i = 0; i < s->run_count; i++) {
        const struct policy_run *run = &s->runs[i];
        struct simulated_outcome *outcome = &s->result->outcomes[s->running[i].job];
        const double devices = (double)device_set_count(&run->devices);
        s->accounts[run->account].decayed += run->rate * charged;
        s->result->charged_s[run->account] += run->rate * seconds;
        s->result->busy_s += run->rate * seconds;
        s->result->held_s += devices * seconds;
        outcome->device_s += devices * seconds;
        outcome->charged_s += run->rate * seconds;
    }
    s->result->there_s += (double)device_set_count(&s->present) * seconds;
    s->now_us = to_us;
}

static void enqueue(struct simulator *s, size_t index, int64_t steps)
{
    const struct simulated_job *job = &s->of->jobs[index];
    s->queue[s->queued++] = (struct policy_job){.id = (int64_t)index,
                                                .eligible_us = job->arrives_us,
                                                .steps_left = steps,
                                                .priority = job->priority,
                                                .shape = job->shape,
                                                .user = job->user,
                                                .account = job->account,
                                                .devices_least = job->devices_least,
                                                .devices_most = job->devices_most,
                                                .service = job->service};
    if (s->queued > s->result->queue_max)
        s->result->queue_max = s->queued;
}

static void simulate_count_use(struct simulator *s, const struct policy_run *run, bool begins)
{
    const uint32_t devices = (uint32_t)device_set_count(&run->devices);
    struct policy_use *const uses[] = {&s->accounts[run->account].use, &s->users[run->user].use};
    for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
        uses[i]->devices = begins ? uses[i]->devices + devices : uses[i]->devices - devices;
        uses[i]->running = begins ? uses[i]->running + 1 : uses[i]->running - 1;
    }
}

static void remove_run(struct simulator *s, size_t at)
{
    simulate_count_use(s, &s->runs[at], false);
    s->run_count--;
    memmove(&s->runs[at], &s->runs[at + 1], (s->run_count - at) * sizeof(*s->runs));
    memmove(&s->running[at], &s->running[at + 1], (s->run_count - at) * sizeof(*s->running));
}

/* Returns the steps that a run has done up to its last checkpoint. */
static int64_t steps_kept(const struct simulator *s, size_t at)
{
    int64_t elapsed_us = s->now_us - s->runs[at].started_us;
    if (s->of->checkpoint_us > 0)
        elapsed_us -= elapsed_us % s->of->checkpoint_us;
    const int64_t done = (int64_t)(1e-6 * (double)elapsed_us / s->running[at].step_s);
    return done < s->running[at].steps ? done : s->running[at].steps;
}

static void change_device(struct simulator *s, const struct simulated_change *change)
{
    if (change->there) {
        device_set_add(&s->present, change->device);
        return;
    }
    device_set_remove(&s->present, change->device);
    s->away_since_us[change->device] = s->now_us;
    for (size_t i = 0; i < s->run_count; i++) {
        if (device_set_has(&s->runs[i].devices, change->device)) {
            const int64_t left = s->running[i].steps - steps_kept(s, i);
            s->result->outcomes[s->running[i].job].losses++;
            enqueue(s, s->running[i].job, left > 0 ? left : 1);
            remove_run(s, i);
            return;
        }
    }
}

/* Handles the runs that end, devices that change and jobs that arrive at the present time. Returns whether
 * any did. */
static bool happen(struct simulator *s)
{
    bool any = false;
    for (size_t i = 0; i < s->run_count;) {
        if (s->running[i].ends_us <= s->now_us) {
            s->result->outcomes[s->running[i].job].ends_us = s->now_us;
            remove_run(s, i);
            any = true;
        } else {
            i++;
        }
    }
    for (; s->changed < s->of->change_count && s->of->changes[s->changed].at_us <= s->now_us; s->changed++) {
        change_device(s, &s->of->changes[s->changed]);
        any = true;
    }
    for (; s->arrived < s->of->job_count && s->of->jobs[s->arrived].arrives_us <= s->now_us; s->arrived++) {
        enqueue(s, s->arrived, s->of->jobs[s->arrived].steps);
        any = true;
    }
    return any;
}

static void digest(struct simulator *s, uint64_t value)
{
    /* FNV-1a (Fowler, Noll, Vo), applied to a word at a time */
    s->result->digest = (s->result->digest ^ value) * UINT64_C(0x100000001b3);
    s->result->digest ^= s->result->digest >> 29;
}

static int simulate_start(struct simulator *s, const struct policy_job *job, const struct policy_plan *plan)
{
    const struct simulated_job *of = &s->of->jobs[job->id];
    struct simulated_outcome *outcome = &s->result->outcomes[job->id];
    if (s->run_count >= s->of->device_count)
        return err_set(s->err, ERR_INTERNAL, "job %lld: more runs than devices", (long long)job->id);
    for (size_t i = 0; i < s->run_count; i++) {
        struct device_set left = plan->devices;
        device_set_subtract(&left, &s->runs[i].devices);
        if (!device_set_equal(&left, &plan->devices))
            return err_set(s->err, ERR_INTERNAL, "job %lld: a device is given twice", (long long)job->id);
    }
    struct policy_run *run = &s->runs[s->run_count];
    const double predicted_us = 1e6 * plan->step_s * (double)job->steps_left;
    const double true_us = predicted_us * of->error;
    const double rate =
        job->service == SERVICE_SCAVENGER ? plan->rate * s->of->settings->scavenger_charge : plan->rate;
    *run = (struct policy_run){.job = job->id,
                               .started_us = s->now_us,
                               .ends_us = s->now_us + (int64_t)ceil(predicted_us),
                               .rate = rate,
                               .user = job->user,
                               .account = job->account,
                               .service = job->service,
                               .devices = plan->devices};
    s->running[s->run_count++] = (struct simulated_run){.job = (size_t)job->id,
                                                        .step_s = plan->step_s * of->error,
                                                        .steps = job->steps_left,
                                                        .ends_us = s->now_us + (int64_t)ceil(true_us)};
    simulate_count_use(s, run, true);
    if (outcome->starts_us == INT64_MAX)
        outcome->starts_us = s->now_us;
    if (outcome->said_count > 0 && outcome->starts_us == s->now_us)
        start_history_add(&s->history,
                          &(struct start_sample){1e-6 * (double)(outcome->said_starts_us - outcome->said_us),
                                                 1e-6 * (double)(s->now_us - outcome->said_us),
                                                 outcome->said_place});
    return 0;
}

/* Keeps one prediction of the job's start: each prediction so far has the same probability (reservoir
 * sampling). */
static void note_prediction(struct simulator *s, const struct policy_action *action, int64_t job)
{
    struct simulated_outcome *outcome = &s->result->outcomes[job];
    struct rand_stream stream;
    double from_s, to_s;
    outcome->said_count++;
    rand_stream_init(&stream, (uint64_t)job, outcome->said_count);
    if (outcome->starts_us != INT64_MAX || rand_stream_below(&stream, outcome->said_count) > 0)
        return;
    outcome->said_us = s->now_us;
    outcome->said_starts_us = action->starts_us;
    outcome->said_place = action->place;
    outcome->said_from_us = outcome->said_to_us = INT64_MAX;
    if (!start_range(&s->history, 1e-6 * (double)(action->starts_us - s->now_us), action->place, &from_s,
                     &to_s))
        return;
    outcome->said_from_us = s->now_us + (int64_t)(1e6 * from_s);
    outcome->said_to_us = s->now_us + (int64_t)(1e6 * to_s);
}

static int simulate_apply(struct simulator *s, const struct policy_decision *decision)
{
    size_t kept = 0;
    for (size_t i = 0; i < decision->count; i++) {
        const struct policy_action *action = &decision->actions[i];
        struct policy_job *job = &s->queue[action->job];
        struct simulated_outcome *outcome = &s->result->outcomes[job->id];
        if (action->plan) {
            digest(s, (uint64_t)job->id);
            digest(s, (uint64_t)action->starts_us);
            digest(s, (uint64_t)action->reason);
            for (size_t w = 0; w < (s->of->device_count + 63) / 64; w++)
                digest(s, action->plan->devices.words[w]);
        }
        if (action->verdict == VERDICT_START) {
            if (simulate_start(s, job, action->plan) < 0)
                return -1;
            job->id = -1;
            continue;
        }
        outcome->waited_for = action->reason;
        if (action->starts_us != INT64_MAX)
            note_prediction(s, action, job->id);
        if (action->plan && outcome->dated_us == INT64_MAX) {
            outcome->dated_us = action->starts_us;
            outcome->dated_ends_us =
                action->starts_us + (int64_t)ceil(1e6 * action->plan->step_s * (double)job->steps_left);
        }
    }
    for (size_t i = 0; i < s->queued; i++)
        if (s->queue[i].id >= 0)
            s->queue[kept++] = s->queue[i];
    s->queued = kept;
    return 0;
}

static int simulate_decide(struct simulator *s)
{
    const struct policy_snapshot snapshot = {.account_count = s->of->account_count,
                                             .user_count = s->of->user_count,
                                             .job_count = s->queued,
                                             .run_count = s->run_count,
                                             .interval_count = s->of->interval_count,
                                             .device_count = s->of->device_count,
                                             .accounts = s->accounts,
                                             .users = s->users,
                                             .jobs = s->queue,
                                             .runs = s->runs,
                                             .intervals = s->of->intervals,
                                             .present = s->present,
                                             .away_since_us = s->away_since_us};
    struct policy_decision decision;
    for (size_t i = 0; i < s->run_count; i++)
        if (s->now_us - s->runs[i].started_us >= s->of->measure_us)
            s->runs[i].ends_us = s->running[i].ends_us;
    if (s->of->policy(&snapshot, s->of->settings, s->of->planner, s->now_us, &decision, s->err) < 0)
        return -1;
    s->result->decisions++;
    const int rc = simulate_apply(s, &decision);
    policy_decision_fini(&decision);
    return rc;
}

static void take_earlier(int64_t *next_us, int64_t at_us)
{
    if (at_us < *next_us)
        *next_us = at_us;
}

/* Returns the time of the next event, or of the next decision that is due without one. */
static int64_t find_next(const struct simulator *s)
{
    int64_t next_us = s->of->ends_us;
    bool late = device_set_count(&s->present) < s->of->device_count;
    for (size_t i = 0; i < s->run_count; i++) {
        take_earlier(&next_us, s->running[i].ends_us);
        late = late || s->runs[i].ends_us <= s->now_us;
    }
    if (s->arrived < s->of->job_count)
        take_earlier(&next_us, s->of->jobs[s->arrived].arrives_us);
    if (s->changed < s->of->change_count)
        take_earlier(&next_us, s->of->changes[s->changed].at_us);
    for (size_t i = 0; i < s->of->interval_count; i++)
        if (s->of->intervals[i].ends_us > s->now_us)
            take_earlier(&next_us, s->of->intervals[i].ends_us);
    if (late && s->queued > 0 && s->of->again_us > 0)
        take_earlier(&next_us, s->now_us + s->of->again_us);
    return next_us;
}

int simulation_run(const struct simulation *simulation, struct simulation_result *result, struct err *err)
{
    struct simulator s;
    int rc = simulator_init(&s, simulation, result, err);
    while (rc == 0) {
        const bool any = happen(&s);
        if (s.queued > 0)
            rc = simulate_decide(&s);
        const bool idle = s.arrived == simulation->job_count && s.queued == 0 && s.run_count == 0;
        const int64_t next_us = find_next(&s);
        if (rc < 0 || idle || (!any && next_us <= s.now_us))
            break;
        pass_time(&s, next_us);
        if (next_us >= simulation->ends_us)
            break;
    }
    simulator_fini(&s);
    if (rc < 0)
        simulation_result_fini(result);
    return rc;
}

void simulation_result_fini(struct simulation_result *result)
{
    free(result->outcomes);
    free(result->charged_s);
    *result = (struct simulation_result){0};
}
