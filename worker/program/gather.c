/* Blocks whose parameters are sharded over ranks: which buffers hold their gathered weights and unreduced
 * gradients, letting the stage use these buffers ("binding"), and copying ranges of them to and from the host
 * for the transport (stream.c). A slot of kind SLOT_GATHERED holds the weights of a unit: the blocks of one
 * ALL_GATHER or PULL, each block from a multiple of 64 bytes on. A slot of kind SLOT_GRADIENTS with lifetime
 * SLOT_FOR_INSTRUCTIONS holds the unit's gradients in the same layout, until a REDUCE_SCATTER or PUSH reads
 * them. Gradients to which no backward has added in this run count as zero. Threads: gather_bind and
 * gather_release are for the executor's thread. gather_read, gather_write and gather_add are for the thread
 * of stream.c and use DEVICE_GROUP. The program's order gives each block to only one of the two threads at a
 * time. */
#include <stdlib.h>
#include <string.h>

#include "worker/program/gather_private.h"

struct gather_block {
    /* slots of the gathered weights and of the unreduced gradients, or PLAN_NONE */
    int32_t weights, gradients;
    uint32_t unit_begin; /* first block of the unit that the block belongs to */
    uint64_t at;         /* byte offset of the block in the unit's buffer */
    /* bound: the stage uses the gathered weights; summing: it adds to gradients that are not zero */
    bool bound, summing;
};

struct gather {
    struct ops *ops;
    const struct state_shares *shares;
    struct gather_block *blocks; /* [block_end - block_begin] */
    struct event *copied;
};

static struct gather_block *gather_block_of(const struct gather *gather, uint32_t block)
{
    return &gather->blocks[block - gather->shares->block_begin];
}

static uint64_t block_bytes(const struct gather *gather, uint32_t block)
{
    return shares_cuts(gather->shares, block)[gather->shares->count];
}

static bool is_unreduced(const struct plan_slot *slot)
{
    return slot->kind == SLOT_GRADIENTS && slot->lifetime == SLOT_FOR_INSTRUCTIONS;
}

/* --- making --- */

static int32_t first_slot(const struct plan_rank *me, int32_t block, bool gradients)
{
    for (uint32_t s = 0; s < me->slot_count; s++) {
        const struct plan_slot *slot = &me->slots[s];
        bool wanted = gradients ? is_unreduced(slot) : slot->kind == SLOT_GATHERED;
        if (wanted && slot->block_begin <= block && block < slot->block_end)
            return (int32_t)s;
    }
    return PLAN_NONE;
}

bool gather_moves(const struct ops *ops, const struct instr *instr)
{
    const struct state_shares *shares = ops->options.stages->shares;
    return shares && plan_moves_shared(ops->me, shares->role, shares->group, instr);
}

/* Finds the units: the blocks that one ALL_GATHER or PULL moves, which must be the same in every program. */
static int find_units(struct gather *gather, struct err *err)
{
    const struct plan_rank *me = gather->ops->me;
    const struct state_shares *shares = gather->shares;
    for (uint32_t b = shares->block_begin; b < shares->block_end; b++)
        *gather_block_of(gather, b) = (struct gather_block){.weights = first_slot(me, (int32_t)b, false),
                                                            .gradients = first_slot(me, (int32_t)b, true),
                                                            .unit_begin = b};
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        for (uint32_t i = 0; i < me->programs[kind].instr_count; i++) {
            const struct instr *x = &me->programs[kind].instrs[i];
            uint64_t at = 0;
            if (!gather_moves(gather->ops, x))
                continue;
            for (uint32_t b = (uint32_t)x->block_begin; b < (uint32_t)x->block_end; b++) {
                struct gather_block *block = gather_block_of(gather, b);
                if (block->at > 0 && (block->at != at || block->unit_begin != (uint32_t)x->block_begin))
                    return err_set(
                        err, ERR_UNSUPPORTED,
                        "%s, instruction %u: block %u is moved together with other blocks than before",
                        program_kind_name(kind), i, b);
                block->unit_begin = (uint32_t)x->block_begin;
                block->at = at;
                at += (block_bytes(gather, b) + 63) / 64 * 64;
            }
        }
    return 0;
}

