/* Decides whether a run should move to other devices, with the rule of replay/replan.h. When the rule says
 * so, the run is stopped with a checkpoint and goes on elsewhere.
 *
 * A weighing is one comparison of staying with moving. A series of weighings begins when something differs
 * from what the last series ended with (the first time: from what the plan counts on): the clock of a device,
 * the time that a rank needs to compute a step, or a device that is free. The series ends with the move or
 * with the first weighing that shows no worthwhile gain, and the job's log then says why. Weighings are
 * look_ms apart, or ten times the duration of one if that is more; where the reason is a measured time, each
 * needs MEASURED_STEPS further steps. A new leader begins the series anew.
 */
#include "scheduler/pass/pass.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/hash.h"
#include "common/log.h"
#include "replay/replan.h"

/* MEASURED_STEPS: steps that a rank must have measured. STAYS_MAX: the pause after a series without a move
 * doubles this often, to 64 times look_ms (5 minutes). */
enum { MEASURED_STEPS = 4, STAYS_MAX = 6 };
/* A rank whose measured compute time is within a factor 1 + DRIFT of the expected one runs as planned, since
 * predictions are no more exact. */
#define DRIFT 0.1

enum cause { CAUSE_NONE, CAUSE_HEAT, CAUSE_DRIFT, CAUSE_FREE };

struct reason {
    enum cause cause;
    char device[160]; /* CAUSE_FREE only */
    char text[240];
};

/* Hashes the heat factors of a run's devices; returns 0 when no device is throttled. */
static uint64_t heat_of(const struct scheduler_pass *pass, const struct store_sched_run *run)
{
    uint64_t hash = HASH_BEGIN;
    bool slower = false;
    for (uint32_t k = 0; k < run->rank_count; k++) {
        uint64_t heat = 1000; /* thousandths of the full speed */
        for (size_t i = 0; i < pass->view->device_count; i++)
            if (strcmp(pass->view->devices[i].name, run->ranks[k].device) == 0)
                heat = (uint64_t)lround(pass->view->devices[i].heat * 1000);
        slower = slower || heat < 1000;
        hash = hash_bytes(hash, &heat, sizeof(heat));
    }
    return slower ? hash | 1 : 0;
}

static void weighing_fini(struct run_weighing *weighing)
{
    free(weighing->settled_drift);
    free(weighing->compute_s);
    json_decref(weighing->settled_free);
}

/* Returns the run's record of considered moves, a new one if there is none; NULL without memory (the next
 * pass tries again). */
static struct run_weighing *weighing_of(struct scheduler *scheduler, int64_t run, uint32_t rank_count)
{
    for (size_t i = 0; i < scheduler->weighing_count; i++)
        if (scheduler->weighings[i].run == run)
            return &scheduler->weighings[i];
    struct err ignored; /* the next pass tries again */
    struct run_weighing made = {.run = run,
                                .rank_count = rank_count,
                                .settled_drift = calloc(rank_count + 1, sizeof(double)),
                                .compute_s = calloc(rank_count + 1, sizeof(double)),
                                .settled_free = json_object()};
    if (!made.settled_drift || !made.compute_s || !made.settled_free ||
        ARRAY_RESERVE(scheduler->weighings, scheduler->weighing_capacity, scheduler->weighing_count + 1,
                      &ignored) < 0) {
        weighing_fini(&made);
        return NULL;
    }
    for (uint32_t k = 0; k < rank_count; k++)
        made.settled_drift[k] = 1;
    scheduler->weighings[scheduler->weighing_count] = made;
    return &scheduler->weighings[scheduler->weighing_count++];
}

static void weighing_drop(struct scheduler *scheduler, size_t i)
{
    weighing_fini(&scheduler->weighings[i]);
    scheduler->weighings[i] = scheduler->weighings[--scheduler->weighing_count];
}

void pass_forget_weighings(struct scheduler *scheduler)
{
    while (scheduler->weighing_count > 0)
        weighing_drop(scheduler, scheduler->weighing_count - 1);
}

static bool is_active(const struct scheduler_pass *pass, int64_t run)
{
    for (size_t i = 0; i < pass->view->run_count; i++)
        if (pass->view->runs[i].id == run)
            return true;
    return false;
}

void pass_end_weighings(struct scheduler_pass *pass)
{
    struct scheduler *scheduler = pass->scheduler;
    for (size_t i = scheduler->weighing_count; i-- > 0;)
        if (!is_active(pass, scheduler->weighings[i].run))
            weighing_drop(scheduler, i);
}

/* ---- reasons ---- */

static const json_t *free_names(struct scheduler_pass *pass)
{
    if (pass->free_names)
        return pass->free_names;
    pass->free_names = json_object();
    if (!pass->free_found)
        pass_find_free(pass);
    for (size_t i = 0; i < pass->view->device_count; i++)
        if (pass->free_devices[i])
            json_object_set_new(pass->free_names, pass->view->devices[i].name, json_true());
    return pass->free_names;
}

