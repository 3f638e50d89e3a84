/* Attention in tiles of 64 queries and 64 keys with a running softmax (Dao et al. 2022, algorithms 1 and 4;
 * backward is split into kernels over keys and over queries as in Dao 2023). A block has 256 threads,
 * arranged as a square of 16 × 16. Thread (ty, tx) has the scores of queries ty + 16 i and keys tx + 16 j,
 * for i, j < 4, and the sums of 4 rows and 4 neighbouring columns for every panel of 64 columns. Scores are
 * summed over slices of 32 columns, so shared memory (35 KiB) does not grow with head_dim. The kernels differ
 * in their registers, for heads of up to 64, 128 and 256 values. No row's score matrix is ever in memory and
 * no sum is atomic: equal calls give equal bits.
 *
 * Blocks find their row on the device. Tile t, counted over all rows, belongs to the last row r with
 * row_start[r] / 64 + r <= t. That gives every row at least as many numbers as it has tiles; a block with a
 * number left over has nothing to do.
 */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_ATTENTION_K_H
#define MOTLEY_ENGINE_GPU_KERNELS_ATTENTION_K_H

#include "engine/gpu/kernels/four.h"

#define ATTENTION_KERNELS(X)                                                                                 \
    X(attention_64, 256)                                                                                     \
    X(attention_128, 256)                                                                                    \
    X(attention_256, 256)                                                                                    \
    X(attention_512, 256)                                                                                    \
    X(attention_delta, 256)                                                                                  \
    X(attention_sinks, 256)                                                                                  \
    X(attention_queries_64, 256)                                                                             \
    X(attention_queries_128, 256)                                                                            \
    X(attention_queries_256, 256)                                                                            \
    X(attention_queries_512, 256)                                                                            \
    X(attention_keys_64, 256)                                                                                \
    X(attention_keys_128, 256)                                                                               \
    X(attention_keys_256, 256)                                                                               \
    X(attention_keys_512, 256)                                                                               \
    X(attention_units_64, 256)                                                                               \
    X(attention_units_128, 256)                                                                              \
    X(attention_units_256, 256)                                                                              \
    X(attention_units_queries_64, 256)                                                                       \
    X(attention_units_queries_128, 256)                                                                      \
    X(attention_units_queries_256, 256)                                                                      \
    X(attention_units_keys_64, 256)                                                                          \
    X(attention_units_keys_128, 256)                                                                         \
    X(attention_units_keys_256, 256)

enum {
    ATTENTION_ROWS = 64,             /* queries, or keys, in a tile */
    ATTENTION_SLICE = 32,            /* columns of q and k, or of dout and v, handled at a time */
    ATTENTION_PANEL = 64,            /* columns of v, or of the sums, handled at a time */
    ATTENTION_DELTAS = 8,            /* rows that one block of attention_delta handles */
    ATTENTION_WIDTH_MAX = 512,       /* largest head_dim */
    ATTENTION_WIDTH_UNITS_MAX = 256, /* largest head_dim by matrix units, and of what one block sums */
    ATTENTION_PANELS_MAX = ATTENTION_WIDTH_UNITS_MAX / ATTENTION_PANEL
};

/* Rows of heads, ld values apart, of type `as` (ELEMENT_…, four.h). */
struct attention_matrix {
    uint64_t at;
    uint32_t ld, as;
};

/* Shapes and masks. q: [tokens, heads, head_dim]; k, v: [keys, kv_heads, head_dim] with equal layout.
 * row_start: u32 [rows + 1]; 0: one row of all tokens. Query i of a row has position offset + i, key j has
 * position j. window: number of keys that a query sees, itself included (UINT32_MAX: all). cap: 0 for none.
 * bits_scale and bits_cap: scale and cap divided by ln 2. compute: ELEMENT_… to which operands are rounded.
 */
struct attention_shape {
    struct attention_matrix q, k, v;
    uint64_t row_start;
    uint32_t rows, tokens, heads, kv_heads, head_dim, window, offset, compute;
    float scale, cap, bits_scale, bits_cap;
};

/* out: [tokens, heads, head_dim] of type out_as. lse: [tokens, heads], the logarithms of the softmax sums; or
 * 0. sinks: [heads], or 0. A block handles a tile of queries (x) and a head (y). */
struct attention_forward_args {
    struct attention_shape shape;
    uint64_t out, lse, sinks;
    uint32_t out_as;
};
/* dsinks[head] -= Σ over tokens of exp(sinks[head] - lse) * delta. A block handles a head. */
struct attention_sinks_args {
    uint64_t sinks, lse, delta, dsinks;
    uint32_t tokens, heads;
};
/* delta[tokens, heads] = <out, dout>: `count` dot products of `width` values, each by 32 lanes. out is
 * rounded to `compute`, dout is f32. */
