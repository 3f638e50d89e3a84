/* Executes training programs of sharded and server plans, independently of the checker: the ranks'
 * instructions run in random legal orders on buffers that record whose weights and which micro-batches'
 * gradients they hold. Only for small plans. */
#ifndef TEST_LAYERED_WORLD_H
#define TEST_LAYERED_WORLD_H

#include "planner/any_candidate.h"
#include "planner/spoil.h"

#define WORLD_RANKS 8
#define WORLD_SLOTS 32
#define WORLD_BLOCKS 32
#define WORLD_MICRO 60

struct world_cell {
    bool full;
    int begin, end,
        micro; /* a range of blocks of weights or gradients; or a boundary tensor and its micro-batch */
    uint64_t taken, as_head; /* Bit sets of the micro-batches whose gradients the buffer holds; as_head: those
                                that the head contributed to a tied table. */
};

struct world {
    const struct plan *plan;
    struct rand_stream *random;
    struct world_cell *cells[WORLD_RANKS][WORLD_SLOTS];
    struct world_cell own[WORLD_RANKS][WORLD_BLOCKS]; /* the gradients that the optimiser's step will use */
    bool *done[WORLD_RANKS], stepped[WORLD_RANKS];
    int forward[WORLD_MICRO][WORLD_BLOCKS], backward[WORLD_MICRO][WORLD_BLOCKS];
    char why[160];
};

static inline int world_wrong(struct world *w, uint32_t rank, const char *why)
{
    snprintf(w->why, sizeof(w->why), "rank %u: %s", rank, why);
    return -1;
}

static inline bool world_held_kind(const struct plan_slot *slot)
{
    return slot->lifetime == SLOT_FOR_INSTRUCTIONS;
}

static inline struct world_cell *world_cell_of(struct world *w, uint32_t rank, int slot, int micro, int block)
{
    return &w->cells[rank][slot][slot_instance(&w->plan->ranks[rank].slots[slot], micro, block)];
}

/* Returns the first temporary slot of a kind that covers the block, or −1. */
static inline int world_slot(const struct world *w, uint32_t rank, int kind, int block)
{
    const struct plan_rank *r = &w->plan->ranks[rank];
    for (uint32_t s = 0; s < r->slot_count; s++)
        if (r->slots[s].kind == kind && world_held_kind(&r->slots[s]) && r->slots[s].block_begin <= block &&
            block < r->slots[s].block_end)
            return (int)s;
    return -1;
}

static inline int world_weights(struct world *w, uint32_t rank, int block)
{
    int slot = world_slot(w, rank, SLOT_GATHERED, block);
    if (slot < 0)
        return 0;
    struct world_cell *c = world_cell_of(w, rank, slot, 0, block);
    return c->full && c->begin <= block && block < c->end ? 0 : world_wrong(w, rank, "weights are not there");
}

static inline int world_gradient(struct world *w, uint32_t rank, int begin, int end, int block, int micro,
                                 bool as_head)
{
    int slot = world_slot(w, rank, SLOT_GRADIENTS, block);
    struct world_cell *c = &w->own[rank][block];
    if (slot >= 0) {
        bool one = w->plan->ranks[rank].slots[slot].ring_blocks == 1;
        const struct plan_slot *s = &w->plan->ranks[rank].slots[slot];
        int from = as_head ? 0 : one && begin < s->block_begin ? s->block_begin : one ? begin : block;
        int to = as_head ? 1 : one && end > s->block_end ? s->block_end : one ? end : block + 1;
        while (from < block && world_slot(w, rank, SLOT_GRADIENTS, from) != slot)
            from++;
        while (to > block + 1 && world_slot(w, rank, SLOT_GRADIENTS, to - 1) != slot)
            to--;
        c = world_cell_of(w, rank, slot, 0, from);
        if (c->full && (c->begin != from || c->end != to))
            return world_wrong(w, rank, "gradients of two blocks in one place");
        if (!c->full)
            *c = (struct world_cell){.full = true, .begin = from, .end = to};
        if (!as_head && block > from)
            return 0; /* The gradients of a range of blocks are counted once, with its first block. */
    }
    uint64_t bit = 1ull << micro, *set = as_head ? &c->as_head : &c->taken;
    if (*set & bit)
        return world_wrong(w, rank, "a gradient is added twice");
    *set |= bit;
    return 0;
}

