/* The scheduler's loop: it stands by or leads, and runs one database task at a time. */
#include "scheduler/leader/scheduler_private.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/redis.h"
#include "common/tls.h"
#include "scheduler/leader_note.h"
#include "scheduler/pass/plan_memo.h"
#include "scheduler/pass/shares.h"

#define TICK_MS 250
/* Least time between two passes. It is short while a device is free, so that a submitted job starts at once,
 * and longer while all devices are taken (a device that becomes free asks for a pass without a pause). */
#define PASS_PAUSE_NS_MIN 10000000u
#define PASS_PAUSE_NS_MAX 100000000u
/* Passes that each make another one necessary keep events waiting for so many passes at most. */
/* An idle scheduler looks this often by itself: an api that died between the commit of a submit and its
 * waking of the scheduler left a job that nobody has told us of. */
#define LOOK_IDLE_NS 10000000000u
enum { PASSES_BEFORE_EVENTS_MAX = 4 };
#define BEACON_MS "5000"         /* how long agents look for a leader here after its last sign of life */
#define MARKER "motley:instance" /* a key whose absence shows that Redis was wiped */

/* ---- one database task at a time ---- */

/* Makes the set of streams equal to the view's nodes. */
static void sync_node_streams(struct scheduler *scheduler)
{
    struct err err;
    int changed = node_streams_sync(scheduler->node_streams, scheduler->view, &err);
    if (changed < 0) {
        scheduler_retry(scheduler, TASK_LOAD, "load_failed", &err);
    } else if (changed > 0) {
        redis_users_check(scheduler);
        dispatch_again(scheduler->dispatch); /* until now, messages for a new node could not be sealed */
        ingest_read(scheduler);
    }
}

static void loaded(void *arg, const struct err *err, struct store_view *view)
{
    struct scheduler *scheduler = arg;
    if (!scheduler_settle(scheduler)) {
        store_view_destroy(view);
        return;
    }
    if (err) {
        scheduler_retry(scheduler, TASK_LOAD, "load_failed", err);
        return;
    }
    health_good(scheduler, TASK_LOAD);
    store_view_destroy(scheduler->view);
    scheduler->view = view;
    scheduler->view_stale = false;
    if (view->differs[0] != '\0')
        log_event(LOG_LEVEL_ERROR, "queue_differs", "why=\"%s\"", view->differs);
    /* must come first: its messages are sealed with the keys of the nodes that leave */
    identities_leave(scheduler);
    sync_node_streams(scheduler);
    identities_tell(scheduler);
    if (scheduler->pending && scheduler->passes_before_events >= PASSES_BEFORE_EVENTS_MAX) {
        scheduler->dirty = true;
        ingest_start(scheduler);
        return;
    }
    pass_start(scheduler);
}

static void start_pass(struct scheduler *scheduler)
{
    struct err err;
    scheduler->dirty = false;
    scheduler->events_next = true;
    scheduler->passes_before_events += scheduler->pending ? 1 : 0;
    scheduler->passed_ns = clock_mono_ns();
    scheduler->busy = true;
    scheduler->chain = scheduler->epoch;
    /* The sums of ended rows depend on the half-life, which may have changed. */
    if (scheduler->reconfigured)
        shares_forget(scheduler->shares);
    scheduler->reconfigured = false;
    const double faded_us =
        /* after 10 half-lives a thousandth of the use is left, so older rows are not loaded */
        1e7 * scheduler->config->sharing.half_life_s;
    const int64_t kept_us = faded_us > (double)SHARES_MONTH_US ? (int64_t)faded_us : SHARES_MONTH_US;
    const uint64_t check_ns = (uint64_t)scheduler->config->limits.queue_check_ms * 1000000;
    const bool check = scheduler->checked_ns == 0 || scheduler->passed_ns - scheduler->checked_ns >= check_ns;
    scheduler->checked_ns = check ? scheduler->passed_ns : scheduler->checked_ns;
    const struct store_sched_want want = {.queue = scheduler->queue,
                                          .links = scheduler->links,
                                          .check = check,
                                          .closed = shares_closed(scheduler->shares),
                                          .use_from_us = clock_wall_us() - kept_us,
                                          .started_us = scheduler->started_us};
    if (store_sched_load(scheduler->store, &want, loaded, scheduler, &err) < 0) {
        scheduler->busy = false;
        scheduler_retry(scheduler, TASK_LOAD, "load_failed", &err);
    }
}

