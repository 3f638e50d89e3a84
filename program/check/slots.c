/* Checks slots: what an instance contains, which instruction wrote it, and which instructions still read it.
 *
 * Only the order that this rank itself establishes counts (its queues and its `after` lists). Two
 * instructions that touch one instance, one of them writing or freeing, must be ordered by it, whatever the
 * network does. List order is a linear extension of that order, so one pass over the list sees every pair.
 */
#include <stdlib.h>
#include <string.h>

#include "program/check/check_private.h"

struct index_list {
    uint32_t count, capacity;
    uint32_t *items;
};

struct slot_instance {
    bool written, freed;
    bool whole; /* SLOT_PARTIAL: the contents are a complete boundary tensor (all-reduced, received, or the
                   output of whole blocks), not one member's partial sum */
    uint32_t writer, freer;
    int32_t micro_batch,
        boundary;  /* micro-batch of a boundary tensor, and its boundary counted in half blocks */
    int32_t block; /* block of the layer whose routed tokens the instance contains */
    struct index_list readers;
    struct index_list parts; /* earlier RECVs that wrote other rows of the same micro-batch */
    /* Rows of the micro-batch written so far; several neighbours may each send some of the rows. */
    uint64_t rows_written;
};

struct slots_state {
    const struct plan *plan;
    const struct plan_rank *rank;
    const struct check_order *order;
    uint32_t number;
    int kind;
    struct slot_instance **instances; /* [slot][instance]: the state of every buffer */
    struct err *err;
};

static int slots_refuse(struct slots_state *s, uint32_t instr, int32_t slot, const char *what, uint32_t other,
                        bool with)
{
    char where[200], there[200] = "";
    plan_where(s->plan, s->number, s->kind, instr, where);
    if (with)
        plan_where(s->plan, s->number, s->kind, other, there);
    return err_set(s->err, ERR_INVALID, "%s: slot %d (%s) %s%s%s", where, slot,
                   slot_kind_name(s->rank->slots[slot].kind), what, with ? " " : "", there);
}

static int slots_list_add(struct index_list *list, uint32_t item, struct err *err)
{
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity ? list->capacity * 2 : 4;
        uint32_t *grown = realloc(list->items, capacity * sizeof(*grown));
        if (!grown)
            return err_set(err, ERR_NOMEM, "plan: out of memory while checking slots");
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->count++] = item;
    return 0;
}

static uint64_t slots_rows_of(const struct plan *plan, const struct instr *x)
{
    if (x->micro_batch < 0)
        return 1;
    uint32_t rows = plan->micro_batch_start[x->micro_batch + 1] - plan->micro_batch_start[x->micro_batch];
    uint32_t end = x->row_end < rows ? x->row_end : rows;
    return end > x->row_begin ? end - x->row_begin : 0;
}

static uint64_t rows_full(const struct plan *plan, const struct instr *x)
{
    return x->micro_batch < 0
               ? 1
               : plan->micro_batch_start[x->micro_batch + 1] - plan->micro_batch_start[x->micro_batch];
}

static bool kind_is_boundary(int kind)
{
    return kind == SLOT_ACTIVATION || kind == SLOT_GRADIENT || kind == SLOT_PARTIAL;
}

static struct slot_instance *slots_instance_of(struct slots_state *s, const struct instr *x, int32_t slot)
{
    return &s->instances[slot][slot_instance(&s->rank->slots[slot], x->micro_batch, x->block_begin)];
}

/* Checks that all readers of a slot instance since its last write, and the instruction that freed it, are
 * done before instruction i. */
static int users_done(struct slots_state *s, uint32_t i, int32_t slot, const struct slot_instance *it)
{
    for (uint32_t k = 0; k < it->readers.count; k++)
        if (!check_order_before(s->order, it->readers.items[k], i))
            return slots_refuse(s, i, slot, "may still be in use by", it->readers.items[k], true);
    return 0;
}

/* Return the boundary, counted in halves of blocks, of the tensor (or gradient) that an instruction writes,
 * and of the one that it reads. */
