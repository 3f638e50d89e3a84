/* How this node's cards are: a process of the worker's program watches them (`motley-worker --health`,
 * engine/gpu/health.h), so that a management library that hangs or crashes harms nobody; here its readings
 * are matched with devices, averaged, and told in "health" notes.
 *
 * The watcher runs where a device is a card, or where MOTLEY_EMULATED_HEALTH says how emulated ones are. It
 * is started again half a minute after it ended, and ended after half a minute of silence. A device's health
 * is told when something changed that decisions rest on (at most every 5 s, or a tenth of the window where
 * that is less), else once a minute. Thread: the event base's. */
#ifndef MOTLEY_AGENT_HEALTH_H
#define MOTLEY_AGENT_HEALTH_H

#include <event2/event.h>
#include <jansson.h>
#include <sys/types.h>

#include "agent/config.h"
#include "common/err.h"

struct health;

struct health_options {
    const struct agent_config *config;           /* borrowed, as are the strings */
    const char *worker;                          /* path of motley-worker */
    pid_t (*pid)(void *arg, const char *device); /* of the worker that runs there; 0: none */
    void (*note)(void *arg, json_t *devices);    /* tell {device: health}; takes it */
    void *arg;
};

/* NULL with ERR_NOMEM. A watcher that cannot be started is said in the devices' health. */
struct health *health_create(struct event_base *base, const struct health_options *options, struct err *err);
void health_destroy(struct health *health); /* ends the watcher; NULL is fine */

/* Somebody new listens: tell all with the next reading. */
void health_again(struct health *health);

/* One reading of the watcher's, taken at `now_ns`: what the next note would say, new ({} when nothing is
 * due). For health.c and its test. */
json_t *health_take(struct health *health, const json_t *reading, uint64_t now_ns);

#endif
