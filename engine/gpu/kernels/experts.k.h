/* Kernels of mixtures of experts: routing, sorting by expert, and combining. They are small beside the
 * experts' products, so sums run in double and are rounded once. A warp handles one token (or one choice of a
 * token) and then the next, so the host need not know how many warps a block of 128 threads has. Sums over
 * tokens are made in slices, which are added in order. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_EXPERTS_K_H
#define MOTLEY_ENGINE_GPU_KERNELS_EXPERTS_K_H

#define EXPERTS_KERNELS(X)                                                                                   \
    X(route, 128)                                                                                            \
    X(route_count, 256)                                                                                      \
    X(route_backward, 128)                                                                                   \
    X(sort_count, 256)                                                                                       \
    X(sort_scan, 256)                                                                                        \
    X(sort_place, 256)                                                                                       \
    X(router_loss, 256)                                                                                      \
    X(combine, 256)                                                                                          \
    X(combine_backward, 128)

enum { ROUTER_EXPERTS_MAX = 1024 };

/* scores[tokens,experts] become probabilities; chosen and weight are [tokens,active]; bias[experts] may be 0:
 * absent. One warp handles a token. */
struct route_args {
    uint64_t scores, chosen, weight, bias;
    uint32_t tokens, experts, active, renormalise, sigmoid;
    float scale;
};

/* Adds to counts and sums [rows,experts] the choices and probabilities of each row's tokens. A block handles
 * 32 experts (x) of one row (y). */
struct route_count_args {
    uint64_t probabilities, chosen, row_start, counts, sums;
    uint32_t tokens, experts, active;
};

/* Computes dscores[tokens,experts]. One warp handles a token. */
struct route_backward_args {
    uint64_t probabilities, chosen, dweight, dscores;
    uint64_t row_start, counts; /* counts may be 0: absent */
    uint32_t rows, tokens, experts, active, renormalise, sigmoid;
    float aux, scale;
};

/* chosen[choices] is divided into pieces of `piece` choices, a multiple of 256. counts[pieces,experts] first
 * holds how many choices of a piece have an expert, and after the scan the position at which the first of
 * them goes. */
struct sort_count_args {
    uint64_t chosen, token, place, offsets, expert, counts; /* expert may be 0: absent */
    uint32_t choices, active, experts, piece, pieces;
};
struct sort_scan_args { /* launched with one block */
    struct sort_count_args sort;
};
struct sort_place_args {
    struct sort_count_args sort;
};

/* Arguments of router_loss, which is launched with one block. */
struct router_loss_args {
    uint64_t row_start, counts, sums, loss;
    uint32_t rows, experts, layers;
};

/* One thread computes one value of y[tokens,width]. */
struct combine_args {
    uint64_t x, place, weight, y; /* place and weight may be 0: absent */
    uint32_t tokens, active, width;
};

/* One warp handles a (token, expert) choice. */
struct combine_backward_args {
    uint64_t x, place, weight, dy, dweight; /* place may be 0: absent */
    uint32_t tokens, active, width;
};

#ifdef GPU_KERNELS

#include "engine/gpu/kernels/scan.h"
#include "engine/gpu/kernels/team.h"

/* Replaces p[experts] by its softmax; each lane handles every warp_size()-th value. */
FUNCTION void token_softmax(float *p, uint32_t experts)
{
    float max = -math_infinity();
    double sum = 0.0;
    for (uint32_t e = lane(); e < experts; e += warp_size())
        max = math_max(LOAD(p, e), max);
    max = warp_max(max);
    for (uint32_t e = lane(); e < experts; e += warp_size()) {
        float v = math_exp(LOAD(p, e) - max);
        STORE(p, e, v);
        sum += (double)v;
    }
    double inverse = 1.0 / warp_sum_wide(sum);
    for (uint32_t e = lane(); e < experts; e += warp_size())
        STORE(p, e, (float)((double)LOAD(p, e) * inverse));
}

/* Replaces p[experts] by its logistic function. */
FUNCTION void token_logistic(float *p, uint32_t experts)
{
    for (uint32_t e = lane(); e < experts; e += warp_size())
        STORE(p, e, 1.0f / (1.0f + math_exp(-LOAD(p, e))));
}

/* Finds the largest value of p + bias (0: p alone) after (*value, *expert) in the order of falling values
 * and, among equals, rising indices. If there is none, because the values are NaNs, *expert becomes
 * `otherwise`. */
