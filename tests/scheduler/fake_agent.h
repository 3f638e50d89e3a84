/* Fake agents for tests of the scheduler speak the streams protocol of docs/CONTRACTS.md from the test's own
 * loop.
 *
 * An agent keeps a journal for each worker and sends events again that are not acknowledged. A worker
 * "trains": it does one step a tick, writes a checkpoint every few steps, and sends `done` at the end.
 * Switches make an agent silent, or make it lose, double or shuffle messages.
 */
#ifndef MOTLEY_TESTS_FAKE_AGENT_H
#define MOTLEY_TESTS_FAKE_AGENT_H

#include <event2/event.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/frame.h"
#include "common/redis.h"
#include "common/seal.h"

enum { FAKE_WORKERS_MAX = 32, FAKE_TICK_MS = 5 };

enum fake_phase { FAKE_READY, FAKE_RUNNING, FAKE_ENDED };

struct fake_worker {
    int64_t run, epoch, rank, rank_count, job;
    char device[80];
    /* the worker fails by its own fault at step fault_at; -1: never */
    int64_t step, steps, every, start, fault_at;
    enum fake_phase phase;
    int64_t last_seq;
    json_t *journal; /* events that are not yet acknowledged */
    bool frozen;     /* true: the worker takes no more steps */
};

struct fake_agent {
    struct event_base *base;
    struct redis *commands, *reader;
    struct event *timer;
    struct seal *seal;
    char node[40], boot[40], after[40], stream[80];
    char replaced_by[80]; /* start of the agent that was said to have replaced an earlier one; "": none */
    int64_t beat;
    unsigned beat_ms; /* time between heartbeats; 0: 100 */
    int devices;
    int64_t node_seq;
    json_t *node_journal;
    struct fake_worker workers[FAKE_WORKERS_MAX];
    int worker_count;
    uint64_t ticks, rng;
    int drop_percent, double_percent, shuffle_percent;
    bool silent; /* true: the agent sends nothing, and its workers go on */
    bool profiles_fail;
    bool is_busy;     /* true: for half of the time that its devices are measured others compute there */
    bool start_fails; /* true: its workers cannot be started */
    bool unconnected; /* true: its workers cannot connect to others */
    bool unreached;   /* true: it cannot connect to any other node */
    json_t *asked;    /* requests of links that it says so of within 200 ms; owned, or NULL */
    json_t *peers;    /* `peers` of the last message of that kind; owned */
    bool refuses;     /* true: it starts no worker, since it is ending */
    int64_t clock_ahead_us; /* by how much its clock is ahead */
    bool leaves;            /* its hello says that it leaves, leaves_s from then on */
    double leaves_s;
    const char *lacking; /* what its first device lacks, by its hello; NULL: nothing */
    bool saves_late;     /* true: its workers store no checkpoint when asked for one */
    unsigned saves;      /* messages that asked for a checkpoint */
    bool heedless;       /* true: the agent neither confirms assignments nor acts on them */
    bool says_nul;       /* true: a text of its hello holds U+0000 */
    /* called for each assignment that comes, with the bytes of its message; may be NULL */
    void (*on_assign)(const json_t *message, size_t size);
    int64_t fault_at;     /* fault_at of new workers */
    const char *warnings; /* of `done`; then the last checkpoint turns out to be the best one */
    int64_t steps_max;    /* step at which workers stop to take steps; 0: none */
    double compute_s;     /* seconds of a step that its workers report; 0: they report none */
    bool reading;
    json_t *acted; /* ids of messages that the agent has acted on */
    unsigned assigns, kills, stops, profiles, repeats, link_requests, unsealed;
    size_t links_told;  /* number of emulated links in the last assignment */
    double wait_told;   /* limits.wait of the last assignment, in seconds */
    uint64_t assign_ns; /* when the last assignment came (CLOCK_MONOTONIC) */
    /* "why" of the last message that stopped a living worker; for a worker that has ended it is not noted */
    char last_stop[40];
};

static inline uint64_t fake_random(struct fake_agent *agent)
{
    agent->rng ^= agent->rng << 13;
    agent->rng ^= agent->rng >> 7;
    agent->rng ^= agent->rng << 17;
    return agent->rng;
}

static inline bool fake_chance(struct fake_agent *agent, int percent)
{
    return percent > 0 && (int)(fake_random(agent) % 100) < percent;
}

