#include "agent/feed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/frame.h"
#include "common/redis.h"
#include "common/seal.h"

enum {
    TICK_MS = 250,
    HEARTBEAT_TICKS = 4, /* one heartbeat a second */
    BLOCK_MS = 5000,
    READ_COUNT = 4,            /* messages, of up to 16 MiB each, that one reply brings */
    STREAM_LENGTH_MAX = 50000, /* entries of the Redis stream that stay when nobody reads it */
    WINDOW_EVENTS = 4096,
    WINDOW_BYTES = 6 << 20,      /* unacknowledged bytes that all journal streams together may send. Even sent
                                    twice they stay below 16 MiB, where the scheduler empties a Redis stream. */
    WINDOW_BYTES_MIN = 64 << 10, /* least window of one journal stream, in bytes */
    SEND_MS = 10000,
    AGAIN_MS_SOON = 500,
    AGAIN_MS_MIN = 2000,
    AGAIN_MS_MAX = 30000
};

static const char node_key[] = "node";

struct feed {
    struct event_base *base;
    struct redis *writer;
    struct redis *reader;
    struct event *tick;
    struct journal *journal;
    struct feed_events events;
    void *arg;
    char node[80];
    char boot[64];
    char outbox[128];
    char inbox[128];
    char after[64]; /* id of the last entry read on this connection */
    struct seal *seal;
    int64_t beat;      /* `beat` of the last unnumbered event */
    uint64_t unsealed; /* number of messages dropped because their seal was wrong */
    unsigned ticks;
    bool reading; /* an XREAD is under way */
};

void feed_key(char key[JOURNAL_KEY_SIZE], int64_t run, int64_t epoch, int64_t rank)
{
    snprintf(key, JOURNAL_KEY_SIZE, "run-%" PRId64 "-%" PRId64 "-%" PRId64, run, epoch, rank);
}

/* ---- sending events ---- */

static void inbox_read(struct feed *feed);

static void again_later(struct journal_stream *stream, uint32_t ms)
{
    stream->again_ms = ms > AGAIN_MS_MAX ? AGAIN_MS_MAX : ms;
    stream->again_ns = clock_mono_ns() + (uint64_t)stream->again_ms * 1000000;
}

static void event_answered(void *arg, const redisReply *reply, const struct err *err)
{
    struct feed *feed = arg;
    if (reply || err->code == ERR_CANCELLED)
        return;
    /* The event was refused or lost with the connection. It is unknown which others were lost, so all that
     * are outstanding are sent again soon. */
    uint64_t soon_ns = clock_mono_ns() + (uint64_t)AGAIN_MS_SOON * 1000000;
    for (struct journal_stream *stream = journal_first(feed->journal); stream != NULL; stream = stream->next)
        stream->again_ns = stream->again_ns < soon_ns ? stream->again_ns : soon_ns;
}

static int send_sealed(struct feed *feed, const void *bytes, size_t size, redis_reply_fn *answered,
                       struct err *err)
{
    uint8_t mac[SEAL_SIZE];
    const struct redis_entry entry = {.payload = bytes, .size = size, .seal = mac, .seal_size = sizeof(mac)};
    return seal_make(feed->seal, SEAL_EVENTS, bytes, size, mac, err) < 0 ||
                   redis_stream_add(feed->writer, feed->outbox, STREAM_LENGTH_MAX, &entry, SEND_MS, answered,
                                    feed, err) < 0
               ? -1
               : 0;
}

/* Returns the window of one journal stream in bytes: an equal share of WINDOW_BYTES. */
static uint64_t window_bytes(const struct feed *feed)
{
    uint64_t count = 0;
    for (const struct journal_stream *stream = journal_first(feed->journal); stream != NULL;
         stream = stream->next) {
        count += stream->first ? 1 : 0;
    }
    uint64_t share = WINDOW_BYTES / (count > 0 ? count : 1);
    return share > WINDOW_BYTES_MIN ? share : WINDOW_BYTES_MIN;
}

/* Sends the events behind `sent` that the window allows. */
static void stream_send(struct feed *feed, struct journal_stream *stream)
{
    if (!redis_is_connected(feed->writer))
        return;
    struct err err;
    const uint64_t window = window_bytes(feed);
    const uint64_t last = stream->probing ? stream->acked + 1 : UINT64_MAX;
    uint64_t out_bytes = 0; /* bytes not acknowledged, up to this event */
    for (struct journal_event *event = stream->first; event != NULL; event = event->next) {
        out_bytes += event->size;
        if (event->seq <= stream->sent)
            continue;
        bool beyond = event->seq > last || event->seq > stream->acked + WINDOW_EVENTS ||
                      (out_bytes > window && event != stream->first);
        if (beyond || send_sealed(feed, event->bytes, event->size, event_answered, &err) < 0)
            break; /* the next tick sends the rest */
        if (stream->sent == stream->acked)
            again_later(stream, stream->again_ms == 0 ? AGAIN_MS_MIN : stream->again_ms);
        stream->sent = event->seq;
    }
}

