/* What people are to be told at their own addresses (migrations/0011_notices.sql): taken by an api that sends
 * it, and what came of that. store.h has the rules for callbacks and errors.
 */
#ifndef MOTLEY_STORE_NOTICES_H
#define MOTLEY_STORE_NOTICES_H

#include "store/principal.h"
#include "store/store.h"

/* Takes at most `most` notices that are due, for `seconds`, one for a person at a time: [{"id", "url",
 * "body": text, "key": what it is signed with, "mailed": messages sent to mailboxes for that person in the
 * last 24 hours, where `url` is one}]. */
int store_notices_claim(struct store *store, double seconds, int64_t most, store_doc_fn *done, void *arg,
                        struct err *err);

enum store_notice_end {
    STORE_NOTICE_DELIVERED,
    STORE_NOTICE_FAILED, /* tried again: after 30 s, and each time after four times as long, up to six hours;
                            eight tries in all, within about 15 hours */
    STORE_NOTICE_REFUSED /* the address may not be used: given up at once */
};
/* Ends an attempt. A failed one waits `retry_s` at least, and at most six hours. `why`: NULL, or what it
 * failed for. */
int store_notice_end(struct store *store, int64_t id, enum store_notice_end end, double retry_s,
                     const char *why, store_done_fn *done, void *arg, struct err *err);

/* Answers the 1,000 newest of the asker's notices, of an administrator everybody's: {"url": where the asker
 * is told of jobs that name no address | null, "notices":
 * [{"id","user","job","event","state","url","attempts", "at","next" | null,"ended" | null,"why" | null}], by
 * id}. */
int store_notices_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                       struct err *err);

/* Changes where the asker is told: `changes` has members of {"url": text | null, "key": "new" | "keep"}.
 * Answers
 * {"url","key"}. */
int store_notify_set(struct store *store, const struct principal *principal, const json_t *changes,
                     store_doc_fn *done, void *arg, struct err *err);

#endif
