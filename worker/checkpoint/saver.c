/* Each checkpoint has a thread, and at most one runs at a time. The main thread copies the state and goes on
 * with the next step; the checkpoint's thread uploads the copy, gathers file names over the tree of ranks,
 * and emits `checkpoint` when all ranks' files are stored. */
#include "worker/checkpoint/saver.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/cond.h"
#include "worker/checkpoint/state.h"
#include "worker/session/report.h"

struct saver {
    struct session *session;
    struct snapshot *snapshot;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool finished; /* guarded by lock: the thread has finished */
    pthread_t thread;
    bool running; /* there is a thread to join, which owns all fields below until it is joined */
    struct save_request request;
    bool stored;         /* all files of this rank and of the ranks below it in the tree are stored */
    struct err failure;  /* why the checkpoint is not stored */
    struct err not_told; /* set (code not ERR_NONE) when the agent could not be told */
    json_t *blobs;       /* files of a complete checkpoint, on rank 0 */
    json_t *routing; /* on rank 0 of an expert plan: each expert's share of tokens since the last checkpoint;
                        else NULL */
};

int saver_create(struct session *session, struct saver **out, struct err *err)
{
    struct saver *saver = calloc(1, sizeof(*saver));
    *out = saver;
    if (saver &&
        snapshot_create(session->dir, session->assignment->checkpoint_bytes, &saver->snapshot, err) == 0 &&
        cond_init(&saver->changed) == 0) {
        pthread_mutex_init(&saver->lock, NULL);
        saver->session = session;
        return 0;
    }
    if (saver)
        snapshot_destroy(saver->snapshot);
    free(saver);
    *out = NULL;
    return err_set(err, ERR_NOMEM, "no memory for checkpoints");
}

static void *saver_main(void *arg)
{
    struct saver *saver = arg;
    struct session *session = saver->session;
    int said = 0;
    saver->stored = snapshot_store(session, saver->snapshot, &saver->blobs, &saver->failure) == 0;
    if (saver->stored && saver->blobs) /* rank 0 tells the agent */
        said = report_checkpoint(session, saver->request.step, saver->blobs, saver->request.best,
                                 saver->request.loss, saver->routing, &saver->not_told);
    else if (!saver->stored && !saver->request.must)
        said = report_log(session->link, "warning", saver->failure.text, &saver->not_told);
    if (said == 0)
        err_clear(&saver->not_told);
    pthread_mutex_lock(&saver->lock);
    saver->finished = true;
    pthread_cond_signal(&saver->changed);
    pthread_mutex_unlock(&saver->lock);
    return NULL;
}

bool saver_drain(struct saver *saver, uint64_t deadline_ns)
{
    bool in_time = true;
    if (!saver || !saver->running)
        return true;
    pthread_mutex_lock(&saver->lock);
    while (!saver->finished && in_time)
        in_time = cond_wait_until(&saver->changed, &saver->lock, deadline_ns);
    bool finished = saver->finished;
    pthread_mutex_unlock(&saver->lock);
    if (!finished)
        return false;
    pthread_join(saver->thread, NULL);
    saver->running = false;
    json_decref(saver->blobs);
    saver->blobs = NULL;
    return true;
}

int saver_wait(struct saver *saver, bool *stored, json_t **blobs, struct err *err)
{
    if (stored)
        *stored = false;
    if (!saver->running)
        return 0;
    pthread_join(saver->thread, NULL);
    saver->running = false;
    if (stored)
        *stored = saver->stored;
    if (blobs)
        *blobs = json_incref(saver->blobs);
    json_decref(saver->blobs);
    saver->blobs = NULL;
    if (saver->not_told.code != ERR_NONE || (!saver->stored && saver->request.must)) {
        *err = saver->not_told.code != ERR_NONE ? saver->not_told : saver->failure;
        return -1;
    }
    return 0;
}

/* Returns for each layer the share of tokens that each of its experts got; null for a dense layer. NULL: no
 * layer has a measured share. */
static json_t *routing_of(struct session *session)
{
    uint32_t experts = ops_take_routing(session->ops, 0, NULL);
    uint64_t *counts = calloc((size_t)experts + 1, sizeof(*counts));
    json_t *layers = experts > 0 && counts ? json_array() : NULL;
    for (uint32_t l = 0; layers && l < session->config.layers; l++) {
        uint64_t all = 0;
        ops_take_routing(session->ops, l, counts);
        for (uint32_t e = 0; e < experts; e++)
            all += counts[e];
        json_t *shares = all > 0 ? json_array() : json_null();
        for (uint32_t e = 0; e < experts && all > 0; e++)
            json_array_append_new(shares, json_real((double)counts[e] / (double)all));
        json_array_append_new(layers, shares);
    }
    free(counts);
    return layers;
}

void saver_copy(struct saver *saver)
{
    json_decref(saver->routing);
    saver->routing = saver->session->assignment->rank == 0 ? routing_of(saver->session) : NULL;
    snapshot_take(saver->session, saver->request.step, saver->snapshot);
}

int saver_copy_op(void *arg, struct err *err)
{
    const struct session *session = arg;
    (void)err;
    saver_copy(session->saver);
    return 0;
}

int saver_prepare(struct saver *saver, const struct save_request *request, struct err *err)
{
    if (saver_wait(saver, NULL, NULL, err) < 0)
        return -1;
    saver->request = *request;
    return 0;
}

int saver_start(struct saver *saver, struct err *err)
{
    err_clear(&saver->not_told);
    saver->finished = false;
    if (pthread_create(&saver->thread, NULL, saver_main, saver) != 0)
        return err_set(err, ERR_NOMEM, "no thread for the checkpoint of step %llu",
                       (unsigned long long)saver->request.step);
    saver->running = true;
    return 0;
}

void saver_destroy(struct saver *saver)
{
    struct err ignored; /* the run is over; an incomplete checkpoint does not count */
    if (!saver)
        return;
    saver_wait(saver, NULL, NULL, &ignored);
    snapshot_destroy(saver->snapshot);
    json_decref(saver->routing);
    pthread_cond_destroy(&saver->changed);
    pthread_mutex_destroy(&saver->lock);
    free(saver);
}
