/* Uses blocking OpenSSL on two kinds of threads: SERVERS threads serve, each one connection at a time, all
 * accepting on the same socket; MEASURERS threads take the requests in order, look whether the other node can
 * be connected to, which takes long where it cannot, and measure in turn. A measurement sends 'p' and 63
 * bytes, which are echoed, then 'b', an 8-byte big-endian count and that many bytes, which are answered by
 * 'b', and then 'd' and such a count, after which both sides send that many bytes at the same time. */
#include "agent/links.h"
#include "agent/links_private.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <netinet/in.h>

#include "common/clock.h"
#include "common/cond.h"
#include "common/log.h"
#include "common/tls.h"

enum {
    SERVERS = 4,
    MEASURERS = 16,
    QUEUE_MAX = 256,
    PINGS = 16,
    PING_SIZE = 64,
    DEADLINE_MS = 10000,
    HANDSHAKE_MS = 2000, /* of who has not proven yet to be a node */
    AGAIN_MS = 100,
    LONG_BYTES = 16 << 10, /* they fill some packets in each direction */
    FULL_MS = 2500, /* of a handshake, and of such an exchange; more than the other side's HANDSHAKE_MS */
    BULK_FIRST = 1 << 20,
    BULK_MAX = 64 << 20,
    BULK_ACCEPTED = 256 << 20, /* most that agents before this limit send */
    BULK_SECONDS_PERCENT = 50,
    DUPLEX_SECONDS_PERCENT = 25,
    OWN_BYTES = 8 << 20, /* some milliseconds, beside which a handshake does not count */
    OWN_TRIES = 3,       /* of which the least counts: other programs fill the caches meanwhile */
    KNOWN_MS = 2000      /* wait for the scheduler to announce a node that is not in `nodes` yet */
};

struct task {
    struct task *next;
    char address[300];
    bool own; /* to this node itself: only the CPU time of a byte is measured, for links_cpu_per_byte */
    struct links_result result;
};

struct links {
    SSL_CTX *server;
    SSL_CTX *client;
    int listener;
    int wake; /* eventfd that signals results */
    uint16_t port;
    struct event *woken;
    links_done_fn *done;
    void *arg;
    pthread_t servers[SERVERS];
    unsigned server_count;
    struct in6_addr
        greeted[SERVERS]; /* addresses with a handshake under way; all 0: none. `lock` guards it */
    pthread_t measurers[MEASURERS];
    unsigned measurer_count;
    pthread_mutex_t turn; /* of the measurer that sends: two would share the node's rate */
    atomic_bool stopping;
    pthread_mutex_t lock;
    pthread_cond_t asked;
    struct task *tasks, *tasks_last; /* requests that wait to be measured */
    struct task *results;            /* measured requests */
    unsigned task_count;
    json_t *nodes; /* {"NODE": generation}, or NULL. `lock` guards it, `server` and `client`. */
    char own_address[300];
    double cpu_per_byte; /* `lock` guards it */
    bool own_waits;      /* a task for it is queued or under way */
    pthread_cond_t told; /* signalled when `nodes` changes */
    struct tls_files files;
};

/* ---- identities ---- */

/* Sets the present identity of 'node'; waits up to KNOWN_MS for a node that we were not told of yet. */
static int identity_of(struct links *links, const char *node, char identity[TLS_IDENTITY_SIZE],
                       struct err *err)
{
    uint64_t deadline_ns = clock_mono_ns() + (uint64_t)KNOWN_MS * 1000000;
    bool in_time = true;
    const json_t *generation;
    pthread_mutex_lock(&links->lock);
    while (!(generation = json_object_get(links->nodes, node)) && in_time && !atomic_load(&links->stopping))
        in_time = cond_wait_until(&links->told, &links->lock, deadline_ns);
    if (generation)
        tls_agent_identity(node, json_integer_value(generation), identity);
    pthread_mutex_unlock(&links->lock);
    return generation ? 0 : err_set(err, ERR_PEER, "node \"%s\" is none of the cluster", node);
}

