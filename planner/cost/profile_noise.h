/* How doubtful a profile document is (planner/cost/noise.h), for readers without a cluster. Pure. */
#ifndef MOTLEY_PLANNER_COST_PROFILE_NOISE_H
#define MOTLEY_PLANNER_COST_PROFILE_NOISE_H

#include <jansson.h>

#include "common/err.h"

/* Returns noise_of the document (docs/CONTRACTS.md). Negative: ERR_INVALID, not a profile document;
 * ERR_NOMEM. */
double profile_noise(const json_t *document, struct err *err);

#endif
