/* The worker's link to its agent: a unix socket that the agent connects to, may lose, and connects to again.
 *
 * One thread owns the socket. Messages that arrive are queued for worker_link_take; each is first passed to
 * the `urgent` callback on that thread. Events are numbered (`seq` from 1), encoded at once and stored until
 * an `ack` names their number or a later one. On every new connection the link sends `worker_hello` and then
 * all stored events.
 *
 * Bounds: 64 messages and 64 MiB of events. Above half of that size, events of the types `trace`, `ranks` and
 * `log` are dropped before they get a number, so numbers have no gaps. At the bound worker_link_emit waits
 * for acknowledgements.
 */
#ifndef MOTLEY_WORKER_SESSION_LINK_H
#define MOTLEY_WORKER_SESSION_LINK_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct worker_link;

/* Called on the link's thread for each message, which is borrowed. Must not block. */
typedef void worker_link_urgent_fn(void *arg, const json_t *message);

struct worker_link_options {
    const char *path; /* path of the socket, made with mode 0600; an existing file is replaced */
    worker_link_urgent_fn *urgent;
    void *urgent_arg;
    uint64_t spool_bytes; /* limit of the stored events; 0 means 64 MiB */
    uint64_t alone_ns;    /* worker_link_emit fails when no agent was connected for this time */
};

/* Listens on the socket and starts the thread. ERR_IO, ERR_NOMEM. */
int worker_link_open(const struct worker_link_options *options, struct worker_link **out, struct err *err);

/* Sets the fields that every event and worker_hello carry from now on, such as {"run", "epoch", "rank"}
 * (copied). */
int worker_link_identify(struct worker_link *link, const json_t *fields, struct err *err);

/* Returns the next message (new), or NULL with ERR_TIMEOUT when none came by deadline_ns (clock_mono_ns; 0
 * does not wait). */
json_t *worker_link_take(struct worker_link *link, uint64_t deadline_ns, struct err *err);

/* Wakes a waiting worker_link_take, which then returns NULL with ERR_CANCELLED. Async-signal-safe. */
void worker_link_interrupt(struct worker_link *link);

/* Has the link's thread call run(arg), and waits for its result. */
int worker_link_call(struct worker_link *link, int (*run)(void *arg, struct err *err), void *arg,
                     struct err *err);

/* Sends `event` (taken), an object without type, seq and at. Returns 0 also when the event was dropped
 * because the spool is half full; -1 with ERR_TIMEOUT (no agent for alone_ns while the spool is full),
 * ERR_TOO_BIG, ERR_NOMEM. Any thread may call it. */
int worker_link_emit(struct worker_link *link, const char *type, json_t *event, struct err *err);

/* Returns the nanoseconds since an agent was last connected; 0 while one is. */
uint64_t worker_link_alone(struct worker_link *link);

/* Waits until all events are acknowledged. -1 with ERR_TIMEOUT when linger_ns passed with an agent connected,
 * or alone_ns without one. */
int worker_link_flush(struct worker_link *link, uint64_t linger_ns, struct err *err);

/* Stops the thread and removes the socket. Events that were not acknowledged are lost. NULL is a no-op. */
void worker_link_close(struct worker_link *link);

#endif
