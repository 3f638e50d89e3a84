/* The cluster's inside, for planner/given, cost and emit; the public functions are in cluster.h. */
#ifndef MOTLEY_PLANNER_GIVEN_CLUSTER_PRIVATE_H
#define MOTLEY_PLANNER_GIVEN_CLUSTER_PRIVATE_H

#include "planner/given/catalogue.h"
#include "planner/given/cluster_index.h"

/* One measured point of one block kind. */
struct profile_point {
    double rows, tokens, labelled, sum_sq;
    double forward_s, backward_s, recompute_s;
};

/* Of a layer with experts also its parts, one expert among them (docs/CONTRACTS.md, Profile document). */
enum profile_block {
    PROFILE_EMBEDDING,
    PROFILE_LAYER,
    PROFILE_HEAD,
    PROFILE_ATTENTION,
    PROFILE_FFN,
    PROFILE_ROUTER,
    PROFILE_EXPERT,
    PROFILE_BLOCKS
};

struct profile {
    bool present;
    enum cost_origin origin;
    uint32_t point_count[PROFILE_BLOCKS];
    struct profile_point *points[PROFILE_BLOCKS];
    double step_s[PROFILE_BLOCKS]; /* of an optimiser step, a block of that kind */
    uint64_t process_base_bytes;
    double heat;            /* the device's φ while it was measured: its tables have it already */
    double catalogue_ratio; /* its rate by what the catalogue says of such a device; 0: not compared */
    /* bytes a block of that kind takes, as the device's allocator counts them; 0: not said */
    uint64_t weights_bytes[PROFILE_BLOCKS], adapter_bytes[PROFILE_BLOCKS], optimizer_bytes[PROFILE_BLOCKS];
};

struct device {
    char *name, *kind;
    uint32_t node;
    uint64_t memory_limit_bytes; /* for what plans allocate: */
    uint64_t base_bytes;         /* this is taken off already */
    uint32_t threads;
    double speed, heat, price_per_hour, watts, idle_watts;
    const struct catalogue_entry *like; /* NULL: none given */
    struct profile profile;
};

struct link_pair { /* directed, between nodes */
    uint32_t from, to;
    double latency_s, bytes_per_s;
    bool emulated;
    enum cost_origin origin;
};

struct node {
    char *name;
    double nic_bytes_per_s; /* 0: not limiting */
};

struct cluster {
    uint32_t device_count, device_capacity;
    struct device *devices;
    uint32_t node_count, node_capacity;
    struct node *nodes;
    uint32_t link_count, link_capacity;
    struct link_pair *links; /* as they were added */
    struct cluster_index device_index, node_index, link_index;
    double within_latency_s, within_bytes_per_s, between_latency_s, between_bytes_per_s;
    enum cost_origin within_origin, between_origin; /* of these: estimated until somebody says otherwise */
};

#endif
