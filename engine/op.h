/* The operations a device can queue, each a struct of its own in one tagged union.
 *
 * Matrices are row-major; `ld…` is the distance between rows in elements. An operand is a place in a buffer
 * with a dtype; an absent one has buffer NULL. op_operands() tells for every op which operands it reads and
 * writes and how large they are: queueing checks sizes by it, `checked` also overlap and initialisation, and
 * a GPU would use it for dependencies. Shapes may be 0 in rows or tokens: then nothing happens.
 */
#ifndef MOTLEY_ENGINE_OP_H
#define MOTLEY_ENGINE_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "engine/backend.h"

struct operand {
    struct buffer *buffer; /* borrowed until the op has run; NULL: absent */
    uint64_t at;           /* bytes from the start, a multiple of the element's size */
    enum dtype dtype;
};

enum op_kind {
    OP_GEMM,
    OP_COPY,
    OP_EMBED,
    OP_RMSNORM,
    OP_RMSNORM_BACKWARD,
    OP_ROPE,
    OP_ATTENTION,
    OP_ATTENTION_BACKWARD,
    OP_ATTENTION_CACHED,
    OP_SWIGLU,
    OP_SWIGLU_BACKWARD,
    OP_DROPOUT,
    OP_DROPOUT_BACKWARD,
    OP_GATHER_ROWS,
    OP_SCATTER_ROWS,
    OP_CROSS_ENTROPY,
    OP_SQUARE_SUM,
    OP_ADAMW,
    OP_KINDS
};

/* c[m,n] = alpha * op(a)[m,k] * op(b)[k,n] + beta * c; transposed operands are stored [k,m] and [n,k]. With
 * beta 0 c need not be initialised. f32. */
struct op_gemm {
    uint32_t m, n, k;
    bool transpose_a, transpose_b;
    float alpha, beta;
    struct operand a, b, c;
    uint32_t lda, ldb, ldc;
};

/* y[rows,width] = x. f32. */
struct op_copy {
    uint32_t rows, width, ldx, ldy;
    struct operand x, y;
};

/* out[t] = table[ids[t]]; ids are in [0, vocab). i32, f32. */
struct op_embed {
    uint32_t tokens, hidden, vocab;
    struct operand ids, table, out;
};

/* y = x / sqrt(mean(x^2) + eps) * weight, per row (Zhang and Sennrich 2019, eq. 4). y may be x. */
struct op_rmsnorm {
    uint32_t rows, width;
    float eps;
    struct operand x, weight, y;
};

/* dx = or += (accumulate) the gradient of op_rmsnorm in its input x. */
struct op_rmsnorm_backward {
    uint32_t rows, width;
    float eps;
    bool accumulate;
    struct operand x, weight, dy, dx;
};

/* Rotate x[tokens, heads, head_dim] in place, halves paired (i, i + head_dim/2) as Hugging Face pairs them.
 * table[table_rows, head_dim]: cosines, then sines, of each position. inverse: the other way (backward). */
struct op_rope {
    uint32_t tokens, heads, head_dim, ldx, table_rows;
    bool inverse;
    struct operand x, positions /* u32 [tokens] */, table;
};

/* Causal attention within each row: q[tokens, heads, head_dim], k and v[tokens, kv_heads, head_dim], all with
 * row distance ld; out[tokens, heads * head_dim]; lse[tokens, heads] the logarithms of the softmax sums.
 * Tiled with a running softmax (Dao et al. 2022, algorithm 1): no score matrix of a row is ever whole in
 * memory. */
struct op_attention {
    uint32_t rows, tokens, heads, kv_heads, head_dim, ld;
    float scale;
    struct operand q, k, v, row_start /* u32 [rows + 1] */, out, lse;
};

/* Gradients dq, dk, dv (laid out as q, k, v) from dout; delta[tokens, heads] is workspace. (Dao et al. 2022,
 * algorithm 4.) */
struct op_attention_backward {
    uint32_t rows, tokens, heads, kv_heads, head_dim, ld;
    float scale;
    struct operand q, k, v, row_start, out, lse, dout, delta, dq, dk, dv;
};

/* Attention of `tokens` new positions begin… of one sequence over a cache k, v[begin + tokens, kv_heads *
 * head_dim]. */
struct op_attention_cached {
    uint32_t tokens, begin, heads, kv_heads, head_dim, ldq;
    float scale;
    struct operand q, k, v, out /* [tokens, heads * head_dim] */;
};

