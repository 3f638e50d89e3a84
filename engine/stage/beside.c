/* The slot's arrays beside the residual stream, and their way across boundaries. */
#include "engine/stage/beside.h"

#include <math.h>

static const struct footprint *layout_of(const struct stage_pass *pass)
{
    return &pass->stage->layout;
}

static struct operand beside_slot_at(const struct stage_pass *pass, uint64_t at)
{
    return f32_at(pass->slot->buffer, at);
}

/* y += x, or y = x; both have `width` values of rows of ldx and ldy. */
static void beside_add(struct stage_pass *pass, uint32_t width, struct operand x, uint32_t ldx,
                       struct operand y, uint32_t ldy, double factor)
{
    queue_op(&pass->queue, &(struct op){.kind = OP_ADD,
                                        .add = {.rows = pass->tokens,
                                                .width = width,
                                                .ldx = ldx,
                                                .ldy = ldy,
                                                .alpha = (float)factor,
                                                .x = x,
                                                .y = y}});
}

/* --- lent keys and values --- */

/* Which of the slot's arrays has the k and v that the layer lends or reads. */
static uint32_t lent_of(const struct layer_run *run)
{
    const struct footprint_model *m = layout_of(run->pass)->model;
    uint32_t k = 0;
    while (k + 1 < FOOTPRINT_LENT && m->lends[k].layer != m->lender[run->layer])
        k++;
    return k;
}

void lend_forward(const struct layer_run *run, const struct layer_step *step)
{
    const struct model_heads *h = &run->plan->heads;
    queue_copy(&run->pass->queue, run->pass->tokens, 2 * h->kv, operand_skip(run_value(run, step->out), h->q),
               h->qkv, beside_slot_at(run->pass, layout_of(run->pass)->slot.lent[lent_of(run)]), 2 * h->kv);
}

void lend_backward(const struct layer_run *run, const struct layer_step *step)
{
    const struct model_heads *h = &run->plan->heads;
    beside_add(run->pass, 2 * h->kv,
               beside_slot_at(run->pass, layout_of(run->pass)->slot.lent_d[lent_of(run)]), 2 * h->kv,
               operand_skip(run_gradient(run, step->out), h->q), h->qkv, 1);
}

void borrowed_copy(const struct layer_run *run, struct operand mixed, struct operand qkv, bool back)
{
    const struct model_heads *h = &run->plan->heads;
    const struct footprint_slot *slot = &layout_of(run->pass)->slot;
    uint32_t tokens = run->pass->tokens, k = lent_of(run);
    struct op_queue *queue = &run->pass->queue;
    queue_copy(queue, tokens, h->q, back ? qkv : mixed, back ? h->qkv : h->q, back ? mixed : qkv,
               back ? h->q : h->qkv);
    if (back)
        beside_add(run->pass, 2 * h->kv, operand_skip(qkv, h->q), h->qkv,
                   beside_slot_at(run->pass, slot->lent_d[k]), 2 * h->kv, 1);
    else
        queue_copy(queue, tokens, 2 * h->kv, beside_slot_at(run->pass, slot->lent[k]), 2 * h->kv,
                   operand_skip(qkv, h->q), h->qkv);
}

/* --- the layers' own inputs --- */

/* The input of the stage's layer `layer`, or its gradient, in rows of own_width. */
static struct operand beside_own_at(const struct stage_pass *pass, uint32_t layer, bool gradient)
{
    const struct footprint *l = layout_of(pass);
    return operand_skip(beside_slot_at(pass, gradient ? l->slot.own_d : l->slot.own),
                        (uint64_t)(layer - l->layer_begin) * l->model->shape.per_layer);
}

void pair_forward(const struct layer_run *run, const struct layer_step *step)
{
    struct op_queue *queue = &run->pass->queue;
    uint32_t width = run->plan->width[step->in], tokens = run->pass->tokens;
    struct operand pair = run_value(run, step->out);
    queue_copy(queue, tokens, width, run_value(run, step->in), width, pair, 2 * width);
    queue_copy(queue, tokens, width, beside_own_at(run->pass, run->layer, false),
               layout_of(run->pass)->own_width, operand_skip(pair, width), 2 * width);
}

void pair_backward(const struct layer_run *run, const struct layer_step *step)
{
    struct op_queue *queue = &run->pass->queue;
    uint32_t width = run->plan->width[step->in], tokens = run->pass->tokens;
    struct operand pair = run_gradient(run, step->out);
    queue_copy(queue, tokens, width, pair, 2 * width, run_gradient(run, step->in), width);
    if (layout_of(run->pass)->own_learns)
        queue_copy(queue, tokens, width, operand_skip(pair, width), 2 * width,
                   beside_own_at(run->pass, run->layer, true), layout_of(run->pass)->own_width);
}

enum { OWN_TABLE = 1 }; /* index of block 0's table of the tokens' part */

