/* The queue, who used what and what they are due. Everybody may see it. */
#ifndef MOTLEY_STORE_USAGE_H
#define MOTLEY_STORE_USAGE_H

#include "store/principal.h"
#include "store/store.h"

/* What was used between two times (wall-clock µs): {"usage":[{"name": of the user, group or device, null: the
 * root of the accounts, "held_s": device-seconds, "charged_s": normalised device-seconds,"jobs": their
 * number}]}, by charge. `by` is "user", "group" or "device". Days of which only sums are kept count whole,
 * without their jobs. */
int store_usage_get(struct store *store, int64_t from_us, int64_t to_us, const char *by, store_doc_fn *done,
                    void *arg, struct err *err);

/* Jobs that run, by their predicted end, and then those that wait, by their place: {"jobs": as
 * store_counts, "queue":
 * [{"id","name": null unless the asker may see the job,"owner","account": null: the
 * root,"service","state","priority", "place"|null,"wait": code|null,"waits_for":
 * job|null,"array_of"|null,"index"|null,"elements": of an array|null,"made"|null,"devices":[name],"since":
 * when it was started, or since when it waits,"starts": predicted |null,"ends": predicted|null}], "next": to
 * give as `after`|null}. */
int store_queue_page(struct store *store, const struct principal *principal, int64_t after, unsigned limit,
                     store_doc_fn *done, void *arg, struct err *err);

/* The tree's leaves, those that are furthest below their share first (Fair Tree):
 * {"half_life_s","shares":[{"user","group": null: the root,"due": the share of everything that they are
 * due,"used": the share that they used,"used_s": charged device-seconds, halved every half-life,"rank": from
 * 1}]}. Everybody who is in a group or has used anything has a row. */
int store_shares_get(struct store *store, double half_life_s, store_doc_fn *done, void *arg, struct err *err);

#endif
