/* The scheduler's own view of the database: one read of everything that a decision depends on
 * (store_sched_load), and two writes: the agents' events (store_ingest) and the decisions (store_decide).
 * Each write is one transaction that begins with the leader's fence. It checks in SQL that every state is
 * still the one that the decision was based on (otherwise ERR_CONFLICT: load again) and that a run's epoch is
 * the current one.
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
    /* losses: lost attempts in a row, as counted at the last loss: those since the last new checkpoint */
    uint32_t attempt, losses, retries_max;
    int64_t time_limit_ms, used_ms; /* used_ms: time of ended runs that counts against the limit */
    int64_t not_before_us;          /* the job does not start before this time; 0: it may start at once */
    int64_t account;                /* groups.id; 0: the root of the accounts */
    unsigned service;               /* 0 urgent, 1 normal, 2 scavenger */
    int64_t eligible_us;            /* since when the job waits: its submission, or the end of its hold */
    int64_t begin_us;               /* the job does not start before this time; 0: none */
    /* What a pass wrote about a queued job: its predicted start (0: unknown), the code of the reason why it
     * waits, and the job that the reason names (-1: none). Of a job behind many others of its owner this may
     * be older (queue_max). */
    int64_t starts_us, wait_subject;
    char wait_code[16]; /* "": none */
    /* only of queued jobs: indices for store_queue_leaf_at and store_queue_class_at */
    uint32_t leaf, class;
    int64_t steps, run;      /* run 0: the job has no run yet */
    char *why;               /* why the job waits or has failed, or NULL */
    int64_t checkpoint_step; /* only of queued jobs: step of the last complete checkpoint, -1 without one */
    int64_t reported;        /* number of steps whose metrics are stored */
    /* only of queued jobs: names of the nodes on which the last attempt died, each between spaces; or NULL */
    char *avoid;
};
_Static_assert(sizeof(struct store_sched_job) <= 200,
               "a job and its place in a queue take at most 256 bytes");

/* A queued or held job that comes after other jobs, if something must be decided about it. bad: another job
 * that did not succeed although this one needs its success; open: another job that has not ended, and that
 * this job is not yet recorded as waiting for. Both 0: all other jobs have ended. */
struct store_sched_dependent {
    int64_t id, open, bad;
    enum job_state state, bad_state;
};

struct store_sched_array { /* arrays that are queued, running or being stopped */
    int64_t id;
    enum job_state state;
    enum stop_why stop_why;
    /* number of elements; of elements that are jobs already; of elements that may be queued or run at once
     * (0: any) */
    uint32_t size, made, at_most;
    /* numbers of elements that have not ended; of these, those that are queued and those that are held */
    uint32_t open, waiting, held;
    uint32_t bad;      /* once all elements have ended: number of elements that did not succeed */
    int64_t first_bad; /* id of the first element that did not succeed, or 0 */
    /* of a queued array whose elements may become jobs now, else NULL */
    json_t *spec, *inputs;
};

struct store_sched_rank {
    int64_t assignment;
    uint32_t rank;
    char *node, *device;
    enum assignment_state state;
    int64_t last_seq;
    char *address, *identity, *code, *why; /* each may be NULL */
    bool own_fault;
    /* Seconds of computing in a step: busy_s as the plan predicts them (0: unknown); compute_s as measured,
     * averaged over the last steps; measured: number of measured steps. */
    double busy_s, compute_s;
    uint32_t measured;
};

struct store_sched_run { /* every active run */
    int64_t id, job, epoch;
    uint32_t attempt;
    enum run_state state;
    enum stop_why stop_why;
    int64_t created_us, started_us, stopping_us, killed_us; /* 0: this has not happened yet */
    char *why;           /* a sentence that says why the run is being stopped, or NULL */
    int64_t start_step;  /* step of the checkpoint that the run began with; 0: none */
    bool advanced;       /* the run has completed a checkpoint beyond the one it began with */
    double step_s;       /* seconds per step as the plan predicts them; 0: unknown */
    double corrected;    /* the factor in step_s that earlier runs taught; 0: there is none */
    uint64_t save_bytes; /* bytes of the job's last checkpoint, or the plan's prediction of them */
    uint64_t load_bytes; /* bytes of weights that the largest rank loads, as the plan predicts them */
    int64_t saved_us;    /* when the run's last checkpoint was complete; 0: never */
    /* The run was asked for a checkpoint at save_asked_us (0: never). It has until save_by_us (0: it is not
     * being asked now), so that it can stop and make room for the job save_for (0: its time slice is
     * over). */
    int64_t save_asked_us, save_by_us, save_for;
    uint32_t saves_missed; /* checkpoints that were not stored in time */
    uint32_t lost_before;  /* lost runs of the same job that began with the same checkpoint */
    json_t *trial;         /* of a job whose trial goes on: trials.document; else NULL */
    uint32_t rank_count;
    struct store_sched_rank *ranks; /* [rank_count], in the order of ranks */
};