/* Forgets devices that are no longer free, so that one that becomes free again is a new reason to consider a
 * move. */
static void forget_taken(struct scheduler_pass *pass, struct run_weighing *weighing)
{
    const char *device;
    json_t *one;
    void *next;
    json_object_foreach_safe (weighing->settled_free, next, device, one) {
        if (!json_object_get(free_names(pass), device))
            json_object_del(weighing->settled_free, device);
    }
}

void pass_note_run(struct scheduler_pass *pass, int64_t run, uint32_t rank_count)
{
    struct run_weighing *weighing = weighing_of(pass->scheduler, run, rank_count);
    for (size_t i = 0; weighing && i < pass->view->device_count; i++)
        if (pass->free_devices[i])
            json_object_set_new(weighing->settled_free, pass->view->devices[i].name, json_true());
}

/* Returns the rank's measured seconds of computing in a step, divided by the planned ones; 0: not measured
 * yet, or too small a part of the step. */
static double drift_of(const struct store_sched_run *run, const struct store_sched_rank *rank)
{
    const bool small = fmax(rank->compute_s, rank->busy_s) < REPLAN_PART * run->step_s;
    return rank->measured >= MEASURED_STEPS && rank->busy_s > 0 && !small ? rank->compute_s / rank->busy_s
                                                                          : 0;
}

/* Returns the least number of steps that any rank has measured. */
static uint32_t pass_move_steps_of(const struct store_sched_run *run)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t k = 0; k < run->rank_count; k++)
        least = run->ranks[k].measured < least ? run->ranks[k].measured : least;
    return least;
}

static bool find_drift(const struct store_sched_run *run, const struct run_weighing *weighing,
                       struct reason *reason)
{
    double most = log(1 + DRIFT);
    for (uint32_t k = 0; k < run->rank_count; k++) {
        const double drift = drift_of(run, &run->ranks[k]);
        const double away = drift > 0 ? fabs(log(drift / weighing->settled_drift[k])) : 0;
        if (away <= most)
            continue;
        most = away;
        reason->cause = CAUSE_DRIFT;
        snprintf(reason->text, sizeof(reason->text),
                 "%.120s computes %.3g s of a step where %.3g s were planned", run->ranks[k].device,
                 run->ranks[k].compute_s, run->ranks[k].busy_s);
    }
    return reason->cause == CAUSE_DRIFT;
}

static void find_free_device(struct scheduler_pass *pass, const struct run_weighing *weighing,
                             struct reason *reason)
{
    const char *device;
    json_t *one;
    if (pass_somebody_waits(pass))
        return;
    json_object_foreach ((json_t *)free_names(pass), device, one) {
        if (!json_object_get(weighing->settled_free, device)) {
            reason->cause = CAUSE_FREE;
            snprintf(reason->device, sizeof(reason->device), "%s", device);
            snprintf(reason->text, sizeof(reason->text), "%.120s is free", device);
            return;
        }
    }
}

static struct reason find_reason(struct scheduler_pass *pass, const struct store_sched_run *run,
                                 const struct run_weighing *weighing)
{
    struct reason reason = {0};
    if (heat_of(pass, run) != weighing->settled_heat) {
        reason.cause = CAUSE_HEAT;
        snprintf(reason.text, sizeof(reason.text), "the clocks of its devices have changed");
    } else if (!find_drift(run, weighing, &reason)) {
        find_free_device(pass, weighing, &reason);
    }
    return reason;
}

/* ---- one comparison of staying with moving ---- */

static void pass_move_settle(struct scheduler_pass *pass, const struct store_sched_run *run,
                             struct run_weighing *weighing)
{
    weighing->settled_heat = heat_of(pass, run);
    for (uint32_t k = 0; k < run->rank_count; k++)
        if (drift_of(run, &run->ranks[k]) > 0)
            weighing->settled_drift[k] = drift_of(run, &run->ranks[k]);
    if (!pass_somebody_waits(pass))
        json_object_update(weighing->settled_free, (json_t *)free_names(pass));
    weighing->windows = 0;
    weighing->began_ns = 0;
}

/* Fetches the facts about the run. Returns 1 with *fact, 0 while they are being fetched, -1 with err. */
static int get_run(struct scheduler_pass *pass, const struct run_weighing *weighing, struct fact *fact,
                   struct err *err)
{
    char key[48];
    snprintf(key, sizeof(key), "%lld/%u", (long long)weighing->run, weighing->count);
    return facts_get(pass->scheduler->facts, FACT_RUN, key, fact, err);
}

/* Asks the planner whether the run should move. Returns 1 with *answer, 0 while the planner is searching, or
 * -1 with err. */
