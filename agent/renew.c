#include "agent/renew.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/cond.h"

enum {
    RETRY_MS_MIN = 2000,
    RETRY_MS_MAX = 600000,
    NOW_MS = 20000 /* least time between two requests by renewer_now() */
};

struct renewer {
    struct agent_identity identity; /* used by the thread alone */
    struct event *told;
    int wake; /* eventfd that signals a result */
    renew_fn *done;
    void *arg;
    pthread_t thread;
    bool running;
    uint64_t asked_ns; /* last renewer_now(), on the loop; 0: never */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping, now;
    struct err err; /* error of the last request */
    struct agent_certificate certificate;
};

/* Returns when two thirds of the certificate's lifetime are over, on the monotonic clock. The clock of this
 * machine may be years off that of the CA, so a certificate that has just come has its whole lifetime. One
 * that was read is as old as its file says, or as its own end says where that is more: the file of a copied
 * home may be younger than its certificate. */
static uint64_t due_ns(const struct agent_identity *identity)
{
    const struct agent_certificate *certificate = &identity->certificate;
    struct stat status;
    const int64_t whole_us = (certificate->ends_s - certificate->issued_s) * 1000000 / 3 * 2;
    const int64_t now_us = clock_wall_us();
    int64_t left_us = whole_us;
    if (!certificate->fresh) {
        left_us = certificate->ends_s * 1000000 - whole_us / 2 - now_us;
        if (stat(identity->cert_file, &status) == 0) {
            int64_t by_file_us =
                whole_us + (int64_t)status.st_mtim.tv_sec * 1000000 + status.st_mtim.tv_nsec / 1000 - now_us;
            left_us = by_file_us < left_us ? by_file_us : left_us;
        }
    }
    left_us = left_us < 0 ? 0 : left_us > whole_us ? whole_us : left_us;
    return clock_mono_ns() + (uint64_t)left_us * 1000;
}

/* Waits until the deadline or renewer_now(). False when the thread must end. The lock is held. */
static bool wait_until(struct renewer *r, uint64_t deadline_ns)
{
    while (!r->stopping && !r->now && clock_mono_ns() < deadline_ns)
        cond_wait_until(&r->changed, &r->lock, deadline_ns);
    r->now = false;
    return !r->stopping;
}

static void *renew_main(void *arg)
{
    struct renewer *r = arg;
    const uint64_t one = 1;
    uint64_t deadline_ns = due_ns(&r->identity), retry_ms = RETRY_MS_MIN;
    unsigned unknown = 0;
    pthread_mutex_lock(&r->lock);
    while (wait_until(r, deadline_ns)) {
        pthread_mutex_unlock(&r->lock);
        struct err err = {0};
        agent_renew(&r->identity, &err);
        unknown = err.code == ERR_AUTH ? unknown + 1 : 0;
        pthread_mutex_lock(&r->lock);
        r->err = err;
        r->certificate = r->identity.certificate;
        /* A first ERR_AUTH is not reported, because the server's database may be being restored. */
        if (unknown != 1) {
            ssize_t ignored = write(r->wake, &one, sizeof(one));
            (void)ignored;
        }
        if (unknown > 1)
            deadline_ns = UINT64_MAX;
        else if (err.code != ERR_NONE)
            deadline_ns = clock_mono_ns() + retry_ms * 1000000;
        else
            deadline_ns = due_ns(&r->identity);
        retry_ms = err.code == ERR_NONE || unknown ? RETRY_MS_MIN : retry_ms * 2;
        retry_ms = retry_ms > RETRY_MS_MAX ? RETRY_MS_MAX : retry_ms;
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void renew_result_take(evutil_socket_t fd, short what, void *arg)
{
    struct renewer *r = arg;
    uint64_t count;
    (void)what;
    ssize_t ignored = read(fd, &count, sizeof(count));
    (void)ignored;
    pthread_mutex_lock(&r->lock);
    const struct err err = r->err;
    const struct agent_certificate certificate = r->certificate;
    pthread_mutex_unlock(&r->lock);
    r->done(r->arg, err.code ? &err : NULL, &certificate);
}

struct renewer *renewer_create(struct event_base *base, const struct agent_identity *identity, renew_fn *done,
                               void *arg, struct err *err)
{
    struct renewer *r = calloc(1, sizeof(*r));
    if (!r) {
        err_set(err, ERR_NOMEM, "no memory for renewing the certificate");
        return NULL;
    }
    r->identity = *identity;
    r->done = done;
    r->arg = arg;
    pthread_mutex_init(&r->lock, NULL);
    cond_init(&r->changed);
    r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->told = r->wake < 0 ? NULL : event_new(base, r->wake, EV_READ | EV_PERSIST, renew_result_take, r);
    r->running =
        r->told && event_add(r->told, NULL) == 0 && pthread_create(&r->thread, NULL, renew_main, r) == 0;
    if (!r->running) {
        renewer_destroy(r);
        err_set(err, ERR_NOMEM, "could not start the thread that renews the certificate");
        return NULL;
    }
    return r;
}

void renewer_destroy(struct renewer *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->stopping = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (r->running)
        pthread_join(r->thread, NULL);
    if (r->told)
        event_free(r->told);
    if (r->wake >= 0)
        close(r->wake);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    explicit_bzero(&r->identity, sizeof(r->identity));
    free(r);
}

void renewer_now(struct renewer *r)
{
    uint64_t now_ns = clock_mono_ns();
    if (r->asked_ns && now_ns - r->asked_ns < (uint64_t)NOW_MS * 1000000)
        return;
    r->asked_ns = now_ns;
    pthread_mutex_lock(&r->lock);
    r->now = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}
