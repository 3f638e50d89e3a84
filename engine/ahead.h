/* Items made ready ahead of their use: helpers prepare them side by side while the caller uses them one after
 * the other, in order. How far the helpers may be ahead is the number of slots.
 */
#ifndef MOTLEY_ENGINE_AHEAD_H
#define MOTLEY_ENGINE_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum { AHEAD_THREADS_MAX = 8, AHEAD_SLOTS_MAX = AHEAD_THREADS_MAX + 2 };

struct ahead {
    uint32_t threads, slots; /* 1 .. the limits above */
    void *context;
    /* Describe the next item in this slot; false: there is none. On a helper; items come in order, one call
     * at a time. */
    bool (*next)(void *context, uint32_t slot);
    /* On a helper, several slots at once. */
    int (*prepare)(void *context, uint32_t slot, struct err *err);
    /* On the caller's thread, in order; the slot is free afterwards. */
    int (*use)(void *context, uint32_t slot, struct err *err);
};

/* Use all items. Ends, with no helper left, at the first item in order that could not be prepared or used;
 * its error is returned. ERR_INTERNAL when no helper could be started. */
int ahead_run(const struct ahead *ahead, struct err *err);

#endif
