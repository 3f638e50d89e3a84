/* Finds the matrices that a folder saved in NF4 keeps unquantised (llm_int8_skip_modules) and writes them to
 * config->packing: quantised matrices have the kind PACK_NF4, others the kind of their dtype. The packing
 * stays empty where all matrices are quantised, or none. */
#ifndef MOTLEY_MODEL_SHAPE_NF4_SKIPPED_H
#define MOTLEY_MODEL_SHAPE_NF4_SKIPPED_H

#include <jansson.h>
#include <stdint.h>

#include "model/shape/config.h"

/* Fills config->packing if a folder's quantization_config skips a matrix of a layer, as transformers'
 * should_convert_module decides. */
void packing_of_skipped(const json_t *quantization, struct model_config *config);
/* Fills config->packing of a model whose experts are in MXFP4, and all else in the file's dtype. */
void packing_of_mxfp4(struct model_config *config);
/* Fills config->packing from the tensors; 'kind' returns a tensor's storage kind (enum pack_kind) by its
 * name, PACK_NF4 or PACK_MXFP4 for quantised ones. */
void packing_of_tensors(uint8_t (*kind)(const void *arg, const char *name), const void *arg,
                        struct model_config *config);

#endif
