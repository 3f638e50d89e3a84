/* The pool of threads: a bounded queue of tasks, and an eventfd that reports finished tasks to the loop. */
#include "api/http/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { POOL_THREADS_MAX = 64 };

struct task_list {
    struct pool_task *first, **last;
};

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct task_list waiting, finished;
    unsigned waiting_count, queue_max, thread_count;
    bool stopping;
    int fd;
    struct event *event;
    pthread_t threads[POOL_THREADS_MAX];
};

static void pool_list_add(struct task_list *list, struct pool_task *task)
{
    task->next = NULL;
    *list->last = task;
    list->last = &task->next;
}

static struct pool_task *list_take(struct task_list *list)
{
    struct pool_task *task = list->first;
    if (!task)
        return NULL;
    list->first = task->next;
    if (!list->first)
        list->last = &list->first;
    return task;
}

static void *pool_thread(void *arg)
{
    struct pool *pool = arg;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->waiting.first && !pool->stopping)
            pthread_cond_wait(&pool->wake, &pool->lock);
        if (pool->stopping)
            break;
        struct pool_task *task = list_take(&pool->waiting);
        pool->waiting_count--;
        pthread_mutex_unlock(&pool->lock);
        task->work(task);
        task->ran = true;
        pthread_mutex_lock(&pool->lock);
        pool_list_add(&pool->finished, task);
        uint64_t one = 1;
        /* The write can fail only when the counter is full, and then the eventfd is already readable. */
        ssize_t rc = write(pool->fd, &one, sizeof(one));
        (void)rc;
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void on_finished(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    struct pool *pool = arg;
    uint64_t count;
    ssize_t rc = read((int)fd, &count, sizeof(count));
    (void)rc;
    for (;;) {
        pthread_mutex_lock(&pool->lock);
        struct pool_task *task = list_take(&pool->finished);
        pthread_mutex_unlock(&pool->lock);
        if (!task)
            return;
        task->done(task);
    }
}

struct pool *pool_create(struct event_base *base, unsigned threads, unsigned queue_max, struct err *err)
{
    struct pool *pool = calloc(1, sizeof(*pool));
    if (!pool || threads < 1 || threads > POOL_THREADS_MAX || !queue_max) {
        err_set(err, pool ? ERR_INVALID : ERR_NOMEM, "thread pool: %u threads are not 1..%d", threads,
                POOL_THREADS_MAX);
        free(pool);
        return NULL;
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->fd = -1;
    pool->waiting.last = &pool->waiting.first;
    pool->finished.last = &pool->finished.first;
    pool->queue_max = queue_max;
    pool->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pool->event = pool->fd >= 0 ? event_new(base, pool->fd, EV_READ | EV_PERSIST, on_finished, pool) : NULL;
    if (!pool->event || event_add(pool->event, NULL) < 0) {
        err_set(err, ERR_IO, "thread pool: cannot make its event");
        pool_destroy(pool);
        return NULL;
    }
    sigset_t all, before; /* signals are handled on the loop's thread only */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->thread_count < threads &&
           pthread_create(&pool->threads[pool->thread_count], NULL, pool_thread, pool) == 0)
        pool->thread_count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pool->thread_count < threads) {
        err_set(err, ERR_NOMEM, "thread pool: cannot start thread %u of %u", pool->thread_count + 1, threads);
        pool_destroy(pool);
        return NULL;
    }
    return pool;
}

void pool_stop(struct pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->thread_count; i++)
        pthread_join(pool->threads[i], NULL);
    pool->thread_count = 0;
    struct pool_task *task;
    while ((task = list_take(&pool->finished)) || (task = list_take(&pool->waiting)))
        task->done(task);
}

void pool_destroy(struct pool *pool)
{
    if (!pool)
        return;
    pool_stop(pool);
    if (pool->event)
        event_free(pool->event);
    if (pool->fd >= 0)
        close(pool->fd);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

bool pool_ran(const struct pool_task *task, struct err *err)
{
    if (!task->ran && !err->code)
        err_set(err, ERR_CANCELLED, "the server is stopping");
    return task->ran;
}

int pool_run(struct pool *pool, struct pool_task *task, struct err *err)
{
    pthread_mutex_lock(&pool->lock);
    bool full = pool->waiting_count >= pool->queue_max || pool->stopping;
    if (!full) {
        task->ran = false;
        pool_list_add(&pool->waiting, task);
        pool->waiting_count++;
        pthread_cond_signal(&pool->wake);
    }
    pthread_mutex_unlock(&pool->lock);
    return full ? err_set(err, ERR_BUSY, "the server has %u pieces of work waiting, its limit",
                          pool->queue_max)
                : 0;
}

unsigned pool_waiting(struct pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    unsigned count = pool->waiting_count;
    pthread_mutex_unlock(&pool->lock);
    return count;
}
