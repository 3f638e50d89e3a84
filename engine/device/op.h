/* The operations that a device can queue. Each op is a struct of its own in one tagged union.
 *
 * Matrices are row-major; `ld…` is the distance between rows in elements. An operand is a position in a
 * buffer with a dtype; an absent operand has buffer NULL. op_operands() lists for every op which operands it
 * reads and writes and how large they are: queueing uses the list to check sizes, and `checked` also to check
 * overlap and initialisation. Rows or tokens may be 0: the op then does nothing.
 *
 * Where a struct's comment ends with dtypes, they hold for all operands that name none of their own.
 */
#ifndef MOTLEY_ENGINE_DEVICE_OP_H
#define MOTLEY_ENGINE_DEVICE_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "engine/device/backend.h"
#include "model/files/pack.h"
#include "model/files/safetensors.h"

struct operand {
    struct buffer *buffer; /* borrowed until the op has run; NULL: absent */
    uint64_t at;           /* bytes from the start of the buffer, a multiple of the element's size */
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
    OP_GLU,
    OP_GLU_BACKWARD,
    OP_DROPOUT,
    OP_DROPOUT_BACKWARD,
    OP_GATHER_ROWS,
    OP_SCATTER_ROWS,
    OP_CROSS_ENTROPY,
    OP_SQUARE_SUM,
    OP_ADAMW,
    OP_ADAMW8,
    OP_ADD,
    OP_CAST,
    OP_UNPACK,
    OP_BIAS,
    OP_COLUMN_SUM,
    OP_EMBED_BACKWARD,
    OP_EMBED_NOISE,
    OP_SOFTCAP,
    OP_SCALE,
    OP_GEMM_GROUPED,
    OP_ROUTE,
    OP_ROUTE_BACKWARD,
    OP_ROUTE_SORT,
    OP_ROUTER_LOSS,
    OP_COMBINE,
    OP_COMBINE_BACKWARD,
    OP_GATE,
    OP_GATE_BACKWARD,
    OP_CONV,
    OP_CONV_BACKWARD,
    OP_DELTA,
    OP_DELTA_BACKWARD,
    OP_KINDS
};

/* c[m,n] = alpha * op(a)[m,k] * op(b)[k,n] + beta * c (or beta * add, f32, where GPUs get one and c is f32),
 * where transposed operands are stored as [k,m] and [n,k]. With beta 0, c need not be initialised. Operands
 * are f32, with two exceptions. a may have the dtype of `compute`. b may be frozen weights in their stored
 * form: bf16 or f16 (as activations may be, too), or blocks of a whole matrix (u8, with absmax and scales as
 * in op_unpack), ldb being the matrix's width; each value of b is then what op_unpack makes of it. CPU
 * devices accept f32, and 16-bit operands only where `compute` has 16 bits.
 *
 * compute: DTYPE_F32, or DTYPE_BF16 or DTYPE_F16. With 16 bits, values of a and b (after unpacking) are first
 * rounded to nearest even in that dtype; beyond f16's range they become infinite. Products and sums are f32,
 * in an order that each device chooses. c is f32; GPUs can also round it to the dtype of `compute`, if its
 * rows begin at multiples of 4 bytes. */
struct op_gemm {
    uint32_t m, n, k;
    bool transpose_a, transpose_b;
    float alpha, beta;
    struct operand a, b, c, add; /* add: absent, or of another place than c, with its row distance */
    uint32_t lda, ldb, ldc;
    enum pack_kind pack;           /* how b is stored */
    struct operand absmax, scales; /* for b in NF4 only */
    enum dtype compute;
};

/* y[rows,width] = x. f32. A row may hold several vectors of `width` values, which begin vx values apart in x
 * and vy in y. */
struct op_copy {
    uint32_t rows, width, ldx, ldy;
    uint32_t vectors, vx, vy; /* vectors: 0 stands for 1; vx, vy: 0 stand for width */
    struct operand x, y;
};

