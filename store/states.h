/* The state machines of jobs, runs and assignments, as tables.
 *
 * Each table lists every {from, event, to} that exists. An event that has no
 * line for the present state is an error (ERR_CONFLICT), never "no change".
 * The same tables are sent to PostgreSQL as parameters of the one statement
 * that changes a state, so the check and the change are one atomic act.
 *
 * Pure: no I/O, no mutable data; any thread.
 */
#ifndef MOTLEY_STORE_STATES_H
#define MOTLEY_STORE_STATES_H

#include <stdbool.h>
#include <stddef.h>
#include "common/err.h"

enum job_state {
    JOB_HELD,      /* waits for `release` */
    JOB_QUEUED,    /* waits for the scheduler (also between attempts) */
    JOB_STARTING,  /* a run exists; its workers are starting */
    JOB_RUNNING,   /* every rank is ready and connected */
    JOB_STOPPING,  /* a stop was asked for; jobs.stop_why says what comes after */
    JOB_SUCCEEDED, /* final, resumable */
    JOB_FAILED,    /* final, resumable */
    JOB_CANCELLED, /* final, resumable */
    JOB_STATES
};

enum job_event {
    JOB_EVENT_HOLD,      /* person: keep it from starting; a running one writes a checkpoint and stops */
    JOB_EVENT_RELEASE,   /* person */
    JOB_EVENT_CANCEL,    /* person; of a running job writes a checkpoint first */
    JOB_EVENT_RESUME,    /* person: go on from the last checkpoint */
    JOB_EVENT_REFUSE,    /* scheduler: fits nowhere, even on an empty cluster */
    JOB_EVENT_PLACE,     /* scheduler: run created */
    JOB_EVENT_READY,     /* every rank is ready */
    JOB_EVENT_STOP,      /* scheduler: drain, time limit, lost worker, own fault: the run is being stopped */
    JOB_EVENT_DONE,      /* every rank done */
    JOB_EVENT_FAULT,     /* the run has ended by the job's own fault, its time limit, or too many losses */
    JOB_EVENT_REQUEUE,   /* the run has ended (lost, drained); the job goes on from its last checkpoint */
    JOB_EVENT_HELD,      /* the run has ended after HOLD */
    JOB_EVENT_CANCELLED, /* the run has ended after CANCEL */
    JOB_EVENTS
};

enum run_state {
    RUN_STARTING, /* assignments are out */
    RUN_RUNNING,  /* peers are out */
    RUN_STOPPING, /* stops are out; runs.stop_why */
    RUN_DONE,     /* final */
    RUN_FAILED,   /* final: the job's own fault or its limit */
    RUN_LOST,     /* final: a worker, agent or device was lost */
    RUN_STOPPED,  /* final: cancel, hold, drain */
    RUN_STATES
};

enum run_event {
    RUN_EVENT_READY, /* every rank ready */
    RUN_EVENT_STOP,
    RUN_EVENT_DONE,
    RUN_EVENT_FAIL,
    RUN_EVENT_LOSE,
    RUN_EVENT_STOPPED,
    RUN_EVENTS
};

enum assignment_state {
    ASSIGNMENT_SENT,    /* in the outbox or with the agent */
    ASSIGNMENT_READY,   /* worker listens for its peers */
    ASSIGNMENT_RUNNING, /* worker said `started` */
    ASSIGNMENT_DONE,    /* final */
    ASSIGNMENT_FAILED,  /* final: worker said `failed` */
    ASSIGNMENT_STOPPED, /* final: worker said `stopped` */
    ASSIGNMENT_LOST,    /* final: its node or worker was given up */
    ASSIGNMENT_STATES
};

enum assignment_event {
    ASSIGNMENT_EVENT_READY,
    ASSIGNMENT_EVENT_STARTED,
    ASSIGNMENT_EVENT_DONE,
    ASSIGNMENT_EVENT_FAILED,
    ASSIGNMENT_EVENT_STOPPED,
    ASSIGNMENT_EVENT_LOST,
    ASSIGNMENT_EVENTS
};

struct state_edge {
    int from, event, to;
};

/* A machine by its names and its edges. */
struct state_machine {
    const char *noun; /* "job" */
    const char *const *states;
    size_t state_count;
    const char *const *events;
    size_t event_count;
    const struct state_edge *edges;
    size_t edge_count;
};

extern const struct state_machine job_machine;
extern const struct state_machine run_machine;
extern const struct state_machine assignment_machine;

/* The state after 'event' in 'from'. Returns it, or -1 with ERR_CONFLICT
 * ("job is succeeded: cannot hold"). */
int state_next(const struct state_machine *machine, int from, int event, struct err *err);

/* Name of a state ("queued"), and back; -1 where there is no such name. */
const char *state_name(const struct state_machine *machine, int state);
int state_from_name(const struct state_machine *machine, const char *name);

/* True where no event but RESUME leaves it (for a run or assignment: none). */
bool state_is_final(const struct state_machine *machine, int state);

#endif
