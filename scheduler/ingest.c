/* Events: reads a batch from the nodes' streams, commits it, acknowledges it, and reads the next.
 *
 * Every new leader reads the streams from their start; it recognises committed events by their seq. An entry
 * is trimmed only after its commit. Each node has a share of a batch, so a node that floods does not starve
 * the others.
 */
#include "scheduler/leader/scheduler_private.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"
#include "common/redis.h"

#define BLOCK_MS 200 /* longest wait of an XREAD, and so the delay until a new node's stream is read */
#define BATCH_BYTES_MAX ((size_t)32 << 20)
#define SHARE_BYTES_MIN ((size_t)256 << 10)
#define SHARE_ENTRIES_MIN 64u
#define STREAMS_MAX 1000u /* streams of one read at most; if there are more, they take turns */
/* The pause before the next read is so long for each node, at most the maximum, and none below the minimum.
 */
#define READ_PAUSE_US 100u
#define READ_PAUSE_US_MIN 2000u
#define READ_PAUSE_US_MAX 50000u
#define SEEN_NS 15000000000u   /* how often a node's last_seen and clock are written */
#define TOLD_NS 1000000000u    /* between two words to an agent that another replaced */
#define CLOCK_MOVED_US 5000000 /* a node's clock that moved by more is written at once */
/* So many runs in a row whose events are refused are not at fault themselves. */
enum { REFUSED_RUNS_MAX = 3, SOLO_FAILURES_MAX = 4 };

/* ---- reading ---- */

/* Return the number of entries, and of bytes, that one node may take of a batch. */
static uint32_t share_entries(const struct scheduler *scheduler)
{
    const uint32_t share = scheduler->config->limits.batch_max / (uint32_t)scheduler->read_busy;
    return share > SHARE_ENTRIES_MIN ? share : SHARE_ENTRIES_MIN;
}

static size_t share_bytes(const struct scheduler *scheduler)
{
    const size_t share = BATCH_BYTES_MAX / scheduler->read_busy;
    return share > SHARE_BYTES_MIN ? share : SHARE_BYTES_MIN;
}

/* Tells the agent of an earlier start of the node, which may still run, that another one began later, as in a
 * copy of its home. The later one reads it, too, and knows itself by its name. */
static void tell_replaced(struct scheduler *scheduler, struct node_stream *node_stream)
{
    const uint64_t now_ns = clock_mono_ns();
    if (node_stream->told_ns != 0 && now_ns - node_stream->told_ns < TOLD_NS)
        return;
    node_stream->told_ns = now_ns;
    json_t *message = json_pack("{s:s, s:s}", "type", "replaced", "boot", node_stream->boot);
    dispatch_pass(scheduler->dispatch, node_stream->node, message);
    json_decref(message);
}

static int take_entry(void *arg, const char *stream, const char *id, const struct redis_entry *entry,
                      struct err *err)
{
    struct scheduler *scheduler = arg;
    struct node_stream *node_stream = node_streams_find_key(scheduler->node_streams, stream);
    if (!node_stream || !node_stream->seal || node_stream->cut)
        return 0; /* the entry is of an unknown node, or a later read takes it */
    if (!node_stream_id_is_sane(id)) {
        char why[128];
        snprintf(why, sizeof(why), "its stream was emptied: an entry with the id %.48s", id);
        floods_empty(scheduler, node_stream, 1, why);
        node_stream->cut = true;
        return 0;
    }
    if (node_stream->taken_count > 0 && (node_stream->taken_count >= share_entries(scheduler) ||
                                         node_stream->taken_bytes + entry->size > share_bytes(scheduler))) {
        node_stream->cut = true;
        return 0;
    }
    node_stream->taken_bytes += entry->size;
    node_stream->taken_count++;
    node_stream->allowance -= (double)entry->size;
    snprintf(node_stream->taken, sizeof(node_stream->taken), "%s", id);
    scheduler->taken = true;
    json_t *event = node_stream_open(node_stream, entry, err);
    if (event)
        return json_array_append_new(scheduler->pending, event);
    if (err->code == ERR_CONFLICT)
        tell_replaced(scheduler, node_stream);
    else if (err->code != ERR_STALE)
        node_stream_refuse(node_stream, clock_mono_ns(), err->code, err->text);
    return 0;
}

