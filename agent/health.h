/* The health of this node's devices. Of CPUs it is how many cores of the machine processes use that are not
 * of this agent (`others_cores`), each half minute. Of cards: a process of the worker's program watches them
 * (`motley-worker --health`, engine/gpu/health.h), so that a management library that hangs or crashes harms
 * nothing else. Here its readings are matched with devices, averaged, and sent in "health" notes.
 *
 * The watcher runs when a device is a card, or when MOTLEY_EMULATED_HEALTH gives the health of emulated
 * cards. It is started again half a minute after it ended, and is ended after half a minute of silence. A
 * device's health is sent when something changed that decisions depend on (at most every 5 s, or every tenth
 * of the window if that is less), else once a minute. Thread: the event base's.
 */
#ifndef MOTLEY_AGENT_HEALTH_H
#define MOTLEY_AGENT_HEALTH_H

#include <event2/event.h>
#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/config.h"
#include "common/err.h"

struct health;

struct health_options {
    const struct agent_config *config;           /* borrowed, like the strings */
    const char *worker;                          /* path of motley-worker */
    pid_t (*pid)(void *arg, const char *device); /* process of the worker on a device; 0: none */
    void (*note)(void *arg, json_t *devices);    /* sends {device: health}; takes it */
    uint32_t silent_s; /* the watcher is ended after so many seconds of silence; 0: 30 */
    void *arg;
};

/* NULL with ERR_NOMEM. If the watcher cannot be started, the devices' health says so. */
struct health *health_create(struct event_base *base, const struct health_options *options, struct err *err);
void health_destroy(struct health *health); /* ends the watcher; NULL is a no-op */

/* Sends the health of all devices with the next reading, because there is a new reader. */
void health_again(struct health *health);

/* Takes one reading of the watcher at `now_ns` and returns what the next note says (new; {} when nothing is
 * due). Used by health.c and its test. */
json_t *health_take(struct health *health, const json_t *reading, uint64_t now_ns);

/* Returns the health of the CPUs since the last call, or since the creation: {device: {"others_cores"}}, new.
 * Used as health_take is. */
json_t *health_cores(struct health *health, uint64_t now_ns);

#endif
