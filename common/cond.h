/* Condition variables whose deadlines are clock_mono_ns() values, so that setting the wall clock moves
 * nobody's. Thread: any. */
#ifndef MOTLEY_COMMON_COND_H
#define MOTLEY_COMMON_COND_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* 0, or an errno value. Destroyed with pthread_cond_destroy. */
int cond_init(pthread_cond_t *cond);

/* Waits, with `lock` held, until signalled or `deadline_ns` (UINT64_MAX: for ever); may wake without reason.
 * False when the deadline passed. */
bool cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);

#endif
