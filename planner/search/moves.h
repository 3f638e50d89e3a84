/* The neighbourhood of a candidate: the single changes ("moves") that local search tries. A move is applied
 * to a copy of the candidate. Its level says what must follow: after a change of devices the blocks must be
 * divided over the stages anew, after a change of blocks or sizes settle() must fill in the rest, after a
 * change of what settle() fills in ("inner" move) nothing. For planner/search only; pure. */
#ifndef MOTLEY_PLANNER_SEARCH_MOVES_H
#define MOTLEY_PLANNER_SEARCH_MOVES_H

#include "planner/kind/kind.h"

enum move_kind {
    /* moves that change which devices are in which stage */
    MOVE_SWAP,    /* members a and b exchange their devices */
    MOVE_REPLACE, /* an unused device b replaces the device of member a */
    MOVE_DROP,    /* member a is removed */
    MOVE_ADD,     /* unused device a becomes a member of stage b */
    MOVE_REGROUP, /* member a goes to stage b */
    MOVE_ORDER,   /* stages a and b change places with all their members */
    /* moves that change blocks or sizes */
    MOVE_BLOCKS, /* stage a gives a block, stage b receives one; the stages between them shift */
    MOVE_MICRO,  /* another size of micro-batches */
    MOVE_GATHER, /* another number of gathered layers */
    /* inner moves, which change what settle() fills in */
    MOVE_WINDOW,    /* b: 0 one micro-batch more in flight in stage a, 1 one less */
    MOVE_RECOMPUTE, /* member a recomputes activations; b: 0 no, 1 yes */
    MOVE_OWNER,     /* micro-batch a goes to member b of its stage */
    MOVE_ROWS,      /* member a gives member b rows */
    MOVE_PARTS,     /* member a's rows are cut into more (b = 0) or fewer (1) micro-batches */
    MOVE_PLACE,     /* members a and b of one stage exchange positions, with their rows and shares */
    MOVE_SHARE,     /* member a gives member b a part of its state, experts or matrices */
    MOVE_SCHEDULE,  /* another order of forwards and backwards */
    MOVE_DELAY,     /* member.delay of member a; b: 0 one micro-batch more, 1 one less */
    MOVE_TOGETHER,  /* candidate.together; b: 0 one micro-batch at a time, 1 two in turns */
    MOVE_KINDS
};

/* A move; the row of its kind in moves.c says what a and b are. */
struct move {
    enum move_kind kind;
    uint32_t a, b;
};

enum move_level { MOVE_VOID, MOVE_AS_IS, MOVE_SETTLE, MOVE_CUT };

/* Returns how many moves of a kind there are: a move's a is below the result's a, and its b below the
 * result's b. */
struct move move_range(const struct problem *problem, const struct placement_kind *kind,
                       const struct candidate *candidate, enum move_kind kind_of_move);
/* Changes *candidate and returns the move's level. MOVE_VOID: the move does not apply, and the candidate
 * may be inconsistent. −1: ERR_NOMEM. */
int move_apply(const struct problem *problem, const struct placement_kind *kind, struct candidate *candidate,
               struct move move, struct err *err);

/* Appends a stage with the given devices; the caller divides the blocks later. ERR_NOMEM. */
int move_append(struct candidate *candidate, const struct placement_kind *kind, const uint32_t *devices,
                uint32_t count, struct err *err);
/* True if the placement, the model and the job allow the candidate's numbers of stages and members. */
bool move_shape_allowed(const struct problem *problem, const struct placement_kind *kind,
                        const struct candidate *candidate);

#endif
