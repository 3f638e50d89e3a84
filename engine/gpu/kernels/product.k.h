/* Matrix products, c = alpha op(a) op(b) + beta c: each block makes one tile of c from tiles of a and b in
 * shared memory, while the next tiles are on their way from memory. Packed weights are unpacked on that way,
 * and operands rounded where the product is one in 16 bits. In fp32 a thread has 8 x 8, 4 x 4, 4 x 1 or 1 x 4
 * values of the tile in registers; a warp with matrix units (kernels named units) 16 fragments or fewer. Few
 * tiles and many terms: the sum is cut into pieces (split-k), whose results are added in order by a kernel of
 * its own. Which tile and how many pieces follow from the shape alone (product.c).
 *
 * Grouped products (experts) are the same tiles; where the rows of a group begin is read on the device. A
 * kernel of one block first lists the tiles of rows, since how many there are of a group only it can see.
 */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_PRODUCT_K_H
#define MOTLEY_ENGINE_GPU_KERNELS_PRODUCT_K_H

#include "engine/gpu/kernels/four.h"
#include "engine/gpu/kernels/unpack.k.h"

#define PRODUCT_KERNELS(X)                                                                                   \
    X(gemm_128x128, 256)                                                                                     \
    X(gemm_64x64, 256)                                                                                       \
    X(gemm_64x16, 256)                                                                                       \
    X(gemm_16x64, 256)                                                                                       \
    X(gemm_half_128x128, 256)                                                                                \
    X(gemm_half_64x64, 256)                                                                                  \
    X(gemm_half_16x64, 256)                                                                                  \
    X(gemm_nf4_128x128, 256)                                                                                 \
    X(gemm_nf4_64x64, 256)                                                                                   \
    X(gemm_nf4_16x64, 256)                                                                                   \
    X(gemm_blocks_128x128, 256)                                                                              \
    X(gemm_blocks_64x64, 256)                                                                                \
    X(gemm_blocks_16x64, 256)                                                                                \
    X(units_128x128, 256)                                                                                    \
    X(units_64x64, 256)                                                                                      \
    X(units_32x128, 256)                                                                                     \
    X(units_128x32, 256)                                                                                     \
    X(units_half_128x128, 256)                                                                               \
    X(units_half_64x64, 256)                                                                                 \
    X(units_half_32x128, 256)                                                                                \
    X(units_nf4_128x128, 256)                                                                                \
    X(units_nf4_64x64, 256)                                                                                  \
    X(units_nf4_32x128, 256)                                                                                 \
    X(units_blocks_128x128, 256)                                                                             \
    X(units_blocks_64x64, 256)                                                                               \
    X(units_blocks_32x128, 256)                                                                              \
    X(gemm_sum, 256)                                                                                         \
    X(grouped_list, 256)                                                                                     \
    X(grouped_64x64, 256)                                                                                    \
    X(grouped_64x16, 256)                                                                                    \
    X(grouped_half_64x64, 256)                                                                               \
    X(grouped_nf4_64x64, 256)                                                                                \
    X(grouped_blocks_64x64, 256)                                                                             \
    X(grouped_units_64x64, 256)                                                                              \
    X(grouped_units_half_64x64, 256)                                                                         \
    X(grouped_units_nf4_64x64, 256)                                                                          \
    X(grouped_units_blocks_64x64, 256)                                                                       \
    X(outer_64x64, 256)                                                                                      \
    X(outer_64x16, 256)                                                                                      \
    X(outer_16x64, 256)                                                                                      \
    X(outer_units_64x64, 256)

/* c[m,n]; a and b as op_gemm has them. Blocks: x columns' tiles, y rows' tiles, z pieces of k. */
struct product {
    uint64_t a, b, c;
    uint64_t partial; /* sums of each piece, f32 [pieces, m, n]; 0: one piece, which goes to c */
    uint32_t m, n, k;
    uint32_t k_piece; /* terms of a piece */
    uint32_t lda, ldb, ldc;
    uint32_t transpose_a, transpose_b;
    uint32_t wide_a, wide_b; /* four values of it may be read at once (four.h) */
    float alpha, beta;
    uint64_t absmax, scales; /* of NF4 */
    uint32_t kind;           /* of b: ELEMENT_… of halves, nested or not of NF4, UNPACK_… of blocks */
    uint32_t compute;        /* ELEMENT_… that operands are rounded to */
};

