/* Plans of chains of replica stages: single, pipeline, hybrid, and data with whole replicas.
 *
 * Each member of a stage keeps all the stage's blocks and takes whole micro-batches; who takes which, and in
 * what order, is the schedule's (planner/schedule). LoRA: every member keeps all of the stage's adapters, and
 * their gradients are summed over the stage once a step. Full fine-tuning: the members keep the stage's state
 * in shards. A pipeline works on many micro-batches at a time, so they do not gather block by block: a step
 * begins with gathering the stage's weights and ends with scattering the sums of its gradients, and each
 * member steps its shard (Zorse's groups; ZeRO's second stage with weights kept for a step). A stage of one
 * member keeps everything. A tied embedding is kept by the first stage's members alone; those of the last
 * gather it with them, and their gradients of it are part of the same sum.
 *
 * Groups: 0 all; then, where a stage has several members, 1 + s the members of stage s and the first member
 * of each stage; last, a trained tied embedding's, members of the first stage and of the last.
 *
 * For planner/ only; pure.
 */
#ifndef MOTLEY_PLANNER_EMIT_PIPELINE_H
#define MOTLEY_PLANNER_EMIT_PIPELINE_H

#include "planner/candidate/candidate.h"
#include "planner/cost/memory.h"
#include "planner/emit/pipeline_state.h"
#include "planner/schedule/schedule.h"

/* The plan of a candidate. Shares of state follow from the room that members have; the candidate's are not
 * read. Returns new (plan_destroy), not sealed; NULL with ERR_NOFIT, ERR_NOMEM, or ERR_INVALID where a member
 * would never have a micro-batch. */
struct plan *pipeline_emit(const struct problem *problem, const struct candidate *candidate, bool programs,
                           struct err *err);

/* Mean seconds of a micro-batch of a stage on a member: what the plan's schedule is made with. */
void pipeline_stage_price(const struct problem *problem, const struct candidate *candidate, uint32_t stage,
                          uint32_t member, struct stage_price *price);

/* Boundary tensors towards one neighbour while windows are not known: two each way. */
#define PIPELINE_BUFFERS_SIDE 4u
/* What a member must hold for one of its stages, with `share` of the stage's state (of no matter to LoRA),
 * `window` micro-batches between forward and the last use of what it left, and so many boundary tensors. */
void pipeline_member_need(const struct problem *problem, const struct candidate *candidate, uint32_t stage,
                          uint32_t member, double share, uint32_t window, uint32_t boundary_buffers,
                          struct memory_need *need);
/* Adds what one stage needs to what its member needs: all adds up but the workspace, which a member's stages
 * share. *sum: zeros at first. */
void pipeline_need_add(struct memory_need *sum, const struct memory_need *more);

#endif
