/* Philox4x32-10: ten rounds of two 32x32-bit multiplications each. The constants are from table 2 of the
 * paper. */
#include "common/rand.h"

#include <math.h>

static const uint32_t philox_m0 = 0xD2511F53u;
static const uint32_t philox_m1 = 0xCD9E8D57u;
static const uint32_t philox_w0 = 0x9E3779B9u; /* from the golden ratio */
static const uint32_t philox_w1 = 0xBB67AE85u; /* from sqrt(3) - 1 */

void rand_u32x4(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = key[0];
    uint32_t k1 = key[1];
    uint32_t c0 = counter[0];
    uint32_t c1 = counter[1];
    uint32_t c2 = counter[2];
    uint32_t c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)philox_m0 * c0;
        uint64_t p1 = (uint64_t)philox_m1 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += philox_w0;
        k1 += philox_w1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void rand_stream_init(struct rand_stream *stream, uint64_t seed, uint64_t number)
{
    *stream = (struct rand_stream){
        .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
        .counter = {0, 0, (uint32_t)number, (uint32_t)(number >> 32)},
    };
}

uint32_t rand_stream_u32(struct rand_stream *stream)
{
    if (stream->left == 0) {
        rand_u32x4(stream->key, stream->counter, stream->ready);
        stream->left = 4;
        if (++stream->counter[0] == 0)
            stream->counter[1]++;
    }
    return stream->ready[4 - stream->left--];
}

uint64_t rand_stream_u64(struct rand_stream *stream)
{
    uint64_t high = rand_stream_u32(stream);
    return high << 32 | rand_stream_u32(stream);
}

double rand_stream_unit(struct rand_stream *stream)
{
    return (double)(rand_stream_u64(stream) >> 11) * 0x1p-53;
}

double rand_stream_normal(struct rand_stream *stream)
{
    double u = 1.0 - rand_stream_unit(stream); /* in (0, 1], so the logarithm is finite */
    double v = rand_stream_unit(stream);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586476925 * v);
}

uint32_t rand_stream_below(struct rand_stream *stream, uint32_t bound)
{
    uint64_t product = (uint64_t)rand_stream_u32(stream) * bound;
    if ((uint32_t)product < bound) {
        uint32_t threshold =
            -bound % bound; /* 2^32 mod bound: products below it would make some values too frequent */
        while ((uint32_t)product < threshold)
            product = (uint64_t)rand_stream_u32(stream) * bound;
    }
    return (uint32_t)(product >> 32);
}
