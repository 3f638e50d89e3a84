/* Runs ATTENTION, ROUTE and EXPERTS: the compute instructions of expert plans, in which a layer's attention
 * and experts may be on different ranks. */
#include <stdlib.h>

#include "worker/program/exchange_private.h"
#include "worker/program/experts.h"

bool apart_has(const struct instr *instr)
{
    return instr->op == INSTR_ATTENTION || instr->op == INSTR_ROUTE || instr->op == INSTR_EXPERTS ||
           instr->op == INSTR_DISPATCH || instr->op == INSTR_COMBINE;
}

/* --- this rank's rows --- */

void apart_run_begin(struct ops *ops)
{
    uint32_t begin = 0, end = 0;
    if (!ops->own_micro)
        return;
    experts_rows(ops->me, ops->kind, &begin, &end);
    uint32_t *starts = ops->own_starts;
    for (uint32_t k = 0; k < ops->options.plan->micro_batch_count; k++) {
        const struct micro_batch *all = &ops->batch->micro[k];
        struct micro_batch *own = &ops->own_micro[k];
        uint32_t first = begin < all->rows ? begin : all->rows, last = end < all->rows ? end : all->rows;
        uint32_t before = all->row_start[first];
        *own = *all;
        own->rows = last > first ? last - first : 0;
        own->row_ids = all->row_ids + first;
        own->row_start = starts;
        own->ids = all->ids + before;
        own->labels = all->labels ? all->labels + before : NULL;
        for (uint32_t r = 0; r <= own->rows; r++)
            starts[r] = all->row_start[first + r] - before;
        starts += own->rows + 1;
    }
}

/* --- checks --- */

/* Whether the instruction has the right range of rows: all rows for EXPERTS, DISPATCH and COMBINE; for
 * attention and dense blocks the same range as the program's first ATTENTION. */
static bool is_of_own_rows(const struct ops *ops, int kind, const struct instr *instr)
{
    uint32_t begin = 0, end = PLAN_ROWS_ALL;
    experts_rows(ops->me, kind, &begin, &end);
    bool moves = instr->op == INSTR_EXPERTS || instr->op == INSTR_DISPATCH || instr->op == INSTR_COMBINE;
    return moves ? instr->row_begin == 0 && instr->row_end == PLAN_ROWS_ALL
                 : instr->row_begin == begin && instr->row_end == end;
}

/* Whether a DISPATCH or COMBINE uses the same group queue as all other exchanges in its direction (to the
 * experts, or back). They share host memory, so they must run one after another. */
static bool is_on_one_queue(const struct ops *ops, int kind, const struct instr *instr)
{
    const struct program *program = &ops->me->programs[kind];
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        if ((x->op == INSTR_DISPATCH || x->op == INSTR_COMBINE) &&
            exchange_goes_out(x) == exchange_goes_out(instr))
            return x->group == instr->group;
    }
    return true;
}

const char *apart_lacks(const struct ops *ops, int kind, const struct instr *instr)
{
    bool again = instr->op == INSTR_ATTENTION || instr->op == INSTR_ROUTE || instr->op == INSTR_FORWARD ||
                 instr->op == INSTR_BACKWARD;
    bool back = instr->flags & FLAG_BACKWARD, adds = instr->flags & FLAG_ACCUMULATE;
    if (instr->flags & (FLAG_FIRST_HALF | FLAG_SECOND_HALF))
        return "halves where experts are apart";
    if (adds != (instr->op == INSTR_ROUTE && back))
        return adds ? "ACCUMULATE" : "a gradient that it replaces";
    if ((instr->flags & FLAG_RECOMPUTE) && !again)
        return "RECOMPUTE of experts";
    if (!is_of_own_rows(ops, kind, instr))
        return "other rows than the rank's first ATTENTION";
    if (!apart_has(instr))
        return NULL;
    if (instr->micro_batch < 0 || (uint32_t)instr->micro_batch >= ops->options.plan->micro_batch_count ||
        instr->block_begin < 1 || instr->block_end != instr->block_begin + 1 ||
        instr->block_end >= ops->options.plan->block_count)
        return "other than one layer and one micro-batch";
    if ((instr->op == INSTR_ATTENTION || instr->op == INSTR_ROUTE) &&
        stages_find(ops->options.stages, instr->block_begin, instr->block_end) < 0)
        return "a layer whose attention is elsewhere";
    bool moves = instr->op == INSTR_DISPATCH || instr->op == INSTR_COMBINE;
    if (moves && (instr->group < 0 || (uint32_t)instr->group >= ops->options.plan->group_count))
        return "no group";
    return moves && !is_on_one_queue(ops, kind, instr) ? "exchanges of one direction on two queues" : NULL;
}

/* --- compute --- */

/* Returns views of the routed tokens' matrices in a slot's buffer. */
static struct routed_tokens routed_in(struct ops *ops, const struct instr *instr, int32_t slot,
                                      uint64_t tokens)
{
    struct buffer *buffer = ops_cell(ops, slot, instr->micro_batch, instr->block_begin)->buffer;
    return (struct routed_tokens){.x = {buffer, exchange_matrix_at(ops, tokens, ROUTED_X)},
                                  .weight = {buffer, exchange_matrix_at(ops, tokens, ROUTED_WEIGHT)},
                                  .chosen = {buffer, exchange_matrix_at(ops, tokens, ROUTED_CHOSEN)}};
}

