/* Tells people at their own addresses what became of their jobs (store/notices.h).
 *
 * A notice is a POST of JSON, signed with its person's key: X-Motley-Signature is "sha256=" and the
 * HMAC-SHA256 of the body in hexadecimal digits, X-Motley-Notice its number, by which a receiver knows one
 * that comes again. An answer with status 2xx within ten seconds delivers it. Redirects are not followed, and
 * of the answer nothing is kept but its status.
 *
 * The requests are made on threads of their own, one for a person at a time, so that a receiver that is stuck
 * holds up that person's notices alone. The addresses that a host has are looked at as they are connected to
 * (common/outside.h): a name that leads into the cluster's own network is of no use, unless the configuration
 * allows that host.
 *
 * Loop thread. */
#ifndef MOTLEY_API_JOBS_NOTICES_H
#define MOTLEY_API_JOBS_NOTICES_H

#include "api/request/app.h"

enum { NOTICES_AT_ONCE = 8 }; /* threads of app.tellers */

/* *out is released with notices_destroy. */
int notices_create(struct app *app, struct notices **out, struct err *err);
/* Requests under way are ended within a second, and tried again by the next api. */
void notices_stop(struct notices *notices);
/* After app.tellers was stopped and the store destroyed. NULL is a no-op. */
void notices_destroy(struct notices *notices);

#endif
