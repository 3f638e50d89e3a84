/* Compares attention with its definition in double, its gradients with finite differences, and attention over
 * a cache with attention over whole rows. In 16 bits, attention and gradients are compared with their
 * definitions on equally rounded values. */
#pragma once

#include "engine/harness.h"

/* The parameters that the three attention ops share. */
struct attention {
    uint32_t heads, kv_heads, head_dim, ld, window;
    double scale, cap;
    enum dtype compute;
    const double *sinks; /* [heads], or NULL */
};

/* Returns the score of head h that has no value. */
static inline double attention_sink(const struct attention *a, uint32_t h)
{
    return a->sinks ? a->sinks[h] : -INFINITY;
}

/* Returns the first key position that query i attends to in its row. */
static inline uint32_t attention_first(const struct attention *a, uint32_t begin, uint32_t i)
{
    return a->window == 0 || i - begin < a->window ? begin : i - a->window + 1;
}

/* Rounds an operand's values to the dtype. */
static inline void operand_round(struct trial *t, const char *name, enum dtype compute)
{
    struct array *array = array_named(t, name);
    for (uint64_t i = 0; i < array->count; i++)
        array->value[i] = rounded(compute, array->value[i]);
}

/* Computes out[head_dim] of one query from its head's sink and keys [first, i], whose rows are ldk apart;
 * returns the logarithm of the softmax's sum. q, k and v are rounded already; weights are rounded relative to
 * a whole power of two.
 */
static inline double attention_query(const struct attention *a, const double *q, const double *k,
                                     const double *v, double sink, uint32_t ldk, uint32_t first, uint32_t i,
                                     double *out)
{
    double p[1024], max = sink, sum = 0;
    for (uint32_t j = first; j <= i; j++) {
        p[j - first] = 0;
        for (uint32_t d = 0; d < a->head_dim; d++)
            p[j - first] += a->scale * q[d] * k[(size_t)j * ldk + d];
        if (a->cap > 0)
            p[j - first] = a->cap * tanh(p[j - first] / a->cap);
        max = fmax(max, p[j - first]);
    }
    if (a->compute != DTYPE_F32)
        max = ceil(max / log(2)) * log(2);
    sum = exp(sink - max);
    memset(out, 0, sizeof(*out) * a->head_dim);
    for (uint32_t j = first; j <= i; j++) {
        double e = exp(p[j - first] - max);
        sum += e;
        for (uint32_t d = 0; d < a->head_dim; d++)
            out[d] += (a->compute == DTYPE_F32 ? e : rounded(a->compute, e)) * v[(size_t)j * ldk + d];
    }
    for (uint32_t d = 0; d < a->head_dim; d++)
        out[d] = a->compute == DTYPE_F32 ? out[d] / sum : rounded(a->compute, out[d] / sum);
    return max + log(sum);
}

/* Computes out[tokens, heads, head_dim] and, unless NULL, lse[tokens, heads] of all rows. */
static inline void attention_forward(const struct trial *t, const struct attention *a, uint32_t rows,
                                     double *out, double *lse)
{
    const double *q = values(t, "q"), *k = values(t, "k"), *v = values(t, "v"),
                 *start = values(t, "row_start");
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t i = (uint32_t)start[row]; i < (uint32_t)start[row + 1]; i++)
            for (uint32_t h = 0; h < a->heads; h++) {
                uint32_t at = h / (a->heads / a->kv_heads) * a->head_dim;
                double sum =
                    attention_query(a, q + (size_t)i * a->ld + (size_t)h * a->head_dim, k + at, v + at,
                                    attention_sink(a, h), a->ld, attention_first(a, (uint32_t)start[row], i),
                                    i, out + ((size_t)i * a->heads + h) * a->head_dim);
                if (lse)
                    lse[(size_t)i * a->heads + h] = sum;
            }
}

/* Draws either one row of several tiles, or many short rows, some of them empty. */
static inline void attention_draw_rows(struct trial *t, uint32_t *rows, uint32_t *tokens)
{
    *rows = draw_below(t, 3) == 0 ? 1 : draw_rows(t, 5);
    *tokens = *rows == 0 ? 0 : *rows == 1 ? 60 + draw_below(t, 200) : draw_below(t, 90);
}

/* Draws heads. More than 32 values a head are drawn only with few tokens, because finite differences take
 * long. */