struct attention_delta_args {
    uint64_t out, dout, delta, count; /* count: tokens * heads */
    uint32_t width, out_as, compute;  /* width: head_dim */
};

/* attention_queries_… computes dq, with blocks for tiles of queries × heads. attention_keys_… computes dk and
 * dv, with blocks for tiles of keys × kv_heads (× 2 for the widest heads). dq has the layout of q, dk and dv
 * that of k and v, and dout that of out. */
struct attention_backward_args {
    struct attention_shape shape;
    struct attention_matrix dout;
    uint64_t lse, delta, dq, dk, dv;
};
/* Each kernel exists for head_dim up to 64, 128 and 256, and but for those named units up to 512. Those named
 * units use matrix units and need rows and heads that are multiples of 16 bytes. */
#define ATTENTION_ARGS(name, struct_args)                                                                    \
    struct name##_64_args {                                                                                  \
        struct struct_args of;                                                                               \
    };                                                                                                       \
    struct name##_128_args {                                                                                 \
        struct struct_args of;                                                                               \
    };                                                                                                       \
    struct name##_256_args {                                                                                 \
        struct struct_args of;                                                                               \
    };                                                                                                       \
    struct name##_512_args {                                                                                 \
        struct struct_args of;                                                                               \
    }
ATTENTION_ARGS(attention, attention_forward_args);
ATTENTION_ARGS(attention_queries, attention_backward_args);
ATTENTION_ARGS(attention_keys, attention_backward_args);
ATTENTION_ARGS(attention_units, attention_forward_args);
ATTENTION_ARGS(attention_units_queries, attention_backward_args);
ATTENTION_ARGS(attention_units_keys, attention_backward_args);
#undef ATTENTION_ARGS

#ifdef GPU_KERNELS

#include "engine/gpu/kernels/fragment.h"

/* Four neighbouring values, read from shared memory in one load. */
struct __attribute__((aligned(16))) attention_quad {
    float x, y, z, w;
};

/* Distances of rows in shared tiles, in quads: odd numbers, so that 8 threads on 8 rows use all banks. */
enum {
    ATTENTION_SLICE_LD = ATTENTION_SLICE / 4 + 1,
    ATTENTION_PANEL_LD = ATTENTION_PANEL / 4,
    ATTENTION_WEIGHT_LD = ATTENTION_ROWS / 4 + 1,
    ATTENTION_TILES = 2 * ATTENTION_ROWS * ATTENTION_SLICE_LD, /* quads of two slices; a panel has no more */
    ATTENTION_WEIGHTS = ATTENTION_ROWS * ATTENTION_WEIGHT_LD
};

/* One tile of a row. */
struct attention_place {
    uint32_t begin, length; /* the row's first token and its number of tokens */
    uint32_t first, count;  /* the tile's range, counted from the row's beginning; count 0: nothing to do */
};

FUNCTION uint32_t attention_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The part of a matrix that begins at a row and a column. */
FUNCTION struct attention_matrix attention_from(struct attention_matrix m, uint64_t row, uint32_t column)
{
    m.at += element_bytes(m.as) * (row * m.ld + column);
    return m;
}

/* Value i of a matrix, rounded to `compute`. */
FUNCTION float attention_value(uint32_t compute, const struct attention_matrix *m, uint64_t i)
{
    if (m->as != ELEMENT_F32)
        return element_of(m->as, LOAD(POINTER(const uint16_t, m->at), i));
    return fragment_round(compute, LOAD(POINTER(const float, m->at), i));
}

FUNCTION struct attention_place attention_find(const struct attention_shape *a, uint32_t tile)
{
    const uint32_t *start = POINTER(const uint32_t, a->row_start);
    struct attention_place place;
    uint32_t row = 0, over = a->rows;
    place.begin = 0;
    place.length = a->tokens;
    if (a->row_start != 0) {
        while (over - row > 1) {
            uint32_t middle = row + (over - row) / 2;
            if (LOAD(start, middle) / ATTENTION_ROWS + middle <= tile)
                row = middle;
            else
                over = middle;
        }
        place.begin = LOAD(start, row);
        uint32_t end = LOAD(start, row + 1);
        assert_device(place.begin <= end && end <= a->tokens);
        place.length = end - place.begin;
    }
    place.first = (tile - place.begin / ATTENTION_ROWS - row) * ATTENTION_ROWS;
    place.count = place.first < place.length ? attention_min(place.length - place.first, ATTENTION_ROWS) : 0;
    return place;
}