#define GEMM_ARGS(name)                                                                                      \
    struct name##_args {                                                                                     \
        struct product product;                                                                              \
    }
GEMM_ARGS(gemm_128x128);
GEMM_ARGS(gemm_64x64);
GEMM_ARGS(gemm_64x16);
GEMM_ARGS(gemm_16x64);
/* b as it is stored: bf16 or fp16, NF4, or blocks of GGUF. */
GEMM_ARGS(gemm_half_128x128);
GEMM_ARGS(gemm_half_64x64);
GEMM_ARGS(gemm_half_16x64);
GEMM_ARGS(gemm_nf4_128x128);
GEMM_ARGS(gemm_nf4_64x64);
GEMM_ARGS(gemm_nf4_16x64);
GEMM_ARGS(gemm_blocks_128x128);
GEMM_ARGS(gemm_blocks_64x64);
GEMM_ARGS(gemm_blocks_16x64);
/* In bf16 or fp16, by matrix units. */
GEMM_ARGS(units_128x128);
GEMM_ARGS(units_64x64);
GEMM_ARGS(units_32x128);
GEMM_ARGS(units_128x32);
GEMM_ARGS(units_half_128x128);
GEMM_ARGS(units_half_64x64);
GEMM_ARGS(units_half_32x128);
GEMM_ARGS(units_nf4_128x128);
GEMM_ARGS(units_nf4_64x64);
GEMM_ARGS(units_nf4_32x128);
GEMM_ARGS(units_blocks_128x128);
GEMM_ARGS(units_blocks_64x64);
GEMM_ARGS(units_blocks_32x128);
#undef GEMM_ARGS

/* c = alpha * the sum of `pieces` partial ones + beta * c */
struct gemm_sum_args {
    uint64_t partial, c, count; /* m * n */
    uint32_t n, ldc, pieces;
    float alpha, beta;
};

/* A product for each group. m (k for outer ones) is unused: rows come from offsets. */
struct grouped_product {
    struct product product;
    uint64_t offsets; /* u32 [groups_all + 1] */
    uint64_t
        tiles; /* u32 [tile_count, 2]: group and first row of each tile, UINT32_MAX where there is none */
    uint64_t stride; /* bytes from one group's matrix (and what belongs to it) to the next */
    uint32_t first, groups, rows, tile_count;
};

/* tiles = those of 64 rows that the groups have, in order. One block. */
struct grouped_list_args {
    struct grouped_product grouped;
};
#define GROUPED_ARGS(name)                                                                                   \
    struct name##_args {                                                                                     \
        struct grouped_product grouped;                                                                      \
    }
/* Blocks: x columns' tiles, y entries of `tiles`. */
GROUPED_ARGS(grouped_64x64);
GROUPED_ARGS(grouped_64x16);
GROUPED_ARGS(grouped_half_64x64);
GROUPED_ARGS(grouped_nf4_64x64);
GROUPED_ARGS(grouped_blocks_64x64);
GROUPED_ARGS(grouped_units_64x64);
GROUPED_ARGS(grouped_units_half_64x64);
GROUPED_ARGS(grouped_units_nf4_64x64);
GROUPED_ARGS(grouped_units_blocks_64x64);
/* c_g = alpha a_g^T b_g + beta c_g. Blocks: x columns' tiles, y rows' tiles, z groups. */
GROUPED_ARGS(outer_64x64);
GROUPED_ARGS(outer_64x16);
GROUPED_ARGS(outer_16x64);
GROUPED_ARGS(outer_units_64x64);
#undef GROUPED_ARGS

