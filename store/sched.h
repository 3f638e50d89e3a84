/* The scheduler's own view of the database: one read of all that a decision
 * rests on, and two writes: what agents told (ingest) and what was decided
 * (decide). Both are one transaction each, begin with the leader's fence, and
 * check in SQL that every state is still the one the decision rested on
 * (ERR_CONFLICT: load again) and that a run's epoch is the current one.
 *
 * Times are wall microseconds of the database's clock; compare them with
 * store_view.now_us only.
 */
#ifndef MOTLEY_STORE_SCHED_H
#define MOTLEY_STORE_SCHED_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "store/states.h"
#include "store/store.h"

/* jobs.stop_why and runs.stop_why: why a run is being stopped, and so what comes after. */
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
enum stop_why stop_why_from_name(const char *name); /* STOP_NONE for unknown or NULL */

struct store_sched_job { /* queued (some) and every starting, running, stopping one */
    int64_t id, owner;
    int32_t priority;
    enum job_state state;
    enum stop_why stop_why;
    uint32_t attempt, losses, retries_max;
    int64_t time_limit_ms, used_ms; /* used in ended runs */
    int64_t not_before_us;          /* 0: at once */
    int64_t steps, run;             /* run 0: none yet */
    char *why;                      /* or NULL */
    json_t *spec, *inputs;          /* of queued ones, else NULL */
    int64_t checkpoint_step;        /* last complete one's, -1 none; of queued ones */
    int64_t reported;               /* steps whose metrics are here; of queued ones */
    double best_loss;         /* smallest held-out loss up to the checkpoint, NAN none; of queued ones */
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

struct store_sched_run { /* every active one */
    int64_t id, job, epoch;
    uint32_t attempt;
    enum run_state state;
    enum stop_why stop_why;
    int64_t created_us, started_us, stopping_us, killed_us; /* 0: not yet */
    char *why;                                              /* why it is being stopped, a sentence, or NULL */
    bool advanced;        /* a checkpoint beyond the one it began with is complete */
    uint32_t lost_before; /* lost runs of the same job that began with the same checkpoint */
    uint32_t rank_count;
    struct store_sched_rank *ranks; /* [rank_count], by rank */
};

struct store_sched_node { /* removed ones are not there */
    char *name, *boot /* or NULL */, *machine_id /* "" */, *address /* "" */;
    bool reachable; /* nodes.state = alive, and admitted */
    bool joining;   /* has never said hello since its enrolment */
    int64_t last_seq;
    int64_t generation; /* named by its certificate */
    bool admitted;      /* has a Redis user and a key: false once barred or removed */
    uint8_t redis_hash[32], seal_key[32];
};

struct store_sched_device {
    char *name, *node, *kind, *digest;
    json_t *inventory;
    uint64_t memory_limit_bytes;
    bool present, drained;
    char *drain_why;       /* or NULL */
    json_t *health;        /* as its agent told last, or NULL */
    double heat;           /* φ of PLANNER.md: what is left of its speed; 1: all */
    uint64_t usable_bytes; /* of memory_limit_bytes, beside what others hold of it now */
};

/* Takes what an agent told of its device into heat and usable_bytes; `health` is taken over. */
void store_sched_health(struct store_sched_device *device, json_t *health);

struct store_sched_request { /* a measurement under way or failed */
    int64_t id;
    bool profile;       /* else links */
    char *device, *key; /* device: the node, of links */
    char *digest;       /* "" */
    uint32_t tries;
    bool failed;
    char *why;
    int64_t deadline_us; /* open: the answer is awaited until then; failed: not asked again before */
};

struct store_sched_link {
    char *from, *to;
    json_t *document;
};

/* A run that may have to move: what planning it again needs. {"spec","inputs","plan","steps": of the job,
 * "step": steps done, "started_s": seconds from the run's beginning to its first step}; null where it is no
 * more. */
int store_sched_run_get(struct store *store, int64_t run, store_doc_fn *done, void *arg, struct err *err);

struct store_sched_measure { /* profiles that somebody waits for without a job */
    json_t *spec, *inputs;
};

struct store_view {
    int64_t now_us;
    int64_t next_due_us; /* earliest not_before among those that must wait; 0: none */
    size_t job_count, run_count, node_count, device_count, request_count, link_count, measure_count;
    struct store_sched_job *jobs;
    struct store_sched_run *runs;
    struct store_sched_node *nodes;
    struct store_sched_device *devices;
    struct store_sched_request *requests;
    struct store_sched_link *links;
    struct store_sched_measure *measures; /* a few */
};

/* Takes over the view (store_view_destroy it); NULL with err. */
typedef void store_view_fn(void *arg, const struct err *err, struct store_view *view);
/* A place in the queue: behind the job of this priority and id. */
struct store_queue_mark {
    bool set;
    int32_t priority;
    int64_t id;
};
/* At most `queue_max` queued jobs that are due, highest priority first, then oldest; and with a mark that is
 * set as many that stand behind it. */
int store_sched_load(struct store *store, unsigned queue_max, const struct store_queue_mark *behind,
                     store_view_fn *done, void *arg, struct err *err);
void store_view_destroy(struct store_view *view);

/* The profile documents under `key`, valid for the devices' present inventories:
 * [{"device","document"}]. */
int store_profiles_get(struct store *store, const char *key, store_doc_fn *done, void *arg, struct err *err);

/* Everything agents have not confirmed, and the life of the database that it belongs to:
 * {"incarnation","messages":
 * [{"id","node","run"|null,"type","payload"}], oldest first}. */
int store_outbox_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);

