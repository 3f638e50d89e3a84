/* Jobs as people see them: submit, read, list, command. See store.h for the
 * rules of callbacks, ownership and errors.
 */
#ifndef MOTLEY_STORE_JOBS_H
#define MOTLEY_STORE_JOBS_H

#include "store/principal.h"
#include "store/states.h"
#include "store/store.h"

#define STORE_NAME_MAX 200        /* bytes: names of jobs, models, users, idempotency keys */
#define STORE_SPEC_MAX (1u << 20) /* bytes of one job's spec as text */
#define STORE_PAGE_MAX 500

struct store_job_new {
    const struct principal *owner; /* a user; borrowed for the call */
    const char *name;              /* 1..STORE_NAME_MAX bytes */
    const char *idempotency_key;   /* or NULL */
    const uint8_t *request_digest; /* 32 bytes, SHA-256 of the request body; needed with a key */
    const json_t *spec;            /* spec_to_json: every default filled, given back under `spec` */
    const json_t *inputs; /* {"model": content id | null, "train": dataset key, "eval": dataset key | null,
                              "adapter": {file name: sha256} | null, "sample": {"ids": […]} only with
                              a prompt}; what the scheduler resolves */
    int32_t priority;     /* higher first; 0 is usual; -1000..1000 */
    bool held;
    uint32_t retries_max;  /* limits.retries */
    int64_t time_limit_ms; /* limits.time; 0 = none */
    int64_t steps;         /* steps in all (epochs resolved) */
};

struct store_job_made {
    int64_t id;
    enum job_state state;
    int64_t created_us;
    bool repeated; /* an earlier request with this key made it; nothing was inserted */
};
typedef void store_job_made_fn(void *arg, const struct err *err, const struct store_job_made *made);

/* Inserts a job. Calls that arrive while a commit is under way share the next
 * one (at most job_batch_max a commit); the callback comes after the commit.
 * The same (owner, key) again answers the first job with `repeated`, or
 * ERR_CONFLICT where request_digest differs. Wakes the scheduler. */
int store_job_insert(struct store *store, const struct store_job_new *job, store_job_made_fn *done, void *arg,
                     struct err *err);

/* One job:
 * {"id","name","owner","visibility","group"|null,"state","priority","spec","inputs","created","updated","started"|null,
 * "ended"|null,"attempt","losses","step" (steps done),"steps","loss"|null,"stop_why"|null,"why"|null (why it
 * waits or why it failed, a sentence),"code"|null (error code name),"run": null |
 * {"id","attempt","epoch","state","plan_answer",
 * "ranks":[{"rank","node","device","state","why"|null,"memory"|null}],"started","ended"|null} (the newest),
 * "checkpoints":[{"step","best","at"}],"artifacts":[{"name","sha256","size"}]}. Times are RFC 3339 strings.
 * ERR_NOT_FOUND also for one that `principal` may not see. */
int store_job_get(struct store *store, const struct principal *principal, int64_t id, store_doc_fn *done,
                  void *arg, struct err *err);

struct store_job_filter {
    int state;         /* enum job_state, or -1 = all */
    int64_t before_id; /* keyset cursor: only jobs with a smaller id; 0 = from the newest */
    unsigned limit;    /* 1..STORE_PAGE_MAX */
};
/* Those that `principal` may see, newest first:
 * {"jobs":[{"id","name","owner","visibility","state","priority","created","updated","attempt","step","steps","loss","why"}],
 * "next": id to give as before_id | null}. */
int store_job_page(struct store *store, const struct principal *principal,
                   const struct store_job_filter *filter, store_doc_fn *done, void *arg, struct err *err);

/* Who else may see it from now on. Answers {"id","visibility","group"|null}; ERR_DENIED as below. */
int store_job_share(struct store *store, const struct principal *principal, int64_t id,
                    const struct sharing *sharing, store_doc_fn *done, void *arg, struct err *err);

/* For /metrics: {"jobs": as below, "refused": {reason: events of agents}, "devices": [{"name", "drained",
 * "health"}]}. */
int store_counts(struct store *store, store_doc_fn *done, void *arg, struct err *err);
/* {"held": n, "queued": n, …}: one number a state. */
int store_job_counts(struct store *store, store_doc_fn *done, void *arg, struct err *err);

/* A person's command: HOLD, RELEASE, CANCEL or RESUME of job `id`. ERR_NOT_FOUND for a job that they may not
 * see, ERR_DENIED for another's that they may only see.
 * RESUME: `more_steps` 0 goes on to the steps of the specification; N > 0 ends N
 * steps after the last complete checkpoint (spec.train.steps is set to that).
 * ERR_CONFLICT: the job's state has no such event; ERR_INVALID: RESUME of a
 * finished job with nothing left to do. Answers
 * {"id","state","steps"}. CANCEL of an already stopping or cancelled job is fine
 * and changes nothing. */
int store_job_command(struct store *store, const struct principal *principal, int64_t id,
                      enum job_event event, int64_t more_steps, store_doc_fn *done, void *arg,
                      struct err *err);

/* Metrics lines in step order, kind "step", "eval" or "sample"; or "ranks" (per
 * rank per step timings), "all" = step, eval and sample. Steps > after_step.
 * {"lines":[…], "next": step to give as after_step | null}. limit 1..10000. */
int store_job_metrics(struct store *store, int64_t id, const char *kind, int64_t after_step, unsigned limit,
                      store_doc_fn *done, void *arg, struct err *err);

/* The plan (codec form) of the job's newest run: {"run","attempt","epoch","plan","answer"}. ERR_NOT_FOUND
 * before there is one. */
int store_job_plan(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err);

/* The runs of a job, newest first:
 * {"runs":[{"id","attempt","epoch","state","why","started","ended","ranks":[…]}]}. */
int store_job_runs(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err);

/* The recorded trace parts of the newest run that has any: {"run","parts":[{"rank","doc"}]}. */
int store_job_trace(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err);

/* Records a file made for the job by the api (idempotent on name). */
int store_artifact_put(struct store *store, int64_t job, const char *name, const char *sha256, int64_t size,
                       store_done_fn *done, void *arg, struct err *err);

/* ---- events, for followers (Server-Sent Events) ---- */

/* A job's events with id > after: {"events":[{"id","job","type","at","body"}], "last": id}. `type` NULL =
 * all, "log" = log lines only. In id order; an id once passed never appears later. limit 1..1000. Like what
 * else belongs to a job it is asked for after store_job_get let the asker see the job. */
int store_event_list(struct store *store, int64_t job, const char *type, int64_t after, unsigned limit,
                     store_doc_fn *done, void *arg, struct err *err);

/* The newest event id of the job: where a follower starts who wants only new ones. */
int store_event_last(struct store *store, int64_t job, store_id_fn *done, void *arg, struct err *err);

#endif
