/* The outermost part of the checker. It checks facts of the whole plan and the range of every field, and then
 * calls the other parts in order. Each part may rely on what earlier parts proved. */
#include "program/check/check.h"

#include <stdio.h>
#include <stdlib.h>

#include "program/check/check_private.h"
#include "program/graph.h"

static int check_ranges(const struct plan *plan, struct err *err)
{
    if (plan->block_count < 1 || plan->rank_count == 0 || plan->group_count == 0 ||
        plan->micro_batch_count == 0)
        return err_set(err, ERR_INVALID, "plan: no blocks, ranks, groups or micro-batches");
    if (plan->groups[0].rank_count != plan->rank_count)
        return err_set(err, ERR_INVALID, "plan: group 0 holds %u of %u ranks", plan->groups[0].rank_count,
                       plan->rank_count);
    for (uint32_t k = 0; k < plan->micro_batch_count; k++) {
        uint32_t rows = plan->micro_batch_start[k + 1] - plan->micro_batch_start[k];
        if (plan->micro_batch_start[k + 1] < plan->micro_batch_start[k] || rows > plan->rows_bound)
            return err_set(err, ERR_INVALID, "plan: micro-batch %u holds %u rows; the bound is %u", k, rows,
                           plan->rows_bound);
    }
    if (plan->micro_batch_start[0] != 0 ||
        plan->micro_batch_start[plan->micro_batch_count] != plan->batch_rows)
        return err_set(err, ERR_INVALID, "plan: the micro-batches do not hold rows 0 to %u",
                       plan->batch_rows);
    for (uint32_t g = 0; g < plan->group_count; g++) {
        const struct plan_group *group = &plan->groups[g];
        bool *seen = calloc(plan->rank_count, sizeof(*seen));
        if (!seen)
            return err_set(err, ERR_NOMEM, "plan: out of memory while checking");
        for (uint32_t p = 0; p < group->rank_count; p++) {
            uint32_t rank = group->ranks[p];
            if (rank >= plan->rank_count || seen[rank]) {
                free(seen);
                return err_set(err, ERR_INVALID, "group %u: member %u is %s", g, p,
                               rank >= plan->rank_count ? "no rank of the plan" : "there twice");
            }
            seen[rank] = true;
        }
        free(seen);
    }
    return 0;
}

static int check_memory(const struct plan *plan, uint32_t number, struct err *err)
{
    const struct plan_rank *rank = &plan->ranks[number];
    uint64_t slots[PURPOSE_COUNT] = {0}, sum = 0;
    char where[200];
    for (uint32_t s = 0; s < rank->slot_count; s++) {
        const struct plan_slot *slot = &rank->slots[s];
        if (slot->kind >= SLOT_KINDS || slot->purpose >= PURPOSE_COUNT || slot->place >= SLOT_PLACES ||
            slot->lifetime > SLOT_FOR_RUN || slot->ring_micro_batches == 0 || slot->ring_blocks == 0 ||
            slot->ring_micro_batches > PLAN_MICRO_BATCHES_MAX || slot->ring_blocks > PLAN_BLOCKS_MAX)
            return err_set(err, ERR_INVALID, "rank %u slot %u: kind, place, lifetime or ring out of range",
                           number, s);
        if (slot->dtype >= PLAN_DTYPES ||
            (slot->dtype != PLAN_F32 && slot->kind != SLOT_ACTIVATION && slot->kind != SLOT_GRADIENT))
            return err_set(err, ERR_INVALID, "rank %u slot %u (%s): only boundary tensors may be in 16 bits",
                           number, s, slot_kind_name(slot->kind));
        double ring = (double)slot->ring_micro_batches * slot->ring_blocks;
        if (slot->bytes_total < slot->bytes_bound ||
            (double)slot->bytes_total > ring * (double)slot->bytes_bound * 1.0000001)
            return err_set(err, ERR_INVALID,
                           "rank %u slot %u (%s): %llu bytes in all for %.0f buffers of at most %llu bytes",
                           number, s, slot_kind_name(slot->kind), (unsigned long long)slot->bytes_total, ring,
                           (unsigned long long)slot->bytes_bound);
        if (slot->place != SLOT_ON_HOST)
            slots[slot->purpose] += slot->bytes_total;
    }
    for (int p = 0; p < PURPOSE_COUNT; p++) {
        if (slots[p] > rank->memory_peak[p])
            return err_set(err, ERR_NOFIT, "rank %u: its slots hold %llu bytes of %s, its plan says %llu",
                           number, (unsigned long long)slots[p], plan_purpose_name(p),
                           (unsigned long long)rank->memory_peak[p]);
        sum += rank->memory_peak[p];
    }
    if (rank->memory_bytes > sum || sum > rank->memory_bytes + rank->memory_peak[PURPOSE_BUFFERS])
        return err_set(err, ERR_INVALID,
                       "rank %u: memory of %llu bytes does not follow from its purposes' %llu", number,
                       (unsigned long long)rank->memory_bytes, (unsigned long long)sum);
    if (rank->memory_bytes > rank->memory_limit_bytes)
        return err_set(err, ERR_NOFIT, "%s needs %llu bytes of memory on %s; its limit is %llu",
                       plan_where_end(plan, number, PROGRAM_TRAIN, true, where),
                       (unsigned long long)rank->memory_bytes, rank->device ? rank->device : "?",
                       (unsigned long long)rank->memory_limit_bytes);
    return 0;
}

