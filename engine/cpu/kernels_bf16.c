/* Products of bf16 on the tile registers of AMX, or by AVX512-BF16 (Intel 64 and IA-32 Architectures Software
 * Developer's Manual, volume 1, chapter 18, and volume 2, VDPBF16PS). A tile has 16 rows of 64 bytes.
 * TDPBF16PS adds to c, 16 x 16 sums in fp32, the product of a, 16 rows of 32 values, and of b, whose row p
 * has the values 2p and 2p + 1 of each of 16 columns side by side. VDPBF16PS does this for one row of c and
 * one of b. Blocks of a and b are rounded while they are copied into such tiles; the order of a sum's terms
 * does not depend on how many rows and columns there are.
 *
 * Compiled with its own flags (engine/options.cmake), and called only where isa_kernels (blas.h) offers it.
 */
#include "engine/cpu/kernels_bf16.h"

#ifndef __AMX_BF16__

void (*const gemm_bf16_amx)(const struct gemm_rounded *g, float *scratch) = NULL;
void (*const gemm_bf16_avx512)(const struct gemm_rounded *g, float *scratch) = NULL;

#else

#include <immintrin.h>
#include <string.h>

enum {
    LINES = 8,                        /* rows of a that VDPBF16PS multiplies at a time */
    SIDE = 16,                        /* rows and columns of a tile of sums */
    TERMS = 32,                       /* terms of k in a tile of a or b */
    TILE_VALUES = SIDE * TERMS,       /* values of a tile of a or b */
    BLOCK_TERMS = 2 * ROUNDED_DEPTH,  /* a block has as many bytes as one of kernels_rounded.h */
    BLOCK_TILES = BLOCK_TERMS / TERMS /* tiles of a block along k */
};

#define UNROLL _Pragma("GCC unroll 16")

/* One block in tiles: those of the first 16 rows of a (columns of b), along k, then of the next. */
struct tiled_block {
    uint16_t *tiles;
    size_t count; /* tiles along k */
};

/* ---- from memory to tiles ---- */

/* The n <= 32 values from `at` on, rounded, and zeros. */
static inline __m512i load32(const struct gemm_values *x, size_t at, size_t n)
{
    const __mmask32 mask = (__mmask32)((UINT64_C(1) << n) - 1);
    const __mmask16 low = (__mmask16)mask, high = (__mmask16)(mask >> SIDE);
    if (x->kind == VALUES_F32) {
        const float *from = (const float *)x->at + at;
        return (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, from + SIDE),
                                            _mm512_maskz_loadu_ps(low, from));
    }
    /* A product of few rows waits for stored weights: fetching them early is half of its time at 1 row. */
    _mm_prefetch((const char *)x->at + (at + 4 * TERMS) * 2, _MM_HINT_T0);
    const __m512i half = _mm512_maskz_loadu_epi16(mask, (const uint16_t *)x->at + at);
    if (x->kind == VALUES_BF16)
        return half;
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1)),
                                        _mm512_cvtph_ps(_mm512_castsi512_si256(half)));
}

static inline __m512i kernels_bf16_load16(const struct gemm_values *x, size_t at, size_t n)
{
    return _mm512_cvtepu16_epi32(_mm512_castsi512_si256(load32(x, at, n)));
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
            const __m512i even = kernels_bf16_load16(x, at + 2 * i * x->ld, lines);
            const __m512i odd = 2 * i + 1 < terms ? kernels_bf16_load16(x, at + (2 * i + 1) * x->ld, lines)
                                                  : _mm512_setzero_si512();
            v[i] = _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
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
    const size_t across = (lines + SIDE - 1) / SIDE;
    block->count = (terms + TERMS - 1) / TERMS;
    /* Tiles are copied in the order in which their values lie in memory. */
    for (size_t tile = 0; tile < across * block->count; tile++) {
        const size_t i = along ? tile / block->count : tile % across,
                     p = along ? tile % block->count : tile / across;
        const size_t l = line + i * SIDE, t = term + p * TERMS;
        const size_t left = lines - i * SIDE < SIDE ? lines - i * SIDE : SIDE;
        const size_t deep = term + terms - t < TERMS ? term + terms - t : TERMS;
        tile_copy(x, along ? l * x->ld + t : t * x->ld + l, left, deep, along, pairs,
                  block->tiles + (i * block->count + p) * TILE_VALUES);
    }
    if (across % 2 == 1)
        memset(block->tiles + across * block->count * TILE_VALUES, 0,
               block->count * TILE_VALUES * sizeof(uint16_t));
}

/* ---- products of tiles ---- */

/* sums[rows <= 32][32] = a's tiles from `row` on times two columns of b's tiles. */
typedef void tiles_function(const struct tiled_block *a, size_t row, size_t rows, const struct tiled_block *b,
                            size_t column, float *sums);

