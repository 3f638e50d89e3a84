#include "mesh/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/tls.h"

/* A key is renewed after 32 GiB: AES-GCM keys are safe for at most 2^24.5 records (RFC 8446, 5.5), which is
 * 379 GiB in records of 16 KiB. */
#define KEY_BYTES ((uint64_t)32 << 30)

enum {
    IN_BYTES = 68 << 10,
    OUT_BYTES = 68 << 10,
    OUT_FIRST_BYTES = 17 << 10, /* one TLS record */
    RECORD_BYTES = 16384,
    SOCKET_BUFFER_BYTES = 256 << 10,
    BYTES_PER_US = 1250, /* 10 Gbit/s: the socket buffer holds a round trip at this rate */
    SHORT_ROUND_TRIP_US = 2000,
    POLL_MS_MAX = 50
};

struct mesh_conn {
    int fd;
    SSL *ssl;
    BIO_METHOD *method;
    struct mesh_conn_options options;
    bool established;
    int failure; /* errno of the socket's last failure; 0: end of stream */
    bool timed_out, cancelled;
    char name[160];
    size_t in_begin, in_end, out_size;
    size_t out_limit;   /* bytes that are gathered before they are sent; grows while the connection is busy */
    uint64_t key_bytes; /* bytes written under the present key */
    uint8_t *in, *out, *record;
};

/* ---- the socket ---- */

/* Waits until the socket can be read or written or the deadline passes. False when it is not ready in time.
 */
static bool conn_wait_ready(struct mesh_conn *c, short events)
{
    for (;;) {
        if (c->options.cancel && *c->options.cancel) {
            c->cancelled = true;
            return false;
        }
        int left = clock_left_ms(c->options.deadline_ns, POLL_MS_MAX);
        struct pollfd pfd = {.fd = c->fd, .events = events};
        int n = poll(&pfd, 1, left);
        if (n > 0)
            return true;
        if (left == 0) {
            c->timed_out = true;
            return false;
        }
    }
}

static ssize_t socket_read(struct mesh_conn *c, void *dst, size_t size)
{
    for (;;) {
        if (!c->established && !conn_wait_ready(c, POLLIN))
            return -1;
        ssize_t n = recv(c->fd, dst, size, 0);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        c->failure = n < 0 ? errno : 0;
        return n;
    }
}

static bool socket_write(struct mesh_conn *c)
{
    size_t done = 0;
    while (done < c->out_size) {
        if (!c->established && !conn_wait_ready(c, POLLOUT))
            return false;
        ssize_t n = send(c->fd, c->out + done, c->out_size - done, MSG_NOSIGNAL);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0) {
            c->failure = errno;
            return false;
        }
        done += (size_t)n;
    }
    c->out_size = 0;
    return true;
}

/* ---- the BIO that OpenSSL uses ---- */

static int bio_read(BIO *bio, char *dst, size_t size, size_t *got)
{
    struct mesh_conn *c = BIO_get_data(bio);
    if (c->in_begin == c->in_end) {
        ssize_t n = socket_read(c, c->in, IN_BYTES);
        if (n <= 0)
            return 0;
        c->in_begin = 0;
        c->in_end = (size_t)n;
    }
    size_t n = c->in_end - c->in_begin;
    if (n > size)
        n = size;
    memcpy(dst, c->in + c->in_begin, n);
    c->in_begin += n;
    *got = n;
    return 1;
}

static int bio_write(BIO *bio, const char *src, size_t size, size_t *written)
{
    struct mesh_conn *c = BIO_get_data(bio);
    size_t left = size;
    while (left > 0) {
        if (c->out_size >= c->out_limit) {
            if (!socket_write(c))
                return 0;
            c->out_limit = c->out_limit * 2 < OUT_BYTES ? c->out_limit * 2 : OUT_BYTES;
        }
        size_t n = c->out_limit - c->out_size;
        if (n > left)
            n = left;
        memcpy(c->out + c->out_size, src + (size - left), n);
        c->out_size += n;
        left -= n;
    }
    *written = size;
    return 1;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer)
{
    (void)number;
    (void)pointer;
    if (command == BIO_CTRL_FLUSH)
        return socket_write(BIO_get_data(bio)) ? 1 : -1;
    return 0;
}