/* Starts the next database task. No other function starts one. */
static void turn(evutil_socket_t fd, short what, void *arg)
{
    struct scheduler *scheduler = arg;
    (void)fd;
    (void)what;
    if (scheduler->epoch == 0 || !scheduler->ready || scheduler->busy || scheduler->pass)
        return;
    bool events = scheduler->pending && scheduler->view && !scheduler->view_stale;
    bool decide = scheduler->dirty || !scheduler->view;
    if (events && (scheduler->events_next || !decide)) {
        scheduler->events_next = false;
        ingest_start(scheduler);
        return;
    }
    if (!decide)
        return;
    uint64_t since_ns = clock_mono_ns() - scheduler->passed_ns;
    uint64_t pause_ns = scheduler->devices_free ? PASS_PAUSE_NS_MIN : PASS_PAUSE_NS_MAX;
    if (!scheduler->view_stale && scheduler->view && since_ns < pause_ns) {
        scheduler_wake_in_ms(scheduler, (unsigned)((pause_ns - since_ns) / 1000000u) + 1);
        return;
    }
    start_pass(scheduler);
}

/* Asks for a pass, because the time has come for which a decision waits. */
static void wake(evutil_socket_t fd, short what, void *arg)
{
    struct scheduler *scheduler = arg;
    (void)fd;
    (void)what;
    scheduler_mark(scheduler);
}

static void read_later(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    ingest_read(arg);
}

static void facts_arrived(void *arg)
{
    struct scheduler *scheduler = arg;
    scheduler->view_stale = true; /* skips the pause between passes, since a job waits for this fact */
    scheduler_mark(scheduler);
}

static void notified(void *arg, const char *channel, const char *payload)
{
    struct scheduler *scheduler = arg;
    (void)channel;
    (void)payload;
    scheduler_mark(scheduler);
}

/* ---- Redis ---- */

/* Handles a Redis server that has lost all its data. */
static void redis_is_empty(struct scheduler *scheduler)
{
    node_streams_rewind(scheduler->node_streams);
    dispatch_again(scheduler->dispatch);
    identities_forget(scheduler);
    scheduler_mark(scheduler);
    log_event(LOG_LEVEL_INFO, "redis_refilled", "messages=%zu", dispatch_kept(scheduler->dispatch));
}

static void marker_done(void *arg, const redisReply *reply, const struct err *err)
{
    struct scheduler *scheduler = arg;
    scheduler->marker_asked = false;
    if (err->code != ERR_NONE || scheduler->epoch == 0 || !scheduler->ready)
        return;
    if (reply->type == REDIS_REPLY_STATUS) /* OK: the key was not there */
        redis_is_empty(scheduler);
}

/* Asks whether Redis still has the marker key: SET … NX answers OK only when the key is missing. */
static void ask_marker(struct scheduler *scheduler)
{
    static const char *const argv[] = {"SET", MARKER, "1", "NX"};
    static const size_t lengths[] = {3, sizeof(MARKER) - 1, 1, 2};
    struct err ignored; /* the next tick asks again */
    if (!scheduler->marker_asked && scheduler->redis_up) {
        scheduler->marker_asked =
            redis_command(scheduler->commands, 2000, marker_done, scheduler, 4, argv, lengths, &ignored) == 0;
    }
}

/* With several addresses of Redis, lets the agents know that we work with this one. */
static void set_beacon(struct scheduler *scheduler, uint64_t now_ns)
{
    const char *const argv[] = {"SET", REDIS_BEACON, scheduler->config->name, "PX", BEACON_MS};
    struct err ignored; /* the next tick tries again */
    if (scheduler->redis_up && strchr(scheduler->config->redis_address, ',') &&
        now_ns - scheduler->beacon_ns > 500000000u &&
        redis_command(scheduler->commands, 2000, NULL, NULL, 5, argv, NULL, &ignored) == 0)
        scheduler->beacon_ns = now_ns;
}

/* Exempts our connections from eviction, by which Redis closes the fullest connections when it lacks memory
 * (maxmemory-clients). */
