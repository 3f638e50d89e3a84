/* Products whose operands are rounded to 16 bits. Blocks of a and b are rounded while they are copied to
 * where the strips of kernels_gemm.h read them, in reading order (Goto and van de Geijn 2008). Operands may
 * also be stored in 16 bits. Part of kernels_body.h, which includes it once per instruction set.
 */
#ifndef MOTLEY_ENGINE_CPU_KERNELS_ROUNDED_H
#define MOTLEY_ENGINE_CPU_KERNELS_ROUNDED_H

enum {
    ROUNDED_PANEL = TILE_WIDE * VECTOR /* columns of the widest strip */
};

typedef uint16_t vs __attribute__((vector_size(2 * VECTOR)));
typedef uint16_t vsu __attribute__((vector_size(2 * VECTOR), aligned(2), may_alias));

INLINE vf round_bf16(vf x)
{
    vu bits = (vu)x, up = bits + 0x7FFF + (bits >> 16 & 1);
    return select_f(x != x, x, (vf)(up & 0xFFFF0000u));
}

#ifndef ROUND_F16
/* Rounds to fp16's precision by an integer addition at the last bit that is kept. Below the normal range it
 * adds and subtracts 1/2, whose last bit in fp32 is fp16's smallest number. */
INLINE vf round_f16(vf x)
{
    vu bits = (vu)x & 0x7FFFFFFFu, sign = (vu)x & 0x80000000u;
    vf size = (vf)bits, normal = (vf)((bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000u);
    vf small = size + splat(0.5f) - splat(0.5f);
    vf y = select_f(size < splat(0x1p-14f), small, normal);
    y = select_f(y > splat(65504.0f), splat(INFINITY), y);
    return select_f(x != x, x, (vf)((vu)y | sign));
}

/* Converts fp16 to fp32 by the same method as from_f16. */
INLINE vf widen_f16(vs x)
{
    vu word = __builtin_convertvector(x, vu) << 16, sign = word & 0x80000000u, twice = word + word;
    vf normal = (vf)((twice >> 4) + (0xE0u << 23)) * splat(0x1.0p-112f);
    vf small = (vf)((twice >> 17) | (126u << 23)) - splat(0.5f);
    return (vf)((vu)select_f((vi)(twice < (1u << 27)), small, normal) | sign);
}
#define ROUND_F16 round_f16
#define WIDEN_F16 widen_f16
#endif

/* Callers pass constants for `to` and `from`, so the compiler removes the branches. */
INLINE vf round_to(enum value_kind to, enum value_kind from, vf x)
{
    if (to == from)
        return x;
    return to == VALUES_BF16 ? round_bf16(x) : ROUND_F16(x);
}

INLINE vf values_load(enum value_kind to, enum value_kind from, const void *p, size_t at)
{
    const uint16_t *half = (const uint16_t *)p + at;
    if (from == VALUES_F32)
        return round_to(to, from, load((const float *)p + at));
    if (from == VALUES_BF16)
        return round_to(to, from, (vf)(__builtin_convertvector(*(const vsu *)half, vu) << 16));
    return round_to(to, from, WIDEN_F16(*(const vsu *)half));
}

/* The last n < VECTOR values, then zeros. */
INLINE vf values_tail(enum value_kind to, enum value_kind from, const void *p, size_t at, size_t n)
{
    uint32_t held[VECTOR] = {0};
    size_t size = from == VALUES_F32 ? 4 : 2;
    memcpy(held, (const char *)p + at * size, n * size);
    return values_load(to, from, held, 0);
}

/* x[rows, columns], which begins at value `at`. */
struct value_block {
    const void *x;
    size_t at, ld, rows, columns;
};

/* to[rows][ldt] = rounded values; columns are padded with zeros to the next multiple of VECTOR. */
INLINE void block_copy(enum value_kind as, enum value_kind kind, struct value_block from, float *to,
                       size_t ldt)
{
    for (size_t i = 0; i < from.rows; i++, from.at += from.ld, to += ldt) {
        size_t j = 0;
        for (; j + VECTOR <= from.columns; j += VECTOR)
            store(to + j, values_load(as, kind, from.x, from.at + j));
        if (j < from.columns)
            store(to + j, values_tail(as, kind, from.x, from.at + j, from.columns - j));
    }
}

/* to[columns][ldt] = the block transposed and rounded; both sides are padded with zeros to the next multiple
 * of VECTOR. */
INLINE void block_transpose(enum value_kind as, enum value_kind kind, struct value_block from, float *to,
                            size_t ldt)
{
    for (size_t j = 0; j < from.rows; j += VECTOR)
        for (size_t p = 0; p < from.columns; p += VECTOR) {
            vf row[VECTOR];
            for (size_t i = 0; i < VECTOR; i++) {
                size_t at = from.at + (j + i) * from.ld + p;
                row[i] = j + i >= from.rows           ? splat(0.0f)
                         : p + VECTOR <= from.columns ? values_load(as, kind, from.x, at)
                                                      : values_tail(as, kind, from.x, at, from.columns - p);
            }
            TRANSPOSE_ROUNDS(row)
            _Pragma("GCC unroll 16") for (int i = 0; i < VECTOR; i++)
                store(to + (p + (size_t)i) * ldt + j, row[i]);
        }
}

typedef void block_function(const struct value_block *from, float *to, size_t ldt);

#define BLOCK_FUNCTIONS(AS, KIND)                                                                            \
    static void copy_##AS##_##KIND(const struct value_block *from, float *to, size_t ldt)                    \
    {                                                                                                        \
        block_copy(VALUES_##AS, VALUES_##KIND, *from, to, ldt);                                              \
    }                                                                                                        \
    static void transpose_##AS##_##KIND(const struct value_block *from, float *to, size_t ldt)               \
    {                                                                                                        \
        block_transpose(VALUES_##AS, VALUES_##KIND, *from, to, ldt);                                         \
    }
BLOCK_FUNCTIONS(BF16, F32)
BLOCK_FUNCTIONS(BF16, BF16)
BLOCK_FUNCTIONS(BF16, F16)
BLOCK_FUNCTIONS(F16, F32)
BLOCK_FUNCTIONS(F16, BF16)
BLOCK_FUNCTIONS(F16, F16)

/* Copy functions by [dtype rounded to][dtype stored]. */
static block_function *const copies[VALUE_KINDS][VALUE_KINDS] = {
    [VALUES_BF16] = {copy_BF16_F32, copy_BF16_BF16, copy_BF16_F16},
    [VALUES_F16] = {copy_F16_F32, copy_F16_BF16, copy_F16_F16},
};
static block_function *const transposes[VALUE_KINDS][VALUE_KINDS] = {
    [VALUES_BF16] = {transpose_BF16_F32, transpose_BF16_BF16, transpose_BF16_F16},
    [VALUES_F16] = {transpose_F16_F32, transpose_F16_BF16, transpose_F16_F16},
};

static void round_rows(enum value_kind as, const struct gemm_values *x, size_t at, size_t rows,
                       size_t columns, float *to, size_t ldt)
{
    const struct value_block from = {x->at, at, x->ld, rows, columns};
    copies[as][x->kind](&from, to, ldt);
}

static void round_transposed(enum value_kind as, const struct gemm_values *x, size_t at, size_t rows,
                             size_t columns, float *to, size_t ldt)
{
    const struct value_block from = {x->at, at, x->ld, rows, columns};
    transposes[as][x->kind](&from, to, ldt);
}

/* Scratch memory of gemm_rounded: a block of a; a block of b as consecutive strips of ROUNDED_PANEL columns,
 * [depth][columns] each; and sums before they are added to c. */
struct rounded_room {
    float *a, *b, *sums;
    size_t a_row, a_col; /* element [i, p] of the block of a is a[i * a_row + p * a_col] */
};

static struct rounded_room room_of(const struct gemm_rounded *g, float *scratch)
{
    return (struct rounded_room){.a = scratch,
                                 .b = scratch + ROUNDED_ROWS * ROUNDED_DEPTH,
                                 .sums = scratch + ROUNDED_DEPTH * (ROUNDED_ROWS + ROUNDED_COLUMNS),
                                 .a_row = g->a.transposed ? 1 : ROUNDED_DEPTH,
                                 .a_col = g->a.transposed ? ROUNDED_ROWS : 1};
}

/* Copies and rounds the block of a that begins at [row, p]. A transposed a stays transposed in the copy. */
static void rounded_a(const struct gemm_rounded *g, const struct rounded_room *room, size_t row, size_t rows,
                      size_t p, size_t depth)
{
    const struct gemm_values *a = &g->a;
    if (a->transposed)
        round_rows(g->as, a, p * a->ld + row, depth, rows, room->a, ROUNDED_ROWS);
    else
        round_rows(g->as, a, row * a->ld + p, rows, depth, room->a, ROUNDED_DEPTH);
}

static void rounded_b(const struct gemm_rounded *g, float *to, size_t column, size_t columns, size_t p,
                      size_t depth)
{
    const struct gemm_values *b = &g->b;
    for (size_t j = 0; j < columns; j += ROUNDED_PANEL, to += ROUNDED_PANEL * ROUNDED_DEPTH) {
        size_t n = columns - j < ROUNDED_PANEL ? columns - j : ROUNDED_PANEL, at = column + j;
        if (b->transposed)
            round_transposed(g->as, b, at * b->ld + p, n, depth, to, ROUNDED_PANEL);
        else
            round_rows(g->as, b, p * b->ld + at, depth, n, to, ROUNDED_PANEL);
    }
}

/* to[rows, columns] is set to the block of a times one strip of b, or increased by it. A partial strip is
 * done vector by vector and writes columns up to the next multiple of VECTOR. */
static void block_multiply(const struct rounded_room *room, const float *b, size_t rows, size_t columns,
                           size_t depth, float *to, size_t ld, bool accumulate)
{
    struct tile_product t = {.m = rows,
                             .n = columns,
                             .k = depth,
                             .a = room->a,
                             .a_row = room->a_row,
                             .a_col = room->a_col,
                             .b = b,
                             .ldb = ROUNDED_PANEL,
                             .c = to,
                             .ldc = ld,
                             .accumulate = accumulate};
    if (columns > ROUNDED_PANEL - VECTOR) {
        strips_wide(t);
        return;
    }
    for (size_t j = 0; j < columns; j += VECTOR, t.b += VECTOR, t.c += VECTOR)
        strips_1(t);
}

/* Adds one block's product to c[rows, columns]; `first` marks the first block of k, which applies beta. */
static void rounded_strip(const struct gemm_rounded *g, const struct rounded_room *room, const float *b,
                          size_t rows, size_t columns, size_t depth, bool first, float *c)
{
    bool plain = g->alpha == 1.0f && (!first || g->beta == 0.0f || g->beta == 1.0f);
    if (columns % VECTOR == 0 && plain) {
        block_multiply(room, b, rows, columns, depth, c, g->ldc, !first || g->beta != 0.0f);
        return;
    }
    block_multiply(room, b, rows, columns, depth, room->sums, ROUNDED_PANEL, false);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) {
            float *at = c + i * g->ldc + j, old = first ? (g->beta == 0.0f ? 0.0f : g->beta * *at) : *at;
            float sum = room->sums[i * ROUNDED_PANEL + j];
            *at = g->alpha == 1.0f ? old + sum : old + g->alpha * sum;
        }
}

static void gemm_rounded(const struct gemm_rounded *g, float *scratch)
{
    struct rounded_room room = room_of(g, scratch);
    for (size_t column = 0; column < g->n; column += ROUNDED_COLUMNS)
        for (size_t p = 0; p < g->k; p += ROUNDED_DEPTH) {
            size_t columns = g->n - column < ROUNDED_COLUMNS ? g->n - column : ROUNDED_COLUMNS;
            size_t depth = g->k - p < ROUNDED_DEPTH ? g->k - p : ROUNDED_DEPTH;
            rounded_b(g, room.b, column, columns, p, depth);
            for (size_t row = 0; row < g->m; row += ROUNDED_ROWS) {
                size_t rows = g->m - row < ROUNDED_ROWS ? g->m - row : ROUNDED_ROWS;
                rounded_a(g, &room, row, rows, p, depth);
                for (size_t j = 0; j < columns; j += ROUNDED_PANEL)
                    rounded_strip(g, &room, room.b + j * ROUNDED_DEPTH, rows,
                                  columns - j < ROUNDED_PANEL ? columns - j : ROUNDED_PANEL, depth, p == 0,
                                  g->c + row * g->ldc + column + j);
            }
        }
}

#endif
