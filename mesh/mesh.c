/* The functions of mesh.h: making a mesh, posting operations, watching deadlines, measuring, closing. */
#include "mesh/mesh.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/cond.h"
#include "common/tls.h"
#include "mesh/mesh_private.h"

static const uint64_t window_max = (uint64_t)1 << 30;
static const uint64_t message_default = (uint64_t)4 << 30, message_max = (uint64_t)1 << 40;
static const uint64_t silence_default_ns = 30000000000u;
enum { PINGS = 16, PROBE_BYTES = 32 << 20 };

/* ---- the thread that watches deadlines ---- */

void mesh_watchdog_note(struct mesh *mesh, uint64_t deadline_ns)
{
    pthread_mutex_lock(&mesh->watchdog_lock);
    if (deadline_ns < mesh->watchdog_next_ns) {
        mesh->watchdog_next_ns = deadline_ns;
        pthread_cond_signal(&mesh->watchdog_work);
    }
    pthread_mutex_unlock(&mesh->watchdog_lock);
}

/* Updates *first to the operation with the earliest deadline in a list. */
static void mesh_earliest(struct mesh_op *op, bool receive, struct mesh_op **first, bool *is_receive)
{
    for (; op; op = op->next)
        if (!*first || op->deadline_ns < (*first)->deadline_ns) {
            *first = op;
            *is_receive = receive;
        }
}

static void earliest_one(struct mesh_op *op, struct mesh_op **first, bool *is_receive)
{
    if (op && (!*first || op->deadline_ns < (*first)->deadline_ns)) {
        *first = op;
        *is_receive = true;
    }
}

/* Fails the peer if an operation is overdue. Returns the next deadline, or UINT64_MAX. */
static uint64_t check_deadlines(struct mesh_peer_state *p, uint64_t now)
{
    struct mesh_op *first = NULL;
    bool receive = false;
    uint64_t next = UINT64_MAX;
    pthread_mutex_lock(&p->lock);
    for (uint32_t q = 0; q < MESH_QUEUES && p->failure.code == ERR_NONE; q++) {
        mesh_earliest(p->tx[q].ops.first, false, &first, &receive);
        mesh_earliest(p->rx[q].ops.first, true, &first, &receive);
        earliest_one(p->rx[q].current, &first, &receive);
        earliest_one(p->rx[q].early ? p->rx[q].early->op : NULL, &first, &receive);
    }
    if (first && first->deadline_ns <= now) {
        struct err why;
        err_set(&why, ERR_TIMEOUT,
                "%s: queue %u: message %llu, tag %016llx, was not %s within its %.3f s; %llu of "
                "%s%llu bytes had been",
                p->name, first->queue, (unsigned long long)first->sequence,
                (unsigned long long)first->meta.tag, receive ? "received" : "sent",
                (double)(first->deadline_ns - first->posted_ns) / 1e9, (unsigned long long)first->offset,
                receive && !first->begin_ns ? "at most " : "", (unsigned long long)first->size);
        mesh_peer_fail_locked(p, &why);
    } else if (first) {
        next = first->deadline_ns;
    }
    pthread_mutex_unlock(&p->lock);
    return next;
}

static void *watchdog_run(void *arg)
{
    struct mesh *mesh = arg;
    pthread_mutex_lock(&mesh->watchdog_lock);
    while (!mesh->watchdog_stop) {
        uint64_t now = clock_mono_ns();
        if (mesh->watchdog_next_ns > now) {
            cond_wait_until(&mesh->watchdog_work, &mesh->watchdog_lock, mesh->watchdog_next_ns);
            continue;
        }
        mesh->watchdog_next_ns = UINT64_MAX;
        pthread_mutex_unlock(&mesh->watchdog_lock);
        uint64_t next = UINT64_MAX;
        for (uint32_t i = 0; i < mesh->peer_count; i++) {
            uint64_t of_peer = check_deadlines(mesh->peers[i], now);
            if (of_peer < next)
                next = of_peer;
        }
        pthread_mutex_lock(&mesh->watchdog_lock);
        if (next < mesh->watchdog_next_ns)
            mesh->watchdog_next_ns = next;
    }
    pthread_mutex_unlock(&mesh->watchdog_lock);
    return NULL;
}

/* ---- creating a mesh ---- */

