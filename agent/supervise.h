/* What the agent does with messages: workers by device, each started at most once an epoch, none left behind.
 *
 * Invariants: a device has at most one worker; an assignment whose epoch is not above the device's last one
 * is refused (epochs grow over the whole cluster), and the last one is on disk before the worker is told its
 * work; a message with an id is acted upon once, and confirmed each time; every rank that was accepted ends
 * with one final event in the journal, whatever becomes of its process. Thread: the event base's.
 */
#ifndef MOTLEY_AGENT_SUPERVISE_H
#define MOTLEY_AGENT_SUPERVISE_H

#include <event2/event.h>
#include <jansson.h>
#include <stdbool.h>

#include "agent/config.h"
#include "agent/enrol.h"
#include "agent/feed.h"
#include "agent/journal.h"
#include "agent/links.h"
#include "agent/past.h"
#include "common/err.h"

struct supervisor;

struct supervisor_options {
    const struct agent_config *config; /* all borrowed for the supervisor's life */
    const struct agent_identity *identity;
    const char *home;
    const char *worker; /* path of motley-worker */
    struct journal *journal;
    struct groups *groups; /* NULL: workers have none */
    struct past *past;
};

/* ERR_IO, ERR_CORRUPT. supervisor_connect must follow before the base runs. */
struct supervisor *supervisor_create(struct event_base *base, const struct supervisor_options *options,
                                     struct err *err);
/* Gives it the feed and the links (borrowed); adopts the workers that live and reports those that died
 * meanwhile. */
int supervisor_connect(struct supervisor *supervisor, struct feed *feed, struct links *links,
                       struct err *err);
void supervisor_destroy(struct supervisor *supervisor);

/* A message of the scheduler, of any type but ack and hello. */
void supervisor_message(struct supervisor *supervisor, const json_t *message);
/* The journal has become smaller. */
void supervisor_acked(struct supervisor *supervisor);
/* A link was measured. */
void supervisor_link(struct supervisor *supervisor, const struct links_result *result);

/* [{run, epoch, rank, device}] of the workers that live: new. */
json_t *supervisor_workers(const struct supervisor *supervisor);

/* Process of the worker on a device; 0: none lives. */
pid_t supervisor_pid(struct supervisor *supervisor, const char *device);

/* End all workers: asked first, killed after grace_ms. 'ended' is called once none is left (perhaps at once,
 * inside). */
void supervisor_end(struct supervisor *supervisor, uint32_t grace_ms, void (*ended)(void *arg), void *arg);

#endif
