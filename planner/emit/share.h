/* Divides sharded weights and optimiser state among the members of a group, for short transfers or for a
 * short optimiser step, within the members' memory. For planner/emit and planner/kind only; pure. */
#ifndef MOTLEY_PLANNER_EMIT_SHARE_H
#define MOTLEY_PLANNER_EMIT_SHARE_H

#include <stdbool.h>
#include <stdint.h>

/* A member of a group, in the order of the group's ring. */
struct share_member {
    double room;        /* share of the state that fits in the member's memory, ≥ 0; 1: all of it */
    double bytes_per_s; /* rate of the member's link in the ring, the slower of in (weights) and out
                           (gradients); may be INFINITY */
    double step_s;
};
enum share_aim {
    SHARE_FOR_LINKS, /* minimises the ring's time max_i (1 − r_i)/β_i (r: share, β: rate); of all shares
                        that do, the most even */
    SHARE_FOR_STEP,  /* minimises the slowest member's optimiser step, max_i r_i·step_i */
    /* SHARE_FOR_STEP with the ring's time limited to a value between the times of SHARE_FOR_LINKS and
     * SHARE_FOR_STEP: a quarter, half, or three quarters of the way */
    SHARE_NEAR_LINKS,
    SHARE_HALF_WAY,
    SHARE_NEAR_STEP,
    SHARE_AIMS
};
/* Writes shares that sum to 1, each at most the member's `room`. Returns false if the rooms sum to less than
 * 1. */
bool share_state(const struct share_member *members, uint32_t count, enum share_aim aim, double *shares);
/* Returns the least possible max_i (1 − r_i)/β_i if memory is unlimited, in seconds per byte: no shares make
 * the ring faster. */
double share_level_least(const struct share_member *members, uint32_t count);

#endif