/* Checks that the peer is a node of the cluster and of its present generation. */
static int peer_admit(struct links *links, SSL *ssl, struct err *err)
{
    char is[TLS_IDENTITY_SIZE];
    char wanted[TLS_IDENTITY_SIZE];
    char node[TLS_IDENTITY_SIZE];
    if (tls_peer_identity(ssl, is, err) < 0)
        return -1;
    const char *end = strrchr(is, ':');
    if (strncmp(is, "agent:", 6) != 0 || end < is + 6)
        return err_set(err, ERR_PEER, "%s is no node", is);
    snprintf(node, sizeof(node), "%.*s", (int)(end - is - 6), is + 6);
    return identity_of(links, node, wanted, err) < 0 ? -1 : tls_peer_check(ssl, wanted, err);
}

/* Makes a connection object from a context, which links_reload may replace at the same time. */
static SSL *ssl_create(struct links *links, bool server, struct err *err)
{
    pthread_mutex_lock(&links->lock);
    SSL *ssl = server ? SSL_new(links->server) : tls_client_create(links->client, NULL, err);
    pthread_mutex_unlock(&links->lock);
    return ssl;
}

/* ---- serving ---- */

/* Reads a count of bytes, at most BULK_ACCEPTED. */
static int read_count(struct pipe_end *end, uint64_t *count, struct err *err)
{
    uint8_t head[8];
    if (end_read(end, head, sizeof(head), err) < 0)
        return -1;
    *count = 0;
    for (int i = 0; i < 8; i++)
        *count = *count << 8 | head[i];
    if (*count > BULK_ACCEPTED)
        return err_set(err, ERR_TOO_BIG, "a measurement of %llu bytes", (unsigned long long)*count);
    return 0;
}

static int serve_duplex(struct pipe_end *end, uint8_t *chunk, struct err *err)
{
    uint64_t count;
    return read_count(end, &count, err) < 0 ? -1 : end_exchange(end, count, chunk + LINKS_CHUNK, chunk, err);
}

static int serve_bulk(struct pipe_end *end, uint8_t *chunk, struct err *err)
{
    uint64_t left;
    if (read_count(end, &left, err) < 0)
        return -1;
    while (left > 0) {
        size_t size = left < LINKS_CHUNK ? (size_t)left : LINKS_CHUNK;
        if (end_read(end, chunk, size, err) < 0)
            return -1;
        left -= size;
    }
    return end_write(end, (const uint8_t *)"b", 1, err);
}

/* Notes that a handshake with the peer's address begins. Returns its entry, or NULL while another one of this
 * address is under way, so that no address but of the cluster's nodes takes more than one thread. */
static struct in6_addr *greeting_begin(struct links *links, int fd)
{
    struct sockaddr_storage from = {0};
    socklen_t size = sizeof(from);
    struct in6_addr address = {0}, *entry = NULL;
    getpeername(fd, (struct sockaddr *)&from, &size);
    if (from.ss_family == AF_INET6)
        address = ((const struct sockaddr_in6 *)&from)->sin6_addr;
    else
        memcpy(&address.s6_addr[12], &((const struct sockaddr_in *)&from)->sin_addr, 4);
    bool known = false;
    pthread_mutex_lock(&links->lock);
    for (int i = 0; i < SERVERS; i++) {
        known |= IN6_ARE_ADDR_EQUAL(&links->greeted[i], &address);
        if (IN6_IS_ADDR_UNSPECIFIED(&links->greeted[i]))
            entry = &links->greeted[i];
    }
    if (entry && !known)
        *entry = address;
    pthread_mutex_unlock(&links->lock);
    return known ? NULL : entry;
}

static void greeting_end(struct links *links, struct in6_addr *entry)
{
    pthread_mutex_lock(&links->lock);
    *entry = (struct in6_addr){0};
    pthread_mutex_unlock(&links->lock);
}

static void serve(struct links *links, int fd, uint8_t *chunk)
{
    struct err err;
    struct pipe_end end = {.fd = fd, .peer = "another agent", .stopping = &links->stopping};
    struct in6_addr *greeted = greeting_begin(links, fd);
    if (!greeted) {
        close(fd); /* a node of ours connects again */
        return;
    }
    end_socket(fd);
    end_limit(&end, HANDSHAKE_MS);
    end.ssl = ssl_create(links, true, &err);
    bool good = end.ssl && SSL_set_fd(end.ssl, fd) == 1;
    if (good) {
        SSL_set_accept_state(end.ssl);
        good = end_handshake(&end, &err) == 0;
    }
    greeting_end(links, greeted);
    end_limit(&end, DEADLINE_MS);
    good = good && peer_admit(links, end.ssl, &err) == 0;
    uint8_t kind;
    while (good && end_read(&end, &kind, 1, &err) == 0) {
        if (kind == 'p') {
            chunk[0] = kind;
            good = end_read(&end, chunk + 1, PING_SIZE - 1, &err) == 0 &&
                   end_write(&end, chunk, PING_SIZE, &err) == 0;
        } else {
            good = (kind == 'b' && serve_bulk(&end, chunk, &err) == 0) ||
                   (kind == 'd' && serve_duplex(&end, chunk, &err) == 0);
        }
    }
    end_close(&end);
}

