/* The instruction lists of plans with experts apart, for expert.c. */
#ifndef MOTLEY_PLANNER_EMIT_EXPERT_PROGRAM_H
#define MOTLEY_PLANNER_EMIT_EXPERT_PROGRAM_H

#include "planner/emit/expert_split.h"

enum {
    EXPERT_GROUP_ALL,
    EXPERT_GROUP_TO,        /* all ranks: towards the experts */
    EXPERT_GROUP_FROM,      /* all ranks: back from the experts */
    EXPERT_GROUP_ATTENTION, /* the ranks with attention, if several: they all-reduce its gradients */
    EXPERT_GROUP_SAMPLE_TO, /* then also the first rank with attention and all with experts: sampling, one row
                               at a time */
    EXPERT_GROUP_SAMPLE_FROM,
    EXPERT_GROUP_COUNT
};

struct expert_segment { /* a layer with experts, or a range of other blocks */
    int32_t begin, end;
    bool sparse;
    int stream, gradient; /* which of the two slots holds its input in the forward, and its gradient in the
                             backward */
};

/* Slot numbers of one rank; PLAN_NONE where it has none. */
struct expert_slots {
    /* Of ranks with attention. */
    int32_t stream[2], gradient[2], routed, saved, saved_attention, saved_router;
    int32_t routed_in, routed_out, back_in, back_out, saved_experts; /* of ranks with experts */
    int32_t gradients, expert_gradients, scalars, norm, barrier, cache, token;
};

enum { LAST_CHAIN, LAST_TO, LAST_FROM, LAST_EXPERTS, EXPERT_LASTS };

struct expert_plan {
    const struct problem *problem;
    const struct candidate *candidate;
    struct plan *plan;
    struct expert_model model;
    struct expert_split split;
    uint32_t micro_batches, wave, attending, segment_count;
    struct expert_segment *segments;
    uint32_t *row_first; /* [members + 1] */
    /* [micro_batches · EXPERT_LASTS]: last instructions, of the rank whose program is being made */
    int32_t *last;
    struct err *err;
};

/* Makes the programs of a rank, whose slots exist. ERR_NOMEM, ERR_TOO_BIG. */
int expert_programs(struct expert_plan *emit, uint32_t rank, const struct expert_slots *slots);

#endif