static void stay(struct redis *redis)
{
    static const char *const argv[] = {"CLIENT", "NO-EVICT", "on"};
    struct err ignored;
    redis_command(redis, 0, NULL, NULL, 3, argv, NULL, &ignored);
}

static void redis_connected(void *arg)
{
    struct scheduler *scheduler = arg;
    scheduler->redis_up = true;
    health_good(scheduler, TASK_REDIS);
    scheduler->listening_ns = clock_mono_ns();
    stay(scheduler->commands);
    log_event(LOG_LEVEL_INFO, "redis_connected", "address=%s", redis_address(scheduler->commands));
    scheduler->beacon_ns = 0;
    if (strncmp(scheduler->redis_at, redis_address(scheduler->commands), sizeof(scheduler->redis_at) - 1) !=
        0)
        node_streams_rewind(scheduler->node_streams); /* another server's entries have numbers of their own */
    snprintf(scheduler->redis_at, sizeof(scheduler->redis_at), "%s", redis_address(scheduler->commands));
    redis_users_forget(scheduler);
    redis_users_check(scheduler);
    if (scheduler->dispatch && scheduler->ready) {
        dispatch_again(scheduler->dispatch);
        identities_forget(scheduler); /* messages sent in the meantime reached nobody */
        scheduler_mark(scheduler);
        ask_marker(scheduler);
    }
}

static void redis_disconnected(void *arg, const struct err *why)
{
    struct scheduler *scheduler = arg;
    if (scheduler->redis_up || scheduler->epoch != 0)
        log_event(LOG_LEVEL_WARN, "redis_lost", "why=\"%s\"", why->text);
    health_failed(scheduler, TASK_REDIS, why);
    scheduler->redis_up = false;
}

static void scheduler_reader_connected(void *arg)
{
    struct scheduler *scheduler = arg;
    stay(scheduler->reader);
    ingest_read(scheduler);
}

/* ---- leading ---- */

static void keep_outbox(struct scheduler *scheduler, const json_t *rows)
{
    size_t i;
    json_t *row;
    struct err err;
    json_array_foreach (rows, i, row) {
        if (dispatch_keep(scheduler->dispatch, json_integer_value(json_object_get(row, "id")),
                          json_string_value(json_object_get(row, "node")),
                          json_integer_value(json_object_get(row, "run")),
                          json_string_value(json_object_get(row, "type")), json_object_get(row, "payload"),
                          &err) < 0) {
            log_event(LOG_LEVEL_ERROR, "message_unsent", "why=\"%s\"", err.text);
        }
    }
}

static void take_plans(struct scheduler *scheduler, const json_t *plans)
{
    size_t i;
    json_t *row;
    struct err err;
    json_array_foreach (plans, i, row)
        if (dispatch_plan(scheduler->dispatch, json_integer_value(json_object_get(row, "run")),
                          json_object_get(row, "plan"), &err) < 0)
            log_event(LOG_LEVEL_ERROR, "plan_unread", "why=\"%s\"", err.text);
}

static void load_outbox(struct scheduler *scheduler);

static void outbox_loaded(void *arg, const struct err *err, json_t *doc)
{
    struct scheduler *scheduler = arg;
    if (!scheduler_settle(scheduler)) {
        if (scheduler->epoch != 0 && !scheduler->ready)
            load_outbox(scheduler); /* leadership was lost and gained again since the load began */
        return;
    }
    if (err) {
        log_event(LOG_LEVEL_WARN, "load_failed", "why=\"%s\"", err->text);
        health_failed(scheduler, TASK_LOAD, err); /* the next tick asks again */
        return;
    }
    const char *incarnation = json_string_value(json_object_get(doc, "incarnation"));
    dispatch_live(scheduler->dispatch, incarnation);
    take_plans(scheduler, json_object_get(doc, "plans"));
    keep_outbox(scheduler, json_object_get(doc, "messages"));
    dispatch_plans_forget(scheduler->dispatch);
    scheduler->ready = true;
    scheduler->listening_ns = clock_mono_ns();
    scheduler->view_stale = true;
    struct err unnoted;
    if (leader_note_write(scheduler->config->leader_file, scheduler->epoch, &unnoted) < 0)
        log_event(LOG_LEVEL_WARN, "leader_note", "why=\"%s\"", unnoted.text);
    log_event(LOG_LEVEL_INFO, "leading", "name=%s epoch=%lld messages=%zu incarnation=%s",
              scheduler->config->name, (long long)scheduler->epoch, dispatch_kept(scheduler->dispatch),
              incarnation);
    ask_marker(scheduler);
    scheduler_mark(scheduler); /* the pass loads the view, which names the streams to read */
}