static void *server_main(void *arg)
{
    struct links *links = arg;
    uint8_t *chunk = calloc(2, LINKS_CHUNK); /* what is received, and what is sent */
    while (chunk && !atomic_load(&links->stopping)) {
        struct pollfd entry = {.fd = links->listener, .events = POLLIN};
        if (poll(&entry, 1, 200) <= 0)
            continue;
        int fd = accept4(links->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            serve(links, fd, chunk);
    }
    free(chunk);
    return NULL;
}

/* ---- measuring ---- */

static int compare_ns(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a;
    uint64_t right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* Measures the latency: half the median round trip, in seconds. */
static int links_ping(struct pipe_end *end, double *latency_s, struct err *err)
{
    uint64_t trips[PINGS];
    uint8_t frame[PING_SIZE] = {'p'};
    for (int i = 0; i < PINGS; i++) {
        uint64_t start_ns = clock_mono_ns();
        if (end_write(end, frame, sizeof(frame), err) < 0 || end_read(end, frame, sizeof(frame), err) < 0)
            return -1;
        trips[i] = clock_mono_ns() - start_ns;
    }
    qsort(trips, PINGS, sizeof(trips[0]), compare_ns);
    *latency_s = (double)(trips[PINGS / 2 - 1] + trips[PINGS / 2]) / 2e9 / 2;
    return 0;
}

static int write_request(struct pipe_end *end, uint8_t kind, uint64_t bytes, struct err *err)
{
    uint8_t head[9] = {kind};
    for (int i = 0; i < 8; i++)
        head[1 + i] = (uint8_t)(bytes >> (56 - 8 * i));
    return end_write(end, head, sizeof(head), err);
}

/* Measures the seconds from the first byte to the acknowledgement of the last. */
static int bulk(struct pipe_end *end, uint64_t bytes, const uint8_t *chunk, double *seconds, struct err *err)
{
    uint8_t head[1];
    uint64_t start_ns = clock_mono_ns();
    if (write_request(end, 'b', bytes, err) < 0)
        return -1;
    for (uint64_t left = bytes; left > 0;) {
        size_t size = left < LINKS_CHUNK ? (size_t)left : LINKS_CHUNK;
        if (end_write(end, chunk, size, err) < 0)
            return -1;
        left -= size;
    }
    if (end_read(end, head, 1, err) < 0)
        return -1;
    *seconds = (double)(clock_mono_ns() - start_ns) / 1e9;
    return 0;
}

/* Measures the rate each way while both ways are in use. */
static int duplex(struct pipe_end *end, double latency_s, uint64_t bytes, uint8_t *chunks,
                  double *bytes_per_s, struct err *err)
{
    uint64_t start_ns = clock_mono_ns();
    if (write_request(end, 'd', bytes, err) < 0 ||
        end_exchange(end, bytes, chunks, chunks + LINKS_CHUNK, err) < 0)
        return -1;
    double seconds = (double)(clock_mono_ns() - start_ns) / 1e9 - 2 * latency_s;
    *bytes_per_s = seconds > 0 ? (double)bytes / seconds : 0;
    return 0;
}

/* Measures the bandwidth: first with 1 MiB, then with as many bytes as take about half a second, and then
 * both ways at once. */
static int links_bandwidth(struct pipe_end *end, double latency_s, double *bytes_per_s,
                           double *duplex_bytes_per_s, struct err *err)
{
    uint8_t *chunk = calloc(2, LINKS_CHUNK);
    double seconds = 0;
    if (!chunk)
        return err_set(err, ERR_NOMEM, "no memory for a measurement");
    int result = bulk(end, BULK_FIRST, chunk, &seconds, err);
    double free_of_latency = seconds - 2 * latency_s;
    double rate = BULK_FIRST / (free_of_latency > seconds / 10 ? free_of_latency : seconds / 10 + 1e-9);
    double bytes = rate * BULK_SECONDS_PERCENT / 100;
    if (result == 0 && bytes > BULK_FIRST) {
        uint64_t count = bytes < BULK_MAX ? (uint64_t)bytes : BULK_MAX;
        result = bulk(end, count, chunk, &seconds, err);
        free_of_latency = seconds - 2 * latency_s;
        rate = (double)count / (free_of_latency > seconds / 10 ? free_of_latency : seconds / 10 + 1e-9);
    }
    *bytes_per_s = rate;
    bytes = fmin(fmax(rate * DUPLEX_SECONDS_PERCENT / 100, BULK_FIRST), BULK_MAX);
    /* An older agent hangs up here; the rest of the measurement counts. */
    if (result == 0 && duplex(end, latency_s, (uint64_t)bytes, chunk, duplex_bytes_per_s, err) < 0)
        *duplex_bytes_per_s = 0;
    free(chunk);
    return result;
}

/* Connects and shakes hands. */
static int end_connect(struct links *links, struct pipe_end *end, const char *address, int packet_bytes,
                       struct err *err)
{
    end->ssl = NULL;
    end->fd = end_dial(address, packet_bytes, end->deadline_ns, err);
    if (end->fd < 0)
        return -1;
    end_socket(end->fd);
    end->ssl = ssl_create(links, false, err);
    if (!end->ssl)
        return -1;
    return SSL_set_fd(end->ssl, end->fd) == 1
               ? end_handshake(end, err)
               : err_set(err, ERR_NOMEM, "no memory for a connection to the agent at %s", address);
}

/* The same, each time within FULL_MS. A node hangs up while it greets another connection of our address, such
 * as one that came through the same router: then it is tried again, until `until_ns`. */
static int end_connect_again(struct links *links, struct pipe_end *end, const char *address, int packet_bytes,
                             uint64_t until_ns, struct err *err)
{
    for (;;) {
        end_limit(end, FULL_MS);
        if (end_connect(links, end, address, packet_bytes, err) == 0)
            return 0;
        if (end->fd < 0 || err->code != ERR_NET || clock_left_ms(until_ns, AGAIN_MS) < AGAIN_MS ||
            atomic_load(&links->stopping))
            return -1;
        end_close(end);
        poll(NULL, 0, AGAIN_MS);
    }
}

/* Sends and receives enough to fill packets, in both directions. */
static int exchange_long(struct pipe_end *end, struct err *err)
{
    double rate;
    uint8_t *chunks = calloc(2, LINKS_CHUNK);
    if (!chunks)
        return err_set(err, ERR_NOMEM, "no memory for a measurement");
    end_limit(end, FULL_MS);
    const int result = duplex(end, 0, LONG_BYTES, chunks, &rate, err);
    free(chunks);
    return result;
}

/* Looks why a node that can be connected to does not answer: where messages come through in small packets,
 * and in larger ones do not, those are lost on the way, and who sent them is not told. Says so in *err then.
 */
static bool links_packets_are_lost(struct links *links, struct task *task, uint64_t until_ns, struct err *err)
{
    static const int sizes[] = {1200, 1280, 1400, 0}; /* 1200: in a tunnel over a way of 1280 */
    int through = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && !atomic_load(&links->stopping); i++) {
        struct err why = {0};
        struct pipe_end end = {.peer = task->address, .stopping = &links->stopping};
        const bool is_through =
            end_connect_again(links, &end, task->address, sizes[i], until_ns, &why) == 0 &&
            exchange_long(&end, &why) == 0;
        end_close(&end);
        if (!is_through && (through == 0 || why.code != ERR_TIMEOUT))
            return false;
        if (!is_through) {
            err_set(err, ERR_NET,
                    "packets of more than %d bytes are lost on the way to the agent at %s and nothing "
                    "reports it: "
                    "set an MTU of %d for it (ip link set dev NAME mtu %d)",
                    through, task->address, through, through);
            task->result.unreachable = true; /* tensors would not come through */
            return true;
        }
        through = sizes[i];
    }
    return false;
}

/* Connects to the node. It may be silent because all its threads are busy, or because full packets are lost.
 */
static int measure_connect(struct links *links, struct pipe_end *end, struct task *task, struct err *err)
{
    const uint64_t until_ns = clock_mono_ns() + (uint64_t)DEADLINE_MS * 1000000;
    int result = end_connect_again(links, end, task->address, 0, until_ns, err);
    task->result.unreachable = end->fd < 0 && err->code == ERR_NET;
    if (result == 0 || end->fd < 0 || err->code != ERR_TIMEOUT ||
        links_packets_are_lost(links, task, until_ns, err))
        return result;
    end_close(end);
    return end_connect_again(links, end, task->address, 0, until_ns, err);
}

/* Measures the link to a node that can be connected to, when no other is being measured. */
static int agent_measure(struct links *links, struct task *task, const char *wanted, struct err *err)
{
    struct pipe_end end = {.fd = -1, .peer = task->address, .stopping = &links->stopping};
    bool full = false;
    int result = measure_connect(links, &end, task, err);
    const bool answers = result == 0 && tls_peer_check(end.ssl, wanted, err) == 0 &&
                         links_ping(&end, &task->result.latency_s, err) == 0;
    if (answers)
        full = exchange_long(&end, err) == 0;
    end_limit(&end, DEADLINE_MS);
    result = !full ? -1
                   : links_bandwidth(&end, task->result.latency_s, &task->result.bytes_per_s,
                                     &task->result.duplex_bytes_per_s, err);
    end_close(&end);
    if (answers && !full && err->code == ERR_TIMEOUT)
        links_packets_are_lost(links, task, clock_mono_ns() + (uint64_t)DEADLINE_MS * 1000000, err);
    return result;
}

static double thread_cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Measures the CPU seconds of one end of a connection in which a byte is sent and another received. Both ends
 * are in this process, each on its own thread. */
static int measure_own(struct links *links, struct task *task, const char *wanted, struct err *err)
{
    struct pipe_end end = {.fd = -1, .peer = task->address, .stopping = &links->stopping};
    uint8_t *chunks = calloc(2, LINKS_CHUNK);
    double rate, least = INFINITY;
    const uint64_t until_ns = clock_mono_ns() + (uint64_t)DEADLINE_MS * 1000000;
    int result = chunks ? end_connect_again(links, &end, task->address, 0, until_ns, err)
                        : err_set(err, ERR_NOMEM, "no memory for a measurement");
    result = result < 0 ? result : tls_peer_check(end.ssl, wanted, err);
    end_limit(&end, FULL_MS);
    for (int i = 0; i < OWN_TRIES && result == 0; i++) {
        const double begin_s = thread_cpu_seconds();
        result = duplex(&end, 0, OWN_BYTES, chunks, &rate, err);
        least = fmin(least, thread_cpu_seconds() - begin_s);
    }
    end_close(&end);
    free(chunks);
    if (result < 0)
        return -1;
    pthread_mutex_lock(&links->lock);
    links->cpu_per_byte = least / OWN_BYTES;
    pthread_mutex_unlock(&links->lock);
    return 0;
}

static int task_do(struct links *links, struct task *task, struct err *err)
{
    char wanted[TLS_IDENTITY_SIZE];
    if (identity_of(links, task->result.to, wanted, err) < 0)
        return -1;
    const int fd = end_dial(task->address, 0, clock_mono_ns() + (uint64_t)DEADLINE_MS * 1000000, err);
    task->result.unreachable = fd < 0 && err->code == ERR_NET;
    if (fd < 0)
        return -1;
    close(fd);
    pthread_mutex_lock(&links->turn);
    const int result = atomic_load(&links->stopping) ? err_set(err, ERR_CANCELLED, "the agent is stopping")
                       : task->own                   ? measure_own(links, task, wanted, err)
                                                     : agent_measure(links, task, wanted, err);
    pthread_mutex_unlock(&links->turn);
    return result;
}

static void *measurer_main(void *arg)
{
    struct links *links = arg;
    pthread_mutex_lock(&links->lock);
    while (!atomic_load(&links->stopping)) {
        struct task *task = links->tasks;
        if (!task) {
            pthread_cond_wait(&links->asked, &links->lock);
            continue;
        }
        links->tasks = task->next;
        links->tasks_last = !links->tasks ? NULL : links->tasks_last;
        pthread_mutex_unlock(&links->lock);
        struct err err = {0};
        if (task_do(links, task, &err) < 0)
            task->result.err = err;
        pthread_mutex_lock(&links->lock);
        task->next = links->results;
        links->results = task;
        uint64_t one = 1;
        ssize_t wrote = write(links->wake, &one, sizeof(one));
        (void)wrote;
    }
    pthread_mutex_unlock(&links->lock);
    return NULL;
}

static void results_take(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    struct links *links = arg;
    uint64_t count;
    ssize_t got = read(fd, &count, sizeof(count));
    (void)got;
    pthread_mutex_lock(&links->lock);
    struct task *results = links->results;
    links->results = NULL;
    pthread_mutex_unlock(&links->lock);
    while (results) {
        struct task *task = results;
        results = task->next;
        links->task_count--;
        if (!task->own)
            links->done(links->arg, &task->result);
        else if (task->result.err.code && task->result.err.code != ERR_CANCELLED)
            log_event(LOG_LEVEL_WARN, "own_connection_unmeasured", "why=\"%s\"", task->result.err.text);
        links->own_waits &= !task->own;
        free(task);
    }
}

/* ---- creating and destroying ---- */

/* Listens on one port. *in_use: whether another program does. */
static int links_listen_on(struct links *links, const char *host, unsigned number, bool *in_use,
                           struct err *err)
{
    char port[8];
    snprintf(port, sizeof(port), "%u", number);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    int failed = getaddrinfo(host, port, &hints, &found);
    if (failed != 0)
        return err_set(err, ERR_NET, "this node's address \"%s\" is not known: %s", host,
                       gai_strerror(failed));
    int one = 1;
    links->listener = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(links->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    int result = links->listener < 0 ? -1 : bind(links->listener, found->ai_addr, found->ai_addrlen);
    struct sockaddr_storage own = {0};
    socklen_t size = sizeof(own);
    result = result < 0 || listen(links->listener, 64) < 0 ||
                     getsockname(links->listener, (struct sockaddr *)&own, &size) < 0
                 ? -1
                 : 0;
    int error = errno;
    freeaddrinfo(found);
    *in_use = result < 0 && error == EADDRINUSE;
    if (result < 0) {
        if (links->listener >= 0)
            close(links->listener);
        links->listener = -1;
        return err_errno(err, ERR_NET, error, "could not listen on %s port %u", host, number);
    }
    links->port = own.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&own)->sin6_port)
                                            : ntohs(((struct sockaddr_in *)&own)->sin_port);
    return 0;
}