/* scores[i][j] = <left row ty + 16 i, right row tx + 16 j>. The rows are in device memory, `lefts` and
 * `rights` of them, and pass through the shared memory `tiles`. */
FUNCTION void attention_scores(const struct attention_shape *a, const struct attention_matrix *left,
                               uint32_t lefts, const struct attention_matrix *right, uint32_t rights,
                               struct attention_quad *tiles, float scores[4][4])
{
    const uint32_t width = a->head_dim;
    const uint32_t tx = thread() % 16, ty = thread() / 16;
    struct attention_quad *others = tiles + ATTENTION_ROWS * ATTENTION_SLICE_LD;
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        UNROLL
    for (uint32_t j = 0; j < 4; j++)
        scores[i][j] = 0.0f;
    for (uint32_t at = 0; at < width; at += ATTENTION_SLICE) {
        uint32_t quads = (attention_min(width - at, ATTENTION_SLICE) + 3) / 4;
        uint32_t column = thread() % ATTENTION_SLICE;
        barrier();
        for (uint32_t row = thread() / ATTENTION_SLICE; column < 4 * quads && row < ATTENTION_ROWS;
             row += 8) {
            float x = 0.0f, y = 0.0f;
            if (at + column < width && row < lefts)
                x = attention_value(a->compute, left, (uint64_t)row * left->ld + at + column);
            if (at + column < width && row < rights)
                y = attention_value(a->compute, right, (uint64_t)row * right->ld + at + column);
            PUT((float *)tiles, 4 * row * ATTENTION_SLICE_LD + column, x);
            PUT((float *)others, 4 * row * ATTENTION_SLICE_LD + column, y);
        }
        barrier();
        if (ty >= lefts || tx >= rights)
            continue; /* goes on to the barriers that all threads must meet */
        for (uint32_t quad = 0; quad < quads; quad++) {
            struct attention_quad x[4], y[4];
            UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                x[i] = GET(tiles, (ty + 16 * i) * ATTENTION_SLICE_LD + quad);
                y[i] = GET(others, (tx + 16 * i) * ATTENTION_SLICE_LD + quad);
            }
            UNROLL
            for (uint32_t i = 0; i < 4; i++)
                UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                float s = math_fma(x[i].x, y[j].x, scores[i][j]);
                s = math_fma(x[i].y, y[j].y, s);
                s = math_fma(x[i].z, y[j].z, s);
                scores[i][j] = math_fma(x[i].w, y[j].w, s);
            }
        }
    }
}

/* Copies columns [at, at + 64) of `count` rows of a head to shared memory, with zeros in rows up to the next
 * multiple of 4 and in columns beyond the head. Begins and ends with a barrier. */
FUNCTION void attention_panel(const struct attention_shape *a, const struct attention_matrix *from,
                              uint32_t count, uint32_t at, struct attention_quad *panel)
{
    const uint32_t width = a->head_dim;
    uint32_t column = thread() % ATTENTION_PANEL, rows = (count + 3) / 4 * 4;
    uint32_t columns = attention_min((width - at + 3) / 4 * 4, ATTENTION_PANEL);
    barrier();
    for (uint32_t row = thread() / ATTENTION_PANEL; column < columns && row < rows; row += 4) {
        float value = 0.0f;
        if (row < count && at + column < width)
            value = attention_value(a->compute, from, (uint64_t)row * from->ld + at + column);
        PUT((float *)panel, row * ATTENTION_PANEL + column, value);
    }
    barrier();
}

/* Writes the thread's 4 × 4 values, rounded, to the shared matrix weights[query][key]. */
FUNCTION void attention_put(uint32_t compute, struct attention_quad *weights, float values[4][4])
{
    const uint32_t tx = thread() % 16, ty = thread() / 16;
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        UNROLL
    for (uint32_t j = 0; j < 4; j++)
        PUT((float *)weights, 4 * (ty + 16 * i) * ATTENTION_WEIGHT_LD + tx + 16 * j,
            fragment_round(compute, values[i][j]));
}

FUNCTION void attention_add(float sums[4], float weight, struct attention_quad value)
{
    sums[0] = math_fma(weight, value.x, sums[0]);
    sums[1] = math_fma(weight, value.y, sums[1]);
    sums[2] = math_fma(weight, value.z, sums[2]);
    sums[3] = math_fma(weight, value.w, sums[3]);
}

/* sums[i] += Σ over `count` keys of weights[ty + 16 i][key] * panel[key][4 tx …], for columns that the panel
 * has. */
