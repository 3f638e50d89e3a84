/* Internal to model/shape: reads what a config.json says about gated delta nets, state spaces and short
 * convolutions. */
#ifndef MOTLEY_MODEL_SHAPE_CONFIG_DELTA_H
#define MOTLEY_MODEL_SHAPE_CONFIG_DELTA_H

#include "common/json.h"
#include "model/shape/config.h"

/* Sets c->delta_layer and the sizes of gated delta nets. c->arch and c->layers are set. */
int config_delta_parse(struct json_reader *r, struct model_config *c);
/* Sets the same for Mamba-2's state spaces, and which layers do not rotate. c->hidden is set. */
int config_scan_parse(struct json_reader *r, struct model_config *c);
/* Sets c->conv_layer and c->conv_taps, likewise. */
int config_conv_parse(struct json_reader *r, struct model_config *c);
/* Sets c->ffn, which is intermediate_size so far, to what LFM2's class makes of the keys that begin with
 * "block_". */
int config_block_ffn_parse(struct json_reader *r, struct model_config *c);

#endif