static int bio_create(BIO *bio)
{
    BIO_set_init(bio, 1);
    return 1;
}

static BIO_METHOD *make_method(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "mesh");
    if (method && BIO_meth_set_read_ex(method, bio_read) && BIO_meth_set_write_ex(method, bio_write) &&
        BIO_meth_set_ctrl(method, bio_ctrl) && BIO_meth_set_create(method, bio_create))
        return method;
    BIO_meth_free(method);
    return NULL;
}

/* Fills *err with the reason why the last operation failed. */
static int connection_error(struct mesh_conn *c, const char *doing, struct err *err)
{
    if (c->cancelled) {
        ERR_clear_error();
        return err_set(err, ERR_CANCELLED, "%s: cancelled while %s", c->name, doing);
    }
    if (c->timed_out) {
        ERR_clear_error();
        return err_set(err, ERR_TIMEOUT, "%s: no answer in time while %s", c->name, doing);
    }
    if (ERR_peek_error() != 0)
        return tls_error(c->ssl, c->name, ERR_get_error(), err);
    if (c->failure)
        return err_errno(err, ERR_NET, c->failure, "%s: the connection broke while %s", c->name, doing);
    return err_set(err, ERR_NET, "%s: closed the connection while %s", c->name, doing);
}

static struct mesh_conn *conn_create(int fd, SSL *ssl, const char *name,
                                     const struct mesh_conn_options *options, struct err *err)
{
    struct mesh_conn *c = calloc(1, sizeof(*c));
    BIO *bio = NULL;
    if (c) {
        c->fd = fd;
        c->options = *options;
        snprintf(c->name, sizeof(c->name), "%s", name);
        c->in = malloc(IN_BYTES);
        c->out = malloc(OUT_BYTES);
        c->out_limit = OUT_FIRST_BYTES;
        c->record = malloc(RECORD_BYTES);
        c->method = make_method();
        bio = c->method ? BIO_new(c->method) : NULL;
    }
    if (!bio || !c->in || !c->out || !c->record || !ssl) {
        err_set(err, ERR_NOMEM, "%s: no memory for a connection", name);
        BIO_free(bio);
        SSL_free(ssl);
        if (c)
            mesh_conn_close(c);
        else
            close(fd);
        return NULL;
    }
    BIO_set_data(bio, c);
    SSL_set_bio(ssl, bio, bio);
    SSL_clear_mode(ssl, SSL_MODE_RELEASE_BUFFERS); /* the buffers are in use all the time */
    c->ssl = ssl;
    return c;
}

static void set_socket(int fd, const struct mesh_conn_options *options)
{
    int on = 1;
    unsigned silence_ms = (unsigned)(options->peer_silence_ns / 1000000);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
    int idle = (int)(silence_ms / 3000) > 0 ? (int)(silence_ms / 3000) : 1, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

static int shake(struct mesh_conn *c, bool server, struct err *err)
{
    ERR_clear_error();
    if (server)
        SSL_set_accept_state(c->ssl);
    else
        SSL_set_connect_state(c->ssl);
    if (SSL_do_handshake(c->ssl) == 1)
        return 0;
    return connection_error(c, "shaking hands", err);
}

/* ---- the functions of conn.h ---- */

int mesh_resolve(const char *address, bool listening, struct addrinfo **list, struct err *err)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    size_t length = colon ? (size_t)(colon - address) : 0;
    *list = NULL;
    if (!colon || length == 0 || length >= sizeof(host) || colon[1] == 0)
        return err_set(err, ERR_INVALID, "\"%.200s\" is no address of the form host:port", address);
    memcpy(host, address, length);
    host[length] = 0;
    if (host[0] == '[' && host[length - 1] == ']') {
        memmove(host, host + 1, length - 2);
        host[length - 2] = 0;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | (listening ? AI_PASSIVE : 0)};
    int status = getaddrinfo(host, colon + 1, &hints, list);
    if (status != 0)
        return err_set(err, ERR_NET, "could not resolve \"%.200s\": %s", address, gai_strerror(status));
    return 0;
}

