/* Acts on the scheduler's messages: runs workers by device, each started at most once for an epoch, and
 * leaves none behind.
 *
 * Invariants: a device has at most one worker. An assignment whose epoch is not above the device's last one
 * is refused (epochs grow over the whole cluster), and the new epoch is on disk before the worker gets its
 * work. A message with an id is acted upon once and confirmed each time. Every accepted rank ends with one
 * final event in the journal, whatever happens to its process. Thread: the event base's.
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
#include "agent/history.h"
#include "common/err.h"

struct worker_supervisor;

struct supervisor_options {
    const struct agent_config *config; /* all pointers are borrowed for the supervisor's lifetime */
    const struct agent_identity *identity;
    const char *home;
    const char *worker; /* path of motley-worker */
    struct journal *journal;
    struct groups *groups; /* NULL: workers get no control group */
    struct node_history *history;
    /* called when what the devices lack has changed (supervisor_lacking); not after supervisor_destroy */
    void (*lacking_changed)(void *arg);
    void *arg;
};

/* ERR_IO, ERR_CORRUPT. Call supervisor_connect before the base runs. */
struct worker_supervisor *supervisor_create(struct event_base *base, const struct supervisor_options *options,
                                            struct err *err);
/* Sets the feed and the links (borrowed), adopts the workers that still run and reports those that ended
 * meanwhile. */
int supervisor_connect(struct worker_supervisor *supervisor, struct feed *feed, struct links *links,
                       struct err *err);
void supervisor_destroy(struct worker_supervisor *supervisor);

/* Acts on a message of the scheduler, of any type but ack and hello. */
void supervisor_message(struct worker_supervisor *supervisor, const json_t *message);
/* Tells that events were acknowledged and left the journal. */
void supervisor_acked(struct worker_supervisor *supervisor);
/* Takes the result of a measured link. */
void supervisor_link(struct worker_supervisor *supervisor, const struct links_result *result);

/* Returns a new [{run, epoch, rank, device}] of the workers that run. */
json_t *supervisor_workers(const struct worker_supervisor *supervisor);

/* Returns a new {device: sentence} of what devices lack in order to run a worker. A worker is tried on each
 * device (worker/prove.h) at the start, after a start or a worker failed, and again while something is
 * lacking (proof.h). */
json_t *supervisor_lacking(const struct worker_supervisor *supervisor);

/* Returns the process of the worker on a device; 0 when none runs. */
pid_t supervisor_pid(struct worker_supervisor *supervisor, const char *device);

/* Ends all workers: asks first, kills after grace_ms. 'ended' is called once none is left, possibly inside
 * this call. */
void supervisor_end(struct worker_supervisor *supervisor, uint32_t grace_ms, void (*ended)(void *arg),
                    void *arg);

#endif
