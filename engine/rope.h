/* The table of cosines and sines for rotary positions. */
#ifndef MOTLEY_ENGINE_ROPE_H
#define MOTLEY_ENGINE_ROPE_H

#include "common/err.h"
#include "model/config.h"

/* Row `position` of the table, [width]: width/2 cosines, then as many sines, all multiplied by scale
 * (rope_scale()). inverse: [width/2] from rope_frequencies(). */
void rope_row(const float *inverse, uint32_t width, uint32_t position, float scale, float *row);
/* What cosines and sines are multiplied by: 1 but for yarn and longrope. */
float rope_scale(const struct rope_config *rope);

/* Inverse frequencies in single precision, each operation rounded as PyTorch rounds it there: the frequencies
 * are single-precision tensors in every dtype of the model, so this is what models are trained with. Su et
 * al. 2021 eq. 15; scalings, and what `positions` is for, as model_rope_frequencies() has them.
 * ERR_UNSUPPORTED as there. */
int rope_frequencies(const struct rope_config *rope, uint32_t width, uint32_t positions, float *inverse,
                     struct err *err);

#endif
