/* Compares products with packed weights with products in double of the values that model/ unpacks. For
 * devices that multiply packed weights. */
#pragma once

#include "engine/harness.h"
#include "model/files/dynamic_map.h"
#include "model/files/gguf.h"
#include "model/files/nf4.h"

/* Draws rows of whole blocks, for NF4 of multiples of four values, and 16-bit rows of any length and
 * distance. */
static void gemm_packed_draw(struct trial *t)
{
    struct op_gemm *o = &t->op.gemm;
    t->op.kind = OP_GEMM;
    o->pack = (enum pack_kind)(PACK_BF16 + draw_below(t, PACK_KINDS - PACK_BF16));
    bool nf4 = o->pack == PACK_NF4 || o->pack == PACK_NF4_DOUBLE;
    uint32_t unit = o->pack <= PACK_F16 ? 1 : nf4 ? 4 : pack_block(o->pack);
    uint32_t width = unit * (1 + draw_below(t, unit > 32 ? 2 : 300 / unit)), rows = 1 + draw_below(t, 150);
    o->transpose_b = draw_below(t, 2);
    o->transpose_a = draw_below(t, 4) == 0;
    o->m = 1 + draw_below(t, draw_below(t, 2) ? 100 : 30);
    o->n = o->transpose_b ? rows : width;
    o->k = o->transpose_b ? width : rows;
    o->beta = (float)draw_below(t, 2);
    o->alpha = draw_below(t, 2) ? 0.5f : 1;
    o->lda = draw_ld(t, o->transpose_a ? o->m : o->k);
    o->ldb = o->pack <= PACK_F16 ? draw_ld(t, width) : width;
    o->ldc = draw_ld(t, o->n);
    bind(t, &o->a);
    if (o->pack <= PACK_F16)
        bind(t, &o->b);
    else
        bind_as(t, &o->b, FILL_BELOW, 256);
    if (o->pack == PACK_NF4_DOUBLE)
        bind_as(t, &o->absmax, FILL_BELOW, 256);
    else if (nf4)
        bind(t, &o->absmax);
    if (o->pack == PACK_NF4_DOUBLE)
        bind(t, &o->scales);
    bind(t, &o->c);
}

/* Makes the random scales of blocks finite and at most 2. */
static void scales_tame(enum pack_kind pack, double *b, uint64_t count)
{
    uint64_t bytes = pack_bytes(pack, pack_block(pack));
    uint64_t at = pack == PACK_Q6_K ? 208 : 0,
             two = pack != PACK_Q4_0 && pack != PACK_Q5_0 && pack != PACK_Q8_0 && at == 0;
    for (uint64_t block = 0; block < count && pack == PACK_MXFP4; block += bytes)
        b[block] = 120 + (uint32_t)b[block] % 8;
    for (uint64_t block = 0; block < count && pack != PACK_MXFP4; block += bytes)
        for (uint64_t scale = 0; scale <= two; scale++)
            b[block + at + 2 * scale + 1] = (uint32_t)b[block + at + 2 * scale + 1] & 0xbf;
}

static void gemm_packed_prepare(struct trial *t)
{
    if (t->op.gemm.pack >= PACK_Q4_0)
        scales_tame(t->op.gemm.pack, values(t, "b"), array_named(t, "b")->count);
}

/* A packed matrix with its arrays from the trial. Only NF4 has absmax and scales. */
struct kept {
    enum pack_kind pack;
    const double *b, *absmax, *scales;
};

static float *unnested_absmax(const struct kept *kept, uint64_t blocks)
{
    float map[DYNAMIC_MAP_SIZE], *absmax = malloc(4 * blocks);
    float *nested = malloc(4 * nf4_scales(64 * blocks));
    uint8_t *codes = malloc(blocks);
    for (uint64_t i = 0; i < blocks; i++) {
        absmax[i] = (float)kept->absmax[i];
        codes[i] = (uint8_t)(kept->pack == PACK_NF4_DOUBLE ? kept->absmax[i] : 0);
    }
    for (uint64_t i = 0; kept->pack == PACK_NF4_DOUBLE && i < nf4_scales(64 * blocks); i++)
        nested[i] = (float)kept->scales[i];
    dynamic_map(true, map);
    if (kept->pack == PACK_NF4_DOUBLE)
        nf4_unnest(map, codes, nested, 0, blocks, absmax);
    free(nested), free(codes);
    return absmax;
}

