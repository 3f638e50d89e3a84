/* Events of a run's ranks: turns what a worker said into rows. */
#include "scheduler/events/events_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/json.h"
#include "model/shape/config.h"

#define STEP_MAX ((int64_t)1 << 40)

/* A rank's compute time of a step is averaged over SMOOTHED_STEPS steps and, where that is longer, over
 * SMOOTHED_S seconds of computing, because short disturbances are no reason to plan again. */
#define SMOOTHED_STEPS 8
#define SMOOTHED_S 10.0

static struct store_sched_run *find_run(struct store_view *view, int64_t id)
{
    for (size_t i = 0; i < view->run_count; i++)
        if (view->runs[i].id == id)
            return &view->runs[i];
    return NULL;
}

static struct rank_move *move_of(struct event_batch *batch, struct store_sched_run *run,
                                 struct store_sched_rank *rank, struct err *err)
{
    for (size_t i = 0; i < batch->move_count; i++)
        if (batch->moves[i].rank == rank)
            return &batch->moves[i];
    if (ARRAY_RESERVE(batch->moves, batch->move_capacity, batch->move_count + 1, err) < 0)
        return NULL;
    struct rank_move *move = &batch->moves[batch->move_count++];
    *move = (struct rank_move){.run = run,
                               .rank = rank,
                               .seq = rank->last_seq,
                               .state = rank->state,
                               .compute_s = rank->compute_s,
                               .measured = rank->measured};
    return move;
}

struct run_event_context {
    struct event_batch *batch;
    const json_t *event;
    struct store_sched_run *run;
    struct store_sched_rank *rank;
    struct rank_move *move;
};

static int set_change(struct rank_move *move, const char *key, json_t *value, struct err *err)
{
    if (!value || json_object_set_new(move->change, key, value) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a batch of events");
    return 0;
}

static int set_text(struct run_event_context *c, const char *from, const char *to, size_t max,
                    struct err *err)
{
    const char *text = json_string_value(json_object_get(c->event, from));
    if (!text)
        return 0;
    json_t *value = strlen(text) <= max ? json_string(text) : json_pack("s%", text, max);
    if (!value) /* the limit fell inside a UTF-8 character */
        value = json_string("(too long)");
    return set_change(c->move, to, value, err);
}

static int move_state(struct run_event_context *c, enum assignment_event event, struct err *err)
{
    int to = state_next(&assignment_machine, (int)c->move->state, (int)event, err);
    if (to < 0)
        return err_wrap(err, "run %lld rank %u", (long long)c->run->id, c->rank->rank);
    c->move->state = (enum assignment_state)to;
    return 0;
}

static int events_run_on_ready(struct run_event_context *c, struct err *err)
{
    const char *address = json_string_value(json_object_get(c->event, "address"));
    if (!address || *address == '\0')
        return err_set(err, ERR_INVALID, "worker_ready without an address");
    if (move_state(c, ASSIGNMENT_EVENT_READY, err) < 0 || set_text(c, "address", "address", 300, err) < 0)
        return -1;
    return set_text(c, "identity", "identity", 300, err);
}

static int add_job_event(struct run_event_context *c, const char *type, struct err *err)
{
    json_t *body = event_body(c->event);
    if (body) {
        json_object_set_new(body, "rank", json_integer(c->rank->rank));
        json_object_set_new(body, "device", json_string(c->rank->device));
    }
    return event_append(
        c->batch->owned[E_EVENTS],
        body ? json_pack("{s:I, s:s, s:o}", "job", (json_int_t)c->run->job, "type", type, "body", body)
             : NULL,
        err);
}

static int on_started(struct run_event_context *c, struct err *err)
{
    return move_state(c, ASSIGNMENT_EVENT_STARTED, err);
}

static int read_step(const json_t *event, int64_t *step, struct err *err)
{
    struct json_reader reader;
    jr_init(&reader, event, "", err);
    return jr_i64(&reader, "step", JR_REQUIRED, 0, STEP_MAX, step) == 1 ? 0 : -1;
}

static int add_metric(struct run_event_context *c, const char *kind, struct err *err)
{
    int64_t step = 0;
    if (read_step(c->event, &step, err) < 0)
        return -1;
    bool ranks = strcmp(kind, "ranks") == 0;
    json_t *document = event_body(c->event);
    if (document) {
        json_object_del(document, "at");
        if (ranks) {
            json_object_set_new(document, "rank", json_integer(c->rank->rank));
            json_object_set_new(document, "device", json_string(c->rank->device));
        }
    }
    return event_append(c->batch->owned[E_METRICS],
                        document ? json_pack("{s:I, s:s, s:I, s:I, s:o}", "job", (json_int_t)c->run->job,
                                             "kind", kind, "rank", (json_int_t)(ranks ? c->rank->rank : 0),
                                             "step", (json_int_t)step, "document", document)
                                 : NULL,
                        err);
}

/* Keeps one progress row per job in a batch: the one with the furthest step. */
static int note_progress(struct run_event_context *c, int64_t done, double loss, struct err *err)
{
    json_t *rows = c->batch->owned[E_PROGRESS];
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        if (json_integer_value(json_object_get(row, "job")) == c->run->job) {
            if (json_integer_value(json_object_get(row, "step")) <= done) {
                json_object_set_new(row, "step", json_integer(done));
                if (isfinite(loss))
                    json_object_set_new(row, "loss", json_real(loss));
            }
            return 0;
        }
    }
    return event_append(rows,
                        json_pack("{s:I, s:I, s:o}", "job", (json_int_t)c->run->job, "step", (json_int_t)done,
                                  "loss", isfinite(loss) ? json_real(loss) : json_null()),
                        err);
}

