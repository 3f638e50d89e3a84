/* Nodes, devices, profiles and links as people see them. (The scheduler's own
 * view of them is in sched.h.)
 */
#ifndef MOTLEY_STORE_NODES_H
#define MOTLEY_STORE_NODES_H

#include "store/principal.h"
#include "store/store.h"

/* {"nodes":[{"name","state"
 * (joining|alive|unreachable|barred),"address","machine_id","last_seen"|null,"enrolled","devices":n,
 * "refused":n,"why"|null,"marked"|null}]}: messages of it that were refused since it joined, why the last one
 * was, and when that was noted; barred: it flooded Redis and has no user there until it is enrolled anew. */
int store_node_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);

/* {"devices":[{"name","node","kind","state" (free|busy|drained|draining|unreachable|gone),"drained",
 * "job"|null,"memory_limit_bytes", "health"|null (agent/health.h), "drain_why"|null (why the service drained
 * it), … every key of the agent's inventory}], "unused": [{"node","kind","index", "name"?,"why", …}]}: cards
 * that no device is. "job" is null for one that `principal` may not see. */
int store_device_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                      struct err *err);

/* Drain or undrain; undraining forgets the ends of workers that had it drained. Nothing new starts there;
 * what runs moves at its next checkpoint. ERR_NOT_FOUND names the device. Idempotent. Wakes the scheduler.
 * Answers {"name","drained","job"|null}. */
int store_device_drain(struct store *store, const struct principal *principal, const char *device,
                       bool drained, store_doc_fn *done, void *arg, struct err *err);

/* All that a planner needs to know of the cluster: {"devices":[as store_device_list],
 * "profiles":[profile documents of `content` (a model's content id; NULL = of every model)],
 * "links":[link documents]}. */
int store_cluster_get(struct store *store, const struct principal *principal, const char *content,
                      store_doc_fn *done, void *arg, struct err *err);

/* Every profile of a model (content NULL: of all) that one may see; measured ones are everybody's:
 * {"profiles":[profile documents, each with "device", "key", "content", "digest", "measured_at", "origin"
 * ("measured" | "imported"), of imported ones "owner"]], "links":[link documents]}. */
int store_profile_list(struct store *store, const struct principal *principal, const char *content,
                       store_doc_fn *done, void *arg, struct err *err);

/* What a plan may rest on under `key` (profiles/profile_key.h): [{"device","document","imported"}]; an
 * imported one only of the very device (name and inventory), only while that is not measured, and one's own
 * before others' that one may see. */
int store_profile_plan(struct store *store, const struct principal *principal, const char *key,
                       store_doc_fn *done, void *arg, struct err *err);

/* Keeps profiles that were measured elsewhere: [{"device","key","content"?,"digest"?,"document"}]; `source`
 * says where. A later import of the same device and key by the same owner replaces. {"imported": n}. */
int store_profile_import(struct store *store, const struct principal *owner, const json_t *profiles,
                         const char *source, const struct sharing *sharing, store_doc_fn *done, void *arg,
                         struct err *err);

/* Says that somebody waits `seconds` (1..3600) for the profiles under `key` (profiles/profile_key.h):
 * the scheduler has free devices measured as it would for a queued job of this specification. Idempotent.
 * Wakes the scheduler. */
int store_measure_want(struct store *store, const char *key, const json_t *spec, const json_t *inputs,
                       unsigned seconds, store_done_fn *done, void *arg, struct err *err);

#endif
