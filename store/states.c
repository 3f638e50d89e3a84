/* The state machines' tables. */
#include "store/states.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char *const job_states[JOB_STATES] = {
    [JOB_HELD] = "held",       [JOB_QUEUED] = "queued",       [JOB_STARTING] = "starting",
    [JOB_RUNNING] = "running", [JOB_STOPPING] = "stopping",   [JOB_SUCCEEDED] = "succeeded",
    [JOB_FAILED] = "failed",   [JOB_CANCELLED] = "cancelled",
};

static const char *const job_events[JOB_EVENTS] = {
    [JOB_EVENT_HOLD] = "hold",
    [JOB_EVENT_RELEASE] = "release",
    [JOB_EVENT_CANCEL] = "cancel",
    [JOB_EVENT_RESUME] = "resume",
    [JOB_EVENT_REFUSE] = "refuse",
    [JOB_EVENT_PLACE] = "place",
    [JOB_EVENT_READY] = "ready",
    [JOB_EVENT_STOP] = "stop",
    [JOB_EVENT_DONE] = "finish",
    [JOB_EVENT_FAULT] = "fail",
    [JOB_EVENT_REQUEUE] = "requeue",
    [JOB_EVENT_HELD] = "settle as held",
    [JOB_EVENT_CANCELLED] = "settle as cancelled",
    [JOB_EVENT_UNFOLD] = "unfold",
    [JOB_EVENT_MISS] = "miss",
};

static const struct state_edge job_edges[] = {
    {JOB_HELD, JOB_EVENT_RELEASE, JOB_QUEUED},
    {JOB_HELD, JOB_EVENT_RESUME, JOB_QUEUED},
    {JOB_HELD, JOB_EVENT_CANCEL, JOB_CANCELLED},
    {JOB_HELD, JOB_EVENT_REFUSE, JOB_FAILED},
    {JOB_QUEUED, JOB_EVENT_HOLD, JOB_HELD},
    {JOB_QUEUED, JOB_EVENT_CANCEL, JOB_CANCELLED},
    {JOB_QUEUED, JOB_EVENT_REFUSE, JOB_FAILED},
    {JOB_QUEUED, JOB_EVENT_PLACE, JOB_STARTING},
    {JOB_QUEUED, JOB_EVENT_UNFOLD, JOB_RUNNING},
    {JOB_STARTING, JOB_EVENT_READY, JOB_RUNNING},
    {JOB_STARTING, JOB_EVENT_HOLD, JOB_STOPPING},
    {JOB_STARTING, JOB_EVENT_CANCEL, JOB_STOPPING},
    {JOB_STARTING, JOB_EVENT_STOP, JOB_STOPPING},
    {JOB_RUNNING, JOB_EVENT_HOLD, JOB_STOPPING},
    {JOB_RUNNING, JOB_EVENT_CANCEL, JOB_STOPPING},
    {JOB_RUNNING, JOB_EVENT_STOP, JOB_STOPPING},
    {JOB_RUNNING, JOB_EVENT_DONE, JOB_SUCCEEDED},
    {JOB_RUNNING, JOB_EVENT_MISS, JOB_FAILED},
    {JOB_STOPPING, JOB_EVENT_HOLD, JOB_STOPPING},
    {JOB_STOPPING, JOB_EVENT_CANCEL, JOB_STOPPING},
    /* a person asked for this stop first; now the run is told */
    {JOB_STOPPING, JOB_EVENT_STOP, JOB_STOPPING},
    {JOB_STOPPING, JOB_EVENT_DONE, JOB_SUCCEEDED},
    {JOB_STOPPING, JOB_EVENT_FAULT, JOB_FAILED},
    {JOB_STOPPING, JOB_EVENT_REQUEUE, JOB_QUEUED},
    {JOB_STOPPING, JOB_EVENT_HELD, JOB_HELD},
    {JOB_STOPPING, JOB_EVENT_CANCELLED, JOB_CANCELLED},
    {JOB_SUCCEEDED, JOB_EVENT_RESUME, JOB_QUEUED},
    {JOB_FAILED, JOB_EVENT_RESUME, JOB_QUEUED},
    {JOB_CANCELLED, JOB_EVENT_RESUME, JOB_QUEUED},
    {JOB_CANCELLED, JOB_EVENT_CANCEL, JOB_CANCELLED},
};

static const char *const run_states[RUN_STATES] = {
    [RUN_STARTING] = "starting", [RUN_RUNNING] = "running", [RUN_STOPPING] = "stopping", [RUN_DONE] = "done",
    [RUN_FAILED] = "failed",     [RUN_LOST] = "lost",       [RUN_STOPPED] = "stopped",
};

static const char *const run_events[RUN_EVENTS] = {
    [RUN_EVENT_READY] = "ready", [RUN_EVENT_STOP] = "stop", [RUN_EVENT_DONE] = "finish",
    [RUN_EVENT_FAIL] = "fail",   [RUN_EVENT_LOSE] = "lose", [RUN_EVENT_STOPPED] = "settle as stopped",
};

static const struct state_edge run_edges[] = {
    {RUN_STARTING, RUN_EVENT_READY, RUN_RUNNING}, {RUN_STARTING, RUN_EVENT_STOP, RUN_STOPPING},
    {RUN_RUNNING, RUN_EVENT_STOP, RUN_STOPPING},  {RUN_RUNNING, RUN_EVENT_DONE, RUN_DONE},
    {RUN_STOPPING, RUN_EVENT_DONE, RUN_DONE},     {RUN_STOPPING, RUN_EVENT_FAIL, RUN_FAILED},
    {RUN_STOPPING, RUN_EVENT_LOSE, RUN_LOST},     {RUN_STOPPING, RUN_EVENT_STOPPED, RUN_STOPPED},
};

