/* What events.c (batch, nodes) and events_run.c (ranks) share. */
#ifndef MOTLEY_SCHEDULER_EVENTS_PRIVATE_H
#define MOTLEY_SCHEDULER_EVENTS_PRIVATE_H

#include "scheduler/events.h"

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

/* The common fields of every event. */
struct event_head {
    const char *type, *node;
    int64_t seq;
};

/* The event was taken: its node lives. One that comes again is no sign of life. */
void event_accept(struct event_batch *batch, const char *node);
/* Takes 'row' over; NULL is ERR_NOMEM. */
int event_append(json_t *array, json_t *row, struct err *err);
/* Takes 'message' over. */
int event_reply(struct event_batch *batch, const char *node, json_t *message, struct err *err);
/* The event without what the envelope says: what people see. Returns new. */
json_t *event_body(const json_t *event);
/* Room for one more item; NULL without memory. */
void *event_grow(void *items, size_t count, size_t *capacity, size_t size);

/* An event that names a run. */
int event_add_of_run(struct event_batch *batch, const struct event_head *head, const json_t *event,
                     struct err *err);

/* events_health.c: a device of the view, NULL: unknown; a note of how the node's devices are; and the view
 * learns it. */
struct store_sched_device *event_device(struct store_view *view, const char *name);
int event_on_health(struct event_batch *batch, const struct store_sched_node *node, const json_t *event,
                    struct err *err);
void event_health_apply(struct event_batch *batch);

#endif
