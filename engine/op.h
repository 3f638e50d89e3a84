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
#include "model/pack.h"
#include "model/safetensors.h"

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
    OP_GEMM_GROUPED,
    OP_ROUTE,
    OP_ROUTE_BACKWARD,
    OP_ROUTE_SORT,
    OP_ROUTER_LOSS,
    OP_COMBINE,
    OP_COMBINE_BACKWARD,
    OP_KINDS
};

/* c[m,n] = alpha * op(a)[m,k] * op(b)[k,n] + beta * c; transposed operands are stored [k,m] and [n,k]. With
 * beta 0 c need not be initialised. f32, but a may be of compute's dtype, and b frozen weights as they are
 * kept: bf16 or f16 (as activations may be, too), or blocks (u8, absmax and scales as op_unpack has them) of
 * a whole matrix, ldb being its width. Each value of b is then what op_unpack makes of it. CPU devices take
 * f32, and 16 bits where compute has 16.
 *
 * compute: DTYPE_F32; or DTYPE_BF16 or DTYPE_F16: values of a and b (of a packed b, what they are unpacked
 * to) are rounded to that first, to nearest even, in f16 to infinity beyond its range; products and sums are
 * f32 in an order that is the device's own, and c is f32. */
struct op_gemm {
    uint32_t m, n, k;
    bool transpose_a, transpose_b;
    float alpha, beta;
    struct operand a, b, c;
    uint32_t lda, ldb, ldc;
    enum pack_kind pack;           /* of b */
    struct operand absmax, scales; /* of b: NF4 alone */
    enum dtype compute;
};

/* y[rows,width] = x. f32. */
struct op_copy {
    uint32_t rows, width, ldx, ldy;
    struct operand x, y;
};

/* out[t] = scale * table[ids[t]]; ids are in [0, vocab). i32; table f32, bf16, f16, or u8: blocks of `pack`,
 * which rows fill whole, unpacked as by op_unpack; out f32. */
struct op_embed {
    uint32_t tokens, hidden, vocab;
    enum pack_kind pack; /* PACK_F32 … PACK_F16: the table's dtype says it */
    float scale;         /* 0 stands for 1 */
    struct operand ids, table, out;
};

/* dtable[ids[t]] += scale * dout[t], in the order of t. i32, f32. */
struct op_embed_backward {
    uint32_t tokens, hidden, vocab;
    float scale; /* 0 stands for 1 */
    struct operand ids, dout, dtable;
};

/* x[t] += alpha / sqrt(length * width) * u, u uniform in [-1, 1): noise on embeddings (NEFTune, Jain et al.
 * 2023), length being that of t's row. u of (row id, position, feature) is number feature % 4 of
 * Philox4x32-10 under key = seed, counter = (position, row id, step, 0xfffff << 12 | feature / 4), its upper
 * 24 bits times 2^-23 less 1: exact in fp32. f32. */
enum { EMBED_NOISE_WIDTH_MAX = 16384 };
struct op_embed_noise {
    uint32_t rows, tokens, width;
    float alpha;
    uint64_t seed;
    struct operand x, row_start /* u32 [rows + 1] */, row_ids /* u32 [tokens] */, step /* u32 [1] */;
};

/* y = x / sqrt(mean(x^2) + eps) * (offset + weight), per vector (Zhang and Sennrich 2019, eq. 4; offset 1 as
 * Gemma has it). A row holds `vectors` vectors of `width` values one after another, under one weight[width]:
 * 1 is the usual norm, heads that of each head. y may be x. f32, but y may be bf16 or f16 where it is not x.
 */
struct op_rmsnorm {
    uint32_t rows, width;
    uint32_t vectors;  /* 0 stands for 1 */
    uint32_t ldx, ldy; /* 0 stands for vectors * width */
    float eps, offset;
    struct operand x, weight, y;
};

/* dx = or += (accumulate) the gradient of op_rmsnorm in its input x; dweight, where there is one, += that of
 * the weight, summed in the order of rows. dx may be absent, or lie where dy does when not accumulate. */
struct op_rmsnorm_backward {
    uint32_t rows, width;
    uint32_t vectors;         /* 0 stands for 1 */
    uint32_t ldx, lddy, lddx; /* 0 stands for vectors * width */
    float eps, offset;
    bool accumulate;
    struct operand x, weight, dy, dx, dweight;
};

