/* Declarations that the files about a job's parts (plan, metrics, files …) share. */
#ifndef MOTLEY_API_JOBS_JOBS_PRIVATE_H
#define MOTLEY_API_JOBS_JOBS_PRIVATE_H

#include "api/request/app.h"

/* Reads the job's id from the path, checks that the asker may see the job, and then calls begin. Otherwise
 * answers the call. */
void job_part_read(struct call *call, void (*begin)(struct call *call, int64_t id));

#endif