static bool slot_ok(const struct plan_rank *rank, int32_t slot)
{
    return slot >= PLAN_NONE && slot < (int32_t)rank->slot_count;
}

static const char *queue_problem(const struct plan *plan, uint32_t rank, const struct instr *x)
{
    bool peer = x->queue == QUEUE_SEND || x->queue == QUEUE_RECV;
    if (peer && (x->peer < 0 || (uint32_t)x->peer >= plan->rank_count || (uint32_t)x->peer == rank))
        return "its peer is no other rank of the plan";
    if (x->queue == QUEUE_GROUP && (x->group < 0 || (uint32_t)x->group >= plan->group_count))
        return "its group does not exist";
    if (x->queue == QUEUE_GROUP && plan_group_position(&plan->groups[x->group], rank) < 0)
        return "this rank is not in its group";
    if (instr_op_queue(x->op) != x->queue)
        return "it is on a queue that does not carry this instruction";
    if (x->op == INSTR_STEP && x->group != PLAN_NONE &&
        (x->group < 0 || (uint32_t)x->group >= plan->group_count ||
         plan_group_position(&plan->groups[x->group], rank) < 0))
        return "it updates a shard of a group that it is not in";
    if (x->op == INSTR_BROADCAST &&
        (x->peer < 0 || plan_group_position(&plan->groups[x->group], (uint32_t)x->peer) < 0))
        return "its root is not in its group";
    return NULL;
}

/* Checks that the rank's bounds (tokens, rows, labelled tokens) are within the plan's, and the micro-batches
 * that it works on within the rank's bounds. */
static bool rows_fit(const struct plan *plan, uint32_t number, const struct instr *x)
{
    struct plan_bounds bounds = plan_rank_bounds(plan, number);
    const uint32_t *start = &plan->micro_batch_start[x->micro_batch < 0 ? 0 : x->micro_batch];
    return bounds.tokens <= plan->tokens_bound && bounds.labelled <= plan->labelled_bound &&
           bounds.rows <= plan->rows_bound && (x->micro_batch < 0 || start[1] - start[0] <= bounds.rows);
}

static const char *field_problem(const struct plan *plan, uint32_t number, const struct instr *x)
{
    const struct plan_rank *rank = &plan->ranks[number];
    if (x->op >= INSTR_COUNT || x->queue >= QUEUE_KINDS || (x->flags & ~FLAGS_ALL) || x->tag >= TAG_COUNT)
        return "op, queue, flags or tag out of range";
    if (x->micro_batch < PLAN_NONE || x->micro_batch >= (int32_t)plan->micro_batch_count)
        return "its micro-batch does not exist";
    if (x->block_begin < 0 || x->block_begin > x->block_end || x->block_end > plan->block_count)
        return "its blocks are out of range";
    if (!slot_ok(rank, x->slot_in) || !slot_ok(rank, x->slot_out) || !slot_ok(rank, x->slot_save))
        return "it names a slot that does not exist";
    if (x->row_begin > x->row_end || (x->row_end != PLAN_ROWS_ALL && x->row_end > plan->rows_bound))
        return "its rows are out of range";
    bool computes = x->op == INSTR_FORWARD || x->op == INSTR_BACKWARD || x->op == INSTR_BACKWARD_INPUT ||
                    x->op == INSTR_BACKWARD_WEIGHT || x->op == INSTR_ATTENTION || x->op == INSTR_EXPERTS ||
                    x->op == INSTR_ROUTE;
    if (computes && (x->micro_batch < 0 || x->block_begin == x->block_end))
        return "it computes on no micro-batch or no blocks";
    if (computes && !rows_fit(plan, number, x))
        return "its micro-batch is larger than the rank's bounds, or these than the plan's";
    bool passes = x->op == INSTR_FORWARD || x->op == INSTR_BACKWARD || x->op == INSTR_BACKWARD_INPUT ||
                  x->op == INSTR_BACKWARD_WEIGHT;
    if ((passes || x->op == INSTR_ATTENTION) && !plan_rank_holds(rank, x->block_begin, x->block_end))
        return "this rank does not hold its blocks";
    int halves = !!(x->flags & FLAG_FIRST_HALF) + !!(x->flags & FLAG_SECOND_HALF);
    if (halves > 1 || (halves == 1 && (!passes || x->block_end != x->block_begin + 1)))
        return "a half is of one block, and of a forward or backward";
    if (instr_sends(x) && x->slot_in < 0)
        return "it sends from no slot";
    if (instr_receives(x) && x->slot_out < 0)
        return "it receives into no slot";
    if (x->op == INSTR_PULL && x->tag == TAG_PARAMETER_GRADIENTS && !(x->flags & FLAG_ACCUMULATE))
        return "it pulls gradients without ACCUMULATE: they would replace those of others";
    bool sums = x->op == INSTR_PULL || x->op == INSTR_REDUCE_SCATTER;
    if (sums && x->tag == TAG_PARAMETER_GRADIENTS && x->slot_out >= 0 &&
        rank->slots[x->slot_out].kind != SLOT_GRADIENTS)
        return "it puts gradients where none are kept";
    if (x->queue == QUEUE_GROUP && x->slot_in < 0 && x->slot_out < 0)
        return "it exchanges no slot";
    if (((x->flags & FLAG_FREES_IN) && x->slot_in < 0) || ((x->flags & FLAG_FREES_OUT) && x->slot_out < 0) ||
        ((x->flags & FLAG_FREES_SAVE) && x->slot_save < 0))
        return "it frees a slot that it does not name";
    return queue_problem(plan, number, x);
}

