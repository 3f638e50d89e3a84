/* The published planning cases of others: Cephalo's, Zorse's and Sailor's, by their own formulas.
 *
 * Pure: documents in, documents out; the caller reads files and holds the clock.
 */
#ifndef MOTLEY_PUBLISHED_CASES_H
#define MOTLEY_PUBLISHED_CASES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

/* One JSON line per case; the callee keeps nothing. Returns -1 to stop with *err set. `plan_s` in the line is
 * 0 unless `now` was given. */
struct replay_sink {
    int (*line)(void *context, const json_t *line, struct err *err);
    void *context;
    double (*now_s)(void *context); /* optional: a monotonic clock of the caller's, for plan_s */
};

/* `motley replay --from NAME --data DIR --cases FILE`. `documents` holds the parsed files of the folder by
 * name ("model_latencies.json": …); which ones are needed: replay_import_files(). Each case that is nonsense
 * gives a line {"id", "status": "error", "error": sentence} and does not stop the others; doubtful tables add
 * `warnings`, sentences, to the line. Returns -1 with ERR_INVALID naming file and path when a document is
 * unusable, ERR_NOT_FOUND for an unknown NAME. */
int replay_import(const char *from, const json_t *documents, const json_t *cases,
                  const struct replay_sink *sink, struct err *err);
/* Names of the files in --data that an importer needs, NULL-terminated; NULL for an unknown importer. */
const char *const *replay_import_files(const char *from);

#endif
