/* Replaying: recorded runs and the published planning cases of others.
 *
 * Pure: documents in, documents out; the caller reads files and holds the clock.
 */
#ifndef MOTLEY_PLANNER_REPLAY_H
#define MOTLEY_PLANNER_REPLAY_H

#include <jansson.h>
#include <stdbool.h>

#include "common/err.h"
#include "planner/search.h"

/* One JSON line per case; the callee keeps nothing. Returns -1 to stop with *err set. `plan_s` in the line is
 * 0 unless `now` was given. */
struct replay_sink {
    int (*line)(void *context, const json_t *line, struct err *err);
    void *context;
    double (*now_s)(void *context); /* optional: a monotonic clock of the caller's, for plan_s */
};

/* `motley replay --from NAME --data DIR --cases FILE`. `documents` holds the parsed files of the folder by
 * name
 * ("model_latencies.json": …); which ones are needed: replay_import_files(). Each case that is nonsense gives
 * a line
 * {"id", "status": "error", "error": sentence} and does not stop the others.
 * Returns -1 with ERR_INVALID naming file and path when a document is unusable, ERR_NOT_FOUND for an unknown
 * NAME. */
int replay_import(const char *from, const json_t *documents, const json_t *cases,
                  const struct replay_sink *sink, struct err *err);
/* Names of the files in --data that an importer needs, NULL-terminated; NULL for an unknown importer. */
const char *const *replay_import_files(const char *from);

/* What `motley replay JOB` may change. */
struct replay_change {
    double *device_speed; /* per rank, 1: as recorded; NULL: none changed */
    uint32_t link_count;
    struct {
        const char *from, *to; /* nodes */
        double bytes_per_s, latency_s;
    } links[16];
};

/* A recorded run simulated from its own instruction times: plan and the trace of at least one step. Writes
 * the recorded, the simulated and the changed step time (s; change NULL: equal to simulated). Sends are split
 * into occupancy and latency with `link` documents where given (array, CONTRACTS.md), else by their recorded
 * durations. */
int replay_run(const struct plan *plan, const struct trace *recorded, const json_t *links,
               const struct replay_change *change, double *recorded_s, double *simulated_s, double *changed_s,
               struct trace *timeline, struct err *err);

#endif
