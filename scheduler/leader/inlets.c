#include "scheduler/leader/inlets.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/frame.h"
#include "common/json.h"
#include "common/log.h"

#define LOG_NS 1000000000u
#define ID_MS_MAX ((uint64_t)1 << 62)
#define ALLOWANCE_BYTES ((double)(16 << 20)) /* the most that may be read at once, and each second */
/* what a refused entry takes from the allowance beside its size */
#define REFUSED_BYTES 4096.0
#define EVENT_NUMBER_MAX ((int64_t)1 << 53)

/* An agent's journal accepts no larger event (agent/journal.h). */
static const struct frame_limits event_limits = {
    .bytes_max = 8u << 20, .depth_max = 32, .count_max = 1u << 20};

struct inlets {
    struct inlet *items;
    size_t count;
};

struct inlets *inlets_create(struct err *err)
{
    struct inlets *inlets = calloc(1, sizeof(*inlets));
    if (inlets == NULL) {
        err_set(err, ERR_NOMEM, "no memory for the nodes' streams");
    }
    return inlets;
}

static void inlet_fini(struct inlet *inlet)
{
    seal_destroy(inlet->seal);
    free(inlet->user_rules);
    explicit_bzero(inlet->seal_key, sizeof(inlet->seal_key));
}

void inlets_clear(struct inlets *inlets)
{
    for (size_t i = 0; i < inlets->count; i++) {
        inlet_fini(&inlets->items[i]);
    }
    free(inlets->items);
    inlets->items = NULL;
    inlets->count = 0;
}

void inlets_destroy(struct inlets *inlets)
{
    if (inlets != NULL) {
        inlets_clear(inlets);
        free(inlets);
    }
}

/* ---- the view's nodes ---- */

static int inlet_make(struct inlet *inlet, const struct store_sched_node *node, struct err *err)
{
    *inlet = (struct inlet){.generation = node->generation};
    snprintf(inlet->node, sizeof(inlet->node), "%s", node->name);
    snprintf(inlet->stream, sizeof(inlet->stream), "motley:events:%s", node->name);
    snprintf(inlet->after, sizeof(inlet->after), "0");
    snprintf(inlet->boot, sizeof(inlet->boot), "%s", node->boot != NULL ? node->boot : "");
    memcpy(inlet->redis_hash, node->redis_hash, sizeof(inlet->redis_hash));
    memcpy(inlet->seal_key, node->seal_key, sizeof(inlet->seal_key));
    inlet->seal = node->admitted ? seal_create(node->seal_key, node->name, err) : NULL;
    return node->admitted && inlet->seal == NULL ? -1 : 0;
}

static bool is_same(const struct inlet *inlet, const struct store_sched_node *node)
{
    return inlet->generation == node->generation && (inlet->seal != NULL) == node->admitted &&
           memcmp(inlet->seal_key, node->seal_key, sizeof(inlet->seal_key)) == 0 &&
           memcmp(inlet->redis_hash, node->redis_hash, sizeof(inlet->redis_hash)) == 0;
}

int inlets_sync(struct inlets *inlets, const struct store_view *view, struct err *err)
{
    struct inlets next = {.items = calloc(view->node_count + 1, sizeof(*next.items))};
    bool changed = false;
    if (next.items == NULL) {
        return err_set(err, ERR_NOMEM, "no memory for the nodes' streams");
    }
    for (size_t i = 0; i < view->node_count; i++) {
        struct inlet *old = inlets_find(inlets, view->nodes[i].name);
        if (old != NULL && is_same(old, &view->nodes[i])) {
            next.items[next.count++] = *old; /* moved, with the memory it owns */
            *old = (struct inlet){0};
        } else if (inlet_make(&next.items[next.count], &view->nodes[i], err) == 0) {
            changed = true;
            next.count++;
        } else {
            inlets_clear(&next); /* the inlets moved so far are lost; the next view makes them anew */
            return -1;
        }
    }
    changed = changed || next.count != inlets->count;
    inlets_clear(inlets);
    *inlets = next;
    return changed;
}

void inlets_rewind(struct inlets *inlets)
{
    for (size_t i = 0; i < inlets->count; i++) {
        snprintf(inlets->items[i].after, sizeof(inlets->items[i].after), "0");
        inlets->items[i].taken[0] = '\0';
    }
}

size_t inlets_count(const struct inlets *inlets)
{
    return inlets->count;
}

struct inlet *inlets_at(struct inlets *inlets, size_t i)
{
    return &inlets->items[i];
}

struct inlet *inlets_find(struct inlets *inlets, const char *node)
{
    for (size_t i = 0; node != NULL && i < inlets->count; i++) {
        if (strcmp(inlets->items[i].node, node) == 0) {
            return &inlets->items[i];
        }
    }
    return NULL;
}

struct inlet *inlets_of_stream(struct inlets *inlets, const char *stream)
{
    for (size_t i = 0; stream != NULL && i < inlets->count; i++) {
        if (strcmp(inlets->items[i].stream, stream) == 0) {
            return &inlets->items[i];
        }
    }
    return NULL;
}

/* ---- one entry ---- */

/* Checks that a sign of life is new. Its number must rise within one start of the agent, and the names of
 * starts rise too; so a replayed one neither keeps a node alive nor brings an earlier start back. */
