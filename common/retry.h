/* Repeats requests after temporary errors, with pauses that grow from 50 ms to 2 s, until no progress was
 * made for `patience_ns`. Every retry_moved() restarts that time, so a slow transfer that progresses is never
 * given up.
 *
 *     struct retry retry = {.patience_ns = …};
 *     retry_moved(&retry);
 *     while (ask(&err) < 0)
 *         if (retry_pause(&retry, &err) < 0)
 *             return -1;
 *
 * A plain value for one thread.
 */
#ifndef MOTLEY_COMMON_RETRY_H
#define MOTLEY_COMMON_RETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct retry {
    uint64_t patience_ns;             /* time without progress after which it gives up */
    bool (*stopped)(const void *arg); /* checked while it pauses; true ends the retries; NULL: never */
    const void *arg;
    uint64_t deadline_ns; /* clock_mono_ns() at which it gives up */
    unsigned attempt;     /* attempts since the last progress */
};

/* Restarts the patience: call it at the beginning and after any progress. */
void retry_moved(struct retry *retry);
/* Pauses after a failure. Returns 0 when the request should be repeated. -1 with *err unchanged when the
 * error is not temporary (network, timeout, busy) or the patience is exhausted; -1 with ERR_CANCELLED when
 * stopped. */
int retry_pause(struct retry *retry, struct err *err);

#endif
