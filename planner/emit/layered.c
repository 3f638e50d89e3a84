/* Layered programs: each member runs a block for all its micro-batches before the next block, with weights
 * that are gathered block by block.
 *
 * In the forward, the weights of block b are gathered into a buffer, all micro-batches pass, and the
 * buffer is released for the next block that uses it; the last blocks keep their buffers for the backward.
 * In the backward, all micro-batches pass, the buffer is released, the next block without weights is
 * gathered, and then the block's gradients are reduced. So at any time one block computes, one is arriving
 * and one is leaving.
 *
 * There are three kinds of rank. A member of a group gathers from all members' shards and scatters
 * gradient sums to them. A worker pulls from the holder and pushes to it. The holder sends, adds what
 * arrives in the order of ranks, and may compute as well. All ranks go through the same sequence, so the
 * k-th collective or transfer is of the same block everywhere.
 *
 * With a server and LoRA, adapters are moved, which are small enough to be moved at once: all blocks are
 * then one unit, and each micro-batch goes forward and back before the next.
 */
#include "planner/emit/layered.h"

#include <stdlib.h>
#include <string.h>

#include "planner/emit/frame.h"
#include "planner/given/cluster_private.h"

/* --- memory of ranks --- */

static uint64_t layered_larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

struct layered_buffers layered_buffers(const struct problem *p, bool server, uint32_t layers)
{
    int32_t last = p->block_count - 1;
    bool full = p->workload->method == METHOD_FULL, tied = p->blocks.tied;
    struct layered_buffers b = {.ring_end = 1, .outside = full || server ? OUTSIDE_TRAINED : OUTSIDE_FROZEN};
    if (server && !full) {
        b.edge_weights = b.edge_gradients = memory_trained_bytes(p, 0, p->block_count);
        b.total = 2 * footprint_counted(b.edge_weights);
        return b;
    }
    b.ring_end = tied ? last + 1 : last;
    uint32_t ring = (uint32_t)b.ring_end - 1;
    b.layers = layers < ring ? layers : ring;
    b.wholes = full ? (ring < 2 ? ring : 2) : 0;
    for (int32_t k = 0; k <= last; k++) {
        uint64_t weights = memory_gathered_bytes(p, k, k + 1);
        bool layer = k >= 1 && k < b.ring_end, edge = k == 0 || (k == last && !tied);
        b.layer_weights = layer ? layered_larger(b.layer_weights, weights) : b.layer_weights;
        b.edge_weights = edge ? layered_larger(b.edge_weights, weights) : b.edge_weights;
    }
    b.layer_gradients = full ? b.layer_weights : 0;
    b.edge_gradients = full ? b.edge_weights : 0;
    b.total = b.layers * footprint_counted(b.layer_weights) + footprint_counted(b.edge_weights) +
              b.wholes * footprint_counted(b.layer_gradients) + footprint_counted(b.edge_gradients);
    return b;
}

double layered_state_bytes(const struct problem *p)
{
    enum memory_outside area = p->workload->method == METHOD_FULL ? OUTSIDE_TRAINED : OUTSIDE_FROZEN;
    return memory_shared_bytes(p, area, 0, p->block_count);
}

uint64_t layered_state_slack(const struct problem *p)
{
    return memory_share_slack(p, 0, p->block_count);
}

struct flat_share layered_part(const struct candidate *candidate, uint32_t m)
{
    struct flat_share part = {0};
    uint32_t last = candidate->member_count -
                    1; /* the last member's share ends exactly at the end, as in flat_share_of() */
    while (last > 0 && !(candidate->members[last].state_share > 0))
        last--;
    for (uint32_t i = 0; i <= m; i++) {
        part.begin = part.end;
        part.end = i >= last ? 1 : part.end + candidate->members[i].state_share;
    }
    return part;
}

static uint64_t between_width(const struct problem *p)
{
    return 4 * p->blocks.boundary_per_token + p->beside;
}

/* Returns the bytes of one tensor between two blocks of a rank. It is fp32, whatever the dtype of boundary
 * tensors between stages. */
static uint64_t between_bytes(const struct problem *p, uint32_t rows, bool gradient)
{
    double row = gradient ? p->bytes_per_row / 2 : p->bytes_per_row;
    return between_width(p) * problem_tokens_bound(p, rows) + (uint64_t)(row * rows);
}

