/* Leases: a person holds a device for a time, from now or from a booked time on. No job is on it meanwhile.
 * Times in documents are ISO 8601 in UTC.
 */
#ifndef MOTLEY_STORE_LEASES_H
#define MOTLEY_STORE_LEASES_H

#include "store/principal.h"
#include "store/store.h"

enum { LEASE_SECONDS_MIN = 60, LEASE_SECONDS_MAX = 31 * 86400, LEASE_AHEAD_MAX = 90 * 86400 };

struct store_lease_new {
    const char *device; /* name of a device, or NULL: the first available device that matches `any` */
    /* a part of the name of a device or its machine, or of the device's kind or model */
    const char *any;
    const char *note; /* "" for none */
    /* Only administrators may ask for maintenance. It is charged to nobody, and may begin while a job holds
     * the device. */
    bool maintenance;
    const char *begins; /* ISO 8601; NULL: now */
    int64_t seconds;    /* LEASE_SECONDS_MIN to LEASE_SECONDS_MAX */
};

/* Answers the leases that have not ended, by beginning. Everybody sees all of them.
 *   {"leases":[{"id","device","holder","account","kind": "lease" | "maintenance","note",
 *    "begins","ends","active"}]} */
int store_lease_list(struct store *store, store_doc_fn *done, void *arg, struct err *err);
/* Makes a lease for the asker, who must be a user. Answers the lease's document. ERR_CONFLICT names the lease
 * or the job that has the device at that time. ERR_INVALID names an unknown device, a time that is past or
 * more than LEASE_AHEAD_MAX away, the longest time of the user's leases, or a limit (devices, month) of the
 * user or of a group. Wakes the scheduler. */
int store_lease_put(struct store *store, const struct principal *principal,
                    const struct store_lease_new *lease, store_doc_fn *done, void *arg, struct err *err);
/* Moves the end of a lease by `seconds`; 0 ends the lease now (a booking that has not begun is withdrawn).
 * Only the holder and administrators may do this. ERR_NOT_FOUND; ERR_DENIED; ERR_CONFLICT when another lease
 * or a job has the device at that time; ERR_INVALID names a limit, as above. Answers the lease's document. */
int store_lease_change(struct store *store, const struct principal *principal, int64_t id, int64_t seconds,
                       store_doc_fn *done, void *arg, struct err *err);

#endif
