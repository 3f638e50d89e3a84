/* Kernels that normalise, rotate or sum rows. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_ROWS_K_H
#define MOTLEY_ENGINE_GPU_KERNELS_ROWS_K_H

#include "engine/gpu/kernels/four.h"
#include "engine/gpu/kernels/team.h"

#define ROWS_KERNELS(X)                                                                                      \
    X(rmsnorm, 256) X(rmsnorm_backward, 256) X(rope, 256) X(column_sums, 256) X(column_sums_add, 256)

/* y = x / sqrt(mean(x^2) + eps) * (offset + weight), of x less its mean where that is `centred`, plus the
 * bias (unless 0), for `count` vectors of `width` values, `vectors` of them in a row. With `by_block` a block
 * handles a vector, else a warp. y has type y_as (ELEMENT_…, four.h) and may be x if that is f32. */
struct rmsnorm_args {
    uint64_t x, weight, bias, y;
    uint32_t count, width, vectors, ldx, ldy, y_as, wide, by_block, centred;
    float eps, offset;
};

/* dx (unless 0) is set to the gradient of x, or increased by it. norms[count, 2] (unless 0) gets 1 /
 * sqrt(mean(x^2) + eps), and the mean that was subtracted first or 0. dx may be dy. */
struct rmsnorm_backward_args {
    uint64_t x, weight, dy, dx, norms;
    uint32_t count, width, vectors, ldx, lddy, lddx, accumulate, wide, by_block, centred;
    float eps, offset;
};

/* Rotates the first 2 * half values of each head, as pairs i and i + half, or with `adjacent` 2i and 2i + 1.
 * table[table_rows, 2 * half] has cosines, then sines. The first `rotated` of the heads are rotated, from x
 * to y, of type y_as; the others are copied. */
struct rope_args {
    uint64_t x, y, positions, table;
    uint32_t tokens, heads, rotated, head_dim, half, ldx, table_rows, wide, y_as, adjacent;
    float sign; /* -1 rotates the other way */
};

/* partial[chunk, width], f64: sums over the chunk's rows of x, or with dy of dy * x as norms[row] norm it. A
 * block handles 32 columns (block_x) of a chunk (block_y). A row of memory has `vectors` of these rows. */
struct column_sums_args {
    uint64_t x, dy, norms, partial;
    uint32_t rows, width, vectors, ldx, lddy, chunk_rows;
};

/* y[width] += the chunks' sums in order, rounded once */
struct column_sums_add_args {
    uint64_t partial, y;
    uint32_t width, chunks;
};

#ifdef GPU_KERNELS

/* A vector and the team of threads that handles it. Each thread takes four values, then the four that are
 * team.size * 4 further on. */
struct rmsnorm_vector {
    struct team team;
    uint32_t index;
    uint64_t row, column;
};

FUNCTION struct rmsnorm_vector rmsnorm_vector_of(struct team team, uint32_t index, uint32_t vectors,
                                                 uint32_t width)
{
    struct rmsnorm_vector vector;
    vector.team = team;
    vector.index = index;
    vector.row = index / vectors;
    vector.column = (uint64_t)(index % vectors) * width;
    return vector;
}

FUNCTION uint32_t four_left(uint32_t width, uint32_t at)
{
    return width - at < 4 ? width - at : 4;
}

/* Four of the weights; 0 in a norm without weights. */
FUNCTION struct four weight_load(uint64_t weight, uint64_t at, uint32_t n, uint32_t wide)
{
    return four_load(POINTER(const float, weight), at, weight == 0 ? 0 : n, wide);
}

/* The mean of the vector, or 0 where it is not subtracted. */
FUNCTION float vector_mean(const float *x, struct team team, uint32_t width, uint32_t wide, uint32_t centred)
{
    float sum = 0.0f;
    if (!centred)
        return 0.0f;
    for (uint32_t at = team.rank * 4; at < width; at += team.size * 4) {
        uint32_t n = four_left(width, at);
        struct four a = four_load(x, at, n, wide);
        for (uint32_t j = 0; j < 4; j++)
            sum += a.v[j];
    }
    return team_sum(team, sum) / (float)width;
}

/* Four values less the mean; those behind the vector's end become 0. */
FUNCTION struct four four_centred(const float *x, uint32_t at, uint32_t n, uint32_t wide, float mean)
{
    struct four a = four_load(x, at, n, wide);
    for (uint32_t j = 0; j < 4; j++)
        a.v[j] = j < n ? a.v[j] - mean : 0.0f;
    return a;
}

