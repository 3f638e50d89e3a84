/* Moments of AdamW in 8 bits (struct op_adamw8), on the host. */
#ifndef MOTLEY_ENGINE_MOMENTS_H
#define MOTLEY_ENGINE_MOMENTS_H

#include <stdbool.h>
#include <stdint.h>

/* codes[count] and absmax[ceil(count / 256)] to values[count]; with_sign: first moments. What was unpacked
 * packs to what it was. */
void moments8_unpack(bool with_sign, const uint8_t *codes, const float *absmax, uint64_t count,
                     float *values);
/* And back: each value to the nearest of its block. */
void moments8_pack(bool with_sign, const float *values, uint64_t count, uint8_t *codes, float *absmax);

#endif
