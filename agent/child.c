#include "agent/child.h"

#include <dirent.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/doc.h"
#include "common/document.h"
#include "common/file.h"
#include "common/frame.h"
#include "common/process.h"
#include "common/unix_socket.h"

enum {
    CONNECT_MS_MIN = 1,
    CONNECT_MS_MAX = 50,
    PATH_SIZE = 600,
    LOG_TAIL = 2048,
    WRITE_MAX = 64 << 20, /* bytes that may wait for a worker that does not read */
    DRAIN_MS = 1000
};

/* Files of the worker's folder with the messages it was sent, in the order in which they are sent again. */
static const char *const stored_names[] = {"assign", "peers", "stop"};
enum { STORED_COUNT = 3 };

struct child {
    struct event_base *base;
    struct child_events events;
    void *arg;
    struct child_work work;
    char dir[PATH_SIZE];
    pid_t pid;
    uint64_t start_time;
    struct process_watch *watch;
    struct bufferevent *stream;
    struct event *connect_timer;
    struct event *kill_timer;
    uint32_t connect_ms;
    bool has_hello; /* worker_hello has arrived on this connection */
    bool was_heard; /* worker_hello has arrived, on any connection */
    bool adopted;   /* the worker may have missed messages */
    bool paused;
    bool ended;
    bool has_exited; /* the process has ended */
    int status;
    char fault[200];    /* how the worker broke the protocol; or "" */
    struct buf waiting; /* frames for a worker that is not connected */
};

static void child_stream_readable(struct bufferevent *stream, void *arg);
static void child_stream_event(struct bufferevent *stream, short what, void *arg);

/* ---- files ---- */

/* Writes a file that a reader sees complete or not at all. It is not synced, because the worker does not
 * survive a crash of the machine either. */
static int quick_write(const char *dir, const char *name, const void *data, size_t size, struct err *err)
{
    char path[PATH_SIZE + 32];
    char beside[PATH_SIZE + 40];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    snprintf(beside, sizeof(beside), "%s.new", path);
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(err, ERR_IO, errno, "could not create file \"%s\"", beside);
    int result = file_pwrite_all(fd, data, size, 0, beside, err);
    close(fd);
    if (result == 0 && rename(beside, path) < 0)
        result = err_errno(err, ERR_IO, errno, "could not put file \"%s\" in place", path);
    return result;
}

static int frame_keep(const struct child *child, const char *name, const json_t *message, struct err *err)
{
    struct buf bytes;
    buf_init(&bytes, frame_limits_default.bytes_max + 4);
    int result = frame_put(message, &bytes, err);
    result = result < 0 ? -1 : quick_write(child->dir, name, bytes.data, bytes.size, err);
    buf_fini(&bytes);
    return result;
}

#define NUMBER(key, member, needed, least, most) DOC_NUM(key, child, member, needed, 0, least, most, "")
static const struct doc_field state_fields[] = {
    NUMBER("pid", pid, JR_REQUIRED, 2, INT32_MAX),
    NUMBER("start_time", start_time, JR_REQUIRED, 0, INT64_MAX),
    DOC_CHARS("device", child, work.device, JR_REQUIRED, 1, ""),
    NUMBER("run", work.run, JR_REQUIRED, -1, INT64_MAX),
    NUMBER("epoch", work.epoch, JR_REQUIRED, -1, INT64_MAX),
    NUMBER("rank", work.rank, JR_REQUIRED, -1, INT64_MAX),
    NUMBER("request", work.request, JR_REQUIRED, -1, INT64_MAX),
    NUMBER("limit_bytes", work.limit_bytes, JR_OPTIONAL, 0, INT64_MAX),
};
static const struct doc state_doc = DOC(child, state_fields, .loose = true);

static int child_state_write(const struct child *child, struct err *err)
{
    json_t *state = doc_write(&state_doc, child, err);
    struct buf text;
    buf_init(&text, 4096);
    int result = state ? json_print(state, false, &text, err) : -1;
    result = result < 0 ? -1 : quick_write(child->dir, "state.json", text.data, text.size, err);
    json_decref(state);
    buf_fini(&text);
    return result;
}

static int child_state_read(struct child *child, struct err *err)
{
    char path[PATH_SIZE + 32];
    struct json_reader reader;
    snprintf(path, sizeof(path), "%s/state.json", child->dir);
    json_t *state = document_load(path, 65535, err);
    jr_init(&reader, state, path, err);
    int result = state ? doc_take(&state_doc, &reader, child) : -1;
    json_decref(state);
    return result;
}