/* out[t] = scale * table[ids[t]], with ids in [0, vocab). ids is i32 and out f32. The table is f32, bf16,
 * f16, or u8: then it holds blocks of kind `pack`, each row a whole number of blocks, unpacked as by
 * op_unpack. `turned`: the table is [hidden, vocab], in no blocks, and an id chooses a column. */
struct op_embed {
    uint32_t tokens, hidden, vocab;
    bool turned;
    enum pack_kind pack; /* how the table is stored; with PACK_F32 … PACK_F16 its dtype tells that */
    float scale;         /* 0 stands for 1 */
    struct operand ids, table, out;
};

/* dtable[ids[t]] += scale * dout[t], added in the order of t. ids is i32, the others are f32. `turned` as in
 * op_embed. */
struct op_embed_backward {
    uint32_t tokens, hidden, vocab;
    bool turned;
    float scale; /* 0 stands for 1 */
    struct operand ids, dout, dtable;
};

/* x[t] += alpha / sqrt(length * width) * u, with u uniform in [-1, 1) and `length` the length of the row that
 * contains t. This is NEFTune's noise on embeddings (Jain et al. 2023). For each (row id, position, feature),
 * u is made from number feature % 4 of Philox4x32-10 with key = seed and counter = (position, row id, step,
 * 0xfffff << 12 | feature / 4): its upper 24 bits times 2^-23, minus 1, which is exact in fp32. f32. */
enum { EMBED_NOISE_WIDTH_MAX = 16384 };
struct op_embed_noise {
    uint32_t rows, tokens, width;
    float alpha;
    uint64_t seed;
    struct operand x, row_start /* u32 [rows + 1] */, row_ids /* u32 [tokens] */, step /* u32 [1] */;
};

/* y = x / sqrt(mean(x^2) + eps) * (offset + weight), for each vector (Zhang and Sennrich 2019, eq. 4; Gemma
 * uses offset 1). A row holds `vectors` consecutive vectors of `width` values, and all vectors share one
 * weight[width]: 1 vector is the usual norm, one vector per head is the norm of each head. Without a weight,
 * 0 stands for its values, and width is at most NORM_ALONE_MAX. With `centred` the mean is first subtracted
 * from x (layer norm; Ba et al. 2016, eq. 3); `bias` [width] is added to y where it is present. y may be the
 * same operand as x. f32; y may also be bf16 or f16 if it is not x. */
enum { NORM_ALONE_MAX = 1024 };
struct op_rmsnorm {
    uint32_t rows, width;
    uint32_t vectors;  /* 0 stands for 1 */
    uint32_t ldx, ldy; /* 0 stands for vectors * width */
    float eps, offset;
    bool centred;
    struct operand x, weight, bias /* may be absent */, y;
};

/* Gradient of op_rmsnorm with respect to its input x: dx is set to it, or with `accumulate` increased by it.
 * dweight, if present, is increased by the gradient of the weight, summed in the order of rows; that of the
 * bias is the sum of dy (op_column_sum). dx may be absent, or be the same operand as dy when not
 * accumulating. f32. */
struct op_rmsnorm_backward {
    uint32_t rows, width;
    uint32_t vectors;         /* 0 stands for 1 */
    uint32_t ldx, lddy, lddx; /* 0 stands for vectors * width */
    float eps, offset;
    bool accumulate, centred;
    struct operand x, weight, dy, dx, dweight;
};

/* Rotates the first rotary_dim values of each head of x[tokens, heads, head_dim] in place. Values i and i +
 * rotary_dim/2 form a pair, as in most of Hugging Face's models; with `adjacent`, values 2i and 2i + 1 do
 * (GLM). table[table_rows, rotary_dim] holds each position's cosines, then its sines. `inverse` rotates the
 * other way, for backward. f32.
 *
 * With y, x stays as it is: y[tokens, heads + copied, head_dim], of any float dtype and with x's row
 * distance, gets the rotated heads and, unrotated, the `copied` heads behind them. rotary_dim is then
 * head_dim. GPUs alone. */
