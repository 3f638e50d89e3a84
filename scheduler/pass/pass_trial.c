/* Trial steps: a job's first steps are run on its best plans in turn, and the one that was fastest is kept
 * (docs/PLANNER.md, Trial steps). All plans compute the same numbers, so nothing is lost but the moves.
 *
 * A trial begins with the job's first run, if its planner knew plans that may be as fast as the best one.
 * What it has measured, and the index of the plan that runs or runs next (`at`), stand in the job's row of
 * `trials`: the rows that stop a run and those that say what comes next are written together, so that a
 * scheduler may be killed at any moment. A run ends for its trial with STOP_YIELD, as in any move. Any other
 * end, and jobs that wait for devices, end the trial.
 */
#include "scheduler/pass/pass.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/log.h"
#include "common/units.h"
#include "planner/answer/answer.h"
#include "scheduler/pass/lifecycle.h"

/* A plan is measured over so many steps at least, and over so many seconds, but not over more than STEPS_MOST
 * steps; the first one fills caches and counts for nothing. */
enum { STEPS_LEAST = 5, STEPS_MOST = 256 };
#define SECONDS_LEAST 2.0
/* Looks at a run in a trial are so far apart at least. */
#define LOOK_LEAST_S 0.2
/* The relative error of a forecast where fewer than eight runs were measured: 15.9 % at the mean over six
 * kinds of placement on two CPU devices (bench/accuracy_kinds.py). Forecasts that are off by more than
 * UNSURE_MOST say nothing of plans' order, and trying all plans takes longer than planning anew. */
#define UNSURE_DEFAULT 0.15
#define UNSURE_MOST (1 / 3.0)

/* ---- documents ---- */

static size_t at_of(const json_t *trial)
{
    return (size_t)json_integer_value(json_object_get(trial, "at"));
}

static json_t *plan_at(const json_t *trial, size_t i)
{
    return json_array_get(json_object_get(trial, "plans"), i);
}

static size_t plan_count(const json_t *trial)
{
    return json_array_size(json_object_get(trial, "plans"));
}

static double pass_trial_number_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* Returns the index of the plan that was measured fastest; without one that of the first. */
static size_t fastest_of(const json_t *trial)
{
    size_t best = 0;
    for (size_t i = 0; i < plan_count(trial); i++) {
        const double seconds = pass_trial_number_of(plan_at(trial, i), "measured_s");
        const double least = pass_trial_number_of(plan_at(trial, best), "measured_s");
        if (seconds > 0 && (!(least > 0) || seconds < least))
            best = i;
    }
    return best;
}

static size_t tried_count(const json_t *trial)
{
    size_t count = 0;
    for (size_t i = 0; i < plan_count(trial); i++)
        count += pass_trial_number_of(plan_at(trial, i), "measured_s") > 0 ? 1 : 0;
    return count;
}

/* Writes the trial's state. `next`: index of the plan with which the job's next run begins. Takes `trial`. */
static void write_trial(struct scheduler_pass *pass, int64_t job, json_t *trial, const char *state,
                        size_t next)
{
    const char *digest = json_text_of(plan_at(trial, next), "digest");
    json_object_set_new(trial, "state", json_string(state));
    json_object_set_new(trial, "at", json_integer((json_int_t)next));
    json_object_set_new(trial, "plan", json_string(digest));
    pass_add(pass, pass->trials,
             json_pack("{s:I, s:b, s:o, s:s}", "job", (json_int_t)job, "open",
                       (int)(strcmp(state, "trying") == 0), "document", trial, "plan", digest));
}

/* ---- beginning ---- */

static json_t *pass_trial_describe(const char *digest, const json_t *placement, json_t *devices,
                                   double step_s)
{
    json_t *one = json_pack("{s:s, s:O, s:o, s:f, s:n}", "digest", digest, "placement", placement, "devices",
                            devices, "predicted_s", step_s, "measured_s");
    return one;
}

