/* Handles the queue: lets the policies decide about the jobs of the view, and carries out their decision. */
#include "scheduler/pass/job_class.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/clock.h"
#include "common/units.h"
#include "scheduler/pass/pass_list.h"
#include "scheduler/pass/pass_queue.h"
#include "scheduler/pass/plan_memo.h"
#include "scheduler/pass/shares.h"

/* People may ask what would let a job start sooner only about this many first jobs of the queue. */
enum { FRONT_MAX = 128 };
/* Microseconds between renewals of a job's predicted start, while the job waits for absent devices or for a
 * predicted start that has passed. */
#define CLAIMS_US 1000000

/* ---- devices ---- */

void pass_find_free(struct scheduler_pass *pass)
{
    pass->free_found = true;
    for (size_t i = 0; i < pass->view->device_count; i++) {
        const struct store_sched_device *device = &pass->view->devices[i];
        pass->free_devices[i] = device_can_start(pass, i) && !pass_lease(pass, device->name) &&
                                !pass_is_measured(pass, device) && !pass_runs_something(pass, device->name);
    }
}

/* ---- outcomes ---- */

/* Returns the code that is shown for the reason of the action. */
static const char *wait_code(const struct scheduler_pass *pass, const struct store_sched_job *job,
                             const struct policy_action *action)
{
    if (action->reason == REASON_ABSENT && action->subject < (int64_t)pass->view->device_count &&
        pass_is_measured(pass, &pass->view->devices[action->subject])) /* it is there */
        return "measuring";
    return pass_wait_code(action->reason == REASON_DEVICES && pass_yields_to(pass, action->subject, job->id)
                              ? REASON_YIELDS
                              : action->reason);
}

/* Returns the job that the reason names, or -1. */
static int64_t subject_of(const struct policy_action *action)
{
    switch (action->reason) {
    case REASON_DEVICES:
    case REASON_RESERVED:
    case REASON_YIELDS:
    case REASON_WIDTH:
    case REASON_SLOW:
        return action->subject;
    default:
        return -1;
    }
}

/* Says from when on a free device is kept from jobs: its node leaves, or it is booked. */
static bool say_interval(const struct scheduler_pass *pass, const struct store_sched_node *node,
                         const struct store_sched_device *device, char text[240])
{
    char at[24];
    if (node->leaves_us != INT64_MAX) {
        snprintf(text, 240, "its machine is taken away soon: jobs leave it at %s",
                 clock_words_us(node->leaves_us, at));
        return true;
    }
    const struct store_sched_lease *first = NULL;
    for (size_t i = 0; i < pass->view->lease_count; i++) {
        const struct store_sched_lease *lease = &pass->view->leases[i];
        if (strcmp(lease->device, device->name) == 0 && lease->begins_us > pass->view->now_us &&
            (!first || lease->begins_us < first->begins_us))
            first = lease;
    }
    if (first)
        snprintf(text, 240, "booked by %s from %s on", first->holder, clock_words_us(first->begins_us, at));
    return first != NULL;
}

/* interval: the policies let the job wait for a device that is kept from jobs later. */
static const char *why_not_usable(const struct scheduler_pass *pass, size_t i, bool interval, char text[240])
{
    char usable[32];
    const struct store_sched_device *device = &pass->view->devices[i];
    const struct store_sched_node *node = pass_node(pass, device->node);
    if (!node || !node->reachable)
        return "unreachable";
    if (!device->present)
        return "missing: its agent no longer names it";
    if (node_is_leaving(pass, node))
        return "its agent is stopping";
    if (device->drained && device->drain_why) {
        snprintf(text, 240, "drained: %s", device->drain_why);
        return text;
    }
    if (device->drained)
        return "drained";
    if (device->lacks) {
        snprintf(text, 240, "cannot run a worker: %s", device->lacks);
        return text;
    }
    const struct store_sched_lease *lease = pass_lease(pass, device->name);
    if (lease) {
        snprintf(text, 240, "leased by %s", lease->holder);
        return text;
    }
    if (pass_is_measured(pass, device))
        return "being measured";
    if (device_is_taken(device)) {
        snprintf(text, 240, "others hold memory of it: %s are left",
                 units_bytes(usable, device->usable_bytes));
        return text;
    }
    if (!pass->free_devices[i])
        return "busy";
    return interval && say_interval(pass, node, device, text) ? text : "kept for a job in front";
}

