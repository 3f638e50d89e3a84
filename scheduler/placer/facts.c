/* A small cache over the store.
 *
 * Invariant: an entry that is being fetched belongs to its store call until the answer comes. Dropping such
 * an entry only marks it (facts = NULL); the answer frees it.
 */
#include "scheduler/placer/facts.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "store/models.h"
#include "store/queue.h"

/* ENTRIES_MAX: most facts that are kept. UNUSED_PASSES_MAX: a fact that so many passes in a row did not ask
 * for is dropped, since most jobs that were planned once are not planned again. */
enum { ENTRIES_MAX = 512, UNUSED_PASSES_MAX = 256 };
#define BYTES_MAX ((size_t)256 << 20)

enum entry_state { ENTRY_FETCHING, ENTRY_READY, ENTRY_FAILED };

struct fact_entry {
    struct facts *facts; /* NULL: the entry was dropped while being fetched */
    enum fact_kind kind;
    enum entry_state state;
    char *key;
    json_t *document;
    uint8_t *sizes;
    size_t sizes_bytes;
    struct err err;
    uint64_t used; /* number of the last pass that asked for this fact */
};

struct facts {
    struct store *store;
    uint32_t remeasure_ms;
    void (*arrived)(void *arg);
    void *arg;
    uint64_t pass, profiles_seen;
    size_t count;
    struct fact_entry *entries[ENTRIES_MAX];
};

static void entry_free(struct fact_entry *entry)
{
    json_decref(entry->document);
    free(entry->sizes);
    free(entry->key);
    free(entry);
}

/* Removes entry i. The entry's memory is freed now, or when the answer to its fetch comes. */
static void facts_drop(struct facts *facts, size_t i)
{
    struct fact_entry *entry = facts->entries[i];
    facts->entries[i] = facts->entries[--facts->count];
    if (entry->state == ENTRY_FETCHING)
        entry->facts = NULL;
    else
        entry_free(entry);
}

struct facts *facts_create(struct store *store, uint32_t remeasure_ms, void (*arrived)(void *arg), void *arg,
                           struct err *err)
{
    struct facts *facts = calloc(1, sizeof(*facts));
    if (!facts) {
        err_set(err, ERR_NOMEM, "no memory for the scheduler's cache");
        return NULL;
    }
    facts->store = store;
    facts->remeasure_ms = remeasure_ms;
    facts->arrived = arrived;
    facts->arg = arg;
    return facts;
}

void facts_destroy(struct facts *facts)
{
    if (!facts)
        return;
    while (facts->count > 0)
        facts_drop(facts, facts->count - 1);
    free(facts);
}

void facts_begin(struct facts *facts)
{
    facts->pass++;
    for (size_t i = facts->count; i-- > 0;)
        if (facts->entries[i]->used + UNUSED_PASSES_MAX < facts->pass)
            facts_drop(facts, i);
}

size_t facts_count(const struct facts *facts)
{
    return facts->count;
}

uint64_t facts_profiles_seen(const struct facts *facts)
{
    return facts->profiles_seen;
}

void facts_refresh_profiles(struct facts *facts)
{
    for (size_t i = facts->count; i-- > 0;)
        if (facts->entries[i]->kind == FACT_PROFILES)
            facts_drop(facts, i);
}

void facts_forget_profiles(struct facts *facts)
{
    facts->profiles_seen++;
    facts_refresh_profiles(facts);
}

/* Makes room for one more entry: drops the least recently used ones, but none that the present pass has asked
 * for. */
static bool facts_make_room(struct facts *facts)
{
    size_t bytes = 0;
    for (size_t i = 0; i < facts->count; i++)
        bytes += facts->entries[i]->sizes_bytes;
    while (facts->count == ENTRIES_MAX || bytes > BYTES_MAX) {
        size_t oldest = facts->count;
        for (size_t i = 0; i < facts->count; i++) {
            if (facts->entries[i]->used < facts->pass &&
                (oldest == facts->count || facts->entries[i]->used < facts->entries[oldest]->used)) {
                oldest = i;
            }
        }
        if (oldest == facts->count)
            return facts->count < ENTRIES_MAX;
        bytes -= facts->entries[oldest]->sizes_bytes;
        facts_drop(facts, oldest);
    }
    return true;
}