#ifdef GPU_KERNELS

#include "engine/gpu/kernels/fragment.h"
#include "engine/gpu/kernels/scan.h"

enum storage { STORED_F32, STORED_HALF, STORED_NF4, STORED_BLOCKS };

/* A matrix as tiles are taken of it: `across` are rows of a or columns of b; along: its terms lie side by
 * side.
 */
struct tile_source {
    uint64_t matrix, absmax, scales;
    uint32_t ld, along, wide, limit, kind;
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
    a.kind = 0;
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
    return b;
}

/* Four values from value i on, n ≤ 4 of them there, zeros beyond. Packed ones are there in fours. */
FUNCTION struct four source_four(const struct tile_source *s, uint32_t storage, float *table, uint64_t i,
                                 uint32_t n)
{
    if (storage == STORED_F32 || n == 0)
        return four_load(POINTER(const float, s->matrix), i, n, s->wide);
    if (storage == STORED_HALF)
        return four_load_as(s->kind, s->matrix, i, n, s->wide);
    const uint8_t *x = POINTER(const uint8_t, s->matrix);
    if (storage == STORED_NF4)
        return unpack_nf4_four(x, table, nf4_absmax(s->absmax, s->scales, s->kind, i / 64), i, 4);
    return unpack_four(s->kind, x, i);
}

/* Where in a tile of `wide` by `depth` terms the four values lie that this thread fetches: neighbouring
 * threads take neighbouring addresses, which lie along the terms or across them. */
FUNCTION uint32_t fetch_across(uint32_t wide, uint32_t depth, uint32_t along)
{
    return along ? 4 * thread() / depth : 4 * thread() % wide;
}

FUNCTION uint32_t fetch_term(uint32_t wide, uint32_t depth, uint32_t along)
{
    return along ? 4 * thread() % depth : 4 * thread() / wide;
}

/* This thread's four of the tile at (across, term); zeros beyond its `limit` and `end`. */
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

/* Tiles lie term by term, 4 values apart so that few accesses meet in one bank. */
FUNCTION void tile_put(struct four *tile, uint32_t element, uint32_t along, uint32_t wide, uint32_t depth,
                       struct four next)
{
    uint32_t at = fetch_term(wide, depth, along) * (wide + 4) + fetch_across(wide, depth, along);
    if (4 * thread() >= wide * depth)
        return;
    if (element != ELEMENT_F32) {
        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            next.v[i] = fragment_round(element, next.v[i]);
    }
    if (!along) {
        PUT(tile, at / 4, next);
        return;
    }
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        PUT((float *)tile, at + i * (wide + 4), next.v[i]);
}

/* The `each` values of term `term` that thread `at` of 16 multiplies: quads 64 apart, or one. */
FUNCTION void tile_take(struct four *tile, uint32_t each, uint32_t term, uint32_t at, float *x)
{
    if (each == 1) {
        x[0] = GET((float *)tile, term * 20 + at);
        return;
    }
    UNROLL
    for (uint32_t q = 0; q < each / 4; q++) {
        struct four v = GET(tile, term * (4 * each + 1) + q * 16 + at);
        x[4 * q] = v.v[0];
        x[4 * q + 1] = v.v[1];
        x[4 * q + 2] = v.v[2];
        x[4 * q + 3] = v.v[3];
    }
}

/* Where the i-th of a thread's `each` values lies in its tile. */
FUNCTION uint32_t tile_place(uint32_t each, uint32_t i, uint32_t at)
{
    return each == 1 ? at : i / 4 * 64 + at * 4 + i % 4;
}

FUNCTION float product_value(const struct product *p, float sum, const float *c)
{
    float value = p->alpha * sum;
    return p->beta == 0.0f ? value : math_fma(p->beta, LOAD(c, 0), value);
}

/* Four neighbouring values at once. */
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

/* One value or four neighbouring ones, of the row that begins at `line`. */
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

/* Where a piece's sums go: to c, or as they are to its partial sums. */
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

