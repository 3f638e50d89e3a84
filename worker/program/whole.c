/* Finds the parameters or gradients of collectives whose state is not sharded over their group: gradients of
 * replicas, parameters of which all members of a tensor group have equal copies, and a tied embedding that is
 * sent to the ranks with the head. This file says where on the device such values lie and how a ring cuts
 * them into parts; stream.c sends the parts. The values of an instruction are its blocks' parameters, in the
 * order of parameters, and behind them the stage's copy of a tied embedding if the instruction names block 0.
 * An ALL_REDUCE cuts them into one nearly equal part for each member. In an ALL_GATHER or REDUCE_SCATTER the
 * part of the rank that keeps the table is everything, and the other parts are empty; if several ranks keep
 * shards of the table, each part is one shard (shares.h). */
#include <stdlib.h>
#include <string.h>

#include "worker/program/gather_private.h"

/* Bytes [begin, end) of the instruction's values, and their memory. */
struct whole_range {
    uint64_t begin, end;
    struct area_view at;
};

struct whole {
    bool writes;              /* the rank receives the result; false: it only contributes */
    uint64_t *cuts;           /* [members + 1] byte offset of each member's part */
    struct whole_range *list; /* [list_count] in rising order, without gaps */
    size_t list_count;
};

static int32_t whole_slot_of(const struct instr *instr)
{
    return instr->slot_in != PLAN_NONE ? instr->slot_in : instr->slot_out;
}

bool whole_moves(const struct ops *ops, const struct instr *instr)
{
    int32_t slot = whole_slot_of(instr);
    if (instr->op == INSTR_ALL_GATHER || instr->op == INSTR_REDUCE_SCATTER)
        return !gather_moves(ops, instr);
    if (instr->op != INSTR_ALL_REDUCE || slot < 0 || (uint32_t)slot >= ops->me->slot_count)
        return false;
    return ops->me->slots[slot].kind == SLOT_GRADIENTS || ops->me->slots[slot].kind == SLOT_PARAMETERS;
}

/* Whether the instruction moves a parameter: the parameter's block is in its range of blocks, or that range
 * is empty (all blocks). In tensor groups it moves only parameters of which all members have equal copies. */
static bool is_moved(const struct instr *instr, const struct parameter *parameter)
{
    int32_t block = (int32_t)parameter->block;
    return parameter->alike && (instr->block_begin == instr->block_end ||
                                (block >= instr->block_begin && block < instr->block_end));
}

/* Appends a view of `bytes` bytes. A view that continues the last one in the same buffer lengthens it
 * instead. */
static void view_add(struct whole *whole, struct area_view view, uint64_t bytes)
{
    struct whole_range *last = whole->list_count ? &whole->list[whole->list_count - 1] : NULL;
    uint64_t begin = last ? last->end : 0;
    if (bytes == 0)
        return;
    if (last && last->at.buffer == view.buffer && last->at.at + (last->end - last->begin) == view.at)
        last->end += bytes;
    else
        whole->list[whole->list_count++] =
            (struct whole_range){.begin = begin, .end = begin + bytes, .at = view};
}

static int views_find(struct whole *whole, const struct ops *ops, const struct instr *instr, struct err *err)
{
    struct stages *stages = ops->options.stages;
    bool sums = ops->me->slots[whole_slot_of(instr)].kind == SLOT_GRADIENTS;
    enum stage_state state = sums ? STATE_GRADIENT : STATE_VALUE;
    struct stage *table = instr->block_begin == 0 && instr->block_end > 0 ? stages_table(stages) : NULL;
    uint32_t count = stages_parameter_count(stages);
    struct area_view view;
    whole->list = calloc((size_t)count + 1, sizeof(*whole->list));
    if (!whole->list)
        return err_set(err, ERR_NOMEM, "no memory for the places of %u parameters", count);
    for (uint32_t p = 0; p < count; p++) {
        struct parameter parameter = stages_parameter_at(stages, p);
        if (!is_moved(instr, &parameter))
            continue;
        if (stages_state_view(stages, p, state, &view, err) < 0)
            return -1;
        view_add(whole, view, (uint64_t)parameter.rows * parameter.columns * sizeof(float));
    }
    if (table && stage_table_view(table, state, &view, err) < 0)
        return -1;
    if (table)
        view_add(whole, view, stage_table_values(table) * sizeof(float));
    return 0;
}

