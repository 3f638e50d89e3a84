/* Building blocks of all products' tiles: the description of a product, how a thread fetches its part of an
 * operand's next tile in any stored form, and where sums go. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_TILE_H
#define MOTLEY_ENGINE_GPU_KERNELS_TILE_H

#include "engine/gpu/kernels/four.h"
#include "engine/gpu/kernels/unpack.k.h"

/* c[m,n], with a and b as in op_gemm. Blocks: x for tiles of columns, y for tiles of rows, z for pieces of k.
 */
struct product {
    uint64_t a, b, c;
    uint64_t partial; /* each piece's sums, f32 [pieces, m, n]; 0: there is one piece, which goes to c */
    uint32_t m, n, k;
    uint32_t k_piece; /* number of terms in a piece */
    uint32_t lda, ldb, ldc;
    uint32_t transpose_a, transpose_b;
    uint32_t wide_a, wide_b; /* four values may be read at once (four.h) */
    float alpha, beta;
    uint64_t absmax, scales; /* of NF4 */
    uint32_t a_as;           /* ELEMENT_… of a */
    uint32_t
        kind; /* of b: ELEMENT_… of plain values; 1 for NF4 with nested scales, else 0; UNPACK_… of blocks */
    uint32_t compute; /* ELEMENT_… to which operands are rounded */
};

#ifdef GPU_KERNELS

enum storage { STORED_PLAIN, STORED_NF4, STORED_BLOCKS };

/* A matrix from which tiles are fetched. Its lines are rows of a or columns of b, `limit` of them. along: the
 * terms of a line are neighbours in memory. raw: plain 16-bit values are fetched unchanged, two in the bits
 * of one float. */
struct tile_source {
    uint64_t matrix, absmax, scales;
    uint32_t ld, along, wide, limit, kind, raw;
};

FUNCTION struct tile_source source_a(const struct product *p)
{
    struct tile_source a;
    a.matrix = p->a;
    a.absmax = a.scales = 0;
    a.ld = p->lda;
    a.along = !p->transpose_a;
    a.wide = p->wide_a;
    a.limit = p->m;
    a.kind = p->a_as;
    a.raw = 0;
    return a;
}

FUNCTION struct tile_source source_b(const struct product *p)
{
    struct tile_source b;
    b.matrix = p->b;
    b.absmax = p->absmax;
    b.scales = p->scales;
    b.ld = p->ldb;
    b.along = p->transpose_b;
    b.wide = p->wide_b;
    b.limit = p->n;
    b.kind = p->kind;
    b.raw = 0;
    return b;
}

FUNCTION struct four source_raw(const struct tile_source *s, uint64_t i, uint32_t n)
{
    struct four_words words = words_load(s->matrix, i, n, s->wide);
    struct four x;
    x.v[0] = math_float(words.w[0]);
    x.v[1] = math_float(words.w[1]);
    x.v[2] = x.v[3] = 0.0f;
    return x;
}

/* Loads four values from value i on, of which the first n ≤ 4 exist; zeros beyond. Packed values always exist
 * in fours. */
FUNCTION struct four source_four(const struct tile_source *s, uint32_t storage, float *table, uint64_t i,
                                 uint32_t n)
{
    if (storage == STORED_PLAIN && s->raw)
        return source_raw(s, i, n);
    if (storage == STORED_PLAIN)
        return four_load_as(s->kind, s->matrix, i, n, s->wide);
    if (n == 0)
        return four_load(POINTER(const float, s->matrix), i, 0, 0);
    const uint8_t *x = POINTER(const uint8_t, s->matrix);
    if (storage == STORED_NF4)
        return unpack_nf4_four(x, table, nf4_absmax(s->absmax, s->scales, s->kind, i / 64), i, 4);
    return unpack_four(s->kind, x, i);
}

/* Line and term, in a tile of `wide` lines by `depth` terms, of the first of the four values that this thread
 * fetches. Neighbouring threads fetch neighbouring addresses, which run along the terms or across them. */
FUNCTION uint32_t fetch_across(uint32_t wide, uint32_t depth, uint32_t along)
{
    return along ? 4 * thread() / depth : 4 * thread() % wide;
}

FUNCTION uint32_t fetch_term(uint32_t wide, uint32_t depth, uint32_t along)
{
    return along ? 4 * thread() % depth : 4 * thread() / wide;
}

/* Fetches this thread's four values of the tile at (across, term); zeros beyond the source's `limit` and
 * `end`. */
FUNCTION struct four tile_fetch(const struct tile_source *s, uint32_t storage, float *table, uint32_t wide,
                                uint32_t depth, uint32_t across, uint32_t term, uint32_t end)
{
    uint32_t r = across + fetch_across(wide, depth, s->along), t = term + fetch_term(wide, depth, s->along);
    uint32_t n = s->along ? end - t : s->limit - r;
    if (r >= s->limit || t >= end || 4 * thread() >= wide * depth)
        n = 0;
    uint64_t at = s->along ? (uint64_t)r * s->ld + t : (uint64_t)t * s->ld + r;
    return source_four(s, storage, table, at, n < 4 ? n : 4);
}

FUNCTION float product_value(const struct product *p, float sum, const float *c)
{
    float value = p->alpha * sum;
    return p->beta == 0.0f ? value : math_fma(p->beta, LOAD(c, 0), value);
}

/* Adds four neighbouring sums to c with one access. */
FUNCTION void four_add(const struct product *p, const float *sum, uint64_t to)
{
    struct four v;
    v.v[0] = p->alpha * sum[0];
    v.v[1] = p->alpha * sum[1];
    v.v[2] = p->alpha * sum[2];
    v.v[3] = p->alpha * sum[3];
    if (p->beta != 0.0f) {
        struct four old = LOAD(POINTER(const struct four, to), 0);
        v.v[0] = math_fma(p->beta, old.v[0], v.v[0]);
        v.v[1] = math_fma(p->beta, old.v[1], v.v[1]);
        v.v[2] = math_fma(p->beta, old.v[2], v.v[2]);
        v.v[3] = math_fma(p->beta, old.v[3], v.v[3]);
    }
    STORE(POINTER(struct four, to), 0, v);
}

/* Adds one sum, or four neighbouring ones, to the row of c that begins at `line`. */
FUNCTION void product_part(const struct product *p, uint32_t count, uint32_t aligned, uint64_t line,
                           uint32_t column, const float *sums)
{
    if (aligned && column + 4 <= p->n) {
        four_add(p, sums, line + 4 * (uint64_t)column);
        return;
    }
    UNROLL
    for (uint32_t i = 0; i < count; i++)
        if (column + i < p->n) {
            float *to = POINTER(float, line + 4 * (uint64_t)(column + i));
            STORE(to, 0, product_value(p, sums[i], to));
        }
}

/* Where a piece's sums go: to c, or unscaled to the piece's partial sums. */
FUNCTION struct product product_target(const struct product *product, uint32_t piece)
{
    struct product p = *product;
    if (p.partial != 0) {
        p.c = p.partial + 4 * (uint64_t)piece * p.m * p.n;
        p.ldc = p.n;
        p.alpha = 1.0f;
        p.beta = 0.0f;
    }
    return p;
}

#endif
#endif