/* Writes the key that world_enrol() gives to a node of this name. */
static inline void fake_key(const char *node, uint8_t key[SEAL_KEY_SIZE])
{
    memset(key, 7, SEAL_KEY_SIZE);
    memcpy(key, node, strlen(node) < SEAL_KEY_SIZE ? strlen(node) : SEAL_KEY_SIZE);
}

/* Seals bytes as they are and adds them to the agent's stream. */
static inline void fake_add(struct fake_agent *agent, const void *bytes, size_t size)
{
    uint8_t mac[SEAL_SIZE];
    struct err err;
    const struct redis_entry entry = {.payload = bytes, .size = size, .seal = mac, .seal_size = sizeof(mac)};
    if (seal_make(agent->seal, SEAL_EVENTS, bytes, size, mac, &err) == 0)
        redis_stream_add(agent->commands, agent->stream, 100000, &entry, 0, NULL, NULL, &err);
}

static inline void fake_send(struct fake_agent *agent, const json_t *event)
{
    struct buf out;
    struct err err;
    if (agent->silent || fake_chance(agent, agent->drop_percent))
        return;
    buf_init(&out, 1 << 20);
    if (frame_encode(event, &out, &err) == 0) {
        int times = fake_chance(agent, agent->double_percent) ? 2 : 1;
        while (times-- > 0)
            fake_add(agent, out.data, out.size);
    }
    buf_fini(&out);
}

static inline json_t *fake_envelope(struct fake_agent *agent, const char *type, json_t *body)
{
    json_object_set_new(body, "type", json_string(type));
    json_object_set_new(body, "node", json_string(agent->node));
    json_object_set_new(body, "at", json_integer(clock_wall_us() + agent->clock_ahead_us));
    return body;
}

/* Puts a worker's event into its journal and sends it. Takes body. */
static inline void fake_emit(struct fake_agent *agent, struct fake_worker *worker, const char *type,
                             json_t *body)
{
    fake_envelope(agent, type, body);
    json_object_set_new(body, "run", json_integer(worker->run));
    json_object_set_new(body, "epoch", json_integer(worker->epoch));
    json_object_set_new(body, "rank", json_integer(worker->rank));
    json_object_set_new(body, "seq", json_integer(++worker->last_seq));
    json_array_append(worker->journal, body);
    fake_send(agent, body);
    json_decref(body);
}

static inline void fake_pass(struct fake_agent *agent, const char *type, json_t *body)
{
    fake_envelope(agent, type, body);
    json_object_set_new(body, "seq", json_integer(0));
    json_object_set_new(body, "beat", json_integer(++agent->beat));
    fake_send(agent, body);
    json_decref(body);
}

static inline void fake_hello(struct fake_agent *agent)
{
    json_t *devices = json_array(), *workers = json_array();
    for (int i = 0; i < agent->devices; i++) {
        char name[80];
        snprintf(name, sizeof(name), "%s/cpu%d", agent->node, i);
        json_array_append_new(devices, json_pack("{s:s, s:s, s:i, s:I}", "name", name, "kind", "cpu",
                                                 "threads", 1, "memory_limit_bytes", (json_int_t)450 << 20));
    }
    for (int i = 0; i < agent->worker_count; i++) {
        if (agent->workers[i].phase != FAKE_ENDED || json_array_size(agent->workers[i].journal) > 0) {
            json_array_append_new(
                workers, json_pack("{s:I, s:I, s:I, s:s}", "run", (json_int_t)agent->workers[i].run, "epoch",
                                   (json_int_t)agent->workers[i].epoch, "rank",
                                   (json_int_t)agent->workers[i].rank, "device", agent->workers[i].device));
        }
    }
    json_t *lacking = json_object();
    char first[80];
    snprintf(first, sizeof(first), "%s/cpu0", agent->node);
    if (agent->lacking)
        json_object_set_new(lacking, first, json_string(agent->lacking));
    fake_pass(agent, "node_hello",
              json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o*}", "boot", agent->boot, "machine_id", "m1",
                        "address", "127.0.0.1:7000", "devices", devices, "workers", workers, "lacking",
                        lacking, "release", agent->says_nul ? json_stringn("1\0x", 3) : json_string("1"),
                        "leaves_s", agent->leaves ? json_real(agent->leaves_s) : NULL));
}

static inline struct fake_worker *fake_find(struct fake_agent *agent, const json_t *message, int from)
{
    int64_t run = json_integer_value(json_object_get(message, "run"));
    int64_t epoch = json_integer_value(json_object_get(message, "epoch"));
    const json_t *rank = json_object_get(message, "rank");
    for (int i = from; i < agent->worker_count; i++) {
        struct fake_worker *worker = &agent->workers[i];
        if (worker->run == run && worker->epoch == epoch &&
            (!rank || json_integer_value(rank) == worker->rank))
            return worker;
    }
    return NULL;
}

