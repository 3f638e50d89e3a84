/* The thread pool. Ops follow each other within microseconds, so helpers first spin for the next op and then
 * sleep.
 *
 * The caller takes parts, too, until none is left, and then waits only for the helpers that have entered the
 * op. A helper that has no CPU meanwhile, because other programs run on the machine, finds the op closed: an
 * op of microseconds would else last as long as the system lets that helper wait. */
#include "engine/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { SPIN_TURNS = 4000 };
#define OP_CLOSED 0x80000000u

struct thread_pool {
    uint32_t threads;
    pthread_t *handles;
    struct helper *helpers;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint generation; /* number of the current op, counted up for each */
    atomic_uint next;       /* index of the next part to take */
    /* helpers within the current op, and OP_CLOSED while no helper may enter one */
    atomic_uint inside;
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

/* Enters the current op, unless it is closed. The caller changes an op only while it is closed and nobody is
 * inside. */
static bool op_enter(struct thread_pool *pool)
{
    unsigned inside = atomic_load_explicit(&pool->inside, memory_order_relaxed);
    while (!(inside & OP_CLOSED))
        if (atomic_compare_exchange_weak_explicit(&pool->inside, &inside, inside + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

static void *pool_helper_main(void *argument)
{
    struct helper *helper = argument;
    struct thread_pool *pool = helper->pool;
    unsigned seen = 0;
    for (;;) {
        generation_wait(pool, seen);
        seen = atomic_load_explicit(&pool->generation, memory_order_acquire);
        if (atomic_load(&pool->stop))
            return NULL;
        if (!op_enter(pool))
            continue;
        take_parts(pool, helper->thread);
        atomic_fetch_sub_explicit(&pool->inside, 1, memory_order_release);
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
    atomic_store(&pool->inside, OP_CLOSED);
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
        if (pthread_create(&pool->handles[i], NULL, pool_helper_main, &pool->helpers[i]) != 0) {
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
    atomic_store_explicit(&pool->inside, 0, memory_order_release);
    generation_next(pool);
    take_parts(pool, 0);
    atomic_fetch_or_explicit(&pool->inside, OP_CLOSED, memory_order_relaxed);
    /* A helper may have lost its CPU within a part: yield this one to it. */
    for (int turn = 0; atomic_load_explicit(&pool->inside, memory_order_acquire) != OP_CLOSED; turn++)
        if (turn < SPIN_TURNS)
            __builtin_ia32_pause();
        else
            sched_yield();
}
