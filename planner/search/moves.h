/* The neighbourhood of a candidate: typed moves. For planner/search only; pure.
 *
 * A move changes a copy. What must be done with it afterwards is the move's level: a change of which devices
 * stand where asks for the blocks to be cut anew, a change of cuts or sizes for settling, an inner one for
 * nothing. */
#ifndef MOTLEY_PLANNER_SEARCH_MOVES_H
#define MOTLEY_PLANNER_SEARCH_MOVES_H

#include "planner/kind/kind.h"

enum move_kind {
    /* structure */
    MOVE_SWAP,    /* a, b: members whose devices change places */
    MOVE_REPLACE, /* a: member; b: device that is not used */
    MOVE_DROP,    /* a: member */
    MOVE_ADD,     /* a: device that is not used; b: stage that it joins, or stage_count + place of its own */
    MOVE_REGROUP, /* a: member; b: as of MOVE_ADD */
    MOVE_ORDER,   /* a, b: stages that change places with all their members */
    /* cuts and sizes */
    MOVE_BLOCKS, /* a: stage that gives, b: stage that takes a block; those between are shifted */
    MOVE_MICRO,  /* b: 0 the next larger, 1 the next smaller size of micro-batches, 2 one row more, 3 one less
                  */
    MOVE_GATHER, /* b: 0 twice, 1 half as many gathered layers; 2 none */
    /* inner */
    MOVE_WINDOW,    /* a: stage, or stage_count + the last of those from the head on; b: 0 up, 1 down */
    MOVE_RECOMPUTE, /* a: member, or member_count for all; b: 0 off, 1 on */
    MOVE_OWNER, /* a: stage · micro-batches + micro-batch; b: member of the stage, from 0, that takes it */
    MOVE_ROWS,  /* member a gives member b % members (b / members = 0) a row, (1) a micro-batch */
    MOVE_PARTS, /* a: member whose rows are cut into (b = 0) more or (1) fewer micro-batches */
    MOVE_PLACE, /* a, b: members of one stage that change places, with all they have */
    MOVE_SHARE, /* member a gives member b % members a part of what it keeps: of state, experts, or matrices;
                   b / members: how much, or of which matrices */
    MOVE_SCHEDULE, /* a: 0 1F1B, 1 split, 2 eager or strict; 3 and more: ranges a rank, from 2 */
    MOVE_DELAY,    /* a: member; b: 0 up, 1 down */
    MOVE_TOGETHER, /* b: 0 one micro-batch at a time, 1 two in turns */
    MOVE_KINDS
};

enum move_level { MOVE_VOID, MOVE_AS_IS, MOVE_SETTLE, MOVE_CUT };

/* How many values a and b take: moves are (a, b) in [0, *a_count) × [0, *b_count). */
void move_range(const struct problem *problem, const struct kind *kind, const struct candidate *candidate,
                enum move_kind move, uint32_t *a_count, uint32_t *b_count);
/* Changes *candidate. MOVE_VOID: the move does not apply, and the candidate may be spoilt. −1: ERR_NOMEM. */
int move_apply(const struct problem *problem, const struct kind *kind, struct candidate *candidate,
               enum move_kind move, uint32_t a, uint32_t b, struct err *err);
/* The level of a kind of move. */
enum move_level move_level(enum move_kind move);

/* Appends a stage of the members' devices; blocks are cut later. ERR_NOMEM. */
int move_append(struct candidate *candidate, const struct kind *kind, const uint32_t *devices, uint32_t count,
                struct err *err);
/* Does its shape suit the kind, the model and what the job asks for? */
bool move_shape_allowed(const struct problem *problem, const struct kind *kind,
                        const struct candidate *candidate);

#endif
