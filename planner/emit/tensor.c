/* Makes plans of tensor groups: groups, memory and slots; tensor_program.c makes the instruction lists. */
#include "planner/emit/tensor.h"

#include <stdlib.h>
#include <string.h>

#include "planner/cost/tensor_cost.h"
#include "planner/emit/frame.h"
#include "planner/emit/tensor_program.h"

static uint32_t at_most(uint64_t value, uint32_t most)
{
    return value < most ? (uint32_t)value : most;
}

uint32_t tensor_together(const struct candidate *candidate, uint32_t micro_batches)
{
    return at_most(candidate->together ? candidate->together : 1, micro_batches);
}

static uint32_t tensor_window_of(const struct candidate *candidate, uint32_t s)
{
    uint32_t window = candidate->members[candidate->stages[s].member_first].window;
    return window ? window : 1;
}

uint32_t tensor_ring(uint32_t window, uint32_t next)
{
    return window > next + 1 ? window - next + 1 : 2;
}

/* Returns the depth, in micro-batches, of the ring of boundary buffers between stages s and s + 1. */
static uint32_t tensor_ring_of(const struct candidate *candidate, uint32_t s, uint32_t micro_batches)
{
    uint32_t units = tensor_ring(tensor_window_of(candidate, s), tensor_window_of(candidate, s + 1));
    return at_most((uint64_t)units * tensor_together(candidate, micro_batches), micro_batches);
}

uint32_t tensor_partials(const struct candidate *candidate, uint32_t s, uint32_t micro_batches)
{
    uint32_t together = tensor_together(candidate, micro_batches);
    uint32_t count = candidate->stages[s].member_count > 1 ? 4 * together : 0;
    uint32_t out = at_most(2 * (uint64_t)together, micro_batches);
    if (s > 0)
        count += tensor_ring_of(candidate, s - 1, micro_batches) + out;
    if (s + 1 < candidate->stage_count)
        count += tensor_ring_of(candidate, s, micro_batches) + out;
    return count;
}

/* Adds a slot for a boundary tensor of a tensor group, which is a partial sum until it is all-reduced. */
static int32_t partial_slot(struct tensor_plan *t, struct plan_rank *rank, uint32_t ring)
{
    double per_token = tensor_token_bytes(t->problem);
    uint64_t bound = (uint64_t)(per_token * t->plan->tokens_bound);
    struct plan_slot slot = {.kind = SLOT_PARTIAL,
                             .lifetime = SLOT_FOR_INSTRUCTIONS,
                             .purpose = PURPOSE_BUFFERS,
                             .ring_micro_batches = ring,
                             .bytes_per_token = per_token,
                             .bytes_bound = bound};
    return plan_rank_slot(rank, &slot);
}

/* Adds a slot for the activations that forwards of blocks [begin, end) save: one buffer for each block, or
 * one for all (`whole`). */
static int32_t tensor_saved_slot(struct plan_rank *rank, int32_t begin, int32_t end, bool whole,
                                 uint32_t live, uint64_t bytes)
{
    struct plan_slot slot = {.kind = SLOT_SAVED,
                             .lifetime = SLOT_FOR_INSTRUCTIONS,
                             .purpose = PURPOSE_ACTIVATIONS,
                             .ring_micro_batches = live,
                             .ring_blocks = whole ? 1 : (uint32_t)(end - begin),
                             .block_begin = begin,
                             .block_end = end,
                             .bytes_fixed = bytes};
    return plan_rank_slot(rank, &slot);
}

/* Adds the slots for saved activations. The engine keeps a micro-batch's activations in one allocation, so
 * each slot is given an equal share of its bytes. */
