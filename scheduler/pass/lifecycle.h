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

enum { LIFECYCLE_TEXT = 1000 };

/* Facts about a rank. */
struct rank_facts {
    bool gone;             /* its node or its worker was given up; gone_why says why */
    bool drained;          /* its device is being drained */
    bool leaving;          /* its node's agent is ending */
    const char *leased_by; /* who holds a lease of its device now, or NULL */
    const char *gone_why;
};

/* Facts about a run that are not in the view. */
struct run_facts {
    const struct rank_facts *ranks; /* [run->rank_count] */
    int64_t save_wait_ms;           /* how long the ranks may take to store a checkpoint and stop */
    int64_t start_wait_ms;          /* how long the workers may take to be ready */
    /* the job for which this run was asked for a checkpoint still waits for this run's devices */
    bool awaited;
};

enum run_action {
    RUN_ACTION_WAIT,
    RUN_ACTION_PEERS,  /* every rank is ready: tell each rank the addresses of the others */
    RUN_ACTION_STOP,   /* tell the living ranks to stop; the job and the run become stopping */
    RUN_ACTION_KILL,   /* the ranks did not stop in time: kill them */
    RUN_ACTION_GO_ON,  /* the run need not store a checkpoint any more and goes on as before */
    RUN_ACTION_FINISH, /* no rank runs any more */
};

struct run_verdict {
    enum run_action action;
    enum stop_why why;        /* STOP only */
    bool checkpoint;          /* STOP only: the ranks write a checkpoint first */
    bool missed;              /* GO_ON only: the checkpoint was not stored in time */
    enum run_event run_event; /* FINISH only */
    enum job_event job_event; /* FINISH only */
    /* FINISH only: the job's losses since its last new checkpoint, including this one, which count against
     * limits.retries; 0: the run did not end by a loss of the job's */
    uint32_t losses;
    uint32_t delay_ms; /* FINISH only: pause before the next attempt */
    /* FINISH only: what ended a job that succeeded before its last step, or NULL; static */
    const char *ended_by;
    const char *code;          /* name of the job's error code, or NULL; borrowed from the run, or static */
    char text[LIFECYCLE_TEXT]; /* a sentence for the job's log, or "" */
    /* WAIT only: the latest time of the next decision; 0: decide again only when something has changed */
    int64_t check_us;
};

/* Decides about one run. now_us is the view's time. */
void lifecycle_decide(const struct store_sched_run *run, const struct store_sched_job *job,
                      const struct run_facts *facts, const struct scheduler_limits *limits, int64_t now_us,
                      struct run_verdict *verdict);

#endif