/* Makes one attempt to connect. Returns the socket, or -1 with errno. */
static int connect_once(const struct addrinfo *to, const struct mesh_conn_options *options)
{
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    socklen_t size = sizeof(error);
    if (fd < 0)
        return -1;
    struct mesh_conn waiting = {.fd = fd, .options = *options};
    if (connect(fd, to->ai_addr, to->ai_addrlen) < 0) {
        if (errno != EINPROGRESS)
            error = errno;
        else if (!conn_wait_ready(&waiting, POLLOUT))
            error = waiting.cancelled ? ECANCELED : ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
            error = errno;
    }
    if (error == 0)
        error = fcntl(fd, F_SETFL, 0) < 0 ? errno : 0;
    if (error == 0)
        return fd;
    close(fd);
    errno = error;
    return -1;
}

int mesh_conn_dial(SSL_CTX *context, const char *address, const char *name,
                   const struct mesh_conn_options *options, struct mesh_conn **conn, struct err *err)
{
    struct addrinfo *list;
    int fd = -1, error = 0;
    *conn = NULL;
    if (mesh_resolve(address, false, &list, err) < 0)
        return err_wrap(err, "%s", name);
    for (unsigned wait_ms = 10;; wait_ms = wait_ms < 200 ? wait_ms * 2 : wait_ms) {
        for (const struct addrinfo *to = list; to && fd < 0; to = to->ai_next) {
            fd = connect_once(to, options);
            error = fd < 0 ? errno : 0;
        }
        bool cancelled = options->cancel && *options->cancel;
        if (fd >= 0 || cancelled || clock_left_ms(options->deadline_ns, 1) == 0)
            break;
        nanosleep(&(struct timespec){.tv_nsec = (long)wait_ms * 1000000}, NULL);
    }
    freeaddrinfo(list);
    if (fd < 0) {
        if (options->cancel && *options->cancel)
            return err_set(err, ERR_CANCELLED, "%s: cancelled while connecting to %s", name, address);
        return err_errno(err, error == ETIMEDOUT ? ERR_TIMEOUT : ERR_NET, error,
                         "%s: could not connect to %s", name, address);
    }
    set_socket(fd, options);
    struct mesh_conn *c = conn_create(fd, tls_client_create(context, NULL, err), name, options, err);
    if (!c)
        return -1;
    if (shake(c, false, err) < 0) {
        mesh_conn_close(c);
        return -1;
    }
    *conn = c;
    return 0;
}

int mesh_conn_accept(SSL_CTX *context, int fd, const char *name, const struct mesh_conn_options *options,
                     struct mesh_conn **conn, struct err *err)
{
    *conn = NULL;
    set_socket(fd, options);
    struct mesh_conn *c = conn_create(fd, SSL_new(context), name, options, err);
    if (!c)
        return -1;
    if (shake(c, true, err) < 0) {
        mesh_conn_close(c);
        return -1;
    }
    *conn = c;
    return 0;
}

int mesh_conn_check(struct mesh_conn *conn, const char *wanted, struct err *err)
{
    if (tls_peer_check(conn->ssl, wanted, err) < 0)
        return err_wrap(err, "%s", conn->name);
    return 0;
}

void mesh_conn_rename(struct mesh_conn *conn, const char *name)
{
    snprintf(conn->name, sizeof(conn->name), "%s", name);
}