static inline json_t *fake_blobs(struct fake_worker *worker)
{
    char hash[65];
    snprintf(hash, sizeof(hash), "%064llx", (unsigned long long)worker->step);
    return json_pack("{s:s}", "adapter.safetensors", hash);
}

static inline void fake_checkpoint(struct fake_agent *agent, struct fake_worker *worker, bool best)
{
    if (worker->rank == 0) {
        fake_emit(agent, worker, "checkpoint",
                  json_pack("{s:I, s:o, s:b}", "step", (json_int_t)worker->step, "blobs", fake_blobs(worker),
                            "best", (int)best));
    }
}

/* The loss depends on the step alone, so every attempt reports the same one. */
static inline double fake_loss(int64_t step)
{
    return 5.0 / (double)(step + 1);
}

static inline void fake_assign(struct fake_agent *agent, const json_t *message)
{
    const json_t *spec = json_object_get(message, "spec");
    agent->assigns++;
    agent->links_told = json_array_size(json_object_get(message, "links"));
    agent->wait_told = json_number_value(json_object_get(json_object_get(message, "limits"), "wait"));
    agent->assign_ns = clock_mono_ns();
    if (agent->worker_count == FAKE_WORKERS_MAX)
        return;
    struct fake_worker *worker = &agent->workers[agent->worker_count++];
    *worker = (struct fake_worker){.journal = json_array(), .fault_at = agent->fault_at};
    worker->run = json_integer_value(json_object_get(message, "run"));
    worker->epoch = json_integer_value(json_object_get(message, "epoch"));
    worker->rank = json_integer_value(json_object_get(message, "rank"));
    worker->job = json_integer_value(json_object_get(message, "job"));
    worker->rank_count = (int64_t)json_array_size(json_object_get(message, "ranks"));
    worker->steps = json_integer_value(json_object_get(json_object_get(spec, "train"), "steps"));
    worker->every = json_integer_value(json_object_get(json_object_get(spec, "checkpoint"), "every_steps"));
    worker->start = json_integer_value(json_object_get(json_object_get(message, "start"), "step"));
    worker->step = worker->start;
    snprintf(worker->device, sizeof(worker->device), "%s",
             json_string_value(json_object_get(message, "device")));
    if (agent->start_fails || agent->refuses) {
        fake_emit(agent, worker, "failed",
                  json_pack("{s:s, s:s, s:b}", "code", agent->refuses ? "cancelled" : "node-fault", "text",
                            agent->refuses ? "this node's agent is stopping" : "no room", "own_fault", 0));
        worker->phase = FAKE_ENDED;
        return;
    }
    fake_emit(agent, worker, "worker_ready",
              json_pack("{s:s, s:s}", "address", "127.0.0.1:9000", "identity", "worker:x"));
    if (worker->rank_count == 1) { /* a single rank has no peers to wait for */
        worker->phase = FAKE_RUNNING;
        fake_emit(agent, worker, "started", json_object());
    }
}

static inline void fake_stop(struct fake_agent *agent, const json_t *message)
{
    struct fake_worker *worker = NULL;
    int at = 0;
    bool kill = json_is_true(json_object_get(message, "kill"));
    agent->stops++;
    agent->kills += kill ? 1 : 0;
    while ((worker = fake_find(agent, message, at))) {
        at = (int)(worker - agent->workers) + 1;
        if (worker->phase == FAKE_ENDED)
            continue;
        snprintf(agent->last_stop, sizeof(agent->last_stop), "%s",
                 json_string_value(json_object_get(message, "why")));
        bool checkpoint =
            json_is_true(json_object_get(message, "checkpoint")) && worker->phase == FAKE_RUNNING;
        if (checkpoint)
            fake_checkpoint(agent, worker, worker->step % 20 == 0);
        fake_emit(agent, worker, "stopped",
                  json_pack("{s:I, s:b}", "step", (json_int_t)worker->step, "checkpoint", (int)checkpoint));
        worker->phase = FAKE_ENDED;
    }
}

static inline void fake_trim(json_t *journal, int64_t seq)
{
    while (json_array_size(journal) > 0 &&
           json_integer_value(json_object_get(json_array_get(journal, 0), "seq")) <= seq)
        json_array_remove(journal, 0);
}