/* Returns all `total` values of b, unpacked by model/ and rounded as the product rounds them. */
static double *unpacked(const struct kept *kept, uint64_t total, enum dtype compute)
{
    enum pack_kind pack = kept->pack;
    uint64_t count = pack <= PACK_F16 ? 0 : pack_bytes(pack, total);
    float *out = malloc(4 * total + 4);
    double *wide = malloc(8 * total + 8);
    uint8_t *bytes = malloc(count + 1);
    struct err err;
    for (uint64_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)kept->b[i];
    if (pack <= PACK_F16) {
        for (uint64_t i = 0; i < total; i++)
            out[i] = (float)kept->b[i];
    } else if (pack <= PACK_NF4_DOUBLE) {
        float *absmax = unnested_absmax(kept, nf4_blocks(total));
        nf4_dequantise(bytes, absmax, total, out);
        free(absmax);
    } else {
        check(tensor_dequantise(pack_type(pack), bytes, total, out, &err));
    }
    for (uint64_t i = 0; i < total; i++)
        wide[i] = rounded(compute, (double)out[i]);
    free(bytes), free(out);
    return wide;
}

/* Returns the number of values between the first and the last of a matrix whose rows are ld apart. */
static uint64_t span_of(uint64_t rows, uint64_t width, uint64_t ld)
{
    return rows == 0 || width == 0 ? 0 : (rows - 1) * ld + width;
}

static void gemm_packed_want(struct trial *t)
{
    const struct op_gemm *o = &t->op.gemm;
    struct kept kept = {o->pack, values(t, "b"), values(t, "absmax"), values(t, "scales")};
    uint64_t rows = o->transpose_b ? o->n : o->k, width = o->transpose_b ? o->k : o->n;
    double *b = unpacked(&kept, span_of(rows, width, o->ldb), o->compute);
    double *a = values(t, "a"), *c = expected(t, "c");
    for (size_t i = 0; i < o->m; i++)
        for (size_t j = 0; j < o->n; j++) {
            double sum = 0;
            for (size_t p = 0; p < o->k; p++)
                sum += rounded(o->compute, a[o->transpose_a ? p * o->lda + i : i * o->lda + p]) *
                       b[o->transpose_b ? j * o->ldb + p : p * o->ldb + j];
            c[i * o->ldc + j] = (double)o->alpha * sum + (double)o->beta * c[i * o->ldc + j];
        }
    free(b);
}

/* Draws products with 16-bit compute, also with b in fp32. */
static void packed_rounded_draw(struct trial *t)
{
    struct op_gemm *o = &t->op.gemm;
    gemm_packed_draw(t);
    o->compute = draw_below(t, 2) ? DTYPE_BF16 : DTYPE_F16;
    if (o->pack <= PACK_F16 && draw_below(t, 2))
        o->pack = PACK_F32;
}

/* --- matrices of groups */

static void grouped_packed_draw(struct trial *t)
{
    struct op_gemm_grouped *o = &t->op.gemm_grouped;
    t->op.kind = OP_GEMM_GROUPED;
    o->pack = (enum pack_kind)draw_below(t, PACK_KINDS);
    o->compute = (enum dtype[]){DTYPE_F32, DTYPE_BF16, DTYPE_F16}[draw_below(t, 3)];
    o->transpose_a = o->pack == PACK_F32 && draw_below(t, 2);
    o->transpose_b = !o->transpose_a && draw_below(t, 2);
    uint32_t unit = o->pack <= PACK_F16 ? 1 : o->pack <= PACK_NF4_DOUBLE ? 4 : pack_block(o->pack);
    uint32_t width = unit * (1 + draw_below(t, unit > 32 ? 2 : 200 / unit)), other = 1 + draw_below(t, 90);
    o->groups_all = 1 + draw_below(t, 5);
    o->groups = draw_below(t, o->groups_all + 1);
    o->first = draw_below(t, o->groups_all - o->groups + 1);
    o->rows = draw_rows(t, draw_below(t, 4) == 0 ? 200 : 60);
    o->n = o->transpose_b ? other : width;
    o->k = o->transpose_a ? 0 : o->transpose_b ? width : other;
    o->m = o->transpose_a ? other : 0;
    o->beta = (float)draw_below(t, 2);
    o->alpha = draw_below(t, 2) ? 0.5f : 1;
    o->lda = draw_ld(t, o->transpose_a ? o->m : o->k);
    o->ldb = o->pack <= PACK_F16 ? draw_ld(t, width) : width;
    o->ldc = draw_ld(t, o->n);
    uint64_t span =
        o->transpose_a ? span_of(o->m, o->n, o->ldc) : span_of(o->transpose_b ? o->n : o->k, width, o->ldb);
    uint64_t bytes = o->pack == PACK_F32 ? span : o->pack <= PACK_F16 ? 2 * span : pack_bytes(o->pack, span);
    o->stride =
        (bytes + 11) / 4 * 4 + 4 * draw_below(t, 4); /* Scales alone may need a multiple of 8 bytes. */
    bind(t, &o->a);
    if (o->pack <= PACK_F16)
        bind(t, &o->b);
    else
        bind_as(t, &o->b, FILL_BELOW, 256);
    if (o->pack == PACK_NF4_DOUBLE)
        bind_as(t, &o->absmax, FILL_BELOW, 256);
    else if (o->pack == PACK_NF4)
        bind(t, &o->absmax);
    if (o->pack == PACK_NF4_DOUBLE)
        bind(t, &o->scales);
    bind(t, &o->c);
    bind_as(t, &o->offsets, FILL_STARTS, o->rows);
}

