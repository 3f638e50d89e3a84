/* Plans on separate threads, since a search over many devices takes seconds and the event loop must go on
 * meanwhile.
 *
 * Planning is pure, so an answer is stored under a digest of its question. A pass whose question has no
 * answer yet leaves the job as it is; a later pass asks the same question again and finds the answer. The
 * number of waiting questions is bounded, in total and for each class of jobs, and one question of each class
 * is planned at a time; a question that finds no room is asked again by a later pass. The answer to a
 * question that no pass repeats drops out of the bounded memory. Everything except planning runs on the
 * loop's thread.
 */
#ifndef MOTLEY_SCHEDULER_PLACER_PLANNING_H
#define MOTLEY_SCHEDULER_PLACER_PLANNING_H

#include "scheduler/placer/placer.h"

struct event_base;
struct planning;

/* Starts the planning threads. 'arrived' is called on the loop's thread when an answer has come. Borrows
 * 'placer' and 'planners'; 'planners' may be NULL. Returns NULL with an error. */
struct planning *planning_create(struct event_base *base, const struct placer *placer,
                                 const struct planners *planners, void (*arrived)(void *arg), void *arg,
                                 struct err *err);
/* Waits for the searches under way, and ends an external planner that is being asked. NULL is a no-op. */
void planning_destroy(struct planning *planning);

/* Returns 1 with the answer, even when nothing fits (release it with placer_answer_fini); 0 while the
 * question is being planned (ask again when 'arrived' was called); -1 with the placer's error when the job
 * cannot be planned, or ERR_NOMEM. Copies what 'request' points to, and sets the request's planners and
 * cancel_fd itself. */
int planning_get(struct planning *planning, const struct placer_request *request,
                 struct placer_answer *answer, struct err *err);

#endif
