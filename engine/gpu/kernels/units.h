/* Tiles of products with matrix units: operands in 16 bits in shared memory, fragments (fragment.h) in each
 * warp, sums in fp32. Blocks have 256 threads. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_UNITS_H
#define MOTLEY_ENGINE_GPU_KERNELS_UNITS_H

#include "engine/gpu/kernels/fragment.h"
#include "engine/gpu/kernels/tile.h"

/* Terms of a tile. On AMD's cards 16, so that two blocks have room in a compute unit's 64 KiB. */
#if defined(__HIP__)
#define UNITS_DEPTH 16
#else
#define UNITS_DEPTH 32
#endif

/* Tiles in 16 bits have the order of device memory, so that a thread stores the four values that it fetched
 * in one access: line by line (rows of a, columns of b) with the chunks of terms swizzled (fragment.h), or
 * term by term with up to 128 lines in 64 of every 68 words. There are two buffers for each tile: one is
 * filled while the other is multiplied. Pieces of 1024 values, four a thread, follow each other along the
 * lines or across them. */
enum {
    UNITS_ALONG = UNITS_DEPTH / 2,
    UNITS_ACROSS = 68,
    UNITS_SWIZZLE = UNITS_DEPTH == 32 ? 1 : 2,
    UNITS_WORDS = UNITS_DEPTH * UNITS_ACROSS,
    UNITS_PIECES = 128 * UNITS_DEPTH / 1024
};

/* Words from the beginning of a tile to line `line`, a multiple of 8, of its first term. */
FUNCTION uint32_t units_line(uint32_t along, uint32_t line)
{
    return along ? line * UNITS_ALONG : line / 2;
}

/* Fetches this thread's part of a tile of `wide` lines: four values of each piece. */
FUNCTION void units_fetch(const struct tile_source *s, uint32_t storage, uint32_t wide, uint32_t across,
                          uint32_t term, uint32_t end, struct fetched next[UNITS_PIECES])
{
    uint32_t line_step = s->along ? 1024 / UNITS_DEPTH : 0, term_step = s->along ? 0 : 1024 / wide;
    UNROLL
    for (uint32_t p = 0; p < UNITS_PIECES; p++)
        if (p == 0 || p * 1024 < wide * UNITS_DEPTH)
            next[p] =
                tile_fetch(s, storage, wide, UNITS_DEPTH, across + p * line_step, term + p * term_step, end);
}

/* The two words of four values: rounded to the element type, unless they are stored in it. */
FUNCTION struct four_words units_words(const struct tile_source *s, uint32_t storage, float *table,
                                       uint32_t element, struct fetched next)
{
    struct four_words words;
    if (storage == STORED_PLAIN && s->kind == element) {
        words.w[0] = next.w[0];
        words.w[1] = next.w[1];
        return words;
    }
    struct four x = source_values(s, storage, table, next);
    words.w[0] = fragment_pair(element, x.v[0], x.v[1]);
    words.w[1] = fragment_pair(element, x.v[2], x.v[3]);
    return words;
}

FUNCTION void units_put(const struct tile_source *s, uint32_t storage, float *table, uint32_t *tile,
                        uint32_t element, uint32_t wide, struct fetched next[UNITS_PIECES])
{
    uint32_t along = s->along;
    uint32_t line = fetch_across(wide, UNITS_DEPTH, along), term = fetch_term(wide, UNITS_DEPTH, along);
    uint32_t at = along
                      ? line * UNITS_ALONG + fragment_chunk(line, term / 8, UNITS_SWIZZLE) * 4 + term / 2 % 4
                      : term * UNITS_ACROSS + line / 2;
    uint32_t step =
        along ? 512 : 1024 / wide * UNITS_ACROSS; /* words between a thread's places in two pieces */
    if (4 * thread() >= wide * UNITS_DEPTH)
        return;
    UNROLL
    for (uint32_t p = 0; p < UNITS_PIECES; p++)
        if (p == 0 || p * 1024 < wide * UNITS_DEPTH)
            PUT((struct four_words *)tile, (at + p * step) / 2,
                units_words(s, storage, table, element, next[p]));
}

