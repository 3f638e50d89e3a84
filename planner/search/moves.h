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
    MOVE_SWAP,    /* two members exchange their devices */
    MOVE_REPLACE, /* an unused device takes the place of a member's */
    MOVE_DROP,    /* a member is removed */
    MOVE_ADD,     /* an unused device becomes a member */
    MOVE_REGROUP, /* a member changes its stage */
    MOVE_ORDER,   /* two stages are exchanged with all their members */
    /* cuts and sizes */
    MOVE_BLOCKS, /* stage a gives a block, stage b receives one; the stages between them shift */
    MOVE_MICRO,  /* another size of micro-batches */
    MOVE_GATHER, /* another number of gathered layers */
    /* inner */
    MOVE_WINDOW,    /* b: 0 one micro-batch more in flight, 1 one less */
    MOVE_RECOMPUTE, /* b: 0 off, 1 on */
    MOVE_OWNER,     /* another member of its stage takes a micro-batch */
    MOVE_ROWS,      /* a member gives another one rows */
    MOVE_PARTS,     /* a member's rows are cut into more (b = 0) or fewer (1) micro-batches */
    MOVE_PLACE,     /* two members of one stage exchange positions, with all they have */
    MOVE_SHARE,     /* a member gives another one a part of its state, experts or matrices */
    MOVE_SCHEDULE,  /* another order of work */
    MOVE_DELAY,     /* b: 0 one micro-batch later, 1 one earlier */
    MOVE_TOGETHER,  /* b: 0 one micro-batch at a time, 1 two in turns */
    MOVE_KINDS
};

/* A move; the row of its kind in moves.c says what a and b are. */
struct move {
    enum move_kind kind;
    uint32_t a, b;
};

enum move_level { MOVE_VOID, MOVE_AS_IS, MOVE_SETTLE, MOVE_CUT };

/* How many moves of a kind there are: a of a move is below the result's a, and b below its b. */
struct move move_range(const struct problem *problem, const struct placement_kind *kind,
                       const struct candidate *candidate, enum move_kind kind_of_move);
/* Changes *candidate and returns the move's level. MOVE_VOID: the move does not apply, and the candidate
 * may be inconsistent. −1: ERR_NOMEM. */
int move_apply(const struct problem *problem, const struct placement_kind *kind, struct candidate *candidate,
               struct move move, struct err *err);

/* Appends a stage with the devices; its blocks are cut later. ERR_NOMEM. */
int move_append(struct candidate *candidate, const struct placement_kind *kind, const uint32_t *devices,
                uint32_t count, struct err *err);
/* True if the candidate's shape is one that the kind, the model and the job allow. */
bool move_shape_allowed(const struct problem *problem, const struct placement_kind *kind,
                        const struct candidate *candidate);

#endif
