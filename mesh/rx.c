/* The receiver thread of one peer: reads frames and writes payload directly to the destination of a posted
 * receive. */
#include <stdlib.h>

#include "common/clock.h"
#include "mesh/mesh_private.h"

/* Checks that a receive fits its message. A mismatch is a bug in one of the programs. */
static int check_match(const struct mesh_peer_state *p, const struct mesh_op *op,
                       const struct mesh_meta *meta, uint64_t size, struct err *err)
{
    if (op->meta.tag != meta->tag)
        return err_set(err, ERR_INTERNAL,
                       "%s: queue %u: message %llu has tag %016llx where %016llx was expected", p->name,
                       op->queue, (unsigned long long)op->sequence, (unsigned long long)meta->tag,
                       (unsigned long long)op->meta.tag);
    if (size > op->size)
        return err_set(err, ERR_TOO_BIG,
                       "%s: queue %u: message %llu, tag %016llx, has %llu bytes where at most %llu "
                       "were expected",
                       p->name, op->queue, (unsigned long long)op->sequence, (unsigned long long)meta->tag,
                       (unsigned long long)size, (unsigned long long)op->size);
    return 0;
}

/* Finds the destination of a message at its first chunk. The lock is held. */
static int rx_begin_message(struct mesh_peer_state *p, const struct wire_frame *f, struct err *err)
{
    struct rx_queue *rx = &p->rx[f->queue];
    uint64_t now = clock_mono_ns();
    if (f->sequence != rx->begun || f->offset != 0)
        return err_set(err, ERR_PEER,
                       "%s: queue %u: message %llu at byte %llu came where message %llu was due", p->name,
                       f->queue, (unsigned long long)f->sequence, (unsigned long long)f->offset,
                       (unsigned long long)rx->begun);
    if (f->message_bytes > p->mesh->options.message_bytes_max)
        return err_set(err, ERR_TOO_BIG, "%s: queue %u: a message of %llu bytes is beyond the limit of %llu",
                       p->name, f->queue, (unsigned long long)f->message_bytes,
                       (unsigned long long)p->mesh->options.message_bytes_max);
    rx->begun++;
    if (rx->ops.first) {
        struct mesh_op *op = rx->ops.first;
        if (check_match(p, op, &f->meta, f->message_bytes, err) < 0)
            return -1;
        op_list_take(&rx->ops);
        op->meta = f->meta;
        op->size = f->message_bytes;
        op->begin_ns = now;
        rx->current = op;
        rx->consumed += mesh_cost(op->size);
        mesh_rx_announce(p, f->queue, 0);
        return 0;
    }
    if (rx->held + mesh_cost(f->message_bytes) > p->mesh->options.window_bytes)
        return err_set(err, ERR_PEER, "%s: queue %u: a message of %llu bytes came beyond the window of %llu",
                       p->name, f->queue, (unsigned long long)f->message_bytes,
                       (unsigned long long)p->mesh->options.window_bytes);
    struct early *early = malloc(sizeof(*early) + f->message_bytes);
    if (!early)
        return err_set(err, ERR_NOMEM, "%s: no memory for an early message of %llu bytes", p->name,
                       (unsigned long long)f->message_bytes);
    *early = (struct early){.meta = f->meta, .size = f->message_bytes, .begin_ns = now};
    if (rx->early_last)
        rx->early_last->next = early;
    else
        rx->early = early;
    rx->early_last = rx->arriving = early;
    rx->held += mesh_cost(early->size);
    p->stats.early_bytes += early->size;
    if (rx->held > p->stats.early_bytes_held_max)
        p->stats.early_bytes_held_max = rx->held;
    return 0;
}

/* Handles the last byte of an early message and copies it if a receive waits for it. The lock is held on
 * entry and exit. */
static void end_early(struct mesh_peer_state *p, struct rx_queue *rx)
{
    struct early *early = rx->arriving;
    rx->arriving = NULL;
    early->end_ns = clock_mono_ns();
    struct mesh_op *op = early->op;
    if (!op)
        return;
    /* a receive is attached only to the oldest early message, so this is the first */
    rx->early = early->next;
    if (!rx->early)
        rx->early_last = NULL;
    mesh_op_take_early(p, op, early);
}

static int receive_data(struct mesh_peer_state *p, const struct wire_frame *f, struct err *err)
{
    struct rx_queue *rx = &p->rx[f->queue];
    pthread_mutex_lock(&p->lock);
    int status = 0;
    if (!rx->current && !rx->arriving)
        status = rx_begin_message(p, f, err);
    uint64_t *offset = rx->current ? &rx->current->offset : rx->arriving ? &rx->arriving->offset : NULL;
    uint64_t size = rx->current ? rx->current->size : rx->arriving ? rx->arriving->size : 0;
    uint8_t *to = rx->current ? rx->current->to : rx->arriving ? rx->arriving->bytes : NULL;
    if (status == 0 &&
        (!offset || f->sequence != rx->begun - 1 || f->offset != *offset || f->message_bytes != size))
        status =
            err_set(err, ERR_PEER, "%s: queue %u: a chunk of message %llu does not continue what came before",
                    p->name, f->queue, (unsigned long long)f->sequence);
    pthread_mutex_unlock(&p->lock);
    if (status < 0)
        return -1;
    if (f->payload_bytes && mesh_conn_read(p->in, to + f->offset, f->payload_bytes, err) < 0)
        return -1;
    pthread_mutex_lock(&p->lock);
    *offset += f->payload_bytes;
    if (*offset == size) {
        p->stats.received_bytes += size;
        p->stats.received_messages++;
        if (rx->current) {
            struct mesh_op *op = rx->current;
            rx->current = NULL;
            op->end_ns = clock_mono_ns();
            pthread_mutex_unlock(&p->lock);
            mesh_op_finish(p, op, NULL);
            pthread_mutex_lock(&p->lock);
        } else {
            end_early(p, rx);
        }
    }
    pthread_mutex_unlock(&p->lock);
    return 0;
}

