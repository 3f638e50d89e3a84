/* Decides what an active run needs next. Pure: it maps facts to one verdict. The caller writes the verdict
 * and asks again, so a crash between two verdicts loses nothing.
 */
#ifndef MOTLEY_SCHEDULER_PASS_LIFECYCLE_H
#define MOTLEY_SCHEDULER_PASS_LIFECYCLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "scheduler/leader/config.h"
#include "store/sched.h"

enum { LIFECYCLE_TEXT = 400 };

/* What the view does not say of a rank. */
struct rank_facts {
    bool gone;    /* its node or its worker was given up; gone_why says why */
    bool drained; /* its device is being drained */
    const char *gone_why;
};

enum run_action {
    RUN_ACTION_WAIT,
    RUN_ACTION_PEERS,  /* every rank is ready: tell each rank the addresses of the others */
    RUN_ACTION_STOP,   /* tell the living ranks to stop; the job and the run become stopping */
    RUN_ACTION_KILL,   /* the ranks did not stop in time: kill them */
    RUN_ACTION_FINISH, /* no rank runs any more */
};

struct run_verdict {
    enum run_action action;
    enum stop_why why;         /* STOP only */
    bool checkpoint;           /* STOP only: the ranks write a checkpoint first */
    enum run_event run_event;  /* FINISH only */
    enum job_event job_event;  /* FINISH only */
    bool loss;                 /* FINISH only: this end counts against limits.retries */
    uint32_t delay_ms;         /* FINISH only: pause before the next attempt */
    const char *code;          /* name of the job's error code, or NULL; borrowed from the run, or static */
    char text[LIFECYCLE_TEXT]; /* a sentence for the job's log, or "" */
    /* WAIT only: decide again at this time at the latest; 0: only when something has changed */
    int64_t check_us;
};

/* 'facts' has run->rank_count entries. now_us is the view's time. */
void lifecycle_decide(const struct store_sched_run *run, const struct store_sched_job *job,
                      const struct rank_facts *facts, const struct scheduler_limits *limits, int64_t now_us,
                      struct run_verdict *verdict);

#endif
