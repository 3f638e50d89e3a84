/* Handles the health of devices as their agents report it: stores it with each device, and writes to the logs
 * of the jobs that run there when it begins or ceases to matter. */
#include "scheduler/events/events_private.h"

#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/json.h"
#include "common/units.h"

enum { HEALTH_BYTES_MAX = 16 << 10, REASONS_MAX = 16, LINKS_MAX = 256 };

#define THROTTLED 0.95 /* a device whose heat factor falls to this or below is reported */

struct store_sched_device *event_device(struct store_view *view, const char *name)
{
    for (size_t i = 0; i < view->device_count; i++)
        if (strcmp(view->devices[i].name, name) == 0)
            return &view->devices[i];
    return NULL;
}

/* Checks and bounds what an agent reports of a device. Returns it as a new reference, or NULL. */
static json_t *health_read(const json_t *given, const char *device, struct err *err)
{
    static const char *const numbers[] = {"temperature_c", "power_w",         "power_limit_w",
                                          "clock_khz",     "clock_max_khz",   "memory_bytes",
                                          "used_bytes",    "others_bytes",    "usable_bytes",
                                          "xid",           "ecc_uncorrected", "ecc_uncorrected_total",
                                          "processes"};
    struct json_reader reader;
    struct buf text = {.limit = HEALTH_BYTES_MAX};
    const json_t *reasons = NULL, *links = NULL, *mig = NULL, *reason;
    const char *why = NULL, *means = NULL;
    double heat = 1, cores = 0;
    int64_t number;
    size_t i;
    char path[160];
    snprintf(path, sizeof(path), "health.devices.%.100s", device);
    jr_init(&reader, given, path, err);
    for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        jr_i64(&reader, numbers[i], JR_OPTIONAL, 0, INT64_MAX, &number);
    jr_f64(&reader, "heat", JR_OPTIONAL, 1e-3, 1, &heat);
    jr_f64(&reader, "others_cores", JR_OPTIONAL, 0, 1e6, &cores);
    jr_array(&reader, "throttle", JR_OPTIONAL, 0, REASONS_MAX, &reasons);
    jr_array(&reader, "links", JR_OPTIONAL, 0, LINKS_MAX, &links);
    jr_object(&reader, "mig", JR_OPTIONAL, &mig);
    jr_str(&reader, "why", JR_OPTIONAL, 0, 1000, &why);
    jr_str(&reader, "xid_means", JR_OPTIONAL, 0, 200, &means);
    json_array_foreach ((json_t *)reasons, i, reason) {
        if (!json_is_string(reason) || json_string_length(reason) > 40)
            jr_fail(&reader, "throttle", "a reason is a text of at most 40 bytes");
    }
    if (jr_finish_loose(&reader) < 0)
        return NULL;
    int printed = json_print(given, false, &text, err);
    buf_fini(&text);
    return printed < 0 ? NULL : json_incref((json_t *)given);
}

/* ---- lines for the logs of jobs ---- */

static const char *reasons_text(const json_t *health, char out[80])
{
    const json_t *reason;
    size_t i, used = 0;
    out[0] = '\0';
    json_array_foreach (json_object_get(health, "throttle"), i, reason) {
        int more = snprintf(out + used, 80 - used, "%s%s", used > 0 ? ", " : "", json_string_value(reason));
        used += more > 0 && used + (size_t)more < 80 ? (size_t)more : 0;
    }
    return out[0] != '\0' ? out : "unsaid";
}

static bool rises(const struct store_sched_device *was, const struct store_sched_device *is, const char *key)
{
    const json_t *after = json_object_get(is->health, key);
    return was->health && json_is_integer(after) &&
           json_integer_value(after) > json_integer_value(json_object_get(was->health, key));
}

/* Writes the log line about a change of kind `which` (0 throttling, 1 memory, 2 ECC errors, 3 Xid), or ""
 * when there is none. */
