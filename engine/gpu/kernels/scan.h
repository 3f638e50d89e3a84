/* Prefix sums over the threads of a block. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_SCAN_H
#define MOTLEY_ENGINE_GPU_KERNELS_SCAN_H

/* Returns the sum of `value` over the threads before this one in a block of 256; *all gets the sum over all
 * threads (Hillis and Steele 1986). Every thread of the block must call it. */
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

#endif
