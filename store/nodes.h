/* Nodes, devices, profiles and links as people see them. sched.h has the scheduler's own view of them.
 */
#ifndef MOTLEY_STORE_NODES_H
#define MOTLEY_STORE_NODES_H

#include "store/principal.h"
#include "store/store.h"

/* {"nodes":[{"name","state","refused":n,"why"|null,"marked"|null,"address","machine_id","last_seen"|null,
 * "enrolled","devices":n}],"incarnation","unknown_jobs":[{"job","node","run","reported"}]}.
 * `state` is joining, alive, unreachable or barred; a barred node flooded Redis and has no Redis user until
 * it is enrolled anew. `refused` counts the node's refused messages since it joined, `why` is the reason for
 * the last one, and `marked` is when that was recorded. */
int store_node_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);

/* {"devices":[{"name","node","kind","state","drained","job"|null,"memory_limit_bytes","health"|null,
 * "drain_why"|null, … every key of the agent's inventory}], "unused": [{"node","kind","index","name"?,"why",
 * …}]}. `state` is free, busy, drained, draining, unreachable or gone. `health` is described in
 * agent/health.h. `drain_why` says why Motley itself drained the device. `unused` lists the cards that are
 * not used as devices. `job` is null when `principal` may not see the job. */
int store_device_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                      struct err *err);

/* Drains or undrains a device. Nothing new starts on a drained device, and what runs there moves at its next
 * checkpoint. Undraining also forgets the worker failures for which it was drained. ERR_NOT_FOUND names the
 * device. Idempotent. Wakes the scheduler. Answers {"name","drained","job"|null}. */
int store_device_drain(struct store *store, const struct principal *principal, const char *device,
                       bool drained, store_doc_fn *done, void *arg, struct err *err);

/* All that a planner needs to know of the cluster: {"devices":[as store_device_list], "profiles":[profile
 * documents of the model `content`, or of all models if it is NULL], "links":[link documents]}. */
int store_cluster_get(struct store *store, const struct principal *principal, const char *content,
                      store_doc_fn *done, void *arg, struct err *err);

/* All profiles of the model `content` (NULL: of all models) that `principal` may see; everybody may see the
 * measured ones. Answers {"profiles":[profile documents, each with "device", "key", "content", "digest",
 * "measured_at", "origin" ("measured" | "imported"), and "owner" if imported], "links":[link documents]}. */
int store_profile_list(struct store *store, const struct principal *principal, const char *content,
                       store_doc_fn *done, void *arg, struct err *err);

/* The profiles under `key` (profiles/profile_key.h) that a plan may use: [{"device","document","imported"}].
 * An imported profile counts only for the device that it was measured on (same name and inventory), only
 * while that device has no measured profile; the asker's own comes before those of others that they may see.
 */
int store_profile_plan(struct store *store, const struct principal *principal, const char *key,
                       store_doc_fn *done, void *arg, struct err *err);

/* Stores profiles that were measured elsewhere: [{"device","key","content"?,"digest"?,"document"}]; `source`
 * says where. A later import of the same device and key by the same owner replaces the earlier one. Answers
 * {"imported": n}. */
int store_profile_import(struct store *store, const struct principal *owner, const json_t *profiles,
                         const char *source, const struct sharing *sharing, store_doc_fn *done, void *arg,
                         struct err *err);

/* Records that somebody waits for at most `seconds` (1..3600) for the profiles under `key`
 * (profiles/profile_key.h): the scheduler has free devices measured as for a queued job of this
 * specification. Idempotent. Wakes the scheduler. */
int store_measure_want(struct store *store, const char *key, const json_t *spec, const json_t *inputs,
                       unsigned seconds, store_done_fn *done, void *arg, struct err *err);

#endif