FUNCTION void attention_over_keys(const struct attention_quad *weights, const struct attention_quad *panel,
                                  uint32_t count, float sums[4][4])
{
    const uint32_t tx = thread() % 16, ty = thread() / 16;
    for (uint32_t key = 0; key < count; key += 4) {
        struct attention_quad weight[4], value[4];
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            weight[i] = GET(weights, (ty + 16 * i) * ATTENTION_WEIGHT_LD + key / 4);
            value[i] = GET(panel, (key + i) * ATTENTION_PANEL_LD + tx);
        }
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            attention_add(sums[i], weight[i].x, value[0]);
            attention_add(sums[i], weight[i].y, value[1]);
            attention_add(sums[i], weight[i].z, value[2]);
            attention_add(sums[i], weight[i].w, value[3]);
        }
    }
}

/* sums[i] += Σ over `count` queries of weights[query][4 ty + i] * panel[query][4 tx …]. */
FUNCTION void attention_over_queries(const struct attention_quad *weights, const struct attention_quad *panel,
                                     uint32_t count, float sums[4][4])
{
    const uint32_t tx = thread() % 16, ty = thread() / 16;
    for (uint32_t query = 0; query < count; query++) {
        struct attention_quad weight = GET(weights, query * ATTENTION_WEIGHT_LD + ty);
        struct attention_quad value = GET(panel, query * ATTENTION_PANEL_LD + tx);
        attention_add(sums[0], weight.x, value);
        attention_add(sums[1], weight.y, value);
        attention_add(sums[2], weight.z, value);
        attention_add(sums[3], weight.w, value);
    }
}

/* Zeroes the sums of the kernel's panels. The loop has a constant bound so that the compiler unrolls it. */
FUNCTION void attention_clear(float sums[ATTENTION_PANELS_MAX][4][4], const uint32_t panels)
{
    UNROLL
    for (uint32_t p = 0; p < ATTENTION_PANELS_MAX; p++)
        for (uint32_t i = 0; i < 4 && p < panels; i++)
            sums[p][i][0] = sums[p][i][1] = sums[p][i][2] = sums[p][i][3] = 0.0f;
}

/* Writes the thread's 4 columns of the panel that begins at column `at` to row `row` in device memory. */
FUNCTION void attention_store(float *to, uint64_t row, uint32_t at, uint32_t width, const float sums[4])
{
    uint32_t column = at + 4 * (thread() % 16);
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        if (column + i < width)
            STORE(to, row + column + i, sums[i]);
}

FUNCTION uint32_t attention_sees(const struct attention_shape *a, uint32_t query, uint32_t key)
{
    uint32_t position = a->offset + query;
    return key <= position && position - key < a->window;
}

/* The first tile of keys that queries from `query` on can see. */
FUNCTION uint32_t attention_first_key(const struct attention_shape *a, uint32_t query)
{
    uint32_t position = a->offset + query;
    return position < a->window ? 0 : (position - a->window + 1) / ATTENTION_ROWS * ATTENTION_ROWS;
}

/* The exponent, in base 2, of the softmax weight of a key, from the key's product with the query. */
FUNCTION float attention_exponent(const struct attention_shape *a, float product)
{
    return a->cap > 0.0f ? a->bits_cap * math_tanh(product * a->scale / a->cap) : product * a->bits_scale;
}

/* Updates a row's running maximum of exponents: *greatest becomes the ceiling of *top, the maximum including
 * the new tile. *top becomes the value to subtract from exponents. Returns the factor by which the sums over
 * earlier tiles must be multiplied. */
FUNCTION float attention_rise(float *greatest, float *top)
{
    float risen = math_ceil(*top), was = *greatest;
    *greatest = risen;
    *top = risen == -math_infinity() ? 0.0f : risen; /* the row has seen no key yet */
    return math_exp2(was - *top);
}

/* Adds one tile of keys to the running softmax: scores become weights relative to a whole power of two that
 * is no less than any weight of the row so far. `sum` is this thread's share of a row's sum. Earlier sums
 * must be multiplied by `factor`. */
FUNCTION void attention_softmax(const struct attention_shape *a, uint32_t query, uint32_t queries,
                                uint32_t key, float scores[4][4], float greatest[4], float sum[4],
                                float factor[4])
{
    const uint32_t tx = thread() % 16, ty = thread() / 16;
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        float top = greatest[i];
        UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t row = ty + 16 * i;
            scores[i][j] = row < queries && attention_sees(a, query + row, key + tx + 16 * j)
                               ? attention_exponent(a, scores[i][j])
                               : -math_infinity();
            top = math_max(top, scores[i][j]);
        }
        for (uint32_t mask = 8; mask > 0; mask /= 2)
            top = math_max(top, shuffle_xor(top, mask));
        factor[i] = attention_rise(&greatest[i], &top);
        sum[i] *= factor[i];
        UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            scores[i][j] = math_exp2(scores[i][j] - top);
            sum[i] += scores[i][j];
        }
    }
}

