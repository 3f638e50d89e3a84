/* Declarations that pipeline.c (plan, memory, slots), pipeline_program.c (instructions) and pipeline_state.c
 * (groups and shards) share. */
#ifndef MOTLEY_PLANNER_EMIT_PIPELINE_PRIVATE_H
#define MOTLEY_PLANNER_EMIT_PIPELINE_PRIVATE_H

#include "planner/emit/frame.h"
#include "planner/schedule/schedule.h"

/* Boundary buffers of a stage: two for tensors that arrive, two for tensors that leave. */
enum boundary { ACT_IN, GRAD_OUT, ACT_OUT, GRAD_IN, BOUNDARIES };

/* The dependencies of a slot's ring of buffers. An instruction that writes to the ring waits until its buffer
 * was freed, and until at most `held` − 1 buffers of the ring are in use. */
struct ring_track {
    /* by_instance: the instruction that freed each buffer last; by_turn: the instructions of the last `held`
     * frees, in turn; both have room for [micro_batches] */
    int32_t *by_instance, *by_turn;
    uint32_t ring, held, taken, given;
};

/* One stage of the rank whose programs are made. */
struct rank_stage {
    int32_t slot[BOUNDARIES], saved; /* slot numbers; PLAN_NONE: there is no such slot */
    uint64_t saved_bytes, saved_total;
    struct schedule_rings rings;
    struct ring_track track[BOUNDARIES];
    /* [micro_batches]: the RECV of each micro-batch's activations, and of its gradients; PLAN_NONE: not added
     * yet */
    int32_t *received[2];
};

/* A range of blocks whose weights are all-gathered before a step and whose gradients are reduce-scattered
 * after it (sharded state, or a trained tied embedding). gathered, whole: the slots of gathered weights and
 * of unreduced gradients; PLAN_NONE: none. */
struct state_exchange {
    int32_t group, begin, end, gathered, whole;
};

/* Buffers of blocks that are gathered one by one: a ring for layers, and one buffer for embedding or head. */
enum { RING_LAYERS, RING_EDGE, RINGS };

/* A ring of buffers for blocks [begin, end), of which block b uses number (b - begin) mod places.
 * gathered, whole: the slots of gathered weights and of unreduced gradients. freed: [2][places] the
 * instructions that freed each buffer of weights, and of gradients, last. */
struct state_ring {
    int32_t begin, end, gathered, whole;
    uint32_t places;
    uint64_t bytes; /* bytes of one buffer, for weights or for gradients */
    int32_t *freed;
};

struct pipeline_emitter {
    const struct problem *problem;
    const struct candidate *candidate;
    struct plan *plan;
    struct err *err;
    struct arena arena; /* the arrays below */
    enum emit_programs programs;
    uint32_t stages, micro_batches;
    uint32_t groups; /* number of groups of members; they are groups 1 to `groups` of the plan */
    bool full;       /* full fine-tuning */
    bool grouped;    /* some stage has several members */
    bool shards;     /* members shard the trained state of their stage */
    bool gathers; /* members gather the weights of one range of blocks after another (interleaved groups) */
    /* Group of a trained tied embedding: the ranks of the first stage that keep it and those of the last that
     * copy it; or PLAN_NONE. */
    int32_t table_group;
    /* If members keep whole state: the group that all-reduces the embedding table's gradients. PLAN_NONE:
     * they are reduce-scattered over table_group. */
    int32_t table_sum;
    int32_t layer_groups; /* first of the groups of two stages that share a layer, in the order of stages */
    /* Linked lists of each rank's stages: first_stage[rank], then next_stage[stage]; the value `stages` ends
     * a list. */
    uint32_t *first_stage, *next_stage;
    struct schedule schedule;
    /* The members below are for the rank whose programs are made. */
    struct rank_stage *parts; /* [stages]: the rank's stages, indexed by their numbers */
    struct state_exchange
        exchange[2]; /* [0]: tied embedding; [1]: all blocks of the stage, if they are gathered at once */
    struct state_ring
        rings[RINGS]; /* buffers of blocks that are gathered one by one; places is 0 if there are none */
    int32_t *freed;   /* the allocation that holds the `freed` lists of both rings */
    /* slot numbers; base: the rank's shard of the blocks that are gathered one by one */
    int32_t scalars, norm, barrier, values, base, gradients, cache, token;
    /* [ranks]: next index into the schedule's events */
    uint32_t *cursor;
    int32_t *numbers; /* the allocation that holds the tracks' arrays and received[] of one rank's stages */
};

