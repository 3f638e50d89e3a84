/* The keys of tensors in peft's files (peft.h). */
#ifndef MOTLEY_MODEL_ADAPTERS_PEFT_KEYS_H
#define MOTLEY_MODEL_ADAPTERS_PEFT_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/files/safetensors.h"
#include "model/shape/config.h"

#define PEFT_PREFIX "base_model.model."    /* of every key */
#define PEFT_OUTER "model.language_model." /* and of a language model inside another model */
enum { PEFT_KEY_BYTES = 192 };             /* room for any key */

/* Writes the key, NUL-terminated, of a parameter of the adapter or of modules_to_save whose name in Motley is
 * 'parameter' ("model.layers.3.self_attn.q_proj.lora_A.weight"). Returns 0, or -1 if it does not fit. */
int peft_name(const struct model_config *model, const char *parameter, char *name, size_t size);
/* Writes the key of an adapter tensor, NUL-terminated, to name[128]: "base_model.model.model.layers.3…". */
void peft_key(uint32_t layer, uint32_t target, char which, char name[128]);

/* Finds a tensor by the key that peft writes, or returns NULL. "….lora_A.weight" also finds
 * "….lora_A.default.weight", and "base_model.model.model.…" also finds
 * "base_model.model.model.language_model.…". */
const struct safetensors_tensor *peft_find(const struct safetensors *weights, const char *key);
/* Writes "….lora_A.weight" as "….lora_A.default.weight", an adapter's name in memory, which peft 0.21 also
 * accepts in a file. Returns false for other names. */
bool peft_default_key(const char *key, char other[PEFT_KEY_BYTES]);

#endif