static void saved_slots(struct plan_rank *rank, const struct tensor_writer_blocks *blocks, uint32_t live,
                        uint64_t bytes, struct tensor_slots *slots)
{
    int32_t begin = blocks->begin, end = blocks->end;
    if (blocks->alone) {
        slots->saved_first = tensor_saved_slot(rank, rank->block_begin, rank->block_end, true, live, bytes);
        return;
    }
    bool table = rank->block_begin == 0, head = rank->block_end > end;
    uint64_t each = bytes / (2 * (uint64_t)(end - begin) + table + head);
    slots->saved_first = tensor_saved_slot(rank, begin, end, false, live, each);
    slots->saved_second = tensor_saved_slot(rank, begin, end, false, live, each);
    if (table)
        slots->saved_table = tensor_saved_slot(rank, 0, 1, true, live, each);
    if (head)
        slots->saved_head = tensor_saved_slot(rank, end, end + 1, true, live, each);
}

static void boundary_slots(struct tensor_plan *t, struct plan_rank *rank, uint32_t s,
                           struct tensor_slots *slots)
{
    uint32_t count = t->plan->micro_batch_count;
    slots->ring_out = at_most(2 * (uint64_t)t->together, count);
    if (s > 0) {
        slots->ring_act = tensor_ring_of(t->candidate, s - 1, count);
        slots->act_in = partial_slot(t, rank, slots->ring_act);
        slots->grad_out = partial_slot(t, rank, slots->ring_out);
    }
    if (s + 1 < t->candidate->stage_count) {
        slots->ring_grad = tensor_ring_of(t->candidate, s, count);
        slots->act_out = partial_slot(t, rank, slots->ring_out);
        slots->grad_in = partial_slot(t, rank, slots->ring_grad);
    }
}

/* Adds the slot of gradients of the layers' parameters that all members of the group hold as equal copies. */
static int32_t shared_slot(struct plan_rank *rank, const struct tensor_writer_blocks *blocks, uint64_t bytes)
{
    return plan_rank_slot(rank, &(struct plan_slot){.kind = SLOT_GRADIENTS,
                                                    .lifetime = SLOT_FOR_RUN,
                                                    .purpose = PURPOSE_ADAPTERS,
                                                    .block_begin = blocks->begin,
                                                    .block_end = blocks->end,
                                                    .bytes_fixed = bytes});
}

static int tensor_slots_fill(struct tensor_plan *t, uint32_t s, struct plan_rank *rank,
                             const struct tensor_need *need, uint32_t live, struct tensor_slots *slots)
{
    struct tensor_writer_blocks blocks = tensor_layers(t, s);
    memset(slots, 0xff, sizeof(*slots));
    boundary_slots(t, rank, s, slots);
    for (int i = 0; i < 2 && !blocks.alone; i++) {
        slots->sum[i] = partial_slot(t, rank, t->together);
        slots->gradient[i] = partial_slot(t, rank, t->together);
    }
    saved_slots(rank, &blocks, live, need->live_bytes, slots);
    if (!blocks.alone && need->shared_gradients > 0)
        slots->shared = shared_slot(rank, &blocks, need->shared_gradients);
    slots->scalars = plan_rank_fixed_slot(rank, SLOT_STEP_SCALARS, SLOT_FOR_STEP, PURPOSE_BUFFERS,
                                          sizeof(struct plan_step_scalars));
    slots->norm = plan_rank_fixed_slot(rank, SLOT_NORM_SCALAR, SLOT_FOR_STEP, PURPOSE_BUFFERS, 8);
    slots->barrier = plan_rank_fixed_slot(rank, SLOT_BARRIER, SLOT_FOR_STEP, PURPOSE_BUFFERS, 8);
    if (t->problem->workload->sample_tokens) {
        slots->cache =
            plan_rank_fixed_slot(rank, SLOT_KV_CACHE, SLOT_FOR_RUN, PURPOSE_BUFFERS, need->need.cache_bytes);
        slots->token = plan_rank_fixed_slot(rank, SLOT_TOKEN, SLOT_FOR_STEP, PURPOSE_BUFFERS, 4);
    }
    return plan_rank_slots_made(rank, t->err);
}

