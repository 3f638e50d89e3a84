/* Declarations that scheduler.c (the loop and leadership), tasks.c (which task is next), ingest.c (events)
 * and pass*.c (decisions) share.
 *
 * One database task runs at a time: `busy` is true while a load, an ingest or a decision is under way, and
 * its callback ends with scheduler_turn(), which starts the next. `chain` is the epoch under which the task
 * began: an answer that comes under another epoch is dropped.
 */
#ifndef MOTLEY_SCHEDULER_LEADER_SCHEDULER_PRIVATE_H
#define MOTLEY_SCHEDULER_LEADER_SCHEDULER_PRIVATE_H

#include <jansson.h>

#include "scheduler/leader/dispatch.h"
#include "scheduler/events/events.h"
#include "scheduler/placer/facts.h"
#include "scheduler/leader/node_streams.h"
#include "scheduler/placer/planning.h"
#include "scheduler/leader/scheduler.h"
#include "scheduler/policy/range.h"
#include "store/leader.h"
#include "store/links.h"
#include "store/queue.h"

struct event;
struct redis;
struct ssl_ctx_st;

/* When a node gave its last sign of life. Monotonic nanoseconds. */
struct node_life {
    char name[72];
    uint64_t heard_ns;
    /* listening_ns when people were last told from when on what runs there is given up; 0: never */
    uint64_t told_ns;
    uint64_t noted_ns; /* when the node's last_seen and clock were last written */
    /* how far the clock of the node's agent is ahead of ours: by the last heartbeat (of clock_ns), by two
     * that agree, and as it was last written (far from any clock: not yet) */
    int64_t ahead_us, clock_us, noted_us;
    uint64_t clock_ns;
    bool clock_is_known; /* two heartbeats have agreed */
};

/* A worker that its newly started agent did not name. */
struct missing_worker {
    int64_t run;
    uint32_t rank;
    uint64_t since_ns;
    bool asked; /* the agent was asked a second time */
};

/* A run, and how often a move to other devices was considered for it (pass_move.c). A weighing is one
 * comparison of staying with moving. The settled_… fields hold what the last series of comparisons ended
 * with; when something differs from them, a move is considered again. */
struct run_weighing {
    int64_t run;
    uint64_t settled_heat; /* hash of the devices' heat factors */
    /* [rank_count] measured seconds of computing in a step, divided by the plan's; owned */
    double *settled_drift;
    json_t *settled_free; /* {device: true}: free devices to which a move was considered; owned */
    /* [rank_count] measured seconds of computing in a step when the present comparison began; owned */
    double *compute_s;
    uint32_t rank_count;
    uint32_t steps; /* least number of steps that any rank had measured at the last comparison */
    /* next_ns: when the next comparison may begin; began_ns, asked_ns: when the present comparison began, and
     * when the planner was asked (0: not yet) */
    uint64_t next_ns, began_ns, asked_ns;
    /* count: comparisons so far; windows: consecutive comparisons that showed a gain; stays: series that
     * ended without a move */
    uint32_t count, windows, stays;
};

/* A position in the queue: behind the job of this priority and id. */
struct queue_mark {
    bool set;
    int32_t priority;
    int64_t id;
};

/* What can fail again and again: loads, what passes write, the storing of events, and connections to Redis.
 */
enum scheduler_task { TASK_LOAD, TASK_PASS, TASK_INGEST, TASK_REDIS, TASKS };

/* How the tasks go (health.c). Monotonic nanoseconds; 0: never. */
struct scheduler_health {
    struct {
        uint64_t failing_ns; /* since when every try has failed; 0: the last one did not */
        uint64_t failed_ns;  /* when the last one failed */
        unsigned failures;   /* tries since then */
        bool told;           /* the database was told of it */
        struct err err;
    } tasks[TASKS];
    uint64_t good_ns;    /* when nothing was left to decide */
    uint64_t written_ns; /* when the database was told last */
    bool changed;        /* the database is to be told at once */
    bool writing;
};

