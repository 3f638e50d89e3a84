/* What-if plans: plans of a specification on the cluster as it is, or on another one that the asker
 * describes.
 *
 * There are two threads of low priority for them, one for brief answers and one for full ones, so that
 * searches delay neither submits nor brief answers. Of the questions with one token only the newest counts:
 * an earlier one that was not answered yet ends with `stale`. (A full question does not make a brief one
 * stale.) Loop thread.
 */
#ifndef MOTLEY_API_JOBS_PLANS_H
#define MOTLEY_API_JOBS_PLANS_H

#include "api/request/app.h"

struct plans;

/* Creates the plans' queues and threads. 'app' is borrowed until destroy. */
int plans_create(struct app *app, struct plans **plans, struct err *err);
/* Waits for the running searches, and answers the questions whose search was not begun. plans_destroy calls
 * it. */
void plans_stop(struct plans *plans);
void plans_destroy(struct plans *plans);

#endif
