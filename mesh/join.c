/* Makes the connections: listens, greets peers that connect, connects to peers, and checks their identities.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/cond.h"
#include "mesh/mesh_private.h"

enum { BACKLOG = 128, GREETING_SECONDS = 60, HANDSHAKE_SECONDS = 15, POLL_MS = 100 };

static struct mesh_conn_options conn_options(const struct mesh *mesh, uint64_t deadline_ns,
                                             const atomic_bool *cancel)
{
    return (struct mesh_conn_options){.deadline_ns = deadline_ns,
                                      .cancel = cancel,
                                      .socket_buffer_bytes = mesh->options.socket_buffer_bytes,
                                      .peer_silence_ns = mesh->options.peer_silence_ns};
}

static uint64_t seconds_from_now(unsigned seconds)
{
    return clock_mono_ns() + (uint64_t)seconds * 1000000000u;
}

/* ---- peers that connect to us ---- */

/* Records why a connection was refused; mesh_connect() reports it when its deadline passes. */
static void note_refusal(struct mesh *mesh, const struct err *err)
{
    pthread_mutex_lock(&mesh->lock);
    snprintf(mesh->last_refusal, sizeof(mesh->last_refusal), "%.255s", err->text);
    pthread_mutex_unlock(&mesh->lock);
}

/* Waits until mesh_connect() was told the peers. */
static int join_wait_for_peers(struct mesh *mesh, uint64_t deadline_ns, struct err *err)
{
    int status = 0;
    pthread_mutex_lock(&mesh->lock);
    while (!mesh->connect_begun && !mesh->stopping && status == 0)
        if (!cond_wait_until(&mesh->changed, &mesh->lock, deadline_ns))
            status = err_set(err, ERR_TIMEOUT, "a peer dialled, but nobody told us of peers in time");
    if (mesh->stopping)
        status = err_set(err, ERR_CANCELLED, "the mesh is stopping");
    pthread_mutex_unlock(&mesh->lock);
    return status;
}

/* Finds the peer that a hello names and checks its certificate, run and epoch. */
static int check_hello(struct mesh *mesh, struct mesh_conn *conn, const struct wire_hello *hello,
                       struct mesh_peer_state **peer, struct err *err)
{
    struct mesh_peer_state *p = mesh_peer_find(mesh, hello->from);
    if (!p || hello->to != mesh->options.rank || !p->dials)
        return err_set(err, ERR_PEER,
                       "whoever dialled says it is rank %u and wants rank %u; we are rank %u and expect "
                       "no such peer",
                       hello->from, hello->to, mesh->options.rank);
    if (mesh_conn_check(conn, p->identity, err) < 0)
        return -1;
    if (hello->run != mesh->options.run || hello->epoch != mesh->options.epoch)
        return err_set(err, ERR_STALE, "%s: dialled for run %llu, epoch %llu; ours is run %llu, epoch %llu",
                       p->name, (unsigned long long)hello->run, (unsigned long long)hello->epoch,
                       (unsigned long long)mesh->options.run, (unsigned long long)mesh->options.epoch);
    *peer = p;
    return 0;
}

/* Gives the connection to the peer. Takes 'conn'. */
static int attach(struct mesh_peer_state *p, struct mesh_conn *conn, bool we_send, struct err *err)
{
    struct mesh *mesh = p->mesh;
    int status = 0;
    pthread_mutex_lock(&mesh->lock);
    struct mesh_conn **place = we_send ? &p->out : &p->in;
    if (*place)
        status = err_set(err, ERR_CONFLICT, "%s: dialled twice", p->name);
    else
        *place = conn;
    pthread_cond_broadcast(&mesh->changed);
    pthread_mutex_unlock(&mesh->lock);
    if (status < 0)
        mesh_conn_close(conn);
    return status;
}