FUNCTION void token_next(const float *p, uint64_t bias, uint32_t experts, uint32_t otherwise, float *value,
                         uint32_t *expert)
{
    const float none = (float)ROUTER_EXPERTS_MAX;
    float best = 0.0f, best_e = none;
    for (uint32_t e = lane(); e < experts; e += warp_size()) {
        float v = LOAD(p, e) + (bias ? LOAD(POINTER(const float, bias), e) : 0.0f);
        uint32_t after = v < *value || (v == *value && e > *expert);
        if (after && (best_e == none || v > best)) {
            best = v;
            best_e = (float)e;
        }
    }
    for (uint32_t mask = warp_size() / 2; mask > 0; mask /= 2) {
        float v = shuffle_xor(best, mask), e = shuffle_xor(best_e, mask);
        if (e != none && (best_e == none || v > best || (v == best && e < best_e))) {
            best = v;
            best_e = e;
        }
    }
    *value = best_e == none ? math_float(0x7fc00000u) : best;
    *expert = best_e == none ? otherwise : (uint32_t)best_e;
}

FUNCTION void token_route(const struct route_args *args, uint64_t t)
{
    float *p = POINTER(float, args->scores + 4 * t * args->experts);
    uint32_t *chosen = POINTER(uint32_t, args->chosen + 4 * t * args->active);
    float *weight = POINTER(float, args->weight + 4 * t * args->active);
    float value = math_infinity();
    uint32_t expert = 0;
    if (args->sigmoid)
        token_logistic(p, args->experts);
    else
        token_softmax(p, args->experts);
    warp_barrier();
    for (uint32_t j = 0; j < args->active; j++) {
        token_next(p, args->bias, args->experts, j, &value, &expert);
        if (lane() == 0) {
            STORE(chosen, j, expert);
            STORE(weight, j, LOAD(p, expert));
        }
    }
    if (lane() != 0)
        return;
    double sum = args->renormalise ? 0.0 : 1.0;
    for (uint32_t j = 0; j < args->active && args->renormalise; j++)
        sum += (double)LOAD(weight, j);
    for (uint32_t j = 0; j < args->active; j++)
        STORE(weight, j, (float)((double)args->scale * (double)LOAD(weight, j) / sum));
}

KERNEL(route, 128)
{
    for (uint64_t t = team_warp_index(128); t < args.tokens; t += team_warp_count(128))
        token_route(&args, t);
}

KERNEL(route_count, 256)
{
    SHARED(double, slice_sums, 256);
    SHARED(uint32_t, slice_counts, 256);
    const uint32_t *start = POINTER(const uint32_t, args.row_start);
    const uint32_t *chosen = POINTER(const uint32_t, args.chosen);
    const float *p = POINTER(const float, args.probabilities);
    uint32_t e = block_x() * 32 + thread() % 32, count = 0;
    uint32_t begin = LOAD(start, block_y()), end = LOAD(start, block_y() + 1);
    double sum = 0.0;
    assert_device(begin <= end && end <= args.tokens);
    for (uint64_t t = (uint64_t)begin + thread() / 32; t < end && e < args.experts; t += 8) {
        sum += (double)LOAD(p, t * args.experts + e);
        for (uint32_t j = 0; j < args.active; j++)
            count += LOAD(chosen, t * args.active + j) == e;
    }
    PUT(slice_sums, thread(), sum);
    PUT(slice_counts, thread(), count);
    barrier();
    if (thread() >= 32 || e >= args.experts)
        return;
    for (uint32_t slice = 1; slice < 8; slice++) {
        sum += GET(slice_sums, slice * 32 + thread());
        count += GET(slice_counts, slice * 32 + thread());
    }
    float *counts = POINTER(float, args.counts), *sums = POINTER(float, args.sums);
    uint64_t at = (uint64_t)block_y() * args.experts + e;
    STORE(counts, at, LOAD(counts, at) + (float)count);
    STORE(sums, at, (float)((double)LOAD(sums, at) + sum));
}

/* How a token's choices contribute to the gradient of its probabilities: each choice of expert e adds
 * scale * (dweight_j - shared) / sum, where weight_j = scale * p_j / sum. */
struct choice_slopes {
    const uint32_t *chosen;
    const float *dweight;
    double sum, shared, scale;
};

FUNCTION struct choice_slopes choices_of(const struct route_backward_args *args, const float *p, uint64_t t)
{
    struct choice_slopes s;
    s.chosen = POINTER(const uint32_t, args->chosen + 4 * t * args->active);
    s.dweight = POINTER(const float, args->dweight + 4 * t * args->active);
    s.sum = args->renormalise ? 0.0 : 1.0;
    s.shared = 0.0;
    for (uint32_t j = 0; j < args->active; j++) {
        uint32_t e = LOAD(s.chosen, j);
        assert_device(e < args->experts);
        s.sum += args->renormalise ? (double)LOAD(p, e) : 0.0;
        s.shared += args->renormalise ? (double)LOAD(s.dweight, j) * (double)LOAD(p, e) : 0.0;
    }
    s.shared /= s.sum;
    s.scale = (double)args->scale;
    return s;
}