static int32_t slots_boundary_out(const struct instr *x)
{
    bool forward = x->op == INSTR_FORWARD ||
                   (x->op != INSTR_RECV && x->op != INSTR_SEND && !(x->flags & FLAG_BACKWARD) &&
                    x->op != INSTR_BACKWARD && x->op != INSTR_BACKWARD_INPUT);
    return forward ? 2 * x->block_end - !!(x->flags & FLAG_FIRST_HALF)
                   : 2 * x->block_begin + !!(x->flags & FLAG_SECOND_HALF);
}

static int32_t slots_boundary_in(const struct instr *x)
{
    bool forward = x->op == INSTR_FORWARD || x->op == INSTR_SEND || x->op == INSTR_ATTENTION;
    return forward ? 2 * x->block_begin + !!(x->flags & FLAG_SECOND_HALF)
                   : 2 * x->block_end - !!(x->flags & FLAG_FIRST_HALF);
}

/* Records an all-reduce, which replaces a member's partial sum by the whole sum in place; a second one is an
 * error. */
static int slot_sum(struct slots_state *s, uint32_t i, const struct instr *x, int32_t slot)
{
    struct slot_instance *it = slots_instance_of(s, x, slot);
    if (!it->written || it->freed || it->micro_batch != x->micro_batch)
        return slots_refuse(s, i, slot, "holds no part of this micro-batch to sum", 0, false);
    if (it->whole)
        return slots_refuse(s, i, slot, "is summed twice, before by", it->writer, true);
    if (!check_order_before(s->order, it->writer, i))
        return slots_refuse(s, i, slot, "may be summed before it is written by", it->writer, true);
    if (users_done(s, i, slot, it) < 0)
        return -1;
    it->whole = true;
    it->writer = i;
    it->readers.count = 0;
    return 0;
}

static int slots_slot_write(struct slots_state *s, uint32_t i, const struct instr *x, int32_t slot)
{
    struct slot_instance *it = slots_instance_of(s, x, slot);
    const struct plan_slot *table = &s->rank->slots[slot];
    bool part = x->op == INSTR_RECV && it->written && !it->freed && it->micro_batch == x->micro_batch &&
                it->boundary == slots_boundary_out(x) &&
                it->rows_written + slots_rows_of(s->plan, x) <= rows_full(s->plan, x);
    if (part && kind_is_boundary(table->kind)) {
        it->rows_written += slots_rows_of(s->plan, x);
        int added = slots_list_add(&it->parts, it->writer, s->err);
        it->writer = i;
        return added;
    }
    if (table->lifetime == SLOT_FOR_INSTRUCTIONS && !(x->flags & FLAG_ACCUMULATE)) {
        if (it->written && !it->freed)
            return slots_refuse(s, i, slot, "would be overwritten before it is freed; written by", it->writer,
                                true);
        if (it->freed && !check_order_before(s->order, it->freer, i))
            return slots_refuse(s, i, slot, "may not be free yet; it is freed by", it->freer, true);
    }
    bool adds = (x->flags & FLAG_ACCUMULATE) && kind_is_boundary(table->kind);
    if (adds && (!it->written || it->freed || it->micro_batch != x->micro_batch ||
                 it->boundary != slots_boundary_in(x)))
        return slots_refuse(s, i, slot, "does not hold what it adds to", 0, false);
    if (it->written && !it->freed && !check_order_before(s->order, it->writer, i) && it->writer != i)
        return slots_refuse(s, i, slot, "may be written at the same time by", it->writer, true);
    if (users_done(s, i, slot, it) < 0)
        return -1;
    it->written = true;
    it->freed = false;
    it->writer = i;
    it->readers.count = it->parts.count = 0;
    it->micro_batch = x->micro_batch;
    it->boundary = slots_boundary_out(x);
    it->block = x->block_begin;
    it->rows_written = x->op == INSTR_RECV ? slots_rows_of(s->plan, x) : rows_full(s->plan, x);
    it->whole = x->op == INSTR_RECV || x->op == INSTR_BROADCAST ||
                (x->queue == QUEUE_COMPUTE && !(x->flags & (FLAG_FIRST_HALF | FLAG_SECOND_HALF)));
    return 0;
}