/* Says which devices the job waits for (class->wanted), and why each is not available. `kept`: the free ones
 * among them are reserved for other jobs. action: NULL, or why the policies let the job wait. */
static void say_waits(struct scheduler_pass *pass, const struct job_class *class,
                      const struct store_sched_job *job, bool kept, const struct policy_action *action)
{
    char text[400] = "", why[240], before[48] = "";
    size_t used = 0;
    bool absent = false, others = false; /* whether a device that it may have is there */
    if (action && action->reason == REASON_RESERVED && action->subject > 0)
        snprintf(before, sizeof(before), "; job %lld goes first", (long long)action->subject);
    for (size_t i = 0; i < pass->view->device_count && used < sizeof(text); i++) {
        others = others || (class->allowed[i] && device_is_there(pass, i));
        if (class->wanted[i] &&
            (kept || !pass->free_devices[i] || device_is_taken(&pass->view->devices[i]))) {
            int more = snprintf(text + used, sizeof(text) - used, "%s%s (%s)", used > 0 ? ", " : "",
                                pass->view->devices[i].name,
                                why_not_usable(pass, i, action && action->reason == REASON_INTERVAL, why));
            used += more > 0 ? (size_t)more : 0;
            absent = absent || !device_is_there(pass, i);
        }
    }
    const bool forced = absent && others && job_class_forces_kind(class) &&
                        strcmp(job_class_word(class, "fallback"), "any") != 0;
    pass_wait(pass, job, action ? wait_code(pass, job, action) : "absent", action ? subject_of(action) : -1,
              "waits for %s%s%s%s%s", text[0] != '\0' ? text : "devices",
              forced ? ", as placement.kind is " : "", forced ? job_class_word(class, "kind") : "",
              forced ? "; with placement.fallback: any it need not" : "", before);
}

static void want(struct scheduler_pass *pass, struct job_class *class, const struct placer_answer *answer)
{
    for (size_t i = 0; i < pass->view->device_count; i++) {
        class->wanted[i] = false;
        for (size_t k = 0; k < answer->rank_count; k++)
            class->wanted[i] =
                class->wanted[i] || strcmp(answer->ranks[k].device, pass->view->devices[i].name) == 0;
    }
}

/* Asks whether the job would fit on the devices of `mask` if these were cool and no other process used their
 * memory; if so, records that the job waits for them. Returns 1 then, 0 while the planner is searching, -1
 * with err when the job would not fit. */
static int would_fit(struct scheduler_pass *pass, struct job_class *class, const struct store_sched_job *job,
                     const bool *mask, struct err *err)
{
    struct placer_answer ideal;
    int planned = job_class_plan(pass, class, mask, false, NULL, &ideal, err);
    if (planned <= 0)
        return planned;
    const bool fits = ideal.fits;
    if (fits) {
        want(pass, class, &ideal);
        say_waits(pass, class, job, false, NULL);
    } else {
        err_set(err, ERR_NOFIT, "%s", ideal.words);
    }
    placer_answer_fini(&ideal);
    return fits ? 1 : -1;
}

/* Handles a job of whose devices none can be priced. Returns whether it waits for a measurement, or for
 * devices that cannot be measured because they are not free. */
static bool waits_for_a_price(struct scheduler_pass *pass, struct job_class *class,
                              const struct store_sched_job *job)
{
    bool taken = false;
    if (pass_wait_unmeasured(pass, job, class))
        return true;
    for (size_t i = 0; i < pass->view->device_count; i++) {
        class->wanted[i] = class->known[i];
        taken = taken || (class->known[i] && !pass->free_devices[i]);
    }
    if (taken)
        say_waits(pass, class, job, false, NULL);
    return taken;
}

