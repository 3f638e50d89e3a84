/* The built-in catalogue of devices, for estimates without a profile; an entry is found by any of its names.
 * Pure. */
#ifndef MOTLEY_PLANNER_GIVEN_CATALOGUE_H
#define MOTLEY_PLANNER_GIVEN_CATALOGUE_H

#include <jansson.h>

#include "common/err.h"
#include "planner/given/catalogue_entries.h"
#include "planner/given/workload.h"

/* The names "measured", "imported", "estimated", then NULL. */
extern const char *const cost_origin_names[];
const char *cost_origin_name(enum cost_origin origin);

/* Finds an entry by its name or by what drivers call the device ("NVIDIA GeForce RTX 3090", "Tesla
 * V100-SXM2-32GB"). NULL: there is no such entry. */
const struct catalogue_entry *catalogue_find(const char *name);
/* Returns the entry whose spelling is closest to the name; error texts suggest it. */
const char *catalogue_near(const char *name);
/* Returns the bytes of the device's memory that a plan may fill when nobody states a limit. For a card it is
 * PLANNER.md's usable = (1 - eta) · total - context: eta 0.08 covers what an allocator cannot hand out, and
 * half a GB holds the driver's context (both rules of thumb). For a CPU it is the entry's whole memory. */
uint64_t catalogue_usable(const struct catalogue_entry *entry);
#define CATALOGUE_RESERVE 0.08
#define CATALOGUE_CONTEXT_BYTES ((uint64_t)500000000)
/* Returns the entry of a kind ("cuda", "cpu" …) with the highest peak or the lowest; NULL if the kind has
 * no entry. */
const struct catalogue_entry *catalogue_extreme(const char *kind, bool fastest);
/* Returns the higher of the entry's two peaks, in FLOP/s (for a CPU: of one thread). */
double catalogue_peak(const struct catalogue_entry *entry);

/* Returns the FLOP/s that training is assumed to reach on the device (for a CPU: on one thread), as the
 * engine computes: where the device does not multiply the 16-bit format, and on every CPU, it rounds the
 * operands and multiplies in fp32. Volta multiplies fp16 through cuBLAS alone; without it, it is as slow as
 * in fp32. */
double catalogue_rate(const struct catalogue_entry *entry, enum workload_compute compute);
/* Returns what the device computes fastest: bf16 rather than fp16, which needs a scaled loss, and fp32 where
 * 16 bits are no faster, and for NULL. */
enum workload_compute catalogue_fastest(const struct catalogue_entry *entry);
/* Returns the FLOP/s of the layers' forward pass at the largest point of a profile document, corrected for
 * throttling by the profile's heat; 0 when the document states no FLOPs. */
double catalogue_measured_rate(const json_t *profile);
/* Compares a measured device with its catalogue entry. The measured rate is catalogue_measured_rate, the
 * estimated rate is catalogue_rate. Returns new {"entry", "flops_per_s", "estimated_flops_per_s", "ratio"
 * (measured by estimated)}, or NULL if `like` is not in the catalogue or the document states no FLOPs. */
json_t *catalogue_difference(const char *like, const json_t *profile);

/* Returns the built-in catalogue, new: {"devices":
 * [{"name","arch","runs" (catalogue_runs_names of
 * kernels.h),"memory_bytes","flops_fp32","flops_16","memory_bytes_per_s","origin", "uncertainty"}…]}. NULL
 * with ERR_NOMEM. */
json_t *cluster_catalogue(struct err *err);

#endif