struct scheduler {
    struct event_base *base;
    const struct scheduler_config *config;
    const struct placer *placer;
    struct ssl_ctx_st *tls;
    struct store *store;
    struct err ended; /* of scheduler_ended */
    struct store_leader *candidate;
    struct redis *commands, *reader; /* reader: only for XREAD, which blocks */
    struct dispatch *dispatch;
    struct facts *facts;
    struct planning *planning;
    struct plan_memo *memo;
    struct use_shares *shares;   /* ledger use of all users and accounts */
    struct start_history starts; /* predicted beside true starts of the jobs that had started by started_us */
    int64_t started_us;
    json_t *idle; /* {lease's id: time since which this leader has seen the lease's device idle, µs} */
    json_t *away; /* {device: time since which this leader has seen the device away or unfit, µs} */
    /* {job: {"until_us", "devices": [names]}}: where jobs move to, which nobody takes meanwhile
     * (pass_moving.c) */
    json_t *moving;
    struct store_queue *queue; /* the queued jobs as of the last load */
    struct store_links *links; /* the links as of the last load */
    struct scheduler_health health;
    /* {unit: {"part","until","until_us","why","job"?}}: what passes leave out (pass/pass_write.c) */
    json_t *asides;
    json_t *blamed; /* {unit: why}: what has failed alone since the last commit of a pass */
    uint64_t
        links_settled; /* hash of nodes, links and requests of which no link is to be measured; 0: none */
    /* when the places of the queue were last listed (the view's clock; 0: never), and a hash of the list that
     * was written last */
    int64_t listed_us;
    uint64_t listed_hash;
    uint64_t checked_ns; /* when the queue was last compared with the database; 0: the next load compares */
    unsigned conflicts, ingest_conflicts; /* consecutive conflicts of decisions, and of batches of events */
    /* the last queued job that was examined; used when more classes of jobs are queued than one pass examines
     * and devices remain free */
    struct queue_mark queue_mark;
    /* turn: runs scheduler_turn's work; tick: fires every 250 ms; wake: fires when a decision falls due */
    struct event *turn, *tick, *wake;
    struct event *read_later; /* starts the next XREAD after a pause (ingest.c) */

    int64_t epoch; /* 0: standing by */
    int64_t chain;
    bool ready; /* the outbox is loaded */
    bool busy, dirty, view_stale;
    bool reconfigured;             /* the configuration has changed since the last load */
    bool events_next;              /* the next task takes events, before a pass, if both have work */
    unsigned passes_before_events; /* passes that began while events were waiting */
    bool redis_up;
    bool sharing_said;  /* this leader has written the policies' settings to the database */
    bool devices_free;  /* the last pass left a device free */
    uint64_t passed_ns; /* when the last pass began */
    struct store_view *view;

    uint64_t read_ns; /* when the last XREAD came back; entries sent later were not read yet */
    struct node_streams *node_streams; /* the nodes' streams; empty until the first view */
    bool reading;                      /* an XREAD is under way */
    /* index of the next struct node_stream to read, when one XREAD does not cover all streams */
    size_t read_next;
    size_t read_busy;       /* streams that had entries in the last read, at least 1 */
    size_t read_alone;      /* number of further reads that take one stream each */
    char read_only[72];     /* the node whose stream is read alone; "": several streams are read */
    json_t *pending;        /* events that were read and not yet committed, or NULL */
    bool taken;             /* the last read found an entry, even if it was refused */
    unsigned solo_failures; /* how often the first pending event has failed alone, and why last */
    struct err solo_why;
    /* consecutive runs with an event that was refused alone, since the last commit of events, and the last of
     * them */
    unsigned refused_runs;
    int64_t refused_run;
    bool solo; /* pending events are committed one by one, because the database refused one of them */
    struct event_batch batch;
    bool marking; /* counts of refused events are being written */

    /* For redis_users.c. users_asked: an ACL LIST was sent and not yet answered; users_due: another
     * comparison follows it. */
    bool users_asked, users_due;
    bool users_second; /* the ACL LIST that was sent is the second one of its comparison */
    uint64_t users_ns; /* when the last comparison began */

    struct node_life *lives;
    size_t life_count, life_capacity;
    struct missing_worker *missing;
    size_t missing_count, missing_capacity;
    json_t *told;          /* {"NODE": generation} as the agents were told last (identities.c), or NULL */
    uint64_t listening_ns; /* a node's silence counts only from this moment on */
    struct run_weighing *weighings;
    size_t weighing_count, weighing_capacity;
    uint64_t remeasured_ns; /* when profiles were last checked for devices that must be measured again */
    uint64_t pruned_ns, complained_ns;
    bool pruning, prune_more;
    bool marker_asked;
    char redis_at[256]; /* the address that the streams were read from last */
    uint64_t beacon_ns; /* when REDIS_BEACON was last set */

    struct scheduler_pass *pass; /* the decision under way */
};

/* tasks.c. Asks for a pass. */
void scheduler_mark(struct scheduler *scheduler);
/* Starts the next task on the loop's next turn. */
void scheduler_turn(struct scheduler *scheduler);
/* Ends the present task. Returns false when the task began under another epoch: the caller drops the answer,
 * and the next task is started. */
bool scheduler_settle(struct scheduler *scheduler);
/* Asks for a pass after `ms` milliseconds. */
void scheduler_wake_in_ms(struct scheduler *scheduler, unsigned ms);
/* Logs a failed task as the event `what`, and asks for a new view after a pause. */
void scheduler_retry(struct scheduler *scheduler, enum scheduler_task task, const char *what,
                     const struct err *why);