FUNCTION void rmsnorm_run(const struct rmsnorm_args args, struct rmsnorm_vector vector)
{
    const float *x = POINTER(const float, args.x) + vector.row * args.ldx + vector.column;
    uint32_t begin = vector.team.rank * 4, step = vector.team.size * 4;
    float sum = 0.0f, mean = vector_mean(x, vector.team, args.width, args.wide, args.centred);
    for (uint32_t at = begin; at < args.width; at += step) {
        struct four a = four_centred(x, at, four_left(args.width, at), args.wide, mean);
        for (uint32_t j = 0; j < 4; j++)
            sum = math_fma(a.v[j], a.v[j], sum);
    }
    float inverse = 1.0f / math_sqrt(team_sum(vector.team, sum) / (float)args.width + args.eps);
    for (uint32_t at = begin; at < args.width; at += step) {
        uint32_t n = four_left(args.width, at);
        struct four a = four_centred(x, at, n, args.wide, mean),
                    w = weight_load(args.weight, at, n, args.wide);
        for (uint32_t j = 0; j < 4; j++)
            a.v[j] = (w.v[j] + args.offset) * (a.v[j] * inverse);
        if (args.bias != 0) {
            struct four bias = weight_load(args.bias, at, n, args.wide);
            for (uint32_t j = 0; j < 4; j++)
                a.v[j] += bias.v[j];
        }
        four_store_as(args.y_as, args.y, vector.row * args.ldy + vector.column + at, n, args.wide, a);
    }
}

KERNEL(rmsnorm, 256)
{
    SHARED(double, shared, TEAM_SHARED(256));
    if (args.by_block) {
        struct team team = team_block(256, shared);
        rmsnorm_run(args, rmsnorm_vector_of(team, block_x(), args.vectors, args.width));
        return;
    }
    for (uint64_t i = team_warp_index(256); i < args.count; i += team_warp_count(256))
        rmsnorm_run(args, rmsnorm_vector_of(team_warp(), (uint32_t)i, args.vectors, args.width));
}

/* With r = 1 / rms and x less its mean: dx = r * (w dy) - x * r^3 / n * sum(x w dy), where x is centred less
 * r / n * sum(w dy). */
FUNCTION void rmsnorm_backward_run(const struct rmsnorm_backward_args args, struct rmsnorm_vector vector)
{
    const float *x = POINTER(const float, args.x) + vector.row * args.ldx + vector.column;
    const float *dy = POINTER(const float, args.dy) + vector.row * args.lddy + vector.column;
    float *dx = POINTER(float, args.dx) + vector.row * args.lddx + vector.column;
    uint32_t begin = vector.team.rank * 4, step = vector.team.size * 4;
    float mean = vector_mean(x, vector.team, args.width, args.wide, args.centred);
    float squares = 0.0f, products = 0.0f, sum = 0.0f;
    for (uint32_t at = begin; at < args.width; at += step) {
        uint32_t n = four_left(args.width, at);
        struct four a = four_centred(x, at, n, args.wide, mean);
        for (uint32_t j = 0; j < 4; j++)
            squares = math_fma(a.v[j], a.v[j], squares);
        if (args.dx == 0)
            continue;
        struct four w = weight_load(args.weight, at, n, args.wide), d = four_load(dy, at, n, args.wide);
        for (uint32_t j = 0; j < 4; j++) {
            float product = (w.v[j] + args.offset) * d.v[j];
            products = math_fma(a.v[j], product, products);
            sum += product;
        }
    }
    float size = (float)args.width;
    float r = 1.0f / math_sqrt(team_sum(vector.team, squares) / size + args.eps);
    if (args.norms != 0 && vector.team.rank == 0) {
        STORE(POINTER(float, args.norms), 2 * (uint64_t)vector.index, r);
        STORE(POINTER(float, args.norms), 2 * (uint64_t)vector.index + 1, mean);
    }
    if (args.dx == 0)
        return;
    float c = args.centred ? r * (team_sum(vector.team, sum) / size) : 0.0f;
    float b = r * r * r * (team_sum(vector.team, products) / size);
    for (uint32_t at = begin; at < args.width; at += step) {
        uint32_t n = four_left(args.width, at);
        struct four a = four_centred(x, at, n, args.wide, mean),
                    w = weight_load(args.weight, at, n, args.wide);
        struct four d = four_load(dy, at, n, args.wide), was = d;
        if (args.accumulate)
            was = four_load(dx, at, n, args.wide);
        for (uint32_t j = 0; j < 4; j++) {
            float change = math_fma(-a.v[j], b, (w.v[j] + args.offset) * d.v[j] * r);
            change = args.centred ? change - c : change;
            d.v[j] = args.accumulate ? was.v[j] + change : change;
        }
        four_store(dx, at, n, args.wide, d);
    }
}

