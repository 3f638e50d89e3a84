/* How a GGUF's layers are packed, found in its header, and which matrices a folder saved in NF4 keeps
 * unquantised (llm_int8_skip_modules): as a part of a model's description. In the latter case quantised
 * matrices have the kind PACK_NF4, whatever their scales, and embedding and head that of the file. */
#ifndef MOTLEY_MODEL_SHAPE_PACKING_H
#define MOTLEY_MODEL_SHAPE_PACKING_H

#include <jansson.h>

#include "common/err.h"
#include "model/shape/arch.h"
#include "model/shape/config.h"
#include "model/files/gguf.h"

/* Fill config->packing from the types of the file's tensors; the rest of config is there. */
void packing_of_gguf(const struct gguf *gguf, struct model_config *config);

/* Does it say what of an NF4 folder is unquantised, and not how a GGUF packs? */
bool packing_is_nf4(const struct model_packing *packing);

/* The bit's number of the matrix that this tensor is, or -1. */
int packing_site(enum arch_tensor tensor);
/* The number of a way, which is added where it is new; ways above MODEL_PACKINGS_MAX: there are too many. */
uint8_t packing_way(struct model_packing *packing, const uint8_t matrix[MODEL_MATRICES]);

/* As a JSON object, which packing_parse() reads back; NULL where nothing is packed. Returns new. */
json_t *packing_to_json(const struct model_config *config);
/* ERR_INVALID naming the key. NULL: nothing is packed. */
int packing_parse(const json_t *document, struct model_config *config, struct err *err);

#endif
