/* The workers of this node's devices: starts them, takes their events into the journal, and gives a rank
 * whose worker was lost its final event. messages.c has what the scheduler asks for. */
#include "agent/supervise_private.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/flush.h"
#include "agent/groups.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/json.h"
#include "common/log.h"

enum { PATH_SIZE = 700, PROVE_TICK_MS = 100 };

static void child_event(void *arg, struct child *child, json_t *event);
static void child_gone(void *arg, struct child *child, const char *why);
static const struct child_events child_callbacks = {.event = child_event, .gone = child_gone};

/* ---- lookups ---- */

struct device_state *supervisor_device(struct worker_supervisor *supervisor, const char *name)
{
    for (uint32_t i = 0; name && i < supervisor->state_count; i++)
        if (strcmp(supervisor->states[i].device->name, name) == 0)
            return &supervisor->states[i];
    return NULL;
}

static struct device_state *state_of_child(struct worker_supervisor *supervisor, const struct child *child)
{
    for (uint32_t i = 0; i < supervisor->state_count; i++)
        if (supervisor->states[i].child == child)
            return &supervisor->states[i];
    return NULL;
}

bool work_is_proof(const struct child_work *work)
{
    return work->run < 0 && work->request == PROOF_REQUEST;
}

void supervisor_trouble(const char *event, const struct err *err)
{
    log_event(LOG_LEVEL_WARN, event, "why=\"%s\"", err->text);
}

/* Notes what the device lacks; NULL: nothing. */
static void proof_end(struct worker_supervisor *supervisor, struct device_state *state, const char *why)
{
    if (!proof_take(&state->proof, why, clock_mono_ns()))
        return;
    log_event(why ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, why ? "device_lacks" : "device_proved",
              "device=%s why=\"%s\"", state->device->name, why ? why : "");
    supervisor->lacking_moved = true;
}

/* ---- events ---- */

static struct journal_stream *supervise_stream_of(struct worker_supervisor *supervisor,
                                                  const struct child_work *work)
{
    char key[JOURNAL_KEY_SIZE];
    struct err err;
    if (work->run < 0)
        snprintf(key, sizeof(key), "node");
    else
        feed_key(key, work->run, work->epoch, work->rank);
    struct journal_stream *stream = journal_stream(supervisor->journal, key, &err);
    if (!stream)
        supervisor_trouble("journal_stream", &err);
    return stream;
}

void event_append(struct worker_supervisor *supervisor, const struct child_work *work, const char *type,
                  json_t *event, bool final)
{
    struct err err;
    struct journal_stream *stream = supervise_stream_of(supervisor, work);
    if (!stream || stream->final) {
        json_decref(event);
        return;
    }
    const json_int_t of[] = {work->run, work->epoch, work->rank, work->request};
    json_object_update_new(
        event, of[0] < 0 ? json_pack("{s:I}", "request", of[3])
                         : json_pack("{s:I, s:I, s:I}", "run", of[0], "epoch", of[1], "rank", of[2]));
    struct device_state *state = supervisor_device(supervisor, work->device);
    if (feed_event(supervisor->feed, stream, type, event, final && work->run >= 0, &err) < 0) {
        supervisor_trouble("event_not_on_disk", &err);
        err_wrap(&err, "events cannot be stored in %s/journal", supervisor->home);
        if (state)
            proof_end(supervisor, state, err.text);
    } else if (state && state->child && stream->durable + 1 >= stream->last) {
        proof_end(supervisor, state, NULL);
    }
    flush_wanted(supervisor->flush);
}

void failure_append(struct worker_supervisor *supervisor, const struct child_work *work, enum err_code code,
                    const char *text)
{
    log_event(LOG_LEVEL_WARN, "rank_failed",
              "run=%" PRId64 " epoch=%" PRId64 " rank=%" PRId64 " request=%" PRId64 " code=%s why=\"%s\"",
              work->run, work->epoch, work->rank, work->request, err_code_name(code), text);
    event_append(supervisor, work, "failed",
                 json_pack("{s:s, s:s, s:b}", "code", err_code_name(code), "text", text, "own_fault", 0),
                 true);
}

