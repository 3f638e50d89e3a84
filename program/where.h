/* How an instruction is called in a sentence: for the checker, the graph and whoever else refuses one. */
#ifndef MOTLEY_PROGRAM_WHERE_H
#define MOTLEY_PROGRAM_WHERE_H

#include "program/program.h"

/* "rank 1 train instruction 5 (RECV mb0 from 0)" */
const char *plan_where(const struct plan *plan, uint32_t rank, int kind, uint32_t number, char text[200]);

/* The same of a program's last instruction, for what should have come before its end; of its first with
 * `first`. Without instructions "rank 1 train". */
const char *plan_where_end(const struct plan *plan, uint32_t rank, int kind, bool first, char text[200]);

#endif
