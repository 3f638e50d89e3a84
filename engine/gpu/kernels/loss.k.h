/* Cross-entropy over a vocabulary, with its gradient. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_LOSS_K_H
#define MOTLEY_ENGINE_GPU_KERNELS_LOSS_K_H

#include "engine/gpu/kernels/flat.k.h"
#include "engine/gpu/kernels/four.h"
#include "engine/gpu/kernels/team.h"

#define LOSS_KERNELS(X) X(cross_entropy, 512) X(loss_add, 256)

/* losses[rows], f64, from logits[rows, vocab] and targets (see op_cross_entropy); with `gradient`, logits are
 * replaced by their gradient. With `by_block` a block handles a row, else a warp. */
struct cross_entropy_args {
    uint64_t logits, targets, losses;
    uint32_t rows, vocab, gradient, wide, by_block;
    float smoothing, cap, scale; /* scale: factor of the gradient */
};

/* *loss += losses[count], one after the other, in one block. */
struct loss_add_args {
    uint64_t losses, loss;
    uint32_t count;
};

#ifdef GPU_KERNELS

/* Results of a pass over logits: the maximum and sum of their softmax (Milakov and Gimelshein 2018: the sum
 * is corrected when the maximum grows), the sum of all logits, and the logit at the target. */
struct logit_sums {
    float max, at_target;
    double exponentials, logits;
};

FUNCTION float capped_logit(float x, float cap)
{
    return cap > 0.0f ? softcapped(x, cap) : x;
}

/* Adds four logits, of which the first n exist. Four exponentials are added together before they go into the
 * sum. */
FUNCTION struct logit_sums softmax_take(struct logit_sums sums, struct four x, uint32_t n, uint32_t all)
{
    float max = sums.max, e = 0.0f, y = 0.0f;
    for (uint32_t j = 0; j < 4; j++)
        if (j < n)
            max = math_max(x.v[j], max);
    if (max > sums.max) {
        sums.exponentials *= (double)math_exp(sums.max - max);
        sums.max = max;
    }
    for (uint32_t j = 0; j < 4; j++)
        if (j < n) {
            e += math_exp(x.v[j] - max);
            y += x.v[j];
        }
    sums.exponentials += (double)e;
    if (all)
        sums.logits += (double)y;
    return sums;
}

FUNCTION struct logit_sums softmax_sums_of(const struct cross_entropy_args args, const float *row,
                                           struct team team, uint32_t target)
{
    struct logit_sums sums;
    sums.max = -math_infinity();
    sums.at_target = 0.0f;
    sums.exponentials = sums.logits = 0.0;
    for (uint32_t at = team.rank * 4; at < args.vocab; at += team.size * 4) {
        uint32_t n = args.vocab - at < 4 ? args.vocab - at : 4;
        struct four x = four_load(row, at, n, args.wide);
        for (uint32_t j = 0; j < 4; j++) {
            x.v[j] = capped_logit(x.v[j], args.cap);
            if (at + j == target)
                sums.at_target = x.v[j];
        }
        sums = softmax_take(sums, x, n, args.smoothing > 0.0f);
    }
    float max = team_max(team, sums.max);
    if (sums.max != max)
        sums.exponentials *= (double)math_exp(sums.max - max);
    sums.max = max;
    sums.exponentials = team_sum_wide(team, sums.exponentials);
    sums.at_target =
        team_sum(team, sums.at_target); /* one thread has the target's logit, the others have 0 */
    if (args.smoothing > 0.0f)
        sums.logits = team_sum_wide(team, sums.logits);
    return sums;
}

FUNCTION void cross_entropy_row(const struct cross_entropy_args args, uint64_t index, struct team team)
{
    float *row = POINTER(float, args.logits) + index * args.vocab;
    uint32_t target = LOAD(POINTER(const uint32_t, args.targets), index);
    const uint32_t counts = target != 0xffffffffu; /* -1: no target */
    assert_device(!counts || target < args.vocab);
    struct logit_sums sums = softmax_sums_of(args, row, team, target);
    double hit = 1.0 - (double)args.smoothing, share = (double)args.smoothing / (double)args.vocab;
    if (team.rank == 0)
        STORE(POINTER(double, args.losses), index,
              !counts ? 0.0
                      : math_log_wide(sums.exponentials) + (double)sums.max - hit * (double)sums.at_target -
                            share * sums.logits);
    if (!args.gradient)
        return;
    float inverse = (float)(1.0 / sums.exponentials);
    for (uint32_t at = team.rank * 4; at < args.vocab; at += team.size * 4) {
        uint32_t n = args.vocab - at < 4 ? args.vocab - at : 4;
        struct four x = four_load(row, at, n, args.wide);
        for (uint32_t j = 0; j < 4; j++) {
            float y = capped_logit(x.v[j], args.cap), slope = 1.0f;
            if (args.cap > 0.0f)
                slope = 1.0f - y / args.cap * (y / args.cap);
            x.v[j] = (math_exp(y - sums.max) * inverse - (float)share) * slope;
            if (at + j == target)
                x.v[j] -= (float)hit * slope;
            x.v[j] *= counts ? args.scale : 0.0f;
        }
        four_store(row, at, n, args.wide, x);
    }
}

KERNEL(cross_entropy, 512)
{
    SHARED(double, shared, TEAM_SHARED(512));
    if (args.by_block) {
        cross_entropy_row(args, block_x(), team_block(512, shared));
        return;
    }
    for (uint64_t i = team_warp_index(512); i < args.rows; i += team_warp_count(512))
        cross_entropy_row(args, i, team_warp());
}

KERNEL(loss_add, 256)
{
    SHARED(double, tile, 256);
    double *loss = POINTER(double, args.loss), sum = 0.0;
    if (thread() == 0)
        sum = LOAD(loss, 0);
    for (uint32_t base = 0; base < args.count; base += 256) {
        uint32_t left = args.count - base, n = left < 256 ? left : 256;
        if (thread() < n)
            PUT(tile, thread(), LOAD(POINTER(const double, args.losses), base + thread()));
        barrier();
        for (uint32_t i = 0; thread() == 0 && i < n; i++)
            sum += GET(tile, i);
        barrier();
    }
    if (thread() == 0)
        STORE(loss, 0, sum);
}

#endif
#endif
