/* A candidate is one way to place a job, whatever the placement: which devices form which stage, how much
 * of the work each member takes, and what each keeps in memory. Every field has one meaning for all kinds
 * of stages; a kind that does not use a field leaves it zero.
 *
 * A stage is a range of blocks; stages are in the order of the blocks. A stage's members are consecutive.
 * Members of different stages are different devices, except in interleaved pipelines, where several stages
 * share one member.
 *
 * A candidate owns its arrays (candidate_fini). Pure; one thread at a time.
 */
#ifndef MOTLEY_PLANNER_CANDIDATE_CANDIDATE_H
#define MOTLEY_PLANNER_CANDIDATE_CANDIDATE_H

#include "planner/cost/problem.h"
#include "program/program.h"

/* How the members of a stage divide its work. */
/* Which programs a candidate's plan gets. EMIT_TRAIN: at least that of training, which is all that a price
 * needs. */
enum emit_programs { EMIT_NO_PROGRAMS, EMIT_PROGRAMS, EMIT_TRAIN };

enum stage_kind {
    STAGE_REPLICAS, /* each member has all blocks of the stage and works on some of the micro-batches */
    STAGE_SHARDED,  /* as STAGE_REPLICAS, but weights and optimiser state are sharded over the members, and
                       weights are gathered block by block */
    STAGE_SERVER,   /* the first member is the parameter server; the others pull weights and push gradients */
    STAGE_TENSOR,   /* each member keeps a part of every matrix and works on every micro-batch */
    STAGE_EXPERT,   /* some members compute attention, others hold experts */
    STAGE_KINDS
};

struct member {      /* one rank of the plan */
    uint32_t device; /* index in the cluster */
    uint32_t rows;   /* rows of each micro-batch that the member works on */
    uint32_t count;  /* micro-batches that the member works on in a step; 0: list scheduling decides */
    uint32_t window; /* most micro-batches between their forward and their backward on the member, ≥ 1 */
    uint32_t delay;  /* SCHEDULE_SPLIT: micro-batches by which BACKWARD_WEIGHT comes later; STAGE_EXPERT:
                        micro-batches by which the member's experts run behind its attention */
    /* pipelines of one member a stage: micro-batches for which the member also runs the next stage's first
     * block, a layer that both stages have (candidate_runs_next); 0: none */
    uint32_t next_count;
    bool recompute;            /* activations are recomputed for the backward */
    int32_t recompute_end;     /* chains: with recompute, blocks from this one on are not recomputed; 0: all
                                  blocks are recomputed */
    double state_share;        /* share of the stage's trained state (sharded LoRA: of the frozen base) */
    double expert_share;       /* share of every layer's experts */
    struct plan_tensor tensor; /* the member's part of every matrix; all zero: it has whole matrices */
};

/* Returns the end of the blocks that a member recomputes. */
static inline int32_t member_again_end(const struct member *member)
{
    return !member->recompute ? 0 : member->recompute_end ? member->recompute_end : INT32_MAX;
}

struct candidate_stage {
    int32_t block_begin, block_end;
    uint32_t kind; /* enum stage_kind */
    uint32_t member_first, member_count;
};

struct candidate {
    enum plan_placement placement;
    enum plan_schedule schedule;
    bool eager; /* a rank runs whatever has arrived, backwards first; false: the strict order of the schedule
                   (one forward, one backward in turn, once the window is full) */
    uint32_t micro_batch_rows; /* rows of the largest micro-batch */
    uint32_t gathered_layers;  /* STAGE_SHARDED, STAGE_SERVER and interleaved groups: layers whose weights a
                                  member can hold at a time; 0: every member keeps all weights */
    bool whole; /* full fine-tuning of pipelines of groups: each member keeps all of its stage's state, and
                   gradients are summed over the members; false: state is sharded. LoRA: the adapters are
                   always whole, and the base is sharded if there are gathered_layers */
    uint32_t together; /* STAGE_TENSOR: micro-batches worked on in turns, so that the all-reduce of one
                          overlaps the computing of the next; 0 means 1 */
    uint32_t stage_count, member_count;
    struct candidate_stage *stages;
    struct member *members;
    uint32_t owner_count; /* number of entries of `owner`: stage_count · micro-batches, or 0 */
    uint8_t *owner; /* [stage][micro-batch]: index within the stage of the member that works on it; NULL: list
                       scheduling decides */
    double estimate_s; /* estimated seconds of a mean step; INFINITY: the candidate does not fit in memory */
    uint32_t stage_capacity, member_capacity, owner_capacity;
};