/* Cuts a tied embedding at the bounds of the shards of block 0's trained area, which may be longer than the
 * table by up to 60 bytes. */
static int table_cuts_find(struct whole *whole, const struct ops *ops, const struct plan_group *group,
                           struct err *err)
{
    struct stage_options options;
    stage_options_get(stages_table(ops->options.stages), &options);
    options.block_begin = options.enter_last = options.leave_first = 0;
    options.block_end = 1;
    options.outside.block_begin = options.outside.block_end = 0;
    return stage_area_cuts(&options, 0, AREA_TRAINED, group->rank_count, group->shares, whole->cuts, err);
}

static void cuts_find(struct whole *whole, const struct plan_group *group, bool even)
{
    uint64_t values = whole->list_count ? whole->list[whole->list_count - 1].end / sizeof(float) : 0,
             n = group->rank_count;
    for (uint64_t part = 0; part <= n; part++) {
        uint64_t first = values / n * part + (values % n < part ? values % n : part);
        if (!even)
            first = (int64_t)part > ops_whole_owner(group) ? values : 0;
        whole->cuts[part] = first * sizeof(float);
    }
}

int whole_make(const struct ops *ops, const struct instr *instr, struct whole **out, struct err *err)
{
    int32_t slot = whole_slot_of(instr);
    if (slot < 0 || (uint32_t)slot >= ops->me->slot_count || instr->group < 0 ||
        (uint32_t)instr->group >= ops->options.plan->group_count)
        return err_set(err, ERR_INVALID, "%s names no slot or no group", instr_op_name(instr->op));
    const struct plan_group *group = &ops->options.plan->groups[instr->group];
    if (plan_group_position(group, ops->options.rank) < 0)
        return err_set(err, ERR_INVALID, "rank %u is no member of group %d", ops->options.rank,
                       (int)instr->group);
    struct whole *whole = calloc(1, sizeof(*whole));
    *out = whole; /* the caller destroys it, also on error */
    if (whole)
        whole->cuts = calloc((size_t)group->rank_count + 1, sizeof(*whole->cuts));
    if (!whole || !whole->cuts)
        return err_set(err, ERR_NOMEM, "no memory for a group of %u", group->rank_count);
    whole->writes = instr->slot_out != PLAN_NONE;
    if (views_find(whole, ops, instr, err) < 0)
        return -1;
    if (instr->op != INSTR_ALL_REDUCE && ops_whole_owner(group) < 0)
        return table_cuts_find(whole, ops, group, err);
    cuts_find(whole, group, instr->op == INSTR_ALL_REDUCE);
    return 0;
}

void whole_destroy(struct whole *whole)
{
    if (!whole)
        return;
    free(whole->cuts);
    free(whole->list);
    free(whole);
}

uint64_t whole_part_bytes(const struct whole *whole, uint32_t part)
{
    return whole->cuts[part + 1] - whole->cuts[part];
}

int whole_copy(const struct whole *whole, const struct gather_span *span, uint8_t *host, bool write,
               struct err *err)
{
    uint64_t at = whole->cuts[span->part] + span->at, end = at + span->bytes;
    if (write && !whole->writes)
        return 0;
    if (!write)
        memset(host, 0, span->bytes); /* a part may be longer than the values; the rest is zeros */
    for (size_t i = 0; i < whole->list_count && at < end; i++) {
        const struct whole_range *range = &whole->list[i];
        if (at >= range->end)
            continue;
        uint64_t bytes = (end < range->end ? end : range->end) - at, from = range->at.at + at - range->begin;
        int result = write ? buffer_write_on(DEVICE_GROUP, range->at.buffer, from, host, bytes, err)
                           : buffer_read_on(DEVICE_GROUP, range->at.buffer, from, host, bytes, err);
        if (result < 0)
            return -1;
        host += bytes;
        at += bytes;
    }
    return 0;
}
