/* The artifact store's routes for workers, over plain HTTP on loopback and on a thread of its own: GET (with
 * Range) and PUT (also in parts) of /v1/blobs/SHA256, and GET of its manifest. Blobs are files in a folder of
 * the test. */
#ifndef MOTLEY_TESTS_BLOB_SERVER_H
#define MOTLEY_TESTS_BLOB_SERVER_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/file.h"
#include "common/json.h"
#include "model/files/manifest.h"

struct blob_server {
    char dir[256], url[64];
    pthread_t thread;
    struct event_base *base;
    struct evhttp *http;
    int stop[2];
    atomic_ulong sent_bytes, puts;
    atomic_bool full;   /* answer PUT with 507 */
    atomic_int room;    /* number of PUTs until one finds the store full; 0: none does */
    atomic_uint away;   /* the next `away` requests are answered with 503 */
    atomic_uint hidden; /* the next `hidden` downloads are answered with 404 */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held;        /* PUTs wait; change it with blob_server_hold */
    unsigned waiting; /* number of PUTs that wait */
};

/* Answers with a file or a range of it. Only the range is read, because a model is read in hundreds of them.
 */
static inline void blob_answer_file(struct blob_server *server, struct evhttp_request *request,
                                    const char *name)
{
    char path[512];
    struct stat about;
    unsigned long long first = 0, last = ULLONG_MAX;
    snprintf(path, sizeof(path), "%s/%.64s", server->dir, name);
    bool hidden = atomic_load(&server->hidden) > 0;
    int fd = hidden ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &about) < 0) {
        atomic_fetch_sub(&server->hidden, hidden);
        evhttp_send_error(request, 404, "no such blob");
        return;
    }
    const char *range = evhttp_find_header(evhttp_request_get_input_headers(request), "Range");
    unsigned long long size = (unsigned long long)about.st_size, bytes = size;
    int status = 200;
    if (range && sscanf(range, "bytes=%llu-%llu", &first, &last) >= 1 && first <= last && first < size) {
        char text[96];
        if (last >= size)
            last = size - 1;
        snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", first, last, size);
        evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Range", text);
        bytes = last - first + 1;
        status = 206;
    } else {
        first = 0;
    }
    struct evbuffer *out = evbuffer_new();
    if (bytes > 0)
        evbuffer_add_file(out, fd, (ev_off_t)first, (ev_off_t)bytes); /* takes fd */
    else
        close(fd);
    /* libevent writes pieces of 16 KiB: without this each answer waits 40 ms for an ACK */
    int one = 1;
    struct bufferevent *stream = evhttp_connection_get_bufferevent(evhttp_request_get_connection(request));
    (void)setsockopt(bufferevent_getfd(stream), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    atomic_fetch_add(&server->sent_bytes, bytes);
    evhttp_send_reply(request, status, "OK", out);
    evbuffer_free(out);
}

static inline void blob_answer_manifest(struct blob_server *server, struct evhttp_request *request,
                                        const char *name)
{
    char path[512];
    struct manifest manifest;
    struct model_source *source = NULL;
    struct err err;
    snprintf(path, sizeof(path), "%s/%.64s", server->dir, name);
    bool found =
        model_source_open_local(path, &source, &err) == 0 && manifest_make(source, 0, &manifest, &err) == 0;
    model_source_close(source);
    if (!found) {
        evhttp_send_error(request, 404, "no such blob");
        return;
    }
    json_t *document = manifest_to_json(&manifest, &err);
    char *text = json_dumps(document, JSON_COMPACT);
    struct evbuffer *out = evbuffer_new();
    evbuffer_add(out, text, strlen(text));
    evhttp_send_reply(request, 200, "OK", out);
    evbuffer_free(out);
    free(text);
    json_decref(document);
    manifest_fini(&manifest);
}

/* Completes a blob of which all parts have arrived. */
static inline void blob_kept(struct blob_server *server, struct evhttp_request *request, const char *name,
                             const char *parts)
{
    char path[512], hash[65];
    struct err err;
    snprintf(path, sizeof(path), "%s/%.64s", server->dir, name);
    if (file_sha256_hex(parts, hash, NULL, &err) < 0 || strncmp(hash, name, 64) != 0) {
        unlink(parts);
        evhttp_send_error(request, 400, "other bytes");
    } else if (rename(parts, path) < 0) {
        evhttp_send_error(request, 500, "not written");
    } else {
        atomic_fetch_add(&server->puts, 1);
        evhttp_send_reply(request, 201, "Created", NULL);
    }
}

