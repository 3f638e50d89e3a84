/* All inputs of a plan in one document. `POST /v1/jobs:validate?inputs=1` returns it under `inputs`, and
 * `motley replay` changes it before it plans again.
 *
 *     {"version": 1, "spec": {…}, "config": {…}, "profile_key": "hex",
 *      "rows": [[tokens, labelled], …] | null, "eval_rows": […] | null, "prompt_tokens": n,
 *      "expert_share"?: [[tokens or share of each expert], …, one list or null a layer],
 *      "devices": [{"name","node","kind","like"?,"memory_limit_bytes","base_bytes"?,
 *                   "threads","speed"?,"usable"?}],
 *      "profiles": [profile documents], "links": [link documents],
 *      "nodes": [{"name","nic_bytes_per_s"}],
 *      "defaults": {"within": {"latency_s","bytes_per_s"}, "between": {…}}}
 *
 * Pure: documents in, structs out. `rows` is null if the data is not at hand (workload.h). A device whose
 * `usable` is false is left out, and one that is wrong or without costs is left out by name. Profiles and
 * links of devices that are not listed are ignored, because the document may describe a larger cluster.
 */
#ifndef MOTLEY_PLANNER_GIVEN_INPUTS_H
#define MOTLEY_PLANNER_GIVEN_INPUTS_H

#include <jansson.h>

#include "model/shape/config.h"
#include "planner/given/cluster.h"
#include "planner/given/from_spec.h"

#define INPUTS_VERSION 1
#define INPUTS_ROWS_MAX 10000000u

struct plan_inputs {
    struct job_spec spec;
    struct model_config config;
    struct workload workload; /* borrows config, so a struct plan_inputs must not be moved */
    struct cluster *cluster;  /* owned */
};

/* Returns the last object of a list that has the text under `key`, borrowed; NULL: there is none, or no text.
 */
json_t *plan_inputs_find(const json_t *list, const char *key, const char *text);
/* Reads what a plan needs of an entry of `devices`, beside its names; texts are borrowed from the entry.
 * ERR_INVALID with the path. */
int plan_inputs_device(const json_t *document, const char *path, struct cluster_device *device, bool *usable,
                       struct err *err);
/* Makes the cluster of a document's `devices`, `profiles`, `links`, `nodes` and `defaults`; other members are
 * not read. A device whose entry or profile is wrong is left out by name (cluster_leave_out), and a link that
 * is wrong counts as not measured, since both may come from an agent. Returns a new cluster, which may be
 * empty; NULL for what has no name. */
struct cluster *plan_inputs_devices(const json_t *document, struct err *err);
/* Fills *inputs; plan_inputs_fini releases it, also after an error. ERR_INVALID with the path. */
int plan_inputs_read(const json_t *document, struct plan_inputs *inputs, struct err *err);
/* Makes the same inputs from a specification, a config.json, a cluster file (INTERFACES.md) and the sizes
 * of the rows. All are borrowed; NULL sizes: the data is not at hand. */
int plan_inputs_from_files(const json_t *spec, const json_t *cluster, const json_t *config,
                           const struct plan_rows *rows, struct plan_inputs *inputs, struct err *err);
void plan_inputs_fini(struct plan_inputs *inputs);

/* Returns the new member `rows` or `eval_rows` of the document; a JSON null for NULL sizes. */
json_t *plan_rows_to_json(const struct row_size *sizes, uint32_t count);

/* Replaces the document's devices and links by those of a cluster file (INTERFACES.md). A device whose
 * name stays keeps its measured profile, unless the file brings one. ERR_INVALID with the path in the file.
 */
int plan_inputs_cluster(json_t *document, const json_t *cluster_file, struct err *err);
/* Drops names of devices that the document lacks from its placement, for a run that is planned again on
 * another cluster than its own; no name left: any device. */
int plan_inputs_keep_names(json_t *document, struct err *err);

/* Completes a cluster file by what the document knows and the file does not say: of devices of the same names
 * memory, kind, threads, heat, speed and measured tables, of nodes of the same names the links. The file then
 * gives `motley plan --cluster` the same costs. The file need not have been checked. */
int plan_inputs_fill(const json_t *document, json_t *cluster_file, struct err *err);
/* Makes a cluster file of all devices of the document that can be used. Returns new, or NULL. */
json_t *plan_inputs_cluster_file(const json_t *document, struct err *err);

#endif
