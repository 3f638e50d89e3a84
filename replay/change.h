/* Changes to the document that a plan rests on (planner/given/inputs.h), as `motley replay` offers them. Each
 * names what it does not find. Pure.
 */
#ifndef MOTLEY_REPLAY_CHANGE_H
#define MOTLEY_REPLAY_CHANGE_H

#include <jansson.h>

#include "common/err.h"

/* Takes a device away: ERR_INVALID when there is none of that name, or it would be the last. */
int plan_inputs_without(json_t *document, const char *device, struct err *err);
/* Adds a device on a node of its own: like one of the document's (its profile, memory and links) or like an
 * entry of the catalogue. Its name, "added1/LIKE's last part", is written to name. ERR_INVALID when LIKE is
 * neither. */
int plan_inputs_add(json_t *document, const char *like, char name[256], struct err *err);
/* Scales a device's speed. ERR_INVALID when there is none of that name. */
int plan_inputs_speed(json_t *document, const char *device, double factor, struct err *err);
/* Sets a link between two nodes, both ways. ERR_INVALID when there is no such node. */
int plan_inputs_link(json_t *document, const char *a, const char *b, double bytes_per_s, double latency_s,
                     struct err *err);
/* Another placement; stages and micro-batch rows are chosen anew. ERR_INVALID when there is none of that
 * name. */
int plan_inputs_place(json_t *document, const char *placement, struct err *err);

#endif
