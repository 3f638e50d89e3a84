/* Attention with matrix units (fragment.h). Tiles, masks and arguments are those of attention.k.h; operands
 * are in 16 bits in shared memory, sums in fp32 in registers. A warp handles 16 rows of a tile: all 64
 * columns if warps have 64 lanes, else half of them. Every tile in shared memory is 64 rows by 64 columns in
 * the order of device memory. If an operand's rows are the terms of the product, it is read across the rows
 * (fragment_take_across), so nothing is transposed.
 */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_ATTENTION_UNITS_H
#define MOTLEY_ENGINE_GPU_KERNELS_ATTENTION_UNITS_H

#include "engine/gpu/kernels/fragment.h"

/* Rows of tiles are 36 words apart, so that the lanes of a fragment use different banks. */
enum {
    ATTENTION_UNITS_EIGHTS = 9, /* eights in a row: 64 values and one eight as padding */
    ATTENTION_UNITS_LD = 4 * ATTENTION_UNITS_EIGHTS,
    ATTENTION_UNITS_TILE = ATTENTION_ROWS * ATTENTION_UNITS_EIGHTS
};

/* The part of a tile that this thread copies: row thread / 8 and the row 32 below it, columns from 8 (thread
 * % 8) on. */
struct attention_values {
    struct fragment_eight row[2];
};

/* First row and column of the warp's part of a tile. */
FUNCTION uint32_t attention_units_row(void)
{
    return warp() % 4 * 16;
}

FUNCTION uint32_t attention_units_column(void)
{
    return warp() / 4 * 4 * fragment_columns();
}

/* The column, in the tile, of a lane's value r of fragment j, in a product of rows with rows (left *
 * right^T). */
FUNCTION uint32_t attention_units_along(uint32_t j, uint32_t r)
{
    return attention_units_column() + j * fragment_columns() + fragment_column(r);
}

/* The column, in the tile, of a lane's value r of fragment j, in a product whose right operand is read across
 * its rows (left * right). */
FUNCTION uint32_t attention_units_across(uint32_t j, uint32_t r)
{
    return attention_units_column() + fragment_across_column(j, fragment_column(r));
}

/* The eight values that begin `bytes` after the matrix's address. */
FUNCTION struct fragment_eight attention_eight_at(uint32_t element, const struct attention_matrix *m,
                                                  uint32_t bytes)
{
    struct fragment_eight eight;
    if (m->as != ELEMENT_F32)
        return LOAD(POINTER(const struct fragment_eight, m->at + bytes), 0);
    struct four low = LOAD(POINTER(const struct four, m->at + bytes), 0);
    struct four high = LOAD(POINTER(const struct four, m->at + bytes), 1);
    eight.w[0] = fragment_pair(element, low.v[0], low.v[1]);
    eight.w[1] = fragment_pair(element, low.v[2], low.v[3]);
    eight.w[2] = fragment_pair(element, high.v[0], high.v[1]);
    eight.w[3] = fragment_pair(element, high.v[2], high.v[3]);
    return eight;
}

/* The part of the matrix that begins at the first value of a tile that this thread copies. */
FUNCTION struct attention_matrix attention_own(struct attention_matrix m)
{
    return attention_from(m, thread() / 8, 8 * (thread() % 8));
}

/* Reads columns [column, column + 64) of the first 64 rows of a matrix, with zeros beyond `rows` and `width`;
 * which is converted to `element`: this thread reads 8 columns of two rows. m is what attention_own returned
 * for the matrix. */
FUNCTION struct attention_values attention_fetch(uint32_t element, const struct attention_matrix *m,
                                                 uint32_t rows, uint32_t column, uint32_t width)
{
    struct attention_values part;
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t row = thread() / 8 + 32 * h, at = column + 8 * (thread() % 8);
        part.row[h].w[0] = part.row[h].w[1] = part.row[h].w[2] = part.row[h].w[3] = 0;
        if (row < rows && at < width)
            part.row[h] = attention_eight_at(element, m, element_bytes(m->as) * (32 * h * m->ld + column));
    }
    return part;
}

