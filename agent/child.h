/* One worker process: started, talked to, recognised after the agent restarted, mourned.
 *
 * Its folder holds worker.sock (the worker listens), log (its output), state.json (pid, start time, what it
 * does) and, as frames, what it was told: assign, peers, stop. A child that is adopted is told again what it
 * may have missed. Order of callbacks: hello, event …, then exactly one gone, after which nothing comes and
 * child_destroy is due (it may be called inside gone). Every byte that the worker wrote before it ended comes
 * before gone. Thread: the event base's.
 */
#ifndef MOTLEY_AGENT_CHILD_H
#define MOTLEY_AGENT_CHILD_H

#include <event2/event.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"

struct child;

/* What it does. run < 0: it measures for 'request'. */
struct child_work {
    char device[96];
    int64_t run, epoch, rank;
    int64_t request;
};

struct child_events {
    void (*event)(void *arg, struct child *child, json_t *event); /* takes; not worker_hello */
    void (*gone)(void *arg, struct child *child,
                 const char *why); /* "killed by signal 9 (Killed)"; last log lines */
};

struct child_options {
    const char *program;    /* motley-worker */
    const char *dir;        /* made anew */
    const char *const *env; /* as process_options.env */
    const char *group;      /* path of the cgroup.procs that it enters, or NULL */
    struct child_work work;
    const json_t *document; /* assign or profile with its local part; borrowed */
};

struct child *child_start(struct event_base *base, const struct child_options *options,
                          const struct child_events *events, void *arg, struct err *err);

/* Take over the worker of 'dir' that an earlier agent started. NULL: ERR_NOT_FOUND when it does not live any
 * more (then *work says what it did, if that can be read: device[0] != 0), ERR_CORRUPT, ERR_IO. */
struct child *child_adopt(struct event_base *base, const char *dir, const struct child_events *events,
                          void *arg, struct child_work *work, struct err *err);

void child_destroy(struct child *child); /* does not kill; its folder stays */

/* What it does, where (borrowed until destroy), and its process. */
const struct child_work *child_work(const struct child *child);
const char *child_dir(const struct child *child);
pid_t child_pid(const struct child *child);

/* Tell it something: sent now, or when it has connected. 'peers' and 'stop' are kept for an agent that
 * restarts. */
int child_send(struct child *child, const json_t *message, struct err *err);

/* Stop or go on taking its events (it keeps them meanwhile). */
void child_pause(struct child *child, bool paused);

/* SIGTERM: it stops after a checkpoint if it can. SIGKILL to its group after 'grace_ms'; 0: at once. */
void child_end(struct child *child, uint32_t grace_ms);
bool child_was_ended(const struct child *child); /* by child_end */

/* The last lines of a worker's log (at most 'size' bytes), in one line: for messages. Returns out. */
char *child_log_tail(const char *dir, char *out, size_t size);

#endif