static inline int world_fill(struct world *w, uint32_t rank, int slot, const struct instr *x, int boundary)
{
    if (slot < 0 || !world_held_kind(&w->plan->ranks[rank].slots[slot]))
        return 0;
    struct world_cell *c = world_cell_of(w, rank, slot, x->micro_batch, x->block_begin);
    if (c->full)
        return world_wrong(w, rank, "overwritten");
    *c = (struct world_cell){.full = true, .begin = boundary, .micro = x->micro_batch};
    return 0;
}

static inline int world_take(struct world *w, uint32_t rank, int slot, const struct instr *x, int boundary,
                             bool frees)
{
    if (slot < 0 || !world_held_kind(&w->plan->ranks[rank].slots[slot]))
        return 0;
    struct world_cell *c = world_cell_of(w, rank, slot, x->micro_batch, x->block_begin);
    if (!c->full || c->micro != x->micro_batch || (boundary >= 0 && c->begin != boundary))
        return world_wrong(w, rank, "read what is not there");
    c->full = !frees;
    return 0;
}

static inline int world_step(struct world *w, uint32_t rank)
{
    const struct plan *plan = w->plan;
    uint64_t all = plan->micro_batch_count == 64 ? ~0ull : (1ull << plan->micro_batch_count) - 1;
    const struct plan_rank *r = &plan->ranks[rank];
    int begin = plan->trains_embedding ? r->block_begin : 1,
        end = plan->trains_embedding ? r->block_end : plan->block_count - 1;
    begin = begin < r->block_begin ? r->block_begin : begin;
    end = end > r->block_end ? r->block_end : end;
    for (int b = begin; b < end; b++) {
        bool table = b == 0 && r->owns_tied && plan->trains_embedding;
        if (w->own[rank][b].taken != all || (table && w->own[rank][b].as_head != all))
            return world_wrong(w, rank, "steps with gradients that are not all of them");
    }
    w->stepped[rank] = true;
    return 0;
}

static inline int world_compute(struct world *w, uint32_t rank, const struct instr *x)
{
    const struct plan_rank *r = &w->plan->ranks[rank];
    bool in = x->flags & FLAG_FREES_IN, save = x->flags & FLAG_FREES_SAVE, back = x->op == INSTR_BACKWARD;
    bool tied =
        (r->owns_tied || r->copies_tied) && x->block_end == w->plan->block_count && x->block_begin > 0;
    if (x->op == INSTR_STEP)
        return world_step(w, rank);
    if (x->op == INSTR_RELEASE && x->slot_in < 0)
        return 0;
    if (x->op == INSTR_RELEASE) {
        struct world_cell *c = world_cell_of(w, rank, x->slot_in, x->micro_batch, x->block_begin);
        if (!c->full)
            return world_wrong(w, rank, "released twice");
        c->full = false;
        return 0;
    }
    if (x->op != INSTR_FORWARD && !back)
        return 0;
    for (int b = x->block_begin; b < x->block_end; b++) {
        (back ? w->backward : w->forward)[x->micro_batch][b]++;
        if ((!back || b > 0) && world_weights(w, rank, b) < 0)
            return -1;
        if (back && world_gradient(w, rank, x->block_begin, x->block_end, b, x->micro_batch, false) < 0)
            return -1;
    }
    if (tied && world_weights(w, rank, 0) < 0)
        return -1;
    if (back && tied && w->plan->trains_embedding &&
        world_gradient(w, rank, 0, 1, 0, x->micro_batch, true) < 0)
        return -1;
    if (!back && x->block_begin > 0 && x->slot_in < 0)
        return world_wrong(w, rank, "no input");
    if (back && x->block_end < w->plan->block_count && x->slot_in < 0)
        return world_wrong(w, rank, "no gradient");
    if (world_take(w, rank, x->slot_in, x, back ? x->block_end : x->block_begin, in) < 0)
        return -1;
    if (back ? world_take(w, rank, x->slot_save, x, -1, save) < 0
             : world_fill(w, rank, x->slot_save, x, x->block_begin) < 0)
        return -1;
    return world_fill(w, rank, x->slot_out, x, back ? x->block_begin : x->block_end);
}