static int reader_add(struct slots_state *s, struct slot_instance *it, uint32_t i)
{
    /* A later reader in the same queue replaces an earlier one, because it ends later. */
    for (uint32_t k = 0; k < it->readers.count; k++) {
        if (s->order->queue[it->readers.items[k]] == s->order->queue[i]) {
            it->readers.items[k] = i;
            return 0;
        }
    }
    return slots_list_add(&it->readers, i, s->err);
}

static int slot_read(struct slots_state *s, uint32_t i, const struct instr *x, int32_t slot)
{
    struct slot_instance *it = slots_instance_of(s, x, slot);
    const struct plan_slot *table = &s->rank->slots[slot];
    if (table->lifetime == SLOT_FOR_RUN && !it->written)
        return reader_add(s, it, i);
    if (!it->written && table->lifetime == SLOT_FOR_INSTRUCTIONS)
        return slots_refuse(s, i, slot, "is read before anything wrote it", 0, false);
    if (it->freed)
        return slots_refuse(s, i, slot, "is read after it was freed by", it->freer, true);
    if (it->written && !check_order_before(s->order, it->writer, i))
        return slots_refuse(s, i, slot, "may be read before it is written by", it->writer, true);
    for (uint32_t k = 0; k < it->parts.count; k++)
        if (!check_order_before(s->order, it->parts.items[k], i))
            return slots_refuse(s, i, slot, "may be read before it is written by", it->parts.items[k], true);
    if (it->written && kind_is_boundary(table->kind) && x->op != INSTR_RELEASE) {
        if (it->micro_batch != x->micro_batch || it->boundary != slots_boundary_in(x))
            return slots_refuse(s, i, slot, "holds another micro-batch or boundary, written by", it->writer,
                                true);
        if (it->rows_written < slots_rows_of(s->plan, x))
            return slots_refuse(s, i, slot, "holds fewer rows than are read; written by", it->writer, true);
    }
    bool routed = table->kind == SLOT_ROUTED || table->kind == SLOT_ROUTED_GRADIENT;
    if (it->written && routed && x->op != INSTR_RELEASE &&
        (it->micro_batch != x->micro_batch || it->block != x->block_begin))
        return slots_refuse(s, i, slot, "holds tokens of another micro-batch or layer, written by",
                            it->writer, true);
    if (table->kind == SLOT_PARTIAL && !it->whole)
        return slots_refuse(s, i, slot, "is a part that was not summed over its group; written by",
                            it->writer, true);
    if (it->written && table->kind == SLOT_SAVED && x->op != INSTR_RELEASE &&
        it->micro_batch != x->micro_batch)
        return slots_refuse(s, i, slot, "holds another micro-batch, saved by", it->writer, true);
    return reader_add(s, it, i);
}

static int slots_slot_free(struct slots_state *s, uint32_t i, const struct instr *x, int32_t slot)
{
    struct slot_instance *it = slots_instance_of(s, x, slot);
    if (it->freed)
        return slots_refuse(s, i, slot, "is freed twice, before by", it->freer, true);
    if (!it->written)
        return slots_refuse(s, i, slot, "is freed but was never written", 0, false);
    for (uint32_t k = 0; k < it->readers.count; k++)
        if (it->readers.items[k] != i && !check_order_before(s->order, it->readers.items[k], i))
            return slots_refuse(s, i, slot, "is freed while it may be in use by", it->readers.items[k], true);
    if (it->writer != i && !check_order_before(s->order, it->writer, i))
        return slots_refuse(s, i, slot, "is freed while it may be written by", it->writer, true);
    it->freed = true;
    it->freer = i;
    it->readers.count = 0;
    return 0;
}

static bool writes_save(const struct instr *x)
{
    return x->op == INSTR_FORWARD ||
           ((x->op == INSTR_ATTENTION || x->op == INSTR_EXPERTS || x->op == INSTR_ROUTE) &&
            !(x->flags & FLAG_BACKWARD));
}

/* Returns the slot, or PLAN_NONE for a slot that held.c checks. */
static int32_t slot_checked(const struct slots_state *s, int32_t slot)
{
    return slot >= 0 && check_slot_held(&s->rank->slots[slot]) ? PLAN_NONE : slot;
}

