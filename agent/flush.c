/* Invariant: `syncs[0..count)` belong to the thread while `running` is set and to the loop otherwise. The
 * lock guards only this hand-over. */
#include "agent/flush.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { AGAIN_MS = 250 };

struct flush {
    struct journal *journal;
    void (*durable)(void *arg);
    void *arg;
    struct event *news, *again;
    int eventfd;
    bool wanted; /* another round is due when the present one has ended */
    pthread_t thread;
    bool started;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool running, stop;

    unsigned count;
    int results[JOURNAL_STREAMS_MAX];
    struct journal_sync syncs[JOURNAL_STREAMS_MAX];
};

static void *sync_all(void *arg)
{
    struct flush *flush = arg;
    const uint64_t one = 1;
    pthread_mutex_lock(&flush->lock);
    while (!flush->stop) {
        if (!flush->running) {
            pthread_cond_wait(&flush->changed, &flush->lock);
            continue;
        }
        pthread_mutex_unlock(&flush->lock);
        for (unsigned i = 0; i < flush->count; i++) {
            struct err ignored; /* the stream is tried again */
            flush->results[i] = journal_sync_run(&flush->syncs[i], &ignored);
        }
        pthread_mutex_lock(&flush->lock);
        flush->running = false;
        while (write(flush->eventfd, &one, sizeof(one)) < 0 && errno == EINTR) {
        }
    }
    pthread_mutex_unlock(&flush->lock);
    return NULL;
}

static void round_start(struct flush *flush)
{
    bool failed = false;
    flush->wanted = false;
    for (struct journal_stream *stream = journal_first(flush->journal); stream != NULL;
         stream = stream->next) {
        struct err ignored; /* journal_append has reported the error */
        int begun = journal_sync_begin(stream, &flush->syncs[flush->count], &ignored);
        flush->count += begun > 0 ? 1 : 0;
        failed = failed || begun < 0;
    }
    if (failed) {
        const struct timeval wait = {.tv_usec = AGAIN_MS * 1000};
        event_add(flush->again, &wait);
    }
    if (flush->count > 0) {
        pthread_mutex_lock(&flush->lock);
        flush->running = true;
        pthread_cond_signal(&flush->changed);
        pthread_mutex_unlock(&flush->lock);
    }
}

static void round_end(struct flush *flush)
{
    for (unsigned i = 0; i < flush->count; i++) {
        journal_sync_end(flush->journal, &flush->syncs[i], flush->results[i]);
        flush->wanted = flush->wanted || flush->results[i] < 0;
    }
    flush->count = 0;
}

static void flush_on_news(evutil_socket_t fd, short what, void *arg)
{
    struct flush *flush = arg;
    uint64_t rounds;
    (void)what;
    if (read(fd, &rounds, sizeof(rounds)) < 0)
        return;
    round_end(flush);
    if (flush->wanted)
        round_start(flush);
    flush->durable(flush->arg);
}

static void again_due(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    flush_wanted(arg);
}

void flush_wanted(struct flush *flush)
{
    if (flush->count > 0)
        flush->wanted = true;
    else
        round_start(flush);
}

struct flush *flush_create(struct event_base *base, struct journal *journal, void (*durable)(void *arg),
                           void *arg, struct err *err)
{
    struct flush *flush = calloc(1, sizeof(*flush));
    if (!flush) {
        err_set(err, ERR_NOMEM, "no memory for the journal's syncs");
        return NULL;
    }
    flush->journal = journal;
    flush->durable = durable;
    flush->arg = arg;
    pthread_mutex_init(&flush->lock, NULL);
    pthread_cond_init(&flush->changed, NULL);
    flush->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    flush->news = flush->eventfd >= 0
                      ? event_new(base, flush->eventfd, EV_READ | EV_PERSIST, flush_on_news, flush)
                      : NULL;
    flush->again = evtimer_new(base, again_due, flush);
    if (!flush->news || !flush->again || event_add(flush->news, NULL) < 0 ||
        pthread_create(&flush->thread, NULL, sync_all, flush) != 0) {
        err_set(err, ERR_NOMEM, "no memory for the journal's syncs");
        flush_destroy(flush);
        return NULL;
    }
    flush->started = true;
    return flush;
}

void flush_destroy(struct flush *flush)
{
    if (!flush)
        return;
    if (flush->started) {
        pthread_mutex_lock(&flush->lock);
        flush->stop = true;
        pthread_cond_signal(&flush->changed);
        pthread_mutex_unlock(&flush->lock);
        pthread_join(flush->thread, NULL);
    }
    round_end(flush);
    if (flush->news)
        event_free(flush->news);
    if (flush->again)
        event_free(flush->again);
    if (flush->eventfd >= 0)
        close(flush->eventfd);
    pthread_cond_destroy(&flush->changed);
    pthread_mutex_destroy(&flush->lock);
    free(flush);
}
