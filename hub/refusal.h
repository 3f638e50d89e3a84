/* What a hub's refusal means, in one sentence with what to do. For hub/ alone. */
#ifndef MOTLEY_HUB_REFUSAL_H
#define MOTLEY_HUB_REFUSAL_H

#include "common/http.h"
#include "hub/hub.h"

/* Rewrites the error of a failed request; 'file' is what was asked for, NULL: the repository. Returns -1. */
int refusal_say(const struct hub_place *place, const struct hub_name *name, const struct http_answer *answer,
                const char *file, struct err *err);

#endif
