/* Final norm, head and cross-entropy. They run at labelled positions only and for a chunk of positions at a
 * time, so the logits of a whole micro-batch never exist. In training, forward computes the gradient of a
 * chunk while its logits are there, so logits are computed once; it also adds to the gradients of head and
 * norm. Backward only scatters the saved gradient to the labelled rows.
 */
#include "engine/stage/head.h"
#include "engine/stage/layer.h"
#include "engine/stage/linear.h"
#include "engine/stage/table_adapter.h"

enum { HEAD_NORM = 0 }; /* index in the last block's tensors; behind the norm's are bias and matrix */

static struct block_state *head_block(const struct stage *stage)
{
    return stage_block(stage, stage->config.layers + 1);
}

/* The bias of the logits, or NULL. */
static const struct layer_tensor *head_bias(const struct stage *stage)
{
    const struct model_config *c = &stage->config;
    return c->head_bias ? &head_block(stage)->tensors->list[c->norm_bias ? 2 : 1] : NULL;
}

/* The matrix that the head multiplies with: its own, the embedding's, or the copy of the embedding. */
static const struct block_state *matrix_block(const struct stage *stage, const struct layer_tensor **matrix)
{
    const struct footprint *l = &stage->layout;
    const struct block_state *block = l->shares_table   ? stage_block(stage, 0)
                                      : l->copies_table ? &stage->table
                                                        : head_block(stage);
    *matrix = &block->tensors->list[l->shares_table || l->copies_table
                                        ? 0
                                        : 1u + stage->config.norm_bias + stage->config.head_bias];
    return block;
}

/* Computes the logits of x's rows, labelled position `at` and those behind it, before the softcap that some
 * models have. The rows are first normed into the workspace's head_n. */
static void logits_of(struct stage_pass *pass, struct operand x, uint32_t at, uint32_t rows)
{
    const struct stage *stage = pass->stage;
    const struct footprint *l = &stage->layout;
    const struct layer_tensor *matrix;
    const struct block_state *block = matrix_block(stage, &matrix);
    uint32_t hidden = l->model->shape.hidden, vocab = l->model->shape.vocab;
    struct operand norm = pass_workspace(pass, l->workspace.head_n);
    block_norm(pass, head_block(stage), HEAD_NORM, rows, x, norm);
    matrix_multiply(pass, &(struct matrix_product){.block = block,
                                                   .matrix = matrix,
                                                   .rows = rows,
                                                   .alpha = (float)stage->config.logit_scale,
                                                   .x = {norm, hidden},
                                                   .c = {pass_workspace(pass, l->workspace.logits), vocab}});
    const struct layer_tensor *bias = head_bias(stage);
    if (bias)
        queue_op(&pass->queue, &(struct op){.kind = OP_BIAS,
                                            .bias = {.rows = rows,
                                                     .width = vocab,
                                                     .ldx = vocab,
                                                     .x = pass_workspace(pass, l->workspace.logits),
                                                     .bias = tensor_at(head_block(stage), bias)}});
    head_adapter_forward(pass, at, rows);
}

void head_logits(struct stage_pass *pass, struct operand x, uint32_t rows)
{
    const struct stage *stage = pass->stage;
    logits_of(pass, x, 0, rows);
    if (stage->config.logit_softcap > 0)
        queue_op(&pass->queue,
                 &(struct op){.kind = OP_SOFTCAP,
                              .softcap = {.rows = rows,
                                          .width = stage->config.vocab,
                                          .cap = (float)stage->config.logit_softcap,
                                          .x = pass_workspace(pass, stage->layout.workspace.logits)}});
}

/* Backward of a chunk of labelled positions, whose logits have been replaced by their gradient. Computes the
 * gradient of the chunk's rows, and adds to the gradients of norm and head if these are trained. */