FUNCTION void attention_store_tile(struct fragment_eight *tile, const struct attention_values *part)
{
    uint32_t at = thread() / 8 * ATTENTION_UNITS_EIGHTS + thread() % 8;
    PUT(tile, at, part->row[0]);
    PUT(tile, at + 32 * ATTENTION_UNITS_EIGHTS, part->row[1]);
}

/* Loads the warp's 16 rows of a tile as the left operand. */
FUNCTION void attention_left(struct fragment_eight *tile, uint32_t left[4][4])
{
    uint32_t *from = (uint32_t *)tile + attention_units_row() * ATTENTION_UNITS_LD;
    UNROLL
    for (uint32_t k = 0; k < 4; k++)
        fragment_take_kept(from, 8 * k, ATTENTION_UNITS_LD, left[k]);
}

/* sums += left * right^T: each row of the right tile is a column of the product. */
FUNCTION void attention_multiply_along(uint32_t element, uint32_t left[4][4], struct fragment_eight *right,
                                       float sums[4][4])
{
    uint32_t *from = (uint32_t *)right + attention_units_column() * ATTENTION_UNITS_LD;
    UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t a[FRAGMENT_A];
        fragment_of_kept(left[k], a);
        UNROLL
        for (uint32_t j = 0; j < 4; j += 2) {
            uint32_t b[2][FRAGMENT_B], row = j * fragment_columns();
            fragment_take_b(from, row * ATTENTION_UNITS_LD + 8 * k, ATTENTION_UNITS_LD, 0, 0, 0, 2, b);
            fragment_multiply(element, a, b, 2, &sums[j]);
        }
    }
}

/* sums += left * right: the rows of the right tile are the terms. */
FUNCTION void attention_multiply_across(uint32_t element, uint32_t left[4][4], struct fragment_eight *right,
                                        float sums[4][4])
{
    uint32_t *from = (uint32_t *)right + attention_units_column() / 2;
    UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t a[FRAGMENT_A];
        fragment_of_kept(left[k], a);
        UNROLL
        for (uint32_t j = 0; j < 4; j += fragment_across()) {
            uint32_t b[4][FRAGMENT_B];
            fragment_take_across(from, 16 * k * ATTENTION_UNITS_LD + j * fragment_columns() / 2,
                                 ATTENTION_UNITS_LD, b);
            UNROLL
            for (uint32_t i = 0; i < fragment_across(); i += 2)
                fragment_multiply(element, a, &b[i], 2, &sums[j + i]);
        }
    }
}

FUNCTION void attention_along(uint32_t element, uint32_t left[4][4], struct fragment_eight *right,
                              float sums[4][4])
{
    if (element == ELEMENT_F16)
        attention_multiply_along(ELEMENT_F16, left, right, sums);
    else
        attention_multiply_along(ELEMENT_BF16, left, right, sums);
}

FUNCTION void attention_across(uint32_t element, uint32_t left[4][4], struct fragment_eight *right,
                               float sums[4][4])
{
    if (element == ELEMENT_F16)
        attention_multiply_across(ELEMENT_F16, left, right, sums);
    else
        attention_multiply_across(ELEMENT_BF16, left, right, sums);
}

/* Writes the warp's part of a product of rows with rows (left * right^T) to a tile, rounded. */
FUNCTION void attention_units_put(uint32_t element, struct fragment_eight *tile, float values[4][4])
{
    UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        UNROLL
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t at = (attention_units_row() + fragment_row(r)) * ATTENTION_UNITS_LD * 2 +
                          attention_units_along(j, r);
            if (warp_size() == 64)
                PUT((uint16_t *)tile, at, fragment_half(element, values[j][r]));
            else if (r % 2 == 0)
                PUT((uint32_t *)tile, at / 2, fragment_pair(element, values[j][r], values[j][r + 1]));
        }
    }
}