static int check_options(struct mesh_options *o, struct err *err)
{
    if (!o->cert_file || !o->key_file || !o->ca_file)
        return err_set(err, ERR_INVALID, "mesh: certificate, key and CA are needed");
    if (o->rank == MESH_RANK_NONE)
        return err_set(err, ERR_INVALID, "mesh: rank %u is none", o->rank);
    o->window_bytes = o->window_bytes ? o->window_bytes : MESH_WINDOW_BYTES;
    o->message_bytes_max = o->message_bytes_max ? o->message_bytes_max : message_default;
    o->peer_silence_ns = o->peer_silence_ns ? o->peer_silence_ns : silence_default_ns;
    if (o->window_bytes < 4096 || o->window_bytes > window_max)
        return err_set(err, ERR_INVALID, "mesh: a window of %llu bytes is not within 4096..%llu",
                       (unsigned long long)o->window_bytes, (unsigned long long)window_max);
    if (o->message_bytes_max > message_max)
        return err_set(err, ERR_INVALID, "mesh: messages of %llu bytes are beyond %llu",
                       (unsigned long long)o->message_bytes_max, (unsigned long long)message_max);
    return 0;
}

int mesh_create(const struct mesh_options *options, struct mesh **out, struct err *err)
{
    *out = NULL;
    struct mesh *mesh = calloc(1, sizeof(*mesh));
    if (!mesh)
        return err_set(err, ERR_NOMEM, "no memory for a mesh");
    mesh->options = *options;
    mesh->listener = mesh->wake = -1;
    mesh->watchdog_next_ns = UINT64_MAX;
    pthread_mutex_init(&mesh->lock, NULL);
    pthread_mutex_init(&mesh->watchdog_lock, NULL);
    cond_init(&mesh->changed);
    cond_init(&mesh->watchdog_work);
    struct tls_files files = {
        .ca_file = options->ca_file, .cert_file = options->cert_file, .key_file = options->key_file};
    if (check_options(&mesh->options, err) < 0)
        goto fail;
    mesh->server = tls_context_create(&files, TLS_ROLE_SERVER_MUTUAL, err);
    if (mesh->server)
        mesh->client = tls_context_create(&files, TLS_ROLE_PEER, err);
    if (!mesh->client)
        goto fail;
    mesh->options.cert_file = mesh->options.key_file = mesh->options.ca_file =
        NULL; /* the strings were borrowed for this call only */
    mesh->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (mesh->wake < 0) {
        err_errno(err, ERR_IO, errno, "mesh: could not make an eventfd");
        goto fail;
    }
    *out = mesh;
    return 0;
fail:
    mesh_destroy(mesh);
    return -1;
}

/* ---- posting sends and receives ---- */

/* Starts the thread that watches deadlines, for the first operation. */
static int watchdog_start(struct mesh *mesh, struct err *err)
{
    pthread_mutex_lock(&mesh->watchdog_lock);
    if (!mesh->watchdog_made)
        mesh->watchdog_made = pthread_create(&mesh->watchdog, NULL, watchdog_run, mesh) == 0;
    const bool made = mesh->watchdog_made;
    pthread_mutex_unlock(&mesh->watchdog_lock);
    return made ? 0 : err_set(err, ERR_NOMEM, "mesh: could not start a thread");
}

static struct mesh_op *op_create(const struct mesh_post *post, uint64_t size, struct err *err)
{
    struct mesh_op *op = calloc(1, sizeof(*op));
    if (!op) {
        err_set(err, ERR_NOMEM, "no memory for a message's record");
        return NULL;
    }
    op->queue = post->queue;
    op->size = size;
    op->deadline_ns = post->deadline_ns;
    op->posted_ns = op->ready_ns = clock_mono_ns();
    op->done = post->done;
    op->arg = post->arg;
    return op;
}

static int check_postable(struct mesh_peer_state *p, struct err *err)
{
    if (p->failure.code != ERR_NONE) {
        *err = p->failure;
        return -1;
    }
    if (p->closing)
        return err_set(err, ERR_CANCELLED, "%s: the mesh is closing", p->name);
    if (!p->tx_made)
        return err_set(err, ERR_CONFLICT, "%s: not connected yet", p->name);
    return 0;
}

static struct mesh_peer_state *check_post(struct mesh *mesh, uint32_t peer, uint32_t queue, uint64_t size,
                                          struct err *err)
{
    struct mesh_peer_state *p = mesh_peer_find(mesh, peer);
    if (!p)
        err_set(err, ERR_INTERNAL, "rank %u is no peer of rank %u", peer, mesh->options.rank);
    else if (queue >= MESH_QUEUES)
        err_set(err, ERR_INTERNAL, "%s: queue %u is not below %d", p->name, queue, MESH_QUEUES);
    else if (size > mesh->options.message_bytes_max)
        err_set(err, ERR_TOO_BIG, "%s: a message of %llu bytes is beyond the limit of %llu", p->name,
                (unsigned long long)size, (unsigned long long)mesh->options.message_bytes_max);
    else if (watchdog_start(mesh, err) == 0)
        return p;
    return NULL;
}

