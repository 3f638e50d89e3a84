/* Which matrices of layers a folder that was saved in NF4 keeps unquantised (llm_int8_skip_modules), as
 * config->packing has it: quantised ones have the kind PACK_NF4, others that of their dtype. Nothing where
 * all are quantised, or none. */
#ifndef MOTLEY_MODEL_SHAPE_NF4_SKIPPED_H
#define MOTLEY_MODEL_SHAPE_NF4_SKIPPED_H

#include <jansson.h>
#include <stdint.h>

#include "model/shape/config.h"

/* Fill config->packing from what a folder's quantization_config says (transformers' should_convert_module),
 * where it skips a matrix of a layer. */
void packing_of_skipped(const json_t *quantization, struct model_config *config);
/* The same from the tensors: 'kind' gives the kind of each by its name, PACK_NF4 for quantised ones. */
void packing_of_tensors(uint8_t (*kind)(const void *arg, const char *name), const void *arg,
                        struct model_config *config);

#endif