static void load_outbox(struct scheduler *scheduler)
{
    struct err err;
    if (scheduler->busy)
        /* When the running task ends, it calls scheduler_turn; the next tick then calls this function
         * again. */
        return;
    scheduler->busy = true;
    scheduler->chain = scheduler->epoch;
    if (store_outbox_list(scheduler->store, outbox_loaded, scheduler, &err) < 0)
        scheduler->busy = false;
}

static void gained(void *arg, int64_t epoch)
{
    struct scheduler *scheduler = arg;
    scheduler->epoch = epoch;
    scheduler->ready = false;
    scheduler->listening_ns = clock_mono_ns();
    load_outbox(scheduler);
}

static void scheduler_forget(struct scheduler *scheduler)
{
    leader_note_remove(scheduler->config->leader_file);
    scheduler->epoch = 0;
    scheduler->ready = false;
    pass_forget(scheduler);
    ingest_forget(scheduler);
    node_streams_clear(scheduler->node_streams);
    liveness_forget(scheduler);
    identities_forget(scheduler);
    dispatch_clear(scheduler->dispatch);
    facts_forget_profiles(scheduler->facts);
    store_view_destroy(scheduler->view);
    scheduler->view = NULL;
    store_queue_forget(scheduler->queue);
    store_links_forget(scheduler->links);
    pass_forget_weighings(scheduler);
    shares_forget(scheduler->shares);
    json_object_clear(scheduler->away);
    json_object_clear(scheduler->idle);
    json_object_clear(scheduler->moving);
    json_object_clear(scheduler->asides);
    json_object_clear(scheduler->blamed);
    scheduler->health = (struct scheduler_health){.writing = scheduler->health.writing};
    scheduler->dirty = false;
    scheduler->sharing_said = false;
    scheduler->listed_us = 0;
    scheduler->listed_hash = 0;
    scheduler->starts.count = 0;
    scheduler->started_us = 0;
    event_del(scheduler->wake);
}

static void lost(void *arg, const struct err *why)
{
    struct scheduler *scheduler = arg;
    log_event(LOG_LEVEL_WARN, "lead_lost", "name=%s epoch=%lld why=\"%s\"", scheduler->config->name,
              (long long)scheduler->epoch, why->text);
    scheduler_forget(scheduler);
}

static void went_back(void *arg, int64_t jobs)
{
    struct scheduler *scheduler = arg;
    log_event(LOG_LEVEL_WARN, "database_went_back",
              "name=%s jobs=%lld why=\"a standby that may lack the last "
              "changes took over\"",
              scheduler->config->name, (long long)jobs);
}

/* Logs that the database cannot be reached. Each connection reports each failed try, and one log line a
 * second is enough. */
static void trouble(void *arg, const struct err *why)
{
    struct scheduler *scheduler = arg;
    uint64_t now_ns = clock_mono_ns();
    if (scheduler->complained_ns == 0 || now_ns - scheduler->complained_ns > 1000000000u) {
        scheduler->complained_ns = now_ns;
        log_event(LOG_LEVEL_WARN, "database_trouble", "name=%s why=\"%s\"", scheduler->config->name,
                  why->text);
    }
}

/* ---- the tick ---- */

static void pruned(void *arg, const struct err *err, json_t *counts)
{
    struct scheduler *scheduler = arg;
    scheduler->pruning = false;
    scheduler->prune_more = json_is_true(json_object_get(counts, "more"));
    if (err && err->code != ERR_CANCELLED)
        log_event(LOG_LEVEL_WARN, "prune_failed", "why=\"%s\"", err->text);
}