struct op_rope {
    uint32_t tokens, heads, head_dim, ldx, table_rows, copied;
    uint32_t rotary_dim; /* even, ≤ head_dim; 0 stands for head_dim */
    bool inverse, adjacent;
    struct operand x, positions /* u32 [tokens] */, table, y /* absent: in place */;
};

/* Causal attention within each row. With a window (> 0), a position attends to the last `window` positions,
 * itself included. With a cap (> 0; Gemma 2), scores become cap * tanh(score / cap). Shapes: q[tokens, heads,
 * head_dim], k and v[tokens, kv_heads, head_dim], all three with row distance ld; out[tokens, heads *
 * head_dim]; lse[tokens, heads] holds the logarithms of the softmax sums. It works in tiles with a running
 * softmax (Dao et al. 2022, algorithm 1): no row's score matrix is ever in memory as a whole.
 *
 * Where `sinks` is present, head h has one more score, sinks[h], for every query. It counts in the softmax
 * and in lse, but has no value (gpt-oss; Xiao et al. 2023).
 *
 * compute: with DTYPE_F32 everything is f32. With DTYPE_BF16 or DTYPE_F16, each of q, k, v and out is f32 or
 * of that dtype; f32 values are rounded to it when read (out: when written), so the numbers do not depend on
 * how the operands are stored. Products and sums are f32. Probabilities are rounded before they are
 * multiplied with v. The maxima that the running softmax subtracts are whole powers of two, so a probability
 * is rounded alike in tiles of any size (except for fp16 numbers below its normal range, 2^-14). */
struct op_attention {
    uint32_t rows, tokens, heads, kv_heads, head_dim, ld, window;
    float scale, cap;
    enum dtype compute;
    struct operand q, k, v, row_start /* u32 [rows + 1] */, out, lse;
    struct operand sinks; /* f32 [heads], or absent */
};

/* Gradients dq, dk and dv (laid out like q, k and v) from dout; delta[tokens, heads] is workspace (Dao et al.
 * 2022, algorithm 4). Gradients and delta are f32. `compute` is as in op_attention: dout, the probabilities
 * and the gradients of the products q k^T are rounded before they are multiplied. Those gradients include the
 * scale and the slope of the cap and are made from probabilities that are not rounded yet. delta is the sum
 * of dout (not rounded) times out. dsinks, if present, is increased by the gradient of the sinks: for each
 * head the sum over tokens of -exp(sink - lse) * delta, which is made in f64. */
struct op_attention_backward {
    struct op_attention forward; /* out and lse are read */
    struct operand dout, delta, dq, dk, dv;
    struct operand dsinks; /* f32 [heads], or absent; needs forward.sinks */
};

/* Attention of `tokens` new positions, the first of which is `begin`, over one sequence's cache k, v[begin +
 * tokens, kv_heads * head_dim]. `sinks` and `compute` are as in op_attention; q, k and v are f32, and out is
 * f32 or of the dtype of `compute`. */
struct op_attention_cached {
    uint32_t tokens, begin, heads, kv_heads, head_dim, ldq, window;
    float scale, cap;
    enum dtype compute;
    struct operand q, k, v, out /* [tokens, heads * head_dim] */, sinks;
};

/* The activation of a gated linear unit (Shazeer 2020): silu(x) = x / (1 + e^-x), gelu(x) = x * Phi(x), by
 * its tanh form or exact, or relu(x)^2. CLAMPED (gpt-oss) is g * sigmoid(alpha * g) * (1 + u), where g is
 * gate up to `limit`, and u is up within [-limit, limit]; beyond these limits their gradients are 0. */
enum glu_kind { GLU_SILU, GLU_GELU_TANH, GLU_CLAMPED, GLU_GELU, GLU_RELU2, GLU_KINDS };
struct glu_form {
    enum glu_kind kind;
    bool plain;         /* there is no up, which counts as 1; not with CLAMPED */
    float limit, alpha; /* of CLAMPED; limit > 0 */
};

