/* How a GGUF's layers are packed, found in its header, and as a part of a model's description. */
#ifndef MOTLEY_MODEL_PACKING_H
#define MOTLEY_MODEL_PACKING_H

#include <jansson.h>

#include "common/err.h"
#include "model/config.h"
#include "model/gguf.h"

/* Fill config->packing from the types of the file's tensors; the rest of config is there. */
void packing_of_gguf(const struct gguf *gguf, struct model_config *config);

/* As a JSON object, which packing_parse() reads back; NULL where nothing is packed. Returns new. */
json_t *packing_to_json(const struct model_config *config);
/* ERR_INVALID naming the key. NULL: nothing is packed. */
int packing_parse(const json_t *document, struct model_config *config, struct err *err);

#endif