/* Removes one batch of old rows in each tick until none are left, so that no other task waits for long. */
static void prune(struct scheduler *scheduler, uint64_t now_ns)
{
    const struct scheduler_limits *limits = &scheduler->config->limits;
    struct err ignored; /* a later tick tries again */
    bool due = scheduler->prune_more || now_ns - scheduler->pruned_ns > (uint64_t)limits->prune_ms * 1000000u;
    if (due && !scheduler->pruning) {
        const struct store_retention keep = {
            .event_days = limits->event_days,
            .history_days = limits->history_days,
            .dataset_days = limits->dataset_days,
            .ledger_days = limits->ledger_days,
            .usage_days = limits->usage_days,
            .rank_steps = limits->rank_steps,
            .request_ms = 3600000 + ((uint64_t)limits->remeasure_ms << REMEASURE_DOUBLINGS),
            .rows = limits->prune_rows};
        scheduler->pruned_ns = now_ns;
        scheduler->prune_more = false;
        scheduler->pruning =
            store_prune(scheduler->store, scheduler->epoch, &keep, pruned, scheduler, &ignored) == 0;
    }
}

static void scheduler_tick(evutil_socket_t fd, short what, void *arg)
{
    struct scheduler *scheduler = arg;
    uint64_t now_ns = clock_mono_ns();
    (void)fd;
    (void)what;
    if (scheduler->epoch == 0)
        return;
    health_tell(scheduler, now_ns);
    if (!scheduler->ready) {
        load_outbox(scheduler);
        return;
    }
    ask_marker(scheduler);
    set_beacon(scheduler, now_ns);
    ingest_read(scheduler);
    floods_measure(scheduler, false);
    floods_mark(scheduler);
    redis_users_tick(scheduler, now_ns);
    prune(scheduler, now_ns);
    liveness_ask_again(scheduler, now_ns);
    if (liveness_changed(scheduler, now_ns) || now_ns - scheduler->passed_ns > LOOK_IDLE_NS)
        scheduler_mark(scheduler);
    if (scheduler->pending)
        scheduler_turn(scheduler);
}

/* ---- making and ending ---- */

static void scheduler_outgrown(void *arg, const struct err *why)
{
    struct scheduler *scheduler = arg;
    scheduler->ended = *why;
    event_base_loopbreak(scheduler->base);
}

int scheduler_ended(const struct scheduler *scheduler, struct err *err)
{
    *err = scheduler->ended;
    return err->code ? -1 : 0;
}

static int connect_redis(struct scheduler *scheduler, struct err *err)
{
    const struct scheduler_config *config = scheduler->config;
    if (config->redis_ca) {
        const struct tls_files files = {config->redis_ca, config->redis_cert, config->redis_key};
        scheduler->tls = tls_context_create(&files, TLS_ROLE_CLIENT, err);
        if (!scheduler->tls)
            return -1;
    }
    struct redis_config redis = {.address = config->redis_address,
                                 .user = config->redis_user,
                                 .password = config->redis_password,
                                 .tls = scheduler->tls};
    const struct redis_events commands = {redis_connected, redis_disconnected};
    const struct redis_events reader = {scheduler_reader_connected, NULL};
    scheduler->commands = redis_create(scheduler->base, &redis, &commands, scheduler, err);
    if (!scheduler->commands)
        return -1;
    redis.with = scheduler->commands;
    scheduler->reader = redis_create(scheduler->base, &redis, &reader, scheduler, err);
    return scheduler->reader ? 0 : -1;
}

static int connect_store(struct scheduler *scheduler, struct err *err)
{
    const struct store_config store = {.conninfo = scheduler->config->postgres,
                                       .connections = 2,
                                       .trouble = trouble,
                                       .trouble_arg = scheduler};
    const struct store_leader_config candidate = {.conninfo = scheduler->config->postgres,
                                                  .name = scheduler->config->name,
                                                  .silent_ms = scheduler->config->limits.leader_silent_ms,
                                                  .poll_ms = scheduler->config->limits.leader_poll_ms};
    const struct store_leader_events events = {.gained = gained, .lost = lost, .went_back = went_back};
    if (store_create(scheduler->base, &store, &scheduler->store, err) < 0 ||
        store_listen(scheduler->store, "motley_jobs", notified, scheduler, err) < 0 ||
        store_watch_schema(scheduler->store, scheduler_outgrown, scheduler, err) < 0) {
        return -1;
    }
    scheduler->facts =
        facts_create(scheduler->store, scheduler->config->limits.remeasure_ms, facts_arrived, scheduler, err);
    scheduler->dispatch = dispatch_create(scheduler->base, scheduler->commands, scheduler->node_streams,
                                          scheduler->config->limits.redeliver_ms, err);
    scheduler->planning = planning_create(scheduler->base, scheduler->placer, &scheduler->config->planners,
                                          facts_arrived, scheduler, err);
    scheduler->memo = plan_memo_create(err);
    scheduler->shares = shares_create(err);
    scheduler->queue = store_queue_create(err);
    scheduler->links = store_links_create(err);
    scheduler->away = json_object();
    scheduler->idle = json_object();
    scheduler->moving = json_object();
    scheduler->asides = json_object();
    scheduler->blamed = json_object();
    if (!scheduler->facts || !scheduler->dispatch || !scheduler->planning || !scheduler->shares ||
        !scheduler->queue || !scheduler->links || !scheduler->memo || !scheduler->away || !scheduler->idle ||
        !scheduler->moving || !scheduler->asides || !scheduler->blamed)
        return -1;
    scheduler->candidate = store_leader_create(scheduler->base, &candidate, &events, scheduler, err);
    return scheduler->candidate ? 0 : -1;
}