/* --- values that come in eights ---
 *
 * Tiles of 128 lines whose values are stored in the element type, in eights that are aligned, come in chunks
 * of 8 values without passing through a conversion; NVIDIA's cards from sm_80 on copy them straight to shared
 * memory. NF4's codes come in runs of UNITS_RUN values, which have one scale. */

enum {
    UNITS_CHUNKS = 128 * UNITS_DEPTH / 8 / 256, /* chunks of a tile that a thread copies */
    UNITS_RUN = 128 * UNITS_DEPTH / 256         /* codes of a tile that a thread unpacks */
};

/* How a thread reads its part of every tile. Its first value is at (line, term) of a tile. */
struct units_reader {
    uint64_t from; /* address (of NF4: number) of its first value in the next tile */
    uint32_t tile,
        piece; /* bytes (of NF4: values) to the tile after that; bytes from one of its chunks to the next */
    uint32_t to, step; /* words from the tile's beginning to its first chunk, and from chunk to chunk */
    uint32_t term, term_step;
    uint32_t exists[UNITS_CHUNKS];            /* its chunks' lines are within the matrix */
    struct fragment_eight next[UNITS_CHUNKS]; /* what was read, where it passes through registers */
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

/* Copies 16 bytes, or zeros, behind the thread's back, until units_arrived. */
FUNCTION void units_chunk_read(struct units_reader *r, uint32_t i, uint32_t *to, uint32_t exists)
{
    __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(fragment_address(to)), "l"(r->from + i * r->piece), "r"(exists ? 16u : 0u)
                     : "memory");
}

FUNCTION void units_arrived(struct units_reader *r, uint32_t *tile)
{
    (void)r, (void)tile;
    __asm__ volatile("cp.async.wait_all;" : : : "memory");
}

#else

FUNCTION void units_chunk_read(struct units_reader *r, uint32_t i, uint32_t *to, uint32_t exists)
{
    (void)to;
    r->next[i].w[0] = r->next[i].w[1] = r->next[i].w[2] = r->next[i].w[3] = 0;
    if (exists)
        r->next[i] = LOAD(POINTER(const struct fragment_eight, r->from + i * r->piece), 0);
}

FUNCTION void units_arrived(struct units_reader *r, uint32_t *tile)
{
    UNROLL
    for (uint32_t i = 0; i < UNITS_CHUNKS; i++)
        PUT((struct fragment_eight *)tile, (r->to + i * r->step) / 4, r->next[i]);
}

#endif

/* A reader of a matrix, `packed` or in 16 bits, for the tiles from line `across` and term `begin` on. */
FUNCTION struct units_reader units_reader_of(const struct tile_source *s, uint32_t packed, uint32_t across,
                                             uint32_t begin)
{
    struct units_reader r;
    const uint32_t run = packed ? UNITS_RUN : 8, bytes = packed ? 1 : 2;
    /* the logarithm of how many threads share a line (across: a term) */
    const uint32_t each = (s->along ? (UNITS_DEPTH == 32 ? 5 : 4) : 7) - (run == 8 ? 3 : 4),
                   turn = 256u >> each;
    const uint32_t one = thread() >> each, other = (thread() & ((1u << each) - 1u)) * run;
    const uint32_t line = s->along ? one : other, term = s->along ? other : one;
    const uint64_t at = s->along ? (uint64_t)(across + line) * s->ld + begin + term
                                 : (uint64_t)(begin + term) * s->ld + across + line;
    const uint32_t lines = s->along ? turn : 0;
    r.from = packed ? at : s->matrix + 2 * at;
    r.tile = bytes * UNITS_DEPTH * (s->along ? 1 : s->ld);
    r.piece = bytes * turn * s->ld;
    r.to = s->along ? line * UNITS_ALONG + fragment_chunk(line, term / 8, UNITS_SWIZZLE) * 4
                    : term * UNITS_ACROSS + line / 2;
    r.step = turn * (s->along ? UNITS_ALONG : UNITS_ACROSS);
    r.term = term;
    r.term_step = s->along ? 0 : turn;
    UNROLL
    for (uint32_t i = 0; i < UNITS_CHUNKS; i++)
        r.exists[i] = across + line + i * lines < s->limit;
    return r;
}