static void pending_drop(struct scheduler *scheduler)
{
    json_decref(scheduler->pending);
    scheduler->pending = NULL;
    for (size_t i = 0; i < node_streams_count(scheduler->node_streams); i++)
        node_streams_at(scheduler->node_streams, i)->taken[0] = '\0';
}

/* Handles a reply that cannot be decoded. The streams are then read one by one until the one at fault is
 * found, and that one is emptied. */
static void read_failed(struct scheduler *scheduler, const struct err *why)
{
    if (why->code != ERR_PEER && why->code != ERR_INVALID && why->code != ERR_CORRUPT)
        return; /* the next tick reads again */
    struct node_stream *only = node_streams_find(scheduler->node_streams, scheduler->read_only);
    log_event(LOG_LEVEL_WARN, "events_unreadable", "node=%s why=\"%s\"", only ? only->node : "?", why->text);
    if (only) {
        char text[600];
        snprintf(text, sizeof(text), "its stream was emptied: it cannot be read: %s", why->text);
        floods_empty(scheduler, only, 1, text);
    }
    if (scheduler->read_alone == 0)
        scheduler->read_alone = node_streams_count(scheduler->node_streams);
}

static void read_done(void *arg, const redisReply *reply, const struct err *why)
{
    struct scheduler *scheduler = arg;
    struct err err = {0}; /* nothing fills it when memory is short: the next tick reads again */
    scheduler->reading = false;
    scheduler->read_ns = clock_mono_ns();
    if (why->code == ERR_CANCELLED || scheduler->epoch == 0)
        return;
    if (why->code != ERR_NONE) {
        read_failed(scheduler, why);
        return;
    }
    for (size_t i = 0; i < node_streams_count(scheduler->node_streams); i++) {
        node_streams_at(scheduler->node_streams, i)->taken_bytes = 0;
        node_streams_at(scheduler->node_streams, i)->taken_count = 0;
        node_streams_at(scheduler->node_streams, i)->cut = false;
    }
    scheduler->pending = json_array();
    scheduler->taken = false;
    scheduler->read_busy = reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 ? reply->elements : 1;
    if (!scheduler->pending || redis_stream_entries(reply, take_entry, scheduler, &err) < 0) {
        pending_drop(scheduler);
        read_failed(scheduler, &err);
        return;
    }
    floods_measure(scheduler, true);
    if (!scheduler->taken) {
        pending_drop(scheduler);
        ingest_read(scheduler);
        return;
    }
    scheduler_turn(scheduler);
}

/* Fills in the next streams to read, in turn. Returns how many; 0 when no node may be read now. */
static size_t positions_fill(struct scheduler *scheduler, struct redis_position positions[STREAMS_MAX],
                             size_t most)
{
    const size_t count = node_streams_count(scheduler->node_streams);
    const size_t first = count > 0 ? scheduler->read_next % count : 0;
    const uint64_t now_ns = clock_mono_ns();
    size_t filled = 0;
    for (size_t k = 0; k < count && filled < most; k++) {
        struct node_stream *node_stream = node_streams_at(scheduler->node_streams, (first + k) % count);
        scheduler->read_next = first + k + 1;
        if (node_stream->seal && node_stream_may_read(node_stream, now_ns)) {
            positions[filled++] = (struct redis_position){node_stream->stream, node_stream->after};
            snprintf(scheduler->read_only, sizeof(scheduler->read_only), "%s", node_stream->node);
        }
    }
    if (filled != 1)
        scheduler->read_only[0] = '\0';
    return filled;
}

void ingest_read(struct scheduler *scheduler)
{
    struct err err;
    struct redis_position positions[STREAMS_MAX];
    if (scheduler->epoch == 0 || !scheduler->ready || scheduler->reading || scheduler->pending ||
        !redis_is_connected(scheduler->reader)) {
        return;
    }
    const bool alone = scheduler->read_alone > 0;
    const bool turns = alone || node_streams_count(scheduler->node_streams) > STREAMS_MAX;
    const size_t filled = positions_fill(scheduler, positions, alone ? 1 : STREAMS_MAX);
    if (filled == 0)
        return;
    scheduler->reading = redis_streams_read(scheduler->reader, positions, filled, share_entries(scheduler),
                                            turns ? 1 : BLOCK_MS, read_done, scheduler, &err) == 0;
    if (scheduler->reading && alone)
        scheduler->read_alone--;
}

/* ---- committing ---- */

