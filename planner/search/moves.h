/* What can be changed about a choice: the neighbourhoods of polish.c. For this room only.
 *
 * A move changes a copy; whether the result fits memory and is faster, only emitting and simulating tells. */
#ifndef MOTLEY_PLANNER_SEARCH_MOVES_H
#define MOTLEY_PLANNER_SEARCH_MOVES_H

#include "planner/search/placement.h"

enum move_kind {
    MOVE_CUT,       /* a: first cut, b: last cut · 2 + direction: a block from one stage to another */
    MOVE_WINDOW,    /* a: stage, or the stage count for all; b: up, down; groups: or to b − 1 */
    MOVE_DELAY,     /* a: member whose BACKWARD_WEIGHTs come later or earlier; b: up or down; pipelines whose
                       backwards are whole: split from now on */
    MOVE_RECOMPUTE, /* a: member, or the member count for all, b: off or on */
    MOVE_ORDER,     /* a, b: members of one group that change places with all that is theirs: who is dealt to
                       first */
    MOVE_ROWS,      /* a: member that gives, b: member that takes: a micro-batch (groups) or rows (data) */
    MOVE_SWAP,      /* a, b: members whose devices change places */
    MOVE_REPLACE,   /* a: member, b: device that is not used */
    MOVE_DROP,      /* a: member; b: what becomes of its blocks or rows: to the one before or after; what was
                       dealt stays so, as far as can be, here and where a member is replaced, added, or moved */
    MOVE_ADD,       /* a: device that is not used, b: place */
    MOVE_MICRO,     /* a: rows of a micro-batch (of all, or of member b) */
    MOVE_REGROUP,   /* a: member, b: stage it goes to, or the stage count and more: a stage of its own; data:
                       its place among the others; pipelines: a: ranges a rank from now on (lap_moves.h) */
    MOVE_STAGES,    /* a, b: stages whose members change places, and all between */
    MOVE_DEAL,      /* where it is said who takes which micro-batch: deal_moves.h */
    MOVE_TURN,      /* where it is said in which order everybody works: likewise */
    MOVE_KINDS
};

/* How many values a and b take for a choice: moves are (a, b) in [0, *a_count) × [0, *b_count). */
void move_range(const struct problem *problem, const struct place_choice *choice, enum move_kind kind,
                uint32_t *a_count, uint32_t *b_count);

/* Changes *choice (whose arrays may be reallocated). Returns 1 when it is another choice now, 0 when the move
 * does not apply (the choice may be spoilt: throw the copy away), −1 with ERR_NOMEM. */
int move_apply(const struct problem *problem, struct place_choice *choice, enum move_kind kind, uint32_t a,
               uint32_t b, struct err *err);

/* Deals a hybrid's micro-batches anew to the members of each stage, by their speed. */
void move_shares(const struct problem *problem, struct place_choice *choice);

/* Does polishing know this choice's shape? */
bool move_knows(const struct place_choice *choice);

#endif