struct store_sched_node { /* all nodes that were not removed */
    char *name, *boot /* or NULL */, *machine_id /* "" when unknown */, *address /* "" when unknown */;
    bool reachable;    /* nodes.state is alive, and the node is admitted */
    bool joining;      /* the node has not said hello since its enrolment */
    int64_t leaves_us; /* jobs are to leave the node from this time on; INT64_MAX: it stays */
    int64_t last_seq;
    int64_t generation; /* generation that the node's certificate must name */
    bool admitted;      /* the node has a Redis user and a seal key; false once it is barred or removed */
    uint8_t redis_hash[32], seal_key[32];
};

struct store_sched_device {
    char *name, *node, *kind, *digest;
    json_t *inventory;
    uint64_t memory_limit_bytes;
    bool present, drained;
    char *drain_why; /* why the device was drained, or NULL */
    char *lacks;     /* what its node says it lacks in order to run a worker, or NULL */
    /* of a drained device: a job on it may stay until this time; 0: it moves at once; INT64_MAX: it stays
     * until it ends */
    int64_t drain_at_us;
    int64_t owner;  /* groups.id of the group that owns the device; 0: none */
    json_t *health; /* as its agent last reported, or NULL */
    /* heat factor φ of PLANNER.md: the fraction of the device's full speed that throttling leaves; 1: it is
     * not throttled */
    double heat;
    uint64_t usable_bytes; /* the part of memory_limit_bytes that other processes leave at present */
};

/* Sets the device's health and computes heat and usable_bytes from it. Takes ownership of `health`. */
void store_sched_health(struct store_sched_device *device, json_t *health);

struct store_sched_request { /* a measurement that is under way or has failed */
    int64_t id;
    bool profile;       /* true: a device's profile; false: a node's links */
    char *device, *key; /* device: of a measurement of links, the node's name */
    char *digest;       /* digest of the device's inventory; "" for links */
    uint32_t tries;
    bool failed;
    bool unreachable; /* of links: the last try could open no connection */
    char *why;
    /* of an open request: the answer is awaited until this time; of a failed one: it is not repeated before
     * this time */
    int64_t deadline_us;
};

struct store_sched_link {
    char *from, *to;
    json_t *document;
};

/* Answers what is needed to plan a running job again: {"spec","inputs","plan","steps": of the job, "step":
 * steps done, "started_s": seconds from the run's creation to its start, "moves": number of earlier runs of
 * the job that ended because it moved, but for its trial's, "trial": trials.document or null}. JSON null for
 * an unknown run. */
int store_sched_run_get(struct store *store, int64_t run, store_doc_fn *done, void *arg, struct err *err);

/* Answers what a run in a trial measured: {"repeats": digest of the plan that it was to run on, "started_s":
 * as above, "gap_s": seconds from when the run before it was told to move to its start, or null, "lines":
 * [[seconds, tokens]]: of its steps that nobody had reported before, without the first, at most 256}. JSON
 * null for an unknown run. */
int store_trial_get(struct store *store, int64_t run, store_doc_fn *done, void *arg, struct err *err);

struct store_sched_lease { /* leases that have not ended, or whose charge is not yet closed */
    int64_t id;
    char *device, *holder; /* holder: the user's name */
    int64_t begins_us, ends_us;
    bool opened; /* the lease's charge has begun */
    bool maintenance;
};

/* the specification and inputs of a job for which profiles are wanted, or of a run that could move */
struct store_sched_measure {
    json_t *spec, *inputs;
};

/* How much an account or a user may use. 0: no limit. */
struct store_limits {
    uint32_t devices_max, running_max;
    double month_seconds_max; /* normalised device-seconds charged in 30 days */
};

struct store_sched_account { /* all groups */
    int64_t id, parent;      /* parent 0: directly below the root */
    char *name;
    /* slice_s: seconds after which the group's runs make room for waiting jobs; 0: never */
    double weight, slice_s;
    struct store_limits limits;
};

