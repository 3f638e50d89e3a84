#include "scheduler/leader/node_streams.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/frame.h"
#include "common/json.h"
#include "common/log.h"

#define LOG_NS 1000000000u
#define ID_MS_MAX ((uint64_t)1 << 62)
#define ALLOWANCE_BYTES ((double)(16 << 20)) /* most bytes that may be read at once, and in each second */
/* A refused entry takes this many bytes from the allowance beside its size, so that small bad entries cost
 * something. */
#define REFUSED_BYTES 4096.0
#define EVENT_NUMBER_MAX ((int64_t)1 << 53)

/* An agent's journal accepts no larger event (agent/journal.h). */
static const struct frame_limits event_limits = {
    .bytes_max = 8u << 20, .depth_max = 32, .count_max = 1u << 20};

struct node_streams {
    struct node_stream *items;
    size_t count;
};

struct node_streams *node_streams_create(struct err *err)
{
    struct node_streams *node_streams = calloc(1, sizeof(*node_streams));
    if (!node_streams)
        err_set(err, ERR_NOMEM, "no memory for the nodes' streams");
    return node_streams;
}

static void node_stream_fini(struct node_stream *node_stream)
{
    seal_destroy(node_stream->seal);
    free(node_stream->user_rules);
    explicit_bzero(node_stream->seal_key, sizeof(node_stream->seal_key));
}

void node_streams_clear(struct node_streams *node_streams)
{
    for (size_t i = 0; i < node_streams->count; i++)
        node_stream_fini(&node_streams->items[i]);
    free(node_streams->items);
    node_streams->items = NULL;
    node_streams->count = 0;
}

void node_streams_destroy(struct node_streams *node_streams)
{
    if (node_streams) {
        node_streams_clear(node_streams);
        free(node_streams);
    }
}

/* ---- the view's nodes ---- */

static int node_stream_make(struct node_stream *node_stream, const struct store_sched_node *node,
                            struct err *err)
{
    *node_stream = (struct node_stream){.generation = node->generation};
    snprintf(node_stream->node, sizeof(node_stream->node), "%s", node->name);
    snprintf(node_stream->stream, sizeof(node_stream->stream), "motley:events:%s", node->name);
    snprintf(node_stream->after, sizeof(node_stream->after), "0");
    snprintf(node_stream->boot, sizeof(node_stream->boot), "%s", node->boot ? node->boot : "");
    memcpy(node_stream->redis_hash, node->redis_hash, sizeof(node_stream->redis_hash));
    memcpy(node_stream->seal_key, node->seal_key, sizeof(node_stream->seal_key));
    node_stream->seal = node->admitted ? seal_create(node->seal_key, node->name, err) : NULL;
    return node->admitted && !node_stream->seal ? -1 : 0;
}

static bool node_streams_is_same(const struct node_stream *node_stream, const struct store_sched_node *node)
{
    return node_stream->generation == node->generation && (node_stream->seal != NULL) == node->admitted &&
           memcmp(node_stream->seal_key, node->seal_key, sizeof(node_stream->seal_key)) == 0 &&
           memcmp(node_stream->redis_hash, node->redis_hash, sizeof(node_stream->redis_hash)) == 0;
}

int node_streams_sync(struct node_streams *node_streams, const struct store_view *view, struct err *err)
{
    struct node_streams next = {.items = calloc(view->node_count + 1, sizeof(*next.items))};
    bool changed = false;
    if (!next.items)
        return err_set(err, ERR_NOMEM, "no memory for the nodes' streams");
    for (size_t i = 0; i < view->node_count; i++) {
        struct node_stream *old = node_streams_find(node_streams, view->nodes[i].name);
        if (old && node_streams_is_same(old, &view->nodes[i])) {
            next.items[next.count++] = *old; /* moved, with the memory it owns */
            *old = (struct node_stream){0};
        } else if (node_stream_make(&next.items[next.count], &view->nodes[i], err) == 0) {
            changed = true;
            next.count++;
        } else {
            /* The streams that were already moved are lost. The next view makes them again. */
            node_streams_clear(&next);
            return -1;
        }
    }
    changed = changed || next.count != node_streams->count;
    node_streams_clear(node_streams);
    *node_streams = next;
    return changed;
}

