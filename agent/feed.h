/* Connects the journal to Redis: events go out on "motley:events:NODE", messages come in from
 * "motley:agent:NODE", both sealed with the node's key. A message without a valid seal is counted, reported
 * and dropped unread.
 *
 * Numbered events are sent in order, up to a window beyond the last acknowledged one. They are sent again
 * from the last acknowledged one after a reconnection, or after an acknowledgement that did not move although
 * events were outstanding. After silence (2 s, doubling to 30 s) one event of each sequence is sent again:
 * perhaps no scheduler is running, and the Redis stream must stay small. Unnumbered events (heartbeat,
 * node_hello, received) are sent once, if Redis is connected, with a rising `beat`. After each connection
 * reading starts with everything that the stream still holds: messages have ids, so reading one twice does
 * nothing, and a Redis that was wiped or whose clock went back loses nothing. Of several addresses the one is
 * used where the leading scheduler is: it keeps a key there, "motley:leader", that ends by itself. Thread:
 * the event base's.
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
    const char *address, *user, *password; /* of Redis (common/redis.h); user and password may be NULL */
    SSL_CTX *tls;                          /* borrowed; may be NULL */
    const char *node;
    const char *boot; /* id of this start of the agent, greater than the id of any start before */
    const uint8_t *seal_key;
};

struct feed_events {
    bool (*current)(void *arg, const json_t *message); /* false when the message is of another incarnation of
                                                          the cluster and must be ignored */
    void (*message)(void *arg, const json_t *message); /* borrowed; any type but ack */
    void (*connected)(void *arg);                      /* Redis is connected: send node_hello now */
    void (*acked)(void *arg);                          /* events were acknowledged and left the journal */
    void (*trouble)(void *arg, const struct err *why); /* Redis disconnected or cannot be reached */
};

struct feed *feed_create(struct event_base *base, const struct feed_config *config, struct journal *journal,
                         const struct feed_events *events, void *arg, struct err *err);
void feed_destroy(struct feed *feed);
/* Goes on with Redis at other addresses. */
int feed_move(struct feed *feed, const char *address, struct err *err);

/* Appends a numbered event to its stream and sends it soon. Takes 'event'. Sets type, node, `at` unless it
 * has one, and `boot` on the node's own stream. ERR_IO when the event is only in memory, which is not fatal.
 */
int feed_event(struct feed *feed, struct journal_stream *stream, const char *type, json_t *event, bool final,
               struct err *err);

/* Sends an unnumbered event once. Takes 'event'. It is dropped while Redis is not connected. */
void feed_note(struct feed *feed, const char *type, json_t *event);

/* Writes the key of a rank's stream. */
void feed_key(char key[JOURNAL_KEY_SIZE], int64_t run, int64_t epoch, int64_t rank);

#endif
