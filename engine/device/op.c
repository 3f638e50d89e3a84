/* Lists the operands of each op, with their shapes and accesses. */
#include "engine/device/op.h"

#include <string.h>

#include "model/files/nf4.h"

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
    [OP_SCALE] = "scale",
    [OP_GEMM_GROUPED] = "gemm_grouped",
    [OP_ROUTE] = "route",
    [OP_ROUTE_BACKWARD] = "route_backward",
    [OP_ROUTE_SORT] = "route_sort",
    [OP_ROUTER_LOSS] = "router_loss",
    [OP_COMBINE] = "combine",
    [OP_COMBINE_BACKWARD] = "combine_backward",
    [OP_GATE] = "gate",
    [OP_GATE_BACKWARD] = "gate_backward",
    [OP_CONV] = "conv",
    [OP_CONV_BACKWARD] = "conv_backward",
    [OP_DELTA] = "delta",
    [OP_DELTA_BACKWARD] = "delta_backward",
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

enum {
    AS_F32 = 1 << DTYPE_F32,
    AS_FLOATS = 1 << DTYPE_F32 | 1 << DTYPE_BF16 | 1 << DTYPE_F16,
    AS_F64 = 1 << DTYPE_F64,
    AS_I32 = 1 << DTYPE_I32,
    AS_U32 = 1 << DTYPE_U32,
    AS_U8 = 1 << DTYPE_U8
};

static void use_as(struct uses *uses, uint32_t dtypes, const char *name, struct operand operand,
                   enum operand_access access, uint64_t rows, uint64_t width, uint64_t ld)
{
    uses->list[uses->count++] = (struct operand_use){.name = name,
                                                     .operand = operand,
                                                     .access = access,
                                                     .dtypes = dtypes,
                                                     .rows = rows,
                                                     .width = width,
                                                     .ld = ld};
}

static void use(struct uses *uses, const char *name, struct operand operand, enum operand_access access,
                uint64_t rows, uint64_t width, uint64_t ld)
{
    use_as(uses, AS_F32, name, operand, access, rows, width, ld);
}

/* Lists an operand unless it is absent. */
static void use_optional(struct uses *uses, const char *name, struct operand operand,
                         enum operand_access access, uint64_t rows, uint64_t width, uint64_t ld)
{
    if (operand.buffer)
        use(uses, name, operand, access, rows, width, ld);
}

/* Lists an operand of `count` consecutive values. */
static void use_flat(struct uses *uses, uint32_t dtypes, const char *name, struct operand operand,
                     enum operand_access access, uint64_t count)
{
    use_as(uses, dtypes, name, operand, access, 1, count, count);
}

/* Lists the operands of `total` weights in stored form. */
static void use_packed(struct uses *uses, const char *name, enum pack_kind pack, struct operand operand,
                       struct operand absmax, struct operand scales, uint64_t total)
{
    if (pack <= PACK_F16) {
        uint32_t as = pack == PACK_F32 ? DTYPE_F32 : pack == PACK_BF16 ? DTYPE_BF16 : DTYPE_F16;
        use_flat(uses, 1u << as, name, operand, OPERAND_READ, total);
    } else {
        use_flat(uses, AS_U8, name, operand, OPERAND_READ, pack_bytes(pack, total));
    }
    if (pack == PACK_NF4 || pack == PACK_NF4_DOUBLE)
        use_flat(uses, pack == PACK_NF4 ? AS_F32 : AS_U8, "absmax", absmax, OPERAND_READ, nf4_blocks(total));
    if (pack == PACK_NF4_DOUBLE)
        use_flat(uses, AS_F32, "scales", scales, OPERAND_READ, nf4_scales(total));
}

static void gemm_operands(const struct op *any, struct uses *uses)
{
    const struct op_gemm *op = &any->gemm;
    uint64_t rows = op->transpose_b ? op->n : op->k, width = op->transpose_b ? op->k : op->n;
    use_as(uses, AS_F32 | 1u << op->compute, "a", op->a, OPERAND_READ, op->transpose_a ? op->k : op->m,
           op->transpose_a ? op->m : op->k, op->lda);
    if (op->pack <= PACK_F16)
        use_as(uses, op->pack == PACK_F32 ? AS_F32 : 1u << (op->pack == PACK_BF16 ? DTYPE_BF16 : DTYPE_F16),
               "b", op->b, OPERAND_READ, rows, width, op->ldb);
    else
        use_packed(uses, "b", op->pack, op->b, op->absmax, op->scales, rows * op->ldb);
    bool updates = op->beta != 0.0f && !op->add.buffer;
    use_as(uses, AS_F32 | 1u << op->compute, "c", op->c, updates ? OPERAND_UPDATE : OPERAND_WRITE, op->m,
           op->n, op->ldc);
    use_optional(uses, "add", op->add, OPERAND_READ, op->m, op->n, op->ldc);
}

