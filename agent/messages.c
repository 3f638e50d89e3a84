/* What the scheduler's messages to this node do: they start, stop and replace workers (supervise.c), pass on
 * what a worker must know, and have links measured. */
#include "agent/supervise_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"

static bool runs(const struct device_state *state, int64_t run, int64_t epoch)
{
    return state->child && child_work(state->child)->run == run && child_work(state->child)->epoch == epoch;
}

static void take_assign(struct worker_supervisor *supervisor, const json_t *message)
{
    char key[JOURNAL_KEY_SIZE];
    struct child_work work;
    struct err err;
    if (worker_work_read(message, &work, &err) < 0) {
        supervisor_trouble("assignment_refused", &err);
        return;
    }
    struct device_state *state = supervisor_device(supervisor, work.device);
    if (!state || supervisor->ending) {
        failure_append(supervisor, &work, !state ? ERR_NOT_FOUND : ERR_CANCELLED,
                       !state ? "this node has no such device" : "this node's agent is stopping");
        return;
    }
    if (work.epoch <= state->last_epoch) {
        log_event(LOG_LEVEL_WARN, "assignment_stale",
                  "device=%s run=%" PRId64 " epoch=%" PRId64 " last_epoch=%" PRId64, work.device, work.run,
                  work.epoch, state->last_epoch);
        feed_key(key, work.run, work.epoch, work.rank);
        if (work.epoch == state->last_epoch && !state->pending && !runs(state, work.run, work.epoch) &&
            !journal_find(supervisor->journal, key)) {
            /* Either an agent recorded this assignment and ended before it started the worker, so nobody else
             * reports the failure; or the assignment was executed, and the scheduler ignores this event,
             * because it has committed one with this number. */
            failure_append(supervisor, &work, ERR_PEER, "its agent ended before the worker was started");
        }
        return;
    }
    state->last_epoch = work.epoch;
    /* Nobody waits for a pending assignment, because this one's epoch is later. A measurement is answered. */
    if (json_object_get(state->pending, "request"))
        pending_refuse(supervisor, state, ERR_BUSY, "the device was assigned to a job");
    json_decref(state->pending);
    state->pending = json_incref((json_t *)(uintptr_t)message);
    if (state->child) {
        log_event(LOG_LEVEL_WARN, "worker_replaced", "device=%s run=%" PRId64, work.device,
                  child_work(state->child)->run);
        child_end(state->child, 0);
    }
    int64_t job = json_integer_value(json_object_get(message, "job"));
    if (history_note(supervisor->history, work.device, work.epoch, job, work.run, &err) < 0)
        start_failed(supervisor, state, &err);
    else if (!state->child)
        pending_start(supervisor, state);
}

/* Passes a message on to the worker of its run. */
static void pass_on(struct worker_supervisor *supervisor, const json_t *message)
{
    struct err err;
    int64_t run = json_integer_value(json_object_get(message, "run"));
    int64_t epoch = json_integer_value(json_object_get(message, "epoch"));
    for (uint32_t i = 0; i < supervisor->state_count; i++) {
        struct device_state *state = &supervisor->states[i];
        if (runs(state, run, epoch) && child_send(state->child, message, &err) < 0)
            supervisor_trouble("message_not_passed_on", &err);
    }
}

static void take_stop(struct worker_supervisor *supervisor, const json_t *message)
{
    struct err err;
    int64_t run = json_integer_value(json_object_get(message, "run"));
    int64_t epoch = json_integer_value(json_object_get(message, "epoch"));
    for (uint32_t i = 0; i < supervisor->state_count; i++) {
        struct device_state *state = &supervisor->states[i];
        struct child_work work;
        if (state->pending && worker_work_read(state->pending, &work, &err) == 0 && work.run == run &&
            work.epoch == epoch)
            pending_refuse(supervisor, state, ERR_CANCELLED, "stopped before it was started");
        if (!runs(state, run, epoch))
            continue;
        if (child_send(state->child, message, &err) < 0)
            supervisor_trouble("message_not_passed_on", &err);
        if (json_is_true(json_object_get(message, "kill")))
            child_end(state->child, KILL_GRACE_MS);
    }
}