static inline struct attention attention_draw_heads(struct trial *t, uint32_t tokens)
{
    uint32_t kv_heads = 1 + draw_below(t, 2), heads = kv_heads * (1 + draw_below(t, tokens > 100 ? 2 : 4));
    uint32_t head_dim = 2 + draw_below(t, tokens > 100 ? 6 : 30);
    double scale = 0.25;
    if (tokens <= 48 && draw_below(t, 2) == 0) {
        heads = kv_heads = 1;
        head_dim = 33 + draw_below(t, draw_below(t, 8) > 0 ? 224 : 480);
        scale = 1 / sqrt(head_dim);
    }
    return (struct attention){.heads = heads,
                              .kv_heads = kv_heads,
                              .head_dim = head_dim,
                              .ld = draw_ld(t, heads * head_dim),
                              .window = draw_below(t, 2) ? 1 + draw_below(t, 100) : 0,
                              .scale = (double)(float)scale,
                              .cap = draw_below(t, 2) ? 1.5 : 0};
}

static inline void attention_draw(struct trial *t)
{
    struct op_attention *o = &t->op.attention;
    t->op.kind = OP_ATTENTION;
    attention_draw_rows(t, &o->rows, &o->tokens);
    struct attention a = attention_draw_heads(t, o->tokens);
    o->heads = a.heads;
    o->kv_heads = a.kv_heads;
    o->head_dim = a.head_dim;
    o->ld = a.ld;
    o->window = a.window;
    o->scale = (float)a.scale;
    o->cap = (float)a.cap;
    bind(t, &o->q);
    bind(t, &o->k);
    bind(t, &o->v);
    bind_as(t, &o->row_start, FILL_STARTS, o->tokens);
    bind(t, &o->out);
    bind(t, &o->lse);
    if (o->tokens % 2)
        bind(t, &o->sinks);
}

/* Rounds q, k and v as the op does when it reads them. */
static inline void attention_round(struct trial *t, enum dtype compute)
{
    operand_round(t, "q", compute);
    operand_round(t, "k", compute);
    operand_round(t, "v", compute);
}

static inline void attention_want(struct trial *t)
{
    const struct op_attention *o = &t->op.attention;
    const struct attention a = {o->heads,       o->kv_heads, o->head_dim,
                                o->ld,          o->window,   (double)o->scale,
                                (double)o->cap, o->compute,  values(t, "sinks")};
    attention_round(t, o->compute);
    attention_forward(t, &a, o->rows, expected(t, "out"), expected(t, "lse"));
}

static inline void attention_backward_draw(struct trial *t)
{
    struct op_attention_backward *o = &t->op.attention_backward;
    struct op_attention *forward = &o->forward;
    t->op.kind = OP_ATTENTION_BACKWARD;
    attention_draw_rows(t, &forward->rows, &forward->tokens);
    struct attention a = attention_draw_heads(t, forward->tokens);
    forward->heads = a.heads;
    forward->kv_heads = a.kv_heads;
    forward->head_dim = a.head_dim;
    forward->ld = a.ld;
    forward->window = a.window;
    forward->scale = (float)a.scale;
    forward->cap = (float)a.cap;
    bind(t, &forward->q);
    bind(t, &forward->k);
    bind(t, &forward->v);
    bind_as(t, &forward->row_start, FILL_STARTS, forward->tokens);
    bind(t, &forward->out);
    bind(t, &forward->lse);
    bind(t, &o->dout);
    bind(t, &o->delta);
    bind(t, &o->dq);
    bind(t, &o->dk);
    bind(t, &o->dv);
    if (forward->tokens % 2 == 0)
        return;
    bind(t, &forward->sinks);
    if (forward->tokens % 4 == 1)
        bind(t, &o->dsinks);
}

static inline struct attention attention_backward_of(const struct trial *t)
{
    const struct op_attention *o = &t->op.attention_backward.forward;
    return (struct attention){o->heads,       o->kv_heads, o->head_dim,
                              o->ld,          o->window,   (double)o->scale,
                              (double)o->cap, o->compute,  values(t, "sinks")};
}

static inline void attention_backward_prepare(struct trial *t)
{
    struct attention a = attention_backward_of(t);
    attention_forward(t, &a, t->op.attention_backward.forward.rows, values(t, "out"), values(t, "lse"));
}

static inline double attention_loss(const struct trial *t)
{
    struct attention a = attention_backward_of(t);
    size_t count = (size_t)t->op.attention_backward.forward.tokens * a.heads * a.head_dim;
    double loss = 0, *out = doubles((uint32_t)count + 1);
    const double *dout = values(t, "dout");
    attention_forward(t, &a, t->op.attention_backward.forward.rows, out, NULL);
    for (size_t i = 0; i < count; i++)
        loss += dout[i] * out[i];
    free(out);
    return loss;
}

/* Sets out and lse to those of the rounded operands. The values of q, k, v, out and lse are not changed
 * afterwards. */
