/* The sender thread of one peer: chooses the next frame and writes it. */
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/cond.h"
#include "mesh/mesh_private.h"

/* The frame that was chosen to be sent next. */
struct chosen {
    struct wire_frame frame;
    const uint8_t *payload;
    struct mesh_op *complete; /* the operation whose last chunk this is, or NULL */
    uint64_t ready_ns;
};

static const uint8_t zeros[WIRE_PAYLOAD_MAX];

static void choose_control(struct chosen *c, enum wire_kind kind, uint64_t sequence)
{
    c->frame.kind = (uint8_t)kind;
    c->frame.sequence = sequence;
}

/* Chooses a control frame, which the peer may be waiting for. The lock is held. */
static bool pick_control(struct mesh_peer_state *p, struct chosen *c)
{
    if (p->announce) {
        uint32_t q = (uint32_t)__builtin_ctzll(p->announce);
        struct rx_queue *rx = &p->rx[q];
        p->announce &= ~(1ull << q);
        rx->announced_consumed = rx->consumed;
        choose_control(c, WIRE_POSTED, rx->posted);
        c->frame.queue = (uint16_t)q;
        c->frame.message_bytes = rx->consumed;
        return true;
    }
    if (p->pong_count) {
        choose_control(c, WIRE_PONG, p->pongs[0]);
        memmove(p->pongs, p->pongs + 1, --p->pong_count * sizeof(p->pongs[0]));
        return true;
    }
    if (p->ping_due) {
        p->ping_due = false;
        choose_control(c, WIRE_PING, p->ping_sequence);
        return true;
    }
    if (p->bye_ack_due) {
        p->bye_ack_due = false;
        p->bye_ack_sent = true;
        choose_control(c, WIRE_BYE_ACK, 0);
        return true;
    }
    return false;
}

/* Whether the first message of the queue may be sent: its receive is posted, it has begun, or it fits in the
 * window. */
static bool tx_may_send(struct mesh_peer_state *p, struct tx_queue *tx, struct mesh_op *op)
{
    if (op->begin_ns || op->sequence < tx->posted)
        return true;
    if (tx->sent - tx->consumed + op->size + MESH_MESSAGE_COST <= p->mesh->options.window_bytes)
        return true;
    if (!op->blocked_ns)
        op->blocked_ns = clock_mono_ns();
    return false;
}

/* Chooses a queue: whole small messages go first, then queues take turns. -1 when none can be sent. */
static int pick_queue(struct mesh_peer_state *p)
{
    int small = -1, large = -1;
    for (uint32_t i = 0; i < MESH_QUEUES; i++) {
        uint32_t q = (p->turn + i) % MESH_QUEUES;
        if (!(p->tx_busy >> q & 1))
            continue;
        struct mesh_op *op = p->tx[q].ops.first;
        if (!tx_may_send(p, &p->tx[q], op))
            continue;
        if (op->offset == 0 && op->size <= MESH_SMALL_BYTES) {
            if (small < 0)
                small = (int)q;
        } else if (large < 0) {
            large = (int)q;
        }
    }
    if (small >= 0 && (large < 0 || p->small_run < MESH_SMALL_RUN)) {
        p->small_run++;
        return small;
    }
    p->small_run = 0;
    return large;
}

static void tx_begin_message(struct mesh_peer_state *p, struct tx_queue *tx, struct mesh_op *op, uint64_t now)
{
    op->begin_ns = now;
    tx->sent += op->size + MESH_MESSAGE_COST;
    if (op->blocked_ns) {
        p->stats.send_wait_ns += now - op->blocked_ns;
        op->ready_ns = now;
    }
}