/* Returns the first unfinished instruction of a queue if it may start, otherwise UINT32_MAX. */
static inline uint32_t world_head(const struct world *w, uint32_t rank, int queue, int peer, int group)
{
    const struct program *p = &w->plan->ranks[rank].programs[PROGRAM_TRAIN];
    for (uint32_t i = 0; i < p->instr_count; i++) {
        const struct instr *x = &p->instrs[i];
        if (!w->done[rank][i] && x->queue == queue &&
            (queue == QUEUE_GROUP ? x->group == group : x->peer == peer))
            return fixture_ready(w->plan, rank, i, w->done[rank]) ? i : UINT32_MAX;
    }
    return UINT32_MAX;
}

static inline const struct instr *world_instr(const struct world *w, uint32_t rank, uint32_t i)
{
    return &w->plan->ranks[rank].programs[PROGRAM_TRAIN].instrs[i];
}

/* Adds received gradients to those that the rank's optimiser step will use. */
static inline int world_add(struct world *w, uint32_t rank, int begin, int end, uint64_t taken,
                            uint64_t as_head)
{
    for (int b = begin; b < end; b++) {
        struct world_cell *own = &w->own[rank][b];
        if (w->stepped[rank])
            return world_wrong(w, rank, "gradients come after the step");
        if ((own->taken & taken) || (b == 0 && (own->as_head & as_head)))
            return world_wrong(w, rank, "a gradient is counted twice");
        own->taken |= taken;
        own->as_head |= as_head;
    }
    return 0;
}

/* Removes the gradients that a rank contributes to a reduction from the rank's buffer and returns them. */
static inline int world_give(struct world *w, uint32_t rank, const struct instr *x, uint64_t *taken,
                             uint64_t *as_head)
{
    if (x->slot_in < 0)
        return 0;
    const struct plan_slot *slot = &w->plan->ranks[rank].slots[x->slot_in];
    if (slot->kind != SLOT_GRADIENTS)
        return world_wrong(w, rank, "gives no gradients");
    if (!world_held_kind(slot))
        return 0;
    struct world_cell *c = world_cell_of(w, rank, x->slot_in, 0, x->block_begin);
    if (!c->full || c->begin != x->block_begin || c->end != x->block_end)
        return world_wrong(w, rank, "gives gradients that are not there");
    if ((*taken & c->taken) || (*as_head & c->as_head))
        return world_wrong(w, rank, "a gradient is counted twice");
    *taken |= c->taken;
    *as_head |= c->as_head;
    c->full = !(x->flags & FLAG_FREES_IN);
    return 0;
}

static inline int world_get_weights(struct world *w, uint32_t rank, const struct instr *x)
{
    if (x->slot_out < 0)
        return 0;
    struct world_cell *c = world_cell_of(w, rank, x->slot_out, 0, x->block_begin);
    if (!world_held_kind(&w->plan->ranks[rank].slots[x->slot_out]))
        return world_wrong(w, rank, "weights come to where they stay");
    if (c->full)
        return world_wrong(w, rank, "weights overwritten");
    *c = (struct world_cell){.full = true, .begin = x->block_begin, .end = x->block_end};
    return 0;
}