/* Handles a job that fits on no present devices in their present condition. If it would fit on all present
 * devices when they are cool and idle, or else on all devices ever seen, it waits for them; otherwise
 * pass_give_up decides. */
static void fits_nowhere(struct scheduler_pass *pass, struct job_class *class,
                         const struct store_sched_job *job)
{
    struct err err = class->err;
    bool taken = false;
    int fits = -1;
    for (size_t i = 0; i < pass->view->device_count; i++)
        taken = taken || (class->allowed[i] && device_is_taken(&pass->view->devices[i]));
    if (taken || class->usable_count < class->allowed_count)
        fits = would_fit(pass, class, job, class->allowed, &err);
    if (fits < 0 && err.code != ERR_NOMEM && class->allowed_count < class->known_count)
        fits = would_fit(pass, class, job, class->known, &err);
    if (fits < 0 && (err.code != ERR_BUSY || !waits_for_a_price(pass, class, job)))
        pass_give_up(pass, job, &err);
}

/* Measures devices for people who asked for a plan without submitting a job, as long as no job takes the
 * devices. */
static void measure_wanted(struct scheduler_pass *pass)
{
    struct scheduler *scheduler = pass->scheduler;
    const uint64_t pause_ns = (uint64_t)scheduler->config->limits.remeasure_ms * 1000000;
    if (pass->view->measure_count > 0 && pass->now_ns > scheduler->remeasured_ns + pause_ns) {
        scheduler->remeasured_ns = pass->now_ns;
        facts_refresh_profiles(scheduler->facts);
    }
    if (pass->view->measure_count > 0)
        pass_check_at(pass, pass->view->now_us + (int64_t)(pause_ns / 1000));
    for (size_t i = 0; i < pass->view->measure_count && pass->start_count == 0; i++) {
        const struct store_sched_measure *asked = &pass->view->measures[i];
        struct job_class class;
        struct err err;
        if (job_class_init(pass, asked->spec, asked->inputs, NULL, &class) < 0)
            return;
        if (job_class_facts(pass, &class, &err) == 1)
            pass_profiles(pass, NULL, &class);
        job_class_fini(&class);
    }
}

/* ---- the snapshot ---- */

static void fill_run(struct queue *queue, const struct store_sched_run *from,
                     const struct store_sched_job *job)
{
    const struct store_view *view = queue->pass->view;
    const struct use_shares *shares = queue->pass->scheduler->shares;
    struct policy_run run = {.job = from->job,
                             .started_us = from->started_us > 0 ? from->started_us : from->created_us,
                             .ends_us = INT64_MAX,
                             .rate = shares_rate(shares, from->job),
                             .user = shares_user(shares, job->owner),
                             .account = shares_leaf(shares, job->owner, job->account),
                             .service = (enum policy_service)job->service};
    const double left_s = pass_step_s(from) * (double)(job->steps - job->reported);
    if (from->step_s > 0 && left_s < 1e9)
        run.ends_us = view->now_us + (int64_t)(left_s > 0 ? left_s * 1e6 : 0);
    if (job->time_limit_ms > 0) {
        const int64_t limit_us = from->created_us + 1000 * (job->time_limit_ms - job->used_ms);
        run.ends_us = limit_us < run.ends_us ? limit_us : run.ends_us;
    }
    if (job->state == JOB_STOPPING || from->state == RUN_STOPPING) {
        const int64_t since_us = from->stopping_us > 0 ? from->stopping_us : view->now_us;
        const int64_t stops_us = since_us + (int64_t)(1e6 * pass_save_s(queue->pass, from));
        run.ends_us = stops_us < run.ends_us ? stops_us : run.ends_us;
    }
    if (from->save_by_us > 0 && from->save_by_us < run.ends_us)
        run.ends_us = from->save_asked_us + (int64_t)(1e6 * pass_save_s(queue->pass, from));
    if (pass_can_save(queue->pass, from, job))
        run.save_s = pass_save_s(queue->pass, from);
    for (uint32_t k = 0; k < from->rank_count; k++)
        for (size_t d = 0; d < view->device_count && d < POLICY_DEVICES_MAX; d++)
            if (!state_is_final(&assignment_machine, (int)from->ranks[k].state) &&
                strcmp(view->devices[d].name, from->ranks[k].device) == 0)
                device_set_add(&run.devices, d);
    struct device_set to = {0};
    if (from->state == RUN_STOPPING && pass_moves_to(queue->pass, from->job, &to))
        for (size_t d = 0; d < view->device_count && d < POLICY_DEVICES_MAX; d++)
            if (device_set_has(&to, d) && queue->pass->free_devices[d])
                device_set_add(&run.devices, d);
    if (run.user != POLICY_NONE && run.account != POLICY_NONE && !device_set_is_empty(&run.devices))
        queue->runs[queue->snapshot.run_count++] = run;
}