static bool supervise_is_final(const char *type)
{
    return strcmp(type, "done") == 0 || strcmp(type, "failed") == 0 || strcmp(type, "stopped") == 0;
}

/* Acknowledges the durable events to the worker, so that it forgets none that could still be lost. */
static void child_ack(struct worker_supervisor *supervisor, struct device_state *state)
{
    const struct child_work *work = child_work(state->child);
    const struct journal_stream *stream = work_is_proof(work) ? NULL : supervise_stream_of(supervisor, work);
    struct err err;
    uint64_t seq = work_is_proof(work) ? state->events_taken : state->acked; /* no proof's event is stored */
    if (stream && work->run >= 0)
        seq = stream->durable;
    else if (stream && stream->durable >= state->node_number)
        seq = state->events_taken;
    if (seq <= state->acked)
        return;
    json_t *ack = json_pack("{s:s, s:I}", "type", "ack", "seq", (json_int_t)seq);
    if (work->run >= 0)
        json_object_set_new(ack, "run", json_integer((json_int_t)work->run));
    if (child_send(state->child, ack, &err) < 0)
        supervisor_trouble("ack_not_sent", &err);
    else
        state->acked = seq;
    json_decref(ack);
}

static void journal_durable(void *arg)
{
    struct worker_supervisor *supervisor = arg;
    for (uint32_t i = 0; i < supervisor->state_count; i++)
        if (supervisor->states[i].child)
            child_ack(supervisor, &supervisor->states[i]);
}

/* ---- proofs ---- */

static void proof_event(struct worker_supervisor *supervisor, struct device_state *state, json_t *event)
{
    const bool failed = strcmp(json_string_value(json_object_get(event, "type")), "failed") == 0;
    const char *text = json_string_value(json_object_get(event, "text"));
    state->events_taken = (uint64_t)json_integer_value(json_object_get(event, "seq"));
    state->finished = true;
    proof_end(supervisor, state, !failed ? NULL : text ? text : "it gave no reason");
    child_ack(supervisor, state);
    json_decref(event);
}

/* Takes an event of a worker into the journal; it is acknowledged to the worker once it is durable. A
 * repeated event is acknowledged again, because the worker repeats it after its connection broke. */
static void child_event(void *arg, struct child *child, json_t *event)
{
    struct worker_supervisor *supervisor = arg;
    const struct child_work *work = child_work(child);
    struct device_state *state = state_of_child(supervisor, child);
    struct err err;
    struct json_reader reader;
    int64_t seq = 0;
    const char *type = NULL;
    jr_init(&reader, event, "event", &err);
    jr_str(&reader, "type", JR_REQUIRED, 1, 32, &type);
    jr_i64(&reader, "seq", JR_REQUIRED, 1, INT64_MAX, &seq);
    if (!state || jr_finish_loose(&reader) < 0) {
        supervisor_trouble("event_refused", &err);
        json_decref(event);
        return;
    }
    if (work_is_proof(work)) {
        proof_event(supervisor, state, event);
        return;
    }
    char name[40];
    snprintf(name, sizeof(name), "%s", type);
    if (strcmp(name, "worker_ready") == 0)
        proof_end(supervisor, state, NULL);
    struct journal_stream *stream = supervise_stream_of(supervisor, work);
    uint64_t have = work->run >= 0 ? (!stream ? UINT64_MAX : stream->last) : state->events_taken;
    bool next = work->run >= 0 ? (uint64_t)seq == have + 1 : (uint64_t)seq > have;
    if (next) {
        const bool own_fault = json_is_true(json_object_get(event, "own_fault"));
        const double cpu_per_byte = supervisor->links ? links_cpu_per_byte(supervisor->links) : 0;
        if (strcmp(name, "profile") == 0 && cpu_per_byte > 0)
            json_object_set_new(json_object_get(event, "document"), "wire_s_per_byte",
                                json_real(cpu_per_byte));
        event_append(supervisor, work, name, event, supervise_is_final(name));
        if (strcmp(name, "failed") == 0 && !own_fault)
            proof_doubt(&state->proof, clock_mono_ns());
        state->finished =
            state->finished || supervise_is_final(name) || (work->run < 0 && strcmp(name, "profile") == 0);
        state->events_taken = (uint64_t)seq;
        state->node_number = stream ? stream->last : 0;
    } else {
        json_decref(event);
        state->acked = (uint64_t)seq <= state->acked ? 0 : state->acked;
        child_ack(supervisor, state);
        flush_wanted(supervisor->flush);
    }
    if (!supervisor->paused && journal_is_full(supervisor->journal)) {
        supervisor->paused = true;
        log_event(LOG_LEVEL_WARN, "journal_full", "limit_bytes=%" PRIu64,
                  supervisor->config->journal_limit_bytes);
    }
    if (supervisor->paused)
        child_pause(child, true);
}

