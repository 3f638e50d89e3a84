/* The neighbourhood of a candidate: typed moves. For planner/search only; pure.
 *
 * A move changes a copy. Its level says what must follow: after a change of devices the blocks must be cut
 * anew, after a change of cuts or sizes the candidate must be settled, after an inner move nothing.
 */
#ifndef MOTLEY_PLANNER_SEARCH_MOVES_H
#define MOTLEY_PLANNER_SEARCH_MOVES_H

#include "planner/kind/kind.h"

enum move_kind {
    /* structure */
    MOVE_SWAP,    /* a, b: members that exchange their devices */
    MOVE_REPLACE, /* a: member; b: unused device that replaces the member's */
    MOVE_DROP,    /* a: member that is removed */
    MOVE_ADD,     /* a: unused device; b: stage that it joins, or stage_count + position of a new stage */
    MOVE_REGROUP, /* a: member that changes stages; b: as for MOVE_ADD */
    MOVE_ORDER,   /* a, b: stages that are exchanged with all their members */
    /* cuts and sizes */
    MOVE_BLOCKS, /* a: stage that gives a block; b: stage that receives one; the stages between them shift */
    MOVE_MICRO,  /* b: size of micro-batches: 0 next larger, 1 next smaller, 2 one row more, 3 one row less */
    MOVE_GATHER, /* b: gathered layers: 0 doubled, 1 halved, 2 none */
    /* inner */
    MOVE_WINDOW,    /* a: stage, or stage_count + last stage of a range from the head; b: 0 up, 1 down */
    MOVE_RECOMPUTE, /* a: member, or member_count for all; b: 0 off, 1 on */
    MOVE_OWNER, /* a: stage · micro-batches + micro-batch; b: index within the stage of the member that takes
                   it */
    MOVE_ROWS,  /* member a gives member b % members a row (b / members = 0) or a micro-batch (1) */
    MOVE_PARTS, /* a: member whose rows are cut into more (b = 0) or fewer (1) micro-batches */
    MOVE_PLACE, /* a, b: members of one stage that exchange positions, with all they have */
    MOVE_SHARE, /* member a gives member b % members a part of its state, experts or matrices; b / members:
                   how much, or which matrices */
    MOVE_SCHEDULE, /* a: 0 1F1B, 1 split, 2 eager or strict; from 3 on: interleaved with a − 1 ranges per rank
                    */
    MOVE_DELAY,    /* a: member; b: 0 up, 1 down */
    MOVE_TOGETHER, /* b: 0 one micro-batch at a time, 1 two in turns */
    MOVE_KINDS
};

enum move_level { MOVE_VOID, MOVE_AS_IS, MOVE_SETTLE, MOVE_CUT };

/* Writes how many values a and b take: a move is (a, b) in [0, *a_count) × [0, *b_count). */
void move_range(const struct problem *problem, const struct kind *kind, const struct candidate *candidate,
                enum move_kind move, uint32_t *a_count, uint32_t *b_count);
/* Changes *candidate and returns the move's level. MOVE_VOID: the move does not apply, and the candidate
 * may be inconsistent. −1: ERR_NOMEM. */
int move_apply(const struct problem *problem, const struct kind *kind, struct candidate *candidate,
               enum move_kind move, uint32_t a, uint32_t b, struct err *err);
/* The level of a kind of move. */
enum move_level move_level(enum move_kind move);

/* Appends a stage with the devices; its blocks are cut later. ERR_NOMEM. */
int move_append(struct candidate *candidate, const struct kind *kind, const uint32_t *devices, uint32_t count,
                struct err *err);
/* True if the candidate's shape is one that the kind, the model and the job allow. */
bool move_shape_allowed(const struct problem *problem, const struct kind *kind,
                        const struct candidate *candidate);

#endif