/* Whether a transaction's error can be the fault of some of its rows, rather than of the database as a whole:
 * then the others are to be written without them. *conflicts counts consecutive conflicts, and the caller
 * resets it: the third one is a fault of rows. */
bool scheduler_blames_rows(const struct err *err, unsigned *conflicts);

/* health.c. Note how a try of the task went. A pass that had nothing to write says nothing of the task. */
void health_good(struct scheduler *scheduler, enum scheduler_task task);
void health_failed(struct scheduler *scheduler, enum scheduler_task task, const struct err *why);
/* Tells the database how passes go: at once after a change, else every two seconds. */
void health_tell(struct scheduler *scheduler, uint64_t now_ns);

/* ingest.c reads the streams and commits their events. */
void ingest_start(struct scheduler *scheduler); /* commits the events in `pending` */
/* Starts the next XREAD, unless one is waiting for its answer. */
void ingest_read(struct scheduler *scheduler);
/* Drops events that were read and not committed; called when leadership is lost. */
void ingest_forget(struct scheduler *scheduler);

/* floods.c bounds the size of each node's stream and empties one that is too large; the agent sends
 * unacknowledged events again. */
/* Asks Redis how large the streams are; with `cut`, only those that the last read did not read to their
 * end. */
void floods_measure(struct scheduler *scheduler, bool cut);
/* Empties the node's stream and adds 'strikes' to the node's count; too many within a minute bar the node. */
void floods_empty(struct scheduler *scheduler, struct node_stream *node_stream, unsigned strikes,
                  const char *why);
/* Writes the counts of refused events to the nodes' rows. */
void floods_mark(struct scheduler *scheduler);

/* redis_users.c keeps Redis's users `agent-…` equal to the view's nodes, and bounds the connections of each
 * user. redis_users_check starts a comparison now, or after the present one. */
void redis_users_check(struct scheduler *scheduler);
void redis_users_tick(struct scheduler *scheduler, uint64_t now_ns);
/* Forgets the state of all users; called when the connection is new, since Redis may have lost its users. */
void redis_users_forget(struct scheduler *scheduler);

/* pass.c. pass_start decides on the view that was just loaded, and calls scheduler_turn at its end. */
void pass_start(struct scheduler *scheduler);
void pass_forget(struct scheduler *scheduler);
/* Drops all records of considered moves. */
void pass_forget_weighings(struct scheduler *scheduler);

/* liveness.c. Notes a sign of life of the node, and how far its clock was ahead of ours (0: unknown). */
void liveness_heard(struct scheduler *scheduler, const char *node, int64_t ahead_us, uint64_t now_ns);
/* Returns the milliseconds of silence that count against the node. */
uint64_t liveness_silent_ms(const struct scheduler *scheduler, const char *node, uint64_t now_ns);
/* Whether people are to be told that the node is silent, and from when on what runs there is given up: when
 * it becomes unreachable, and anew where the silence of an unreachable node counts from a later moment on,
 * since another scheduler leads or Redis was away. */
bool liveness_untold(const struct scheduler *scheduler, const struct store_sched_node *node, uint64_t now_ns);
/* Notes that they are told. */
void liveness_told(struct scheduler *scheduler, const char *node);
/* Whether a node or a worker has crossed a threshold of silence since the view was loaded. */
bool liveness_changed(const struct scheduler *scheduler, uint64_t now_ns);
/* Handles the hello message of a node's agent. `workers` names the agent's living workers; when it is no
 * array, the agent did not name them. */
void liveness_hello(struct scheduler *scheduler, const char *node, const json_t *workers, uint64_t now_ns);
/* Notes that the worker gave a sign of life. */
void liveness_alive(struct scheduler *scheduler, int64_t run, uint32_t rank);
bool liveness_missing(const struct scheduler *scheduler, int64_t run, uint32_t rank, uint64_t now_ns);
/* Asks the agent of a missing worker once more, before the worker is given up. */
void liveness_ask_again(struct scheduler *scheduler, uint64_t now_ns);
void liveness_forget(struct scheduler *scheduler);

/* identities.c tells every agent which nodes the cluster has. identities_leave tells nodes that are no longer
 * in the view that they were removed, while their keys are still known. */
void identities_leave(struct scheduler *scheduler);
/* Tells all agents the list of nodes and generations, if the list has changed since the last time. */
void identities_tell(struct scheduler *scheduler);
/* Tells one agent the list, because the agent has just said hello. */
void identities_hello(struct scheduler *scheduler, const char *node);
void identities_forget(struct scheduler *scheduler);
/* Whether 'identity' belongs to an earlier generation of the node. */
bool identity_is_old(const struct store_sched_node *node, const char *identity);

#endif