/* act[tokens,width] = f(gate) * up, where a row of gate_up[tokens, 2 * width] holds gate, then up; of a plain
 * form it is [tokens, width] and holds gate alone. Each operand is f32, bf16 or f16; the op computes in f32.
 */
struct op_glu {
    uint32_t tokens, width;
    struct glu_form form;
    struct operand gate_up, act;
};

/* Returns the values in a row of gate_up. */
static inline uint64_t op_glu_across(const struct glu_form *form, uint32_t width)
{
    return form->plain ? width : 2ull * width;
}

/* Replaces gate_up by its gradient, computed from dact. Each is f32, bf16 or f16. */
struct op_glu_backward {
    uint32_t tokens, width;
    struct glu_form form;
    struct operand gate_up, dact;
};

/* y = mask * x / (1 - p). The mask of (row id, position, feature) is made from 16 random bits; the value is
 * kept when these are below (1 - p) * 65536, rounded to an integer. Philox4x32-10 with key = seed and counter
 * = (position, row id, step, site | feature / 8) gives four numbers of 32 bits for eight features. Feature f
 * takes number f / 2 % 4: its lower 16 bits if f is even, else its upper ones. The site is layer << 20 |
 * target % 16 << 16 | target / 16 << 15. f32. */
struct op_dropout {
    uint32_t tokens, width;
    float p;
    uint64_t seed;
    uint32_t layer, target; /* layer < 4096, target < 32; fewer than 2^18 features */
    uint32_t first;         /* number of the first feature; a multiple of 8, above 0 for part of an input */
    struct operand x, positions /* u32 [tokens] */, row_ids /* u32 [tokens] */, step /* u32 [1] */, y;
};

/* Gradient of op_dropout with the same mask. forward.y holds the gradient of the output. First dx += mask * y
 * / (1 - p) (unless dx is absent), then y = mask * x / (1 - p), which is the output again. f32. */
struct op_dropout_backward {
    struct op_dropout forward;
    struct operand dx;
};

/* y[i] = x[index[i]] for i < rows; x has x_rows rows. f32. */
struct op_gather_rows {
    uint32_t rows, width, x_rows;
    struct operand x, index /* u32 [rows] */, y;
};

/* y[y_rows,width] becomes 0, then y[index[i]] = scale * x[i]. f32. */
struct op_scatter_rows {
    uint32_t rows, width, y_rows;
    float scale;
    struct operand x, index, y;
};

/* loss += sum over i of (1 - s) * -log p[targets[i]] + s * mean over the vocabulary of -log p, where p =
 * softmax(cap * tanh(logits[i] / cap)) (without a cap: softmax(logits[i])) and s is the label smoothing. The
 * sum is made in f64, in the order of i. With `gradient`, the logits are replaced by their gradient times
 * gradient_scale. A row whose target is -1 adds nothing, and its gradient is 0. */
struct op_cross_entropy {
    uint32_t rows, vocab;
    float smoothing, cap; /* 0 means none */
    bool gradient;
    float gradient_scale; /* a power of two; 0 stands for 1 */
    struct operand logits, targets /* i32 [rows], in [0, vocab) or -1 */, loss /* f64 [1] */;
};

/* out = sum of the squares of x[count], made in f64 in a fixed order. */
struct op_square_sum {
    uint64_t count;
    struct operand x, out /* f64 [1] */;
};

/* The numbers of one step of AdamW. The gradient is first multiplied by grad_scale; bias_correction_i = 1 -
 * beta_i^t. */
struct adamw_rule {
    double learning_rate, beta1, beta2, eps, weight_decay, grad_scale;
    double bias_correction1, bias_correction2;
};

