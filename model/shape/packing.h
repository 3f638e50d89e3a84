/* How a GGUF's layers are packed, read from its header, and which matrices a folder saved in NF4 keeps
 * unquantised (llm_int8_skip_modules), as a part of a model's config. For an NF4 folder quantised matrices
 * have the kind PACK_NF4, whether or not their scales are quantised, and embedding and head the kind of the
 * file. */
#ifndef MOTLEY_MODEL_SHAPE_PACKING_H
#define MOTLEY_MODEL_SHAPE_PACKING_H

#include <jansson.h>

#include "common/err.h"
#include "model/shape/arch.h"
#include "model/shape/config.h"
#include "model/files/gguf.h"

/* Fills config->packing from the types of the file's tensors; all other fields of config are set before. */
void packing_of_gguf(const struct gguf *gguf, struct model_config *config);

/* Returns true when the packing describes an NF4 folder, not a GGUF. */
bool packing_is_nf4(const struct model_packing *packing);

/* Returns the number of the bit that this tensor's target has in enum lora_target, or -1 when the tensor is
 * not a layer's matrix. */
int packing_site(enum arch_tensor tensor);
/* Returns the index in packing->matrix of these storage kinds, which are added if they are new. If there is
 * no room, `ways` becomes MODEL_PACKINGS_MAX + 1, which means that layers differ too much. */
uint8_t packing_way(struct model_packing *packing, const uint8_t matrix[MODEL_MATRICES]);

/* Returns a new JSON object that packing_parse() reads back, or NULL where nothing is packed. */
json_t *packing_to_json(const struct model_config *config);
/* Reads a packing; a NULL document means that nothing is packed. ERR_INVALID names the key. */
int packing_parse(const json_t *document, struct model_config *config, struct err *err);

#endif
