/* Makes a model's config from a GGUF's metadata; only model_open() uses it. */
#ifndef MOTLEY_MODEL_SHAPE_GGUF_CONFIG_H
#define MOTLEY_MODEL_SHAPE_GGUF_CONFIG_H

#include "model/files/gguf.h"
#include "model/shape/config.h"

/* Fills the config from the metadata by general.architecture (arch.h; "llama" stands for Llama and Mistral,
 * and with experts for Mixtral). An unknown architecture is ERR_UNSUPPORTED with the list of known ones. The
 * model is tied when there is no output.weight. */
int gguf_config(const struct gguf *gguf, struct model_config *config, struct err *err);

/* Sets config's rope to the llama3 scaling that gives the 'count' frequency divisors of rope_freqs.weight.
 * ERR_UNSUPPORTED when there is none. */
int gguf_infer_rope(const float *divisors, uint32_t count, struct model_config *config, struct err *err);

#endif
