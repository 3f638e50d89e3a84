/* The socket is non-blocking, and poll waits. */
#include "agent/links_private.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include "common/clock.h"
#include "common/tls.h"

enum { CONNECT_MS = 5000 };

void end_limit(struct pipe_end *end, uint32_t limit_ms)
{
    end->limit_ms = limit_ms;
    end->deadline_ns = clock_mono_ns() + (uint64_t)limit_ms * 1000000;
}

/* Waits until the socket is ready for one of `events`. */
static int end_poll(struct pipe_end *end, short events, struct err *err)
{
    struct pollfd entry = {.fd = end->fd, .events = events};
    while (poll(&entry, 1, clock_left_ms(end->deadline_ns, 100)) <= 0) {
        if (clock_left_ms(end->deadline_ns, 1) == 0)
            return err_set(err, ERR_TIMEOUT, "peer %s did not answer within %u ms", end->peer, end->limit_ms);
        if (atomic_load(end->stopping))
            return err_set(err, ERR_CANCELLED, "the agent is stopping");
    }
    return 0;
}

/* Returns the event after which an SSL call that did not move bytes is to be repeated, or -1 with its error.
 */
static int end_event(struct pipe_end *end, int result, struct err *err)
{
    int reason = SSL_get_error(end->ssl, result);
    if (reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE)
        return reason == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    return tls_error(end->ssl, end->peer, ERR_get_error(), err);
}

static int end_wait(struct pipe_end *end, int result, struct err *err)
{
    int event = end_event(end, result, err);
    return event < 0 ? -1 : end_poll(end, (short)event, err);
}

int end_handshake(struct pipe_end *end, struct err *err)
{
    for (;;) {
        int result = SSL_do_handshake(end->ssl);
        if (result == 1)
            return 0;
        if (end_wait(end, result, err) < 0)
            return -1;
    }
}

int end_write(struct pipe_end *end, const uint8_t *data, size_t size, struct err *err)
{
    while (size > 0) {
        size_t wrote = 0;
        int result = SSL_write_ex(end->ssl, data, size, &wrote);
        if (result == 1) {
            data += wrote;
            size -= wrote;
        } else if (end_wait(end, result, err) < 0) {
            return -1;
        }
    }
    return 0;
}

int end_read(struct pipe_end *end, uint8_t *data, size_t size, struct err *err)
{
    while (size > 0) {
        size_t got = 0;
        int result = SSL_read_ex(end->ssl, data, size, &got);
        if (result == 1) {
            data += got;
            size -= got;
        } else if (end_wait(end, result, err) < 0) {
            return -1;
        }
    }
    return 0;
}

int end_exchange(struct pipe_end *end, uint64_t bytes, const uint8_t *out, uint8_t *in, struct err *err)
{
    uint64_t to_send = bytes, to_read = bytes;
    while (to_send > 0 || to_read > 0) {
        size_t wrote = 0, got = 0;
        int result, send = 0, receive = 0; /* the events that the two directions wait for */
        if (to_send > 0 &&
            (result = SSL_write_ex(end->ssl, out, to_send < LINKS_CHUNK ? to_send : LINKS_CHUNK, &wrote)) !=
                1 &&
            (send = end_event(end, result, err)) < 0)
            return -1;
        if (to_read > 0 &&
            (result = SSL_read_ex(end->ssl, in, to_read < LINKS_CHUNK ? to_read : LINKS_CHUNK, &got)) != 1 &&
            (receive = end_event(end, result, err)) < 0)
            return -1;
        to_send -= wrote;
        to_read -= got;
        if (wrote + got == 0 && end_poll(end, (short)(send | receive), err) < 0)
            return -1;
    }
    return 0;
}

void end_close(struct pipe_end *end)
{
    if (end->ssl) {
        SSL_shutdown(end->ssl);
        SSL_free(end->ssl);
    }
    if (end->fd >= 0)
        close(end->fd);
    ERR_clear_error();
}

void end_socket(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static int address_split(const char *address, char host[256], char port[16], struct err *err)
{
    const char *colon = strrchr(address, ':');
    bool bracket = address[0] == '[';
    size_t length = !colon ? 0 : (size_t)(colon - address);
    if (bracket && length > 2 && address[length - 1] == ']') {
        address++;
        length -= 2;
    }
    if (length == 0 || length > 255 || strlen(colon + 1) > 5 || colon[1] == '\0')
        return err_set(err, ERR_INVALID, "\"%.100s\" is no host:port", address);
    snprintf(host, 256, "%.*s", (int)length, address);
    snprintf(port, 16, "%s", colon + 1);
    return 0;
}

int end_dial(const char *address, int packet_bytes, uint64_t deadline_ns, struct err *err)
{
    char host[256];
    char port[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    if (address_split(address, host, port, err) < 0)
        return -1;
    int failed = getaddrinfo(host, port, &hints, &found);
    if (failed != 0)
        return err_set(err, ERR_NET, "host \"%s\" is not known: %s", host, gai_strerror(failed));
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int segment = packet_bytes - (found->ai_family == AF_INET6 ? 60 : 40); /* less the headers */
    if (packet_bytes > 0)
        setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof(segment));
    int result = fd < 0 ? -1 : connect(fd, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    int number = errno;
    if (fd >= 0 && result < 0 && number == EINPROGRESS) {
        struct pollfd entry = {.fd = fd, .events = POLLOUT};
        socklen_t size = sizeof(number);
        number = ETIMEDOUT;
        if (poll(&entry, 1, clock_left_ms(deadline_ns, CONNECT_MS)) > 0)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &size);
        result = number == 0 ? 0 : -1;
    }
    if (result < 0) {
        if (fd >= 0)
            close(fd);
        return err_errno(err, ERR_NET, number, "agent at %s cannot be reached", address);
    }
    return fd;
}
