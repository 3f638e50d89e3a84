/* What scheduler.c (loop, leading), turns.c (what is next), ingest.c (events in) and pass*.c (decisions)
 * share.
 *
 * One thing at a time: `busy` is true while a load, an ingest or a decision is
 * with the database; its callback ends with scheduler_turn(), which starts the
 * next. `chain` is the epoch under which the present thing was begun: an answer
 * that comes under another epoch is dropped.
 */
#ifndef MOTLEY_SCHEDULER_SCHEDULER_PRIVATE_H
#define MOTLEY_SCHEDULER_SCHEDULER_PRIVATE_H

#include <jansson.h>

#include "scheduler/dispatch.h"
#include "scheduler/events.h"
#include "scheduler/facts.h"
#include "scheduler/inlets.h"
#include "scheduler/planning.h"
#include "scheduler/scheduler.h"
#include "store/leader.h"
#include "store/sched.h"

struct event;
struct redis;
struct ssl_ctx_st;

/* Signs of life, by node. Monotonic nanoseconds. */
struct node_life {
    char name[72];
    uint64_t heard_ns;
    uint64_t noted_ns; /* when last_seen was last written */
};

/* A worker that its agent, newly started, did not name. */
struct missing_worker {
    int64_t run;
    uint32_t rank;
    uint64_t since_ns;
    bool asked; /* its agent was asked once more */
};

/* A running run whose devices are not as fast as they are when cool (pass_move.c). */
struct run_look {
    int64_t run;
    uint64_t settled; /* their speeds, of which nothing more is to be asked */
    uint64_t next_ns, began_ns;
    uint32_t count, windows; /* looks so far; those in a row that showed a gain */
    bool kept;               /* its run is still there */
};

struct scheduler {
    struct event_base *base;
    const struct scheduler_config *config;
    const struct placer *placer;
    struct ssl_ctx_st *tls;
    struct store *store;
    struct store_leader *candidate;
    struct redis *commands, *reader; /* reader: blocking XREAD only */
    struct dispatch *dispatch;
    struct facts *facts;
    struct planning *planning;
    struct waiting *waiting;
    struct store_queue_mark queue_mark; /* the queue's head was looked at, and it up to here */
    struct event *turn, *tick, *wake;   /* turn: deferred scheduler_turn; tick: 500 ms; wake: next due time */

    int64_t epoch; /* 0: standing by */
    int64_t chain;
    bool ready; /* the outbox is loaded */
    bool busy, dirty, view_stale;
    bool events_next; /* whose turn it is when both have work */
    bool redis_up;
    bool devices_free;  /* when the last pass ended */
    uint64_t passed_ns; /* when the last pass began */
    struct store_view *view;

    uint64_t read_ns;      /* when the last XREAD came back: nothing after it was heard yet */
    struct inlets *inlets; /* the nodes' streams; empty until the first view */
    bool reading;          /* an XREAD is under way */
    size_t read_next;      /* the inlet whose turn it is, where not all are read at once */
    size_t read_busy;      /* streams that had entries the last time, at least 1 */
    size_t read_alone;     /* so many reads of one stream each */
    char read_only[72];    /* the node whose stream alone is read; "": several */
    json_t *pending;       /* events read and not yet ingested, or NULL */
    bool taken;            /* an entry was read, be it refused */
    bool solo;             /* pending events go one by one: one of them was refused by the database */
    struct event_batch batch;
    bool marking; /* what was refused is being written */

    bool users_asked, users_due; /* keeper.c: an ACL LIST is under way; a new comparison shall follow */
    bool users_second;           /* it is the second of its comparison */
    uint64_t users_ns;           /* when the last one began */

    struct node_life *lives;
    size_t life_count;
    struct missing_worker *missing;
    size_t missing_count;
    json_t *told;          /* identities.c: {"NODE": generation} as agents were told, or NULL */
    uint64_t listening_ns; /* since when silence counts */
    struct run_look *looks;
    size_t look_count;
    uint64_t pruned_ns, complained_ns;
    bool pruning, prune_more;
    bool marker_asked;

    struct pass *pass; /* the decision under way */
};

/* turns.c. Ask for a pass. */
void scheduler_mark(struct scheduler *scheduler);
/* Start what is next, on the loop's next turn. */
void scheduler_turn(struct scheduler *scheduler);
/* The present thing has ended. False: it was begun under another epoch, drop the answer (the next is
 * started). */
bool scheduler_settle(struct scheduler *scheduler);
/* Ask for a pass in so long. */
void scheduler_wake_in_ms(struct scheduler *scheduler, unsigned ms);
/* After a failed write: load again, after a pause. */
void scheduler_retry(struct scheduler *scheduler, const char *what, const struct err *why);

/* ingest.c */
void ingest_start(struct scheduler *scheduler);  /* pending events → database */
void ingest_read(struct scheduler *scheduler);   /* next XREAD if none is under way */
void ingest_forget(struct scheduler *scheduler); /* leadership lost */

/* floods.c: a node's stream stays small, or is emptied: its agent's journal sends again. */
/* Asks how large the streams are; cut: only of those whose last read was cut. */
void floods_look(struct scheduler *scheduler, bool cut);
/* Empties the node's stream and counts 'strikes' against it; many in a while bar it. */
void floods_empty(struct scheduler *scheduler, struct inlet *inlet, unsigned strikes, const char *why);
/* Writes what was refused to the nodes' rows. */
void floods_mark(struct scheduler *scheduler);

/* keeper.c: Redis's users `agent-…` are those of the view's nodes, with a few connections each. Compares now,
 * or once more after the comparison under way. */
void keeper_check(struct scheduler *scheduler);
void keeper_tick(struct scheduler *scheduler, uint64_t now_ns);
/* A new connection: perhaps to a Redis without users. */
void keeper_forget(struct scheduler *scheduler);

/* pass.c: takes the view that was just loaded; ends in scheduler_turn. */
void pass_start(struct scheduler *scheduler);
void pass_forget(struct scheduler *scheduler);

/* liveness.c */
void liveness_heard(struct scheduler *scheduler, const char *node, uint64_t now_ns);
/* Milliseconds of silence that count against the node. */
uint64_t liveness_silent_ms(const struct scheduler *scheduler, const char *node, uint64_t now_ns);
/* Whether any node has crossed a threshold since the view was loaded. */
bool liveness_changed(const struct scheduler *scheduler, uint64_t now_ns);
/* A hello: its agent names the living workers (null: it does not say). */
void liveness_hello(struct scheduler *scheduler, const char *node, const json_t *workers, uint64_t now_ns);
void liveness_alive(struct scheduler *scheduler, int64_t run, uint32_t rank); /* the worker spoke */
bool liveness_missing(const struct scheduler *scheduler, int64_t run, uint32_t rank, uint64_t now_ns);
/* Before a missing worker is given up its agent is asked again. */
void liveness_ask_again(struct scheduler *scheduler, uint64_t now_ns);
void liveness_forget(struct scheduler *scheduler);

/* identities.c. Tell those that left, while they can still be told. */
void identities_leave(struct scheduler *scheduler);
/* Tell whoever must know of nodes that came, left or were enrolled anew since the last view. */
void identities_tell(struct scheduler *scheduler);
void identities_hello(struct scheduler *scheduler, const char *node); /* its agent is new */
void identities_forget(struct scheduler *scheduler);
/* Is this the identity of an earlier generation of the node? */
bool identity_is_old(const struct store_sched_node *node, const char *identity);

#endif