/* This thread's sums[rows][columns]. */
FUNCTION void product_store(const struct product *product, uint32_t rows, uint32_t columns, uint32_t row,
                            uint32_t column, uint32_t piece, float sums[8][8])
{
    struct product p = product_target(product, piece);
    uint32_t ty = thread() / 16, tx = thread() % 16;
    uint32_t aligned = columns != 1 && p.c % 16 == 0 && p.ldc % 4 == 0;
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t r = row + tile_place(rows, i, ty);
        UNROLL
        for (uint32_t j = 0; j < columns; j += 4)
            if (r < p.m)
                product_part(&p, columns == 1 ? 1 : 4, aligned, p.c + 4 * (uint64_t)r * p.ldc,
                             column + tile_place(columns, j, tx), &sums[i][j]);
    }
}

/* sums += the product of the two tiles. */
FUNCTION void tile_multiply(struct four *tile_a, struct four *tile_b, uint32_t rows, uint32_t columns,
                            uint32_t depth, float sums[8][8])
{
    UNROLL
    for (uint32_t t = 0; t < depth; t++) {
        float x[8], y[8];
        tile_take(tile_a, rows, t, thread() / 16, x);
        tile_take(tile_b, columns, t, thread() % 16, y);
        UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            UNROLL
            for (uint32_t j = 0; j < columns; j++)
                sums[i][j] = math_fma(x[i], y[j], sums[i][j]);
        }
    }
}

/* The tile of c at (row, column), of 16 * rows by 16 * columns values, from the terms of a piece. rows,
 * columns and depth are constants, (8, 8, 8), (4, 4, 16), (4, 1, 16) or (1, 4, 16), and so is how b is
 * stored. */
FUNCTION void product_tile(const struct product *p, uint32_t storage, uint32_t rows, uint32_t columns,
                           uint32_t depth, uint32_t row, uint32_t column, uint32_t piece)
{
    SHARED(struct four, tile_a, 272);
    SHARED(struct four, tile_b, 272);
    SHARED(float, table, 16);
    float sums[8][8];
    uint32_t begin = piece * p->k_piece, end = p->k - begin < p->k_piece ? p->k : begin + p->k_piece;
    uint32_t works = row + tile_place(rows, 0, thread() / 16) < p->m &&
                     column + tile_place(columns, 0, thread() % 16) < p->n;
    struct tile_source a = source_a(p), b = source_b(p);
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < columns; j++)
            sums[i][j] = 0.0f;
    }
    if (storage == STORED_NF4) {
        if (thread() < 16)
            PUT(table, thread(), nf4_value(thread()));
        barrier();
    }
    struct four next_a = tile_fetch(&a, STORED_F32, table, 16 * rows, depth, row, begin, end);
    struct four next_b = tile_fetch(&b, storage, table, 16 * columns, depth, column, begin, end);
    for (uint32_t term = begin; term < end; term += depth) {
        tile_put(tile_a, p->compute, a.along, 16 * rows, depth, next_a);
        tile_put(tile_b, p->compute, b.along, 16 * columns, depth, next_b);
        barrier();
        if (end - term > depth) {
            next_a = tile_fetch(&a, STORED_F32, table, 16 * rows, depth, row, term + depth, end);
            next_b = tile_fetch(&b, storage, table, 16 * columns, depth, column, term + depth, end);
        }
        if (works)
            tile_multiply(tile_a, tile_b, rows, columns, depth, sums);
        barrier();
    }
    if (works)
        product_store(p, rows, columns, row, column, piece, sums);
}

FUNCTION void gemm_tile(const struct product *p, uint32_t storage, uint32_t rows, uint32_t columns,
                        uint32_t depth)
{
    product_tile(p, storage, rows, columns, depth, block_y() * 16 * rows, block_x() * 16 * columns,
                 block_z());
}

KERNEL(gemm_128x128, 256)
{
    gemm_tile(&args.product, STORED_F32, 8, 8, 8);
}

