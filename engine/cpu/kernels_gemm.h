/* Matrix products: strips of accumulators held in registers, and dot products for few rows. Part of
 * kernels_body.h, which includes it once per instruction set.
 */
#ifndef MOTLEY_ENGINE_CPU_KERNELS_GEMM_H
#define MOTLEY_ENGINE_CPU_KERNELS_GEMM_H

#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
/* One step of a transposition by exchanges: in blocks of `distance` lanes, swap the odd blocks of row i with
 * the even blocks of row i + distance. */
#define EXCHANGE(row, i, distance, LOW, HIGH)                                                                \
    do {                                                                                                     \
        vf low_ = LOW(row[i], row[(i) + (distance)]), high_ = HIGH(row[i], row[(i) + (distance)]);           \
        row[i] = low_;                                                                                       \
        row[(i) + (distance)] = high_;                                                                       \
    } while (0)
#define EXCHANGE_ALL(row, distance, LOW, HIGH)                                                               \
    _Pragma("GCC unroll 16") for (int i = 0; i < VECTOR; i++) if ((i & (distance)) == 0)                     \
        EXCHANGE(row, i, distance, LOW, HIGH);

#if VECTOR == 16
#define LOW8(a, b) SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define HIGH8(a, b) SHUFFLE(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
#define LOW4(a, b) SHUFFLE(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define HIGH4(a, b) SHUFFLE(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
#define LOW2(a, b) SHUFFLE(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH2(a, b) SHUFFLE(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define LOW1(a, b) SHUFFLE(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define HIGH1(a, b) SHUFFLE(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#define TRANSPOSE_ROUNDS(row)                                                                                \
    EXCHANGE_ALL(row, 8, LOW8, HIGH8)                                                                        \
    EXCHANGE_ALL(row, 4, LOW4, HIGH4) EXCHANGE_ALL(row, 2, LOW2, HIGH2) EXCHANGE_ALL(row, 1, LOW1, HIGH1)
#elif VECTOR == 8
#define LOW4(a, b) SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define HIGH4(a, b) SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#define LOW2(a, b) SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH2(a, b) SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define LOW1(a, b) SHUFFLE(a, b, 0, 8, 2, 10, 4, 12, 6, 14)
#define HIGH1(a, b) SHUFFLE(a, b, 1, 9, 3, 11, 5, 13, 7, 15)
#define TRANSPOSE_ROUNDS(row)                                                                                \
    EXCHANGE_ALL(row, 4, LOW4, HIGH4) EXCHANGE_ALL(row, 2, LOW2, HIGH2) EXCHANGE_ALL(row, 1, LOW1, HIGH1)
#else
#define LOW2(a, b) SHUFFLE(a, b, 0, 1, 4, 5)
#define HIGH2(a, b) SHUFFLE(a, b, 2, 3, 6, 7)
#define LOW1(a, b) SHUFFLE(a, b, 0, 4, 2, 6)
#define HIGH1(a, b) SHUFFLE(a, b, 1, 5, 3, 7)
#define TRANSPOSE_ROUNDS(row) EXCHANGE_ALL(row, 2, LOW2, HIGH2) EXCHANGE_ALL(row, 1, LOW1, HIGH1)
#endif

/* A tile of ROWS x (VECTORS * VECTOR) accumulators, held in registers over the whole of k. They begin at zero
 * and are added to c at the end: if they began at c, each of the k small terms would be rounded at c's
 * magnitude. */