/* Rotate the first rotary_dim values of each head of x[tokens, heads, head_dim] in place, halves paired
 * (i, i + rotary_dim/2) as Hugging Face pairs them. table[table_rows, rotary_dim]: cosines, then sines, of
 * each position. inverse: the other way (backward). */
struct op_rope {
    uint32_t tokens, heads, head_dim, ldx, table_rows;
    uint32_t rotary_dim; /* even, ≤ head_dim; 0 stands for head_dim */
    bool inverse;
    struct operand x, positions /* u32 [tokens] */, table;
};

/* Causal attention within each row, to the last `window` positions alone where there is a window (itself
 * counted; 0: none), scores capped to cap * tanh(score / cap) where there is a cap (0: none; Gemma 2):
 * q[tokens, heads, head_dim], k and v[tokens, kv_heads, head_dim], all with row distance ld; out[tokens,
 * heads * head_dim]; lse[tokens, heads] the logarithms of the softmax sums. Tiled with a running softmax (Dao
 * et al. 2022, algorithm 1): no score matrix of a row is ever whole in memory.
 *
 * compute: DTYPE_F32, all is f32; or DTYPE_BF16 or DTYPE_F16: q, k, v and out are f32 or that. Of f32 ones
 * the values are rounded to it as they are read (out: written), so numbers do not depend on how they are
 * kept. Products and sums are f32, probabilities are rounded before they are multiplied with v; maxima that
 * the running softmax takes off are whole powers of two, so a probability is rounded alike in tiles of any
 * size (but for fp16's numbers below its normal range, 2^-14). */
struct op_attention {
    uint32_t rows, tokens, heads, kv_heads, head_dim, ld, window;
    float scale, cap;
    enum dtype compute;
    struct operand q, k, v, row_start /* u32 [rows + 1] */, out, lse;
};

/* Gradients dq, dk, dv (laid out as q, k, v) from dout; delta[tokens, heads] is workspace. (Dao et al. 2022,
 * algorithm 4.) Gradients and delta are f32. compute as op_attention has it: dout, probabilities and the
 * gradients of the products q k^T (scale and the cap's slope in them, made of probabilities not yet rounded)
 * are rounded before they are multiplied; delta is the sum of dout (not rounded) times out. */
struct op_attention_backward {
    uint32_t rows, tokens, heads, kv_heads, head_dim, ld, window;
    float scale, cap;
    enum dtype compute;
    struct operand q, k, v, row_start, out, lse, dout, delta, dq, dk, dv;
};

/* Attention of `tokens` new positions begin… of one sequence over a cache k, v[begin + tokens, kv_heads *
 * head_dim]. compute as op_attention has it; q, k and v are f32, and out f32 or of compute's dtype. */
struct op_attention_cached {
    uint32_t tokens, begin, heads, kv_heads, head_dim, ldq, window;
    float scale, cap;
    enum dtype compute;
    struct operand q, k, v, out /* [tokens, heads * head_dim] */;
};

/* The gate of a gated linear unit (Shazeer 2020): silu(x) = x / (1 + e^-x), or gelu by its tanh form. */
enum glu_kind { GLU_SILU, GLU_GELU_TANH };

/* act[tokens,width] = f(gate) * up, gate_up[tokens, 2 * width] holding gate, then up. Either is f32, bf16 or
 * f16; computed in f32. */
struct op_glu {
    uint32_t tokens, width;
    enum glu_kind kind;
    struct operand gate_up, act;
};

/* gate_up becomes its own gradient, from dact. gate_up is f32, bf16 or f16; dact f32. */
struct op_glu_backward {
    uint32_t tokens, width;
    enum glu_kind kind;
    struct operand gate_up, dact;
};

/* y = mask * x / (1 - p). The mask of (row id, position, feature) is 16 bits of Philox4x32-10 under key =
 * seed, counter = (position, row id, step, layer << 20 | target << 16 | feature / 8): half feature % 2 of
 * number feature / 2 % 4, kept when below (1 - p) * 65536 rounded to an integer. */
struct op_dropout {
    uint32_t tokens, width;
    float p;
    uint64_t seed;
    uint32_t layer, target; /* < 4096, < 16 */
    struct operand x, positions /* u32 [tokens] */, row_ids /* u32 [tokens] */, step /* u32 [1] */, y;
};

