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

struct store_sched_job { /* a job that is active (struct store_view) or queued (struct store_queue) */
    int64_t id, owner;
    int32_t priority;
    enum job_state state;
    enum stop_why stop_why;
    uint32_t attempt, losses /* when it was lost last: since a newer checkpoint */, retries_max;
    int64_t time_limit_ms, used_ms; /* time used by the runs that have ended and count against the limit */
    int64_t not_before_us;          /* 0: the job may start at once */
    int64_t account;                /* groups.id, 0: the root of the accounts */
    unsigned service;               /* 0 urgent, 1 normal, 2 scavenger */
    int64_t eligible_us;            /* since when the job waits: its submission, or the end of its hold */
    int64_t begin_us;               /* the job does not start before this time; 0: none */
    /* what the last pass wrote of a queued job: its place from 1, its predicted start (0: unknown), and the
     * code of the reason why it waits, or NULL */
    uint32_t place;
    int64_t starts_us;
    char wait_code[16];      /* "": none */
    uint32_t leaf, class;    /* of queued jobs: see store_queue_leaf_at and store_queue_class_at */
    int64_t steps, run;      /* run 0: the job has no run yet */
    char *why;               /* or NULL */
    int64_t checkpoint_step; /* of queued jobs: step of the last complete checkpoint, -1 without one */
    int64_t reported;        /* steps whose metrics are stored */
    char *avoid; /* of queued jobs: names of the nodes on which the last attempt died, each between spaces; or
                  * NULL
                  */
};
_Static_assert(sizeof(struct store_sched_job) <= 200,
               "a job and its place in a queue take at most 256 bytes");

/* A queued or held job that comes after others, where something is to be decided: `bad` did not succeed and
 * should have, or `open` has not ended and is another than the job was said to wait for. Both 0: all have
 * ended. */
struct store_sched_dependent {
    int64_t id, open, bad;
    enum job_state state, bad_state;
};

struct store_sched_array { /* arrays that are queued, running or being stopped */
    int64_t id;
    enum job_state state;
    enum stop_why stop_why;
    uint32_t size, made, at_most; /* elements in all, elements that are jobs, and at once (0: any number) */
    uint32_t open, waiting,
        held;              /* elements that have not ended, and of those the queued and the held ones */
    uint32_t bad;          /* of an array whose elements have all ended: those that did not succeed */
    int64_t first_bad;     /* the first of them, or 0 */
    json_t *spec, *inputs; /* of a queued array that may make elements now, else NULL */
};

struct store_sched_rank {
    int64_t assignment;
    uint32_t rank;
    char *node, *device;
    enum assignment_state state;
    int64_t last_seq;
    char *address, *identity, *code, *why; /* or NULL */
    bool own_fault;
    /* seconds of computing a step: as the plan predicts them (0: unknown), and as measured, smoothed over the
     * last steps; and the number of steps that were measured */
    double busy_s, compute_s;
    uint32_t measured;
};

struct store_sched_run { /* every active run */
    int64_t id, job, epoch;
    uint32_t attempt;
    enum run_state state;
    enum stop_why stop_why;
    int64_t created_us, started_us, stopping_us, killed_us; /* 0: not yet */
    char *why;           /* a sentence that says why the run is being stopped, or NULL */
    int64_t start_step;  /* the checkpoint that the run began with; 0: none */
    bool advanced;       /* the run has completed a checkpoint beyond the one it began with */
    double step_s;       /* seconds a step as the plan predicts them; 0: unknown */
    uint64_t save_bytes; /* bytes of its last checkpoint, or as the plan predicts them */
    int64_t saved_us;    /* when its last checkpoint was complete; 0: never */
    /* The run was asked for a checkpoint at save_asked_us (0: never). It has until save_by_us (0: it is not
     * asked now) so that it can stop for the job save_for, or 0 when its slice is over. */
    int64_t save_asked_us, save_by_us, save_for;
    uint32_t saves_missed; /* checkpoints that were not stored in time */
    uint32_t lost_before;  /* lost runs of the same job that began with the same checkpoint */
    uint32_t rank_count;
    struct store_sched_rank *ranks; /* [rank_count], by rank */
};

struct store_sched_node { /* all nodes that were not removed */
    char *name, *boot /* or NULL */, *machine_id /* "" when unknown */, *address /* "" when unknown */;
    bool reachable; /* nodes.state is alive, and the node is admitted */
    bool joining;   /* the node has not said hello since its enrolment */
    int64_t last_seq;
    int64_t generation; /* as in its certificate */
    bool slices;        /* its workers read slices of plans */
    bool admitted;      /* the node has a Redis user and a seal key; false once it is barred or removed */
    uint8_t redis_hash[32], seal_key[32];
};

