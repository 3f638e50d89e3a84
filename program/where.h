/* Writes names of instructions for sentences, for all code that refuses an instruction. */
#ifndef MOTLEY_PROGRAM_WHERE_H
#define MOTLEY_PROGRAM_WHERE_H

#include "program/program.h"

/* Writes "rank 1 train instruction 5 (RECV mb0 from 0)". */
const char *plan_where(const struct plan *plan, uint32_t rank, int kind, uint32_t number, char text[200]);

/* Names the end of a program (or its beginning, with `first`) in sentences about something that is missing
 * there: the program's last (or first) instruction, or "rank 1 train" if the program is empty. */
const char *plan_where_end(const struct plan *plan, uint32_t rank, int kind, bool first, char text[200]);

#endif
