/* Publishes the outbox to the agents.
 *
 * Invariant: `kept` is sorted by id. A message is encoded once and published from the same bytes every time,
 * so repeats are byte-equal; only the seal is computed again, since the key may have changed.
 */
#include "scheduler/leader/dispatch.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/buf.h"
#include "common/clock.h"
#include "common/frame.h"
#include "common/redis.h"
#include "program/codec.h"
#include "scheduler/leader/node_streams.h"

#define STREAM_LENGTH_MAX 2000 /* entries that an agent's stream holds at most */
#define PAUSE_NS_MAX 30000000000u
#define SCAN_MS 100

struct kept_message {
    int64_t id, run;
    char node[72];
    uint8_t *bytes;
    size_t size;
    uint64_t pause_ns, due_ns;
};

struct run_plan {
    int64_t run;
    json_t *slices; /* [rank] each rank's part of the plan */
};

struct dispatch {
    struct redis *redis;
    struct node_streams *node_streams;
    struct event *timer;
    uint64_t pause_ns;
    struct kept_message *kept;
    size_t count, capacity;
    struct run_plan *plans;
    size_t plan_count, plan_capacity;
    char incarnation[40];
};

/* Publishes a message to its node's stream. Returns false when the node has no key. */
static bool publish_bytes(struct dispatch *dispatch, const char *node, const void *bytes, size_t size)
{
    char stream[96];
    uint8_t mac[SEAL_SIZE];
    /* A kept message is sent again later; an agent asks again for a message that is not kept. */
    struct err ignored;
    const struct node_stream *node_stream = node_streams_find(dispatch->node_streams, node);
    if (!node_stream || !node_stream->seal ||
        seal_make(node_stream->seal, SEAL_MESSAGES, bytes, size, mac, &ignored) < 0) {
        return false;
    }
    const struct redis_entry entry = {.payload = bytes, .size = size, .seal = mac, .seal_size = sizeof(mac)};
    snprintf(stream, sizeof(stream), "motley:agent:%s", node);
    redis_stream_add(dispatch->redis, stream, STREAM_LENGTH_MAX, &entry, 0, NULL, NULL, &ignored);
    return true;
}

static void publish(struct dispatch *dispatch, struct kept_message *message, uint64_t now_ns)
{
    bool sent = publish_bytes(dispatch, message->node, message->bytes, message->size);
    message->due_ns = now_ns + message->pause_ns;
    if (sent)
        message->pause_ns = message->pause_ns * 2 < PAUSE_NS_MAX ? message->pause_ns * 2 : PAUSE_NS_MAX;
}

static void dispatch_arm(struct dispatch *dispatch)
{
    const struct timeval pause = {.tv_usec = SCAN_MS * 1000};
    if (dispatch->count > 0 && !evtimer_pending(dispatch->timer, NULL))
        evtimer_add(dispatch->timer, &pause);
}

static void scan(evutil_socket_t fd, short what, void *arg)
{
    struct dispatch *dispatch = arg;
    uint64_t now_ns = clock_mono_ns();
    (void)fd;
    (void)what;
    for (size_t i = 0; i < dispatch->count && redis_is_connected(dispatch->redis); i++)
        if (dispatch->kept[i].due_ns <= now_ns)
            publish(dispatch, &dispatch->kept[i], now_ns);
    dispatch_arm(dispatch);
}

struct dispatch *dispatch_create(struct event_base *base, struct redis *redis,
                                 struct node_streams *node_streams, uint32_t redeliver_ms, struct err *err)
{
    struct dispatch *dispatch = calloc(1, sizeof(*dispatch));
    if (dispatch) {
        dispatch->redis = redis;
        dispatch->node_streams = node_streams;
        dispatch->pause_ns = (uint64_t)redeliver_ms * 1000000u;
        dispatch->timer = evtimer_new(base, scan, dispatch);
    }
    if (!dispatch || !dispatch->timer) {
        free(dispatch);
        err_set(err, ERR_NOMEM, "no memory for the dispatcher");
        return NULL;
    }
    return dispatch;
}

void dispatch_destroy(struct dispatch *dispatch)
{
    if (!dispatch)
        return;
    dispatch_clear(dispatch);
    dispatch_plans_forget(dispatch);
    free(dispatch->plans);
    free(dispatch->kept);
    event_free(dispatch->timer);
    free(dispatch);
}

void dispatch_live(struct dispatch *dispatch, const char *incarnation)
{
    snprintf(dispatch->incarnation, sizeof(dispatch->incarnation), "%s", incarnation);
}

static int dispatch_encode(const struct dispatch *dispatch, const json_t *message, uint8_t **bytes,
                           size_t *size, struct err *err)
{
    struct buf out;
    json_t *whole = json_copy((json_t *)(uintptr_t)message);
    buf_init(&out, frame_limits_default.bytes_max); /* an agent does not decode larger messages */
    int rc = !whole || json_object_set_new(whole, "incarnation", json_string(dispatch->incarnation)) < 0
                 ? err_set(err, ERR_NOMEM, "no memory for a message")
                 : frame_encode(whole, &out, err);
    json_decref(whole);
    if (rc < 0) {
        buf_fini(&out);
        return -1;
    }
    *bytes = out.data; /* taken over from the buffer */
    *size = out.size;
    return 0;
}

