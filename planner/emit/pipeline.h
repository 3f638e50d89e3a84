/* Plans of pipelines whose stages are one rank or several replicas: single, pipeline, hybrid, and data with
 * whole replicas.
 *
 * Each member of a stage has all blocks of the stage and takes whole micro-batches; planner/schedule decides
 * which and in what order. LoRA: every member keeps all of the stage's adapters, and their gradients are
 * all-reduced over the stage once per step. Full fine-tuning: the members shard the stage's state. A pipeline
 * works on many micro-batches at a time, so its stages do not gather block by block. A step begins with
 * gathering the stage's weights and ends with a reduce-scatter of its gradients, and each member steps its
 * shard (Zorse's groups; ZeRO's second stage with weights kept for a step). A stage of one member keeps
 * everything. The state of a tied embedding is sharded over the first stage's members only. The members of
 * the last stage gather the table together with them, and their gradients enter the same reduce-scatter.
 *
 * Interleaved groups: stages go round the groups of members, so a member has several ranges of blocks. With
 * candidate.gathered_layers the members shard trained state, or LoRA's frozen base, and gather one range of
 * blocks after the other into a ring of buffers; without it every member keeps all state of its stages.
 *
 * Groups: 0 is all ranks. If a stage has several members, group 1 + s follows for every stage s of the first
 * lap (one stage for each group of members): the stage's members, or the first member of the stage alone. The
 * last group is for a trained tied embedding: the members of the first stage and of the last.
 *
 * For planner/ only; pure.
 */
#ifndef MOTLEY_PLANNER_EMIT_PIPELINE_H
#define MOTLEY_PLANNER_EMIT_PIPELINE_H

#include "planner/candidate/candidate.h"
#include "planner/cost/memory.h"
#include "planner/emit/pipeline_state.h"
#include "planner/schedule/schedule.h"

/* Makes the plan of a candidate. Shares of state are computed from the memory that members have left; the
 * candidate's are not read. Returns new (plan_destroy), not sealed; NULL with ERR_NOFIT, ERR_NOMEM, or
 * ERR_INVALID if a member would get no micro-batch. */
struct plan *pipeline_emit(const struct problem *problem, const struct candidate *candidate,
                           enum emit_programs programs, struct err *err);

/* Returns false for a split backward with recomputation, which the engine does not support. */
bool pipeline_halves_fit(const struct candidate *candidate);

/* Whether workers support the candidate's layers that two stages share (member.next_count): only in a
 * pipeline that alternates forward and backward, with fp32 boundary tensors and without the load-balancing
 * loss, and never the only block of a stage. */
bool pipeline_layers_fit(const struct problem *problem, const struct candidate *candidate);

/* Writes the mean seconds of a micro-batch of a stage on a member, from which the plan's schedule is made. */
void pipeline_stage_price(const struct problem *problem, const struct candidate *candidate, uint32_t stage,
                          uint32_t member, struct stage_price *price);

/* Buffers for boundary tensors between a stage and one neighbour that are assumed until windows are known:
 * two in each direction. */
#define PIPELINE_BUFFERS_SIDE 4u
/* Fills the memory that a member needs for one of its stages: for its shard `kept` of the stage's state if
 * the group shards it, for `window` in-flight micro-batches, and for `boundary_buffers` boundary tensors. */
void pipeline_member_need(const struct problem *problem, const struct candidate *candidate, uint32_t stage,
                          uint32_t member, struct flat_share kept, uint32_t window, uint32_t boundary_buffers,
                          struct memory_need *need);

#endif
