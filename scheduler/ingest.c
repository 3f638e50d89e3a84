/* Events in: read a batch from the stream, commit it, acknowledge it, read the next.
 *
 * The stream is read from its start by every new leader; what was committed
 * before is recognised by its seq. An entry is trimmed only after its commit.
 */
#include "scheduler/scheduler_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/frame.h"
#include "common/log.h"
#include "common/redis.h"

#define BLOCK_MS 2000
#define BATCH_BYTES_MAX ((size_t)32 << 20)
#define SEEN_NS 15000000000u /* how often last_seen is written */

/* ---- reading ---- */

struct reading {
    struct scheduler *scheduler;
    size_t bytes;
};

static int take_entry(void *arg, const char *id, const void *payload, size_t size, struct err *err)
{
    struct reading *reading = arg;
    struct scheduler *scheduler = reading->scheduler;
    if (reading->bytes > 0 && reading->bytes + size > BATCH_BYTES_MAX) {
        return 0; /* read again from pending_last */
    }
    reading->bytes += size + 1;
    if (reading->bytes > BATCH_BYTES_MAX) {
        reading->bytes = BATCH_BYTES_MAX;
    }
    snprintf(scheduler->pending_last, sizeof(scheduler->pending_last), "%s", id);
    json_t *event = payload != NULL ? frame_decode(payload, size, &frame_limits_default, err) : NULL;
    if (event == NULL) {
        log_event(LOG_LEVEL_WARN, "event_refused", "id=%s why=\"%s\"", id,
                  payload != NULL ? err->text : "the entry has no field m");
        return 0;
    }
    return json_array_append_new(scheduler->pending, event);
}

static void read_done(void *arg, const redisReply *reply, const struct err *why)
{
    struct scheduler *scheduler = arg;
    struct err err;
    scheduler->reading = false;
    scheduler->read_ns = clock_mono_ns();
    if (why->code == ERR_CANCELLED || scheduler->epoch == 0) {
        return;
    }
    if (why->code != ERR_NONE) {
        return; /* the tick reads again */
    }
    struct reading reading = {.scheduler = scheduler};
    scheduler->pending = json_array();
    scheduler->pending_last[0] = '\0';
    if (scheduler->pending == NULL || redis_stream_entries(reply, take_entry, &reading, &err) < 0) {
        json_decref(scheduler->pending);
        scheduler->pending = NULL;
        log_event(LOG_LEVEL_ERROR, "events_unreadable", "after=%s", scheduler->after);
        return;
    }
    if (scheduler->pending_last[0] == '\0') {
        json_decref(scheduler->pending);
        scheduler->pending = NULL;
        ingest_read(scheduler);
        return;
    }
    scheduler_turn(scheduler);
}

void ingest_read(struct scheduler *scheduler)
{
    struct err err;
    if (scheduler->epoch == 0 || !scheduler->ready || scheduler->reading || scheduler->pending != NULL ||
        !redis_is_connected(scheduler->reader)) {
        return;
    }
    scheduler->reading =
        redis_stream_read(scheduler->reader, EVENTS_STREAM, scheduler->after,
                          scheduler->config->limits.batch_max, BLOCK_MS, read_done, scheduler, &err) == 0;
}

/* ---- committing ---- */

static void send_replies(struct scheduler *scheduler)
{
    size_t i;
    json_t *reply;
    json_array_foreach(scheduler->batch.replies, i, reply)
    {
        dispatch_pass(scheduler->dispatch, json_string_value(json_object_get(reply, "node")),
                      json_object_get(reply, "message"));
    }
}

/* States and measurements are reasons to decide; steps and log lines are not. */
static bool changes_decisions(const struct event_batch *batch)
{
    if (json_object_size(batch->hellos) > 0 || json_array_size(batch->ingest.seen) > 0 ||
        json_array_size(batch->ingest.profiles) > 0 || json_array_size(batch->ingest.links) > 0 ||
        json_array_size(batch->ingest.failures) > 0) {
        return true;
    }
    for (size_t i = 0; i < batch->move_count; i++) {
        if (batch->moves[i].state != batch->moves[i].rank->state) {
            return true;
        }
    }
    return false;
}

static void learn(struct scheduler *scheduler)
{
    const struct event_batch *batch = &scheduler->batch;
    uint64_t now_ns = clock_mono_ns();
    const char *node;
    json_t *value;
    size_t i;
    json_array_foreach(batch->ingest.received, i, value)
    {
        dispatch_received(scheduler->dispatch, json_integer_value(json_object_get(value, "id")),
                          json_string_value(json_object_get(value, "node")));
    }
    for (i = 0; i < batch->move_count; i++) {
        if (batch->moves[i].change != NULL) {
            liveness_alive(scheduler, batch->moves[i].run->id, batch->moves[i].rank->rank);
        }
    }
    json_object_foreach(batch->hellos, node, value)
    {
        liveness_hello(scheduler, node, value, now_ns);
        identities_hello(scheduler, node);
    }
    if (json_array_size(batch->ingest.profiles) > 0 || json_object_size(batch->hellos) > 0) {
        facts_forget_profiles(scheduler->facts);
    }
}