/* Begins to read the next tile, of which `left` terms exist, to shared memory or to registers. */
FUNCTION void units_ahead(struct units_reader *r, uint32_t *tile, uint32_t left)
{
    UNROLL
    for (uint32_t i = 0; i < UNITS_CHUNKS; i++)
        units_chunk_read(r, i, tile + r->to + i * r->step, r->exists[i] && r->term + i * r->term_step < left);
    r->from += r->tile;
}

/* Reads a run of NF4's codes and the parts of its scale: codes in w[0] and w[1], the rest in w[2] and w[3].
 */
FUNCTION void units_run_read(const struct tile_source *s, struct units_reader *r, uint32_t left)
{
    struct fragment_eight *next = &r->next[0];
    const uint64_t i = r->from;
    next->w[0] = next->w[1] = NF4_ZEROS * 0x10001u;
    next->w[2] = next->w[3] = 0;
    if (r->exists[0] && r->term < left) {
        if (UNITS_RUN == 16) {
            struct four_words codes = LOAD(POINTER(const struct four_words, s->matrix), i / 16);
            next->w[0] = codes.w[0];
            next->w[1] = codes.w[1];
        } else {
            next->w[0] = LOAD(POINTER(const uint32_t, s->matrix), i / 8);
        }
        /* as in nf4_read */
        next->w[2] = LOAD(POINTER(const uint8_t, s->absmax), s->kind ? i / 64 : 0);
        next->w[3] = math_bits(
            LOAD(POINTER(const float, s->kind ? s->scales : s->absmax), s->kind ? 1 + i / 64 / 256 : i / 64));
    }
    r->from += r->tile;
}

FUNCTION void units_ahead_b(const struct tile_source *s, uint32_t storage, struct units_reader *r,
                            uint32_t *tile, uint32_t left)
{
    if (storage == STORED_NF4)
        units_run_read(s, r, left);
    else
        units_ahead(r, tile, left);
}

/* Stores the values of a run. Where lines are neighbours, every other four lanes store their chunks in the
 * opposite order, so that eight lanes use all banks. */
FUNCTION void units_run_put(const struct tile_source *s, const struct units_reader *r, float *table,
                            uint32_t element, uint32_t *tile)
{
    const uint32_t chunks = UNITS_RUN / 8, line = r->to / UNITS_ALONG;
    const uint32_t turned = chunks == 2 && !s->along && lane() / 4 % 2 == 1;
    const uint32_t first = r->next[0].w[0], second = r->next[0].w[chunks - 1];
    const float absmax = nf4_scale(table, s->kind, s->offset, r->next[0].w[2], r->next[0].w[3]);
    UNROLL
    for (uint32_t i = 0; i < chunks; i++) {
        const uint32_t c = turned ? 1 - i : i, codes = c == 0 ? first : second;
        struct fragment_eight chunk;
        UNROLL
        for (uint32_t w = 0; w < 4; w++) { /* the first value of a byte is in its upper half */
            const uint32_t byte = codes >> 8 * w;
            chunk.w[w] =
                fragment_pair(element, GET(table, byte >> 4 & 15u) * absmax, GET(table, byte & 15u) * absmax);
        }
        const uint32_t along = line * UNITS_ALONG + fragment_chunk(line, r->term / 8 + c, UNITS_SWIZZLE) * 4;
        PUT((struct fragment_eight *)tile, (s->along ? along : r->to + 4 * c) / 4, chunk);
    }
}

/* First row and column of a warp's part of a tile of 32 * rows by 32 * columns. Two neighbouring warps divide
 * the rows; pairs of warps (four with 32 lanes, two with 64) divide the columns. */
FUNCTION uint32_t units_row(uint32_t rows)
{
    return warp() % 2 * 16 * rows;
}

FUNCTION uint32_t units_column(uint32_t columns)
{
    return warp() / 2 * fragment_columns() * columns;
}

/* The fragments of a warp's part of both tiles: rows by columns of them. */
struct units_fragments {
    uint32_t a[4][FRAGMENT_A], b[4][FRAGMENT_B];
};