/* Rotates the fragments by one: the second becomes the first. After four turns the order is as before. Code
 * for each fragment can then work on the first and is in the kernel only once. */
FUNCTION void attention_units_turn(float sums[4][4])
{
    UNROLL
    for (uint32_t r = 0; r < 4; r++) {
        float first = sums[0][r];
        sums[0][r] = sums[1][r];
        sums[1][r] = sums[2][r];
        sums[2][r] = sums[3][r];
        sums[3][r] = first;
    }
}

FUNCTION void attention_units_clear(float sums[4][4])
{
    UNROLL
    for (uint32_t i = 0; i < 16; i++)
        sums[i / 4][i % 4] = 0.0f;
}

FUNCTION uint32_t attention_element(const struct attention_shape *a)
{
    return FRAGMENT_BF16 ? a->compute : ELEMENT_F16;
}

/* The running softmax of the fragment_rows() rows of which a lane has values. */
struct attention_running {
    float greatest[4], sum[4], factor[4];
};

/* Maximum and sum over the lanes that share rows. */
FUNCTION float attention_lanes_max(float x)
{
    UNROLL
    for (uint32_t mask = 16; mask > 0; mask /= 2)
        if ((mask & fragment_sharing()) != 0)
            x = math_max(x, shuffle_xor(x, mask));
    return x;
}

FUNCTION float attention_lanes_sum(float x)
{
    UNROLL
    for (uint32_t mask = 16; mask > 0; mask /= 2)
        if ((mask & fragment_sharing()) != 0)
            x += shuffle_xor(x, mask);
    return x;
}

/* With warps of 32 lanes, two warps share the same rows: exchanges one value per row with the other warp. All
 * threads must call it. */
FUNCTION void attention_units_share(float *shared, const float mine[4], float other[4])
{
    const uint32_t half = warp() / 4, each = 4 / fragment_rows();
    UNROLL
    for (uint32_t i = 0; i < fragment_rows(); i++)
        if ((lane() & fragment_sharing()) == 0)
            PUT(shared, half * ATTENTION_ROWS + attention_units_row() + fragment_row(each * i), mine[i]);
    barrier();
    UNROLL
    for (uint32_t i = 0; i < fragment_rows(); i++)
        other[i] = GET(shared, (1 - half) * ATTENTION_ROWS + attention_units_row() + fragment_row(each * i));
}

