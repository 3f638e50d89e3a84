/* Syncs the journal to disk on a thread of its own (group commit).
 *
 * A round syncs all streams that have grown, one after the other, while the event loop goes on; events that
 * arrive meanwhile belong to the next round. A file that cannot be written is tried again four times a
 * second. Thread: the event base's, except for the syncs themselves.
 */
#ifndef MOTLEY_AGENT_FLUSH_H
#define MOTLEY_AGENT_FLUSH_H

#include <event2/event.h>

#include "agent/journal.h"
#include "common/err.h"

struct flush;

/* 'durable' is called after each round, when the durable number of streams may have risen. The journal is
 * borrowed and must outlive the flush. ERR_NOMEM. */
struct flush *flush_create(struct event_base *base, struct journal *journal, void (*durable)(void *arg),
                           void *arg, struct err *err);
/* Waits for a sync that is under way. NULL is a no-op. */
void flush_destroy(struct flush *flush);
/* Tells that an event was appended, so a round is due. */
void flush_wanted(struct flush *flush);

#endif
