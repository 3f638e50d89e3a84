/* Final norm, head and cross-entropy, at labelled positions only and a few of them at a time: logits of a
 * whole micro-batch never exist. In training, forward goes on to the gradient while a chunk's logits are
 * there, so they are computed once; backward only puts it in place.
 */
#include "engine/stage_private.h"

struct operand head_matrix(const struct stage *stage)
{
    return f32_at(stage->layout.shares_table ? stage->table : stage->head_table, 0);
}

void head_logits(struct pass *pass, struct operand x, uint32_t rows)
{
    const struct stage *stage = pass->stage;
    const struct footprint *l = &stage->layout;
    uint32_t hidden = l->model->shape.hidden, vocab = l->model->shape.vocab;
    struct operand norm = pass_workspace(pass, l->workspace.head_n);
    queue_norm(&pass->queue, stage, rows, x, f32_at(stage->head_norm, 0), norm);
    queue_gemm(&pass->queue, GEMM_NT, rows, vocab, hidden, 1, norm, hidden, head_matrix(stage), hidden, 0,
               pass_workspace(pass, l->workspace.logits), vocab);
}

static void chunk_forward(struct pass *pass, struct operand x, uint32_t at, uint32_t rows, bool gradient)
{
    const struct stage *stage = pass->stage;
    const struct footprint *l = &stage->layout;
    uint32_t hidden = l->model->shape.hidden, vocab = l->model->shape.vocab;
    struct operand chosen = pass_workspace(pass, l->workspace.head_x);
    struct operand norm = pass_workspace(pass, l->workspace.head_n);
    struct operand logits = pass_workspace(pass, l->workspace.logits);
    struct operand loss = {.buffer = stage->scalars, .dtype = DTYPE_F64};
    queue_op(
        &pass->queue,
        &(struct op){.kind = OP_GATHER_ROWS,
                     .gather_rows = {.rows = rows,
                                     .width = hidden,
                                     .x_rows = pass->tokens,
                                     .x = x,
                                     .index = pass_meta(pass, l->slot.label_index + 4ull * at, DTYPE_U32),
                                     .y = chosen}});
    head_logits(pass, chosen, rows);
    queue_op(
        &pass->queue,
        &(struct op){.kind = OP_CROSS_ENTROPY,
                     .cross_entropy = {.rows = rows,
                                       .vocab = vocab,
                                       .gradient = gradient,
                                       .logits = logits,
                                       .targets = pass_meta(pass, l->slot.targets + 4ull * at, DTYPE_I32),
                                       .loss = loss}});
    if (!gradient)
        return;
    queue_gemm(&pass->queue, GEMM_NN, rows, hidden, vocab, 1, logits, vocab, head_matrix(stage), hidden, 0,
               norm, hidden);
    queue_op(&pass->queue,
             &(struct op){
                 .kind = OP_RMSNORM_BACKWARD,
                 .rmsnorm_backward = {.rows = rows,
                                      .width = hidden,
                                      .eps = (float)stage->config.norm_eps,
                                      .x = chosen,
                                      .weight = f32_at(stage->head_norm, 0),
                                      .dy = norm,
                                      .dx = f32_at(pass->slot->buffer, l->slot.head + 4ull * at * hidden)}});
}

void head_forward(struct pass *pass, struct operand x, bool gradient)
{
    uint32_t chunk = pass->stage->layout.head_rows, labelled = pass->slot->labelled;
    for (uint32_t at = 0; at < labelled; at += chunk)
        chunk_forward(pass, x, at, labelled - at < chunk ? labelled - at : chunk, gradient);
}

void head_backward(struct pass *pass, float scale)
{
    const struct footprint *l = &pass->stage->layout;
    queue_op(&pass->queue,
             &(struct op){.kind = OP_SCATTER_ROWS,
                          .scatter_rows = {.rows = pass->slot->labelled,
                                           .width = l->model->shape.hidden,
                                           .y_rows = pass->tokens,
                                           .scale = scale,
                                           .x = f32_at(pass->slot->buffer, l->slot.head),
                                           .index = pass_meta(pass, l->slot.label_index, DTYPE_U32),
                                           .y = pass_workspace(pass, l->workspace.d)}});
}