static int beat_check(struct inlet *inlet, const json_t *event, struct err *err)
{
    struct json_reader reader;
    const char *type = json_string_value(json_object_get(event, "type"));
    const char *boot = NULL;
    int64_t beat = 0;
    if (type == NULL ||
        (strcmp(type, "heartbeat") != 0 && strcmp(type, "node_hello") != 0 && strcmp(type, "health") != 0)) {
        return 0;
    }
    jr_init(&reader, event, type, err);
    jr_str(&reader, "boot", JR_REQUIRED, 1, sizeof(inlet->boot) - 1, &boot);
    jr_i64(&reader, "beat", JR_REQUIRED, 1, EVENT_NUMBER_MAX, &beat);
    if (jr_finish_loose(&reader) < 0) {
        return -1;
    }
    const int order = strcmp(boot, inlet->boot);
    if (order < 0 || (order == 0 && beat <= inlet->beat)) {
        return err_set(err, ERR_STALE, "%s %" PRId64 " of start %s comes again", type, beat, boot);
    }
    snprintf(inlet->boot, sizeof(inlet->boot), "%s", boot);
    inlet->beat = beat;
    return 0;
}

json_t *inlet_open(struct inlet *inlet, const struct redis_entry *entry, struct err *err)
{
    if (entry->payload == NULL) {
        err_set(err, ERR_CORRUPT, "an entry without the field m");
        return NULL;
    }
    if (entry->size > event_limits.bytes_max) {
        err_set(err, ERR_TOO_BIG, "an entry of %zu bytes, the limit is %zu", entry->size,
                event_limits.bytes_max);
        return NULL;
    }
    if (!seal_holds(inlet->seal, SEAL_EVENTS, entry->payload, entry->size, entry->seal, entry->seal_size)) {
        err_set(err, ERR_DENIED, "an entry without the seal of node %s", inlet->node);
        return NULL;
    }
    json_t *event = frame_decode(entry->payload, entry->size, &event_limits, err);
    const json_t *named = json_object_get(event, "node");
    if (event == NULL) {
        return NULL;
    }
    const char *name = json_string_value(named);
    if (!json_is_object(event) || (named != NULL && (name == NULL || strcmp(name, inlet->node) != 0))) {
        err_set(err, ERR_DENIED, "an event in the name of node \"%.80s\" in the stream of node %s",
                name != NULL ? name : "?", inlet->node);
    } else if (json_object_set_new(event, "node", json_string(inlet->node)) < 0) {
        err_set(err, ERR_NOMEM, "no memory for an event");
    } else if (beat_check(inlet, event, err) == 0) {
        return event;
    }
    json_decref(event);
    return NULL;
}

bool inlet_id_is_sane(const char *id)
{
    char *end = NULL;
    return strlen(id) < INLET_ID_SIZE && id[0] >= '0' && id[0] <= '9' && strtoull(id, &end, 10) < ID_MS_MAX &&
           *end == '-';
}

bool inlet_may_read(struct inlet *inlet, uint64_t now_ns)
{
    const double more = ALLOWANCE_BYTES * (double)(now_ns - inlet->allowance_ns) / 1e9;
    inlet->allowance_ns = now_ns;
    inlet->allowance = inlet->allowance + more < ALLOWANCE_BYTES ? inlet->allowance + more : ALLOWANCE_BYTES;
    return inlet->allowance > 0;
}

/* ---- what was refused ---- */

void inlet_refuse(struct inlet *inlet, uint64_t now_ns, enum err_code code, const char *why)
{
    inlet->allowance -= REFUSED_BYTES;
    inlet->refused++;
    inlet->reasons[code]++;
    inlet->unlogged++;
    if (inlet->bar) /* the reason for which the node was barred is kept */
        return;
    snprintf(inlet->why, sizeof(inlet->why), "%.*s", INLET_WHY_SIZE - 1, why);
    /* people read this text, and a hostile node may have written a part of it */
    for (char *at = inlet->why; *at != '\0'; at++) {
        if (*at == '"') {
            *at = '\'';
        } else if ((unsigned char)*at < ' ' || *at == 127) {
            *at = '?';
        }
    }
    if (inlet->logged_ns == 0 || now_ns - inlet->logged_ns > LOG_NS) {
        log_event(LOG_LEVEL_WARN, "event_refused", "node=%s count=%" PRId64 " why=\"%s\"", inlet->node,
                  inlet->unlogged, inlet->why);
        inlet->logged_ns = now_ns;
        inlet->unlogged = 0;
    }
}

/* Returns the counts by error code as a new object, and sets them to 0. */
static json_t *reasons_take(struct inlet *inlet)
{
    json_t *reasons = json_object();
    for (int code = 0; code < ERR_CODE_COUNT; code++) {
        if (inlet->reasons[code] > 0) {
            json_object_set_new(reasons, err_code_name((enum err_code)code),
                                json_integer(inlet->reasons[code]));
            inlet->reasons[code] = 0;
        }
    }
    return reasons;
}

json_t *inlets_marks(struct inlets *inlets)
{
    json_t *marks = json_array();
    for (size_t i = 0; i < inlets->count; i++) {
        struct inlet *inlet = &inlets->items[i];
        if (inlet->refused > 0 || (inlet->bar && inlet->seal != NULL)) {
            /* A sender's text may be cut inside a character; it is left out then. */
            json_t *why = json_string(inlet->why);
            json_array_append_new(marks,
                                  json_pack("{s:s, s:I, s:I, s:o, s:o, s:b}", "node", inlet->node,
                                            "generation", (json_int_t)inlet->generation, "refused",
                                            (json_int_t)inlet->refused, "reasons", reasons_take(inlet), "why",
                                            why != NULL ? why : json_string("(no readable words)"), "barred",
                                            (int)inlet->bar));
            inlet->refused = 0;
        }
    }
    return marks;
}