static json_t *pass_trial_devices_of(const struct placer_answer *answer)
{
    json_t *devices = json_array();
    for (size_t i = 0; i < answer->rank_count; i++)
        json_array_append_new(devices, json_string(answer->ranks[i].device));
    return devices;
}

/* Returns the plans that lie within the forecasts' uncertainty, the answer's first, and their documents in
 * `whole`: a forecast T with the relative error u is one of T·(1 − u) to T·(1 + u). */
static json_t *plans_within(const struct placer_answer *answer, double unsure, json_t *whole)
{
    const double step_s = pass_trial_number_of(answer->answer, "step_s");
    const char *digest = json_text_of(answer->plan, "digest");
    json_t *plans = json_array(), *rival;
    size_t i;
    json_array_append_new(plans, pass_trial_describe(digest, json_object_get(answer->answer, "placement"),
                                                     pass_trial_devices_of(answer), step_s));
    json_object_set(whole, digest, answer->plan);
    json_array_foreach (answer->rivals, i, rival) {
        const double rival_s = pass_trial_number_of(rival, "step_s");
        if (rival_s * (1 - unsure) > step_s * (1 + unsure))
            continue;
        json_array_append_new(
            plans, pass_trial_describe(json_text_of(rival, "digest"), json_object_get(rival, "placement"),
                                       json_incref(json_object_get(rival, "devices")), rival_s));
        json_object_set(whole, json_text_of(rival, "digest"), json_object_get(rival, "plan"));
    }
    return plans;
}

void pass_begin_trial(struct scheduler_pass *pass, const struct pass_start *start)
{
    const struct placer_answer *answer = &start->answer;
    const double spread = pass->view->forecast_spread;
    const double unsure =
        fmin(fmax(spread < 0 ? UNSURE_DEFAULT : spread, pass_trial_number_of(answer->answer, "uncertainty")),
             UNSURE_MOST);
    if (start->job->attempt > 0 || start->checkpoint_step >= 0 || json_array_size(answer->rivals) == 0)
        return;
    json_t *whole = json_object(), *plans = plans_within(answer, unsure, whole);
    const double step_s = pass_trial_number_of(answer->answer, "step_s");
    if (json_array_size(plans) > 1) {
        const char *digest = json_text_of(answer->plan, "digest");
        const double tokens = step_s * pass_trial_number_of(answer->answer, "tokens_per_s");
        pass_add(pass, pass->trials,
                 json_pack("{s:I, s:b, s:{s:s, s:i, s:i, s:s, s:f, s:f, s:f, s:f, s:O}, s:O, s:s}", "job",
                           (json_int_t)start->job->id, "open", 1, "document", "state", "trying", "at", 0,
                           "moves", 0, "plan", digest, "unsure", unsure, "step_tokens", tokens, "budget_s",
                           ANSWER_TRIAL_SHARE * step_s * (double)start->job->steps, "spent_s", 0.0, "plans",
                           plans, "plans", whole, "plan", digest));
    }
    json_decref(plans);
    json_decref(whole);
}

/* ---- measuring ---- */

