/* The worker's lifetime: listen, wait for an assignment, run, report how it ended, wait for the
 * acknowledgement. worker.h describes the protocol. */
#include "worker/worker.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/file.h"
#include "worker/checkpoint/state.h"
#include "worker/profile.h"
#include "worker/prove.h"
#include "worker/session/report.h"
#include "worker/start/reach.h"
#include "worker/start/start.h"
#include "worker/train.h"

#define SECOND_NS ((uint64_t)1000000000u)

struct worker {
    struct worker_options options;
    char files[PATH_MAX]; /* folder for files that wait to be stored */
    struct worker_link *link;
    struct stop_request stop;
    atomic_llong run, epoch; /* run and epoch that were assigned; -1 before that */

    pthread_mutex_t lock; /* guards `session`, which the link's thread uses and session_close frees */
    struct session *session;
};

/* --- called on the link's thread --- */

static bool worker_is_type(const json_t *message, const char *type)
{
    const char *found = json_string_value(json_object_get(message, "type"));
    return found && strcmp(found, type) == 0;
}

/* Whether a message is for this run and from no older epoch. */
static bool is_for_us(struct worker *worker, const json_t *message)
{
    const json_t *run = json_object_get(message, "run"), *epoch = json_object_get(message, "epoch");
    return json_is_integer(run) && json_integer_value(run) == atomic_load(&worker->run) &&
           json_is_integer(epoch) && json_integer_value(epoch) >= atomic_load(&worker->epoch);
}

static void on_message(void *arg, const json_t *message)
{
    struct worker *worker = arg;
    if (worker_is_type(message, "save") && is_for_us(worker, message))
        atomic_store(&worker->stop.save, true);
    if (!worker_is_type(message, "stop") || !is_for_us(worker, message))
        return;
    const char *why = json_string_value(json_object_get(message, "why"));
    bool checkpoint = json_is_true(json_object_get(message, "checkpoint"));
    if (checkpoint)
        atomic_store(&worker->stop.checkpoint, true);
    if (why && strcmp(why, "yield") == 0)
        atomic_store(&worker->stop.yield, true);
    atomic_store(&worker->stop.asked, true);
    /* with a lost rank the step under way can never complete */
    bool lost = why && strcmp(why, "lost") == 0 && !checkpoint;
    if (!lost && !json_is_true(json_object_get(message, "kill")))
        return;
    atomic_store(&worker->stop.kill, true);
    pthread_mutex_lock(&worker->lock);
    if (worker->session)
        session_kill(worker->session);
    pthread_mutex_unlock(&worker->lock);
}

void worker_stop(struct worker *worker)
{
    atomic_store(&worker->stop.checkpoint, true);
    atomic_store(&worker->stop.asked, true);
    worker_link_interrupt(worker->link);
}

/* --- creation --- */

int worker_create(const struct worker_options *options, struct worker **out, struct err *err)
{
    struct worker *worker = calloc(1, sizeof(*worker));
    if (!worker)
        return err_set(err, ERR_NOMEM, "no memory for a worker");
    worker->options = *options;
    if (worker->options.alone_ns == 0)
        worker->options.alone_ns = 600 * SECOND_NS;
    if (worker->options.assign_ns == 0)
        worker->options.assign_ns = 600 * SECOND_NS;
    if (worker->options.linger_ns == 0)
        worker->options.linger_ns = 30 * SECOND_NS;
    atomic_store(&worker->run, -1);
    atomic_store(&worker->epoch, -1);
    pthread_mutex_init(&worker->lock, NULL);
    struct worker_link_options link = {.path = options->socket,
                                       .urgent = on_message,
                                       .urgent_arg = worker,
                                       .alone_ns = worker->options.alone_ns};
    if (file_path(worker->files, sizeof(worker->files), err, "%s/files", options->dir) < 0 ||
        worker_link_open(&link, &worker->link, err) < 0) {
        worker_destroy(worker);
        return -1;
    }
    *out = worker;
    return 0;
}