/* Returns a member's share of the trained parameters; the shares of a group sum to the share of its stage. */
static double tensor_state_share(const struct tensor_plan *t, const struct candidate_stage *stage, bool first,
                                 const struct plan_tensor *part)
{
    struct tensor_shares shares = tensor_shares(t->problem, part);
    bool full = t->problem->workload->method == METHOD_FULL;
    const struct block_list *list = &t->problem->blocks;
    double mine = 0, all = (double)(full ? list->params : list->lora_params);
    for (int32_t b = stage->block_begin; b < stage->block_end; b++) {
        for (uint32_t i = 0; i < list->blocks[b].part_count; i++) {
            const struct block_part *p = &list->blocks[b].parts[i];
            double share = p->kind == PART_ATTENTION ? shares.heads
                           : p->kind == PART_FFN     ? shares.columns
                                                     : first;
            mine += share * (double)(full ? p->params : p->lora_params);
        }
    }
    return all > 0 ? mine / all : 1.0 / t->plan->rank_count;
}

static int tensor_rank_emit(struct tensor_plan *t, uint32_t s, uint32_t r, bool programs)
{
    const struct candidate_stage *stage = &t->candidate->stages[s];
    const struct member *member = &t->candidate->members[r];
    struct plan_rank *rank = &t->plan->ranks[r];
    uint32_t count = t->plan->micro_batch_count;
    uint64_t live = at_most((uint64_t)tensor_window_of(t->candidate, s) * t->together, count);
    uint64_t partials = tensor_partials(t->candidate, s, count);
    struct tensor_member own = tensor_member(t->problem, stage->block_begin, stage->block_end,
                                             stage->member_count, r - stage->member_first, &member->tensor);
    struct tensor_need need;
    struct tensor_slots slots;
    if (tensor_need_exact(t->problem, &own, t->plan->rows_bound, member->recompute, &need, t->err) < 0)
        return -1;
    need.need.total = tensor_need_total(&need, live, partials);
    need.need.purpose[PURPOSE_ACTIVATIONS] += live * need.live_bytes;
    need.need.purpose[PURPOSE_BUFFERS] += partials * need.partial_bytes;
    rank->stage = (int32_t)s;
    rank->block_begin = own.block_begin;
    rank->block_end = own.block_end;
    rank->tensor = member->tensor;
    rank->rows = t->plan->batch_rows;
    rank->rows_share = 1;
    rank->window = (uint32_t)live;
    rank->state_share = tensor_state_share(t, stage, !own.follows, &member->tensor);
    if (plan_rank_fill(rank, t->problem, member, &need.need, t->err) < 0 ||
        tensor_slots_fill(t, s, rank, &need, (uint32_t)live, &slots) < 0)
        return -1;
    return programs ? tensor_programs(t, s, r, &slots) : 0;
}

struct plan *tensor_emit(const struct problem *problem, const struct candidate *candidate,
                         enum emit_programs programs, struct err *err)
{
    struct plan *plan = plan_create(candidate->member_count, 1 + candidate->stage_count,
                                    problem->workload->batch_rows, candidate->micro_batch_rows, err);
    if (!plan)
        return NULL;
    struct tensor_plan t = {.problem = problem, .candidate = candidate, .plan = plan, .err = err};
    plan_frame_fill(plan, problem, candidate);
    t.together = tensor_together(candidate, plan->micro_batch_count);
    int result = 0;
    for (uint32_t s = 0; s < candidate->stage_count && result == 0; s++) {
        const struct candidate_stage *stage = &candidate->stages[s];
        result = plan_group_fill(&plan->groups[1 + s], stage->member_first, stage->member_count, err);
        for (uint32_t m = 0; m < stage->member_count && result == 0; m++)
            result = tensor_rank_emit(&t, s, stage->member_first + m, programs);
    }
    return plan_emitted(plan, result);
}