/* Refuses slots that are too small for the blocks that use them. */
static int check_room(const struct gather *gather, struct err *err)
{
    const struct plan_rank *me = gather->ops->me;
    for (uint32_t b = gather->shares->block_begin; b < gather->shares->block_end; b++) {
        const struct gather_block *block = gather_block_of(gather, b);
        int32_t slots[2] = {block->weights, block->gradients};
        uint64_t needed = block->at + block_bytes(gather, b);
        for (int i = 0; i < 2; i++)
            if (slots[i] >= 0 && needed > me->slots[slots[i]].bytes_fixed)
                return err_set(err, ERR_INVALID, "slot %d has %llu bytes, and block %u of it ends at %llu",
                               (int)slots[i], (unsigned long long)me->slots[slots[i]].bytes_fixed, b,
                               (unsigned long long)needed);
    }
    return 0;
}

static int gather_make_buffers(struct gather *gather, struct err *err)
{
    struct ops *ops = gather->ops;
    for (uint32_t s = 0; s < ops->me->slot_count; s++) {
        const struct plan_slot *slot = &ops->me->slots[s];
        bool gathered = slot->kind == SLOT_GATHERED;
        /* A slot of an earlier block holds a copy of the tied embedding for the head; whole.c
         * fills it. */
        bool here = slot->block_begin >= (int32_t)gather->shares->block_begin;
        if ((!gathered && !is_unreduced(slot)) || !here)
            continue;
        for (uint32_t c = 0; c < ops->slots[s].count; c++) {
            struct slot_cell *cell = &ops->slots[s].cells[c];
            if (slot->bytes_fixed == 0)
                continue;
            if (buffer_create(ops->options.device, slot->bytes_fixed, MEM_BUFFERS,
                              gathered ? "gathered weights" : "unreduced gradients", &cell->buffer, err) < 0)
                return -1;
            cell->buffer_size = slot->bytes_fixed;
            ops->slots[s].device_size += slot->bytes_fixed;
        }
    }
    return 0;
}

/* Lets the stage of a parameter server that also computes use the server's values and gradients in place, so
 * that nothing is gathered. */
static int bind_kept(struct gather *gather, struct err *err)
{
    const struct stages *stages = gather->ops->options.stages;
    for (uint32_t b = gather->shares->block_begin; b < gather->shares->block_end; b++) {
        struct block_areas areas = {.trained = shares_values(gather->shares, b),
                                    .gradients = shares_gradients(gather->shares, b)};
        if (stage_block_bind(stages->list[0], b, &areas, err) < 0)
            return -1;
    }
    return 0;
}

int gather_make(struct ops *ops, struct err *err)
{
    const struct state_shares *shares = ops->options.stages->shares;
    if (!shares)
        return 0;
    struct gather *gather = calloc(1, sizeof(*gather));
    uint32_t blocks = shares->block_end - shares->block_begin;
    if (gather)
        gather->blocks = calloc(blocks, sizeof(*gather->blocks));
    ops->gather = gather;
    if (!gather || !gather->blocks)
        return err_set(err, ERR_NOMEM, "no memory for %u gathered blocks", blocks);
    gather->ops = ops;
    gather->shares = shares;
    if (event_create(ops->options.device, &gather->copied, err) < 0 || find_units(gather, err) < 0 ||
        check_room(gather, err) < 0 || gather_make_buffers(gather, err) < 0)
        return -1;
    return shares->role == SHARES_HOLDER && shares->computes ? bind_kept(gather, err) : 0;
}

void gather_destroy(struct gather *gather)
{
    if (!gather)
        return;
    event_destroy(gather->copied);
    free(gather->blocks);
    free(gather);
}

/* --- binding --- */

static struct buffer *gather_buffer_of(const struct gather *gather, int32_t slot, uint32_t block)
{
    const struct gather_block *own = gather_block_of(gather, block);
    return slot < 0 ? NULL : ops_cell(gather->ops, slot, PLAN_NONE, (int32_t)own->unit_begin)->buffer;
}