KERNEL(rmsnorm_backward, 256)
{
    SHARED(double, shared, TEAM_SHARED(256));
    if (args.by_block) {
        struct team team = team_block(256, shared);
        rmsnorm_backward_run(args, rmsnorm_vector_of(team, block_x(), args.vectors, args.width));
        return;
    }
    for (uint64_t i = team_warp_index(256); i < args.count; i += team_warp_count(256))
        rmsnorm_backward_run(args, rmsnorm_vector_of(team_warp(), (uint32_t)i, args.vectors, args.width));
}

FUNCTION struct four four_of(float a, float b, float c, float d)
{
    struct four x = {{a, b, c, d}};
    return x;
}

KERNEL(rope, 256)
{
    struct four_position at = place_in_rows((uint64_t)args.tokens * args.heads, args.half);
    if (at.n == 0)
        return;
    uint64_t token = (uint32_t)at.row / args.heads, head = (uint32_t)at.row % args.heads;
    uint32_t position = LOAD(POINTER(const uint32_t, args.positions), token);
    assert_device(position < args.table_rows);
    const float *table = POINTER(const float, args.table) + (uint64_t)position * 2 * args.half;
    const float *x = POINTER(const float, args.x);
    uint64_t first = token * args.ldx + head * args.head_dim + (args.adjacent ? 2 : 1) * at.column;
    /* With `adjacent` a thread's pairs are eight neighbouring values: a gets the first four, b the others. */
    uint64_t second = first + (args.adjacent ? 4 : args.half);
    uint32_t n = args.adjacent ? (at.n < 2 ? 2 * at.n : 4) : at.n, m = args.adjacent ? 2 * at.n - n : at.n;
    struct four cosines = four_load(table, at.column, at.n, args.wide);
    struct four sines = four_load(table, args.half + at.column, at.n, args.wide);
    struct four a = four_load(x, first, n, args.wide), b = four_load(x, second, m, args.wide);
    if (args.adjacent) {
        struct four odd = four_of(a.v[1], a.v[3], b.v[1], b.v[3]);
        a = four_of(a.v[0], a.v[2], b.v[0], b.v[2]);
        b = odd;
    }
    for (uint32_t j = 0; j < 4 && head < args.rotated; j++) {
        float was = a.v[j], c = cosines.v[j], s = sines.v[j] * args.sign;
        a.v[j] = math_fma(was, c, -(b.v[j] * s));
        b.v[j] = math_fma(b.v[j], c, was * s);
    }
    if (args.adjacent) {
        struct four low = four_of(a.v[0], b.v[0], a.v[1], b.v[1]);
        b = four_of(a.v[2], b.v[2], a.v[3], b.v[3]);
        a = low;
    }
    four_store_as(args.y_as, args.y, first, n, args.wide, a);
    four_store_as(args.y_as, args.y, second, m, args.wide, b);
}

KERNEL(column_sums, 256)
{
    SHARED(double, sums, 256);
    uint32_t column = block_x() * 32 + thread() % 32;
    uint32_t begin = block_y() * args.chunk_rows;
    uint32_t end = args.rows - begin < args.chunk_rows ? args.rows : begin + args.chunk_rows;
    const float *x = POINTER(const float, args.x), *dy = POINTER(const float, args.dy);
    double sum = 0.0;
    for (uint32_t i = begin + thread() / 32; column < args.width && i < end; i += 8) {
        uint64_t row = i / args.vectors, at = (uint64_t)(i % args.vectors) * args.width + column;
        float v = LOAD(x, row * args.ldx + at);
        if (args.dy != 0)
            v = LOAD(dy, row * args.lddy + at) *
                (v - LOAD(POINTER(const float, args.norms), 2 * (uint64_t)i + 1)) *
                LOAD(POINTER(const float, args.norms), 2 * (uint64_t)i);
        sum += (double)v;
    }
    PUT(sums, thread(), sum);
    barrier();
    if (thread() >= 32 || column >= args.width)
        return;
    for (uint32_t i = 1; i < 8; i++)
        sum += GET(sums, i * 32 + thread());
    STORE(POINTER(double, args.partial), (uint64_t)block_y() * args.width + column, sum);
}

KERNEL(column_sums_add, 256)
{
    uint32_t column = block_x() * 256 + thread();
    float *y = POINTER(float, args.y);
    double sum = 0.0;
    if (column >= args.width)
        return;
    for (uint32_t i = 0; i < args.chunks; i++)
        sum += LOAD(POINTER(const double, args.partial), (uint64_t)i * args.width + column);
    STORE(y, column, (float)((double)LOAD(y, column) + sum));
}

#endif
#endif
