#include "agent/health.h"

#include <errno.h>
#include <event2/buffer.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "agent/cards.h"
#include "agent/machine.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"
#include "common/process.h"

enum {
    LINE_BYTES_MAX = 1 << 20,
    INTERVAL_MS_MAX = 2000,
    SILENT_S = 30,
    NOTE_MS_MAX = 5000,
    REFRESH_S = 60,
    CORES_S = 30
};

#define HEAT_STEPS                                                                                           \
    20.0 /* the heat factor is reported in twentieths, so that plans do not change with every reading */
#define MEMORY_STEP                                                                                          \
    ((uint64_t)64 << 20) /* other processes' memory is reported in these steps, so that plans change rarely  \
                          */

struct card {
    const struct agent_device *device;
    const json_t *inventory; /* entry of config->cards; NULL for an emulated card */
    double share;     /* fraction of its clock that the card reached, an exponential mean over the window */
    double heat;      /* `share` as last reported, a multiple of 1 / HEAT_STEPS */
    uint64_t read_ns; /* time of the last reading */
    uint64_t others, before; /* bytes that other processes hold: the confirmed value, and the last reading */
    uint64_t first; /* first confirmed value of `others`, which the device's memory limit already excludes */
    bool counted;   /* `first` is set */
    json_t *told;   /* health as last sent; NULL: none yet */
    uint64_t told_ns;
};

struct health {
    struct event_base *base;
    struct health_options options;
    uint32_t interval_ms, note_ms;
    struct card cards[AGENT_DEVICES_MAX];
    uint32_t count;
    struct event *tick, *readable;
    struct evbuffer *input;
    struct process_watch *watch;
    pid_t pid;   /* process of the watcher; 0: none runs */
    bool silent; /* it is being ended because it was silent */
    int fd;
    uint64_t heard_ns; /* time of the last reading, or of the watcher's start or end */
    double
        others_s; /* CPU seconds of the machine that were not of this agent and its workers, at 'cores_ns' */
    uint64_t cores_ns;
};

/* ---- one reading ---- */

/* Whether two UUIDs are equal apart from their prefix ("GPU-5f3a…", "MIG-5f3a…"). */
static bool same_uuid(const char *one, const char *other)
{
    one = strchr(one, '-');
    other = strchr(other, '-');
    return one && other && strcasecmp(one, other) == 0;
}

static bool health_is_card(const struct card *card, const json_t *record)
{
    if (strcmp(json_text_of(record, "kind"), card->device->kind) != 0)
        return false;
    if (!card->inventory)
        return strcmp(json_text_of(record, "device"), card->device->name) == 0;
    const char *pci = json_text_of(record, "pci");
    return same_uuid(json_text_of(record, "uuid"), json_text_of(card->inventory, "uuid")) ||
           (*pci != '\0' && strcasecmp(pci, json_text_of(card->inventory, "pci")) == 0);
}

static const json_t *record_of(const struct card *card, const json_t *reading)
{
    const json_t *record;
    size_t i;
    json_array_foreach (json_object_get(reading, "cards"), i, record) {
        if (health_is_card(card, record))
            return record;
    }
    return NULL;
}

/* Returns the record that counts the device's memory: a slice's own, or the card's. */
static const json_t *memory_of(const struct card *card, const json_t *record)
{
    const json_t *slice;
    size_t i;
    json_array_foreach (json_object_get(json_object_get(record, "mig"), "slices"), i, slice) {
        if (same_uuid(json_text_of(slice, "uuid"), json_text_of(card->inventory, "uuid")))
            return slice;
    }
    return record;
}

/* Whether heat or the power supply slows the card down. A card at its power limit does not count as slowed,
 * because it is at that limit when profiles are measured, too. */
static bool is_throttled(const json_t *record)
{
    const json_t *reason;
    size_t i;
    json_array_foreach (json_object_get(record, "throttle"), i, reason) {
        const char *name = json_string_value(reason);
        if (name && strcmp(name, "power") != 0)
            return true;
    }
    return false;
}

static void heat_take(const struct health *health, struct card *card, const json_t *record, uint64_t now_ns)
{
    const double window_s = health->options.config->throttle_window_s;
    double clock = json_number_value(json_object_get(record, "clock_khz"));
    double most = json_number_value(json_object_get(record, "clock_max_khz"));
    most = most > 0 ? most : json_number_value(json_object_get(card->inventory, "clock_khz"));
    double share = !is_throttled(record) ? 1 : clock > 0 && most > 0 ? fmin(clock / most, 1) : card->share;
    double weight = card->read_ns == 0 ? 0 : (double)(now_ns - card->read_ns) * 1e-9 / window_s;
    card->share += (share - card->share) * fmin(weight, 1);
    card->read_ns = now_ns;
    if (fabs(card->share - card->heat) > 0.8 / HEAT_STEPS)
        card->heat = fmax(round(card->share * HEAT_STEPS), 1) / HEAT_STEPS;
}