/* Lists attention's operands. `access` is that of out and lse: forward writes them, backward reads them. */
static void attention_use(struct uses *uses, const struct op_attention *op, enum operand_access access)
{
    uint64_t q = (uint64_t)op->heads * op->head_dim, kv = (uint64_t)op->kv_heads * op->head_dim;
    uint32_t as = AS_F32 | 1u << op->compute;
    use_as(uses, as, "q", op->q, OPERAND_READ, op->tokens, q, op->ld);
    use_as(uses, as, "k", op->k, OPERAND_READ, op->tokens, kv, op->ld);
    use_as(uses, as, "v", op->v, OPERAND_READ, op->tokens, kv, op->ld);
    use_flat(uses, AS_U32, "row_start", op->row_start, OPERAND_READ, op->rows + 1ull);
    use_as(uses, as, "out", op->out, access, op->tokens, q, q);
    use(uses, "lse", op->lse, access, op->tokens, op->heads, op->heads);
    use_optional(uses, "sinks", op->sinks, OPERAND_READ, 1, op->heads, op->heads);
}

static void attention_operands(const struct op *any, struct uses *uses)
{
    attention_use(uses, &any->attention, OPERAND_WRITE);
}

static void attention_backward_operands(const struct op *any, struct uses *uses)
{
    const struct op_attention_backward *op = &any->attention_backward;
    const struct op_attention *forward = &op->forward;
    uint64_t q = (uint64_t)forward->heads * forward->head_dim,
             kv = (uint64_t)forward->kv_heads * forward->head_dim;
    attention_use(uses, forward, OPERAND_READ);
    use(uses, "dout", op->dout, OPERAND_READ, forward->tokens, q, q);
    use(uses, "delta", op->delta, OPERAND_WRITE, forward->tokens, forward->heads, forward->heads);
    use(uses, "dq", op->dq, OPERAND_WRITE, forward->tokens, q, forward->ld);
    use(uses, "dk", op->dk, OPERAND_WRITE, forward->tokens, kv, forward->ld);
    use(uses, "dv", op->dv, OPERAND_WRITE, forward->tokens, kv, forward->ld);
    if (forward->sinks.buffer)
        use_optional(uses, "dsinks", op->dsinks, OPERAND_UPDATE, 1, forward->heads, forward->heads);
}

static void attention_cached_operands(const struct op *any, struct uses *uses)
{
    const struct op_attention_cached *op = &any->attention_cached;
    uint64_t q = (uint64_t)op->heads * op->head_dim, kv = (uint64_t)op->kv_heads * op->head_dim;
    uint64_t held = (uint64_t)op->begin + op->tokens;
    use(uses, "q", op->q, OPERAND_READ, op->tokens, q, op->ldq);
    use(uses, "k", op->k, OPERAND_READ, held, kv, kv);
    use(uses, "v", op->v, OPERAND_READ, held, kv, kv);
    use_as(uses, AS_F32 | 1u << op->compute, "out", op->out, OPERAND_WRITE, op->tokens, q, q);
    use_optional(uses, "sinks", op->sinks, OPERAND_READ, 1, op->heads, op->heads);
}

static void dropout_use(struct uses *uses, const struct op_dropout *op, enum operand_access access)
{
    use(uses, "x", op->x, OPERAND_READ, op->tokens, op->width, op->width);
    use_flat(uses, AS_U32, "positions", op->positions, OPERAND_READ, op->tokens);
    use_flat(uses, AS_U32, "row_ids", op->row_ids, OPERAND_READ, op->tokens);
    use_flat(uses, AS_U32, "step", op->step, OPERAND_READ, 1);
    use(uses, "y", op->y, access, op->tokens, op->width, op->width);
}

static void dropout_operands(const struct op *any, struct uses *uses)
{
    dropout_use(uses, &any->dropout, OPERAND_WRITE);
}

static void dropout_backward_operands(const struct op *any, struct uses *uses)
{
    const struct op_dropout_backward *op = &any->dropout_backward;
    dropout_use(uses, &op->forward, !op->dx.buffer ? OPERAND_WRITE : OPERAND_UPDATE);
    use_optional(uses, "dx", op->dx, OPERAND_UPDATE, op->forward.tokens, op->forward.width,
                 op->forward.width);
}

static void norm_operands(const struct op *op, struct uses *uses)
{
    if (op->kind == OP_RMSNORM) {
        const struct op_rmsnorm *o = &op->rmsnorm;
        uint64_t width = (uint64_t)o->vectors * o->width;
        use(uses, "x", o->x, OPERAND_READ, o->rows, width, o->ldx);
        if (o->weight.buffer)
            use_flat(uses, AS_F32, "weight", o->weight, OPERAND_READ, o->width);
        if (o->bias.buffer)
            use_flat(uses, AS_F32, "bias", o->bias, OPERAND_READ, o->width);
        use_as(uses, AS_FLOATS, "y", o->y, OPERAND_WRITE, o->rows, width, o->ldy);
        return;
    }
    const struct op_rmsnorm_backward *o = &op->rmsnorm_backward;
    uint64_t width = (uint64_t)o->vectors * o->width;
    use(uses, "x", o->x, OPERAND_READ, o->rows, width, o->ldx);
    if (o->weight.buffer)
        use_flat(uses, AS_F32, "weight", o->weight, OPERAND_READ, o->width);
    use(uses, "dy", o->dy, OPERAND_READ, o->rows, width, o->lddy);
    use_optional(uses, "dx", o->dx, o->accumulate ? OPERAND_UPDATE : OPERAND_WRITE, o->rows, width, o->lddx);
    if (o->dweight.buffer)
        use_flat(uses, AS_F32, "dweight", o->dweight, OPERAND_UPDATE, o->width);
}