static void fill_runs(struct queue *queue)
{
    const struct store_view *view = queue->pass->view;
    for (size_t i = 0; i < view->run_count; i++)
        for (size_t k = 0; k < view->job_count; k++)
            if (view->jobs[k].id == view->runs[i].job)
                fill_run(queue, &view->runs[i], &view->jobs[k]);
}

/* Fills in which devices are present, and since when the others are absent or unfit. */
static void fill_devices(struct queue *queue)
{
    struct scheduler_pass *pass = queue->pass;
    struct policy_snapshot *snapshot = &queue->snapshot;
    snapshot->device_count =
        pass->view->device_count < POLICY_DEVICES_MAX ? pass->view->device_count : POLICY_DEVICES_MAX;
    for (size_t d = 0; d < snapshot->device_count; d++) {
        const struct store_sched_device *device = &pass->view->devices[d];
        const bool present = device_can_start(pass, d);
        if (present)
            device_set_add(&snapshot->present, d);
        /* A device that is being measured is neither held by a run nor fit for one. */
        const bool fit = device->usable_bytes > 0 && !pass_is_measured(pass, device);
        if (present && !fit)
            device_set_add(&snapshot->unfit, d);
        queue->away_us[d] = pass_away(pass, device->name, !present || !fit);
        queue->owners[d] =
            device->owner > 0 ? shares_group(pass->scheduler->shares, device->owner) : POLICY_NONE;
    }
    snapshot->owners = queue->owners;
    queue->there = snapshot->present;
    device_set_subtract(&queue->there, &snapshot->unfit);
    snapshot->away_since_us = queue->away_us;
}

static int queue_init(struct queue *queue, struct scheduler_pass *pass)
{
    const struct store_view *view = pass->view;
    struct err err;
    *queue = (struct queue){.pass = pass};
    queue->front = calloc(FRONT_MAX, sizeof(*queue->front));
    queue->runs = calloc(view->run_count + 1, sizeof(*queue->runs));
    queue->away_us = calloc(view->device_count + 1, sizeof(*queue->away_us));
    queue->owners = calloc(view->device_count + 1, sizeof(*queue->owners));
    queue->intervals = pass_intervals(pass, &queue->snapshot.interval_count);
    if (!queue->front || !queue->runs || !queue->away_us || !queue->owners || !queue->intervals ||
        shares_begin(pass->scheduler->shares, view, pass->scheduler->queue,
                     pass->scheduler->config->sharing.half_life_s, &err) < 0 ||
        pass_take(queue) < 0)
        return -1;
    fill_runs(queue);
    fill_devices(queue);
    shares_fill(pass->scheduler->shares, &queue->snapshot);
    queue->snapshot.jobs = queue->facts;
    queue->snapshot.runs = queue->runs;
    queue->snapshot.intervals = queue->intervals;
    return 0;
}

static void queue_fini(struct queue *queue)
{
    for (size_t i = 0; i < queue->class_count; i++)
        job_class_fini(&queue->classes[i]);
    free(queue->classes);
    free(queue->class_at);
    free(queue->leaves);
    free(queue->front);
    free(queue->said);
    free(queue->jobs);
    free(queue->facts);
    free(queue->avoid);
    free(queue->moves_to);
    free(queue->runs);
    free(queue->away_us);
    free(queue->owners);
    free(queue->intervals);
}

/* ---- carrying out the decision ---- */

