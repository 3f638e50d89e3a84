/* A GGUF's metadata as a model's config: used by model_open() alone. */
#ifndef MOTLEY_MODEL_SHAPE_GGUF_CONFIG_H
#define MOTLEY_MODEL_SHAPE_GGUF_CONFIG_H

#include "model/files/gguf.h"
#include "model/shape/config.h"

/* The model's config from the metadata, by general.architecture (arch.h; "llama" is Llama and Mistral alike,
 * and Mixtral where it has experts); another one is ERR_UNSUPPORTED with the list. Tied when there is no
 * output.weight. */
int gguf_config(const struct gguf *gguf, struct model_config *config, struct err *err);

/* Set config's rope to the llama3 scaling that gives the 'count' frequency divisors of rope_freqs.weight.
 * ERR_UNSUPPORTED when none does. */
int gguf_infer_rope(const float *divisors, uint32_t count, struct model_config *config, struct err *err);

#endif