void node_streams_rewind(struct node_streams *node_streams)
{
    for (size_t i = 0; i < node_streams->count; i++) {
        snprintf(node_streams->items[i].after, sizeof(node_streams->items[i].after), "0");
        node_streams->items[i].taken[0] = '\0';
    }
}

size_t node_streams_count(const struct node_streams *node_streams)
{
    return node_streams->count;
}

struct node_stream *node_streams_at(struct node_streams *node_streams, size_t i)
{
    return &node_streams->items[i];
}

struct node_stream *node_streams_find(struct node_streams *node_streams, const char *node)
{
    for (size_t i = 0; node && i < node_streams->count; i++)
        if (strcmp(node_streams->items[i].node, node) == 0)
            return &node_streams->items[i];
    return NULL;
}

struct node_stream *node_streams_find_key(struct node_streams *node_streams, const char *stream)
{
    for (size_t i = 0; stream && i < node_streams->count; i++)
        if (strcmp(node_streams->items[i].stream, stream) == 0)
            return &node_streams->items[i];
    return NULL;
}

/* ---- one entry ---- */

/* Checks that a sign of life is new. Its number must rise within one start of the agent, and the names of
 * starts rise too; so a replayed one neither keeps a node alive nor brings an earlier start back. */
static int beat_check(struct node_stream *node_stream, const json_t *event, struct err *err)
{
    struct json_reader reader;
    const char *type = json_string_value(json_object_get(event, "type"));
    const char *boot = NULL;
    int64_t beat = 0;
    if (!type ||
        (strcmp(type, "heartbeat") != 0 && strcmp(type, "node_hello") != 0 && strcmp(type, "health") != 0)) {
        return 0;
    }
    jr_init(&reader, event, type, err);
    jr_str(&reader, "boot", JR_REQUIRED, 1, sizeof(node_stream->boot) - 1, &boot);
    jr_i64(&reader, "beat", JR_REQUIRED, 1, EVENT_NUMBER_MAX, &beat);
    if (jr_finish_loose(&reader) < 0)
        return -1;
    const int order = strcmp(boot, node_stream->boot);
    if (order < 0)
        return err_set(err, ERR_CONFLICT, "%s %" PRId64 " of start %s, which another replaced", type, beat,
                       boot);
    if (order == 0 && beat <= node_stream->beat)
        return err_set(err, ERR_STALE, "%s %" PRId64 " of start %s comes again", type, beat, boot);
    snprintf(node_stream->boot, sizeof(node_stream->boot), "%s", boot);
    node_stream->beat = beat;
    return 0;
}

/* Replaces U+0000 in all texts, at most event_limits.depth_max levels deep, by '?': PostgreSQL refuses
 * documents that hold it. */
static void replace_nul(json_t *value)
{
    const char *key;
    size_t i;
    json_t *item;
    json_object_foreach (value, key, item)
        replace_nul(item);
    json_array_foreach (value, i, item)
        replace_nul(item);
    char *text = json_is_string(value) ? (char *)(uintptr_t)json_string_value(value) : NULL;
    for (size_t k = 0; text && k < json_string_length(value); k++)
        text[k] = text[k] == '\0' ? '?' : text[k];
}

