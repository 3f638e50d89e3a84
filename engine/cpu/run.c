/* The table of functions that run each op on the CPU, and the sizes that they support. */
#include "engine/cpu/cpu.h"
#include "engine/cpu/delta.h"
#include "engine/cpu/experts.h"
#include "engine/cpu/flat.h"
#include "engine/cpu/product.h"
#include "engine/cpu/rows.h"
#include "engine/cpu/unpack.h"

static void (*const functions[OP_KINDS])(struct cpu_runner *runner, const struct op *op) = {
    [OP_GEMM] = cpu_gemm,
    [OP_COPY] = cpu_copy,
    [OP_EMBED] = cpu_embed,
    [OP_RMSNORM] = cpu_rmsnorm,
    [OP_RMSNORM_BACKWARD] = cpu_rmsnorm_backward,
    [OP_ROPE] = cpu_rope,
    [OP_ATTENTION] = cpu_attention,
    [OP_ATTENTION_BACKWARD] = cpu_attention_backward,
    [OP_ATTENTION_CACHED] = cpu_attention_cached,
    [OP_GLU] = cpu_glu,
    [OP_GLU_BACKWARD] = cpu_glu_backward,
    [OP_DROPOUT] = cpu_dropout,
    [OP_DROPOUT_BACKWARD] = cpu_dropout_backward,
    [OP_GATHER_ROWS] = cpu_gather_rows,
    [OP_SCATTER_ROWS] = cpu_scatter_rows,
    [OP_CROSS_ENTROPY] = cpu_cross_entropy,
    [OP_SQUARE_SUM] = cpu_square_sum,
    [OP_ADAMW] = cpu_adamw,
    [OP_ADAMW8] = cpu_adamw8,
    [OP_ADD] = cpu_add,
    [OP_CAST] = cpu_cast,
    [OP_BIAS] = cpu_bias,
    [OP_COLUMN_SUM] = cpu_column_sum,
    [OP_EMBED_BACKWARD] = cpu_embed_backward,
    [OP_UNPACK] = cpu_unpack,
    [OP_EMBED_NOISE] = cpu_embed_noise,
    [OP_SOFTCAP] = cpu_softcap,
    [OP_SCALE] = cpu_scale,
    [OP_GATE] = cpu_gate,
    [OP_GATE_BACKWARD] = cpu_gate_backward,
    [OP_CONV] = cpu_conv,
    [OP_CONV_BACKWARD] = cpu_conv_backward,
    [OP_DELTA] = cpu_delta,
    [OP_DELTA_BACKWARD] = cpu_delta_backward,
};

/* Ops that read indices from their operands, and so can fail. */
static int (*const checked_functions[OP_KINDS])(struct cpu_runner *runner, const struct op *op,
                                                struct err *err) = {
    [OP_GEMM_GROUPED] = cpu_gemm_grouped,         [OP_ROUTE] = cpu_route,
    [OP_ROUTE_BACKWARD] = cpu_route_backward,     [OP_ROUTE_SORT] = cpu_route_sort,
    [OP_ROUTER_LOSS] = cpu_router_loss,           [OP_COMBINE] = cpu_combine,
    [OP_COMBINE_BACKWARD] = cpu_combine_backward,
};

static bool rounds_fit(enum dtype compute)
{
    return compute == DTYPE_F32 || compute == DTYPE_BF16 || compute == DTYPE_F16;
}

static bool run_heads_fit(enum dtype compute, uint32_t heads, uint32_t kv_heads, uint32_t head_dim)
{
    return rounds_fit(compute) && head_dim <= ATTENTION_HEAD_DIM_MAX && kv_heads > 0 &&
           heads % kv_heads == 0 && heads / kv_heads <= ATTENTION_GROUP_MAX;
}

static bool run_unpack_fits(const struct op_unpack *op)
{
    uint32_t block = pack_block(op->pack);
    bool nf4 = op->pack == PACK_NF4 || op->pack == PACK_NF4_DOUBLE;
    return op->begin <= op->total && op->count <= op->total - op->begin && op->begin % block == 0 &&
           (op->count % block == 0 || op->begin + op->count == op->total) && (nf4 || op->total % block == 0);
}

/* Only products that round their operands to 16 bits can read 16-bit weights; for others, callers unpack the
 * weights first. */
static bool product_fits(enum dtype compute, enum pack_kind pack)
{
    return rounds_fit(compute) && (pack == PACK_F32 || (compute != DTYPE_F32 && pack <= PACK_F16));
}

static bool sizes_fit(const struct op *op)
{
    switch (op->kind) {
    case OP_GEMM:
        return product_fits(op->gemm.compute, op->gemm.pack) && op->gemm.c.dtype == DTYPE_F32 &&
               !op->gemm.add.buffer;
    case OP_GEMM_GROUPED:
        return product_fits(op->gemm_grouped.compute, op->gemm_grouped.pack) && cpu_experts_fit(op);
    case OP_ATTENTION:
        return run_heads_fit(op->attention.compute, op->attention.heads, op->attention.kv_heads,
                             op->attention.head_dim);
    case OP_ATTENTION_BACKWARD:
        return run_heads_fit(op->attention_backward.forward.compute, op->attention_backward.forward.heads,
                             op->attention_backward.forward.kv_heads,
                             op->attention_backward.forward.head_dim);
    case OP_ATTENTION_CACHED:
        return run_heads_fit(op->attention_cached.compute, op->attention_cached.heads,
                             op->attention_cached.kv_heads, op->attention_cached.head_dim);
    case OP_ROPE:
        return op->rope.rotary_dim % 2 == 0 && op->rope.rotary_dim <= op->rope.head_dim && !op->rope.y.buffer;
    case OP_EMBED:
        return op->embed.hidden % pack_block(op->embed.pack) == 0 || !pack_from_file(op->embed.pack);
    case OP_UNPACK:
        return run_unpack_fits(&op->unpack);
    case OP_GLU:
        return op->glu.form.kind < GLU_KINDS;
    case OP_GLU_BACKWARD:
        return op->glu_backward.form.kind < GLU_KINDS;
    case OP_EMBED_NOISE:
        return op->embed_noise.width <= EMBED_NOISE_WIDTH_MAX;
    case OP_SOFTCAP:
        return op->softcap.cap > 0.0f;
    case OP_RMSNORM:
        return op->rmsnorm.weight.buffer || op->rmsnorm.width <= NORM_ALONE_MAX;
    case OP_RMSNORM_BACKWARD:
        return op->rmsnorm_backward.weight.buffer || op->rmsnorm_backward.width <= NORM_ALONE_MAX;
    case OP_CONV:
        return op_conv_fits(&op->conv);
    case OP_CONV_BACKWARD:
        return op_conv_fits(&op->conv_backward.forward);
    case OP_DELTA:
        return op_delta_fits(&op->delta);
    case OP_DELTA_BACKWARD:
        return op_delta_fits(&op->delta_backward.forward);
    default:
        return cpu_experts_fit(op);
    }
}

bool cpu_runs(const struct op *op)
{
    struct operand_use uses[OP_OPERANDS_MAX];
    uint32_t count = op_operands(op, uses);
    for (uint32_t i = 0; i < count; i++)
        if ((uses[i].dtypes & 1u << uses[i].operand.dtype) == 0)
            return false;
    return (functions[op->kind] || checked_functions[op->kind]) && sizes_fit(op);
}

int cpu_run(struct cpu_runner *runner, const struct op *op, struct err *err)
{
    if (checked_functions[op->kind])
        return checked_functions[op->kind](runner, op, err);
    functions[op->kind](runner, op);
    return 0;
}
