/* Internal to model/shape: reads what a config.json says about gated delta nets. */
#ifndef MOTLEY_MODEL_SHAPE_CONFIG_DELTA_H
#define MOTLEY_MODEL_SHAPE_CONFIG_DELTA_H

#include "common/json.h"
#include "model/shape/config.h"

/* Sets c->delta_layer and the sizes of gated delta nets. c->arch and c->layers are set. */
int config_delta_parse(struct json_reader *r, struct model_config *c);

#endif
