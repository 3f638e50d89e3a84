/* What each op touches, and the checks every device makes before it queues one. */
#include "engine/op.h"

#include <string.h>

static const char *const op_names[OP_KINDS] = {
    [OP_GEMM] = "gemm",
    [OP_COPY] = "copy",
    [OP_EMBED] = "embed",
    [OP_RMSNORM] = "rmsnorm",
    [OP_RMSNORM_BACKWARD] = "rmsnorm_backward",
    [OP_ROPE] = "rope",
    [OP_ATTENTION] = "attention",
    [OP_ATTENTION_BACKWARD] = "attention_backward",
    [OP_ATTENTION_CACHED] = "attention_cached",
    [OP_GLU] = "glu",
    [OP_GLU_BACKWARD] = "glu_backward",
    [OP_DROPOUT] = "dropout",
    [OP_DROPOUT_BACKWARD] = "dropout_backward",
    [OP_GATHER_ROWS] = "gather_rows",
    [OP_SCATTER_ROWS] = "scatter_rows",
    [OP_CROSS_ENTROPY] = "cross_entropy",
    [OP_SQUARE_SUM] = "square_sum",
    [OP_ADAMW] = "adamw",
    [OP_ADAMW8] = "adamw8",
    [OP_ADD] = "add",
    [OP_CAST] = "cast",
    [OP_UNPACK] = "unpack",
    [OP_BIAS] = "bias",
    [OP_COLUMN_SUM] = "column_sum",
    [OP_EMBED_BACKWARD] = "embed_backward",
    [OP_EMBED_NOISE] = "embed_noise",
    [OP_SOFTCAP] = "softcap",
    [OP_GEMM_GROUPED] = "gemm_grouped",
    [OP_ROUTE] = "route",
    [OP_ROUTE_BACKWARD] = "route_backward",
    [OP_ROUTE_SORT] = "route_sort",
    [OP_ROUTER_LOSS] = "router_loss",
    [OP_COMBINE] = "combine",
    [OP_COMBINE_BACKWARD] = "combine_backward",
};

const char *op_name(enum op_kind kind)
{
    return (unsigned)kind < OP_KINDS ? op_names[kind] : "unknown";
}

uint32_t dtype_bytes(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F64:
        return 8;
    case DTYPE_BF16:
    case DTYPE_F16:
        return 2;
    case DTYPE_U8:
        return 1;
    case DTYPE_F32:
    case DTYPE_I32:
    case DTYPE_U32:
        return 4;
    }
    return 4;
}

struct uses {
    struct operand_use *list;
    uint32_t count;
};

static void use(struct uses *uses, const char *name, struct operand operand, enum operand_access access,
                uint64_t rows, uint64_t width, uint64_t ld)
{
    uses->list[uses->count++] = (struct operand_use){
        .name = name, .operand = operand, .access = access, .rows = rows, .width = width, .ld = ld};
}

static void gemm_operands(const struct op_gemm *op, struct uses *uses)
{
    use(uses, "a", op->a, OPERAND_READ, op->transpose_a ? op->k : op->m, op->transpose_a ? op->m : op->k,
        op->lda);
    use(uses, "b", op->b, OPERAND_READ, op->transpose_b ? op->n : op->k, op->transpose_b ? op->k : op->n,
        op->ldb);
    use(uses, "c", op->c, op->beta == 0.0f ? OPERAND_WRITE : OPERAND_UPDATE, op->m, op->n, op->ldc);
}

static void attention_operands(const struct op_attention *op, struct uses *uses)
{
    uint64_t q = (uint64_t)op->heads * op->head_dim, kv = (uint64_t)op->kv_heads * op->head_dim;
    use(uses, "q", op->q, OPERAND_READ, op->tokens, q, op->ld);
    use(uses, "k", op->k, OPERAND_READ, op->tokens, kv, op->ld);
    use(uses, "v", op->v, OPERAND_READ, op->tokens, kv, op->ld);
    use(uses, "row_start", op->row_start, OPERAND_READ, 1, op->rows + 1ull, op->rows + 1ull);
    use(uses, "out", op->out, OPERAND_WRITE, op->tokens, q, q);
    use(uses, "lse", op->lse, OPERAND_WRITE, op->tokens, op->heads, op->heads);
}

