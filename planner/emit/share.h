/* Division of a sharded state among the members of a group, for short transfers or for a short optimiser
 * step, within the members' memory. For planner/emit and planner/kind only; pure. */
#ifndef MOTLEY_PLANNER_EMIT_SHARE_H
#define MOTLEY_PLANNER_EMIT_SHARE_H

#include <stdbool.h>
#include <stdint.h>

/* A member of a group, in the order of the group's ring. */
struct share_member {
    double room;        /* share of the state that fits in its memory, ≥ 0; 1: all of it */
    double bytes_per_s; /* rate of its link in the ring, the slower of in (weights) and out (gradients); may
                           be INFINITY */
    double step_s;
};
enum share_aim {
    SHARE_FOR_LINKS, /* minimises max_i (1 − r_i)/β_i; the remaining freedom is used to make shares even */
    SHARE_FOR_STEP,  /* minimises max_i r_i·step_i */
    /* the same, with the ring's time limited to a quarter, half, three quarters of the way from the first
     * aim's to the second's */
    SHARE_NEAR_LINKS,
    SHARE_HALF_WAY,
    SHARE_NEAR_STEP,
    SHARE_AIMS
};
/* Writes shares that sum to 1, none above its room. Returns false if the rooms together are too small. */
bool share_state(const struct share_member *members, uint32_t count, enum share_aim aim, double *shares);
/* The least max_i (1 − r_i)/β_i without limits of room, in seconds per byte: no shares make the ring
 * faster. */
double share_level_least(const struct share_member *members, uint32_t count);

#endif
