/* Weighs whether a run whose devices have become slower than planned should move, with the rule of
 * replay/replan.h. When the rule says so, the run is stopped with a checkpoint and goes on elsewhere.
 *
 * A change of the devices' speeds begins a series of weighings, which ends with the move or with the first
 * weighing that shows no worthwhile gain. Weighings are look_ms apart, or ten times the duration of one where
 * that is more. A new leader begins the series anew. */
#include "scheduler/pass/pass.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/log.h"
#include "replay/replan.h"

/* Hashes the speeds of a run's devices; 0 when none is throttled. */
static uint64_t speeds_of(const struct scheduler_pass *pass, const struct store_sched_run *run)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a over thousandths of the full speed */
    bool slower = false;
    for (uint32_t k = 0; k < run->rank_count; k++) {
        uint64_t heat = 1000;
        for (size_t i = 0; i < pass->view->device_count; i++) {
            if (strcmp(pass->view->devices[i].name, run->ranks[k].device) == 0) {
                heat = (uint64_t)lround(pass->view->devices[i].heat * 1000);
            }
        }
        slower = slower || heat < 1000;
        hash = (hash ^ heat) * 1099511628211u;
    }
    return slower ? hash | 1 : 0;
}

/* Returns the note on the run; if there is none and `wanted` is true, a new one. NULL when there is none, or
 * without memory (the next pass tries again). */
static struct run_weighing *weighing_of(struct scheduler *scheduler, int64_t run, bool wanted)
{
    for (size_t i = 0; i < scheduler->weighing_count; i++) {
        if (scheduler->weighings[i].run == run) {
            return &scheduler->weighings[i];
        }
    }
    struct err ignored; /* the next pass tries again */
    if (!wanted || ARRAY_RESERVE(scheduler->weighings, scheduler->weighing_capacity,
                                 scheduler->weighing_count + 1, &ignored) < 0) {
        return NULL;
    }
    scheduler->weighings[scheduler->weighing_count] = (struct run_weighing){.run = run};
    return &scheduler->weighings[scheduler->weighing_count++];
}

void pass_forget_weighings(struct scheduler_pass *pass)
{
    struct scheduler *scheduler = pass->scheduler;
    for (size_t i = scheduler->weighing_count; i-- > 0;) {
        if (!scheduler->weighings[i].kept) {
            scheduler->weighings[i] = scheduler->weighings[--scheduler->weighing_count];
        } else {
            scheduler->weighings[i].kept = false;
        }
    }
}

static void settle(struct run_weighing *weighing, uint64_t speeds)
{
    weighing->settled = speeds;
    weighing->windows = 0;
}

/* Returns 1 with *answer, 0 while it is being planned, or -1 when it cannot be weighed. */
static int weigh(struct scheduler_pass *pass, const struct store_sched_run *run,
                 const struct run_weighing *weighing, struct placer_answer *answer, struct err *err)
{
    struct fact fact;
    char key[48];
    snprintf(key, sizeof(key), "%lld/%u", (long long)run->id, weighing->count);
    int there = facts_get(pass->scheduler->facts, FACT_RUN, key, &fact, err);
    if (there <= 0) {
        return there;
    }
    const json_t *document = fact.document;
    json_int_t left = json_integer_value(json_object_get(document, "steps")) -
                      json_integer_value(json_object_get(document, "step"));
    const struct placer_move move = {.plan = json_object_get(document, "plan"),
                                     .steps_left = left > 0 ? (uint64_t)left : 0,
                                     .restart_s = json_number_value(json_object_get(document, "started_s")),
                                     .windows = weighing->windows};
    const struct store_sched_job asked = {.spec = json_object_get(document, "spec"),
                                          .inputs = json_object_get(document, "inputs")};
    return pass_weigh_move(pass, run, &asked, &move, answer, err);
}

static void say(struct scheduler_pass *pass, const struct store_sched_run *run, const char *words)
{
    pass_add(pass, pass->said,
             json_pack("{s:I, s:s, s:s}", "job", (json_int_t)run->job, "level", "info", "text", words));
}

/* Ends a weighing. Returns whether the run moves. */
static bool conclude(struct scheduler_pass *pass, const struct store_sched_run *run,
                     struct run_weighing *weighing, uint64_t speeds, const json_t *decision, char *text,
                     size_t size)
{
    const char *verdict = json_string_value(json_object_get(decision, "verdict"));
    const char *words = json_string_value(json_object_get(decision, "words"));
    bool moves = verdict != NULL && (strcmp(verdict, "move") == 0 || strcmp(verdict, "must") == 0);
    weighing->windows = (uint32_t)json_integer_value(json_object_get(decision, "windows"));
    snprintf(text, size, "%s", moves && words != NULL ? words : "");
    if (moves || weighing->windows == 0 || weighing->windows >= REPLAN_WINDOWS) {
        settle(weighing, speeds);
        say(pass, run, words != NULL ? words : "its devices are slower than planned");
    }
    return moves;
}

bool pass_must_move(struct scheduler_pass *pass, const struct store_sched_run *run, char *text, size_t size)
{
    const struct scheduler_limits *limits = &pass->scheduler->config->limits;
    const uint64_t speeds = speeds_of(pass, run);
    struct run_weighing *weighing = weighing_of(pass->scheduler, run->id, speeds != 0);
    struct placer_answer answer = {0};
    struct err err;
    if (weighing == NULL) {
        return false;
    }
    weighing->kept = true;
    if (speeds == weighing->settled) {
        weighing->windows = 0;
        return false;
    }
    if (pass->now_ns < weighing->next_ns) {
        pass_check_at(pass, pass->view->now_us + (int64_t)((weighing->next_ns - pass->now_ns) / 1000));
        return false;
    }
    if (weighing->began_ns == 0) {
        weighing->began_ns = pass->now_ns;
        weighing->count++;
    }
    int weighed = weigh(pass, run, weighing, &answer, &err);
    if (weighed == 0) {
        return false;
    }
    uint64_t pause_ns = 10 * (pass->now_ns - weighing->began_ns);
    pause_ns =
        pause_ns > (uint64_t)limits->look_ms * 1000000 ? pause_ns : (uint64_t)limits->look_ms * 1000000;
    weighing->next_ns = pass->now_ns + pause_ns;
    weighing->began_ns = 0;
    pass_check_at(pass, pass->view->now_us + (int64_t)(pause_ns / 1000));
    if (weighed < 0) {
        log_event(LOG_LEVEL_WARN, "move_not_weighed", "run=%lld why=\"%s\"", (long long)run->id, err.text);
        settle(weighing, speeds);
        return false;
    }
    bool moves = conclude(pass, run, weighing, speeds, answer.answer, text, size);
    placer_answer_fini(&answer);
    return moves;
}
