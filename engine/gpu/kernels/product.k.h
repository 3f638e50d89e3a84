/* Matrix products, c = alpha op(a) op(b) + beta c, in fp32: each block makes one tile of c from tiles of a
 * and b in shared memory, each thread 8 x 8, 4 x 4, 4 x 1 or 1 x 4 of its values in registers, while the next
 * tiles are on their way from memory. Few tiles and many terms: the sum is cut into pieces (split-k), whose
 * results are added in order by a kernel of its own. Which tile and how many pieces follow from the shape
 * alone (product.c).
 *
 * Grouped products (experts) are the same tiles; where the rows of a group begin is read on the device. A
 * kernel of one block first lists the tiles of rows, since how many there are of a group only it can see.
 */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_PRODUCT_K_H
#define MOTLEY_ENGINE_GPU_KERNELS_PRODUCT_K_H

#define PRODUCT_KERNELS(X)                                                                                   \
    X(gemm_128x128, 256)                                                                                     \
    X(gemm_64x64, 256)                                                                                       \
    X(gemm_64x16, 256)                                                                                       \
    X(gemm_16x64, 256)                                                                                       \
    X(gemm_sum, 256)                                                                                         \
    X(grouped_list, 256)                                                                                     \
    X(grouped_64x64, 256)                                                                                    \
    X(grouped_64x16, 256)                                                                                    \
    X(outer_64x64, 256)                                                                                      \
    X(outer_64x16, 256)                                                                                      \
    X(outer_16x64, 256)

/* c[m,n]; a and b as op_gemm has them. Blocks: x columns' tiles, y rows' tiles, z pieces of k. */
struct product {
    uint64_t a, b, c;
    uint64_t partial; /* sums of each piece, f32 [pieces, m, n]; 0: one piece, which goes to c */
    uint32_t m, n, k;
    uint32_t k_piece; /* terms of a piece */
    uint32_t lda, ldb, ldc;
    uint32_t transpose_a, transpose_b;
    float alpha, beta;
};

struct gemm_128x128_args {
    struct product product;
};
struct gemm_64x64_args {
    struct product product;
};
struct gemm_64x16_args {
    struct product product;
};
struct gemm_16x64_args {
    struct product product;
};

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
    uint64_t stride; /* values from one group's matrix to the next */
    uint32_t first, groups, rows, tile_count;
};

/* tiles = those of 64 rows that the groups have, in order. One block. */
struct grouped_list_args {
    struct grouped_product grouped;
};
/* Blocks: x columns' tiles, y entries of `tiles`. */
struct grouped_64x64_args {
    struct grouped_product grouped;
};
struct grouped_64x16_args {
    struct grouped_product grouped;
};
/* c_g = alpha a_g^T b_g + beta c_g. Blocks: x columns' tiles, y rows' tiles, z groups. */
struct outer_64x64_args {
    struct grouped_product grouped;
};
struct outer_64x16_args {
    struct grouped_product grouped;
};
struct outer_16x64_args {
    struct grouped_product grouped;
};

#ifdef GPU_KERNELS

#include "engine/gpu/kernels/scan.h"

/* Four values that are read or written at once. */
struct quad {
    float x, y, z, w;
} __attribute__((aligned(16)));

/* Where in a tile of `wide` rows (of a; columns of b) and `depth` terms the i-th value lies that this thread
 * fetches: neighbouring threads take neighbouring addresses, which lie along the terms or across them. */
FUNCTION uint32_t fetch_across(uint32_t i, uint32_t wide, uint32_t depth, uint32_t along)
{
    uint32_t e = i * 256 + thread();
    return along ? e / depth : e % wide;
}

FUNCTION uint32_t fetch_term(uint32_t i, uint32_t wide, uint32_t depth, uint32_t along)
{
    uint32_t e = i * 256 + thread();
    return along ? e % depth : e / wide;
}