/* With the same mask: dx += mask * t / (1 - p) (unless absent), then t = mask * x / (1 - p): the gradient of
 * the input from that of the output t, which becomes the output again. */
struct op_dropout_backward {
    uint32_t tokens, width;
    float p;
    uint64_t seed;
    uint32_t layer, target;
    struct operand x, positions, row_ids, step, t, dx;
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

/* loss += sum over i of (1 - s) * -log p[targets[i]] + s * mean over the vocabulary of -log p, where p =
 * softmax(cap * tanh(logits[i] / cap)) (no cap: softmax(logits[i])) and s is the label smoothing; summed in
 * f64 in order of i. With gradient, logits become the gradient in what they were, times gradient_scale. */
struct op_cross_entropy {
    uint32_t rows, vocab;
    float smoothing, cap; /* 0: none */
    bool gradient;
    float gradient_scale; /* a power of two; 0 stands for 1 */
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

/* The same with moments in 8 bits (Dettmers et al. 2022, as bitsandbytes' AdamW8bit keeps them): in blocks of
 * 256 values each, codes of the dynamic map (signed for the first moment, unsigned for the second) times the
 * block's largest magnitude. Each moment is brought to fp32, stepped, and takes the nearest code again (the
 * lower of two as near), as quantize_blockwise of bitsandbytes' default backend. A new state is all zeros.
 * value and gradient begin on a block. */
enum { ADAMW8_BLOCK = 256 };
struct op_adamw8 {
    uint64_t count;
    double learning_rate, beta1, beta2, eps, weight_decay, grad_scale;
    double bias_correction1, bias_correction2;
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

/* y[count] = x in y's dtype, rounded to nearest even. f32, bf16, f16. */
struct op_cast {
    uint64_t count;
    struct operand x, y;
};

/* y[i] = value begin + i of x, i < count. begin and count are multiples of the kind's block, or count ends
 * where x does. Products and sums in fp32 without contraction, so that all devices agree to the bit. */
struct op_unpack {
    enum pack_kind pack;
    uint64_t begin, count, total; /* total: values of x */
    struct operand x;             /* u8: codes or blocks; f32, bf16, f16 for PACK_F32 … PACK_F16 */
    struct operand absmax;        /* NF4 alone */
    struct operand scales;        /* PACK_NF4_DOUBLE: f32 [1 + ceil(blocks / 256)], the offset first */
    struct operand y;             /* f32 [count] */
};

/* x[rows,width] += bias[width], row by row. f32. */
struct op_bias {
    uint32_t rows, width, ldx;
    struct operand x, bias;
};

/* y[width] += sum over rows of x, in the order of rows. f32. */
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

/* Products of consecutive rows with the matrices of their groups, for experts. `offsets`, read on the device,
 * holds where each group's rows begin; of them groups [first, first + groups) are done, matrix g - first of
 * b (or c, when transpose_a) lying `stride` values after the one before. rows is the most rows there are.
 * Without transpose_a: c[i] = alpha * a[i] * op(b_g) + beta * c[i] for rows i of group g; a [rows, k],
 * op(b) [k, n]. With: c_g[m,n] = alpha * a_g^T b_g + beta * c_g; a [rows, m], b [rows, n], sums in the order
 * of rows. f32, but a (with transpose_a b, too) may be of compute's dtype; compute as op_gemm has it. Without
 * transpose_a b may be frozen weights as they are kept, as op_gemm has them: then `stride` counts bytes, and
 * absmax and scales of a matrix lie as far from those of the one before. CPU devices as there. */
struct op_gemm_grouped {
    uint32_t first, groups, groups_all; /* offsets is u32 [groups_all + 1] */
    uint32_t rows, m, n, k;             /* m: with transpose_a; k: without */
    bool transpose_a, transpose_b;      /* not both */
    float alpha, beta;                  /* beta 0 or 1 */
    uint64_t stride;
    struct operand a, b, c, offsets;
    uint32_t lda, ldb, ldc;
    enum dtype compute;
    enum pack_kind pack;           /* of b */
    struct operand absmax, scales; /* of b: NF4 alone */
};

/* Routers of mixtures of experts. scores[tokens,experts] become their softmax, the probabilities; the
 * `active` largest of each token are chosen, in falling order, the lower number first among equals, and
 * weigh as much as their probability, divided by the sum of the chosen ones' with renormalise. Where `counts`
 * is there, for every token of row r counts[r,e] += 1 for each choice e and sums[r,e] += its probability of
 * e, in the order of tokens: what the load-balancing loss needs. At most 1024 experts, 64 of them active. */
struct op_route {
    uint32_t rows, tokens, experts, active;
    bool renormalise;
    struct operand scores;       /* f32, updated */
    struct operand chosen;       /* u32 [tokens, active], written */
    struct operand weight;       /* f32 [tokens, active], written */
    struct operand row_start;    /* u32 [rows + 1]; with counts */
    struct operand counts, sums; /* f32 [rows, experts], updated; or absent */
};

/* dscores from dweight, through choice, division and softmax; with counts also from the load-balancing loss:
 * each probability of e by a token of row r has the gradient aux * counts[r,e] / len_r, which is that of
 * op_router_loss where aux = experts / layers^2. */
struct op_route_backward {
    uint32_t rows, tokens, experts, active;
    bool renormalise;
    float aux;
    struct operand probabilities, chosen, dweight, dscores;
    struct operand row_start, counts; /* counts may be absent */
};

/* Chosen experts [tokens, active] put in order of experts, then of tokens: `token`[i] is the token of the
 * i-th place, place[t, j] where token t's choice j came, offsets[e] where expert e's places begin (written
 * even without tokens). u32. */
struct op_route_sort {
    uint32_t tokens, active, experts;
    struct operand chosen, token /* [tokens * active] */, place /* [tokens, active] */,
        offsets /* [experts + 1] */;
};

/* loss += sum over rows r of len_r * experts * Σ_e (counts[r,e] / n_r) * (sums[r,e] / n_r), n_r = layers *
 * len_r (Fedus et al. 2021, eq. 4, over all layers together as transformers takes it). f64. */
struct op_router_loss {
    uint32_t rows, experts, layers;
    struct operand row_start, counts, sums, loss /* f64 [1] */;
};

/* y[t] += Σ_j weight[t,j] * x[place[t,j]], in the order of j; without weight, Σ_j x[place[t,j]]. x[tokens *
 * active, width]. f32, the sum rounded once. */
struct op_combine {
    uint32_t tokens, active, width;
    struct operand x, place, weight, y;
};

/* dweight[t,j] = <dy[t], x[place[t,j]]>, then x[place[t,j]] becomes weight[t,j] * dy[t]. */
struct op_combine_backward {
    uint32_t tokens, active, width;
    struct operand x, place, weight, dy, dweight;
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
        struct op_gemm_grouped gemm_grouped;
        struct op_route route;
        struct op_route_backward route_backward;
        struct op_route_sort route_sort;
        struct op_router_loss router_loss;
        struct op_combine combine;
        struct op_combine_backward combine_backward;
    };
};

const char *op_name(enum op_kind kind); /* "gemm", … never NULL for a kind */

/* Does the device run this op with these dtypes and sizes? Contents are not looked at. */
bool op_supports(const struct device *device, const struct op *op);

/* Queue an op. ERR_UNSUPPORTED when the device does not support it; ERR_INVALID when an operand is absent, of
 * another device, or leaves its buffer. */
int op_submit(struct device *device, const struct op *op, struct err *err);
int op_submit_on(enum device_queue queue, struct device *device, const struct op *op, struct err *err);

/* What an op touches. */
enum operand_access { OPERAND_READ = 1, OPERAND_WRITE = 2, OPERAND_UPDATE = 3 };
struct operand_use {
    const char *name;
    struct operand operand;
    enum operand_access access;
    uint32_t dtypes;          /* those it may have: bits 1 << enum dtype; a device may take fewer */
    uint64_t rows, width, ld; /* elements; the last row ends at width */
};
enum { OP_OPERANDS_MAX = 12 };

/* Put in what the zeros that "stand for" something stand for. op_submit does so: devices see complete ops
 * alone. Pure. */
void op_complete(struct op *op);

/* Fill uses[OP_OPERANDS_MAX] with the operands of a complete op; absent ones are left out where they may be.
 * Returns how many. Pure. */
uint32_t op_operands(const struct op *op, struct operand_use *uses);
/* Bytes of one element. */
uint32_t dtype_bytes(enum dtype dtype);

#endif