static int apart_attention_forward(struct ops *ops, const struct instr *instr, int stage, struct buffer *in,
                                   struct buffer *out, struct err *err)
{
    const struct micro_batch *micro = ops_micro(ops, instr->micro_batch);
    struct stage *runs = ops->options.stages->list[stage];
    struct saved **saved = instr->slot_save >= 0 ? ops_saved(ops, stage, instr->micro_batch) : NULL;
    if (instr->slot_save < 0 || ops->slots[instr->slot_save].slot->kind != SLOT_KV_CACHE)
        return stage_half_forward(runs, micro, (uint32_t)instr->block_begin, STAGE_HALF_ATTENTION, in, out,
                                  saved, err);
    struct kv_cache *cache;
    if (cell_need_cache(ops, instr, stage, &cache, err) < 0)
        return -1;
    struct infer_pass pass = {.block_begin = (uint32_t)instr->block_begin,
                              .block_end = (uint32_t)instr->block_end,
                              .tokens = micro->row_start[micro->rows],
                              .in = in,
                              .out = out};
    return stage_half_infer(runs, cache, &pass, STAGE_HALF_ATTENTION, err);
}

static int attention(struct ops *ops, const struct instr *instr, struct err *err)
{
    const struct micro_batch *micro = ops_micro(ops, instr->micro_batch);
    int stage = stages_find(ops->options.stages, instr->block_begin, instr->block_end);
    struct saved **place = ops_saved(ops, stage, instr->micro_batch);
    struct buffer *in, *out;
    if (cells_take_in(ops, instr, &in, err) < 0 || cells_take_out(ops, instr, &out, err) < 0)
        return -1;
    if (!(instr->flags & FLAG_BACKWARD))
        return apart_attention_forward(ops, instr, stage, in, out, err);
    if (!*place)
        return err_set(err, ERR_INVALID, "the backward of block %d's attention comes without its forward",
                       (int)instr->block_begin);
    int result = stage_half_backward(ops->options.stages->list[stage], micro, *place,
                                     (uint32_t)instr->block_begin, STAGE_HALF_ATTENTION, in, out, err);
    if (result < 0)
        *place = NULL; /* the stage has released the saved activations */
    return result;
}

static int route(struct ops *ops, const struct instr *instr, struct err *err)
{
    const struct micro_batch *micro = ops_micro(ops, instr->micro_batch);
    uint32_t tokens = micro->row_start[micro->rows], block = (uint32_t)instr->block_begin;
    int stage = stages_find(ops->options.stages, instr->block_begin, instr->block_end);
    struct stage *runs = ops->options.stages->list[stage];
    struct saved **place = ops_saved(ops, stage, instr->micro_batch);
    bool back = instr->flags & FLAG_BACKWARD;
    struct routed_tokens routed = routed_in(ops, instr, back ? instr->slot_in : instr->slot_out, tokens);
    struct buffer *stream;
    if (!back)
        return cells_take_in(ops, instr, &stream, err) < 0
                   ? -1
                   : stage_route_forward(runs, micro, block, stream, &routed,
                                         instr->slot_save >= 0 ? place : NULL, err);
    if (!*place)
        return err_set(err, ERR_INVALID, "the backward of block %u's router comes without its forward",
                       block);
    if (cells_take_out(ops, instr, &stream, err) < 0)
        return -1;
    int result = stage_route_backward(runs, micro, *place, block, &routed, stream, err);
    if (result < 0)
        *place = NULL;
    return result;
}

/* Returns the tokens received by this rank's experts as a micro-batch, cut into rows no longer than the stage
 * allows. Where rows begin does not matter, since experts compute each token alone. */
static struct micro_batch apart_arrived(const struct ops *ops, const struct instr *instr, struct stage *stage,
                                        uint32_t tokens)
{
    const struct micro_batch *all = &ops->batch->micro[instr->micro_batch];
    struct micro_batch micro = {.row_start = ops->came_starts, .step = all->step, .index = all->index};
    struct stage_options has;
    stage_options_get(stage, &has);
    ops->came_starts[0] = 0;
    for (uint32_t at = 0; at < tokens; micro.rows++) {
        at = tokens - at > has.row_tokens_max ? at + has.row_tokens_max : tokens;
        ops->came_starts[micro.rows + 1] = at;
    }
    return micro;
}

static int experts(struct ops *ops, const struct instr *instr, struct err *err)
{
    int stage = stages_find_experts(ops->options.stages, instr->block_begin);
    uint32_t tokens = exchange_routing(ops, instr)->tokens, block = (uint32_t)instr->block_begin;
    if (stage < 0 || tokens == 0)
        return 0;
    struct stage *runs = ops->options.stages->list[stage];
    struct saved **place = ops_saved(ops, stage, instr->micro_batch);
    struct micro_batch micro = apart_arrived(ops, instr, runs, tokens);
    bool back = instr->flags & FLAG_BACKWARD;
    struct routed_tokens routed = routed_in(ops, instr, back ? instr->slot_out : instr->slot_in, tokens);
    int32_t slot = back ? instr->slot_in : instr->slot_out;
    struct buffer *values = ops_cell(ops, slot, instr->micro_batch, instr->block_begin)->buffer;
    if (!back)
        return stage_experts_forward(runs, &micro, block, &routed, values,
                                     instr->slot_save >= 0 ? place : NULL, err);
    if (!*place)
        return err_set(err, ERR_INVALID, "the backward of block %u's experts comes without their forward",
                       block);
    int result = stage_experts_backward(runs, &micro, *place, block, values, &routed, err);
    *place = NULL; /* the stage has released the saved activations, also on error */
    return result;
}

int apart_compute(struct ops *ops, const struct instr *instr, struct err *err)
{
    if (instr->op == INSTR_EXPERTS)
        return experts(ops, instr, err);
    if (ops_micro(ops, instr->micro_batch)->rows == 0)
        return 0;
    return instr->op == INSTR_ATTENTION ? attention(ops, instr, err) : route(ops, instr, err);
}