/* Stores one value of out, converted to the type of out. */
FUNCTION void attention_out(const struct attention_forward_args *args, uint64_t token, uint32_t head,
                            uint32_t column, float value)
{
    const struct attention_shape *a = &args->shape;
    uint64_t i = (token * a->heads + head) * a->head_dim + column;
    if (args->out_as != ELEMENT_F32)
        STORE(POINTER(uint16_t, args->out), i, fragment_half(args->out_as, value));
    else
        STORE(POINTER(float, args->out), i, fragment_round(a->compute, value));
}

/* ln(2^exponent * sum) */
FUNCTION float attention_lse(float exponent, float sum)
{
    return math_fma(exponent, 0.693147181f, math_log(sum));
}

#include "engine/gpu/kernels/attention_sinks.h"

FUNCTION void attention_forward(const struct attention_forward_args *args, const uint32_t from,
                                const uint32_t panels)
{
    SHARED(struct attention_quad, tiles, ATTENTION_TILES);
    SHARED(struct attention_quad, weights, ATTENTION_WEIGHTS);
    const struct attention_shape *a = &args->shape;
    const uint32_t tx = thread() % 16, ty = thread() / 16, head = block_y();
    /* later tiles see more keys and take longer, so they start first */
    struct attention_place at = attention_find(a, blocks_x() - 1 - block_x());
    if (at.count == 0)
        return;
    uint32_t kv = head / (a->heads / a->kv_heads);
    struct attention_matrix q = attention_from(a->q, at.begin + at.first, head * a->head_dim);
    float sums[ATTENTION_PANELS_MAX][4][4];
    float greatest[4], sum[4], factor[4], scores[4][4];
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        attention_begin(args, head, tx == 0, &greatest[i], &sum[i]);
    attention_clear(sums, panels);
    uint32_t last = a->offset + at.first + at.count;
    for (uint32_t key = attention_first_key(a, at.first); key < last; key += ATTENTION_ROWS) {
        uint32_t keys = attention_min(last - key, ATTENTION_ROWS);
        struct attention_matrix k = attention_from(a->k, at.begin + key, kv * a->head_dim);
        struct attention_matrix v = attention_from(a->v, at.begin + key, kv * a->head_dim);
        attention_scores(a, &q, at.count, &k, keys, tiles, scores);
        attention_softmax(a, at.first, at.count, key, scores, greatest, sum, factor);
        attention_put(a->compute, weights, scores);
        UNROLL
        for (uint32_t p = 0; p < panels; p++) {
            attention_panel(a, &v, keys, (from + p) * ATTENTION_PANEL, tiles);
            UNROLL
            for (uint32_t i = 0; i < 4; i++)
                UNROLL
            for (uint32_t j = 0; j < 4; j++)
                sums[p][i][j] *= factor[i];
            if (ty < at.count && (from + p) * ATTENTION_PANEL + 4 * tx < a->head_dim)
                attention_over_keys(weights, tiles, keys, sums[p]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t mask = 8; mask > 0; mask /= 2)
            sum[i] += shuffle_xor(sum[i], mask);
        uint32_t row = ty + 16 * i;
        if (row >= at.count)
            continue;
        uint64_t token = (uint64_t)at.begin + at.first + row;
        float inverse = 1.0f / sum[i];
        UNROLL
        for (uint32_t p = 0; p < panels; p++)
            UNROLL
        for (uint32_t j = 0; j < 4; j++)
            if ((from + p) * ATTENTION_PANEL + 4 * tx + j < a->head_dim)
                attention_out(args, token, head, (from + p) * ATTENTION_PANEL + 4 * tx + j,
                              inverse * sums[p][i][j]);
        if (tx == 0 && from == 0 && args->lse != 0)
            STORE(POINTER(float, args->lse), token * a->heads + head, attention_lse(greatest[i], sum[i]));
    }
}

KERNEL_ALONE(attention_64, 256)
{
    attention_forward(&args.of, 0, 1);
}

KERNEL(attention_128, 256)
{
    attention_forward(&args.of, 0, 2);
}

KERNEL(attention_256, 256)
{
    attention_forward(&args.of, 0, 4);
}

KERNEL(attention_delta, 256)
{
    uint64_t item = (uint64_t)block_x() * ATTENTION_DELTAS + thread() / 32;
    struct attention_matrix out;
    out.at = args.out;
    out.as = args.out_as;
    const float *dout = POINTER(const float, args.dout);
    float sum = 0.0f;
    for (uint32_t i = thread() % 32; item < args.count && i < args.width; i += 32)
        sum = math_fma(attention_value(args.compute, &out, item * args.width + i),
                       LOAD(dout, item * args.width + i), sum);
    for (uint32_t mask = 16; mask > 0; mask /= 2)
        sum += shuffle_xor(sum, mask);
    if (item < args.count && thread() % 32 == 0)
        STORE(POINTER(float, args.delta), item, sum);
}

/* A tile of queries and a tile of keys in backward. */
struct attention_pair {
    uint32_t token;                        /* the first query's token */
    uint32_t query, queries, key, keys;    /* first query and key within the row, and how many */
    uint32_t head, from;                   /* from: the first panel that attention_keys_add() sums */
    struct attention_matrix q, k, v, dout; /* each begins at the first query or key, at the head's columns */
};

/* On entry *weight is a product of q and k, and *slope the gradient of its weight. On return *weight is the
 * weight as forward had it, and *slope the gradient of the product. */
FUNCTION void attention_slope(const struct attention_shape *a, float lse, float delta, float *weight,
                              float *slope)
{
    float exponent = attention_exponent(a, *weight), bent = a->cap > 0.0f ? exponent / a->bits_cap : 0.0f;
    *weight = math_exp2(math_fma(-lse, 1.44269504f, exponent));
    *slope = *weight * (*slope - delta) * math_fma(-bent, bent, 1.0f) * a->scale;
}

/* Computes the weights of a pair of tiles, and the gradients of the products of q and k. */
FUNCTION void attention_gradients(const struct attention_backward_args *args,
                                  const struct attention_pair *pair, struct attention_quad *tiles,
                                  float weight[4][4], float slope[4][4])
{
    const struct attention_shape *a = &args->shape;
    const uint32_t tx = thread() % 16, ty = thread() / 16;
    const float *lse = POINTER(const float, args->lse), *delta = POINTER(const float, args->delta);
    attention_scores(a, &pair->q, pair->queries, &pair->k, pair->keys, tiles, weight);
    attention_scores(a, &pair->dout, pair->queries, &pair->v, pair->keys, tiles, slope);
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t row = ty + 16 * i;
        float against = 0.0f, mean = 0.0f;
        if (row < pair->queries) {
            against = LOAD(lse, (uint64_t)(pair->token + row) * a->heads + pair->head);
            mean = LOAD(delta, (uint64_t)(pair->token + row) * a->heads + pair->head);
        }
        UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            if (row < pair->queries && attention_sees(a, pair->query + row, pair->key + tx + 16 * j)) {
                attention_slope(a, against, mean, &weight[i][j], &slope[i][j]);
            } else {
                weight[i][j] = 0.0f;
                slope[i][j] = 0.0f;
            }
        }
    }
}