static void send_replies(struct scheduler *scheduler)
{
    size_t i;
    json_t *reply;
    json_array_foreach (scheduler->batch.replies, i, reply) {
        dispatch_pass(scheduler->dispatch, json_string_value(json_object_get(reply, "node")),
                      json_object_get(reply, "message"));
    }
}

/* Whether the batch stores a checkpoint, or a rank's part of one, that the scheduler asked a run to write. */
static bool stores_awaited(const struct event_batch *batch)
{
    size_t i;
    json_t *row;
    json_array_foreach (batch->ingest.checkpoints, i, row) {
        const json_int_t id = json_integer_value(json_object_get(row, "run"));
        for (size_t r = 0; r < batch->view->run_count; r++)
            if (batch->view->runs[r].id == id && batch->view->runs[r].save_by_us > 0)
                return true;
    }
    return false;
}

/* Whether the batch has a sign of life from a node that the view does not know or says is unreachable. */
static bool finds_node(const struct event_batch *batch)
{
    size_t i;
    json_t *name;
    json_array_foreach (batch->ingest.seen, i, name) {
        bool known = false;
        for (size_t n = 0; n < batch->view->node_count && !known; n++)
            known = batch->view->nodes[n].reachable &&
                    strcmp(batch->view->nodes[n].name, json_text_of(name, "node")) == 0;
        if (!known)
            return true;
    }
    return false;
}

/* Whether the batch is a reason for a pass. Changed states, hello messages, health, measurements, awaited
 * checkpoints and nodes that come back are reasons; steps, log lines and signs of life are not. */
static bool changes_decisions(const struct event_batch *batch)
{
    if (batch->health_counts || stores_awaited(batch) || json_object_size(batch->hellos) > 0 ||
        finds_node(batch) || json_array_size(batch->ingest.profiles) > 0 ||
        json_array_size(batch->ingest.links) > 0 || json_array_size(batch->ingest.failures) > 0) {
        return true;
    }
    for (size_t i = 0; i < batch->move_count; i++)
        if (batch->moves[i].state != batch->moves[i].rank->state)
            return true;
    return false;
}

static void learn(struct scheduler *scheduler)
{
    const struct event_batch *batch = &scheduler->batch;
    uint64_t now_ns = clock_mono_ns();
    const char *node;
    json_t *value;
    size_t i;
    json_array_foreach (batch->ingest.received, i, value) {
        dispatch_received(scheduler->dispatch, json_integer_value(json_object_get(value, "id")),
                          json_string_value(json_object_get(value, "node")));
    }
    for (i = 0; i < batch->move_count; i++)
        if (batch->moves[i].change)
            liveness_alive(scheduler, batch->moves[i].run->id, batch->moves[i].rank->rank);
    json_object_foreach (batch->hellos, node, value) {
        liveness_hello(scheduler, node, value, now_ns);
        identities_hello(scheduler, node);
    }
    if (json_array_size(batch->ingest.profiles) > 0 || json_object_size(batch->hellos) > 0)
        facts_forget_profiles(scheduler->facts);
}

/* Starts the next XREAD, after a pause if the last one brought nothing but signs of life of many nodes. Else
 * each of n heartbeats a second would cost a read of n streams; with the pause a read brings several. */
static void read_next(struct scheduler *scheduler, bool quiet)
{
    const uint64_t pause_us = READ_PAUSE_US * (uint64_t)node_streams_count(scheduler->node_streams);
    const struct timeval pause = {
        .tv_usec = (suseconds_t)(pause_us < READ_PAUSE_US_MAX ? pause_us : READ_PAUSE_US_MAX)};
    if (quiet && pause_us >= READ_PAUSE_US_MIN)
        event_add(scheduler->read_later, &pause);
    else
        ingest_read(scheduler);
}

/* All entries that were read are committed: trims them and reads the next. `quiet`: they were signs of life.
 */
static void all_committed(struct scheduler *scheduler, bool quiet)
{
    struct err ignored; /* entries that are not trimmed now are trimmed after the next commit */
    scheduler->solo = false;
    for (size_t i = 0; i < node_streams_count(scheduler->node_streams); i++) {
        struct node_stream *node_stream = node_streams_at(scheduler->node_streams, i);
        if (node_stream->taken[0] != '\0') {
            snprintf(node_stream->after, sizeof(node_stream->after), "%s", node_stream->taken);
            redis_stream_trim(scheduler->commands, node_stream->stream, node_stream->after, NULL, NULL,
                              &ignored);
        }
    }
    pending_drop(scheduler);
    read_next(scheduler, quiet);
}

