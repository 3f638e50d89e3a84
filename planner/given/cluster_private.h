/* The cluster's inside, for this room only. */
#ifndef MOTLEY_PLANNER_GIVEN_CLUSTER_PRIVATE_H
#define MOTLEY_PLANNER_GIVEN_CLUSTER_PRIVATE_H

#include "planner/given/cluster.h"
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
    /* bytes a block of that kind takes, as the device's allocator counts them; 0: not said */
    uint64_t weights_bytes[PROFILE_BLOCKS], adapter_bytes[PROFILE_BLOCKS], optimizer_bytes[PROFILE_BLOCKS];
};

/* An entry of the catalogue: rates of a device that nobody here has measured. */
struct catalogue_entry {
    const char *name, *kind;
    uint64_t memory_bytes;
    double flops_fp32, flops_16; /* peak of dense matrix products, FLOP/s */
    bool bf16;                   /* the 16-bit rate is of bfloat16 too; else of float16 alone */
    double memory_bytes_per_s;
    double efficiency, efficiency_16; /* of either peak that training reaches */
    double board_watts;               /* the most that its maker says it draws; 0: not known */
    double uncertainty;               /* relative, of a time estimated from these */
    enum cost_origin origin;          /* of the efficiencies: imported where others measured them */
    const char *source;
};
/* By its name, or by what drivers call it ("NVIDIA GeForce RTX 3090", "Tesla V100-SXM2-32GB"). NULL: not
 * there. */
const struct catalogue_entry *catalogue_find(const char *name);
/* The entry that is spelt most like the name, for an error's text. */
const char *catalogue_near(const char *name);
/* Of a card's memory, what a plan may fill where nobody says more: PLANNER.md's usable = (1 - eta)(total) -
 * context, with eta 0.08 until something is measured, for what an allocator cannot hand out, and half a GB
 * for the driver's context (rule of thumb). Of a CPU all that it says. */
uint64_t catalogue_usable(const struct catalogue_entry *entry);
#define CATALOGUE_RESERVE 0.08
#define CATALOGUE_CONTEXT_BYTES ((uint64_t)500000000)
/* The entry of a kind with the highest peak; NULL for a kind that has none. */
const struct catalogue_entry *catalogue_fastest(const char *kind);
/* The one with the lowest. */
const struct catalogue_entry *catalogue_slowest(const char *kind);
/* The higher of its two peaks, FLOP/s (of a CPU: one thread's). */
double catalogue_peak(const struct catalogue_entry *entry);

struct device {
    char *name, *kind;
    uint32_t node;
    uint64_t memory_limit_bytes;
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