static void messages_take_profile(struct worker_supervisor *supervisor, const json_t *message)
{
    struct err err;
    struct child_work work;
    if (worker_work_read(message, &work, &err) < 0) {
        supervisor_trouble("profile_refused", &err);
        return;
    }
    struct device_state *state = supervisor_device(supervisor, work.device);
    if (!state)
        failure_append(supervisor, &work, ERR_NOT_FOUND, "this node has no such device");
    else if (state->child && child_work(state->child)->request == work.request)
        return; /* the request was sent again after the agent restarted: its adopted worker still measures */
    else if (supervisor->ending || state->pending ||
             (state->child && !work_is_proof(child_work(state->child))))
        failure_append(supervisor, &work, ERR_BUSY, "the device is busy");
    else {
        state->read_ns = clock_mono_ns();
        state->pending = json_incref((json_t *)(uintptr_t)message);
        if (state->child)
            child_end(state->child, 0);
        else
            pending_start(supervisor, state);
    }
}

static void take_links(struct worker_supervisor *supervisor, const json_t *message)
{
    int64_t request = json_integer_value(json_object_get(message, "request"));
    const json_t *list = json_object_get(message, "to");
    size_t index;
    json_t *item;
    json_array_foreach (list, index, item) {
        const char *node = json_string_value(json_object_get(item, "node"));
        const char *address = json_string_value(json_object_get(item, "address"));
        struct links_result failed = {.request = request};
        snprintf(failed.to, sizeof(failed.to), "%s", !node ? "?" : node);
        if (!node || !address) {
            err_set(&failed.err, ERR_INVALID, "links.to[%zu]: node and address are required", index);
            supervisor_link(supervisor, &failed);
        } else if (links_measure(supervisor->links, request, node, address, &failed.err) < 0) {
            supervisor_link(supervisor, &failed);
        }
    }
}

void supervisor_link(struct worker_supervisor *supervisor, const struct links_result *result)
{
    struct child_work work = {.run = -1, .epoch = -1, .rank = -1, .request = result->request};
    if (result->unreachable) {
        log_event(LOG_LEVEL_WARN, "node_not_reached", "node=%s why=\"%s\"", result->to, result->err.text);
        event_append(supervisor, &work, "failed",
                     json_pack("{s:s, s:b}", "text", result->err.text, "unreachable", 1), true);
        return;
    }
    if (result->err.code != ERR_NONE) {
        failure_append(supervisor, &work, result->err.code, result->err.text);
        return;
    }
    event_append(supervisor, &work, "link",
                 json_pack("{s:{s:s, s:s, s:f, s:f, s:f, s:b}}", "document", "from", supervisor->config->name,
                           "to", result->to, "latency_s", result->latency_s, "bytes_per_s",
                           result->bytes_per_s, "duplex_bytes_per_s", result->duplex_bytes_per_s, "emulated",
                           0),
                 false);
}

static const struct {
    const char *type;
    void (*take)(struct worker_supervisor *supervisor, const json_t *message);
} message_table[] = {
    {"assign", take_assign},
    {"peers", pass_on},
    {"save", pass_on},
    {"stop", take_stop},
    {"profile", messages_take_profile},
    {"links", take_links},
};

void supervisor_message(struct worker_supervisor *supervisor, const json_t *message)
{
    const char *type = json_string_value(json_object_get(message, "type"));
    const json_t *id = json_object_get(message, "id");
    struct err err;
    bool again = json_is_integer(id) && seen_has(supervisor->seen, json_integer_value(id));
    for (size_t i = 0; !again && type && i < sizeof(message_table) / sizeof(message_table[0]); i++)
        if (strcmp(message_table[i].type, type) == 0)
            message_table[i].take(supervisor, message);
    if (!json_is_integer(id))
        return;
    /* The id is stored after the action. An agent that dies between the two acts again, and epochs prevent a
     * second execution. */
    if (!again && seen_add(supervisor->seen, json_integer_value(id), &err) < 0)
        supervisor_trouble("message_not_noted", &err);
    feed_note(supervisor->feed, "received", json_pack("{s:I}", "message", json_integer_value(id)));
}