static inline uint32_t owner_of(const struct pipeline_emitter *c, uint32_t stage, uint32_t k)
{
    return c->schedule.owner[(size_t)stage * c->micro_batches + k];
}

/* Returns the first stage of rank r. */
static inline const struct candidate_stage *stage_of(const struct pipeline_emitter *c, uint32_t r)
{
    return &c->candidate->stages[c->first_stage[r]];
}

/* Whether rank r gathers the weights of its blocks one by one. */
static inline bool rank_gathers(const struct pipeline_emitter *c, uint32_t r)
{
    return c->gathers && stage_of(c, r)->member_count > 1;
}

/* --- pipeline_program.c --- */

/* Returns the length of pipeline_emitter.numbers for a rank with that many stages. */
size_t pipeline_numbers(const struct pipeline_emitter *c, uint32_t stages);
/* Makes the programs of rank r, whose slots exist. ERR_NOMEM, ERR_TOO_BIG. */
int pipeline_programs(struct pipeline_emitter *c, uint32_t r);

/* --- pipeline_state.c --- */

/* True if each member of a stage keeps all of its trained state. */
bool state_whole(const struct problem *problem, const struct candidate *candidate);
/* Returns which area of a stage's blocks its members shard: the trained one, or with LoRA the frozen one. */
enum memory_outside state_outside(const struct problem *problem, const struct candidate *candidate,
                                  uint32_t stage);
/* Computes number and size of the buffers for blocks that a member of a stage gathers one by one (not their
 * slots or freed lists). Returns the bytes of all buffers. */
uint64_t state_rings(const struct problem *problem, const struct candidate *candidate, uint32_t stage,
                     struct state_ring rings[RINGS]);
/* True if the embedding of the first stage is also used, and trained, by the last stage. */
bool state_table_apart(const struct problem *problem, const struct candidate *candidate);
/* Makes all groups but group 0, and sets table_group. ERR_NOMEM. */
int state_groups(struct pipeline_emitter *c);
/* Divides a stage's state in proportion to room[member_count], the bytes that its members have left
 * without it, and enters the shares in the group. ERR_NOFIT if there is too little room; ERR_NOMEM. */
int state_share_out(struct pipeline_emitter *c, uint32_t stage, const double *room);
/* Fills the shares of a tied embedding's group; call it after state_share_out of all stages. ERR_NOMEM. */
int state_table_shares(struct pipeline_emitter *c);
/* Returns the group of the layer that stages s and s + 1 share; PLAN_NONE: they share none. */
int32_t state_layer_group(const struct pipeline_emitter *c, int32_t s);
/* Returns the share of its stage's state that rank r keeps. */
double state_share_of(const struct pipeline_emitter *c, uint32_t r);
struct flat_share state_part_of(const struct pipeline_emitter *c, uint32_t r);
/* Determines which blocks a rank gathers and reduces, and makes the slots for weights, gradients and moments.
 * ERR_NOMEM. */
int state_slots(struct pipeline_emitter *c, uint32_t r, const struct memory_need *need);
/* Adds the gathers before a step's first forward. came[2] become the instructions that this forward waits
 * for; *gave becomes, on a rank that only sends its values, the instruction that STEP waits for. */
void state_fetch(const struct pipeline_emitter *c, struct program_builder *b, int32_t came[2], int32_t *gave);
/* Adds the RELEASE of gathered weights to the compute queue. */
void state_release(const struct pipeline_emitter *c, struct program_builder *b, const int32_t came[2]);
/* Add, block by block for a stage: the gathers, the RELEASEs, and the reductions of gradients once `after` is
 * done. Return the last instruction, or PLAN_NONE. */
int32_t state_ring_fetch(struct pipeline_emitter *c, struct program_builder *b, uint32_t stage);
void state_ring_release(struct pipeline_emitter *c, struct program_builder *b, uint32_t stage, int32_t came);
int32_t state_ring_reduce(struct pipeline_emitter *c, struct program_builder *b, uint32_t stage,
                          int32_t after);
/* Returns the length of pipeline_emitter.freed: the number of buffers of all rings, for weights and for
 * gradients. */
size_t state_freed_count(const struct pipeline_emitter *c);
/* Returns the instruction after which all buffers for a stage's unreduced gradients are free. */
int32_t state_ring_room(struct pipeline_emitter *c, uint32_t stage);
/* Adds the reduction of rank r's gradients once after[2] are done, and replaces after[2] by the instructions
 * that the norm waits for. */
void state_reduce(const struct pipeline_emitter *c, struct program_builder *b, uint32_t r, int32_t after[2]);

#endif