static bool pick_data(struct mesh_peer_state *p, size_t chunk_max, struct chosen *c)
{
    int q = pick_queue(p);
    if (q < 0)
        return false;
    struct tx_queue *tx = &p->tx[q];
    struct mesh_op *op = tx->ops.first;
    if (!op->begin_ns)
        tx_begin_message(p, tx, op, clock_mono_ns());
    uint64_t left = op->size - op->offset;
    uint32_t n = left < chunk_max ? (uint32_t)left : (uint32_t)chunk_max;
    c->frame.kind = WIRE_DATA;
    c->frame.queue = (uint16_t)q;
    c->frame.payload_bytes = n;
    c->frame.sequence = op->sequence;
    c->frame.message_bytes = op->size;
    c->frame.offset = op->offset;
    c->frame.meta = op->meta;
    c->payload = op->from + op->offset;
    c->ready_ns = op->ready_ns;
    op->offset += n;
    p->turn = ((uint32_t)q + 1) % MESH_QUEUES;
    if (op->offset < op->size)
        return true;
    op_list_take(&tx->ops);
    if (!tx->ops.first)
        p->tx_busy &= ~(1ull << q);
    c->complete = op;
    p->stats.sent_bytes += op->size;
    p->stats.sent_messages++;
    return true;
}

static bool pick_probe(struct mesh_peer_state *p, size_t chunk_max, struct chosen *c)
{
    if (p->probe_left == 0)
        return false;
    uint32_t n = p->probe_left < chunk_max ? (uint32_t)p->probe_left : (uint32_t)chunk_max;
    p->probe_left -= n;
    choose_control(c, WIRE_PROBE, p->ping_sequence);
    c->frame.payload_bytes = n;
    c->frame.flags = p->probe_left == 0 ? WIRE_LAST : 0;
    c->payload = zeros;
    return true;
}

/* Chooses the next frame; false when none can be sent now. The lock is held. */
static bool pick(struct mesh_peer_state *p, size_t chunk_max, struct chosen *c)
{
    memset(c, 0, sizeof(*c));
    c->frame.epoch = p->mesh->options.epoch;
    if (pick_control(p, c) || pick_data(p, chunk_max, c) || pick_probe(p, chunk_max, c))
        return true;
    if (p->closing && !p->bye_sent && !p->tx_busy) {
        p->bye_sent = true;
        choose_control(c, WIRE_BYE, 0);
        return true;
    }
    return false;
}

/* Copies early messages to receives that were posted after them. The lock is held on entry and exit. */
static void finish_ready(struct mesh_peer_state *p)
{
    while (p->ready.first) {
        struct mesh_op *op = op_list_take(&p->ready);
        struct early *early = p->ready_early;
        p->ready_early = early->next;
        mesh_op_take_early(p, op, early);
    }
}

static void drop_paced(void *done, void *arg)
{
    struct mesh_peer_state *p = arg;
    mesh_op_finish(p, done, &p->failure);
}

