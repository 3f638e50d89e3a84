/* Runs the agent daemon as a process against a real Redis. This program is also its worker (when run with
 * --socket) and the api that it joins. The test plays the scheduler. */
#ifndef MOTLEY_TESTS_DAEMON_WORLD_H
#define MOTLEY_TESTS_DAEMON_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "agent/fake_api.h"
#include "agent/fake_worker.h"
#include "common/digest.h"
#include "common/frame.h"
#include "common/json.h"
#include "common/seal.h"
#include "support/services.h"

/* ================= the scheduler ================= */

struct world {
    struct test_dir dir;
    struct test_redis redis;
    struct test_cluster cluster;
    struct api api;
    char name[40];
    char home[160];
    char config[160];
    char token[TLS_JOIN_TOKEN_SIZE];
    pid_t agent;
    redisContext *client;
    char after[64];
    json_t *events; /* events read from Redis that no test has taken yet */
    int64_t message;
    struct seal *seal;
    bool ack;           /* acknowledge numbered events as they arrive */
    bool without_api;   /* agents are started without --api */
    const char *worker; /* program that agents start as workers; NULL: this one */
};

static char self[512];

static inline void world_connect(struct world *world)
{
    if (world->client)
        redisFree(world->client);
    world->client = redisConnectUnix(world->redis.address + 5);
    assert_true(world->client && world->client->err == 0);
    snprintf(world->after, sizeof(world->after), "0");
}

static inline struct seal *seal_made(void)
{
    uint8_t key[SEAL_KEY_SIZE];
    struct err err;
    assert_int_equal(digest_unhex(seal_hex, key, sizeof(key)), 0);
    struct seal *seal = seal_create(key, "left", &err);
    assert_non_null(seal);
    return seal;
}

/* Puts the message (taken) into the inbox with the seal of this key and direction; NULL: with an invalid
 * seal. */
static inline void say_sealed(struct world *world, json_t *message, struct seal *seal,
                              enum seal_direction direction)
{
    struct buf bytes;
    struct err err;
    uint8_t mac[SEAL_SIZE] = {0};
    buf_init(&bytes, 1 << 20);
    assert_int_equal(frame_encode(message, &bytes, &err), 0);
    if (seal)
        assert_int_equal(seal_make(seal, direction, bytes.data, bytes.size, mac, &err), 0);
    redisReply *reply = redisCommand(world->client, "XADD motley:agent:left * m %b a %b", bytes.data,
                                     bytes.size, mac, sizeof(mac));
    assert_true(reply && reply->type != REDIS_REPLY_ERROR);
    freeReplyObject(reply);
    buf_fini(&bytes);
    json_decref(message);
}

static inline void say_quietly(struct world *world, json_t *message)
{
    say_sealed(world, message, world->seal, SEAL_MESSAGES);
}

/* Sends the message (taken) with a new id, which is returned. */
static inline int64_t say(struct world *world, json_t *message)
{
    json_object_set_new(message, "id", json_integer(++world->message));
    say_quietly(world, message);
    return world->message;
}

static inline void event_ack(struct world *world, const json_t *event)
{
    if (json_integer_value(json_object_get(event, "seq")) == 0)
        return;
    json_t *ack = json_pack("{s:s}", "type", "ack");
    static const char *const keys[] = {"run", "epoch", "rank", "boot", "seq"};
    for (int i = 0; i < 5; i++)
        json_object_set(ack, keys[i], json_object_get(event, keys[i]));
    say_quietly(world, ack);
}

static inline bool event_is(const json_t *event, const char *type, int64_t run)
{
    return strcmp(json_string_value(json_object_get(event, "type")), type) == 0 &&
           (run < 0 || json_integer_value(json_object_get(event, "run")) == run);
}

/* Reads the events that Redis has, waiting up to block_ms for the first. */
static inline void events_take(struct world *world, int block_ms)
{
    redisReply *reply = redisCommand(world->client, "XREAD COUNT 1000 BLOCK %d STREAMS motley:events:left %s",
                                     block_ms, world->after);
    assert_true(reply && reply->type != REDIS_REPLY_ERROR);
    if (reply->type == REDIS_REPLY_ARRAY) {
        redisReply *entries = reply->element[0]->element[1];
        for (size_t i = 0; i < entries->elements; i++) {
            struct err err;
            redisReply *payload = entries->element[i]->element[1]->element[1];
            redisReply *mac = entries->element[i]->element[1]->element[3];
            assert_true(seal_holds(world->seal, SEAL_EVENTS, payload->str, (size_t)payload->len, mac->str,
                                   (size_t)mac->len));
            snprintf(world->after, sizeof(world->after), "%s", entries->element[i]->element[0]->str);
            json_t *event = frame_decode(payload->str, (size_t)payload->len, &frame_limits_default, &err);
            assert_non_null(event);
            if (world->ack)
                event_ack(world, event);
            json_array_append_new(world->events, event);
        }
    }
    freeReplyObject(reply);
}