static void rows_operands(const struct op *op, struct uses *uses)
{
    if (op->kind == OP_GATHER_ROWS) {
        const struct op_gather_rows *o = &op->gather_rows;
        use(uses, "x", o->x, OPERAND_READ, o->x_rows, o->width, o->width);
        use_flat(uses, AS_U32, "index", o->index, OPERAND_READ, o->rows);
        use(uses, "y", o->y, OPERAND_WRITE, o->rows, o->width, o->width);
        return;
    }
    const struct op_scatter_rows *o = &op->scatter_rows;
    use(uses, "x", o->x, OPERAND_READ, o->rows, o->width, o->width);
    use_flat(uses, AS_U32, "index", o->index, OPERAND_READ, o->rows);
    use(uses, "y", o->y, OPERAND_WRITE, o->y_rows, o->width, o->width);
}

static void adamw_operands(const struct op *any, struct uses *uses)
{
    const struct op_adamw *op = &any->adamw;
    use_flat(uses, AS_F32, "value", op->value, OPERAND_UPDATE, op->count);
    use_flat(uses, AS_F32, "gradient", op->gradient, OPERAND_READ, op->count);
    use_flat(uses, AS_F32, "moment1", op->moment1, OPERAND_UPDATE, op->count);
    use_flat(uses, AS_F32, "moment2", op->moment2, OPERAND_UPDATE, op->count);
}

static void adamw8_operands(const struct op *any, struct uses *uses)
{
    const struct op_adamw8 *op = &any->adamw8;
    uint64_t blocks = (op->count + ADAMW8_BLOCK - 1) / ADAMW8_BLOCK;
    use_flat(uses, AS_F32, "value", op->value, OPERAND_UPDATE, op->count);
    use_flat(uses, AS_F32, "gradient", op->gradient, OPERAND_READ, op->count);
    use_flat(uses, AS_U8, "code1", op->code1, OPERAND_UPDATE, op->count);
    use_flat(uses, AS_U8, "code2", op->code2, OPERAND_UPDATE, op->count);
    use_flat(uses, AS_F32, "absmax1", op->absmax1, OPERAND_UPDATE, blocks);
    use_flat(uses, AS_F32, "absmax2", op->absmax2, OPERAND_UPDATE, blocks);
}

static void embed_operands(const struct op *op, struct uses *uses)
{
    if (op->kind == OP_EMBED) {
        const struct op_embed *o = &op->embed;
        use_flat(uses, AS_I32, "ids", o->ids, OPERAND_READ, o->tokens);
        if (pack_from_file(o->pack))
            use_flat(uses, AS_U8, "table", o->table, OPERAND_READ,
                     pack_bytes(o->pack, (uint64_t)o->vocab * o->hidden));
        else
            use_as(uses, AS_FLOATS, "table", o->table, OPERAND_READ, o->vocab, o->hidden, o->hidden);
        use(uses, "out", o->out, OPERAND_WRITE, o->tokens, o->hidden, o->hidden);
        return;
    }
    const struct op_embed_backward *o = &op->embed_backward;
    use_flat(uses, AS_I32, "ids", o->ids, OPERAND_READ, o->tokens);
    use(uses, "dout", o->dout, OPERAND_READ, o->tokens, o->hidden, o->hidden);
    use(uses, "dtable", o->dtable, OPERAND_UPDATE, o->vocab, o->hidden, o->hidden);
}

static void embed_noise_operands(const struct op *any, struct uses *uses)
{
    const struct op_embed_noise *op = &any->embed_noise;
    use(uses, "x", op->x, OPERAND_UPDATE, op->tokens, op->width, op->width);
    use_flat(uses, AS_U32, "row_start", op->row_start, OPERAND_READ, op->rows + 1ull);
    use_flat(uses, AS_U32, "row_ids", op->row_ids, OPERAND_READ, op->tokens);
    use_flat(uses, AS_U32, "step", op->step, OPERAND_READ, 1);
}

static void rope_operands(const struct op *any, struct uses *uses)
{
    const struct op_rope *op = &any->rope;
    uint64_t width = (uint64_t)(op->heads + op->copied) * op->head_dim;
    use(uses, "x", op->x, op->y.buffer ? OPERAND_READ : OPERAND_UPDATE, op->tokens, width, op->ldx);
    use_flat(uses, AS_U32, "positions", op->positions, OPERAND_READ, op->tokens);
    use(uses, "table", op->table, OPERAND_READ, op->table_rows, op->rotary_dim, op->rotary_dim);
    if (op->y.buffer)
        use_as(uses, AS_FLOATS, "y", op->y, OPERAND_WRITE, op->tokens, width, op->ldx);
}

