/* Checks buffers that instructions use without naming them: weights that are gathered (ALL_GATHER) or
 * pulled (PULL) block by block, and gradients that wait for their reduction (REDUCE_SCATTER, PUSH).
 *
 * FORWARD and BACKWARD name blocks, not the place of the blocks' weights. The weights of block b are in
 * the rank's first SLOT_GATHERED whose range covers b, or else in the rank's own state. Likewise a
 * backward adds to the first SLOT_GRADIENTS of lifetime SLOT_FOR_INSTRUCTIONS that covers b. This part
 * checks those slots, and slots.c all others. As there, only the order that the rank itself establishes
 * counts.
 */
#include <stdio.h>
#include <stdlib.h>

#include "program/check/check_private.h"

#define READERS_MAX 8u /* most queues that may read one instance at once */
#define INSTANCES_MAX (1u << 22)

struct held_instance {
    bool written, freed;
    uint32_t writer, freer;
    int32_t begin, end; /* blocks whose weights or gradients the instance contains */
    uint32_t reader_count, readers[READERS_MAX];
};

struct held_state {
    const struct plan *plan;
    const struct plan_rank *rank;
    const struct check_order *order;
    uint32_t number;
    int kind;
    int32_t *gathered, *gradients; /* [block_count]: slot of the block, or PLAN_NONE */
    struct held_instance **held;   /* [slot][instance]; NULL for slots that slots.c checks */
    struct err *err;
};

bool check_slot_held(const struct plan_slot *slot)
{
    return slot->kind == SLOT_GATHERED ||
           (slot->kind == SLOT_GRADIENTS && slot->lifetime == SLOT_FOR_INSTRUCTIONS);
}

static const char *noun(const struct held_state *s, int32_t slot)
{
    return s->rank->slots[slot].kind == SLOT_GATHERED ? "weights" : "gradients";
}

/* Writes a refusal: "rank 1 train instruction 5 (…): the weights of block 3 are used before they are gathered
 * [by …]". */
static int held_refuse(struct held_state *s, uint32_t instr, int32_t slot, int32_t block, const char *what,
                       int64_t other)
{
    char where[200], there[200] = "";
    plan_where(s->plan, s->number, s->kind, instr, where);
    if (other >= 0)
        plan_where(s->plan, s->number, s->kind, (uint32_t)other, there);
    return err_set(s->err, ERR_INVALID, "%s: the %s of block %d %s%s%s", where, noun(s, slot), block, what,
                   other >= 0 ? " " : "", there);
}

static struct held_instance *held_instance_of(struct held_state *s, int32_t slot, int32_t block)
{
    return &s->held[slot][slot_instance(&s->rank->slots[slot], 0, block)];
}

static int held_write(struct held_state *s, uint32_t i, int32_t slot, int32_t begin, int32_t end)
{
    struct held_instance *it = held_instance_of(s, slot, begin);
    if (it->written && !it->freed)
        return held_refuse(s, i, slot, it->begin, "would be overwritten before they are freed; written by",
                           it->writer);
    if (it->freed && !check_order_before(s->order, it->freer, i))
        return held_refuse(s, i, slot, it->begin, "may still be there; they are freed by", it->freer);
    *it = (struct held_instance){.written = true, .writer = i, .begin = begin, .end = end};
    return 0;
}

static int held_add(struct held_state *s, uint32_t i, int32_t slot, int32_t begin, int32_t end)
{
    struct held_instance *it = held_instance_of(s, slot, begin);
    if (!it->written || it->freed || it->begin != begin || it->end != end)
        return held_write(s, i, slot, begin, end);
    if (it->reader_count)
        return held_refuse(s, i, slot, begin, "are added to although they were sent by", it->readers[0]);
    if (!check_order_before(s->order, it->writer, i))
        return held_refuse(s, i, slot, begin, "may be added to at the same time by", it->writer);
    it->writer = i;
    return 0;
}