static void ingest_solo_forget(struct scheduler *scheduler)
{
    scheduler->solo_failures = 0;
    scheduler->solo_why = (struct err){0};
}

/* Called when the batch is committed, or when there was nothing to write. */
static void batch_committed(struct scheduler *scheduler)
{
    const bool quiet = event_batch_is_empty(&scheduler->batch);
    scheduler->ingest_conflicts = 0;
    scheduler->refused_runs = quiet ? scheduler->refused_runs : 0;
    ingest_solo_forget(scheduler);
    health_good(scheduler, TASK_INGEST);
    bool dirty = changes_decisions(&scheduler->batch);
    learn(scheduler);
    event_batch_apply(&scheduler->batch);
    send_replies(scheduler);
    event_batch_fini(&scheduler->batch);
    if (scheduler->solo)
        json_array_remove(scheduler->pending, 0);
    if (!scheduler->solo || json_array_size(scheduler->pending) == 0)
        all_committed(scheduler, quiet);
    if (dirty) {
        scheduler->view_stale = true;
        scheduler_mark(scheduler);
    }
    scheduler_turn(scheduler);
}

/* ---- events that the database refuses, which must not hold up the others ---- */

static void ingest_refuse(struct scheduler *scheduler, const json_t *event, const struct err *why,
                          const char *text)
{
    struct node_stream *node_stream =
        node_streams_find(scheduler->node_streams, json_string_value(json_object_get(event, "node")));
    if (node_stream)
        node_stream_refuse(node_stream, clock_mono_ns(), why->code, text);
}

/* Whether the rank's state changes with the event, so that the run cannot go on without it. */
static bool moves_rank(const char *type)
{
    static const char *const moves[] = {"worker_ready", "started", "done", "stopped", "failed"};
    for (size_t i = 0; i < sizeof(moves) / sizeof(moves[0]); i++)
        if (strcmp(type, moves[i]) == 0)
            return true;
    return false;
}

/* Notes that the first pending event was refused. Returns whether it is the event of one of too many runs in
 * a row, without a commit between them: then the events are not at fault. */
static bool note_refused(struct scheduler *scheduler)
{
    const json_t *event = json_array_get(scheduler->pending, 0);
    const int64_t run = json_integer_value(json_object_get(event, "run"));
    if (scheduler->refused_runs == 0 || run != scheduler->refused_run)
        scheduler->refused_runs++;
    scheduler->refused_run = run;
    return scheduler->refused_runs >= REFUSED_RUNS_MAX;
}

/* Replaces the event that the database refused by a log line with the same sequence number, which says so;
 * an event that would have changed the rank's state, by the rank's failure. If the database refused that,
 * too, it is dropped. */
static void defuse(struct scheduler *scheduler, const struct err *why)
{
    const json_t *event = json_array_get(scheduler->pending, 0);
    const char *type = json_text_of(event, "type");
    char text[600], place_text[600];
    snprintf(text, sizeof(text), "%.40s: %s", type, why->text);
    ingest_refuse(scheduler, event, why, text);
    snprintf(place_text, sizeof(place_text),
             "the event %.40s of this worker was refused by the database: %.300s", type, why->text);
    json_t *place = !json_object_get(event, "refused") && json_object_get(event, "run")
                        ? json_pack("{s:s, s:s, s:s, s:s, s:b, s:b}", "type",
                                    moves_rank(type) ? "failed" : "log", "level", "error", "code", "internal",
                                    "text", place_text, "own_fault", 0, "refused", 1)
                        : NULL;
    static const char *const kept[] = {"node", "run", "epoch", "rank", "seq", "at"};
    for (size_t i = 0; place && i < sizeof(kept) / sizeof(kept[0]); i++)
        json_object_set(place, kept[i], json_object_get(event, kept[i]));
    if (!place || json_array_set_new(scheduler->pending, 0, place) < 0)
        json_array_remove(scheduler->pending, 0);
}

/* Commits the events one by one from now on; one that fails alone, twice by the same fault or
 * SOLO_FAILURES_MAX times by whatever, is replaced. If the statement is at fault rather than the event, all
 * events wait. */