void supervisor_acked(struct worker_supervisor *supervisor)
{
    if (supervisor->paused && !journal_is_full(supervisor->journal)) {
        supervisor->paused = false;
        for (uint32_t i = 0; i < supervisor->state_count; i++)
            if (supervisor->states[i].child)
                child_pause(supervisor->states[i].child, false);
    }
}

/* ---- starting ---- */

static int work_start(struct worker_supervisor *supervisor, struct device_state *state,
                      const struct child_work *work, const json_t *message, struct err *err)
{
    char dir[PATH_SIZE], group[4096];
    struct worker_env env;
    const struct worker_place place = {state->device, supervisor->config, supervisor->identity,
                                       supervisor->home, state->read_ns};
    worker_env_make(&env, &place);
    int made = work->run >= 0
                   ? file_path(dir, sizeof(dir), err, "%s/run/%" PRId64 "-%" PRId64, supervisor->home,
                               work->run, work->rank)
                   : file_path(dir, sizeof(dir), err, "%s/run/request-%" PRId64 "-%u", supervisor->home,
                               work->request, (unsigned)(state - supervisor->states));
    made = made < 0 ? -1
                    : groups_worker(supervisor->groups, (uint32_t)(state - supervisor->states),
                                    worker_host_bytes(state->device, message), group, err);
    json_t *document = made < 0 ? NULL : worker_document(&place, message);
    if (!document)
        return made < 0 ? -1 : err_set(err, ERR_NOMEM, "no memory for an assignment");
    struct child_options options = {
        .program = supervisor->worker, .dir = dir, .env = env.list, .work = *work, .document = document};
    options.group = group[0] != '\0' ? group : NULL;
    state->finished = false;
    state->events_taken = state->node_number = state->acked = 0;
    state->child = child_start(supervisor->base, &options, &child_callbacks, supervisor, err);
    json_decref(document);
    if (!state->child)
        return -1;
    log_event(LOG_LEVEL_INFO, "worker_started",
              "device=%s run=%" PRId64 " epoch=%" PRId64 " rank=%" PRId64 " request=%" PRId64 " pid=%d",
              state->device->name, work->run, work->epoch, work->rank, work->request,
              (int)child_pid(state->child));
    if (supervisor->paused)
        child_pause(state->child, true);
    return 0;
}

void pending_refuse(struct worker_supervisor *supervisor, struct device_state *state, enum err_code code,
                    const char *text)
{
    struct child_work work;
    struct err err;
    if (state->pending && worker_work_read(state->pending, &work, &err) == 0)
        failure_append(supervisor, &work, code, text);
    json_decref(state->pending);
    state->pending = NULL;
}

void start_failed(struct worker_supervisor *supervisor, struct device_state *state, const struct err *err)
{
    pending_refuse(supervisor, state, err->code == ERR_NOMEM ? ERR_NOMEM : ERR_NODE, err->text);
    proof_doubt(&state->proof, clock_mono_ns());
}

void pending_start(struct worker_supervisor *supervisor, struct device_state *state)
{
    struct child_work work;
    struct err err;
    if (worker_work_read(state->pending, &work, &err) == 0 &&
        work_start(supervisor, state, &work, state->pending, &err) < 0)
        start_failed(supervisor, state, &err);
    json_decref(state->pending);
    state->pending = NULL;
}

/* ---- trials ---- */

