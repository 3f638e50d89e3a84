/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
 * SC 2011).
 *
 * A number is a pure function of (key, counter), so any division of the work draws the same numbers. No
 * state, any thread. Not for secrets: use random_bytes of digest.h.
 */
#ifndef MOTLEY_COMMON_RAND_H
#define MOTLEY_COMMON_RAND_H

#include <stddef.h>
#include <stdint.h>

/* Writes four uniform 32-bit numbers for 'key' at 'counter'. 'out' may alias 'counter'. */
void rand_u32x4(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

/* A sequence of numbers: key = seed, counter = (position, stream). Copying a stream copies its position. */
struct rand_stream {
    uint32_t key[2];
    uint32_t counter[4]; /* [0..1] position in units of four numbers, [2..3] stream */
    uint32_t ready[4];
    unsigned left; /* numbers of 'ready' not yet used; they are taken from its end */
};

void rand_stream_init(struct rand_stream *stream, uint64_t seed, uint64_t number);
uint32_t rand_stream_u32(struct rand_stream *stream);
uint64_t rand_stream_u64(struct rand_stream *stream);
double rand_stream_unit(struct rand_stream *stream); /* [0, 1) with 53 bits */
double rand_stream_normal(
    struct rand_stream *stream); /* mean 0, variance 1 (Box and Muller 1958); uses two numbers */
/* A uniform number in [0, bound), without bias (Lemire 2019, section 4). bound > 0. */
uint32_t rand_stream_below(struct rand_stream *stream, uint32_t bound);

#endif