FUNCTION void attention_queries(const struct attention_backward_args *args, const uint32_t from,
                                const uint32_t panels)
{
    SHARED(struct attention_quad, tiles, ATTENTION_TILES);
    SHARED(struct attention_quad, weights, ATTENTION_WEIGHTS);
    const struct attention_shape *a = &args->shape;
    const uint32_t tx = thread() % 16, ty = thread() / 16;
    struct attention_place at = attention_find(a, blocks_x() - 1 - block_x());
    if (at.count == 0)
        return;
    struct attention_pair pair;
    pair.head = block_y();
    uint32_t kv = pair.head / (a->heads / a->kv_heads);
    pair.token = at.begin + at.first;
    pair.query = at.first;
    pair.queries = at.count;
    pair.q = attention_from(a->q, pair.token, pair.head * a->head_dim);
    pair.dout = attention_from(args->dout, pair.token, pair.head * a->head_dim);
    float sums[ATTENTION_PANELS_MAX][4][4], weight[4][4], slope[4][4];
    attention_clear(sums, panels);
    uint32_t last = at.first + at.count;
    for (pair.key = attention_first_key(a, at.first); pair.key < last; pair.key += ATTENTION_ROWS) {
        pair.keys = attention_min(last - pair.key, ATTENTION_ROWS);
        pair.k = attention_from(a->k, at.begin + pair.key, kv * a->head_dim);
        pair.v = attention_from(a->v, at.begin + pair.key, kv * a->head_dim);
        attention_gradients(args, &pair, tiles, weight, slope);
        attention_put(a->compute, weights, slope);
        UNROLL
        for (uint32_t p = 0; p < panels; p++) {
            attention_panel(a, &pair.k, pair.keys, (from + p) * ATTENTION_PANEL, tiles);
            if (ty < at.count && (from + p) * ATTENTION_PANEL + 4 * tx < a->head_dim)
                attention_over_keys(weights, tiles, pair.keys, sums[p]);
        }
    }
    UNROLL
    for (uint32_t p = 0; p < panels; p++)
        UNROLL
    for (uint32_t i = 0; i < 4; i++)
        if (ty + 16 * i < at.count)
            attention_store(POINTER(float, args->dq),
                            (uint64_t)(pair.token + ty + 16 * i) * a->q.ld + pair.head * a->head_dim,
                            (from + p) * ATTENTION_PANEL, a->head_dim, sums[p][i]);
}

