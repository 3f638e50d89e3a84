/* Answers and programs as text for people. Pure: they append to a buffer. */
#ifndef MOTLEY_SHOW_PRINT_H
#define MOTLEY_SHOW_PRINT_H

#include "common/buf.h"
#include "planner/answer/answer.h"

/* For people: verdict, table of ranks, alternatives, who is left out. Appends to out. */
int answer_print(const struct plan_answer *answer, struct buf *out, struct err *err);
/* The same from the document that answer_to_json made, here or on a server. Keys it does not know are passed
 * over, keys that are missing left out. */
int answer_print_document(const json_t *document, struct buf *out, struct err *err);
/* `motley plan --program`: the ranks' train programs with predicted milliseconds, side by side per rank, at
 * most `lines` instructions each (0: 200). Needs plan_options.programs. */
int answer_print_program(const struct plan_answer *answer, const struct workload *workload,
                         const struct cluster *cluster, uint32_t lines, struct buf *out, struct err *err);

#endif
