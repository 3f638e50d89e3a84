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
#define STORE_LABELS_MAX 16

struct store_job_new {
    const struct principal *owner; /* a user; borrowed for the call */
    const char *name;              /* 1..STORE_NAME_MAX bytes */
    const char *idempotency_key;   /* or NULL */
    /* SHA-256 of the request body, 32 bytes; required with an idempotency key */
    const uint8_t *request_digest;
    const json_t *spec; /* as spec_to_json writes it, with every default filled in; returned under `spec` */
    /* what the scheduler looks up to plan and start the job: {"model": content id | null, "train": dataset
     * key, "eval": dataset key | null, "adapter": {file name: sha256} | null, "sample": {"ids": […]}, only
     * with a prompt} */
    const json_t *inputs;
    const char *spec_text, *inputs_text; /* both as JSON text, if the caller has it; NULL: they are printed */
    /* DIGEST_SIZE bytes: the class of the job's plans (model/job/plan_class.h); NULL: the database computes
     * one */
    const uint8_t *plan_class;
    int32_t priority; /* higher first; 0 is usual; -1000..1000 */
    bool held;
    uint32_t retries_max;  /* limits.retries */
    int64_t time_limit_ms; /* limits.time; 0 means no limit */
    /* name of the group that is charged; NULL: the owner's default group, or the root of the accounts */
    const char *account;
    unsigned service;       /* 0 urgent, 1 normal, 2 scavenger */
    int64_t begin_us;       /* wall-clock µs before which the job does not start; 0: none */
    uint32_t devices_least; /* fewest devices that a plan of the job has */
    int64_t steps;          /* total number of steps, with epochs converted to steps */
    uint32_t array_size;    /* number of elements of an array; 0: the job is no array */
    /* number of an array's elements that may be queued or run at once; 0: any number */
    uint32_t at_most;
    /* a model of the Hub that the api is to fetch first (store/fetches.h), with inputs of nulls; or NULL */
    const char *fetch;
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
 * answers the first job with `repeated`, or ERR_CONFLICT when request_digest differs. Wakes the scheduler.
 * ERR_INVALID names a group that the owner is not in, or a limit (of the owner, of the group or of a group
 * above it) that would keep the job from ever starting or that allows no further queued job. Two submits at
 * the same moment may both take the last place that a limit leaves. */
int store_job_insert(struct store *store, const struct store_job_new *job, store_job_made_fn *done, void *arg,
                     struct err *err);

/* Answers, with `repeated`, the job that an earlier request of this owner made with the key. ERR_NOT_FOUND
 * when there is none, ERR_CONFLICT when `digest` (of the request's body) differs from that request's. */
int store_job_find(struct store *store, const struct principal *owner, const char *key,
                   const uint8_t digest[32], store_job_made_fn *done, void *arg, struct err *err);

/* Answers one job:
 *   {"id","name","owner","visibility","group"|null,"state","priority","spec","inputs","created","updated",
 *    "started"|null,"ended"|null,"attempt","losses","step","steps","loss"|null,"stop_why"|null,"held_by_admin","why"|null,
 *    "code"|null,"ended_by"|null,"run": null | {"id","attempt","epoch","state","why"|null,"plan_answer",
 *     "ranks":[{"rank","node","device","state","code"|null,"why"|null,"memory"|null}],"started","ended"|null},
 *    "account": group | null: the root,"service","begins"|null,"place"|null,"wait": code|null,
 *    "waits_for": job|null,"starts": predicted start | null,
 *    "array_of": the array that the job is an element of | null,"index": its number in that array | null,
 *    "array": null | {"size": number of elements,"made": number of elements that are jobs,"at_most"|null,
 *     "states": {state: number of elements}},
 *    "checkpoints":[{"step","best","at","blobs"}],"artifacts":[{"name","sha256","size"}]}.
 * `step` counts the steps done. `why` is a sentence that says why the job waits or why it failed; `code` is
 * the name of the error code. `run` is the newest run. Times are RFC 3339 strings. ERR_NOT_FOUND also for a
 * job that `principal` may not see. */
int store_job_get(struct store *store, const struct principal *principal, int64_t id, store_doc_fn *done,
                  void *arg, struct err *err);

/* Answers which of `count` pairs of a job and a user (who is no administrator) are a job that the user may
 * not see:
 * [[job, user]]. For streams, which ask it again while they last. */
int store_jobs_unseen(struct store *store, const int64_t *jobs, const int64_t *viewers, size_t count,
                      store_doc_fn *done, void *arg, struct err *err);

struct store_job_filter {
    unsigned states;   /* one bit, 1 << enum job_state, for each wanted state; 0: all */
    int64_t before_id; /* only jobs with a smaller id; 0 starts at the newest job */
    unsigned limit;    /* 1..STORE_PAGE_MAX */
    /* name of the owner, or NULL; name of a group that jobs are shared with or charged to, or NULL */
    const char *owner, *group;
    /* NULL, or {key: value, or null for any value}: only jobs that have all these labels */
    const json_t *labels;
    int64_t array; /* only elements of this array; 0: all jobs */
    /* only jobs submitted at or after from_us and before to_us; wall-clock µs, 0: no limit */
    int64_t from_us, to_us;
};
/* Answers the jobs that `principal` may see, newest first:
 *   {"jobs":[{"id","name","owner","visibility","group","labels","state","priority","created","updated","attempt",
 *    "step","steps","loss","why","array_of"|null,"index": number in its array | null,
 *    "elements": number of elements of an array | null}], "next": id to give as before_id | null}. */
int store_job_page(struct store *store, const struct principal *principal,
                   const struct store_job_filter *filter, store_doc_fn *done, void *arg, struct err *err);

/* Sets who else may see the job from now on. Answers {"id","visibility","group"|null}; ERR_DENIED as for
 * store_job_command. */
int store_job_share(struct store *store, const struct principal *principal, int64_t id,
                    const struct sharing *sharing, store_doc_fn *done, void *arg, struct err *err);

/* Answers counts for /metrics: {"jobs": {"held": n, "queued": n, …}, the number of jobs in each state,
 * "refused": {reason: number of refused events of agents}, "devices": [{"name", "drained", "health"}],
 * "nodes": [{"name", "alive", "left": in good order, "heard_s": since the last message, "certified_s": how
 * long its certificate is still good, "disk_bytes", "disk_free_bytes": of one that is there}], "waits_s":
 * since the oldest waiting job was submitted, or null, "scheduler": {"state","age_s","set_aside_count"}
 * (store/health.h)}. */
int store_counts(struct store *store, store_doc_fn *done, void *arg, struct err *err);
/* Answers a short summary of the cluster: {"jobs": as in store_counts, "devices":{name: state}}. */
int store_glance(struct store *store, store_doc_fn *done, void *arg, struct err *err);

/* Applies a person's command to job `id`: HOLD, RELEASE, CANCEL or RESUME. ERR_NOT_FOUND for a job that the
 * person may not see; ERR_DENIED for another person's job that they may only see.
 *
 * RESUME with `more_steps` 0 goes on to the specification's number of steps; with N > 0 the job ends N steps
 * after the last complete checkpoint (spec.train.steps is set to that). ERR_CONFLICT when the job's state has
 * no such event; ERR_INVALID for a RESUME of a finished job with no step left. CANCEL of a stopping or
 * cancelled job succeeds and changes nothing. A command to an array also applies to those of its elements
 * whose state has the event; an array itself cannot be resumed. Answers {"id","state","steps"}.
 */
int store_job_command(struct store *store, const struct principal *principal, int64_t id,
                      enum job_event event, int64_t more_steps, store_doc_fn *done, void *arg,
                      struct err *err);

/* Answers metrics of the steps from steps[0] to before steps[1] in buckets of equal width, a power of two, at
 * most `buckets` of them (store/jobs_series.c). `kind` is "step" or "eval". Answers {"lines": [], "width":
 * steps of a bucket | null, "buckets": [{"step": where the bucket begins, "first" and "last": steps that it
 * holds, "steps": their number, "skipped", "tokens", "loss", "grad_norm", "learning_rate", "loss_scale",
 * "seconds", "tokens_per_s": each {"least","mean", "most","last"} | null}], "next": null}. */
int store_job_buckets(struct store *store, int64_t id, const char *kind, const int64_t steps[2],
                      unsigned buckets, store_doc_fn *done, void *arg, struct err *err);

/* Applies a command as store_job_command does, but to up to STORE_PAGE_MAX jobs in one transaction, and not
 * RESUME. Each job either takes the command or not: {"jobs": [as store_job_command answers], "refused":
 * [{"id","code": an error's name,"detail": its text}]}. */
int store_jobs_command(struct store *store, const struct principal *principal, enum job_event event,
                       const int64_t *ids, size_t count, store_doc_fn *done, void *arg, struct err *err);

/* Does the same as store_jobs_command for all jobs of a user that have not ended. */
int store_owner_command(struct store *store, const struct principal *principal, enum job_event event,
                        const char *owner, store_doc_fn *done, void *arg, struct err *err);

/* Changes a job that has not ended. `changes` has members of {"priority","begin": text | null, together with
 * "begin_us", "at_most" | null}. Those of an array's elements that have not started are changed, too. Answers
 * {"id","state","priority","begins"|null,"at_most"|null}. ERR_CONFLICT when the job has ended, when it has
 * started and `begin` changes, or for `at_most` of a job that is no array; ERR_DENIED as for
 * store_job_command. */
int store_job_change(struct store *store, const struct principal *principal, int64_t id,
                     const json_t *changes, store_doc_fn *done, void *arg, struct err *err);

/* Removes a job that has ended, with all that it left (migrations/0009_removal.sql). Answers {"id","removed":
 * [ids: of an array its elements, too],"bytes": of files that nothing refers to any more}. ERR_NOT_FOUND,
 * ERR_DENIED as for store_job_command; ERR_CONFLICT names why it stays: it has not ended, is shared, or
 * another job that has not ended depends on it. */
int store_job_remove(struct store *store, const struct principal *principal, int64_t id, store_doc_fn *done,
                     void *arg, struct err *err);

/* Answers what jobs and people have on the disk, of everybody for an administrator, else of the asker:
 * {"users": [{"user","jobs": that have ended,"checkpoints_bytes","results_bytes","uploads_bytes"}],
 * "database_bytes"}. */
int store_storage_get(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                      struct err *err);

/* Lengthens the job's time limit by `seconds`. ERR_NOT_FOUND, ERR_DENIED as for store_job_command;
 * ERR_INVALID for a job without a time limit; ERR_CONFLICT for a job that has ended, and (unless an
 * administrator asks) when another job, which is to start on its devices, would start later. Answers
 * {"id","time_limit_s"}. */
int store_job_extend(struct store *store, const struct principal *principal, int64_t id, int64_t seconds,
                     store_doc_fn *done, void *arg, struct err *err);

/* Answers metrics lines in step order, with steps > after_step. `kind` is "step", "eval", "sample", "ranks"
 * (timings per rank and step), or "all" (step, eval and sample). limit: 1..10000. Answers {"lines":[…],
 * "next": step to give as after_step | null}. */
int store_job_metrics(struct store *store, int64_t id, const char *kind, int64_t after_step, unsigned limit,
                      store_doc_fn *done, void *arg, struct err *err);

/* Answers the plan of the job's newest run, as plan_to_json writes it:
 * {"run","attempt","epoch","plan","answer"}. ERR_NOT_FOUND while the job has no run. */
int store_job_plan(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err);

/* Answers the runs of a job, newest first, with ids below `before_id` (0: from the newest on); limit:
 * 1..STORE_PAGE_MAX.
 *   {"runs":[{"id","attempt","epoch","state","why","start_step","created","started","ended","ranks":[…]}],
 *    "next": id to give as before_id | null}. */
int store_job_runs(struct store *store, int64_t id, int64_t before_id, unsigned limit, store_doc_fn *done,
                   void *arg, struct err *err);

/* Answers what a timeline of a step (lanes) is drawn from, of the last run that recorded a trace, or else of
 * the last run: {"run", "plan", "timeline": the predicted step, as trace_pack writes it | null, "parts":
 * [documents of trace_to_json]}. */
int store_job_lanes(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err);

/* Answers the recorded trace parts of the newest run that has any: {"run","parts":[{"rank","doc"}]}. */
int store_job_trace(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err);

/* ---- events, for followers (Server-Sent Events) ---- */

/* Answers a job's events with id > after, in id order: {"events":[{"id","job","type","at","body"}], "next":
 * id to give as `after` | null, "last": the id of the last event, or `after`}. `type` NULL means all types,
 * "log" only log lines. An event never appears with an id below one that was already read. limit: 1..1000.
 * The function does not check permission: call it after store_job_get has let the asker see the job. */
int store_event_list(struct store *store, int64_t job, const char *type, int64_t after, unsigned limit,
                     store_doc_fn *done, void *arg, struct err *err);

struct store_feed_filter {
    bool states;         /* give the state events of all jobs */
    const int64_t *jobs; /* give all events of these jobs; borrowed */
    size_t job_count;
};
/* Answers the events with id > after of the jobs in the filter, and with filter->states the state events of
 * all jobs, in id order: {"events":[{"id","job","owner","type","at","body"}], "horizon": the newest id of any
 * event}. When there are fewer than `limit` events, none up to `horizon` is missing. limit: 1..1000. The
 * function does not check permission. */
int store_event_feed(struct store *store, int64_t after, unsigned limit,
                     const struct store_feed_filter *filter, store_doc_fn *done, void *arg, struct err *err);

#endif