KERNEL(attention_queries_64, 256)
{
    attention_queries(&args.of, 0, 1);
}

KERNEL(attention_queries_128, 256)
{
    attention_queries(&args.of, 0, 2);
}

KERNEL(attention_queries_256, 256)
{
    attention_queries(&args.of, 0, 4);
}

/* sums += values^T * rows, summed over the pair's queries. The values are transposed through the shared
 * matrix `weights`. */
FUNCTION void attention_keys_add(const struct attention_shape *a, const struct attention_pair *pair,
                                 const struct attention_matrix *rows, float values[4][4],
                                 struct attention_quad *weights, struct attention_quad *tiles,
                                 const uint32_t panels, float sums[ATTENTION_PANELS_MAX][4][4])
{
    const uint32_t tx = thread() % 16, ty = thread() / 16;
    attention_put(a->compute, weights, values);
    UNROLL
    for (uint32_t p = 0; p < panels; p++) {
        attention_panel(a, rows, pair->queries, (pair->from + p) * ATTENTION_PANEL, tiles);
        if (4 * ty < pair->keys && (pair->from + p) * ATTENTION_PANEL + 4 * tx < a->head_dim)
            attention_over_queries(weights, tiles, pair->queries, sums[p]);
    }
    barrier();
}

/* Sets the pair's tile of keys. Returns where the keys begin in dk and dv. */
FUNCTION uint64_t attention_pair_keys(const struct attention_backward_args *args,
                                      const struct attention_place *at, uint32_t kv,
                                      struct attention_pair *pair)
{
    const struct attention_shape *a = &args->shape;
    uint64_t first = at->begin + at->first;
    pair->key = at->first;
    pair->keys = at->count;
    pair->k = attention_from(a->k, first, kv * a->head_dim);
    pair->v = attention_from(a->v, first, kv * a->head_dim);
    return first * a->k.ld + kv * a->head_dim;
}

/* Sets the pair's queries, from pair->query on, for pair->head. */
FUNCTION void attention_pair_queries(const struct attention_backward_args *args,
                                     const struct attention_place *at, struct attention_pair *pair)
{
    const struct attention_shape *a = &args->shape;
    pair->token = at->begin + pair->query;
    pair->queries = attention_min(at->length - pair->query, ATTENTION_ROWS);
    pair->q = attention_from(a->q, pair->token, pair->head * a->head_dim);
    pair->dout = attention_from(args->dout, pair->token, pair->head * a->head_dim);
}

FUNCTION void attention_keys_store(const struct attention_shape *a, const struct attention_place *at,
                                   float *to, uint64_t key_at, const uint32_t from, const uint32_t panels,
                                   float sums[ATTENTION_PANELS_MAX][4][4])
{
    const uint32_t ty = thread() / 16;
    UNROLL
    for (uint32_t p = 0; p < panels; p++) {
        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            if (4 * ty + i < at->count)
                attention_store(to, key_at + (uint64_t)(4 * ty + i) * a->k.ld, (from + p) * ATTENTION_PANEL,
                                a->head_dim, sums[p][i]);
    }
}

