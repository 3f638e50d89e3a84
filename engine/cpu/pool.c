/* The thread pool. Ops follow each other within microseconds, so helpers first spin for the next op and then
 * sleep. */
#include "engine/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { SPIN_TURNS = 4000 };

struct thread_pool {
    uint32_t threads;
    pthread_t *handles;
    struct helper *helpers;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint generation; /* number of the current op, counted up for each */
    atomic_uint next;       /* index of the next part to take */
    atomic_uint busy;       /* helpers that have not finished the current op */
    atomic_bool stop;
    uint32_t parts;
    void (*part)(void *context, uint32_t index, uint32_t thread);
    void *context;
};

struct helper {
    struct thread_pool *pool;
    uint32_t thread;
};

static void take_parts(struct thread_pool *pool, uint32_t thread)
{
    for (;;) {
        uint32_t index = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (index >= pool->parts)
            return;
        pool->part(pool->context, index, thread);
    }
}

static void generation_wait(struct thread_pool *pool, unsigned seen)
{
    for (int turn = 0; turn < SPIN_TURNS; turn++) {
        if (atomic_load_explicit(&pool->generation, memory_order_acquire) != seen)
            return;
        __builtin_ia32_pause();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->generation, memory_order_acquire) == seen)
        pthread_cond_wait(&pool->wake, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

static void *helper_main(void *argument)
{
    struct helper *helper = argument;
    struct thread_pool *pool = helper->pool;
    unsigned seen = 0;
    for (;;) {
        generation_wait(pool, seen);
        seen++;
        if (atomic_load(&pool->stop))
            return NULL;
        take_parts(pool, helper->thread);
        atomic_fetch_sub_explicit(&pool->busy, 1, memory_order_release);
    }
}

static void generation_next(struct thread_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

int pool_create(uint32_t threads, struct thread_pool **out, struct err *err)
{
    struct thread_pool *pool = calloc(1, sizeof(*pool));
    *out = NULL;
    if (!pool)
        return err_set(err, ERR_NOMEM, "out of memory for a thread pool");
    pool->threads = 1;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->handles = calloc(threads, sizeof(*pool->handles));
    pool->helpers = calloc(threads, sizeof(*pool->helpers));
    if (!pool->handles || !pool->helpers) {
        pool_destroy(pool);
        return err_set(err, ERR_NOMEM, "out of memory for a thread pool");
    }
    for (uint32_t i = 1; i < threads; i++) {
        pool->helpers[i] = (struct helper){.pool = pool, .thread = i};
        if (pthread_create(&pool->handles[i], NULL, helper_main, &pool->helpers[i]) != 0) {
            pool_destroy(pool);
            return err_set(err, ERR_INTERNAL, "could not start thread %u of %u", i + 1, threads);
        }
        pool->threads++;
    }
    *out = pool;
    return 0;
}

void pool_destroy(struct thread_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, true);
    generation_next(pool);
    for (uint32_t i = 1; i < pool->threads; i++)
        pthread_join(pool->handles[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->handles);
    free(pool->helpers);
    free(pool);
}

uint32_t pool_threads(const struct thread_pool *pool)
{
    return pool->threads;
}

void pool_run(struct thread_pool *pool, uint32_t parts,
              void (*part)(void *context, uint32_t index, uint32_t thread), void *context)
{
    if (parts <= 1 || pool->threads == 1) {
        for (uint32_t i = 0; i < parts; i++)
            part(context, i, 0);
        return;
    }
    pool->parts = parts;
    pool->part = part;
    pool->context = context;
    atomic_store(&pool->next, 0);
    atomic_store(&pool->busy, pool->threads - 1);
    generation_next(pool);
    take_parts(pool, 0);
    /* On a busy machine the last helper may not be running: yield the CPU to it. */
    for (int turn = 0; atomic_load_explicit(&pool->busy, memory_order_acquire) != 0; turn++)
        if (turn < SPIN_TURNS)
            __builtin_ia32_pause();
        else
            sched_yield();
}