static int by_seconds(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the lower quartile of the steps' seconds, each as if it had `tokens` tokens (0: as it was); 0
 * without a step. Not the median: what else runs on a machine can only lengthen a step. */
static double quartile_s(const json_t *lines, double tokens)
{
    double seconds[STEPS_MOST];
    size_t count = 0, i;
    json_t *line;
    json_array_foreach (lines, i, line) {
        const double took = json_number_value(json_array_get(line, 0));
        const double had = json_number_value(json_array_get(line, 1));
        if (took > 0 && count < STEPS_MOST)
            seconds[count++] = tokens > 0 && had > 0 ? took * tokens / had : took;
    }
    qsort(seconds, count, sizeof(seconds[0]), by_seconds);
    return count == 0 ? 0 : seconds[(count - 1) / 4];
}

/* Returns how many steps each rank must have measured: one more than are looked at and the first, since the
 * lines of one step come from several ranks. */
static uint32_t steps_wanted(const struct store_sched_run *run)
{
    const double steps = run->step_s > 0 ? ceil(SECONDS_LEAST / run->step_s) : STEPS_LEAST;
    return 2 + (uint32_t)fmin(fmax(steps, STEPS_LEAST), STEPS_MOST);
}

/* Whether each rank has measured enough. If not, the next pass is scheduled for when it should have: reports
 * of steps start none. */
static bool pass_trial_is_measured(struct scheduler_pass *pass, const struct store_sched_run *run)
{
    uint32_t least = run->rank_count > 0 ? UINT32_MAX : 0;
    for (uint32_t k = 0; k < run->rank_count; k++)
        least = run->ranks[k].measured < least ? run->ranks[k].measured : least;
    if (least >= steps_wanted(run))
        return true;
    const double look_s = 1e-3 * pass->scheduler->config->limits.look_ms;
    const double left_s = fmin(fmax((steps_wanted(run) - least) * run->step_s, LOOK_LEAST_S), look_s);
    pass_check_at(pass, pass->view->now_us + (int64_t)(1e6 * left_s));
    return false;
}

/* Adds what the run measured to the trial: the seconds of a step, and what the plan's trial has cost, which
 * are the move to it and what its steps took longer than the first plan's. Returns the seconds of a restart.
 */
static double take_measure(json_t *trial, const json_t *fact)
{
    const size_t at = at_of(trial);
    json_t *plan = plan_at(trial, at);
    const json_t *lines = json_object_get(fact, "lines");
    const double seconds = quartile_s(lines, pass_trial_number_of(trial, "step_tokens"));
    const double first = pass_trial_number_of(plan_at(trial, 0), "measured_s"),
                 gap = pass_trial_number_of(fact, "gap_s");
    const double longer = at > 0 ? (seconds - first) * (double)json_array_size(lines) : 0;
    json_object_set_new(plan, "measured_s", seconds > 0 ? json_real(seconds) : json_null());
    json_object_set_new(
        trial, "spent_s",
        json_real(pass_trial_number_of(trial, "spent_s") + (at > 0 ? gap : 0) + fmax(longer, 0)));
    return fmax(fmax(pass_trial_number_of(fact, "started_s"), at > 0 ? gap : 0), ANSWER_TRIAL_MOVE_S);
}

/* ---- what comes next ---- */

/* Whether the plan's devices are the run's or free. */
static bool can_have(struct scheduler_pass *pass, const struct store_sched_run *run, const json_t *plan)
{
    const bool others = pass_somebody_waits(pass);
    size_t i;
    json_t *device;
    if (!pass->free_found)
        pass_find_free(pass);
    json_array_foreach (json_object_get(plan, "devices"), i, device) {
        const struct store_sched_device *known = pass_device(pass, json_string_value(device));
        bool has = known && !others && pass->free_devices[known - pass->view->devices];
        for (uint32_t k = 0; k < run->rank_count; k++)
            has = has || strcmp(run->ranks[k].device, json_string_value(device)) == 0;
        if (!has)
            return false;
    }
    return true;
}

/* Returns the next plan to try, or 0 where none is left, can be had, and is worth its part of the budget: the
 * way there and back, and what its steps are expected to take longer. */
static size_t next_plan(struct scheduler_pass *pass, const struct store_sched_run *run, const json_t *trial,
                        double restart_s)
{
    const json_t *first = plan_at(trial, 0);
    const double off = pass_trial_number_of(first, "measured_s") / pass_trial_number_of(first, "predicted_s");
    for (size_t i = at_of(trial) + 1; i < plan_count(trial); i++) {
        const json_t *plan = plan_at(trial, i);
        const double longer =
            off * pass_trial_number_of(plan, "predicted_s") - pass_trial_number_of(first, "measured_s");
        const double steps = fmax(STEPS_LEAST, SECONDS_LEAST / pass_trial_number_of(plan, "predicted_s"));
        const double costs = 2 * restart_s + fmax(longer, 0) * fmin(steps, STEPS_MOST);
        if (pass_trial_number_of(trial, "spent_s") + costs <= pass_trial_number_of(trial, "budget_s") &&
            can_have(pass, run, plan))
            return i;
    }
    return 0;
}

static void note_move(struct scheduler_pass *pass, int64_t job, const json_t *plan)
{
    json_t *decision = json_pack("{s:{s:O}}", "new", "devices", json_object_get(plan, "devices"));
    pass_note_move(pass, job, decision);
    json_decref(decision);
}

static void count_move(json_t *trial)
{
    json_object_set_new(trial, "moves",
                        json_integer(json_integer_value(json_object_get(trial, "moves")) + 1));
}

/* Writes what was tried: "pipeline on a/0, b/0 took 1.2 s per step (1.1 s predicted); …". */
static void say_tried(const json_t *trial, char *text, size_t size)
{
    size_t used = 0, i, k;
    json_t *plan, *device;
    char took[32], said[32];
    *text = '\0';
    json_array_foreach (json_object_get(trial, "plans"), i, plan) {
        const double seconds = pass_trial_number_of(plan, "measured_s");
        if (!(seconds > 0) || used + 1 >= size)
            continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s on", used ? "; " : "",
                                 json_text_of(plan, "placement"));
        json_array_foreach (json_object_get(plan, "devices"), k, device)
            if (used < size && k < 4)
                used += (size_t)snprintf(text + used, size - used, "%s %s", k ? "," : "",
                                         json_string_value(device));
        if (used < size)
            used += (size_t)snprintf(text + used, size - used, "%s took %s per step (%s predicted)",
                                     k > 4 ? " and others" : "", units_seconds(took, seconds),
                                     units_seconds(said, pass_trial_number_of(plan, "predicted_s")));
    }
}

