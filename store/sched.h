/* The scheduler's own view of the database: one read of everything that a decision depends on, and two
 * writes: the agents' events (ingest) and the decisions (decide). Each write is one transaction that begins
 * with the leader's fence, and checks in SQL that every state is still the one the decision was based on
 * (otherwise ERR_CONFLICT: load again) and that a run's epoch is the current one.
 *
 * Times are wall-clock microseconds of the database's clock; compare them with store_view.now_us only.
 */
#ifndef MOTLEY_STORE_SCHED_H
#define MOTLEY_STORE_SCHED_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "store/states.h"
#include "store/store.h"

/* The values of jobs.stop_why and runs.stop_why: why a run is being stopped, which decides what becomes of
 * the job. */
enum stop_why {
    STOP_NONE,
    STOP_CANCEL,
    STOP_HOLD,
    STOP_DRAIN,
    STOP_TIME,
    STOP_LOST,
    STOP_FAULT,
    STOP_YIELD,
    STOP_WHYS
};
const char *stop_why_name(enum stop_why why);       /* NULL for STOP_NONE */
enum stop_why stop_why_from_name(const char *name); /* STOP_NONE for an unknown name or NULL */

struct store_sched_job { /* all starting, running and stopping jobs, and some of the queued ones */
    int64_t id, owner;
    int32_t priority;
    enum job_state state;
    enum stop_why stop_why;
    uint32_t attempt, losses, retries_max;
    int64_t time_limit_ms, used_ms; /* time used by the runs that have ended */
    int64_t not_before_us;          /* 0: the job may start at once */
    int64_t steps, run;             /* run 0: the job has no run yet */
    char *why;                      /* or NULL */
    json_t *spec, *inputs;          /* of queued jobs, else NULL */
    int64_t checkpoint_step;        /* of queued jobs: step of the last complete checkpoint, -1 without one */
    int64_t reported;               /* of queued jobs: steps whose metrics are stored */
    double best_loss; /* of queued jobs: smallest held-out loss up to the checkpoint, NAN without one */
    json_t *checkpoint_blobs; /* or NULL */
};

struct store_sched_rank {
    int64_t assignment;
    uint32_t rank;
    char *node, *device;
    enum assignment_state state;
    int64_t last_seq;
    char *address, *identity, *code, *why; /* or NULL */
    bool own_fault;
};

struct store_sched_run { /* every active run */
    int64_t id, job, epoch;
    uint32_t attempt;
    enum run_state state;
    enum stop_why stop_why;
    int64_t created_us, started_us, stopping_us, killed_us; /* 0: not yet */
    char *why;            /* a sentence that says why the run is being stopped, or NULL */
    bool advanced;        /* the run has completed a checkpoint beyond the one it began with */
    uint32_t lost_before; /* lost runs of the same job that began with the same checkpoint */
    uint32_t rank_count;
    struct store_sched_rank *ranks; /* [rank_count], by rank */
};

struct store_sched_node { /* all nodes that were not removed */
    char *name, *boot /* or NULL */, *machine_id /* "" when unknown */, *address /* "" when unknown */;
    bool reachable; /* nodes.state is alive, and the node is admitted */
    bool joining;   /* the node has not said hello since its enrolment */
    int64_t last_seq;
    int64_t generation; /* as in its certificate */
    bool admitted;      /* the node has a Redis user and a seal key; false once it is barred or removed */
    uint8_t redis_hash[32], seal_key[32];
};

struct store_sched_device {
    char *name, *node, *kind, *digest;
    json_t *inventory;
    uint64_t memory_limit_bytes;
    bool present, drained;
    char *drain_why; /* or NULL */
    json_t *health;  /* as its agent last reported, or NULL */
    /* the heat factor φ of PLANNER.md: the share of its speed that throttling leaves; 1: all */
    double heat;
    uint64_t usable_bytes; /* the part of memory_limit_bytes that other processes leave at present */
};

/* Sets the device's health and computes heat and usable_bytes from it. Takes `health` over. */
void store_sched_health(struct store_sched_device *device, json_t *health);

struct store_sched_request { /* a measurement that is under way or has failed */
    int64_t id;
    bool profile;       /* false: a measurement of links */
    char *device, *key; /* device: for links, the node's name */
    char *digest;       /* "" for links */
    uint32_t tries;
    bool failed;
    char *why;
    /* open: the answer is awaited until then; failed: it is not repeated before then */
    int64_t deadline_us;
};

struct store_sched_link {
    char *from, *to;
    json_t *document;
};

/* What is needed to plan a running job again: {"spec","inputs","plan","steps": of the job, "step": steps
 * done, "started_s": seconds from the run's creation to its start}. JSON null for an unknown run. */
int store_sched_run_get(struct store *store, int64_t run, store_doc_fn *done, void *arg, struct err *err);

struct store_sched_measure { /* profiles that somebody waits for without a job */
    json_t *spec, *inputs;
};

struct store_view {
    int64_t now_us;
    /* the earliest time at which a waiting job may start; 0: no job waits for a time */
    int64_t next_due_us;
    size_t job_count, run_count, node_count, device_count, request_count, link_count, measure_count;
    struct store_sched_job *jobs;
    struct store_sched_run *runs;
    struct store_sched_node *nodes;
    struct store_sched_device *devices;
    struct store_sched_request *requests;
    struct store_sched_link *links;
    struct store_sched_measure *measures; /* at most 16 */
};

/* The callback takes the view over and releases it with store_view_destroy; the view is NULL when there is an
 * `err`. */
typedef void store_view_fn(void *arg, const struct err *err, struct store_view *view);
/* A position in the queue: behind the job of this priority and id. */
struct store_queue_mark {
    bool set;
    int32_t priority;
    int64_t id;
};
/* Loads the view. It holds at most `queue_max` queued jobs that may start now, by priority and then by id;
 * and, if the mark `behind` is set, at most as many of those that stand behind it. */
