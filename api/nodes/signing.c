/* Asks the signing process. Each request has a connection of its own: connects, sends a frame, reads a frame,
 * closes. */
#include "api/nodes/signing.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/buf.h"
#include "common/frame.h"

enum { ANSWER_BYTES_MAX = 32768, DEADLINE_S = 5 };

static const struct frame_limits limits = {.bytes_max = ANSWER_BYTES_MAX, .depth_max = 2, .count_max = 16};

struct asking {
    struct bufferevent *stream;
    struct event *deadline;
    signing_fn *done;
    void *arg;
};

static void asking_free(struct asking *a)
{
    if (a->deadline)
        event_free(a->deadline);
    if (a->stream)
        bufferevent_free(a->stream);
    free(a);
}

static void signing_finish(struct asking *a, const struct err *err, const char *certificate)
{
    signing_fn *done = a->done;
    void *arg = a->arg;
    asking_free(a);
    done(arg, err, certificate);
}

static void signing_give_up(struct asking *a, const char *why)
{
    struct err err;
    err_set(&err, ERR_BUSY, "nothing can be signed just now: the signing process %s", why);
    signing_finish(a, &err, NULL);
}

static void signing_answered(struct bufferevent *stream, void *arg)
{
    struct asking *a = arg;
    struct evbuffer *in = bufferevent_get_input(stream);
    struct err err = {0};
    json_t *answer = NULL;
    size_t used;
    int taken = frame_take(evbuffer_pullup(in, -1), evbuffer_get_length(in), &limits, &answer, &used, &err);
    if (taken == 0)
        return;
    const char *certificate = json_string_value(json_object_get(answer, "certificate"));
    const char *refused = json_string_value(json_object_get(answer, "error"));
    const char *code = json_string_value(json_object_get(answer, "code"));
    if (certificate)
        signing_finish(a, NULL, certificate);
    else if (refused && code) {
        err_set(&err, err_code_from_name(code), "%s", refused);
        signing_finish(a, &err, NULL);
    } else
        signing_give_up(a, "does not answer as it should");
    json_decref(answer);
}

static void stream_ended(struct bufferevent *stream, short what, void *arg)
{
    (void)stream;
    if (!(what & BEV_EVENT_CONNECTED))
        signing_give_up(arg, "is away");
}

static void too_late(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    signing_give_up(arg, "is away");
}

static int request_put(struct asking *a, const char *node, int64_t generation, const char *csr,
                       struct err *err)
{
    struct buf out;
    buf_init(&out, ANSWER_BYTES_MAX);
    json_t *request = json_pack("{s:s, s:s, s:I, s:s}", "kind", "agent", "node", node, "generation",
                                (json_int_t)generation, "csr", csr);
    int rc = request ? frame_put(request, &out, err) : err_set(err, ERR_NOMEM, "out of memory for a request");
    if (rc == 0 && bufferevent_write(a->stream, out.data, out.size) < 0)
        rc = err_set(err, ERR_NOMEM, "out of memory for a request");
    json_decref(request);
    buf_fini(&out);
    return rc;
}

int signing_ask(struct event_base *base, const char *socket, const char *node, int64_t generation,
                const char *csr, signing_fn *done, void *arg, struct err *err)
{
    static const struct timeval deadline = {.tv_sec = DEADLINE_S};
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    struct asking *a = calloc(1, sizeof(*a));
    if (strlen(socket) >= sizeof(where.sun_path) || !a) {
        free(a);
        return err_set(err, ERR_INTERNAL, "ca.signer: the path of a socket has at most %zu bytes",
                       sizeof(where.sun_path) - 1);
    }
    memcpy(where.sun_path, socket, strlen(socket) + 1);
    a->done = done;
    a->arg = arg;
    a->stream = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    a->deadline = a->stream ? evtimer_new(base, too_late, a) : NULL;
    int rc = a->deadline && event_add(a->deadline, &deadline) == 0
                 ? request_put(a, node, generation, csr, err)
                 : err_set(err, ERR_NOMEM, "out of memory for asking the signing process");
    if (rc < 0) {
        asking_free(a);
        return -1;
    }
    bufferevent_setcb(a->stream, signing_answered, NULL, stream_ended, a);
    bufferevent_enable(a->stream, EV_READ | EV_WRITE);
    /* The failure is reported later, as that of a broken connection is. */
    if (bufferevent_socket_connect(a->stream, (struct sockaddr *)&where, sizeof(where)) < 0)
        event_active(a->deadline, EV_TIMEOUT, 0);
    return 0;
}