static inline void fake_ack(struct fake_agent *agent, const json_t *message)
{
    int64_t seq = json_integer_value(json_object_get(message, "seq"));
    if (!json_is_integer(json_object_get(message, "run"))) {
        const char *boot = json_string_value(json_object_get(message, "boot"));
        if (boot && strcmp(boot, agent->boot) == 0)
            fake_trim(agent->node_journal, seq);
        return;
    }
    struct fake_worker *worker = fake_find(agent, message, 0);
    if (worker)
        fake_trim(worker->journal, seq);
}

static inline void fake_measured(struct fake_agent *agent, const char *type, json_t *body)
{
    fake_envelope(agent, type, body);
    json_object_set_new(body, "boot", json_string(agent->boot));
    json_object_set_new(body, "seq", json_integer(++agent->node_seq));
    json_array_append(agent->node_journal, body);
    fake_send(agent, body);
    json_decref(body);
}

static inline void fake_profile(struct fake_agent *agent, const json_t *message)
{
    json_t *request = json_object_get(message, "request");
    agent->profiles++;
    if (agent->profiles_fail) {
        fake_measured(agent, "failed",
                      json_pack("{s:O, s:s, s:s, s:b}", "request", request, "code", "no-memory", "text",
                                "no memory for it", "own_fault", 0));
    } else {
        const char *blocks[] = {"layer", "head"};
        json_t *points = json_array();
        for (int i = 0; i < 2; i++)
            json_array_append_new(points, json_pack("{s:s, s:i, s:i, s:i, s:i, s:f, s:f}", "block", blocks[i],
                                                    "rows", 1, "tokens", 64, "labelled", 64, "sum_sq", 4096,
                                                    "forward_s", 1e-3, "backward_s", 1e-3));
        fake_measured(agent, "profile",
                      json_pack("{s:O, s:{s:O, s:s, s:o, s:f}}", "request", request, "document", "device",
                                json_object_get(message, "device"), "isa", "avx2", "points", points,
                                "waited_share", agent->is_busy ? 0.5 : 0.0));
    }
}

static inline void fake_links(struct fake_agent *agent, const json_t *message)
{
    agent->link_requests++;
    size_t i;
    json_t *to;
    json_array_foreach (json_object_get(message, "to"), i, to) {
        if (agent->unreached) {
            agent->asked = agent->asked ? agent->asked : json_array();
            json_array_append(agent->asked, json_object_get(message, "request"));
            continue;
        }
        fake_measured(agent, "link",
                      json_pack("{s:O, s:{s:s, s:O, s:f, s:f}}", "request",
                                json_object_get(message, "request"), "document", "from", agent->node, "to",
                                json_object_get(to, "node"), "latency_s", 1e-4, "bytes_per_s", 1e9));
    }
}

static inline void fake_refuse_links(struct fake_agent *agent)
{
    size_t i;
    json_t *request;
    json_array_foreach (agent->asked, i, request)
        fake_measured(agent, "failed",
                      json_pack("{s:O, s:s, s:b}", "request", request, "text",
                                "agent at 10.0.0.9:7000 cannot be reached", "unreachable", 1));
    json_array_clear(agent->asked);
}

static inline void fake_message(struct fake_agent *agent, const json_t *message)
{
    const char *type = json_string_value(json_object_get(message, "type"));
    const json_t *id = json_object_get(message, "id");
    if (json_is_integer(id)) {
        char key[24];
        snprintf(key, sizeof(key), "%lld", (long long)json_integer_value(id));
        fake_pass(agent, "received", json_pack("{s:I}", "message", json_integer_value(id)));
        if (json_object_get(agent->acted, key)) {
            agent->repeats++;
            return;
        }
        json_object_set_new(agent->acted, key, json_true());
    }
    if (strcmp(type, "assign") == 0) {
        fake_assign(agent, message);
    } else if (strcmp(type, "replaced") == 0) {
        snprintf(agent->replaced_by, sizeof(agent->replaced_by), "%s",
                 json_string_value(json_object_get(message, "boot")));
    } else if (strcmp(type, "peers") == 0) {
        struct fake_worker *worker = fake_find(agent, message, 0);
        json_decref(agent->peers);
        agent->peers = json_incref(json_object_get(message, "peers"));
        if (worker && worker->phase == FAKE_READY && agent->unconnected) {
            fake_emit(agent, worker, "failed",
                      json_pack("{s:s, s:s, s:b}", "code", "timeout", "text",
                                "rank 0: did not connect in time", "own_fault", 0));
            worker->phase = FAKE_ENDED;
        } else if (worker && worker->phase == FAKE_READY) {
            worker->phase = FAKE_RUNNING;
            fake_emit(agent, worker, "started", json_object());
        }
    } else if (strcmp(type, "save") == 0) {
        struct fake_worker *worker = fake_find(agent, message, 0);
        agent->saves++;
        if (worker && worker->phase == FAKE_RUNNING && !agent->saves_late)
            fake_checkpoint(agent, worker, worker->step % 20 == 0);
    } else if (strcmp(type, "stop") == 0) {
        fake_stop(agent, message);
    } else if (strcmp(type, "ack") == 0) {
        fake_ack(agent, message);
    } else if (strcmp(type, "hello") == 0) {
        fake_hello(agent);
    } else if (strcmp(type, "profile") == 0) {
        fake_profile(agent, message);
    } else if (strcmp(type, "links") == 0) {
        fake_links(agent, message);
    }
}