/* Adds one tile of keys to the running softmax, like attention_softmax, with the scores in fragments. */
FUNCTION void attention_units_softmax(const struct attention_shape *a, uint32_t query, uint32_t queries,
                                      uint32_t key, float scores[4][4], struct attention_running *running,
                                      float *shared)
{
    const uint32_t each = 4 / fragment_rows(); /* values of one row in a fragment */
    float top[4], other[4];
    UNROLL
    for (uint32_t i = 0; i < fragment_rows(); i++)
        top[i] = running->greatest[i];
    ROLLED
    for (uint32_t j = 0; j < 4; j++, attention_units_turn(scores)) {
        UNROLL
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t row = attention_units_row() + fragment_row(r);
            scores[0][r] = row < queries && attention_sees(a, query + row, key + attention_units_along(j, r))
                               ? attention_exponent(a, scores[0][r])
                               : -math_infinity();
            top[r / each] = math_max(top[r / each], scores[0][r]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < fragment_rows(); i++)
        top[i] = attention_lanes_max(top[i]);
    if (warp_size() == 32) {
        attention_units_share(shared, top, other);
        UNROLL
        for (uint32_t i = 0; i < fragment_rows(); i++)
            top[i] = math_max(top[i], other[i]);
    }
    UNROLL
    for (uint32_t i = 0; i < fragment_rows(); i++) {
        running->factor[i] = attention_rise(&running->greatest[i], &top[i]);
        running->sum[i] *= running->factor[i];
    }
    ROLLED
    for (uint32_t j = 0; j < 4; j++, attention_units_turn(scores)) {
        UNROLL
        for (uint32_t r = 0; r < 4; r++) {
            scores[0][r] = math_exp2(scores[0][r] - top[r / each]);
            running->sum[r / each] += scores[0][r];
        }
    }
}

FUNCTION void attention_units_start(const struct attention_forward_args *args, uint32_t head,
                                    struct attention_running *running, const uint32_t panels,
                                    float sums[ATTENTION_PANELS_MAX][4][4])
{
    const uint32_t first = warp() / 4 == 0 && (lane() & fragment_sharing()) == 0;
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        attention_begin(args, head, first, &running->greatest[i], &running->sum[i]);
    UNROLL
    for (uint32_t p = 0; p < panels; p++)
        attention_units_clear(sums[p]);
}

/* Multiplies the earlier sums of one panel by the factor, and adds the weights times a tile of v. */
FUNCTION void attention_units_gain(uint32_t element, const struct attention_running *running,
                                   struct fragment_eight *weights, struct fragment_eight *tile,
                                   float sums[4][4])
{
    const uint32_t each = 4 / fragment_rows();
    uint32_t left[4][4];
    attention_left(weights, left);
    UNROLL
    for (uint32_t i = 0; i < 16; i++)
        sums[i / 4][i % 4] *= running->factor[i % 4 / each];
    attention_across(element, left, tile, sums);
}

/* Writes out and the logarithms of the softmax sums. */
FUNCTION void attention_units_finish(const struct attention_forward_args *args,
                                     const struct attention_place *at, uint32_t head, float *shared,
                                     struct attention_running *running, const uint32_t panels,
                                     float sums[ATTENTION_PANELS_MAX][4][4])
{
    const struct attention_shape *a = &args->shape;
    const uint32_t each = 4 / fragment_rows();
    float other[4], inverse[4];
    UNROLL
    for (uint32_t i = 0; i < fragment_rows(); i++)
        running->sum[i] = attention_lanes_sum(running->sum[i]);
    if (warp_size() == 32) {
        barrier(); /* other warps may still be reading the maxima in `shared` */
        attention_units_share(shared, running->sum, other);
        UNROLL
        for (uint32_t i = 0; i < fragment_rows(); i++)
            running->sum[i] += other[i];
    }
    UNROLL
    for (uint32_t i = 0; i < fragment_rows(); i++) {
        uint32_t row = attention_units_row() + fragment_row(i * each);
        inverse[i] = 1.0f / running->sum[i];
        if (row < at->count && warp() / 4 == 0 && (lane() & fragment_sharing()) == 0 && args->lse != 0)
            STORE(POINTER(float, args->lse), (uint64_t)(at->begin + at->first + row) * a->heads + head,
                  attention_lse(running->greatest[i], running->sum[i]));
    }
    UNROLL
    for (uint32_t i = 0; i < 16 * panels; i++) {
        uint32_t p = i / 16, j = i / 4 % 4, r = i % 4, row = attention_units_row() + fragment_row(r);
        uint32_t column = p * ATTENTION_PANEL + attention_units_across(j, r);
        if (row < at->count && column < a->head_dim)
            attention_out(args, at->begin + at->first + row, head, column, inverse[r / each] * sums[p][j][r]);
    }
}

/* Loads the queries of a tile as the left operand of products, panel by panel, through the two shared tiles
 * in turn. q is attention_own of the queries. Returns the offset of the shared tile to use next. */
FUNCTION uint32_t attention_units_queries_take(uint32_t element, const struct attention_matrix *q,
                                               uint32_t count, uint32_t width, struct fragment_eight *tiles,
                                               const uint32_t panels,
                                               uint32_t left[ATTENTION_PANELS_MAX][4][4])
{
    UNROLL
    for (uint32_t p = 0; p < panels; p++) {
        struct attention_values part = attention_fetch(element, q, count, p * ATTENTION_PANEL, width);
        attention_store_tile(tiles + p % 2 * ATTENTION_UNITS_TILE, &part);
        barrier();
        attention_left(tiles + p % 2 * ATTENTION_UNITS_TILE, left[p]);
    }
    return panels % 2 * ATTENTION_UNITS_TILE;
}

/* Forward. Slices of k and panels of v pass alternately through two tiles: while one is multiplied, the next
 * is being read. */
FUNCTION void attention_units_forward(const struct attention_forward_args *args, const uint32_t panels)
{
    SHARED(struct fragment_eight, tiles, 2 * ATTENTION_UNITS_TILE);
    SHARED(struct fragment_eight, weights, ATTENTION_UNITS_TILE);
    SHARED(float, shared, 2 * ATTENTION_ROWS);
    const struct attention_shape *a = &args->shape;
    const uint32_t head = block_y(), element = attention_element(a), width = a->head_dim;
    struct attention_place at = attention_find(a, blocks_x() - 1 - block_x());
    if (at.count == 0)
        return;
    uint32_t kv = head / (a->heads / a->kv_heads), works = attention_units_row() < at.count;
    struct attention_matrix q = attention_own(attention_from(a->q, at.begin + at.first, head * width));
    struct attention_running running;
    uint32_t left[ATTENTION_PANELS_MAX][4][4];
    float sums[ATTENTION_PANELS_MAX][4][4];
    uint32_t turn = attention_units_queries_take(element, &q, at.count, width, tiles, panels, left);
    attention_units_start(args, head, &running, panels, sums);
    uint32_t last = a->offset + at.first + at.count, key = attention_first_key(a, at.first);
    struct attention_matrix k = attention_own(attention_from(a->k, at.begin + key, kv * width));
    struct attention_matrix v = attention_own(attention_from(a->v, at.begin + key, kv * width));
    struct attention_values next = attention_fetch(element, &k, last - key, 0, width);
    for (; key < last; key += ATTENTION_ROWS) {
        uint32_t keys = last - key;
        float scores[4][4];
        attention_units_clear(scores);
        UNROLL
        for (uint32_t p = 0; p < panels; p++, turn ^= ATTENTION_UNITS_TILE) {
            attention_store_tile(tiles + turn, &next);
            barrier();
            next = p + 1 < panels ? attention_fetch(element, &k, keys, (p + 1) * ATTENTION_PANEL, width)
                                  : attention_fetch(element, &v, keys, 0, width);
            if (works)
                attention_along(element, left[p], tiles + turn, scores);
        }
        attention_units_softmax(a, at.first, at.count, key, scores, &running, shared);
        attention_units_put(element, weights, scores);
        k = attention_from(k, ATTENTION_ROWS, 0);
        UNROLL
        for (uint32_t p = 0; p < panels; p++, turn ^= ATTENTION_UNITS_TILE) {
            attention_store_tile(tiles + turn, &next);
            barrier();
            if (p + 1 < panels)
                next = attention_fetch(element, &v, keys, (p + 1) * ATTENTION_PANEL, width);
            else if (keys > ATTENTION_ROWS)
                next = attention_fetch(element, &k, keys - ATTENTION_ROWS, 0, width);
            if (works)
                attention_units_gain(element, &running, weights, tiles + turn, sums[p]);
        }
        v = attention_from(v, ATTENTION_ROWS, 0);
    }
    attention_units_finish(args, &at, head, shared, &running, panels, sums);
}

/* sums = left * right^T over the whole width of a head, slice by slice; `tiles` has room for two. All threads
 * must call it, also those without rows. */
FUNCTION void attention_units_product(const struct attention_shape *a, const struct attention_matrix *left,
                                      uint32_t lefts, const struct attention_matrix *right, uint32_t rights,
                                      struct fragment_eight *tiles, const uint32_t panels, float sums[4][4])
{
    const uint32_t element = attention_element(a), width = a->head_dim;
    const struct attention_matrix from = attention_own(*left), against = attention_own(*right);
    struct attention_values mine = attention_fetch(element, &from, lefts, 0, width);
    struct attention_values other = attention_fetch(element, &against, rights, 0, width);
    attention_units_clear(sums);
    ROLLED
    for (uint32_t p = 0; p < panels; p++) {
        uint32_t terms[4][4];
        barrier();
        attention_store_tile(tiles, &mine);
        attention_store_tile(tiles + ATTENTION_UNITS_TILE, &other);
        barrier();
        if (p + 1 < panels) {
            mine = attention_fetch(element, &from, lefts, (p + 1) * ATTENTION_PANEL, width);
            other = attention_fetch(element, &against, rights, (p + 1) * ATTENTION_PANEL, width);
        }
        if (attention_units_row() >= lefts)
            continue;
        attention_left(tiles, terms);
        attention_along(element, terms, tiles + ATTENTION_UNITS_TILE, sums);
    }
}

/* sums += weights * rows, panel by panel, where weights has `lefts` rows and `rows` has `count`. All threads
 * must call it. */
FUNCTION void attention_units_add(const struct attention_shape *a, struct fragment_eight *weights,
                                  uint32_t lefts, const struct attention_matrix *rows, uint32_t count,
                                  struct fragment_eight *tile, const uint32_t panels,
                                  float sums[ATTENTION_PANELS_MAX][4][4])
{
    const uint32_t element = attention_element(a), width = a->head_dim;
    const struct attention_matrix from = attention_own(*rows);
    struct attention_values next = attention_fetch(element, &from, count, 0, width);
    UNROLL
    for (uint32_t p = 0; p < panels; p++) {
        uint32_t left[4][4];
        barrier();
        attention_store_tile(tile, &next);
        barrier();
        if (p + 1 < panels)
            next = attention_fetch(element, &from, count, (p + 1) * ATTENTION_PANEL, width);
        if (attention_units_row() >= lefts)
            continue;
        attention_left(weights, left);
        attention_across(element, left, tile, sums[p]);
    }
}

/* Copies lse and delta of a pair's queries to shared memory, 64 of each. */
FUNCTION void attention_units_stats(const struct attention_backward_args *args,
                                    const struct attention_pair *pair, float *stats)
{
    const float *from = POINTER(const float, thread() < ATTENTION_ROWS ? args->lse : args->delta);
    uint32_t row = thread() % ATTENTION_ROWS;
    if (thread() >= 2 * ATTENTION_ROWS || row >= pair->queries)
        return;
    PUT(stats, thread(), LOAD(from, (uint64_t)(pair->token + row) * args->shape.heads + pair->head));
}

/* Computes a pair's weights and gradients of products, like attention_gradients, from products in fragments.
 * The products' rows are queries, or keys if `turned`. */
FUNCTION void attention_units_gradients(const struct attention_shape *a, const struct attention_pair *pair,
                                        float *stats, const uint32_t turned, float weight[4][4],
                                        float slope[4][4])
{
    ROLLED
    for (uint32_t j = 0; j < 4; j++, attention_units_turn(weight), attention_units_turn(slope)) {
        UNROLL
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t row = attention_units_row() + fragment_row(r), column = attention_units_along(j, r);
            uint32_t query = turned ? column : row, key = turned ? row : column;
            if (query < pair->queries && attention_sees(a, pair->query + query, pair->key + key))
                attention_slope(a, GET(stats, query), GET(stats, ATTENTION_ROWS + query), &weight[0][r],
                                &slope[0][r]);
            else
                weight[0][r] = slope[0][r] = 0.0f;
        }
    }
}

