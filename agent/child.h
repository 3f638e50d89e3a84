/* Handles one worker process: starts it, talks to it, recognises it after the agent restarted, and notices
 * its end.
 *
 * Its folder holds worker.sock (the worker listens on it), log (its output), state.json (pid, start time, its
 * work) and, as frames, the messages it was sent: assign, peers, stop. An adopted child is sent again what it
 * may have missed. The callbacks come in the order hello, event …, then exactly one gone. After gone nothing
 * more comes and the owner calls child_destroy (it may do so inside gone). Every byte that the worker wrote
 * before it ended is delivered before gone. Thread: the event base's.
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

/* The work of a child: a rank of a run or, with run < 0, measuring its device for the profile request
 * 'request'. */
struct child_work {
    char device[96];
    int64_t run, epoch, rank;
    int64_t request;
    int64_t limit_bytes; /* the device's memory limit when the worker was started */
};

struct child_events {
    void (*event)(void *arg, struct child *child,
                  json_t *event); /* takes `event`; worker_hello is not passed on */
    void (*gone)(void *arg, struct child *child,
                 const char *why); /* why: "killed by signal 9 (Killed)" and the last log lines */
};

struct child_options {
    const char *program;    /* path of motley-worker */
    const char *dir;        /* folder; replaced if it exists */
    const char *const *env; /* changes to the environment (process_options.env) */
    const char *group;      /* path of the cgroup.procs that the process joins, or NULL */
    struct child_work work;
    const json_t *document; /* the assign or profile message with its local part; borrowed */
};

struct child *child_start(struct event_base *base, const struct child_options *options,
                          const struct child_events *events, void *arg, struct err *err);

/* Takes over the worker of 'dir' that an earlier agent started. NULL with ERR_NOT_FOUND when that process has
 * ended, ERR_CORRUPT, ERR_IO. *work is set to the worker's work if it can be read (device[0] != 0). */
struct child *child_adopt(struct event_base *base, const char *dir, const struct child_events *events,
                          void *arg, struct child_work *work, struct err *err);

/* Returns new {device: bytes}: the memory limits with which the workers below 'folder' that still run were
 * started, by an earlier agent. */
json_t *child_limits(const char *folder);

void child_destroy(struct child *child); /* does not kill the process and keeps its folder */

/* Return the child's work, its folder (both borrowed until child_destroy), and its process. */
const struct child_work *child_work(const struct child *child);
const char *child_dir(const struct child *child);
pid_t child_pid(const struct child *child);

/* Sends a message now or, if the worker is not connected, when it has connected. 'peers' and 'stop' are
 * stored for an agent that restarts. */
int child_send(struct child *child, const json_t *message, struct err *err);

/* Stops or resumes reading the worker's events; meanwhile the worker stores them. */
void child_pause(struct child *child, bool paused);

/* Ends the worker: SIGTERM makes it stop, after a checkpoint if it can; SIGKILL follows to its process group
 * after 'grace_ms' (0: at once). */
void child_end(struct child *child, uint32_t grace_ms);
bool child_was_ended(const struct child *child); /* whether child_end was called */
bool child_was_heard(const struct child *child); /* whether the worker said hello, to this agent or another */

/* Writes the last lines of a worker's log (at most 'size' bytes) as one line, for messages. Returns out. */
char *child_log_tail(const char *dir, char *out, size_t size);

#endif
