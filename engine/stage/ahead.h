/* Prepares items ahead of their use: helper threads prepare them in parallel while the caller uses them one
 * after the other, in order. The number of slots limits how far the helpers may be ahead.
 */
#ifndef MOTLEY_ENGINE_STAGE_AHEAD_H
#define MOTLEY_ENGINE_STAGE_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum { AHEAD_THREADS_MAX = 8, AHEAD_SLOTS_MAX = AHEAD_THREADS_MAX + 2 };

struct ahead {
    uint32_t threads, slots; /* from 1 to AHEAD_THREADS_MAX, AHEAD_SLOTS_MAX */
    void *context;
    /* Describe the next item in this slot; false: there are no more items. Called on a helper, for one item
     * at a time, in order. */
    bool (*next)(void *context, uint32_t slot);
    /* Prepare the item of a slot. Called on helpers, for several slots at once. */
    int (*prepare)(void *context, uint32_t slot, struct err *err);
    /* Use the item of a slot. Called on the caller's thread, in order; the slot is free afterwards. */
    int (*use)(void *context, uint32_t slot, struct err *err);
};

/* Use all items. It stops, with all helpers ended, at the first item in order whose preparation or use
 * failed, and returns that error. ERR_INTERNAL when no helper could be started. */
int ahead_run(const struct ahead *ahead, struct err *err);

#endif