static void events_health_line_of(const struct store_sched_device *was, const struct store_sched_device *is,
                                  int which, char out[400])
{
    char reasons[80], others[32], usable[32], limit[32];
    const json_t *xid = json_object_get(is->health, "xid");
    out[0] = '\0';
    if (which == 0 && is->heat <= THROTTLED && was->heat > THROTTLED) {
        snprintf(out, 400, "%s throttles (%s, %lld °C): it keeps %.0f %% of its clock", is->name,
                 reasons_text(is->health, reasons),
                 (long long)json_integer_value(json_object_get(is->health, "temperature_c")), 100 * is->heat);
    } else if (which == 0 && is->heat > THROTTLED && was->heat <= THROTTLED &&
               /* a report without heat says nothing about throttling */
               json_object_get(is->health, "heat") != NULL) {
        snprintf(out, 400, "%s throttles no more", is->name);
    } else if (which == 1 && is->usable_bytes < is->memory_limit_bytes &&
               is->usable_bytes < was->usable_bytes) {
        snprintf(
            out, 400, "others hold %s of %s: of its %s, %s are left",
            units_bytes(others, (uint64_t)json_integer_value(json_object_get(is->health, "others_bytes"))),
            is->name, units_bytes(limit, is->memory_limit_bytes), units_bytes(usable, is->usable_bytes));
    } else if (which == 2 && rises(was, is, "ecc_uncorrected")) {
        snprintf(out, 400, "%s had memory errors that its ECC could not correct: %lld since its driver began",
                 is->name, (long long)json_integer_value(json_object_get(is->health, "ecc_uncorrected")));
    } else if (which == 3 && xid && !json_equal(xid, json_object_get(was->health, "xid"))) {
        const char *means = json_string_value(json_object_get(is->health, "xid_means"));
        snprintf(out, 400, "the driver of %s told an error: Xid %lld%s%s", is->name,
                 (long long)json_integer_value(xid), means ? ", " : "", means ? means : "");
    }
}

/* Adds the line to the log of every job that has a living rank on the device. */
static int tell_jobs(struct event_batch *batch, const char *device, const char *text, struct err *err)
{
    for (size_t i = 0; i < batch->view->run_count; i++) {
        const struct store_sched_run *run = &batch->view->runs[i];
        for (uint32_t k = 0; k < run->rank_count; k++) {
            if (strcmp(run->ranks[k].device, device) == 0 &&
                !state_is_final(&assignment_machine, (int)run->ranks[k].state) &&
                event_append(batch->owned[E_EVENTS],
                             json_pack("{s:I, s:s, s:{s:s, s:s, s:I, s:s}}", "job", (json_int_t)run->job,
                                       "type", "log", "body", "level", "warn", "text", text, "rank",
                                       (json_int_t)run->ranks[k].rank, "device", device),
                             err) < 0) {
                return -1;
            }
        }
    }
    return 0;
}

/* ---- the event ---- */

/* Adds one device's report to the batch, and takes ownership of `health`. */
static int device_take(struct event_batch *batch, const struct store_sched_device *known, json_t *health,
                       struct err *err)
{
    struct store_sched_device was = *known, is = *known;
    was.health = is.health = NULL;
    json_t *before = json_incref(known->health), *row;
    size_t i;
    char line[400];
    int result = 0;
    json_array_foreach (batch->owned[E_HEALTH], i, row) {
        if (strcmp(json_string_value(json_object_get(row, "device")), known->name) == 0) {
            /* the same batch has an earlier report of this device: the later one replaces it */
            json_decref(before);
            before = json_incref(json_object_get(row, "health"));
            json_array_remove(batch->owned[E_HEALTH], i);
            break;
        }
    }
    store_sched_health(&was, before);
    store_sched_health(&is, health);
    for (int which = 0; which < 4 && result == 0; which++) {
        events_health_line_of(&was, &is, which, line);
        result = line[0] != '\0' ? tell_jobs(batch, known->name, line, err) : 0;
    }
    batch->health_counts = batch->health_counts || is.heat != was.heat || is.usable_bytes != was.usable_bytes;
    json_decref(before);
    row = json_pack("{s:s, s:s, s:o}", "device", known->name, "node", known->node, "health", health);
    return result < 0 ? (json_decref(row), -1) : event_append(batch->owned[E_HEALTH], row, err);
}

int event_on_health(struct event_batch *batch, const struct store_sched_node *node, const json_t *event,
                    struct err *err)
{
    const char *boot = json_string_value(json_object_get(event, "boot")), *name;
    const json_t *devices = json_object_get(event, "devices");
    json_t *given;
    if (!boot || !json_is_object(devices))
        return err_set(err, ERR_INVALID, "health of node %s without its boot or devices", node->name);
    if (!node->boot || strcmp(node->boot, boot) != 0)
        return 0; /* the agent will say hello, and then report its health again */
    json_object_foreach ((json_t *)devices, name, given) {
        const struct store_sched_device *known = event_device(batch->view, name);
        if (!known || strcmp(known->node, node->name) != 0)
            continue; /* the device is not yet in the view */
        json_t *health = health_read(given, name, err);
        if (!health || device_take(batch, known, health, err) < 0)
            return -1;
    }
    return 0;
}

void event_health_apply(struct event_batch *batch)
{
    json_t *row;
    size_t i;
    json_array_foreach (batch->owned[E_HEALTH], i, row) {
        struct store_sched_device *device =
            event_device(batch->view, json_string_value(json_object_get(row, "device")));
        if (device)
            store_sched_health(device, json_incref(json_object_get(row, "health")));
    }
}
