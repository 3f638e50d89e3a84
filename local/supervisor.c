/* The supervisor: starts the services of HOME/run/services.json in the order of their phases, restarts those
 * that die, and stops them all when told to.
 *
 * One thread with one loop waits for a signal or the next deadline, and checks every service.
 * HOME/run/state.json records what it knows, for `status`, `down` and the next supervisor; it is rewritten
 * whenever a process starts or ends.
 */
#include "local/local.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/document.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/json.h"
#include "common/log.h"
#include "common/process.h"
#include "local/home.h"
#include "local/join.h"
#include "local/postgres.h"
#include "local/remains.h"

enum {
    SERVICES_MAX = 256,
    ARGUMENTS_MAX = 32,
    SERVICES_BYTES = 1 << 20,
    BACKOFF_MS_MIN = 100,
    BACKOFF_MS_MAX = 5000,
    STABLE_MS = 2000, /* a process that lived longer begins again with the shortest back-off */
    TICK_MS = 100,
    HOUSEKEEPING_MS = 2000,
    STOP_GRACE_MS = 10000,
    LOG_BYTES_MAX = 64 << 20, /* a larger log is emptied, after its end was saved as .old */
    LOG_BYTES_KEPT = 1 << 20
};

struct service {
    const json_t *entry; /* the service's entry in HOME/run/services.json */
    const char *role, *name;
    pid_t pid; /* 0: not running */
    uint64_t process_start;
    uint64_t started_ns, next_start_ns;
    uint32_t backoff_ms, restarts;
    int last_status;
    bool done; /* a service that runs once has succeeded */
};

struct supervisor {
    const char *home;
    char real[PATH_MAX]; /* where the home's link leads; a lost link is made again */
    json_t *list;
    struct service *services;
    size_t count;
    bool stopping;
    uint64_t housekeeping_ns;
};

static const char *supervisor_text_of(const struct service *s, const char *key)
{
    return json_string_value(json_object_get(s->entry, key));
}

static int64_t supervisor_number_of(const struct service *s, const char *key, int64_t otherwise)
{
    const json_t *value = json_object_get(s->entry, key);
    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

static bool is_once(const struct service *s)
{
    return json_is_true(json_object_get(s->entry, "once"));
}

/* Whether the service offers join tokens (local/join.h): it runs whenever an agent waits for one. */
static bool is_join(const struct service *s)
{
    return strcmp(s->role, "helper") == 0;
}

static void supervisor_state_write(const struct supervisor *v)
{
    char path[HOME_PATH_BYTES];
    struct err err;
    json_t *list = json_array();
    for (size_t i = 0; i < v->count; i++) {
        const struct service *s = &v->services[i];
        const char *address = supervisor_text_of(s, "address");
        json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:I, s:s?, s:s?, s:I, s:b, s:b, s:i}", "role",
                                              s->role, "name", s->name, "pid", (json_int_t)s->pid, "start",
                                              (json_int_t)s->process_start, "address", address, "leader_file",
                                              supervisor_text_of(s, "leader_file"), "restarts",
                                              (json_int_t)s->restarts, "once", is_once(s), "done", s->done,
                                              "status", s->last_status));
    }
    json_t *state = json_pack("{s:s, s:I, s:I, s:o}", "home", v->home, "pid", (json_int_t)getpid(), "start",
                              (json_int_t)process_start_time(getpid()), "services", list);
    snprintf(path, sizeof(path), "%s/run/state.json", v->home);
    if (document_save(path, state, false, 0600, &err) < 0)
        log_event(LOG_LEVEL_ERROR, "state_lost", "path=%s", path);
    json_decref(state);
}

/* Whether an agent that does not run needs a join token. */
static bool agent_waits(const struct supervisor *v)
{
    for (size_t i = 0; i < v->count; i++) {
        const struct service *s = &v->services[i];
        if (s->pid == 0 && supervisor_text_of(s, "join_file") && agent_needs_token(v->home, s->name))
            return true;
    }
    return false;
}

