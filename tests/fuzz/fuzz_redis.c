/* Feeds what a Redis might send to the scheduler's client: whole and cut into pieces, replies reach the
 * readers of streams, of users, of connections and of sizes. An entry is opened with the seal that came and,
 * as the fuzzer has no key, with the right one. */
#include "fuzz/fuzz.h"

#include <stdlib.h>

#include "common/log.h"
#include "common/redis.c"

#include "scheduler/leader/scheduler_private.h"

static struct event_base *base;
static struct seal *seal;
static const uint8_t key[SEAL_KEY_SIZE] = {1};

/* Takes the place of common/log.c, so that a million lines are not written. */
void log_event(enum log_level level, const char *event, const char *fmt, ...)
{
    (void)level, (void)event, (void)fmt;
}

static int entry_open(void *arg, const char *stream, const char *id, const struct redis_entry *entry,
                      struct err *err)
{
    struct scheduler *scheduler = arg;
    struct node_stream *node = node_streams_at(scheduler->node_streams, 0);
    uint8_t mac[SEAL_SIZE];
    (void)stream;
    if (!id || (!entry->seal && entry->seal_size) || (!entry->payload && entry->size))
        __builtin_trap();
    node_stream_id_is_sane(id);
    json_t *event = node_stream_open(node, entry, err);
    if (event)
        __builtin_trap(); /* a forged one */
    node_stream_refuse(node, 1, err->code, err->text);
    if (!entry->payload || seal_make(seal, SEAL_EVENTS, entry->payload, entry->size, mac, err) < 0)
        return 0;
    const struct redis_entry sealed = {
        .payload = entry->payload, .size = entry->size, .seal = mac, .seal_size = sizeof(mac)};
    event = node_stream_open(node, &sealed, err);
    if (event && strcmp(json_string_value(json_object_get(event, "node")), "a") != 0)
        __builtin_trap();
    json_decref(event);
    return 0;
}

static void entries_came(void *arg, const redisReply *reply, const struct err *err)
{
    struct err why;
    if ((reply == NULL) != (err->code != ERR_NONE))
        __builtin_trap();
    if (reply)
        redis_stream_entries(reply, entry_open, arg, &why);
}

/* Sends all that the scheduler asks of Redis beside what it writes. */
static void ask(struct scheduler *scheduler)
{
    static const struct redis_position position = {"motley:events:a", "0"};
    struct err err;
    redis_users_check(scheduler);
    floods_measure(scheduler, false);
    for (int i = 0; i < 3; i++)
        if (redis_streams_read(scheduler->commands, &position, 1, 100, 100, entries_came, scheduler, &err) <
            0)
            __builtin_trap();
}

/* Lets Redis answer these bytes, 'piece' at a time, on a connection that has just come. */
static void bring(struct scheduler *scheduler, const uint8_t *data, size_t size, size_t piece)
{
    struct redis *redis = scheduler->commands;
    struct bufferevent *pair[2];
    if (bufferevent_pair_new(base, BEV_OPT_DEFER_CALLBACKS, pair) < 0)
        abort();
    event_del(redis->timer);
    arrays_bound(redis);
    redis->state = STATE_GREETING;
    redis->stream = pair[0];
    bufferevent_setcb(pair[0], redis_stream_readable, NULL, NULL, redis);
    bufferevent_enable(pair[0], EV_READ | EV_WRITE);
    bufferevent_enable(pair[1], EV_READ | EV_WRITE);
    for (size_t at = 0; at < size && redis->stream == pair[0]; at += piece) {
        bufferevent_write(pair[1], data + at, size - at < piece ? size - at : piece);
        event_base_loop(base, EVLOOP_NONBLOCK);
        evbuffer_drain(bufferevent_get_input(pair[1]), evbuffer_get_length(bufferevent_get_input(pair[1])));
    }
    bufferevent_free(pair[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char name[] = "a", several[] = "unix:/nowhere,unix:/elsewhere";
    const struct scheduler_config known = {.redis_address = several};
    struct store_sched_node node = {.name = name, .generation = 1, .admitted = true};
    struct store_view view = {.nodes = &node, .node_count = 1};
    struct redis_config config = {.address = "unix:/nowhere", .reply_bytes_max = 1 << 20};
    struct err err;
    memcpy(node.seal_key, key, sizeof(key));
    if (!base) {
        base = event_base_new();
        seal = seal_create(key, name, &err);
    }
    for (int cut = 0; size > 0 && cut < 2; cut++) {
        struct scheduler scheduler = {.epoch = 1, .redis_up = true, .view = &view, .config = &known};
        scheduler.commands = redis_create(base, &config, NULL, NULL, &err);
        scheduler.node_streams = node_streams_create(&err);
        if (!scheduler.commands || node_streams_sync(scheduler.node_streams, &view, &err) < 0)
            abort();
        ask(&scheduler);
        bring(&scheduler, data + 1, size - 1, cut ? 1 + data[0] % 64u : size);
        json_decref(node_streams_marks(scheduler.node_streams));
        scheduler.epoch = 0; /* closing answers what was asked */
        redis_destroy(scheduler.commands);
        event_base_loop(base, EVLOOP_NONBLOCK);
        node_streams_destroy(scheduler.node_streams);
    }
    return 0;
}