static inline int fake_entry(void *arg, const char *stream, const char *id, const struct redis_entry *entry,
                             struct err *err)
{
    struct fake_agent *agent = arg;
    (void)stream;
    snprintf(agent->after, sizeof(agent->after), "%s", id);
    if (!seal_holds(agent->seal, SEAL_MESSAGES, entry->payload, entry->size, entry->seal, entry->seal_size)) {
        agent->unsealed++;
        return 0;
    }
    json_t *message = frame_decode(entry->payload, entry->size, &frame_limits_default, err);
    if (message) {
        bool assign = strcmp(json_string_value(json_object_get(message, "type")), "assign") == 0;
        if (assign && agent->on_assign)
            agent->on_assign(message, entry->size);
        if (!assign || !agent->heedless)
            fake_message(agent, message);
        json_decref(message);
    }
    return 0;
}

static inline void fake_read(struct fake_agent *agent);

static inline void fake_read_done(void *arg, const redisReply *reply, const struct err *why)
{
    struct fake_agent *agent = arg;
    struct err err;
    agent->reading = false;
    if (why->code == ERR_CANCELLED)
        return;
    if (why->code == ERR_NONE) {
        redis_stream_entries(reply, fake_entry, agent, &err);
        fake_read(agent);
    }
}

static inline void fake_read(struct fake_agent *agent)
{
    char stream[80];
    struct err err;
    if (agent->reading || !redis_is_connected(agent->reader))
        return;
    snprintf(stream, sizeof(stream), "motley:agent:%s", agent->node);
    const struct redis_position inbox = {stream, agent->after};
    agent->reading = redis_streams_read(agent->reader, &inbox, 1, 100, 500, fake_read_done, agent, &err) == 0;
}

static inline void fake_step(struct fake_agent *agent, struct fake_worker *worker)
{
    if (worker->phase != FAKE_RUNNING || worker->frozen ||
        (agent->steps_max > 0 && worker->step >= agent->steps_max))
        return;
    if (worker->fault_at >= 0 && worker->step == worker->fault_at) {
        fake_emit(agent, worker, "failed",
                  json_pack("{s:s, s:s, s:b}", "code", "not-finite", "text", "step 7: loss is NaN on rank 0",
                            "own_fault", 1));
        worker->phase = FAKE_ENDED;
        return;
    }
    if (worker->step < worker->steps) {
        if (worker->rank == worker->rank_count - 1) {
            fake_emit(agent, worker, "step",
                      json_pack("{s:I, s:f, s:i, s:f}", "step", (json_int_t)worker->step, "loss",
                                fake_loss(worker->step), "rows", 16, "seconds", agent->compute_s));
        }
        if (agent->compute_s > 0)
            fake_emit(agent, worker, "ranks",
                      json_pack("{s:I, s:f, s:f}", "step", (json_int_t)worker->step, "compute_s",
                                agent->compute_s, "wall_s", agent->compute_s));
        worker->step++;
        if (worker->every > 0 && worker->step % worker->every == 0)
            fake_checkpoint(agent, worker, worker->step % 20 == 0);
    }
    if (worker->step >= worker->steps) {
        json_t *done =
            worker->rank == 0
                ? json_pack("{s:{s:{s:s, s:i}}}", "artifacts", "adapter/adapter_model.safetensors", "sha256",
                            "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", "size", 7)
                : json_object();
        if (worker->every == 0 || worker->step % worker->every != 0)
            fake_checkpoint(agent, worker, worker->step % 20 == 0);
        if (agent->warnings) {
            fake_checkpoint(agent, worker, true);
            json_object_set_new(done, "warnings", json_string(agent->warnings));
        }
        json_object_set_new(done, "step", json_integer((json_int_t)worker->step));
        fake_emit(agent, worker, "done", done);
        worker->phase = FAKE_ENDED;
    }
}

