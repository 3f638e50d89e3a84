/* Keeps the node's certificate alive: asks the api for a new one when two thirds of its life are over, with
 * the key that the node was enrolled with and its bearer token. A thread of its own, since asking blocks.
 *
 * The same question tells whether this node is still one of the cluster: renew_now() after any sign that it
 * is not. What came of it is told on the event loop. A failure is tried again, each time after twice as long.
 */
#ifndef MOTLEY_AGENT_RENEW_H
#define MOTLEY_AGENT_RENEW_H

#include <event2/event.h>

#include "agent/enrol.h"

struct renewer;

/* On the loop. 'certificate': the node's new one stands in its file. ERR_AUTH: the api does not know this
 * node any more, asked twice; nothing more is asked. Else why it did not work this time. */
typedef void renew_fn(void *arg, const struct err *err, const struct agent_certificate *certificate);

/* Starts the thread; 'identity' is copied. NULL with err. */
struct renewer *renewer_create(struct event_base *base, const struct agent_identity *identity, renew_fn *done,
                               void *arg, struct err *err);
/* Joins the thread: at most as long as one question takes (10 s). NULL is fine. */
void renewer_destroy(struct renewer *renewer);
/* Ask now, at most once in a while. On the loop. */
void renewer_now(struct renewer *renewer);

#endif
