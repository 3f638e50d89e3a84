/* Messages to agents over their Redis streams.
 *
 * Kept messages mirror the outbox table: each is published, and again with
 * growing pauses until the agent's `received` comes, and all at once after Redis
 * was restarted or wiped. Each is sealed with its node's key; to a node that has none nothing is sent, kept
 * ones wait. Passing ones (ack, hello, kill) are sent once; who
 * needs them asks again. Thread: the event base's.
 */
#ifndef MOTLEY_SCHEDULER_DISPATCH_H
#define MOTLEY_SCHEDULER_DISPATCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

struct event_base;
struct inlets;
struct redis;
struct dispatch;

/* 'redis' and 'inlets' (whose keys seal what is sent) are borrowed until destroy. redeliver_ms: first pause
 * before a message is sent again. */
struct dispatch *dispatch_create(struct event_base *base, struct redis *redis, struct inlets *inlets,
                                 uint32_t redeliver_ms, struct err *err);
void dispatch_destroy(struct dispatch *dispatch);

/* Which life of the cluster the messages from now on belong to: agents go by it. Copied; at most 39 bytes. */
void dispatch_live(struct dispatch *dispatch, const char *incarnation);

/* Keeps and publishes outbox row 'id' for 'node'. The message gets "type" and "id". Ids must rise. run 0:
 * none. */
int dispatch_keep(struct dispatch *dispatch, int64_t id, const char *node, int64_t run, const char *type,
                  const json_t *payload, struct err *err);
/* The agent of `node` has it. Unknown ids and other nodes' messages are left alone. */
void dispatch_received(struct dispatch *dispatch, int64_t id, const char *node);
/* The run has ended: its messages are void. */
void dispatch_drop_run(struct dispatch *dispatch, int64_t run);
/* Forgets all (leadership lost). */
void dispatch_clear(struct dispatch *dispatch);
/* Redis has lost everything: publish all kept ones now. */
void dispatch_again(struct dispatch *dispatch);
/* Whether a message of 'run' for 'node' waits to be confirmed. */
bool dispatch_has(const struct dispatch *dispatch, int64_t run, const char *node);
size_t dispatch_kept(const struct dispatch *dispatch);

/* Sends a passing message; what cannot be sent is dropped. */
void dispatch_pass(struct dispatch *dispatch, const char *node, const json_t *message);

#endif
