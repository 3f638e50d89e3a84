/* Helper threads prepare items in a ring of slots under one lock. Preparing an item takes so long that
 * threads hardly ever wait for the lock. */
#include "engine/stage/ahead.h"

#include <pthread.h>

struct slot_ring {
    const struct ahead *ahead;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t begun, used;        /* number of items begun and used since the start */
    bool ready[AHEAD_SLOTS_MAX]; /* the slot's item is prepared and not used yet */
    struct err err[AHEAD_SLOTS_MAX];
    int status[AHEAD_SLOTS_MAX]; /* return value of prepare() */
    bool ended;                  /* next() has no further item */
    bool stop;
};

/* Called with the lock held. Begins the next item and returns its slot; false: there is none. */
static bool item_begin(struct slot_ring *ring, uint32_t *slot)
{
    while (!ring->stop && !ring->ended && ring->begun - ring->used == ring->ahead->slots)
        pthread_cond_wait(&ring->changed, &ring->lock);
    if (ring->stop || ring->ended)
        return false;
    *slot = (uint32_t)(ring->begun % ring->ahead->slots);
    if (ring->ahead->next(ring->ahead->context, *slot)) {
        ring->begun++;
        return true;
    }
    ring->ended = true;
    pthread_cond_broadcast(&ring->changed);
    return false;
}

static void *ahead_helper_main(void *argument)
{
    struct slot_ring *ring = argument;
    uint32_t slot;
    pthread_mutex_lock(&ring->lock);
    while (item_begin(ring, &slot)) {
        pthread_mutex_unlock(&ring->lock);
        ring->status[slot] = ring->ahead->prepare(ring->ahead->context, slot, &ring->err[slot]);
        pthread_mutex_lock(&ring->lock);
        ring->ready[slot] = true;
        pthread_cond_broadcast(&ring->changed);
    }
    pthread_mutex_unlock(&ring->lock);
    return NULL;
}

/* Called with the lock held. Waits until the next item in order is prepared and returns its slot; false: all
 * items are used. */
static bool item_await(struct slot_ring *ring, uint32_t *slot)
{
    *slot = (uint32_t)(ring->used % ring->ahead->slots);
    while (!ring->ready[*slot] && !(ring->ended && ring->used == ring->begun))
        pthread_cond_wait(&ring->changed, &ring->lock);
    return ring->ready[*slot];
}

static int items_use(struct slot_ring *ring, struct err *err)
{
    int status = 0;
    uint32_t slot;
    pthread_mutex_lock(&ring->lock);
    while (status == 0 && item_await(ring, &slot)) {
        pthread_mutex_unlock(&ring->lock);
        status = ring->status[slot];
        if (status != 0)
            *err = ring->err[slot];
        else
            status = ring->ahead->use(ring->ahead->context, slot, err);
        pthread_mutex_lock(&ring->lock);
        ring->ready[slot] = false;
        ring->used++;
        pthread_cond_broadcast(&ring->changed);
    }
    ring->stop = true;
    pthread_cond_broadcast(&ring->changed);
    pthread_mutex_unlock(&ring->lock);
    return status;
}

int ahead_run(const struct ahead *ahead, struct err *err)
{
    struct slot_ring ring = {
        .ahead = ahead, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    pthread_t helpers[AHEAD_THREADS_MAX];
    uint32_t started = 0;
    while (started < ahead->threads && pthread_create(&helpers[started], NULL, ahead_helper_main, &ring) == 0)
        started++;
    int status = started == 0 ? err_set(err, ERR_INTERNAL, "could not start a thread to read ahead")
                              : items_use(&ring, err);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(helpers[i], NULL);
    pthread_cond_destroy(&ring.changed);
    pthread_mutex_destroy(&ring.lock);
    return status;
}