void layered_need(const struct problem *p, const struct layered_buffers *buffers, enum layered_role role,
                  const struct member *x, struct flat_share kept, struct memory_need *need)
{
    bool at_once = buffers->layers == 0;
    uint32_t rows = x->rows ? x->rows : 1;
    uint64_t between = at_once || x->count == 0 ? 0
                                                : 2 * (footprint_counted(between_bytes(p, rows, false)) +
                                                       footprint_counted(between_bytes(p, rows, true)));
    struct memory_stage m = {.block_end = p->block_count,
                             .window = at_once ? 1 : x->count,
                             .micro_batch_rows = rows,
                             .recompute = x->recompute,
                             .outside = buffers->outside,
                             .kept = role == LAYERED_HOLDER   ? (struct flat_share){0, 1}
                                     : role == LAYERED_WORKER ? (struct flat_share){0}
                                                              : kept,
                             .keeps_only = x->count == 0,
                             .buffer_bytes = x->count * between};
    if (x->count > 0 && role != LAYERED_HOLDER)
        m.buffer_bytes += buffers->total;
    memory_stage_need(p, &m, need);
}

/* --- programs --- */

enum { PLACE_LAYERS, PLACE_EDGES, PLACES };

struct layered_slots {
    int32_t act[2], grad[2]; /* slots, indexed by the parity of the block whose input the tensor is */
    int32_t saved, scalars, norm, barrier, values, gradients, cache, token;
    int32_t gathered[PLACES], whole[PLACES];
};

struct layered {
    const struct problem *problem;
    const struct candidate *candidate;
    struct plan *plan;
    struct layered_buffers buffers;
    bool server, full, tied;
    bool at_once; /* all blocks are moved by one instruction */
    int32_t blocks;
    /* LoRA with a sharded base: the group of the ranks that run blocks (each has all adapters), and the
     * group's first rank, which counts the adapters' gradients in the norm. */
    int32_t adapters_group;
    uint32_t counter;
    struct err *err;
    /* The members below are for the rank whose programs are made. */
    uint32_t r, first, count; /* r: the rank; it works on micro-batches [first, first + count) */
    enum layered_role role;
    struct layered_slots slots;
    struct program_builder *b;
    int32_t *fetched; /* [blocks]: the ALL_GATHER or PULL that brought the block's weights; PLAN_NONE: the
                         weights are in no buffer now */
    int32_t *weights_freer,
        *whole_freer; /* [blocks + 1]: the instruction that freed each buffer last, for gathered weights and
                         for unreduced gradients (buffer i of the layers' ring; the last entry: the buffer of
                         embedding and head) */
    int32_t *pushed,
        *pulled; /* [ranks]: the parameter server's last PUSH to, and last PULL from, each worker */
    int32_t last_reduce;
    int32_t *history; /* one allocation for the arrays fetched, weights_freer, whole_freer, pushed and
                         pulled */
    size_t history_size;
};

/* Returns the end of the blocks that the gather or reduction beginning at `block` moves: block + 1, or the
 * model's end if all blocks are moved at once. */
static int32_t unit_end(const struct layered *c, int32_t block)
{
    return c->at_once ? c->blocks : block + 1;
}

static uint32_t computing_count(const struct candidate *candidate)
{
    uint32_t count = 0;
    for (uint32_t m = 0; m < candidate->member_count; m++)
        count += candidate->members[m].count > 0;
    return count;
}

static bool computing(const struct layered *c)
{
    return c->count > 0;
}

/* Returns the kind of buffer in which a block's gathered weights or unreduced gradients lie. */
static int layered_place_of(const struct layered *c, int32_t block)
{
    return !c->at_once && block >= 1 && block < c->buffers.ring_end ? PLACE_LAYERS : PLACE_EDGES;
}

static int32_t *layered_turn_of(const struct layered *c, int32_t *freers, int32_t block, uint32_t ring)
{
    int place = layered_place_of(c, block);
    return &freers[place == PLACE_EDGES ? (size_t)c->blocks : (uint32_t)(block - 1) % ring];
}

static int32_t *weights_turn(const struct layered *c, int32_t block)
{
    return layered_turn_of(c, c->weights_freer, block, c->buffers.layers);
}