static inline int world_meet(struct world *w, const struct plan_group *group, const uint32_t *at)
{
    uint64_t taken = 0, as_head = 0;
    const struct instr *first = world_instr(w, group->ranks[0], at[0]);
    for (uint32_t m = 0; m < group->rank_count; m++) {
        uint32_t rank = group->ranks[m];
        const struct instr *x = world_instr(w, rank, at[m]);
        if (x->op != first->op || x->tag != first->tag || x->block_begin != first->block_begin)
            return world_wrong(w, rank, "collectives cross");
        if (x->op == INSTR_ALL_GATHER && (w->stepped[rank] || world_get_weights(w, rank, x) < 0))
            return world_wrong(w, rank, w->stepped[rank] ? "gathers after the step" : "gather");
        if (x->op == INSTR_REDUCE_SCATTER && world_give(w, rank, x, &taken, &as_head) < 0)
            return -1;
        if (x->op == INSTR_ALL_REDUCE && x->tag == TAG_PARAMETER_GRADIENTS) {
            if (taken & w->own[rank][1].taken)
                return world_wrong(w, rank, "summed twice");
            taken |= w->own[rank][1].taken;
        }
    }
    for (uint32_t m = 0; m < group->rank_count; m++) {
        uint32_t rank = group->ranks[m];
        const struct instr *x = world_instr(w, rank, at[m]);
        double share = group->shares ? group->shares[m] : 1;
        if (x->op == INSTR_REDUCE_SCATTER && share > 0 &&
            world_add(w, rank, x->block_begin, x->block_end, taken, as_head) < 0)
            return -1;
        for (int b = 0;
             x->op == INSTR_ALL_REDUCE && x->tag == TAG_PARAMETER_GRADIENTS && b < w->plan->block_count; b++)
            w->own[rank][b].taken = taken;
        w->done[rank][at[m]] = true;
    }
    return 1;
}

static inline int world_transfer(struct world *w, uint32_t from, uint32_t i, uint32_t to, uint32_t k)
{
    const struct instr *a = world_instr(w, from, i), *b = world_instr(w, to, k);
    uint64_t taken = 0, as_head = 0;
    if (a->op == INSTR_SEND &&
        (a->micro_batch != b->micro_batch || a->row_begin != b->row_begin || a->row_end != b->row_end))
        return world_wrong(w, from, "rows cross");
    if (a->tag != b->tag || a->block_begin != b->block_begin || a->block_end != b->block_end)
        return world_wrong(w, from, "messages cross");
    if (a->op == INSTR_SEND) {
        struct world_cell *c = world_cell_of(w, from, a->slot_in, a->micro_batch, a->block_begin);
        int boundary = c->begin;
        if (world_take(w, from, a->slot_in, a, -1, a->flags & FLAG_FREES_IN) < 0)
            return -1;
        return world_fill(w, to, b->slot_out, b, boundary) < 0 ? -1 : 1;
    }
    if (a->tag == TAG_PARAMETERS) {
        if (w->stepped[from])
            return world_wrong(w, from, "sends parameters after the step");
        return world_get_weights(w, to, b) < 0 ? -1 : 1;
    }
    if (a->tag != TAG_PARAMETER_GRADIENTS || world_give(w, from, a, &taken, &as_head) < 0)
        return -1;
    if (!(b->flags & FLAG_ACCUMULATE) || w->plan->ranks[to].slots[b->slot_out].kind != SLOT_GRADIENTS)
        return world_wrong(w, to, "replaces gradients");
    return world_add(w, to, a->block_begin, a->block_end, taken, as_head) < 0 ? -1 : 1;
}

