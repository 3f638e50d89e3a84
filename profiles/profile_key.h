/* The key under which a measured profile is stored. It depends on the model's shape, the method and the
 * sequence length, not on the job. */
#ifndef MOTLEY_PROFILES_PROFILE_KEY_H
#define MOTLEY_PROFILES_PROFILE_KEY_H

#include <jansson.h>

#include "common/digest.h"
#include "common/err.h"

/* 'spec' has all defaults filled in (spec_to_json); 'config' is the model's stored config.json. Pure. */
int profile_key(const json_t *spec, const json_t *config, char key[DIGEST_HEX_SIZE], struct err *err);

#endif
