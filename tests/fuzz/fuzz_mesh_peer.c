/* Feeds a peer's frames after its hello, while receives are posted. Whatever the peer sends, each receive
 * ends exactly once, with no more bytes than it has room for. The input is cut into steps of some bytes, so
 * that most frames continue a message and pass the checks of their headers (fuzz_mesh tests those). */
#include "fuzz/fuzz.h"

#include "mesh/mesh_private.h"

#include <stdlib.h>
#include <string.h>

#include "common/cond.h"

/* Makes a struct mesh_post and gives its address. */
#define POST(rank, number, deadline, fn, a)                                                                  \
    (&(struct mesh_post){                                                                                    \
        .peer = (rank), .queue = (number), .deadline_ns = (deadline), .done = (fn), .arg = (a)})

enum { EPOCH = 5, WINDOW = 4096, MESSAGE_MAX = 2048, OPS_MAX = 256 };

static const uint8_t *input;
static size_t left;
static struct mesh *mesh;
static unsigned posted, ended, ready_taken;
static uint8_t *place[OPS_MAX];
static uint64_t next_sequence[4];

static uint32_t take(void)
{
    left -= left > 0;
    return left > 0 ? *input++ : 0;
}

static void done(const struct mesh_done *done)
{
    uint8_t **mine = done->arg;
    ended++;
    free(*mine); /* the sanitizer finds a second end or a later write */
    *mine = NULL;
}

static void post(void)
{
    struct err err;
    size_t bound = 4 * take();
    uint32_t tag = take() & 1;
    if (posted == OPS_MAX)
        return;
    place[posted] = malloc(bound ? bound : 1);
    if (!place[posted])
        abort();
    if (mesh_recv(mesh, POST(1, tag, UINT64_MAX, done, &place[posted]), tag, place[posted], bound, &err) == 0)
        posted++;
    else
        free(place[posted]);
}

/* Does what the sender's thread does between frames. */
static void finish_ready(struct mesh_peer_state *p)
{
    pthread_mutex_lock(&p->lock);
    while (p->ready.first) {
        struct mesh_op *op = op_list_take(&p->ready);
        struct early *early = p->ready_early;
        p->ready_early = early->next;
        if (!p->ready_early)
            p->ready_early_last = NULL;
        mesh_op_take_early(p, op, early);
        ready_taken++;
    }
    p->pong_count = 0;
    pthread_mutex_unlock(&p->lock);
}

static void header(uint8_t out[WIRE_HEADER_BYTES])
{
    struct wire_frame frame = {.epoch = EPOCH, .meta = {.rank = 1}};
    uint32_t first;
    while ((first = take()) & 0x80) {
        post();
        finish_ready(mesh->peers[0]);
    }
    frame.kind = first & 7;
    frame.flags = first >> 3 & 1;
    frame.queue = first >> 4 & 1;
    frame.meta.tag = frame.queue;
    frame.message_bytes = 8 * take();
    frame.offset = 8 * take();
    frame.payload_bytes = 8 * take();
    frame.sequence = first & 0x40 ? take() : next_sequence[frame.queue];
    if (frame.kind == WIRE_DATA && frame.offset + frame.payload_bytes == frame.message_bytes)
        next_sequence[frame.queue]++;
    wire_encode(&frame, out);
}

/* ---- in place of mesh/conn.c ---- */

int mesh_conn_read(struct mesh_conn *conn, void *dst, size_t size, struct err *err)
{
    (void)conn;
    if (left == 0)
        return err_set(err, ERR_NET, "the input ends");
    if (size == WIRE_HEADER_BYTES)
        header(dst);
    else
        memset(dst, 7, size);
    return 0;
}

int mesh_conn_dial(SSL_CTX *context, const char *address, const char *name,
                   const struct mesh_conn_options *options, struct mesh_conn **conn, struct err *err)
{
    (void)context, (void)address, (void)options, (void)conn;
    return err_set(err, ERR_INTERNAL, "%s is not dialled here", name);
}

int mesh_conn_accept(SSL_CTX *context, int fd, const char *name, const struct mesh_conn_options *options,
                     struct mesh_conn **conn, struct err *err)
{
    (void)context, (void)fd, (void)options, (void)conn;
    return err_set(err, ERR_INTERNAL, "%s is not accepted here", name);
}

int mesh_conn_check(struct mesh_conn *conn, const char *wanted, struct err *err)
{
    (void)conn;
    return err_set(err, ERR_INTERNAL, "%s is not checked here", wanted);
}

int mesh_conn_write(struct mesh_conn *conn, const void *head, size_t head_size, const void *body,
                    size_t body_size, struct err *err)
{
    (void)conn, (void)head, (void)head_size, (void)body, (void)body_size;
    return err_set(err, ERR_INTERNAL, "nothing is written here");
}

int mesh_conn_flush(struct mesh_conn *conn, struct err *err)
{
    return mesh_conn_write(conn, NULL, 0, NULL, 0, err);
}

int mesh_resolve(const char *address, bool listening, struct addrinfo **list, struct err *err)
{
    (void)listening, (void)list;
    return err_set(err, ERR_INTERNAL, "%s is not looked up here", address);
}

void mesh_conn_rename(struct mesh_conn *conn, const char *name)
{
    (void)conn, (void)name;
}

void mesh_conn_established(struct mesh_conn *conn)
{
    (void)conn;
}

void mesh_conn_shutdown(struct mesh_conn *conn)
{
    (void)conn;
}

void mesh_conn_close(struct mesh_conn *conn)
{
    (void)conn;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mesh_peer_state *p = calloc(1, sizeof(*p)), *peers[] = {p};
    mesh = calloc(1, sizeof(*mesh));
    if (!mesh || !p)
        abort();
    mesh->options.epoch = EPOCH;
    mesh->options.window_bytes = WINDOW;
    mesh->options.message_bytes_max = MESSAGE_MAX;
    mesh->peers = peers;
    mesh->peer_count = 1;
    pthread_mutex_init(&mesh->watchdog_lock, NULL);
    cond_init(&mesh->watchdog_work);
    mesh->watchdog_made = true; /* no deadline passes here, and no thread outlives the input */
    p->mesh = mesh;
    p->rank = 1;
    pthread_mutex_init(&p->lock, NULL);
    cond_init(&p->work);
    cond_init(&p->changed);
    input = data;
    left = size;
    posted = ended = 0;
    memset(next_sequence, 0, sizeof(next_sequence));
    mesh_rx_run(p);
    finish_ready(p);
    if (ended != posted || !p->rx_over)
        __builtin_trap();
    for (uint32_t q = 0; q < MESH_QUEUES; q++)
        for (struct early *early = p->rx[q].early, *next; early; early = next) {
            next = early->next;
            free(early);
        }
    free(p);
    free(mesh);
    mesh = NULL;
    return 0;
}