/* Executes instruction i of a rank if it can run. Returns 1 when it ran. */
static inline int world_advance(struct world *w, uint32_t rank, uint32_t i)
{
    const struct instr *x = world_instr(w, rank, i);
    if (!fixture_ready(w->plan, rank, i, w->done[rank]) || x->queue == QUEUE_RECV)
        return 0;
    if (x->queue == QUEUE_GROUP) {
        const struct plan_group *group = &w->plan->groups[x->group];
        uint32_t at[WORLD_RANKS];
        for (uint32_t m = 0; m < group->rank_count; m++) {
            at[m] = world_head(w, group->ranks[m], QUEUE_GROUP, -1, x->group);
            if (at[m] == UINT32_MAX)
                return 0;
        }
        return world_meet(w, group, at);
    }
    if (x->queue == QUEUE_SEND) {
        uint32_t k = world_head(w, (uint32_t)x->peer, QUEUE_RECV, (int)rank, -1);
        if (k == UINT32_MAX)
            return 0;
        if (world_transfer(w, rank, i, (uint32_t)x->peer, k) < 0)
            return -1;
        w->done[x->peer][k] = w->done[rank][i] = true;
        return 1;
    }
    if (world_compute(w, rank, x) < 0)
        return -1;
    w->done[rank][i] = true;
    return 1;
}

static inline int world_finished(struct world *w)
{
    const struct plan *plan = w->plan;
    double stepped = 0;
    for (uint32_t k = 0; k < plan->micro_batch_count; k++) {
        for (int b = 0; b < plan->block_count; b++)
            if (w->forward[k][b] != 1 || w->backward[k][b] != 1)
                return world_wrong(w, 0, "a row passes a block not exactly once");
    }
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        uint32_t steps = 0, scalars = 0, norms = 0;
        for (uint32_t i = 0; i < plan->ranks[r].programs[PROGRAM_TRAIN].instr_count; i++) {
            const struct instr *x = world_instr(w, r, i);
            steps += x->op == INSTR_STEP;
            scalars += x->op == INSTR_ALL_REDUCE && x->tag == TAG_STEP_SCALARS;
            norms += x->tag == TAG_NORM && (x->op == INSTR_ALL_REDUCE || x->peer != (int32_t)r);
        }
        if (scalars != 1 || norms != 1 || steps > 1 || (steps == 0 && plan->ranks[r].state_share > 0))
            return world_wrong(w, r, "steps, scalars or norms");
        stepped += w->stepped[r] ? plan->ranks[r].state_share : 0;
        for (uint32_t s = 0; s < plan->ranks[r].slot_count; s++) {
            const struct plan_slot *slot = &plan->ranks[r].slots[s];
            for (uint32_t n = 0; n < slot->ring_micro_batches * slot->ring_blocks; n++)
                if (world_held_kind(slot) && w->cells[r][s][n].full)
                    return world_wrong(w, r, "something is left");
        }
    }
    return stepped > 1 - 1e-6 ? 0 : world_wrong(w, 0, "state is left that nobody stepped");
}

static inline int world_run(struct world *w)
{
    for (;;) {
        uint32_t ranks = w->plan->rank_count, first = rand_stream_below(w->random, ranks);
        bool any = false, all = true;
        for (uint32_t n = 0; n < ranks && !any; n++) {
            uint32_t rank = (first + n) % ranks,
                     count = w->plan->ranks[rank].programs[PROGRAM_TRAIN].instr_count;
            bool forwards = rand_stream_below(w->random, 2);
            for (uint32_t k = 0; k < count && !any; k++) {
                uint32_t i = forwards ? k : count - 1 - k;
                int result = w->done[rank][i] ? 0 : world_advance(w, rank, i);
                if (result < 0)
                    return -1;
                any = result > 0;
            }
        }
        for (uint32_t r = 0; r < ranks && !any; r++)
            for (uint32_t i = 0; i < w->plan->ranks[r].programs[PROGRAM_TRAIN].instr_count; i++)
                all = all && w->done[r][i];
        if (!any)
            return all ? world_finished(w) : world_wrong(w, 0, "stuck");
    }
}

/* Whether the execution supports the plan: it is small, its backward passes are not split, and each rank has
 * one range of blocks. */
