/* Writes what every part of a pass needs: rows, messages, and when the next pass begins. */
#include "scheduler/pass/pass.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model/text/utf8.h"

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

bool pass_is_due(const struct store_sched_job *job, int64_t now_us)
{
    return job->not_before_us <= now_us && job->begin_us <= now_us;
}

void pass_check_at(struct scheduler_pass *pass, int64_t at_us)
{
    if (pass->check_us == 0 || at_us < pass->check_us)
        pass->check_us = at_us;
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

void pass_drop_start(struct scheduler_pass *pass, const struct store_sched_job *job, const char *code)
{
    if (job->starts_us > 0)
        pass_add(pass, pass->places,
                 json_pack("{s:I, s:i, s:s}", "job", (json_int_t)job->id, "starts_us", 0, "code", code));
}

const struct store_sched_node *pass_node(const struct scheduler_pass *pass, const char *name)
{
    for (size_t i = 0; i < pass->view->node_count; i++)
        if (strcmp(pass->view->nodes[i].name, name) == 0)
            return &pass->view->nodes[i];
    return NULL;
}

const struct store_sched_device *pass_device(const struct scheduler_pass *pass, const char *name)
{
    for (size_t i = 0; i < pass->view->device_count; i++)
        if (strcmp(pass->view->devices[i].name, name) == 0)
            return &pass->view->devices[i];
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
