/* The heads of layers without a window, where these have other heads than layers with one (Gemma 4), and
 * those of latent attention (DeepSeek). */
#ifndef MOTLEY_MODEL_SHAPE_CONFIG_HEADS_H
#define MOTLEY_MODEL_SHAPE_CONFIG_HEADS_H

#include "common/json.h"
#include "model/shape/config.h"

enum { CONFIG_HIDDEN_MAX = 1 << 17, CONFIG_HEADS_MAX = 4096, CONFIG_HEAD_DIM_MAX = 1024 };

/* Reads global_head_dim and its like, or per_layer_config as transformers writes it, into c->full_head_dim,
 * full_kv_heads and full_k_is_v. The layers' windows and their other sizes are set. Refuses by name what of
 * Gemma 4 is not computed. */
int config_heads_parse(struct json_reader *r, struct model_config *c);

/* Reads the sizes of latent attention: the fields from kv_latent on, head_dim and rotary_dim; heads are set.
 */
int config_latent_parse(struct json_reader *r, struct model_config *c);

#endif
