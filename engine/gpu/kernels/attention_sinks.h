/* The sinks of attention (op.h): one more score of each head, which has no value. Part of attention.k.h. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_ATTENTION_SINKS_H
#define MOTLEY_ENGINE_GPU_KERNELS_ATTENTION_SINKS_H

#include "engine/gpu/kernels/team.h"

/* Begins a row's running softmax with the head's sink, or with nothing. Only one of the threads that share a
 * row is `first`: its share of the sum has the sink. */
FUNCTION void attention_begin(const struct attention_forward_args *args, uint32_t head, uint32_t first,
                              float *greatest, float *sum)
{
    float exponent = -math_infinity();
    if (args->sinks != 0)
        exponent = 1.44269504f * LOAD(POINTER(const float, args->sinks), head);
    *greatest = math_ceil(exponent);
    *sum = first && exponent > -math_infinity() ? math_exp2(exponent - *greatest) : 0.0f;
}

KERNEL(attention_sinks, 256)
{
    SHARED(double, shared, TEAM_SHARED(256));
    const uint32_t head = block_x();
    const float *lse = POINTER(const float, args.lse), *delta = POINTER(const float, args.delta);
    const float sink = LOAD(POINTER(const float, args.sinks), head);
    float *to = POINTER(float, args.dsinks);
    double sum = 0.0;
    for (uint32_t t = thread(); t < args.tokens; t += 256) {
        uint64_t at = (uint64_t)t * args.heads + head;
        sum -= (double)(math_exp(sink - LOAD(lse, at)) * LOAD(delta, at));
    }
    sum = team_sum_wide(team_block(256, shared), sum);
    if (thread() == 0)
        STORE(to, head, (float)((double)LOAD(to, head) + sum));
}

#endif
