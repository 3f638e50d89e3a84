/* The checker: a pure function that decides whether a plan may be executed. Workers call it before they
 * start; the planner's tests call it on every plan. Each refusal is one sentence naming rank, program and
 * instruction.
 *
 * It proves that: fields are in range; `after` points back; every SEND has one RECV with equal tag, rows
 * and bound, and the reverse; collectives have one order on all members; a walk over queues, `after`,
 * peers and bounded buffers reaches the end (else it names who waits for what); slots are written before
 * they are read, freed once, never overwritten in use, and fit in the rank's memory; in `train` every row
 * passes every block once forward and once backward, and each gradient is reduced once before the one
 * STEP.
 */
#ifndef MOTLEY_PROGRAM_CHECK_CHECK_H
#define MOTLEY_PROGRAM_CHECK_CHECK_H

#include "program/program.h"

/* Returns 0, or -1 with a sentence about the mistake and ERR_INVALID (ERR_NOFIT for memory, ERR_NOMEM). Of a
 * slice it checks the frame, and the programs of its rank as far as they can be checked alone; the maker of a
 * slice has checked the whole plan. */
int plan_check(const struct plan *plan, struct err *err);

#endif