static int check_program(const struct plan *plan, uint32_t rank, int kind, struct err *err)
{
    const struct program *program = &plan->ranks[rank].programs[kind];
    char where[200];
    if (program->instr_count > PROGRAM_INSTRS_MAX)
        return err_set(err, ERR_TOO_BIG, "rank %u %s: %u instructions; at most %u", rank,
                       program_kind_name(kind), program->instr_count, PROGRAM_INSTRS_MAX);
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        const char *problem = field_problem(plan, rank, x);
        if (!problem && (uint64_t)x->after_first + x->after_count > program->after_total)
            problem = "its after list lies outside";
        for (uint32_t k = 0; !problem && k < x->after_count; k++)
            if (program->after[x->after_first + k] >= i)
                problem = "it waits for itself or a later instruction";
        if (problem)
            return err_set(err, ERR_INVALID, "%s: %s", plan_where(plan, rank, kind, i, where), problem);
    }
    return 0;
}

static int check_local(const struct plan *plan, uint32_t rank, int kind, struct err *err)
{
    struct check_order order;
    if (check_order_init(&order, plan, rank, kind, err) < 0)
        return -1;
    int result = check_slots(plan, rank, kind, &order, err);
    if (result == 0)
        result = check_held(plan, rank, kind, &order, err);
    if (result == 0 && kind == PROGRAM_TRAIN)
        result = check_step(plan, rank, &order, err);
    check_order_fini(&order);
    return result;
}

static int check_ranges_held(const struct plan_rank *rank, uint32_t number, struct err *err)
{
    for (uint32_t i = 0; i < rank->range_count; i++) {
        const struct plan_range *range = &rank->ranges[i];
        bool first = i == 0, last = i + 1 == rank->range_count;
        if (range->begin >= range->end || (!first && range->begin <= rank->ranges[i - 1].end) ||
            (first && range->begin != rank->block_begin) || (last && range->end != rank->block_end) ||
            rank->range_count == 1)
            return err_set(err, ERR_INVALID,
                           "rank %u: range %u of its blocks, %d..%d, does not follow the one before within "
                           "blocks %d..%d",
                           number, i, range->begin, range->end, rank->block_begin, rank->block_end);
    }
    return 0;
}

/* Checks a slice: the plan's frame, and the programs of the slice's rank without their counterparts on other
 * ranks. */
static int check_frame_and_programs(const struct plan *plan, struct err *err)
{
    if (check_ranges(plan, err) < 0)
        return -1;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        if (rank->block_begin < 0 || rank->block_begin > rank->block_end ||
            rank->block_end > plan->block_count)
            return err_set(err, ERR_INVALID, "rank %u: blocks %d..%d of %d", r, rank->block_begin,
                           rank->block_end, plan->block_count);
        if (rank->recompute_end && (!rank->recompute || rank->recompute_end <= rank->block_begin ||
                                    rank->recompute_end >= rank->block_end))
            return err_set(err, ERR_INVALID, "rank %u: it recomputes blocks up to %d of %d..%d", r,
                           rank->recompute_end, rank->block_begin, rank->block_end);
        if (check_ranges_held(rank, r, err) < 0 || check_memory(plan, r, err) < 0)
            return -1;
        for (int kind = 0; kind < PROGRAM_KINDS; kind++)
            if (check_program(plan, r, kind, err) < 0)
                return -1;
    }
    return check_tensor(plan, err);
}

int plan_check(const struct plan *plan, struct err *err)
{
    bool slice = plan->slice_rank != PLAN_NONE;
    if (check_frame_and_programs(plan, err) < 0)
        return -1;
    for (int kind = 0; slice && kind < PROGRAM_KINDS; kind++)
        if (check_local(plan, (uint32_t)plan->slice_rank, kind, err) < 0)
            return -1;
    if (slice)
        return 0;
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        if (check_walk(plan, kind, err) < 0 || check_rows(plan, kind, err) < 0 ||
            check_experts(plan, kind, err) < 0)
            return -1;
        for (uint32_t r = 0; r < plan->rank_count; r++)
            if (check_local(plan, r, kind, err) < 0)
                return -1;
    }
    return check_has_experts(plan) ? check_expert_reductions(plan, err) : check_reductions(plan, err);
}
