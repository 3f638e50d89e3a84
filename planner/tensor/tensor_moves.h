/* Changing tensor groups: what moves.c does not do to them as to groups of replicas. For this room only;
 * pure. */
#ifndef MOTLEY_PLANNER_TENSOR_TENSOR_MOVES_H
#define MOTLEY_PLANNER_TENSOR_TENSOR_MOVES_H

#include "planner/search/moves.h"

/* What a member can give another: a key head, columns or vocabulary, much or little. After a head or much
 * vocabulary, columns are made level. */
#define TENSOR_GIFTS 5u

/* Member `from` of a group gives to `to` of the same group; a group's first to itself: the group's columns
 * are made level, gift 0 for one micro-batch at a time, 1 for several in turns; any member to itself, gift 2:
 * half of the vocabulary is its own. Returns 1, or 0 when there is nothing to give. */
int tensor_give(const struct problem *problem, struct place_choice *choice, uint32_t from, uint32_t to,
                uint32_t gift);
/* One more or one less micro-batch worked on in turns. */
int tensor_turns(const struct problem *problem, struct place_choice *choice, bool up);
/* So many in turns. Returns 1, or 0 when there are not so many or it is so already. */
int tensor_turns_to(const struct problem *problem, struct place_choice *choice, uint32_t together);
/* Micro-batches of so many rows, as many rows in turns as before, heads and vocabulary as they were, columns
 * level again. Returns 1, or 0 when that is no change. */
int tensor_micro(const struct problem *problem, struct place_choice *choice, uint32_t rows);
/* After who is where has changed: deals every stage's matrices by speed, counts micro-batches, bounds
 * windows, and moves blocks away from where they do not fit. Returns 1; 0 when that is no choice (a group too
 * large, no group left, a trained table cut in two). */
int tensor_settle(const struct problem *problem, struct place_choice *choice);
/* After who is where has changed, before that: every group of few in the order in which it sums fastest. */
void tensor_rings(const struct problem *problem, struct place_choice *choice);
/* After blocks have moved from stage to stage: every group's columns level again, and windows as wide as
 * memory has room for; where it has none, fewer micro-batches in turns, and whoever lacks most recomputes. */
int tensor_relevel(const struct problem *problem, struct place_choice *choice);

/* Deals the columns anew where the choice does not fit as it is (`level`: anyhow); `again`: and lets members
 * recompute. */
void tensor_refit(const struct problem *problem, struct place_choice *choice, bool level, bool again);

#endif
