/* Matrix products, c = alpha op(a) op(b) + beta c. Each block makes one tile of c from tiles of a and b in
 * shared memory, while it reads the next tiles. On the way to shared memory packed weights are unpacked, and
 * operands of 16-bit products are rounded. In fp32 a thread has 8 x 8, 4 x 4, 4 x 1 or 1 x 4 values of the
 * tile in registers; with matrix units (kernels named units) a warp has up to 16 fragments. If there are few
 * tiles and many terms, the sum is cut into pieces (split-k), and another kernel adds their results in order.
 * Only the shape decides which tile and how many pieces are used (product.c).
 *
 * Grouped products (experts) use the same tiles. The device reads where each group's rows begin. Because only
 * the device knows how many rows a group has, a kernel of one block first lists the tiles of rows.
 */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_PRODUCT_K_H
#define MOTLEY_ENGINE_GPU_KERNELS_PRODUCT_K_H

#include "engine/gpu/kernels/tile.h"

#define PRODUCT_KERNELS(X)                                                                                   \
    X(gemm_128x128, 256)                                                                                     \
    X(gemm_64x64, 256)                                                                                       \
    X(gemm_64x16, 256)                                                                                       \
    X(gemm_16x64, 256)                                                                                       \
    X(gemm_nf4_128x128, 256)                                                                                 \
    X(gemm_nf4_64x64, 256)                                                                                   \
    X(gemm_nf4_16x64, 256)                                                                                   \
    X(gemm_blocks_128x128, 256)                                                                              \
    X(gemm_blocks_64x64, 256)                                                                                \
    X(gemm_blocks_16x64, 256)                                                                                \
    X(units_128x128, 256)                                                                                    \
    X(units_eights_128x128, 256)                                                                             \
    X(units_nf4_eights_128x128, 256)                                                                         \
    X(units_64x64, 256)                                                                                      \
    X(units_32x128, 256)                                                                                     \
    X(units_128x32, 256)                                                                                     \
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
    X(grouped_nf4_64x64, 256)                                                                                \
    X(grouped_blocks_64x64, 256)                                                                             \
    X(grouped_units_64x64, 256)                                                                              \
    X(grouped_units_nf4_64x64, 256)                                                                          \
    X(grouped_units_blocks_64x64, 256)                                                                       \
    X(outer_64x64, 256)                                                                                      \
    X(outer_64x16, 256)                                                                                      \
    X(outer_16x64, 256)                                                                                      \
    X(outer_units_64x64, 256)

#define GEMM_ARGS(name)                                                                                      \
    struct name##_args {                                                                                     \
        struct product product;                                                                              \
    }
GEMM_ARGS(gemm_128x128);
GEMM_ARGS(gemm_64x64);
GEMM_ARGS(gemm_64x16);
GEMM_ARGS(gemm_16x64);
/* Products whose b is in stored form: NF4, or GGUF blocks. */
GEMM_ARGS(gemm_nf4_128x128);
GEMM_ARGS(gemm_nf4_64x64);
GEMM_ARGS(gemm_nf4_16x64);
GEMM_ARGS(gemm_blocks_128x128);
GEMM_ARGS(gemm_blocks_64x64);
GEMM_ARGS(gemm_blocks_16x64);
/* Products in bf16 or fp16 with matrix units. Except for tiles of 64 x 64, the values of a and b must exist
 * in aligned fours (wide_a, wide_b, and the lengths of stored rows). */
GEMM_ARGS(units_128x128);
/* In aligned eights: of 16-bit operands that are stored in the type that is computed in, or runs of NF4's
 * codes (units.h). */
GEMM_ARGS(units_eights_128x128);
GEMM_ARGS(units_nf4_eights_128x128);
GEMM_ARGS(units_64x64);
GEMM_ARGS(units_32x128);
GEMM_ARGS(units_128x32);
GEMM_ARGS(units_nf4_128x128);
GEMM_ARGS(units_nf4_64x64);
GEMM_ARGS(units_nf4_32x128);
GEMM_ARGS(units_blocks_128x128);
GEMM_ARGS(units_blocks_64x64);
GEMM_ARGS(units_blocks_32x128);
#undef GEMM_ARGS

