/* A whole plan's memory, computed anew.
 *
 * The checker compares a plan's slots with the plan's own sums. Here both are compared with those of the
 * plan that our generator emits for the same devices, blocks, windows and micro-batches. So a plan can
 * state too much memory but not too little.
 */
#include "plug/recount.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/emit/shared.h"
#include "planner/kind/kind.h"

static bool same_slot(const struct plan_slot *a, const struct plan_slot *b)
{
    return a->kind == b->kind && a->lifetime == b->lifetime && a->place == b->place &&
           a->purpose == b->purpose && a->dtype == b->dtype && a->block_begin == b->block_begin &&
           a->block_end == b->block_end;
}

/* Returns our slot for slot s of the rank: the n-th that looks the same if s is the rank's n-th of that look,
 * or the last one if ours are fewer. NULL: there is none. */
static const struct plan_slot *recount_slot_find(const struct plan_rank *rank, uint32_t s,
                                                 const struct plan_rank *ours)
{
    const struct plan_slot *found = NULL;
    uint32_t before = 0;
    for (uint32_t k = 0; k < s; k++)
        before += same_slot(&rank->slots[s], &rank->slots[k]);
    for (uint32_t k = 0, seen = 0; k < ours->slot_count && seen <= before; k++) {
        if (same_slot(&rank->slots[s], &ours->slots[k])) {
            found = &ours->slots[k];
            seen++;
        }
    }
    return found;
}

static double recount_ring_of(const struct plan_slot *slot)
{
    return (double)slot->ring_micro_batches * slot->ring_blocks;
}

static bool saves(const struct instr *x)
{
    const bool part = x->op == INSTR_ATTENTION || x->op == INSTR_EXPERTS || x->op == INSTR_ROUTE;
    return x->op == INSTR_FORWARD || (part && !(x->flags & FLAG_BACKWARD));
}

static bool writes(const struct instr *x, int32_t s)
{
    return x->slot_out == s || (x->slot_save == s && saves(x));
}

static bool frees(const struct instr *x, int32_t s)
{
    return (x->slot_in == s && (x->flags & FLAG_FREES_IN || x->op == INSTR_RELEASE)) ||
           (x->slot_out == s && x->flags & FLAG_FREES_OUT) ||
           (x->slot_save == s && x->flags & FLAG_FREES_SAVE);
}

/* Sets *most to how many buffers of slot s hold something at the same time, by the order of the rank's
 * instructions; at least 1. */
static int buffers_at_once(const struct plan_rank *rank, uint32_t s, double *most, struct err *err)
{
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    const struct plan_slot *slot = &rank->slots[s];
    bool *held = calloc((size_t)slot->ring_micro_batches * slot->ring_blocks, sizeof(*held));
    uint32_t now = 0;
    *most = 1;
    if (!held)
        return err_set(err, ERR_NOMEM, "no memory for the buffers of a slot");
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        const bool written = writes(x, (int32_t)s), freed = frees(x, (int32_t)s);
        if (!written && !freed)
            continue;
        bool *buffer = &held[slot_instance(slot, x->micro_batch, x->block_begin)];
        now += written && !*buffer;
        *buffer |= written;
        *most = now > *most ? now : *most;
        now -= freed && *buffer;
        *buffer &= !freed;
    }
    free(held);
    return 0;
}

/* Sets *needs to the bytes that slot s of the rank needs in total: those of our own plan's slot `mine` in
 * proportion to how many buffers hold something at once, but never more than all these at their largest size.
 * That number follows from the order of the instructions, which follows measured times and so may differ
 * between two plans of one candidate. What outlives instructions is in proportion to the rings. */
