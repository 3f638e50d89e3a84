/* What placer_planner.c (the built-in planner), placer_problem.c (what is asked, as a document) and
 * placer_external.c (somebody else's planner) share. The planning thread's. */
#ifndef MOTLEY_SCHEDULER_PLACER_PRIVATE_H
#define MOTLEY_SCHEDULER_PLACER_PRIVATE_H

#include "model/rows.h"
#include "planner/answer/answer.h"
#include "scheduler/placer.h"

/* Whether any of the devices asked about is on the node: links to others mean nothing to this plan. */
bool placer_has_node(const struct placer_request *request, const char *node);
/* Row sizes as they are stored, read. Returns new (free), or NULL with ERR_NOMEM. */
struct row_size *placer_sizes(const uint8_t *bytes, size_t size, uint32_t *count, struct err *err);

enum { PROBLEM_ROWS_MAX = 1000000 }; /* of a problem document: some hundred megabytes of memory */

/* The request as a problem document (planner/given/inputs.h): what any planner plans on. Returns new, or NULL
 * with ERR_TOO_BIG (too many rows for a document) or ERR_NOMEM. */
json_t *placer_problem(const struct placer_request *request, struct err *err);

/* Asks the planner that `name` means (NULL: the configuration's default, if it has one) and takes its plan
 * into the built-in planner's answer, or says in the answer's words why not. *told becomes, new, what
 * plug_choose tells; NULL where nobody is to be asked. Blocks until the program has ended or its time is up.
 * −1 ERR_NOMEM. */
int placer_external(const struct placer_request *request, const char *name, const struct workload *workload,
                    const struct cluster *cluster, struct plan_answer *found, json_t **told, struct err *err);

#endif
