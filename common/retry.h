/* Asking again: after an error that may pass, with pauses that grow from 50 ms to 2 s, as long as the
 * patience lasts. Whoever gets on says so and has the whole patience again: what is slow but moves is never
 * given up.
 *
 *     struct retry retry = {.patience_ns = …};
 *     retry_moved(&retry);
 *     while (ask(&err) < 0)
 *         if (retry_pause(&retry, &err) < 0)
 *             return -1;
 *
 * A plain value of one thread. */
#ifndef MOTLEY_COMMON_RETRY_H
#define MOTLEY_COMMON_RETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct retry {
    uint64_t patience_ns;             /* without anything moving */
    bool (*stopped)(const void *arg); /* looked at while it pauses; NULL: never */
    const void *arg;
    uint64_t deadline_ns; /* of clock_mono_ns() */
    unsigned attempt;     /* since something moved */
};

/* At the beginning, and whenever something moved. */
void retry_moved(struct retry *retry);
/* After a failure. 0: paused, ask again. -1: *err stays when it is not one that passes (network, timeout,
 * busy) or patience is at its end; ERR_CANCELLED when stopped. */
int retry_pause(struct retry *retry, struct err *err);

#endif