char *child_log_tail(const char *dir, char *out, size_t size)
{
    char path[PATH_SIZE + 32];
    char tail[LOG_TAIL + 1];
    struct stat status;
    size_t got = 0;
    snprintf(path, sizeof(path), "%s/log", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &status) == 0) {
        off_t from = status.st_size > LOG_TAIL ? status.st_size - LOG_TAIL : 0;
        ssize_t count = pread(fd, tail, LOG_TAIL, from);
        got = count > 0 ? (size_t)count : 0;
    }
    if (fd >= 0)
        close(fd);
    while (got > 0 && (tail[got - 1] == '\n' || tail[got - 1] == ' '))
        got--;
    size_t from = got >= size ? got - size + 1 : 0;
    size_t used = 0;
    for (size_t i = from; i < got; i++) {
        unsigned char c = (unsigned char)tail[i];
        out[used++] = (char)(c == '\n' ? '|' : c < 0x20 || c > 0x7e ? '?' : c);
    }
    out[used] = '\0';
    return out;
}

/* ---- reporting the end of a worker ---- */

static void exit_report(struct child *child)
{
    char status[64];
    char tail[300];
    char why[600];
    process_status_text(child->status, status);
    child_log_tail(child->dir, tail, sizeof(tail));
    snprintf(why, sizeof(why), "%s%s%s%s", child->fault, status,
             tail[0] == '\0' ? "" : "; its last words: ", tail);
    child->events.gone(child->arg, child, why);
}

static void stream_drop(struct child *child)
{
    if (child->stream) {
        bufferevent_free(child->stream);
        child->stream = NULL;
    }
    child->has_hello = false;
}

/* Reads the bytes that an ended worker has left in the socket. */
static void socket_drain(struct child *child)
{
    uint64_t deadline_ns = clock_mono_ns() + (uint64_t)DRAIN_MS * 1000000;
    struct evbuffer *input = bufferevent_get_input(child->stream);
    bufferevent_disable(child->stream, EV_READ | EV_WRITE);
    evbuffer_unfreeze(input, 0); /* otherwise only the bufferevent itself may fill its buffer */
    child->paused = false;
    child_stream_readable(child->stream, child);
    while (clock_left_ms(deadline_ns, 1) > 0 &&
           evbuffer_read(input, bufferevent_getfd(child->stream), 1 << 20) > 0) {
        child_stream_readable(child->stream, child);
    }
}

static void process_exited(void *arg, pid_t pid, int status)
{
    struct child *child = arg;
    (void)pid;
    child->status = status;
    child->has_exited = true;
    event_del(child->connect_timer);
    event_del(child->kill_timer);
    if (child->stream) {
        socket_drain(child);
        stream_drop(child);
    }
    exit_report(child);
}

/* ---- the socket ---- */

static void connect_later(struct child *child)
{
    struct timeval wait = {.tv_usec = (suseconds_t)child->connect_ms * 1000};
    child->connect_ms = child->connect_ms * 2 > CONNECT_MS_MAX ? CONNECT_MS_MAX : child->connect_ms * 2;
    event_add(child->connect_timer, &wait);
}