/* Starts a worker that only shows whether the device can run one. */
static void prove_start(struct worker_supervisor *supervisor, struct device_state *state)
{
    struct child_work work;
    struct err err;
    json_t *message = json_pack("{s:s, s:i, s:s}", "type", "prove", "request", PROOF_REQUEST, "device",
                                state->device->name);
    state->proof.began_ns = clock_mono_ns();
    if (worker_work_read(message, &work, &err) < 0 || work_start(supervisor, state, &work, message, &err) < 0)
        proof_end(supervisor, state, err.text);
    json_decref(message);
}

static void prove_due(evutil_socket_t fd, short what, void *arg)
{
    struct worker_supervisor *supervisor = arg;
    const uint64_t now_ns = clock_mono_ns();
    (void)fd, (void)what;
    for (uint32_t i = 0; i < supervisor->state_count && !supervisor->ending; i++) {
        struct device_state *state = &supervisor->states[i];
        if (!state->child && !state->pending && proof_is_due(&state->proof, now_ns)) {
            prove_start(supervisor, state);
        } else if (state->child && work_is_proof(child_work(state->child)) &&
                   !child_was_ended(state->child) && proof_hangs(&state->proof, now_ns)) {
            proof_end(supervisor, state, "a worker did not multiply within 180 s");
            child_end(state->child, 0);
        }
    }
    if (supervisor->lacking_moved)
        supervisor->lacking_changed(supervisor->lacking_arg);
    supervisor->lacking_moved = false;
}

json_t *supervisor_lacking(const struct worker_supervisor *supervisor)
{
    json_t *lacking = json_object();
    for (uint32_t i = 0; i < supervisor->state_count; i++)
        if (supervisor->states[i].proof.lacks[0] != '\0')
            json_object_set_new(lacking, supervisor->states[i].device->name,
                                json_string(supervisor->states[i].proof.lacks));
    return lacking;
}

/* ---- ends of workers ---- */

static void check_all_ended(struct worker_supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->state_count; i++)
        if (supervisor->states[i].child)
            return;
    if (supervisor->ending && supervisor->ended) {
        void (*ended)(void *) = supervisor->ended;
        supervisor->ended = NULL;
        ended(supervisor->ended_arg);
    }
}

/* FINISHED: it sent its last event. ENDED: by this agent. UNSTARTED: before it said hello. */
enum worker_end { WORKER_FINISHED, WORKER_ENDED, WORKER_LOST, WORKER_UNSTARTED };

/* Handles the end of a worker: gives the rank its final event and removes the folder. */
static void worker_ended(struct worker_supervisor *supervisor, const struct child_work *work, const char *dir,
                         enum worker_end how, const char *why)
{
    struct err err;
    struct journal_stream *stream = work_is_proof(work) ? NULL : supervise_stream_of(supervisor, work);
    struct device_state *state = supervisor_device(supervisor, work->device);
    char what[720], text[720];
    snprintf(what, sizeof(what), "%s: %s", how == WORKER_UNSTARTED ? "could not be started" : "was lost",
             why);
    snprintf(text, sizeof(text), "the worker of %s %.600s", work->device, what);
    if (work_is_proof(work)) {
        if (state && how >= WORKER_LOST)
            proof_end(supervisor, state, what);
    } else if (work->run >= 0 ? stream && !stream->final : how != WORKER_FINISHED) {
        failure_append(supervisor, work,
                       how == WORKER_ENDED       ? ERR_CANCELLED
                       : how == WORKER_UNSTARTED ? ERR_NODE
                                                 : worker_loss_code(!state ? "" : state->device->kind, why),
                       text);
        if (state && how != WORKER_ENDED)
            proof_doubt(&state->proof, clock_mono_ns());
    }
    if (work->run >= 0 && stream)
        journal_stream_close(stream);
    if (file_remove_tree(dir, &err) < 0)
        supervisor_trouble("run_folder_left", &err);
}

