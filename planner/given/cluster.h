/* Devices and links as the planner sees them: built from the scheduler's inventory with measured profiles, or
 * from a cluster file (INTERFACES.md) with the built-in catalogue.
 *
 * Opaque and pure. Every add checks its values (finite, positive, known names, no duplicates) and refuses
 * with ERR_INVALID and the path. One thread at a time while building; read-only afterwards, from any thread.
 */
#ifndef MOTLEY_PLANNER_GIVEN_CLUSTER_H
#define MOTLEY_PLANNER_GIVEN_CLUSTER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

#define CLUSTER_DEVICES_MAX 10000u
#define CLUSTER_NODES_MAX 10000u
#define CLUSTER_POINTS_MAX 4096u /* points of one profile document */

/* Where a number came from. */
enum cost_origin { ORIGIN_MEASURED, ORIGIN_IMPORTED, ORIGIN_ESTIMATED, ORIGIN_COUNT };
const char *cost_origin_name(enum cost_origin origin);

struct cluster;

struct cluster_device {
    const char *name; /* "left/cpu0"; unique */
    const char *node; /* "left" */
    const char *kind; /* "cpu", "cuda" …; NULL: "cpu" */
    const char *like; /* catalogue entry to estimate from while there is no profile; NULL: by kind */
    uint64_t memory_limit_bytes;
    uint32_t threads;      /* 0: 1 */
    double speed;          /* scales the tables: 2 halves the times; 0: 1 */
    double heat;           /* φ of PLANNER.md, moving ratio of table time to measured time, (0,1]; 0: 1 */
    double price_per_hour; /* any currency; 0: unknown */
    double watts;          /* while computing; 0: unknown */
    double idle_watts;     /* in a plan but not computing; 0: not counted */
};

/* Returns new (cluster_destroy), or NULL with ERR_NOMEM. */
struct cluster *cluster_create(struct err *err);
void cluster_destroy(struct cluster *cluster);

/* Strings are copied. ERR_INVALID, ERR_CONFLICT for a name seen before, ERR_TOO_BIG. */
int cluster_add_device(struct cluster *cluster, const struct cluster_device *device, struct err *err);
/* A profile document (docs/CONTRACTS.md) for the device it names, added before; a later one for the same
 * device replaces. Unknown keys are ignored (older and newer workers). The document is not kept. */
int cluster_add_profile(struct cluster *cluster, const json_t *document, struct err *err);
/* A link document {"from","to","latency_s","bytes_per_s","emulated","origin"} between nodes, one direction;
 * "origin" (measured, imported, estimated) is measured unless said otherwise. Missing
 * directions take the other one's values; missing pairs the defaults below. */
int cluster_add_link(struct cluster *cluster, const json_t *document, struct err *err);
/* Defaults for pairs on the same node and on different nodes; otherwise 20 µs, 1 GB/s and 200 µs, 110 MB/s.
 */
int cluster_set_defaults(struct cluster *cluster, double within_latency_s, double within_bytes_per_s,
                         double between_latency_s, double between_bytes_per_s, struct err *err);
/* The node's network card: what all its links to other nodes share. */
int cluster_set_nic(struct cluster *cluster, const char *node, double bytes_per_s, struct err *err);

/* A cluster file (INTERFACES.md, "A cluster file"). Returns new, or NULL with the path of what is wrong. */
struct cluster *cluster_from_json(const json_t *document, struct err *err);

/* Devices added so far; their names, borrowed until the cluster ends (NULL out of range); is one measured? */
uint32_t cluster_device_count(const struct cluster *cluster);
const char *cluster_device_name(const struct cluster *cluster, uint32_t index); /* borrowed */
bool cluster_device_has_profile(const struct cluster *cluster, uint32_t index);

/* The built-in catalogue: {"devices":
 * [{"name","memory_bytes","flops_fp32","flops_16","memory_bytes_per_s","origin", "uncertainty"}…]}. Returns
 * new, or NULL with ERR_NOMEM. */
json_t *cluster_catalogue(struct err *err);

#endif
