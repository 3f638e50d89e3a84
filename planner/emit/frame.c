#include "planner/emit/frame.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS_LOST UINT32_MAX /* slot_count of a rank for whose slots memory was lacking */

void plan_frame_fill(struct plan *plan, const struct problem *problem, const struct candidate *candidate)
{
    uint32_t rows = 0;
    for (uint32_t k = 0; k < plan->micro_batch_count; k++) {
        uint32_t count = plan->micro_batch_start[k + 1] - plan->micro_batch_start[k];
        rows = count > rows ? count : rows;
    }
    plan->placement = candidate->placement;
    plan->block_count = problem->block_count;
    plan->rows_bound = rows;
    plan->tokens_bound = problem_tokens_bound(problem, rows);
    plan->labelled_bound = problem_labelled_bound(problem, rows);
    plan->sequence_bound = problem->sequence_bound;
    plan->compute = (enum plan_dtype)problem->workload->compute;
    plan->trains_embedding = problem->workload->method == METHOD_FULL;
}

int plan_rank_fill(struct plan_rank *rank, const struct problem *problem, const struct member *member,
                   const struct memory_need *need, struct err *err)
{
    const struct planner_device *device = &problem->cluster->devices[member->device];
    free(rank->device);
    free(rank->node);
    rank->device = strdup(device->name);
    rank->node = strdup(problem->cluster->nodes[device->node].name);
    if (!rank->device || !rank->node)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    memcpy(rank->memory_peak, need->purpose, sizeof(rank->memory_peak));
    rank->memory_bytes = need->total;
    rank->moments_host_bytes = need->host_bytes;
    rank->memory_limit_bytes = device->memory_limit_bytes;
    rank->device_base_bytes = device->base_bytes;
    rank->process_base_bytes = device->profile.process_base_bytes;
    rank->recompute = member->recompute;
    rank->recompute_end = member->recompute ? member->recompute_end : 0;
    if (need->total > device->memory_limit_bytes)
        return err_set(err, ERR_NOFIT, "%s needs %llu bytes, its limit is %llu", device->name,
                       (unsigned long long)need->total, (unsigned long long)device->memory_limit_bytes);
    return 0;
}

int32_t plan_rank_slot(struct plan_rank *rank, const struct plan_slot *slot)
{
    struct plan_slot *grown = NULL;
    if (rank->slot_count != SLOTS_LOST)
        grown = realloc(rank->slots, ((size_t)rank->slot_count + 1) * sizeof(*grown));
    if (!grown) {
        rank->slot_count = SLOTS_LOST;
        return -1;
    }
    rank->slots = grown;
    struct plan_slot *x = &grown[rank->slot_count];
    *x = *slot;
    x->ring_micro_batches = x->ring_micro_batches ? x->ring_micro_batches : 1;
    x->ring_blocks = x->ring_blocks ? x->ring_blocks : 1;
    x->bytes_bound = x->bytes_bound ? x->bytes_bound : x->bytes_fixed;
    x->bytes_total =
        x->bytes_total ? x->bytes_total : x->bytes_bound * x->ring_micro_batches * x->ring_blocks;
    return (int32_t)rank->slot_count++;
}

int plan_rank_slots_made(const struct plan_rank *rank, struct err *err)
{
    return rank->slot_count != SLOTS_LOST ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
}

int32_t plan_rank_fixed_slot(struct plan_rank *rank, int kind, int lifetime, int purpose, uint64_t bytes)
{
    return plan_rank_slot(
        rank, &(struct plan_slot){.kind = (uint8_t)kind,
                                  .place = lifetime == SLOT_FOR_STEP ? SLOT_ON_HOST : SLOT_ON_DEVICE,
                                  .lifetime = (uint8_t)lifetime,
                                  .purpose = (uint8_t)purpose,
                                  .block_begin = rank->block_begin,
                                  .block_end = rank->block_end,
                                  .bytes_fixed = bytes});
}

int plan_group_fill(struct plan_group *group, uint32_t first, uint32_t count, struct err *err)
{
    group->ranks = calloc(count, sizeof(*group->ranks));
    if (!group->ranks)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    group->rank_count = count;
    for (uint32_t i = 0; i < count; i++)
        group->ranks[i] = first + i;
    return 0;
}

struct plan *plan_emitted(struct plan *plan, int result)
{
    if (result == 0)
        return plan;
    plan_destroy(plan);
    return NULL;
}

int plan_rows_fill(struct plan *plan, const struct candidate *candidate, struct err *err)
{
    uint32_t count = 0, row = 0;
    for (uint32_t m = 0; m < candidate->member_count; m++)
        count += candidate->members[m].count;
    if (candidate->stage_count > 1 || count == 0)
        return 0;
    uint32_t *start = calloc((size_t)count + 1, sizeof(*start));
    if (!start)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    free(plan->micro_batch_start);
    plan->micro_batch_start = start;
    plan->micro_batch_count = count;
    for (uint32_t m = 0, k = 0; m < candidate->member_count; m++) {
        for (uint32_t n = 0; n < candidate->members[m].count; n++) {
            row += candidate->members[m].rows;
            start[++k] = row < plan->batch_rows ? row : plan->batch_rows;
        }
    }
    return row == plan->batch_rows
               ? 0
               : err_set(err, ERR_INTERNAL, "planner: members take %u of %u rows", row, plan->batch_rows);
}

struct instr instr_at(enum instr_op op, int32_t micro_batch, int32_t begin, int32_t end)
{
    struct instr x = instr_init(op, instr_op_queue(op));
    x.micro_batch = micro_batch;
    x.block_begin = begin;
    x.block_end = end;
    return x;
}

int32_t program_add_loss(struct program_builder *b, int32_t scalars_slot, int32_t last_forward)
{
    return program_add_collective(b, INSTR_ALL_REDUCE, 0, PLAN_NONE, scalars_slot, TAG_STEP_SCALARS,
                                  &last_forward, 1);
}

void program_add_step(struct program_builder *b, const struct plan_rank *rank, int32_t group,
                      const int32_t *after, size_t count)
{
    struct instr x = instr_at(INSTR_STEP, PLAN_NONE, rank->block_begin, rank->block_end);
    x.group = group;
    program_add(b, &x, after, count);
}

void program_add_choice(struct program_builder *b, uint32_t rank, uint32_t chooser, int32_t token_slot,
                        int32_t ready)
{
    if (rank == chooser) {
        struct instr x = instr_at(INSTR_SAMPLE, 0, 0, 0);
        x.slot_out = token_slot;
        ready = program_add(b, &x, &ready, 1);
    }
    program_add_collective(b, INSTR_BROADCAST, 0, (int32_t)chooser, token_slot, TAG_TOKEN, &ready, 1);
}

void program_add_save(struct program_builder *b, int32_t barrier_slot)
{
    struct instr x = instr_init(INSTR_SAVE, QUEUE_COMPUTE);
    int32_t saved = program_add(b, &x, NULL, 0);
    program_add_collective(b, INSTR_ALL_REDUCE, 0, PLAN_NONE, barrier_slot, TAG_BARRIER, &saved, 1);
}