/* Stores the warp's rows (up to row `count`) of an f32 gradient; m begins at the gradient's first row. */
FUNCTION void attention_units_store(const struct attention_matrix m, uint32_t count, uint32_t width,
                                    const uint32_t panels, float sums[ATTENTION_PANELS_MAX][4][4])
{
    UNROLL
    for (uint32_t i = 0; i < 16 * panels; i++) {
        uint32_t p = i / 16, j = i / 4 % 4, r = i % 4, row = attention_units_row() + fragment_row(r);
        uint32_t column = p * ATTENTION_PANEL + attention_units_across(j, r);
        if (row < count && column < width)
            STORE(POINTER(float, m.at), (uint64_t)row * m.ld + column, sums[p][j][r]);
    }
}

/* An f32 gradient with the layout of m. */
FUNCTION struct attention_matrix attention_gradient(struct attention_matrix m, uint64_t at)
{
    m.at = at;
    m.as = ELEMENT_F32;
    return m;
}

FUNCTION void attention_units_queries(const struct attention_backward_args *args, const uint32_t panels)
{
    SHARED(struct fragment_eight, tiles, 2 * ATTENTION_UNITS_TILE);
    SHARED(struct fragment_eight, weights, ATTENTION_UNITS_TILE);
    SHARED(float, stats, 2 * ATTENTION_ROWS);
    const struct attention_shape *a = &args->shape;
    struct attention_place at = attention_find(a, blocks_x() - 1 - block_x());
    if (at.count == 0)
        return;
    struct attention_pair pair;
    pair.head = block_y();
    uint32_t kv = pair.head / (a->heads / a->kv_heads), last = at.first + at.count;
    pair.token = at.begin + at.first;
    pair.query = at.first;
    pair.queries = at.count;
    pair.q = attention_from(a->q, pair.token, pair.head * a->head_dim);
    pair.dout = attention_from(args->dout, pair.token, pair.head * a->head_dim);
    float sums[ATTENTION_PANELS_MAX][4][4], weight[4][4], slope[4][4];
    UNROLL
    for (uint32_t p = 0; p < panels; p++)
        attention_units_clear(sums[p]);
    attention_units_stats(args, &pair, stats);
    for (pair.key = attention_first_key(a, at.first); pair.key < last; pair.key += ATTENTION_ROWS) {
        pair.keys = last - pair.key;
        pair.k = attention_from(a->k, at.begin + pair.key, kv * a->head_dim);
        pair.v = attention_from(a->v, at.begin + pair.key, kv * a->head_dim);
        attention_units_product(a, &pair.q, at.count, &pair.k, pair.keys, tiles, panels, weight);
        attention_units_product(a, &pair.dout, at.count, &pair.v, pair.keys, tiles, panels, slope);
        attention_units_gradients(a, &pair, stats, 0, weight, slope);
        attention_units_put(attention_element(a), weights, slope);
        attention_units_add(a, weights, at.count, &pair.k, pair.keys, tiles, panels, sums);
    }
    struct attention_matrix dq = attention_gradient(a->q, args->dq);
    attention_units_store(attention_from(dq, pair.token, pair.head * a->head_dim), at.count, a->head_dim,
                          panels, sums);
}

