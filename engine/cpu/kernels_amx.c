/* Products of bf16 on the tile registers of AMX (Intel 64 and IA-32 Architectures Software Developer's
 * Manual, volume 1, chapter 18). A tile has 16 rows of 64 bytes. TDPBF16PS adds to c, 16 x 16 sums in fp32,
 * the product of a, 16 rows of 32 values, and of b, whose row p has the values 2p and 2p + 1 of each of 16
 * columns side by side. Blocks of a and b are rounded while they are copied into such tiles; the order of
 * a sum's terms does not depend on how many rows and columns there are.
 *
 * Compiled with its own flags (engine/options.cmake), and called only where isa_kernels (blas.h) offers it.
 */
#include "engine/cpu/kernels_amx.h"

#ifndef __AMX_BF16__

void (*const gemm_bf16_amx)(const struct gemm_rounded *g, float *scratch) = NULL;

#else

#include <immintrin.h>
#include <string.h>

enum {
    SIDE = 16,                        /* rows and columns of a tile of sums */
    TERMS = 32,                       /* terms of k in a tile of a or b */
    TILE_VALUES = SIDE * TERMS,       /* values of a tile of a or b */
    BLOCK_TERMS = 2 * ROUNDED_DEPTH,  /* a block has as many bytes as one of kernels_rounded.h */
    BLOCK_TILES = BLOCK_TERMS / TERMS /* tiles of a block along k */
};

/* One block in tiles: those of the first 16 rows of a (columns of b), along k, then of the next. */
struct tiled_block {
    uint16_t *tiles;
    size_t count; /* tiles along k */
};

/* ---- from memory to tiles ---- */

static __m256i to_bf16(__m512 x)
{
    return (__m256i)_mm512_cvtneps_pbh(x);
}

/* The n <= 16 values from `at` on, rounded, and zeros. */
static __m256i load16(const struct gemm_values *x, size_t at, size_t n)
{
    const __mmask16 mask = (__mmask16)((1u << n) - 1u);
    if (x->kind == VALUES_F32)
        return to_bf16(_mm512_maskz_loadu_ps(mask, (const float *)x->at + at));
    const __m256i half = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)x->at + at);
    return x->kind == VALUES_BF16 ? half : to_bf16(_mm512_cvtph_ps(half));
}

static __m512i load32(const struct gemm_values *x, size_t at, size_t n)
{
    const size_t low = n < SIDE ? n : SIDE;
    return _mm512_inserti64x4(_mm512_castsi256_si512(load16(x, at, low)), load16(x, at + SIDE, n - low), 1);
}

/* Transposes 16 x 16 pairs of values. */
static void transpose(__m512i v[SIDE])
{
    __m512i t[SIDE];
    for (int i = 0; i < SIDE; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < SIDE; i += 4) {
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        const __m512i a = v[i], b = v[i + 4], c = v[i + 8], d = v[i + 12];
        const __m512i ab = _mm512_shuffle_i32x4(a, b, 0x88), cd = _mm512_shuffle_i32x4(c, d, 0x88);
        const __m512i ab_odd = _mm512_shuffle_i32x4(a, b, 0xdd), cd_odd = _mm512_shuffle_i32x4(c, d, 0xdd);
        v[i] = _mm512_shuffle_i32x4(ab, cd, 0x88);
        v[i + 8] = _mm512_shuffle_i32x4(ab, cd, 0xdd);
        v[i + 4] = _mm512_shuffle_i32x4(ab_odd, cd_odd, 0x88);
        v[i + 12] = _mm512_shuffle_i32x4(ab_odd, cd_odd, 0xdd);
    }
}

/* Copies a tile of `lines` <= 16 rows of a (columns of b) and `terms` <= 32 terms of k, from value `at` on.
 * `along`: terms lie side by side in memory. `pairs`: row p of the tile has the terms 2p and 2p + 1 of each
 * line, as b needs it; else row i has line i's terms. */