/* c = alpha * (sum of `pieces` partial results) + beta * c */
struct gemm_sum_args {
    uint64_t partial, c, add, count; /* add: as in struct product; count: m * n */
    uint32_t n, ldc, pieces, c_as;
    float alpha, beta;
};

/* One product for each group. m (k for outer products) is unused, because the number of rows comes from
 * offsets. */
struct grouped_product {
    struct product product;
    uint64_t offsets; /* u32 [groups_all + 1] */
    uint64_t
        tiles; /* u32 [tile_count, 2]: group and first row of each tile; UINT32_MAX marks unused entries */
    uint64_t stride; /* bytes from one group's matrix (and its scales) to the next */
    uint32_t first, groups, rows, tile_count;
};

/* Lists the groups' tiles of 64 rows in order. Launched with one block. */
struct grouped_list_args {
    struct grouped_product grouped;
};
#define GROUPED_ARGS(name)                                                                                   \
    struct name##_args {                                                                                     \
        struct grouped_product grouped;                                                                      \
    }
/* Grouped products. A block handles a tile of columns (x) of an entry of the list grouped_product.tiles (y).
 */
GROUPED_ARGS(grouped_64x64);
GROUPED_ARGS(grouped_64x16);
GROUPED_ARGS(grouped_nf4_64x64);
GROUPED_ARGS(grouped_blocks_64x64);
GROUPED_ARGS(grouped_units_64x64);
GROUPED_ARGS(grouped_units_nf4_64x64);
GROUPED_ARGS(grouped_units_blocks_64x64);
/* c_g = alpha a_g^T b_g + beta c_g. A block handles a tile of columns (x) by rows (y) of group z. */
GROUPED_ARGS(outer_64x64);
GROUPED_ARGS(outer_64x16);
GROUPED_ARGS(outer_16x64);
GROUPED_ARGS(outer_units_64x64);
#undef GROUPED_ARGS

#ifdef GPU_KERNELS

#include "engine/gpu/kernels/scan.h"
#include "engine/gpu/kernels/units.h"

/* Stores four values in a tile. Tiles are stored term by term, with 4 values of padding so that few
 * accesses use the same bank. */
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

/* Loads from a tile the `each` values of term `term` that thread `at` (of 16) multiplies: one value, four
 * neighbours, or two groups of four neighbours that are 64 values apart. */
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

/* The position in its tile of the i-th of a thread's `each` values. */
FUNCTION uint32_t tile_place(uint32_t each, uint32_t i, uint32_t at)
{
    return each == 1 ? at : i / 4 * 64 + at * 4 + i % 4;
}