static void stream_again(struct feed *feed, struct journal_stream *stream)
{
    stream->probing = !stream->gap;
    stream->gap = false;
    stream->sent = stream->acked;
    again_later(stream, stream->again_ms == 0 ? AGAIN_MS_MIN : stream->again_ms * 2);
    stream_send(feed, stream);
}

int feed_event(struct feed *feed, struct journal_stream *stream, const char *type, json_t *event, bool final,
               struct err *err)
{
    if (!event)
        return err_set(err, ERR_NOMEM, "no memory for an event");
    json_object_set_new(event, "type", json_string(type));
    json_object_set_new(event, "node", json_string(feed->node));
    if (!json_object_get(event, "at"))
        json_object_set_new(event, "at", json_integer((json_int_t)clock_wall_us()));
    if (strcmp(stream->key, node_key) == 0)
        json_object_set_new(event, "boot", json_string(feed->boot));
    int result = journal_append(stream, event, final, err);
    json_decref(event);
    stream_send(feed, stream);
    return result;
}

void feed_note(struct feed *feed, const char *type, json_t *event)
{
    struct buf bytes;
    struct err err;
    buf_init(&bytes, frame_limits_default.bytes_max);
    if (event && redis_is_connected(feed->writer)) {
        json_object_set_new(event, "type", json_string(type));
        json_object_set_new(event, "node", json_string(feed->node));
        json_object_set_new(event, "boot", json_string(feed->boot));
        json_object_set_new(event, "seq", json_integer(0));
        json_object_set_new(event, "beat", json_integer(++feed->beat));
        json_object_set_new(event, "at", json_integer((json_int_t)clock_wall_us()));
        if (frame_encode(event, &bytes, &err) == 0)
            send_sealed(feed, bytes.data, bytes.size, NULL, &err);
    }
    json_decref(event);
    buf_fini(&bytes);
}

/* Takes an acknowledgement: {run, epoch, rank, seq} for a rank's events, {run: null, boot, seq} for the
 * node's. */
static void ack_take(struct feed *feed, const json_t *message)
{
    const json_t *run = json_object_get(message, "run");
    json_int_t seq = json_integer_value(json_object_get(message, "seq"));
    char key[JOURNAL_KEY_SIZE];
    if (json_is_integer(run)) {
        feed_key(key, json_integer_value(run), json_integer_value(json_object_get(message, "epoch")),
                 json_integer_value(json_object_get(message, "rank")));
    } else {
        const char *boot = json_string_value(json_object_get(message, "boot"));
        if (!boot || strcmp(boot, feed->boot) != 0)
            return;
        snprintf(key, sizeof(key), "%s", node_key);
    }
    struct journal_stream *stream = journal_find(feed->journal, key);
    if (!stream || seq < 0)
        return;
    uint64_t before = stream->acked;
    stream->probing = false;
    if ((uint64_t)seq > before) {
        bool last = stream->closed && (uint64_t)seq >= stream->last;
        stream->again_ms = 0;
        journal_ack(stream, (uint64_t)seq); /* this may remove the stream */
        if (!last) {
            again_later(stream, AGAIN_MS_MIN);
            stream_send(feed, stream);
        }
        if (feed->events.acked)
            feed->events.acked(feed->arg);
    } else if ((uint64_t)seq == before && stream->sent > before) {
        /* The acknowledgement did not move although events are outstanding, so there may be a gap. They are
         * sent again soon, but not after each answer of a burst. */
        uint64_t soon_ns = clock_mono_ns() + (uint64_t)TICK_MS * 1000000;
        stream->gap = true;
        stream->again_ns = stream->again_ns < soon_ns ? stream->again_ns : soon_ns;
    }
}

static void tick_due(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct feed *feed = arg;
    uint64_t now_ns = clock_mono_ns();
    for (struct journal_stream *stream = journal_first(feed->journal); stream != NULL; stream = stream->next)
        if (stream->sent > stream->acked && now_ns >= stream->again_ns && redis_is_connected(feed->writer))
            stream_again(feed, stream);
        else if (stream->sent < stream->last)
            stream_send(feed, stream);
    if (feed->ticks++ % HEARTBEAT_TICKS == 0) {
        feed_note(feed, "heartbeat", json_object());
        if (!feed->reading && redis_is_connected(feed->reader))
            inbox_read(feed); /* the last XREAD was refused */
    }
}

/* ---- reading messages ---- */

