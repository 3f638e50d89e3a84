/* What agents told, as one batch for the database. Pure: documents in, documents
 * out, nothing is sent or written here.
 *
 * An event of a run counts when its run is active in the view, its epoch is the
 * run's, its node is the rank's, and its seq is the next one. A repeated one is
 * dropped; one beyond a gap is dropped and comes again; one of a run that is over
 * is acknowledged and answered with a kill; one of an active run, epoch or rank
 * that its node does not hold is refused. See docs/CONTRACTS.md, Events.
 */
#ifndef MOTLEY_SCHEDULER_EVENTS_H
#define MOTLEY_SCHEDULER_EVENTS_H

#include <jansson.h>
#include <stddef.h>
#include "common/err.h"
#include "store/sched.h"

struct rank_move { /* one rank that moved in this batch */
    struct store_sched_run *run;
    struct store_sched_rank *rank;
    int64_t seq;
    enum assignment_state state;
    json_t *change; /* row of store_ingest.ranks; owned by it */
};

struct node_move {
    struct store_sched_node *node;
    char boot[80];
    int64_t seq;
    json_t *change; /* row of store_ingest.nodes; owned by it */
};

struct event_batch {
    struct store_view *view; /* borrowed: what is known; changed only by event_batch_apply */
    struct store_ingest ingest;
    json_t *owned[17]; /* the arrays of ingest */
    json_t *replies;   /* after the commit: [{"node","message"}] */
    json_t *heard;     /* {node: true}: a sign of life that is new */
    json_t *hellos;    /* {node: [{"run","epoch","rank"}…]}: living workers of agents that said hello */
    struct rank_move *moves;
    size_t move_count, move_capacity;
    struct node_move *nodes;
    size_t node_count, node_capacity;
    size_t accepted, dropped;
    bool health_counts; /* a device's heat or memory has changed */
};

/* Release with event_batch_fini (also after a failure). */
int event_batch_init(struct event_batch *batch, struct store_view *view, struct err *err);
void event_batch_fini(struct event_batch *batch);

/* Adds one event. -1 with ERR_INVALID (it breaks the protocol: log and go on; nothing was added) or
 * ERR_NOMEM. */
int event_batch_add(struct event_batch *batch, const json_t *event, struct err *err);

/* After all are added: makes acknowledgements. */
int event_batch_close(struct event_batch *batch, struct err *err);

/* True when there is nothing to write. */
bool event_batch_is_empty(const struct event_batch *batch);

/* The commit has happened: the view learns it (seq, states, boots). */
void event_batch_apply(struct event_batch *batch);

#endif