/* Fresh numbers: {"run","epoch","assignments":[ranks ids],"requests":[request ids]}; no run where ranks is 0.
 * Those not used are lost, never given again. */
int store_sched_numbers(struct store *store, unsigned ranks, unsigned requests, store_doc_fn *done, void *arg,
                        struct err *err);

/* What agents told. Arrays of objects, NULL where empty; borrowed for the call. */
struct store_ingest {
    int64_t leader; /* epoch */
    const json_t
        *ranks; /* [{"run","epoch","rank","seq_before","seq","before","state","address"?,"identity"?,"code"?,
                    "why"?,"own_fault"?,"memory"?}]: one a rank that moved, seq_before and before as known */
    const json_t *metrics;  /* [{"job","kind","rank","step","document"}]: known ones are left as they are; new
                               step,  eval and sample lines also become events */
    const json_t *progress; /* [{"job","step","loss"?}]: steps done so far */
    const json_t *events;   /* [{"job","type","body"}] */
    const json_t *checkpoints; /* [{"job","run","step","rank","parts","best","blobs":{}}] */
    const json_t *artifacts;   /* [{"job","name","sha256","size"}] */
    const json_t *traces;      /* [{"run","rank","seq","document"}] */
    const json_t *nodes; /* [{"node","boot","seq","hello": bool,"machine_id"?,"address"?,"inventory"?}]: seq
                            of this boot */
    const json_t
        *devices; /* [{"name","node","kind","digest","memory_limit_bytes","inventory"}]: all of the node's */
    const json_t *seen;     /* ["node"]: alive now */
    const json_t *profiles; /* [{"request","node","document"}] */
    const json_t *links;    /* [{"from","to","document","request"}] */
    const json_t *failures; /* [{"request","node","why"}]: a measurement that failed */
    const json_t *health;   /* [{"device","node","health"}] */
    const json_t *faults; /* [{"device","job","rank","why"}]: workers that ended with a lost or faulty device;
                             the second within a day drains the device */
    const json_t *unknown; /* [{"job","node","run","incarnation"}]: agents gave them these before the database
                              was restored; those it knows are left out */
    const json_t *received; /* [{"id","node"}]: outbox rows that their agent has */
};
int store_ingest(struct store *store, const struct store_ingest *ingest, store_done_fn *done, void *arg,
                 struct err *err);

/* What was decided. Arrays as above. */
struct store_decision {
    int64_t leader;
    const json_t
        *runs_new; /* [{"run","job","attempt","epoch","plan","answer","start_step","ranks":[{"assignment",
                       "rank","node","device"}]}] */
    const json_t *ranks_lost; /* [{"run","rank","why"}]: not yet final ones become lost */
    const json_t *runs; /* [{"run","before","state","stop_why"?,"why"?,"kill": bool}]: to a final state also
                           drops the run's messages and loses its unfinished ranks */
    const json_t
        *jobs; /* [{"job","before","state","stop_why"?,"why"?,"code"?,"delay_ms"?,"loss": bool,"run"?}] */
    const json_t *waits;       /* [{"job","why"}]: of queued jobs */
    const json_t *requests;    /* [{"id"?,"kind","device","key","content"?,"digest"?,"deadline_ms"}] */
    const json_t *unreachable; /* ["node"] */
    const json_t *links;       /* [{"from","to","document"}]: emulated ones of the configuration */
    const json_t *messages;    /* [{"node","run"|null,"type","payload"}]: outbox */
    const json_t *said;        /* [{"job","level","text"}]: lines of jobs' logs */
};
/* Answers with the messages' outbox ids in order: [id]. Run, assignment and request ids are from
 * store_sched_numbers.
 */
int store_decide(struct store *store, const struct store_decision *decision, store_doc_fn *done, void *arg,
                 struct err *err);

/* What was refused of nodes: [{"node","generation","refused": so many more,"reasons": {code: n},"why",
 * "barred": bool}]; another
 * generation than the node's present one changes nothing. Repeating it counts twice. */
int store_node_mark(struct store *store, int64_t leader, const json_t *marks, store_done_fn *done, void *arg,
                    struct err *err);

/* How long what grows for ever is kept, in days or steps; and how much of it goes in one call. */
struct store_retention {
    unsigned event_days;   /* events and traces */
    unsigned history_days; /* after a job's end: the lines of its single steps, its runs but the last */
    unsigned dataset_days; /* encoded data sets that nobody used */
    unsigned rank_steps;   /* of a running job: lines of single ranks ("ranks"), so many steps back */
    unsigned rows;         /* a table and call, 1.. */
};
/* One step of it, also of spent join tokens and failed measurements: {"more": whether there is more to do}.
 */
int store_prune(struct store *store, int64_t leader, const struct store_retention *keep, store_doc_fn *done,
                void *arg, struct err *err);

#endif