static int receive_posted(struct mesh_peer_state *p, const struct wire_frame *f, struct err *err)
{
    struct tx_queue *tx = &p->tx[f->queue];
    int status = 0;
    pthread_mutex_lock(&p->lock);
    if (f->sequence < tx->posted || f->message_bytes < tx->consumed || f->message_bytes > tx->sent) {
        status = err_set(err, ERR_PEER,
                         "%s: queue %u: receives posted or bytes consumed go backwards or beyond what "
                         "was sent",
                         p->name, f->queue);
    } else {
        tx->posted = f->sequence;
        tx->consumed = f->message_bytes;
        pthread_cond_signal(&p->work);
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

static int queue_pong(struct mesh_peer_state *p, uint64_t sequence, struct err *err)
{
    int status = 0;
    pthread_mutex_lock(&p->lock);
    if (p->pong_count == MESH_PONGS_MAX) {
        status =
            err_set(err, ERR_PEER, "%s: more than %d pings wait for their answer", p->name, MESH_PONGS_MAX);
    } else {
        p->pongs[p->pong_count++] = sequence;
        pthread_cond_signal(&p->work);
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

static int receive_probe(struct mesh_peer_state *p, const struct wire_frame *f, uint8_t *scratch,
                         struct err *err)
{
    if (mesh_conn_read(p->in, scratch, f->payload_bytes, err) < 0)
        return -1;
    return f->flags & WIRE_LAST ? queue_pong(p, f->sequence, err) : 0;
}

/* Ends every receive that no message can come for. The lock is held on entry and exit. */
static void rx_drain(struct mesh_peer_state *p, const struct err *why)
{
    for (uint32_t q = 0; q < MESH_QUEUES; q++) {
        struct rx_queue *rx = &p->rx[q];
        struct op_list lost = rx->ops;
        rx->ops = (struct op_list){NULL, NULL};
        if (rx->current)
            op_list_append(&lost, rx->current);
        rx->current = NULL;
        if (rx->arriving && rx->arriving->op) {
            op_list_append(&lost, rx->arriving->op);
            rx->arriving->op = NULL;
        }
        for (struct mesh_op *op; (op = op_list_take(&lost));) {
            pthread_mutex_unlock(&p->lock);
            mesh_op_finish(p, op, why);
            pthread_mutex_lock(&p->lock);
        }
    }
}

static void receive_bye(struct mesh_peer_state *p)
{
    struct err why;
    err_set(&why, ERR_NET, "%s: said goodbye while something was still expected from it", p->name);
    pthread_mutex_lock(&p->lock);
    p->bye_received = true;
    p->bye_ack_due = true;
    rx_drain(p, &why);
    pthread_cond_signal(&p->work);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static int receive_frame(struct mesh_peer_state *p, const struct wire_frame *f, uint8_t *scratch,
                         struct err *err)
{
    /* the peer's receives may still match what we send, so POSTED and answers may follow its BYE; other
     * frames may not */
    if (p->bye_received && f->kind != WIRE_BYE_ACK && f->kind != WIRE_POSTED && f->kind != WIRE_PONG)
        return err_set(err, ERR_PEER, "%s: a frame of kind %u behind its goodbye", p->name, f->kind);
    switch (f->kind) {
    case WIRE_DATA:
        return receive_data(p, f, err);
    case WIRE_POSTED:
        return receive_posted(p, f, err);
    case WIRE_PING:
        return queue_pong(p, f->sequence, err);
    case WIRE_PROBE:
        return receive_probe(p, f, scratch, err);
    case WIRE_PONG:
        pthread_mutex_lock(&p->lock);
        p->pong_seen = f->sequence;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        return 0;
    case WIRE_BYE:
        receive_bye(p);
        return 0;
    default: /* WIRE_BYE_ACK */
        pthread_mutex_lock(&p->lock);
        p->bye_acked = true;
        pthread_cond_signal(&p->work);
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        return 0;
    }
}

void *mesh_rx_run(void *arg)
{
    struct mesh_peer_state *p = arg;
    struct err err;
    int status = 0;
    uint8_t *scratch = malloc(WIRE_PAYLOAD_MAX);
    if (!scratch)
        status = err_set(&err, ERR_NOMEM, "%s: no memory for a frame", p->name);
    /* only this thread writes bye_received and bye_acked */
    while (status == 0 && !(p->bye_received && p->bye_acked)) {
        uint8_t head[WIRE_HEADER_BYTES];
        struct wire_frame frame;
        status = mesh_conn_read(p->in, head, sizeof(head), &err);
        if (status == 0 && wire_decode(head, p->mesh->options.epoch, &frame, &err) < 0)
            status = err_wrap(&err, "%s", p->name);
        if (status == 0)
            status = receive_frame(p, &frame, scratch, &err);
    }
    free(scratch);
    if (status < 0)
        mesh_peer_fail(p, &err);
    pthread_mutex_lock(&p->lock);
    rx_drain(p, &p->failure);
    p->rx_over = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}
