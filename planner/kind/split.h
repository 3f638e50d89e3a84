/* Which rows to whom, exactly: a batch over members that each offer ways to take some of it. Pure. */
#ifndef MOTLEY_PLANNER_KIND_SPLIT_H
#define MOTLEY_PLANNER_KIND_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

/* One way for a member to take `total` rows: `count` micro-batches of `rows`. */
struct split_option {
    double seconds;
    int64_t room; /* bytes left for state */
    uint32_t total, rows, count;
    bool recompute;
};

struct split_member {
    uint32_t option_count;
    struct split_option *options; /* by total, rising; owned by the caller */
};

/* One option for each member, Σ total = batch, Σ room ≥ state: the least largest seconds, and among those the
 * most room. Exact. Fills chosen[count]; adds to *cells how many cells of its table it looked at. Returns 1,
 * 0 when there is none, −1 ERR_NOMEM. */
int split_solve(const struct split_member *members, uint32_t count, uint32_t batch, int64_t state,
                struct split_option *chosen, struct err *err);

#endif