/* Loads the fragments of 16 terms, from term 8 * chunk on. */
FUNCTION void units_take(uint32_t *tile_a, uint32_t a_along, uint32_t *tile_b, uint32_t b_along,
                         uint32_t chunk, uint32_t rows, uint32_t columns, struct units_fragments *f)
{
    const uint32_t pair = columns > 1 ? 2 : 1, swizzle = UNITS_SWIZZLE;
    tile_a += units_line(a_along, units_row(rows)) + (a_along ? 0 : 8 * chunk * UNITS_ACROSS);
    tile_b += units_line(b_along, units_column(columns)) + (b_along ? 0 : 8 * chunk * UNITS_ACROSS);
    if (a_along) {
        UNROLL
        for (uint32_t i = 0; i < rows; i++)
            fragment_take_a(tile_a, units_line(1, 16 * i), UNITS_ALONG, swizzle, chunk, 0, f->a[i]);
    } else {
        UNROLL
        for (uint32_t i = 0; i < rows; i++)
            fragment_take_a(tile_a, units_line(0, 16 * i), UNITS_ACROSS, 0, 0, 1, f->a[i]);
    }
    if (b_along) {
        UNROLL
        for (uint32_t j = 0; j < columns; j += pair)
            fragment_take_b(tile_b, units_line(1, j * fragment_columns()), UNITS_ALONG, swizzle, chunk, 0,
                            pair, &f->b[j]);
    } else {
        UNROLL
        for (uint32_t j = 0; j < columns; j += pair)
            fragment_take_b(tile_b, units_line(0, j * fragment_columns()), UNITS_ACROSS, 0, 0, 1, pair,
                            &f->b[j]);
    }
}

/* sums += the product of the fragments. */
FUNCTION void units_multiply(uint32_t element, struct units_fragments *f, uint32_t rows, uint32_t columns,
                             float sums[16][4])
{
    const uint32_t pair = columns > 1 ? 2 : 1;
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < columns; j += pair)
            fragment_multiply(element, f->a[i], &f->b[j], pair, &sums[4 * i + j]);
    }
}

/* Stores one fragment of sums, whose first value belongs at (row, column). */
FUNCTION void units_part(const struct product *p, uint32_t row, uint32_t column, const float *sums)
{
    const uint32_t aligned = rdna() != 0 && (p->c | p->add) % 16 == 0 && p->ldc % 4 == 0;
    const uint32_t each = 4 / fragment_rows(); /* neighbouring values of a row */
    column += fragment_column(0);
    row += fragment_row(0);
    UNROLL
    for (uint32_t r = 0; r < 4; r += each) {
        const uint32_t below = row + (fragment_row(r) - fragment_row(0));
        if (below < p->m)
            product_part(p, each, aligned, product_line(p, below), column, &sums[r]);
    }
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

/* Computes the tile of c at (row, column), of 32 * rows by 32 * columns values, from the terms of one piece.
 * Operands are rounded to p->compute on their way to shared memory; sums are fp32. The storage of b, `whole`
 * (tile.h), rows and columns are constants. */
FUNCTION void units_tile(const struct product *p, uint32_t storage, uint32_t whole, uint32_t rows,
                         uint32_t columns, uint32_t row, uint32_t column, uint32_t piece)
{
    SHARED(uint32_t, tile_a, 2 * UNITS_WORDS);
    SHARED(uint32_t, tile_b, 2 * UNITS_WORDS);
    SHARED(float, table, NF4_TABLE);
    float sums[16][4];
    uint32_t begin = piece * p->k_piece, end = p->k - begin < p->k_piece ? p->k : begin + p->k_piece;
    uint32_t element = FRAGMENT_BF16 ? p->compute : ELEMENT_F16, at = 0;
    uint32_t works = row + units_row(rows) < p->m && column + units_column(columns) < p->n;
    struct tile_source a = source_a(p), b = source_b(p, storage, table);
    a.whole = b.whole = whole;
    struct fetched next_a[UNITS_PIECES], next_b[UNITS_PIECES];
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < 4 * columns; j++)
            sums[4 * i + j / 4][j % 4] = 0.0f;
    }
    units_fetch(&a, STORED_PLAIN, 32 * rows, row, begin, end, next_a);
    units_fetch(&b, storage, 32 * columns, column, begin, end, next_b);
    for (uint32_t term = begin; term < end; term += UNITS_DEPTH) {
        units_put(&a, STORED_PLAIN, table, tile_a + at, element, 32 * rows, next_a);
        units_put(&b, storage, table, tile_b + at, element, 32 * columns, next_b);
        barrier();
        if (end - term > UNITS_DEPTH) {
            units_fetch(&a, STORED_PLAIN, 32 * rows, row, term + UNITS_DEPTH, end, next_a);
            units_fetch(&b, storage, 32 * columns, column, term + UNITS_DEPTH, end, next_b);
        }
        UNROLL
        for (uint32_t half = 0; half < UNITS_DEPTH; half += 16) {
            struct units_fragments now;
            if (!works || end - term <= half)
                continue;
            units_take(tile_a + at, a.along, tile_b + at, b.along, half / 8, rows, columns, &now);
            if (element == ELEMENT_F16)
                units_multiply(ELEMENT_F16, &now, rows, columns, sums);
            else
                units_multiply(ELEMENT_BF16, &now, rows, columns, sums);
        }
        at = UNITS_WORDS - at;
    }
    if (works)
        units_store(p, rows, columns, row + units_row(rows), column + units_column(columns), piece, sums);
}