FUNCTION void attention_units_keys(const struct attention_backward_args *args, const uint32_t panels)
{
    SHARED(struct fragment_eight, tiles, 2 * ATTENTION_UNITS_TILE);
    SHARED(struct fragment_eight, weights, ATTENTION_UNITS_TILE);
    SHARED(float, stats, 2 * ATTENTION_ROWS);
    const struct attention_shape *a = &args->shape;
    const uint32_t kv = block_y(), group = a->heads / a->kv_heads, element = attention_element(a);
    struct attention_place at = attention_find(a, block_x());
    if (at.count == 0)
        return;
    struct attention_pair pair;
    attention_pair_keys(args, &at, kv, &pair);
    float dk[ATTENTION_PANELS_MAX][4][4], dv[ATTENTION_PANELS_MAX][4][4], weight[4][4], slope[4][4];
    UNROLL
    for (uint32_t p = 0; p < panels; p++) {
        attention_units_clear(dk[p]);
        attention_units_clear(dv[p]);
    }
    for (pair.head = kv * group; pair.head < (kv + 1) * group; pair.head++)
        for (pair.query = at.first; pair.query < at.length && attention_first_key(a, pair.query) <= at.first;
             pair.query += ATTENTION_ROWS) {
            attention_pair_queries(args, &at, &pair);
            attention_units_stats(args, &pair, stats);
            attention_units_product(a, &pair.k, at.count, &pair.q, pair.queries, tiles, panels, weight);
            attention_units_product(a, &pair.v, at.count, &pair.dout, pair.queries, tiles, panels, slope);
            attention_units_gradients(a, &pair, stats, 1, weight, slope);
            attention_units_put(element, weights, weight);
            attention_units_add(a, weights, at.count, &pair.dout, pair.queries, tiles, panels, dv);
            barrier(); /* all warps have loaded their weights */
            attention_units_put(element, weights, slope);
            attention_units_add(a, weights, at.count, &pair.q, pair.queries, tiles, panels, dk);
        }
    uint32_t first = at.begin + at.first, column = kv * a->head_dim;
    struct attention_matrix to = attention_gradient(a->k, args->dk);
    attention_units_store(attention_from(to, first, column), at.count, a->head_dim, panels, dk);
    to.at = args->dv;
    attention_units_store(attention_from(to, first, column), at.count, a->head_dim, panels, dv);
}

