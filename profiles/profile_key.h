/* Under which key measured profiles are kept: good for a model's shape, the method and the length, whatever
 * the job. */
#ifndef MOTLEY_PROFILES_PROFILE_KEY_H
#define MOTLEY_PROFILES_PROFILE_KEY_H

#include <jansson.h>

#include "common/digest.h"
#include "common/err.h"

/* 'spec' with every default filled (spec_to_json), 'config' the model's config.json as stored. Pure. */
int profile_key(const json_t *spec, const json_t *config, char key[DIGEST_HEX_SIZE], struct err *err);

#endif