static int32_t *whole_turn(const struct layered *c, int32_t block)
{
    return layered_turn_of(c, c->whole_freer, block, c->buffers.wholes ? c->buffers.wholes : 1);
}

/* True if the block's gathered weights stay in their buffer from forward to backward. */
static bool stays_gathered(const struct layered *c, int32_t block)
{
    if (layered_place_of(c, block) == PLACE_LAYERS)
        return block >= c->buffers.ring_end - (int32_t)c->buffers.layers;
    return c->tied ? block == 0 : block == c->blocks - 1;
}

/* --- slots --- */

static int32_t boundary_slot(struct layered *c, struct plan_rank *rank, int kind, uint32_t rows)
{
    bool gradient = kind == SLOT_GRADIENT;
    double row = c->problem->bytes_per_row;
    return plan_rank_slot(rank,
                          &(struct plan_slot){.kind = (uint8_t)kind,
                                              .purpose = PURPOSE_BUFFERS,
                                              .ring_micro_batches = c->count,
                                              .bytes_per_token = (double)between_width(c->problem),
                                              .bytes_per_row = gradient ? row / 2 : row,
                                              .bytes_bound = between_bytes(c->problem, rows, gradient)});
}

static int32_t layers_slot(struct layered *c, struct plan_rank *rank, int kind, uint32_t ring, uint64_t bytes)
{
    return plan_rank_slot(rank, &(struct plan_slot){.kind = (uint8_t)kind,
                                                    .purpose = PURPOSE_BUFFERS,
                                                    .ring_blocks = ring,
                                                    .block_begin = 1,
                                                    .block_end = c->buffers.ring_end,
                                                    .bytes_fixed = bytes});
}

/* Makes the slots for gathered weights and unreduced gradients. The layers' slots come first, because the
 * slots of embedding and head cover every block and count only for blocks that no earlier slot covers. */
static void places_fill(struct layered *c, struct plan_rank *rank)
{
    const struct layered_buffers *u = &c->buffers;
    struct layered_slots *s = &c->slots;
    if (!c->at_once)
        s->gathered[PLACE_LAYERS] = layers_slot(c, rank, SLOT_GATHERED, u->layers, u->layer_weights);
    s->gathered[PLACE_EDGES] =
        plan_rank_fixed_slot(rank, SLOT_GATHERED, SLOT_FOR_INSTRUCTIONS, PURPOSE_BUFFERS, u->edge_weights);
    if (!c->full && !c->server)
        return;
    if (!c->at_once)
        s->whole[PLACE_LAYERS] = layers_slot(c, rank, SLOT_GRADIENTS, u->wholes, u->layer_gradients);
    s->whole[PLACE_EDGES] =
        plan_rank_fixed_slot(rank, SLOT_GRADIENTS, SLOT_FOR_INSTRUCTIONS, PURPOSE_BUFFERS, u->edge_gradients);
}

