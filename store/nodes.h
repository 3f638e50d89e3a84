/* Nodes, devices, profiles and links as people see them. sched.h has the scheduler's own view of them.
 */
#ifndef MOTLEY_STORE_NODES_H
#define MOTLEY_STORE_NODES_H

#include "store/principal.h"
#include "store/store.h"

/* Answers the nodes, and the jobs that agents knew before a restored backup and the database does not:
 *   {"nodes":[{"name","state","refused":n,"why"|null,"marked"|null,"address","machine_id",
 *    "last_seen"|null,"enrolled","devices":n}],"incarnation",
 *    "unknown_jobs":[{"job","node","run","reported"}]}.
 * `state` is joining, alive, unreachable or barred; a barred node flooded Redis and has no Redis user until
 * it is enrolled anew. `refused` counts the node's refused messages since it joined, `why` is the reason for
 * the last one, and `marked` is when that was recorded. */
int store_node_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);

/* Answers {"devices":[{"name","group"|null,"node","kind","state","drained","job"|null,"memory_limit_bytes",
 * "health"|null,"drain_why"|null, … every key of the agent's inventory}], "unused":
 * [{"node","kind","index","name"?,"why", …}]}. `state` is free, busy, drained, draining, unreachable or gone.
 * `health` is described in agent/health.h. `drain_why` says why the device was drained. `unused` lists the
 * cards that are not used as devices. `job` is null when `principal` may not see the job. */
int store_device_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                      struct err *err);

/* A request to drain devices, or to end a drain. */
struct store_drain {
    const char *name; /* name of a device, or of a node: all of the node's devices */
    bool drained;
    /* A job on the device may stay until it ends (true), or until the time `by` (ISO 8601; NULL: the job
     * moves at once). */
    bool after_jobs;
    const char *by, *why; /* why: NULL keeps the present reason */
};
/* Drains or undrains devices. No job starts on a drained device, and a job that runs there moves with a
 * checkpoint when its time has come. Undraining also forgets the worker failures and the failed starts for
 * which the device was drained, and its failed measurements, so that it is measured again at once.
 * ERR_NOT_FOUND names the device. Idempotent. Wakes the scheduler. Answers
 * {"name","drained","devices":[names], "drain_why"|null,"drain_at": time | "after jobs" |
 * null,"job"|null}. */
int store_device_drain(struct store *store, const struct principal *principal,
                       const struct store_drain *drain, store_doc_fn *done, void *arg, struct err *err);

/* Changes a device by {"group": the name of the group that owns it, or null}. ERR_NOT_FOUND names the device,
 * ERR_INVALID the group. Wakes the scheduler. Answers {"name","group"}. */
int store_device_set(struct store *store, const struct principal *principal, const char *device,
                     const json_t *changes, store_doc_fn *done, void *arg, struct err *err);

/* Answers everything that a planner needs to know of the cluster: {"devices":[as store_device_list],
 * "profiles":[profile documents of the model `content`, or of all models if it is NULL], "links":[link
 * documents]}. */
int store_cluster_get(struct store *store, const struct principal *principal, const char *content,
                      store_doc_fn *done, void *arg, struct err *err);

/* Answers {"links":[the link documents, each with "from", "to" and "measured_at"]}. Each direction of a link
 * has its own document. */
int store_link_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);

/* Answers what devices did between two times in wall-clock µs: {"from", "to", "devices": [{"name",
 * "compute_s", "wait_s", "send_s" (overlaps the other two), "held_s" by jobs and leases, "free_s",
 * "temperature_c" (the highest), "points"}]}. `points` only if one `device` is given (NULL: all devices):
 * [{"at", "compute_s", "wait_s", "send_s", "temperature_c"}], each a minute or an hour, as `by` says. Of the
 * time more than two days ago, only hours are kept. */
int store_load_get(struct store *store, int64_t from_us, int64_t to_us, const char *device, const char *by,
                   store_doc_fn *done, void *arg, struct err *err);

/* Answers all profiles of the model `content` (NULL: of all models) that `principal` may see; everybody may
 * see the measured ones. {"profiles":[profile documents, each with "device", "key", "content", "digest",
 * "measured_at", "origin" ("measured" | "imported"), and "owner" if imported], "links":[link documents]}. */
int store_profile_list(struct store *store, const struct principal *principal, const char *content,
                       store_doc_fn *done, void *arg, struct err *err);

/* Answers the profiles under `key` (profiles/profile_key.h) that a plan may use:
 * [{"device","document","imported","speed"}]. An imported profile counts only for the device that it was
 * measured on (same name and inventory), and only while that device has no measured profile; the asker's own
 * comes before those of others that they may see. */
int store_profile_plan(struct store *store, const struct principal *principal, const char *key,
                       store_doc_fn *done, void *arg, struct err *err);

/* Stores profiles that were measured elsewhere: [{"device","key","content"?,"digest"?,"document"}]; `source`
 * says where. A later import of the same device and key by the same owner replaces the earlier one. Answers
 * {"imported": n}. */
int store_profile_import(struct store *store, const struct principal *owner, const json_t *profiles,
                         const char *source, const struct sharing *sharing, store_doc_fn *done, void *arg,
                         struct err *err);

/* Records that somebody waits for at most `seconds` (1..3600) for the profiles under `key`
 * (profiles/profile_key.h). The scheduler then has free devices measured as it does for a queued job of this
 * specification. Idempotent. Wakes the scheduler. */
int store_measure_want(struct store *store, const char *key, const json_t *spec, const json_t *inputs,
                       unsigned seconds, store_done_fn *done, void *arg, struct err *err);

#endif