/* Forgets what came, also what Redis still has: an agent that ends says so in a last hello. */
static inline void events_forget(struct world *world)
{
    events_take(world, 1);
    json_array_clear(world->events);
}

/* Returns the next event of 'type' (new), of 'run' unless that is < 0. Earlier events of other types stay in
 * the list. */
static inline json_t *await(struct world *world, const char *type, int64_t run)
{
    uint64_t deadline_ns = clock_mono_ns() + 15000000000u;
    while (clock_left_ms(deadline_ns, 1) > 0) {
        for (size_t i = 0; i < json_array_size(world->events); i++) {
            json_t *event = json_array_get(world->events, i);
            if (event_is(event, type, run)) {
                json_incref(event);
                json_array_remove(world->events, i);
                return event;
            }
        }
        events_take(world, 500);
    }
    char *all = json_dumps(world->events, JSON_INDENT(1));
    fail_msg("no event %s of run %" PRId64 "; have %.3000s", type, run, all);
    return NULL;
}

static inline void await_received(struct world *world, int64_t id)
{
    for (;;) {
        json_t *event = await(world, "received", -1);
        bool found = json_integer_value(json_object_get(event, "message")) == id;
        json_decref(event);
        if (found)
            return;
    }
}

static inline void agent_start(struct world *world)
{
    char program[600], log[200], token[200];
    const char *bin = getenv("MOTLEY_BIN");
    snprintf(program, sizeof(program), "%s/motley-agent", bin ? bin : "build/bin");
    snprintf(log, sizeof(log), "%s/agent.log", world->dir.path);
    snprintf(token, sizeof(token), "%s/join-token", world->dir.path);
    struct err err;
    assert_int_equal(file_write_atomic(token, world->token, strlen(world->token), 0600, &err), 0);
    const char *join = world->token[0] != '\0' ? "--join-file" : NULL;
    const char *worker = world->worker ? world->worker : self;
    const char *argv[] = {program, "--home", world->home, "--config", world->config,  "--worker",
                          worker,  join,     token,       "--api",    world->api.url, NULL};
    if (world->without_api)
        argv[7] = NULL;
    world->agent = test_spawn(argv, log, NULL);
}

/* Waits for a hello by which device left/cpu0 lacks nothing (NULL), or something that contains `part`. */
static inline void await_lacking(struct world *world, const char *part)
{
    for (bool found = false; !found;) {
        json_t *hello = await(world, "node_hello", -1);
        const char *why = json_string_value(json_object_get(json_object_get(hello, "lacking"), "left/cpu0"));
        found = !part ? json_object_size(json_object_get(hello, "lacking")) == 0 : why && strstr(why, part);
        json_decref(hello);
    }
}