/* ---- answers ---- */

static void facts_settle(struct fact_entry *entry, const struct err *err)
{
    struct facts *facts = entry->facts;
    if (!facts) {
        entry_free(entry);
        return;
    }
    entry->state = !err ? ENTRY_READY : ENTRY_FAILED;
    if (err)
        entry->err = *err;
    if (err && store_err_is_refusal(err))
        entry->err.code = ERR_INTERNAL; /* no fault of the job that needs the fact, which must not fail */
    facts->arrived(facts->arg);
}

static void got_document(void *arg, const struct err *err, json_t *doc)
{
    struct fact_entry *entry = arg;
    if (!err)
        entry->document = json_incref(doc);
    facts_settle(entry, err);
}

static void got_dataset(void *arg, const struct err *err, const struct store_dataset *dataset)
{
    struct fact_entry *entry = arg;
    struct err why;
    if (!err) {
        entry->document = json_pack("{s:s, s:O}", "blob", dataset->blob, "stats", dataset->stats);
        entry->sizes = malloc(dataset->sizes_bytes > 0 ? dataset->sizes_bytes : 1);
        if (!entry->document || !entry->sizes) {
            err_set(&why, ERR_NOMEM, "no memory for a data set's row sizes");
            err = &why;
        } else {
            memcpy(entry->sizes, dataset->sizes, dataset->sizes_bytes);
            entry->sizes_bytes = dataset->sizes_bytes;
        }
    }
    facts_settle(entry, err);
}

static int facts_fetch(struct facts *facts, struct fact_entry *entry, struct err *err)
{
    switch (entry->kind) {
    case FACT_MODEL:
        return store_model_get(facts->store, &principal_service, entry->key, got_document, entry, err);
    case FACT_DATASET:
        return store_dataset_get(facts->store, entry->key, got_dataset, entry, err);
    case FACT_RUN:
        return store_sched_run_get(facts->store, strtoll(entry->key, NULL, 10), got_document, entry, err);
    case FACT_TRIAL:
        return store_trial_get(facts->store, strtoll(entry->key, NULL, 10), got_document, entry, err);
    case FACT_CLASS:
        return store_queue_class_get(facts->store, entry->key, got_document, entry, err);
    default:
        return store_profiles_get(facts->store, entry->key, facts->remeasure_ms, got_document, entry, err);
    }
}

static int start_fetch(struct facts *facts, enum fact_kind kind, const char *key, struct err *err)
{
    if (!facts_make_room(facts))
        return err_set(err, ERR_BUSY, "too many facts are needed at once");
    struct fact_entry *entry = calloc(1, sizeof(*entry));
    if (entry)
        entry->key = strdup(key);
    if (!entry || !entry->key) {
        free(entry);
        return err_set(err, ERR_NOMEM, "no memory for the scheduler's cache");
    }
    entry->facts = facts;
    entry->kind = kind;
    entry->used = facts->pass;
    if (facts_fetch(facts, entry, err) < 0) {
        entry_free(entry);
        return -1;
    }
    facts->entries[facts->count++] = entry;
    return 0;
}

int facts_get(struct facts *facts, enum fact_kind kind, const char *key, struct fact *fact, struct err *err)
{
    *fact = (struct fact){0};
    for (size_t i = 0; i < facts->count; i++) {
        struct fact_entry *entry = facts->entries[i];
        if (entry->kind != kind || strcmp(entry->key, key) != 0)
            continue;
        entry->used = facts->pass;
        if (entry->state == ENTRY_READY) {
            *fact = (struct fact){entry->document, entry->sizes, entry->sizes_bytes};
            return 1;
        }
        if (entry->state == ENTRY_FAILED) {
            *err = entry->err;
            facts_drop(facts, i); /* the next pass asks again */
            return -1;
        }
        return 0;
    }
    return start_fetch(facts, kind, key, err);
}
