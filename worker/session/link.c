/* One thread runs a poll loop over the listening socket, at most one agent, and an eventfd that other threads
 * wake it with. The spool is a list of encoded frames in order of seq; `unsent` points at the first one that
 * was not written to the present connection. */
#include "worker/session/link.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/cond.h"
#include "common/file.h"
#include "common/frame.h"
#include "common/unix_socket.h"

enum { MESSAGES_MAX = 64, EVENT_BYTES_MAX = 16 << 20, READ_BYTES = 64 << 10 };
#define SPOOL_BYTES ((uint64_t)64 << 20)

struct link_event {
    struct link_event *next;
    uint64_t seq;
    struct buf bytes; /* the event as a frame: its length and the document */
};

struct link_message {
    struct link_message *next;
    json_t *document;
};

/* A call that another thread waits for. */
struct link_call {
    int (*run)(void *arg, struct err *err);
    void *arg;
    struct err *err;
    int result;
};

struct worker_link {
    struct worker_link_options options;
    char path[PATH_MAX];
    int listener, wake;
    pthread_t thread;
    bool thread_made;

    pthread_mutex_t lock;
    pthread_cond_t changed;

    /* guarded by lock */
    json_t *fields;
    struct link_event *first, *last, *unsent;
    uint64_t spool_bytes, seq, acked;
    struct link_message *messages, *messages_last;
    unsigned message_count;
    bool connected, stopping, interrupted, ended;
    struct link_call *call; /* that the thread has to make, or NULL */
    uint64_t since_ns;      /* when `connected` last changed */

    /* used by the link's thread alone */
    int agent;          /* socket of the connected agent, or -1 */
    struct buf in, out; /* out holds bytes to be written; the first out_done of them are */
    size_t out_done;
};

static void wake_thread(struct worker_link *link)
{
    uint64_t one = 1;
    ssize_t ignored = write(link->wake, &one, sizeof(one));
    (void)ignored; /* the write fails only when the counter is full, and that wakes the thread too */
}

/* --- the spool, with the lock held --- */

static void drop_acknowledged(struct worker_link *link, uint64_t seq)
{
    if (seq > link->seq)
        seq = link->seq;
    while (link->first && link->first->seq <= seq) {
        struct link_event *event = link->first;
        if (link->unsent == event)
            link->unsent = event->next;
        link->first = event->next;
        link->spool_bytes -= event->bytes.size;
        buf_fini(&event->bytes);
        free(event);
    }
    if (!link->first)
        link->last = NULL;
    if (seq > link->acked)
        link->acked = seq;
    pthread_cond_broadcast(&link->changed);
}

static int put_hello(struct worker_link *link, struct err *err)
{
    json_t *hello = json_pack("{s:s, s:i, s:I}", "type", "worker_hello", "pid", (int)getpid(), "seq",
                              (json_int_t)link->seq);
    if (!hello)
        return err_set(err, ERR_NOMEM, "no memory for a message");
    json_object_update_missing(hello, link->fields);
    int result = frame_put(hello, &link->out, err);
    json_decref(hello);
    return result;
}

/* --- the thread --- */

static void hang_up(struct worker_link *link)
{
    if (link->agent < 0)
        return;
    close(link->agent);
    link->agent = -1;
    buf_clear(&link->in);
    buf_clear(&link->out);
    link->out_done = 0;
    pthread_mutex_lock(&link->lock);
    link->connected = false;
    link->since_ns = clock_mono_ns();
    pthread_mutex_unlock(&link->lock);
}

static void accept_agent(struct worker_link *link)
{
    int fd = accept4(link->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    struct ucred peer;
    socklen_t size = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ||
        (peer.uid != geteuid() && peer.uid != 0)) {
        close(fd);
        return;
    }
    hang_up(link); /* a newer connection replaces the older one */
    link->agent = fd;
    struct err err;
    pthread_mutex_lock(&link->lock);
    link->connected = true;
    link->since_ns = clock_mono_ns();
    link->unsent = link->first;
    int result = put_hello(link, &err);
    pthread_cond_broadcast(&link->changed);
    pthread_mutex_unlock(&link->lock);
    if (result < 0)
        hang_up(link);
}

/* Handles an acknowledgement; queues any other message for worker_link_take. Returns -1 to close the
 * connection. */