static void attention_backward_operands(const struct op_attention_backward *op, struct uses *uses)
{
    uint64_t q = (uint64_t)op->heads * op->head_dim, kv = (uint64_t)op->kv_heads * op->head_dim;
    use(uses, "q", op->q, OPERAND_READ, op->tokens, q, op->ld);
    use(uses, "k", op->k, OPERAND_READ, op->tokens, kv, op->ld);
    use(uses, "v", op->v, OPERAND_READ, op->tokens, kv, op->ld);
    use(uses, "row_start", op->row_start, OPERAND_READ, 1, op->rows + 1ull, op->rows + 1ull);
    use(uses, "out", op->out, OPERAND_READ, op->tokens, q, q);
    use(uses, "lse", op->lse, OPERAND_READ, op->tokens, op->heads, op->heads);
    use(uses, "dout", op->dout, OPERAND_READ, op->tokens, q, q);
    use(uses, "delta", op->delta, OPERAND_WRITE, op->tokens, op->heads, op->heads);
    use(uses, "dq", op->dq, OPERAND_WRITE, op->tokens, q, op->ld);
    use(uses, "dk", op->dk, OPERAND_WRITE, op->tokens, kv, op->ld);
    use(uses, "dv", op->dv, OPERAND_WRITE, op->tokens, kv, op->ld);
}

static void attention_cached_operands(const struct op_attention_cached *op, struct uses *uses)
{
    uint64_t q = (uint64_t)op->heads * op->head_dim, kv = (uint64_t)op->kv_heads * op->head_dim;
    uint64_t held = (uint64_t)op->begin + op->tokens;
    use(uses, "q", op->q, OPERAND_READ, op->tokens, q, op->ldq);
    use(uses, "k", op->k, OPERAND_READ, held, kv, kv);
    use(uses, "v", op->v, OPERAND_READ, held, kv, kv);
    use(uses, "out", op->out, OPERAND_WRITE, op->tokens, q, q);
}

static void dropout_operands(const struct op_dropout *op, struct uses *uses)
{
    use(uses, "x", op->x, OPERAND_READ, op->tokens, op->width, op->width);
    use(uses, "positions", op->positions, OPERAND_READ, 1, op->tokens, op->tokens);
    use(uses, "row_ids", op->row_ids, OPERAND_READ, 1, op->tokens, op->tokens);
    use(uses, "y", op->y, OPERAND_WRITE, op->tokens, op->width, op->width);
}

static void dropout_backward_operands(const struct op_dropout_backward *op, struct uses *uses)
{
    use(uses, "x", op->x, OPERAND_READ, op->tokens, op->width, op->width);
    use(uses, "positions", op->positions, OPERAND_READ, 1, op->tokens, op->tokens);
    use(uses, "row_ids", op->row_ids, OPERAND_READ, 1, op->tokens, op->tokens);
    use(uses, "t", op->t, op->dx.buffer == NULL ? OPERAND_WRITE : OPERAND_UPDATE, op->tokens, op->width,
        op->width);
    use(uses, "dx", op->dx, OPERAND_UPDATE, op->dx.buffer == NULL ? 0 : op->tokens, op->width, op->width);
}

static void norm_operands(const struct op *op, struct uses *uses)
{
    if (op->kind == OP_RMSNORM) {
        const struct op_rmsnorm *o = &op->rmsnorm;
        use(uses, "x", o->x, OPERAND_READ, o->rows, o->width, o->width);
        use(uses, "weight", o->weight, OPERAND_READ, 1, o->width, o->width);
        use(uses, "y", o->y, OPERAND_WRITE, o->rows, o->width, o->width);
        return;
    }
    const struct op_rmsnorm_backward *o = &op->rmsnorm_backward;
    use(uses, "x", o->x, OPERAND_READ, o->rows, o->width, o->width);
    use(uses, "weight", o->weight, OPERAND_READ, 1, o->width, o->width);
    use(uses, "dy", o->dy, OPERAND_READ, o->rows, o->width, o->width);
    use(uses, "dx", o->dx, o->accumulate ? OPERAND_UPDATE : OPERAND_WRITE, o->rows, o->width, o->width);
}

