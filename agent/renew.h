/* Renews the node's certificate: asks the api for a new one after two thirds of its lifetime, with the key of
 * the enrolment and the node's bearer token. It has a thread of its own, because asking blocks.
 *
 * The same request shows whether the cluster still knows this node: call renewer_now() after any sign that it
 * does not. Results are delivered on the event loop. A failed request is repeated, each time after twice as
 * long.
 */
#ifndef MOTLEY_AGENT_RENEW_H
#define MOTLEY_AGENT_RENEW_H

#include <event2/event.h>

#include "agent/enrol.h"

struct renewer;

/* Called on the loop with a result. 'certificate' is the node's new one, which is in its file. ERR_AUTH: the
 * api did not know this node, twice in a row, and is not asked again. Any other error: this request failed.
 */
typedef void renew_fn(void *arg, const struct err *err, const struct agent_certificate *certificate);

/* Starts the thread. 'identity' is copied. NULL with err. */
struct renewer *renewer_create(struct event_base *base, const struct agent_identity *identity, renew_fn *done,
                               void *arg, struct err *err);
/* Joins the thread, which takes at most as long as one request (10 s). NULL is a no-op. */
void renewer_destroy(struct renewer *renewer);
/* Makes a request now, but at most one every 20 s. Call it on the loop. */
void renewer_now(struct renewer *renewer);

#endif