static int link_handle(struct worker_link *link, json_t *document)
{
    const char *type = json_string_value(json_object_get(document, "type"));
    if (type && strcmp(type, "ack") == 0) {
        json_int_t seq = json_integer_value(json_object_get(document, "seq"));
        pthread_mutex_lock(&link->lock);
        json_t *run = json_object_get(link->fields, "run");
        json_t *of = json_object_get(document, "run");
        if (seq > 0 && (!run || !of || json_is_null(of) || json_equal(run, of)))
            drop_acknowledged(link, (uint64_t)seq);
        pthread_mutex_unlock(&link->lock);
        json_decref(document);
        return 0;
    }
    if (link->options.urgent)
        link->options.urgent(link->options.urgent_arg, document);
    struct link_message *message = calloc(1, sizeof(*message));
    pthread_mutex_lock(&link->lock);
    bool kept = message && link->message_count < MESSAGES_MAX;
    if (kept) {
        message->document = document;
        if (link->messages_last)
            link->messages_last->next = message;
        else
            link->messages = message;
        link->messages_last = message;
        link->message_count++;
        pthread_cond_broadcast(&link->changed);
    }
    pthread_mutex_unlock(&link->lock);
    if (!kept) {
        free(message);
        json_decref(document);
    }
    return kept ? 0 : -1;
}

