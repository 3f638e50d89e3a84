/* Host memory that a rank's instructions and checkpoints need. */
#include "program/host.h"

#include <stdbool.h>

static uint64_t state_bytes(const struct plan *plan, uint32_t rank)
{
    return plan->ranks[rank].memory_peak[PURPOSE_ADAPTERS] / 2;
}

static bool names(const struct plan_rank *me, int32_t slot)
{
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        for (uint32_t i = 0; i < me->programs[kind].instr_count; i++) {
            const struct instr *x = &me->programs[kind].instrs[i];
            if ((x->op == INSTR_SEND && x->slot_in == slot) || (x->op == INSTR_RECV && x->slot_out == slot))
                return true;
        }
    return false;
}

/* size granule of page-locked memory */
enum { HOST_PAGE_BYTES = 4096 };

static uint64_t cell_bytes(const struct plan_rank *me)
{
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < me->slot_count; s++) {
        const struct plan_slot *slot = &me->slots[s];
        if ((slot->kind == SLOT_ACTIVATION || slot->kind == SLOT_GRADIENT) && names(me, (int32_t)s))
            bytes += (uint64_t)slot->ring_micro_batches * slot->ring_blocks *
                     ((slot->bytes_bound + HOST_PAGE_BYTES - 1) / HOST_PAGE_BYTES * HOST_PAGE_BYTES);
    }
    return bytes;
}

/* The number of layers among blocks [begin, end); LoRA trains only these. */
static uint64_t layers_in(const struct plan *plan, int32_t begin, int32_t end)
{
    begin = begin < 1 ? 1 : begin;
    end = end > plan->block_count - 1 ? plan->block_count - 1 : end;
    return end > begin ? (uint64_t)(end - begin) : 0;
}

/* The share of P of the instruction's blocks; all of P if layers do not determine it. */
static uint64_t reduced_bytes(const struct plan *plan, uint32_t rank, const struct instr *x)
{
    const struct plan_rank *me = &plan->ranks[rank];
    uint64_t mine = layers_in(plan, me->block_begin, me->block_end),
             meant = layers_in(plan, x->block_begin, x->block_end);
    bool all = x->block_begin == x->block_end || plan->trains_embedding || mine == 0 || meant >= mine;
    return all ? state_bytes(plan, rank) : (state_bytes(plan, rank) + mine - 1) / mine * meant;
}

/* Bytes of the table that heads on other ranks copy, from the size of their slots. */
static uint64_t table_bytes(const struct plan *plan)
{
    for (uint32_t r = 0; r < plan->rank_count; r++)
        for (uint32_t s = 0; plan->ranks[r].copies_tied && s < plan->ranks[r].slot_count; s++) {
            const struct plan_slot *slot = &plan->ranks[r].slots[s];
            if (slot->kind == SLOT_GATHERED && slot->block_begin == 0 && slot->block_end == 1)
                return slot->bytes_bound;
        }
    return 0;
}

/* An upper bound for one instruction. */
static uint64_t instr_bytes(const struct plan *plan, uint32_t rank, const struct instr *x)
{
    const struct plan_rank *me = &plan->ranks[rank];
    int32_t slot = x->slot_in >= 0 ? x->slot_in : x->slot_out;
    bool kept = x->op == INSTR_ALL_GATHER || x->op == INSTR_REDUCE_SCATTER,
         plain = x->op == INSTR_ALL_REDUCE || x->op == INSTR_REDUCE || x->op == INSTR_BROADCAST;
    if ((!kept && !plain) || slot < 0 || (uint32_t)slot >= me->slot_count || x->group < 0 ||
        (uint32_t)x->group >= plan->group_count ||
        (me->slots[slot].kind != SLOT_GRADIENTS && me->slots[slot].kind != SLOT_PARAMETERS))
        return 0;
    bool table = kept || (x->block_begin == 0 && x->block_end == 1);
    uint64_t bytes = table ? table_bytes(plan) : reduced_bytes(plan, rank, x),
             members = plan->groups[x->group].rank_count;
    if (x->op == INSTR_BROADCAST || x->op == INSTR_ALL_GATHER)
        return bytes;
    if (x->op == INSTR_REDUCE_SCATTER) /* the owner adds what arrives to its own */
        return (me->owns_tied ? 2 : 1) * bytes;
    if (x->op == INSTR_ALL_REDUCE && members > 1)
        return bytes + (bytes + members - 1) / members;
    return 3 * bytes; /* the root's own, the sum, and what arrived */
}

static uint64_t collective_bytes(const struct plan *plan, uint32_t rank)
{
    const struct plan_rank *me = &plan->ranks[rank];
    uint64_t most = 0;
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < me->programs[kind].instr_count; i++)
            bytes += instr_bytes(plan, rank, &me->programs[kind].instrs[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Σ P over the ranks at and below a position of group 0's tree. The children of p are 2p + 1 and 2p + 2,
 * so each level is a range [first, last]. */
static uint64_t tree_bytes(const struct plan *plan, uint64_t position)
{
    const struct plan_group *all = &plan->groups[0];
    uint64_t bytes = 0;
    for (uint64_t first = position, last = position; first < all->rank_count;
         first = 2 * first + 1, last = 2 * last + 2)
        for (uint64_t p = first; p <= last && p < all->rank_count; p++)
            bytes += state_bytes(plan, all->ranks[p]);
    return bytes;
}

static uint64_t checkpoint_bytes(const struct plan *plan, uint32_t rank)
{
    int position = plan_group_position(&plan->groups[0], rank);
    uint64_t own = state_bytes(plan, rank), whole = tree_bytes(plan, 0);
    uint64_t below = position < 0 ? own : tree_bytes(plan, (uint64_t)position);
    uint64_t copy = 5 * own + (below - own), gathered = 2 * below, loaded = whole + own;
    uint64_t most = copy > gathered ? copy : gathered;
    return most > loaded ? most : loaded;
}

struct plan_host plan_host_bytes(const struct plan *plan, uint32_t rank, uint64_t streamed)
{
    return (struct plan_host){.cells = cell_bytes(&plan->ranks[rank]),
                              .collectives = collective_bytes(plan, rank),
                              .checkpoint = streamed > 0 ? streamed : checkpoint_bytes(plan, rank),
                              .moments = plan->ranks[rank].moments_host_bytes};
}

uint64_t plan_host_total(const struct plan_host *host)
{
    return host->cells + host->collectives + host->checkpoint + host->moments;
}
