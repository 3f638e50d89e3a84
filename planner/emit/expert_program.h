/* The instruction lists of plans with attention and experts apart, for expert.c. */
#ifndef MOTLEY_PLANNER_EMIT_EXPERT_PROGRAM_H
#define MOTLEY_PLANNER_EMIT_EXPERT_PROGRAM_H

#include "planner/emit/expert_split.h"

enum {
    EXPERT_GROUP_ALL,
    EXPERT_GROUP_TO,        /* all: towards the experts */
    EXPERT_GROUP_FROM,      /* all: back from them */
    EXPERT_GROUP_ATTENTION, /* several ranks with attention: they sum its gradients */
    EXPERT_GROUP_SAMPLE_TO, /* then also the first of them and the experts, for one row at a time */
    EXPERT_GROUP_SAMPLE_FROM,
    EXPERT_GROUP_COUNT
};

struct expert_segment { /* a layer with experts, or a stretch of other blocks */
    int32_t begin, end;
    bool sparse;
    int stream, gradient; /* which of the two slots holds what enters it, forward and backward */
};

/* Slot numbers of one rank; PLAN_NONE where it has none. */
struct expert_slots {
    int32_t stream[2], gradient[2], routed, saved, saved_attention, saved_router; /* attention */
    int32_t routed_in, routed_out, back_in, back_out, saved_experts;              /* experts */
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
    int32_t *last; /* [micro_batches · EXPERT_LASTS] instructions of the rank whose program is being made */
    struct err *err;
};

/* Fills the programs of a rank, whose slots are there. ERR_NOMEM, ERR_TOO_BIG. */
int expert_programs(struct expert_plan *emit, uint32_t rank, const struct expert_slots *slots);

#endif
