/* A cache of facts that planning a job needs beside the view: models and data sets (found by a hash of their
 * content, so they never change), profiles, and what runs are doing. A fact is fetched when it is first asked
 * for and kept in bounded memory. Thread: the store's.
 */
#ifndef MOTLEY_SCHEDULER_PLACER_FACTS_H
#define MOTLEY_SCHEDULER_PLACER_FACTS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

struct facts;
struct store;

enum fact_kind { FACT_MODEL, FACT_DATASET, FACT_PROFILES, FACT_RUN, FACT_CLASS, FACT_TRIAL };

struct fact {
    /* FACT_MODEL: the model. FACT_DATASET: {"blob","stats"}. FACT_PROFILES: [{"device","document"}].
     * FACT_RUN: the answer of store_sched_run_get at the time its key "RUN/…" was first asked for.
     * FACT_CLASS: {"spec","inputs","plan": the one that inputs.plan names, or null} of a queued job of the
     * class, whose digest in hex is the key. FACT_TRIAL: as FACT_RUN, of store_trial_get */
    const json_t *document;
    const uint8_t *sizes; /* FACT_DATASET: the row sizes as stored */
    size_t sizes_bytes;
};

/* Calls 'arrived' whenever a fact that was asked for has come or has failed. remeasure_ms is how
 * long a device that a run measured slower than its profile must go unmeasured before the profile counts as
 * stale (store_profiles_get). */
struct facts *facts_create(struct store *store, uint32_t remeasure_ms, void (*arrived)(void *arg), void *arg,
                           struct err *err);
/* Answers of fetches that are still under way are dropped. */
void facts_destroy(struct facts *facts);

/* Begins a pass. Facts that facts_get returns stay valid until the next call of facts_begin. Facts that were
 * not asked for in the last 256 passes are dropped. */
void facts_begin(struct facts *facts);
/* Returns the number of facts that are kept or being fetched: at most 512. */
size_t facts_count(const struct facts *facts);

/* Returns 1 and fills *fact (borrowed, see facts_begin); or 0 while the fact is being fetched; or -1 with
 * 'err' when the fetch failed. A call after a failure fetches again. */
int facts_get(struct facts *facts, enum fact_kind kind, const char *key, struct fact *fact, struct err *err);

/* Drops all profiles, because some may have become stale. Their content has not changed. */
void facts_refresh_profiles(struct facts *facts);
/* Drops all profiles, because the content of some has changed. */
void facts_forget_profiles(struct facts *facts);
/* Returns the number of calls of facts_forget_profiles so far. */
uint64_t facts_profiles_seen(const struct facts *facts);

#endif