int mesh_send(struct mesh *mesh, const struct mesh_post *post, const struct mesh_meta *meta, const void *data,
              size_t size, struct err *err)
{
    struct mesh_peer_state *p = check_post(mesh, post->peer, post->queue, size, err);
    struct mesh_op *op = p ? op_create(post, size, err) : NULL;
    if (!op)
        return -1;
    op->from = data;
    op->meta = *meta;
    if (op->meta.rank > MESH_DIMS_MAX) {
        free(op);
        return err_set(err, ERR_INTERNAL, "%s: a shape of %u dimensions", p->name, meta->rank);
    }
    pthread_mutex_lock(&p->lock);
    if (check_postable(p, err) < 0) {
        pthread_mutex_unlock(&p->lock);
        free(op);
        return -1;
    }
    struct tx_queue *tx = &p->tx[post->queue];
    op->sequence = tx->next_sequence++;
    op_list_append(&tx->ops, op);
    p->tx_busy |= 1ull << post->queue;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    mesh_watchdog_note(mesh, post->deadline_ns);
    return 0;
}

/* Matches a new receive with the oldest early message. The lock is held. */
static int match_early(struct mesh_peer_state *p, struct rx_queue *rx, struct mesh_op *op, struct err *err)
{
    struct early *early = rx->early;
    if (early->meta.tag != op->meta.tag || early->size > op->size) {
        err_set(err, early->size > op->size ? ERR_TOO_BIG : ERR_INTERNAL,
                "%s: queue %u: message %llu has tag %016llx and %llu bytes where %016llx and at most %llu "
                "were expected",
                p->name, op->queue, (unsigned long long)op->sequence, (unsigned long long)early->meta.tag,
                (unsigned long long)early->size, (unsigned long long)op->meta.tag,
                (unsigned long long)op->size);
        mesh_peer_fail_locked(p, err);
        return -1;
    }
    op->meta = early->meta;
    op->size = early->size;
    rx->held -= early->size + MESH_MESSAGE_COST;
    rx->consumed += early->size + MESH_MESSAGE_COST;
    if (early == rx->arriving) {
        early->op = op; /* the receiver completes it with the last byte */
        return 0;
    }
    rx->early = early->next;
    if (!rx->early)
        rx->early_last = NULL;
    early->next = NULL;
    if (p->ready.last)
        p->ready_early_last->next = early;
    else
        p->ready_early = early;
    p->ready_early_last = early;
    op_list_append(&p->ready, op);
    pthread_cond_signal(&p->work);
    return 0;
}

int mesh_recv(struct mesh *mesh, const struct mesh_post *post, uint64_t tag, void *dst, size_t bound,
              struct err *err)
{
    struct mesh_peer_state *p = check_post(mesh, post->peer, post->queue, bound, err);
    struct mesh_op *op = p ? op_create(post, bound, err) : NULL;
    if (!op)
        return -1;
    op->to = dst;
    op->meta.tag = tag;
    pthread_mutex_lock(&p->lock);
    struct rx_queue *rx = &p->rx[post->queue];
    int status = check_postable(p, err);
    /* an early message that a receive is attached to is not the next one */
    bool early = rx->early && !rx->early->op;
    if (status == 0 && !early && p->bye_received)
        status = err_set(err, ERR_NET, "%s: said goodbye, nothing comes any more", p->name);
    if (status == 0) {
        op->sequence = rx->posted++;
        if (early)
            status = match_early(p, rx, op, err);
        else
            op_list_append(&rx->ops, op);
        mesh_rx_announce(p, post->queue, bound);
    }
    pthread_mutex_unlock(&p->lock);
    if (status < 0) {
        free(op);
        return -1;
    }
    mesh_watchdog_note(mesh, post->deadline_ns);
    return 0;
}

/* ---- posting and waiting for the result ---- */

struct op_waiter {
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool is_over;
    struct mesh_done done;
};

static void waiter_done(const struct mesh_done *done)
{
    struct op_waiter *w = done->arg;
    pthread_mutex_lock(&w->lock);
    w->done = *done;
    w->is_over = true;
    pthread_cond_signal(&w->over);
    pthread_mutex_unlock(&w->lock);
}

/* Makes a waiter and a post that reports to it. */
static struct mesh_post waiter_init(struct op_waiter *w, const struct mesh_post *post)
{
    *w = (struct op_waiter){.is_over = false};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->over, NULL);
    return (struct mesh_post){.peer = post->peer,
                              .queue = post->queue,
                              .deadline_ns = post->deadline_ns,
                              .done = waiter_done,
                              .arg = w};
}

