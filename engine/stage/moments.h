/* AdamW's 8-bit moments (struct op_adamw8), encoded and decoded on the host. */
#ifndef MOTLEY_ENGINE_STAGE_MOMENTS_H
#define MOTLEY_ENGINE_STAGE_MOMENTS_H

#include <stdbool.h>
#include <stdint.h>

/* Decode codes[count] and absmax[ceil(count / 256)] to values[count]. with_sign: first moments. Packing the
 * result again gives the same codes. */
void moments8_unpack(bool with_sign, const uint8_t *codes, const float *absmax, uint64_t count,
                     float *values);
/* Encode each value as the nearest code of its block. */
void moments8_pack(bool with_sign, const float *values, uint64_t count, uint8_t *codes, float *absmax);

#endif