/* Sends the journal's events, which are not yet acknowledged, again. With shuffle_percent, some of them are
 * replaced by random events of the journal. */
static inline void fake_resend(struct fake_agent *agent, json_t *journal)
{
    size_t count = json_array_size(journal);
    for (size_t i = 0; i < count; i++) {
        size_t pick = fake_chance(agent, agent->shuffle_percent) ? fake_random(agent) % count : i;
        fake_send(agent, json_array_get(journal, pick));
    }
}

static inline void fake_tick(evutil_socket_t fd, short what, void *arg)
{
    struct fake_agent *agent = arg;
    (void)fd;
    (void)what;
    fake_read(agent);
    if (!redis_is_connected(agent->commands))
        return;
    agent->ticks++;
    for (int i = 0; i < agent->worker_count; i++)
        fake_step(agent, &agent->workers[i]);
    if (agent->ticks % ((agent->beat_ms > 0 ? agent->beat_ms : 100) / FAKE_TICK_MS) == 1)
        fake_pass(agent, "heartbeat", json_pack("{s:s}", "boot", agent->boot));
    if (agent->ticks % (200 / FAKE_TICK_MS) == 0) {
        fake_refuse_links(agent);
        for (int i = 0; i < agent->worker_count; i++)
            fake_resend(agent, agent->workers[i].journal);
        fake_resend(agent, agent->node_journal);
    }
}

/* Restarts the agent with a higher boot id. */
static inline void fake_boot(struct fake_agent *agent)
{
    snprintf(agent->boot, sizeof(agent->boot), "%016llx", (unsigned long long)clock_wall_us());
    agent->node_seq = 0;
    agent->beat = 0;
}

static inline struct fake_agent *fake_agent_start(struct event_base *base, const char *address,
                                                  const char *node, int devices, uint64_t seed)
{
    const struct timeval period = {.tv_usec = FAKE_TICK_MS * 1000};
    const struct redis_config config = {.address = address};
    const struct redis_events events = {NULL, NULL};
    struct err err;
    struct fake_agent *agent = calloc(1, sizeof(*agent));
    agent->base = base;
    agent->devices = devices;
    agent->fault_at = -1;
    agent->rng = seed * 2654435761u + 88172645463325252u;
    agent->node_journal = json_array();
    agent->acted = json_object();
    snprintf(agent->node, sizeof(agent->node), "%s", node);
    fake_boot(agent);
    snprintf(agent->stream, sizeof(agent->stream), "motley:events:%s", node);
    uint8_t key[SEAL_KEY_SIZE];
    fake_key(node, key);
    agent->seal = seal_create(key, node, &err);
    snprintf(agent->after, sizeof(agent->after), "0");
    agent->commands = redis_create(base, &config, &events, agent, &err);
    agent->reader = redis_create(base, &config, &events, agent, &err);
    agent->timer = event_new(base, -1, EV_PERSIST, fake_tick, agent);
    event_add(agent->timer, &period);
    return agent;
}

/* Forgets all workers of an agent, as if it had never had them. */
static inline void fake_forget(struct fake_agent *agent)
{
    for (int i = 0; i < agent->worker_count; i++)
        json_decref(agent->workers[i].journal);
    agent->worker_count = 0;
}

static inline void fake_agent_end(struct fake_agent *agent)
{
    if (!agent)
        return;
    event_free(agent->timer);
    redis_destroy(agent->reader);
    redis_destroy(agent->commands);
    seal_destroy(agent->seal);
    fake_forget(agent);
    json_decref(agent->node_journal);
    json_decref(agent->acted);
    free(agent);
}

/* Returns the newest worker that has not ended, or NULL. */
static inline struct fake_worker *fake_living(struct fake_agent *agent)
{
    for (int i = agent->worker_count; i-- > 0;)
        if (agent->workers[i].phase != FAKE_ENDED)
            return &agent->workers[i];
    return NULL;
}

/* Kills the worker; its agent reports the death. */
static inline void fake_kill_worker(struct fake_agent *agent, struct fake_worker *worker)
{
    worker->phase = FAKE_ENDED;
    fake_emit(agent, worker, "failed",
              json_pack("{s:s, s:s, s:b}", "code", "peer", "text", "killed by signal 9", "own_fault", 0));
}

#endif