struct store_sched_device {
    char *name, *node, *kind, *digest;
    json_t *inventory;
    uint64_t memory_limit_bytes;
    bool present, drained;
    char *drain_why; /* or NULL */
    /* of a drained device: what runs there stays until then; 0: it moves at once, INT64_MAX: until its end */
    int64_t drain_at_us;
    int64_t owner;  /* groups.id of the group that it belongs to; 0: none */
    json_t *health; /* as its agent last reported, or NULL */
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
 * done, "started_s": seconds from the run's creation to its start, "moves": earlier runs of the job that
 * ended because it moved}. JSON null for an unknown run. */
int store_sched_run_get(struct store *store, int64_t run, store_doc_fn *done, void *arg, struct err *err);

struct store_sched_lease { /* every lease that is not over, or whose charge is not closed */
    int64_t id;
    char *device, *holder; /* holder: the user's name */
    int64_t begins_us, ends_us;
    bool opened; /* its charge has begun */
    bool maintenance;
};

struct store_sched_measure { /* what somebody asks about without a job: wanted profiles, a run that could move
                              */
    json_t *spec, *inputs;
};

/* How much an account or a user may use. 0: any amount. */
struct store_limits {
    uint32_t devices_max, running_max;
    double month_seconds_max; /* charged in 30 days */
};

struct store_sched_account { /* all groups */
    int64_t id, parent;      /* parent 0: directly below the root */
    char *name;
    double weight, slice_s; /* slice_s: seconds after which its runs make room for others; 0: never */
    struct store_limits limits;
};

struct store_sched_user { /* all users */
    int64_t id;
    char *name;
    bool disabled;
    struct store_limits limits;
};

struct store_sched_use { /* rows of the ledger that are open, and those that were closed since the mark */
    int64_t job, user;
    int64_t account;            /* 0 also when the group is gone */
    int64_t begins_us, ends_us; /* ends_us 0: the device is still held */
    int64_t closed;             /* 0: open; rises in the order in which rows were closed */
    double rate;                /* charged device-seconds a second */
};

struct view_block;

struct store_view {
    struct view_block *memory; /* all arrays and texts */
    json_t *documents;         /* an array that holds all documents but the devices' health */
    bool incomplete;           /* an allocation failed */
    char differs[200];         /* how the queue differed from the database, "": it did not */
    int64_t now_us;
    /* the earliest time at which a waiting job may start; 0: no job waits for a time */
    int64_t next_due_us;
    size_t job_count, run_count, node_count, device_count, request_count, link_count, measure_count,
        lease_count, dependent_count, array_count;
    struct store_sched_job *jobs;
    struct store_sched_run *runs;
    struct store_sched_node *nodes;
    struct store_sched_device *devices;
    struct store_sched_request *requests;
    struct store_sched_link *links;
    struct store_sched_lease *leases;
    struct store_sched_measure *measures;     /* at most 16 */
    struct store_sched_dependent *dependents; /* at most 1000 */
    struct store_sched_array *arrays;
    size_t account_count, user_count, use_count;
    struct store_sched_account *accounts; /* by id */
    struct store_sched_user *users;       /* by id */
    /* {"sooner":[[id of a queued job of which people asked what would let it start sooner, seconds
     * since]],"starts":[[predicted seconds of the wait, seconds it was, place, µs of the start]]: of jobs
     * that started since the mark, oldest first} */
    json_t *asked;
    struct store_sched_use *uses; /* in the order of `closed`, open ones last */
};

/* The callback takes the view over and releases it with store_view_destroy; the view is NULL when there is an
 * `err`. */
typedef void store_view_fn(void *arg, const struct err *err, struct store_view *view);
/* What a load reads. */
struct store_queue;
struct store_sched_want {
    struct store_queue *queue; /* is brought up to date */
    bool check; /* the queue is also read whole and compared; if it differs, it is replaced (view->differs) */
    /* rows of the ledger that were closed after `closed`, and not before `use_from_us` */
    int64_t closed, use_from_us;
    int64_t started_us; /* starts after this time are read, at most the newest 512 */
};
int store_sched_load(struct store *store, const struct store_sched_want *want, store_view_fn *done, void *arg,
                     struct err *err);
void store_view_destroy(struct store_view *view);
/* Returns a copy of the text that lives as long as the view, or NULL without memory. */
char *store_view_text(struct store_view *view, const char *text);

/* The profile documents under `key` that were measured with the devices' present inventories:
 * [{"device","document","speed": as a multiple of what the document says, measured by runs since |
 * null,"stale": bool}]. stale: a run measured the device slower than its profile, and nothing has measured it
 * for remeasure_ms, nor for half of the time since then; while a rank is on the device it is not stale. */
int store_profiles_get(struct store *store, const char *key, uint32_t remeasure_ms, store_doc_fn *done,
                       void *arg, struct err *err);

/* All messages that agents have not confirmed, oldest first, and the database's incarnation:
 * {"incarnation","messages": [{"id","node","run"|null,"type","payload"}]}. */
int store_outbox_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);

/* Allots new ids, and reads what the jobs need that start: {"runs":[{"run","epoch"}],"assignments":[one id
 * per rank],"requests":[request ids],"jobs":[{"spec","inputs","step": of the last complete
 * checkpoint,"blobs","loss": smallest held-out loss up to it}]}, in the order of `jobs`. Unused ids are never
 * allotted again. */
