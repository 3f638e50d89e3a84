/* Both adapters are two small products beside a table. The embedding's z is looked up again for backward. */
#include "engine/stage/table_adapter.h"

/* One of the two adapters. */
struct table_adapter {
    const struct block_state *block;
    const struct layer_tensor *a_tensor, *b_tensor;
    uint32_t rows;
    float scale;
    struct matrix_at a, b, out, x, z, dz; /* x: of the head alone; out: its gradient in backward */
    struct op_dropout dropout;            /* how x is made, if it is dropped out */
};

static bool adapter_of(const struct stage_pass *pass, uint32_t block, double factor, uint64_t z_at,
                       uint32_t z_rows, struct table_adapter *t)
{
    const struct stage *stage = pass->stage;
    t->block = stage_block(stage, block);
    const struct layer_tensors *tensors = t->block->tensors;
    t->a_tensor = &tensors->list[tensors->adapter];
    t->b_tensor = t->a_tensor + 1;
    if (tensors->adapter == 0)
        return false;
    uint32_t rank = t->a_tensor->rows;
    struct operand z = pass_workspace(pass, z_at);
    t->scale = (float)(lora_scale(&stage->options.lora, 0, (uint32_t)__builtin_ctz(t->a_tensor->target)) *
                       (factor > 0 ? factor : 1));
    t->a = (struct matrix_at){tensor_at(t->block, t->a_tensor), t->a_tensor->columns};
    t->b = (struct matrix_at){tensor_at(t->block, t->b_tensor), rank};
    t->z = (struct matrix_at){z, rank};
    t->dz = (struct matrix_at){operand_skip(z, (uint64_t)z_rows * rank), rank};
    return true;
}

/* c = alpha a b + beta c in the order's forms of a and b, whose rows, and c's, have no gaps. */
static void product(struct stage_pass *pass, const struct table_adapter *t, struct gemm gemm)
{
    bool outer = gemm.order == GEMM_TN;
    gemm.m = outer ? gemm.a.ld : t->rows;
    gemm.n = gemm.c.ld;
    gemm.k = outer ? t->rows : gemm.a.ld;
    queue_gemm(&pass->queue, &gemm);
}

/* out += B z */
static void outer_forward(struct stage_pass *pass, const struct table_adapter *t)
{
    product(pass, t,
            (struct gemm){.order = GEMM_NT, .alpha = 1, .beta = 1, .a = t->z, .b = t->b, .c = t->out});
}

/* dB += dout^T z, then dz = scale * dout B */
static void outer_backward(struct stage_pass *pass, const struct table_adapter *t)
{
    struct matrix_at db = {tensor_gradient(t->block, t->b_tensor), t->b.ld};
    product(pass, t, (struct gemm){.order = GEMM_TN, .alpha = 1, .beta = 1, .a = t->out, .b = t->z, .c = db});
    product(pass, t, (struct gemm){.order = GEMM_NN, .alpha = t->scale, .a = t->out, .b = t->b, .c = t->dz});
}

/* --- embedding --- */

static bool embed_adapter(struct stage_pass *pass, struct operand out, struct table_adapter *t)
{
    const struct footprint *l = &pass->stage->layout;
    const struct model_config *c = &pass->stage->config;
    *t = (struct table_adapter){.rows = pass->tokens, .out = {out, c->hidden}};
    if (!adapter_of(pass, 0, c->embed_scale, l->workspace.embed_z, l->tokens, t))
        return false;
    queue_op(&pass->queue, &(struct op){.kind = OP_EMBED,
                                        .embed = {.tokens = t->rows,
                                                  .hidden = t->z.ld,
                                                  .vocab = c->vocab,
                                                  .turned = true,
                                                  .scale = t->scale,
                                                  .ids = pass_meta(pass, l->slot.ids, DTYPE_I32),
                                                  .table = t->a.at,
                                                  .out = t->z.at}});
    return true;
}

void embed_adapter_forward(struct stage_pass *pass, struct operand out)
{
    struct table_adapter t;
    if (embed_adapter(pass, out, &t))
        outer_forward(pass, &t);
}

