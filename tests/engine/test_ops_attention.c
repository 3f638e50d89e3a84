/* Attention against its definition in double, its gradient against finite differences, the cache against the
 * whole. */
#include "engine/ops.h"

struct attention_case {
    uint32_t rows, heads, kv_heads, dim;
    const uint32_t *row_start;
    double scale;
};

/* out[tokens, heads*dim] and lse in double, straight from the definition. */
static void attention_reference(const struct attention_case *c, const double *qkv, double *out, double *lse)
{
    uint32_t ld = (c->heads + 2 * c->kv_heads) * c->dim, group = c->heads / c->kv_heads;
    double *p = doubles(c->row_start[c->rows] + 1);
    for (uint32_t row = 0; row < c->rows; row++)
        for (uint32_t i = c->row_start[row]; i < c->row_start[row + 1]; i++)
            for (uint32_t h = 0; h < c->heads; h++) {
                const double *q = qkv + i * ld + h * c->dim;
                double max = -INFINITY, sum = 0, *o = out + (i * c->heads + h) * c->dim;
                for (uint32_t j = c->row_start[row]; j <= i; j++) {
                    const double *k = qkv + j * ld + (c->heads + h / group) * c->dim;
                    p[j] = 0;
                    for (uint32_t d = 0; d < c->dim; d++)
                        p[j] += q[d] * k[d] * c->scale;
                    max = fmax(max, p[j]);
                }
                for (uint32_t j = c->row_start[row]; j <= i; j++)
                    sum += p[j] = exp(p[j] - max);
                memset(o, 0, sizeof(double) * c->dim);
                for (uint32_t j = c->row_start[row]; j <= i; j++)
                    for (uint32_t d = 0; d < c->dim; d++)
                        o[d] += p[j] / sum * qkv[j * ld + (c->heads + c->kv_heads + h / group) * c->dim + d];
                if (lse != NULL)
                    lse[i * c->heads + h] = max + log(sum);
            }
    free(p);
}

/* dqkv[i] for a sample of i, by central differences of sum(dout * out). */
static double attention_slope(const struct attention_case *c, double *qkv, const double *dout, uint32_t at,
                              double *out)
{
    const double h = 1e-5;
    uint32_t count = c->row_start[c->rows] * c->heads * c->dim;
    double kept = qkv[at], slope = 0;
    for (int sign = -1; sign <= 1; sign += 2) {
        qkv[at] = kept + sign * h;
        attention_reference(c, qkv, out, NULL);
        for (uint32_t i = 0; i < count; i++)
            slope += sign * dout[i] * out[i] / (2 * h);
    }
    qkv[at] = kept;
    return slope;
}

static void attention_case_run(struct bench *b, const struct attention_case *c)
{
    uint32_t tokens = c->row_start[c->rows], q = c->heads * c->dim, kv = c->kv_heads * c->dim,
             ld = q + 2 * kv;
    double *qkv = doubles(tokens * ld), *out = doubles(tokens * q), *lse = doubles(tokens * c->heads);
    double *dout = doubles(tokens * q), *scratch = doubles(tokens * q);
    struct err err;
    struct operand oqkv = normal(b, tokens * ld, qkv), oout = empty(b, tokens * q),
                   olse = empty(b, tokens * c->heads);
    struct operand odout = normal(b, tokens * q, dout), odelta = empty(b, tokens * c->heads);
    struct operand odqkv = empty(b, tokens * ld), k = oqkv, v = oqkv, dk = odqkv, dv = odqkv;
    struct operand starts = bytes_in(b, c->row_start, 4ull * (c->rows + 1), DTYPE_U32);
    k.at = dk.at = 4ull * q;
    v.at = dv.at = 4ull * (q + kv);
    submit(b, (struct op){.kind = OP_ATTENTION,
                          .attention = {.rows = c->rows,
                                        .tokens = tokens,
                                        .heads = c->heads,
                                        .kv_heads = c->kv_heads,
                                        .head_dim = c->dim,
                                        .ld = ld,
                                        .scale = (float)c->scale,
                                        .q = oqkv,
                                        .k = k,
                                        .v = v,
                                        .row_start = starts,
                                        .out = oout,
                                        .lse = olse}});
    submit(b, (struct op){.kind = OP_ATTENTION_BACKWARD,
                          .attention_backward = {.rows = c->rows,
                                                 .tokens = tokens,
                                                 .heads = c->heads,
                                                 .kv_heads = c->kv_heads,
                                                 .head_dim = c->dim,
                                                 .ld = ld,
                                                 .scale = (float)c->scale,
                                                 .q = oqkv,
                                                 .k = k,
                                                 .v = v,
                                                 .row_start = starts,
                                                 .out = oout,
                                                 .lse = olse,
                                                 .dout = odout,
                                                 .delta = odelta,
                                                 .dq = odqkv,
                                                 .dk = dk,
                                                 .dv = dv}});
    attention_reference(c, qkv, out, lse);
    expect(b, oout, out, tokens * q, 2e-6, "attention");
    expect(b, olse, lse, tokens * c->heads, 2e-6, "attention's lse");
    float *got = malloc(4ull * tokens * ld);
    check(buffer_read(odqkv.buffer, 0, got, 4ull * tokens * ld, &err));
    check(device_sync(b->device, &err));
    for (int sample = 0; sample < 60; sample++) {
        uint32_t at = rand_stream_below(&b->stream, tokens * ld);
        double slope = attention_slope(c, qkv, dout, at, scratch);
        if (!(fabs(slope - (double)got[at]) <= 2e-5 * (1 + fabs(slope))))
            fail_msg("attention's gradient [%u, %u] is %.7f, differences say %.7f (%s)", at / ld, at % ld,
                     (double)got[at], slope, device_isa(b->device));
    }
    free(got), free(qkv), free(out), free(lse), free(dout), free(scratch);
}

