/* What-if plans: a specification on the cluster as it is, or on another one that the asker describes.
 *
 * Two threads of their own, of low priority, so that neither submits nor first answers wait for a search: one
 * for brief answers, one for full ones. Of one token's questions the newest counts: an earlier one that was
 * not answered yet ends with `stale` (a full question leaves a brief one alone). Loop thread.
 */
#ifndef MOTLEY_API_JOBS_PLANS_H
#define MOTLEY_API_JOBS_PLANS_H

#include "api/request/app.h"

struct plans;

/* 'app' is borrowed until destroy. */
int plans_create(struct app *app, struct plans **plans, struct err *err);
/* Waits for the running searches, and answers what was not begun. plans_destroy calls it. */
void plans_stop(struct plans *plans);
void plans_destroy(struct plans *plans);

#endif
