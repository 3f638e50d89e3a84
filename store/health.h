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

/* SQL of the members of the scheduler's state: {"state","why"?,"since"?,"set_aside_count"}. state:
 * "deciding", "failing" (each try fails, since `since`), "silent" (nothing was decided for more than 10 s,
 * since `since`), or "absent" (no scheduler has ever led). `why`, of all states but the first, is a sentence
 * for people. The members change only with the state, so that answers that hold them keep their ETag. */
#define SCHEDULER_MEMBERS                                                                                    \
    "'state', s.state, 'since', s.since, 'why', CASE s.state "                                               \
    "  WHEN 'failing' THEN format('the scheduler %s: since %s each try has failed (%s); its log has more', " \
    "    CASE s.task WHEN 'events' THEN 'cannot store what agents report' WHEN 'redis' THEN 'does not "      \
    "reach agents, as Redis does not answer' ELSE 'cannot decide, and nothing starts' END, s.since, "        \
    "s.error) "                                                                                              \
    "  WHEN 'silent' THEN format('the scheduler has decided nothing since %s, and nothing starts: see "      \
    "whether motley-scheduler runs and reaches PostgreSQL (its log says why)', s.since) "                    \
    "  WHEN 'absent' THEN 'no scheduler has led yet, and nothing starts: motley-scheduler must run' END, "   \
    "'set_aside_count', coalesce(s.aside_count, 0)"
/* The row s of these members. */
#define SCHEDULER_ROW                                                                                        \
    "(SELECT h.state, h.task, h.why AS error, h.failures, h.age, h.asides, h.aside_count, motley_time("      \
    "    date_trunc('second', CASE h.state WHEN 'failing' THEN h.failing_since WHEN 'silent' THEN "          \
    "    h.good_at END)) AS since "                                                                          \
    "  FROM (SELECT r.*, extract(epoch FROM now() - r.good_at)::float8 AS age, "                             \
    "    CASE WHEN r.at IS NULL THEN 'absent' "                                                              \
    "    WHEN r.failing_since IS NOT NULL AND r.at > now() - interval '10 s' THEN 'failing' "                \
    "    WHEN r.good_at < now() - interval '10 s' THEN 'silent' ELSE 'deciding' END AS state "               \
    "    FROM (SELECT 1) one LEFT JOIN scheduler_health r ON true) h) s"
#define SCHEDULER_STATE                                                                                      \
    "(SELECT json_strip_nulls(json_build_object(" SCHEDULER_MEMBERS ")) FROM " SCHEDULER_ROW ")"

/* Answers that document, and in it "age_s": since when nothing was left to decide, "failures": tries that
 * have failed since `since`, and "set_aside":[{"part","job"?,"until","until_us","why"}]: the first hundred
 * parts that passes leave out for a while. */
int store_health_get(struct store *store, store_doc_fn *done, void *arg, struct err *err);

#endif
