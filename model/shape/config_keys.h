/* The types that transformers' config classes give the keys of a config.json.
 *
 * Since transformers 5 a class refuses a key of its own whose value has another type: null where the class
 * does not say so, a text or a real number for a whole one, a whole number for a real one. A file that it
 * refuses is refused here, too, by the key; keys that a class does not declare may hold anything.
 */
#ifndef MOTLEY_MODEL_SHAPE_CONFIG_KEYS_H
#define MOTLEY_MODEL_SHAPE_CONFIG_KEYS_H

#include <jansson.h>

#include "model/shape/config.h"

/* Check every key that the class of 'arch' declares and that is there; 'path' stands before the key in the
 * message. ERR_INVALID. */
int config_keys_check(const json_t *config, enum model_arch arch, const char *path, struct err *err);

/* The same of a config.json that has the model's own in text_config: the keys that every class has. */
int config_keys_check_outer(const json_t *config, struct err *err);

#endif
