/* What the files of a job's parts share. */
#ifndef MOTLEY_API_JOBS_JOBS_PRIVATE_H
#define MOTLEY_API_JOBS_JOBS_PRIVATE_H

#include "api/request/app.h"

/* Reads the job's id from the path and, after the job was found visible, calls begin; answers otherwise. */
void job_part_read(struct call *call, void (*begin)(struct call *call, int64_t id));

#endif
