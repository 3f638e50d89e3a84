/* Runs one round of decisions: it starts from the view and ends with one transaction. */
#include "scheduler/pass/pass.h"

#include <stdlib.h>

#include <event2/event.h>

#include "common/clock.h"
#include "common/log.h"

static void pass_destroy(struct scheduler_pass *pass)
{
    if (!pass)
        return;
    json_t *const documents[] = {
        pass->ranks_lost,  pass->runs,      pass->jobs,    pass->waits,  pass->requests, pass->messages,
        pass->unreachable, pass->runs_new,  pass->ended,   pass->links,  pass->said,     pass->speeds,
        pass->free_names,  pass->measures,  pass->places,  pass->leases, pass->ready,    pass->elements,
        pass->arrivals,    pass->forecasts, pass->sharing, pass->saves,  pass->sooner};
    for (size_t i = 0; i < sizeof(documents) / sizeof(documents[0]); i++)
        json_decref(documents[i]);
    for (size_t i = 0; i < pass->start_count; i++) {
        placer_answer_fini(&pass->starts[i].answer);
        json_decref(pass->starts[i].model);
        json_decref(pass->starts[i].train);
        json_decref(pass->starts[i].eval);
        json_decref(pass->starts[i].speeds);
    }
    free(pass->starts);
    free(pass->free_devices);
    free(pass->reserved);
    free(pass);
}

static struct scheduler_pass *pass_create(struct scheduler *scheduler)
{
    struct scheduler_pass *pass = calloc(1, sizeof(*pass));
    if (!pass)
        return NULL;
    size_t devices = scheduler->view->device_count + 1;
    pass->scheduler = scheduler;
    pass->view = scheduler->view;
    pass->now_ns = clock_mono_ns();
    json_t **const arrays[] = {
        &pass->ranks_lost,  &pass->runs,     &pass->jobs,   &pass->waits, &pass->requests, &pass->messages,
        &pass->unreachable, &pass->runs_new, &pass->ended,  &pass->links, &pass->said,     &pass->speeds,
        &pass->measures,    &pass->places,   &pass->leases, &pass->ready, &pass->elements, &pass->arrivals,
        &pass->forecasts,   &pass->sharing,  &pass->saves,  &pass->sooner};
    bool whole = true;
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        *arrays[i] = json_array();
        whole = whole && *arrays[i];
    }
    pass->free_devices = calloc(devices, sizeof(bool));
    pass->reserved = calloc(devices, sizeof(bool));
    if (!whole || !pass->free_devices || !pass->reserved) {
        pass_destroy(pass);
        return NULL;
    }
    return pass;
}

void pass_forget(struct scheduler *scheduler)
{
    pass_destroy(scheduler->pass);
    scheduler->pass = NULL;
}

/* Sets the timer for the earliest time at which a decision falls due. The wait is at least 2 ms and at most
 * one hour. */
static void arm_wake(struct scheduler_pass *pass)
{
    struct scheduler *scheduler = pass->scheduler;
    if (pass->check_us == 0) {
        event_del(scheduler->wake);
        return;
    }
    int64_t wait_us = pass->check_us - pass->view->now_us + 2000;
    if (wait_us < 2000)
        wait_us = 2000;
    if (wait_us > 3600000000)
        wait_us = 3600000000;
    const struct timeval wait = {.tv_sec = wait_us / 1000000, .tv_usec = wait_us % 1000000};
    event_add(scheduler->wake, &wait);
}

static void pass_end(struct scheduler *scheduler)
{
    pass_forget(scheduler);
    scheduler_turn(scheduler);
}

/* ---- writing ---- */

static void send_messages(struct scheduler_pass *pass, const json_t *ids)
{
    struct scheduler *scheduler = pass->scheduler;
    size_t i;
    json_t *message;
    struct err err;
    json_array_foreach (pass->runs_new, i, message)
        if (dispatch_plan(scheduler->dispatch, json_integer_value(json_object_get(message, "run")),
                          json_object_get(message, "plan"), &err) < 0)
            log_event(LOG_LEVEL_ERROR, "plan_unread", "why=\"%s\"", err.text);
    json_array_foreach (pass->messages, i, message) {
        if (dispatch_keep(scheduler->dispatch, json_integer_value(json_array_get(ids, i)),
                          json_string_value(json_object_get(message, "node")),
                          json_integer_value(json_object_get(message, "run")),
                          json_string_value(json_object_get(message, "type")),
                          json_object_get(message, "payload"), &err) < 0) {
            log_event(LOG_LEVEL_ERROR, "message_unsent", "why=\"%s\"", err.text);
        }
    }
    dispatch_plans_forget(scheduler->dispatch);
}

static void log_decision(const struct scheduler_pass *pass)
{
    size_t i;
    json_t *row;
    json_array_foreach (pass->jobs, i, row) {
        const char *why = json_string_value(json_object_get(row, "why"));
        if (json_equal(json_object_get(row, "before"), json_object_get(row, "state")))
            continue;
        log_event(LOG_LEVEL_INFO, "job_state", "job=%lld from=%s to=%s%s%s%s",
                  (long long)json_integer_value(json_object_get(row, "job")),
                  json_string_value(json_object_get(row, "before")),
                  json_string_value(json_object_get(row, "state")), why ? " why=\"" : "", why ? why : "",
                  why ? "\"" : "");
    }
}

/* Counts decisions that the database refused. Usually somebody changed a state in the meantime, which the
 * next load reads. A second refusal in a row may mean that the queue in memory is wrong, so the next load
 * compares it. */
static void note_conflict(struct scheduler *scheduler, const struct err *err)
{
    if (err->code == ERR_CONFLICT && ++scheduler->conflicts >= 2)
        scheduler->checked_ns = 0;
}