static inline bool world_holds(const struct plan *plan)
{
    bool holds = plan->schedule <= SCHEDULE_GPIPE && plan->rank_count <= WORLD_RANKS &&
                 plan->micro_batch_count < WORLD_MICRO && plan->block_count <= WORLD_BLOCKS;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        holds = holds && plan->ranks[r].slot_count <= WORLD_SLOTS;
    return holds;
}

/* Runs the plan's training program in `turns` random orders. Returns whether all of them were correct. */
static inline bool world_right(const struct plan *plan, struct rand_stream *random, int turns, char why[160])
{
    bool good = true;
    for (int turn = 0; turn < turns && good; turn++) {
        struct world *w = calloc(1, sizeof(*w));
        w->plan = plan;
        w->random = random;
        for (uint32_t r = 0; r < plan->rank_count; r++) {
            w->done[r] = calloc(plan->ranks[r].programs[PROGRAM_TRAIN].instr_count + 1, 1);
            for (uint32_t s = 0; s < plan->ranks[r].slot_count; s++) {
                const struct plan_slot *slot = &plan->ranks[r].slots[s];
                w->cells[r][s] =
                    calloc((size_t)slot->ring_micro_batches * slot->ring_blocks, sizeof(struct world_cell));
            }
        }
        good = world_run(w) == 0;
        snprintf(why, 160, "%s", w->why);
        for (uint32_t r = 0; r < plan->rank_count; r++) {
            free(w->done[r]);
            for (uint32_t s = 0; s < plan->ranks[r].slot_count; s++)
                free(w->cells[r][s]);
        }
        free(w);
    }
    return good;
}

#define WORLD_SPOILS 10u

/* Introduces one random fault into the training programs. Returns false when this fault does not apply to the
 * plan. */
static inline bool world_spoil(struct plan *plan, struct rand_stream *random)
{
    uint32_t rank = rand_stream_below(random, plan->rank_count);
    struct plan_rank *r = &plan->ranks[rank];
    struct program *p = &r->programs[PROGRAM_TRAIN];
    uint32_t i = rand_stream_below(random, p->instr_count);
    struct instr *x = &p->instrs[i];
    switch (rand_stream_below(random, WORLD_SPOILS)) {
    case 0: /* The instruction is dropped. */
        return spoil_drop(x);
    case 1: /* The instruction is swapped with the next one on its queue. */
        return spoil_swap_next(plan, p, i);
    case 2: /* The instruction names another micro-batch. */
        return spoil_micro_batch(plan, x);
    case 3: /* One block is reduced twice on all members. */
    case 4: /* One block is never reduced on any member. */
        if (x->op != INSTR_REDUCE_SCATTER)
            return false;
        for (uint32_t m = 0; m < plan->rank_count; m++) {
            struct program *q = &plan->ranks[m].programs[PROGRAM_TRAIN];
            for (uint32_t k = 0; k < q->instr_count; k++) {
                struct instr *y = &q->instrs[k];
                if (y->op == INSTR_REDUCE_SCATTER && y->block_begin == x->block_begin + 1 && y != x) {
                    y->block_begin--;
                    y->block_end--;
                }
            }
        }
        return true;
    case 5: /* The instruction no longer waits for others. */
        return spoil_wait(x);
    case 6: /* The slot is not freed, or the gradient is not accumulated. */
        return spoil_flags(x);
    case 7: /* The instruction names another block. */
        if (x->block_begin == x->block_end || x->block_end >= plan->block_count)
            return false;
        x->block_begin++;
        x->block_end++;
        return true;
    case 8: /* The weights are gathered too late or never, because the copy is released early. */
        if (x->op != INSTR_RELEASE || i == 0)
            return false;
        for (uint32_t k = i; k-- > 0;) {
            if (p->instrs[k].queue == QUEUE_COMPUTE) {
                spoil_exchange(x, &p->instrs[k]);
                return true;
            }
        }
        return false;
    default: /* The instruction uses another slot. */
        return spoil_slot_out(r, x, random);
    }
}

#endif
