/* Fetches the models of jobs that name one of the Hub, and lets each job into the queue when its model is
 * here.
 *
 * POST /v1/jobs accepts such a job as held (store/fetches.h). An api takes it, fetches and registers the
 * model for the job's owner, and checks the job as a submit does: then the job is queued, or fails with the
 * sentence. `why` of the job says how far the fetch is. A cancel ends the fetch. What an api that dies was
 * fetching is taken by the next one after LEASE_S, which goes on where it was. Loop thread.
 */
#ifndef MOTLEY_API_JOBS_FETCHES_H
#define MOTLEY_API_JOBS_FETCHES_H

#include "api/request/app.h"

/* Begins to look for such jobs. The app is borrowed until destroy. */
int fetches_create(struct app *app, struct job_fetches **fetches, struct err *err);
void fetches_destroy(struct job_fetches *fetches);
/* Looks for jobs now, because one was submitted. */
void fetches_look(struct job_fetches *fetches);

#endif
