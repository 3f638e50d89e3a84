/* Inside model/: a rotary setting as a config.json has it. */
#ifndef MOTLEY_MODEL_SHAPE_ROPE_H
#define MOTLEY_MODEL_SHAPE_ROPE_H

#include <jansson.h>

#include "model/shape/config.h"

/* Read `rope_parameters`, or the older `rope_scaling`, which errors call 'path'; what rope holds are the
 * defaults. max_positions is max_position_embeddings; original, where it is above 0,
 * original_max_position_embeddings beside the object, which then counts (Phi-3). */
int rope_parse(const json_t *object, const char *path, uint32_t max_positions, double original,
               struct rope_config *rope, struct err *err);
/* longrope must have a factor for each of dim / 2 frequencies. */
int rope_check_factors(const struct rope_config *rope, uint32_t dim, struct err *err);
/* As rope_parse() reads it. Returns new, or NULL. */
json_t *rope_to_json(const struct rope_config *rope);

#endif