/* Stores this thread's sums[rows][columns]. */
FUNCTION void product_store(const struct product *product, uint32_t rows, uint32_t columns, uint32_t row,
                            uint32_t column, uint32_t piece, float sums[8][8])
{
    struct product p = product_target(product, piece);
    uint32_t ty = thread() / 16, tx = thread() % 16;
    uint32_t aligned = columns != 1 && (p.c | p.add) % 16 == 0 && p.ldc % 4 == 0;
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t r = row + tile_place(rows, i, ty);
        UNROLL
        for (uint32_t j = 0; j < columns; j += 4)
            if (r < p.m)
                product_part(&p, columns == 1 ? 1 : 4, aligned, product_line(&p, r),
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

/* Computes the tile of c at (row, column), of 16 * rows by 16 * columns values, from the terms of one piece.
 * rows, columns and depth are constants: (8, 8, 8), (4, 4, 16), (4, 1, 16) or (1, 4, 16). The storage of b is
 * a constant, too. */
FUNCTION void product_tile(const struct product *p, uint32_t storage, uint32_t rows, uint32_t columns,
                           uint32_t depth, uint32_t row, uint32_t column, uint32_t piece)
{
    SHARED(struct four, tile_a, 272);
    SHARED(struct four, tile_b, 272);
    SHARED(float, table, NF4_TABLE);
    float sums[8][8];
    uint32_t begin = piece * p->k_piece, end = p->k - begin < p->k_piece ? p->k : begin + p->k_piece;
    uint32_t works = row + tile_place(rows, 0, thread() / 16) < p->m &&
                     column + tile_place(columns, 0, thread() % 16) < p->n;
    struct tile_source a = source_a(p), b = source_b(p, storage, table);
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < columns; j++)
            sums[i][j] = 0.0f;
    }
    struct fetched next_a = tile_fetch(&a, STORED_PLAIN, 16 * rows, depth, row, begin, end);
    struct fetched next_b = tile_fetch(&b, storage, 16 * columns, depth, column, begin, end);
    for (uint32_t term = begin; term < end; term += depth) {
        tile_put(tile_a, p->compute, a.along, 16 * rows, depth,
                 source_values(&a, STORED_PLAIN, table, next_a));
        tile_put(tile_b, p->compute, b.along, 16 * columns, depth, source_values(&b, storage, table, next_b));
        barrier();
        if (end - term > depth) {
            next_a = tile_fetch(&a, STORED_PLAIN, 16 * rows, depth, row, term + depth, end);
            next_b = tile_fetch(&b, storage, 16 * columns, depth, column, term + depth, end);
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
    gemm_tile(&args.product, STORED_PLAIN, 8, 8, 8);
}

KERNEL(gemm_64x64, 256)
{
    gemm_tile(&args.product, STORED_PLAIN, 4, 4, 16);
}

KERNEL(gemm_64x16, 256)
{
    gemm_tile(&args.product, STORED_PLAIN, 4, 1, 16);
}

KERNEL(gemm_16x64, 256)
{
    gemm_tile(&args.product, STORED_PLAIN, 1, 4, 16);
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

#if FRAGMENT_F16
#define UNITS_TILE(storage, whole, rows, columns)                                                            \
    units_tile(&args.product, storage, whole, rows, columns, block_y() * 32 * (rows),                        \
               block_x() * 32 * (columns), block_z())
#define UNITS_TILE_EIGHTS(storage)                                                                           \
    units_tile_eights(&args.product, storage, block_y() * 128, block_x() * 128, block_z())
#define UNITS_GROUPED(storage) grouped_tile(&args.grouped, storage, 4, 1)
#define UNITS_OUTER outer_tile(&args.grouped, 4, 4, 1)
#else /* without matrix units: the host never launches the kernels named units on such cards */
#define UNITS_TILE(storage, whole, rows, columns) assert_device(0)
#define UNITS_TILE_EIGHTS(storage) assert_device(0)
#define UNITS_GROUPED(storage) assert_device(0)
#define UNITS_OUTER assert_device(0)
#endif

KERNEL_PAIR(units_128x128, 256)
{
    UNITS_TILE(STORED_PLAIN, 1, 4, 4);
}

KERNEL(units_64x64, 256)
{
    UNITS_TILE(STORED_PLAIN, 0, 2, 2);
}

KERNEL(units_32x128, 256)
{
    UNITS_TILE(STORED_PLAIN, 1, 1, 4);
}

KERNEL(units_128x32, 256)
{
    UNITS_TILE(STORED_PLAIN, 1, 4, 1);
}

KERNEL_TWO(units_eights_128x128, 256)
{
    UNITS_TILE_EIGHTS(STORED_PLAIN);
}

KERNEL_TWO(units_nf4_eights_128x128, 256)
{
    UNITS_TILE_EIGHTS(STORED_NF4);
}

KERNEL_PAIR(units_nf4_128x128, 256)
{
    UNITS_TILE(STORED_NF4, 1, 4, 4);
}

KERNEL(units_nf4_64x64, 256)
{
    UNITS_TILE(STORED_NF4, 0, 2, 2);
}

KERNEL(units_nf4_32x128, 256)
{
    UNITS_TILE(STORED_NF4, 1, 1, 4);
}

KERNEL_PAIR(units_blocks_128x128, 256)
{
    UNITS_TILE(STORED_BLOCKS, 1, 4, 4);
}

KERNEL(units_blocks_64x64, 256)
{
    UNITS_TILE(STORED_BLOCKS, 0, 2, 2);
}

KERNEL(units_blocks_32x128, 256)
{
    UNITS_TILE(STORED_BLOCKS, 1, 1, 4);
}

KERNEL(gemm_sum, 256)
{
    uint64_t i = (uint64_t)block_x() * 256 + thread();
    if (i >= args.count)
        return;
    const float *partial = POINTER(const float, args.partial);
    float *c = POINTER(float, args.c);
    uint16_t *halves = POINTER(uint16_t, args.c);
    uint64_t at = i / args.n * args.ldc + i % args.n;
    float sum = LOAD(partial, i);
    for (uint32_t piece = 1; piece < args.pieces; piece++)
        sum += LOAD(partial, piece * args.count + i);
    float value = args.alpha * sum;
    if (args.beta != 0.0f)
        value = math_fma(args.beta,
                         args.c_as == ELEMENT_F32 ? LOAD(args.add == 0 ? c : POINTER(float, args.add), at)
                                                  : fragment_value(args.c_as, LOAD(halves, at)),
                         value);
    if (args.c_as == ELEMENT_F32)
        STORE(c, at, value);
    else
        STORE(halves, at, fragment_half(args.c_as, value));
}

/* The rows of group g, counted from `first`. An offset that falls or exceeds the rows ends the launch. */
FUNCTION uint32_t group_rows(const struct grouped_product *p, uint32_t g, uint32_t *begin)
{
    const uint32_t *offsets = POINTER(const uint32_t, p->offsets);
    uint32_t from = LOAD(offsets, p->first + g), to = LOAD(offsets, p->first + g + 1);
    assert_device(from <= to && to <= p->rows);
    *begin = from;
    return to - from;
}

/* Handles 256 groups at a time; the tiles of each group follow those of the groups before it. */
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

/* A tile of 64 rows of a group by 16 * columns, with matrix units (`units`) or in fp32. */
FUNCTION void grouped_tile(const struct grouped_product *grouped, uint32_t storage, uint32_t columns,
                           uint32_t units)
{
    const uint32_t *tiles = POINTER(const uint32_t, grouped->tiles);
    uint32_t g = LOAD(tiles, 2 * block_y()), begin;
    if (g == 0xffffffffu)
        return;
    struct product p = grouped->product;
    p.m = group_rows(grouped, g, &begin);
    p.a += element_bytes(p.a_as) * (uint64_t)begin * p.lda;
    p.b += g * grouped->stride;
    p.absmax += g * grouped->stride;
    p.scales += g * grouped->stride;
    p.c += 4 * (uint64_t)begin * p.ldc;
    uint32_t row = LOAD(tiles, 2 * block_y() + 1) - begin;
    if (units)
        units_tile(&p, storage, 0, 2, 2, row, block_x() * 64, 0);
    else
        product_tile(&p, storage, 4, columns, 16, row, block_x() * 16 * columns, 0);
}

KERNEL(grouped_64x64, 256)
{
    grouped_tile(&args.grouped, STORED_PLAIN, 4, 0);
}

KERNEL(grouped_64x16, 256)
{
    grouped_tile(&args.grouped, STORED_PLAIN, 1, 0);
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
    UNITS_GROUPED(STORED_PLAIN);
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
    p.a += element_bytes(p.a_as) * (uint64_t)begin * p.lda;
    p.b += element_bytes(p.kind) * (uint64_t)begin * p.ldb;
    p.c += block_z() * grouped->stride;
    if (units)
        units_tile(&p, STORED_PLAIN, 0, 2, 2, block_y() * 64, block_x() * 64, 0);
    else
        product_tile(&p, STORED_PLAIN, rows, columns, 16, block_y() * 16 * rows, block_x() * 16 * columns, 0);
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