static int held_read(struct held_state *s, uint32_t i, int32_t slot, int32_t begin, int32_t end)
{
    struct held_instance *it = held_instance_of(s, slot, begin);
    if (it->freed && it->begin <= begin && end <= it->end)
        return held_refuse(s, i, slot, begin, "are used after they were freed by", it->freer);
    if (!it->written || it->freed)
        return held_refuse(s, i, slot, begin, "are used before they are there", -1);
    if (it->begin > begin || it->end < end)
        return held_refuse(s, i, slot, begin, "are used while their place holds others, put there by",
                           it->writer);
    if (!check_order_before(s->order, it->writer, i))
        return held_refuse(s, i, slot, begin, "may be used before they come with", it->writer);
    for (uint32_t k = 0; k < it->reader_count; k++) {
        if (s->order->queue[it->readers[k]] == s->order->queue[i]) {
            it->readers[k] = i;
            return 0;
        }
    }
    if (it->reader_count == READERS_MAX)
        return held_refuse(s, i, slot, begin, "are used on too many queues at once, among them by",
                           it->readers[0]);
    it->readers[it->reader_count++] = i;
    return 0;
}

static int held_free(struct held_state *s, uint32_t i, int32_t slot, int32_t begin)
{
    struct held_instance *it = held_instance_of(s, slot, begin);
    if (it->freed)
        return held_refuse(s, i, slot, begin, "are freed twice, before by", it->freer);
    if (!it->written)
        return held_refuse(s, i, slot, begin, "are freed but were never there", -1);
    if (it->begin != begin)
        return held_refuse(s, i, slot, begin, "are freed while their place holds others, put there by",
                           it->writer);
    if (it->writer != i && !check_order_before(s->order, it->writer, i))
        return held_refuse(s, i, slot, begin, "are freed while they may be written by", it->writer);
    for (uint32_t k = 0; k < it->reader_count; k++)
        if (it->readers[k] != i && !check_order_before(s->order, it->readers[k], i))
            return held_refuse(s, i, slot, begin, "are freed while they may be in use by", it->readers[k]);
    it->freed = true;
    it->freer = i;
    return 0;
}

/* Calls access() once for each run of blocks that share an instance. */
static int each_run(struct held_state *s, uint32_t i, const int32_t *slot_of, int32_t begin, int32_t end,
                    int (*access)(struct held_state *, uint32_t, int32_t, int32_t, int32_t))
{
    for (int32_t b = begin; b < end;) {
        int32_t slot = slot_of[b], run = b + 1;
        while (slot >= 0 && run < end && slot_of[run] == slot && s->rank->slots[slot].ring_blocks == 1)
            run++;
        if (slot >= 0 && access(s, i, slot, b, run) < 0)
            return -1;
        b = run;
    }
    return 0;
}

/* Records the accesses of a FORWARD or BACKWARD to its blocks' weights, including the embedding's table if a
 * tied head uses it. */
static int computes(struct held_state *s, uint32_t i, const struct instr *x)
{
    bool forward = x->op == INSTR_FORWARD || (x->op == INSTR_ATTENTION && !(x->flags & FLAG_BACKWARD));
    bool backward = x->op == INSTR_BACKWARD || x->op == INSTR_BACKWARD_INPUT ||
                    x->op == INSTR_BACKWARD_WEIGHT ||
                    (x->op == INSTR_ATTENTION && (x->flags & FLAG_BACKWARD));
    bool weights = backward && x->op != INSTR_BACKWARD_INPUT;
    if (!forward && !backward)
        return 0;
    bool tied = (s->rank->owns_tied || s->rank->copies_tied) && x->block_end == s->plan->block_count &&
                x->block_begin > 0;
    /* A look-up of tokens needs the table; adding to its gradient does not. */
    int32_t begin = backward && x->block_begin == 0 ? 1 : x->block_begin;
    if (each_run(s, i, s->gathered, begin, x->block_end, held_read) < 0 ||
        (tied && each_run(s, i, s->gathered, 0, 1, held_read) < 0))
        return -1;
    if (weights && each_run(s, i, s->gradients, x->block_begin, x->block_end, held_add) < 0)
        return -1;
    return weights && tied && s->plan->trains_embedding ? each_run(s, i, s->gradients, 0, 1, held_add) : 0;
}

