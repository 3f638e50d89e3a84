/* Prints answers and programs as text for people. Pure: the functions append to a buffer. */
#ifndef MOTLEY_SHOW_PRINT_H
#define MOTLEY_SHOW_PRINT_H

#include "common/buf.h"
#include "planner/answer/answer.h"

/* Appends the verdict, a table of ranks, alternatives, and the devices left out. */
int answer_print(const struct plan_answer *answer, struct buf *out, struct err *err);
/* Prints what answer_print prints, but from the document that answer_to_json made, here or on a server.
 * Unknown keys are ignored; missing keys are omitted. */
int answer_print_document(const json_t *document, struct buf *out, struct err *err);
/* Prints for `motley plan --program` the train programs of the ranks side by side with predicted
 * milliseconds, at most `lines` instructions of each (0 means 200). Needs plan_options.programs. */
int answer_print_program(const struct plan_answer *answer, const struct workload *workload,
                         const struct cluster *cluster, uint32_t lines, struct buf *out, struct err *err);

#endif