static int slot_needs(const struct plan_rank *rank, uint32_t s, const struct plan_rank *ours,
                      const struct plan_slot *mine, double *needs, struct err *err)
{
    const struct plan_slot *slot = &rank->slots[s];
    double buffers = recount_ring_of(slot), our_buffers = recount_ring_of(mine);
    if (slot->lifetime == SLOT_FOR_INSTRUCTIONS &&
        (buffers_at_once(rank, s, &buffers, err) < 0 ||
         buffers_at_once(ours, (uint32_t)(mine - ours->slots), &our_buffers, err) < 0))
        return -1;
    *needs = fmin((double)mine->bytes_total * (buffers / our_buffers), (double)mine->bytes_bound * buffers);
    return 0;
}

/* Returns a slot's bytes as memory_peak counts them: each buffer as the allocator rounds it. */
static double recount_counted(const struct plan_slot *slot)
{
    return slot->bytes_bound == 0 ? 0
                                  : (double)slot->bytes_total / (double)slot->bytes_bound *
                                        (double)footprint_counted(slot->bytes_bound);
}

/* Checks that a slot states at least the bytes that slot_needs gives, and adds its bytes to more[]. */
static int slot_check(const struct plan_rank *rank, uint32_t number, uint32_t s, const struct plan_rank *ours,
                      double more[PURPOSE_COUNT], struct err *err)
{
    const struct plan_slot *slot = &rank->slots[s];
    const struct plan_slot *mine = recount_slot_find(rank, s, ours);
    if (!mine)
        return err_set(
            err, ERR_INVALID,
            "rank %u slot %u (%s of blocks %d..%d): no plan of ours with these devices and blocks has such "
            "a buffer, so what it takes cannot be worked out",
            number, s, slot_kind_name(slot->kind), slot->block_begin, slot->block_end);
    const double tolerance = 1 - 1e-9;
    double needs;
    if (slot_needs(rank, s, ours, mine, &needs, err) < 0)
        return -1;
    if (slot->bytes_per_token < mine->bytes_per_token * tolerance ||
        slot->bytes_per_row < mine->bytes_per_row * tolerance || slot->bytes_fixed < mine->bytes_fixed ||
        slot->bytes_bound < mine->bytes_bound || (double)slot->bytes_total < needs * tolerance)
        return err_set(err, ERR_INVALID,
                       "rank %u slot %u (%s): says %llu bytes, at most %llu a buffer; it needs %.0f and %llu",
                       number, s, slot_kind_name(slot->kind), (unsigned long long)slot->bytes_total,
                       (unsigned long long)slot->bytes_bound, needs, (unsigned long long)mine->bytes_bound);
    if (slot->purpose < PURPOSE_COUNT && slot->place != SLOT_ON_HOST)
        more[slot->purpose] += recount_counted(slot);
    return 0;
}

/* more[purpose]: the bytes of the rank's slots less those of ours. */
static int sums_check(const struct plan_rank *rank, uint32_t number, const struct plan_rank *ours,
                      const double more[PURPOSE_COUNT], struct err *err)
{
    double total = (double)ours->memory_bytes;
    for (int p = 0; p < PURPOSE_COUNT; p++) {
        const double needs = (double)ours->memory_peak[p] + more[p];
        total += more[p];
        if ((double)rank->memory_peak[p] < needs)
            return err_set(err, ERR_INVALID, "rank %u (%s): says %llu bytes of %s, it needs %.0f", number,
                           rank->device, (unsigned long long)rank->memory_peak[p], plan_purpose_name(p),
                           needs);
    }
    if ((double)rank->memory_bytes < total)
        return err_set(err, ERR_INVALID, "rank %u (%s): says %llu bytes of memory, it needs %.0f", number,
                       rank->device, (unsigned long long)rank->memory_bytes, total);
    return 0;
}

/* Checks that a rank has no instruction that ours lacks (workers of this release would not run it), and
 * saves no more than its `recompute` states. */