/* Updates the memory that other processes hold: all but our worker's part, or, where the library does not
 * show processes (another pid namespace), the value from before our worker began. A value counts only once
 * two readings agree, so that a worker that is just starting or ending is not taken for another process. */
static void others_take(const struct health *health, struct card *card, const json_t *record)
{
    const json_t *used = json_object_get(memory_of(card, record), "used_bytes"), *process;
    const pid_t pid = health->options.pid(health->options.arg, card->device->name);
    const json_t *told = json_object_get(record, "others_bytes"); /* only in readings of emulated cards */
    bool shown = pid == 0;
    json_int_t ours = 0;
    size_t i;
    json_array_foreach (json_object_get(record, "processes"), i, process) {
        if (pid != 0 && json_integer_value(json_object_get(process, "pid")) == pid) {
            shown = json_is_integer(json_object_get(process, "bytes"));
            ours = json_integer_value(json_object_get(process, "bytes"));
        }
    }
    if (!json_is_integer(told) && (!json_is_integer(used) || !shown))
        return;
    json_int_t others = json_is_integer(told) ? json_integer_value(told) : json_integer_value(used) - ours;
    uint64_t now = others > 0 ? (uint64_t)others / MEMORY_STEP * MEMORY_STEP : 0;
    if (now == card->before) {
        card->first = card->counted ? card->first : now;
        card->counted = true;
        card->others = now;
    }
    card->before = now;
}

/* Returns the bytes that a plan may use: the device's limit, or less where other processes hold memory. */
static uint64_t usable_bytes(const struct card *card, const json_t *record)
{
    const uint64_t limit = card->device->memory_limit_bytes;
    const json_int_t total = json_integer_value(json_object_get(memory_of(card, record), "memory_bytes"));
    const uint64_t first = card->inventory ? card->first : 0;
    const uint64_t more = card->others > first ? card->others - first : 0;
    uint64_t left = limit > more ? limit - more : 0;
    if (card->inventory && total > 0 && (uint64_t)total > card->others) {
        uint64_t room = card_memory_share((uint64_t)total - card->others);
        left = room > left ? room : left; /* other processes may fit beside a low configured limit */
    }
    return left < limit ? left : limit;
}

/* Makes the health of a card: its reading without other people's processes, and the values derived from it.
 */
static json_t *health_of(const struct card *card, const json_t *record, const char *why)
{
    static const char *const keys[] = {
        "temperature_c", "power_w",         "power_limit_w", "clock_khz", "clock_max_khz",
        "throttle",      "ecc_uncorrected", "xid",           "xid_means", "mig",
        "links",         "memory_bytes",    "used_bytes",    "why",       "ecc_uncorrected_total"};
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        json_t *value = json_object_get(record, keys[i]);
        if (value)
            json_object_set(out, keys[i], value);
    }
    if (!record) {
        json_object_set_new(out, "why", json_string(why));
        return out;
    }
    const json_t *processes = json_object_get(record, "processes");
    if (processes)
        json_object_set_new(out, "processes", json_integer((json_int_t)json_array_size(processes)));
    json_object_set_new(out, "heat", json_real(card->heat));
    json_object_set_new(out, "others_bytes", json_integer((json_int_t)card->others));
    json_object_set_new(out, "usable_bytes", json_integer((json_int_t)usable_bytes(card, record)));
    return out;
}

/* Whether two healths differ in something that a decision or an event depends on. */
static bool is_news(const json_t *one, const json_t *other)
{
    static const char *const keys[] = {"heat", "usable_bytes", "throttle", "ecc_uncorrected", "xid", "why"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *a = json_object_get(one, keys[i]), *b = json_object_get(other, keys[i]);
        if (a != b && (!a || !b || !json_equal(a, b)))
            return true;
    }
    return false;
}

static const char *health_why_unknown(const struct card *card, const json_t *reading)
{
    const json_t *library;
    size_t i;
    json_array_foreach (json_object_get(reading, "libraries"), i, library) {
        const char *why = json_string_value(json_object_get(library, "why"));
        if (why && strcmp(json_text_of(library, "kind"), card->device->kind) == 0)
            return why;
    }
    return "its vendor's management library does not show it";
}