static enum policy_fit pass_place_best(void *arg, uint32_t shape, const struct device_set *among,
                                       uint16_t most, struct policy_plan *plan)
{
    struct queue *queue = arg;
    return job_class_best(queue->pass, &queue->classes[shape], &queue->there, among, most, plan);
}

/* Starts the job on the plan, if its devices are still free. */
static void pass_place_start(struct queue *queue, const struct queue_job *of, const struct policy_plan *plan)
{
    struct scheduler_pass *pass = queue->pass;
    struct job_class *class = &queue->classes[of->class];
    struct placer_answer answer;
    struct err err;
    for (size_t d = device_set_next(&plan->devices, 0); d < POLICY_DEVICES_MAX;
         d = device_set_next(&plan->devices, d + 1))
        /* this pass has already taken the device: the next pass decides again */
        if (!pass->free_devices[d] || pass->reserved[d]) {
            pass_check_at(pass, pass->view->now_us + 100000);
            return;
        }
    int got = job_class_get(pass, class, &queue->there, plan, &answer);
    if (got <= 0) /* the planner is still searching: the pass after its answer starts the job */
        return;
    if (ARRAY_RESERVE(pass->starts, pass->start_capacity, pass->start_count + 1, &err) < 0) {
        placer_answer_fini(&answer);
        pass->failed = true;
        return;
    }
    struct pass_start *start = &pass->starts[pass->start_count];
    *start = (struct pass_start){.job = of->job,
                                 .answer = answer,
                                 .model = json_incref((json_t *)(uintptr_t)class->model.document),
                                 .train = json_incref((json_t *)(uintptr_t)class->train.document),
                                 .eval = json_incref((json_t *)(uintptr_t)class->eval.document),
                                 .step_s = plan->step_s,
                                 .factor = of->job->service == SERVICE_SCAVENGER
                                               ? pass->scheduler->config->sharing.scavenger_charge
                                               : 1,
                                 .speeds = json_object()};
    pass->start_count++;
    pass_record_start(pass, of->job, class->digest, job_class_speeds_document(pass, class), plan);
    for (size_t d = device_set_next(&plan->devices, 0); d < POLICY_DEVICES_MAX;
         d = device_set_next(&plan->devices, d + 1)) {
        pass->free_devices[d] = false;
        if (class->speeds[d] > 0)
            json_object_set_new(start->speeds, pass->view->devices[d].name, json_real(class->speeds[d]));
    }
    snprintf(start->reference, sizeof(start->reference), "%s", class->reference);
    snprintf(start->key, sizeof(start->key), "%s", class->key);
    if (pass_is_doubtful(class))
        pass_want_measures(pass, class);
    const char *kind = json_string_value(json_object_get(start->answer.plan, "placement"));
    const json_t *corrected = json_object_get(start->answer.answer, "corrected");
    const int runs = (int)json_integer_value(json_object_get(corrected, "runs"));
    char step[32];
    if (runs > 0)
        pass_say(pass, of->job->id, "info", "a step is to take %s, corrected by %d run%s: %+.0f %%",
                 units_seconds(step, plan->step_s), runs, runs == 1 ? "" : "s",
                 100 * (json_number_value(json_object_get(corrected, "times")) - 1));
    if (class->any_kind)
        pass_say(pass, of->job->id, "warn", "%s%s", class->fell, kind ? kind : "another kind");
}

/* Records which devices the job waits for: those of its reservation, or those that it would take if all
 * devices were free. */