static int read_agent(struct worker_link *link)
{
    struct err err;
    for (;;) {
        if (buf_reserve(&link->in, READ_BYTES, &err) < 0)
            return -1;
        ssize_t got = recv(link->agent, link->in.data + link->in.size, READ_BYTES, 0);
        if (got == 0)
            return -1;
        if (got < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -1;
        link->in.size += (size_t)got;
        for (;;) {
            json_t *document = NULL;
            size_t used = 0;
            int taken =
                frame_take(link->in.data, link->in.size, &frame_limits_default, &document, &used, &err);
            if (taken < 0)
                return -1;
            if (taken == 0)
                break;
            buf_consume(&link->in, used);
            if (link_handle(link, document) < 0)
                return -1;
        }
    }
}

/* Moves stored events into the write buffer while it is small. */
static int link_refill(struct worker_link *link)
{
    struct err err;
    int result = 0;
    if (link->out_done == link->out.size) {
        buf_clear(&link->out);
        link->out_done = 0;
    }
    pthread_mutex_lock(&link->lock);
    while (link->unsent && link->out.size < READ_BYTES && result == 0) {
        result = buf_append(&link->out, link->unsent->bytes.data, link->unsent->bytes.size, &err);
        link->unsent = link->unsent->next;
    }
    pthread_mutex_unlock(&link->lock);
    return result;
}

static int write_agent(struct worker_link *link)
{
    for (;;) {
        if (link_refill(link) < 0)
            return -1;
        if (link->out.size == link->out_done)
            return 0;
        ssize_t put =
            send(link->agent, link->out.data + link->out_done, link->out.size - link->out_done, MSG_NOSIGNAL);
        if (put < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -1;
        link->out_done += (size_t)put;
    }
}

static void *link_main(void *arg)
{
    struct worker_link *link = arg;
    for (;;) {
        pthread_mutex_lock(&link->lock);
        bool stopping = link->stopping;
        bool pending = link->unsent != NULL;
        pthread_mutex_unlock(&link->lock);
        if (stopping)
            break;
        pending = pending || link->out.size > link->out_done;
        struct pollfd fds[3] = {
            {.fd = link->listener, .events = POLLIN},
            {.fd = link->wake, .events = POLLIN},
            {.fd = link->agent, .events = (short)(POLLIN | (pending ? POLLOUT : 0))},
        };
        if (poll(fds, link->agent >= 0 ? 3 : 2, 1000) < 0 && errno != EINTR)
            break;
        if (fds[1].revents) {
            uint64_t count;
            ssize_t ignored = read(link->wake, &count, sizeof(count));
            (void)ignored;
            pthread_mutex_lock(&link->lock);
            if (link->call)
                link->call->result = link->call->run(link->call->arg, link->call->err);
            link->call = NULL;
            pthread_cond_broadcast(&link->changed);
            pthread_mutex_unlock(&link->lock);
        }
        if (link->agent >= 0 && (fds[2].revents & (POLLIN | POLLHUP | POLLERR)) && read_agent(link) < 0)
            hang_up(link);
        if (link->agent >= 0 && write_agent(link) < 0)
            hang_up(link);
        if (fds[0].revents)
            accept_agent(link);
    }
    hang_up(link);
    pthread_mutex_lock(&link->lock);
    link->ended = true;
    pthread_cond_broadcast(&link->changed);
    pthread_mutex_unlock(&link->lock);
    return NULL;
}

/* --- calls from other threads --- */

static int link_listen_on(struct worker_link *link, struct err *err)
{
    struct sockaddr_un address;
    int folder;
    if (file_path(link->path, sizeof(link->path), err, "%s", link->options.path) < 0 ||
        unix_socket_address(link->path, &address, &folder, err) < 0)
        return -1;
    link->options.path = link->path;
    link->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    unlink(link->path);
    int failed = 0;
    if (link->listener < 0 || bind(link->listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
        chmod(link->path, 0600) < 0 || listen(link->listener, 8) < 0)
        failed = errno;
    if (folder >= 0)
        close(folder);
    return failed ? err_errno(err, ERR_IO, failed, "could not listen on \"%s\"", link->path) : 0;
}

int worker_link_open(const struct worker_link_options *options, struct worker_link **out, struct err *err)
{
    struct worker_link *link = calloc(1, sizeof(*link));
    if (!link)
        return err_set(err, ERR_NOMEM, "no memory for a link");
    link->options = *options;
    if (link->options.spool_bytes == 0)
        link->options.spool_bytes = SPOOL_BYTES;
    link->listener = link->agent = -1;
    link->since_ns = clock_mono_ns();
    buf_init(&link->in, EVENT_BYTES_MAX + READ_BYTES + 4);
    buf_init(&link->out, EVENT_BYTES_MAX + READ_BYTES + 4);
    pthread_mutex_init(&link->lock, NULL);
    cond_init(&link->changed);
    link->fields = json_object();
    link->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int result = 0;
    if (!link->fields || link->wake < 0)
        result = err_set(err, ERR_NOMEM, "no memory for a link");
    if (result == 0)
        result = link_listen_on(link, err);
    if (result == 0 && pthread_create(&link->thread, NULL, link_main, link) != 0)
        result = err_set(err, ERR_NOMEM, "could not start the link's thread");
    if (result < 0) {
        worker_link_close(link);
        return -1;
    }
    link->thread_made = true;
    *out = link;
    return 0;
}

int worker_link_identify(struct worker_link *link, const json_t *fields, struct err *err)
{
    json_t *copy = json_deep_copy(fields);
    if (!copy)
        return err_set(err, ERR_NOMEM, "no memory for a link");
    pthread_mutex_lock(&link->lock);
    json_decref(link->fields);
    link->fields = copy;
    pthread_mutex_unlock(&link->lock);
    return 0;
}

json_t *worker_link_take(struct worker_link *link, uint64_t deadline_ns, struct err *err)
{
    json_t *document = NULL;
    pthread_mutex_lock(&link->lock);
    for (;;) {
        if (__atomic_exchange_n(&link->interrupted, false, __ATOMIC_ACQ_REL)) {
            err_set(err, ERR_CANCELLED, "asked to stop");
            break;
        }
        struct link_message *message = link->messages;
        if (message) {
            link->messages = message->next;
            if (!link->messages)
                link->messages_last = NULL;
            link->message_count--;
            document = message->document;
            free(message);
            break;
        }
        if (deadline_ns <= clock_mono_ns()) {
            err_set(err, ERR_TIMEOUT, "no message came from the agent");
            break;
        }
        (void)cond_wait_until(&link->changed, &link->lock, deadline_ns);
    }
    pthread_mutex_unlock(&link->lock);
    return document;
}

void worker_link_interrupt(struct worker_link *link)
{
    __atomic_store_n(&link->interrupted, true, __ATOMIC_RELEASE);
    wake_thread(link);
}

int worker_link_call(struct worker_link *link, int (*run)(void *arg, struct err *err), void *arg,
                     struct err *err)
{
    struct link_call call = {.run = run, .arg = arg, .err = err};
    pthread_mutex_lock(&link->lock);
    link->call = &call;
    wake_thread(link);
    while (link->call && !link->ended)
        pthread_cond_wait(&link->changed, &link->lock);
    const bool made = !link->call;
    link->call = NULL;
    pthread_mutex_unlock(&link->lock);
    return made ? call.result : err_set(err, ERR_NODE, "the thread of the agent's socket has ended");
}

/* Numbers, stamps and encodes the event; the lock is held. NULL with *err on failure. */
static struct link_event *make_event(struct worker_link *link, const char *type, json_t *document,
                                     struct err *err)
{
    struct link_event *event = calloc(1, sizeof(*event));
    if (!event || json_object_set_new(document, "type", json_string(type)) < 0 ||
        json_object_set_new(document, "seq", json_integer((json_int_t)link->seq + 1)) < 0 ||
        json_object_set_new(document, "at", json_integer((json_int_t)clock_wall_us())) < 0 ||
        json_object_update_missing(document, link->fields) < 0) {
        free(event);
        err_set(err, ERR_NOMEM, "no memory for an event");
        return NULL;
    }
    buf_init(&event->bytes, EVENT_BYTES_MAX);
    if (frame_put(document, &event->bytes, err) < 0) {
        buf_fini(&event->bytes);
        free(event);
        return NULL;
    }
    event->seq = link->seq + 1;
    return event;
}

static bool may_be_dropped(const char *type)
{
    return strcmp(type, "trace") == 0 || strcmp(type, "ranks") == 0 || strcmp(type, "log") == 0;
}

/* Waits for room in the spool; the lock is held. */
static int wait_for_room(struct worker_link *link, struct err *err)
{
    while (link->spool_bytes >= link->options.spool_bytes) {
        uint64_t now_ns = clock_mono_ns();
        if (!link->connected && now_ns >= link->since_ns + link->options.alone_ns)
            return err_set(err, ERR_TIMEOUT, "no agent for %.0f s and %llu bytes of events unacknowledged",
                           (double)link->options.alone_ns * 1e-9, (unsigned long long)link->spool_bytes);
        (void)cond_wait_until(&link->changed, &link->lock, now_ns + 1000000000u);
    }
    return 0;
}

int worker_link_emit(struct worker_link *link, const char *type, json_t *document, struct err *err)
{
    if (!document)
        return err_set(err, ERR_NOMEM, "no memory for an event");
    int result = 0;
    pthread_mutex_lock(&link->lock);
    if (!may_be_dropped(type) || link->spool_bytes < link->options.spool_bytes / 2) {
        result = wait_for_room(link, err);
        struct link_event *event = result == 0 ? make_event(link, type, document, err) : NULL;
        if (event) {
            link->seq = event->seq;
            link->spool_bytes += event->bytes.size;
            if (link->last)
                link->last->next = event;
            else
                link->first = event;
            link->last = event;
            if (link->connected && !link->unsent)
                link->unsent = event;
        } else {
            result = -1;
        }
    }
    pthread_mutex_unlock(&link->lock);
    wake_thread(link);
    json_decref(document);
    return result;
}

uint64_t worker_link_alone(struct worker_link *link)
{
    pthread_mutex_lock(&link->lock);
    uint64_t alone_ns = link->connected ? 0 : clock_mono_ns() - link->since_ns;
    pthread_mutex_unlock(&link->lock);
    return alone_ns;
}

int worker_link_flush(struct worker_link *link, uint64_t linger_ns, struct err *err)
{
    int result = 0;
    uint64_t begin_ns = clock_mono_ns();
    pthread_mutex_lock(&link->lock);
    while (link->first && result == 0) {
        uint64_t now_ns = clock_mono_ns();
        uint64_t since_ns = begin_ns > link->since_ns ? begin_ns : link->since_ns;
        uint64_t limit_ns = link->connected ? linger_ns : link->options.alone_ns;
        if (now_ns >= (link->connected ? since_ns : link->since_ns) + limit_ns)
            result = err_set(err, ERR_TIMEOUT, "the agent did not acknowledge the last events");
        else
            (void)cond_wait_until(&link->changed, &link->lock, now_ns + 200000000u);
    }
    pthread_mutex_unlock(&link->lock);
    return result;
}

void worker_link_close(struct worker_link *link)
{
    if (!link)
        return;
    if (link->thread_made) {
        pthread_mutex_lock(&link->lock);
        link->stopping = true;
        pthread_mutex_unlock(&link->lock);
        wake_thread(link);
        pthread_join(link->thread, NULL);
    }
    if (link->listener >= 0) {
        close(link->listener);
        unlink(link->path);
    }
    if (link->wake >= 0)
        close(link->wake);
    pthread_mutex_lock(&link->lock);
    drop_acknowledged(link, link->seq);
    pthread_mutex_unlock(&link->lock);
    while (link->messages) {
        struct link_message *message = link->messages;
        link->messages = message->next;
        json_decref(message->document);
        free(message);
    }
    json_decref(link->fields);
    buf_fini(&link->in);
    buf_fini(&link->out);
    pthread_cond_destroy(&link->changed);
    pthread_mutex_destroy(&link->lock);
    free(link);
}