static int listen_somewhere(struct links *links, const struct links_config *config, struct err *err)
{
    bool in_use = true;
    int result = -1;
    for (unsigned port = config->port; result < 0 && in_use && port <= config->port_last; port++)
        result = links_listen_on(links, config->host, port, &in_use, err);
    return result;
}

static int threads_start(struct links *links, struct err *err)
{
    for (; links->server_count < SERVERS; links->server_count++)
        if (pthread_create(&links->servers[links->server_count], NULL, server_main, links) != 0)
            return err_set(err, ERR_NOMEM, "could not start a thread");
    for (; links->measurer_count < MEASURERS; links->measurer_count++)
        if (pthread_create(&links->measurers[links->measurer_count], NULL, measurer_main, links) != 0)
            return err_set(err, ERR_NOMEM, "could not start a thread");
    return 0;
}

struct links *links_create(struct event_base *base, const struct links_config *config, links_done_fn *done,
                           void *arg, struct err *err)
{
    struct links *links = calloc(1, sizeof(*links));
    if (!links) {
        err_set(err, ERR_NOMEM, "no memory to measure links");
        return NULL;
    }
    pthread_mutex_init(&links->lock, NULL);
    pthread_mutex_init(&links->turn, NULL);
    pthread_cond_init(&links->asked, NULL);
    cond_init(&links->told);
    links->listener = -1;
    links->done = done;
    links->arg = arg;
    links->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    links->woken = event_new(base, links->wake, EV_READ | EV_PERSIST, results_take, links);
    links->files = (struct tls_files){
        .ca_file = config->ca_file, .cert_file = config->cert_file, .key_file = config->key_file};
    links->server = tls_context_create(&links->files, TLS_ROLE_SERVER_MUTUAL, err);
    links->client = !links->server ? NULL : tls_context_create(&links->files, TLS_ROLE_PEER, err);
    if (!links->client || listen_somewhere(links, config, err) < 0 || threads_start(links, err) < 0) {
        links_destroy(links);
        return NULL;
    }
    const char *host = strcmp(config->host, "0.0.0.0") == 0 ? "127.0.0.1"
                       : strcmp(config->host, "::") == 0    ? "::1"
                                                            : config->host;
    snprintf(links->own_address, sizeof(links->own_address), strchr(host, ':') ? "[%.250s]:%u" : "%.250s:%u",
             host, links->port);
    event_add(links->woken, NULL);
    return links;
}