void own_inputs(const struct layer_run *run)
{
    struct stage_pass *pass = run->pass;
    const struct footprint *l = layout_of(pass);
    const struct layer_tensor *table = &run->plan->tensors.list[OWN_TABLE];
    struct operand own = beside_slot_at(pass, l->slot.own);
    queue_op(&pass->queue, &(struct op){.kind = OP_EMBED,
                                        .embed = {.tokens = pass->tokens,
                                                  .hidden = l->own_width,
                                                  .vocab = table->rows,
                                                  .pack = table->trained ? PACK_F32 : table->pack,
                                                  .scale = (float)sqrt(l->model->shape.per_layer / 2.0),
                                                  .ids = pass_meta(pass, l->slot.ids, DTYPE_I32),
                                                  .table = tensor_at(run->block, table),
                                                  .out = own}});
    beside_add(pass, l->own_width, run_value(run, VALUE_PER_LAYER_NORM), l->own_width, own, l->own_width,
               sqrt(0.5));
}

void own_inputs_backward(const struct layer_run *run)
{
    struct stage_pass *pass = run->pass;
    const struct footprint *l = layout_of(pass);
    const struct layer_tensor *table = &run->plan->tensors.list[OWN_TABLE];
    struct operand d = run_gradient(run, VALUE_PER_LAYER_NORM), own = beside_slot_at(pass, l->slot.own_d);
    if (table->trained)
        queue_op(&pass->queue,
                 &(struct op){.kind = OP_EMBED_BACKWARD,
                              .embed_backward = {.tokens = pass->tokens,
                                                 .hidden = l->own_width,
                                                 .vocab = table->rows,
                                                 .scale = (float)sqrt(l->model->shape.per_layer / 2.0),
                                                 .ids = pass_meta(pass, l->slot.ids, DTYPE_I32),
                                                 .dout = own,
                                                 .dtable = tensor_gradient(run->block, table)}});
    queue_zero(&pass->queue, d, (uint64_t)pass->tokens * l->own_width);
    beside_add(pass, l->own_width, own, l->own_width, d, l->own_width, sqrt(0.5));
}

/* --- boundaries --- */

uint64_t beside_values(const struct stage *stage, uint32_t block, uint32_t tokens, bool gradient)
{
    bool inner = block > 0 && block <= stage->config.layers + 1;
    return inner ? (uint64_t)tokens * footprint_crossing(stage->layout.model, block, gradient) : 0;
}

/* Moves one of the matrices that lie side by side behind a boundary tensor. */
static void part_move(struct stage_pass *pass, struct matrix_at behind, struct matrix_at kept, uint32_t width,
                      bool arrives)
{
    struct matrix_at from = arrives ? behind : kept, to = arrives ? kept : behind;
    queue_copy(&pass->queue, pass->tokens, width, from.at, from.ld, to.at, to.ld);
}

void beside_move(struct stage_pass *pass, const struct boundary_tensor *boundary, uint32_t block,
                 bool gradient, bool arrives)
{
    const struct footprint *l = layout_of(pass);
    const struct footprint_model *m = l->model;
    uint32_t next = block - 1, own = (m->shape.layers - next) * m->shape.per_layer;
    struct matrix_at behind = {.ld = footprint_crossing(m, block, gradient)};
    if (boundary->buffer)
        behind.at = f32_at(boundary->buffer, boundary_bytes(pass->stage, boundary, pass->tokens));
    if (own > 0 && (!gradient || l->own_learns)) {
        part_move(pass, behind, (struct matrix_at){beside_own_at(pass, next, gradient), l->own_width}, own,
                  arrives);
        behind.at = operand_skip(behind.at, own);
    }
    for (uint32_t k = 0; k < FOOTPRINT_LENT; k++) {
        const struct footprint_lent *lent = &m->lends[k];
        struct operand kept = beside_slot_at(pass, gradient ? l->slot.lent_d[k] : l->slot.lent[k]);
        if (lent->width > 0 && lent->layer < next && next <= lent->last) {
            part_move(pass, behind, (struct matrix_at){kept, lent->width}, lent->width, arrives);
            behind.at = operand_skip(behind.at, lent->width);
        } else if (lent->width > 0 && gradient && arrives) {
            queue_zero(&pass->queue, kept, (uint64_t)pass->tokens * lent->width);
        }
    }
}

void beside_pad(struct stage_pass *pass, bool gradient)
{
    const struct footprint *l = layout_of(pass);
    const struct saved *slot = pass->slot;
    uint64_t rows = slot->tokens_padded - slot->tokens, first = slot->tokens;
    if (rows == 0)
        return;
    if (l->own_width > 0 && (!gradient || l->own_learns))
        queue_zero(
            &pass->queue,
            operand_skip(beside_slot_at(pass, gradient ? l->slot.own_d : l->slot.own), first * l->own_width),
            rows * l->own_width);
    for (uint32_t k = 0; k < FOOTPRINT_LENT; k++) {
        uint32_t width = l->model->lends[k].width;
        struct operand kept = beside_slot_at(pass, gradient ? l->slot.lent_d[k] : l->slot.lent[k]);
        if (width > 0)
            queue_zero(&pass->queue, operand_skip(kept, first * width), rows * width);
    }
}