static void handle_poison(struct scheduler *scheduler, const struct err *err)
{
    const bool again = strcmp(scheduler->solo_why.text, err->text) == 0;
    scheduler->solo_failures += scheduler->solo;
    if (!scheduler->solo || (!again && scheduler->solo_failures < SOLO_FAILURES_MAX)) {
        scheduler->solo_why = scheduler->solo ? *err : (struct err){0};
        scheduler->solo = true;
        return;
    }
    ingest_solo_forget(scheduler);
    if (store_err_is_of_statement(err) || note_refused(scheduler))
        return;
    defuse(scheduler, err);
    if (json_array_size(scheduler->pending) == 0)
        all_committed(scheduler, false);
}

/* What a failed batch would have noted of nodes is noted with their next sign of life. */
static void forget_lives(struct scheduler *scheduler)
{
    const json_t *seen;
    size_t i;
    json_array_foreach (scheduler->batch.ingest.seen, i, seen) {
        const char *node = json_string_value(json_object_get(seen, "node"));
        for (size_t k = 0; k < scheduler->life_count; k++)
            if (strcmp(scheduler->lives[k].name, node) == 0)
                scheduler->lives[k].noted_ns = 0;
    }
}

static void ingest_done(void *arg, const struct err *err)
{
    struct scheduler *scheduler = arg;
    if (!scheduler_settle(scheduler))
        return;
    if (err) {
        forget_lives(scheduler);
        event_batch_fini(&scheduler->batch); /* the pending events stay and are checked again */
        if (scheduler_blames_rows(err, &scheduler->ingest_conflicts))
            handle_poison(scheduler, err);
        scheduler_retry(scheduler, TASK_INGEST, "ingest_failed", err);
        return;
    }
    batch_committed(scheduler);
}

static void note_lives(struct scheduler *scheduler)
{
    const uint64_t now_ns = clock_mono_ns();
    const int64_t now_us = clock_wall_us();
    const char *node;
    json_t *value;
    json_object_foreach (scheduler->batch.heard, node, value) {
        const int64_t at_us = json_integer_value(value);
        liveness_heard(scheduler, node, at_us > 0 ? at_us - now_us : 0, now_ns);
    }
    for (size_t i = 0; i < scheduler->life_count; i++) {
        struct node_life *life = &scheduler->lives[i];
        const bool moved = life->clock_is_known && llabs(life->clock_us - life->noted_us) > CLOCK_MOVED_US;
        if (life->heard_ns == now_ns && (now_ns - life->noted_ns > SEEN_NS || moved)) {
            life->noted_ns = now_ns;
            life->noted_us = life->clock_is_known ? life->clock_us : life->noted_us;
            json_array_append_new(
                (json_t *)scheduler->batch.ingest.seen,
                json_pack("{s:s, s:o*}", "node", life->name, "clock_ahead_s",
                          life->clock_is_known ? json_real((double)life->clock_us / 1e6) : NULL));
        }
    }
}

static int fill_batch(struct scheduler *scheduler, struct err *err)
{
    struct event_batch *batch = &scheduler->batch;
    size_t i;
    json_t *event;
    if (event_batch_init(batch, scheduler->view, err) < 0)
        return -1;
    json_array_foreach (scheduler->pending, i, event) {
        if (i > 0 && scheduler->solo)
            break;
        if (event_batch_add(batch, event, err) < 0) {
            if (err->code == ERR_NOMEM)
                return -1;
            ingest_refuse(scheduler, event, err, err->text);
        }
    }
    return event_batch_close(batch, err);
}

void ingest_start(struct scheduler *scheduler)
{
    struct err err;
    scheduler->passes_before_events = 0;
    scheduler->busy = true;
    scheduler->chain = scheduler->epoch;
    if (fill_batch(scheduler, &err) < 0) {
        event_batch_fini(&scheduler->batch);
        scheduler->busy = false;
        scheduler_retry(scheduler, TASK_INGEST, "ingest_failed", &err);
        return;
    }
    note_lives(scheduler);
    if (event_batch_is_empty(&scheduler->batch)) {
        scheduler->busy = false;
        batch_committed(scheduler);
        return;
    }
    scheduler->batch.ingest.leader = scheduler->epoch;
    if (store_ingest(scheduler->store, &scheduler->batch.ingest, ingest_done, scheduler, &err) < 0) {
        event_batch_fini(&scheduler->batch);
        scheduler->busy = false;
        scheduler_retry(scheduler, TASK_INGEST, "ingest_failed", &err);
    }
}

void ingest_forget(struct scheduler *scheduler)
{
    event_batch_fini(&scheduler->batch);
    pending_drop(scheduler);
    scheduler->solo = false;
    scheduler->refused_runs = 0;
}