static void tasks_free(struct task *task)
{
    while (task) {
        struct task *next = task->next;
        free(task);
        task = next;
    }
}

void links_destroy(struct links *links)
{
    if (!links)
        return;
    pthread_mutex_lock(&links->lock);
    atomic_store(&links->stopping, true);
    pthread_cond_broadcast(&links->asked);
    pthread_cond_broadcast(&links->told);
    pthread_mutex_unlock(&links->lock);
    for (unsigned i = 0; i < links->server_count; i++)
        pthread_join(links->servers[i], NULL);
    for (unsigned i = 0; i < links->measurer_count; i++)
        pthread_join(links->measurers[i], NULL);
    tasks_free(links->tasks);
    tasks_free(links->results);
    if (links->woken)
        event_free(links->woken);
    close(links->wake);
    if (links->listener >= 0)
        close(links->listener);
    tls_context_free(links->server);
    tls_context_free(links->client);
    pthread_mutex_destroy(&links->lock);
    pthread_mutex_destroy(&links->turn);
    pthread_cond_destroy(&links->asked);
    pthread_cond_destroy(&links->told);
    json_decref(links->nodes);
    free(links);
}

static int task_add(struct links *links, bool own, int64_t request, const char *to, const char *address,
                    struct err *err)
{
    if (links->task_count >= QUEUE_MAX)
        return err_set(err, ERR_BUSY, "%u links wait to be measured already", links->task_count);
    struct task *task = calloc(1, sizeof(*task));
    if (!task)
        return err_set(err, ERR_NOMEM, "no memory for a measurement");
    task->own = own;
    task->result.request = request;
    snprintf(task->result.to, sizeof(task->result.to), "%s", to);
    snprintf(task->address, sizeof(task->address), "%s", address);
    links->task_count++;
    pthread_mutex_lock(&links->lock);
    if (links->tasks_last && links->tasks)
        links->tasks_last->next = task;
    else
        links->tasks = task;
    links->tasks_last = task;
    pthread_cond_signal(&links->asked);
    pthread_mutex_unlock(&links->lock);
    return 0;
}