static void connect_try(evutil_socket_t unused, short what, void *arg)
{
    (void)unused;
    (void)what;
    struct child *child = arg;
    struct sockaddr_un address;
    struct err why;
    char path[PATH_SIZE + 32];
    int fd = -1;
    int folder = -1;
    snprintf(path, sizeof(path), "%s/worker.sock", child->dir);
    if (unix_socket_address(path, &address, &folder, &why) == 0)
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const bool connected = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    if (folder >= 0)
        close(folder);
    if (!connected) {
        if (fd >= 0)
            close(fd);
        connect_later(child);
        return;
    }
    child->stream = bufferevent_socket_new(child->base, fd, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (!child->stream) {
        close(fd);
        connect_later(child);
        return;
    }
    child->connect_ms = CONNECT_MS_MIN;
    bufferevent_setcb(child->stream, child_stream_readable, NULL, child_stream_event, child);
    bufferevent_enable(child->stream, (short)(EV_WRITE | (child->paused ? 0 : EV_READ)));
}

static void child_stream_event(struct bufferevent *stream, short what, void *arg)
{
    (void)what;
    struct child *child = arg;
    if (child->stream == stream) {
        child_stream_readable(stream, child); /* read what came before the end */
        if (child->stream == stream) {
            stream_drop(child);
            child->adopted = true; /* messages that were under way may be lost */
            connect_later(child);
        }
    }
}

/* Sends a worker that has just connected its assignment, if it has none, and messages that it may have
 * missed. */
static void hello_take(struct child *child, const json_t *hello)
{
    bool idle = !json_is_integer(json_object_get(hello, "run")) &&
                !json_is_integer(json_object_get(hello, "request"));
    child->has_hello = child->was_heard = true;
    struct evbuffer *output = bufferevent_get_output(child->stream);
    for (int i = 0; i < STORED_COUNT; i++) {
        char path[PATH_SIZE + 32];
        struct buf bytes;
        struct err err;
        if (i == 0 ? !idle : !child->adopted)
            continue;
        buf_init(&bytes, frame_limits_default.bytes_max + 4);
        snprintf(path, sizeof(path), "%s/%s", child->dir, stored_names[i]);
        if (file_read_all(path, bytes.limit, &bytes, &err) == 0)
            evbuffer_add(output, bytes.data, bytes.size);
        buf_fini(&bytes);
    }
    evbuffer_add(output, child->waiting.data, child->waiting.size);
    buf_clear(&child->waiting);
}

static void frame_arrived(struct child *child, json_t *document)
{
    const char *type = json_string_value(json_object_get(document, "type"));
    if (type && strcmp(type, "worker_hello") == 0) {
        hello_take(child, document);
        json_decref(document);
    } else if (!type) {
        json_decref(document);
    } else {
        child->events.event(child->arg, child, document);
    }
}

/* Ends a worker that broke the protocol, because nothing it sends can be trusted. */
static void protocol_error(struct child *child, const char *what)
{
    struct err err;
    snprintf(child->fault, sizeof(child->fault), "it sent what is no message (%.140s) and was ended: ", what);
    child->paused = true;
    bufferevent_disable(child->stream, EV_READ);
    if (!child->has_exited && process_is(child->pid, child->start_time))
        process_kill_group(child->pid, child->start_time, SIGKILL, &err);
}

static void child_stream_readable(struct bufferevent *stream, void *arg)
{
    struct child *child = arg;
    struct evbuffer *input = bufferevent_get_input(stream);
    while (child->stream == stream && !child->paused) {
        size_t size = evbuffer_get_length(input);
        uint8_t head[4];
        if (size < 4 || evbuffer_copyout(input, head, 4) != 4)
            return;
        size_t length = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
        if (length <= frame_limits_default.bytes_max && size - 4 < length)
            return; /* make only complete frames contiguous */
        size_t want = length <= frame_limits_default.bytes_max ? length + 4 : 4;
        const uint8_t *bytes = evbuffer_pullup(input, (ev_ssize_t)want);
        json_t *document = NULL;
        size_t used = 0;
        struct err err;
        if (!bytes || frame_take(bytes, want, &frame_limits_default, &document, &used, &err) <= 0) {
            protocol_error(child, !bytes ? "no memory for its frame" : err.text);
            return;
        }
        evbuffer_drain(input, used);
        frame_arrived(child, document);
    }
}

/* ---- starting, adopting, ending ---- */

static void kill_due(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct child *child = arg;
    struct err err;
    if (!child->has_exited && process_is(child->pid, child->start_time))
        process_kill_group(child->pid, child->start_time, SIGKILL, &err);
}

static struct child *child_make(struct event_base *base, const char *dir, const struct child_events *events,
                                void *arg, struct err *err)
{
    struct child *child = calloc(1, sizeof(*child));
    if (!child || !(child->connect_timer = evtimer_new(base, connect_try, child)) ||
        !(child->kill_timer = evtimer_new(base, kill_due, child))) {
        child_destroy(child);
        err_set(err, ERR_NOMEM, "no memory for a worker");
        return NULL;
    }
    child->base = base;
    child->events = *events;
    child->arg = arg;
    child->status = -1;
    child->connect_ms = CONNECT_MS_MIN;
    buf_init(&child->waiting, WRITE_MAX);
    if (file_path(child->dir, sizeof(child->dir), err, "%s", dir) < 0) {
        child_destroy(child);
        return NULL;
    }
    return child;
}

static int process_start(struct child *child, const struct child_options *options, struct err *err)
{
    char socket_path[PATH_SIZE + 32];
    char log[PATH_SIZE + 32];
    snprintf(socket_path, sizeof(socket_path), "%s/worker.sock", child->dir);
    snprintf(log, sizeof(log), "%s/log", child->dir);
    const char *argv[] = {options->program, "--socket", socket_path, "--dir", child->dir, NULL};
    struct process_options process = {
        .argv = argv,
        .env = options->env,
        .dir = child->dir,
        .stdout_path = log,
        .stderr_path = log,
        .no_new_privs = true,
        .join_group = options->group,
        .own_session = true,
    };
    if (process_spawn(&process, &child->pid, err) < 0)
        return -1;
    child->start_time = process_start_time(child->pid);
    child->watch = process_watch_create(child->base, child->pid, process_exited, child, err);
    if (!child->watch || child_state_write(child, err) < 0) {
        struct err ignored;
        process_kill_group(child->pid, child->start_time, SIGKILL, &ignored);
        process_stop(child->pid, 0, SIGKILL, 1000, &ignored);
        return -1;
    }
    return 0;
}

struct child *child_start(struct event_base *base, const struct child_options *options,
                          const struct child_events *events, void *arg, struct err *err)
{
    struct child *child = child_make(base, options->dir, events, arg, err);
    if (!child)
        return NULL;
    child->work = options->work;
    const json_t *device = json_object_get(json_object_get(options->document, "local"), "device");
    child->work.limit_bytes = json_integer_value(json_object_get(device, "memory_limit_bytes"));
    if (file_remove_tree(child->dir, err) < 0 || file_mkdirs(child->dir, 0700, err) < 0 ||
        frame_keep(child, "assign", options->document, err) < 0 || process_start(child, options, err) < 0) {
        child_destroy(child);
        return NULL;
    }
    connect_later(child);
    return child;
}

struct child *child_adopt(struct event_base *base, const char *dir, const struct child_events *events,
                          void *arg, struct child_work *work, struct err *err)
{
    *work = (struct child_work){.run = -1, .request = -1};
    struct child *child = child_make(base, dir, events, arg, err);
    if (!child)
        return NULL;
    child->adopted = child->was_heard = true;
    if (child_state_read(child, err) < 0) {
        child_destroy(child);
        return NULL;
    }
    *work = child->work;
    if (!process_is(child->pid, child->start_time)) {
        err_set(err, ERR_NOT_FOUND, "the worker of \"%s\" (process %d) does not run any more", dir,
                (int)child->pid);
        child_destroy(child);
        return NULL;
    }
    child->watch = process_watch_create(base, child->pid, process_exited, child, err);
    if (!child->watch) {
        child_destroy(child);
        return NULL;
    }
    connect_later(child);
    return child;
}

json_t *child_limits(const char *folder)
{
    json_t *limits = json_object();
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    while (entries && (entry = readdir(entries))) {
        struct child child = {.pid = 0};
        struct err ignored;
        if (entry->d_name[0] != '.' &&
            file_path(child.dir, sizeof(child.dir), &ignored, "%s/%s", folder, entry->d_name) == 0 &&
            child_state_read(&child, &ignored) == 0 && process_is(child.pid, child.start_time))
            json_object_set_new(limits, child.work.device, json_integer(child.work.limit_bytes));
    }
    if (entries)
        closedir(entries);
    return limits;
}

void child_destroy(struct child *child)
{
    if (!child)
        return;
    process_watch_destroy(child->watch);
    stream_drop(child);
    if (child->connect_timer)
        event_free(child->connect_timer);
    if (child->kill_timer)
        event_free(child->kill_timer);
    buf_fini(&child->waiting);
    free(child);
}

const struct child_work *child_work(const struct child *child)
{
    return &child->work;
}

const char *child_dir(const struct child *child)
{
    return child->dir;
}

pid_t child_pid(const struct child *child)
{
    return child->pid;
}

int child_send(struct child *child, const json_t *message, struct err *err)
{
    const char *type = json_string_value(json_object_get(message, "type"));
    for (int i = 1; i < STORED_COUNT; i++)
        if (type && strcmp(type, stored_names[i]) == 0 && frame_keep(child, type, message, err) < 0)
            return -1;
    if (!child->has_hello)
        return frame_put(message, &child->waiting, err);
    struct evbuffer *output = bufferevent_get_output(child->stream);
    struct buf bytes;
    buf_init(&bytes, frame_limits_default.bytes_max + 4);
    int result = frame_put(message, &bytes, err);
    if (result == 0 && evbuffer_get_length(output) + bytes.size > WRITE_MAX)
        result = err_set(err, ERR_BUSY, "the worker of %s does not read what it is told", child->work.device);
    else if (result == 0 && evbuffer_add(output, bytes.data, bytes.size) < 0)
        result = err_set(err, ERR_NOMEM, "no memory for a message to a worker");
    buf_fini(&bytes);
    return result;
}

void child_pause(struct child *child, bool paused)
{
    if (child->paused == paused)
        return;
    child->paused = paused;
    if (!child->stream || child->has_exited)
        return;
    if (paused) {
        bufferevent_disable(child->stream, EV_READ);
    } else {
        bufferevent_enable(child->stream, EV_READ);
        bufferevent_trigger(child->stream, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
    }
}

void child_end(struct child *child, uint32_t grace_ms)
{
    child->ended = true;
    if (child->has_exited || !process_is(child->pid, child->start_time))
        return;
    struct err err;
    if (grace_ms == 0) {
        process_kill_group(child->pid, child->start_time, SIGKILL, &err);
        return;
    }
    process_signal(child->pid, child->start_time, SIGTERM, &err);
    struct timeval wait = {.tv_sec = grace_ms / 1000, .tv_usec = (suseconds_t)(grace_ms % 1000) * 1000};
    event_add(child->kill_timer, &wait);
}

bool child_was_heard(const struct child *child)
{
    return child->was_heard;
}

bool child_was_ended(const struct child *child)
{
    return child->ended;
}