KERNEL(gemm_64x64, 256)
{
    gemm_tile(&args.product, STORED_F32, 4, 4, 16);
}

KERNEL(gemm_64x16, 256)
{
    gemm_tile(&args.product, STORED_F32, 4, 1, 16);
}

KERNEL(gemm_16x64, 256)
{
    gemm_tile(&args.product, STORED_F32, 1, 4, 16);
}

KERNEL(gemm_half_128x128, 256)
{
    gemm_tile(&args.product, STORED_HALF, 8, 8, 8);
}

KERNEL(gemm_half_64x64, 256)
{
    gemm_tile(&args.product, STORED_HALF, 4, 4, 16);
}

KERNEL(gemm_half_16x64, 256)
{
    gemm_tile(&args.product, STORED_HALF, 1, 4, 16);
}

KERNEL(gemm_nf4_128x128, 256)
{
    gemm_tile(&args.product, STORED_NF4, 8, 8, 8);
}

KERNEL(gemm_nf4_64x64, 256)
{
    gemm_tile(&args.product, STORED_NF4, 4, 4, 16);
}

KERNEL(gemm_nf4_16x64, 256)
{
    gemm_tile(&args.product, STORED_NF4, 1, 4, 16);
}

KERNEL(gemm_blocks_128x128, 256)
{
    gemm_tile(&args.product, STORED_BLOCKS, 8, 8, 8);
}

KERNEL(gemm_blocks_64x64, 256)
{
    gemm_tile(&args.product, STORED_BLOCKS, 4, 4, 16);
}

KERNEL(gemm_blocks_16x64, 256)
{
    gemm_tile(&args.product, STORED_BLOCKS, 1, 4, 16);
}

/* Tiles in 16 bits lie row by row (column by column of b), 16 terms in 8 words of 12, so that the lanes of a
 * fragment meet different banks. Two of each tile: one is filled while the other is multiplied. */
enum { UNITS_LD = 12, UNITS_WORDS = 128 * UNITS_LD };

/* What this thread fetches of a tile: its four in each piece of 64 rows by 16 terms, or fewer rows. */
FUNCTION void units_fetch(const struct tile_source *s, uint32_t storage, float *table, uint32_t wide,
                          uint32_t across, uint32_t term, uint32_t end, struct four next[2])
{
    UNROLL
    for (uint32_t h = 0; h < 2; h++)
        if (64 * h < wide)
            next[h] = tile_fetch(s, storage, table, wide < 64 ? wide : 64, 16, across + 64 * h, term, end);
}

FUNCTION void units_put(uint32_t *tile, uint32_t element, uint32_t along, uint32_t wide, struct four next[2])
{
    uint32_t part = wide < 64 ? wide : 64;
    uint32_t row = fetch_across(part, 16, along), term = fetch_term(part, 16, along);
    if (4 * thread() >= part * 16)
        return;
    UNROLL
    for (uint32_t h = 0; h < 2; h++, row += 64) {
        if (64 * h >= wide)
            continue;
        if (along) {
            PUT(tile, row * UNITS_LD + term / 2, fragment_pair(element, next[h].v[0], next[h].v[1]));
            PUT(tile, row * UNITS_LD + term / 2 + 1, fragment_pair(element, next[h].v[2], next[h].v[3]));
            continue;
        }
        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            PUT((uint16_t *)tile, (row + i) * 2 * UNITS_LD + term, fragment_half(element, next[h].v[i]));
    }
}

/* Where a warp's part of a tile of 32 * rows by 32 * columns begins: two warps beside each other take its
 * rows, the others (four of 32 lanes, two of 64) its columns. */
FUNCTION uint32_t units_row(uint32_t rows)
{
    return warp() % 2 * 16 * rows;
}

FUNCTION uint32_t units_column(uint32_t columns)
{
    return warp() / 2 * fragment_columns() * columns;
}