/* Makes room for that many stages and members and keeps those that the candidate has. An empty candidate is
 * all zeros. ERR_NOMEM. */
int candidate_reserve(struct candidate *candidate, uint32_t stages, uint32_t members, struct err *err);
/* Copies *from deeply into *to, whose arrays are reused. ERR_NOMEM. */
int candidate_copy(struct candidate *to, const struct candidate *from, struct err *err);
void candidate_fini(struct candidate *candidate);
/* Allocates candidate->owner for that many micro-batches and sets all entries to 0. ERR_NOMEM. */
int candidate_own(struct candidate *candidate, uint32_t micro_batches, struct err *err);

/* True if a member of the candidate is on that device of the cluster. */
bool candidate_uses(const struct candidate *candidate, uint32_t device);
/* Gives every member micro-batches of the candidate's rows, one in flight, and the whole state. */
void candidate_members_reset(struct candidate *candidate, bool recompute);
/* True if the candidate has the schedule that the workload asks for from plans of several stages. GPipe is
 * 1F1B whose windows are all micro-batches. */
bool candidate_has_order(const struct problem *problem, const struct candidate *candidate);
/* True if stage s runs the next stage's first block for micro-batch k of `count`. It does so for next_count
 * micro-batches, evenly spread over the step. */
bool candidate_runs_next(const struct candidate *candidate, uint32_t s, uint32_t k, uint32_t count);
/* Returns the number of groups of members: the number of stages, except in interleaved pipelines, where stage
 * s has the members of stage s - groups. */
uint32_t candidate_groups(const struct candidate *candidate);
/* Returns how many ranges of blocks each member has: several in interleaved pipelines. */
uint32_t candidate_laps(const struct candidate *candidate);
/* True if the members of some stage are groups that gather their blocks' weights range by range. */
bool candidate_gathers(const struct candidate *candidate);
/* Returns the end of the blocks that a stage has. */
int32_t candidate_stage_end(const struct candidate *candidate, uint32_t s);
/* Returns the next_count of stage s; 0 for stages of several members, and for s of -1. */
uint32_t candidate_next_count(const struct candidate *candidate, int32_t s);
/* True if both candidates are equal in everything that decides a plan. */
bool candidate_equal(const struct candidate *a, const struct candidate *b);
/* Returns a hash that is equal for equal candidates. Estimates do not influence it. */
uint64_t candidate_hash(const struct candidate *candidate);
/* Returns the number of micro-batches of a step. For one stage whose members have counts it is the sum of the
 * counts; otherwise it is batch rows over micro-batch rows, rounded up. */
uint32_t candidate_micro_batches(const struct problem *problem, const struct candidate *candidate);
/* Returns a measure of the work of simulating the candidate: ranks × micro-batches × (length of the
 * candidate's programs relative to a pipeline's). */
uint64_t candidate_cells(const struct problem *problem, const struct candidate *candidate);

/* The best candidates seen so far, sorted by estimate; no two are equal. */
#define CANDIDATES_MAX 24u
struct candidate_list {
    uint32_t count;
    struct candidate items[CANDIDATES_MAX];
};
/* Adds a copy of the candidate if it is among the best and not in the list yet. ERR_NOMEM. */
int candidate_list_add(struct candidate_list *list, const struct candidate *candidate, struct err *err);
void candidate_list_fini(struct candidate_list *list);

/* The memory that the candidate which came closest to fitting lacks. */
struct shortage {
    uint64_t missing_bytes; /* bytes missing on all ranks together; 0: nothing was recorded */
    /* If one device lacks memory, the bytes that it needs and has; if several do, the sums over these
     * devices. */
    uint64_t needs_bytes, has_bytes;
    uint32_t device; /* the device that lacks memory, by its index in the cluster; UINT32_MAX: several
                        devices lack memory */
};
/* Records a candidate's shortage if it is the smallest so far. */
void shortage_note(struct shortage *shortage, uint32_t device, uint64_t needs, uint64_t has);

#endif
