/* The table of cosines and sines for rotary positions. */
#ifndef MOTLEY_ENGINE_STAGE_ROPE_H
#define MOTLEY_ENGINE_STAGE_ROPE_H

#include "common/err.h"
#include "model/shape/config.h"

/* Row `position` of the table, [width]: width/2 cosines, then as many sines, all multiplied by scale
 * (rope_scale()). inverse: [width/2] from rope_frequencies(). */
void rope_row(const float *inverse, uint32_t width, uint32_t position, float scale, float *row);
/* The factor of all cosines and sines: 1 except for yarn and longrope. */
float rope_scale(const struct rope_config *rope);

/* Inverse frequencies in single precision, with each operation rounded as in PyTorch. transformers computes
 * them in single precision whatever the model's dtype, so models were trained with exactly these. Su et al.
 * 2021 eq. 15; scalings, the meaning of `positions`, and ERR_UNSUPPORTED are as in model_rope_frequencies().
 */
int rope_frequencies(const struct rope_config *rope, uint32_t width, uint32_t positions, float *inverse,
                     struct err *err);

#endif