FUNCTION double choice_slope(const struct choice_slopes *s, uint32_t active, uint32_t e)
{
    double d = 0.0;
    for (uint32_t j = 0; j < active; j++)
        if (LOAD(s->chosen, j) == e)
            d += s->scale * ((double)LOAD(s->dweight, j) - s->shared) / s->sum;
    return d;
}

/* The row that contains token t. All warps together check that row_start rises. */
FUNCTION uint32_t route_row(const struct route_backward_args *args, uint64_t t)
{
    const uint32_t *start = POINTER(const uint32_t, args->row_start);
    uint32_t low = 0, high = args->rows;
    for (uint64_t r = t * warp_size() + lane(); r < args->rows; r += (uint64_t)args->tokens * warp_size())
        assert_device(LOAD(start, r) <= LOAD(start, r + 1));
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (LOAD(start, middle) <= t)
            low = middle;
        else
            high = middle;
    }
    assert_device(LOAD(start, low) <= t && t < LOAD(start, low + 1));
    return low;
}

FUNCTION void token_route_backward(const struct route_backward_args *args, uint64_t t)
{
    const float *p = POINTER(const float, args->probabilities + 4 * t * args->experts);
    const float *counts = POINTER(const float, args->counts);
    float *dscores = POINTER(float, args->dscores + 4 * t * args->experts);
    struct choice_slopes choices = choices_of(args, p, t);
    double factor = 0.0, mean = 0.0;
    if (args->counts != 0) {
        const uint32_t *start = POINTER(const uint32_t, args->row_start);
        uint32_t row = route_row(args, t);
        factor = (double)args->aux / (double)(LOAD(start, row + 1) - LOAD(start, row));
        counts += (uint64_t)row * args->experts;
    }
    for (uint32_t e = lane(); e < args->experts; e += warp_size()) {
        double d = choice_slope(&choices, args->active, e);
        if (args->counts != 0)
            d += factor * (double)LOAD(counts, e);
        mean += (double)LOAD(p, e) * d;
    }
    mean = warp_sum_wide(mean);
    for (uint32_t e = lane(); e < args->experts; e += warp_size()) {
        double d = choice_slope(&choices, args->active, e);
        if (args->counts != 0)
            d += factor * (double)LOAD(counts, e);
        double v = (double)LOAD(p, e);
        STORE(dscores, e, (float)(v * (args->sigmoid ? d * (1.0 - v) : d - mean)));
    }
}

KERNEL(route_backward, 128)
{
    for (uint64_t t = team_warp_index(128); t < args.tokens; t += team_warp_count(128))
        token_route_backward(&args, t);
}

/* Where this block's piece of the choices ends. */
FUNCTION uint32_t piece_end(const struct sort_count_args *sort)
{
    uint32_t begin = block_x() * sort->piece;
    return sort->choices - begin < sort->piece ? sort->choices : begin + sort->piece;
}

KERNEL(sort_count, 256)
{
    const uint32_t *chosen = POINTER(const uint32_t, args.chosen);
    uint32_t *counts = POINTER(uint32_t, args.counts);
    uint32_t end = piece_end(&args);
    for (uint64_t i = (uint64_t)block_x() * args.piece + thread(); i < end; i += 256) {
        uint32_t e = LOAD(chosen, i);
        assert_device(e < args.experts);
        (void)ADD_ATOMIC_U32(counts, (uint64_t)block_x() * args.experts + e, 1);
    }
}

KERNEL(sort_scan, 256)
{
    uint32_t *counts = POINTER(uint32_t, args.sort.counts), *offsets = POINTER(uint32_t, args.sort.offsets);
    uint32_t experts = args.sort.experts, done = 0, all;
    for (uint32_t first = 0; first < experts; first += 256) {
        uint32_t e = first + thread(), count = 0;
        for (uint32_t piece = 0; piece < args.sort.pieces && e < experts; piece++)
            count += LOAD(counts, (uint64_t)piece * experts + e);
        uint32_t at = done + block_sum_before(count, &all);
        done += all;
        if (e < experts)
            STORE(offsets, e, at);
        for (uint32_t piece = 0; piece < args.sort.pieces && e < experts; piece++) {
            uint32_t of_piece = LOAD(counts, (uint64_t)piece * experts + e);
            STORE(counts, (uint64_t)piece * experts + e, at);
            at += of_piece;
        }
    }
    if (thread() == 0)
        STORE(offsets, experts, done);
}