/* sums += the product of the two tiles: rows by columns fragments. */
FUNCTION void units_multiply(uint32_t element, uint32_t *tile_a, uint32_t *tile_b, uint32_t rows,
                             uint32_t columns, float sums[16][4])
{
    uint32_t b[4][2];
    UNROLL
    for (uint32_t j = 0; j < columns; j++)
        fragment_take_b(tile_b, (units_column(columns) + j * fragment_columns()) * UNITS_LD, UNITS_LD, b[j]);
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t a[4];
        fragment_take_a(tile_a, (units_row(rows) + 16 * i) * UNITS_LD, UNITS_LD, a);
        UNROLL
        for (uint32_t j = 0; j < columns; j++)
            fragment_multiply(element, a, b[j], sums[4 * i + j]);
    }
}

/* One fragment of sums, whose first value belongs at (row, column). */
FUNCTION void units_part(const struct product *p, uint32_t row, uint32_t column, const float *sums)
{
    if (warp_size() == 64) {
        column += lane() % 16;
        row += lane() / 16 * 4;
        UNROLL
        for (uint32_t r = 0; r < 4; r++)
            if (row + r < p->m)
                product_part(p, 1, 0, p->c + 4 * (uint64_t)(row + r) * p->ldc, column, &sums[r]);
        return;
    }
    column += lane() % 4 * 2;
    row += lane() / 4;
    UNROLL
    for (uint32_t h = 0; h < 2; h++)
        if (row + 8 * h < p->m)
            product_part(p, 2, 0, p->c + 4 * (uint64_t)(row + 8 * h) * p->ldc, column, &sums[2 * h]);
}

FUNCTION void units_store(const struct product *product, uint32_t rows, uint32_t columns, uint32_t row,
                          uint32_t column, uint32_t piece, float sums[16][4])
{
    struct product p = product_target(product, piece);
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < columns; j++)
            units_part(&p, row + 16 * i, column + j * fragment_columns(), sums[4 * i + j]);
    }
}

/* The tile of c at (row, column), of 32 * rows by 32 * columns values, from the terms of a piece, by matrix
 * units: operands are rounded to p->compute on their way to shared memory, sums are fp32. rows, columns and
 * how b is stored are constants. */
FUNCTION void units_tile(const struct product *p, uint32_t storage, uint32_t rows, uint32_t columns,
                         uint32_t row, uint32_t column, uint32_t piece)
{
    SHARED(uint32_t, tile_a, 2 * UNITS_WORDS);
    SHARED(uint32_t, tile_b, 2 * UNITS_WORDS);
    SHARED(float, table, 16);
    float sums[16][4];
    uint32_t begin = piece * p->k_piece, end = p->k - begin < p->k_piece ? p->k : begin + p->k_piece;
    uint32_t element = FRAGMENT_BF16 ? p->compute : ELEMENT_F16, at = 0;
    uint32_t works = row + units_row(rows) < p->m && column + units_column(columns) < p->n;
    struct tile_source a = source_a(p), b = source_b(p);
    struct four next_a[2], next_b[2];
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < 4 * columns; j++)
            sums[4 * i + j / 4][j % 4] = 0.0f;
    }
    if (storage == STORED_NF4) {
        if (thread() < 16)
            PUT(table, thread(), nf4_value(thread()));
        barrier();
    }
    units_fetch(&a, STORED_F32, table, 32 * rows, row, begin, end, next_a);
    units_fetch(&b, storage, table, 32 * columns, column, begin, end, next_b);
    for (uint32_t term = begin; term < end; term += 16) {
        units_put(tile_a + at, element, a.along, 32 * rows, next_a);
        units_put(tile_b + at, element, b.along, 32 * columns, next_b);
        barrier();
        if (end - term > 16) {
            units_fetch(&a, STORED_F32, table, 32 * rows, row, term + 16, end, next_a);
            units_fetch(&b, storage, table, 32 * columns, column, term + 16, end, next_b);
        }
        if (works && element == ELEMENT_F16)
            units_multiply(ELEMENT_F16, tile_a + at, tile_b + at, rows, columns, sums);
        else if (works)
            units_multiply(ELEMENT_BF16, tile_a + at, tile_b + at, rows, columns, sums);
        at = UNITS_WORDS - at;
    }
    if (works)
        units_store(p, rows, columns, row + units_row(rows), column + units_column(columns), piece, sums);
}

