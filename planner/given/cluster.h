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

#include "planner/given/catalogue.h"

#define CLUSTER_DEVICES_MAX 10000u
#define CLUSTER_NODES_MAX 10000u
#define CLUSTER_POINTS_MAX 4096u /* points of one profile document */

struct cluster;

struct cluster_device {
    const char *name; /* "left/cpu0"; unique */
    const char *node; /* "left" */
    const char *kind; /* "cpu", "cuda" …; NULL: "cpu" */
    const char *like; /* catalogue entry to estimate from while there is no profile; NULL: by kind */
    uint64_t memory_limit_bytes;
    uint64_t base_bytes; /* of those, what a worker's device takes for itself: plans have the rest; 0: none */
    uint32_t threads;    /* 0: 1 */
    double speed;        /* scales the tables: 2 halves the times; 0: 1 */
    double heat;         /* φ of PLANNER.md, moving ratio of table time to measured time, (0,1]; 0: 1 */
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
uint32_t cluster_node_count(const struct cluster *cluster);
const char *cluster_device_name(const struct cluster *cluster, uint32_t index); /* borrowed */
bool cluster_device_has_profile(const struct cluster *cluster, uint32_t index);
/* Its node's name, borrowed likewise; "" out of range. */
const char *cluster_device_node(const struct cluster *cluster, uint32_t index);

/* Index of a node by name, or UINT32_MAX. */
uint32_t cluster_node_find(const struct cluster *cluster, const char *name);
/* Was a link of that direction added? */
bool cluster_link_known(const struct cluster *cluster, uint32_t from_node, uint32_t to_node);
/* Index of a device by name, or UINT32_MAX. */
uint32_t cluster_device_find(const struct cluster *cluster, const char *name);

/* Latency (s), rate (bytes/s, the two NICs' caps included) from one device to another. */
void cluster_link(const struct cluster *cluster, uint32_t from_device, uint32_t to_device, double *latency_s,
                  double *bytes_per_s, bool *emulated);
/* Where those come from. */
enum cost_origin cluster_link_origin(const struct cluster *cluster, uint32_t from_device, uint32_t to_device);

struct json_reader;
/* Reads what a device may say of itself, each within its bounds: like, kind, threads, speed, heat, prices.
 * The reader keeps its failure. */
void cluster_device_members(struct json_reader *reader, struct cluster_device *device);

#endif