static int events_run_on_step(struct run_event_context *c, struct err *err)
{
    int64_t step = 0;
    json_t *loss = json_object_get(c->event, "loss");
    if (read_step(c->event, &step, err) < 0 || add_metric(c, "step", err) < 0)
        return -1;
    return note_progress(c, step + 1, json_is_number(loss) ? json_number_value(loss) : NAN, err);
}

static int on_eval(struct run_event_context *c, struct err *err)
{
    return add_metric(c, "eval", err);
}

static int on_sample(struct run_event_context *c, struct err *err)
{
    return add_metric(c, "sample", err);
}

/* Averages a rank's seconds of computing in a step. A new step has the weight 1/n, where n is the number of
 * steps so far, but at most SMOOTHED_STEPS or the number of steps in SMOOTHED_S seconds, whichever is more.
 * The first step of an attempt also fills caches, so the second one replaces it. */
static int events_run_on_ranks(struct run_event_context *c, struct err *err)
{
    const double seconds = json_number_value(json_object_get(c->event, "compute_s"));
    struct rank_move *move = c->move;
    if (add_metric(c, "ranks", err) < 0)
        return -1;
    if (!(seconds > 0) || !isfinite(seconds))
        return 0;
    const double before = fmin(move->measured, fmax(SMOOTHED_STEPS, SMOOTHED_S / seconds));
    move->compute_s += before < 1 ? seconds - move->compute_s : (seconds - move->compute_s) / before;
    move->measured++;
    return set_change(move, "compute_s", json_real(move->compute_s), err) < 0
               ? -1
               : set_change(move, "measured", json_integer(move->measured), err);
}

static int on_log(struct run_event_context *c, struct err *err)
{
    return add_job_event(c, "log", err);
}

/* A rank that waits says for what; without a text it goes on. Kept as the reason of the rank's state. */
static int on_waiting(struct run_event_context *c, struct err *err)
{
    if (set_change(c->move, "why", json_string(""), err) < 0)
        return -1;
    return set_text(c, "text", "why", 1000, err);
}

static int on_trace(struct run_event_context *c, struct err *err)
{
    json_t *document = event_body(c->event);
    return event_append(c->batch->owned[E_TRACES],
                        document ? json_pack("{s:I, s:I, s:I, s:o}", "run", (json_int_t)c->run->id, "rank",
                                             (json_int_t)c->rank->rank, "seq", (json_int_t)c->move->seq,
                                             "document", document)
                                 : NULL,
                        err);
}

static bool is_sha256(const char *text)
{
    return text && strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
}

/* Returns the hash of a {name: "sha256:…" | hex | {sha256, size}} entry, or NULL when it holds none. */
static const char *blob_hash(const json_t *value)
{
    const char *text = json_string_value(json_is_object(value) ? json_object_get(value, "sha256") : value);
    if (text && strncmp(text, "sha256:", 7) == 0)
        text += 7;
    return is_sha256(text) ? text : NULL;
}

/* Refuses a routing (each expert's share of a layer's tokens) that the planner would refuse: each layer's
 * entry must be null or a list of shares, all lists of one length, with at least one share above zero. */
static int check_routing(const json_t *routing, struct err *err)
{
    size_t layer, expert, experts = 0;
    json_t *shares, *share;
    json_array_foreach ((json_t *)routing, layer, shares) {
        double sum = 0;
        if (json_is_null(shares))
            continue;
        json_array_foreach (shares, expert, share) {
            if (!json_is_number(share) || !(json_number_value(share) >= 0 && json_number_value(share) <= 1))
                return err_set(err, ERR_INVALID, "checkpoint.expert_share[%zu][%zu] is no share", layer,
                               expert);
            sum += json_number_value(share);
        }
        experts = experts > 0 ? experts : json_array_size(shares);
        if (!(sum > 0) || json_array_size(shares) != experts || experts > MODEL_EXPERTS_MAX)
            return err_set(err, ERR_INVALID, "checkpoint.expert_share[%zu] is no list of %zu experts' shares",
                           layer, experts);
    }
    return 0;
}

