/* What planning a job needs beside the view: models and row sizes (known by
 * content, so they never change) and profiles. Fetched when first asked for, kept
 * in bounded memory. Thread: the store's.
 */
#ifndef MOTLEY_SCHEDULER_FACTS_H
#define MOTLEY_SCHEDULER_FACTS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

struct facts;
struct store;

enum fact_kind { FACT_MODEL, FACT_DATASET, FACT_PROFILES, FACT_RUN };

struct fact {
    const json_t *document; /* model; data set's {"blob","stats"}; profiles [{"device","document"}]; what
                              store_sched_run_get says, of key "RUN/…" at the time it is first asked for */
    const uint8_t *sizes;   /* of a data set */
    size_t sizes_bytes;
};

/* 'arrived' is called when a fact that was asked for has come (or failed). */
struct facts *facts_create(struct store *store, void (*arrived)(void *arg), void *arg, struct err *err);
/* Answers still under way are dropped. */
void facts_destroy(struct facts *facts);

/* Facts got after this call stay valid until the next one. */
void facts_begin(struct facts *facts);

/* 1: *fact is there (borrowed, see facts_begin); 0: being fetched; -1: it cannot be had: 'err'
 * (asked for again later if that may help). */
int facts_get(struct facts *facts, enum fact_kind kind, const char *key, struct fact *fact, struct err *err);

/* Profiles have changed. */
void facts_forget_profiles(struct facts *facts);
/* How often they have. */
uint64_t facts_profiles_seen(const struct facts *facts);

#endif
