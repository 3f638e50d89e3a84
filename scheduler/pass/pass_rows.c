/* Writes what every part of a pass needs: rows, messages, why a job waits, and when the next pass begins. */
#include "scheduler/pass/pass.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model/text/utf8.h"

#define RETRY_US 5000000
/* WAITS_MAX: most reasons for waiting that one pass writes. REFUSED_MAX: once this many states change in a
 * pass, it refuses no further jobs. The next pass goes on. */
enum { WAITS_MAX = 256, REFUSED_MAX = 256 };

void pass_add(struct scheduler_pass *pass, json_t *array, json_t *row)
{
    if (!row || json_array_append_new(array, row) < 0)
        pass->failed = true;
}

void pass_message(struct scheduler_pass *pass, const char *node, int64_t run, const char *type,
                  json_t *payload)
{
    pass_add(pass, pass->messages,
             payload ? json_pack("{s:s, s:o, s:s, s:o}", "node", node, "run",
                                 run != 0 ? json_integer(run) : json_null(), "type", type, "payload", payload)
                     : NULL);
}

int64_t pass_away(struct scheduler_pass *pass, const char *device, bool away)
{
    json_t *since = pass->scheduler->away;
    if (!away) {
        json_object_del(since, device);
        return pass->view->now_us;
    }
    if (!json_object_get(since, device) &&
        json_object_set_new(since, device, json_integer(pass->view->now_us)) < 0)
        pass->failed = true;
    return json_integer_value(json_object_get(since, device));
}

void pass_check_at(struct scheduler_pass *pass, int64_t at_us)
{
    if (pass->check_us == 0 || at_us < pass->check_us)
        pass->check_us = at_us;
}

void pass_wait(struct scheduler_pass *pass, const struct store_sched_job *job, const char *fmt, ...)
{
    char text[512];
    va_list args;
    if (!job || json_array_size(pass->waits) >= WAITS_MAX) /* the next pass writes further reasons */
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    text[utf8_check(text, strlen(text))] = '\0'; /* no cut character */
    if (!job->why || strcmp(job->why, text) != 0)
        pass_add(pass, pass->waits, json_pack("{s:I, s:s}", "job", (json_int_t)job->id, "why", text));
}

void pass_say(struct scheduler_pass *pass, int64_t job, const char *level, const char *fmt, ...)
{
    char text[1200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    text[utf8_check(text, strlen(text))] = '\0';
    pass_add(pass, pass->said,
             json_pack("{s:I, s:s, s:s}", "job", (json_int_t)job, "level", level, "text", text));
}

static void refuse(struct scheduler_pass *pass, const struct store_sched_job *job, enum err_code code,
                   const char *why)
{
    struct err err;
    int to = state_next(&job_machine, (int)job->state, JOB_EVENT_REFUSE, &err);
    if (to >= 0 && json_array_size(pass->jobs) < REFUSED_MAX) { /* the next pass refuses further jobs */
        pass_add(pass, pass->jobs,
                 json_pack("{s:I, s:s, s:s, s:s, s:s}", "job", (json_int_t)job->id, "before", "queued",
                           "state", state_name(&job_machine, to), "code", err_code_name(code), "why", why));
    }
}

/* Handles an error in planning: refuses the job if the error is the job's fault, otherwise tries again after
 * RETRY_US. A job that ran before is not refused, because its steps would be lost: it waits for devices like
 * those it ran on. */
void pass_give_up(struct scheduler_pass *pass, const struct store_sched_job *job, const struct err *err)
{
    const bool ran = job->attempt > 0;
    switch (err->code) {
    case ERR_UNSUPPORTED:
    case ERR_NOFIT:
        if (ran)
            pass_wait(pass, job, "waits for devices like those it ran on: %s", err->text);
        else
            refuse(pass, job, err->code, err->text);
        break;
    case ERR_INVALID:
    case ERR_NOT_FOUND:
    case ERR_TOO_BIG:
    case ERR_CORRUPT:
        refuse(pass, job, err->code, err->text);
        break;
    default:
        pass_wait(pass, job, "cannot be planned now: %s", err->text);
        pass_check_at(pass, pass->view->now_us + RETRY_US);
        break;
    }
}

const struct store_sched_node *pass_node(const struct scheduler_pass *pass, const char *name)
{
    for (size_t i = 0; i < pass->view->node_count; i++)
        if (strcmp(pass->view->nodes[i].name, name) == 0)
            return &pass->view->nodes[i];
    return NULL;
}

const char *pass_wait_code(enum policy_reason reason)
{
    static const char *const codes[] = {[REASON_DEVICES] = "devices",
                                        [REASON_YIELDS] = "yields",
                                        [REASON_RESERVED] = "reserved",
                                        [REASON_INTERVAL] = "interval",
                                        [REASON_WIDTH] = "width",
                                        [REASON_SLOW] = "slow",
                                        [REASON_ABSENT] = "absent",
                                        [REASON_NOFIT] = "no-fit",
                                        [REASON_PLANNING] = "planning",
                                        [REASON_USER_DEVICES] = "user-devices",
                                        [REASON_USER_RUNNING] = "user-running",
                                        [REASON_USER_MONTH] = "user-month",
                                        [REASON_ACCOUNT_DEVICES] = "account-devices",
                                        [REASON_ACCOUNT_RUNNING] = "account-running",
                                        [REASON_ACCOUNT_MONTH] = "account-month"};
    return codes[reason];
}
