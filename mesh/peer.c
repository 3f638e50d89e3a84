/* Functions that all threads of a peer use: lists of operations, failing, finishing, announcing receives. */
#include <stdlib.h>
#include <string.h>

#include "mesh/mesh_private.h"

void op_list_append(struct op_list *list, struct mesh_op *op)
{
    op->next = NULL;
    if (list->last)
        list->last->next = op;
    else
        list->first = op;
    list->last = op;
}

struct mesh_op *op_list_take(struct op_list *list)
{
    struct mesh_op *op = list->first;
    if (op) {
        list->first = op->next;
        if (!list->first)
            list->last = NULL;
    }
    return op;
}

struct mesh_peer_state *mesh_peer_find(const struct mesh *mesh, uint32_t rank)
{
    uint32_t low = 0, high = mesh->peer_count;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (mesh->peers[mid]->rank == rank)
            return mesh->peers[mid];
        if (mesh->peers[mid]->rank < rank)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

void mesh_peer_fail_locked(struct mesh_peer_state *peer, const struct err *why)
{
    if (peer->failure.code != ERR_NONE)
        return;
    peer->failure = *why;
    if (peer->out)
        mesh_conn_shutdown(peer->out);
    if (peer->in)
        mesh_conn_shutdown(peer->in);
    pthread_cond_broadcast(&peer->work);
    pthread_cond_broadcast(&peer->changed);
}

void mesh_peer_fail(struct mesh_peer_state *peer, const struct err *why)
{
    pthread_mutex_lock(&peer->lock);
    mesh_peer_fail_locked(peer, why);
    pthread_mutex_unlock(&peer->lock);
}

void mesh_op_finish(struct mesh_peer_state *peer, struct mesh_op *op, const struct err *why)
{
    struct mesh_done done = {.ok = !why,
                             .meta = op->meta,
                             .size = (size_t)op->size,
                             .peer = peer->rank,
                             .queue = op->queue,
                             .posted_ns = op->posted_ns,
                             .begin_ns = op->begin_ns,
                             .end_ns = op->end_ns,
                             .arg = op->arg};
    if (why)
        done.err = *why;
    mesh_done_fn *call = op->done;
    free(op);
    call(&done);
}

void mesh_op_take_early(struct mesh_peer_state *peer, struct mesh_op *op, struct early *early)
{
    pthread_mutex_unlock(&peer->lock);
    if (early->size)
        memcpy(op->to, early->bytes, early->size);
    op->begin_ns = early->begin_ns;
    op->end_ns = early->end_ns;
    free(early);
    mesh_op_finish(peer, op, NULL);
    pthread_mutex_lock(&peer->lock);
}

/* The sender waits only with a message that its window has no room for. So it must learn of a posted receive
 * with a large bound, and when half the window has been consumed; more announcements would be wasted frames.
 */
void mesh_rx_announce(struct mesh_peer_state *peer, uint32_t queue, uint64_t bound)
{
    struct rx_queue *rx = &peer->rx[queue];
    uint64_t half = peer->mesh->options.window_bytes / 2;
    if (mesh_cost(bound) <= half && rx->consumed - rx->announced_consumed < half)
        return;
    peer->announce |= 1ull << queue;
    pthread_cond_signal(&peer->work);
}