void embed_adapter_backward(struct stage_pass *pass, struct operand dout)
{
    struct table_adapter t;
    if (!embed_adapter(pass, dout, &t))
        return;
    outer_backward(pass, &t);
    queue_op(&pass->queue,
             &(struct op){.kind = OP_EMBED_BACKWARD,
                          .embed_backward = {.tokens = t.rows,
                                             .hidden = t.z.ld,
                                             .vocab = pass->stage->config.vocab,
                                             .turned = true,
                                             .ids = pass_meta(pass, pass->stage->layout.slot.ids, DTYPE_I32),
                                             .dout = t.dz.at,
                                             .dtable = tensor_gradient(t.block, t.a_tensor)}});
}

/* --- head --- */

static bool head_adapter(struct stage_pass *pass, uint32_t at, uint32_t rows, struct table_adapter *t)
{
    const struct stage *stage = pass->stage;
    const struct footprint *l = &stage->layout;
    const struct model_config *c = &stage->config;
    struct operand norm = pass_workspace(pass, l->workspace.head_n);
    *t = (struct table_adapter){
        .rows = rows, .out = {pass_workspace(pass, l->workspace.logits), c->vocab}, .x = {norm, c->hidden}};
    if (!adapter_of(pass, c->layers + 1, c->logit_scale, l->workspace.head_z, l->head_rows, t))
        return false;
    if (!pass->dropout)
        return true;
    t->x.at = pass_workspace(pass, l->workspace.head_dropped);
    t->dropout = (struct op_dropout){
        .tokens = rows,
        .width = c->hidden,
        .p = (float)stage->options.lora.dropout,
        .seed = stage->options.seed,
        .layer = c->layers, /* with this target no matrix of a layer has the same counters */
        .target = 15,
        .x = norm,
        .positions = pass_meta(pass, l->slot.label_positions + 4ull * at, DTYPE_U32),
        .row_ids = pass_meta(pass, l->slot.label_rows + 4ull * at, DTYPE_U32),
        .step = pass_meta(pass, l->slot.step, DTYPE_U32),
        .y = t->x.at};
    return true;
}

void head_adapter_forward(struct stage_pass *pass, uint32_t at, uint32_t rows)
{
    struct table_adapter t;
    if (!head_adapter(pass, at, rows, &t))
        return;
    if (pass->dropout)
        queue_op(&pass->queue, &(struct op){.kind = OP_DROPOUT, .dropout = t.dropout});
    product(pass, &t, (struct gemm){.order = GEMM_NT, .alpha = t.scale, .a = t.x, .b = t.a, .c = t.z});
    outer_forward(pass, &t);
}

void head_adapter_backward(struct stage_pass *pass, uint32_t at, uint32_t rows)
{
    struct table_adapter t;
    if (!head_adapter(pass, at, rows, &t))
        return;
    struct matrix_at da = {tensor_gradient(t.block, t.a_tensor), t.x.ld};
    outer_backward(pass, &t);
    product(pass, &t, (struct gemm){.order = GEMM_TN, .alpha = 1, .beta = 1, .a = t.dz, .b = t.x, .c = da});
}

void head_adapter_input(struct stage_pass *pass, uint32_t at, uint32_t rows)
{
    struct table_adapter t;
    const struct footprint_workspace *w = &pass->stage->layout.workspace;
    struct operand dx = pass_workspace(pass, w->head_n);
    if (!head_adapter(pass, at, rows, &t))
        return;
    struct matrix_at out = {pass->dropout ? t.x.at : dx, t.x.ld};
    product(pass, &t,
            (struct gemm){
                .order = GEMM_NN, .alpha = 1, .beta = pass->dropout ? 0 : 1, .a = t.dz, .b = t.a, .c = out});
    if (!pass->dropout)
        return;
    struct op_dropout_backward back = {.forward = t.dropout, .dx = dx};
    back.forward.x = pass_workspace(pass, w->head_x); /* any values: what is made of them is not read */
    queue_op(&pass->queue, &(struct op){.kind = OP_DROPOUT_BACKWARD, .dropout_backward = back});
}
