/* Jobs as people see them: submit, read, list, command. store.h has the rules for callbacks, ownership and
 * errors.
 */
#ifndef MOTLEY_STORE_JOBS_H
#define MOTLEY_STORE_JOBS_H

#include "store/principal.h"
#include "store/states.h"
#include "store/store.h"

/* bytes of the name of a job, model or user, and of an idempotency key */
#define STORE_NAME_MAX 200
#define STORE_SPEC_MAX (1u << 20) /* bytes of one job's spec as text */
#define STORE_PAGE_MAX 500

struct store_job_new {
    const struct principal *owner; /* a user; borrowed for the call */
    const char *name;              /* 1..STORE_NAME_MAX bytes */
    const char *idempotency_key;   /* or NULL */
    /* 32 bytes, SHA-256 of the request body; required with an idempotency key */
    const uint8_t *request_digest;
    const json_t *spec; /* as spec_to_json writes it, with every default filled in; returned under `spec` */
    /* {"model": content id | null, "train": dataset key, "eval": dataset key | null, "adapter": {file name:
     * sha256} | null, "sample": {"ids": […]} only with a prompt}: what the scheduler resolves */
    const json_t *inputs;
    int32_t priority; /* higher first; 0 is usual; -1000..1000 */
    bool held;
    uint32_t retries_max;  /* limits.retries */
    int64_t time_limit_ms; /* limits.time; 0 means no limit */
    int64_t steps;         /* total number of steps, with epochs converted to steps */
};

struct store_job_made {
    int64_t id;
    enum job_state state;
    int64_t created_us;
    bool repeated; /* an earlier request with the same key made the job; nothing was inserted */
};
typedef void store_job_made_fn(void *arg, const struct err *err, const struct store_job_made *made);

/* Inserts a job. Calls that arrive while a commit is under way share the next commit, at most job_batch_max
 * per commit; the callback comes after the commit. A second call with the same owner and idempotency key
 * answers the first job with `repeated`, or ERR_CONFLICT when request_digest differs. Wakes the scheduler. */
int store_job_insert(struct store *store, const struct store_job_new *job, store_job_made_fn *done, void *arg,
                     struct err *err);

/* One job:
 * {"id","name","owner","visibility","group"|null,"state","priority","spec","inputs","created","updated",
 *  "started"|null,"ended"|null,"attempt","losses","step","steps","loss"|null,"stop_why"|null,"why"|null,
 *  "code"|null,"run": null | {"id","attempt","epoch","state","why"|null,"plan_answer",
 *   "ranks":[{"rank","node","device","state","code"|null,"why"|null,"memory"|null}],"started","ended"|null},
 *  "checkpoints":[{"step","best","at","blobs"}],"artifacts":[{"name","sha256","size"}]}.
 * `step` counts the steps done. `why` is a sentence that says why the job waits or why it failed; `code` is
 * the name of the error code. `run` is the newest run. Times are RFC 3339 strings. ERR_NOT_FOUND also for a
 * job that `principal` may not see. */
int store_job_get(struct store *store, const struct principal *principal, int64_t id, store_doc_fn *done,
                  void *arg, struct err *err);

struct store_job_filter {
    int state;         /* enum job_state, or -1 for all states */
    int64_t before_id; /* keyset cursor: only jobs with a smaller id; 0 starts at the newest */
    unsigned limit;    /* 1..STORE_PAGE_MAX */
};
/* The jobs that `principal` may see, newest first:
 * {"jobs":[{"id","name","owner","visibility","state","priority","created","updated","attempt","step","steps",
 *  "loss","why"}], "next": id to give as before_id | null}. */
int store_job_page(struct store *store, const struct principal *principal,
                   const struct store_job_filter *filter, store_doc_fn *done, void *arg, struct err *err);

/* Sets who else may see the job from now on. Answers {"id","visibility","group"|null}; ERR_DENIED as for
 * store_job_command. */
int store_job_share(struct store *store, const struct principal *principal, int64_t id,
                    const struct sharing *sharing, store_doc_fn *done, void *arg, struct err *err);

/* For /metrics: {"jobs": as store_job_counts, "refused": {reason: number of refused events of agents},
 * "devices": [{"name", "drained", "health"}]}. */
int store_counts(struct store *store, store_doc_fn *done, void *arg, struct err *err);
/* {"held": n, "queued": n, …}: the number of jobs in each state. */
int store_job_counts(struct store *store, store_doc_fn *done, void *arg, struct err *err);

/* Applies a person's command to job `id`: HOLD, RELEASE, CANCEL or RESUME. ERR_NOT_FOUND for a job that they
 * may not see; ERR_DENIED for another person's job that they may only see.
 *
 * RESUME with `more_steps` 0 goes on to the specification's number of steps; with N > 0 the job ends N steps
 * after the last complete checkpoint (spec.train.steps is set to that). ERR_CONFLICT when the job's state has
 * no such event; ERR_INVALID for a RESUME of a finished job with no step left. CANCEL of a stopping or
 * cancelled job succeeds and changes nothing. Answers {"id","state","steps"}. */
int store_job_command(struct store *store, const struct principal *principal, int64_t id,
                      enum job_event event, int64_t more_steps, store_doc_fn *done, void *arg,
                      struct err *err);

/* Metrics lines in step order, with steps > after_step. `kind` is "step", "eval", "sample", "ranks" (timings
 * per rank and step), or "all" (step, eval and sample). limit: 1..10000. Answers {"lines":[…], "next": step
 * to give as after_step | null}. */
int store_job_metrics(struct store *store, int64_t id, const char *kind, int64_t after_step, unsigned limit,
                      store_doc_fn *done, void *arg, struct err *err);

/* The plan of the job's newest run, as plan_to_json writes it: {"run","attempt","epoch","plan","answer"}.
 * ERR_NOT_FOUND while the job has no run. */
int store_job_plan(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err);

/* The newest 100 runs of a job, newest first:
 * {"runs":[{"id","attempt","epoch","state","why","start_step","created","started","ended","ranks":[…]}]}. */
int store_job_runs(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err);

/* The recorded trace parts of the newest run that has any: {"run","parts":[{"rank","doc"}]}. */
int store_job_trace(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err);

/* Records a file that the API made for the job. Repeating it with the same name replaces the record. */
int store_artifact_put(struct store *store, int64_t job, const char *name, const char *sha256, int64_t size,
                       store_done_fn *done, void *arg, struct err *err);

/* ---- events, for followers (Server-Sent Events) ---- */

/* A job's events with id > after, in id order: {"events":[{"id","job","type","at","body"}], "last": id}.
 * `type` NULL means all types, "log" only log lines. An event never appears with an id below one that was
 * already read. limit: 1..1000. It does not check permission: call it after store_job_get has let the asker
 * see the job. */
int store_event_list(struct store *store, int64_t job, const char *type, int64_t after, unsigned limit,
                     store_doc_fn *done, void *arg, struct err *err);

/* The newest event id of the job, from which a follower starts that wants only new events. */
int store_event_last(struct store *store, int64_t job, store_id_fn *done, void *arg, struct err *err);

#endif
