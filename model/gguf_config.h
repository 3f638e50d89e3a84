/* What a GGUF's config needs beside its metadata: used by model_open() alone. */
#ifndef MOTLEY_MODEL_GGUF_CONFIG_H
#define MOTLEY_MODEL_GGUF_CONFIG_H

#include "model/gguf.h"

/* Set config's rope to the llama3 scaling that gives the 'count' frequency divisors of rope_freqs.weight.
 * ERR_UNSUPPORTED when none does. */
int gguf_infer_rope(const float *divisors, uint32_t count, struct model_config *config, struct err *err);

#endif