static int pass_move_weigh(struct scheduler_pass *pass, const struct store_sched_run *run,
                           const struct run_weighing *weighing, const json_t *document,
                           struct placer_answer *answer, struct err *err)
{
    json_int_t left = json_integer_value(json_object_get(document, "steps")) -
                      json_integer_value(json_object_get(document, "step"));
    /* The restart's cost is multiplied by the number of moves so far plus one, so that wrong predictions
     * cannot move a job back and forth: the saved time must be worth all restarts so far. */
    const double restarts = 1 + json_number_value(json_object_get(document, "moves"));
    const struct placer_move move = {.plan = json_object_get(document, "plan"),
                                     .compute_s = weighing->compute_s,
                                     .rank_count = weighing->rank_count,
                                     .steps_left = left > 0 ? (uint64_t)left : 0,
                                     .restart_s =
                                         restarts * json_number_value(json_object_get(document, "started_s")),
                                     .windows = weighing->windows};
    const struct store_sched_measure asked = {.spec = json_object_get(document, "spec"),
                                              .inputs = json_object_get(document, "inputs")};
    return pass_weigh_move(pass, run, &asked, &move, answer, err);
}

/* Whether both arrays name the same devices. */
static bool same_devices(const json_t *a, const json_t *b)
{
    size_t i, k;
    json_t *one, *other;
    bool same = json_array_size(a) == json_array_size(b);
    json_array_foreach (a, i, one) {
        bool has = false;
        json_array_foreach (b, k, other)
            has = has || json_equal(one, other);
        same = same && has;
    }
    return same;
}

/* Whether the decision's new plan was run in the job's trial steps, and a step of it then took no less than
 * moves ask for. What was measured outweighs a forecast. */
static bool was_no_faster(const json_t *document, const json_t *decision)
{
    const json_t *new = json_object_get(decision, "new"), *trial = json_object_get(document, "trial");
    const double now_s = json_number_value(json_object_get(decision, "old_step_s"));
    size_t i;
    json_t *plan;
    bool slow = false;
    json_array_foreach (json_object_get(trial, "plans"), i, plan)
        slow = slow || (json_number_value(json_object_get(plan, "measured_s")) > (1 - REPLAN_GAIN) * now_s &&
                        json_equal(json_object_get(plan, "placement"), json_object_get(new, "placement")) &&
                        same_devices(json_object_get(plan, "devices"), json_object_get(new, "devices")));
    return slow && now_s > 0;
}

/* Returns why the job must not be moved, however much time a move would save, or NULL. */
static const char *why_stays(const json_t *document, const json_t *decision)
{
    const json_t *placement = json_object_get(json_object_get(document, "spec"), "placement");
    const char *move = json_string_value(json_object_get(placement, "move"));
    if (json_is_object(json_object_get(placement, "plan")))
        return " It stays, as it runs on the plan in placement.plan.";
    if (move && strcmp(move, "never") == 0)
        return " It stays, as placement.move is never.";
    return was_no_faster(document, decision) ? " It stays, as the new plan was no faster in its trial steps."
                                             : NULL;
}

/* Writes the result of a series of comparisons of staying with moving to the job's log and to `text`. */
static void say_verdict(struct scheduler_pass *pass, const struct store_sched_run *run,
                        const struct reason *reason, const char *more, const json_t *decision, char *text,
                        size_t size)
{
    const char *words = json_string_value(json_object_get(decision, "words"));
    char whole[1400];
    json_t *told = json_copy((json_t *)decision);
    json_object_set_new(told, "cause", json_string(reason->text));
    snprintf(whole, sizeof(whole), "a move was weighed, as %s. %.900s%s", reason->text, words ? words : "",
             more);
    snprintf(text, size, "%s", whole);
    pass_add(pass, pass->said,
             json_pack("{s:I, s:s, s:s, s:o}", "job", (json_int_t)run->job, "level", "info", "text", whole,
                       "move", told));
}

/* Ends one comparison of staying with moving. Returns whether the run moves. */
static bool conclude(struct scheduler_pass *pass, const struct store_sched_run *run,
                     struct run_weighing *weighing, const struct reason *reason, const json_t *document,
                     const json_t *decision, char *text, size_t size)
{
    const char *verdict = json_string_value(json_object_get(decision, "verdict"));
    const bool pays = verdict && (strcmp(verdict, "move") == 0 || strcmp(verdict, "must") == 0);
    const char *stays = why_stays(document, decision);
    const bool moves = pays && !stays;
    weighing->windows = (uint32_t)json_integer_value(json_object_get(decision, "windows"));
    weighing->steps = pass_move_steps_of(run);
    *text = '\0';
    if (moves) {
        pass_note_move(pass, run->job, decision);
        pass_unpin(pass, run->job);
    }
    if (pays || weighing->windows == 0 || weighing->windows >= REPLAN_WINDOWS) {
        pass_move_settle(pass, run, weighing);
        if (pays || pass->view->device_count > 1) /* else there is nowhere to go */
            say_verdict(pass, run, reason, pays && stays ? stays : "", decision, text, size);
    }
    return moves;
}