static void cross_entropy_operands(const struct op *any, struct uses *uses)
{
    const struct op_cross_entropy *op = &any->cross_entropy;
    use(uses, "logits", op->logits, op->gradient ? OPERAND_UPDATE : OPERAND_READ, op->rows, op->vocab,
        op->vocab);
    use_flat(uses, AS_I32, "targets", op->targets, OPERAND_READ, op->rows);
    use_flat(uses, AS_F64, "loss", op->loss, OPERAND_UPDATE, 1);
}

static void glu_operands(const struct op *op, struct uses *uses)
{
    if (op->kind == OP_GLU) {
        const struct op_glu *o = &op->glu;
        uint64_t across = op_glu_across(&o->form, o->width);
        use_as(uses, AS_FLOATS, "gate_up", o->gate_up, OPERAND_READ, o->tokens, across, across);
        use_as(uses, AS_FLOATS, "act", o->act, OPERAND_WRITE, o->tokens, o->width, o->width);
        return;
    }
    const struct op_glu_backward *o = &op->glu_backward;
    uint64_t across = op_glu_across(&o->form, o->width);
    use_as(uses, AS_FLOATS, "gate_up", o->gate_up, OPERAND_UPDATE, o->tokens, across, across);
    use_as(uses, AS_FLOATS, "dact", o->dact, OPERAND_READ, o->tokens, o->width, o->width);
}

/* Lists x, which is read, and y, which is written or updated. */
static void two_operands(struct uses *uses, struct operand x, uint64_t ldx, struct operand y, uint64_t ldy,
                         enum operand_access access, uint64_t rows, uint64_t width)
{
    use(uses, "x", x, OPERAND_READ, rows, width, ldx);
    use(uses, "y", y, access, rows, width, ldy);
}

/* Returns the values from the first to the last of `vectors` vectors that begin `apart` values apart. */
static uint64_t vectors_span(uint32_t vectors, uint32_t width, uint32_t apart)
{
    return vectors == 0 ? 0 : (uint64_t)(vectors - 1) * apart + width;
}

/* Operands of ops that are too small for a function of their own. */
static void small_operands(const struct op *op, struct uses *uses)
{
    switch (op->kind) {
    case OP_COPY: {
        const struct op_copy *o = &op->copy;
        bool whole = o->vectors == 1 || o->vy == o->width;
        use(uses, "x", o->x, OPERAND_READ, o->rows, vectors_span(o->vectors, o->width, o->vx), o->ldx);
        /* what lies between several vectors is not written */
        use(uses, "y", o->y, whole ? OPERAND_WRITE : OPERAND_UPDATE, o->rows,
            vectors_span(o->vectors, o->width, o->vy), o->ldy);
        break;
    }
    case OP_ADD:
        two_operands(uses, op->add.x, op->add.ldx, op->add.y, op->add.ldy, OPERAND_UPDATE, op->add.rows,
                     op->add.width);
        break;
    case OP_BIAS:
        use(uses, "x", op->bias.x, OPERAND_UPDATE, op->bias.rows, op->bias.width, op->bias.ldx);
        use_flat(uses, AS_F32, "bias", op->bias.bias, OPERAND_READ, op->bias.width);
        break;
    case OP_COLUMN_SUM:
        use(uses, "x", op->column_sum.x, OPERAND_READ, op->column_sum.rows, op->column_sum.width,
            op->column_sum.ldx);
        use_flat(uses, AS_F32, "y", op->column_sum.y, OPERAND_UPDATE, op->column_sum.width);
        break;
    case OP_SOFTCAP:
        use(uses, "x", op->softcap.x, OPERAND_UPDATE, op->softcap.rows, op->softcap.width, op->softcap.width);
        break;
    case OP_SCALE:
        use(uses, "x", op->scale.x, OPERAND_UPDATE, op->scale.rows, op->scale.width, op->scale.width);
        use_flat(uses, AS_F32, "factor", op->scale.factor, OPERAND_READ, 1);
        break;
    case OP_CAST:
        use_flat(uses, AS_FLOATS, "x", op->cast.x, OPERAND_READ, op->cast.count);
        use_flat(uses, AS_FLOATS, "y", op->cast.y, OPERAND_WRITE, op->cast.count);
        break;
    case OP_SQUARE_SUM:
        use_flat(uses, AS_F32, "x", op->square_sum.x, OPERAND_READ, op->square_sum.count);
        use_flat(uses, AS_F64, "out", op->square_sum.out, OPERAND_WRITE, 1);
        break;
    default:
        break;
    }
}

static void unpack_operands(const struct op *any, struct uses *uses)
{
    const struct op_unpack *op = &any->unpack;
    use_packed(uses, "x", op->pack, op->x, op->absmax, op->scales, op->total);
    use_flat(uses, AS_F32, "y", op->y, OPERAND_WRITE, op->count);
}

/* Lists the groups' matrices, which are `stride` apart, as one operand with a row for each matrix. */
static void matrices_use(struct uses *uses, uint32_t dtypes, const char *name, struct operand operand,
                         enum operand_access access, const struct op_gemm_grouped *op, uint64_t span)
{
    uint32_t bytes = dtypes == AS_U8 ? 1 : dtypes == AS_F32 ? 4 : 2;
    uint64_t stride = op->pack == PACK_F32 ? op->stride : op->stride / bytes;
    use_as(uses, dtypes, name, operand, access, op->groups, span, op->groups <= 1 ? span : stride);
}