static int instr_held(struct held_state *s, uint32_t i)
{
    const struct instr *x = &s->rank->programs[s->kind].instrs[i];
    bool in = x->slot_in >= 0 && s->held[x->slot_in], out = x->slot_out >= 0 && s->held[x->slot_out];
    if ((in || out) && (x->block_begin == x->block_end || x->slot_in == x->slot_out)) {
        char where[200];
        return err_set(s->err, ERR_INVALID, "%s: it names no blocks, or its slot twice",
                       plan_where(s->plan, s->number, s->kind, i, where));
    }
    if (in && x->op != INSTR_RELEASE && held_read(s, i, x->slot_in, x->block_begin, x->block_end) < 0)
        return -1;
    if (out && held_write(s, i, x->slot_out, x->block_begin, x->block_end) < 0)
        return -1;
    if (in && (x->op == INSTR_RELEASE || (x->flags & FLAG_FREES_IN)) &&
        held_free(s, i, x->slot_in, x->block_begin) < 0)
        return -1;
    return computes(s, i, x);
}

static int held_nothing_left(struct held_state *s)
{
    for (uint32_t k = 0; k < s->rank->slot_count; k++) {
        uint64_t ring =
            s->held[k] ? (uint64_t)s->rank->slots[k].ring_micro_batches * s->rank->slots[k].ring_blocks : 0;
        for (uint64_t n = 0; n < ring; n++) {
            const struct held_instance *it = &s->held[k][n];
            if (it->written && !it->freed)
                return held_refuse(s, it->writer, (int32_t)k, it->begin, "are never freed", -1);
        }
    }
    return 0;
}

static int held_state_init(struct held_state *s)
{
    size_t blocks = (size_t)s->plan->block_count + 1;
    uint64_t total = 0;
    s->gathered = calloc(blocks, sizeof(*s->gathered));
    s->gradients = calloc(blocks, sizeof(*s->gradients));
    s->held = calloc((size_t)s->rank->slot_count + 1, sizeof(*s->held));
    if (!s->gathered || !s->gradients || !s->held)
        return err_set(s->err, ERR_NOMEM, "plan: out of memory while checking slots");
    for (size_t b = 0; b < blocks; b++)
        s->gathered[b] = s->gradients[b] = PLAN_NONE;
    for (uint32_t k = s->rank->slot_count; k-- > 0;) {
        const struct plan_slot *slot = &s->rank->slots[k];
        if (!check_slot_held(slot))
            continue;
        int32_t *of = slot->kind == SLOT_GATHERED ? s->gathered : s->gradients;
        total += (uint64_t)slot->ring_micro_batches * slot->ring_blocks;
        if (slot->block_begin < 0 || slot->block_end > s->plan->block_count ||
            slot->block_begin >= slot->block_end || slot->ring_micro_batches != 1)
            return err_set(s->err, ERR_INVALID, "rank %u slot %u (%s): blocks %d..%d of %d, ring of %u",
                           s->number, k, slot_kind_name(slot->kind), slot->block_begin, slot->block_end,
                           s->plan->block_count, slot->ring_micro_batches);
        s->held[k] = total > INSTANCES_MAX ? NULL : calloc(slot->ring_blocks, sizeof(**s->held));
        if (!s->held[k])
            return err_set(s->err, ERR_NOMEM, "rank %u: slots of %llu buffers are too many to check",
                           s->number, (unsigned long long)total);
        for (int32_t b = slot->block_begin; b < slot->block_end; b++)
            of[b] = (int32_t)k;
    }
    return 0;
}

int check_held(const struct plan *plan, uint32_t rank, int kind, const struct check_order *order,
               struct err *err)
{
    struct held_state s = {
        .plan = plan, .rank = &plan->ranks[rank], .order = order, .number = rank, .kind = kind, .err = err};
    bool any = false;
    for (uint32_t k = 0; k < s.rank->slot_count; k++)
        any = any || check_slot_held(&s.rank->slots[k]);
    if (!any)
        return 0;
    int result = held_state_init(&s);
    for (uint32_t i = 0; i < order->count && result == 0; i++)
        result = instr_held(&s, i);
    if (result == 0)
        result = held_nothing_left(&s);
    for (uint32_t k = 0; s.held && k < s.rank->slot_count; k++)
        free(s.held[k]);
    free(s.held);
    free(s.gathered);
    free(s.gradients);
    return result;
}
