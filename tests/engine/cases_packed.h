/* Products with weights as they are kept: what model/ makes of the bytes, multiplied in double. For devices
 * that take them. */
#pragma once

#include "engine/harness.h"
#include "model/dynamic_map.h"
#include "model/gguf.h"
#include "model/nf4.h"

/* Rows of whole blocks, or for NF4 of whole fours; 16-bit rows of any length and distance. */
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

/* fp16 scales of blocks at random are finite and below 2. */
static void gemm_packed_prepare(struct trial *t)
{
    enum pack_kind pack = t->op.gemm.pack;
    double *b = values(t, "b");
    if (pack < PACK_Q4_0)
        return;
    uint64_t bytes = pack_bytes(pack, pack_block(pack)), count = array_named(t, "b")->count;
    uint64_t at = pack == PACK_Q6_K ? 208 : 0, two = pack != PACK_Q4_0 && pack != PACK_Q8_0 && at == 0;
    for (uint64_t block = 0; block < count; block += bytes)
        for (uint64_t scale = 0; scale <= two; scale++)
            b[block + at + 2 * scale + 1] = (uint32_t)b[block + at + 2 * scale + 1] & 0xbf;
}

static float *unnested_absmax(const struct trial *t, uint64_t blocks)
{
    const double *kept = values(t, "absmax"), *scales = values(t, "scales");
    float map[DYNAMIC_MAP_SIZE], *absmax = malloc(4 * blocks);
    float *nested = malloc(4 * nf4_scales(64 * blocks));
    uint8_t *codes = malloc(blocks);
    for (uint64_t i = 0; i < blocks; i++) {
        absmax[i] = (float)kept[i];
        codes[i] = (uint8_t)(scales != NULL ? kept[i] : 0);
    }
    for (uint64_t i = 0; scales != NULL && i < nf4_scales(64 * blocks); i++)
        nested[i] = (float)scales[i];
    dynamic_map(true, map);
    if (scales != NULL)
        nf4_unnest(map, codes, nested, 0, blocks, absmax);
    free(nested), free(codes);
    return absmax;
}

/* All `total` values of b by the functions of model/. */
static float *unpacked(const struct trial *t, uint64_t total)
{
    enum pack_kind pack = t->op.gemm.pack;
    const struct array *b = array_named(t, "b");
    float *out = malloc(4 * total);
    uint8_t *bytes = malloc(b->count);
    struct err err;
    for (uint64_t i = 0; i < b->count; i++)
        bytes[i] = (uint8_t)(pack > PACK_F16 ? b->value[i] : 0);
    if (pack <= PACK_F16) {
        for (uint64_t i = 0; i < b->count; i++)
            out[i] = (float)b->value[i];
    } else if (pack <= PACK_NF4_DOUBLE) {
        float *absmax = unnested_absmax(t, nf4_blocks(total));
        nf4_dequantise(bytes, absmax, total, out);
        free(absmax);
    } else {
        check(tensor_dequantise(pack_type(pack), bytes, total, out, &err));
    }
    free(bytes);
    return out;
}

static void gemm_packed_want(struct trial *t)
{
    const struct op_gemm *o = &t->op.gemm;
    float *b = unpacked(t, (uint64_t)(o->transpose_b ? o->n : o->k) * o->ldb);
    double *a = values(t, "a"), *c = expected(t, "c");
    for (size_t i = 0; i < o->m; i++)
        for (size_t j = 0; j < o->n; j++) {
            double sum = 0;
            for (size_t p = 0; p < o->k; p++)
                sum += a[o->transpose_a ? p * o->lda + i : i * o->lda + p] *
                       (double)b[o->transpose_b ? j * o->ldb + p : p * o->ldb + j];
            c[i * o->ldc + j] = (double)o->alpha * sum + (double)o->beta * c[i * o->ldc + j];
        }
    free(b);
}

/* The same in bf16, and with b in fp32. */
static void gemm_bf16_draw(struct trial *t)
{
    struct op_gemm *o = &t->op.gemm;
    gemm_packed_draw(t);
    o->compute = DTYPE_BF16;
    if (o->pack == PACK_F16) /* fp16 shares a kernel with bf16 */
        o->pack = PACK_F32;
}

static void gemm_bf16_want(struct trial *t)
{
    const struct op_gemm *o = &t->op.gemm;
    float *b = unpacked(t, (uint64_t)(o->transpose_b ? o->n : o->k) * o->ldb);
    double *a = values(t, "a"), *c = expected(t, "c");
    for (size_t i = 0; i < o->m; i++)
        for (size_t j = 0; j < o->n; j++) {
            double sum = 0;
            for (size_t p = 0; p < o->k; p++)
                sum += rounded(DTYPE_BF16, a[o->transpose_a ? p * o->lda + i : i * o->lda + p]) *
                       rounded(DTYPE_BF16, (double)b[o->transpose_b ? j * o->ldb + p : p * o->ldb + j]);
            c[i * o->ldc + j] = (double)o->alpha * sum + (double)o->beta * c[i * o->ldc + j];
        }
    free(b);
}

static const struct op_case packed_cases[] = {
    {.name = "gemm_packed",
     .draw = gemm_packed_draw,
     .prepare = gemm_packed_prepare,
     .want = gemm_packed_want,
     .tolerance = 2e-6},
};

/* Products of two bf16 are exact in fp32: what is lost is lost in sums. */
static const struct op_case bf16_cases[] = {
    {.name = "gemm_bf16",
     .draw = gemm_bf16_draw,
     .prepare = gemm_packed_prepare,
     .want = gemm_bf16_want,
     .tolerance = 2e-6},
};