static void wait_for_devices(struct queue *queue, const struct queue_job *of,
                             const struct policy_action *action)
{
    struct scheduler_pass *pass = queue->pass;
    struct job_class *class = &queue->classes[of->class];
    struct policy_plan ideal = {0};
    struct device_set all = {0}, its = queue->there;
    const struct device_set *avoid = queue->facts[of - queue->jobs].avoid;
    const struct policy_plan *plan = action->plan;
    if (avoid)
        device_set_subtract(&its, avoid);
    for (size_t d = 0; d < queue->snapshot.device_count; d++)
        device_set_add(&all, d);
    /* A job uses the devices that it avoids only where it fits on no others. */
    if (!plan && (job_class_best(pass, class, &queue->there, action->reason == REASON_ABSENT ? &all : &its, 0,
                                 &ideal) == FIT_YES ||
                  (avoid && job_class_best(pass, class, &queue->there, &queue->there, 0, &ideal) == FIT_YES)))
        plan = &ideal;
    bool free_one = false;
    for (size_t d = 0; d < pass->view->device_count; d++) {
        class->wanted[d] =
            plan ? d < POLICY_DEVICES_MAX && device_set_has(&plan->devices, d) : class->known[d];
        free_one = free_one || (class->wanted[d] && pass->free_devices[d]);
    }
    say_waits(pass, class, of->job,
              free_one && (action->reason == REASON_RESERVED || action->reason == REASON_INTERVAL), action);
}

static void wait_for_limit(struct queue *queue, const struct queue_job *of,
                           const struct policy_action *action)
{
    struct scheduler_pass *pass = queue->pass;
    const bool user = action->reason <= REASON_USER_MONTH;
    const char *who = user ? pass->view->users[action->subject].name
                           : shares_name(pass->scheduler->shares, (uint16_t)action->subject);
    const char *kind = user ? "user" : "group", *code = pass_wait_code(action->reason);
    if (action->reason == REASON_USER_DEVICES || action->reason == REASON_ACCOUNT_DEVICES)
        pass_wait(pass, of->job, code, -1, "waits: %s %s may hold %.0f device%s at once", kind, who,
                  action->number, action->number == 1 ? "" : "s");
    else if (action->reason == REASON_USER_RUNNING || action->reason == REASON_ACCOUNT_RUNNING)
        pass_wait(pass, of->job, code, -1, "waits: %s %s may run %.0f job%s at once", kind, who,
                  action->number, action->number == 1 ? "" : "s");
    else
        pass_wait(pass, of->job, code, -1,
                  "waits: %s %s has used the %.0f device-seconds that it may use in 30 days", kind, who,
                  action->number);
}

/* Writes the job's predicted start and wait code, if they differ from those that were written last. A
 * predicted start that moves by less than a tenth of the wait does not count as different. */
static void write_start(struct scheduler_pass *pass, const struct store_sched_job *job,
                        const struct job_class *class, const struct policy_action *action)
{
    const int64_t starts_us = action->starts_us == INT64_MAX ? 0 : action->starts_us;
    const int64_t moved_us = llabs(starts_us - job->starts_us),
                  wait_us = llabs(starts_us - pass->view->now_us);
    const int64_t subject = subject_of(action);
    const char *code = wait_code(pass, job, action);
    const bool same = strcmp(job->wait_code, code) == 0 && job->wait_subject == subject &&
                      (starts_us > 0) == (job->starts_us > 0) &&
                      moved_us <= (wait_us > 10000000 ? wait_us / 10 : 1000000);
    if (same)
        return;
    const struct pass_prediction predicted = pass_predict(pass, action->place, starts_us);
    json_t *row =
        json_pack("{s:I, s:I, s:s, s:o}", "job", (json_int_t)job->id, "starts_us", (json_int_t)starts_us,
                  "code", code, "subject", subject >= 0 ? json_integer(subject) : json_null());
    if (row && predicted.to_us > 0) {
        json_object_set_new(row, "from_us", json_integer(predicted.from_us));
        json_object_set_new(row, "to_us", json_integer(predicted.to_us));
    }
    pass_add(pass, pass->places, row);
    if (job->wait_code[0] == '\0' || starts_us > 0)
        pass_record_wait(pass, job, class->digest, job_class_speeds_document(pass, class), &predicted);
}

/* Handles a job that fits on no set of devices of the size that it may take now. It waits if only the limits
 * or placement.count keep it from fitting. */