json_t *health_take(struct health *health, const json_t *reading, uint64_t now_ns)
{
    json_t *due = json_object();
    for (uint32_t i = 0; i < health->count; i++) {
        struct card *card = &health->cards[i];
        const json_t *record = record_of(card, reading);
        if (!record && !card->inventory && !card->told)
            continue; /* an emulated card without any reading */
        if (record) {
            heat_take(health, card, record, now_ns);
            others_take(health, card, record);
        }
        json_t *said = health_of(card, record, health_why_unknown(card, reading));
        uint64_t ms = (now_ns - card->told_ns) / 1000000;
        if (!card->told || ms >= REFRESH_S * 1000 || (ms >= health->note_ms && is_news(said, card->told))) {
            json_decref(card->told);
            card->told = json_incref(said);
            card->told_ns = now_ns;
            json_object_set(due, card->device->name, said);
        }
        json_decref(said);
    }
    return due;
}

/* Sends the health of devices, if it is of any. Takes 'due' over. */
static void agent_note(struct health *health, json_t *due)
{
    if (json_object_size(due) > 0)
        health->options.note(health->options.arg, due);
    else
        json_decref(due);
}

static void agent_tell(struct health *health, const json_t *reading)
{
    agent_note(health, health_take(health, reading, clock_mono_ns()));
}

/* ---- CPUs ---- */

static bool is_cpu(const struct agent_device *device)
{
    return strcmp(device->kind, "cpu") == 0;
}

static double others_seconds(const struct health *health)
{
    double ours_s = process_cpu_seconds(getpid());
    for (uint32_t i = 0; i < health->options.config->device_count; i++)
        ours_s += process_cpu_seconds(
            health->options.pid(health->options.arg, health->options.config->devices[i].name));
    return machine_cpu_seconds() - ours_s;
}

json_t *health_cores(struct health *health, uint64_t now_ns)
{
    const double others_s = others_seconds(health), seconds = 1e-9 * (double)(now_ns - health->cores_ns);
    const double cores = fmax(0, others_s - health->others_s) / fmax(seconds, 1e-3);
    json_t *due = json_object();
    for (uint32_t i = 0; i < health->options.config->device_count; i++) {
        const struct agent_device *device = &health->options.config->devices[i];
        if (is_cpu(device))
            json_object_set_new(due, device->name,
                                json_pack("{s:f}", "others_cores", round(100 * cores) / 100));
    }
    health->others_s = others_s;
    health->cores_ns = now_ns;
    return due;
}

/* ---- the watcher ---- */

static void watcher_close(struct health *health)
{
    if (health->readable) {
        event_free(health->readable);
        health->readable = NULL;
    }
    if (health->fd >= 0) {
        close(health->fd);
        health->fd = -1;
    }
    evbuffer_drain(health->input, evbuffer_get_length(health->input));
}

/* Reports once, with the reason `why`, that the health of all devices is unknown. */
static void watcher_lost(struct health *health, const char *why)
{
    log_event(LOG_LEVEL_WARN, "health_unknown", "why=\"%s\"", why);
    json_t *reading = json_pack("{s:[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}]}", "libraries", "kind", "cuda",
                                "why", why, "kind", "hip", "why", why, "kind", "emulated", "why", why);
    agent_tell(health, reading);
    json_decref(reading);
}

static void watcher_exited(void *arg, pid_t pid, int status)
{
    struct health *health = arg;
    char how[64], why[200];
    (void)pid;
    process_watch_destroy(health->watch);
    health->watch = NULL;
    health->pid = 0;
    health->heard_ns = clock_mono_ns();
    watcher_close(health);
    if (health->silent)
        snprintf(
            why, sizeof(why),
            "a vendor's management library did not answer for %u s, and is asked anew by another process (if "
            "that goes on: rm /dev/shm/rocm_smi*, or nvidia-smi hangs, too)",
            health->options.silent_s);
    else
        snprintf(why, sizeof(why), "the watcher of cards ended: %s", process_status_text(status, how));
    health->silent = false;
    watcher_lost(health, why);
}

static void watcher_readable(evutil_socket_t fd, short what, void *arg)
{
    struct health *health = arg;
    char *line;
    (void)what;
    int got = evbuffer_read(health->input, fd, LINE_BYTES_MAX);
    while ((line = evbuffer_readln(health->input, NULL, EVBUFFER_EOL_LF))) {
        json_t *reading = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        health->heard_ns = clock_mono_ns();
        if (json_is_object(reading))
            agent_tell(health, reading);
        json_decref(reading);
        free(line);
    }
    bool over = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
    if ((over || evbuffer_get_length(health->input) > LINE_BYTES_MAX) && health->pid != 0) {
        event_del(health->readable);
        struct err ignored;
        process_kill_group(health->pid, 0, SIGKILL, &ignored); /* the process watch reports its end */
    }
}