static void tiles_multiply_amx(const struct tiled_block *a, size_t row, size_t rows,
                               const struct tiled_block *b, size_t column, float *sums)
{
    const bool both = rows > SIDE;
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

/* The same by VDPBF16PS, for LINES rows at a time, whose sums stay in registers. */
static void tiles_multiply_avx512(const struct tiled_block *a, size_t row, size_t rows,
                                  const struct tiled_block *b, size_t column, float *sums)
{
    const size_t step = a->count * TILE_VALUES;
    const uint16_t *b0 = b->tiles + column / SIDE * step, *b1 = b0 + step;
    for (size_t i = 0; i < rows; i += LINES) {
        const uint16_t *at = a->tiles + (row + i) / SIDE * step + i % SIDE * TERMS;
        __m512 c[LINES][2];
        UNROLL
        for (int r = 0; r < LINES; r++)
            c[r][0] = c[r][1] = _mm512_setzero_ps();
        for (size_t p = 0; p < step; p += TILE_VALUES)
            for (size_t q = 0; q < TILE_VALUES; q += TERMS) {
                const __m512bh x = (__m512bh)_mm512_loadu_si512(b0 + p + q);
                const __m512bh y = (__m512bh)_mm512_loadu_si512(b1 + p + q);
                UNROLL
                for (int r = 0; r < LINES; r++) {
                    int pair;
                    memcpy(&pair, at + p + (size_t)r * TERMS + q / SIDE, sizeof(pair));
                    const __m512bh z = (__m512bh)_mm512_set1_epi32(pair);
                    c[r][0] = _mm512_dpbf16_ps(c[r][0], z, x);
                    c[r][1] = _mm512_dpbf16_ps(c[r][1], z, y);
                }
            }
        UNROLL
        for (int r = 0; r < LINES; r++) {
            _mm512_storeu_ps(sums + (i + (size_t)r) * 2 * SIDE, c[r][0]);
            _mm512_storeu_ps(sums + (i + (size_t)r) * 2 * SIDE + SIDE, c[r][1]);
        }
    }
}

/* Where a piece of c lies in its blocks: at most two tiles of rows and of columns. */
struct tiled_piece {
    size_t row, rows, column, columns;
};

/* Adds the products of one block of k to a piece of c; `first` block applies beta. A block is summed by
 * itself in `sums`, [32][32], so that adding it to a large c rounds once. */
static void kernels_bf16_piece_multiply(const struct gemm_rounded *g, tiles_function *multiply,
                                        const struct tiled_block *a, const struct tiled_block *b,
                                        struct tiled_piece at, bool first, float *c, float *sums)
{
    const float beta = first ? g->beta : 1.0f;
    multiply(a, at.row, at.rows, b, at.column, sums);
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

static size_t kernels_bf16_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void gemm_tiles(const struct gemm_rounded *g, tiles_function *multiply, float *scratch)
{
    struct tiled_block a = {.tiles = (uint16_t *)scratch};
    struct tiled_block b = {.tiles = a.tiles + ROUNDED_ROWS * BLOCK_TERMS};
    float *sums = (float *)(b.tiles + ROUNDED_COLUMNS * BLOCK_TERMS);
    _Static_assert(ROUNDED_DEPTH * (ROUNDED_ROWS + ROUNDED_COLUMNS) + 4 * SIDE * SIDE <= ROUNDED_SCRATCH, "");
    _Static_assert(ROUNDED_ROWS % (2 * SIDE) == 0 && ROUNDED_COLUMNS % (2 * SIDE) == 0, "");
    for (size_t column = 0; column < g->n; column += ROUNDED_COLUMNS)
        for (size_t p = 0; p < g->k; p += BLOCK_TERMS) {
            const size_t columns = kernels_bf16_least(ROUNDED_COLUMNS, g->n - column),
                         depth = kernels_bf16_least(BLOCK_TERMS, g->k - p);
            block_copy(&g->b, g->b.transposed, true, column, columns, p, depth, &b);
            for (size_t row = 0; row < g->m; row += ROUNDED_ROWS) {
                const size_t rows = kernels_bf16_least(ROUNDED_ROWS, g->m - row);
                block_copy(&g->a, !g->a.transposed, false, row, rows, p, depth, &a);
                for (size_t j = 0; j < columns; j += 2 * SIDE)
                    for (size_t i = 0; i < rows; i += 2 * SIDE)
                        kernels_bf16_piece_multiply(
                            g, multiply, &a, &b,
                            (struct tiled_piece){i, kernels_bf16_least(2 * SIDE, rows - i), j,
                                                 kernels_bf16_least(2 * SIDE, columns - j)},
                            p == 0, g->c + (row + i) * g->ldc + column + j, sums);
            }
        }
}

static void gemm_amx(const struct gemm_rounded *g, float *scratch)
{
    tiles_configure();
    gemm_tiles(g, tiles_multiply_amx, scratch);
    _tile_release();
}

static void gemm_avx512(const struct gemm_rounded *g, float *scratch)
{
    gemm_tiles(g, tiles_multiply_avx512, scratch);
}

void (*const gemm_bf16_amx)(const struct gemm_rounded *g, float *scratch) = gemm_amx;
void (*const gemm_bf16_avx512)(const struct gemm_rounded *g, float *scratch) = gemm_avx512;

#endif
