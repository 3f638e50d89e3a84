/* Computes the host memory that a rank's instructions and checkpoints need. */
#include "program/host.h"

#include "program/sharing.h"

#include <stdbool.h>

static uint64_t state_bytes(const struct plan *plan, uint32_t rank)
{
    return plan->ranks[rank].memory_peak[PURPOSE_ADAPTERS] / 2;
}

/* Whether the slot's tensors pass through host memory: they are sent, received or all-reduced. */
static bool travels(const struct plan_rank *me, int32_t slot)
{
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        for (uint32_t i = 0; i < me->programs[kind].instr_count; i++) {
            const struct instr *x = &me->programs[kind].instrs[i];
            bool sums = x->op == INSTR_ALL_REDUCE || x->op == INSTR_BROADCAST;
            if (((x->op == INSTR_SEND || sums) && x->slot_in == slot) ||
                ((x->op == INSTR_RECV || sums) && x->slot_out == slot))
                return true;
        }
    return false;
}

/* Page-locked memory is allocated in multiples of this. */
enum { HOST_PAGE_BYTES = 4096 };

static uint64_t cell_bytes(const struct plan_rank *me)
{
    uint64_t bytes = 0, part = 0; /* part: the largest partial sum received from another member of a tensor
                                     group while this rank's own is in its buffer */
    for (uint32_t s = 0; s < me->slot_count; s++) {
        const struct plan_slot *slot = &me->slots[s];
        bool sum = slot->kind == SLOT_PARTIAL;
        if ((slot->kind == SLOT_ACTIVATION || slot->kind == SLOT_GRADIENT || sum) && travels(me, (int32_t)s))
            bytes += (uint64_t)slot->ring_micro_batches * slot->ring_blocks *
                     ((slot->bytes_bound + HOST_PAGE_BYTES - 1) / HOST_PAGE_BYTES * HOST_PAGE_BYTES);
        part = sum && slot->bytes_bound > part ? slot->bytes_bound : part;
    }
    return bytes + part;
}

/* Whether the instruction sends parameters or gradients, which are cut into slices. */
static bool moves_state(const struct plan_rank *me, enum plan_sharing role, int32_t group,
                        const struct instr *x)
{
    int32_t slot = x->slot_in >= 0 ? x->slot_in : x->slot_out;
    bool holds = slot >= 0 && (uint32_t)slot < me->slot_count &&
                 (me->slots[slot].kind == SLOT_GRADIENTS || me->slots[slot].kind == SLOT_PARAMETERS);
    return plan_moves_shared(me, role, group, x) || x->op == INSTR_ALL_GATHER ||
           x->op == INSTR_REDUCE_SCATTER || (x->op == INSTR_ALL_REDUCE && holds);
}

/* Returns the host memory for slices of parameters and gradients that are sent. */
static uint64_t slice_bytes(const struct plan *plan, const struct plan_rank *me)
{
    const struct program *train = &me->programs[PROGRAM_TRAIN];
    int32_t group;
    enum plan_sharing role = plan_rank_sharing(me, &group);
    uint64_t buffers = 0;
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        bool pull = x->op == INSTR_PULL, push = x->op == INSTR_PUSH, again = false;
        if (!moves_state(me, role, group, x) ||
            (x->queue == QUEUE_GROUP && (uint32_t)x->group >= plan->group_count))
            continue;
        for (uint32_t k = 0; k < i && !again; k++)
            again = moves_state(me, role, group, &train->instrs[k]) &&
                    instr_queue_index(plan, &train->instrs[k]) == instr_queue_index(plan, x);
        if (again)
            continue;
        buffers += STREAM_SCRATCH_BUFFERS + (pull ? 0u : STREAM_SEND_BUFFERS) +
                   (push ? 0u : stream_receive_buffers(pull ? 1 : plan->groups[x->group].rank_count));
    }
    return buffers * STREAM_SLICE_BYTES;
}

