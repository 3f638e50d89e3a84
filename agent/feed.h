/* Between journal and Redis: events out on "motley:events:NODE", messages in from "motley:agent:NODE", both
 * sealed with the node's key; what comes without a seal that holds is counted, told and dropped unread.
 *
 * Events with a number go out in order, as far as a window beyond what is acknowledged allows, and again from
 * the last acknowledged one after a reconnection or after an acknowledgement that did not move although
 * events were out. After silence (2 s, doubling to 30 s) one of each sequence goes out again: perhaps nobody
 * leads, and what waits in Redis must stay small. Unnumbered ones (heartbeat, node_hello, received) go out
 * once, if Redis is there, with a rising `beat`. Reading begins with all that the stream still holds after
 * each (re)connection: messages are taken by id, so reading one twice does nothing; a Redis that was wiped or
 * whose clock went back loses nothing. Thread: the event base's.
 */
#ifndef MOTLEY_AGENT_FEED_H
#define MOTLEY_AGENT_FEED_H

#include <event2/event.h>
#include <jansson.h>
#include <openssl/ssl.h>

#include "agent/journal.h"
#include "common/err.h"

struct feed;

struct feed_config {
    const char *address, *user, *password; /* of Redis; user and password may be NULL */
    SSL_CTX *tls;                          /* borrowed; or NULL */
    const char *node;
    const char *boot; /* id of this start of the agent, greater than that of any before */
    const uint8_t *seal_key;
};

struct feed_events {
    bool (*current)(void *arg, const json_t *message); /* false: of another life of the cluster, not for us */
    void (*message)(void *arg, const json_t *message); /* borrowed; any type but ack */
    void (*connected)(void *arg);                      /* say hello now */
    void (*acked)(void *arg);                          /* the journal has become smaller */
    void (*trouble)(void *arg, const struct err *why); /* Redis went away or cannot be reached */
};

struct feed *feed_create(struct event_base *base, const struct feed_config *config, struct journal *journal,
                         const struct feed_events *events, void *arg, struct err *err);
void feed_destroy(struct feed *feed);

/* Append a numbered event to its stream and send it soon. Takes 'event'; type is set, and at (unless it has
 * one), node, and boot on the node's own stream. ERR_IO when it is only in memory: not fatal. */
int feed_event(struct feed *feed, struct journal_stream *stream, const char *type, json_t *event, bool final,
               struct err *err);

/* Send an unnumbered event once. Takes 'event'. Not sent while Redis is away. */
void feed_note(struct feed *feed, const char *type, json_t *event);

/* Key of a rank's stream. */
void feed_key(char key[JOURNAL_KEY_SIZE], int64_t run, int64_t epoch, int64_t rank);

#endif