static int layered_slots_fill(struct layered *c, const struct memory_need *need)
{
    struct plan_rank *rank = &c->plan->ranks[c->r];
    struct layered_slots *s = &c->slots;
    const struct member *member = &c->candidate->members[c->r];
    uint64_t scalars = sizeof(struct plan_step_scalars);
    int32_t end = c->blocks;
    memset(s, 0xff, sizeof(*s));
    for (int i = 0; i < 2 && computing(c) && !c->at_once; i++)
        s->act[i] = boundary_slot(c, rank, SLOT_ACTIVATION, member->rows);
    for (int i = 0; i < 2 && computing(c) && !c->at_once; i++)
        s->grad[i] = boundary_slot(c, rank, SLOT_GRADIENT, member->rows);
    if (computing(c))
        s->saved = plan_rank_slot(
            rank, &(struct plan_slot){.kind = SLOT_SAVED,
                                      .purpose = PURPOSE_ACTIVATIONS,
                                      .ring_micro_batches = c->at_once ? 1 : c->count,
                                      .ring_blocks = c->at_once ? 1 : (uint32_t)end,
                                      .block_end = end,
                                      .bytes_fixed = need->saved_bytes,
                                      .bytes_total = need->saved_bytes * (c->at_once ? 1 : c->count)});
    s->scalars = plan_rank_fixed_slot(rank, SLOT_STEP_SCALARS, SLOT_FOR_STEP, PURPOSE_BUFFERS, scalars);
    s->norm = plan_rank_fixed_slot(rank, SLOT_NORM_SCALAR, SLOT_FOR_STEP, PURPOSE_BUFFERS, 8);
    s->barrier = plan_rank_fixed_slot(rank, SLOT_BARRIER, SLOT_FOR_STEP, PURPOSE_BUFFERS, 8);
    /* The ranks shard the trained parameters, or with LoRA the frozen base; a server keeps what is trained.
     */
    bool trained = c->full || c->server;
    if (c->role != LAYERED_WORKER) {
        s->values = plan_rank_fixed_slot(rank, SLOT_PARAMETERS, SLOT_FOR_RUN,
                                         trained ? PURPOSE_ADAPTERS : PURPOSE_WEIGHTS, need->kept_values);
        /* gradients of the parameters that this rank updates, which the engine keeps for the whole run */
        s->gradients = plan_rank_fixed_slot(rank, SLOT_GRADIENTS, SLOT_FOR_RUN, PURPOSE_ADAPTERS,
                                            need->purpose[PURPOSE_ADAPTERS] / 2);
    }
    if (computing(c) && c->role != LAYERED_HOLDER)
        places_fill(c, rank);
    if (c->problem->workload->sample_tokens) {
        s->cache =
            plan_rank_fixed_slot(rank, SLOT_KV_CACHE, SLOT_FOR_RUN, PURPOSE_BUFFERS, need->cache_bytes);
        s->token = plan_rank_fixed_slot(rank, SLOT_TOKEN, SLOT_FOR_STEP, PURPOSE_BUFFERS, 4);
    }
    return plan_rank_slots_made(rank, c->err);
}

/* --- moving weights and gradients --- */

static struct instr transfer_instr(const struct layered *c, enum instr_op op, uint32_t tag, int32_t block,
                                   int32_t in, int32_t out)
{
    struct instr x = instr_at(op, PLAN_NONE, block, unit_end(c, block));
    x.tag = tag;
    x.slot_in = in;
    x.slot_out = out;
    if (x.queue == QUEUE_GROUP)
        x.group = 1;
    return x;
}

static bool works_for(const struct layered *c, uint32_t rank)
{
    return c->candidate->members[rank].count > 0;
}

/* Adds the ALL_GATHER or PULL of a block's weights, or the parameter server's PUSHes. */
static void layered_fetch(struct layered *c, int32_t block)
{
    int32_t place = computing(c) ? c->slots.gathered[layered_place_of(c, block)] : PLAN_NONE;
    const int32_t *free_since = weights_turn(c, block);
    if (c->role == LAYERED_MEMBER) {
        struct instr x = transfer_instr(c, INSTR_ALL_GATHER, TAG_PARAMETERS, block, c->slots.values, place);
        c->fetched[block] = program_add(c->b, &x, free_since, 1);
    } else if (c->role == LAYERED_WORKER && computing(c)) {
        struct instr x = transfer_instr(c, INSTR_PULL, TAG_PARAMETERS, block, PLAN_NONE, place);
        x.peer = 0;
        c->fetched[block] = program_add(c->b, &x, free_since, 1);
    }
    for (uint32_t w = 1; c->role == LAYERED_HOLDER && w < c->plan->rank_count; w++) {
        struct instr x = transfer_instr(c, INSTR_PUSH, TAG_PARAMETERS, block, c->slots.values, PLAN_NONE);
        x.peer = (int32_t)w;
        if (works_for(c, w))
            c->pushed[w] = program_add(c->b, &x, NULL, 0);
    }
}

static void release(struct layered *c, int32_t block)
{
    int32_t place = c->slots.gathered[layered_place_of(c, block)];
    if (place < 0)
        return;
    struct instr x = transfer_instr(c, INSTR_RELEASE, TAG_NONE, block, place, PLAN_NONE);
    *weights_turn(c, block) = program_add(c->b, &x, &c->fetched[block], 1);
    c->fetched[block] = PLAN_NONE;
}

/* Adds the reduction of a block's gradients to the ranks that keep the block's state, once `after` is done: a
 * REDUCE_SCATTER, a worker's PUSH, or the parameter server's PULLs. */
