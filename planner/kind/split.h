/* An exact split of a batch's rows over members. Each member lists options: a number of rows with its seconds
 * and memory. Pure. */
#ifndef MOTLEY_PLANNER_KIND_SPLIT_H
#define MOTLEY_PLANNER_KIND_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

/* An option of a member: `total` rows in `count` micro-batches of `rows`. */
struct split_option {
    double seconds;
    int64_t room; /* bytes left free for state */
    uint32_t total, rows, count;
    bool recompute;
};

struct split_member {
    uint32_t option_count;
    struct split_option *options; /* sorted by total; owned by the caller */
};

/* Chooses one option for each member so that the rows of all add up to `batch` and the bytes left free to at
 * least `state`. The slowest member's seconds are the least possible, and among such choices the free bytes
 * are the most. Exact. Fills chosen[count]. Returns 1, 0 if there is no choice, −1 ERR_NOMEM. */
int split_solve(const struct split_member *members, uint32_t count, uint32_t batch, int64_t state,
                struct split_option *chosen, struct err *err);

#endif