/* Whether the service may start now. Services of a later phase wait until the once-services before them have
 * succeeded; an agent waits for its join token. */
static bool may_start(const struct supervisor *v, const struct service *s, uint64_t now)
{
    if (s->pid != 0 || now < s->next_start_ns || (is_join(s) ? !agent_waits(v) : s->done))
        return false;
    const int64_t phase = supervisor_number_of(s, "phase", 0);
    for (size_t i = 0; i < v->count; i++) {
        const struct service *other = &v->services[i];
        if (supervisor_number_of(other, "phase", 0) >= phase)
            continue;
        if (is_once(other) ? !other->done : other->pid == 0 && phase == 1)
            return false;
    }
    const char *join = supervisor_text_of(s, "join_file");
    return !join || file_exists(supervisor_text_of(s, "enrolled_file")) || file_exists(join);
}

/* Makes the command line. An agent that is not enrolled reads its join token, which can be used once, from
 * its standard input, as everybody on the machine can read command lines. Returns the descriptor to read it
 * from, or -1. */
static int arguments_make(const struct service *s, const char **argv)
{
    const json_t *list = json_object_get(s->entry, "argv");
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(list) && count < ARGUMENTS_MAX - 3; i++)
        argv[count++] = json_string_value(json_array_get(list, i));
    const char *join = supervisor_text_of(s, "join_file");
    int token = -1;
    if (join && !file_exists(supervisor_text_of(s, "enrolled_file")))
        token = open(join, O_RDONLY | O_CLOEXEC);
    if (token >= 0) {
        argv[count++] = "--join-file";
        argv[count++] = "/dev/stdin";
    }
    if (join)
        unlink(join);
    argv[count] = NULL;
    return token;
}

/* Sets the next start. The pause bounds how often a process is started, so it counts from start to start: a
 * process that keeps dying at once is started every BACKOFF_MS_MAX, one that lived for a while at once. */
static void backoff_grow(struct service *s, uint64_t now)
{
    const bool stable = s->started_ns != 0 && now - s->started_ns > (uint64_t)STABLE_MS * 1000000u;
    s->backoff_ms = stable || s->backoff_ms == 0 ? BACKOFF_MS_MIN : 2 * s->backoff_ms;
    s->backoff_ms = s->backoff_ms > BACKOFF_MS_MAX ? BACKOFF_MS_MAX : s->backoff_ms;
    s->next_start_ns = s->started_ns + (uint64_t)s->backoff_ms * 1000000u;
}

static void service_start(struct supervisor *v, struct service *s, uint64_t now)
{
    char log[HOME_PATH_BYTES];
    const char *argv[ARGUMENTS_MAX];
    struct err err = {0};
    snprintf(log, sizeof(log), "%s/logs/%s%s.log", v->home, strcmp(s->role, "agent") == 0 ? "agent-" : "",
             s->name);
    if (strcmp(s->role, "postgres") == 0) {
        postgres_clear_stale(supervisor_text_of(s, "dir"));
    } else if (strcmp(s->role, "redis") == 0) {
        /* The folder may have been removed. An error is ignored, because Redis reports a missing folder. */
        file_mkdirs(supervisor_text_of(s, "dir"), 0700, &err);
    }
    const int token = arguments_make(s, argv);
    const struct process_options options = {.argv = argv,
                                            .dir = "/",
                                            .stdout_path = log,
                                            .stderr_path = log,
                                            .stdio_fd = {token, 0, 0},
                                            .uid = (uid_t)supervisor_number_of(s, "uid", 0),
                                            .gid = (gid_t)supervisor_number_of(s, "gid", 0),
                                            .own_group = true};
    s->started_ns = now;
    if (process_spawn(&options, &s->pid, &err) < 0) {
        s->pid = 0;
        s->restarts++;
        s->last_status = -1;
        backoff_grow(s, now);
        log_event(LOG_LEVEL_ERROR, "start_failed", "service=%s error=\"%s\"", s->name, err.text);
    } else {
        s->process_start = process_start_time(s->pid);
        log_event(LOG_LEVEL_INFO, "started", "service=%s pid=%d", s->name, (int)s->pid);
    }
    if (token >= 0)
        close(token);
    supervisor_state_write(v);
}