#define TILE_PANEL(ROWS, VECTORS)                                                                            \
    INLINE void tile_##ROWS##_##VECTORS(struct tile_product t)                                               \
    {                                                                                                        \
        vf sum[ROWS][VECTORS];                                                                               \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                              \
            _Pragma("GCC unroll 4") for (int j = 0; j < VECTORS; j++) sum[i][j] = splat(0.0f);               \
        for (size_t p = 0; p < t.k; p++) {                                                                   \
            vf right[VECTORS];                                                                               \
            _Pragma("GCC unroll 4") for (int j = 0; j < VECTORS; j++) right[j] =                             \
                load(t.b + p * t.ldb + (size_t)j * VECTOR);                                                  \
            _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                          \
            {                                                                                                \
                vf left = splat(t.a[(size_t)i * t.a_row + p * t.a_col]);                                     \
                _Pragma("GCC unroll 4") for (int j = 0; j < VECTORS; j++) sum[i][j] += left * right[j];      \
            }                                                                                                \
        }                                                                                                    \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                              \
            _Pragma("GCC unroll 4") for (int j = 0; j < VECTORS; j++)                                        \
        {                                                                                                    \
            float *at = t.c + (size_t)i * t.ldc + (size_t)j * VECTOR;                                        \
            store(at, t.accumulate ? load(at) + sum[i][j] : sum[i][j]);                                      \
        }                                                                                                    \
    }

/* The switch's case that computes ROWS remaining rows. */
#define TILE_STRIP(ROWS, VECTORS)                                                                            \
    case ROWS:                                                                                               \
        tile_##ROWS##_##VECTORS(t);                                                                          \
        break

#define TILE_STRIPS(VECTORS)                                                                                 \
    TILE_PANEL(1, VECTORS)                                                                                   \
    TILE_PANEL(2, VECTORS)                                                                                   \
    TILE_PANEL(3, VECTORS)                                                                                   \
    TILE_PANEL(4, VECTORS)                                                                                   \
    TILE_PANEL(5, VECTORS)                                                                                   \
    TILE_PANEL(6, VECTORS)                                                                                   \
    static void strips_##VECTORS(struct tile_product t)                                                      \
    {                                                                                                        \
        for (; t.m >= TILE_ROWS; t.m -= TILE_ROWS, t.a += TILE_ROWS * t.a_row, t.c += TILE_ROWS * t.ldc)     \
            TILE_FULL(VECTORS)(t);                                                                           \
        switch (t.m) {                                                                                       \
            TILE_STRIP(1, VECTORS);                                                                          \
            TILE_STRIP(2, VECTORS);                                                                          \
            TILE_STRIP(3, VECTORS);                                                                          \
            TILE_STRIP(4, VECTORS);                                                                          \
            TILE_STRIP(5, VECTORS);                                                                          \
        default:                                                                                             \
            break;                                                                                           \
        }                                                                                                    \
    }

/* TILE_ROWS (rows) and TILE_WIDE (vectors a row) are chosen so that a tile's accumulators and the operands
 * fill the instruction set's registers. */
#define TILE_FULL_6(VECTORS) tile_6_##VECTORS
#define TILE_FULL_4(VECTORS) tile_4_##VECTORS
#if VECTOR == 16
#define TILE_ROWS 6
#define TILE_FULL TILE_FULL_6
#define TILE_WIDE 4
#define strips_wide strips_4
TILE_STRIPS(4)
#elif VECTOR == 8
#define TILE_ROWS 6
#define TILE_FULL TILE_FULL_6
#define TILE_WIDE 2
#define strips_wide strips_2
TILE_STRIPS(2)
#else
#define TILE_ROWS 4
#define TILE_FULL TILE_FULL_4
#define TILE_WIDE 2
#define strips_wide strips_2
TILE_STRIPS(2)
#endif
TILE_STRIPS(1)

/* sum + x * y, rounded alike everywhere. If the compiler chose, it would fuse the product and the sum in one
 * copy of a loop and not in another. */
INLINE float add_product(float sum, float x, float y)
{
#ifdef __FMA__
    return __builtin_fmaf(x, y, sum);
#else
    return sum + x * y;
#endif
}

static void tile_scalar(const struct tile_product *t)
{
    for (size_t i = 0; i < t->m; i++)
        for (size_t j = 0; j < t->n; j++) {
            float sum = 0.0f, *at = t->c + i * t->ldc + j;
            for (size_t p = 0; p < t->k; p++)
                sum = add_product(sum, t->a[i * t->a_row + p * t->a_col], t->b[p * t->ldb + j]);
            *at = t->accumulate ? *at + sum : sum;
        }
}