/* The entries read are all in the database: they may go, and more may come. */
static void all_committed(struct scheduler *scheduler)
{
    struct err ignored; /* what is not trimmed now is trimmed next time */
    json_decref(scheduler->pending);
    scheduler->pending = NULL;
    scheduler->solo = false;
    snprintf(scheduler->after, sizeof(scheduler->after), "%s", scheduler->pending_last);
    redis_stream_trim(scheduler->commands, EVENTS_STREAM, scheduler->after, NULL, NULL, &ignored);
    ingest_read(scheduler);
}

/* The batch is in the database (or there was nothing to write). */
static void batch_committed(struct scheduler *scheduler)
{
    bool dirty = changes_decisions(&scheduler->batch);
    learn(scheduler);
    event_batch_apply(&scheduler->batch);
    send_replies(scheduler);
    event_batch_fini(&scheduler->batch);
    if (scheduler->solo) {
        json_array_remove(scheduler->pending, 0);
    }
    if (!scheduler->solo || json_array_size(scheduler->pending) == 0) {
        all_committed(scheduler);
    }
    if (dirty) {
        scheduler->view_stale = true;
        scheduler_mark(scheduler);
    }
    scheduler_turn(scheduler);
}

/* ---- an event that the database refuses must not hold up the others ---- */

static bool is_poison(const struct err *err)
{
    return err->code == ERR_INVALID || err->code == ERR_INTERNAL || err->code == ERR_TOO_BIG;
}

/* Keeps the event's place in its sequence, says why in its stead; drops it if even that is refused. */
static void defuse(struct scheduler *scheduler, const struct err *why)
{
    const json_t *event = json_array_get(scheduler->pending, 0);
    const char *type = json_string_value(json_object_get(event, "type"));
    log_event(LOG_LEVEL_ERROR, "event_refused", "type=%s why=\"%s\"", type != NULL ? type : "?", why->text);
    json_t *place = json_object_get(event, "refused") == NULL && json_object_get(event, "run") != NULL
                        ? json_pack("{s:s, s:s, s:s, s:b}", "type", "log", "level", "error", "text",
                                    "an event of this worker was refused by the database", "refused", 1)
                        : NULL;
    static const char *const kept[] = {"node", "run", "epoch", "rank", "seq", "at"};
    for (size_t i = 0; place != NULL && i < sizeof(kept) / sizeof(kept[0]); i++) {
        json_object_set(place, kept[i], json_object_get(event, kept[i]));
    }
    if (place == NULL || json_array_set_new(scheduler->pending, 0, place) < 0) {
        json_array_remove(scheduler->pending, 0);
    }
}

static void handle_poison(struct scheduler *scheduler, const struct err *err)
{
    if (json_array_size(scheduler->pending) > 1 && !scheduler->solo) {
        scheduler->solo = true;
        return;
    }
    scheduler->solo = true;
    defuse(scheduler, err);
    if (json_array_size(scheduler->pending) == 0) {
        all_committed(scheduler);
    }
}

static void ingest_done(void *arg, const struct err *err)
{
    struct scheduler *scheduler = arg;
    if (!scheduler_settle(scheduler)) {
        return;
    }
    if (err != NULL) {
        event_batch_fini(&scheduler->batch); /* the pending events stay and are judged again */
        if (is_poison(err)) {
            handle_poison(scheduler, err);
        }
        scheduler_retry(scheduler, "ingest_failed", err);
        return;
    }
    batch_committed(scheduler);
}

static void note_lives(struct scheduler *scheduler)
{
    uint64_t now_ns = clock_mono_ns();
    const char *node;
    json_t *value;
    json_object_foreach(scheduler->batch.heard, node, value)
    {
        liveness_heard(scheduler, node, now_ns);
    }
    for (size_t i = 0; i < scheduler->life_count; i++) {
        struct node_life *life = &scheduler->lives[i];
        if (life->heard_ns == now_ns && now_ns - life->noted_ns > SEEN_NS) {
            life->noted_ns = now_ns;
            json_array_append_new((json_t *)scheduler->batch.ingest.seen, json_string(life->name));
        }
    }
}

static int fill_batch(struct scheduler *scheduler, struct err *err)
{
    struct event_batch *batch = &scheduler->batch;
    size_t i;
    json_t *event;
    if (event_batch_init(batch, scheduler->view, err) < 0) {
        return -1;
    }
    json_array_foreach(scheduler->pending, i, event)
    {
        if (i > 0 && scheduler->solo) {
            break;
        }
        if (event_batch_add(batch, event, err) < 0) {
            if (err->code == ERR_NOMEM) {
                return -1;
            }
            if (err->code == ERR_NOT_FOUND) {
                /* A node that joined after the view was read: its next heartbeat will find it. */
                scheduler->view_stale = true;
                scheduler->dirty = true;
            }
            log_event(LOG_LEVEL_WARN, "event_refused", "why=\"%s\"", err->text);
        }
    }
    return event_batch_close(batch, err);
}

void ingest_start(struct scheduler *scheduler)
{
    struct err err;
    scheduler->busy = true;
    scheduler->chain = scheduler->epoch;
    if (fill_batch(scheduler, &err) < 0) {
        event_batch_fini(&scheduler->batch);
        scheduler->busy = false;
        scheduler_retry(scheduler, "ingest_failed", &err);
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
        scheduler_retry(scheduler, "ingest_failed", &err);
    }
}

void ingest_forget(struct scheduler *scheduler)
{
    event_batch_fini(&scheduler->batch);
    json_decref(scheduler->pending);
    scheduler->pending = NULL;
    scheduler->solo = false;
}
