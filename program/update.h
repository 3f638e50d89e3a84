/* Finds in a rank's programs which parameters and optimiser state its STEPs update. Pure. */
#ifndef MOTLEY_PROGRAM_UPDATE_H
#define MOTLEY_PROGRAM_UPDATE_H

#include "program/program.h"

/* Fills in rank->updates from the STEPs of `train`. Returns -1 with ERR_NOMEM. */
int plan_updates_find(struct plan_rank *rank, struct err *err);

#endif