/* Places 256 choices at a time, each behind the earlier choices of the same expert. */
KERNEL(sort_place, 256)
{
    SHARED(uint32_t, next, ROUTER_EXPERTS_MAX);
    SHARED(uint32_t, batch, 256);
    const uint32_t *chosen = POINTER(const uint32_t, args.sort.chosen);
    const uint32_t *counts = POINTER(const uint32_t, args.sort.counts);
    uint32_t *token = POINTER(uint32_t, args.sort.token), *place = POINTER(uint32_t, args.sort.place);
    uint32_t end = piece_end(&args.sort);
    for (uint32_t e = thread(); e < args.sort.experts; e += 256)
        PUT(next, e, LOAD(counts, (uint64_t)block_x() * args.sort.experts + e));
    for (uint64_t first = (uint64_t)block_x() * args.sort.piece; first < end; first += 256) {
        uint64_t i = first + thread();
        uint32_t mine = i < end ? LOAD(chosen, i) : 0xffffffffu, before = 0, after = 0;
        PUT(batch, thread(), mine);
        barrier();
        for (uint32_t j = 0; j < 256; j++) {
            uint32_t same = GET(batch, j) == mine;
            before += j < thread() ? same : 0;
            after += j > thread() ? same : 0;
        }
        uint32_t at = i < end ? GET(next, mine) + before : 0;
        barrier();
        if (i >= end)
            continue;
        if (after == 0)
            PUT(next, mine, at + 1);
        STORE(place, i, at);
        STORE(token, at, (uint32_t)(i / args.sort.active));
        if (args.sort.expert != 0)
            STORE(POINTER(uint32_t, args.sort.expert), at, mine);
    }
}

KERNEL(router_loss, 256)
{
    SHARED(double, shared, TEAM_SHARED(256));
    const uint32_t *start = POINTER(const uint32_t, args.row_start);
    const float *counts = POINTER(const float, args.counts), *sums = POINTER(const float, args.sums);
    double *loss = POINTER(double, args.loss);
    double total = thread() == 0 ? LOAD(loss, 0) : 0.0;
    for (uint32_t r = 0; r < args.rows; r++) {
        uint32_t begin = LOAD(start, r), end = LOAD(start, r + 1);
        double sum = 0.0, length = (double)(end - begin), n = (double)args.layers * length;
        assert_device(begin <= end);
        for (uint64_t e = thread(); e < args.experts; e += 256)
            sum += (double)LOAD(counts, (uint64_t)r * args.experts + e) *
                   (double)LOAD(sums, (uint64_t)r * args.experts + e);
        sum = team_sum_wide(team_block(256, shared), sum);
        if (n > 0.0)
            total += length * (double)args.experts * sum / (n * n);
    }
    if (thread() == 0)
        STORE(loss, 0, total);
}

KERNEL(combine, 256)
{
    uint64_t i = (uint64_t)block_x() * 256 + thread();
    if (i >= (uint64_t)args.tokens * args.width)
        return;
    uint64_t t = i / args.width, column = i % args.width, places = (uint64_t)args.tokens * args.active;
    const float *x = POINTER(const float, args.x), *weight = POINTER(const float, args.weight);
    const uint32_t *place = POINTER(const uint32_t, args.place);
    float *y = POINTER(float, args.y);
    double sum = 0.0;
    for (uint64_t j = t * args.active; j < (t + 1) * args.active; j++) {
        uint64_t from = args.place ? LOAD(place, j) : j;
        assert_device(from < places);
        sum +=
            (args.weight == 0 ? 1.0 : (double)LOAD(weight, j)) * (double)LOAD(x, from * args.width + column);
    }
    STORE(y, i, (float)((double)LOAD(y, i) + sum));
}

FUNCTION void choice_combine_backward(const struct combine_backward_args *args, uint64_t j)
{
    uint64_t at = args->place ? LOAD(POINTER(const uint32_t, args->place), j) : j;
    assert_device(at < (uint64_t)args->tokens * args->active);
    const float *dy = POINTER(const float, args->dy + 4 * (j / args->active) * args->width);
    float *x = POINTER(float, args->x + 4 * at * args->width);
    float weight = LOAD(POINTER(const float, args->weight), j);
    double sum = 0.0;
    for (uint32_t i = lane(); i < args->width; i += warp_size()) {
        float d = LOAD(dy, i);
        sum += (double)d * (double)LOAD(x, i);
        STORE(x, i, weight * d);
    }
    sum = warp_sum_wide(sum);
    if (lane() == 0)
        STORE(POINTER(float, args->dweight), j, (float)sum);
}

KERNEL(combine_backward, 128)
{
    for (uint64_t j = team_warp_index(128); j < (uint64_t)args.tokens * args.active;
         j += team_warp_count(128))
        choice_combine_backward(&args, j);
}

#endif
#endif