static void reduce(struct layered *c, int32_t block, int32_t after)
{
    int32_t whole = c->slots.whole[layered_place_of(c, block)];
    if (!c->full && !c->server)
        return;
    if (c->role == LAYERED_MEMBER) {
        struct instr x = transfer_instr(c, INSTR_REDUCE_SCATTER, TAG_PARAMETER_GRADIENTS, block, whole,
                                        c->slots.gradients);
        x.flags = whole >= 0 ? FLAG_FREES_IN : 0;
        c->last_reduce = *whole_turn(c, block) = program_add(c->b, &x, &after, 1);
    } else if (c->role == LAYERED_WORKER && computing(c)) {
        struct instr x = transfer_instr(c, INSTR_PUSH, TAG_PARAMETER_GRADIENTS, block, whole, PLAN_NONE);
        x.peer = 0;
        x.flags = FLAG_FREES_IN;
        c->last_reduce = *whole_turn(c, block) = program_add(c->b, &x, &after, 1);
    }
    int32_t before = after; /* sums are made in one fixed order, so that repeated runs are bit-identical */
    for (uint32_t w = 1; c->role == LAYERED_HOLDER && w < c->plan->rank_count; w++) {
        struct instr x =
            transfer_instr(c, INSTR_PULL, TAG_PARAMETER_GRADIENTS, block, PLAN_NONE, c->slots.gradients);
        x.peer = (int32_t)w;
        x.flags = FLAG_ACCUMULATE;
        int32_t waits[2] = {before, c->last_reduce};
        if (works_for(c, w))
            c->pulled[w] = before = c->last_reduce = program_add(c->b, &x, waits, 2);
    }
}

/* --- computing --- */

static int32_t forward(struct layered *c, uint32_t k, int32_t block, int32_t save)
{
    const struct plan_rank *rank = &c->plan->ranks[c->r];
    bool first = block == 0, last = unit_end(c, block) == c->blocks;
    struct instr x = instr_at(INSTR_FORWARD, (int32_t)k, block, unit_end(c, block));
    x.slot_in = first ? PLAN_NONE : c->slots.act[block & 1];
    x.slot_out = last ? PLAN_NONE : c->slots.act[(block + 1) & 1];
    x.slot_save = save;
    x.flags = (uint16_t)((first ? 0 : FLAG_FREES_IN) |
                         (rank->recompute && save >= 0 && save == c->slots.saved ? FLAG_RECOMPUTE : 0));
    int32_t after[2] = {c->fetched[block], last && c->tied ? c->fetched[0] : PLAN_NONE};
    return program_add(c->b, &x, after, 2);
}

static int32_t backward(struct layered *c, uint32_t k, int32_t block)
{
    const struct plan_rank *rank = &c->plan->ranks[c->r];
    bool first = block == 0, last = unit_end(c, block) == c->blocks;
    struct instr x = instr_at(INSTR_BACKWARD, (int32_t)k, block, unit_end(c, block));
    x.slot_in = last ? PLAN_NONE : c->slots.grad[(block + 1) & 1];
    x.slot_out = first ? PLAN_NONE : c->slots.grad[block & 1];
    x.slot_save = c->slots.saved;
    x.flags =
        (uint16_t)(FLAG_FREES_SAVE | (last ? 0 : FLAG_FREES_IN) | (rank->recompute ? FLAG_RECOMPUTE : 0));
    /* A backward waits for the block's gathered weights and for a free buffer of unreduced gradients. */
    int32_t after[3] = {first && !c->at_once ? PLAN_NONE : c->fetched[block], *whole_turn(c, block),
                        last && c->tied ? *whole_turn(c, 0) : PLAN_NONE};
    return program_add(c->b, &x, after, 3);
}

/* Adds the forward of all micro-batches through all blocks. Returns the last instruction. */
static int32_t forward_all(struct layered *c, uint32_t first, uint32_t count, int32_t save, bool returns)
{
    int32_t done = PLAN_NONE;
    for (int32_t block = 0; block < c->blocks; block = unit_end(c, block)) {
        layered_fetch(c, block);
        for (uint32_t k = first; k < first + count; k++)
            done = forward(c, k, block, save);
        bool stays = returns ? stays_gathered(c, block) : c->tied && block == 0;
        if (!stays)
            release(c, block);
    }
    if (!returns && c->tied)
        release(c, 0);
    return done;
}

