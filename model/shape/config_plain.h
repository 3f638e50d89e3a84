/* Internal to model/shape: what some families have in config.json: FFNs without gate, factors, other names of
 * keys. */
#ifndef MOTLEY_MODEL_SHAPE_CONFIG_PLAIN_H
#define MOTLEY_MODEL_SHAPE_CONFIG_PLAIN_H

#include "common/json.h"
#include "model/shape/config.h"

/* Returns the document with the usual names of its keys (struct arch.keys): new, or NULL. */
json_t *config_renamed(const json_t *document);

/* Reads the activation of an FFN without gate, whether the FFN reads the layer's input, and the logits'
 * factor. c->arch is set, and the table's defaults are. */
int config_plain_parse(struct json_reader *r, struct model_config *c);

/* Reads Granite's four factors. */
void config_multipliers_parse(struct json_reader *r, struct model_config *c);

#endif