/* Waits for the result of an operation if posting it succeeded (status 0), and frees the waiter. */
static int waiter_wait(struct op_waiter *w, int status, struct mesh_done *done, struct err *err)
{
    pthread_mutex_lock(&w->lock);
    while (status == 0 && !w->is_over)
        pthread_cond_wait(&w->over, &w->lock); /* the deadline thread ends the operation at its deadline */
    pthread_mutex_unlock(&w->lock);
    pthread_cond_destroy(&w->over);
    pthread_mutex_destroy(&w->lock);
    if (status < 0)
        return -1;
    if (done) {
        *done = w->done;
        done->arg = NULL;
    }
    if (w->done.ok)
        return 0;
    *err = w->done.err;
    return -1;
}

int mesh_send_wait(struct mesh *mesh, const struct mesh_post *post, const struct mesh_meta *meta,
                   const void *data, size_t size, struct mesh_done *done, struct err *err)
{
    struct op_waiter w;
    struct mesh_post own = waiter_init(&w, post);
    return waiter_wait(&w, mesh_send(mesh, &own, meta, data, size, err), done, err);
}

int mesh_recv_wait(struct mesh *mesh, const struct mesh_post *post, uint64_t tag, void *dst, size_t bound,
                   struct mesh_done *done, struct err *err)
{
    struct op_waiter w;
    struct mesh_post own = waiter_init(&w, post);
    return waiter_wait(&w, mesh_recv(mesh, &own, tag, dst, bound, err), done, err);
}

/* ---- measuring a link ---- */

/* Sends a ping, or 'probe' bytes, and waits for the pong. The lock is held on entry and exit. */
static int round_trip(struct mesh_peer_state *p, uint64_t probe, uint64_t deadline_ns, double *seconds,
                      struct err *err)
{
    uint64_t sequence = ++p->ping_sequence, begin = clock_mono_ns();
    if (probe)
        p->probe_left = probe;
    else
        p->ping_due = true;
    pthread_cond_signal(&p->work);
    while (p->pong_seen != sequence) {
        if (p->failure.code != ERR_NONE) {
            *err = p->failure;
            return -1;
        }
        if (p->closing)
            return err_set(err, ERR_CANCELLED, "%s: the mesh is closing", p->name);
        if (!cond_wait_until(&p->changed, &p->lock, deadline_ns) && p->pong_seen != sequence)
            return err_set(err, ERR_TIMEOUT, "%s: no answer to a measurement in time", p->name);
    }
    *seconds = (double)(clock_mono_ns() - begin) / 1e9;
    return 0;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int mesh_measure(struct mesh *mesh, uint32_t peer, uint64_t bytes, uint64_t deadline_ns, double *latency_s,
                 double *bytes_per_s, struct err *err)
{
    struct mesh_peer_state *p = check_post(mesh, peer, 0, 0, err);
    double trips[PINGS], seconds = 0;
    if (!p)
        return -1;
    pthread_mutex_lock(&p->lock);
    int status = check_postable(p, err);
    if (status == 0 && p->measuring)
        status = err_set(err, ERR_BUSY, "%s: is being measured already", p->name);
    if (status == 0) {
        p->measuring = true;
        for (int i = 0; status == 0 && i < PINGS; i++)
            status = round_trip(p, 0, deadline_ns, &trips[i], err);
        if (status == 0)
            status = round_trip(p, bytes ? bytes : PROBE_BYTES, deadline_ns, &seconds, err);
        p->measuring = false;
    }
    pthread_mutex_unlock(&p->lock);
    if (status < 0)
        return -1;
    qsort(trips, PINGS, sizeof(trips[0]), compare_double);
    double trip = (trips[PINGS / 2 - 1] + trips[PINGS / 2]) / 2;
    *latency_s = trip / 2;
    /* the probe's time includes one round trip */
    *bytes_per_s =
        (double)(bytes ? bytes : PROBE_BYTES) / (seconds > 1.1 * trip ? seconds - trip : seconds * 0.1);
    return 0;
}

static void stats_add(struct mesh_stats *sum, const struct mesh_stats *s)
{
    sum->sent_bytes += s->sent_bytes;
    sum->received_bytes += s->received_bytes;
    sum->sent_messages += s->sent_messages;
    sum->received_messages += s->received_messages;
    sum->early_bytes += s->early_bytes;
    sum->send_wait_ns += s->send_wait_ns;
    if (s->early_bytes_held_max > sum->early_bytes_held_max)
        sum->early_bytes_held_max = s->early_bytes_held_max;
}

int mesh_stats(struct mesh *mesh, uint32_t peer, struct mesh_stats *stats, struct err *err)
{
    memset(stats, 0, sizeof(*stats));
    bool found = peer == MESH_RANK_NONE;
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        struct mesh_peer_state *p = mesh->peers[i];
        if (peer != MESH_RANK_NONE && p->rank != peer)
            continue;
        found = true;
        pthread_mutex_lock(&p->lock);
        stats_add(stats, &p->stats);
        pthread_mutex_unlock(&p->lock);
    }
    return found ? 0 : err_set(err, ERR_INTERNAL, "rank %u is no peer of rank %u", peer, mesh->options.rank);
}