static int entry_take(void *arg, const char *stream, const char *id, const struct redis_entry *entry,
                      struct err *err)
{
    struct feed *feed = arg;
    (void)stream;
    snprintf(feed->after, sizeof(feed->after), "%s", id);
    if (!entry->payload ||
        !seal_holds(feed->seal, SEAL_MESSAGES, entry->payload, entry->size, entry->seal, entry->seal_size)) {
        struct err why;
        err_set(&why, ERR_DENIED, "entry %.40s of %s is not sealed by the scheduler: %" PRIu64 " refused", id,
                feed->inbox, ++feed->unsealed);
        feed->events.trouble(feed->arg, &why);
        return 0;
    }
    json_t *message = frame_decode(entry->payload, entry->size, &frame_limits_default, err);
    const char *type = json_string_value(json_object_get(message, "type"));
    if (!type) {
        struct err why;
        err_set(&why, ERR_CORRUPT, "entry %.40s of %s is no message", id, feed->inbox);
        feed->events.trouble(feed->arg,
                             &why); /* skipped; the scheduler publishes unconfirmed messages again */
    } else if (!feed->events.current(feed->arg, message)) {
        json_decref(message);
        return 0;
    } else if (strcmp(type, "ack") == 0) {
        ack_take(feed, message);
    } else {
        feed->events.message(feed->arg, message);
    }
    json_decref(message);
    return 0;
}

static void inbox_answered(void *arg, const redisReply *reply, const struct err *err)
{
    struct feed *feed = arg;
    struct err why;
    feed->reading = false;
    if (!reply) {
        if (err->code != ERR_CANCELLED && err->code != ERR_NET)
            feed->events.trouble(feed->arg, err);
        return; /* the next connection or tick continues to read */
    }
    if (redis_stream_entries(reply, entry_take, feed, &why) < 0)
        feed->events.trouble(feed->arg, &why);
    inbox_read(feed);
}

static void inbox_read(struct feed *feed)
{
    struct err err;
    feed->reading = true;
    const struct redis_position inbox = {feed->inbox, feed->after};
    if (redis_streams_read(feed->reader, &inbox, 1, READ_COUNT, BLOCK_MS, inbox_answered, feed, &err) < 0)
        feed->events.trouble(feed->arg, &err);
}

static void feed_reader_connected(void *arg)
{
    struct feed *feed = arg;
    snprintf(feed->after, sizeof(feed->after), "0");
    inbox_read(feed);
}

static void writer_connected(void *arg)
{
    struct feed *feed = arg;
    feed->events.connected(feed->arg);
    for (struct journal_stream *stream = journal_first(feed->journal); stream != NULL;
         stream = stream->next) {
        stream->sent = stream->acked;
        stream->again_ms = 0;
        stream->probing = false;
        stream_send(feed, stream);
    }
}

static void writer_lost(void *arg, const struct err *why)
{
    struct feed *feed = arg;
    feed->events.trouble(feed->arg, why);
}

struct feed *feed_create(struct event_base *base, const struct feed_config *config, struct journal *journal,
                         const struct feed_events *events, void *arg, struct err *err)
{
    struct feed *feed = calloc(1, sizeof(*feed));
    if (!feed) {
        err_set(err, ERR_NOMEM, "no memory for the event feed");
        return NULL;
    }
    feed->base = base;
    feed->journal = journal;
    feed->events = *events;
    feed->arg = arg;
    snprintf(feed->node, sizeof(feed->node), "%s", config->node);
    snprintf(feed->boot, sizeof(feed->boot), "%s", config->boot);
    snprintf(feed->outbox, sizeof(feed->outbox), "motley:events:%.70s", config->node);
    snprintf(feed->inbox, sizeof(feed->inbox), "motley:agent:%.70s", config->node);
    struct redis_config redis = {
        .address = config->address,
        .beacon = REDIS_BEACON,
        .user = config->user,
        .password = config->password,
        .tls = config->tls,
        .backoff_ms_max = 500, /* often, because the scheduler may still be creating the agent's Redis user */
        .queue_max = 65536,
        .reply_bytes_max = READ_COUNT * (frame_limits_default.bytes_max + 65536),
    };
    static const struct redis_events writer = {.connected = writer_connected, .disconnected = writer_lost};
    static const struct redis_events reader = {.connected = feed_reader_connected};
    feed->seal = seal_create(config->seal_key, config->node, err);
    if (!feed->seal) {
        free(feed);
        return NULL;
    }
    feed->tick = event_new(base, -1, EV_PERSIST, tick_due, feed);
    feed->writer = redis_create(base, &redis, &writer, feed, err);
    redis.with = feed->writer;
    feed->reader = !feed->writer ? NULL : redis_create(base, &redis, &reader, feed, err);
    struct timeval interval = {.tv_usec = TICK_MS * 1000};
    if (!feed->tick || !feed->reader || event_add(feed->tick, &interval) < 0) {
        feed_destroy(feed);
        return NULL;
    }
    return feed;
}

int feed_move(struct feed *feed, const char *address, struct err *err)
{
    return redis_move(feed->writer, address, err);
}

void feed_destroy(struct feed *feed)
{
    if (!feed)
        return;
    redis_destroy(feed->writer);
    redis_destroy(feed->reader);
    seal_destroy(feed->seal);
    if (feed->tick)
        event_free(feed->tick);
    free(feed);
}