static void service_ended(struct supervisor *v, struct service *s, int status, uint64_t now)
{
    char text[64];
    log_event(LOG_LEVEL_INFO, "ended", "service=%s pid=%d how=\"%s\"", s->name, (int)s->pid,
              process_status_text(status, text));
    s->pid = 0;
    s->process_start = 0;
    s->last_status = status;
    s->done = is_once(s) && status == 0;
    s->restarts += !s->done && !v->stopping;
    backoff_grow(s, now);
    supervisor_state_write(v);
}

static void children_reap(struct supervisor *v)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (size_t i = 0; i < v->count; i++)
            if (v->services[i].pid == pid)
                service_ended(v, &v->services[i], status, clock_mono_ns());
    }
}

/* Bounds a log: saves its end under another name and empties it in place (its writers append). */
static void log_bound(const char *path)
{
    struct stat info;
    if (stat(path, &info) < 0 || info.st_size <= LOG_BYTES_MAX)
        return;
    char old[HOME_PATH_BYTES + 8];
    struct err err;
    uint8_t *bytes = malloc(LOG_BYTES_KEPT);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    snprintf(old, sizeof(old), "%s.old", path);
    if (bytes && fd >= 0 &&
        file_pread_all(fd, bytes, LOG_BYTES_KEPT, (uint64_t)info.st_size - LOG_BYTES_KEPT, path, &err) == 0 &&
        file_write_atomic(old, bytes, LOG_BYTES_KEPT, 0600, &err) == 0 && ftruncate(fd, 0) < 0) {
        log_event(LOG_LEVEL_ERROR, "log_kept", "path=%s", path);
    }
    if (fd >= 0)
        close(fd);
    free(bytes);
}

static void housekeeping(struct supervisor *v)
{
    char path[HOME_PATH_BYTES];
    char place[HOME_PLACE_BYTES];
    struct err err;
    if (!file_exists(v->home) && home_place(v->real, true, place, &err) < 0)
        log_event(LOG_LEVEL_ERROR, "home_lost", "error=\"%s\"", err.text);
    for (size_t i = 0; i < v->count; i++) {
        const struct service *s = &v->services[i];
        snprintf(path, sizeof(path), "%s/logs/%s%s.log", v->home,
                 strcmp(s->role, "agent") == 0 ? "agent-" : "", s->name);
        log_bound(path);
    }
}

/* Stops all services of one role at once and waits for them. */
static void role_stop(struct supervisor *v, const char *role)
{
    int64_t wait_ms = STOP_GRACE_MS;
    struct err err;
    for (size_t i = 0; i < v->count; i++) {
        struct service *s = &v->services[i];
        const int64_t own_ms = strcmp(s->role, role) == 0 ? supervisor_number_of(s, "stop_ms", 0) : 0;
        wait_ms = own_ms > wait_ms ? own_ms : wait_ms;
        if (s->pid != 0 && strcmp(s->role, role) == 0)
            process_signal(s->pid, s->process_start, (int)supervisor_number_of(s, "stop_signal", SIGTERM),
                           &err);
    }
    const uint64_t deadline = clock_mono_ns() + (uint64_t)wait_ms * 1000000u;
    for (size_t i = 0; i < v->count; i++) {
        struct service *s = &v->services[i];
        while (s->pid != 0 && strcmp(s->role, role) == 0) {
            if (clock_left_ms(deadline, 1) == 0)
                process_kill_group(s->pid, s->process_start, SIGKILL, &err);
            poll(NULL, 0, 10);
            children_reap(v);
        }
    }
}

/* Stops the services in the opposite order of the list, which begins with those that the others need, and
 * workers once no agent is left. */
