/* Everything a plan rests on, in one document: what `POST /v1/jobs:validate?inputs=1` answers under `inputs`
 * and what `motley replay` changes before it plans again.
 *
 *     {"version": 1, "spec": {…}, "config": {…}, "profile_key": "hex",
 *      "rows": [[tokens, labelled], …] | null, "eval_rows": […] | null, "prompt_tokens": n,
 *      "devices": [{"name","node","kind","like"?,"memory_limit_bytes","base_bytes"?,
 *                   "threads","speed"?,"usable"?}],
 *      "profiles": [profile documents], "links": [link documents],
 *      "nodes": [{"name","nic_bytes_per_s"}], "defaults": {"within": {"latency_s","bytes_per_s"}, "between":
 * {…}}}
 *
 * Pure: documents in, structs out. `rows` null: the data is not at hand (workload.h). A device with `usable`
 * false is left out. A profile or link of something that is not among the devices is passed over: the
 * document may be of a larger cluster.
 */
#ifndef MOTLEY_PLANNER_GIVEN_INPUTS_H
#define MOTLEY_PLANNER_GIVEN_INPUTS_H

#include <jansson.h>

#include "model/shape/config.h"
#include "model/rows/rows.h"
#include "model/job/spec.h"
#include "planner/given/cluster.h"
#include "planner/given/workload.h"

#define INPUTS_VERSION 1
#define INPUTS_ROWS_MAX 10000000u

struct plan_inputs {
    struct job_spec spec;
    struct model_config config;
    struct workload workload; /* borrows config: a struct plan_inputs does not move */
    struct cluster *cluster;  /* owned */
};

/* Fills *inputs, which plan_inputs_fini releases also after an error. ERR_INVALID with the path. */
int plan_inputs_read(const json_t *document, struct plan_inputs *inputs, struct err *err);
/* The same from a specification, a config.json, a cluster file (INTERFACES.md) and what is known of the rows:
 * borrowed; NULL sizes: not at hand. */
struct plan_rows {
    const struct row_size *train, *eval;
    uint32_t train_count, eval_count, prompt_tokens;
};
int plan_inputs_from_files(const json_t *spec, const json_t *cluster, const json_t *config,
                           const struct plan_rows *rows, struct plan_inputs *inputs, struct err *err);
void plan_inputs_fini(struct plan_inputs *inputs);

/* Puts other devices and links into such a document: those of a cluster file (INTERFACES.md). A device that
 * keeps its name keeps what was measured of it, unless the file brings a profile. ERR_INVALID with the path
 * in the file. */
int plan_inputs_cluster(json_t *document, const json_t *cluster_file, struct err *err);

#endif