static void fits_nowhere_or_waits(struct queue *queue, const struct queue_job *of)
{
    struct scheduler_pass *pass = queue->pass;
    struct job_class *class = &queue->classes[of->class];
    struct device_set all = {0};
    struct policy_plan plan;
    for (size_t d = 0; d < queue->snapshot.device_count; d++)
        device_set_add(&all, d);
    const unsigned least = queue->facts[of - queue->jobs].devices_least;
    const enum policy_fit fit = job_class_best(pass, class, &queue->there, &all, 0, &plan);
    if (fit == FIT_NO)
        fits_nowhere(pass, class, of->job);
    else if (fit == FIT_YES && device_set_count(&plan.devices) < least)
        pass_wait(pass, of->job, "no-fit", -1,
                  "waits: placement.count.least is %u, and on all devices it would use %zu", least,
                  device_set_count(&plan.devices));
    else if (fit == FIT_YES)
        pass_wait(
            pass, of->job, "no-fit", -1,
            "waits: its plan needs %zu devices at once, more than the limits of its user and groups leave it",
            device_set_count(&plan.devices));
}

/* Says why the job waits. shown: the job is refused if it fits nowhere. */
static void say_reason(struct queue *queue, const struct queue_job *of, const struct policy_action *action,
                       bool shown)
{
    struct scheduler_pass *pass = queue->pass;
    switch (action->reason) {
    case REASON_PLANNING: /* the pass after the planner's answer decides */
        pass_wait(pass, of->job, "planning", -1, "its plan is being searched for");
        break;
    case REASON_NOFIT:
        if (shown)
            fits_nowhere_or_waits(queue, of);
        pass_wait(pass, of->job, "no-fit", -1,
                  "fits on no devices that are there, as far as is known so far");
        break;
    case REASON_USER_DEVICES:
    case REASON_USER_RUNNING:
    case REASON_USER_MONTH:
    case REASON_ACCOUNT_DEVICES:
    case REASON_ACCOUNT_RUNNING:
    case REASON_ACCOUNT_MONTH:
        wait_for_limit(queue, of, action);
        break;
    default:
        wait_for_devices(queue, of, action);
        break;
    }
}

/* Records the place of a job that waits, and why. */
static void say_place(struct queue *queue, const struct queue_job *of, const struct policy_action *action,
                      bool shown)
{
    struct scheduler_pass *pass = queue->pass;
    struct queue_said *said = &queue->said[of->class];
    pass_list_place(pass, of->job);
    if (shown || action->starts_us != INT64_MAX || of->job->starts_us > 0)
        write_start(pass, of->job, &queue->classes[of->class], action);
    if (action->reason == REASON_RESERVED || action->reason == REASON_SLOW || action->reason == REASON_ABSENT)
        pass_check_at(pass, pass->view->now_us + CLAIMS_US);
    if (!pass->list && (action->reason != REASON_NOFIT || !shown))
        return;
    if (said->listed > 0 && said->reason == action->reason && said->subject == action->subject &&
        said->number == action->number && said->plan == action->plan &&
        (action->reason != REASON_NOFIT || !shown)) {
        pass_list_alike(pass, of->job, said->listed);
        return;
    }
    say_reason(queue, of, action, shown);
    *said = (struct queue_said){action->reason, action->subject, action->number, action->plan,
                                pass_list_reason(pass, of->job)};
}

/* Requests the profiles that a job's class lacks, on devices that are still free. */
static void pass_place_measure(struct queue *queue, const struct queue_job *of, bool shown)
{
    struct scheduler_pass *pass = queue->pass;
    struct job_class *class = &queue->classes[of->class];
    pass_list_place(pass, of->job);
    pass_drop_start(pass, of->job, "measuring");
    if (shown || !class->asked_for) {
        job_class_devices(pass, class);
        pass_profiles(pass, of->job, class);
        class->asked_for = true;
    }
    pass_wait(pass, of->job, "measuring", -1, "waits until devices are free to be measured for its model");
}

/* Whether the job is among the first ones of its user within its account. */
static bool is_shown(struct queue *queue, const struct queue_job *of)
{
    struct queue_leaf *leaf = &queue->leaves[of->job->leaf];
    return leaf->shown < queue->shown_most && ++leaf->shown > 0;
}

/* Carries out the decision in the order of the queue, so that a job in front has its devices measured before
 * a job behind it takes them. */