static int bind_weights(struct gather *gather, struct stage *stage, uint32_t block, struct err *err)
{
    struct gather_block *own = gather_block_of(gather, block);
    struct area_view view = {gather_buffer_of(gather, own->weights, block), own->at};
    struct block_areas areas = {0};
    *(gather->shares->area == AREA_FROZEN ? &areas.frozen : &areas.trained) = view;
    if (own->bound || !view.buffer)
        return 0;
    own->bound = true;
    return stage_block_bind(stage, block, &areas, err);
}

/* Lets the stage add to a block's buffer of unreduced gradients, which is zeroed before the first micro-batch
 * of a step. */
static int bind_gradients(struct gather *gather, struct stage *stage, uint32_t block, struct err *err)
{
    struct gather_block *own = gather_block_of(gather, block);
    struct block_areas areas = {.gradients = {gather_buffer_of(gather, own->gradients, block), own->at}};
    uint64_t bytes = block_bytes(gather, block);
    if (gather->shares->area == AREA_FROZEN || !areas.gradients.buffer)
        return 0;
    if (!own->summing && bytes > 0 && buffer_zero(areas.gradients.buffer, own->at, bytes, err) < 0)
        return -1;
    own->summing = true;
    return stage_block_bind(stage, block, &areas, err);
}

int gather_bind(struct ops *ops, const struct instr *instr, struct stage *stage, struct err *err)
{
    struct gather *gather = ops->gather;
    if (!gather || gather->shares->role == SHARES_HOLDER)
        return 0;
    uint32_t begin = (uint32_t)instr->block_begin, end = (uint32_t)instr->block_end;
    bool head = instr->block_end == ops->options.plan->block_count,
         saves = instr->slot_save >= 0 && ops->slots[instr->slot_save].slot->kind == SLOT_SAVED;
    /* A tied head reads block 0's table and adds to the table's gradient, already in its FORWARD. An untied
     * head may use the same buffer as the embedding in turn, unless one unit has all blocks. */
    bool table = head && gather->shares->block_begin == 0 &&
                 (begin == 0 || ops->me->owns_tied || ops->me->copies_tied);
    for (uint32_t b = begin; b < end; b++) {
        bool sums = instr->op != INSTR_FORWARD || (saves && head && b + 1 == end);
        if (bind_weights(gather, stage, b, err) < 0 || (sums && bind_gradients(gather, stage, b, err) < 0))
            return -1;
    }
    if (!table)
        return 0;
    if (bind_weights(gather, stage, 0, err) < 0)
        return -1;
    return instr->op != INSTR_FORWARD || saves ? bind_gradients(gather, stage, 0, err) : 0;
}

void gather_release(struct ops *ops, const struct instr *instr)
{
    struct gather *gather = ops->gather;
    if (!gather || instr->slot_in < 0 || ops->slots[instr->slot_in].slot->kind != SLOT_GATHERED)
        return;
    for (int32_t b = instr->block_begin; b < instr->block_end; b++) {
        if (b < (int32_t)gather->shares->block_begin || b >= (int32_t)gather->shares->block_end)
            continue;
        gather_block_of(gather, (uint32_t)b)->bound = false;
        for (uint32_t s = 0; s < ops->options.stages->count; s++)
            stage_block_release(ops->options.stages->list[s], (uint32_t)b);
    }
}

void gather_run_begin(struct ops *ops)
{
    struct gather *gather = ops->gather;
    for (uint32_t b = 0; gather && b < gather->shares->block_end - gather->shares->block_begin; b++)
        gather->blocks[b].bound = gather->blocks[b].summing = false;
}

void gather_taken(struct ops *ops, const struct instr *instr)
{
    for (int32_t b = instr->block_begin; b < instr->block_end; b++)
        gather_block_of(ops->gather, (uint32_t)b)->summing = false;
}

/* --- copies --- */

