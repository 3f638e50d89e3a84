/* What every part of a pass writes: rows, messages, why a job waits, and when the next pass begins. */
#include "scheduler/pass/pass.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void pass_add(struct scheduler_pass *pass, json_t *array, json_t *row)
{
    if (row == NULL || json_array_append_new(array, row) < 0) {
        pass->failed = true;
    }
}

void pass_message(struct scheduler_pass *pass, const char *node, int64_t run, const char *type,
                  json_t *payload)
{
    pass_add(pass, pass->messages,
             payload != NULL
                 ? json_pack("{s:s, s:o, s:s, s:o}", "node", node, "run",
                             run != 0 ? json_integer(run) : json_null(), "type", type, "payload", payload)
                 : NULL);
}

void pass_check_at(struct scheduler_pass *pass, int64_t at_us)
{
    if (pass->check_us == 0 || at_us < pass->check_us) {
        pass->check_us = at_us;
    }
}

void pass_wait(struct scheduler_pass *pass, const struct store_sched_job *job, const char *fmt, ...)
{
    char text[512];
    va_list args;
    if (job->id == 0) { /* the request is a measurement without a job */
        return;
    }
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (job->why == NULL || strcmp(job->why, text) != 0) {
        json_t *why = json_string(text);
        pass_add(pass, pass->waits,
                 json_pack("{s:I, s:o}", "job", (json_int_t)job->id, "why",
                           why != NULL ? why : json_string("waits")));
    }
}

const struct store_sched_node *pass_node(const struct scheduler_pass *pass, const char *name)
{
    for (size_t i = 0; i < pass->view->node_count; i++) {
        if (strcmp(pass->view->nodes[i].name, name) == 0) {
            return &pass->view->nodes[i];
        }
    }
    return NULL;
}
