/* A few threads that together run the parts of one op and then wait for the next op. */
#ifndef MOTLEY_ENGINE_CPU_POOL_H
#define MOTLEY_ENGINE_CPU_POOL_H

#include <stdint.h>

#include "common/err.h"

struct thread_pool;

/* Starts threads - 1 helpers; the caller is thread 0. threads >= 1. */
int pool_create(uint32_t threads, struct thread_pool **out, struct err *err);
void pool_destroy(struct thread_pool *pool); /* NULL is a no-op */
uint32_t pool_threads(const struct thread_pool *pool);

/* Call part(context, i, thread) for each i in [0, parts), in any order, with thread in [0, threads). Returns
 * when all are done. One caller at a time. */
void pool_run(struct thread_pool *pool, uint32_t parts,
              void (*part)(void *context, uint32_t index, uint32_t thread), void *context);

#endif