/* Begins one comparison of staying with moving: notes the compute times that are measured now. */
static void pass_move_begin(struct scheduler_pass *pass, const struct store_sched_run *run,
                            struct run_weighing *weighing)
{
    weighing->began_ns = pass->now_ns;
    weighing->asked_ns = 0;
    weighing->count++;
    for (uint32_t k = 0; k < run->rank_count; k++)
        weighing->compute_s[k] = drift_of(run, &run->ranks[k]) > 0 ? run->ranks[k].compute_s : 0;
}

/* Whether the next comparison of staying with moving may begin. If it is too early, the next pass is
 * scheduled for that time. */
static bool is_due(struct scheduler_pass *pass, const struct store_sched_run *run,
                   const struct run_weighing *weighing, const struct reason *reason)
{
    if (pass->now_ns < weighing->next_ns) {
        pass_check_at(pass, pass->view->now_us + (int64_t)((weighing->next_ns - pass->now_ns) / 1000));
        return false;
    }
    return weighing->began_ns != 0 || weighing->windows == 0 || reason->cause != CAUSE_DRIFT ||
           pass_move_steps_of(run) >= weighing->steps + MEASURED_STEPS;
}

/* Compares staying with moving once, for `reason`. Returns whether the run moves. */
static bool weigh_for(struct scheduler_pass *pass, const struct store_sched_run *run,
                      struct run_weighing *weighing, const struct reason *reason, char *text, size_t size)
{
    const uint64_t look_ns = (uint64_t)pass->scheduler->config->limits.look_ms * 1000000;
    struct placer_answer answer = {0};
    struct fact fact;
    struct err err;
    int weighed = get_run(pass, weighing, &fact, &err);
    if (weighed > 0 && reason->cause == CAUSE_FREE &&
        !pass_allows(json_object_get(fact.document, "spec"), reason->device)) {
        json_object_set_new(weighing->settled_free, reason->device, json_true());
        weighing->began_ns = 0;
        pass_check_at(pass, pass->view->now_us);
        return false;
    }
    if (weighed > 0 && weighing->asked_ns == 0)
        weighing->asked_ns = pass->now_ns;
    if (weighed > 0)
        weighed = pass_move_weigh(pass, run, weighing, fact.document, &answer, &err);
    if (weighed == 0)
        return false;
    uint64_t pause_ns = weighing->asked_ns > 0 ? 10 * (pass->now_ns - weighing->asked_ns) : 0;
    pause_ns = pause_ns > look_ns ? pause_ns : look_ns;
    weighing->next_ns = pass->now_ns + pause_ns;
    weighing->began_ns = 0;
    pass_check_at(pass, pass->view->now_us + (int64_t)(pause_ns / 1000));
    if (weighed < 0) {
        log_event(LOG_LEVEL_WARN, "move_not_weighed", "run=%lld why=\"%s\"", (long long)run->id, err.text);
        pass_move_settle(pass, run, weighing);
        return false;
    }
    bool moves = conclude(pass, run, weighing, reason, fact.document, answer.answer, text, size);
    /* The pause grows with the number of series that ended without a move. */
    if (!moves && weighing->windows == 0) {
        weighing->next_ns += look_ns << (weighing->stays < STAYS_MAX ? weighing->stays : STAYS_MAX);
        weighing->stays++;
    }
    placer_answer_fini(&answer);
    return moves;
}

bool pass_must_move(struct scheduler_pass *pass, const struct store_sched_run *run, char *text, size_t size)
{
    struct run_weighing *weighing = weighing_of(pass->scheduler, run->id, run->rank_count);
    if (!weighing || weighing->rank_count != run->rank_count)
        return false;
    forget_taken(pass, weighing);
    if (run->state != RUN_RUNNING)
        return false;
    /* Reports of steps do not start a scheduling pass. The next pass is scheduled in look_ms, so that the
     * times of steps are compared again. */
    pass_check_at(pass, pass->view->now_us + (int64_t)pass->scheduler->config->limits.look_ms * 1000);
    const struct reason reason = find_reason(pass, run, weighing);
    if (reason.cause == CAUSE_NONE) {
        weighing->windows = 0;
        weighing->began_ns = 0;
        return false;
    }
    if (!is_due(pass, run, weighing, &reason))
        return false;
    if (weighing->began_ns == 0)
        pass_move_begin(pass, run, weighing);
    return weigh_for(pass, run, weighing, &reason, text, size);
}