struct scheduler *scheduler_create(struct event_base *base, const struct scheduler_config *config,
                                   const struct placer *placer, struct err *err)
{
    const struct timeval period = {.tv_usec = TICK_MS * 1000};
    struct scheduler *scheduler = calloc(1, sizeof(*scheduler));
    if (!scheduler) {
        err_set(err, ERR_NOMEM, "no memory for the scheduler");
        return NULL;
    }
    scheduler->base = base;
    scheduler->config = config;
    scheduler->placer = placer;
    scheduler->pruned_ns = clock_mono_ns();
    scheduler->read_busy = 1;
    scheduler->node_streams = node_streams_create(err);
    if (!scheduler->node_streams) {
        free(scheduler);
        return NULL;
    }
    scheduler->turn = event_new(base, -1, 0, turn, scheduler);
    scheduler->tick = event_new(base, -1, EV_PERSIST, scheduler_tick, scheduler);
    scheduler->wake = evtimer_new(base, wake, scheduler);
    scheduler->read_later = evtimer_new(base, read_later, scheduler);
    if (!scheduler->turn || !scheduler->tick || !scheduler->wake || !scheduler->read_later) {
        err_set(err, ERR_NOMEM, "no memory for the scheduler");
        scheduler_destroy(scheduler);
        return NULL;
    }
    event_add(scheduler->tick, &period);
    if (connect_redis(scheduler, err) < 0 || connect_store(scheduler, err) < 0) {
        scheduler_destroy(scheduler);
        return NULL;
    }
    return scheduler;
}

static void free_event(struct event *event)
{
    if (event)
        event_free(event);
}

void scheduler_reconfigured(struct scheduler *scheduler)
{
    scheduler->reconfigured = true;
    scheduler->view_stale = true;
    scheduler_mark(scheduler);
}

void scheduler_destroy(struct scheduler *scheduler)
{
    if (!scheduler)
        return;
    scheduler->epoch = 0; /* answers that still come are dropped */
    store_destroy(scheduler->store);
    leader_note_remove(scheduler->config->leader_file);
    store_leader_destroy(scheduler->candidate);
    redis_destroy(scheduler->reader);
    pass_forget(scheduler);
    ingest_forget(scheduler);
    liveness_forget(scheduler);
    identities_forget(scheduler);
    dispatch_destroy(scheduler->dispatch);
    facts_destroy(scheduler->facts);
    planning_destroy(scheduler->planning);
    plan_memo_destroy(scheduler->memo);
    shares_destroy(scheduler->shares);
    store_queue_destroy(scheduler->queue);
    store_links_destroy(scheduler->links);
    json_decref(scheduler->away);
    json_decref(scheduler->idle);
    json_decref(scheduler->asides);
    json_decref(scheduler->moving);
    json_decref(scheduler->blamed);
    pass_forget_weighings(scheduler);
    free(scheduler->weighings);
    redis_destroy(scheduler->commands);
    node_streams_destroy(scheduler->node_streams);
    store_view_destroy(scheduler->view);
    tls_context_free(scheduler->tls);
    free_event(scheduler->turn);
    free_event(scheduler->tick);
    free_event(scheduler->wake);
    free_event(scheduler->read_later);
    free(scheduler);
}