enum {
    CHECKPOINT_FILE_BYTES = 32 << 20,
    CHECKPOINT_WAIT_BYTES = 32 << 20,
    ADAPTER_FILE_BYTES = 16 << 20,
    CHECKPOINT_LIST_BYTES = 64 << 10 /* a checkpoint's list of files, about 100 bytes for each */
};

static uint64_t host_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t checkpoint_bytes(const struct plan *plan, uint32_t rank)
{
    uint64_t own = 3 * state_bytes(plan, rank), all = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        all += state_bytes(plan, r);
    return host_least(own > all ? own : all, CHECKPOINT_FILE_BYTES) +
           host_least(own + all, CHECKPOINT_WAIT_BYTES) +
           (plan->groups[0].ranks[0] == rank ? host_least(all, ADAPTER_FILE_BYTES) : 0);
}

/* Counts the layers of which some rank holds experts, and the ranks that hold any. */
static void count_experts(const struct plan *plan, uint32_t *layers, uint32_t *holders)
{
    *layers = *holders = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        *holders += plan->ranks[r].expert_count > 0;
    for (int32_t b = 0; b < plan->block_count; b++) {
        bool held = false;
        for (uint32_t r = 0; r < plan->rank_count && !held; r++)
            for (uint32_t i = 0; i < plan->ranks[r].expert_count && !held; i++)
                held = plan->ranks[r].experts[i].block == b;
        *layers += held;
    }
}

struct exchange_room plan_exchange_room(const struct plan *plan, uint32_t rank)
{
    const struct plan_rank *me = &plan->ranks[rank];
    const struct program *train = &me->programs[PROGRAM_TRAIN];
    struct exchange_room room = {0};
    double stream = 0, routed = 0;
    uint32_t holders;
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        bool in = x->slot_in >= 0 && (uint32_t)x->slot_in < me->slot_count,
             out = x->slot_out >= 0 && (uint32_t)x->slot_out < me->slot_count;
        if (x->op == INSTR_ATTENTION && in && stream == 0) {
            stream = me->slots[x->slot_in].bytes_per_token;
            room.tokens = stream > 0 ? (uint32_t)((double)me->slots[x->slot_in].bytes_bound / stream) : 0;
        }
        if (x->op != INSTR_DISPATCH || (x->flags & FLAG_BACKWARD))
            continue;
        room.own = in ? me->slots[x->slot_in].bytes_bound : room.own;
        room.came = out ? me->slots[x->slot_out].bytes_bound : room.came;
        room.wave = me->slots[in ? x->slot_in : x->slot_out].ring_micro_batches;
        routed = in ? me->slots[x->slot_in].bytes_per_token : routed;
    }
    count_experts(plan, &room.layers, &holders);
    room.active = routed > stream ? (uint32_t)((routed - stream) / 8)
                                  : 0; /* each expert that a token chose has an index and a weight */
    /* A token is sent to at most as many ranks as it uses experts. */
    room.spread =
        room.own * (room.active < holders ? room.active : holders) + (room.own ? 192ull * holders : 0);
    return room;
}

static uint64_t exchange_bytes(const struct plan *plan, uint32_t rank)
{
    struct exchange_room room = plan_exchange_room(plan, rank);
    return 2 * (room.own + room.spread + room.came) +
           (uint64_t)room.layers * room.wave *
               ((uint64_t)room.tokens * room.active * sizeof(uint16_t) + 8ull * plan->rank_count);
}

/* Returns the bytes of the messages that the instruction receives, as the mesh counts them. Parameters and
 * gradients are sent in slices, each of which is a message. */
static uint64_t received_bytes(const struct plan_rank *me, const struct instr *x)
{
    int32_t slot = x->slot_out >= 0 ? x->slot_out : x->slot_in;
    uint64_t bytes = slot >= 0 && (uint32_t)slot < me->slot_count ? me->slots[slot].bytes_bound : 0;
    return bytes + (bytes / STREAM_SLICE_BYTES + 1) * HOST_MESSAGE_BYTES;
}