/* ---- closing and destroying a mesh ---- */

/* Whether the orderly close with this peer is complete or has failed. The lock is held. */
static bool close_complete(const struct mesh_peer_state *p)
{
    return p->failure.code != ERR_NONE || (p->tx_over && p->rx_over);
}

int mesh_close(struct mesh *mesh, uint64_t deadline_ns, struct err *err)
{
    int status = 0;
    if (mesh->closed)
        return err_set(err, ERR_CONFLICT, "the mesh is closed already");
    mesh->closed = true;
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        struct mesh_peer_state *p = mesh->peers[i];
        pthread_mutex_lock(&p->lock);
        p->closing = true;
        pthread_cond_broadcast(&p->work);
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
    }
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        struct mesh_peer_state *p = mesh->peers[i];
        pthread_mutex_lock(&p->lock);
        bool in_time = true;
        while (p->tx_made && !close_complete(p) && in_time)
            in_time = cond_wait_until(&p->changed, &p->lock, deadline_ns);
        if (p->tx_made && !close_complete(p)) {
            struct err why;
            err_set(&why, ERR_TIMEOUT, "%s: %s", p->name,
                    p->bye_acked ? "did not say goodbye in time"
                                 : "did not acknowledge the last frame in time");
            mesh_peer_fail_locked(p, &why);
        }
        if (p->failure.code != ERR_NONE && status == 0) {
            *err = p->failure;
            status = -1;
        }
        pthread_mutex_unlock(&p->lock);
    }
    return status;
}

void mesh_abort(struct mesh *mesh)
{
    struct err why;
    for (int i = 0; i < MESH_GREETINGS; i++)
        atomic_store(&mesh->greetings[i].cancel, true);
    pthread_mutex_lock(&mesh->lock);
    mesh->stopping = true;
    pthread_cond_broadcast(&mesh->changed);
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        struct mesh_peer_state *p = mesh->peers[i];
        err_set(&why, ERR_CANCELLED, "%s: the mesh was stopped", p->name);
        pthread_mutex_lock(&p->lock);
        if (!(p->tx_over && p->rx_over))
            mesh_peer_fail_locked(p, &why);
        pthread_mutex_unlock(&p->lock);
    }
    pthread_mutex_unlock(&mesh->lock);
}

static void peer_destroy(struct mesh_peer_state *p)
{
    if (!p)
        return;
    if (p->tx_made)
        pthread_join(p->tx_thread, NULL);
    if (p->rx_made)
        pthread_join(p->rx_thread, NULL);
    mesh_conn_close(p->out);
    mesh_conn_close(p->in);
    for (uint32_t q = 0; q < MESH_QUEUES; q++)
        while (p->rx[q].early) {
            struct early *next = p->rx[q].early->next;
            free(p->rx[q].early);
            p->rx[q].early = next;
        }
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p->address);
    free(p->identity);
    free(p);
}

void mesh_destroy(struct mesh *mesh)
{
    if (!mesh)
        return;
    mesh_abort(mesh);
    mesh_join_stop(mesh);
    if (mesh->watchdog_made) { /* no operation can begin any more */
        pthread_mutex_lock(&mesh->watchdog_lock);
        mesh->watchdog_stop = true;
        pthread_cond_signal(&mesh->watchdog_work);
        pthread_mutex_unlock(&mesh->watchdog_lock);
        pthread_join(mesh->watchdog, NULL);
    }
    for (uint32_t i = 0; i < mesh->peer_count; i++)
        peer_destroy(mesh->peers[i]);
    free(mesh->peers);
    if (mesh->wake >= 0)
        close(mesh->wake);
    tls_context_free(mesh->server);
    tls_context_free(mesh->client);
    pthread_cond_destroy(&mesh->changed);
    pthread_cond_destroy(&mesh->watchdog_work);
    pthread_mutex_destroy(&mesh->lock);
    pthread_mutex_destroy(&mesh->watchdog_lock);
    free(mesh);
}
