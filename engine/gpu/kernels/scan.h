/* Sums over the threads of a block. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_SCAN_H
#define MOTLEY_ENGINE_GPU_KERNELS_SCAN_H

/* The sum of `value` over the threads before this one of a block of 256, and *all over all of them (Hillis
 * and Steele 1986). Every thread of the block must be there. */
FUNCTION uint32_t block_sum_before(uint32_t value, uint32_t *all)
{
    SHARED(uint32_t, sums, 256);
    uint32_t sum = value;
    PUT(sums, thread(), sum);
    barrier();
    for (uint32_t step = 1; step < 256; step *= 2) {
        sum += thread() >= step ? GET(sums, thread() - step) : 0;
        barrier();
        PUT(sums, thread(), sum);
        barrier();
    }
    *all = GET(sums, 255);
    barrier();
    return sum - value;
}

/* A double from another lane, as its two words. */
FUNCTION double shuffle_xor_double(double value, uint32_t mask)
{
    union {
        double d;
        uint64_t u;
    } bits;
    bits.d = value;
    uint32_t low = math_bits(shuffle_xor(math_float((uint32_t)bits.u), mask));
    uint32_t high = math_bits(shuffle_xor(math_float((uint32_t)(bits.u >> 32)), mask));
    bits.u = (uint64_t)high << 32 | low;
    return bits.d;
}

/* The sum of doubles over a warp, by halves: every lane gets the same. */
FUNCTION double warp_sum_double(double value)
{
    for (uint32_t mask = warp_size() / 2; mask > 0; mask /= 2)
        value += shuffle_xor_double(value, mask);
    return value;
}

/* The sum of doubles over a block of 256, by halves; thread 0 alone gets it. */
FUNCTION double block_sum_double(double value)
{
    SHARED(double, halves, 256);
    PUT(halves, thread(), value);
    barrier();
    for (uint32_t half = 128; half > 0; half /= 2) {
        if (thread() < half)
            PUT(halves, thread(), GET(halves, thread()) + GET(halves, thread() + half));
        barrier();
    }
    double sum = thread() == 0 ? GET(halves, 0) : 0.0;
    barrier();
    return sum;
}

#endif
