/* Declarations that the files about a job's parts (plan, metrics, files …) share. */
#ifndef MOTLEY_API_JOBS_JOBS_PRIVATE_H
#define MOTLEY_API_JOBS_JOBS_PRIVATE_H

#include "api/request/app.h"

/* Reads the job's id from the path, and waits for whether the asker may see the job. Returns -1 when the call
 * was answered because of that. */
int job_visible(struct call *call, int64_t *id);

#endif