static uint64_t matrix_span(uint64_t rows, uint64_t width, uint64_t ld)
{
    return rows == 0 || width == 0 ? 0 : (rows - 1) * ld + width;
}

/* Lists b of a grouped product: one matrix in stored form for each group. */
static void group_weights_use(struct uses *uses, const struct op_gemm_grouped *op)
{
    uint64_t span = matrix_span(op->transpose_b ? op->n : op->k, op->transpose_b ? op->k : op->n, op->ldb);
    bool nf4 = op->pack == PACK_NF4 || op->pack == PACK_NF4_DOUBLE;
    uint32_t as = op->pack == PACK_F32    ? AS_F32
                  : op->pack == PACK_BF16 ? 1u << DTYPE_BF16
                  : op->pack == PACK_F16  ? 1u << DTYPE_F16
                                          : AS_U8;
    matrices_use(uses, as, "b", op->b, OPERAND_READ, op,
                 op->pack <= PACK_F16 ? span : pack_bytes(op->pack, span));
    if (nf4)
        matrices_use(uses, op->pack == PACK_NF4 ? AS_F32 : AS_U8, "absmax", op->absmax, OPERAND_READ, op,
                     nf4_blocks(span));
    if (op->pack == PACK_NF4_DOUBLE)
        matrices_use(uses, AS_F32, "scales", op->scales, OPERAND_READ, op, nf4_scales(span));
}

static void gemm_grouped_operands(const struct op *any, struct uses *uses)
{
    const struct op_gemm_grouped *op = &any->gemm_grouped;
    enum operand_access write = op->beta == 0.0f ? OPERAND_WRITE : OPERAND_UPDATE;
    uint64_t starts = op->groups == 0 ? 0 : op->groups_all + 1ull;
    uint32_t as = AS_F32 | 1u << op->compute;
    use_as(uses, as, "a", op->a, OPERAND_READ, op->rows, op->transpose_a ? op->m : op->k, op->lda);
    if (op->transpose_a) {
        use_as(uses, as, "b", op->b, OPERAND_READ, op->rows, op->n, op->ldb);
        matrices_use(uses, AS_F32, "c", op->c, write, op, matrix_span(op->m, op->n, op->ldc));
    } else {
        group_weights_use(uses, op);
        use(uses, "c", op->c, write, op->rows, op->n, op->ldc);
    }
    use_flat(uses, AS_U32, "offsets", op->offsets, OPERAND_READ, starts);
}

static void route_operands(const struct op *any, struct uses *uses)
{
    const struct op_route *op = &any->route;
    use(uses, "scores", op->scores, OPERAND_UPDATE, op->tokens, op->experts, op->experts);
    use_optional(uses, "bias", op->bias, OPERAND_READ, 1, op->experts, op->experts);
    use_flat(uses, AS_U32, "chosen", op->chosen, OPERAND_WRITE, (uint64_t)op->tokens * op->active);
    use(uses, "weight", op->weight, OPERAND_WRITE, op->tokens, op->active, op->active);
    if (!op->counts.buffer)
        return;
    use_flat(uses, AS_U32, "row_start", op->row_start, OPERAND_READ, op->rows + 1ull);
    use(uses, "counts", op->counts, OPERAND_UPDATE, op->rows, op->experts, op->experts);
    use(uses, "sums", op->sums, OPERAND_UPDATE, op->rows, op->experts, op->experts);
}

static void route_backward_operands(const struct op *any, struct uses *uses)
{
    const struct op_route_backward *op = &any->route_backward;
    use(uses, "probabilities", op->probabilities, OPERAND_READ, op->tokens, op->experts, op->experts);
    use_flat(uses, AS_U32, "chosen", op->chosen, OPERAND_READ, (uint64_t)op->tokens * op->active);
    use(uses, "dweight", op->dweight, OPERAND_READ, op->tokens, op->active, op->active);
    use(uses, "dscores", op->dscores, OPERAND_WRITE, op->tokens, op->experts, op->experts);
    if (!op->counts.buffer)
        return;
    use_flat(uses, AS_U32, "row_start", op->row_start, OPERAND_READ, op->rows + 1ull);
    use(uses, "counts", op->counts, OPERAND_READ, op->rows, op->experts, op->experts);
}

static void route_sort_operands(const struct op *any, struct uses *uses)
{
    const struct op_route_sort *op = &any->route_sort;
    uint64_t choices = (uint64_t)op->tokens * op->active;
    use_flat(uses, AS_U32, "chosen", op->chosen, OPERAND_READ, choices);
    use_flat(uses, AS_U32, "token", op->token, OPERAND_WRITE, choices);
    use_flat(uses, AS_U32, "place", op->place, OPERAND_WRITE, choices);
    use_flat(uses, AS_U32, "offsets", op->offsets, OPERAND_WRITE, op->experts + 1ull);
    if (op->expert.buffer)
        use_flat(uses, AS_U32, "expert", op->expert, OPERAND_WRITE, choices);
}