static inline void attention_rounded_prepare(struct trial *t)
{
    const char *const names[] = {"q", "k", "v"};
    double *kept[3];
    for (int i = 0; i < 3; i++) {
        const struct array *array = array_named(t, names[i]);
        kept[i] = doubles((uint32_t)array->count + 1);
        memcpy(kept[i], array->value, array->count * sizeof(double));
        operand_round(t, names[i], t->op.attention_backward.forward.compute);
    }
    attention_backward_prepare(t);
    for (int i = 0; i < 3; i++) {
        const struct array *array = array_named(t, names[i]);
        memcpy(array->value, kept[i], array->count * sizeof(double));
        free(kept[i]);
    }
}

/* What one query of head h and one key contribute to the gradients. `at` says where q, k (and v) and dout
 * begin. */
struct attention_pair {
    double p, slope; /* the probability, and the derivative of its score with respect to q k^T */
    size_t q, k, out;
};

static inline struct attention_pair attention_pair_of(const struct trial *t, const struct attention *a,
                                                      uint32_t h, uint32_t i, uint32_t j)
{
    const double *q = values(t, "q"), *k = values(t, "k");
    struct attention_pair pair = {.q = (size_t)i * a->ld + (size_t)h * a->head_dim,
                                  .k = (size_t)j * a->ld + h / (a->heads / a->kv_heads) * a->head_dim,
                                  .out = ((size_t)i * a->heads + h) * a->head_dim};
    double score = 0, bent = 0;
    for (uint32_t d = 0; d < a->head_dim; d++)
        score += a->scale * q[pair.q + d] * k[pair.k + d];
    if (a->cap > 0) {
        bent = tanh(score / a->cap);
        score = a->cap * bent;
    }
    pair.p = exp(score - values(t, "lse")[(size_t)i * a->heads + h]);
    pair.slope = a->scale * (1 - bent * bent);
    return pair;
}

/* Adds the gradients of the sinks, which are -exp(sink - lse) times the sum of dout times out. */
static inline void attention_sinks_want(struct trial *t, const struct attention *a)
{
    double *dsinks = expected(t, "dsinks");
    const double *out = values(t, "out"), *dout = values(t, "dout");
    for (size_t i = 0; dsinks && i < (size_t)t->op.attention_backward.forward.tokens * a->heads; i++)
        for (uint32_t d = 0; d < a->head_dim; d++)
            dsinks[i % a->heads] -= exp(attention_sink(a, i % a->heads) - values(t, "lse")[i]) *
                                    out[i * a->head_dim + d] * dout[i * a->head_dim + d];
}

/* Computes the gradients by definition, query by query, with dout, the probabilities and the scores'
 * gradients rounded. */
static inline void attention_rounded_backward_want(struct trial *t)
{
    const struct op_attention *o = &t->op.attention_backward.forward;
    const struct attention a = attention_backward_of(t);
    double *dq = expected(t, "dq"), *dk = expected(t, "dk"), *dv = expected(t, "dv");
    const double *q = values(t, "q"), *k = values(t, "k"), *v = values(t, "v"), *dout = values(t, "dout");
    const double *start = values(t, "row_start");
    attention_round(t, o->compute);
    operand_round(t, "out", o->compute);
    for (size_t i = 0; i < o->tokens; i++) {
        for (uint32_t c = 0; c < a.heads * a.head_dim; c++)
            dq[i * a.ld + c] = 0;
        for (uint32_t c = 0; c < a.kv_heads * a.head_dim; c++)
            dk[i * a.ld + c] = dv[i * a.ld + c] = 0;
    }
    attention_sinks_want(t, &a);
    for (uint32_t row = 0; row < o->rows; row++)
        for (uint32_t i = (uint32_t)start[row]; i < (uint32_t)start[row + 1]; i++)
            for (uint32_t h = 0; h < a.heads; h++)
                for (uint32_t j = attention_first(&a, (uint32_t)start[row], i); j <= i; j++) {
                    struct attention_pair pair = attention_pair_of(t, &a, h, i, j);
                    double dp = 0, delta = 0, p = rounded(o->compute, pair.p);
                    for (uint32_t d = 0; d < a.head_dim; d++) {
                        dp += rounded(o->compute, dout[pair.out + d]) * v[pair.k + d];
                        delta += dout[pair.out + d] * values(t, "out")[pair.out + d];
                    }
                    double ds = rounded(o->compute, pair.p * (dp - delta) * pair.slope);
                    for (uint32_t d = 0; d < a.head_dim; d++) {
                        dq[pair.q + d] += ds * k[pair.k + d];
                        dk[pair.k + d] += ds * q[pair.q + d];
                        dv[pair.k + d] += p * rounded(o->compute, dout[pair.out + d]);
                    }
                }
}