static int watcher_start(struct health *health, struct err *err)
{
    char interval[16];
    int pipes[2];
    snprintf(interval, sizeof(interval), "%u", health->interval_ms);
    const char *argv[] = {health->options.worker, "--health", interval, NULL};
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return err_errno(err, ERR_IO, errno, "no pipe for the watcher of cards");
    const struct process_options options = {.argv = argv,
                                            .stdio_fd = {0, pipes[1], 0},
                                            .stderr_path = "-",
                                            .no_new_privs = true,
                                            .own_group = true,
                                            .die_with_parent = true};
    int result = process_spawn(&options, &health->pid, err);
    close(pipes[1]);
    health->fd = pipes[0];
    if (result < 0) {
        health->pid = 0;
        watcher_close(health);
        return -1;
    }
    evutil_make_socket_nonblocking(health->fd);
    health->watch = process_watch_create(health->base, health->pid, watcher_exited, health, err);
    health->readable = event_new(health->base, health->fd, EV_READ | EV_PERSIST, watcher_readable, health);
    if (!health->watch || !health->readable || event_add(health->readable, NULL) < 0) {
        err_set(err, ERR_NOMEM, "no memory for the watcher of cards");
        struct err ignored;
        process_watch_destroy(health->watch);
        health->watch = NULL;
        process_stop(health->pid, 0, SIGKILL, 0, &ignored);
        health->pid = 0;
        watcher_close(health);
        return -1;
    }
    return 0;
}

static void ticked(evutil_socket_t fd, short what, void *arg)
{
    struct health *health = arg;
    struct err err;
    (void)fd;
    (void)what;
    uint64_t now_ns = clock_mono_ns();
    if (now_ns - health->cores_ns >= (uint64_t)CORES_S * 1000000000)
        agent_note(health, health_cores(health, now_ns));
    if (health->count == 0)
        return;
    if (health->heard_ns != 0 && now_ns - health->heard_ns < (uint64_t)health->options.silent_s * 1000000000)
        return;
    if (health->pid != 0) {
        log_event(LOG_LEVEL_WARN, "health_silent", "pid=%d", (int)health->pid);
        health->silent = true;
        process_kill_group(health->pid, 0, SIGKILL, &err);
    } else if (watcher_start(health, &err) < 0) {
        watcher_lost(health, err.text);
    }
    health->heard_ns = now_ns;
}

/* ---- creating and destroying ---- */

static bool is_watched(const struct agent_device *device)
{
    const char *file = getenv("MOTLEY_EMULATED_HEALTH");
    return strcmp(device->kind, "cuda") == 0 || strcmp(device->kind, "hip") == 0 ||
           (strcmp(device->kind, "emulated") == 0 && file && *file != '\0');
}

struct health *health_create(struct event_base *base, const struct health_options *options, struct err *err)
{
    struct health *health = calloc(1, sizeof(*health));
    const struct timeval second = {.tv_sec = 1};
    if (!health) {
        err_set(err, ERR_NOMEM, "no memory for the health of cards");
        return NULL;
    }
    double interval_ms = fmin(options->config->throttle_window_s * 100, INTERVAL_MS_MAX);
    *health =
        (struct health){.base = base, .options = *options, .fd = -1, .interval_ms = (uint32_t)interval_ms};
    health->options.silent_s = options->silent_s != 0 ? options->silent_s : SILENT_S;
    health->note_ms = (uint32_t)fmin(options->config->throttle_window_s * 100, NOTE_MS_MAX);
    for (uint32_t i = 0; i < options->config->device_count; i++) {
        const struct agent_device *device = &options->config->devices[i];
        if (is_watched(device)) {
            bool real = strcmp(device->kind, "emulated") != 0;
            health->cards[health->count++] = (struct card){
                .device = device,
                .inventory = real ? cards_find(options->config->cards, device->kind, device->index) : NULL,
                .share = 1,
                .heat = 1};
        }
    }
    health->others_s = others_seconds(health);
    health->cores_ns = clock_mono_ns();
    health->input = evbuffer_new();
    health->tick = !health->input ? NULL : event_new(base, -1, EV_PERSIST, ticked, health);
    if (!health->tick || event_add(health->tick, &second) < 0) {
        health_destroy(health);
        err_set(err, ERR_NOMEM, "no memory for the health of cards");
        return NULL;
    }
    return health;
}

void health_destroy(struct health *health)
{
    struct err ignored;
    if (!health)
        return;
    process_watch_destroy(health->watch);
    if (health->pid != 0)
        process_stop(health->pid, 0, SIGKILL, 0, &ignored);
    if (health->input) {
        watcher_close(health);
        evbuffer_free(health->input);
    }
    if (health->tick)
        event_free(health->tick);
    for (uint32_t i = 0; i < health->count; i++)
        json_decref(health->cards[i].told);
    free(health);
}

void health_again(struct health *health)
{
    for (uint32_t i = 0; i < health->count; i++)
        health->cards[i].told_ns = 0;
}
