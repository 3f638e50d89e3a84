/* Which shard of the state each member of a group keeps: what links and the optimiser's step take, within the
 * room there is. For planner/emit and planner/kind only; pure. */
#ifndef MOTLEY_PLANNER_EMIT_SHARE_H
#define MOTLEY_PLANNER_EMIT_SHARE_H

#include <stdbool.h>
#include <stdint.h>

/* A group in its ring's order: what each can keep, how fast its link of the ring is (the slower of the two,
 * where weights come in and gradients go out), what the optimiser takes for all of the state. */
struct share_member {
    double room;        /* of the state that fits, 0..; 1: all of it */
    double bytes_per_s; /* of the links that matter; may be INFINITY */
    double step_s;
};
enum share_aim {
    SHARE_FOR_LINKS, /* least max_i (1 − r_i)/β_i, what is left spread evenly */
    SHARE_FOR_STEP,  /* least max_i r_i·step_i */
    /* the same, with the ring's time a quarter, half, three quarters of the way from the first to the second
     */
    SHARE_NEAR_LINKS,
    SHARE_HALF_WAY,
    SHARE_NEAR_STEP,
    SHARE_AIMS
};
/* Shares that sum to 1, none beyond its room. Returns false when the rooms together do not hold the state. */
bool share_state(const struct share_member *members, uint32_t count, enum share_aim aim, double *shares);
/* Least max_i (1 − r_i)/β_i when room is no matter, seconds a byte: no share makes a ring faster. */
double share_level_least(const struct share_member *members, uint32_t count);

#endif
