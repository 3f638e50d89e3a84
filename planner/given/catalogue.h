/* Devices one does not own: the catalogue's entries by any of their names. Pure. */
#ifndef MOTLEY_PLANNER_GIVEN_CATALOGUE_H
#define MOTLEY_PLANNER_GIVEN_CATALOGUE_H

#include <jansson.h>

#include "common/err.h"
#include "planner/given/catalogue_entries.h"

/* "measured", "imported", "estimated"; NULL ends them. */
extern const char *const cost_origin_names[];
const char *cost_origin_name(enum cost_origin origin);

/* By its name, or by what drivers call it ("NVIDIA GeForce RTX 3090", "Tesla V100-SXM2-32GB"). NULL: not
 * there. */
const struct catalogue_entry *catalogue_find(const char *name);
/* The entry that is spelt most like the name, for an error's text. */
const char *catalogue_near(const char *name);
/* Of a card's memory, what a plan may fill where nobody says more: PLANNER.md's usable = (1 - eta)(total) -
 * context, with eta 0.08 until something is measured, for what an allocator cannot hand out, and half a GB
 * for the driver's context (rule of thumb). Of a CPU all that it says. */
uint64_t catalogue_usable(const struct catalogue_entry *entry);
#define CATALOGUE_RESERVE 0.08
#define CATALOGUE_CONTEXT_BYTES ((uint64_t)500000000)
/* The entry of a kind with the highest peak, or the lowest; NULL for a kind that has none. */
const struct catalogue_entry *catalogue_extreme(const char *kind, bool fastest);
/* The higher of its two peaks, FLOP/s (of a CPU: one thread's). */
double catalogue_peak(const struct catalogue_entry *entry);

/* FLOP/s that training is taken to reach on it, of a CPU one thread's; half: products in 16 bits. */
double catalogue_rate(const struct catalogue_entry *entry, bool half);
/* How far the catalogue is off for a device that was measured: the FLOP/s of its layers' forward pass in the
 * profile's largest point, as fast as it is when it does not throttle (the profile's heat), beside
 * catalogue_rate. Returns new {"entry", "flops_per_s", "estimated_flops_per_s", "ratio" (the first by the
 * second)}; NULL: `like` is not in the catalogue, or the document does not say FLOPs. */
json_t *catalogue_difference(const char *like, const json_t *profile);

/* The built-in catalogue: {"devices":
 * [{"name","memory_bytes","flops_fp32","flops_16","memory_bytes_per_s","origin", "uncertainty"}…]}. Returns
 * new, or NULL with ERR_NOMEM. */
json_t *cluster_catalogue(struct err *err);

#endif