struct store_sched_user { /* all users */
    int64_t id;
    char *name;
    bool disabled;
    struct store_limits limits;
};

/* rows of the ledger that are open, and those that were closed since the last load */
struct store_sched_use {
    int64_t job, user;
    int64_t account;            /* groups.id; 0: the root, or a group that was removed */
    int64_t begins_us, ends_us; /* ends_us 0: the device is still held */
    /* 0: the row is open; otherwise a number that rises in the order in which rows are closed */
    int64_t closed;
    double rate; /* charged device-seconds per second */
};

struct view_block;

struct store_view {
    struct view_block *memory; /* the memory of all arrays and texts of the view */
    json_t *documents;         /* an array that holds all documents but the devices' health */
    bool incomplete;           /* an allocation failed */
    /* how the queue in memory differed from the database; "": it did not, or was not compared */
    char differs[200];
    int64_t now_us;
    /* the earliest time at which a waiting job may start; 0: no job waits for a time */
    int64_t next_due_us;
    /* the spread (standard deviation) of the logarithms of measured by predicted seconds of a step, over the
     * last 64 runs that ended; -1: fewer than 8 have been measured */
    double forecast_spread;
    size_t job_count, run_count, node_count, device_count, request_count, link_count, measure_count,
        lease_count, dependent_count, array_count;
    struct store_sched_job *jobs;
    struct store_sched_run *runs;
    struct store_sched_node *nodes;
    struct store_sched_device *devices;
    struct store_sched_request *requests;
    /* by the bytes of the names of `from` and `to`; borrowed from store_sched_want.links until the next load
     */
    const struct store_sched_link *links;
    uint64_t links_version; /* rises with each change of the links */
    struct store_sched_lease *leases;
    struct store_sched_measure *measures;     /* at most 16 */
    struct store_sched_dependent *dependents; /* at most 1000 */
    struct store_sched_array *arrays;
    size_t account_count, user_count, use_count;
    struct store_sched_account *accounts; /* by id */
    struct store_sched_user *users;       /* by id */
    /* {"sooner":[[id of a queued job of which people ask what would let it start sooner, seconds since they
     * asked]], "starts":[[predicted seconds of the wait, true seconds of the wait, place, µs of the start]]:
     * of jobs that started since the last load, oldest first} */
    json_t *asked;
    struct store_sched_use *uses; /* in the order of `closed`, with the open rows last */
};

/* Called when a load has ended. The callback owns the view and releases it with store_view_destroy; the view
 * is NULL when there is an `err`. */
typedef void store_view_fn(void *arg, const struct err *err, struct store_view *view);
/* Says what a load reads. */
struct store_queue;
struct store_links;
struct store_sched_want {
    /* the queue and the links (NULL: the view has none) that are brought up to date */
    struct store_queue *queue;
    struct store_links *links;
    /* also read both whole and compare; what differs is replaced (view->differs) */
    bool check;
    /* Rows of the ledger are read that were closed after row `closed`, and not before `use_from_us`. */
    int64_t closed, use_from_us;
    int64_t started_us; /* starts of jobs after this time are read, at most the newest 512 */
};
int store_sched_load(struct store *store, const struct store_sched_want *want, store_view_fn *done, void *arg,
                     struct err *err);
void store_view_destroy(struct store_view *view);
/* Returns a copy of the text that lives as long as the view, or NULL without memory. */
char *store_view_text(struct store_view *view, const char *text);

/* Answers the profiles under `key` that were measured with the devices' present inventories:
 * [{"device","document","speed": the device's speed as later runs measured it, relative to the profile, or
 * null,"stale": bool}]. A profile is stale while no rank is on the device and one of these holds: a run
 * measured the device slower than it more than remeasure_ms ago, and no profile was measured in the second
 * half of the time since then; or it has `noise` and is older than ten times remeasure_ms. */
int store_profiles_get(struct store *store, const char *key, uint32_t remeasure_ms, store_doc_fn *done,
                       void *arg, struct err *err);

/* Answers all messages that agents have not confirmed, oldest first, the plans to which they refer, and the
 * database's incarnation:
 *   {"incarnation","messages": [{"id","node","run"|null,"type","payload"}],"plans":[{"run","plan"}]}. */
int store_outbox_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);

/* Allots new ids, and reads the documents of the jobs that start, in the order of `jobs`. Unused ids are
 * never allotted again. Answers
 *   {"runs":[{"run","epoch"}],"assignments":[one id per rank],"requests":[request ids],
 *    "jobs":[{"spec","inputs","step": of the last complete checkpoint,"blobs",
 *     "loss": smallest held-out loss up to that checkpoint}]}. */
