/* Declarations that the files of the batch share: events.c (nodes), events_run.c (ranks), events_health.c
 * (devices) and events_batch.c (the batch's arrays). E_… number the arrays of struct store_ingest. */
#ifndef MOTLEY_SCHEDULER_EVENTS_EVENTS_PRIVATE_H
#define MOTLEY_SCHEDULER_EVENTS_EVENTS_PRIVATE_H

#include "scheduler/events/events.h"

enum {
    E_RANKS,
    E_METRICS,
    E_PROGRESS,
    E_EVENTS,
    E_CHECKPOINTS,
    E_ARTIFACTS,
    E_TRACES,
    E_NODES,
    E_DEVICES,
    E_SEEN,
    E_PROFILES,
    E_LINKS,
    E_FAILURES,
    E_RECEIVED,
    E_UNKNOWN,
    E_HEALTH,
    E_FAULTS,
    E_COUNT
};

#define EVENT_SEQ_MAX ((int64_t)1 << 53)

/* The fields that every event has. */
struct event_head {
    const char *type, *node;
    int64_t seq;
};

/* Notes that the event was accepted and that its node is alive. It is not called for a repeated event, which
 * is no sign of life. */
void event_accept(struct event_batch *batch, const char *node);
/* Appends 'row', which it takes over. A NULL row is an error. */
int event_append(json_t *array, json_t *row, struct err *err);
/* Adds a message for 'node', sent after the commit. Takes 'message' over. */
int event_reply(struct event_batch *batch, const char *node, json_t *message, struct err *err);
/* Returns a new copy of the event without the envelope's fields (type, node, run …): the part that people
 * see. */
json_t *event_body(const json_t *event);
/* Adds an event that names a run. */
int event_add_of_run(struct event_batch *batch, const struct event_head *head, const json_t *event,
                     struct err *err);

/* events_health.c. event_device returns the view's device of that name, or NULL. event_on_health notes what a
 * node says of its devices; event_health_apply writes that into the view after the commit. */
struct store_sched_device *event_device(struct store_view *view, const char *name);
int event_on_health(struct event_batch *batch, const struct store_sched_node *node, const json_t *event,
                    struct err *err);
void event_health_apply(struct event_batch *batch);

#endif
