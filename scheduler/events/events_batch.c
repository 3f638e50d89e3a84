/* A batch's arrays, and the functions that add to them. */
#include <stdlib.h>

#include "scheduler/events/events_private.h"

int event_batch_init(struct event_batch *batch, struct store_view *view, struct err *err)
{
    *batch = (struct event_batch){.view = view};
    bool whole = true;
    for (int i = 0; i < E_COUNT; i++) {
        batch->owned[i] = json_array();
        whole = whole && batch->owned[i];
    }
    batch->replies = json_array();
    batch->heard = json_object();
    batch->hellos = json_object();
    if (!whole || !batch->replies || !batch->heard || !batch->hellos)
        return err_set(err, ERR_NOMEM, "no memory for a batch of events");
    json_t *const *o = batch->owned;
    batch->ingest = (struct store_ingest){
        .ranks = o[E_RANKS],
        .metrics = o[E_METRICS],
        .progress = o[E_PROGRESS],
        .events = o[E_EVENTS],
        .checkpoints = o[E_CHECKPOINTS],
        .artifacts = o[E_ARTIFACTS],
        .traces = o[E_TRACES],
        .nodes = o[E_NODES],
        .devices = o[E_DEVICES],
        .seen = o[E_SEEN],
        .profiles = o[E_PROFILES],
        .links = o[E_LINKS],
        .failures = o[E_FAILURES],
        .received = o[E_RECEIVED],
        .unknown = o[E_UNKNOWN],
        .health = o[E_HEALTH],
        .faults = o[E_FAULTS],
    };
    return 0;
}

void event_batch_fini(struct event_batch *batch)
{
    for (int i = 0; i < E_COUNT; i++)
        json_decref(batch->owned[i]);
    json_decref(batch->replies);
    json_decref(batch->heard);
    json_decref(batch->hellos);
    free(batch->moves);
    free(batch->nodes);
    *batch = (struct event_batch){0};
}

void event_accept(struct event_batch *batch, const char *node)
{
    if (!json_object_get(batch->heard, node))
        json_object_set_new(batch->heard, node, json_integer(0));
    batch->accepted++;
}

int event_append(json_t *array, json_t *row, struct err *err)
{
    if (!row || json_array_append_new(array, row) < 0)
        return err_set(err, ERR_INTERNAL, "an event cannot be turned into a row");
    return 0;
}

int event_reply(struct event_batch *batch, const char *node, json_t *message, struct err *err)
{
    return event_append(batch->replies,
                        message ? json_pack("{s:s, s:o}", "node", node, "message", message) : NULL, err);
}

json_t *event_body(const json_t *event)
{
    static const char *const envelope[] = {"type", "node", "run", "epoch", "rank", "seq", "boot", "job"};
    json_t *body = json_copy((json_t *)event);
    for (size_t i = 0; i < sizeof(envelope) / sizeof(envelope[0]); i++)
        json_object_del(body, envelope[i]);
    return body;
}
