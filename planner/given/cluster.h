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

#include "common/doc.h"
#include "planner/given/catalogue.h"

#define CLUSTER_DEVICES_MAX 10000u
#define CLUSTER_NODES_MAX 10000u
#define CLUSTER_POINTS_MAX 4096u /* most points in one profile document */

struct cluster;

/* The speeds that a device may have. */
#define CLUSTER_SPEED_MIN 1e-6
#define CLUSTER_SPEED_MAX 1e6

struct cluster_device {
    const char *name; /* unique name, as "left/cpu0" */
    const char *node; /* name of the device's node, as "left" */
    const char *kind; /* kind of device: "cpu", "cuda" …; NULL: "cpu" */
    /* Catalogue entry that supplies estimates while there is no profile; NULL: chosen by kind. */
    const char *like;
    uint64_t memory_limit_bytes;
    uint64_t base_bytes; /* part of memory_limit_bytes that a worker takes for itself and plans cannot use; 0:
                            none */
    uint32_t threads;    /* threads that compute; 0 means 1 */
    double speed;        /* scales the cost tables: 2 halves the times; 0 means 1 */
    double heat;         /* φ of PLANNER.md: moving ratio of table time to measured time, (0,1]; 0 means 1 */
    double price_per_hour; /* price in any currency; 0: unknown */
    double watts;          /* power while computing; 0: unknown */
    double idle_watts;     /* power of a device of the plan while it does not compute; 0: not counted */
    const json_t *taught;  /* runs that correct forecasts (planner/given/taught.h); NULL: none */
};

/* Returns a new cluster (cluster_destroy), or NULL with ERR_NOMEM. */
struct cluster *cluster_create(struct err *err);
void cluster_destroy(struct cluster *cluster);

/* Adds a device; its strings are copied. ERR_INVALID, ERR_CONFLICT for a name that is taken, ERR_TOO_BIG. */
int cluster_add_device(struct cluster *cluster, const struct cluster_device *device, struct err *err);
/* Adds a profile document (docs/CONTRACTS.md) to the device that it names, which must have been added. A
 * later profile of the same device replaces an earlier one. Unknown keys are ignored, so older and newer
 * workers can be read. The document is not kept. */
int cluster_add_profile(struct cluster *cluster, const json_t *document, struct err *err);
/* Keeps a device of the cluster out of every plan. Answers list it as left out with this reason. */
int cluster_leave_out(struct cluster *cluster, const char *device, const char *why, struct err *err);
/* Adds one direction of a link between nodes: {"from","to","latency_s","bytes_per_s",
 * "duplex_bytes_per_s","emulated","unreachable","origin"}.
 * "origin" (measured, imported, estimated) defaults to measured. A missing direction takes the values of
 * the other direction; a missing pair takes the defaults below. `unreachable`: no connection can be opened
 * this way, and the direction counts as missing; a pair without a way is used by no plan. */
int cluster_add_link(struct cluster *cluster, const json_t *document, struct err *err);
/* Sets the defaults for pairs of devices on the same node and on different nodes. Without this call they
 * are 20 µs and 1 GB/s, and 200 µs and 110 MB/s. */
int cluster_set_defaults(struct cluster *cluster, double within_latency_s, double within_bytes_per_s,
                         double between_latency_s, double between_bytes_per_s, struct err *err);
/* Sets the rate of the node's network card, which all its links to other nodes share. */
int cluster_set_nic(struct cluster *cluster, const char *node, double bytes_per_s, struct err *err);

/* Reads a cluster file (INTERFACES.md, "A cluster file"). Returns a new cluster, or NULL with the path of
 * the mistake. */
struct cluster *cluster_from_json(const json_t *document, struct err *err);

/* Return the numbers of devices and nodes added so far. */
uint32_t cluster_device_count(const struct cluster *cluster);
uint32_t cluster_node_count(const struct cluster *cluster);
/* Returns a device's name, borrowed until the cluster ends; NULL out of range. */
const char *cluster_device_name(const struct cluster *cluster, uint32_t index);
bool cluster_device_has_profile(const struct cluster *cluster, uint32_t index);
/* Returns the name of the device's node, borrowed until the cluster ends; "" out of range. */
const char *cluster_device_node(const struct cluster *cluster, uint32_t index);

/* Returns the index of a node by name, or UINT32_MAX. */
uint32_t cluster_node_find(const struct cluster *cluster, const char *name);
/* True if a link in the direction from one node to the other was added. */
bool cluster_link_known(const struct cluster *cluster, uint32_t from_node, uint32_t to_node);
/* Returns the index of a device by name, or UINT32_MAX. */
uint32_t cluster_device_find(const struct cluster *cluster, const char *name);

/* One direction of a link between two nodes, or between the devices of one. */
struct cluster_link {
    double latency_s, bytes_per_s;
    /* Rate while the other direction is in use, too: less than bytes_per_s where the hosts' CPUs, not the
     * wire, bound it. */
    double duplex_bytes_per_s;
    bool emulated;
    bool unreachable;        /* no connection can be opened this way; of cluster_link(): neither way */
    enum cost_origin origin; /* of latency and rates */
};
/* Whether neither node can open connections to the other, as far as links say. */
bool cluster_apart(const struct cluster *cluster, uint32_t from_node, uint32_t to_node);
/* Returns the link from one device to another; both nodes' network cards limit its rates. */
struct cluster_link cluster_link(const struct cluster *cluster, uint32_t from_device, uint32_t to_device);

/* The members of a device, but for names and memory, as documents state them. */
extern const struct doc cluster_device_doc;

#endif