/* One step of AdamW (Loshchilov and Hutter 2019, algorithm 2, with PyTorch's order of operations). f32. */
struct op_adamw {
    uint64_t count;
    struct adamw_rule rule;
    struct operand value, gradient, moment1, moment2;
};

/* op_adamw with 8-bit moments, stored as bitsandbytes' AdamW8bit stores them (Dettmers et al. 2022). A block
 * of 256 values has one code per value, an index into the dynamic map (signed for the first moment, unsigned
 * for the second), and one factor, the block's largest magnitude. Each moment is decoded to fp32, updated,
 * and encoded as the nearest code (the lower of two that are equally near), like quantize_blockwise of
 * bitsandbytes' default backend. A new state is all zeros. value and gradient begin at a block. */
enum { ADAMW8_BLOCK = 256 };
struct op_adamw8 {
    uint64_t count;
    struct adamw_rule rule;
    struct operand value, gradient;
    struct operand code1, code2;     /* u8 [count] */
    struct operand absmax1, absmax2; /* f32 [ceil(count / 256)] */
};

/* y[rows,width] += alpha * x. f32. */
struct op_add {
    uint32_t rows, width, ldx, ldy;
    float alpha;
    struct operand x, y;
};

/* y[count] = x converted to y's dtype, rounded to nearest even. f32, bf16 or f16. */
struct op_cast {
    uint64_t count;
    struct operand x, y;
};

/* y[i] = value begin + i of the packed tensor x, for i < count. begin and count are multiples of the kind's
 * block, or begin + count is the tensor's end. Products and sums are fp32 without contraction, so that all
 * devices agree to the bit. */
struct op_unpack {
    enum pack_kind pack;
    uint64_t begin, count, total; /* total: the number of values in x */
    struct operand x;             /* u8 codes or blocks; f32, bf16 or f16 for PACK_F32 … PACK_F16 */
    struct operand absmax;        /* NF4 only */
    struct operand scales;        /* PACK_NF4_DOUBLE only: f32 [1 + ceil(blocks / 256)], the offset first */
    struct operand y;             /* f32 [count] */
};

/* x[rows,width] += bias[width], for each row. f32. */
struct op_bias {
    uint32_t rows, width, ldx;
    struct operand x, bias;
};

/* y[width] += sum over the rows of x, in the order of rows. f32. */
struct op_column_sum {
    uint32_t rows, width, ldx;
    struct operand x, y;
};

/* x[rows,width] = cap * tanh(x / cap). f32. */
struct op_softcap {
    uint32_t rows, width;
    float cap;
    struct operand x;
};

/* x[rows,width] *= factor[0]. f32. */
struct op_scale {
    uint32_t rows, width;
    struct operand x, factor;
};

/* For mixtures of experts: multiplies each group's rows with the group's own matrix. Groups are consecutive
 * rows; `offsets`, read on the device, holds the row at which each group begins. The op handles groups
 * [first, first + groups). The matrix of group g is number g - first in b (in c with transpose_a); neighbours
 * are `stride` values apart. rows is the largest possible number of rows.
 * Without transpose_a: c[i] = alpha * a[i] * op(b_g) + beta * c[i] for each row i of group g, with a [rows,
 * k] and op(b) [k, n]. With transpose_a: c_g[m,n] = alpha * a_g^T b_g + beta * c_g, with a [rows, m] and b
 * [rows, n], summed in the order of rows.
 * Operands are f32; a (with transpose_a also b) may have the dtype of `compute`, which is as in op_gemm.
 * Without transpose_a, b may be frozen weights in their stored form, as in op_gemm; `stride` then counts
 * bytes, and a matrix's absmax and scales are the same number of bytes after those of its neighbour. CPU
 * devices accept what op_gemm says. */
struct op_gemm_grouped {
    uint32_t first, groups, groups_all; /* offsets is u32 [groups_all + 1] */
    uint32_t rows, m, n, k;             /* m is used with transpose_a only, k without it only */
    bool transpose_a, transpose_b;      /* not both at once */
    float alpha, beta;                  /* beta 0 or 1 */
    uint64_t stride;
    struct operand a, b, c, offsets;
    uint32_t lda, ldb, ldc;
    enum dtype compute;
    enum pack_kind pack;           /* how b is stored */
    struct operand absmax, scales; /* for b in NF4 only */
};

