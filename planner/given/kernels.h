/* What this release can run on: which cards it has kernels for, and which of them somebody has tried. Every
 * view of the hardware (catalogue, plans, page, documents) is made from these functions. Pure. */
#ifndef MOTLEY_PLANNER_GIVEN_KERNELS_H
#define MOTLEY_PLANNER_GIVEN_KERNELS_H

#include "planner/given/catalogue_entries.h"

enum catalogue_runs {
    RUNS_REAL,     /* workers have trained on a real one */
    RUNS_EMULATED, /* kernels for it are compiled, and the same source passes its tests on emulated cards */
    RUNS_PLANNED   /* no worker of this release runs there: it can only be planned with */
};

/* The names "real", "emulated", "planned only". */
extern const char *const catalogue_runs_names[];

enum catalogue_runs catalogue_runs(const struct catalogue_entry *entry);

#endif