static void child_gone(void *arg, struct child *child, const char *why)
{
    struct worker_supervisor *supervisor = arg;
    struct device_state *state = state_of_child(supervisor, child);
    struct child_work work = *child_work(child);
    char dir[PATH_SIZE];
    snprintf(dir, sizeof(dir), "%s", child_dir(child));
    const enum worker_end how = state && state->finished ? WORKER_FINISHED
                                : child_was_ended(child) ? WORKER_ENDED
                                : child_was_heard(child) ? WORKER_LOST
                                                         : WORKER_UNSTARTED;
    child_destroy(child);
    log_event(how == WORKER_FINISHED ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, "worker_ended",
              "device=%s run=%" PRId64 " rank=%" PRId64 " how=\"%s\"", work.device, work.run, work.rank, why);
    if (state)
        state->child = NULL;
    worker_ended(supervisor, &work, dir, how, why);
    if (state && state->pending && !supervisor->ending)
        pending_start(supervisor, state);
    check_all_ended(supervisor);
}

void supervisor_end(struct worker_supervisor *supervisor, uint32_t grace_ms, void (*ended)(void *arg),
                    void *arg)
{
    supervisor->ending = true;
    supervisor->ended = ended;
    supervisor->ended_arg = arg;
    for (uint32_t i = 0; i < supervisor->state_count; i++) {
        struct device_state *state = &supervisor->states[i];
        pending_refuse(supervisor, state, ERR_CANCELLED, "this node's agent is stopping");
        if (state->child) /* a measurement or a trial has nothing to store */
            child_end(state->child,
                      child_work(state->child)->run >= 0 || !grace_ms ? grace_ms : KILL_GRACE_MS);
    }
    check_all_ended(supervisor);
}

pid_t supervisor_pid(struct worker_supervisor *supervisor, const char *device)
{
    const struct device_state *state = supervisor_device(supervisor, device);
    return state && state->child ? child_pid(state->child) : 0;
}

json_t *supervisor_workers(const struct worker_supervisor *supervisor)
{
    json_t *workers = json_array();
    for (uint32_t i = 0; i < supervisor->state_count; i++) {
        const struct device_state *state = &supervisor->states[i];
        if (state->child && child_work(state->child)->run >= 0) {
            const struct child_work *work = child_work(state->child);
            json_array_append_new(workers, json_pack("{s:I, s:I, s:I, s:s}", "run", (json_int_t)work->run,
                                                     "epoch", (json_int_t)work->epoch, "rank",
                                                     (json_int_t)work->rank, "device", work->device));
        }
    }
    return workers;
}

/* ---- creating, connecting, ending ---- */

/* Adopts the worker of a folder that an earlier agent made, or reports its end once the feed exists. */
static void folder_adopt(struct worker_supervisor *supervisor, const char *dir)
{
    struct child_work work;
    struct err err;
    struct child *child = child_adopt(supervisor->base, dir, &child_callbacks, supervisor, &work, &err);
    struct device_state *state = supervisor_device(supervisor, work.device);
    if (!child && work.device[0] == '\0') { /* it was never started: its assignment is sent again, or stale */
        file_remove_tree(dir, &err);
        return;
    }
    if (!child) {
        char tail[300], why[400];
        child_log_tail(dir, tail, sizeof(tail));
        snprintf(why, sizeof(why), "it ended while the agent was away%s%s",
                 tail[0] == '\0' ? "" : "; its last words: ", tail);
        worker_ended(supervisor, &work, dir, WORKER_LOST, why);
        return;
    }
    if (!state || state->child) {
        log_event(LOG_LEVEL_WARN, "worker_without_device", "device=%s pid=%d", work.device,
                  (int)child_pid(child));
        child_end(child, 0);
        child_destroy(child);
        worker_ended(supervisor, &work, dir, WORKER_ENDED, "its device is not configured any more");
        return;
    }
    log_event(LOG_LEVEL_INFO, "worker_adopted", "device=%s run=%" PRId64 " rank=%" PRId64 " pid=%d",
              work.device, work.run, work.rank, (int)child_pid(child));
    state->child = child;
    state->last_epoch = work.epoch > state->last_epoch ? work.epoch : state->last_epoch;
    proof_init(&state->proof, !work_is_proof(&work), clock_mono_ns());
}

