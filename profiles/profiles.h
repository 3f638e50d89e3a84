/* Measured tables in one document that can be passed to others: `motley profile export` writes it, `motley
 * profile import` and `motley plan --cluster` read it.
 *
 *     {"format": "motley-profiles", "version": 1, "exported_at": "2026-…Z", "origin": "where it comes
 *     from",
 *      "devices": [{"name","node","kind","threads"?,"isa"?,"memory_limit_bytes"}],
 *      "profiles": [profile documents (CONTRACTS.md), each with "device", "key" (profile_key.h: model
 *      shape,
 *                   method, dtype, length), "measured_at", "origin"],
 *      "links": [link documents]}
 *
 * Pure. Unknown keys are ignored, because a newer release may have written the document.
 */
#ifndef MOTLEY_PROFILES_PROFILES_H
#define MOTLEY_PROFILES_PROFILES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

#define PROFILES_FORMAT "motley-profiles"
#define PROFILES_VERSION 1
#define PROFILES_MAX 100000u /* most profile documents */

/* True if the document's "format" says that it is a profile document. */
bool profiles_is(const json_t *document);
/* Checks the whole document: format, version, devices, each profile's points, links. ERR_INVALID with the
 * path. */
int profiles_check(const json_t *document, struct err *err);

/* Makes a document from lists in the api's form. With names, only profiles of these devices are included
 * (each must be in `devices`: ERR_NOT_FOUND). Returns new, or NULL. */
json_t *profiles_make(const json_t *devices, const json_t *profiles, const json_t *links, const char *origin,
                      const char *exported_at, const char *const *names, size_t name_count, struct err *err);

/* Returns the profile of a device under a key, with origin "imported". Unless `named`, a document with
 * profiles of only one device serves any device. Returns new, or NULL: ERR_INVALID in words. */
json_t *profiles_pick(const json_t *document, const char *device, bool named, const char *key,
                      struct err *err);
/* Fills memory_bytes, kind and threads, where a cluster file's device lacks them, from the document's
 * device of that name. Does nothing if the document is NULL or has no such device. */
void profiles_describe(const json_t *document, const char *device, json_t *cluster_device);
/* Makes a cluster file of the cluster that the document was written on: its devices, each with its profile
 * under the key, and its links. A CPU without a profile is included (and will be estimated); another
 * device without one is left out. Returns new, or NULL: ERR_INVALID if there is no profile under the key. */
json_t *profiles_cluster(const json_t *document, const char *key, struct err *err);

#endif