static void router_loss_operands(const struct op *any, struct uses *uses)
{
    const struct op_router_loss *op = &any->router_loss;
    use_flat(uses, AS_U32, "row_start", op->row_start, OPERAND_READ, op->rows + 1ull);
    use(uses, "counts", op->counts, OPERAND_READ, op->rows, op->experts, op->experts);
    use(uses, "sums", op->sums, OPERAND_READ, op->rows, op->experts, op->experts);
    use_flat(uses, AS_F64, "loss", op->loss, OPERAND_UPDATE, 1);
}

static void combine_operands(const struct op *op, struct uses *uses)
{
    if (op->kind == OP_COMBINE) {
        const struct op_combine *o = &op->combine;
        use(uses, "x", o->x, OPERAND_READ, (uint64_t)o->tokens * o->active, o->width, o->width);
        if (o->place.buffer || o->active != 1)
            use_flat(uses, AS_U32, "place", o->place, OPERAND_READ, (uint64_t)o->tokens * o->active);
        use_optional(uses, "weight", o->weight, OPERAND_READ, o->tokens, o->active, o->active);
        use(uses, "y", o->y, OPERAND_UPDATE, o->tokens, o->width, o->width);
        return;
    }
    const struct op_combine_backward *o = &op->combine_backward;
    use(uses, "x", o->x, OPERAND_UPDATE, (uint64_t)o->tokens * o->active, o->width, o->width);
    if (o->place.buffer || o->active != 1)
        use_flat(uses, AS_U32, "place", o->place, OPERAND_READ, (uint64_t)o->tokens * o->active);
    use(uses, "weight", o->weight, OPERAND_READ, o->tokens, o->active, o->active);
    use(uses, "dy", o->dy, OPERAND_READ, o->tokens, o->width, o->width);
    use(uses, "dweight", o->dweight, OPERAND_WRITE, o->tokens, o->active, o->active);
}

static void gate_operands(const struct op *any, struct uses *uses)
{
    bool backward = any->kind == OP_GATE_BACKWARD;
    const struct op_gate *op = backward ? &any->gate_backward.forward : &any->gate;
    uint64_t width = (uint64_t)op->vectors * op->width, span = vectors_span(op->vectors, op->width, op->vz);
    use(uses, "x", op->x, OPERAND_READ, op->rows, width, width);
    use(uses, "z", op->z, OPERAND_READ, op->rows, span, op->ldz);
    if (!backward) {
        use(uses, "y", op->y, OPERAND_WRITE, op->rows, width, width);
        return;
    }
    use(uses, "dy", any->gate_backward.dy, OPERAND_READ, op->rows, width, width);
    use(uses, "dx", any->gate_backward.dx, OPERAND_WRITE, op->rows, width, width);
    use(uses, "dz", any->gate_backward.dz, op->vz == op->width ? OPERAND_WRITE : OPERAND_UPDATE, op->rows,
        span, op->ldz);
}

static void conv_use(struct uses *uses, const struct op_conv *op)
{
    use(uses, "x", op->x, OPERAND_READ, op->tokens, op->width, op->ldx);
    use_flat(uses, AS_F32, "weight", op->weight, OPERAND_READ, (uint64_t)op->width * op->taps);
    use_optional(uses, "bias", op->bias, OPERAND_READ, 1, op->width, op->width);
    use_flat(uses, AS_U32, "positions", op->positions, OPERAND_READ, op->tokens);
}

static void conv_operands(const struct op *any, struct uses *uses)
{
    const struct op_conv *op = &any->conv;
    conv_use(uses, op);
    use_optional(uses, "past", op->past, OPERAND_WRITE, op->taps - 1, op->width, op->width);
    use(uses, "y", op->y, OPERAND_WRITE, op->tokens, op->width, op->ldy);
}

static void conv_backward_operands(const struct op *any, struct uses *uses)
{
    const struct op_conv_backward *op = &any->conv_backward;
    conv_use(uses, &op->forward);
    use(uses, "dy", op->dy, OPERAND_READ, op->forward.tokens, op->forward.width, op->forward.ldy);
    use(uses, "dx", op->dx, OPERAND_WRITE, op->forward.tokens, op->forward.width, op->lddx);
    if (op->dweight.buffer)
        use_flat(uses, AS_F32, "dweight", op->dweight, OPERAND_UPDATE,
                 (uint64_t)op->forward.width * op->forward.taps);
    use_optional(uses, "dbias", op->dbias, OPERAND_UPDATE, 1, op->forward.width, op->forward.width);
}

bool op_conv_fits(const struct op_conv *op)
{
    return op->taps >= 2 && op->taps <= CONV_TAPS;
}

bool op_delta_fits(const struct op_delta *op)
{
    return op->key_heads > 0 && op->heads % op->key_heads == 0 && op->key_dim > 0 && op->value_dim > 0 &&
           op->key_dim <= DELTA_DIM_MAX && op->value_dim <= DELTA_DIM_MAX;
}