static int greet(struct greeting *g, struct mesh_conn *conn, uint64_t deadline_ns, struct err *err)
{
    struct mesh *mesh = g->mesh;
    uint8_t bytes[WIRE_HELLO_BYTES], answer[WIRE_ANSWER_BYTES];
    struct wire_hello hello;
    struct mesh_peer_state *p = NULL;
    struct err ignored;
    int status = mesh_conn_read(conn, bytes, sizeof(bytes), err);
    if (status == 0)
        status = wire_hello_decode(bytes, &hello, err);
    if (status == 0) {
        pthread_mutex_lock(&mesh->lock);
        g->has_hello = true;
        pthread_mutex_unlock(&mesh->lock);
        status = join_wait_for_peers(mesh, deadline_ns, err);
    }
    if (status != 0) {
        mesh_conn_close(conn);
        return -1;
    }
    status = check_hello(mesh, conn, &hello, &p, err);
    wire_answer_encode(status < 0 ? err->code : ERR_NONE, mesh->options.epoch, answer);
    if (mesh_conn_write(conn, answer, sizeof(answer), NULL, 0, &ignored) < 0 ||
        mesh_conn_flush(conn, &ignored) < 0) {
        if (status == 0)
            *err = ignored;
        status = -1;
    }
    if (status < 0) {
        mesh_conn_close(conn);
        return -1;
    }
    mesh_conn_rename(conn, p->name);
    mesh_conn_established(conn);
    return attach(p, conn, !hello.dialler_sends, err);
}

static void *greeting_run(void *arg)
{
    struct greeting *g = arg;
    struct mesh *mesh = g->mesh;
    uint64_t deadline_ns = seconds_from_now(GREETING_SECONDS);
    struct mesh_conn_options options = conn_options(mesh, seconds_from_now(HANDSHAKE_SECONDS), &g->cancel);
    struct mesh_conn *conn;
    struct err err;
    if (mesh_conn_accept(mesh->server, g->fd, "whoever dialled", &options, &conn, &err) < 0 ||
        greet(g, conn, deadline_ns, &err) < 0)
        note_refusal(mesh, &err);
    pthread_mutex_lock(&mesh->lock);
    g->over = true;
    pthread_cond_broadcast(&mesh->changed);
    pthread_mutex_unlock(&mesh->lock);
    return NULL;
}

/* Returns an unused entry of mesh->greetings for a new connection, and joins the threads of finished
 * greetings. NULL when all entries are busy. The lock is held. */
static struct greeting *free_greeting(struct mesh *mesh)
{
    for (int i = 0; i < MESH_GREETINGS; i++) {
        struct greeting *g = &mesh->greetings[i];
        if (g->used && g->over) {
            pthread_join(g->thread, NULL); /* the thread sets `over` under the lock as its last act */
            g->used = g->over = false;
        }
        if (!g->used)
            return g;
    }
    return NULL;
}

/* When all greetings are busy, cancels up to MESH_GREETINGS_CANCELLED of those that have waited longest
 * without a hello. Any machine can connect and stay silent; a slow peer of ours connects again. The lock is
 * held. */
static void cancel_oldest_greetings(struct mesh *mesh)
{
    for (int given = 0; given < MESH_GREETINGS_CANCELLED; given++) {
        struct greeting *oldest = NULL;
        for (int i = 0; i < MESH_GREETINGS; i++) {
            struct greeting *g = &mesh->greetings[i];
            if (g->has_hello)
                continue;
            if (atomic_load(&g->cancel)) {
                if (given == 0)
                    return; /* connections cancelled before are still ending */
                continue;
            }
            if (!oldest || g->begin_ns < oldest->begin_ns)
                oldest = g;
        }
        if (oldest)
            atomic_store(&oldest->cancel, true);
    }
}

/* Starts a thread that greets a new connection. When all greeting threads are busy it waits for one; further
 * connections wait in the listen queue. */
static void begin_greeting(struct mesh *mesh, int fd)
{
    struct greeting *g;
    pthread_mutex_lock(&mesh->lock);
    while (!(g = free_greeting(mesh)) && !mesh->stopping) {
        cancel_oldest_greetings(mesh);
        cond_wait_until(&mesh->changed, &mesh->lock, UINT64_MAX);
    }
    if (mesh->stopping || !g) {
        close(fd);
    } else {
        g->mesh = mesh;
        g->fd = fd;
        g->begin_ns = clock_mono_ns();
        g->has_hello = false;
        atomic_store(&g->cancel, false);
        g->used = pthread_create(&g->thread, NULL, greeting_run, g) == 0;
        if (!g->used)
            close(fd);
    }
    pthread_mutex_unlock(&mesh->lock);
}

