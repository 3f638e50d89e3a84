/* Micro-batches dealt to a stage's members outright, one by one, instead of by shares: what polishing changes
 * about it. For this room only; pure. */
#ifndef MOTLEY_PLANNER_HYBRID_DEAL_MOVES_H
#define MOTLEY_PLANNER_HYBRID_DEAL_MOVES_H

#include "planner/search/placement.h"

#define DEALT_CELLS 512u /* stages · micro-batches up to which they are */

/* Writes into a hybrid who takes which micro-batch as its shares have it. Returns 1 when it is said from now
 * on, 0 where that is not to be (too many, a member without any, another placement), −1 with ERR_NOMEM. */
int deal_fix(const struct problem *problem, struct place_choice *choice, struct err *err);
/* Members a and b of the choice, of one stage, have changed places: each keeps what it was dealt, if anything
 * was. */
void deal_rename(struct place_choice *choice, uint32_t stage, uint32_t a, uint32_t b);
/* A member, one of several of its stage, is about to go: those left take its micro-batches, whoever has
 * fewest first. Nothing where nothing was dealt; so below. */
void deal_leave(struct place_choice *choice, uint32_t stage, uint32_t member);
/* A stage has one more member, its last: it takes a micro-batch from whoever has most. */
void deal_join(struct place_choice *choice, uint32_t stage);
/* By shares again, in whatever order. */
void deal_drop(struct place_choice *choice);
/* Writes into a hybrid of which it is said who takes which micro-batch in which order everybody works, as it
 * is. Returns 1 when it is said from now on, 0 where it cannot be, −1 with ERR_NOMEM. */
int deal_order_fix(const struct problem *problem, struct place_choice *choice, struct err *err);
/* As it comes again. */
void deal_order_drop(struct place_choice *choice);
/* Two events of a rank change places: a: the earlier, among all ranks'; b: how far the other is behind, less
 * one. Whether the order still holds, only running it tells. */
void deal_order_range(const struct place_choice *choice, uint32_t *a_count, uint32_t *b_count);
int deal_order_move(struct place_choice *choice, uint32_t a, uint32_t b);

/* Where the order is said, too: */

/* Where a stage's member, from 0, has its events in the order, and how many micro-batches it takes. */
uint32_t deal_order_find(const struct place_choice *choice, uint32_t stage, uint32_t member);
uint32_t deal_taken(const struct place_choice *choice, uint32_t stage, uint32_t member);
/* A micro-batch of a stage goes to another member, who works on it in its turn among its own; where its
 * forward and backward come between theirs is left to `place`, any number. False when the one who has it has
 * no other. */
bool deal_hand_over(struct place_choice *choice, uint32_t stage, uint32_t k, uint32_t to, uint32_t place);
/* Members a and b of a stage, from 0, change places with all that is theirs, events included. */
void deal_trade(struct place_choice *choice, uint32_t stage, uint32_t a, uint32_t b);

/* a: stage · micro-batches + micro-batch; b: one of the stage's members that takes it, or, from the most
 * members of a stage on, a later micro-batch that changes places with it. */
void deal_move_range(const struct place_choice *choice, uint32_t *a_count, uint32_t *b_count);
/* 1: another dealing now, in which everybody still has something. */
int deal_move(struct place_choice *choice, uint32_t a, uint32_t b);

/* In how many ways a stage's micro-batches can be dealt, members without any included; UINT32_MAX: so many or
 * more, or nobody says who takes which. */
uint32_t deal_ways(const struct place_choice *choice, uint32_t stage);
/* Deals a stage in one of them; false when a member has none then. */
bool deal_way(struct place_choice *choice, uint32_t stage, uint32_t way);

/* What of a hybrid member's share and window makes a difference: choices alike in both for all members, and
 * in who is dealt what, run alike. */
void deal_alike(const struct place_choice *choice, uint32_t member, uint32_t stage, uint32_t *share,
                uint32_t *window);

#endif