static int32_t backward_all(struct layered *c)
{
    int32_t done = PLAN_NONE;
    for (int32_t block = c->blocks - 1; block >= 0; block--) {
        int32_t next = block - (int32_t)c->buffers.layers;
        for (uint32_t k = c->first; k < c->first + c->count; k++)
            done = backward(c, k, block);
        if (block > 0)
            release(c, block);
        if (c->tied && block + 1 == c->blocks)
            release(c, 0);
        if (layered_place_of(c, block) == PLACE_LAYERS && next >= 1)
            layered_fetch(c, next);
        reduce(c, block, done);
    }
    return done;
}

/* If all blocks are moved at once: adds forward and backward of one micro-batch after the other. */
static int32_t both_all(struct layered *c, int32_t *last_forward)
{
    int32_t done = PLAN_NONE;
    layered_fetch(c, 0);
    for (uint32_t k = c->first; k < c->first + c->count; k++) {
        *last_forward = forward(c, k, 0, c->slots.saved);
        done = backward(c, k, 0);
    }
    release(c, 0);
    reduce(c, 0, done);
    return done;
}

/* --- programs --- */

/* Adds the training program. Groups: 0 all ranks; 1 the ranks that shard the state, or the parameter server
 * alone; with LoRA 2 the first rank that runs blocks, alone, and 3 all ranks that run blocks, if some ranks
 * only keep state. */
static void layered_train_build(struct layered *c)
{
    const struct plan_rank *rank = &c->plan->ranks[c->r];
    uint32_t ranks = c->plan->rank_count;
    int32_t last_forward = PLAN_NONE, norm = PLAN_NONE, last = PLAN_NONE;
    if (c->at_once)
        last = both_all(c, &last_forward);
    else
        last_forward = forward_all(c, c->first, c->count, c->slots.saved, true);
    int32_t scalars = program_add_loss(c->b, c->slots.scalars, last_forward);
    if (!c->at_once)
        last = backward_all(c);
    int32_t summed[2] = {last, c->last_reduce};
    if (!c->full && !c->server) { /* all ranks that compute have the same adapters: the adapters' gradients
                                     are all-reduced, and the first of these ranks counts them in the norm */
        if (computing(c) && computing_count(c->candidate) > 1)
            summed[1] = program_add_collective(c->b, INSTR_ALL_REDUCE, c->adapters_group, PLAN_NONE,
                                               c->slots.gradients, TAG_PARAMETER_GRADIENTS, &last, 1);
        if (c->r == c->counter)
            norm = program_add_collective(c->b, INSTR_ALL_REDUCE, 2, PLAN_NONE, c->slots.norm, TAG_NORM,
                                          summed, 2);
        int32_t before[2] = {norm, summed[1]};
        norm = program_add_collective(c->b, INSTR_BROADCAST, 1, (int32_t)c->counter, c->slots.norm, TAG_NORM,
                                      before, 2);
    } else if (c->role == LAYERED_MEMBER) {
        norm =
            program_add_collective(c->b, INSTR_ALL_REDUCE, 0, PLAN_NONE, c->slots.norm, TAG_NORM, summed, 2);
    } else {
        if (c->role == LAYERED_HOLDER)
            norm = program_add_collective(c->b, INSTR_ALL_REDUCE, 1, PLAN_NONE, c->slots.norm, TAG_NORM,
                                          summed, 2);
        int32_t before[3] = {norm, summed[0], summed[1]};
        norm = program_add_collective(c->b, INSTR_BROADCAST, 0, 0, c->slots.norm, TAG_NORM, before, 3);
    }
    if (c->role == LAYERED_WORKER || rank->state_share <= 0)
        return;
    /* The parameter server's STEP also waits until all PUSHes of the old values are done. */
    for (uint32_t w = 0; w < ranks && c->role == LAYERED_HOLDER; w++)
        c->pulled[w] = c->pushed[w];
    c->pulled[ranks] = scalars;
    c->pulled[ranks + 1] = norm;
    c->pulled[ranks + 2] = summed[1];
    program_add_step(c->b, rank, c->full && c->role == LAYERED_MEMBER ? 1 : PLAN_NONE, c->pulled, ranks + 3);
}

static void layered_evaluate_build(struct layered *c)
{
    int32_t last = forward_all(c, c->first, c->count, PLAN_NONE, false);
    program_add_loss(c->b, c->slots.scalars, last);
}

/* Adds sampling: the rank that works on micro-batch 0 computes, and the others only send their shards of the
 * weights. */
