/* What placer_planner.c (the built-in planner), placer_problem.c (the question as a document) and
 * placer_external.c (external planners) share. All of it runs on the planning thread. */
#ifndef MOTLEY_SCHEDULER_PLACER_PLACER_PRIVATE_H
#define MOTLEY_SCHEDULER_PLACER_PLACER_PRIVATE_H

#include "model/rows/rows.h"
#include "planner/answer/answer.h"
#include "scheduler/placer/placer.h"

/* Whether one of the request's devices is on the node. Links of other nodes do not concern this plan. */
bool placer_has_node(const struct placer_request *request, const char *node);
/* Decodes stored row sizes. Returns a new array (release with free), or NULL with ERR_NOMEM. */
struct row_size *placer_sizes(const uint8_t *bytes, size_t size, uint32_t *count, struct err *err);

/* rows of a problem document at most: each is a JSON array, so a million take some hundred megabytes */
enum { PROBLEM_ROWS_MAX = 1000000 };

/* Returns the request as a new problem document (planner/given/inputs.h), which holds all that a planner
 * needs; or NULL with ERR_TOO_BIG (more rows than PROBLEM_ROWS_MAX) or ERR_NOMEM. */
json_t *placer_problem(const struct placer_request *request, struct err *err);

/* Asks the external planner `name` (NULL: the configuration's default, if it has one). Puts its plan into
 * `found`, or adds to found->words why not. Sets *told to what plug_choose returns of it, new, or to NULL
 * when no external planner is asked. Blocks until the program has ended or its time is up. Fails with
 * ERR_NOMEM. */
int placer_external(const struct placer_request *request, const char *name, const struct workload *workload,
                    const struct cluster *cluster, struct plan_answer *found, json_t **told, struct err *err);

#endif