/* Like units_tile for a tile of 128 x 128 whose operands come in eights, or b in NF4's runs. The tile that is
 * copied while another is multiplied passes through few registers, so two blocks share a multiprocessor. */
FUNCTION void units_tile_eights(const struct product *p, uint32_t storage, uint32_t row, uint32_t column,
                                uint32_t piece)
{
    SHARED(uint32_t, tile_a, 2 * UNITS_WORDS);
    SHARED(uint32_t, tile_b, 2 * UNITS_WORDS);
    SHARED(float, table, NF4_TABLE);
    float sums[16][4];
    uint32_t begin = piece * p->k_piece, end = p->k - begin < p->k_piece ? p->k : begin + p->k_piece;
    uint32_t element = FRAGMENT_BF16 ? p->compute : ELEMENT_F16, at = 0;
    uint32_t works = row + units_row(4) < p->m && column + units_column(4) < p->n;
    struct tile_source a = source_a(p), b = source_b(p, storage, table);
    struct units_reader from_a = units_reader_of(&a, 0, row, begin);
    struct units_reader from_b = units_reader_of(&b, storage == STORED_NF4, column, begin);
    UNROLL
    for (uint32_t i = 0; i < 16; i++)
        sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;
    units_ahead(&from_a, tile_a, end - begin);
    units_ahead_b(&b, storage, &from_b, tile_b, end - begin);
    for (uint32_t term = begin; term < end; term += UNITS_DEPTH) {
        uint32_t other = UNITS_WORDS - at;
        if (storage == STORED_NF4)
            units_run_put(&b, &from_b, table, element, tile_b + at);
        else
            units_arrived(&from_b, tile_b + at);
        units_arrived(&from_a, tile_a + at);
        barrier();
        if (end - term > UNITS_DEPTH) {
            units_ahead(&from_a, tile_a + other, end - term - UNITS_DEPTH);
            units_ahead_b(&b, storage, &from_b, tile_b + other, end - term - UNITS_DEPTH);
        }
        UNROLL
        for (uint32_t half = 0; half < UNITS_DEPTH; half += 16) {
            struct units_fragments now;
            if (!works || end - term <= half)
                continue;
            units_take(tile_a + at, a.along, tile_b + at, b.along, half / 8, 4, 4, &now);
            if (element == ELEMENT_F16)
                units_multiply(ELEMENT_F16, &now, 4, 4, sums);
            else
                units_multiply(ELEMENT_BF16, &now, 4, 4, sums);
        }
        at = other;
    }
    if (works)
        units_store(p, 4, 4, row + units_row(4), column + units_column(4), piece, sums);
}

#endif
