/* Each checkpoint has a thread, and at most one runs at a time. The main thread copies the state and goes on
 * with the next step; the thread uploads, gathers the parts over the tree, and emits `checkpoint` when
 * everything is stored. */
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
    bool running; /* there is a thread to join; until then it owns all fields below */
    struct save_request request;
    bool stored;         /* every part of this rank's subtree is stored */
    struct err failure;  /* reason why it is not stored */
    struct err not_told; /* its code is not ERR_NONE when the agent could not be told */
    json_t *blobs;       /* files of a complete checkpoint, on rank 0 */
};

int saver_create(struct session *session, struct saver **out, struct err *err)
{
    struct saver *saver = calloc(1, sizeof *saver);
    *out = saver;
    if (saver)
        saver->snapshot = snapshot_create();
    if (saver && saver->snapshot && cond_init(&saver->changed) == 0) {
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

static int say_checkpoint(struct saver *saver, struct err *err)
{
    const struct save_request *request = &saver->request;
    json_t *event = json_pack("{s:I, s:O, s:b}", "step", (json_int_t)request->step, "blobs", saver->blobs,
                              "best", (int)request->best);
    if (event && isfinite(request->loss))
        json_object_set_new(event, "loss", json_real(request->loss));
    return worker_link_emit(saver->session->link, "checkpoint", event, err);
}

static void *saver_main(void *arg)
{
    struct saver *saver = arg;
    struct session *session = saver->session;
    int said = 0;
    saver->stored = snapshot_store(session, saver->snapshot, &saver->blobs, &saver->failure) == 0;
    if (saver->stored && saver->blobs) /* rank 0 tells the agent */
        said = say_checkpoint(saver, &saver->not_told);
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

void saver_copy(struct saver *saver)
{
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
    struct err ignored; /* the run failed: an incomplete checkpoint is absent */
    if (!saver)
        return;
    saver_wait(saver, NULL, NULL, &ignored);
    snapshot_destroy(saver->snapshot);
    pthread_cond_destroy(&saver->changed);
    pthread_mutex_destroy(&saver->lock);
    free(saver);
}
