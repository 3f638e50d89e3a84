/* Shared by pipeline.c (plan, memory, slots), pipeline_program.c (instructions) and pipeline_state.c (groups
 * and shards); not for others. */
#ifndef MOTLEY_PLANNER_EMIT_PIPELINE_PRIVATE_H
#define MOTLEY_PLANNER_EMIT_PIPELINE_PRIVATE_H

#include "planner/emit/frame.h"
#include "planner/schedule/schedule.h"

/* Where boundary tensors of a stage wait: what came in, and what is to leave. */
enum boundary { ACT_IN, GRAD_OUT, ACT_OUT, GRAD_IN, BOUNDARIES };

/* Who must be done before the next user of a ring of buffers: whoever had the same instance, and whoever is
 * as many turns back as instances may be held at once. */
struct track {
    int32_t *by_instance, *by_turn; /* [micro_batches]: instructions */
    uint32_t ring, held, taken, given;
};

/* A stage of the rank that is being made. */
struct part {
    int32_t slot[BOUNDARIES], saved; /* PLAN_NONE: it has none */
    uint64_t saved_bytes, saved_total;
    struct schedule_rings rings;
    struct track track[BOUNDARIES];
    int32_t *received[2]; /* [micro_batches]: activations, gradients: the instruction; PLAN_NONE: not yet */
};

/* Blocks gathered before a step and scattered after it (shards; a trained tied embedding), and their places;
 * PLAN_NONE: there are none. */
struct exchange {
    int32_t group, begin, end, gathered, whole;
};

struct emitter {
    const struct problem *problem;
    const struct candidate *candidate;
    struct plan *plan;
    struct err *err;
    uint32_t stages, micro_batches;
    bool full;           /* fine-tuning */
    bool grouped;        /* a stage has several members */
    bool shards;         /* which keep shards of its state */
    int32_t table_group; /* of a trained tied embedding: who keeps it and who copies it; or
                            PLAN_NONE */
    int32_t table_sum; /* replicas: who has gradients of it; PLAN_NONE: they are scattered over table_group */
    uint32_t *first_stage, *next_stage; /* [ranks], [stages]: each rank's stages; `stages` ends them */
    struct schedule schedule;
    /* of the rank that is being made */
    struct part *parts;          /* [stages] */
    struct exchange exchange[2]; /* of a tied embedding; of the stage's blocks */
    int32_t scalars, norm, barrier, values, gradients, cache, token; /* slots */
    uint32_t *cursor;                                                /* [ranks], into the schedule's events */
    int32_t *numbers; /* of tracks and receives, for the stages of one rank */
};

static inline uint32_t owner_of(const struct emitter *c, uint32_t stage, uint32_t k)
{
    return c->schedule.owner[(size_t)stage * c->micro_batches + k];
}

/* The stage of rank r: its first, of several. */
static inline const struct stage *stage_of(const struct emitter *c, uint32_t r)
{
    return &c->candidate->stages[c->first_stage[r]];
}

/* --- pipeline_program.c --- */

/* So many numbers are needed for a rank of that many stages. */
size_t pipeline_numbers(const struct emitter *c, uint32_t stages);
/* Fills the programs of rank r, whose slots are there. ERR_NOMEM, ERR_TOO_BIG. */
int pipeline_programs(struct emitter *c, uint32_t r);

/* --- pipeline_state.c --- */

/* Does each member of a stage keep all of its state? */
bool state_whole(const struct problem *problem, const struct candidate *candidate);
/* Is the table of the first stage used, and trained, by the last? */
bool state_table_apart(const struct problem *problem, const struct candidate *candidate);
/* Fills groups but 0, and sets table_group. ERR_NOMEM. */
int state_groups(struct emitter *c);
/* Shares a stage's state out by the room[member_count] bytes that its members have left without it, into its
 * group. ERR_NOFIT when they have too little; ERR_NOMEM. */
int state_share_out(struct emitter *c, uint32_t stage, const double *room);
/* Once the stages' shares are known, fills those of a tied embedding's group. ERR_NOMEM. */
int state_table_shares(struct emitter *c);
/* Of its stage's state that rank r keeps. */
double state_share_of(const struct emitter *c, uint32_t r);
/* What a rank exchanges, and the slots of state; kept_bytes: what values and gradients take. ERR_NOMEM. */
int state_slots(struct emitter *c, uint32_t r, uint64_t kept_bytes);
/* Gathers: came[2] are what the first forward waits for, *gave what the step waits for, where the rank only
 * gives away. */
void state_fetch(const struct emitter *c, struct program_builder *b, int32_t came[2], int32_t *gave);
/* Gives the places of gathered weights up, behind what the compute queue has. */
void state_release(const struct emitter *c, struct program_builder *b, const int32_t came[2]);
/* Sums or scatters the gradients of rank r once `after` is done. Returns what the norm waits for. */
int32_t state_reduce(const struct emitter *c, struct program_builder *b, uint32_t r, int32_t after);

#endif
