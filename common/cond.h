/* Condition variables whose deadlines are clock_mono_ns() values, so that setting the wall clock changes no
 * deadline. Thread: any. */
#ifndef MOTLEY_COMMON_COND_H
#define MOTLEY_COMMON_COND_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Returns 0 or an errno value. Destroy it with pthread_cond_destroy. */
int cond_init(pthread_cond_t *cond);

/* Waits, with `lock` held, until it is signalled or `deadline_ns` passes (UINT64_MAX: no deadline); it may
 * wake without a reason. False when the deadline passed. */
bool cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);

#endif