static void delta_use(struct uses *uses, const struct op_delta *op, enum operand_access error)
{
    uint64_t keys = (uint64_t)op->key_heads * op->key_dim, values = (uint64_t)op->heads * op->value_dim;
    use(uses, "q", op->q, OPERAND_READ, op->tokens, keys, op->ld);
    use(uses, "k", op->k, OPERAND_READ, op->tokens, keys, op->ld);
    use(uses, "v", op->v, OPERAND_READ, op->tokens, values, op->ld);
    use(uses, "a", op->a, OPERAND_READ, op->tokens, op->heads, op->ldg);
    if (op->scan)
        use_flat(uses, AS_F32, "skip", op->skip, OPERAND_READ, op->heads);
    else
        use(uses, "b", op->b, OPERAND_READ, op->tokens, op->heads, op->ldg);
    use_flat(uses, AS_F32, "decay", op->decay, OPERAND_READ, op->heads);
    use_flat(uses, AS_F32, "dt_bias", op->dt_bias, OPERAND_READ, op->heads);
    use_flat(uses, AS_U32, "row_start", op->row_start, OPERAND_READ, op->rows + 1ull);
    if (!op->scan)
        use(uses, "error", op->error, error, op->tokens, values, values);
}

static void delta_operands(const struct op *any, struct uses *uses)
{
    const struct op_delta *op = &any->delta;
    uint64_t values = (uint64_t)op->heads * op->value_dim;
    delta_use(uses, op, OPERAND_WRITE);
    use_optional(uses, "state", op->state, op->begin == 0 ? OPERAND_WRITE : OPERAND_UPDATE, op->key_dim,
                 values, values);
    use(uses, "out", op->out, OPERAND_WRITE, op->tokens, values, values);
}

static void delta_backward_operands(const struct op *any, struct uses *uses)
{
    const struct op_delta_backward *op = &any->delta_backward;
    const struct op_delta *forward = &op->forward;
    uint64_t keys = (uint64_t)forward->key_heads * forward->key_dim,
             values = (uint64_t)forward->heads * forward->value_dim,
             work = forward->heads * (2ull * forward->key_dim + (forward->key_dim + 31) / 32);
    delta_use(uses, forward, OPERAND_READ);
    use(uses, "dout", op->dout, OPERAND_READ, forward->tokens, values, values);
    use(uses, "work", op->work, OPERAND_WRITE, forward->tokens, work, work);
    use(uses, "dq", op->dq, OPERAND_WRITE, forward->tokens, keys, op->ldd);
    use(uses, "dk", op->dk, OPERAND_WRITE, forward->tokens, keys, op->ldd);
    use(uses, "dv", op->dv, OPERAND_WRITE, forward->tokens, values, op->ldd);
    use(uses, "da", op->da, OPERAND_WRITE, forward->tokens, forward->heads, forward->ldg);
    if (forward->scan)
        use(uses, "skips", op->skips, OPERAND_WRITE, forward->tokens, forward->heads, forward->heads);
    else
        use(uses, "db", op->db, OPERAND_WRITE, forward->tokens, forward->heads, forward->ldg);
    use(uses, "rates", op->rates, OPERAND_WRITE, forward->tokens, forward->heads, forward->heads);
}

static uint32_t default_to(uint32_t value, uint32_t otherwise)
{
    return value == 0 ? otherwise : value;
}

void op_complete(struct op *op)
{
    switch (op->kind) {
    case OP_RMSNORM:
        op->rmsnorm.vectors = default_to(op->rmsnorm.vectors, 1);
        op->rmsnorm.ldx = default_to(op->rmsnorm.ldx, op->rmsnorm.vectors * op->rmsnorm.width);
        op->rmsnorm.ldy = default_to(op->rmsnorm.ldy, op->rmsnorm.vectors * op->rmsnorm.width);
        break;
    case OP_RMSNORM_BACKWARD: {
        struct op_rmsnorm_backward *o = &op->rmsnorm_backward;
        o->vectors = default_to(o->vectors, 1);
        o->ldx = default_to(o->ldx, o->vectors * o->width);
        o->lddy = default_to(o->lddy, o->vectors * o->width);
        o->lddx = default_to(o->lddx, o->vectors * o->width);
        break;
    }
    case OP_COPY:
        op->copy.vectors = default_to(op->copy.vectors, 1);
        op->copy.vx = default_to(op->copy.vx, op->copy.width);
        op->copy.vy = default_to(op->copy.vy, op->copy.width);
        break;
    case OP_ROPE:
        op->rope.rotary_dim = default_to(op->rope.rotary_dim, op->rope.head_dim);
        break;
    case OP_EMBED:
        op->embed.scale = op->embed.scale == 0.0f ? 1.0f : op->embed.scale;
        break;
    case OP_EMBED_BACKWARD:
        op->embed_backward.scale = op->embed_backward.scale == 0.0f ? 1.0f : op->embed_backward.scale;
        break;
    case OP_ROUTE:
        op->route.scale = op->route.scale == 0.0f ? 1.0f : op->route.scale;
        break;
    case OP_ROUTE_BACKWARD:
        op->route_backward.scale = op->route_backward.scale == 0.0f ? 1.0f : op->route_backward.scale;
        break;
    case OP_CROSS_ENTROPY:
        op->cross_entropy.gradient_scale =
            op->cross_entropy.gradient_scale == 0.0f ? 1.0f : op->cross_entropy.gradient_scale;
        break;
    default:
        break;
    }
}

