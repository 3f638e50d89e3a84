/* Building blocks of all products' tiles: the description of a product, how a thread fetches its part of an
 * operand's next tile in any stored form, and where sums go. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_TILE_H
#define MOTLEY_ENGINE_GPU_KERNELS_TILE_H

#include "engine/gpu/kernels/four.h"
#include "engine/gpu/kernels/unpack.k.h"

/* c[m,n], with a and b as in op_gemm. A block handles a tile of columns (x) by rows (y), and piece z of the
 * sum. */
struct product {
    uint64_t a, b, c;
    uint64_t add;     /* what is added, beta times, where that is not c; f32, with c's row distance. Else 0 */
    uint64_t partial; /* each piece's sums, f32 [pieces, m, n]; 0: there is one piece, which goes to c */
    uint32_t m, n, k;
    uint32_t k_piece; /* number of terms in a piece */
    uint32_t lda, ldb, ldc;
    uint32_t transpose_a, transpose_b;
    uint32_t wide_a, wide_b; /* four values may be read at once (four.h) */
    float alpha, beta;
    uint64_t absmax, scales; /* addresses of b's scales, if b is in NF4 */
    uint32_t a_as;           /* ELEMENT_…: the type of a */
    uint32_t
        kind; /* of b: ELEMENT_… of plain values; 1 for NF4 with nested scales, else 0; UNPACK_… of blocks */
    uint32_t compute; /* ELEMENT_… to which operands are rounded */
    uint32_t c_as;    /* ELEMENT_…: the type of c */
};

#ifdef GPU_KERNELS

#include "engine/gpu/kernels/fragment.h"

enum storage { STORED_PLAIN, STORED_NF4, STORED_BLOCKS };

/* A matrix from which tiles are fetched. Its lines are rows of a or columns of b, `limit` of them. along: the
 * terms of a line are neighbours in memory. whole: a constant; if it is 1, values exist in aligned fours and
 * fetching does not branch, so that nothing waits for one part of a tile before the next is asked for.
 * offset: what is added to each nested scale of NF4. */
struct tile_source {
    uint64_t matrix, absmax, scales;
    uint32_t ld, along, wide, whole, limit, kind;
    float offset;
};

FUNCTION struct tile_source source_a(const struct product *p)
{
    struct tile_source a;
    a.matrix = p->a;
    a.absmax = a.scales = 0;
    a.ld = p->lda;
    a.along = !p->transpose_a;
    a.wide = p->wide_a;
    a.whole = 0;
    a.limit = p->m;
    a.kind = p->a_as;
    a.offset = 0.0f;
    return a;
}

/* Describes b. All threads of the block must call it, because it fills `table` (nf4_table) if b is in NF4. */
FUNCTION struct tile_source source_b(const struct product *p, uint32_t storage, float *table)
{
    struct tile_source b;
    b.matrix = p->b;
    b.absmax = p->absmax;
    b.scales = p->scales;
    b.ld = p->ldb;
    b.along = p->transpose_b;
    b.wide = p->wide_b;
    b.whole = 0;
    b.limit = p->n;
    b.kind = p->kind;
    b.offset = 0.0f;
    if (storage == STORED_NF4) {
        b.offset = b.kind ? LOAD(POINTER(const float, b.scales), 0) : 0.0f;
        nf4_table(table, b.kind);
    }
    return b;
}

/* Reads four plain values, which exist and are aligned. All element types share the first load: with a branch
 * for each type, a branch might wait for the loads of the one before. */
FUNCTION struct fetched source_read_whole(const struct tile_source *s, uint64_t i)
{
    const struct four_words *at =
        POINTER(const struct four_words, s->matrix + (s->kind == ELEMENT_F32 ? 4 : 2) * i);
    struct four_words low = LOAD(at, 0), high;
    high.w[0] = high.w[1] = 0;
    if (s->kind == ELEMENT_F32)
        high = LOAD(at, 1);
    return fetched_words(low.w[0], low.w[1], high.w[0], high.w[1]);
}

/* Reads four values from value i on, of which the first n ≤ 4 exist; zeros beyond. Packed values always exist
 * in fours. source_values makes values of the result, so nothing waits for the memory before that. */
FUNCTION struct fetched source_read(const struct tile_source *s, uint32_t storage, uint64_t i, uint32_t n)
{
    struct four x;
    if (n == 0)
        return fetched_words(storage == STORED_NF4 ? NF4_ZEROS : 0, 0, 0, 0);
    if (storage == STORED_NF4)
        return nf4_read(s->matrix, s->absmax, s->scales, s->kind, i, 4, s->whole || s->wide);
    if (storage == STORED_PLAIN && s->whole)
        return source_read_whole(s, i);
    if (storage == STORED_PLAIN && s->kind != ELEMENT_F32) {
        struct four_words words = words_load(s->matrix, i, n, s->wide);
        return fetched_words(words.w[0], words.w[1], 0, 0);
    }
    if (storage == STORED_BLOCKS)
        x = unpack_four(s->kind, POINTER(const uint8_t, s->matrix), i);
    else
        x = four_load(POINTER(const float, s->matrix), i, n, s->wide);
    return fetched_words(math_bits(x.v[0]), math_bits(x.v[1]), math_bits(x.v[2]), math_bits(x.v[3]));
}