static void attention_on(struct bench *b)
{
    static const uint32_t uneven[] = {0, 1, 70, 70, 83}, one[] = {0, 150};
    attention_case_run(
        b, &(struct attention_case){
               .rows = 4, .heads = 4, .kv_heads = 2, .dim = 16, .row_start = uneven, .scale = 0.25});
    attention_case_run(b,
                       &(struct attention_case){
                           .rows = 1, .heads = 3, .kv_heads = 1, .dim = 20, .row_start = one, .scale = 0.2});
}

static void attention_and_its_gradient_are_right(void **state)
{
    (void)state;
    each_device(attention_on);
}

static void attention_cached_on(struct bench *b)
{
    enum { HEADS = 6, KV = 2, DIM = 32, TOKENS = 90, BEGIN = 77, LD = (HEADS + 2 * KV) * DIM };
    static const uint32_t starts[] = {0, TOKENS};
    const struct attention_case c = {
        .rows = 1, .heads = HEADS, .kv_heads = KV, .dim = DIM, .row_start = starts, .scale = 0.2};
    double *qkv = doubles(TOKENS * LD), *out = doubles(TOKENS * HEADS * DIM);
    struct operand oqkv = normal(b, TOKENS * LD, qkv), q = oqkv, source = oqkv;
    struct operand k = empty(b, TOKENS * KV * DIM), v = empty(b, TOKENS * KV * DIM);
    struct operand oout = empty(b, (TOKENS - BEGIN) * HEADS * DIM);
    source.at = 4ull * HEADS * DIM;
    submit(b,
           (struct op){
               .kind = OP_COPY,
               .copy = {.rows = TOKENS, .width = KV * DIM, .ldx = LD, .ldy = KV * DIM, .x = source, .y = k}});
    source.at += 4ull * KV * DIM;
    submit(b,
           (struct op){
               .kind = OP_COPY,
               .copy = {.rows = TOKENS, .width = KV * DIM, .ldx = LD, .ldy = KV * DIM, .x = source, .y = v}});
    q.at = 4ull * BEGIN * LD;
    submit(b, (struct op){.kind = OP_ATTENTION_CACHED,
                          .attention_cached = {.tokens = TOKENS - BEGIN,
                                               .begin = BEGIN,
                                               .heads = HEADS,
                                               .kv_heads = KV,
                                               .head_dim = DIM,
                                               .ldq = LD,
                                               .scale = 0.2f,
                                               .q = q,
                                               .k = k,
                                               .v = v,
                                               .out = oout}});
    attention_reference(&c, qkv, out, NULL);
    expect(b, oout, out + BEGIN * HEADS * DIM, (TOKENS - BEGIN) * HEADS * DIM, 2e-6, "attention_cached");
    free(qkv), free(out);
}

static void attention_over_a_cache_is_attention(void **state)
{
    (void)state;
    each_device(attention_cached_on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_and_its_gradient_are_right),
        cmocka_unit_test(attention_over_a_cache_is_attention),
    };
    return run_each_isa(tests, sizeof tests / sizeof tests[0]);
}