static const char *const assignment_states[ASSIGNMENT_STATES] = {
    [ASSIGNMENT_SENT] = "sent", [ASSIGNMENT_READY] = "ready",   [ASSIGNMENT_RUNNING] = "running",
    [ASSIGNMENT_DONE] = "done", [ASSIGNMENT_FAILED] = "failed", [ASSIGNMENT_STOPPED] = "stopped",
    [ASSIGNMENT_LOST] = "lost",
};

static const char *const assignment_events[ASSIGNMENT_EVENTS] = {
    [ASSIGNMENT_EVENT_READY] = "become ready", [ASSIGNMENT_EVENT_STARTED] = "start",
    [ASSIGNMENT_EVENT_DONE] = "finish",        [ASSIGNMENT_EVENT_FAILED] = "fail",
    [ASSIGNMENT_EVENT_STOPPED] = "stop",       [ASSIGNMENT_EVENT_LOST] = "be lost",
};

static const struct state_edge assignment_edges[] = {
    {ASSIGNMENT_SENT, ASSIGNMENT_EVENT_READY, ASSIGNMENT_READY},
    {ASSIGNMENT_SENT, ASSIGNMENT_EVENT_FAILED, ASSIGNMENT_FAILED},
    {ASSIGNMENT_SENT, ASSIGNMENT_EVENT_STOPPED, ASSIGNMENT_STOPPED},
    {ASSIGNMENT_SENT, ASSIGNMENT_EVENT_LOST, ASSIGNMENT_LOST},
    {ASSIGNMENT_READY, ASSIGNMENT_EVENT_STARTED, ASSIGNMENT_RUNNING},
    {ASSIGNMENT_READY, ASSIGNMENT_EVENT_FAILED, ASSIGNMENT_FAILED},
    {ASSIGNMENT_READY, ASSIGNMENT_EVENT_STOPPED, ASSIGNMENT_STOPPED},
    {ASSIGNMENT_READY, ASSIGNMENT_EVENT_LOST, ASSIGNMENT_LOST},
    {ASSIGNMENT_RUNNING, ASSIGNMENT_EVENT_DONE, ASSIGNMENT_DONE},
    {ASSIGNMENT_RUNNING, ASSIGNMENT_EVENT_FAILED, ASSIGNMENT_FAILED},
    {ASSIGNMENT_RUNNING, ASSIGNMENT_EVENT_STOPPED, ASSIGNMENT_STOPPED},
    {ASSIGNMENT_RUNNING, ASSIGNMENT_EVENT_LOST, ASSIGNMENT_LOST},
};

const struct state_machine job_machine = {
    .noun = "job",
    .states = job_states,
    .state_count = COUNT(job_states),
    .events = job_events,
    .event_count = COUNT(job_events),
    .edges = job_edges,
    .edge_count = COUNT(job_edges),
};

const struct state_machine run_machine = {
    .noun = "run",
    .states = run_states,
    .state_count = COUNT(run_states),
    .events = run_events,
    .event_count = COUNT(run_events),
    .edges = run_edges,
    .edge_count = COUNT(run_edges),
};

const struct state_machine assignment_machine = {
    .noun = "worker",
    .states = assignment_states,
    .state_count = COUNT(assignment_states),
    .events = assignment_events,
    .event_count = COUNT(assignment_events),
    .edges = assignment_edges,
    .edge_count = COUNT(assignment_edges),
};

int state_next(const struct state_machine *machine, int from, int event, struct err *err)
{
    if (from < 0 || (size_t)from >= machine->state_count || event < 0 ||
        (size_t)event >= machine->event_count) {
        return err_set(err, ERR_INTERNAL, "%s state %d or event %d does not exist", machine->noun, from,
                       event);
    }
    for (size_t i = 0; i < machine->edge_count; i++)
        if (machine->edges[i].from == from && machine->edges[i].event == event)
            return machine->edges[i].to;
    return err_set(err, ERR_CONFLICT, "%s is not possible: the %s's state is %s", machine->events[event],
                   machine->noun, machine->states[from]);
}

const char *state_name(const struct state_machine *machine, int state)
{
    return state >= 0 && (size_t)state < machine->state_count ? machine->states[state] : "unknown";
}

int state_from_name(const struct state_machine *machine, const char *name)
{
    for (size_t i = 0; i < machine->state_count; i++)
        if (strcmp(machine->states[i], name) == 0)
            return (int)i;
    return -1;
}

bool state_is_final(const struct state_machine *machine, int state)
{
    if (machine == &job_machine)
        return state == JOB_SUCCEEDED || state == JOB_FAILED || state == JOB_CANCELLED;
    for (size_t i = 0; i < machine->edge_count; i++)
        if (machine->edges[i].from == state)
            return false;
    return true;
}

static const char *const stop_names[STOP_WHYS] = {
    [STOP_CANCEL] = "cancel", [STOP_HOLD] = "hold",       [STOP_DRAIN] = "drain",
    [STOP_TIME] = "time",     [STOP_LOST] = "lost",       [STOP_FAULT] = "fault",
    [STOP_YIELD] = "yield",   [STOP_PREEMPT] = "preempt", [STOP_SLICE] = "slice",
};

const char *stop_why_name(enum stop_why why)
{
    return why > STOP_NONE && why < STOP_WHYS ? stop_names[why] : NULL;
}

enum stop_why stop_why_from_name(const char *name)
{
    for (int i = STOP_NONE + 1; name && i < STOP_WHYS; i++)
        if (strcmp(stop_names[i], name) == 0)
            return (enum stop_why)i;
    return STOP_NONE;
}