#if FRAGMENT_F16
#define UNITS_TILE(storage, rows, columns)                                                                   \
    units_tile(&args.product, storage, rows, columns, block_y() * 32 * (rows), block_x() * 32 * (columns),   \
               block_z())
#define UNITS_GROUPED(storage) grouped_tile(&args.grouped, storage, 4, 1)
#define UNITS_OUTER outer_tile(&args.grouped, 4, 4, 1)
#else /* the host asks cards without them for nothing */
#define UNITS_TILE(storage, rows, columns) assert_device(0)
#define UNITS_GROUPED(storage) assert_device(0)
#define UNITS_OUTER assert_device(0)
#endif

KERNEL(units_128x128, 256)
{
    UNITS_TILE(STORED_F32, 4, 4);
}

KERNEL(units_64x64, 256)
{
    UNITS_TILE(STORED_F32, 2, 2);
}

KERNEL(units_32x128, 256)
{
    UNITS_TILE(STORED_F32, 1, 4);
}

KERNEL(units_128x32, 256)
{
    UNITS_TILE(STORED_F32, 4, 1);
}

KERNEL(units_half_128x128, 256)
{
    UNITS_TILE(STORED_HALF, 4, 4);
}

KERNEL(units_half_64x64, 256)
{
    UNITS_TILE(STORED_HALF, 2, 2);
}

KERNEL(units_half_32x128, 256)
{
    UNITS_TILE(STORED_HALF, 1, 4);
}

KERNEL(units_nf4_128x128, 256)
{
    UNITS_TILE(STORED_NF4, 4, 4);
}

KERNEL(units_nf4_64x64, 256)
{
    UNITS_TILE(STORED_NF4, 2, 2);
}

KERNEL(units_nf4_32x128, 256)
{
    UNITS_TILE(STORED_NF4, 1, 4);
}

KERNEL(units_blocks_128x128, 256)
{
    UNITS_TILE(STORED_BLOCKS, 4, 4);
}

KERNEL(units_blocks_64x64, 256)
{
    UNITS_TILE(STORED_BLOCKS, 2, 2);
}

KERNEL(units_blocks_32x128, 256)
{
    UNITS_TILE(STORED_BLOCKS, 1, 4);
}

KERNEL(gemm_sum, 256)
{
    uint64_t i = (uint64_t)block_x() * 256 + thread();
    if (i >= args.count)
        return;
    const float *partial = POINTER(const float, args.partial);
    float *c = POINTER(float, args.c);
    uint64_t at = i / args.n * args.ldc + i % args.n;
    float sum = LOAD(partial, i);
    for (uint32_t piece = 1; piece < args.pieces; piece++)
        sum += LOAD(partial, piece * args.count + i);
    float value = args.alpha * sum;
    STORE(c, at, args.beta == 0.0f ? value : math_fma(args.beta, LOAD(c, at), value));
}

/* Rows of group g of those done; an offset that falls or leaves the rows ends the launch. */
FUNCTION uint32_t group_rows(const struct grouped_product *p, uint32_t g, uint32_t *begin)
{
    const uint32_t *offsets = POINTER(const uint32_t, p->offsets);
    uint32_t from = LOAD(offsets, p->first + g), to = LOAD(offsets, p->first + g + 1);
    assert_device(from <= to && to <= p->rows);
    *begin = from;
    return to - from;
}

