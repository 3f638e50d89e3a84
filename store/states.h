/* The state machines of jobs, runs and assignments, as tables.
 *
 * Each table lists every {from, event, to} that exists. An event without a line for the present state is an
 * error (ERR_CONFLICT), never "no change". The same tables are sent to PostgreSQL as parameters of the
 * statement that changes a state, so the check and the change are one atomic act. Pure: no I/O, no mutable
 * data; any thread.
 */
#ifndef MOTLEY_STORE_STATES_H
#define MOTLEY_STORE_STATES_H

#include <stdbool.h>
#include <stddef.h>
#include "common/err.h"

enum job_state {
    JOB_HELD,      /* waits for `release` */
    JOB_QUEUED,    /* waits for the scheduler, also between two attempts */
    JOB_STARTING,  /* a run exists and its workers are starting */
    JOB_RUNNING,   /* every rank is ready and was told its peers */
    JOB_STOPPING,  /* the run is being stopped; jobs.stop_why says what comes after */
    JOB_SUCCEEDED, /* final, resumable */
    JOB_FAILED,    /* final, resumable */
    JOB_CANCELLED, /* final, resumable */
    JOB_STATES
};

enum job_event {
    /* by a person: a queued job does not start; a running one writes a checkpoint and stops */
    JOB_EVENT_HOLD,
    JOB_EVENT_RELEASE, /* by a person: the held job joins the queue */
    JOB_EVENT_CANCEL,  /* by a person: a running job writes a checkpoint first */
    JOB_EVENT_RESUME,  /* by a person: the job goes on from its last checkpoint */
    /* by the scheduler: the job fits nowhere, even on an empty cluster, or it comes after a job that did not
     * succeed */
    JOB_EVENT_REFUSE,
    JOB_EVENT_PLACE, /* by the scheduler: a run was created */
    JOB_EVENT_READY, /* every rank is ready */
    /* by the scheduler: the run is being stopped (drain, time limit, lost worker or own fault) */
    JOB_EVENT_STOP,
    JOB_EVENT_DONE, /* every rank has finished */
    /* the run has ended by the job's own fault, after too many losses, or by its time limit without a
     * checkpoint */
    JOB_EVENT_FAULT,
    /* the run has ended (lost, drained or moved); the job goes on from its last checkpoint */
    JOB_EVENT_REQUEUE,
    JOB_EVENT_HELD,      /* the run has ended after HOLD */
    JOB_EVENT_CANCELLED, /* the run has ended after CANCEL */
    JOB_EVENT_UNFOLD,    /* by the scheduler: all elements of the array are jobs */
    JOB_EVENT_MISS,      /* by the scheduler: all elements of the array have ended, but not all succeeded */
    JOB_EVENTS
};

enum run_state {
    RUN_STARTING, /* the assignments are in the outbox */
    RUN_RUNNING,  /* the ranks were told their peers */
    RUN_STOPPING, /* the ranks were told to stop; runs.stop_why says why */
    RUN_DONE,     /* final */
    RUN_FAILED,   /* final: the job's own fault, or its time limit without a checkpoint */
    RUN_LOST,     /* final: a worker, agent or device was lost */
    RUN_STOPPED,  /* final: cancelled, held, drained or moved */
    RUN_STATES
};

enum run_event {
    RUN_EVENT_READY, /* every rank is ready */
    RUN_EVENT_STOP,
    RUN_EVENT_DONE,
    RUN_EVENT_FAIL,
    RUN_EVENT_LOSE,
    RUN_EVENT_STOPPED,
    RUN_EVENTS
};

enum assignment_state {
    ASSIGNMENT_SENT,    /* the assignment is in the outbox or with the agent */
    ASSIGNMENT_READY,   /* the worker listens for its peers */
    ASSIGNMENT_RUNNING, /* the worker said `started` */
    ASSIGNMENT_DONE,    /* final */
    ASSIGNMENT_FAILED,  /* final: the worker said `failed` */
    ASSIGNMENT_STOPPED, /* final: the worker said `stopped` */
    ASSIGNMENT_LOST,    /* final: the rank's node or worker was given up */
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

/* A state machine: the names of its states and events, and its edges. */
struct state_machine {
    const char *noun; /* for example "job" */
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

/* Returns the state that 'event' leads to from the state 'from', or -1 with ERR_CONFLICT ("a job that is
 * succeeded cannot hold"). */
int state_next(const struct state_machine *machine, int from, int event, struct err *err);

/* Convert between a state and its name ("queued"); -1 for an unknown name. */
const char *state_name(const struct state_machine *machine, int state);
int state_from_name(const struct state_machine *machine, const char *name);

/* Returns true when no event but RESUME leaves the state (for a run or an assignment: no event). */
bool state_is_final(const struct state_machine *machine, int state);

/* The values of jobs.stop_why and runs.stop_why: why a run is being stopped. This decides what becomes of the
 * job. */
enum stop_why {
    STOP_NONE,
    STOP_CANCEL,
    STOP_HOLD,
    STOP_DRAIN,
    STOP_TIME,
    STOP_LOST,
    STOP_FAULT,
    STOP_YIELD,
    STOP_PREEMPT, /* the job yields to another one, and its checkpoint is stored */
    STOP_SLICE,   /* the job's time slice is over, and its checkpoint is stored */
    STOP_WHYS
};
/* Returns NULL for STOP_NONE. */
const char *stop_why_name(enum stop_why why);
enum stop_why stop_why_from_name(const char *name); /* STOP_NONE for an unknown name or NULL */

#endif
