/* The checker: the one pure function that says whether a plan may be executed. Workers call it before they
 * start, the planner's tests call it on everything generated. Each refusal is one sentence naming rank,
 * program and instruction.
 *
 * What it establishes: fields in range; `after` points back; every SEND has one RECV with equal tag, rows and
 * bound and the other way round; collectives come in one order on all members; a walk over queues, `after`,
 * peers and bounded buffers reaches the end (else it names who waits on what); slots are written before read,
 * freed once, never overwritten while in use, and the rank's memory is never exceeded by them; in `train`
 * every row passes every block once forward and once backward, and each gradient is reduced once before the
 * one STEP. */
#ifndef MOTLEY_PROGRAM_CHECK_CHECK_H
#define MOTLEY_PROGRAM_CHECK_CHECK_H

#include "program/program.h"

/* Returns 0, or -1 with ERR_INVALID (ERR_NOFIT for memory, ERR_NOMEM) and the sentence. */
int plan_check(const struct plan *plan, struct err *err);

#endif