static void layered_token_build(struct layered *c)
{
    uint32_t chooser = 0;
    while (!works_for(c, chooser))
        chooser++;
    int32_t ready = forward_all(c, 0, c->r == chooser, c->slots.cache, false);
    program_add_choice(c->b, c->r, chooser, c->slots.token, ready);
}

static void save_build(struct layered *c)
{
    program_add_save(c->b, c->slots.barrier);
}

/* Allocates the arrays that remember the last instructions per block and per rank: three of [blocks + 1] and
 * two of [ranks + 3]. */
static int history_alloc(struct layered *c)
{
    size_t blocks = (size_t)c->blocks + 1, ranks = (size_t)c->plan->rank_count + 3;
    c->history_size = (3 * blocks + 2 * ranks) * sizeof(*c->history);
    c->history = malloc(c->history_size);
    if (!c->history)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    c->fetched = c->history;
    c->weights_freer = c->fetched + blocks;
    c->whole_freer = c->weights_freer + blocks;
    c->pushed = c->whole_freer + blocks;
    c->pulled = c->pushed + ranks;
    return 0;
}

static int programs_fill(struct layered *c)
{
    struct plan_rank *rank = &c->plan->ranks[c->r];
    static void (*const builds[PROGRAM_KINDS])(struct layered *) = {[PROGRAM_TRAIN] = layered_train_build,
                                                                    [PROGRAM_EVALUATE] =
                                                                        layered_evaluate_build,
                                                                    [PROGRAM_PREFILL] = layered_token_build,
                                                                    [PROGRAM_GENERATE] = layered_token_build,
                                                                    [PROGRAM_SAVE] = save_build};
    for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
        struct program_builder b = {0};
        if ((kind == PROGRAM_PREFILL || kind == PROGRAM_GENERATE) && c->slots.cache < 0)
            continue;
        c->b = &b;
        memset(c->history, 0xff, c->history_size); /* PLAN_NONE throughout */
        c->last_reduce = PLAN_NONE;
        builds[kind](c);
        c->b = NULL;
        if (program_builder_take(&b, &rank->programs[kind], c->err) < 0)
            return -1;
    }
    return 0;
}

/* --- ranks --- */

static int layered_rank_emit(struct layered *c, uint32_t r, bool programs)
{
    const struct member *member = &c->candidate->members[r];
    struct plan_rank *rank = &c->plan->ranks[r];
    struct memory_need need;
    c->r = r;
    c->count = member->count;
    c->role = layered_role(c->candidate, r);
    rank->block_end = c->blocks;
    rank->window = c->count && !c->at_once ? c->count : 1;
    rank->rows = member->count * member->rows;
    rank->rows_share = (double)rank->rows / c->plan->batch_rows;
    if (member->count > 0 && member->rows < c->plan->rows_bound)
        rank->bounds = (struct plan_bounds){.tokens = problem_tokens_bound(c->problem, member->rows),
                                            .rows = member->rows,
                                            .labelled = problem_labelled_bound(c->problem, member->rows)};
    rank->state_share = c->server ? r == 0 : c->full ? member->state_share : computing(c);
    rank->owns_tied = c->tied && c->role != LAYERED_WORKER;
    rank->copies_tied = c->tied && c->role == LAYERED_WORKER;
    layered_need(c->problem, &c->buffers, c->role, member, layered_part(c->candidate, r), &need);
    if (plan_rank_fill(rank, c->problem, member, &need, c->err) < 0 || layered_slots_fill(c, &need) < 0)
        return -1;
    if (programs && programs_fill(c) < 0)
        return -1;
    c->first += c->count;
    return 0;
}

/* Makes group 1: the ranks that shard the state, with their shares, or the parameter server alone. */
static int state_group(struct layered *c)
{
    struct plan_group *group = &c->plan->groups[1];
    uint32_t count = c->server ? 1 : c->candidate->member_count;
    if (plan_group_fill(group, 0, count, c->err) < 0)
        return -1;
    group->shares = c->server ? NULL : calloc(count, sizeof(*group->shares));
    if (!c->server && !group->shares)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t i = 0; i < count && !c->server; i++)
        group->shares[i] = c->candidate->members[i].state_share;
    return 0;
}

