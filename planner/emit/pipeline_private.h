/* Shared by pipeline.c (plan, memory, slots), pipeline_program.c (instructions) and pipeline_state.c
 * (groups and shards) only. */
#ifndef MOTLEY_PLANNER_EMIT_PIPELINE_PRIVATE_H
#define MOTLEY_PLANNER_EMIT_PIPELINE_PRIVATE_H

#include "planner/emit/frame.h"
#include "planner/schedule/schedule.h"

/* Boundary buffers of a stage: two for tensors that arrive, two for tensors that leave. */
enum boundary { ACT_IN, GRAD_OUT, ACT_OUT, GRAD_IN, BOUNDARIES };

/* The dependencies of a ring of buffers. The next user waits for the previous user of its instance, and
 * for the micro-batch that came `held` turns earlier. */
struct ring_track {
    int32_t *by_instance, *by_turn; /* [micro_batches]: instructions that end the use */
    uint32_t ring, held, taken, given;
};

/* One stage of the rank whose programs are made. */
struct rank_stage {
    int32_t slot[BOUNDARIES], saved; /* slot numbers; PLAN_NONE: there is no such slot */
    uint64_t saved_bytes, saved_total;
    struct schedule_rings rings;
    struct ring_track track[BOUNDARIES];
    /* [micro_batches]: the instruction that received the activations, and the gradients; PLAN_NONE: not
     * yet */
    int32_t *received[2];
};

/* A range of blocks that is gathered before a step and scattered after it (shards, or a trained tied
 * embedding), with its slots; PLAN_NONE: there are none. */
struct state_exchange {
    int32_t group, begin, end, gathered, whole;
};

struct pipeline_emitter {
    const struct problem *problem;
    const struct candidate *candidate;
    struct plan *plan;
    struct err *err;
    uint32_t stages, micro_batches;
    bool full;    /* full fine-tuning */
    bool grouped; /* some stage has several members */
    bool shards;  /* members shard the state of their stage */
    /* Group of a trained tied embedding: the ranks that keep or copy it; or PLAN_NONE. */
    int32_t table_group;
    /* replicas: group of the ranks with gradients of the table; PLAN_NONE: these are scattered over
     * table_group */
    int32_t table_sum;
    /* [ranks], [stages]: lists of each rank's stages, ended by the value `stages` */
    uint32_t *first_stage, *next_stage;
    struct schedule schedule;
    /* The members below are for the rank whose programs are made. */
    struct rank_stage *parts;          /* [stages] */
    struct state_exchange exchange[2]; /* [0]: tied embedding; [1]: the stage's blocks */
    int32_t scalars, norm, barrier, values, gradients, cache, token; /* slot numbers */
    /* [ranks]: next index into the schedule's events */
    uint32_t *cursor;
    int32_t *numbers; /* memory of tracks and received[] for the stages of one rank */
};

static inline uint32_t owner_of(const struct pipeline_emitter *c, uint32_t stage, uint32_t k)
{
    return c->schedule.owner[(size_t)stage * c->micro_batches + k];
}

/* The first stage of rank r. */
static inline const struct candidate_stage *stage_of(const struct pipeline_emitter *c, uint32_t r)
{
    return &c->candidate->stages[c->first_stage[r]];
}

/* --- pipeline_program.c --- */

/* How many numbers a rank with that many stages needs. */
size_t pipeline_numbers(const struct pipeline_emitter *c, uint32_t stages);
/* Makes the programs of rank r, whose slots exist. ERR_NOMEM, ERR_TOO_BIG. */
int pipeline_programs(struct pipeline_emitter *c, uint32_t r);

/* --- pipeline_state.c --- */

/* True if each member of a stage keeps all of its state. */
bool state_whole(const struct problem *problem, const struct candidate *candidate);
/* True if the embedding of the first stage is also used, and trained, by the last stage. */
bool state_table_apart(const struct problem *problem, const struct candidate *candidate);
/* Makes all groups but group 0, and sets table_group. ERR_NOMEM. */
int state_groups(struct pipeline_emitter *c);
/* Divides a stage's state in proportion to room[member_count], the bytes that its members have left
 * without it, and enters the shares in the group. ERR_NOFIT if there is too little room; ERR_NOMEM. */
int state_share_out(struct pipeline_emitter *c, uint32_t stage, const double *room);
/* Fills the shares of a tied embedding's group; call it after state_share_out of all stages. ERR_NOMEM. */
int state_table_shares(struct pipeline_emitter *c);
/* The share of its stage's state that rank r keeps. */
double state_share_of(const struct pipeline_emitter *c, uint32_t r);
/* Determines what a rank exchanges and makes the slots of its state. kept_bytes: size of values and
 * gradients. ERR_NOMEM. */
int state_slots(struct pipeline_emitter *c, uint32_t r, uint64_t kept_bytes);
/* Emits the gathers. The first forward waits for came[2]; *gave is what the step waits for, on a rank that
 * only sends. */
void state_fetch(const struct pipeline_emitter *c, struct program_builder *b, int32_t came[2], int32_t *gave);
/* Emits the release of gathered weights, after all that the compute queue has so far. */
void state_release(const struct pipeline_emitter *c, struct program_builder *b, const int32_t came[2]);
/* Emits the reduction of rank r's gradients once `after` is done. Returns the instruction that the norm
 * waits for. */
int32_t state_reduce(const struct pipeline_emitter *c, struct program_builder *b, uint32_t r, int32_t after);

#endif
