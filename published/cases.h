/* Published planning cases of other projects: Cephalo, Zorse and Sailor, each priced by its own formulas.
 *
 * Pure: documents in, documents out; the caller reads files and has the clock.
 */
#ifndef MOTLEY_PUBLISHED_CASES_H
#define MOTLEY_PUBLISHED_CASES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

/* Receives one JSON line per case, which it must not keep. Returns -1 to stop, with *err set. `plan_s` in
 * the line is 0 unless now_s is given. */
struct replay_sink {
    int (*line)(void *context, const json_t *line, struct err *err);
    void *context;
    double (*now_s)(void *context); /* optional: the caller's monotonic clock, for plan_s */
};

/* Implements `motley replay --from NAME --data DIR --cases FILE`. `documents` has the parsed files of the
 * folder by name ("model_latencies.json": …); replay_import_files() lists those that are needed. An invalid
 * case gives a line {"id", "status": "error", "error": sentence} and does not stop the others; suspicious
 * tables add `warnings`, a list of sentences, to the line. Returns -1 with ERR_INVALID naming file and path
 * if a document is unusable, ERR_NOT_FOUND for an unknown NAME. */
int replay_import(const char *from, const json_t *documents, const json_t *cases,
                  const struct replay_sink *sink, struct err *err);
/* Returns the names of the files in --data that an importer needs, NULL-terminated; NULL for an unknown
 * importer. */
const char *const *replay_import_files(const char *from);

#endif
