/* Measured tables as one document that travels between labs: `motley profile export` writes it, `motley
 * profile import` and `motley plan --cluster` read it.
 *
 *     {"format": "motley-profiles", "version": 1, "exported_at": "2026-…Z", "origin": "where it comes from",
 *      "devices": [{"name","node","kind","threads"?,"isa"?,"memory_limit_bytes"}],
 *      "profiles": [profile documents (CONTRACTS.md), each with "device", "key" (profile_key.h: model shape,
 *                   method, dtype, length), "measured_at", "origin"],
 *      "links": [link documents]}
 *
 * Pure. Unknown keys are passed over: the other lab may run a newer release.
 */
#ifndef MOTLEY_PROFILES_PROFILES_H
#define MOTLEY_PROFILES_PROFILES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

#define PROFILES_FORMAT "motley-profiles"
#define PROFILES_VERSION 1
#define PROFILES_MAX 100000u /* profile documents */

/* Does the document say that it is one? */
bool profiles_is(const json_t *document);
/* Everything in it: format, version, devices, each profile's points, links. ERR_INVALID with the path. */
int profiles_check(const json_t *document, struct err *err);

/* Makes one from lists as the api has them; only profiles of the named devices if there are names (each must
 * be among them: ERR_NOT_FOUND). Returns new, or NULL. */
json_t *profiles_make(const json_t *devices, const json_t *profiles, const json_t *links, const char *origin,
                      const char *exported_at, const char *const *names, size_t name_count, struct err *err);

/* The profile of a device under a key, its origin "imported". Unless `named`, a document that is all of one
 * device serves any. Returns new, or NULL: ERR_INVALID in words. */
json_t *profiles_pick(const json_t *document, const char *device, bool named, const char *key,
                      struct err *err);
/* Fills what a cluster file's device does not say (memory_bytes, kind, threads) from the document's device of
 * that name; NULL or unknown: nothing. */
void profiles_describe(const json_t *document, const char *device, json_t *cluster_device);
/* The cluster that the document was written on, as a cluster file: its devices, each with its profile under
 * the key, and its links. A CPU without one stays (it is estimated), another device is left out. Returns new,
 * or NULL: ERR_INVALID when no profile is of that key. */
json_t *profiles_cluster(const json_t *document, const char *key, struct err *err);

#endif