json_t *node_stream_open(struct node_stream *node_stream, const struct redis_entry *entry, struct err *err)
{
    if (!entry->payload) {
        err_set(err, ERR_CORRUPT, "an entry without the field m");
        return NULL;
    }
    if (entry->size > event_limits.bytes_max) {
        err_set(err, ERR_TOO_BIG, "an entry of %zu bytes, the limit is %zu", entry->size,
                event_limits.bytes_max);
        return NULL;
    }
    if (!seal_holds(node_stream->seal, SEAL_EVENTS, entry->payload, entry->size, entry->seal,
                    entry->seal_size)) {
        err_set(err, ERR_DENIED, "an entry without the seal of node %s", node_stream->node);
        return NULL;
    }
    json_t *event = frame_decode(entry->payload, entry->size, &event_limits, err);
    const json_t *named = json_object_get(event, "node");
    if (!event)
        return NULL;
    replace_nul(event);
    const char *name = json_string_value(named);
    if (!json_is_object(event) || (named && (!name || strcmp(name, node_stream->node) != 0))) {
        err_set(err, ERR_DENIED, "an event in the name of node \"%.80s\" in the stream of node %s",
                name ? name : "?", node_stream->node);
    } else if (json_object_set_new(event, "node", json_string(node_stream->node)) < 0) {
        err_set(err, ERR_NOMEM, "no memory for an event");
    } else if (beat_check(node_stream, event, err) == 0) {
        return event;
    }
    json_decref(event);
    return NULL;
}

bool node_stream_id_is_sane(const char *id)
{
    char *end = NULL;
    return strlen(id) < NODE_STREAM_ID_SIZE && id[0] >= '0' && id[0] <= '9' &&
           strtoull(id, &end, 10) < ID_MS_MAX && *end == '-';
}

bool node_stream_may_read(struct node_stream *node_stream, uint64_t now_ns)
{
    const double more = ALLOWANCE_BYTES * (double)(now_ns - node_stream->allowance_ns) / 1e9;
    node_stream->allowance_ns = now_ns;
    node_stream->allowance =
        node_stream->allowance + more < ALLOWANCE_BYTES ? node_stream->allowance + more : ALLOWANCE_BYTES;
    return node_stream->allowance > 0;
}

/* ---- refused entries ---- */

void node_stream_refuse(struct node_stream *node_stream, uint64_t now_ns, enum err_code code, const char *why)
{
    node_stream->allowance -= REFUSED_BYTES;
    node_stream->refused++;
    node_stream->reasons[code]++;
    node_stream->unlogged++;
    if (node_stream->bar) /* the reason for which the node was barred is kept */
        return;
    snprintf(node_stream->why, sizeof(node_stream->why), "%.*s", NODE_STREAM_WHY_SIZE - 1, why);
    /* people read this text, and a hostile node may have written a part of it */
    for (char *at = node_stream->why; *at != '\0'; at++)
        if (*at == '"')
            *at = '\'';
        else if ((unsigned char)*at < ' ' || *at == 127)
            *at = '?';
    if (node_stream->logged_ns == 0 || now_ns - node_stream->logged_ns > LOG_NS) {
        log_event(LOG_LEVEL_WARN, "event_refused", "node=%s count=%" PRId64 " why=\"%s\"", node_stream->node,
                  node_stream->unlogged, node_stream->why);
        node_stream->logged_ns = now_ns;
        node_stream->unlogged = 0;
    }
}

/* Returns the counts by error code as a new object, and sets them to 0. */
static json_t *reasons_take(struct node_stream *node_stream)
{
    json_t *reasons = json_object();
    for (int code = 0; code < ERR_CODE_COUNT; code++) {
        if (node_stream->reasons[code] > 0) {
            json_object_set_new(reasons, err_code_name((enum err_code)code),
                                json_integer(node_stream->reasons[code]));
            node_stream->reasons[code] = 0;
        }
    }
    return reasons;
}

json_t *node_streams_marks(struct node_streams *node_streams)
{
    json_t *marks = json_array();
    for (size_t i = 0; i < node_streams->count; i++) {
        struct node_stream *node_stream = &node_streams->items[i];
        if (node_stream->refused > 0 || (node_stream->bar && node_stream->seal)) {
            /* json_string fails when the text was cut inside a UTF-8 character. The text is left out then. */
            json_t *why = json_string(node_stream->why);
            json_array_append_new(
                marks,
                json_pack("{s:s, s:I, s:I, s:o, s:o, s:b}", "node", node_stream->node, "generation",
                          (json_int_t)node_stream->generation, "refused", (json_int_t)node_stream->refused,
                          "reasons", reasons_take(node_stream), "why",
                          why ? why : json_string("(no readable words)"), "barred", (int)node_stream->bar));
            node_stream->refused = 0;
        }
    }
    return marks;
}