/* Adds a part that begins where the file ends. */
static inline void blob_put(struct blob_server *server, struct evhttp_request *request, const char *name)
{
    char path[512];
    struct evbuffer *in = evhttp_request_get_input_buffer(request);
    unsigned long long offset = 0, total = evbuffer_get_length(in);
    snprintf(path, sizeof(path), "%s/part-%.64s", server->dir, name);
    if (sscanf(name + 64, "?offset=%llu&size=%llu", &offset, &total) != 2)
        unlink(path);
    if (atomic_load(&server->room) > 0 && atomic_fetch_sub(&server->room, 1) == 1)
        atomic_store(&server->full, true);
    if (atomic_load(&server->full)) {
        evhttp_send_error(request, 507, "the disk is full");
        return;
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    off_t received = lseek(fd, 0, SEEK_END);
    while (received == (off_t)offset && evbuffer_get_length(in) > 0 && evbuffer_write(in, fd) > 0)
        offset = (unsigned long long)(received = lseek(fd, 0, SEEK_END));
    close(fd);
    if (received >= 0 && (unsigned long long)received < total) {
        struct evbuffer *out = evbuffer_new();
        evbuffer_add_printf(out, "{\"received\": %lld}", (long long)received);
        evhttp_send_reply(request, 202, "Accepted", out);
        evbuffer_free(out);
    } else {
        blob_kept(server, request, name, path);
    }
}

/* Holds PUTs, or releases them. */
static inline void blob_server_hold(struct blob_server *server, bool held)
{
    pthread_mutex_lock(&server->lock);
    server->held = held;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

/* Waits until a PUT is held. */
static inline void blob_server_await_put(struct blob_server *server)
{
    pthread_mutex_lock(&server->lock);
    while (server->waiting == 0)
        pthread_cond_wait(&server->changed, &server->lock);
    pthread_mutex_unlock(&server->lock);
}

static inline void blob_wait_while_held(struct blob_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->waiting++;
    pthread_cond_broadcast(&server->changed);
    while (server->held)
        pthread_cond_wait(&server->changed, &server->lock);
    server->waiting--;
    pthread_mutex_unlock(&server->lock);
}

static inline void blob_request(struct evhttp_request *request, void *arg)
{
    static const char prefix[] = "/v1/blobs/";
    const char *uri = evhttp_request_get_uri(request), *name = uri + sizeof(prefix) - 1;
    struct blob_server *server = arg;
    if (atomic_load(&server->away) > 0) {
        atomic_fetch_sub(&server->away, 1);
        evhttp_send_error(request, 503, "away");
        return;
    }
    if (strncmp(uri, prefix, sizeof(prefix) - 1) != 0 || strlen(name) < 64)
        evhttp_send_error(request, 404, "no such route");
    else if (evhttp_request_get_command(request) == EVHTTP_REQ_PUT) {
        blob_wait_while_held(arg);
        blob_put(arg, request, name);
    } else if (strcmp(name + 64, "/manifest") == 0)
        blob_answer_manifest(arg, request, name);
    else
        blob_answer_file(arg, request, name);
}

static inline void blob_stop(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    event_base_loopbreak(arg);
}

static inline void *blob_main(void *arg)
{
    struct blob_server *server = arg;
    struct event *stop = event_new(server->base, server->stop[0], EV_READ, blob_stop, server->base);
    event_add(stop, NULL);
    event_base_dispatch(server->base);
    event_free(stop);
    return NULL;
}

static inline int blob_server_start(struct blob_server *server, const char *dir)
{
    memset(server, 0, sizeof(*server));
    snprintf(server->dir, sizeof(server->dir), "%s", dir);
    pthread_mutex_init(&server->lock, NULL);
    pthread_cond_init(&server->changed, NULL);
    server->base = event_base_new();
    server->http = evhttp_new(server->base);
    evhttp_set_max_body_size(server->http, 1 << 30);
    evhttp_set_allowed_methods(server->http, EVHTTP_REQ_GET | EVHTTP_REQ_PUT | EVHTTP_REQ_HEAD);
    evhttp_set_gencb(server->http, blob_request, server);
    struct evhttp_bound_socket *bound = evhttp_bind_socket_with_handle(server->http, "127.0.0.1", 0);
    if (!bound || socketpair(AF_UNIX, SOCK_STREAM, 0, server->stop) < 0)
        return -1;
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);
    getsockname(evhttp_bound_socket_get_fd(bound), (struct sockaddr *)&address, &size);
    snprintf(server->url, sizeof(server->url), "http://127.0.0.1:%u",
             (unsigned)((uint8_t *)&address)[2] << 8 | ((uint8_t *)&address)[3]);
    return pthread_create(&server->thread, NULL, blob_main, server);
}

static inline void blob_server_stop(struct blob_server *server)
{
    blob_server_hold(server, false);
    ssize_t ignored = write(server->stop[1], "x", 1);
    (void)ignored;
    pthread_join(server->thread, NULL);
    evhttp_free(server->http);
    event_base_free(server->base);
    close(server->stop[0]);
    close(server->stop[1]);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->lock);
}

/* Adds a blob and writes its name. */
static inline int blob_server_add(struct blob_server *server, const void *data, size_t size, char name[65])
{
    char path[512];
    struct err err;
    digest_sha256_hex(data, size, name, &err);
    snprintf(path, sizeof(path), "%s/%s", server->dir, name);
    return file_write_atomic(path, data, size, 0600, &err);
}

#endif