static inline enum dtype compute_draw(struct trial *t)
{
    return draw_below(t, 2) ? DTYPE_BF16 : DTYPE_F16;
}

static inline void attention_rounded_draw(struct trial *t)
{
    attention_draw(t);
    t->op.attention.compute = compute_draw(t);
}

static inline void attention_rounded_backward_draw(struct trial *t)
{
    attention_backward_draw(t);
    t->op.attention_backward.forward.compute = compute_draw(t);
}

static inline void attention_cached_draw(struct trial *t)
{
    struct op_attention_cached *o = &t->op.attention_cached;
    t->op.kind = OP_ATTENTION_CACHED;
    o->tokens = draw_rows(t, 80);
    o->begin = draw_below(t, 200);
    struct attention a = attention_draw_heads(t, o->tokens);
    o->heads = a.heads;
    o->kv_heads = a.kv_heads;
    o->head_dim = a.head_dim;
    o->ldq = a.ld;
    o->window = a.window;
    o->scale = (float)a.scale;
    o->cap = (float)a.cap;
    bind(t, &o->q);
    bind(t, &o->k);
    bind(t, &o->v);
    bind(t, &o->out);
    if (o->begin % 2)
        bind(t, &o->sinks);
}

static inline void attention_cached_want(struct trial *t)
{
    const struct op_attention_cached *o = &t->op.attention_cached;
    const struct attention a = {o->heads,       o->kv_heads, o->head_dim,
                                o->ldq,         o->window,   (double)o->scale,
                                (double)o->cap, o->compute,  values(t, "sinks")};
    attention_round(t, o->compute);
    const double *q = values(t, "q"), *k = values(t, "k"), *v = values(t, "v");
    double *out = expected(t, "out");
    for (uint32_t i = 0; i < o->tokens; i++)
        for (uint32_t h = 0; h < o->heads; h++) {
            uint32_t at = h / (o->heads / o->kv_heads) * o->head_dim, position = o->begin + i;
            attention_query(&a, q + (size_t)i * o->ldq + (size_t)h * o->head_dim, k + at, v + at,
                            attention_sink(&a, h), o->kv_heads * o->head_dim,
                            attention_first(&a, 0, position), position,
                            out + ((size_t)i * o->heads + h) * o->head_dim);
        }
}

static inline void attention_cached_rounded_draw(struct trial *t)
{
    attention_cached_draw(t);
    t->op.attention_cached.compute = compute_draw(t);
}

/* A probability that is rounded to the other neighbour differs by 2^-8 of itself (bf16), and a row's sum may
 * be little more than one probability. The scores' gradients differ by 2^-8 of themselves in the same way. */
#define ATTENTION_ROUNDED_CASES                                                                              \
    {.name = "attention_rounded",                                                                            \
     .draw = attention_rounded_draw,                                                                         \
     .want = attention_want,                                                                                 \
     .tolerance = 4e-6,                                                                                      \
     .flip = 0x1p-7},                                                                                        \
        {.name = "attention_rounded_backward",                                                               \
         .draw = attention_rounded_backward_draw,                                                            \
         .prepare = attention_rounded_prepare,                                                               \
         .want = attention_rounded_backward_want,                                                            \
         .tolerance = 4e-6,                                                                                  \
         .flip = 0x1p-7},                                                                                    \
        {.name = "attention_cached_rounded",                                                                 \
         .draw = attention_cached_rounded_draw,                                                              \
         .want = attention_cached_want,                                                                      \
         .tolerance = 4e-6,                                                                                  \
         .flip = 0x1p-7},

/* Scores sum head_dim terms in fp32 and outputs a row's probabilities, so the tolerances are those of fp32
 * sums. */
#define ATTENTION_CASES                                                                                      \
    {.name = "attention", .draw = attention_draw, .want = attention_want, .tolerance = 2e-6},                \
        {.name = "attention_backward",                                                                       \
         .draw = attention_backward_draw,                                                                    \
         .prepare = attention_backward_prepare,                                                              \
         .loss = attention_loss,                                                                             \
         .slopes = {{"q", "dq"}, {"k", "dk"}, {"v", "dv"}, {"sinks", "dsinks"}},                             \
         .tolerance = 5e-6},                                                                                 \
        {.name = "attention_cached",                                                                         \
         .draw = attention_cached_draw,                                                                      \
         .want = attention_cached_want,                                                                      \
         .tolerance = 2e-6},