static void grouped_packed_prepare(struct trial *t)
{
    const struct op_gemm_grouped *o = &t->op.gemm_grouped;
    uint64_t span = span_of(o->transpose_b ? o->n : o->k, o->transpose_b ? o->k : o->n, o->ldb);
    for (uint64_t g = 0; o->pack >= PACK_Q4_0 && g < o->groups; g++)
        scales_tame(o->pack, values(t, "b") + g * o->stride, pack_bytes(o->pack, span));
}

/* Returns the values of group g's b, rounded. Of outer products, whose b are rows of activations, it returns
 * all rows. */
static double *group_weights(const struct trial *t, uint64_t g, uint64_t begin, uint64_t rows)
{
    const struct op_gemm_grouped *o = &t->op.gemm_grouped;
    struct kept kept = {o->pack, values(t, "b"), values(t, "absmax"), values(t, "scales")};
    if (o->transpose_a) {
        kept.b += begin * o->ldb;
        return unpacked(&kept, span_of(rows, o->n, o->ldb), o->compute);
    }
    bool halves = o->pack == PACK_BF16 || o->pack == PACK_F16;
    kept.b += g * o->stride / (halves ? 2 : 1);
    if (kept.absmax)
        kept.absmax += g * o->stride / (o->pack == PACK_NF4 ? 4 : 1);
    if (kept.scales)
        kept.scales += g * o->stride / 4;
    return unpacked(&kept, span_of(o->transpose_b ? o->n : o->k, o->transpose_b ? o->k : o->n, o->ldb),
                    o->compute);
}

static void grouped_packed_want(struct trial *t)
{
    const struct op_gemm_grouped *o = &t->op.gemm_grouped;
    const double *offsets = values(t, "offsets");
    for (uint32_t g = 0; g < o->groups; g++) {
        size_t begin = (size_t)offsets[o->first + g], rows = (size_t)offsets[o->first + g + 1] - begin;
        const double *a = values(t, "a") + begin * o->lda;
        double *c = expected(t, "c") + (o->transpose_a ? g * o->stride : begin * o->ldc);
        double *b = group_weights(t, g, begin, rows);
        size_t m = o->transpose_a ? o->m : rows, k = o->transpose_a ? rows : o->k;
        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j < o->n; j++) {
                double sum = 0;
                for (size_t p = 0; p < k; p++)
                    sum += rounded(o->compute, a[o->transpose_a ? p * o->lda + i : i * o->lda + p]) *
                           b[o->transpose_b ? j * o->ldb + p : p * o->ldb + j];
                c[i * o->ldc + j] = (double)o->alpha * sum + (double)o->beta * c[i * o->ldc + j];
            }
        free(b);
    }
}

static const struct op_case packed_cases[] = {
    {.name = "gemm_packed",
     .draw = gemm_packed_draw,
     .prepare = gemm_packed_prepare,
     .want = gemm_packed_want,
     .tolerance = 2e-6},
};

/* Products of two 16-bit values are exact in fp32, so errors come from the sums only. */
static const struct op_case packed_rounded_cases[] = {
    {.name = "gemm_rounded",
     .draw = packed_rounded_draw,
     .prepare = gemm_packed_prepare,
     .want = gemm_packed_want,
     .tolerance = 2e-6},
    {.name = "gemm_grouped_packed",
     .draw = grouped_packed_draw,
     .prepare = grouped_packed_prepare,
     .want = grouped_packed_want,
     .tolerance = 2e-6},
};