void links_nodes(struct links *links, const char *own, const json_t *nodes)
{
    json_t *copy = json_is_object(nodes) ? json_deep_copy(nodes) : NULL;
    if (!copy)
        return;
    pthread_mutex_lock(&links->lock);
    json_t *before = links->nodes;
    links->nodes = copy;
    pthread_cond_broadcast(&links->told);
    pthread_mutex_unlock(&links->lock);
    struct err ignored; /* without its result plans do not count the time; the next call tries again */
    if (!links->own_waits && links_cpu_per_byte(links) == 0)
        links->own_waits = task_add(links, true, 0, own, links->own_address, &ignored) == 0;
    json_decref(before);
}

int links_reload(struct links *links, struct err *err)
{
    pthread_mutex_lock(&links->lock);
    int result = tls_context_reload(links->server, &links->files, TLS_ROLE_SERVER_MUTUAL, err) < 0 ||
                         tls_context_reload(links->client, &links->files, TLS_ROLE_PEER, err) < 0
                     ? -1
                     : 0;
    pthread_mutex_unlock(&links->lock);
    return result;
}

uint16_t links_port(const struct links *links)
{
    return links->port;
}

int links_measure(struct links *links, int64_t request, const char *to, const char *address, struct err *err)
{
    return task_add(links, false, request, to, address, err);
}

double links_cpu_per_byte(struct links *links)
{
    pthread_mutex_lock(&links->lock);
    const double seconds = links->cpu_per_byte;
    pthread_mutex_unlock(&links->lock);
    return seconds;
}