uint64_t gather_part_bytes(const struct ops *ops, const struct instr *instr, uint32_t part)
{
    uint64_t bytes = 0;
    if (part >= ops->gather->shares->count) /* ranks with copies of a tied embedding keep no shard of it */
        return 0;
    for (int32_t b = instr->block_begin; b < instr->block_end; b++) {
        const uint64_t *cuts = shares_cuts(ops->gather->shares, (uint32_t)b);
        bytes += cuts[part + 1] - cuts[part];
    }
    return bytes;
}

/* Returns the memory of byte `at` of a member's shard of a block, in the given kind of memory; a view without
 * a buffer means that there is nothing to copy. */
static struct area_view gather_view_of(const struct gather *gather, enum gather_place place, uint32_t block,
                                       uint32_t part, uint64_t at)
{
    const struct gather_block *own = gather_block_of(gather, block);
    struct area_view view = {0};
    if (place == GATHER_OWN_VALUES)
        view = shares_values(gather->shares, block);
    else if (place == GATHER_OWN_GRADIENTS)
        view = shares_gradients(gather->shares, block);
    else if (place == GATHER_WEIGHTS || own->summing)
        view = (struct area_view){
            gather_buffer_of(gather, place == GATHER_WEIGHTS ? own->weights : own->gradients, block),
            own->at + shares_cuts(gather->shares, block)[part]};
    view.at += at;
    return view;
}

static int copy_span(struct ops *ops, const struct gather_span *span, uint8_t *host, bool write,
                     struct err *err)
{
    struct gather *gather = ops->gather;
    uint64_t at = span->at, left = span->bytes;
    for (int32_t b = span->instr->block_begin; b < span->instr->block_end && left > 0; b++) {
        const uint64_t *cuts = shares_cuts(gather->shares, (uint32_t)b) + span->part;
        uint64_t has = cuts[1] - cuts[0];
        if (at >= has) {
            at -= has;
            continue;
        }
        uint64_t bytes = has - at < left ? has - at : left;
        struct area_view view = gather_view_of(gather, span->place, (uint32_t)b, span->part, at);
        int result = 0;
        if (view.buffer)
            result = write ? buffer_write_on(DEVICE_GROUP, view.buffer, view.at, host, bytes, err)
                           : buffer_read_on(DEVICE_GROUP, view.buffer, view.at, host, bytes, err);
        else if (!write)
            memset(host, 0, bytes);
        if (result < 0)
            return -1;
        host += bytes;
        left -= bytes;
        at = 0;
    }
    return event_record_on(DEVICE_GROUP, gather->copied, err) < 0
               ? -1
               : event_wait(gather->copied, COPY_TIMEOUT_NS, err);
}

int gather_read(struct ops *ops, const struct gather_span *span, uint8_t *host, struct err *err)
{
    return copy_span(ops, span, host, false, err);
}

int gather_write(struct ops *ops, const struct gather_span *span, const uint8_t *host, struct err *err)
{
    return copy_span(ops, span, (uint8_t *)(uintptr_t)host, true, err);
}

int gather_keep_own(struct ops *ops, const struct instr *instr, struct err *err)
{
    struct gather *gather = ops->gather;
    uint32_t part = gather->shares->position;
    for (int32_t b = instr->block_begin; b < instr->block_end; b++) {
        const uint64_t *cuts = shares_cuts(gather->shares, (uint32_t)b) + part;
        struct area_view from = gather_view_of(gather, GATHER_OWN_VALUES, (uint32_t)b, part, 0),
                         to = gather_view_of(gather, GATHER_WEIGHTS, (uint32_t)b, part, 0);
        if (cuts[1] > cuts[0] && from.buffer && to.buffer &&
            buffer_copy_on(DEVICE_GROUP, to.buffer, to.at, from.buffer, from.at, cuts[1] - cuts[0], err) < 0)
            return -1;
    }
    return event_record_on(DEVICE_GROUP, gather->copied, err) < 0
               ? -1
               : event_wait(gather->copied, COPY_TIMEOUT_NS, err);
}