static int on_checkpoint(struct run_event_context *c, struct err *err)
{
    struct json_reader reader;
    const json_t *blobs = NULL, *routing = NULL;
    const char *name;
    json_t *value;
    int64_t step = 0, parts = 1;
    bool best = false;
    jr_init(&reader, c->event, "checkpoint", err);
    jr_i64(&reader, "step", JR_REQUIRED, 0, STEP_MAX, &step);
    jr_i64(&reader, "parts", JR_OPTIONAL, 1, (int64_t)c->run->rank_count, &parts);
    jr_bool(&reader, "best", JR_OPTIONAL, &best);
    jr_object(&reader, "blobs", JR_REQUIRED, &blobs);
    jr_array(&reader, "expert_share", JR_OPTIONAL, 1, MODEL_LAYERS_MAX, &routing);
    if (jr_finish_loose(&reader) < 0 || check_routing(routing, err) < 0)
        return -1;
    json_t *named = json_object();
    json_object_foreach ((json_t *)blobs, name, value) {
        const char *hash = blob_hash(value);
        if (!hash) {
            json_decref(named);
            return err_set(err, ERR_INVALID, "checkpoint.blobs.%.80s is no SHA-256", name);
        }
        json_object_set_new(named, name, json_string(hash));
    }
    return event_append(c->batch->owned[E_CHECKPOINTS],
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:b, s:o, s:O?}", "job", (json_int_t)c->run->job,
                                  "run", (json_int_t)c->run->id, "step", (json_int_t)step, "rank",
                                  (json_int_t)c->rank->rank, "parts", (json_int_t)parts, "best", (int)best,
                                  "blobs", named, "expert_share", routing),
                        err);
}

static int on_memory(struct run_event_context *c, struct err *err)
{
    json_t *memory = event_body(c->event);
    if (memory)
        json_object_del(memory, "at");
    return set_change(c->move, "memory", memory, err);
}