/* Computes dv if block_z is 0 and dk if it is 1, like attention_keys_half. */
FUNCTION void attention_units_keys_half(const struct attention_backward_args *args, const uint32_t panels)
{
    SHARED(struct fragment_eight, tiles, 2 * ATTENTION_UNITS_TILE);
    SHARED(struct fragment_eight, weights, ATTENTION_UNITS_TILE);
    SHARED(float, stats, 2 * ATTENTION_ROWS);
    const struct attention_shape *a = &args->shape;
    const uint32_t kv = block_y(), group = a->heads / a->kv_heads, slopes = block_z();
    struct attention_place at = attention_find(a, block_x());
    if (at.count == 0)
        return;
    struct attention_pair pair;
    attention_pair_keys(args, &at, kv, &pair);
    float sums[ATTENTION_PANELS_MAX][4][4], weight[4][4], slope[4][4];
    UNROLL
    for (uint32_t p = 0; p < panels; p++)
        attention_units_clear(sums[p]);
    attention_units_clear(slope);
    for (pair.head = kv * group; pair.head < (kv + 1) * group; pair.head++)
        for (pair.query = at.first; pair.query < at.length && attention_first_key(a, pair.query) <= at.first;
             pair.query += ATTENTION_ROWS) {
            attention_pair_queries(args, &at, &pair);
            attention_units_stats(args, &pair, stats);
            attention_units_product(a, &pair.k, at.count, &pair.q, pair.queries, tiles, panels, weight);
            if (slopes)
                attention_units_product(a, &pair.v, at.count, &pair.dout, pair.queries, tiles, panels, slope);
            attention_units_gradients(a, &pair, stats, 1, weight, slope);
            UNROLL
            for (uint32_t i = 0; i < 16; i++)
                weight[i / 4][i % 4] = slopes ? slope[i / 4][i % 4] : weight[i / 4][i % 4];
            attention_units_put(attention_element(a), weights, weight);
            attention_units_add(a, weights, at.count, slopes ? &pair.q : &pair.dout, pair.queries, tiles,
                                panels, sums);
        }
    struct attention_matrix to = attention_gradient(a->k, slopes ? args->dk : args->dv);
    attention_units_store(attention_from(to, at.begin + at.first, kv * a->head_dim), at.count, a->head_dim,
                          panels, sums);
}

#endif
