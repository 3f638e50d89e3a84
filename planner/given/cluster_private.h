/* The cluster's members, for planner/given, cost and emit. All other files use cluster.h. */
#ifndef MOTLEY_PLANNER_GIVEN_CLUSTER_PRIVATE_H
#define MOTLEY_PLANNER_GIVEN_CLUSTER_PRIVATE_H

#include "planner/given/cluster.h"
#include "planner/given/cluster_index.h"
#include "planner/given/taught.h"

/* One measured point of one block kind. */
struct profile_point {
    double rows, tokens, labelled, sum_sq;
    double forward_s, backward_s, recompute_s;
};

/* Block kinds of a profile. A layer with experts is also measured in parts, one expert among them; attention
 * and FFN also with a share of their heads and columns (docs/CONTRACTS.md, Profile document). */
enum profile_block {
    PROFILE_EMBEDDING,
    PROFILE_LAYER,
    PROFILE_HEAD,
    PROFILE_ATTENTION,
    PROFILE_FFN,
    PROFILE_ROUTER,
    PROFILE_EXPERT,
    PROFILE_ATTENTION_CUT,
    PROFILE_FFN_CUT,
    PROFILE_BLOCKS
};

struct device_profile {
    bool present;
    enum cost_origin origin;
    int compute; /* enum workload_compute of the measured products; −1: the profile does not say */
    uint32_t point_count[PROFILE_BLOCKS];
    struct profile_point *points[PROFILE_BLOCKS];
    double step_s[PROFILE_BLOCKS];    /* seconds of an optimiser step for one block of the kind */
    double cut_share[PROFILE_BLOCKS]; /* share of the heads or columns that a cut half had; 0: not measured */
    uint64_t process_base_bytes;
    double heat;            /* the device's φ at the time of measuring, which the tables therefore contain */
    double waited_share;    /* share of the measuring time for which the threads had no CPU; 0: unknown */
    double spread;          /* by how much repeats of the same work differed, 0.1: by a tenth; 0: unknown */
    double wire_s_per_byte; /* CPU seconds in which the node sends a byte and receives another; 0: unknown */
    double catalogue_ratio; /* measured rate divided by the catalogue's; 0: not compared */
    /* bytes of one block of each kind, as the device's allocator counts them; 0: unknown */
    uint64_t weights_bytes[PROFILE_BLOCKS], adapter_bytes[PROFILE_BLOCKS], optimizer_bytes[PROFILE_BLOCKS];
};

struct planner_device {
    char *name, *kind;
    uint32_t node;
    uint64_t memory_limit_bytes; /* bytes that plans may allocate: base_bytes is already subtracted */
    uint64_t base_bytes;         /* bytes that a worker takes for itself */
    uint32_t threads;
    double speed, heat, price_per_hour, watts, idle_watts;
    const struct catalogue_entry *like; /* catalogue entry that estimates come from; NULL: none was given */
    struct device_profile profile;
    char *lacks; /* why no plan may use the device (cluster_leave_out); NULL: nothing is wrong with it */
    uint32_t taught_count;
    struct taught_run *taught; /* [taught_count] runs whose first rank was on the device */
};

struct link_pair { /* one direction of a link between nodes; duplex_bytes_per_s may be 0: as bytes_per_s */
    uint32_t from, to;
    struct cluster_link link;
};

struct node {
    char *name;
    double nic_bytes_per_s; /* rate of the node's network card; 0: it does not limit */
};

struct cluster {
    bool runnable_only; /* devices that no worker of this release runs on are left out (plan_best sets it) */
    size_t device_capacity, node_capacity, link_capacity;
    uint32_t device_count;
    struct planner_device *devices;
    uint32_t node_count;
    struct node *nodes;
    uint32_t link_count;
    struct link_pair *links; /* links in the order in which they were added */
    struct cluster_index device_index, node_index, link_index;
    bool some_unreachable; /* some direction of a link is unreachable */
    /* what is assumed of links within and between nodes; estimated until cluster_set_defaults */
    struct cluster_link within, between;
};

/* Adds one direction of a link between nodes, or replaces it. ERR_NOMEM. */
int cluster_put_link(struct cluster *cluster, const struct link_pair *pair, struct err *err);
/* Returns the document of a link (cluster_add_link), new, or NULL with ERR_NOMEM. */
json_t *cluster_link_json(const struct cluster *cluster, const struct link_pair *pair, struct err *err);
/* Returns what cluster_add_device was told of a device; its texts are borrowed. */
struct cluster_device cluster_device_at(const struct cluster *cluster, uint32_t device);

#endif
