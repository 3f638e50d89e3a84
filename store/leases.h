/* Leases: a person holds a device for a time, from now or from a booked time on. No job is on it meanwhile.
 * Times in documents are ISO 8601 in UTC.
 */
#ifndef MOTLEY_STORE_LEASES_H
#define MOTLEY_STORE_LEASES_H

#include "store/principal.h"
#include "store/store.h"

enum { LEASE_SECONDS_MIN = 60, LEASE_SECONDS_MAX = 31 * 86400, LEASE_AHEAD_MAX = 90 * 86400 };

struct store_lease_new {
    const char *device; /* or NULL: the first that can be had of those that are like `any` */
    const char *any;    /* a part of a device's or its machine's name, its kind or model */
    const char *note;   /* "" for none */
    bool maintenance;   /* by administrators: charged to nobody, and may begin while a job holds the device */
    const char *begins; /* ISO 8601; NULL: now */
    int64_t seconds;    /* LEASE_SECONDS_MIN to LEASE_SECONDS_MAX */
};

/* {"leases":[{"id","device","holder","account","kind": "lease" |
 * "maintenance","note","begins","ends","active"}]}: the leases that are not over, by beginning. Everybody
 * sees all of them. */
int store_lease_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);
/* Makes a lease for the asker, who must be a user. Answers its document. ERR_CONFLICT names the lease or the
 * job that has the device at that time; ERR_INVALID an unknown device, a time that has passed or is more than
 * LEASE_AHEAD_MAX away, and the user's limit of devices. Wakes the scheduler. */
int store_lease_put(struct store *store, const struct principal *principal,
                    const struct store_lease_new *lease, store_doc_fn *done, void *arg, struct err *err);
/* Moves the end of a lease by `seconds`, or with 0 ends it now (a booking that has not begun is withdrawn).
 * Owners and administrators. ERR_NOT_FOUND, ERR_DENIED, ERR_CONFLICT when somebody has the device then.
 * Answers its document. */
int store_lease_change(struct store *store, const struct principal *principal, int64_t id, int64_t seconds,
                       store_doc_fn *done, void *arg, struct err *err);

#endif