/* The router of a mixture of experts. scores[tokens,experts] are replaced by their softmax, the
 * probabilities; with `sigmoid`, by their logistic function. The `active` largest of each token are chosen,
 * in falling order, the lower number first among equals. Where `bias` is present, the choice is made by
 * probability + bias. An expert's weight is its probability; with `renormalise` it is divided by the sum of
 * the chosen experts' probabilities. Then it is multiplied by `scale`. If `counts` is present, every token of
 * row r adds 1 to counts[r,e] for each chosen expert e, and its probability of each e to sums[r,e], in the
 * order of tokens, as the load-balancing loss needs them. At most 1024 experts, 64 of them active. */
struct op_route {
    uint32_t rows, tokens, experts, active;
    bool renormalise, sigmoid;
    float scale;                 /* 0 stands for 1 */
    struct operand scores;       /* f32, updated */
    struct operand bias;         /* f32 [experts], or absent */
    struct operand chosen;       /* u32 [tokens, active], written */
    struct operand weight;       /* f32 [tokens, active], written */
    struct operand row_start;    /* u32 [rows + 1]; needed with counts */
    struct operand counts, sums; /* f32 [rows, experts], updated; or absent */
};

/* Gradient of the scores from dweight, through factor, division and softmax or logistic function. If `counts`
 * is present, the gradient of the load-balancing loss is added: the probability of expert e for a token of
 * row r has the gradient aux * counts[r,e] / len_r, where len_r is the row's tokens. This is the gradient of
 * op_router_loss for aux = experts / layers^2. */
struct op_route_backward {
    uint32_t rows, tokens, experts, active;
    bool renormalise, sigmoid;
    float aux, scale; /* scale 0 stands for 1 */
    struct operand probabilities, chosen, dweight, dscores;
    struct operand row_start, counts; /* counts may be absent */
};

/* Sorts the choices `chosen` [tokens, active] by expert, then by token. `token`[i] is the token of sorted
 * position i; place[t, j] is the sorted position of token t's choice j; offsets[e] is the position at which
 * expert e begins (written even without tokens). `expert`[i], if present, is the expert of position i. u32.
 */
struct op_route_sort {
    uint32_t tokens, active, experts;
    struct operand chosen, token /* [tokens * active] */, place /* [tokens, active] */,
        offsets /* [experts + 1] */, expert /* [tokens * active] */;
};

/* loss += sum over rows r of len_r * experts * Σ_e (counts[r,e] / n_r) * (sums[r,e] / n_r), with len_r the
 * row's tokens and n_r = layers * len_r (Fedus et al. 2021, eq. 4, taken over all layers together as
 * transformers does). The sum is made in f64. */
struct op_router_loss {
    uint32_t rows, experts, layers;
    struct operand row_start, counts, sums, loss /* f64 [1] */;
};

/* y[t] += Σ_j weight[t,j] * x[place[t,j]], in the order of j; without weight, Σ_j x[place[t,j]]. x is [tokens
 * * active, width]. Without place (active 1), place[t,0] is t. f32, the sum is rounded once. */
struct op_combine {
    uint32_t tokens, active, width;
    struct operand x, place, weight, y;
};

/* dweight[t,j] = <dy[t], x[place[t,j]]>; then x[place[t,j]] is replaced by weight[t,j] * dy[t]. Without place
 * (active 1), place[t,0] is t. */
struct op_combine_backward {
    uint32_t tokens, active, width;
    struct operand x, place, weight, dy, dweight;
};

/* The function of a gate: silu(z) = z * sigmoid(z), sigmoid(z) = 1 / (1 + e^-z), or z itself. */
enum gate_kind { GATE_SILU, GATE_SIGMOID, GATE_PLAIN };