int store_sched_numbers(struct store *store, const int64_t *jobs, size_t job_count, unsigned ranks,
                        unsigned requests, store_doc_fn *done, void *arg, struct err *err);

/* Events of agents as rows: arrays of objects, NULL when empty; borrowed for the call. */
struct store_ingest {
    int64_t leader; /* the leader's epoch */
    /* [{"run","epoch","rank","seq_before","seq","before","state","address"?,"identity"?,"code"?,
     * "why"?,"own_fault"?,"memory"?,"compute_s"?,"measured"?}]: one per rank that changed; seq_before and
     * before are the values in the view */
    const json_t *ranks;
    /* [{"job","kind","rank","step","document"}]: a stored line is not changed; a new line also becomes an
     * event */
    const json_t *metrics;
    const json_t *progress; /* [{"job","step","loss"?}]: steps done so far */
    const json_t *events;   /* [{"job","type","body"}] */
    /* [{"job","run","step","rank","parts","best","blobs":{},"expert_share"?}]; expert_share goes into the
     * job's inputs */
    const json_t *checkpoints;
    const json_t *artifacts; /* [{"job","name","sha256","size"}] */
    const json_t *traces;    /* [{"run","rank","seq","document"}] */
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
    /* [{"run","job","attempt","epoch","plan","answer","start_step","step_s"?,"save_bytes"?,
     * "ranks":[{"assignment","rank","node","device","busy_s","speed"?,"origin"?,"factor"?}]}]. Each rank
     * opens a row of the ledger, which the end of its assignment closes; speed, origin and factor are that
     * row's */
    const json_t *runs_new;
    /* [{"run","rank","why"}]: these ranks become lost unless they have already ended */
    const json_t *ranks_lost;
    /* [{"run","wait_ms"?,"why"?,"for_job"?,"missed": bool}]: running runs that are asked for a checkpoint
     * within wait_ms, and without wait_ms those that are no longer asked */
    const json_t *saves;
    /* [{"run","before","state","stop_why"?,"why"?,"kill": bool}]: a final state also drops the run's
     * messages, and its unfinished ranks become lost */
    const json_t *runs;
    /* [{"job","before","state","stop_why"?,"why"?,"code"?,"ended_by"?,"behind"?,"delay_ms"?,"losses"?,"run"?}];
     * behind: a job that is queued again has waited since now */
    const json_t *jobs;
    const json_t *waits;  /* [{"job","why"}]: why queued jobs wait */
    const json_t *places; /* [{"job","place","starts_us"|0,"code","subject"?,"from_us"?,"to_us"?}]: of queued
                           * jobs; from_us and to_us are the range of the start */
    const json_t *ready;  /* [{"job"}]: jobs that have waited for others and may start now */
    /* What simulations read later (records.h). A class is the hex digest of a job_class; devices are names.
     * [{"job","class","speeds"?,"devices"?,"step_s"?,"starts_us"?,"from_us"?,"to_us"?,"place"?}]: jobs that
     * wait or start. A start has devices, and seconds a step as predicted; a waiting job may have a predicted
     * start, with its range */
    const json_t *arrivals;
    const json_t
        *forecasts; /* [{"class","devices","step_s"?}]: answers of the planner; without step_s: none fits */
    const json_t *sharing; /* [{"document"}]: the settings of the policies, or no row */
    /* [{"array","index","name","spec","steps"}]: elements that become queued jobs */
    const json_t *elements;
    const json_t *sooner;      /* [{"job","changes"}]: what would let it start sooner (records.h) */
    const json_t *requests;    /* [{"id"?,"kind","device","key","content"?,"digest"?,"deadline_ms"}] */
    const json_t *unreachable; /* ["node"] */
    const json_t *links;       /* [{"from","to","document"}]: emulated links of the configuration */
    const json_t *messages;    /* [{"node","run"|null,"type","payload"}]: rows of the outbox */
    const json_t *said;        /* [{"job","level","text","move"?}]: lines for the jobs' logs */
    const json_t
        *measures;        /* [{"key","spec","inputs"}]: devices of this shape are measured again for a day */
    const json_t *leases; /* [{"id","idle": bool}]: leases whose charge begins or ends now; an idle one is
                             ended first */
    const json_t *speeds; /* [{"device","key","speed","run"}]: rows of device_speeds */
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
    unsigned ledger_days;  /* single rows of the ledger, after their end; then sums by day stay */
    unsigned usage_days;   /* sums by day, and arrivals of jobs */
    unsigned rank_steps;   /* of a running job: lines of single ranks ("ranks") that are more steps back */
    unsigned rows;         /* per table and call, at least 1 */
};
/* Removes one batch of old rows, and also spent join tokens and failed measurements: {"more": whether old
 * rows remain}.
 */
int store_prune(struct store *store, int64_t leader, const struct store_retention *keep, store_doc_fn *done,
                void *arg, struct err *err);

#endif