/* Ends the trial with the plan of that index. Takes `trial`. why: what ended it early, or NULL. */
static void end_trial(struct scheduler_pass *pass, const struct store_sched_job *job, json_t *trial,
                      size_t chosen, const char *why)
{
    char tried[700], words[1000], saves[32], spent[32];
    const json_t *plan = plan_at(trial, chosen);
    const int64_t left = job->steps > job->reported ? job->steps - job->reported : 0;
    const double saves_s = fmax(0, pass_trial_number_of(plan_at(trial, 0), "measured_s") -
                                       pass_trial_number_of(plan, "measured_s")) *
                           (double)left;
    say_tried(trial, tried, sizeof(tried));
    units_seconds(saves, saves_s);
    units_seconds(spent, pass_trial_number_of(trial, "spent_s"));
    if (why)
        snprintf(words, sizeof(words), "trial steps were given up: %s%s%s", why,
                 *tried ? ". Until then " : "", tried);
    else if (tried_count(trial) < 2)
        snprintf(words, sizeof(words), "trial steps: %s; another plan was not worth a try", tried);
    else if (chosen == 0)
        snprintf(words, sizeof(words), "trial steps: %s. It keeps the first plan; the trial took %s", tried,
                 spent);
    else
        snprintf(words, sizeof(words),
                 "trial steps: %s. It keeps %s, which saves %s over the %lld steps left; the trial took %s",
                 tried, json_text_of(plan, "placement"), saves, (long long)left, spent);
    json_object_set_new(trial, "chosen", json_integer((json_int_t)chosen));
    json_object_set_new(trial, "saves_s", json_real(why ? 0 : saves_s));
    json_object_set_new(trial, "words", json_string(words));
    if (why || tried_count(trial) > 1)
        pass_say(pass, job->id, "info", "%s.", words);
    log_event(LOG_LEVEL_INFO, why ? "trial_given_up" : "trial_done",
              "job=%lld chosen=%zu tried=%zu spent_s=%.3g "
              "saves_s=%.3g",
              (long long)job->id, chosen, tried_count(trial), pass_trial_number_of(trial, "spent_s"),
              saves_s);
    write_trial(pass, job->id, trial, why ? "given up" : "done", chosen);
}

