/* Brings the journal to the disk, on a thread of its own: group commit.
 *
 * All streams that have grown are synced one after the other while the loop goes on; what came meanwhile is
 * the next round. A file that cannot be written is tried again four times a second. Thread: the event base's,
 * but for the syncs themselves.
 */
#ifndef MOTLEY_AGENT_FLUSH_H
#define MOTLEY_AGENT_FLUSH_H

#include <event2/event.h>

#include "agent/journal.h"
#include "common/err.h"

struct flush;

/* 'durable' is called after each round: some streams' durable has perhaps risen. The journal is borrowed and
 * must outlive it. ERR_NOMEM. */
struct flush *flush_create(struct event_base *base, struct journal *journal, void (*durable)(void *arg),
                           void *arg, struct err *err);
/* Waits for a sync that is under way. NULL is fine. */
void flush_destroy(struct flush *flush);
/* Something was appended. */
void flush_wanted(struct flush *flush);

#endif
