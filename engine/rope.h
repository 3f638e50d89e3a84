/* The table of cosines and sines for rotary positions. */
#ifndef MOTLEY_ENGINE_ROPE_H
#define MOTLEY_ENGINE_ROPE_H

#include "common/err.h"
#include "model/config.h"

/* Row `position` of the table, [width]: width/2 cosines, then as many sines. inverse: [width/2] from
 * rope_frequencies(). */
void rope_row(const float *inverse, uint32_t width, uint32_t position, float *row);

/* Inverse frequencies in single precision, each operation rounded as PyTorch rounds it there: the frequencies
 * are single-precision tensors in every dtype of the model, so this is what models are trained with. Su et
 * al. 2021 eq. 15; llama3 scaling as Meta published it. ERR_UNSUPPORTED for other scalings. */
int rope_frequencies(const struct rope_config *rope, uint32_t width, float *inverse, struct err *err);

#endif