/* act[tokens,width] = silu(gate) * up, gate_up[tokens, 2 * width] holding gate, then up (Shazeer 2020). */
struct op_swiglu {
    uint32_t tokens, width;
    struct operand gate_up, act;
};

/* gate_up becomes its own gradient, from dact. */
struct op_swiglu_backward {
    uint32_t tokens, width;
    struct operand gate_up, dact;
};

/* y = mask * x / (1 - p). The mask of (row id, position, feature) is 16 bits of Philox4x32-10 under key =
 * seed, counter = (position, row id, step, layer << 20 | target << 16 | feature / 8): half feature % 2 of
 * number feature / 2 % 4, kept when below (1 - p) * 65536. */
struct op_dropout {
    uint32_t tokens, width;
    float p;
    uint64_t seed, step;
    uint32_t layer, target; /* < 4096, < 16 */
    struct operand x, positions /* u32 [tokens] */, row_ids /* u32 [tokens] */, y;
};

/* With the same mask: dx += mask * t / (1 - p) (unless absent), then t = mask * x / (1 - p): the gradient of
 * the input from that of the output t, which becomes the output again. */
struct op_dropout_backward {
    uint32_t tokens, width;
    float p;
    uint64_t seed, step;
    uint32_t layer, target;
    struct operand x, positions, row_ids, t, dx;
};

/* y[i] = x[index[i]], i < rows; x has x_rows rows. */
struct op_gather_rows {
    uint32_t rows, width, x_rows;
    struct operand x, index /* u32 [rows] */, y;
};

/* y[y_rows,width] = 0 but y[index[i]] = scale * x[i]. */
struct op_scatter_rows {
    uint32_t rows, width, y_rows;
    float scale;
    struct operand x, index, y;
};

/* loss += sum of -log softmax(logits[i])[targets[i]], summed in f64 in order of i; with gradient, logits
 * become softmax - onehot. */
struct op_cross_entropy {
    uint32_t rows, vocab;
    bool gradient;
    struct operand logits, targets /* i32 [rows], in [0, vocab) */, loss /* f64 [1] */;
};

/* out = sum of squares of x[count], in f64, in a fixed order. */
struct op_square_sum {
    uint64_t count;
    struct operand x, out /* f64 [1] */;
};

/* One step of AdamW (Loshchilov and Hutter 2019, algorithm 2, as PyTorch orders it): g is multiplied by
 * grad_scale first; bias_correction_i = 1 - beta_i^t. */
struct op_adamw {
    uint64_t count;
    double learning_rate, beta1, beta2, eps, weight_decay, grad_scale;
    double bias_correction1, bias_correction2;
    struct operand value, gradient, moment1, moment2;
};

struct op {
    enum op_kind kind;
    bool exact; /* as precisely as the operands can hold, for models where that costs nothing; a device may
                   ignore it */
    union {
        struct op_gemm gemm;
        struct op_copy copy;
        struct op_embed embed;
        struct op_rmsnorm rmsnorm;
        struct op_rmsnorm_backward rmsnorm_backward;
        struct op_rope rope;
        struct op_attention attention;
        struct op_attention_backward attention_backward;
        struct op_attention_cached attention_cached;
        struct op_swiglu swiglu;
        struct op_swiglu_backward swiglu_backward;
        struct op_dropout dropout;
        struct op_dropout_backward dropout_backward;
        struct op_gather_rows gather_rows;
        struct op_scatter_rows scatter_rows;
        struct op_cross_entropy cross_entropy;
        struct op_square_sum square_sum;
        struct op_adamw adamw;
    };
};

const char *op_name(enum op_kind kind); /* "gemm", … never NULL for a kind */

/* Does the device run this op with these dtypes and sizes? Contents are not looked at. */
bool op_supports(const struct device *device, const struct op *op);

/* Queue an op. ERR_UNSUPPORTED when the device does not support it; ERR_INVALID when an operand is absent, of
 * another device, or leaves its buffer. */
int op_submit(struct device *device, const struct op *op, struct err *err);

/* What an op touches. */
enum operand_access { OPERAND_READ = 1, OPERAND_WRITE = 2, OPERAND_UPDATE = 3 };
struct operand_use {
    const char *name;
    struct operand operand;
    enum operand_access access;
    uint64_t rows, width, ld; /* elements; the last row ends at width */
    bool optional;
};
enum { OP_OPERANDS_MAX = 12 };

/* Fill uses[OP_OPERANDS_MAX]; returns how many. Pure. */
uint32_t op_operands(const struct op *op, struct operand_use *uses);
/* Bytes of one element. */
uint32_t dtype_bytes(enum dtype dtype);

#endif