/* y[rows, vectors * width] = x * f(z), for vectors of `width` values. The vectors of z begin vz values apart,
 * in rows of distance ldz. f32. */
struct op_gate {
    uint32_t rows, vectors, width, ldz, vz;
    enum gate_kind kind;
    struct operand x, z, y;
};

/* dx = dy * f(z), and dz = dy * x * f'(z), which lies as z does. dx may be dy. f32. */
struct op_gate_backward {
    struct op_gate forward; /* y is not used */
    struct operand dy, dx, dz;
};

/* Causal convolution of each channel within each row, then silu unless `plain`: y[t,c] = silu(bias[c] + sum
 * over j < taps of weight[c, taps - 1 - j] * x[t - j, c]), where x before a row's first token is 0, and so is
 * an absent bias. positions[t] counts t's predecessors in its row. With `past` [taps - 1, width] the tokens
 * are the next ones of one row, of which past holds the last ones before them; it is then replaced by the
 * last ones of all. taps is from 2 to CONV_TAPS. f32. */
enum { CONV_TAPS = 4 };
struct op_conv {
    uint32_t tokens, width, ldx, ldy, taps;
    bool plain;
    struct operand x, weight /* [width, taps] */, bias, positions /* u32 [tokens] */, past, y;
};

/* dx from dy. dweight, if present, is increased by the gradient of the weight, and dbias of the bias, summed
 * in the order of tokens in f64 and rounded once. dbias comes with dweight alone. f32. */
struct op_conv_backward {
    struct op_conv forward; /* without past; y is not used, ldy is the row distance of dy */
    uint32_t lddx;
    struct operand dy, dx, dweight, dbias;
};

/* Returns true if the taps are within the ops' limits. */
bool op_conv_fits(const struct op_conv *op);

/* The gated delta rule within each row (Yang et al. 2024, Gated Delta Networks, eq. 10). A head of v has a
 * state S [key_dim, value_dim], 0 before the row's first token. For each token, with gamma = exp(-exp(decay)
 * * softplus(a + dt_bias)) and beta = sigmoid(b):
 *     S = gamma * S;  error = v - S^T k;  S = S + beta * k error^T;  out = S^T q
 * Head h reads k and q of head h / (heads / key_heads). Shapes: q, k [tokens, key_heads * key_dim] and v
 * [tokens, heads * value_dim], all three with row distance ld; a, b [tokens, heads] with row distance ldg;
 * error and out [tokens, heads * value_dim]. With `state` [heads, key_dim, value_dim] the tokens are the next
 * ones of one row, behind `begin` others; state holds S before them (unless begin is 0), and then S after
 * them. key_dim and value_dim are at most DELTA_DIM_MAX. f32.
 *
 * With `scan` it is Mamba-2's state space (Dao and Gu 2024, Transformers are SSMs, section 6): k, q and v are
 * called B, C and x, the state predicts nothing, so that the error is v, beta is softplus(a + dt_bias), and
 * out = S^T q + skip * v. There are no b and no error then. */
enum { DELTA_DIM_MAX = 128 };
struct op_delta {
    uint32_t rows, tokens, heads, key_heads, key_dim, value_dim, ld, ldg, begin;
    bool scan;
    struct operand q, k, v, a, b, decay /* [heads] */, dt_bias /* [heads] */, row_start /* u32 [rows + 1] */;
    struct operand state, error, out, skip /* [heads] */;
};

/* Returns true if the heads and their sizes are within the op's limits. */
bool op_delta_fits(const struct op_delta *op);