static int carry_out_all(struct queue *queue, const struct policy_decision *decision, struct err *err)
{
    const size_t count = queue->job_count;
    const double no_charge = 0;
    uint32_t *order = calloc(count + 1, sizeof(*order));
    size_t *actions = calloc(count + 1, sizeof(*actions));
    queue->said = calloc(queue->class_count + 1, sizeof(*queue->said));
    int rc = order && actions && queue->said ? 0 : err_set(err, ERR_NOMEM, "no memory for the queue");
    queue->snapshot.job_count = count;
    if (rc == 0 && count > queue->ready_count)
        rc = policy_order(&queue->snapshot, &queue->pass->scheduler->config->sharing, &no_charge, 0,
                          queue->pass->view->now_us, order, err);
    for (size_t i = 0; i < decision->count && rc == 0; i++) {
        actions[decision->actions[i].job] = i;
        if (count == queue->ready_count)
            order[i] = (uint32_t)decision->actions[i].job;
    }
    for (size_t i = 0; i < count && rc == 0; i++) {
        const struct queue_job *of = &queue->jobs[order[i]];
        const bool ready = order[i] < queue->ready_count;
        const struct policy_action *action = ready ? &decision->actions[actions[order[i]]] : NULL;
        if (action && action->verdict == VERDICT_START) {
            const size_t started = queue->pass->start_count;
            pass_place_start(queue, of, action->plan);
            if (queue->pass->start_count > started) {
                pass_list_leave(queue->pass, of->job);
            } else {
                pass_list_place(queue->pass, of->job);
                pass_wait(queue->pass, of->job, "planning", -1, "is about to start");
            }
            continue;
        }
        const bool shown = is_shown(queue, of);
        if (action)
            say_place(queue, of, action, shown);
        else
            pass_place_measure(queue, of, shown);
    }
    free(order);
    free(actions);
    return rc;
}

/* Whether a device is left that is free and not reserved. */
static bool something_is_left(const struct scheduler_pass *pass)
{
    for (size_t i = 0; i < pass->view->device_count; i++)
        if (pass->free_devices[i] && !pass->reserved[i])
            return true;
    return false;
}

static int pass_place_decide(struct scheduler_pass *pass, struct queue *queue, struct err *err)
{
    const struct policy_planner planner = {.best = pass_place_best, .arg = queue};
    struct policy_decision decision = {0};
    queue->snapshot.job_count = queue->ready_count;
    int rc = policy_decide(&queue->snapshot, &pass->scheduler->config->sharing, &planner, pass->view->now_us,
                           &decision, err);
    if (rc == 0)
        rc = carry_out_all(queue, &decision, err);
    for (size_t i = 0; rc == 0 && i < decision.count && i < FRONT_MAX; i++)
        queue->front[queue->front_count++] = (uint32_t)decision.actions[i].job;
    for (size_t i = 0; i < decision.preemption_count && rc == 0; i++)
        pass_yield(pass, &queue->runs[decision.preemptions[i].run], decision.preemptions[i].rule,
                   queue->facts[decision.preemptions[i].job].id);
    policy_decision_fini(&decision);
    return rc;
}

void pass_queue(struct scheduler_pass *pass)
{
    struct queue queue;
    struct err err;
    pass_find_free(pass);
    pass_list_begin(pass);
    plan_memo_begin(pass->scheduler->memo, pass->view, facts_profiles_seen(pass->scheduler->facts));
    if (queue_init(&queue, pass) < 0 || pass_place_decide(pass, &queue, &err) < 0)
        pass->failed = true;
    else if (pass->start_count == 0 && something_is_left(pass))
        pass->scheduler->queue_mark = queue.further;
    if (pass->scheduler->queue_mark.set && pass->start_count == 0 && something_is_left(pass))
        pass_check_at(pass, pass->view->now_us);
    if (!pass->failed && pass->start_count == 0)
        pass_sooner(&queue);
    pass_list_end(pass);
    measure_wanted(pass);
    pass->scheduler->devices_free = something_is_left(pass);
    queue_fini(&queue);
}
