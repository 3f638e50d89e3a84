/* Answers why a job waits, when it should start, and what would let it start sooner. */
#include "api/request/route.h"
#include "api/request/wait.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/units.h"
#include "store/health.h"
#include "store/jobs.h"
#include "store/records.h"

/* Adds to the reason what the scheduler cannot do, of this job or at all. */
static void add_scheduler(json_t *answer, json_t *scheduler)
{
    const char *why = json_string_value(json_object_get(scheduler, "why"));
    json_t *aside;
    size_t i;
    json_array_foreach (json_object_get(scheduler, "set_aside"), i, aside)
        if (json_equal(json_object_get(aside, "job"), json_object_get(answer, "id")) &&
            !strstr(json_text_of(answer, "why"), "is set aside until"))
            json_object_set_new(answer, "why",
                                json_sprintf("%s; %s is set aside until %s, as the database refused it: %s",
                                             json_text_of(answer, "why"), json_text_of(aside, "part"),
                                             json_text_of(aside, "until"), json_text_of(aside, "why")));
    const int state = state_from_name(&job_machine, json_text_of(answer, "state"));
    if (why && (state < 0 || !state_is_final(&job_machine, state)))
        json_object_set_new(answer, "why",
                            json_sprintf("%s. Before that: %s", why, json_text_of(answer, "why")));
}

/* Puts a change into words. */
static json_t *change_words(const json_t *change)
{
    const char *kind = json_string_value(json_object_get(change, "kind"));
    const char *of = json_string_value(json_object_get(change, "of"));
    const char *ends = json_string_value(json_object_get(change, "ends"));
    const char *limit = json_string_value(json_object_get(change, "limit"));
    char at[24];
    int64_t ends_us;
    const bool past = ends && clock_rfc3339_parse(ends, &ends_us) == 0 && ends_us <= clock_wall_us();
    if (!kind)
        return json_null();
    if (strcmp(kind, "run") == 0)
        return json_sprintf("after %s's job %lld%s%s", json_string_value(json_object_get(change, "owner")),
                            (long long)json_integer_value(json_object_get(change, "job")),
                            !ends  ? ""
                            : past ? ", predicted to end now"
                                   : ", predicted to end at ",
                            ends && !past ? clock_words(ends, at) : "");
    if (strcmp(kind, "lease") == 0)
        return json_sprintf("without lease %lld",
                            (long long)json_integer_value(json_object_get(change, "lease")));
    if (strcmp(kind, "device") == 0)
        return json_sprintf("once %s can be used", json_string_value(json_object_get(change, "device")));
    if (strcmp(kind, "steps") == 0)
        return json_sprintf("with at most %lld steps left",
                            (long long)json_integer_value(json_object_get(change, "steps")));
    if (strcmp(kind, "memory") == 0)
        return json_sprintf("with %.0f GiB less memory",
                            json_number_value(json_object_get(change, "bytes")) / 1073741824);
    if (strcmp(kind, "limit") == 0)
        return json_sprintf("without the limit %s%s%s", limit ? limit : "", of && *of ? " of " : "",
                            of ? of : "");
    return json_string("on any devices, without placement.devices and placement.exclude");
}

/* Adds what would let the job start sooner, each change with its words. */
static void add_sooner(json_t *answer, json_t *doc)
{
    json_t *changes = json_deep_copy(json_object_get(doc, "sooner")), *change;
    size_t i;
    json_object_update(answer, doc);
    json_array_foreach (changes, i, change)
        json_object_set_new(change, "words", change_words(change));
    if (changes)
        json_object_set_new(answer, "sooner", changes);
}

/* Devices by name, as far as they fit. */
struct rank_names {
    char text[400];
    size_t used;
};

static void add_name(struct rank_names *names, const char *name)
{
    if (names->used < sizeof(names->text))
        names->used += (size_t)snprintf(names->text + names->used, sizeof(names->text) - names->used, "%s%s",
                                        names->used > 0 ? ", " : "", name);
}

/* Returns what a run waits for (new): workers that are not ready, or the ranks that say nothing and what the
 * first of the others says; NULL when no rank waits. */
static json_t *run_waits(const json_t *ranks)
{
    struct rank_names unready = {.used = 0}, silent = {.used = 0};
    const char *first = NULL, *says = NULL;
    size_t i;
    json_t *rank;
    json_array_foreach ((json_t *)(uintptr_t)ranks, i, rank) {
        const char *state = json_text_of(rank, "state"), *device = json_text_of(rank, "device");
        const char *why = json_string_value(json_object_get(rank, "why"));
        const bool starts = strcmp(state, "sent") == 0, runs = strcmp(state, "running") == 0;
        if (why && !says && (starts || runs)) {
            first = device;
            says = why;
        } else if (starts) {
            add_name(&unready, device);
        } else if (runs && !why) {
            add_name(&silent, device);
        }
    }
    if (unready.used > 0 || (silent.used > 0 && says))
        return json_sprintf("it waits for %s%s%s%s%s%s", unready.used > 0 ? unready.text : silent.text,
                            unready.used > 0 ? " to be ready" : "", says ? ". " : "", says ? first : "",
                            says ? ": " : "", says ? says : "");
    return says ? json_sprintf("%s: %s", first, says) : NULL;
}