/* 256 groups at a time: the tiles of each begin behind those of the groups before it. */
KERNEL(grouped_list, 256)
{
    const struct grouped_product *p = &args.grouped;
    uint32_t *tiles = POINTER(uint32_t, p->tiles);
    uint32_t done = 0, all;
    for (uint32_t g = 0; g < p->groups; g += 256) {
        uint32_t begin = 0, rows = g + thread() < p->groups ? group_rows(p, g + thread(), &begin) : 0;
        uint32_t count = (rows + 63) / 64, at = done + block_sum_before(count, &all);
        for (uint32_t i = 0; i < count; i++) {
            STORE(tiles, 2 * (at + i), g + thread());
            STORE(tiles, 2 * (at + i) + 1, begin + 64 * i);
        }
        done += all;
    }
    for (uint32_t i = done + thread(); i < p->tile_count; i += 256)
        STORE(tiles, 2 * i, 0xffffffffu);
}

/* A tile of 64 rows of a group by 16 * columns, by matrix units (`units`) or in fp32. */
FUNCTION void grouped_tile(const struct grouped_product *grouped, uint32_t storage, uint32_t columns,
                           uint32_t units)
{
    const uint32_t *tiles = POINTER(const uint32_t, grouped->tiles);
    uint32_t g = LOAD(tiles, 2 * block_y()), begin;
    if (g == 0xffffffffu)
        return;
    struct product p = grouped->product;
    p.m = group_rows(grouped, g, &begin);
    p.a += 4 * (uint64_t)begin * p.lda;
    p.b += g * grouped->stride;
    p.absmax += g * grouped->stride;
    p.scales += g * grouped->stride;
    p.c += 4 * (uint64_t)begin * p.ldc;
    uint32_t row = LOAD(tiles, 2 * block_y() + 1) - begin;
    if (units)
        units_tile(&p, storage, 2, 2, row, block_x() * 64, 0);
    else
        product_tile(&p, storage, 4, columns, 16, row, block_x() * 16 * columns, 0);
}

KERNEL(grouped_64x64, 256)
{
    grouped_tile(&args.grouped, STORED_F32, 4, 0);
}

KERNEL(grouped_64x16, 256)
{
    grouped_tile(&args.grouped, STORED_F32, 1, 0);
}

KERNEL(grouped_half_64x64, 256)
{
    grouped_tile(&args.grouped, STORED_HALF, 4, 0);
}

KERNEL(grouped_nf4_64x64, 256)
{
    grouped_tile(&args.grouped, STORED_NF4, 4, 0);
}

KERNEL(grouped_blocks_64x64, 256)
{
    grouped_tile(&args.grouped, STORED_BLOCKS, 4, 0);
}

KERNEL(grouped_units_64x64, 256)
{
    UNITS_GROUPED(STORED_F32);
}

KERNEL(grouped_units_half_64x64, 256)
{
    UNITS_GROUPED(STORED_HALF);
}

KERNEL(grouped_units_nf4_64x64, 256)
{
    UNITS_GROUPED(STORED_NF4);
}

KERNEL(grouped_units_blocks_64x64, 256)
{
    UNITS_GROUPED(STORED_BLOCKS);
}

FUNCTION void outer_tile(const struct grouped_product *grouped, uint32_t rows, uint32_t columns,
                         uint32_t units)
{
    struct product p = grouped->product;
    uint32_t begin;
    p.k = p.k_piece = group_rows(grouped, block_z(), &begin);
    p.a += 4 * (uint64_t)begin * p.lda;
    p.b += 4 * (uint64_t)begin * p.ldb;
    p.c += block_z() * grouped->stride;
    if (units)
        units_tile(&p, STORED_F32, 2, 2, block_y() * 64, block_x() * 64, 0);
    else
        product_tile(&p, STORED_F32, rows, columns, 16, block_y() * 16 * rows, block_x() * 16 * columns, 0);
}

KERNEL(outer_64x64, 256)
{
    outer_tile(&args.grouped, 4, 4, 0);
}

KERNEL(outer_64x16, 256)
{
    outer_tile(&args.grouped, 4, 1, 0);
}

KERNEL(outer_16x64, 256)
{
    outer_tile(&args.grouped, 1, 4, 0);
}

KERNEL(outer_units_64x64, 256)
{
    UNITS_OUTER;
}

#endif
#endif
