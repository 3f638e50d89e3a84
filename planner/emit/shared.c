#include "planner/emit/shared.h"

#include <stdlib.h>
#include <string.h>

#include "model/shape/footprint.h"
#include "planner/given/cluster_private.h"

/* Sizes of allocations that CUDA and HIP can share between processes are multiples of this. */
enum { SHARED_PIECE_BYTES = 2 << 20 };

/* How a rank uses a slot. */
struct slot_use {
    bool received, sent, apart; /* received, sent: RECVs write it, SENDs read it; apart: some peer's device
                                   cannot share memory with the rank's device */
};

struct shares {
    struct plan *plan;
    const struct cluster *cluster;
    const struct planner_device **devices; /* [ranks]: device of each rank */
};

static const struct planner_device *device_named(const struct cluster *cluster, const char *name)
{
    for (uint32_t d = 0; name && d < cluster->device_count; d++)
        if (strcmp(cluster->devices[d].name, name) == 0)
            return &cluster->devices[d];
    return NULL;
}

static bool share_memory(const struct shares *s, uint32_t a, int32_t b)
{
    const struct planner_device *one = s->devices[a],
                                *other = b >= 0 && (uint32_t)b < s->plan->rank_count ? s->devices[b] : NULL;
    return one && other && one != other && one->node == other->node && strcmp(one->kind, other->kind) == 0;
}

static struct slot_use shared_use_of(const struct shares *s, uint32_t rank, uint32_t slot)
{
    struct slot_use use = {0};
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        const struct program *program = &s->plan->ranks[rank].programs[kind];
        for (uint32_t i = 0; i < program->instr_count; i++) {
            const struct instr *x = &program->instrs[i];
            bool in = x->op == INSTR_RECV && x->slot_out == (int32_t)slot,
                 out = x->op == INSTR_SEND && x->slot_in == (int32_t)slot;
            use.received |= in;
            use.sent |= out;
            use.apart |= (in || out) && !share_memory(s, rank, x->peer);
        }
    }
    return use;
}

/* Sets the slot's bytes to those of its whole ring, rounded up to multiples of `piece` bytes. Returns false
 * if the rank's memory limit does not allow it. */
static bool emit_make_room(struct plan_rank *rank, struct plan_slot *slot, uint64_t piece)
{
    uint64_t bound = slot->bytes_bound, ring = (uint64_t)slot->ring_micro_batches * slot->ring_blocks,
             had = (slot->bytes_total + bound - 1) / bound * footprint_counted(bound),
             needs = (bound + piece - 1) / piece * piece * ring, more = needs > had ? needs - had : 0;
    if (rank->memory_bytes + more > rank->memory_limit_bytes)
        return false;
    rank->memory_bytes += more;
    rank->memory_peak[slot->purpose] += more;
    slot->bytes_total = bound * ring;
    return true;
}

static bool is_boundary(const struct plan_slot *slot)
{
    return (slot->kind == SLOT_ACTIVATION || slot->kind == SLOT_GRADIENT) && slot->bytes_bound > 0;
}

/* A sent tensor stays in its buffer until the neighbour has copied it, so the sender also needs room for
 * the whole ring. */
static bool senders_have_room(const struct shares *s, uint32_t to)
{
    for (uint32_t r = 0; r < s->plan->rank_count; r++) {
        struct plan_rank *rank = &s->plan->ranks[r];
        if (!share_memory(s, r, (int32_t)to))
            continue;
        for (uint32_t n = 0; n < rank->slot_count; n++) {
            struct plan_slot *slot = &rank->slots[n];
            uint64_t all = (uint64_t)slot->ring_micro_batches * slot->ring_blocks * slot->bytes_bound;
            if (is_boundary(slot) && shared_use_of(s, r, n).sent && slot->bytes_total < all &&
                !emit_make_room(rank, slot, FOOTPRINT_GRANULE))
                return false;
        }
    }
    return true;
}

static void share_rank(const struct shares *s, uint32_t r)
{
    struct plan_rank *rank = &s->plan->ranks[r];
    bool cpu = strcmp(s->devices[r]->kind, "cpu") == 0 || strcmp(s->devices[r]->kind, "emulated") == 0;
    for (uint32_t n = 0; n < rank->slot_count; n++) {
        struct plan_slot *slot = &rank->slots[n];
        if (!is_boundary(slot) || slot->place != SLOT_ON_DEVICE)
            continue;
        struct slot_use use = shared_use_of(s, r, n);
        if (use.received && !use.sent && !use.apart && senders_have_room(s, r) &&
            emit_make_room(rank, slot, cpu ? FOOTPRINT_GRANULE : SHARED_PIECE_BYTES))
            slot->place = SLOT_SHARED;
    }
}

int plan_share_slots(struct plan *plan, const struct cluster *cluster, struct err *err)
{
    struct shares s = {.plan = plan, .cluster = cluster};
    s.devices = calloc((size_t)plan->rank_count + 1, sizeof(struct planner_device *));
    if (!s.devices)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t r = 0; r < plan->rank_count; r++)
        s.devices[r] = device_named(cluster, plan->ranks[r].device);
    for (uint32_t r = 0; r < plan->rank_count; r++)
        if (s.devices[r])
            share_rank(&s, r);
    free(s.devices);
    return 0;
}
