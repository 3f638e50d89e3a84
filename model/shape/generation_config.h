/* Reads generation_config.json, which transformers reads beside config.json; Motley uses only its
 * end tokens. */
#ifndef MOTLEY_MODEL_SHAPE_GENERATION_CONFIG_H
#define MOTLEY_MODEL_SHAPE_GENERATION_CONFIG_H

#include "model/files/source.h"
#include "model/shape/config.h"

/* Reads the file, if the source has one, as GenerationConfig of transformers 5.24 does: its end tokens
 * replace those of config.json, even if it names none, and a file that is no JSON is passed over as if it
 * were absent. A sample ends at these tokens. Writes a sentence for the job's log to note[size], or "" if
 * both files agree. ERR_INVALID names a key whose value transformers refuses. */
int generation_config_read(struct model_source *source, struct model_config *config, char *note, size_t size,
                           struct err *err);

#endif
