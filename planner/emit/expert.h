/* Plans with attention and experts apart (or on the same ranks), in zebra order: expert.c has groups, memory
 * and slots, expert_program.c the instruction lists, expert_split.c who holds which expert.
 *
 * In a candidate of this kind every member's rows are those of each micro-batch whose attention it computes
 * (0: none; they follow each other in member order, those with any first, and sum to micro_batch_rows), and
 * expert_share is its part of every layer's experts (0: none; they sum to 1). One stage; window:
 * micro-batches of a wave, which go through all layers forward and back before the next wave starts; delay:
 * micro-batches that a rank's experts run behind its attention, 0: it finishes a layer before it starts the
 * next.
 *
 * For planner/emit and planner/kind/expert.c. */
#ifndef MOTLEY_PLANNER_EMIT_EXPERT_H
#define MOTLEY_PLANNER_EMIT_EXPERT_H

#include "planner/candidate/candidate.h"
#include "planner/cost/expert_price.h"

/* Which rank holds which expert of which sparse layer. */
struct expert_split {
    uint32_t experts, sparse_count, member_count;
    uint16_t *owner;             /* [sparse_count · experts]: member */
    struct expert_layer *layers; /* [member_count · sparse_count] */
};
/* Whole experts from shares: each layer's are dealt out longest-first (by the tokens they get) to whoever is
 * furthest below its share, and what a member is short of or beyond it is carried to the next layer. Shares
 * that are multiples of 1/experts give the same experts in every layer. `share` as in workload.h, NULL: even.
 * ERR_NOMEM. */
int expert_split_init(struct expert_split *split, const struct expert_model *model, const double *share,
                      const struct member *members, uint32_t member_count, struct err *err);
void expert_split_fini(struct expert_split *split);
/* What a member needs with its experts and its rows. */
void expert_member_need(const struct problem *problem, const struct expert_model *model,
                        const struct candidate *candidate, const struct expert_split *split, uint32_t member,
                        struct expert_need *need);

/* As struct kind's emit. */
struct plan *expert_emit(const struct problem *problem, const struct candidate *candidate, bool programs,
                         struct err *err);

/* --- while a plan is made --- */

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

struct expert_emit {
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

int expert_programs(struct expert_emit *emit, uint32_t rank, const struct expert_slots *slots);

#endif