/* Replaces the congestion control BBR by CUBIC or Reno. BBR paces by the bandwidth it has measured; with
 * socket buffers as small as ours it measures too little and stays there (1.4 GB/s on loopback, where Reno
 * and CUBIC reach 2.3). */
static void avoid_pacing(int fd)
{
    static const char cubic[] = "cubic", reno[] = "reno";
    char name[16] = "";
    socklen_t size = sizeof(name) - 1;
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) < 0 || strncmp(name, "bbr", 3) != 0)
        return;
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cubic, sizeof(cubic) - 1) < 0)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof(reno) - 1);
}

/* On a short path (round trip below 2 ms) large buffers only make small frames wait behind large ones, so the
 * buffers are sized for 10 Gbit/s times the round trip, at least 256 KiB. On a long path the kernel sizes
 * them. */
void mesh_conn_established(struct mesh_conn *conn)
{
    struct tcp_info info;
    socklen_t size = sizeof(info);
    int bytes = (int)conn->options.socket_buffer_bytes;
    memset(&info, 0, sizeof(info));
    if (bytes == 0 && getsockopt(conn->fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
        info.tcpi_rtt < SHORT_ROUND_TRIP_US) {
        bytes = (int)info.tcpi_rtt * BYTES_PER_US;
        bytes = bytes < SOCKET_BUFFER_BYTES ? SOCKET_BUFFER_BYTES : bytes;
        avoid_pacing(conn->fd);
    }
    /* the kernel doubles this number and counts its own overhead in it */
    if (bytes > 0 && setsockopt(conn->fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)) < 0)
        setsockopt(conn->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    if (bytes > 0 && setsockopt(conn->fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)) < 0)
        setsockopt(conn->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    conn->established = true;
    conn->options.cancel = NULL;
}

int mesh_conn_read(struct mesh_conn *conn, void *dst, size_t size, struct err *err)
{
    uint8_t *to = dst;
    while (size > 0) {
        int n = SSL_read(conn->ssl, to, size > 1 << 30 ? 1 << 30 : (int)size);
        if (n <= 0)
            return connection_error(conn, "reading", err);
        to += n;
        size -= (size_t)n;
    }
    return 0;
}

static int write_piece(struct mesh_conn *c, const uint8_t *from, size_t size, struct err *err)
{
    while (size > 0) {
        int n = SSL_write(c->ssl, from, size > 1 << 30 ? 1 << 30 : (int)size);
        if (n <= 0)
            return connection_error(c, "writing", err);
        from += n;
        size -= (size_t)n;
    }
    return 0;
}

int mesh_conn_write(struct mesh_conn *conn, const void *head, size_t head_size, const void *body,
                    size_t body_size, struct err *err)
{
    conn->key_bytes += head_size + body_size;
    if (conn->key_bytes > KEY_BYTES && SSL_key_update(conn->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1)
        conn->key_bytes = 0;
    size_t room = RECORD_BYTES - head_size, first = body_size < room ? body_size : room;
    memcpy(conn->record, head, head_size);
    if (first)
        memcpy(conn->record + head_size, body, first);
    if (write_piece(conn, conn->record, head_size + first, err) < 0)
        return -1;
    return write_piece(conn, (const uint8_t *)body + first, body_size - first, err);
}

int mesh_conn_flush(struct mesh_conn *conn, struct err *err)
{
    conn->out_limit = OUT_FIRST_BYTES; /* the first bytes of the next message should not wait for many more */
    return socket_write(conn) ? 0 : connection_error(conn, "writing", err);
}

void mesh_conn_shutdown(struct mesh_conn *conn)
{
    shutdown(conn->fd, SHUT_RDWR);
}

void mesh_conn_close(struct mesh_conn *conn)
{
    if (!conn)
        return;
    SSL_free(conn->ssl);
    BIO_meth_free(conn->method);
    close(conn->fd);
    free(conn->in);
    free(conn->out);
    free(conn->record);
    free(conn);
}