int store_sched_load(struct store *store, unsigned queue_max, const struct store_queue_mark *behind,
                     store_view_fn *done, void *arg, struct err *err);
void store_view_destroy(struct store_view *view);

/* The profile documents under `key` that were measured with the devices' present inventories:
 * [{"device","document"}]. */
int store_profiles_get(struct store *store, const char *key, store_doc_fn *done, void *arg, struct err *err);

/* All messages that agents have not confirmed, oldest first, and the database's incarnation:
 * {"incarnation","messages": [{"id","node","run"|null,"type","payload"}]}. */
int store_outbox_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);

/* Allots new ids: {"run","epoch","assignments":[one id per rank],"requests":[request ids]}; no run and no
 * epoch when ranks is 0. Unused ids are never allotted again. */
int store_sched_numbers(struct store *store, unsigned ranks, unsigned requests, store_doc_fn *done, void *arg,
                        struct err *err);

/* Events of agents as rows: arrays of objects, NULL when empty; borrowed for the call. */
struct store_ingest {
    int64_t leader; /* the leader's epoch */
    /* [{"run","epoch","rank","seq_before","seq","before","state","address"?,"identity"?,"code"?,
     * "why"?,"own_fault"?,"memory"?}]: one per rank that changed; seq_before and before are the values in the
     * view */
    const json_t *ranks;
    /* [{"job","kind","rank","step","document"}]: a stored line is not changed; a new line also becomes an
     * event */
    const json_t *metrics;
    const json_t *progress;    /* [{"job","step","loss"?}]: steps done so far */
    const json_t *events;      /* [{"job","type","body"}] */
    const json_t *checkpoints; /* [{"job","run","step","rank","parts","best","blobs":{}}] */
    const json_t *artifacts;   /* [{"job","name","sha256","size"}] */
    const json_t *traces;      /* [{"run","rank","seq","document"}] */
    /* [{"node","boot","seq","hello": bool,"machine_id"?,"address"?,"inventory"?}]; seq counts within this
     * boot */
    const json_t *nodes;
    /* [{"name","node","kind","digest","memory_limit_bytes","inventory"}]: all devices of a node that said
     * hello */
    const json_t *devices;
    const json_t *seen;     /* ["node"]: nodes that are alive now */
    const json_t *profiles; /* [{"request","node","document"}] */
    const json_t *links;    /* [{"from","to","document","request"}] */
    const json_t *failures; /* [{"request","node","why"}]: measurements that failed */
    const json_t *health;   /* [{"device","node","health"}] */
    /* [{"device","job","rank","why"}]: workers that ended because their device was lost or faulty; the second
     * within a day drains the device */
    const json_t *faults;
    /* [{"job","node","run","incarnation"}]: jobs that agents were given before the database was restored;
     * those that the database knows are left out */
    const json_t *unknown;
    const json_t *received; /* [{"id","node"}]: outbox rows that their agent has confirmed */
};
int store_ingest(struct store *store, const struct store_ingest *ingest, store_done_fn *done, void *arg,
                 struct err *err);

/* What was decided, as rows. The arrays are as in store_ingest. */
struct store_decision {
    int64_t leader;
    /* [{"run","job","attempt","epoch","plan","answer","start_step",
     * "ranks":[{"assignment","rank","node","device"}]}] */
    const json_t *runs_new;
    /* [{"run","rank","why"}]: these ranks become lost unless they have already ended */
    const json_t *ranks_lost;
    /* [{"run","before","state","stop_why"?,"why"?,"kill": bool}]: a final state also drops the run's
     * messages, and its unfinished ranks become lost */
    const json_t *runs;
    /* [{"job","before","state","stop_why"?,"why"?,"code"?,"delay_ms"?,"loss": bool,"run"?}] */
    const json_t *jobs;
    const json_t *waits;       /* [{"job","why"}]: why queued jobs wait */
    const json_t *requests;    /* [{"id"?,"kind","device","key","content"?,"digest"?,"deadline_ms"}] */
    const json_t *unreachable; /* ["node"] */
    const json_t *links;       /* [{"from","to","document"}]: emulated links of the configuration */
    const json_t *messages;    /* [{"node","run"|null,"type","payload"}]: rows of the outbox */
    const json_t *said;        /* [{"job","level","text"}]: lines for the jobs' logs */
};
/* Answers with the messages' outbox ids, in order: [id]. The ids of runs, assignments and requests come from
 * store_sched_numbers.
 */
int store_decide(struct store *store, const struct store_decision *decision, store_doc_fn *done, void *arg,
                 struct err *err);

/* Adds what was refused of nodes: [{"node","generation","refused": number since the last call,"reasons":
 * {code: n},"why", "barred": bool}]. An entry with another generation than the node's present one does not
 * change the node. Repeating a call counts twice. */
int store_node_mark(struct store *store, int64_t leader, const json_t *marks, store_done_fn *done, void *arg,
                    struct err *err);

/* How long the growing tables keep their rows, in days or steps, and how many rows one call removes. */
struct store_retention {
    unsigned event_days;   /* events and traces */
    unsigned history_days; /* after a job's end: its lines of single steps, and its runs except the last */
    unsigned dataset_days; /* encoded data sets that nobody used */
    unsigned rank_steps;   /* of a running job: lines of single ranks ("ranks") that are more steps back */
    unsigned rows;         /* per table and call, at least 1 */
};
/* Removes one batch of old rows, and also spent join tokens and failed measurements: {"more": whether old
 * rows remain}.
 */
int store_prune(struct store *store, int64_t leader, const struct store_retention *keep, store_doc_fn *done,
                void *arg, struct err *err);

#endif
