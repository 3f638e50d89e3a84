/* Plans of chains of replica stages: single, pipeline, hybrid, and data with whole replicas.
 *
 * Each member of a stage has all blocks of the stage and takes whole micro-batches; planner/schedule
 * decides which and in what order. LoRA: every member keeps all of the stage's adapters, and their
 * gradients are all-reduced over the stage once per step. Full fine-tuning: the members shard the stage's
 * state. A pipeline works on many micro-batches at a time, so its stages do not gather block by block. A
 * step begins with gathering the stage's weights and ends with a reduce-scatter of its gradients, and each
 * member steps its shard (Zorse's groups; ZeRO's second stage with weights kept for a step). A stage of
 * one member keeps everything. The state of a tied embedding is sharded over the first stage's members
 * only. Those of the last stage gather it with them, and their gradients enter the same reduction.
 *
 * Groups: 0 is all ranks. If a stage has several members, group 1 + s follows for every stage s: its
 * members, or the first member of a stage alone. The last group is for a trained tied embedding: the
 * members of the first stage and of the last.
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
struct plan *pipeline_emit(const struct problem *problem, const struct candidate *candidate, bool programs,
                           struct err *err);

/* Mean seconds of a micro-batch of a stage on a member; the plan's schedule is made with them. */
void pipeline_stage_price(const struct problem *problem, const struct candidate *candidate, uint32_t stage,
                          uint32_t member, struct stage_price *price);

/* Boundary tensors between a stage and one neighbour while windows are unknown: two each way. */
#define PIPELINE_BUFFERS_SIDE 4u
/* Memory that a member needs for one of its stages: `share` of the stage's state (ignored for LoRA),
 * `window` micro-batches between the forward and the last use of what it saved, and `boundary_buffers`
 * boundary tensors. */
void pipeline_member_need(const struct problem *problem, const struct candidate *candidate, uint32_t stage,
                          uint32_t member, double share, uint32_t window, uint32_t boundary_buffers,
                          struct memory_need *need);

#endif