/* Ends every queued operation with the failure when the sender ends. */
static void tx_drain(struct mesh_peer_state *p, struct mesh_pace *pace)
{
    mesh_pace_destroy(pace, drop_paced, p);
    pthread_mutex_lock(&p->lock);
    finish_ready(p);
    for (uint32_t q = 0; q < MESH_QUEUES; q++)
        for (struct mesh_op *op; (op = op_list_take(&p->tx[q].ops));) {
            pthread_mutex_unlock(&p->lock);
            mesh_op_finish(p, op, &p->failure);
            pthread_mutex_lock(&p->lock);
        }
    p->tx_busy = 0;
    p->tx_over = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* Writes a frame to the connection or the emulated link. Called without the lock. */
static int put_frame(struct mesh_peer_state *p, struct mesh_pace *pace, const struct chosen *c,
                     struct err *err)
{
    uint8_t head[WIRE_HEADER_BYTES];
    wire_encode(&c->frame, head);
    if (pace) {
        uint64_t now = clock_mono_ns();
        if (mesh_pace_put(pace, now, c->ready_ns ? c->ready_ns : now, head, sizeof(head), c->payload,
                          c->frame.payload_bytes, c->complete))
            return 0;
        if (c->complete) {
            err_set(err, ERR_NOMEM, "%s: no memory for a frame of the emulated link", p->name);
            mesh_op_finish(p, c->complete, err);
        }
        return err_set(err, ERR_NOMEM, "%s: no memory for a frame of the emulated link", p->name);
    }
    int status = mesh_conn_write(p->out, head, sizeof(head), c->payload, c->frame.payload_bytes, err);
    if (!c->complete)
        return status;
    c->complete->end_ns = clock_mono_ns();
    mesh_op_finish(p, c->complete, status < 0 ? err : NULL);
    return status;
}

/* Completes sends that have left the emulated link and writes frames that have arrived to the connection.
 * Called without the lock. */
static int move_paced(struct mesh_peer_state *p, struct mesh_pace *pace, bool *written, struct err *err)
{
    uint64_t now = clock_mono_ns(), left_ns;
    struct mesh_op *op;
    struct mesh_paced *frame;
    while ((op = mesh_pace_left(pace, now, &left_ns))) {
        op->end_ns = left_ns;
        mesh_op_finish(p, op, NULL);
    }
    while ((frame = mesh_pace_arrived(pace, now))) {
        int status = mesh_conn_write(p->out, frame->bytes, WIRE_HEADER_BYTES,
                                     frame->bytes + WIRE_HEADER_BYTES, frame->size - WIRE_HEADER_BYTES, err);
        free(frame);
        if (status < 0)
            return -1;
        *written = true;
    }
    return 0;
}

static bool close_is_complete(const struct mesh_peer_state *p, const struct mesh_pace *pace)
{
    return p->bye_sent && p->bye_acked && p->bye_ack_sent && (!pace || mesh_pace_empty(pace));
}

/* False if no frame waits for the wire. True does not mean that one can be sent now. The lock is held. */
static bool waiting(const struct mesh_peer_state *p)
{
    return p->tx_busy || p->announce || p->pong_count || p->ping_due || p->bye_ack_due || p->probe_left ||
           (p->closing && !p->bye_sent);
}

/* One round of the sender: writes a frame, flushes, or waits. The lock is held on entry and exit. -1 when the
 * connection broke. */
static int send_once(struct mesh_peer_state *p, struct mesh_pace *pace, bool *unflushed, struct err *err)
{
    struct chosen c;
    int status = 0;
    finish_ready(p);
    if (pace) {
        pthread_mutex_unlock(&p->lock);
        status = move_paced(p, pace, unflushed, err);
        pthread_mutex_lock(&p->lock);
        if (status < 0)
            return -1;
    }
    bool wire_free = !pace || mesh_pace_free(pace, clock_mono_ns());
    if (wire_free && pick(p, pace ? mesh_pace_chunk(pace) : WIRE_PAYLOAD_MAX, &c)) {
        pthread_mutex_unlock(&p->lock);
        status = put_frame(p, pace, &c, err);
        *unflushed = *unflushed || !pace;
        pthread_mutex_lock(&p->lock);
    } else if (*unflushed) {
        pthread_mutex_unlock(&p->lock);
        status = mesh_conn_flush(p->out, err);
        *unflushed = false;
        pthread_mutex_lock(&p->lock);
    } else if (!p->ready.first && p->failure.code == ERR_NONE && !close_is_complete(p, pace)) {
        uint64_t until = pace ? mesh_pace_next(pace, !wire_free && waiting(p)) : UINT64_MAX;
        cond_wait_until(&p->work, &p->lock, until);
    }
    return status;
}

void *mesh_tx_run(void *arg)
{
    struct mesh_peer_state *p = arg;
    struct mesh_pace *pace = NULL;
    bool unflushed = false;
    struct err err;
    int status = 0;
    if (p->link.bytes_per_s > 0 || p->link.latency_s > 0) {
        pace = mesh_pace_create(&p->link);
        if (!pace)
            status = err_set(&err, ERR_NOMEM, "%s: no memory for the emulated link", p->name);
    }
    pthread_mutex_lock(&p->lock);
    while (status == 0 && p->failure.code == ERR_NONE && (!close_is_complete(p, pace) || unflushed))
        status = send_once(p, pace, &unflushed, &err);
    if (status < 0)
        mesh_peer_fail_locked(p, &err);
    pthread_mutex_unlock(&p->lock);
    tx_drain(p, pace);
    return NULL;
}
