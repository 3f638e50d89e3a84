/* Moves (moves.h) that mean the same whatever a choice's shape: what the neighbourhoods of pipelines and
 * groups, laps, shards and experts have in common. For this room only.
 *
 * All return 1 when *choice is another one now, 0 when the move does not apply. */
#ifndef MOTLEY_PLANNER_SEARCH_PLAIN_MOVES_H
#define MOTLEY_PLANNER_SEARCH_PLAIN_MOVES_H

#include "planner/search/placement.h"

/* Whether a member keeps or recomputes activations; `member` = member_count: all of them. */
int plain_recompute(const struct problem *problem, struct place_choice *choice, uint32_t member, bool on);
/* Two members' devices change places; (a, b) and (b, a) are one move, the first of them. */
int plain_swap(struct place_choice *choice, uint32_t a, uint32_t b);
/* A member moves to a device that nobody uses. */
int plain_replace(const struct problem *problem, struct place_choice *choice, uint32_t member,
                  uint32_t device);
/* The ends of stages [first, last] move by `step` blocks; 0 when one would be empty. The choice may be spoilt
 * then. */
int plain_cut(struct place_choice *choice, uint32_t first, uint32_t last, int step);

#endif
