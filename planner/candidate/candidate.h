/* A candidate: one way of placing a job, of any placement. Which devices form which stage, who takes how much
 * of the work, and what each keeps. Every field means the same whatever the kind of the stage; a kind that
 * does not use a field leaves it zero.
 *
 * Stages are ranges of blocks in the order of the blocks. A stage's members are consecutive; members of
 * different stages are different devices, but for interleaved pipelines, where several stages share one
 * member.
 *
 * A candidate owns its arrays (candidate_fini). Pure; one thread at a time.
 */
#ifndef MOTLEY_PLANNER_CANDIDATE_CANDIDATE_H
#define MOTLEY_PLANNER_CANDIDATE_CANDIDATE_H

#include "planner/cost/problem.h"
#include "program/program.h"

/* How a stage's members divide its work. */
enum stage_kind {
    STAGE_REPLICAS, /* each keeps the stage's blocks and takes some of the micro-batches */
    STAGE_SHARDED,  /* likewise, but weights and state are in shards and gathered block by block */
    STAGE_SERVER,   /* the first keeps all state, the others pull weights and push gradients */
    STAGE_TENSOR,   /* each keeps a part of every matrix and works on every micro-batch */
    STAGE_EXPERT,   /* attention on some, experts on others */
    STAGE_KINDS
};

struct member {      /* one rank of the plan */
    uint32_t device; /* of the cluster */
    uint32_t rows;   /* of each micro-batch that it works on */
    uint32_t count;  /* micro-batches that it works on in a step; 0: list scheduling decides */
    uint32_t window; /* most micro-batches between their forward and their backward on it, ≥ 1 */
    uint32_t delay;  /* SCHEDULE_SPLIT: micro-batches by which BACKWARD_WEIGHT comes later; expert: by which
                        its experts run behind its attention */
    bool recompute;  /* activations are computed again for the backward */
    double state_share;  /* of the stage's trained state that it keeps (LoRA in shards: of the frozen base) */
    double expert_share; /* of every layer's experts */
    struct plan_tensor tensor; /* part of every matrix that it keeps; all zero: whole matrices */
};

struct stage {
    int32_t block_begin, block_end;
    uint32_t kind; /* enum stage_kind */
    uint32_t member_first, member_count;
};

struct candidate {
    enum plan_placement placement;
    enum plan_schedule schedule;
    bool eager; /* ranks take what has arrived, backwards first; else in the strict order of their
                   schedule (one forward, one backward in turn once the window is full) */
    uint32_t micro_batch_rows; /* of the largest micro-batch */
    uint32_t gathered_layers;  /* STAGE_SHARDED and STAGE_SERVER: layers whose weights a member has places for
                                  at a  time; 0: every member keeps all weights */
    bool whole; /* pipelines of groups, full fine-tuning: each member keeps all of its stage's state, and
                   gradients are summed over them; else they keep shards of it (LoRA: always whole) */
    uint32_t together; /* STAGE_TENSOR: micro-batches worked on in turns, so that the sums of one travel
                          while the next computes; 0: 1 */
    uint32_t stage_count, member_count;
    struct stage *stages;
    struct member *members;
    uint32_t owner_count; /* stage_count · micro-batches, or 0 */
    uint8_t *owner;    /* [stage][micro-batch]: which of its stage's members, from 0, works on it; NULL: list
                          scheduling decides */
    double estimate_s; /* the estimator's seconds of a mean step; INFINITY: it does not fit */
    uint32_t stage_capacity, member_capacity, owner_capacity;
};

/* An empty candidate is all zeros. Makes room for so many stages and members; what was there stays.
 * ERR_NOMEM. */
int candidate_reserve(struct candidate *candidate, uint32_t stages, uint32_t members, struct err *err);
/* Deep copy into *to, whose arrays are used again. ERR_NOMEM. */
int candidate_copy(struct candidate *to, const struct candidate *from, struct err *err);
void candidate_fini(struct candidate *candidate);
/* Makes room for the owners of that many micro-batches, all 0. ERR_NOMEM. */
int candidate_own(struct candidate *candidate, uint32_t micro_batches, struct err *err);

/* Does it use that device of the cluster? */
bool candidate_uses(const struct candidate *candidate, uint32_t device);
/* Has it the order of instructions that the workload asks of plans of several stages? A window of all
 * micro-batches on every rank makes 1F1B GPipe. */
bool candidate_has_order(const struct problem *problem, const struct candidate *candidate);
/* Equal in everything that decides a plan. */
bool candidate_equal(const struct candidate *a, const struct candidate *b);
/* Equal for equal candidates; estimates do not count. */
uint64_t candidate_hash(const struct candidate *candidate);
/* Micro-batches of a step: of one stage whose members have counts, their sum; else batch rows over
 * micro-batch rows, rounded up. */
uint32_t candidate_micro_batches(const struct problem *problem, const struct candidate *candidate);
/* Ranks times micro-batches times how much longer its programs are than a pipeline's: what simulating it
 * takes. */
uint64_t candidate_cells(const struct problem *problem, const struct candidate *candidate);

/* The best candidates seen, different in their estimates or in themselves, rising by estimate. */
#define CANDIDATES_MAX 24u
struct candidate_list {
    uint32_t count;
    struct candidate items[CANDIDATES_MAX];
};
/* Adds a copy if it is among the best; what is there already is not added again. ERR_NOMEM. */
int candidate_list_add(struct candidate_list *list, const struct candidate *candidate, struct err *err);
void candidate_list_fini(struct candidate_list *list);

/* What the candidate that came nearest to fitting lacks. */
struct shortage {
    uint64_t missing_bytes;          /* on all its ranks together; 0: nothing was noted */
    uint64_t needs_bytes, has_bytes; /* of the one device that lacks something, or of all of them together */
    uint32_t device;                 /* of the cluster; UINT32_MAX: several */
};
/* Notes it if it is the least so far. */
void shortage_note(struct shortage *shortage, uint32_t device, uint64_t needs, uint64_t has);

#endif