static void *acceptor_run(void *arg)
{
    struct mesh *mesh = arg;
    for (;;) {
        struct pollfd fds[2] = {{.fd = mesh->listener, .events = POLLIN},
                                {.fd = mesh->wake, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            break;
        if (fds[1].revents)
            break;
        if (!(fds[0].revents & POLLIN))
            continue;
        int fd = accept4(mesh->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            begin_greeting(mesh, fd);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            poll(&fds[1], 1, POLL_MS); /* out of descriptors: pause instead of spinning */
    }
    return NULL;
}

static int print_address(int fd, char *address, size_t size, struct err *err)
{
    struct sockaddr_storage bound = {0};
    socklen_t length = sizeof(bound);
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getsockname(fd, (struct sockaddr *)&bound, &length) < 0 ||
        getnameinfo((struct sockaddr *)&bound, length, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return err_set(err, ERR_IO, "mesh: could not tell the address listened on");
    int n = snprintf(address, size, bound.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    if (n < 0 || (size_t)n >= size)
        return err_set(err, ERR_TOO_BIG, "mesh: the address listened on does not fit %zu bytes", size);
    return 0;
}

/* Returns a socket that listens on "host:port", or -1. */
static int listen_on_port(const char *host_port, struct err *err)
{
    struct addrinfo *list;
    int fd = -1, on = 1, error = 0;
    if (mesh_resolve(host_port, true, &list, err) < 0)
        return -1;
    for (struct addrinfo *at = list; at && fd < 0; at = at->ai_next) {
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0)
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        if (fd < 0 || bind(fd, at->ai_addr, at->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0) {
            error = errno;
            if (fd >= 0)
                close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    return fd >= 0 ? fd
                   : err_errno(err, error == EADDRINUSE ? ERR_BUSY : ERR_NET, error,
                               "mesh: could not listen on %s", host_port);
}

int mesh_listen(struct mesh *mesh, const char *host_port, char *address, size_t size, struct err *err)
{
    const char *colon = strrchr(host_port, ':');
    unsigned first = 0, last = 0;
    char one[300];
    if (mesh->listener >= 0)
        return err_set(err, ERR_CONFLICT, "mesh: listens already");
    int fd = -1;
    if (!colon || sscanf(colon, ":%5u-%5u", &first, &last) != 2) {
        fd = listen_on_port(host_port, err);
    } else {
        err->code = ERR_BUSY;
        for (unsigned port = first; port <= last && fd < 0 && err->code == ERR_BUSY; port++) {
            snprintf(one, sizeof(one), "%.*s:%u", (int)(colon - host_port), host_port, port);
            fd = listen_on_port(one, err);
        }
    }
    if (fd < 0)
        return err->code == ERR_BUSY ? err_set(err, ERR_NODE, "%s: these ports are in use", host_port) : -1;
    if (print_address(fd, address, size, err) < 0) {
        close(fd);
        return -1;
    }
    mesh->listener = fd;
    if (pthread_create(&mesh->acceptor, NULL, acceptor_run, mesh) != 0)
        return err_set(err, ERR_NOMEM, "mesh: could not start a thread");
    mesh->acceptor_made = true;
    return 0;
}

void mesh_join_stop(struct mesh *mesh)
{
    uint64_t one = 1;
    if (mesh->acceptor_made) {
        ssize_t ignored = write(mesh->wake, &one, sizeof(one));
        (void)ignored;
        pthread_mutex_lock(&mesh->lock);
        mesh->stopping = true;
        pthread_cond_broadcast(&mesh->changed);
        pthread_mutex_unlock(&mesh->lock);
        pthread_join(mesh->acceptor, NULL);
        mesh->acceptor_made = false;
    }
    for (int i = 0; i < MESH_GREETINGS; i++)
        atomic_store(&mesh->greetings[i].cancel, true);
    for (int i = 0; i < MESH_GREETINGS; i++)
        if (mesh->greetings[i].used) {
            pthread_join(mesh->greetings[i].thread, NULL);
            mesh->greetings[i].used = false;
        }
    if (mesh->listener >= 0)
        close(mesh->listener);
    mesh->listener = -1;
}

/* ---- peers that we connect to ---- */

static int say_hello(struct mesh_peer_state *p, struct mesh_conn *conn, bool we_send, struct err *err)
{
    struct mesh *mesh = p->mesh;
    struct wire_hello hello = {.run = mesh->options.run,
                               .epoch = mesh->options.epoch,
                               .from = mesh->options.rank,
                               .to = p->rank,
                               .dialler_sends = we_send};
    uint8_t bytes[WIRE_HELLO_BYTES], answer[WIRE_ANSWER_BYTES];
    enum err_code code;
    uint64_t epoch;
    wire_hello_encode(&hello, bytes);
    if (mesh_conn_write(conn, bytes, sizeof(bytes), NULL, 0, err) < 0 || mesh_conn_flush(conn, err) < 0 ||
        mesh_conn_read(conn, answer, sizeof(answer), err) < 0)
        return -1;
    if (wire_answer_decode(answer, &code, &epoch, err) < 0)
        return err_wrap(err, "%s", p->name);
    if (code == ERR_STALE)
        return err_set(err, ERR_STALE, "%s: is of another run or epoch (its epoch is %llu, ours %llu)",
                       p->name, (unsigned long long)epoch, (unsigned long long)mesh->options.epoch);
    if (code != ERR_NONE)
        return err_set(err, code, "%s: refused the connection (%s)", p->name, err_code_name(code));
    return 0;
}

static int dial_once(struct mesh_peer_state *p, bool we_send, const struct mesh_conn_options *options,
                     struct mesh_conn **conn, struct err *err)
{
    if (mesh_conn_dial(p->mesh->client, p->address, p->name, options, conn, err) < 0)
        return -1;
    if (mesh_conn_check(*conn, p->identity, err) == 0 && say_hello(p, *conn, we_send, err) == 0)
        return 0;
    mesh_conn_close(*conn);
    return -1;
}

/* Connects to a peer. It tries again after ERR_NET, because a peer that is flooded with unknown connections
 * closes ours without an answer. */
static int dial(struct mesh_peer_state *p, bool we_send, uint64_t deadline_ns, const atomic_bool *cancel,
                struct err *err)
{
    struct mesh_conn_options options = conn_options(p->mesh, deadline_ns, cancel);
    struct mesh_conn *conn;
    while (dial_once(p, we_send, &options, &conn, err) < 0) {
        if (err->code != ERR_NET || clock_left_ms(deadline_ns, 1) == 0 || (cancel && atomic_load(cancel)))
            return -1;
        poll(NULL, 0, POLL_MS);
    }
    mesh_conn_established(conn);
    return attach(p, conn, we_send, err);
}

/* ---- connecting ---- */

static struct mesh_peer_state *peer_create(struct mesh *mesh, const struct mesh_peer *peer)
{
    struct mesh_peer_state *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->mesh = mesh;
    p->rank = peer->rank;
    p->link = peer->link;
    p->dials = (peer->rank < mesh->options.rank) != peer->turned;
    p->address = strdup(peer->address);
    p->identity = strdup(peer->identity);
    snprintf(p->name, sizeof(p->name), "rank %u (%.80s)", peer->rank, peer->identity);
    pthread_mutex_init(&p->lock, NULL);
    cond_init(&p->work);
    cond_init(&p->changed);
    return p;
}

static int compare_peer(const void *a, const void *b)
{
    const struct mesh_peer_state *x = *(struct mesh_peer_state *const *)a,
                                 *y = *(struct mesh_peer_state *const *)b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int check_peer(const struct mesh *mesh, const struct mesh_peer *peer, struct err *err)
{
    const struct mesh_link *link = &peer->link;
    if (!peer->address || !peer->identity || peer->rank == mesh->options.rank || peer->rank == MESH_RANK_NONE)
        return err_set(err, ERR_INVALID,
                       "mesh: a peer needs a rank other than ours (%u), an address and an identity",
                       mesh->options.rank);
    if (!(link->bytes_per_s >= 0 && link->bytes_per_s < 1e15 && link->latency_s >= 0 &&
          link->latency_s <= 60))
        return err_set(err, ERR_INVALID,
                       "mesh: the emulated link to rank %u, %g bytes/s and %g s, is out of range", peer->rank,
                       link->bytes_per_s, link->latency_s);
    return 0;
}

/* Publishes the list of peers to the threads that greet connecting peers. */
static int publish_peers(struct mesh *mesh, const struct mesh_peer *peers, uint32_t count, struct err *err)
{
    if (count > MESH_PEERS_MAX)
        return err_set(err, ERR_TOO_BIG, "mesh: %u peers are beyond the limit of %d", count, MESH_PEERS_MAX);
    struct mesh_peer_state **list = calloc(count + 1, sizeof(struct mesh_peer_state *));
    if (!list)
        return err_set(err, ERR_NOMEM, "mesh: no memory for %u peers", count);
    int status = 0;
    pthread_mutex_lock(&mesh->lock);
    if (mesh->connect_begun)
        status = err_set(err, ERR_CONFLICT, "mesh: connected already");
    if (status < 0) {
        pthread_mutex_unlock(&mesh->lock);
        free(list);
        return -1;
    }
    mesh->peers = list;
    for (uint32_t i = 0; i < count && status == 0; i++) {
        status = check_peer(mesh, &peers[i], err);
        if (status < 0)
            break;
        list[i] = peer_create(mesh, &peers[i]);
        if (!list[i])
            status = err_set(err, ERR_NOMEM, "mesh: no memory for a peer");
        else
            mesh->peer_count++;
        if (list[i] && (!list[i]->address || !list[i]->identity))
            status = err_set(err, ERR_NOMEM, "mesh: no memory for a peer");
    }
    qsort(list, mesh->peer_count, sizeof(struct mesh_peer_state *), compare_peer);
    for (uint32_t i = 1; i < mesh->peer_count && status == 0; i++)
        if (list[i]->rank == list[i - 1]->rank)
            status = err_set(err, ERR_INVALID, "mesh: rank %u is named twice", list[i]->rank);
    mesh->connect_begun = status == 0;
    pthread_cond_broadcast(&mesh->changed);
    pthread_mutex_unlock(&mesh->lock);
    return status;
}

static bool attached(struct mesh *mesh, const struct mesh_peer_state *p)
{
    pthread_mutex_lock(&mesh->lock);
    bool both = p->out && p->in;
    pthread_mutex_unlock(&mesh->lock);
    return both;
}

/* Waits until the peer has connected in both directions. */
static int wait_attached(struct mesh_peer_state *p, uint64_t deadline_ns, const atomic_bool *cancel,
                         struct err *err)
{
    struct mesh *mesh = p->mesh;
    int status = 0;
    pthread_mutex_lock(&mesh->lock);
    while (status == 0 && !(p->out && p->in)) {
        uint64_t now = clock_mono_ns(), until = now + (uint64_t)POLL_MS * 1000000u;
        if (mesh->stopping || (cancel && atomic_load(cancel)))
            status = err_set(err, ERR_CANCELLED, "%s: cancelled while waiting for it to connect", p->name);
        else if (now >= deadline_ns)
            status = err_set(err, ERR_TIMEOUT, "%s: did not connect in time%s%s", p->name,
                             mesh->last_refusal[0] ? "; the last one sent away: " : "", mesh->last_refusal);
        else
            cond_wait_until(&mesh->changed, &mesh->lock, until < deadline_ns ? until : deadline_ns);
    }
    pthread_mutex_unlock(&mesh->lock);
    return status;
}

static int start_threads(struct mesh_peer_state *p, struct err *err)
{
    int status = 0;
    pthread_mutex_lock(&p->lock);
    if (p->failure.code != ERR_NONE) { /* mesh_abort was called meanwhile */
        *err = p->failure;
        status = -1;
    }
    if (status == 0)
        p->rx_made = pthread_create(&p->rx_thread, NULL, mesh_rx_run, p) == 0;
    if (status == 0 && p->rx_made)
        p->tx_made = pthread_create(&p->tx_thread, NULL, mesh_tx_run, p) == 0;
    if (status == 0 && !p->tx_made) {
        status = err_set(err, ERR_NOMEM, "%s: could not start its threads", p->name);
        mesh_peer_fail_locked(p, err);
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

int mesh_connect(struct mesh *mesh, const struct mesh_peer *peers, uint32_t count, uint64_t deadline_ns,
                 const atomic_bool *cancel, struct err *err)
{
    int status = publish_peers(mesh, peers, count, err);
    for (uint32_t i = 0; status == 0 && i < mesh->peer_count; i++) {
        struct mesh_peer_state *p = mesh->peers[i];
        if (p->dials || attached(mesh, p))
            continue;
        status = dial(p, true, deadline_ns, cancel, err);
        if (status == 0)
            status = dial(p, false, deadline_ns, cancel, err);
    }
    for (uint32_t i = 0; status == 0 && i < mesh->peer_count; i++)
        status = wait_attached(mesh->peers[i], deadline_ns, cancel, err);
    if (status == 0)
        mesh_join_stop(mesh); /* all peers are connected, so nobody else is let in */
    for (uint32_t i = 0; status == 0 && i < mesh->peer_count; i++)
        status = start_threads(mesh->peers[i], err);
    return status;
}
