/* Changes of an inputs document (planner/given/inputs.h) that `motley replay` offers. Errors name what was
 * not found. Pure. */
#ifndef MOTLEY_REPLAY_CHANGE_H
#define MOTLEY_REPLAY_CHANGE_H

#include <jansson.h>

#include "common/err.h"

/* Removes a device. ERR_INVALID if the document has no such device, or if it is the last. */
int plan_inputs_without(json_t *document, const char *device, struct err *err);
/* Adds a device on a node of its own. It is like a device of the document (its profile, memory and links)
 * or like an entry of the catalogue. Its name, "added1/" and the last part of `like`, is written to name.
 * ERR_INVALID if `like` is neither. */
int plan_inputs_add(json_t *document, const char *like, char name[256], struct err *err);
/* Multiplies a device's speed. ERR_INVALID if there is no such device. */
int plan_inputs_speed(json_t *document, const char *device, double factor, struct err *err);
/* Sets both directions of a link between two nodes. ERR_INVALID if there is no such node. */
int plan_inputs_link(json_t *document, const char *a, const char *b, double bytes_per_s, double latency_s,
                     struct err *err);
/* Asks for another placement; stages and micro-batch rows are chosen anew. ERR_INVALID if there is no such
 * placement. */
int plan_inputs_place(json_t *document, const char *placement, struct err *err);

#endif