static void rows_operands(const struct op *op, struct uses *uses)
{
    if (op->kind == OP_GATHER_ROWS) {
        const struct op_gather_rows *o = &op->gather_rows;
        use(uses, "x", o->x, OPERAND_READ, o->x_rows, o->width, o->width);
        use(uses, "index", o->index, OPERAND_READ, 1, o->rows, o->rows);
        use(uses, "y", o->y, OPERAND_WRITE, o->rows, o->width, o->width);
        return;
    }
    const struct op_scatter_rows *o = &op->scatter_rows;
    use(uses, "x", o->x, OPERAND_READ, o->rows, o->width, o->width);
    use(uses, "index", o->index, OPERAND_READ, 1, o->rows, o->rows);
    use(uses, "y", o->y, OPERAND_WRITE, o->y_rows, o->width, o->width);
}

static void adamw_operands(const struct op_adamw *op, struct uses *uses)
{
    use(uses, "value", op->value, OPERAND_UPDATE, 1, op->count, op->count);
    use(uses, "gradient", op->gradient, OPERAND_READ, 1, op->count, op->count);
    use(uses, "moment1", op->moment1, OPERAND_UPDATE, 1, op->count, op->count);
    use(uses, "moment2", op->moment2, OPERAND_UPDATE, 1, op->count, op->count);
}

static void embed_operands(const struct op_embed *op, struct uses *uses)
{
    use(uses, "ids", op->ids, OPERAND_READ, 1, op->tokens, op->tokens);
    use(uses, "table", op->table, OPERAND_READ, op->vocab, op->hidden, op->hidden);
    use(uses, "out", op->out, OPERAND_WRITE, op->tokens, op->hidden, op->hidden);
}

static void rope_operands(const struct op_rope *op, struct uses *uses)
{
    use(uses, "x", op->x, OPERAND_UPDATE, op->tokens, (uint64_t)op->heads * op->head_dim, op->ldx);
    use(uses, "positions", op->positions, OPERAND_READ, 1, op->tokens, op->tokens);
    use(uses, "table", op->table, OPERAND_READ, op->table_rows, op->head_dim, op->head_dim);
}

static void glu_operands(const struct op *op, struct uses *uses)
{
    if (op->kind == OP_GLU) {
        const struct op_glu *o = &op->glu;
        use(uses, "gate_up", o->gate_up, OPERAND_READ, o->tokens, 2ull * o->width, 2ull * o->width);
        use(uses, "act", o->act, OPERAND_WRITE, o->tokens, o->width, o->width);
        return;
    }
    const struct op_glu_backward *o = &op->glu_backward;
    use(uses, "gate_up", o->gate_up, OPERAND_UPDATE, o->tokens, 2ull * o->width, 2ull * o->width);
    use(uses, "dact", o->dact, OPERAND_READ, o->tokens, o->width, o->width);
}

/* Matrices of groups lie `stride` apart: one row of this operand each. */
static void matrices_use(struct uses *uses, const char *name, struct operand operand,
                         enum operand_access access, const struct op_gemm_grouped *op, uint64_t rows,
                         uint64_t width, uint64_t ld)
{
    uint64_t span = rows == 0 || width == 0 ? 0 : (rows - 1) * ld + width;
    use(uses, name, operand, access, op->groups, span, op->groups <= 1 ? span : op->stride);
}

