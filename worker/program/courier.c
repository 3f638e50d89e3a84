#include "worker/program/courier.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct courier {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t timeout_ns;
    /* guarded by lock */
    struct courier_job *first, *last;
    bool stopped;
    bool joined; /* used by courier_stop's thread alone */
};

static void job_do(const struct courier *courier, struct courier_job *job)
{
    struct err failure = {.code = ERR_NONE};
    bool bad = (job->start && job->start(job->arg, &failure) < 0) ||
               event_wait(job->copied, courier->timeout_ns, &failure) < 0;
    job->finish(job->arg, bad ? &failure : NULL);
}

static void job_drop(struct courier_job *job)
{
    struct err failure;
    err_set(&failure, ERR_CANCELLED, "the run has ended");
    job->finish(job->arg, &failure);
}

static void *courier_main(void *arg)
{
    struct courier *courier = arg;
    pthread_mutex_lock(&courier->lock);
    for (;;) {
        struct courier_job *job = courier->first;
        bool stopped = courier->stopped;
        if (!job && stopped)
            break;
        if (!job) {
            pthread_cond_wait(&courier->changed, &courier->lock);
            continue;
        }
        courier->first = job->next;
        if (!courier->first)
            courier->last = NULL;
        pthread_mutex_unlock(&courier->lock);
        if (stopped)
            job_drop(job);
        else
            job_do(courier, job);
        pthread_mutex_lock(&courier->lock);
    }
    pthread_mutex_unlock(&courier->lock);
    return NULL;
}

int courier_create(uint64_t timeout_ns, struct courier **out, struct err *err)
{
    struct courier *courier = calloc(1, sizeof(*courier));
    if (!courier)
        return err_set(err, ERR_NOMEM, "no memory for a thread that waits for copies");
    courier->timeout_ns = timeout_ns;
    pthread_mutex_init(&courier->lock, NULL);
    pthread_cond_init(&courier->changed, NULL);
    if (pthread_create(&courier->thread, NULL, courier_main, courier) != 0) {
        pthread_cond_destroy(&courier->changed);
        pthread_mutex_destroy(&courier->lock);
        free(courier);
        return err_set(err, ERR_NOMEM, "could not start a thread that waits for copies");
    }
    *out = courier;
    return 0;
}

void courier_push(struct courier *courier, struct courier_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&courier->lock);
    bool stopped = courier->stopped;
    if (!stopped) {
        if (courier->last)
            courier->last->next = job;
        else
            courier->first = job;
        courier->last = job;
        pthread_cond_signal(&courier->changed);
    }
    pthread_mutex_unlock(&courier->lock);
    if (stopped)
        job_drop(job);
}

void courier_stop(struct courier *courier)
{
    pthread_mutex_lock(&courier->lock);
    courier->stopped = true;
    pthread_cond_signal(&courier->changed);
    pthread_mutex_unlock(&courier->lock);
    if (!courier->joined)
        pthread_join(courier->thread, NULL);
    courier->joined = true;
}

void courier_destroy(struct courier *courier)
{
    if (!courier)
        return;
    courier_stop(courier);
    pthread_cond_destroy(&courier->changed);
    pthread_mutex_destroy(&courier->lock);
    free(courier);
}