/* Waits for the agent's end and returns its exit status; -1: a signal ended it. */
static inline int agent_wait(struct world *world)
{
    int status = 0;
    uint64_t deadline_ns = clock_mono_ns() + 15000000000u;
    while (waitpid(world->agent, &status, WNOHANG) != world->agent) {
        assert_true(clock_left_ms(deadline_ns, 1) > 0);
        poll(NULL, 0, 2);
    }
    world->agent = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Ends the agent. SIGTERM must end it in an orderly way (under sanitizers without a finding); SIGKILL just
 * ends it. */
static inline void agent_kill(struct world *world, int number)
{
    assert_true(world->agent > 0); /* 0 would be this whole process group */
    assert_int_equal(kill(world->agent, number), 0);
    const int status = agent_wait(world);
    assert_true(number == SIGKILL || status == 0);
}

/* Writes the agent's configuration, with this line in it. */
static inline void world_configure(struct world *world, const char *line)
{
    char text[300];
    struct err err;
    int size = snprintf(text, sizeof(text),
                        "name: %s\n%s\ndevices: [{kind: cpu, threads: 1, memory: 64MiB, isa: sse42},"
                        " {kind: cpu, threads: 1, memory: 64MiB}]\n",
                        world->name, line);
    assert_int_equal(file_write_atomic(world->config, text, (size_t)size, 0600, &err), 0);
}

static inline void *world_make(const char *name)
{
    struct world *world = calloc(1, sizeof(*world));
    struct err err;
    uint8_t fingerprint[TLS_FINGERPRINT_SIZE];
    test_dir_make(&world->dir);
    test_redis_start(&world->redis, world->dir.path);
    test_cluster_make(&world->cluster, world->dir.path, "ours");
    world->api.cluster = &world->cluster;
    world->api.redis = world->redis.address;
    api_start(&world->api);
    snprintf(world->home, sizeof(world->home), "%s/home", world->dir.path);
    snprintf(world->config, sizeof(world->config), "%s/agent.yaml", world->dir.path);
    snprintf(world->name, sizeof(world->name), "%s", name);
    world_configure(world, "grace: 1s");
    assert_int_equal(tls_fingerprint(buf_str(&world->cluster.ca_cert), fingerprint, &err), 0);
    assert_int_equal(tls_join_token_format("secret", fingerprint, world->token, &err), 0);
    world->events = json_array();
    world->ack = true;
    world->seal = seal_made();
    world_connect(world);
    return world;
}

static inline int world_up(void **state)
{
    struct world *world = world_make("left");
    *state = world;
    agent_start(world);
    await_lacking(world, NULL);
    return 0;
}

/* Counts the processes whose command line names `home`, and prints each: none is to be left by what calls it.
 */
static inline int processes_of(const char *home)
{
    char path[300];
    int count = 0;
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    while ((entry = readdir(folder))) {
        struct buf text;
        struct err err;
        buf_init(&text, 65536);
        snprintf(path, sizeof(path), "/proc/%.32s/cmdline", entry->d_name);
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
            file_read_all(path, 65535, &text, &err) == 0) {
            for (size_t i = 0; i < text.size; i++)
                text.data[i] = text.data[i] == '\0' ? ' ' : text.data[i];
            if (strstr(buf_str(&text), home)) {
                print_message("still there: %s %s\n", path, buf_str(&text));
                count++;
            }
        }
        buf_fini(&text);
    }
    closedir(folder);
    return count;
}

static inline int world_down(void **state)
{
    struct world *world = *state;
    if (world->agent > 0)
        agent_kill(world, SIGTERM);
    int left = processes_of(world->home);
    world->api.stopping = true;
    pthread_join(world->api.thread, NULL);
    close(world->api.listener);
    redisFree(world->client);
    seal_destroy(world->seal);
    test_redis_kill(&world->redis);
    test_cluster_fini(&world->cluster);
    json_decref(world->events);
    test_dir_remove(&world->dir);
    free(world);
    return left;
}

static inline json_t *assign(int64_t run, int64_t epoch, const char *device, const char *what)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:i, s:s, s:{s:s}}", "type", "assign", "assignment", run * 10,
                     "run", run, "epoch", epoch, "rank", 0, "device", device, "spec", "do", what);
}

static inline json_t *of_run(const char *type, int64_t run, int64_t epoch)
{
    return json_pack("{s:s, s:I, s:I}", "type", type, "run", run, "epoch", epoch);
}

/* Checks that all events of a run up to its final one are numbered 1, 2, 3 … apart from repetitions. */
static inline void await_whole_run(struct world *world, int64_t run, const char *last, int64_t steps)
{
    int64_t next = 1, next_step = 0;
    for (;;) {
        json_t *event = NULL;
        uint64_t deadline_ns = clock_mono_ns() + 15000000000u;
        while (!event) {
            assert_true(clock_left_ms(deadline_ns, 1) > 0);
            for (size_t i = 0; i < json_array_size(world->events) && !event; i++) {
                json_t *each = json_array_get(world->events, i);
                if (json_integer_value(json_object_get(each, "run")) == run && json_object_get(each, "run")) {
                    event = json_incref(each);
                    json_array_remove(world->events, i);
                }
            }
            if (!event)
                events_take(world, 500);
        }
        int64_t seq = json_integer_value(json_object_get(event, "seq"));
        bool fresh = seq == next;
        assert_true(seq <= next); /* there is never a gap */
        next += fresh;
        if (fresh && event_is(event, "step", run)) {
            assert_int_equal(json_integer_value(json_object_get(event, "step")), next_step);
            next_step++;
        }
        bool end = fresh && event_is(event, last, run);
        json_decref(event);
        if (end) {
            assert_int_equal(next_step, steps);
            return;
        }
    }
}

/* Call it first in main: runs this program as a worker, or stores its own path. */
static inline void world_begin(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--socket") == 0)
            _exit(fake_main(argv[i + 1])); /* _exit skips the leak check, which would change the status */
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[length > 0 ? length : 0] = '\0';
}

#endif
