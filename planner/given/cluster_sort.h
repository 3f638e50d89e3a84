/* A cluster's devices in an order that their names and the order in which they were given do not decide: what
 * is searched in it does not depend on either. Pure. */
#ifndef MOTLEY_PLANNER_GIVEN_CLUSTER_SORT_H
#define MOTLEY_PLANNER_GIVEN_CLUSTER_SORT_H

#include "planner/given/cluster.h"
#include "planner/given/cluster_private.h"

/* The cluster in that order: machines by what is in them and how they are linked, devices of one together, by
 * what they are. Everything but the lists is borrowed, so the cluster must outlive it. listed[i]
 * (device_count) gets where the i-th device is. NULL with ERR_NOMEM; cluster_sorted_destroy. */
struct cluster *cluster_sorted(const struct cluster *cluster, uint32_t *listed, struct err *err);
void cluster_sorted_destroy(struct cluster *sorted);

#endif
