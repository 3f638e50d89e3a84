/* Sends messages to agents over their Redis streams.
 *
 * Kept messages mirror the outbox table. Each is published at once, and again with growing pauses until the
 * agent's `received` event arrives; all are published again when Redis was restarted or wiped. Passing
 * messages (ack, hello, kill) are published once; whoever needs one asks again.
 *
 * Each message is sealed with its node's key. A node without a key is sent nothing; its kept messages wait.
 * Thread: the event base's.
 */
#ifndef MOTLEY_SCHEDULER_LEADER_DISPATCH_H
#define MOTLEY_SCHEDULER_LEADER_DISPATCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

struct event_base;
struct node_streams;
struct redis;
struct dispatch;

/* Creates a dispatch. It borrows 'redis' and 'node_streams' until destroy; 'node_streams' holds the keys that
 * seal the messages. redeliver_ms is the pause before a kept message is sent again for the first time. */
struct dispatch *dispatch_create(struct event_base *base, struct redis *redis,
                                 struct node_streams *node_streams, uint32_t redeliver_ms, struct err *err);
void dispatch_destroy(struct dispatch *dispatch);

/* Sets the cluster's incarnation, which agents compare with theirs, for all messages from now on. The text is
 * copied and has at most 39 bytes. */
void dispatch_live(struct dispatch *dispatch, const char *incarnation);

/* Gives the plan of a run, as plan_to_json writes it, before the run's messages are given to dispatch_keep.
 * Plans are not in the outbox: an `assign` that names its plan by "plan_digest" and has no "plan" is sent
 * with its rank's slice of this plan. dispatch_plans_forget releases the plans given. */
int dispatch_plan(struct dispatch *dispatch, int64_t run, const json_t *plan, struct err *err);
void dispatch_plans_forget(struct dispatch *dispatch);

/* Keeps and publishes row 'id' of the outbox for 'node', and adds "type" and "id" to the payload. Ids must
 * rise from call to call. 'run' is 0 for a message that belongs to no run. */
int dispatch_keep(struct dispatch *dispatch, int64_t id, const char *node, int64_t run, const char *type,
                  const json_t *payload, struct err *err);
/* Drops message 'id' because the agent of `node` has confirmed it. An unknown id, or one of another node's
 * message, changes nothing. */
void dispatch_received(struct dispatch *dispatch, int64_t id, const char *node);
/* Drops the messages of a run that has ended. */
void dispatch_drop_run(struct dispatch *dispatch, int64_t run);
/* Drops the messages that wait for this node. */
void dispatch_drop_node(struct dispatch *dispatch, const char *node);
/* Drops all kept messages; called when leadership is lost. */
void dispatch_clear(struct dispatch *dispatch);
/* Publishes all kept messages now, because Redis may have lost them. */
void dispatch_again(struct dispatch *dispatch);
/* Returns true while a message of 'run' for 'node' is not confirmed. */
bool dispatch_has(const struct dispatch *dispatch, int64_t run, const char *node);
size_t dispatch_kept(const struct dispatch *dispatch);

/* Publishes a message once, without keeping it. A message that cannot be sent is dropped. */
void dispatch_pass(struct dispatch *dispatch, const char *node, const json_t *message);

#endif
