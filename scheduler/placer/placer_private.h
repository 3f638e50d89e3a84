/* Functions that placer_planner.c (the built-in planner), placer_problem.c (the request as a document) and
 * placer_external.c (external planners) share. All of them run on the planning thread. */
#ifndef MOTLEY_SCHEDULER_PLACER_PLACER_PRIVATE_H
#define MOTLEY_SCHEDULER_PLACER_PLACER_PRIVATE_H

#include "model/rows/rows.h"
#include "planner/answer/answer.h"
#include "scheduler/placer/placer.h"

/* Decodes stored row sizes, and writes their number to *count. Returns a new array (release with free), or
 * NULL with ERR_NOMEM. */
struct row_size *placer_sizes(const uint8_t *bytes, size_t size, uint32_t *count, struct err *err);

/* Most rows of a problem document: each row is a JSON array, so a million rows take some hundred
 * megabytes. */
enum { PROBLEM_ROWS_MAX = 1000000 };

/* Returns `devices`, `profiles` and `links` of the problem document, new, or NULL. speeds[device_count]: as
 * in struct placer_device, or NULL for the request's own. */
json_t *placer_devices(const struct placer_request *request, const double *speeds);
/* Returns the request as a new problem document (planner/given/inputs.h), which holds all that a planner
 * needs; or NULL with ERR_TOO_BIG (more rows than PROBLEM_ROWS_MAX) or ERR_NOMEM. */
json_t *placer_problem(const struct placer_request *request, struct err *err);

/* Asks the external planner `name` (NULL: the configuration's default, if it has one). Puts the planner's
 * plan into `found`, or adds to found->words why it is not used. Sets *told to plug_choose's document about
 * the answer, new, or to NULL when no external planner is asked. Blocks until the program has ended or its
 * time is up. Fails with ERR_NOMEM. */
int placer_external(const struct placer_request *request, const char *name, const struct workload *workload,
                    const struct cluster *cluster, struct plan_answer *found, json_t **told, struct err *err);

#endif
