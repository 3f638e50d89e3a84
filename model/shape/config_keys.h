/* The value types that transformers' config classes require of a config.json's keys.
 *
 * Since transformers 5 a class refuses a declared key whose value has another type: null where the class does
 * not allow it, a text or a real number for a whole one, a whole number for a real one. A file that
 * transformers refuses is refused here, too, naming the key. Keys that a class does not declare may have any
 * value. */
#ifndef MOTLEY_MODEL_SHAPE_CONFIG_KEYS_H
#define MOTLEY_MODEL_SHAPE_CONFIG_KEYS_H

#include <jansson.h>

#include "model/shape/config.h"

/* Checks every key of the document that the class of 'arch' declares. Errors are ERR_INVALID; their text has
 * 'path' before the key. */
int config_keys_check(const json_t *config, enum model_arch arch, const char *path, struct err *err);

/* Checks a config.json that has the model's own keys in text_config, for the keys that every
 * class declares. */
int config_keys_check_outer(const json_t *config, struct err *err);

#endif