int dispatch_plan(struct dispatch *dispatch, int64_t run, const json_t *plan, struct err *err)
{
    if (ARRAY_RESERVE(dispatch->plans, dispatch->plan_capacity, dispatch->plan_count + 1, err) < 0)
        return -1;
    json_t *slices = plan_slices(plan, err);
    if (!slices)
        return err_wrap(err, "run %lld", (long long)run);
    dispatch->plans[dispatch->plan_count++] = (struct run_plan){run, slices};
    return 0;
}

void dispatch_plans_forget(struct dispatch *dispatch)
{
    while (dispatch->plan_count > 0)
        json_decref(dispatch->plans[--dispatch->plan_count].slices);
}

/* Adds the rank's slice of the plan to an `assign` message that has only the plan's digest. */
static int add_slice(const struct dispatch *dispatch, int64_t run, json_t *message, struct err *err)
{
    if (!json_object_get(message, "plan_digest") || json_object_get(message, "plan"))
        return 0;
    json_int_t rank = json_integer_value(json_object_get(message, "rank"));
    for (size_t i = 0; i < dispatch->plan_count; i++) {
        json_t *slice = json_array_get(dispatch->plans[i].slices, (size_t)rank);
        if (dispatch->plans[i].run == run && slice)
            return json_object_set(message, "plan", slice) == 0
                       ? 0
                       : err_set(err, ERR_NOMEM, "no memory for a message");
    }
    return err_set(err, ERR_INTERNAL, "there is no slice of rank %lld of run %lld", (long long)rank,
                   (long long)run);
}

int dispatch_keep(struct dispatch *dispatch, int64_t id, const char *node, int64_t run, const char *type,
                  const json_t *payload, struct err *err)
{
    if (dispatch->count > 0 && dispatch->kept[dispatch->count - 1].id >= id) {
        return err_set(err, ERR_INTERNAL, "message %lld comes after message %lld", (long long)id,
                       (long long)dispatch->kept[dispatch->count - 1].id);
    }
    json_t *message = json_copy((json_t *)payload);
    if (!message || ARRAY_RESERVE(dispatch->kept, dispatch->capacity, dispatch->count + 1, err) < 0) {
        json_decref(message);
        return err_set(err, ERR_NOMEM, "no memory for a message");
    }
    json_object_set_new(message, "type", json_string(type));
    json_object_set_new(message, "id", json_integer(id));
    struct kept_message *kept = &dispatch->kept[dispatch->count];
    *kept = (struct kept_message){.id = id, .run = run, .pause_ns = dispatch->pause_ns};
    snprintf(kept->node, sizeof(kept->node), "%s", node);
    int rc = add_slice(dispatch, run, message, err);
    if (rc == 0)
        rc = dispatch_encode(dispatch, message, &kept->bytes, &kept->size, err);
    json_decref(message);
    if (rc < 0)
        return err_wrap(err, "message %lld for %s", (long long)id, node);
    dispatch->count++;
    publish(dispatch, kept, clock_mono_ns());
    dispatch_arm(dispatch);
    return 0;
}

static void dispatch_remove_at(struct dispatch *dispatch, size_t i)
{
    free(dispatch->kept[i].bytes);
    memmove(&dispatch->kept[i], &dispatch->kept[i + 1],
            (dispatch->count - i - 1) * sizeof(dispatch->kept[0]));
    dispatch->count--;
}

void dispatch_received(struct dispatch *dispatch, int64_t id, const char *node)
{
    size_t low = 0, high = dispatch->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (dispatch->kept[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < dispatch->count && dispatch->kept[low].id == id && strcmp(dispatch->kept[low].node, node) == 0)
        dispatch_remove_at(dispatch, low);
}

void dispatch_drop_run(struct dispatch *dispatch, int64_t run)
{
    for (size_t i = dispatch->count; i-- > 0;)
        if (dispatch->kept[i].run == run)
            dispatch_remove_at(dispatch, i);
}

void dispatch_drop_node(struct dispatch *dispatch, const char *node)
{
    for (size_t i = dispatch->count; i-- > 0;)
        if (strcmp(dispatch->kept[i].node, node) == 0)
            dispatch_remove_at(dispatch, i);
}

void dispatch_clear(struct dispatch *dispatch)
{
    while (dispatch->count > 0)
        dispatch_remove_at(dispatch, dispatch->count - 1);
    evtimer_del(dispatch->timer);
}

void dispatch_again(struct dispatch *dispatch)
{
    uint64_t now_ns = clock_mono_ns();
    for (size_t i = 0; i < dispatch->count; i++) {
        dispatch->kept[i].pause_ns = dispatch->pause_ns;
        publish(dispatch, &dispatch->kept[i], now_ns);
    }
    dispatch_arm(dispatch);
}

bool dispatch_has(const struct dispatch *dispatch, int64_t run, const char *node)
{
    for (size_t i = 0; i < dispatch->count; i++)
        if (dispatch->kept[i].run == run && strcmp(dispatch->kept[i].node, node) == 0)
            return true;
    return false;
}

size_t dispatch_kept(const struct dispatch *dispatch)
{
    return dispatch->count;
}

void dispatch_pass(struct dispatch *dispatch, const char *node, const json_t *message)
{
    struct err ignored; /* the agent asks again */
    uint8_t *bytes = NULL;
    size_t size = 0;
    if (redis_is_connected(dispatch->redis) &&
        dispatch_encode(dispatch, message, &bytes, &size, &ignored) == 0)
        publish_bytes(dispatch, node, bytes, size);
    free(bytes);
}