void worker_destroy(struct worker *worker)
{
    if (!worker)
        return;
    worker_link_close(worker->link);
    pthread_mutex_destroy(&worker->lock);
    free(worker);
}

/* --- a run --- */

/* Whether an error is the job's own fault, so that it is not tried again. ERR_CORRUPT means a damaged model,
 * adapter or checkpoint; a chunk or frame that is damaged in transit is fetched again or is the peer's fault.
 * ERR_NOFIT is a device limit that the plan should have respected; ERR_NOMEM is memory that the node lacks
 * now, and another time or another node may have it. */
static bool is_own_fault(enum err_code code)
{
    return code == ERR_INVALID || code == ERR_UNSUPPORTED || code == ERR_NOFIT || code == ERR_TOO_BIG ||
           code == ERR_NOT_FINITE || code == ERR_CORRUPT;
}

static int emit_failed(struct worker *worker, const struct err *failure, struct err *err)
{
    return worker_link_emit(worker->link, "failed",
                            json_pack("{s:s, s:s, s:b}", "code", err_code_name(failure->code), "text",
                                      failure->text, "own_fault", (int)is_own_fault(failure->code)),
                            err);
}

static void set_session(struct worker *worker, struct session *session)
{
    pthread_mutex_lock(&worker->lock);
    worker->session = session;
    pthread_mutex_unlock(&worker->lock);
}

/* Returns the `peers` message (new), or NULL with ERR_CANCELLED when told to stop, ERR_TIMEOUT without an
 * agent for too long. */
static json_t *worker_wait_for_peers(struct worker *worker, struct err *err)
{
    for (;;) {
        if (atomic_load(&worker->stop.asked)) {
            err_set(err, ERR_CANCELLED, "told to stop before the first step");
            return NULL;
        }
        if (worker_link_alone(worker->link) > worker->options.alone_ns) {
            err_set(err, ERR_TIMEOUT, "no agent for %.0f s", (double)worker->options.alone_ns * 1e-9);
            return NULL;
        }
        json_t *message = worker_link_take(worker->link, clock_mono_ns() + SECOND_NS, err);
        if (message && worker_is_type(message, "peers") && is_for_us(worker, message))
            return message;
        json_decref(message);
    }
}

/* Runs the session from `worker_ready` to the last event. */
static int run_session(struct worker *worker, struct session *session, struct err *err)
{
    uint64_t stopped_at = session->assignment->start_step;
    bool saved = false;
    json_t *artifacts = NULL, *peers = NULL;
    if (session->mesh && !(peers = worker_wait_for_peers(worker, err)) && err->code != ERR_CANCELLED)
        return -1;
    if (atomic_load(&worker->stop.asked)) {
        json_decref(peers);
        return worker_link_emit(worker->link, "stopped",
                                json_pack("{s:I, s:b}", "step", (json_int_t)stopped_at, "checkpoint", 0),
                                err);
    }
    int result = session_connect(session, peers, err);
    json_decref(peers);
    if (result == 0)
        result = worker_link_emit(worker->link, "started", json_pack("{s:I}", "step", (json_int_t)stopped_at),
                                  err);
    if (result < 0 || session_train(session, &stopped_at, &saved, &artifacts, err) < 0 ||
        report_memory(session, err) < 0 || report_links(session, err) < 0) {
        json_decref(artifacts);
        return -1;
    }
    if (stopped_at != UINT64_MAX) {
        json_decref(artifacts);
        return worker_link_emit(
            worker->link, "stopped",
            json_pack("{s:I, s:b}", "step", (json_int_t)stopped_at, "checkpoint", (int)saved), err);
    }
    const char *warnings = session->progress.warnings;
    return worker_link_emit(worker->link, "done",
                            json_pack("{s:I, s:o*, s:s*}", "step", (json_int_t)session->progress.steps,
                                      "artifacts", artifacts, "warnings", *warnings ? warnings : NULL),
                            err);
}