int store_sched_numbers(struct store *store, const int64_t *jobs, size_t job_count, unsigned ranks,
                        unsigned requests, store_doc_fn *done, void *arg, struct err *err);

/* Events of agents as rows: arrays of objects, NULL when empty; borrowed for the call. */
struct store_ingest {
    int64_t leader; /* the leader's epoch */
    /* [{"run","epoch","rank","seq_before","seq","before","state","address"?,"identity"?,"code"?,
     * "why"?,"own_fault"?,"memory"?,"compute_s"?,"measured"?}]: one for each rank that changed; seq_before
     * and before are the sequence number and the state in the view */
    const json_t *ranks;
    /* [{"job","kind","rank","step","document"}]: metrics lines; a stored line is not changed, and a new one
     * also becomes an event */
    const json_t *metrics;
    const json_t *progress; /* [{"job","step","loss"?}]: number of steps done so far */
    const json_t *events;   /* [{"job","type","body"}] */
    /* [{"job","run","step","rank","parts","best","blobs":{},"expert_share"?}]; expert_share goes into the
     * job's inputs */
    const json_t *checkpoints;
    const json_t *artifacts; /* [{"job","name","sha256","size"}] */
    const json_t *traces;    /* [{"run","rank","seq","document"}] */
    /* [{"node","boot","seq","hello": bool,"machine_id"?,"address"?,"inventory"?,"leaves_s"?}]; seq counts the
     * node's events since it started as `boot` */
    const json_t *nodes;
    /* [{"name","node","kind","digest","memory_limit_bytes","inventory"}]: all devices of a node that said
     * hello */
    const json_t *devices;
    const json_t *seen;     /* ["node"]: nodes that are alive now */
    const json_t *profiles; /* [{"request","node","document"}] */
    const json_t *links;    /* [{"from","to","document","request"}] */
    const json_t *failures; /* [{"request","node","why","unreachable": bool}]: measurements that failed */
    const json_t *health;   /* [{"device","node","health"}] */
    /* [{"device","job","rank","why"}]: workers that ended because their device was lost or faulty; the second
     * within a day drains the device */
    const json_t *faults;
    /* [{"job","node","run","incarnation"}]: jobs that agents were given before the database was restored; the
     * statement leaves out jobs that the database knows */
    const json_t *unknown;
    const json_t *received; /* [{"id","node"}]: outbox rows that their agent has confirmed */
};
int store_ingest(struct store *store, const struct store_ingest *ingest, store_done_fn *done, void *arg,
                 struct err *err);