/* This thread's values of the tile of a matrix at (across, term); zeros beyond its `limit` and `end`. */
FUNCTION void tile_fetch(uint64_t matrix, uint32_t ld, uint32_t along, uint32_t wide, uint32_t depth,
                         uint32_t across, uint32_t limit, uint32_t term, uint32_t end, float *next)
{
    const float *x = POINTER(const float, matrix);
    UNROLL
    for (uint32_t i = 0; i < wide * depth / 256; i++) {
        uint32_t r = across + fetch_across(i, wide, depth, along);
        uint32_t t = term + fetch_term(i, wide, depth, along);
        uint64_t at = along ? (uint64_t)r * ld + t : (uint64_t)t * ld + r;
        next[i] = r < limit && t < end ? LOAD(x, at) : 0.0f;
    }
}

/* Tiles lie term by term, 4 values apart so that neither storing nor reading meets one bank twice as often.
 */
FUNCTION void tile_put(struct quad *tile, uint32_t along, uint32_t wide, uint32_t depth, const float *next)
{
    UNROLL
    for (uint32_t i = 0; i < wide * depth / 256; i++)
        PUT((float *)tile,
            fetch_term(i, wide, depth, along) * (wide + 4) + fetch_across(i, wide, depth, along), next[i]);
}

/* The `each` values of term `term` that thread `at` of 16 multiplies: quads 64 apart, or one. */
FUNCTION void tile_take(struct quad *tile, uint32_t each, uint32_t term, uint32_t at, float *x)
{
    if (each == 1) {
        x[0] = GET((float *)tile, term * 20 + at);
        return;
    }
    UNROLL
    for (uint32_t q = 0; q < each / 4; q++) {
        struct quad v = GET(tile, term * (4 * each + 1) + q * 16 + at);
        x[4 * q] = v.x;
        x[4 * q + 1] = v.y;
        x[4 * q + 2] = v.z;
        x[4 * q + 3] = v.w;
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
FUNCTION void quad_store(const struct product *p, const float *sum, uint64_t to)
{
    struct quad v;
    v.x = p->alpha * sum[0];
    v.y = p->alpha * sum[1];
    v.z = p->alpha * sum[2];
    v.w = p->alpha * sum[3];
    if (p->beta != 0.0f) {
        struct quad old = LOAD(POINTER(const struct quad, to), 0);
        v.x = math_fma(p->beta, old.x, v.x);
        v.y = math_fma(p->beta, old.y, v.y);
        v.z = math_fma(p->beta, old.z, v.z);
        v.w = math_fma(p->beta, old.w, v.w);
    }
    STORE(POINTER(struct quad, to), 0, v);
}

/* One value or four neighbouring ones, of the row that begins at `line`. */
FUNCTION void product_part(const struct product *p, uint32_t count, uint32_t aligned, uint64_t line,
                           uint32_t column, const float *sums)
{
    if (aligned && column + 4 <= p->n) {
        quad_store(p, sums, line + 4 * (uint64_t)column);
        return;
    }
    UNROLL
    for (uint32_t i = 0; i < count; i++)
        if (column + i < p->n) {
            float *to = POINTER(float, line + 4 * (uint64_t)(column + i));
            STORE(to, 0, product_value(p, sums[i], to));
        }
}

/* This thread's sums[rows][columns] to c, or as they are to the piece's partial sums. */
FUNCTION void product_store(const struct product *product, uint32_t rows, uint32_t columns, uint32_t row,
                            uint32_t column, uint32_t piece, float sums[8][8])
{
    struct product p = *product;
    uint32_t ty = thread() / 16, tx = thread() % 16;
    if (p.partial != 0) {
        p.c = p.partial + 4 * (uint64_t)piece * p.m * p.n;
        p.ldc = p.n;
        p.alpha = 1.0f;
        p.beta = 0.0f;
    }
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
FUNCTION void tile_multiply(struct quad *tile_a, struct quad *tile_b, uint32_t rows, uint32_t columns,
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
 * columns and depth are constants: (8, 8, 8), (4, 4, 16), (4, 1, 16) or (1, 4, 16). */
FUNCTION void product_tile(const struct product *p, uint32_t rows, uint32_t columns, uint32_t depth,
                           uint32_t row, uint32_t column, uint32_t piece)
{
    SHARED(struct quad, tile_a, 272);
    SHARED(struct quad, tile_b, 272);
    float next_a[4], next_b[4], sums[8][8];
    uint32_t ty = thread() / 16, tx = thread() % 16;
    uint32_t begin = piece * p->k_piece, end = p->k - begin < p->k_piece ? p->k : begin + p->k_piece;
    uint32_t along_a = !p->transpose_a, along_b = p->transpose_b;
    uint32_t works = row + tile_place(rows, 0, ty) < p->m && column + tile_place(columns, 0, tx) < p->n;
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < columns; j++)
            sums[i][j] = 0.0f;
    }
    tile_fetch(p->a, p->lda, along_a, 16 * rows, depth, row, p->m, begin, end, next_a);
    tile_fetch(p->b, p->ldb, along_b, 16 * columns, depth, column, p->n, begin, end, next_b);
    for (uint32_t term = begin; term < end; term += depth) {
        tile_put(tile_a, along_a, 16 * rows, depth, next_a);
        tile_put(tile_b, along_b, 16 * columns, depth, next_b);
        barrier();
        if (end - term > depth) {
            tile_fetch(p->a, p->lda, along_a, 16 * rows, depth, row, p->m, term + depth, end, next_a);
            tile_fetch(p->b, p->ldb, along_b, 16 * columns, depth, column, p->n, term + depth, end, next_b);
        }
        if (works)
            tile_multiply(tile_a, tile_b, rows, columns, depth, sums);
        barrier();
    }
    if (works)
        product_store(p, rows, columns, row, column, piece, sums);
}

KERNEL(gemm_128x128, 256)
{
    product_tile(&args.product, 8, 8, 8, block_y() * 128, block_x() * 128, block_z());
}

KERNEL(gemm_64x64, 256)
{
    product_tile(&args.product, 4, 4, 16, block_y() * 64, block_x() * 64, block_z());
}

KERNEL(gemm_64x16, 256)
{
    product_tile(&args.product, 4, 1, 16, block_y() * 64, block_x() * 16, block_z());
}

KERNEL(gemm_16x64, 256)
{
    product_tile(&args.product, 1, 4, 16, block_y() * 16, block_x() * 64, block_z());
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

FUNCTION void grouped_tile(const struct grouped_product *grouped, uint32_t columns)
{
    const uint32_t *tiles = POINTER(const uint32_t, grouped->tiles);
    uint32_t g = LOAD(tiles, 2 * block_y()), begin;
    if (g == 0xffffffffu)
        return;
    struct product p = grouped->product;
    p.m = group_rows(grouped, g, &begin);
    p.a += 4 * (uint64_t)begin * p.lda;
    p.b += 4 * g * grouped->stride;
    p.c += 4 * (uint64_t)begin * p.ldc;
    product_tile(&p, 4, columns, 16, LOAD(tiles, 2 * block_y() + 1) - begin, block_x() * 16 * columns, 0);
}

KERNEL(grouped_64x64, 256)
{
    grouped_tile(&args.grouped, 4);
}

KERNEL(grouped_64x16, 256)
{
    grouped_tile(&args.grouped, 1);
}

FUNCTION void outer_tile(const struct grouped_product *grouped, uint32_t rows, uint32_t columns)
{
    struct product p = grouped->product;
    uint32_t begin;
    p.k = p.k_piece = group_rows(grouped, block_z(), &begin);
    p.a += 4 * (uint64_t)begin * p.lda;
    p.b += 4 * (uint64_t)begin * p.ldb;
    p.c += 4 * block_z() * grouped->stride;
    product_tile(&p, rows, columns, 16, block_y() * 16 * rows, block_x() * 16 * columns, 0);
}

KERNEL(outer_64x64, 256)
{
    outer_tile(&args.grouped, 4, 4);
}

KERNEL(outer_64x16, 256)
{
    outer_tile(&args.grouped, 4, 1);
}

KERNEL(outer_16x64, 256)
{
    outer_tile(&args.grouped, 1, 4);
}

#endif
#endif