/* Returns what the name of the state leaves open (new): how far a run is, or when the job ended. */
static json_t *state_words(const json_t *doc)
{
    const char *state = json_text_of(doc, "state");
    const json_t *run = json_object_get(doc, "run");
    const double step_s = json_number_value(json_object_get(run, "step_s"));
    const long long step = json_integer_value(json_object_get(doc, "step"));
    const long long steps = json_integer_value(json_object_get(doc, "steps"));
    const char *limit = json_string_value(json_object_get(run, "limit_at"));
    char when[24], end[32];
    const double left_s = fmin((double)(steps - step) * step_s, 1e9);
    int64_t limit_us, ends_us = clock_wall_us() + (int64_t)(left_s * 1e6);
    if (strcmp(state, "stopping") == 0)
        return json_sprintf("it stops after the present step%s%s", step_s > 0 ? "; a step takes about " : "",
                            step_s > 0 ? units_seconds(end, step_s) : "");
    if (json_is_string(json_object_get(doc, "ended")))
        return json_sprintf("it ended at %s, after %lld of %lld steps",
                            clock_words(json_text_of(doc, "ended"), when), step, steps);
    if (strcmp(state, "running") != 0)
        return json_string("its workers are being started");
    clock_words(json_text_of(run, "started"), when);
    if (limit && clock_rfc3339_parse(limit, &limit_us) == 0 && (step_s <= 0 || limit_us < ends_us))
        return json_sprintf("since %s, %lld of %lld steps are done; its limits.time is used up at %s, and it "
                            "ends then, with a checkpoint (motley extend gives it more)",
                            when, step, steps, clock_words(limit, end));
    return json_sprintf("since %s, %lld of %lld steps are done%s%s", when, step, steps,
                        step_s > 0 ? ", predicted to end at " : "",
                        step_s > 0 ? clock_words_us(ends_us, end) : "");
}

static json_t *words_of(const json_t *doc)
{
    const json_t *planned = json_object_get(json_object_get(doc, "run"), "plan_answer");
    const char *planner = json_string_value(json_object_get(json_object_get(planned, "planner"), "why"));
    const char *state = json_string_value(json_object_get(doc, "state"));
    const json_t *array = json_object_get(doc, "array");
    json_t *why = json_object_get(doc, "why");
    if (json_is_string(why))
        return json_incref(why);
    json_t *waits = run_waits(json_object_get(json_object_get(doc, "run"), "ranks"));
    if (waits)
        return waits;
    if (json_is_object(array))
        return json_sprintf("the array is %s: %lld of its %lld elements are jobs", state,
                            (long long)json_integer_value(json_object_get(array, "made")),
                            (long long)json_integer_value(json_object_get(array, "size")));
    if (state && strcmp(state, "queued") == 0)
        return json_string(
            "it has just come into the queue: its place and what it waits for follow within seconds");
    /* If a running job has not the plan of its external planner, the text also says why. */
    json_t *words = state_words(doc);
    if (words && planner) {
        json_t *both = json_sprintf("%s. %.1000s", json_string_value(words), planner);
        json_decref(words);
        words = both;
    }
    return words;
}

void jobs_why(struct call *call)
{
    static const char *const keys[] = {"id", "state", "code", "run", "place", "wait", "waits_for", "starts"};
    struct store *store = call->app->store;
    struct wait job = wait_of(call->app), sooner = job, scheduler = job;
    struct err err = {0};
    int64_t id;
    if (call_id(call, 0, "job", &id) < 0)
        return;
    if (wait_end(&job, store_job_get(store, &call->principal, id, wait_doc, &job, &err), &err) < 0) {
        call_fail(call, &err);
        return;
    }
    json_t *answer = json_pack("{s:o}", "why", words_of(job.doc));
    for (size_t i = 0; answer && i < sizeof(keys) / sizeof(keys[0]); i++)
        json_object_set(answer, keys[i], json_object_get(job.doc, keys[i]));
    int rc = 0;
    if (strcmp(json_text_of(job.doc, "state"), "queued") == 0)
        rc = wait_end(&sooner, store_sooner_ask(store, id, wait_doc, &sooner, &err), &err);
    if (sooner.doc)
        add_sooner(answer, sooner.doc);
    if (rc == 0)
        rc = wait_end(&scheduler, store_health_get(store, wait_doc, &scheduler, &err), &err);
    if (rc == 0)
        add_scheduler(answer, scheduler.doc);
    json_decref(job.doc);
    json_decref(sooner.doc);
    json_decref(scheduler.doc);
    if (rc == 0) {
        call_json(call, 200, answer, NULL);
        return;
    }
    json_decref(answer);
    call_fail(call, &err);
}