static uint64_t early_from_peer(const struct plan_rank *me, const struct program *program, uint32_t peer)
{
    uint64_t sums[TAG_COUNT] = {0}, bytes = 0; /* each tag has a queue of the mesh */
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        if (x->queue == QUEUE_RECV && x->peer == (int32_t)peer && x->tag < TAG_COUNT)
            sums[x->tag] += received_bytes(me, x);
    }
    for (int tag = 0; tag < TAG_COUNT; tag++)
        bytes += host_least(sums[tag], HOST_WINDOW_BYTES);
    return bytes;
}

static uint32_t tree_neighbours(const struct plan *plan, uint32_t g, uint32_t rank, bool with_parent)
{
    const struct plan_group *group = &plan->groups[g];
    int32_t parent, children[2];
    plan_group_tree(group, (uint32_t)plan_group_position(group, rank), &parent, children);
    return (with_parent && parent >= 0 ? 1u : 0u) + (children[0] >= 0 ? 1u : 0u) +
           (children[1] >= 0 ? 1u : 0u);
}

/* Returns the bytes of adapter files and lists of files that the rank's children in the tree of all ranks
 * send while a checkpoint is saved. */
static uint64_t early_files(const struct plan *plan, uint32_t rank)
{
    uint64_t bytes = CHECKPOINT_LIST_BYTES;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        bytes += state_bytes(plan, r);
    return tree_neighbours(plan, 0, rank, false) * host_least(bytes, HOST_WINDOW_BYTES);
}

/* Returns the bytes of a group's messages that may arrive before this rank posts their receives. An
 * all-reduce ends on no member before all members have begun it, so each neighbour may be ahead by one
 * all-reduce. In gathers, scatters and broadcasts one member may be ahead by the whole program. In exchanges
 * between attention and experts all members may be. */
static uint64_t early_from_group(const struct plan *plan, uint32_t rank, const struct program *program,
                                 uint32_t g)
{
    const struct plan_rank *me = &plan->ranks[rank];
    uint64_t reduced = 0, moved = 0, exchanged = 0, others = plan->groups[g].rank_count - 1;
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        if (x->queue != QUEUE_GROUP || x->group != (int32_t)g)
            continue;
        uint64_t bytes = received_bytes(me, x);
        if (x->op == INSTR_DISPATCH || x->op == INSTR_COMBINE)
            exchanged += bytes + others * HOST_MESSAGE_BYTES;
        else if (x->op == INSTR_ALL_REDUCE)
            reduced = bytes > reduced ? bytes : reduced;
        else if (x->peer != (int32_t)rank) /* the root of a broadcast receives nothing */
            moved += bytes;
    }
    return tree_neighbours(plan, g, rank, true) * host_least(reduced, HOST_WINDOW_BYTES) +
           host_least(moved, HOST_WINDOW_BYTES) + host_least(exchanged, others * HOST_WINDOW_BYTES);
}

static uint64_t early_bytes(const struct plan *plan, uint32_t rank)
{
    uint64_t most = 0;
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        const struct program *program = &plan->ranks[rank].programs[kind];
        uint64_t bytes = 0;
        for (uint32_t r = 0; r < plan->rank_count; r++)
            bytes += r == rank ? 0 : early_from_peer(&plan->ranks[rank], program, r);
        for (uint32_t g = 0; g < plan->group_count; g++)
            if (plan_group_position(&plan->groups[g], rank) >= 0)
                bytes += early_from_group(plan, rank, program, g);
        most = bytes > most ? bytes : most;
    }
    return most + early_files(plan, rank);
}

struct plan_host plan_host_bytes(const struct plan *plan, uint32_t rank)
{
    return (struct plan_host){.cells = cell_bytes(&plan->ranks[rank]),
                              .collectives =
                                  slice_bytes(plan, &plan->ranks[rank]) + exchange_bytes(plan, rank),
                              .checkpoint = checkpoint_bytes(plan, rank),
                              .moments = plan->ranks[rank].moments_host_bytes,
                              .early = early_bytes(plan, rank)};
}

uint64_t plan_host_total(const struct plan_host *host)
{
    return host->cells + host->collectives + host->checkpoint + host->moments + host->early;
}