static int folders_adopt(struct worker_supervisor *supervisor, struct err *err)
{
    char dir[PATH_SIZE];
    if (file_path(dir, sizeof(dir), err, "%s/run", supervisor->home) < 0 || file_mkdirs(dir, 0700, err) < 0)
        return -1;
    DIR *folder = opendir(dir);
    if (!folder)
        return err_set(err, ERR_IO, "could not open folder \"%s\"", dir);
    struct dirent *entry;
    while ((entry = readdir(folder))) {
        char path[PATH_SIZE];
        if (entry->d_name[0] != '.' && file_path(path, sizeof(path), err, "%s/%s", dir, entry->d_name) == 0)
            folder_adopt(supervisor, path);
    }
    closedir(folder);
    return 0;
}

/* Closes the streams of runs whose worker has ended; they wait only for acknowledgement. */
static void streams_close(struct worker_supervisor *supervisor)
{
    struct journal_stream *next;
    for (struct journal_stream *stream = journal_first(supervisor->journal); stream != NULL; stream = next) {
        next = stream->next;
        bool lives = strcmp(stream->key, "node") == 0;
        for (uint32_t i = 0; i < supervisor->state_count && !lives; i++) {
            char key[JOURNAL_KEY_SIZE];
            if (supervisor->states[i].child) {
                const struct child_work *work = child_work(supervisor->states[i].child);
                feed_key(key, work->run, work->epoch, work->rank);
                lives = strcmp(key, stream->key) == 0;
            }
        }
        if (!lives)
            journal_stream_close(stream);
    }
}

struct worker_supervisor *supervisor_create(struct event_base *base, const struct supervisor_options *options,
                                            struct err *err)
{
    struct worker_supervisor *supervisor = calloc(1, sizeof(*supervisor));
    if (!supervisor) {
        err_set(err, ERR_NOMEM, "no memory for the supervisor");
        return NULL;
    }
    supervisor->base = base;
    supervisor->config = options->config;
    supervisor->identity = options->identity;
    supervisor->home = options->home;
    supervisor->worker = options->worker;
    supervisor->journal = options->journal;
    supervisor->groups = options->groups;
    supervisor->history = options->history;
    supervisor->state_count = options->config->device_count;
    for (uint32_t i = 0; i < supervisor->state_count; i++) {
        supervisor->states[i] = (struct device_state){
            .device = &options->config->devices[i],
            .last_epoch = history_epoch(options->history, options->config->devices[i].name)};
        proof_init(&supervisor->states[i].proof, false, clock_mono_ns());
    }
    supervisor->lacking_changed = options->lacking_changed;
    supervisor->lacking_arg = options->arg;
    supervisor->prove = event_new(base, -1, EV_PERSIST, prove_due, supervisor);
    char path[PATH_SIZE];
    if (!supervisor->prove || file_path(path, sizeof(path), err, "%s/journal/seen", options->home) < 0 ||
        !(supervisor->seen = seen_open(path, err)) ||
        !(supervisor->flush = flush_create(base, options->journal, journal_durable, supervisor, err))) {
        supervisor_destroy(supervisor);
        return NULL;
    }
    return supervisor;
}

int supervisor_connect(struct worker_supervisor *supervisor, struct feed *feed, struct links *links,
                       struct err *err)
{
    supervisor->feed = feed;
    supervisor->links = links;
    if (folders_adopt(supervisor, err) < 0)
        return -1;
    streams_close(supervisor);
    const struct timeval tick = {.tv_usec = PROVE_TICK_MS * 1000};
    event_add(supervisor->prove, &tick);
    prove_due(-1, 0, supervisor);
    return 0;
}

void supervisor_destroy(struct worker_supervisor *supervisor)
{
    if (!supervisor)
        return;
    for (uint32_t i = 0; i < supervisor->state_count; i++) {
        child_destroy(supervisor->states[i].child);
        json_decref(supervisor->states[i].pending);
    }
    if (supervisor->prove)
        event_free(supervisor->prove);
    flush_destroy(supervisor->flush);
    seen_close(supervisor->seen);
    free(supervisor);
}