/* Moves on to the product without its first `columns` columns. */
INLINE void columns_drop(struct tile_product *t, size_t columns)
{
    t->n -= columns;
    t->b += columns;
    t->c += columns;
}

static void tile(const struct tile_product *product)
{
    struct tile_product t = *product;
    for (; t.n >= TILE_WIDE * VECTOR; columns_drop(&t, TILE_WIDE * VECTOR))
        strips_wide(t);
    for (; t.n >= VECTOR; columns_drop(&t, VECTOR))
        strips_1(t);
    tile_scalar(&t);
}

/* ROWS x COLUMNS dot products from c[row, column] on, over the whole of k, with lanes along k. */
#define DOT_PANEL(ROWS, COLUMNS)                                                                             \
    INLINE void dot_##ROWS##_##COLUMNS(const struct gemm_f32 *g, size_t row, size_t column)                  \
    {                                                                                                        \
        const float *a = g->a + row * g->lda, *b = g->b + column * g->ldb;                                   \
        vf sum[ROWS][COLUMNS];                                                                               \
        size_t p = 0;                                                                                        \
        _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)                                               \
            _Pragma("GCC unroll 8") for (int j = 0; j < COLUMNS; j++) sum[i][j] = splat(0.0f);               \
        for (; p + VECTOR <= g->k; p += VECTOR) {                                                            \
            vf left[ROWS];                                                                                   \
            _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) left[i] =                                 \
                load(a + (size_t)i * g->lda + p);                                                            \
            _Pragma("GCC unroll 8") for (int j = 0; j < COLUMNS; j++)                                        \
            {                                                                                                \
                vf right = load(b + (size_t)j * g->ldb + p);                                                 \
                _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) sum[i][j] += left[i] * right;         \
            }                                                                                                \
        }                                                                                                    \
        for (int i = 0; i < ROWS; i++)                                                                       \
            for (int j = 0; j < COLUMNS; j++) {                                                              \
                float total = LANES_SUM(sum[i][j]);                                                          \
                for (size_t q = p; q < g->k; q++)                                                            \
                    total = add_product(total, a[(size_t)i * g->lda + q], b[(size_t)j * g->ldb + q]);        \
                float *at = g->c + (row + (size_t)i) * g->ldc + column + (size_t)j;                          \
                *at = g->alpha * total + (g->beta == 0.0f ? 0.0f : g->beta * *at);                           \
            }                                                                                                \
    }

#if VECTOR == 16
DOT_PANEL(4, 6)
DOT_PANEL(1, 6)
DOT_PANEL(4, 1)
#define DOT_ROWS 4
#define DOT_COLUMNS 6
#define dot_panel dot_4_6
#define dot_row dot_1_6
#define dot_column dot_4_1
#else
DOT_PANEL(3, 4)
DOT_PANEL(1, 4)
DOT_PANEL(3, 1)
#define DOT_ROWS 3
#define DOT_COLUMNS 4
#define dot_panel dot_3_4
#define dot_row dot_1_4
#define dot_column dot_3_1
#endif
DOT_PANEL(1, 1)

static void gemm_nt_thin(const struct gemm_f32 *g)
{
    size_t j = 0, i;
    for (; j + DOT_COLUMNS <= g->n; j += DOT_COLUMNS) {
        for (i = 0; i + DOT_ROWS <= g->m; i += DOT_ROWS)
            dot_panel(g, i, j);
        for (; i < g->m; i++)
            dot_row(g, i, j);
    }
    for (; j < g->n; j++) {
        for (i = 0; i + DOT_ROWS <= g->m; i += DOT_ROWS)
            dot_column(g, i, j);
        for (; i < g->m; i++)
            dot_1_1(g, i, j);
    }
}