/* Functions that list an op's operands. */
static void (*const operands_of[OP_KINDS])(const struct op *op, struct uses *uses) = {
    [OP_GEMM] = gemm_operands,
    [OP_EMBED] = embed_operands,
    [OP_EMBED_BACKWARD] = embed_operands,
    [OP_EMBED_NOISE] = embed_noise_operands,
    [OP_RMSNORM] = norm_operands,
    [OP_RMSNORM_BACKWARD] = norm_operands,
    [OP_ROPE] = rope_operands,
    [OP_ATTENTION] = attention_operands,
    [OP_ATTENTION_BACKWARD] = attention_backward_operands,
    [OP_ATTENTION_CACHED] = attention_cached_operands,
    [OP_GLU] = glu_operands,
    [OP_GLU_BACKWARD] = glu_operands,
    [OP_DROPOUT] = dropout_operands,
    [OP_DROPOUT_BACKWARD] = dropout_backward_operands,
    [OP_GATHER_ROWS] = rows_operands,
    [OP_SCATTER_ROWS] = rows_operands,
    [OP_CROSS_ENTROPY] = cross_entropy_operands,
    [OP_ADAMW] = adamw_operands,
    [OP_ADAMW8] = adamw8_operands,
    [OP_COPY] = small_operands,
    [OP_ADD] = small_operands,
    [OP_BIAS] = small_operands,
    [OP_COLUMN_SUM] = small_operands,
    [OP_SOFTCAP] = small_operands,
    [OP_SCALE] = small_operands,
    [OP_CAST] = small_operands,
    [OP_SQUARE_SUM] = small_operands,
    [OP_GEMM_GROUPED] = gemm_grouped_operands,
    [OP_ROUTE] = route_operands,
    [OP_ROUTE_BACKWARD] = route_backward_operands,
    [OP_ROUTE_SORT] = route_sort_operands,
    [OP_ROUTER_LOSS] = router_loss_operands,
    [OP_COMBINE] = combine_operands,
    [OP_COMBINE_BACKWARD] = combine_operands,
    [OP_UNPACK] = unpack_operands,
    [OP_GATE] = gate_operands,
    [OP_GATE_BACKWARD] = gate_operands,
    [OP_CONV] = conv_operands,
    [OP_CONV_BACKWARD] = conv_backward_operands,
    [OP_DELTA] = delta_operands,
    [OP_DELTA_BACKWARD] = delta_backward_operands,
};

uint32_t op_operands(const struct op *op, struct operand_use *list)
{
    struct uses uses = {.list = list};
    if ((unsigned)op->kind < OP_KINDS)
        operands_of[op->kind](op, &uses);
    return uses.count;
}

/* Values of the states of all tokens and heads. */
static double delta_values(const struct op_delta *op)
{
    return (double)op->tokens * op->heads * op->key_dim * op->value_dim;
}

double op_flops(const struct op *op, double counted)
{
    const struct op_gemm_grouped *grouped = &op->gemm_grouped;
    const struct op_attention *backward = &op->attention_backward.forward;
    switch (op->kind) {
    case OP_GEMM:
        return 2.0 * op->gemm.m * op->gemm.n * op->gemm.k;
    case OP_GEMM_GROUPED:
        return 2.0 * counted * grouped->n * (grouped->transpose_a ? grouped->m : grouped->k);
    case OP_ATTENTION:
        return 4.0 * op->attention.heads * op->attention.head_dim * counted;
    case OP_ATTENTION_BACKWARD:
        return 10.0 * backward->heads * backward->head_dim * counted;
    case OP_DELTA:
        return (op->delta.scan ? 5 : 7) * delta_values(&op->delta);
    case OP_DELTA_BACKWARD:
        return (op->delta_backward.forward.scan ? 14 : 22) * delta_values(&op->delta_backward.forward);
    default:
        return 0;
    }
}

bool op_in_16_bits(const struct op *op)
{
    switch (op->kind) {
    case OP_GEMM:
        return op->gemm.compute != DTYPE_F32;
    case OP_GEMM_GROUPED:
        return op->gemm_grouped.compute != DTYPE_F32;
    case OP_ATTENTION:
        return op->attention.compute != DTYPE_F32;
    case OP_ATTENTION_BACKWARD:
        return op->attention_backward.forward.compute != DTYPE_F32;
    default:
        return false;
    }
}

double op_bytes(const struct op *op)
{
    struct operand_use uses[OP_OPERANDS_MAX];
    const uint32_t count = op_operands(op, uses);
    double bytes = 0;
    if (op->kind == OP_EMBED)
        return 8.0 * op->embed.tokens * op->embed.hidden;
    if (op->kind == OP_EMBED_BACKWARD)
        return 12.0 * op->embed_backward.tokens * op->embed_backward.hidden;
    for (uint32_t i = 0; i < count; i++)
        bytes += (double)uses[i].rows * (double)uses[i].width * dtype_bytes(uses[i].operand.dtype) *
                 (uses[i].access == OPERAND_UPDATE ? 2 : 1);
    return bytes;
}
