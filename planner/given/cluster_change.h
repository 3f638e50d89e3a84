/* A cluster changed in one thing, for what-if questions. Pure. */
#ifndef MOTLEY_PLANNER_GIVEN_CLUSTER_CHANGE_H
#define MOTLEY_PLANNER_GIVEN_CLUSTER_CHANGE_H

#include "planner/given/cluster.h"
#include "planner/given/cluster_private.h"

/* A deep copy; cluster_destroy. NULL with ERR_NOMEM. */
struct cluster *cluster_copy(const struct cluster *cluster, struct err *err);
/* Adds a device like the given one, with its profile, on the same node: its links and its card are that
 * node's. Its name is the given one's and "+". ERR_TOO_BIG, ERR_NOMEM, ERR_CONFLICT. */
int cluster_add_like(struct cluster *cluster, uint32_t device, struct err *err);
/* Makes the links between two nodes `times` faster, latency too, both directions; a card that would limit
 * them becomes as much faster. */
int cluster_speed_link(struct cluster *cluster, uint32_t node_a, uint32_t node_b, double times,
                       struct err *err);

#endif