FUNCTION struct four source_values(const struct tile_source *s, uint32_t storage, float *table,
                                   struct fetched next)
{
    struct four x;
    if (storage == STORED_NF4)
        return nf4_values(table, s->kind, s->offset, next);
    UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        uint16_t half = (uint16_t)(next.w[j / 2] >> 16 * (j % 2));
        x.v[j] = storage == STORED_BLOCKS || s->kind == ELEMENT_F32 ? math_float(next.w[j])
                                                                    : element_of(s->kind, half);
    }
    return x;
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

/* Reads this thread's four values of the tile at (across, term), for source_values; zeros beyond the source's
 * `limit` and `end`. */
FUNCTION struct fetched tile_fetch(const struct tile_source *s, uint32_t storage, uint32_t wide,
                                   uint32_t depth, uint32_t across, uint32_t term, uint32_t end)
{
    uint32_t r = across + fetch_across(wide, depth, s->along), t = term + fetch_term(wide, depth, s->along);
    uint32_t n = s->along ? end - t : s->limit - r;
    if (r >= s->limit || t >= end || 4 * thread() >= wide * depth)
        n = 0;
    uint64_t at = s->along ? (uint64_t)r * s->ld + t : (uint64_t)t * s->ld + r;
    return source_read(s, storage, at, n < 4 ? n : 4);
}

FUNCTION float product_value(const struct product *p, float sum, float old)
{
    float value = p->alpha * sum;
    return p->beta == 0.0f ? value : math_fma(p->beta, old, value);
}

/* The address of a row of c. */
FUNCTION uint64_t product_line(const struct product *p, uint32_t row)
{
    return p->c + element_bytes(p->c_as) * (uint64_t)row * p->ldc;
}

/* Adds `count` neighbouring sums, of which `room` exist, to 16-bit values, two in one access. */
FUNCTION void halves_add(const struct product *p, uint32_t count, uint32_t room, const float *sums,
                         uint64_t to)
{
    UNROLL
    for (uint32_t i = 0; i < count; i += 2) {
        uint32_t *pair = POINTER(uint32_t, to + 2 * i), old = 0;
        uint16_t *half = POINTER(uint16_t, to + 2 * i);
        uint32_t both = count > 1 && i + 1 < room;
        if (i >= room)
            continue;
        if (p->beta != 0.0f)
            old = both ? LOAD(pair, 0) : LOAD(half, 0);
        float low = product_value(p, sums[i], fragment_value(p->c_as, (uint16_t)old));
        if (!both)
            STORE(half, 0, fragment_half(p->c_as, low));
        else
            STORE(
                pair, 0,
                fragment_pair(p->c_as, low,
                              product_value(p, sums[i + 1], fragment_value(p->c_as, (uint16_t)(old >> 16)))));
    }
}

/* The address of what is added to the value of c at `to`. */
FUNCTION uint64_t product_old(const struct product *p, uint64_t to)
{
    return p->add == 0 ? to : to - p->c + p->add;
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
        struct four old = LOAD(POINTER(const struct four, product_old(p, to)), 0);
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
    if (p->c_as != ELEMENT_F32) {
        if (column < p->n)
            halves_add(p, count, p->n - column, sums, line + 2 * (uint64_t)column);
        return;
    }
    if (aligned && column + 4 <= p->n) {
        four_add(p, sums, line + 4 * (uint64_t)column);
        return;
    }
    UNROLL
    for (uint32_t i = 0; i < count; i++)
        if (column + i < p->n) {
            uint64_t to = line + 4 * (uint64_t)(column + i);
            float old = p->beta == 0.0f ? 0.0f : LOAD(POINTER(const float, product_old(p, to)), 0);
            STORE(POINTER(float, to), 0, product_value(p, sums[i], old));
        }
}

/* Returns the product with c as the place where a piece's sums go: c itself, or the piece's partial sums,
 * which are not scaled yet. */
FUNCTION struct product product_target(const struct product *product, uint32_t piece)
{
    struct product p = *product;
    if (p.partial != 0) {
        p.c = p.partial + 4 * (uint64_t)piece * p.m * p.n;
        p.ldc = p.n;
        p.add = 0;
        p.c_as = ELEMENT_F32;
        p.alpha = 1.0f;
        p.beta = 0.0f;
    }
    return p;
}

#endif
#endif
