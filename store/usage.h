/* The queue, what users have used, and the share that they are due. Everybody may see all of it. */
#ifndef MOTLEY_STORE_USAGE_H
#define MOTLEY_STORE_USAGE_H

#include "store/principal.h"
#include "store/store.h"

/* Answers what was used between two times (wall-clock µs): {"usage":[{"name": of the user, group or device,
 * null: the root of the accounts, "held_s": device-seconds, "charged_s": normalised device-seconds,"jobs":
 * number of jobs}]}, by charge. `by` is "user", "group" or "device". A day of which only sums are kept counts
 * whole, and without its number of jobs. */
int store_usage_get(struct store *store, int64_t from_us, int64_t to_us, const char *by, store_doc_fn *done,
                    void *arg, struct err *err);

/* Answers a page of the queue: first the jobs that run, in the order in which they began to wait, and then
 * those that wait, by their place:
 *   {"jobs": as in store_counts, "queue": [{"id","name": null unless the asker may see the job,"owner",
 *    "account": null: the root,"service","state","priority","place"|null,"wait": code|null,
 *    "waits_for": job|null,"array_of"|null,"index"|null,"elements": of an array|null,"made"|null,
 *    "devices":[name],"since": when the run was created, or since when the job waits,
 *    "starts": predicted|null,"starts_earliest"|null,"starts_latest"|null: the range of the start,
 *    "ends": predicted|null}], "next": to give as `after`|null, "scheduler": SCHEDULER_STATE}. */
int store_queue_page(struct store *store, const struct principal *principal, int64_t after, unsigned limit,
                     store_doc_fn *done, void *arg, struct err *err);

/* Answers the leaves of the tree of accounts, those that are furthest below their share first (Fair Tree):
 * {"half_life_s","shares":[{"user","group": null: the root,"due": the user's due share of all use,"used": the
 * share that the user used,"used_s": charged device-seconds, halved every half-life,"rank": from 1}]}.
 * Everybody who is in a group or has used anything has a row. */
int store_shares_get(struct store *store, double half_life_s, store_doc_fn *done, void *arg, struct err *err);

#endif
