/* A canonical order of a cluster's devices. It depends neither on names nor on the order in which devices
 * were added, so searches that follow it do not either. Pure. */
#ifndef MOTLEY_PLANNER_GIVEN_CLUSTER_SORT_H
#define MOTLEY_PLANNER_GIVEN_CLUSTER_SORT_H

#include "planner/given/cluster.h"
#include "planner/given/cluster_private.h"

/* Returns the cluster with its devices in canonical order: nodes are ordered by their devices and links,
 * and the devices of one node stand together. listed[i] (device_count) receives the new index of the i-th
 * device. The result is a copy (cluster_destroy); NULL with ERR_NOMEM. */
struct cluster *cluster_sorted(const struct cluster *cluster, uint32_t *listed, struct err *err);

#endif
