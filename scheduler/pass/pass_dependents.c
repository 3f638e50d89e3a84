/* Jobs that were submitted to run after others: decides whether they may start, go on waiting, or fail with
 * them. */
#include "scheduler/pass/pass.h"

#include <stdio.h>

static void pass_dependents_fail(struct scheduler_pass *pass, const struct store_sched_dependent *job)
{
    struct err err;
    const int to = state_next(&job_machine, (int)job->state, JOB_EVENT_REFUSE, &err);
    if (to >= 0)
        pass_add(pass, pass->jobs,
                 json_pack("{s:I, s:s, s:s, s:s, s:o}", "job", (json_int_t)job->id, "before",
                           state_name(&job_machine, (int)job->state), "state", state_name(&job_machine, to),
                           "code", "dependency", "why",
                           json_sprintf("it was to start after job %lld had succeeded, which is %s",
                                        (long long)job->bad, state_name(&job_machine, (int)job->bad_state))));
}

static void wait(struct scheduler_pass *pass, const struct store_sched_dependent *job)
{
    pass_add(pass, pass->places,
             json_pack("{s:I, s:i, s:s, s:I}", "job", (json_int_t)job->id, "starts_us", 0, "code", "after",
                       "subject", (json_int_t)job->open));
    pass_add(pass, pass->waits,
             json_pack("{s:I, s:o}", "job", (json_int_t)job->id, "why",
                       json_sprintf("waits for job %lld, after which it is to start", (long long)job->open)));
}

void pass_dependents(struct scheduler_pass *pass)
{
    for (size_t i = 0; i < pass->view->dependent_count; i++) {
        const struct store_sched_dependent *job = &pass->view->dependents[i];
        if (job->bad)
            pass_dependents_fail(pass, job);
        else if (job->open)
            wait(pass, job);
        else
            pass_add(pass, pass->ready, json_pack("{s:I}", "job", (json_int_t)job->id));
    }
}
