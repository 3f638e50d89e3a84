/* Turns events of agents into one batch of rows for the database. Pure: nothing is sent or written here.
 *
 * An event of a run counts when its run is active in the view, its epoch is the run's, its node is the
 * rank's, and its seq is the next one. A repeated event is dropped. An event beyond a gap is dropped too; its
 * agent sends it again. An event of a run that is over is acknowledged, and answered with a message that
 * kills the worker. An event that names an epoch or a rank of an active run which its node does not hold is
 * refused. See docs/CONTRACTS.md, Events.
 */
#ifndef MOTLEY_SCHEDULER_EVENTS_EVENTS_H
#define MOTLEY_SCHEDULER_EVENTS_EVENTS_H

#include <jansson.h>
#include <stddef.h>
#include "common/err.h"
#include "store/sched.h"

struct rank_move { /* what this batch changes of one rank */
    struct store_sched_run *run;
    struct store_sched_rank *rank;
    int64_t seq;
    enum assignment_state state;
    double compute_s; /* the rank's seconds of computing in a step, averaged over several steps */
    uint32_t measured;
    json_t *change; /* the rank's row in store_ingest.ranks, which owns it */
};

struct node_move {
    struct store_sched_node *node;
    char boot[80];
    int64_t seq;
    json_t *change; /* the node's row in store_ingest.nodes, which owns it */
};

struct event_batch {
    struct store_view *view; /* borrowed; only event_batch_apply changes it */
    struct store_ingest ingest;
    /* the arrays that `ingest` refers to, indexed by E_RANKS … E_FAULTS (events_private.h) */
    json_t *owned[17];
    json_t *replies; /* messages to send after the commit: [{"node","message"}] */
    /* {node: wall clock of its agent in µs at its last heartbeat, or 0} for each node that gave a new sign of
     * life */
    json_t *heard;
    json_t *hellos; /* {node: [{"run","epoch","rank"}…]}: the living workers that the node's hello named */
    struct rank_move *moves;
    size_t move_count, move_capacity;
    struct node_move *nodes;
    size_t node_count, node_capacity;
    size_t accepted, dropped;
    bool health_counts; /* the heat or the usable memory of a device has changed */
};

/* Makes an empty batch for the events of the view's nodes. Call event_batch_fini afterwards, even if this
 * fails. */
int event_batch_init(struct event_batch *batch, struct store_view *view, struct err *err);
void event_batch_fini(struct event_batch *batch);

/* Adds one event. Fails with ERR_INVALID, ERR_DENIED or ERR_NOT_FOUND when the event breaks the protocol: the
 * caller logs that and goes on with the next event. Fails with ERR_NOMEM when the batch cannot be
 * completed. */
int event_batch_add(struct event_batch *batch, const json_t *event, struct err *err);

/* Writes the last seq and state into the rows and makes the acknowledgements. Call it once, after all events
 * were added. */
int event_batch_close(struct event_batch *batch, struct err *err);

/* Returns true when the batch has no row for the database. */
bool event_batch_is_empty(const struct event_batch *batch);

/* Writes the committed seqs, states, boots and health into the view. Call it after the commit. */
void event_batch_apply(struct event_batch *batch);

#endif