static int instr_slots(struct slots_state *s, uint32_t i)
{
    const struct instr *x = &s->rank->programs[s->kind].instrs[i];
    int32_t in = slot_checked(s, x->slot_in), out = slot_checked(s, x->slot_out);
    bool in_place = x->queue == QUEUE_GROUP && (x->slot_out == x->slot_in || x->slot_out < 0);
    if (x->op == INSTR_ALL_REDUCE && x->slot_in >= 0 && s->rank->slots[x->slot_in].kind == SLOT_PARTIAL)
        return slot_sum(s, i, x, x->slot_in) < 0 ? -1
               : x->flags & FLAG_FREES_IN        ? slots_slot_free(s, i, x, x->slot_in)
                                                 : 0;
    if (in >= 0 && slot_read(s, i, x, in) < 0)
        return -1;
    if (x->slot_save >= 0) {
        bool run = s->rank->slots[x->slot_save].lifetime == SLOT_FOR_RUN;
        int result = writes_save(x) && !run ? slots_slot_write(s, i, x, x->slot_save)
                                            : slot_read(s, i, x, x->slot_save);
        if (result < 0)
            return -1;
    }
    if (out >= 0 && !in_place && slots_slot_write(s, i, x, out) < 0)
        return -1;
    if ((x->flags & FLAG_FREES_IN || x->op == INSTR_RELEASE) && in >= 0 && slots_slot_free(s, i, x, in) < 0)
        return -1;
    if ((x->flags & FLAG_FREES_SAVE) && slots_slot_free(s, i, x, x->slot_save) < 0)
        return -1;
    return x->flags & FLAG_FREES_OUT && out >= 0 ? slots_slot_free(s, i, x, out) : 0;
}

static int slots_nothing_left(struct slots_state *s)
{
    for (uint32_t k = 0; k < s->rank->slot_count; k++) {
        const struct plan_slot *slot = &s->rank->slots[k];
        uint32_t ring = slot->ring_micro_batches * slot->ring_blocks;
        for (uint32_t n = 0; slot->lifetime == SLOT_FOR_INSTRUCTIONS && n < ring; n++) {
            const struct slot_instance *it = &s->instances[k][n];
            if (it->written && !it->freed)
                return slots_refuse(s, it->writer, (int32_t)k, "is never freed", 0, false);
        }
    }
    return 0;
}

int check_slots(const struct plan *plan, uint32_t rank, int kind, const struct check_order *order,
                struct err *err)
{
    struct slots_state s = {
        .plan = plan, .rank = &plan->ranks[rank], .order = order, .number = rank, .kind = kind, .err = err};
    int result = 0;
    s.instances = calloc((size_t)s.rank->slot_count + 1, sizeof(*s.instances));
    if (!s.instances)
        return err_set(err, ERR_NOMEM, "plan: out of memory while checking slots");
    uint64_t total = 0;
    for (uint32_t k = 0; k < s.rank->slot_count && result == 0; k++) {
        uint64_t ring = (uint64_t)s.rank->slots[k].ring_micro_batches * s.rank->slots[k].ring_blocks;
        total += ring;
        s.instances[k] = total > (1u << 22) ? NULL : calloc(ring, sizeof(**s.instances));
        if (!s.instances[k])
            result = err_set(err, ERR_NOMEM, "rank %u: slots of %llu buffers are too many to check", rank,
                             (unsigned long long)total);
    }
    for (uint32_t i = 0; i < order->count && result == 0; i++)
        result = instr_slots(&s, i);
    if (result == 0)
        result = slots_nothing_left(&s);
    for (uint32_t k = 0; k < s.rank->slot_count; k++) {
        uint64_t ring = (uint64_t)s.rank->slots[k].ring_micro_batches * s.rank->slots[k].ring_blocks;
        for (uint64_t n = 0; s.instances[k] && n < ring; n++) {
            free(s.instances[k][n].readers.items);
            free(s.instances[k][n].parts.items);
        }
        free(s.instances[k]);
    }
    free(s.instances);
    return result;
}
