/* The worker's link to its agent: a unix socket that the agent connects to, loses, and connects to again.
 *
 * One thread owns the socket. Messages that arrive are kept in order for worker_link_take; each is first
 * shown to the `urgent` callback on that thread. Events are numbered (`seq` from 1), encoded at once and kept
 * until an `ack` names their number or a later one; on every new connection `worker_hello` and then all that
 * are kept are sent.
 *
 * Bounds: 64 messages and 64 MiB of events. Above half of that `trace`, `ranks` and `log` events are dropped
 * (before they get a number, so numbers have no gaps); at the bound worker_link_emit waits for
 * acknowledgements. */
#ifndef MOTLEY_WORKER_LINK_H
#define MOTLEY_WORKER_LINK_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct worker_link;

/* Called on the link's thread for each message (borrowed); must not block. */
typedef void worker_link_urgent_fn(void *arg, const json_t *message);

struct worker_link_options {
    const char *path; /* of the socket; an old one is replaced; made with mode 0600 */
    worker_link_urgent_fn *urgent;
    void *urgent_arg;
    uint64_t spool_bytes; /* 0: 64 MiB */
    uint64_t alone_ns;    /* worker_link_emit gives up when no agent was there for so long */
};

/* Listens and starts the thread. ERR_IO, ERR_NOMEM. */
int worker_link_open(const struct worker_link_options *options, struct worker_link **out, struct err *err);

/* What stands in every event and in worker_hello from now on, such as {"run", "epoch", "rank"} (copied). */
int worker_link_identify(struct worker_link *link, const json_t *fields, struct err *err);

/* The next message, new, or NULL with ERR_TIMEOUT when none came by deadline_ns (clock_mono_ns; 0: do not
 * wait). */
json_t *worker_link_take(struct worker_link *link, uint64_t deadline_ns, struct err *err);

/* Wake a waiting worker_link_take, which then returns NULL with ERR_CANCELLED. Async-signal-safe. */
void worker_link_interrupt(struct worker_link *link);

/* Takes `event`, an object without type, seq, at. Returns 0 also when it was dropped as said above; -1 with
 * ERR_TIMEOUT (no agent for alone_ns while the spool is full), ERR_TOO_BIG, ERR_NOMEM. Any thread. */
int worker_link_emit(struct worker_link *link, const char *type, json_t *event, struct err *err);

/* Nanoseconds without an agent; 0 while one is connected. */
uint64_t worker_link_alone(struct worker_link *link);

/* Wait until everything is acknowledged. -1 with ERR_TIMEOUT: linger_ns passed with an agent connected, or
 * alone_ns without one. */
int worker_link_flush(struct worker_link *link, uint64_t linger_ns, struct err *err);

/* Stops the thread, removes the socket. What is not acknowledged is lost. NULL is a no-op. */
void worker_link_close(struct worker_link *link);

#endif