static void decided(void *arg, const struct err *err, json_t *ids)
{
    struct scheduler *scheduler = arg;
    if (!scheduler_settle(scheduler))
        return;
    struct scheduler_pass *pass = scheduler->pass;
    if (err) {
        pass_forget(scheduler);
        note_conflict(scheduler, err);
        scheduler_retry(scheduler, "decision_failed", err);
        return;
    }
    scheduler->conflicts = 0;
    size_t i;
    json_t *run;
    json_array_foreach (pass->ended, i, run) {
        dispatch_drop_run(scheduler->dispatch, json_integer_value(run));
    }
    if (json_array_size(pass->speeds) > 0)
        facts_forget_profiles(scheduler->facts);
    send_messages(pass, ids);
    log_decision(pass);
    scheduler->sharing_said = true;
    scheduler->view_stale = true;
    scheduler_mark(scheduler); /* the states that were written may make further decisions possible */
    pass_end(scheduler);
}

static bool nothing_decided(const struct scheduler_pass *pass)
{
    const json_t *const arrays[] = {pass->ranks_lost, pass->runs,     pass->jobs,        pass->waits,
                                    pass->requests,   pass->messages, pass->unreachable, pass->runs_new,
                                    pass->links,      pass->said,     pass->speeds,      pass->measures,
                                    pass->places,     pass->leases,   pass->ready,       pass->elements,
                                    pass->forecasts,  pass->sharing,  pass->saves,       pass->sooner};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        if (json_array_size(arrays[i]) > 0)
            return false;
    return true;
}

static void write_decision(struct scheduler *scheduler)
{
    struct scheduler_pass *pass = scheduler->pass;
    const struct store_decision decision = {
        .leader = scheduler->epoch,
        .runs_new = pass->runs_new,
        .ranks_lost = pass->ranks_lost,
        .runs = pass->runs,
        .saves = pass->saves,
        .jobs = pass->jobs,
        .waits = pass->waits,
        .places = pass->places,
        .ready = pass->ready,
        .elements = pass->elements,
        .leases = pass->leases,
        .arrivals = pass->arrivals,
        .forecasts = pass->forecasts,
        .sharing = pass->sharing,
        .sooner = pass->sooner,
        .requests = pass->requests,
        .unreachable = pass->unreachable,
        .messages = pass->messages,
        .links = pass->links,
        .said = pass->said,
        .speeds = pass->speeds,
        .measures = pass->measures,
    };
    struct err err;
    if (pass->failed) {
        err_set(&err, ERR_NOMEM, "no memory for a decision");
    } else {
        scheduler->busy = true;
        scheduler->chain = scheduler->epoch;
        if (store_decide(scheduler->store, &decision, decided, scheduler, &err) == 0)
            return;
        scheduler->busy = false;
    }
    pass_forget(scheduler);
    scheduler_retry(scheduler, "decision_failed", &err);
}

static void numbered(void *arg, const struct err *err, json_t *numbers)
{
    struct scheduler *scheduler = arg;
    if (!scheduler_settle(scheduler))
        return;
    if (err) {
        pass_forget(scheduler);
        scheduler_retry(scheduler, "decision_failed", err);
        return;
    }
    pass_number_requests(scheduler->pass, json_object_get(numbers, "requests"));
    pass_compose_runs(scheduler->pass, numbers);
    write_decision(scheduler);
}

/* Asks the database for ids for new runs, their ranks and the requests, and for the documents of the jobs
 * that start. */
static void ask_numbers(struct scheduler *scheduler, size_t ranks, size_t requests)
{
    struct scheduler_pass *pass = scheduler->pass;
    struct err err;
    int64_t *jobs = calloc(pass->start_count + 1, sizeof(*jobs));
    int rc = jobs ? 0 : err_set(&err, ERR_NOMEM, "no memory for a decision");
    for (size_t i = 0; jobs && i < pass->start_count; i++)
        jobs[i] = pass->starts[i].job->id;
    scheduler->busy = true;
    scheduler->chain = scheduler->epoch;
    if (rc == 0)
        rc = store_sched_numbers(scheduler->store, jobs, pass->start_count, (unsigned)ranks,
                                 (unsigned)requests, numbered, scheduler, &err);
    free(jobs);
    if (rc < 0) {
        scheduler->busy = false;
        pass_forget(scheduler);
        scheduler_retry(scheduler, "decision_failed", &err);
    }
}

void pass_start(struct scheduler *scheduler)
{
    struct err err;
    struct scheduler_pass *pass = pass_create(scheduler);
    scheduler->pass = pass;
    if (!pass) {
        err_set(&err, ERR_NOMEM, "no memory for a decision");
        scheduler_retry(scheduler, "decision_failed", &err);
        return;
    }
    facts_begin(scheduler->facts);
    pass_say_sharing(pass);
    pass_take_starts(pass);
    pass_nodes(pass);
    pass_leases(pass);
    pass_runs(pass);
    pass_links(pass);
    pass_dependents(pass);
    pass_arrays(pass);
    pass_queue(pass);
    if (pass->view->next_due_us > 0)
        pass_check_at(pass, pass->view->next_due_us);
    arm_wake(pass);
    if (nothing_decided(pass) && pass->start_count == 0) {
        pass_end(scheduler);
        return;
    }
    size_t requests = json_array_size(pass->requests);
    if (pass->start_count == 0 && requests == 0) {
        write_decision(scheduler);
        return;
    }
    size_t ranks = 0;
    for (size_t i = 0; i < pass->start_count; i++)
        ranks += pass->starts[i].answer.rank_count;
    ask_numbers(scheduler, ranks, requests);
}
