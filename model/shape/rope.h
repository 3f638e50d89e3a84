/* Internal to model/: reads and writes a config.json's rotary setting. */
#ifndef MOTLEY_MODEL_SHAPE_ROPE_H
#define MOTLEY_MODEL_SHAPE_ROPE_H

#include <jansson.h>

#include "model/shape/config.h"

/* Reads `rope_parameters`, or the older `rope_scaling`, from 'object', which errors call 'path'. The values
 * that rope has before the call are the defaults. max_positions is max_position_embeddings. An 'original'
 * above 0 is the original_max_position_embeddings beside the object, which then takes precedence (Phi-3). */
int rope_parse(const json_t *object, const char *path, uint32_t max_positions, double original,
               struct rope_config *rope, struct err *err);
/* Returns YaRN's factor for a scale of positions, as transformers computes it (mscale times its logarithm).
 */
double rope_magnitude(double scale, double multiplier);
/* Checks that longrope has a factor for each of dim / 2 frequencies. */
int rope_check_factors(const struct rope_config *rope, uint32_t dim, struct err *err);
/* Returns a new object that rope_parse() reads back. */
json_t *rope_to_json(const struct rope_config *rope);

#endif