FUNCTION void attention_keys(const struct attention_backward_args *args, const uint32_t panels)
{
    SHARED(struct attention_quad, tiles, ATTENTION_TILES);
    SHARED(struct attention_quad, weights, ATTENTION_WEIGHTS);
    const struct attention_shape *a = &args->shape;
    const uint32_t kv = block_y(), group = a->heads / a->kv_heads;
    struct attention_place at = attention_find(a, block_x());
    if (at.count == 0)
        return;
    struct attention_pair pair;
    uint64_t key_at = attention_pair_keys(args, &at, kv, &pair);
    float dk[ATTENTION_PANELS_MAX][4][4], dv[ATTENTION_PANELS_MAX][4][4], weight[4][4], slope[4][4];
    pair.from = 0;
    attention_clear(dk, panels);
    attention_clear(dv, panels);
    for (pair.head = kv * group; pair.head < (kv + 1) * group; pair.head++)
        for (pair.query = at.first; pair.query < at.length && attention_first_key(a, pair.query) <= at.first;
             pair.query += ATTENTION_ROWS) {
            attention_pair_queries(args, &at, &pair);
            attention_gradients(args, &pair, tiles, weight, slope);
            attention_keys_add(a, &pair, &pair.dout, weight, weights, tiles, panels, dv);
            attention_keys_add(a, &pair, &pair.q, slope, weights, tiles, panels, dk);
        }
    attention_keys_store(a, &at, POINTER(float, args->dk), key_at, 0, panels, dk);
    attention_keys_store(a, &at, POINTER(float, args->dv), key_at, 0, panels, dv);
}

KERNEL(attention_keys_64, 256)
{
    attention_keys(&args.of, 1);
}

KERNEL(attention_keys_128, 256)
{
    attention_keys(&args.of, 2);
}

/* Computes dv, or dk with `slopes`: both at once would need more registers than a thread has. */
FUNCTION void attention_keys_half(const struct attention_backward_args *args, const uint32_t slopes,
                                  const uint32_t from, const uint32_t panels)
{
    SHARED(struct attention_quad, tiles, ATTENTION_TILES);
    SHARED(struct attention_quad, weights, ATTENTION_WEIGHTS);
    const struct attention_shape *a = &args->shape;
    const uint32_t kv = block_y(), group = a->heads / a->kv_heads;
    struct attention_place at = attention_find(a, block_x());
    if (at.count == 0)
        return;
    struct attention_pair pair;
    uint64_t key_at = attention_pair_keys(args, &at, kv, &pair);
    float sums[ATTENTION_PANELS_MAX][4][4], weight[4][4], slope[4][4];
    pair.from = from;
    attention_clear(sums, panels);
    for (pair.head = kv * group; pair.head < (kv + 1) * group; pair.head++)
        for (pair.query = at.first; pair.query < at.length && attention_first_key(a, pair.query) <= at.first;
             pair.query += ATTENTION_ROWS) {
            attention_pair_queries(args, &at, &pair);
            attention_gradients(args, &pair, tiles, weight, slope);
            UNROLL
            for (uint32_t i = 0; i < 16; i++)
                weight[i / 4][i % 4] = slopes ? slope[i / 4][i % 4] : weight[i / 4][i % 4];
            attention_keys_add(a, &pair, slopes ? &pair.q : &pair.dout, weight, weights, tiles, panels, sums);
        }
    attention_keys_store(a, &at, POINTER(float, slopes ? args->dk : args->dv), key_at, from, panels, sums);
}

KERNEL(attention_keys_256, 256)
{
    attention_keys_half(&args.of, block_z(), 0, 4);
}

#include "engine/gpu/kernels/attention_wide.h"
#include "engine/gpu/kernels/attention_units.h"

#if FRAGMENT_F16
#define ATTENTION_UNITS(part, panels) part(&args.of, panels)
#else /* without matrix units: the host never launches the kernels named units on such cards */
#define ATTENTION_UNITS(part, panels) assert_device(0)
#endif

KERNEL_ALONE(attention_units_64, 256)
{
    ATTENTION_UNITS(attention_units_forward, 1);
}

KERNEL(attention_units_128, 256)
{
    ATTENTION_UNITS(attention_units_forward, 2);
}

KERNEL_PAIR(attention_units_256, 256)
{
    ATTENTION_UNITS(attention_units_forward, 4);
}

KERNEL(attention_units_queries_64, 256)
{
    ATTENTION_UNITS(attention_units_queries, 1);
}

KERNEL(attention_units_queries_128, 256)
{
    ATTENTION_UNITS(attention_units_queries, 2);
}

KERNEL_PAIR(attention_units_queries_256, 256)
{
    ATTENTION_UNITS(attention_units_queries, 4);
}

KERNEL(attention_units_keys_64, 256)
{
    ATTENTION_UNITS(attention_units_keys, 1);
}

KERNEL_PAIR(attention_units_keys_128, 256)
{
    ATTENTION_UNITS(attention_units_keys, 2);
}

KERNEL_PAIR(attention_units_keys_256, 256)
{
    ATTENTION_UNITS(attention_units_keys_half, 4);
}

#endif
#endif