static int program_check(const struct plan_rank *rank, uint32_t number, const struct plan_rank *ours,
                         int kind, struct err *err)
{
    const struct program *program = &rank->programs[kind], *mine = &ours->programs[kind];
    bool known[INSTR_COUNT] = {0};
    for (uint32_t i = 0; i < mine->instr_count; i++)
        known[mine->instrs[i].op] = true;
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        if (!known[x->op])
            return err_set(err, ERR_INVALID, "rank %u instruction %u: no plan of ours does %s here", number,
                           i, instr_op_name(x->op));
        if (kind == PROGRAM_TRAIN && x->op == INSTR_FORWARD && rank->recompute &&
            !(x->flags & FLAG_RECOMPUTE))
            return err_set(err, ERR_INVALID, "rank %u instruction %u: keeps more than a rank that recomputes",
                           number, i);
    }
    return 0;
}

static int rank_check(const struct plan_rank *rank, uint32_t number, const struct plan_rank *ours,
                      struct err *err)
{
    double more[PURPOSE_COUNT] = {0};
    if (!rank->device || !ours->device || strcmp(rank->device, ours->device) != 0)
        return err_set(err, ERR_INVALID, "rank %u: another device than its place in the plan means", number);
    for (uint32_t s = 0; s < rank->slot_count; s++)
        if (slot_check(rank, number, s, ours, more, err) < 0)
            return -1;
    for (uint32_t s = 0; s < ours->slot_count; s++)
        if (ours->slots[s].purpose < PURPOSE_COUNT && ours->slots[s].place != SLOT_ON_HOST)
            more[ours->slots[s].purpose] -= recount_counted(&ours->slots[s]);
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        if (program_check(rank, number, ours, kind, err) < 0)
            return -1;
    return sums_check(rank, number, ours, more, err);
}

static int recount_starts_check(const struct plan *plan, struct err *err)
{
    for (uint32_t k = 0; k < plan->micro_batch_count; k++) {
        const uint32_t begin = plan->micro_batch_start[k], end = plan->micro_batch_start[k + 1];
        if (end <= begin || end - begin > plan->rows_bound)
            return err_set(err, ERR_INVALID, "micro-batch %u has %u rows; 1 to %u are possible", k,
                           end > begin ? end - begin : 0, plan->rows_bound);
    }
    return 0;
}

static bool has_shared_slots(const struct plan *plan)
{
    for (uint32_t r = 0; r < plan->rank_count; r++)
        for (uint32_t s = 0; s < plan->ranks[r].slot_count; s++)
            if (plan->ranks[r].slots[s].place == SLOT_SHARED)
                return true;
    return false;
}

/* Emits our own plan for the candidate, with memory shared within nodes if the given plan shares any. */
static struct plan *ours_for(const struct problem *problem, const struct candidate *candidate,
                             const struct plan *plan, struct err *err)
{
    struct plan *ours = kinds[plan->placement]->emit(problem, candidate, true, err);
    if (ours && has_shared_slots(plan) && plan_share_slots(ours, problem->cluster, err) < 0) {
        plan_destroy(ours);
        return NULL;
    }
    return ours;
}

int recount_memory(const struct problem *problem, const struct candidate *candidate, struct plan *plan,
                   struct err *err)
{
    struct plan *ours = recount_starts_check(plan, err) < 0 ? NULL : ours_for(problem, candidate, plan, err);
    if (!ours)
        return -1;
    int result = ours->rank_count == plan->rank_count && ours->tokens_bound <= plan->tokens_bound
                     ? 0
                     : err_set(err, ERR_INVALID, "%u ranks, where its devices and blocks make %u",
                               plan->rank_count, ours->rank_count);
    for (uint32_t r = 0; r < plan->rank_count && result == 0; r++) {
        result = rank_check(&plan->ranks[r], r, &ours->ranks[r], err);
        plan->ranks[r].device_base_bytes = ours->ranks[r].device_base_bytes;
        plan->ranks[r].process_base_bytes = ours->ranks[r].process_base_bytes;
        plan->ranks[r].bounds = ours->ranks[r].bounds;
        plan->ranks[r].moments_host_bytes = ours->ranks[r].moments_host_bytes; /* the job decides these */
    }
    plan_destroy(ours);
    return result;
}