static void tile_copy(const struct gemm_values *x, size_t at, size_t lines, size_t terms, bool along,
                      bool pairs, uint16_t *tile)
{
    __m512i v[SIDE];
    for (size_t i = 0; i < SIDE; i++) {
        v[i] = _mm512_setzero_si512();
        if (along && i < lines)
            v[i] = load32(x, at + i * x->ld, terms);
        if (!along && 2 * i < terms) {
            const __m256i even = load16(x, at + 2 * i * x->ld, lines);
            const __m256i odd =
                2 * i + 1 < terms ? load16(x, at + (2 * i + 1) * x->ld, lines) : _mm256_setzero_si256();
            v[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                                   _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
        }
    }
    if (along == pairs)
        transpose(v);
    for (size_t i = 0; i < SIDE; i++)
        _mm512_storeu_si512(tile + i * TERMS, v[i]);
}

/* Copies the block of `lines` lines from `line` on, and `terms` terms from `term` on. Tiles are padded with
 * zeros, and there is an even number of them across k. */
static void block_copy(const struct gemm_values *x, bool along, bool pairs, size_t line, size_t lines,
                       size_t term, size_t terms, struct tiled_block *block)
{
    block->count = (terms + TERMS - 1) / TERMS;
    for (size_t i = 0; i < lines; i += SIDE)
        for (size_t p = 0; p < block->count; p++) {
            const size_t l = line + i, t = term + p * TERMS;
            const size_t left = lines - i < SIDE ? lines - i : SIDE;
            const size_t deep = term + terms - t < TERMS ? term + terms - t : TERMS;
            tile_copy(x, along ? l * x->ld + t : t * x->ld + l, left, deep, along, pairs,
                      block->tiles + (i / SIDE * block->count + p) * TILE_VALUES);
        }
    if ((lines + SIDE - 1) / SIDE % 2 == 1)
        memset(block->tiles + (lines / SIDE + (lines % SIDE != 0)) * block->count * TILE_VALUES, 0,
               block->count * TILE_VALUES * sizeof(uint16_t));
}

/* ---- products of tiles ---- */

/* sums[32 or 16][32] = two rows (one unless `both`) of a's tiles times two columns of b's. */
static void tiles_multiply(const struct tiled_block *a, size_t row, bool both, const struct tiled_block *b,
                           size_t column, float *sums)
{
    const size_t step = a->count * TILE_VALUES, bytes = 2 * SIDE * sizeof(float);
    const uint16_t *a0 = a->tiles + row / SIDE * step, *a1 = a0 + step;
    const uint16_t *b0 = b->tiles + column / SIDE * step, *b1 = b0 + step;
    float *low = sums + SIDE * 2 * SIDE;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t p = 0; p < step; p += TILE_VALUES) {
        _tile_loadd(4, a0 + p, 2 * TERMS);
        _tile_loadd(6, b0 + p, 2 * TERMS);
        _tile_loadd(7, b1 + p, 2 * TERMS);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (both) {
            _tile_loadd(5, a1 + p, 2 * TERMS);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, bytes);
    _tile_stored(1, sums + SIDE, bytes);
    if (both) {
        _tile_stored(2, low, bytes);
        _tile_stored(3, low + SIDE, bytes);
    }
}

/* Where a piece of c lies in its blocks: at most two tiles of rows and of columns. */
struct tiled_piece {
    size_t row, rows, column, columns;
};

/* Adds the products of one block of k to a piece of c; `first` block applies beta. A block is summed by
 * itself in `sums`, [32][32], so that adding it to a large c rounds once. */
static void piece_multiply(const struct gemm_rounded *g, const struct tiled_block *a,
                           const struct tiled_block *b, struct tiled_piece at, bool first, float *c,
                           float *sums)
{
    const float beta = first ? g->beta : 1.0f;
    tiles_multiply(a, at.row, at.rows > SIDE, b, at.column, sums);
    for (size_t i = 0; i < at.rows; i++)
        for (size_t j = 0; j < at.columns; j++) {
            const float sum = g->alpha * sums[i * 2 * SIDE + j];
            c[i * g->ldc + j] = beta == 0.0f ? sum : beta * c[i * g->ldc + j] + sum;
        }
}

static void tiles_configure(void)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 2 * TERMS;
        config.rows[i] = SIDE;
    }
    _tile_loadconfig(&config);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void gemm_tiles(const struct gemm_rounded *g, float *scratch)
{
    struct tiled_block a = {.tiles = (uint16_t *)scratch};
    struct tiled_block b = {.tiles = a.tiles + ROUNDED_ROWS * BLOCK_TERMS};
    float *sums = (float *)(b.tiles + ROUNDED_COLUMNS * BLOCK_TERMS);
    _Static_assert(ROUNDED_DEPTH * (ROUNDED_ROWS + ROUNDED_COLUMNS) + 4 * SIDE * SIDE <= ROUNDED_SCRATCH, "");
    _Static_assert(ROUNDED_ROWS % (2 * SIDE) == 0 && ROUNDED_COLUMNS % (2 * SIDE) == 0, "");
    tiles_configure();
    for (size_t column = 0; column < g->n; column += ROUNDED_COLUMNS)
        for (size_t p = 0; p < g->k; p += BLOCK_TERMS) {
            const size_t columns = least(ROUNDED_COLUMNS, g->n - column),
                         depth = least(BLOCK_TERMS, g->k - p);
            block_copy(&g->b, g->b.transposed, true, column, columns, p, depth, &b);
            for (size_t row = 0; row < g->m; row += ROUNDED_ROWS) {
                const size_t rows = least(ROUNDED_ROWS, g->m - row);
                block_copy(&g->a, !g->a.transposed, false, row, rows, p, depth, &a);
                for (size_t j = 0; j < columns; j += 2 * SIDE)
                    for (size_t i = 0; i < rows; i += 2 * SIDE)
                        piece_multiply(g, &a, &b,
                                       (struct tiled_piece){i, least(2 * SIDE, rows - i), j,
                                                            least(2 * SIDE, columns - j)},
                                       p == 0, g->c + (row + i) * g->ldc + column + j, sums);
            }
        }
    _tile_release();
}

void (*const gemm_bf16_amx)(const struct gemm_rounded *g, float *scratch) = gemm_tiles;

#endif