static int set_event_fields(struct worker *worker, const json_t *message, struct err *err)
{
    json_t *fields = json_object();
    static const char *const keys[] = {"run", "epoch", "rank", "job", "request"};
    for (size_t k = 0; k < sizeof(keys) / sizeof(*keys); k++) {
        json_t *value = json_object_get(message, keys[k]);
        if (value)
            json_object_set(fields, keys[k], value);
    }
    int result = worker_link_identify(worker->link, fields, err);
    json_decref(fields);
    return result;
}

/* Handles an assignment. Takes the message. A failure is reported to the agent and returned. */
static int do_assignment(struct worker *worker, json_t *message, struct err *err)
{
    struct assignment *assignment = NULL;
    struct session *session = NULL;
    if (set_event_fields(worker, message, err) < 0) {
        json_decref(message);
        return -1;
    }
    atomic_store(&worker->run, (long long)json_integer_value(json_object_get(message, "run")));
    atomic_store(&worker->epoch, (long long)json_integer_value(json_object_get(message, "epoch")));
    int result = assignment_read(message, &assignment, err);
    const struct session_place place = {.link = worker->link,
                                        .stop = &worker->stop,
                                        .dir = worker->files,
                                        .confined = worker->options.confined};
    if (result == 0)
        result = session_open(&place, assignment, &session, err);
    if (result == 0) {
        session->alone_ns = worker->options.alone_ns;
        set_session(worker, session);
        if (atomic_load(&worker->stop.kill))
            session_kill(session);
        result = run_session(worker, session, err);
        set_session(worker, NULL);
    }
    json_int_t done = session ? (json_int_t)session->progress.steps_done : 0;
    /* After ERR_NOT_FINITE, which all ranks learn from the same sum, all end alike, so the orderly close
     * loses no message that a peer has not read. */
    session_close(session, result == 0 || err->code == ERR_NOT_FINITE);
    if (result < 0 && atomic_load(&worker->stop.kill))
        return worker_link_emit(worker->link, "stopped",
                                json_pack("{s:I, s:b}", "step", done, "checkpoint", 0), err);
    if (result < 0) {
        struct err failure = *err, ignored;
        if (emit_failed(worker, &failure, &ignored) < 0)
            return err_wrap(err, "not reported (%s)", ignored.text);
    }
    return result;
}

/* Handles a message that is no assignment: `profile` or `prove`. Takes the message. */
static int do_request(struct worker *worker, json_t *message, struct err *err)
{
    struct local_part local;
    const struct reach reach = {.local = &local};
    int result = set_event_fields(worker, message, err);
    if (result == 0 && worker->options.confined)
        result = local_read(message, &local, err) < 0 ? -1 : reach_limit(&reach, worker->link, err);
    if (result == 0)
        result = worker_is_type(message, "prove") ? prove_run(worker->link, message, &worker->stop, err)
                                                  : profile_run(worker->link, message, &worker->stop, err);
    json_decref(message);
    if (result < 0) {
        struct err failure = *err, ignored;
        if (emit_failed(worker, &failure, &ignored) < 0)
            return err_wrap(err, "not reported (%s)", ignored.text);
    }
    return result;
}

/* Waits for the one message that gives this process its work. */
static json_t *wait_for_work(struct worker *worker, struct err *err)
{
    uint64_t deadline_ns = clock_mono_ns() + worker->options.assign_ns;
    for (;;) {
        json_t *message = worker_link_take(worker->link, deadline_ns, err);
        if (!message || worker_is_type(message, "assign") || worker_is_type(message, "profile") ||
            worker_is_type(message, "prove"))
            return message;
        json_decref(message);
    }
}

int worker_main(struct worker *worker, struct err *err)
{
    json_t *message = wait_for_work(worker, err);
    if (!message)
        return -1;
    int result = worker_is_type(message, "assign") ? do_assignment(worker, message, err)
                                                   : do_request(worker, message, err);
    struct err unheard;
    if (worker_link_flush(worker->link, worker->options.linger_ns, &unheard) < 0 && result == 0) {
        *err = unheard;
        return -1;
    }
    return result;
}
