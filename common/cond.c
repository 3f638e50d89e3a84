/* Condition variables on the monotonic clock. */
#include "common/cond.h"

#include <errno.h>
#include <time.h>

int cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    int status = pthread_condattr_init(&attributes);
    if (status != 0)
        return status;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    status = pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
    return status;
}

bool cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns)
{
    if (deadline_ns == UINT64_MAX) {
        pthread_cond_wait(cond, lock);
        return true;
    }
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                             .tv_nsec = (long)(deadline_ns % 1000000000u)};
    return pthread_cond_timedwait(cond, lock, &until) != ETIMEDOUT;
}
