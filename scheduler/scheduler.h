/* One scheduler on one event loop: stands for election, and while it leads, reads
 * what agents tell, decides, and sends what was decided.
 *
 * It keeps no state of its own: all is in PostgreSQL, and what is in memory is
 * loaded anew when it begins to lead. kill -9 at any moment loses nothing.
 * Thread: the event base's.
 */
#ifndef MOTLEY_SCHEDULER_SCHEDULER_H
#define MOTLEY_SCHEDULER_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "scheduler/config.h"
#include "scheduler/placer.h"

struct event_base;
struct scheduler;

/* 'config' and 'placer' are borrowed until destroy. PostgreSQL and Redis may come up
 * later; until then it waits and logs why. Returns new, or NULL. */
struct scheduler *scheduler_create(struct event_base *base, const struct scheduler_config *config,
                                   const struct placer *placer, struct err *err);
/* Gives the lead up and closes. NULL is a no-op. Not inside one of its callbacks. */
void scheduler_destroy(struct scheduler *scheduler);

/* The epoch while it leads and has loaded its state, else 0. */
int64_t scheduler_leads(const struct scheduler *scheduler);

#endif
