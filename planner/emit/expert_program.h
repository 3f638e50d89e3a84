/* The instruction lists of expert plans (attention and experts on different ranks), for expert.c. */
#ifndef MOTLEY_PLANNER_EMIT_EXPERT_PROGRAM_H
#define MOTLEY_PLANNER_EMIT_EXPERT_PROGRAM_H

#include "planner/emit/expert_split.h"

enum {
    EXPERT_GROUP_ALL,
    EXPERT_GROUP_TO,        /* all ranks: transfers from ranks with attention to ranks with experts */
    EXPERT_GROUP_FROM,      /* all ranks: transfers back from ranks with experts */
    EXPERT_GROUP_ATTENTION, /* the ranks with attention, if several: they all-reduce gradients of attention's
                               parameters */
    EXPERT_GROUP_SAMPLE_TO, /* if several ranks have attention: the first of them and all ranks with
                               experts, which sample one row at a time */
    EXPERT_GROUP_SAMPLE_FROM,
    EXPERT_GROUP_COUNT
};

struct expert_segment { /* a layer with experts, or a range of other blocks */
    int32_t begin, end;
    bool sparse;
    int stream, gradient; /* which of the two slots holds the segment's input in the forward, and the gradient
                             of that input in the backward */
};

/* Slot numbers of one rank; PLAN_NONE: the rank has no such slot. */
struct expert_slots {
    /* slots of ranks with attention */
    int32_t stream[2], gradient[2], routed, saved, saved_attention, saved_router;
    int32_t routed_in, routed_out, back_in, back_out, saved_experts; /* slots of ranks with experts */
    int32_t gradients, expert_gradients, scalars, norm, barrier, cache, token;
};

enum { LAST_CHAIN, LAST_TO, LAST_FROM, LAST_EXPERTS, EXPERT_LASTS };

struct expert_plan {
    const struct problem *problem;
    const struct candidate *candidate;
    struct plan *plan;
    struct expert_model model;
    struct expert_split split;
    struct arena arena; /* the arrays below */
    uint32_t micro_batches, wave, attending, segment_count;
    struct expert_segment *segments;
    uint32_t *row_first; /* [members + 1] first row of each member whose attention it computes */
    /* [micro_batches · EXPERT_LASTS] the last instructions so far of each micro-batch, in the program of the
     * rank that is being emitted */
    int32_t *last;
    struct err *err;
};

/* Makes the programs of a rank, whose slots exist. ERR_NOMEM, ERR_TOO_BIG. */
int expert_programs(struct expert_plan *emit, uint32_t rank, const struct expert_slots *slots);

#endif