static void stop_all(struct supervisor *v)
{
    struct err err;
    v->stopping = true;
    role_stop(v, "agent");
    if (remains_stop(v->home, "motley-worker", &err) < 0)
        log_event(LOG_LEVEL_ERROR, "workers_left", "error=\"%s\"", err.text);
    for (size_t i = v->count; i-- > 0;)
        role_stop(v, v->services[i].role);
}

static int services_load(struct supervisor *v, struct err *err)
{
    char path[HOME_PATH_BYTES];
    snprintf(path, sizeof(path), "%s/run/services.json", v->home);
    if (!(v->list = document_load(path, SERVICES_BYTES, err)))
        return -1;
    v->count = json_array_size(v->list);
    v->services = calloc(v->count + 1, sizeof(*v->services));
    if (!v->services || v->count > SERVICES_MAX)
        return err_set(err, ERR_TOO_BIG, "%s lists %zu services, more than %d", path, v->count, SERVICES_MAX);
    for (size_t i = 0; i < v->count; i++) {
        struct service *s = &v->services[i];
        s->entry = json_array_get(v->list, i);
        s->role = supervisor_text_of(s, "role");
        s->name = supervisor_text_of(s, "name");
        if (!s->role || !s->name || json_array_size(json_object_get(s->entry, "argv")) == 0)
            return err_set(err, ERR_CORRUPT, "%s: entry %zu is no service", path, i);
    }
    return 0;
}

/* Runs the services until SIGTERM or SIGINT. */
static void supervisor_watch(struct supervisor *v, int signals)
{
    while (!v->stopping) {
        struct pollfd wait = {.fd = signals, .events = POLLIN};
        poll(&wait, 1, TICK_MS);
        struct signalfd_siginfo info;
        while (read(signals, &info, sizeof(info)) == sizeof(info))
            v->stopping = v->stopping || info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT;
        children_reap(v);
        const uint64_t now = clock_mono_ns();
        for (size_t i = 0; i < v->count && !v->stopping; i++)
            if (may_start(v, &v->services[i], now))
                service_start(v, &v->services[i], now);
        if (now >= v->housekeeping_ns) {
            housekeeping(v);
            v->housekeeping_ns = now + (uint64_t)HOUSEKEEPING_MS * 1000000u;
        }
    }
}

static int signals_open(struct err *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGCHLD);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return err_errno(err, ERR_INTERNAL, errno, "could not block signals");
    const int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    return fd >= 0 ? fd : err_errno(err, ERR_INTERNAL, errno, "could not watch signals");
}

/* Locks the folder in /tmp that has the link to the home, if there is one: programs that clean /tmp by age
 * leave locked folders alone (systemd-tmpfiles). Returns the descriptor, or -1. */
static int supervisor_links_hold(const char *home, const char *real)
{
    char folder[HOME_PATH_BYTES];
    const char *slash = strrchr(home, '/');
    if (strcmp(home, real) == 0 || !slash)
        return -1;
    snprintf(folder, sizeof(folder), "%.*s", (int)(slash - home), home);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0)
        log_event(LOG_LEVEL_WARN, "links_not_held", "path=%s", folder);
    return fd;
}

int local_supervise(const char *home, struct err *err)
{
    struct supervisor v = {.home = home};
    char path[HOME_PATH_BYTES];
    if (!realpath(home, v.real))
        return err_errno(err, ERR_IO, errno, "could not look at the home \"%s\"", home);
    snprintf(path, sizeof(path), "%s/run/lock", home);
    const int lock = file_lock(path, err);
    if (lock < 0)
        return -1;
    const int links = supervisor_links_hold(home, v.real);
    int status = -1;
    const int signals = signals_open(err);
    if (signals >= 0 && services_load(&v, err) == 0) {
        supervisor_state_write(&v);
        supervisor_watch(&v, signals);
        stop_all(&v);
        snprintf(path, sizeof(path), "%s/run/state.json", home);
        unlink(path);
        status = 0;
    }
    if (signals >= 0)
        close(signals);
    if (links >= 0)
        close(links);
    free(v.services);
    json_decref(v.list);
    close(lock);
    return status;
}
