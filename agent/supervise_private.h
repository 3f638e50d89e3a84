/* Declarations that supervise.c and messages.c share: the devices and their workers, and what becomes of one.
 */
#ifndef MOTLEY_AGENT_SUPERVISE_PRIVATE_H
#define MOTLEY_AGENT_SUPERVISE_PRIVATE_H

#include "agent/child.h"
#include "agent/proof.h"
#include "agent/seen.h"
#include "agent/supervise.h"
#include "agent/worker_start.h"

/* PROOF_REQUEST: number of a proof's request; the scheduler's requests begin with 1. */
enum { KILL_GRACE_MS = 3000, PROOF_REQUEST = 0 };

/* A device and the worker on it. */
struct device_state {
    const struct agent_device *device;
    int64_t last_epoch; /* epoch of the last accepted assignment; -1: none */
    struct child *child;
    bool finished;         /* the worker has sent its last event */
    uint64_t events_taken; /* number of events taken from a measuring worker. The node's stream numbers them
                              anew. */
    uint64_t node_number;  /* number that the worker's last event got in the node's stream */
    uint64_t acked;        /* events acknowledged to the worker */
    uint64_t read_ns;      /* when the last `profile` that was not refused was read, on the monotonic clock */
    json_t *pending;       /* `assign` or `profile` to start when the present child has ended; or NULL */
    struct proof proof;    /* what the device lacks in order to run a worker */
};

struct worker_supervisor {
    struct event_base *base;
    const struct agent_config *config;
    const struct agent_identity *identity;
    const char *home;
    const char *worker;
    struct journal *journal;
    struct groups *groups;
    struct flush *flush;
    struct feed *feed;
    struct links *links;
    struct seen *seen;
    struct node_history *history;
    struct device_state states[AGENT_DEVICES_MAX];
    uint32_t state_count;
    bool paused;
    bool ending;
    void (*ended)(void *arg);
    void *ended_arg, *lacking_arg;
    struct event *prove; /* ticks: starts proofs that are due, ends those that hang, tells what has changed */
    bool lacking_moved;
    void (*lacking_changed)(void *arg);
};

struct device_state *supervisor_device(struct worker_supervisor *supervisor,
                                       const char *name); /* NULL: none */

/* Whether the child is a worker that is only tried (worker/prove.h). */
bool work_is_proof(const struct child_work *work);

void supervisor_trouble(const char *event, const struct err *err); /* logs a warning */

/* Appends an event to the stream of a rank, or of the node. Before the feed exists the event waits in the
 * journal. Takes `event`. */
void event_append(struct worker_supervisor *supervisor, const struct child_work *work, const char *type,
                  json_t *event, bool final);
void failure_append(struct worker_supervisor *supervisor, const struct child_work *work, enum err_code code,
                    const char *text);

/* Answers the pending message, if there is one, with a failure, and forgets it. */
void pending_refuse(struct worker_supervisor *supervisor, struct device_state *state, enum err_code code,
                    const char *text);
/* Starts the worker of the pending message, or reports why it could not be started. */
void pending_start(struct worker_supervisor *supervisor, struct device_state *state);
/* Reports that the pending message's worker could not be started because of this node. */
void start_failed(struct worker_supervisor *supervisor, struct device_state *state, const struct err *err);

#endif