static int adapter_groups(struct layered *c)
{
    uint32_t computes = computing_count(c->candidate), at = 0;
    while (!works_for(c, c->counter))
        c->counter++;
    c->adapters_group = computes < c->candidate->member_count ? 3 : 1;
    if (plan_group_fill(&c->plan->groups[2], c->counter, 1, c->err) < 0)
        return -1;
    if (c->adapters_group == 1)
        return 0;
    if (plan_group_fill(&c->plan->groups[3], 0, computes, c->err) < 0)
        return -1;
    for (uint32_t r = 0; r < c->candidate->member_count; r++)
        if (works_for(c, r))
            c->plan->groups[3].ranks[at++] = r;
    return 0;
}

struct plan *layered_emit(const struct problem *problem, const struct candidate *candidate,
                          enum emit_programs programs, struct err *err)
{
    bool full = problem->workload->method == METHOD_FULL, server = candidate->placement == PLACE_SERVER;
    uint32_t groups = full || server ? 2 : computing_count(candidate) < candidate->member_count ? 4 : 3;
    struct plan *plan = plan_create(candidate->member_count, groups, problem->workload->batch_rows,
                                    candidate->micro_batch_rows, err);
    if (!plan)
        return NULL;
    struct layered c = {.problem = problem,
                        .candidate = candidate,
                        .plan = plan,
                        .buffers = layered_buffers(problem, server, candidate->gathered_layers),
                        .server = server,
                        .full = full,
                        .at_once = server && !full,
                        .tied = problem->blocks.tied && (full || !server),
                        .blocks = problem->block_count,
                        .err = err};
    int result = plan_rows_fill(plan, candidate, err);
    plan_frame_fill(plan, problem, candidate);
    if (result == 0)
        result = history_alloc(&c);
    if (result == 0)
        result = state_group(&c);
    if (result == 0 && !full && !server)
        result = adapter_groups(&c);
    for (uint32_t r = 0; r < candidate->member_count && result == 0; r++)
        result = layered_rank_emit(&c, r, programs);
    free(c.history);
    return plan_emitted(plan, result);
}

static uint32_t layers_of(const struct plan *plan)
{
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        for (uint32_t s = 0; s < plan->ranks[r].slot_count; s++)
            if (plan->ranks[r].slots[s].kind == SLOT_GATHERED)
                return plan->ranks[r].slots[s].ring_blocks;
    }
    return 0;
}

int layered_from_plan(const struct problem *problem, const struct plan *plan, struct candidate *candidate,
                      struct err *err)
{
    bool server = plan->placement == PLACE_SERVER;
    const struct plan_group *group = plan->group_count > 1 ? &plan->groups[1] : NULL;
    *candidate = (struct candidate){0};
    if (candidate_reserve(candidate, 1, plan->rank_count, err) < 0)
        return -1;
    candidate->placement = plan->placement;
    candidate->micro_batch_rows = plan->rows_bound;
    candidate->gathered_layers = layers_of(plan);
    candidate->estimate_s = plan->costs.step_s;
    candidate->stage_count = 1;
    candidate->member_count = plan->rank_count;
    candidate->stages[0] = (struct candidate_stage){.block_end = plan->block_count,
                                                    .kind = server ? STAGE_SERVER : STAGE_SHARDED,
                                                    .member_count = plan->rank_count};
    int result = 0;
    for (uint32_t r = 0, k = 0; r < plan->rank_count && result == 0; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        uint32_t device = cluster_device_find(problem->cluster, rank->device), taken = 0;
        struct member member = {.device = device,
                                .rows = 1,
                                .state_share = server                   ? r == 0
                                               : group && group->shares ? group->shares[r]
                                                                        : 1,
                                .window = rank->window,
                                .recompute = rank->recompute};
        for (; k < plan->micro_batch_count && taken < rank->rows; k++, member.count++) {
            member.rows = plan->micro_batch_start[k + 1] - plan->micro_batch_start[k];
            taken += member.rows;
        }
        if (device == UINT32_MAX || !problem->usable[device])
            result = err_set(err, ERR_INVALID, "%s is no longer to be used", rank->device);
        else if (taken != rank->rows || member.rows * member.count != taken)
            result = err_set(err, ERR_INVALID, "its rank %u takes micro-batches of unlike sizes", r);
        candidate->members[r] = member;
    }
    if (result < 0)
        candidate_fini(candidate);
    return result;
}
