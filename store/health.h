/* How the scheduler's passes go, as it tells in one row (../migrations/0045_scheduler_health.sql). The row's
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

/* SQL that gives the scheduler's state as a document: {"state","why"?,"since"?,"age_s"?,"failures",
 * "set_aside_count","set_aside":[{"part","job"?,"until","why"}]}. state: "deciding", "failing" (each try
 * fails, since `since`), "silent" (nothing was decided for age_s, more than 10 s), or "absent" (no scheduler
 * has ever led). `why` is a sentence for people, of all states but the first. */
#define SCHEDULER_STATE                                                                                      \
    "(SELECT json_strip_nulls(json_build_object('state', s.state, 'age_s', s.age, 'failures', "              \
    "  coalesce(s.failures, 0), 'since', motley_time(CASE s.state WHEN 'failing' THEN s.failing_since "      \
    "  WHEN 'silent' THEN s.good_at END), 'why', CASE s.state "                                              \
    "  WHEN 'failing' THEN format('the scheduler %s: since %s s each try has failed (%s); its log has more', " \
    "    CASE s.task WHEN 'events' THEN 'cannot store what agents report' ELSE 'cannot decide, and nothing " \
    "starts' END, extract(epoch FROM now() - s.failing_since)::bigint, s.why) "                              \
    "  WHEN 'silent' THEN format('the scheduler has decided nothing for %s s: nothing starts until one runs, " \
    "and reaches PostgreSQL (the log of motley-scheduler)', s.age::bigint) "                                 \
    "  WHEN 'absent' THEN 'no scheduler has led yet: nothing starts until one runs (motley-scheduler)' END, " \
    "  'set_aside_count', coalesce(s.aside_count, 0), 'set_aside', coalesce(s.asides, '[]'::json))) "        \
    "FROM (SELECT h.*, extract(epoch FROM now() - h.good_at)::float8 AS age, CASE WHEN h.at IS NULL THEN 'absent' " \
    "    WHEN h.failing_since IS NOT NULL AND h.at > now() - interval '10 s' THEN 'failing' "                \
    "    WHEN h.good_at < now() - interval '10 s' THEN 'silent' ELSE 'deciding' END AS state "               \
    "  FROM (SELECT 1) one LEFT JOIN scheduler_health h ON true) s)"

/* Answers that document. */
int store_health_get(struct store *store, store_doc_fn *done, void *arg, struct err *err);

#endif