static void gemm_grouped_operands(const struct op_gemm_grouped *op, struct uses *uses)
{
    enum operand_access write = op->beta == 0.0f ? OPERAND_WRITE : OPERAND_UPDATE;
    uint64_t starts = op->groups == 0 ? 0 : op->groups_all + 1ull;
    use(uses, "a", op->a, OPERAND_READ, op->rows, op->transpose_a ? op->m : op->k, op->lda);
    if (op->transpose_a) {
        use(uses, "b", op->b, OPERAND_READ, op->rows, op->n, op->ldb);
        matrices_use(uses, "c", op->c, write, op, op->m, op->n, op->ldc);
    } else {
        matrices_use(uses, "b", op->b, OPERAND_READ, op, op->transpose_b ? op->n : op->k,
                     op->transpose_b ? op->k : op->n, op->ldb);
        use(uses, "c", op->c, write, op->rows, op->n, op->ldc);
    }
    use(uses, "offsets", op->offsets, OPERAND_READ, 1, starts, starts);
}

static void route_operands(const struct op_route *op, struct uses *uses)
{
    use(uses, "scores", op->scores, OPERAND_UPDATE, op->tokens, op->experts, op->experts);
    use(uses, "chosen", op->chosen, OPERAND_WRITE, op->tokens, op->active, op->active);
    use(uses, "weight", op->weight, OPERAND_WRITE, op->tokens, op->active, op->active);
    if (op->counts.buffer == NULL || op->tokens == 0)
        return;
    use(uses, "row_start", op->row_start, OPERAND_READ, 1, op->rows + 1ull, op->rows + 1ull);
    use(uses, "counts", op->counts, OPERAND_UPDATE, op->rows, op->experts, op->experts);
    use(uses, "sums", op->sums, OPERAND_UPDATE, op->rows, op->experts, op->experts);
}

static void route_backward_operands(const struct op_route_backward *op, struct uses *uses)
{
    use(uses, "probabilities", op->probabilities, OPERAND_READ, op->tokens, op->experts, op->experts);
    use(uses, "chosen", op->chosen, OPERAND_READ, op->tokens, op->active, op->active);
    use(uses, "dweight", op->dweight, OPERAND_READ, op->tokens, op->active, op->active);
    use(uses, "dscores", op->dscores, OPERAND_WRITE, op->tokens, op->experts, op->experts);
    if (op->counts.buffer == NULL || op->tokens == 0)
        return;
    use(uses, "row_start", op->row_start, OPERAND_READ, 1, op->rows + 1ull, op->rows + 1ull);
    use(uses, "counts", op->counts, OPERAND_READ, op->rows, op->experts, op->experts);
}

static void route_sort_operands(const struct op_route_sort *op, struct uses *uses)
{
    uint64_t choices = (uint64_t)op->tokens * op->active;
    use(uses, "chosen", op->chosen, OPERAND_READ, 1, choices, choices);
    use(uses, "token", op->token, OPERAND_WRITE, 1, choices, choices);
    use(uses, "place", op->place, OPERAND_WRITE, 1, choices, choices);
    use(uses, "offsets", op->offsets, OPERAND_WRITE, 1, op->experts + 1ull, op->experts + 1ull);
}

static void router_loss_operands(const struct op_router_loss *op, struct uses *uses)
{
    use(uses, "row_start", op->row_start, OPERAND_READ, 1, op->rows + 1ull, op->rows + 1ull);
    use(uses, "counts", op->counts, OPERAND_READ, op->rows, op->experts, op->experts);
    use(uses, "sums", op->sums, OPERAND_READ, op->rows, op->experts, op->experts);
    use(uses, "loss", op->loss, OPERAND_UPDATE, 1, 1, 1);
}

static void combine_operands(const struct op *op, struct uses *uses)
{
    if (op->kind == OP_COMBINE) {
        const struct op_combine *o = &op->combine;
        use(uses, "x", o->x, OPERAND_READ, (uint64_t)o->tokens * o->active, o->width, o->width);
        use(uses, "place", o->place, OPERAND_READ, o->tokens, o->active, o->active);
        if (o->weight.buffer != NULL)
            use(uses, "weight", o->weight, OPERAND_READ, o->tokens, o->active, o->active);
        use(uses, "y", o->y, OPERAND_UPDATE, o->tokens, o->width, o->width);
        return;
    }
    const struct op_combine_backward *o = &op->combine_backward;
    use(uses, "x", o->x, OPERAND_UPDATE, (uint64_t)o->tokens * o->active, o->width, o->width);
    use(uses, "place", o->place, OPERAND_READ, o->tokens, o->active, o->active);
    use(uses, "weight", o->weight, OPERAND_READ, o->tokens, o->active, o->active);
    use(uses, "dy", o->dy, OPERAND_READ, o->tokens, o->width, o->width);
    use(uses, "dweight", o->dweight, OPERAND_WRITE, o->tokens, o->active, o->active);
}