/* The rows of a decision. The arrays are borrowed for the call, and NULL when empty. */
struct store_decision {
    int64_t leader;
    /* [{"run","job","attempt","epoch","plan","answer","start_step","step_s"?,"save_bytes"?,
     * "load_bytes"?,"ranks":[{"assignment","rank","node","device","busy_s","speed"?,"origin"?,"factor"?}]}]:
     * new runs. Each rank opens a row of the ledger, which is closed when the rank's assignment ends; speed,
     * origin and factor are columns of that row */
    const json_t *runs_new;
    /* [{"run","rank","why"}]: ranks that become lost, unless they have already ended */
    const json_t *ranks_lost;
    /* [{"run","wait_ms"?,"why"?,"for_job"?,"missed": bool}]: with wait_ms: running runs that are asked for a
     * checkpoint within wait_ms; without: runs that are no longer asked */
    const json_t *saves;
    /* [{"run","before","state","stop_why"?,"why"?,"kill": bool}]: runs whose state changes. With a final
     * state, the run's messages are dropped and its unfinished ranks become lost */
    const json_t *runs;
    const json_t *ends; /* [{"run","state"}]: of these, the runs that end */
    /* [{"job","before","state","stop_why"?,"why"?,"code"?,"ended_by"?,"behind"?,"delay_ms"?,"losses"?,"run"?}]:
     * jobs whose state changes. behind: a job that is queued again counts as waiting from now on */
    const json_t *jobs;
    /* [{"job","open"?,"document"?,"plans"?: {digest: plan},"plan"?: digest}]: trials of jobs (pass_trial.c).
     * plan: the plan with which the job's next run begins; absent: the best that is found then. plans: of a
     * trial that begins */
    const json_t *trials;
    const json_t *waits; /* [{"job","why"}]: reasons why queued jobs wait */
    /* [{"job","starts_us"|0,"code","subject"?,"from_us"?,"to_us"?}]: starts of queued jobs; from_us
     * and to_us are the range of the predicted start */
    const json_t *places;
    /* one row, or none if nothing has changed: the list of the queue, {"chunks": [{"chunk","jobs","places",
     * "reasons"}], "reasons": [{"id","code","subject"|null,"why"}]} (migrations/0006_sharing.sql); a
     * chunk's members are arrays as PostgreSQL's text has them */
    const json_t *listing;
    /* [{"job"}]: jobs that waited for other jobs and may start now */
    const json_t *ready;
    /* [{"job","class","speeds"?,"devices"?,"step_s"?,"starts_us"?,"from_us"?,"to_us"?,"place"?}]: jobs that
     * wait or start, for simulations (records.h). class is the hex digest of a job_class; devices are names.
     * A job that starts has devices, and the predicted seconds per step; a waiting job may have a predicted
     * start with its range */
    const json_t *arrivals;
    /* [{"class","devices","step_s"?}]: answers of the planner, for simulations; without step_s: no plan
     * fits */
    const json_t *forecasts;
    const json_t *sharing; /* [{"document"}]: the policies' settings, or no row */
    /* [{"array","index","name","spec","steps"}]: elements of arrays that become queued jobs */
    const json_t *elements;
    /* [{"job","changes"}]: changes that would let the job start sooner (records.h) */
    const json_t *sooner;
    const json_t *requests;    /* [{"id"?,"kind","device","key","content"?,"digest"?,"deadline_ms"}] */
    const json_t *unreachable; /* ["node"]: nodes that have become unreachable */
    const json_t *links;       /* [{"from","to","document"}]: emulated links of the configuration */
    const json_t *messages;    /* [{"node","run"|null,"type","payload"}]: rows of the outbox */
    const json_t *said;        /* [{"job","level","text","move"?}]: lines for the jobs' logs */
    /* [{"key","spec","inputs"}]: shapes for which devices are measured again during the next day */
    const json_t *measures;
    /* [{"id","idle": bool}]: leases whose charge begins or ends now; an idle one is ended first */
    const json_t *leases;
    const json_t *speeds; /* [{"device","key","speed","run","step_s"}]: rows of device_speeds; step_s: what a
                           * step of the run takes at these speeds, by its plan */
};
enum { STORE_DECISION_ARRAYS = (sizeof(struct store_decision) - sizeof(int64_t)) / sizeof(const json_t *) };
/* Answers with the outbox ids of the messages, in their order: [id]. The ids of runs, assignments and
 * requests come from store_sched_numbers. When an array has several rows of one key, one of them counts. */
int store_decide(struct store *store, const struct store_decision *decision, store_doc_fn *done, void *arg,
                 struct err *err);
/* Returns the array of the decision whose statement the error of store_decide names, or NULL if it names
 * none: then no row is at fault, but the transaction as a whole. */
const json_t *store_decision_failed(const struct store_decision *decision, const struct err *err);

/* Adds refused events to the rows of nodes: [{"node","generation","refused": number since the last
 * call,"reasons": {code: n},"why", "barred": bool}]. An entry with another generation than the node's present
 * one does not change the node. If a call is repeated, its numbers are counted twice. */
int store_node_mark(struct store *store, int64_t leader, const json_t *marks, store_done_fn *done, void *arg,
                    struct err *err);

/* How long the growing tables keep their rows, in days or steps, and how many rows one call removes. */
struct store_retention {
    unsigned event_days; /* age at which events and traces are removed */
    /* time after a job's end at which its metrics lines of single steps, and its runs except the last, are
     * removed */
    unsigned history_days;
    unsigned dataset_days; /* time without use after which encoded data sets are removed */
    /* time after their end at which single rows of the ledger become sums by day */
    unsigned ledger_days;
    /* age at which the ledger's sums by day, and arrivals of jobs, are removed */
    unsigned usage_days;
    /* number of a running job's last steps whose metrics lines of single ranks ("ranks") are kept */
    unsigned rank_steps;
    unsigned rows; /* most rows that one call removes from a table, at least 1 */
    /* time after its deadline at which a request for a measurement, and with it how often it was tried, is
     * removed */
    uint64_t request_ms;
};
/* Removes one batch of old rows, and also used join tokens and failed measurements: {"more": whether old rows
 * remain}. */
int store_prune(struct store *store, int64_t leader, const struct store_retention *keep, store_doc_fn *done,
                void *arg, struct err *err);

#endif
