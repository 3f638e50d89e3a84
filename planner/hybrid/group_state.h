/* Full fine-tuning in groups: a stage's state in shards among its members. For this room only; pure.
 *
 * A pipeline works on many micro-batches at a time, so its members do not gather block by block as data does:
 * a step begins with gathering all of the stage's weights and ends with scattering the sums of its gradients,
 * and each member steps its shard (Zorse's groups; ZeRO's second stage with weights kept for a step). A stage
 * of one keeps everything. A tied embedding is in shards among the members of the first stage; those of the
 * last gather it with them, keeping no shard, and their gradients of it are part of the same sum. */
#ifndef MOTLEY_PLANNER_HYBRID_GROUP_STATE_H
#define MOTLEY_PLANNER_HYBRID_GROUP_STATE_H

#include "planner/search/placement.h"

/* What a member of a stage of `members` must hold; `share`: of the stage's state, where it is in shards.
 * LoRA: replicas, share is of no matter. */
struct group_stage {
    int32_t block_begin, block_end;
    uint32_t members, window, micro_batch_rows, boundary_buffers;
    bool recompute;
};
void group_need(const struct problem *problem, const struct group_stage *stage, double share,
                struct memory_need *need);
/* Bytes of state of blocks [begin, end). */
double group_state_bytes(const struct problem *problem, int32_t begin, int32_t end);
/* Groups that a plan needs beside those of group.h. */
uint32_t group_state_groups(const struct problem *problem, const struct place_choice *choice);

/* Seconds of gathering and scattering the blocks over devices in that ring order. */
double group_state_sync(const struct problem *problem, const uint32_t *devices, uint32_t count, int32_t begin,
                        int32_t end);

/* Seconds of a choice's stage before a step's first micro-batch and after its last, as group_state_fetch and
 * group_state_reduce add them, even shards, nothing in each other's way; 0 in LoRA. */
void group_state_moves(const struct problem *problem, const struct place_choice *choice, uint32_t stage,
                       double *before_s, double *after_s);

/* Shares the stage's state out by the room[member_count] bytes that its members have left, into its group.
 * ERR_NOFIT when they have too little; ERR_NOMEM. */
int group_state_share(struct plan *plan, const struct problem *problem, const struct place_choice *choice,
                      uint32_t stage, const double *room, struct err *err);
/* The group of a tied embedding, once its stages' shares are known. ERR_NOMEM. */
int group_state_table(struct plan *plan, const struct problem *problem, const struct place_choice *choice,
                      struct err *err);

/* One rank's part while its programs are made. */
struct group_state {
    bool full, sharded, copies; /* copies: the table of another stage */
    int32_t begin, end;         /* blocks gathered over the stage's group */
    int32_t group, table_group; /* PLAN_NONE: none */
    int32_t values, gradients, gathered, whole, table, table_whole; /* slots */
};

/* Adds its slots and fills the rank's state_share; `gradients` is the rank's slot of what it steps with. Does
 * nothing but set full = false for LoRA. ERR_NOMEM. */
int group_state_init(struct group_state *state, struct plan *plan, const struct problem *problem,
                     const struct place_choice *choice, uint32_t rank, const struct memory_need *need,
                     int32_t gradients, struct err *err);
/* Gathers: came[2] are what the first forward waits for, PLAN_NONE where nothing comes. */
void group_state_fetch(const struct group_state *state, struct program_builder *builder, int32_t came[2]);
/* Gives the places of gathered weights up, behind what the compute queue has. */
void group_state_release(const struct group_state *state, struct program_builder *builder,
                         const int32_t came[2]);
/* Scatters gradients once `after` is done: left[2] are what the norm waits for. */
void group_state_reduce(const struct group_state *state, struct program_builder *builder, int32_t after,
                        int32_t left[2]);

#endif