uint32_t op_operands(const struct op *op, struct operand_use *list)
{
    struct uses uses = {.list = list};
    switch (op->kind) {
    case OP_GEMM:
        gemm_operands(&op->gemm, &uses);
        break;
    case OP_COPY:
        use(&uses, "x", op->copy.x, OPERAND_READ, op->copy.rows, op->copy.width, op->copy.ldx);
        use(&uses, "y", op->copy.y, OPERAND_WRITE, op->copy.rows, op->copy.width, op->copy.ldy);
        break;
    case OP_EMBED:
        embed_operands(&op->embed, &uses);
        break;
    case OP_RMSNORM:
    case OP_RMSNORM_BACKWARD:
        norm_operands(op, &uses);
        break;
    case OP_ROPE:
        rope_operands(&op->rope, &uses);
        break;
    case OP_ATTENTION:
        attention_operands(&op->attention, &uses);
        break;
    case OP_ATTENTION_BACKWARD:
        attention_backward_operands(&op->attention_backward, &uses);
        break;
    case OP_ATTENTION_CACHED:
        attention_cached_operands(&op->attention_cached, &uses);
        break;
    case OP_GLU:
    case OP_GLU_BACKWARD:
        glu_operands(op, &uses);
        break;
    case OP_DROPOUT:
        dropout_operands(&op->dropout, &uses);
        break;
    case OP_DROPOUT_BACKWARD:
        dropout_backward_operands(&op->dropout_backward, &uses);
        break;
    case OP_GATHER_ROWS:
    case OP_SCATTER_ROWS:
        rows_operands(op, &uses);
        break;
    case OP_CROSS_ENTROPY:
        use(&uses, "logits", op->cross_entropy.logits,
            op->cross_entropy.gradient ? OPERAND_UPDATE : OPERAND_READ, op->cross_entropy.rows,
            op->cross_entropy.vocab, op->cross_entropy.vocab);
        use(&uses, "targets", op->cross_entropy.targets, OPERAND_READ, 1, op->cross_entropy.rows,
            op->cross_entropy.rows);
        use(&uses, "loss", op->cross_entropy.loss, OPERAND_UPDATE, 1, 1, 1);
        break;
    case OP_SQUARE_SUM:
        use(&uses, "x", op->square_sum.x, OPERAND_READ, 1, op->square_sum.count, op->square_sum.count);
        use(&uses, "out", op->square_sum.out, OPERAND_WRITE, 1, 1, 1);
        break;
    case OP_ADAMW:
        adamw_operands(&op->adamw, &uses);
        break;
    case OP_ADAMW8:
    case OP_ADD:
    case OP_CAST:
    case OP_UNPACK:
    case OP_BIAS:
    case OP_COLUMN_SUM:
    case OP_EMBED_BACKWARD:
    case OP_EMBED_NOISE:
    case OP_SOFTCAP:
    case OP_KINDS:
        break;
    case OP_GEMM_GROUPED:
        gemm_grouped_operands(&op->gemm_grouped, &uses);
        break;
    case OP_ROUTE:
        route_operands(&op->route, &uses);
        break;
    case OP_ROUTE_BACKWARD:
        route_backward_operands(&op->route_backward, &uses);
        break;
    case OP_ROUTE_SORT:
        route_sort_operands(&op->route_sort, &uses);
        break;
    case OP_ROUTER_LOSS:
        router_loss_operands(&op->router_loss, &uses);
        break;
    case OP_COMBINE:
    case OP_COMBINE_BACKWARD:
        combine_operands(op, &uses);
        break;
    }
    return uses.count;
}
