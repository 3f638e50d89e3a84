/* One scheduler on one event loop. It stands for election; while it leads, it reads events of agents,
 * decides, and sends the decisions.
 *
 * It keeps no state of its own: all state is in PostgreSQL and is loaded when it begins to lead. kill -9 at
 * any moment loses nothing. Thread: the event base's.
 */
#ifndef MOTLEY_SCHEDULER_LEADER_SCHEDULER_H
#define MOTLEY_SCHEDULER_LEADER_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "scheduler/leader/config.h"
#include "scheduler/placer/placer.h"

struct event_base;
struct scheduler;

/* Borrows 'config' and 'placer' until destroy. PostgreSQL and Redis need not run yet: the scheduler logs that
 * and waits for them. Returns new, or NULL. */
struct scheduler *scheduler_create(struct event_base *base, const struct scheduler_config *config,
                                   const struct placer *placer, struct err *err);
/* Call it after the configuration's `sharing` or `limits` changed: the scheduler decides about everything
 * anew. */
void scheduler_reconfigured(struct scheduler *scheduler);
/* Returns -1 with ERR_RELEASE when the scheduler itself ended its loop, because the database's schema has
 * become newer than this program's; else 0. */
int scheduler_ended(const struct scheduler *scheduler, struct err *err);
/* Gives up leadership and closes. NULL is a no-op. Not to be called from one of its callbacks. */
void scheduler_destroy(struct scheduler *scheduler);

#endif
