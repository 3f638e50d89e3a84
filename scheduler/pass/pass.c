/* Runs one round of decisions: it starts from the view and ends with one transaction. */
#include "scheduler/pass/pass_list.h"

#include <stdio.h>
#include <stdlib.h>

#include <event2/event.h>

#include "common/clock.h"
#include "common/log.h"

/* Drops the starts behind the first `kept`. */
static void drop_starts(struct scheduler_pass *pass, size_t kept)
{
    while (pass->start_count > kept) {
        struct pass_start *start = &pass->starts[--pass->start_count];
        placer_answer_fini(&start->answer);
        json_decref(start->model);
        json_decref(start->train);
        json_decref(start->eval);
        json_decref(start->speeds);
    }
}

static void pass_destroy(struct scheduler_pass *pass)
{
    if (!pass)
        return;
    pass_arrays_fini(pass);
    json_decref(pass->left_out);
    json_decref(pass->free_names);
    pass_writing_destroy(pass->writing);
    drop_starts(pass, 0);
    free(pass->starts);
    pass_list_destroy(pass->list);
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
    pass->left_out = json_object();
    pass->free_devices = calloc(devices, sizeof(bool));
    pass->reserved = calloc(devices, sizeof(bool));
    if (pass_arrays_init(pass) < 0 || !pass->left_out || !pass->free_devices || !pass->reserved) {
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

static void scheduler_give_up(struct scheduler *scheduler, const struct err *err)
{
    pass_forget(scheduler);
    pass_drop_blame(scheduler);
    scheduler->listed_us = 0; /* the list may not have been written */
    scheduler->listed_hash = 0;
    scheduler_retry(scheduler, TASK_PASS, "decision_failed", err);
}

/* Ends the pass; the next one follows at once if this one made further decisions possible. While passes fail
 * as a whole, one that blames a unit and commits nothing fails, too. */
static void written(struct scheduler *scheduler, bool changed, const struct err *err)
{
    const struct err last = scheduler->health.tasks[TASK_PASS].err;
    const bool failing = scheduler->health.tasks[TASK_PASS].failing_ns != 0;
    if (err || (failing && json_object_size(scheduler->blamed) > 0)) {
        scheduler_give_up(scheduler, err ? err : &last);
        return;
    }
    scheduler->conflicts = 0; /* not at each commit: a pass that reloads has committed something before */
    pass_settle_blame(scheduler->pass, false);
    const bool left_out = json_object_size(scheduler->pass->left_out) > 0;
    if (scheduler->health.tasks[TASK_PASS].failing_ns == 0)
        scheduler->health.good_ns = clock_mono_ns();
    pass_forget(scheduler);
    if (changed || left_out) {
        scheduler->view_stale = true;
        scheduler_mark(scheduler);
    }
    scheduler_turn(scheduler);
}

static void number_or_write(struct scheduler *scheduler);

/* Handles an error of the statement that allots ids and reads the documents of the jobs that start. Half of
 * the starts are left to the next pass; a job that fails alone, twice, is set aside. */
static void numbers_failed(struct scheduler *scheduler, const struct err *err)
{
    struct scheduler_pass *pass = scheduler->pass;
    char unit[UNIT_BYTES];
    if (pass->start_count == 0 || !pass_is_at_fault(scheduler, err)) {
        scheduler_give_up(scheduler, err);
        return;
    }
    log_event(LOG_LEVEL_WARN, "decision_divided", "starts=%zu why=\"%s\"", pass->start_count, err->text);
    if (pass->start_count == 1 && !pass->failed_alone) {
        pass->failed_alone = true;
    } else {
        const size_t kept = pass->start_count / 2;
        for (size_t i = kept; i < pass->start_count; i++) {
            snprintf(unit, sizeof(unit), "job %lld", (long long)pass->starts[i].job->id);
            json_object_set_new(pass->left_out, unit, json_true());
        }
        if (kept == 0 && !pass_blame(pass, unit, err->text)) {
            scheduler_give_up(scheduler, err);
            return;
        }
        drop_starts(pass, kept);
    }
    number_or_write(scheduler);
}

static void numbered(void *arg, const struct err *err, json_t *numbers)
{
    struct scheduler *scheduler = arg;
    if (!scheduler_settle(scheduler))
        return;
    if (err) {
        numbers_failed(scheduler, err);
        return;
    }
    pass_number_requests(scheduler->pass, json_object_get(numbers, "requests"));
    pass_compose_runs(scheduler->pass, numbers);
    pass_write(scheduler, written);
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
        scheduler_give_up(scheduler, &err);
    }
}

/* Writes the decision, after asking for the ids that it needs. */
static void number_or_write(struct scheduler *scheduler)
{
    const struct scheduler_pass *pass = scheduler->pass;
    const size_t requests = json_array_size(pass->requests);
    size_t ranks = 0;
    for (size_t i = 0; i < pass->start_count; i++)
        ranks += pass->starts[i].answer.rank_count;
    if (pass->start_count == 0 && requests == 0)
        pass_write(scheduler, written);
    else
        ask_numbers(scheduler, ranks, requests);
}

void pass_start(struct scheduler *scheduler)
{
    struct err err;
    struct scheduler_pass *pass = pass_create(scheduler);
    scheduler->pass = pass;
    if (!pass) {
        err_set(&err, ERR_NOMEM, "no memory for a decision");
        scheduler_retry(scheduler, TASK_PASS, "decision_failed", &err);
        return;
    }
    pass_begin_asides(pass);
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
    number_or_write(scheduler);
}
