/* How a GGUF's names and metadata become Hugging Face's: used by model_open() alone. */
#ifndef MOTLEY_MODEL_GGUF_CONFIG_H
#define MOTLEY_MODEL_GGUF_CONFIG_H

#include "model/gguf.h"

/* The Hugging Face name of a tensor into name[size]; false for one the model does not use. *permuted_heads:
 * rows of each of so many heads are interleaved (q and k), or 0. */
bool gguf_hf_name(const struct gguf_tensor *tensor, const struct model_config *config, char *name,
                  size_t size, uint32_t *permuted_heads);

/* Set config's rope to the llama3 scaling that gives the 'count' frequency divisors of rope_freqs.weight.
 * ERR_UNSUPPORTED when none does. */
int gguf_infer_rope(const float *divisors, uint32_t count, struct model_config *config, struct err *err);

#endif
