/* Plans, off the loop: a search over many devices takes seconds, and the loop must hear and beat meanwhile.
 *
 * Planning is pure, so an answer is known by what was asked: the same question gets the same answer from a
 * bounded memory, and a pass that asks again is placed by what the one before it began. One thread plans, one
 * question at a time; a question that nobody asks any more is answered and forgotten. Everything else on the
 * loop's thread.
 */
#ifndef MOTLEY_SCHEDULER_PLANNING_H
#define MOTLEY_SCHEDULER_PLANNING_H

#include "scheduler/placer.h"

struct event_base;
struct planning;

/* 'arrived' is called on the loop when an answer has come. 'placer' and 'planners' (may be NULL) are
 * borrowed. Returns new, or NULL. */
struct planning *planning_create(struct event_base *base, const struct placer *placer,
                                 const struct planners *planners, void (*arrived)(void *arg), void *arg,
                                 struct err *err);
/* Waits for the search under way; a program that is asked is ended. NULL is a no-op. */
void planning_destroy(struct planning *planning);

/* 1: *answer (placer_answer_fini) is there, also when nothing fits; 0: being planned, ask again when an
 * answer has arrived; -1: it cannot be planned (the placer's error), or ERR_NOMEM. What 'request' points to
 * is copied; its planners and cancel_fd are this planning's own. */
int planning_get(struct planning *planning, const struct placer_request *request,
                 struct placer_answer *answer, struct err *err);

#endif