/* The gradients of q, k, v, a and b, which lie as these do with row distances ldd (dq, dk, dv) and ldg (da,
 * db), from dout. rates[tokens, heads] gets the gradient of `decay`, to be summed over tokens (that of
 * dt_bias is the sum of da), and with `scan` skips[tokens, heads] that of `skip`, likewise. work is memory
 * for the op.
 *
 * dS, the gradient of the state, needs no stored states: dv follows from it alone; with `error` of forward
 * the state's rows follow from k, and so do their products with dout and dv. The gradient of log gamma of
 * token t is that of t + 1, plus what the token reads from earlier ones, minus what later ones read from it.
 * f32. */
struct op_delta_backward {
    struct op_delta forward; /* without state; error is read, out is not used */
    uint32_t ldd;
    struct operand dout, work /* [tokens, heads * (2 * key_dim + ceil(key_dim / 32))] */;
    struct operand dq, dk, dv, da, db, rates, skips;
};

struct op {
    enum op_kind kind;
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
        struct op_glu glu;
        struct op_glu_backward glu_backward;
        struct op_dropout dropout;
        struct op_dropout_backward dropout_backward;
        struct op_gather_rows gather_rows;
        struct op_scatter_rows scatter_rows;
        struct op_cross_entropy cross_entropy;
        struct op_square_sum square_sum;
        struct op_adamw adamw;
        struct op_adamw8 adamw8;
        struct op_add add;
        struct op_cast cast;
        struct op_unpack unpack;
        struct op_bias bias;
        struct op_column_sum column_sum;
        struct op_embed_backward embed_backward;
        struct op_embed_noise embed_noise;
        struct op_softcap softcap;
        struct op_scale scale;
        struct op_gemm_grouped gemm_grouped;
        struct op_route route;
        struct op_route_backward route_backward;
        struct op_route_sort route_sort;
        struct op_router_loss router_loss;
        struct op_combine combine;
        struct op_combine_backward combine_backward;
        struct op_gate gate;
        struct op_gate_backward gate_backward;
        struct op_conv conv;
        struct op_conv_backward conv_backward;
        struct op_delta delta;
        struct op_delta_backward delta_backward;
    };
};

const char *op_name(enum op_kind kind); /* such as "gemm"; never NULL for a valid kind */

/* Does the device run this op with these dtypes and sizes? Buffer contents are not looked at. */
bool op_supports(const struct device *device, const struct op *op);

/* Queue an op. ERR_UNSUPPORTED: the device does not support it. ERR_INVALID: an operand is absent, belongs to
 * another device, or leaves its buffer. */
int op_submit(struct device *device, const struct op *op, struct err *err);
int op_submit_on(enum device_queue queue, struct device *device, const struct op *op, struct err *err);

/* How an op uses an operand. */
enum operand_access { OPERAND_READ = 1, OPERAND_WRITE = 2, OPERAND_UPDATE = 3 };
struct operand_use {
    const char *name;
    struct operand operand;
    enum operand_access access;
    uint32_t dtypes; /* dtypes that the op allows, as bits 1 << enum dtype; a device may support fewer */
    uint64_t rows, width, ld; /* in elements; the last row ends at width */
};
enum { OP_OPERANDS_MAX = 18 };

/* Replace the zeros that "stand for" a default by that default. op_submit does so before it calls the device.
 * Pure. */
void op_complete(struct op *op);

/* Fill uses[OP_OPERANDS_MAX] with the operands of an op that op_complete has seen; optional operands that are
 * absent are left out. Returns how many. Pure. */
uint32_t op_operands(const struct op *op, struct operand_use *uses);

/* Floating-point operations of the ops that have many (0 for all others, which memory traffic bounds).
 * `counted` is what stands in the op's buffers: the pairs of query and key of an attention, the rows of a
 * grouped product's groups. Pure. */
double op_flops(const struct op *op, double counted);
bool op_in_16_bits(const struct op *op); /* are these operations done in bf16 or f16? Pure. */
/* Bytes of an op's operands, each read or written once, and twice where it is updated. Of an embedding's
 * table only the rows that are looked up count. Pure. */
double op_bytes(const struct op *op);
/* Bytes of one element. */
uint32_t dtype_bytes(enum dtype dtype);

#endif