static void chunk_backward(struct stage_pass *pass, uint32_t at, uint32_t rows)
{
    const struct stage *stage = pass->stage;
    const struct footprint *l = &stage->layout;
    const struct layer_tensor *matrix;
    const struct block_state *block = matrix_block(stage, &matrix);
    uint32_t hidden = l->model->shape.hidden, vocab = l->model->shape.vocab;
    struct operand logits = pass_workspace(pass, l->workspace.logits);
    struct operand norm = pass_workspace(pass, l->workspace.head_n);
    double scale = stage->config.logit_scale;
    const struct layer_tensor *bias = head_bias(stage);
    if (bias && bias->trained)
        queue_op(&pass->queue, &(struct op){.kind = OP_COLUMN_SUM,
                                            .column_sum = {.rows = rows,
                                                           .width = vocab,
                                                           .ldx = vocab,
                                                           .x = logits,
                                                           .y = tensor_gradient(head_block(stage), bias)}});
    if (matrix->trained)
        queue_gemm(&pass->queue, &(struct gemm){.order = GEMM_TN,
                                                .m = vocab,
                                                .n = hidden,
                                                .k = rows,
                                                .alpha = scale > 0 ? (float)scale : 1,
                                                .beta = 1,
                                                .a = {logits, vocab},
                                                .b = {norm, hidden},
                                                .c = {tensor_gradient(block, matrix), hidden}});
    head_adapter_backward(pass, at, rows);
    matrix_multiply(pass, &(struct matrix_product){.block = block,
                                                   .matrix = matrix,
                                                   .back = true,
                                                   .rows = rows,
                                                   .alpha = (float)scale,
                                                   .x = {logits, vocab},
                                                   .c = {norm, hidden}});
    head_adapter_input(pass, at, rows);
    block_norm_backward(pass, head_block(stage), HEAD_NORM, rows, pass_workspace(pass, l->workspace.head_x),
                        norm, false, f32_at(pass->slot->buffer, l->slot.head + 4ull * at * hidden));
}

static void chunk_forward(struct stage_pass *pass, struct operand x, uint32_t at, uint32_t rows,
                          bool gradient)
{
    const struct stage *stage = pass->stage;
    const struct footprint *l = &stage->layout;
    struct operand chosen = pass_workspace(pass, l->workspace.head_x);
    queue_op(
        &pass->queue,
        &(struct op){.kind = OP_GATHER_ROWS,
                     .gather_rows = {.rows = rows,
                                     .width = l->model->shape.hidden,
                                     .x_rows = pass->tokens,
                                     .x = x,
                                     .index = pass_meta(pass, l->slot.label_index + 4ull * at, DTYPE_U32),
                                     .y = chosen}});
    logits_of(pass, chosen, at, rows);
    queue_op(
        &pass->queue,
        &(struct op){.kind = OP_CROSS_ENTROPY,
                     .cross_entropy = {.rows = rows,
                                       .vocab = l->model->shape.vocab,
                                       .smoothing = pass->train ? (float)stage->options.label_smoothing : 0,
                                       .cap = (float)stage->config.logit_softcap,
                                       .gradient = gradient,
                                       .gradient_scale = stage->loss_scale,
                                       .logits = pass_workspace(pass, l->workspace.logits),
                                       .targets = pass_meta(pass, l->slot.targets + 4ull * at, DTYPE_I32),
                                       .loss = {.buffer = stage->scalars, .dtype = DTYPE_F64}}});
    if (gradient)
        chunk_backward(pass, at, rows);
}

void head_forward(struct stage_pass *pass, struct operand x, bool gradient)
{
    uint32_t chunk = pass->stage->layout.head_rows, labelled = pass->slot->labelled_padded;
    for (uint32_t at = 0; at < labelled; at += chunk)
        chunk_forward(pass, x, at, labelled - at < chunk ? labelled - at : chunk, gradient);
}

void head_backward(struct stage_pass *pass)
{
    const struct footprint *l = &pass->stage->layout;
    queue_op(&pass->queue,
             &(struct op){.kind = OP_SCATTER_ROWS,
                          .scatter_rows = {.rows = pass->slot->labelled,
                                           .width = l->model->shape.hidden,
                                           .y_rows = pass->tokens,
                                           .scale = 1,
                                           .x = f32_at(pass->slot->buffer, l->slot.head),
                                           .index = pass_meta(pass, l->slot.label_index, DTYPE_U32),
                                           .y = pass_workspace(pass, l->workspace.d)}});
}