/* Transposes a square of VECTOR x VECTOR values in registers, in log2(VECTOR) rounds of exchanges. */
INLINE void transpose_square(const float *from, size_t ld, float *to, size_t ldt)
{
    vf row[VECTOR];
    _Pragma("GCC unroll 16") for (int i = 0; i < VECTOR; i++) row[i] = load(from + (size_t)i * ld);
    TRANSPOSE_ROUNDS(row)
    _Pragma("GCC unroll 16") for (int i = 0; i < VECTOR; i++) store(to + (size_t)i * ldt, row[i]);
}

/* to[depth][columns] = b[columns][depth] transposed; rows of `to` are ldt values apart. */
static void panel_transpose(const float *b, size_t ldb, size_t columns, size_t depth, float *to, size_t ldt)
{
    size_t j = 0;
    for (; j + VECTOR <= columns; j += VECTOR) {
        size_t p = 0;
        for (; p + VECTOR <= depth; p += VECTOR)
            transpose_square(b + j * ldb + p, ldb, to + p * ldt + j, ldt);
        for (; p < depth; p++)
            for (size_t i = 0; i < VECTOR; i++)
                to[p * ldt + j + i] = b[(j + i) * ldb + p];
    }
    for (; j < columns; j++)
        for (size_t p = 0; p < depth; p++)
            to[p * ldt + j] = b[j * ldb + p];
}

/* Up to DOT_ROWS_MAX rows use dot products, because values of b are used too seldom to pay for transposing
 * them. Up to COPY_ROWS_MIN rows read b in place. */
enum {
    DOT_ROWS_MAX = 4,
    COPY_ROWS_MIN = 24,
    GEMM_ROWS = 240 /* rows of a and c for one pass over b: these stay in the cache meanwhile */
};

/* to[depth][columns] = b, with rows of `to` 64 values apart. The copy pays because the rows of b may be so
 * far apart that they compete for few cache lines. */
static void panel_copy(const float *b, size_t ldb, size_t columns, size_t depth, float *to)
{
    for (size_t p = 0; p < depth; p++)
        memcpy(to + p * 64, b + p * ldb, columns * sizeof(*to));
}

/* Rows [row, row + rows) of the product, before alpha. */
static void gemm_rows(const struct gemm_f32 *g, size_t row, size_t rows, float *scratch)
{
    size_t a_row = g->transpose_a ? 1 : g->lda, a_col = g->transpose_a ? g->lda : 1;
    for (size_t p = 0; p < g->k; p += GEMM_DEPTH) {
        struct tile_product t = {.m = rows,
                                 .n = g->n,
                                 .k = g->k - p < GEMM_DEPTH ? g->k - p : GEMM_DEPTH,
                                 .a = g->a + row * a_row + p * a_col,
                                 .a_row = a_row,
                                 .a_col = a_col,
                                 .b = scratch,
                                 .ldb = 64,
                                 .c = g->c + row * g->ldc,
                                 .ldc = g->ldc,
                                 .accumulate = g->beta != 0.0f || p != 0};
        if (!g->transpose_b && rows < COPY_ROWS_MIN) {
            t.b = g->b + p * g->ldb;
            t.ldb = g->ldb;
            tile(&t);
            continue;
        }
        for (size_t j = 0; j < g->n; j += 64, t.c += 64) {
            t.n = g->n - j < 64 ? g->n - j : 64;
            if (g->transpose_b)
                panel_transpose(g->b + j * g->ldb + p, g->ldb, t.n, t.k, scratch, 64);
            else
                panel_copy(g->b + p * g->ldb + j, g->ldb, t.n, t.k, scratch);
            tile(&t);
        }
    }
}

static void gemm(const struct gemm_f32 *g, float *scratch)
{
    if (g->transpose_b && g->m <= DOT_ROWS_MAX && !g->transpose_a) {
        gemm_nt_thin(g);
        return;
    }
    for (size_t i = 0; i < g->m; i += GEMM_ROWS)
        gemm_rows(g, i, g->m - i < GEMM_ROWS ? g->m - i : GEMM_ROWS, scratch);
    for (size_t i = 0; g->alpha != 1.0f && i < g->m; i++)
        scale(g->c + i * g->ldc, g->alpha, g->c + i * g->ldc, g->n);
}

#endif
