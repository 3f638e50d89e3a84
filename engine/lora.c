/* Adapters: y += scale * B A drop(x) (Hu et al. 2021, section 4.1), with scale = alpha / rank.
 *
 * The A of a group are stacked, so without dropout one product serves all its members. With dropout each
 * member has a mask of its own (as each module of peft has), which is drawn again in backward instead of
 * being kept.
 */
#include "engine/stage_private.h"

static void drop(struct pass *pass, uint32_t layer, const struct lora_member *member, uint32_t width,
                 struct operand x, struct operand y)
{
    const struct footprint *l = &pass->stage->layout;
    queue_op(&pass->queue,
             &(struct op){.kind = OP_DROPOUT,
                          .dropout = {.tokens = pass->tokens,
                                      .width = width,
                                      .p = (float)pass->stage->options.lora.dropout,
                                      .seed = pass->stage->options.seed,
                                      .step = pass->slot->step,
                                      .layer = l->layer_begin + layer,
                                      .target = member->site,
                                      .x = x,
                                      .positions = pass_meta(pass, l->slot.positions, DTYPE_U32),
                                      .row_ids = pass_meta(pass, l->slot.row_ids, DTYPE_U32),
                                      .y = y}});
}

static void drop_backward(struct pass *pass, uint32_t layer, const struct lora_member *member, uint32_t width,
                          struct operand x, struct operand t, struct operand dx)
{
    const struct footprint *l = &pass->stage->layout;
    queue_op(&pass->queue,
             &(struct op){.kind = OP_DROPOUT_BACKWARD,
                          .dropout_backward = {.tokens = pass->tokens,
                                               .width = width,
                                               .p = (float)pass->stage->options.lora.dropout,
                                               .seed = pass->stage->options.seed,
                                               .step = pass->slot->step,
                                               .layer = l->layer_begin + layer,
                                               .target = member->site,
                                               .x = x,
                                               .positions = pass_meta(pass, l->slot.positions, DTYPE_U32),
                                               .row_ids = pass_meta(pass, l->slot.row_ids, DTYPE_U32),
                                               .t = t,
                                               .dx = dx}});
}

static float lora_scale(const struct lora_options *lora)
{
    return (float)(lora->alpha / lora->rank);
}

void lora_forward(struct pass *pass, uint32_t layer, enum lora_group_kind kind, struct operand input,
                  struct operand z, struct operand out, uint32_t ldo)
{
    const struct stage *stage = pass->stage;
    const struct lora_group *group = &stage->layout.model->groups[kind];
    uint32_t rank = stage->options.lora.rank, ldz = group->count * rank, tokens = pass->tokens;
    struct operand a = adapter_at(stage, stage->values, layer, group->a);
    struct queue *queue = &pass->queue;
    float scale = lora_scale(&stage->options.lora);
    if (group->count == 0)
        return;
    if (!pass->dropout)
        queue_gemm(queue, GEMM_NT, tokens, ldz, group->inputs, scale, input, group->inputs, a, group->inputs,
                   0, z, ldz);
    for (uint32_t i = 0; i < group->count; i++) {
        const struct lora_member *member = &group->members[i];
        struct operand z_i = operand_skip(z, (uint64_t)i * rank);
        if (pass->dropout) {
            struct operand dropped = pass_workspace(pass, stage->layout.workspace.drop);
            drop(pass, layer, member, group->inputs, input, dropped);
            queue_gemm(queue, GEMM_NT, tokens, rank, group->inputs, scale, dropped, group->inputs,
                       operand_skip(a, (uint64_t)i * rank * group->inputs), group->inputs, 0, z_i, ldz);
        }
        if (out.buffer != NULL)
            queue_gemm(queue, GEMM_NT, tokens, member->outputs, rank, 1, z_i, ldz,
                       adapter_at(stage, stage->values, layer, member->b), rank, 1,
                       operand_skip(out, member->column), ldo);
    }
}

/* dA += dz^T drop(x), dx += mask * (dz A), for one member under dropout. */
static void dropped_backward(struct pass *pass, uint32_t layer, const struct lora_group *group, uint32_t i,
                             struct operand input, struct operand dz, struct operand dinput)
{
    const struct stage *stage = pass->stage;
    uint32_t rank = stage->options.lora.rank, ldz = group->count * rank, width = group->inputs;
    uint64_t a = group->a + (uint64_t)i * rank * width;
    struct operand dropped = pass_workspace(pass, stage->layout.workspace.drop);
    struct operand dz_i = operand_skip(dz, (uint64_t)i * rank);
    /* The mask is drawn once: the gradient passes through it, and its place takes the dropped input again. */
    if (dinput.buffer != NULL) {
        queue_gemm(&pass->queue, GEMM_NN, pass->tokens, width, rank, 1, dz_i, ldz,
                   adapter_at(stage, stage->values, layer, a), width, 0, dropped, width);
    }
    drop_backward(pass, layer, &group->members[i], width, input, dropped, dinput);
    queue_gemm(&pass->queue, GEMM_TN, rank, width, pass->tokens, 1, dz_i, ldz, dropped, width, 1,
               adapter_at(stage, stage->gradients, layer, a), width);
}

void lora_backward(struct pass *pass, uint32_t layer, enum lora_group_kind kind, struct operand input,
                   struct operand z, struct operand dout, uint32_t ldd, struct operand dinput)
{
    const struct stage *stage = pass->stage;
    const struct lora_group *group = &stage->layout.model->groups[kind];
    uint32_t rank = stage->options.lora.rank, ldz = group->count * rank, tokens = pass->tokens;
    struct operand dz = pass_workspace(pass, stage->layout.workspace.dz);
    struct queue *queue = &pass->queue;
    float scale = lora_scale(&stage->options.lora);
    for (uint32_t i = 0; i < group->count; i++) {
        const struct lora_member *member = &group->members[i];
        struct operand dout_i = operand_skip(dout, member->column);
        queue_gemm(queue, GEMM_TN, member->outputs, rank, tokens, 1, dout_i, ldd,
                   operand_skip(z, (uint64_t)i * rank), ldz, 1,
                   adapter_at(stage, stage->gradients, layer, member->b), rank);
        queue_gemm(queue, GEMM_NN, tokens, rank, member->outputs, scale, dout_i, ldd,
                   adapter_at(stage, stage->values, layer, member->b), rank, 0,
                   operand_skip(dz, (uint64_t)i * rank), ldz);
        if (pass->dropout)
            dropped_backward(pass, layer, group, i, input, dz, dinput);
    }
    if (group->count == 0 || pass->dropout)
        return;
    queue_gemm(queue, GEMM_TN, ldz, group->inputs, tokens, 1, dz, ldz, input, group->inputs, 1,
               adapter_at(stage, stage->gradients, layer, group->a), group->inputs);
    if (dinput.buffer != NULL)
        queue_gemm(queue, GEMM_NN, tokens, group->inputs, ldz, 1, dz, ldz,
                   adapter_at(stage, stage->values, layer, group->a), group->inputs, 1, dinput,
                   group->inputs);
}
