/* How the scheduler's passes go, as it tells in one row (../migrations/0001_cluster.sql). The row's
 * age counts as well: a scheduler that is dead, or that the database refuses, cannot say so. */
#ifndef MOTLEY_STORE_HEALTH_H
#define MOTLEY_STORE_HEALTH_H

#include "store/store.h"

struct store_health {
    int64_t leader; /* the leader's epoch; nothing is written under an old one */
    const char *name;
    int64_t good_ms;    /* milliseconds since nothing was left to decide; -1: never */
    int64_t failing_ms; /* milliseconds since which every try has failed; -1: the last one did not */
    unsigned failures;  /* tries that have failed since then */
    const char *task;   /* what fails: "passes" or "events" */
    const char *why;    /* the last error, or NULL */
    const json_t *asides;
    size_t aside_count; /* `asides` may be shorter */
};
int store_health_put(struct store *store, const struct store_health *health, store_done_fn *done, void *arg,
                     struct err *err);

/* Answers the scheduler's state (scheduler_members of fragments.sql), and in it "age_s": since when nothing
 * was left to decide, "failures": tries that have failed since `since`, and
 * "set_aside":[{"part","job"?,"until","until_us","why"}]: the first hundred parts that passes leave out for a
 * while. */
int store_health_get(struct store *store, store_doc_fn *done, void *arg, struct err *err);

#endif
