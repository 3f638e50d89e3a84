/* What an active run needs next. Pure: facts in, one verdict out; the caller
 * writes it and comes again, so that a crash between two verdicts loses nothing.
 */
#ifndef MOTLEY_SCHEDULER_LIFECYCLE_H
#define MOTLEY_SCHEDULER_LIFECYCLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "scheduler/config.h"
#include "store/sched.h"

enum { LIFECYCLE_TEXT = 400 };

/* One rank's surroundings; the rank itself is in the run. */
struct rank_facts {
    bool gone;    /* its node or worker was given up (then `gone_why`) */
    bool drained; /* its device is being drained */
    const char *gone_why;
};

enum run_action {
    RUN_ACTION_WAIT,
    RUN_ACTION_PEERS,  /* every rank is ready: tell each where the others are */
    RUN_ACTION_STOP,   /* tell the living ranks to stop; job and run become stopping */
    RUN_ACTION_KILL,   /* they did not: kill */
    RUN_ACTION_FINISH, /* nobody runs any more */
};

struct run_verdict {
    enum run_action action;
    enum stop_why why;         /* STOP */
    bool checkpoint;           /* STOP: write one first */
    enum run_event run_event;  /* FINISH */
    enum job_event job_event;  /* FINISH */
    bool loss;                 /* FINISH: counts against limits.retries */
    uint32_t delay_ms;         /* FINISH: before the next attempt */
    const char *code;          /* error code's name for the job, or NULL; borrowed from the run or static */
    char text[LIFECYCLE_TEXT]; /* a sentence for the job, or "" */
    int64_t check_us;          /* WAIT: decide again then at the latest; 0: only on news */
};

/* 'facts' has run->rank_count entries. now_us is the view's. */
void lifecycle_decide(const struct store_sched_run *run, const struct store_sched_job *job,
                      const struct rank_facts *facts, const struct scheduler_limits *limits, int64_t now_us,
                      struct run_verdict *verdict);

#endif
