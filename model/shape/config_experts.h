/* The part of config.json about a mixture of experts. */
#ifndef MOTLEY_MODEL_SHAPE_CONFIG_EXPERTS_H
#define MOTLEY_MODEL_SHAPE_CONFIG_EXPERTS_H

#include "common/json.h"
#include "model/shape/config.h"

enum { CONFIG_FFN_MAX = 1 << 20 }; /* most columns of an FFN, an expert or a shared expert */

/* Fills the fields of a mixture, whose other sizes are set; nothing where the architecture has no experts.
 * Returns -1 with the reader's error. */
int config_experts_parse(struct json_reader *reader, struct model_config *config);

/* Refuses a value of `key` of which only one is computed (ERR_UNSUPPORTED). Returns -1. */
int config_refuse_value(struct json_reader *reader, const char *key, double value, double only);

#endif
