/* Pauses between attempts. See retry.h. */
#include "common/retry.h"

#include <time.h>

#include "common/clock.h"

enum { PAUSE_FIRST_MS = 50, PAUSE_MAX_MS = 2000, DOUBLINGS_MAX = 6 };

void retry_moved(struct retry *retry)
{
    retry->deadline_ns = clock_mono_ns() + retry->patience_ns;
    retry->attempt = 0;
}

int retry_pause(struct retry *retry, struct err *err)
{
    uint64_t pause_ms = (uint64_t)PAUSE_FIRST_MS
                        << (retry->attempt < DOUBLINGS_MAX ? retry->attempt : DOUBLINGS_MAX);
    bool passes = err->code == ERR_NET || err->code == ERR_TIMEOUT || err->code == ERR_BUSY;
    if (pause_ms > PAUSE_MAX_MS)
        pause_ms = PAUSE_MAX_MS;
    if (!passes || clock_mono_ns() + pause_ms * 1000000u > retry->deadline_ns)
        return -1;
    retry->attempt++;
    for (uint64_t slept_ms = 0; slept_ms < pause_ms; slept_ms += PAUSE_FIRST_MS) {
        if (retry->stopped && retry->stopped(retry->arg)) {
            struct err before = *err;
            return err_set(err, ERR_CANCELLED, "cancelled while waiting to ask again (%.200s)", before.text);
        }
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_FIRST_MS * 1000000L}, NULL);
    }
    return 0;
}