/* Decides after a plan was measured. Takes `trial`. Returns whether the run is to stop. */
static bool pass_trial_go_on(struct scheduler_pass *pass, const struct store_sched_run *run,
                             const struct store_sched_job *job, json_t *trial, double restart_s, char *text,
                             size_t size)
{
    const size_t at = at_of(trial), next = next_plan(pass, run, trial, restart_s), best = fastest_of(trial);
    if (next > 0) {
        snprintf(text, size, "trial steps: its next ones are on plan %zu of %zu, %s", next + 1,
                 plan_count(trial), json_text_of(plan_at(trial, next), "placement"));
        note_move(pass, job->id, plan_at(trial, next));
        count_move(trial);
        write_trial(pass, job->id, trial, "trying", next);
        return true;
    }
    const double gains_s = (pass_trial_number_of(plan_at(trial, at), "measured_s") -
                            pass_trial_number_of(plan_at(trial, best), "measured_s")) *
                           (double)(job->steps - job->reported);
    const bool returns = best != at && gains_s > restart_s && can_have(pass, run, plan_at(trial, best));
    if (returns) {
        snprintf(text, size, "trial steps: goes on with the fastest plan, %s",
                 json_text_of(plan_at(trial, best), "placement"));
        note_move(pass, job->id, plan_at(trial, best));
        count_move(trial);
        json_object_set_new(trial, "spent_s", json_real(pass_trial_number_of(trial, "spent_s") + restart_s));
    }
    end_trial(pass, job, trial, returns ? best : at, NULL);
    return returns;
}

bool pass_try(struct scheduler_pass *pass, const struct store_sched_run *run,
              const struct store_sched_job *job, char *text, size_t size)
{
    struct fact fact;
    struct err err;
    char key[48];
    *text = '\0';
    if (run->state != RUN_RUNNING)
        return false;
    if (pass_others_wait(pass, job)) {
        end_trial(pass, job, json_deep_copy(run->trial), fastest_of(run->trial),
                  "other jobs wait for devices");
        return false;
    }
    if (!pass_trial_is_measured(pass, run))
        return false;
    snprintf(key, sizeof(key), "%lld/%u", (long long)run->id, steps_wanted(run));
    const int got = facts_get(pass->scheduler->facts, FACT_TRIAL, key, &fact, &err);
    if (got <= 0)
        return false; /* the next look asks again */
    json_t *trial = json_deep_copy(run->trial);
    const char *repeats = json_text_of(fact.document, "repeats");
    if (strcmp(repeats, json_text_of(plan_at(trial, at_of(trial)), "digest")) != 0) {
        end_trial(pass, job, trial, fastest_of(trial), "the devices of the next plan could not be had");
        return false;
    }
    const double restart_s = take_measure(trial, fact.document);
    if (!(pass_trial_number_of(plan_at(trial, at_of(trial)), "measured_s") > 0)) {
        end_trial(pass, job, trial, fastest_of(trial), "its steps told no times");
        return false;
    }
    return pass_trial_go_on(pass, run, job, trial, restart_s, text, size);
}

void pass_end_trial(struct scheduler_pass *pass, const struct store_sched_run *run,
                    const struct store_sched_job *job, const struct run_verdict *verdict)
{
    const bool moves = verdict->job_event == JOB_EVENT_REQUEUE && run->stop_why == STOP_YIELD &&
                       run->killed_us == 0 && verdict->losses == 0;
    if (run->trial && !moves)
        end_trial(pass, job, json_deep_copy(run->trial), fastest_of(run->trial),
                  verdict->job_event == JOB_EVENT_REQUEUE ? "its run ended otherwise" : "the job ended");
}

void pass_unpin(struct scheduler_pass *pass, int64_t job)
{
    pass_add(pass, pass->trials, json_pack("{s:I, s:n}", "job", (json_int_t)job, "plan"));
}