static int add_artifacts(struct run_event_context *c, const json_t *artifacts, struct err *err)
{
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)artifacts, name, value) {
        const char *hash = blob_hash(value);
        json_int_t size = json_integer_value(json_object_get(value, "size"));
        if (!hash || strlen(name) == 0 || strlen(name) > 400 || name[0] == '/' || strstr(name, "..")) {
            return err_set(err, ERR_INVALID, "done.artifacts: \"%.80s\" is no plain name with a SHA-256",
                           name);
        }
        if (event_append(c->batch->owned[E_ARTIFACTS],
                         json_pack("{s:I, s:s, s:s, s:I}", "job", (json_int_t)c->run->job, "name", name,
                                   "sha256", hash, "size", size > 0 ? size : 0),
                         err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int on_done(struct run_event_context *c, struct err *err)
{
    const json_t *step = json_object_get(c->event, "step");
    if (move_state(c, ASSIGNMENT_EVENT_DONE, err) < 0 || set_text(c, "warnings", "why", 1000, err) < 0)
        return -1;
    /* The steps are known from here, too, where the database refused the lines of single ones. */
    if (json_is_integer(step) && json_integer_value(step) <= STEP_MAX &&
        note_progress(c, json_integer_value(step), NAN, err) < 0)
        return -1;
    return add_artifacts(c, json_object_get(c->event, "artifacts"), err);
}

static int on_stopped(struct run_event_context *c, struct err *err)
{
    if (move_state(c, ASSIGNMENT_EVENT_STOPPED, err) < 0)
        return -1;
    return add_artifacts(c, json_object_get(c->event, "artifacts"), err);
}

static int on_failed(struct run_event_context *c, struct err *err)
{
    if (move_state(c, ASSIGNMENT_EVENT_FAILED, err) < 0 || set_text(c, "code", "code", 40, err) < 0 ||
        set_text(c, "text", "why", 1000, err) < 0) {
        return -1;
    }
    bool own = json_is_true(json_object_get(c->event, "own_fault"));
    if (set_change(c->move, "own_fault", json_boolean(own), err) < 0)
        return -1;
    const char *code = json_string_value(json_object_get(c->event, "code"));
    bool fault = code && (strcmp(code, err_code_name(ERR_DEVICE_LOST)) == 0 ||
                          strcmp(code, err_code_name(ERR_DEVICE_FAULT)) == 0);
    if (fault && event_append(c->batch->owned[E_FAULTS],
                              json_pack("{s:s, s:I, s:I, s:O?}", "device", c->rank->device, "job",
                                        (json_int_t)c->run->job, "rank", (json_int_t)c->rank->rank, "why",
                                        json_object_get(c->move->change, "why")),
                              err) < 0) {
        return -1;
    }
    return add_job_event(c, "failed", err);
}

struct run_event_kind {
    const char *type;
    int (*take)(struct run_event_context *c, struct err *err);
};

static const struct run_event_kind run_kinds[] = {
    {"worker_ready", events_run_on_ready},
    {"started", on_started},
    {"step", events_run_on_step},
    {"eval", on_eval},
    {"sample", on_sample},
    {"log", on_log},
    {"ranks", events_run_on_ranks},
    {"trace", on_trace},
    {"checkpoint", on_checkpoint},
    {"memory", on_memory},
    {"done", on_done},
    {"stopped", on_stopped},
    {"failed", on_failed},
    {"waiting", on_waiting},
};

static const struct run_event_kind *run_kind(const char *type)
{
    for (size_t i = 0; i < sizeof(run_kinds) / sizeof(run_kinds[0]); i++)
        if (strcmp(run_kinds[i].type, type) == 0)
            return &run_kinds[i];
    return NULL;
}

/* Refuses an event of a run that is over: nobody may write under an old epoch. The event is dropped and
 * acknowledged, and its worker is killed. */
static int refuse_stale(struct event_batch *batch, const struct event_head *head, int64_t run, int64_t epoch,
                        int64_t rank, struct err *err)
{
    batch->dropped++;
    if (event_reply(batch, head->node,
                    json_pack("{s:s, s:I, s:I, s:I, s:I}", "type", "ack", "run", (json_int_t)run, "epoch",
                              (json_int_t)epoch, "rank", (json_int_t)rank, "seq", (json_int_t)head->seq),
                    err) < 0) {
        return -1;
    }
    return event_reply(batch, head->node,
                       json_pack("{s:s, s:I, s:I, s:s, s:b, s:b}", "type", "stop", "run", (json_int_t)run,
                                 "epoch", (json_int_t)epoch, "why", "lost", "checkpoint", 0, "kill", 1),
                       err);
}

static int ensure_change(struct event_batch *batch, struct rank_move *move, struct err *err)
{
    if (move->change)
        return 0;
    json_t *change = json_pack("{s:I, s:I, s:I, s:I, s:s}", "run", (json_int_t)move->run->id, "epoch",
                               (json_int_t)move->run->epoch, "rank", (json_int_t)move->rank->rank,
                               "seq_before", (json_int_t)move->rank->last_seq, "before",
                               state_name(&assignment_machine, (int)move->rank->state));
    if (event_append(batch->owned[E_RANKS], change, err) < 0)
        return -1;
    move->change = change;
    return 0;
}

int event_add_of_run(struct event_batch *batch, const struct event_head *head, const json_t *event,
                     struct err *err)
{
    struct json_reader reader;
    int64_t id = 0, epoch = 0, rank = 0;
    jr_init(&reader, event, head->type, err);
    jr_i64(&reader, "run", JR_REQUIRED, 1, EVENT_SEQ_MAX, &id);
    jr_i64(&reader, "epoch", JR_REQUIRED, 1, EVENT_SEQ_MAX, &epoch);
    jr_i64(&reader, "rank", JR_REQUIRED, 0, 1 << 20, &rank);
    if (jr_finish_loose(&reader) < 0)
        return -1;
    struct store_sched_run *run = find_run(batch->view, id);
    if (!run)
        return refuse_stale(batch, head, id, epoch, rank, err);
    if (epoch != run->epoch || rank >= (int64_t)run->rank_count ||
        strcmp(run->ranks[rank].node, head->node) != 0) {
        return err_set(err, ERR_DENIED, "%s of run %lld epoch %lld rank %lld, which node %s does not hold",
                       head->type, (long long)id, (long long)epoch, (long long)rank, head->node);
    }
    struct rank_move *move = move_of(batch, run, &run->ranks[rank], err);
    if (!move)
        return -1;
    if (head->seq != move->seq + 1) {
        /* a repeated event, or one beyond a gap; the acknowledgement says where to go on */
        batch->dropped++;
        return 0;
    }
    if (ensure_change(batch, move, err) < 0)
        return -1;
    /* the seq advances whatever the event holds, so that a bad event does not hold up the next ones */
    move->seq = head->seq;
    event_accept(batch, head->node);
    struct run_event_context context = {batch, event, run, &run->ranks[rank], move};
    const struct run_event_kind *kind = run_kind(head->type);
    return kind ? kind->take(&context, err)
                : err_set(err, ERR_INVALID, "an event of an unknown type \"%.40s\"", head->type);
}
