/* The agent daemon as a process, against a real Redis, with the test's own program as its worker (when run
 * with
 * --socket) and as the api that it joins. The test plays the scheduler. */
#pragma once

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
#include <sys/resource.h>
#include <sys/socket.h>

#include "agent/fake_worker.h"
#include "common/digest.h"
#include "common/frame.h"
#include "common/json.h"
#include "support/cluster.h"
#include "support/services.h"

/* ================= the api ================= */

struct api {
    struct test_cluster *cluster;
    const char *redis;
    int listener;
    char url[64], node[72];
    atomic_int enrolments, renewals;
    atomic_uint lifetime_s;                /* of the certificates it gives */
    atomic_bool forgot;                    /* it knows no node any more */
    uint8_t keys[2][TLS_FINGERPRINT_SIZE]; /* of the first two enrolments */
    pthread_t thread;
    atomic_bool stopping;
};

static inline void api_answer(struct api *api, int fd)
{
    struct err err;
    struct buf text, cert;
    buf_init(&text, 1 << 20);
    buf_init(&cert, 65536);
    char *body = NULL;
    size_t want = 0;
    while (body == NULL || text.size < want) {
        assert_int_equal(buf_reserve(&text, 65536, &err), 0);
        ssize_t got = recv(fd, text.data + text.size, 65536, 0);
        if (got <= 0) {
            goto out;
        }
        text.size += (size_t)got;
        text.data[text.size] = '\0';
        body = strstr((char *)text.data, "\r\n\r\n");
        char *length = strstr((char *)text.data, "Content-Length: ");
        if (body != NULL && length != NULL) {
            want = (size_t)(body + 4 - (char *)text.data) + strtoul(length + 16, NULL, 10);
        }
    }
    json_t *asked = json_parse_limited(body + 4, want - (size_t)(body + 4 - (char *)text.data), 8, &err);
    char identity[TLS_IDENTITY_SIZE], ignored[TLS_IDENTITY_SIZE];
    const char *node = json_string_value(json_object_get(asked, "node"));
    bool renews = node == NULL;
    if (renews && api->forgot) {
        dprintf(fd, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
        json_decref(asked);
        goto out;
    }
    tls_agent_identity(renews ? api->node : node, 1, identity);
    if (!renews) {
        snprintf(api->node, sizeof(api->node), "%s", node);
        tls_request_read(json_string_value(json_object_get(asked, "csr")), ignored,
                         api->keys[api->enrolments == 0 ? 0 : 1], &err);
    }
    if (tls_issue(buf_str(&api->cluster->ca_cert), buf_str(&api->cluster->ca_key),
                  json_string_value(json_object_get(asked, "csr")), identity, NULL, 0, api->lifetime_s, &cert,
                  &err) < 0) {
        fprintf(stderr, "api: %s\n", err.text);
        exit(1);
    }
    json_t *answer =
        json_pack("{s:s, s:s, s:{s:s}, s:s}", "certificate", buf_str(&cert), "ca",
                  buf_str(&api->cluster->ca_cert), "redis", "address", api->redis, "token", "bearer-1");
    char *dumped = json_dumps(answer, JSON_COMPACT);
    dprintf(fd, "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
            strlen(dumped), dumped);
    *(renews ? &api->renewals : &api->enrolments) += 1;
    free(dumped);
    json_decref(answer);
    json_decref(asked);
out:
    buf_fini(&text);
    buf_fini(&cert);
}

static inline void *api_main(void *arg)
{
    struct api *api = arg;
    while (!api->stopping) {
        struct pollfd entry = {.fd = api->listener, .events = POLLIN};
        if (poll(&entry, 1, 50) > 0) {
            int fd = accept(api->listener, NULL, NULL);
            api_answer(api, fd);
            close(fd);
        }
    }
    return NULL;
}

static inline void api_start(struct api *api)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(where);
    api->lifetime_s = 600;
    api->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(api->listener, (struct sockaddr *)&where, sizeof(where)), 0);
    assert_int_equal(listen(api->listener, 8), 0);
    assert_int_equal(getsockname(api->listener, (struct sockaddr *)&where, &size), 0);
    snprintf(api->url, sizeof(api->url), "http://127.0.0.1:%d", ntohs(where.sin_port));
    assert_int_equal(pthread_create(&api->thread, NULL, api_main, api), 0);
}

/* ================= the scheduler ================= */

struct world {
    struct test_dir dir;
    struct test_redis redis;
    struct test_cluster cluster;
    struct api api;
    char home[160];
    char config[160];
    char token[TLS_JOIN_TOKEN_SIZE];
    pid_t agent;
    redisContext *client;
    char after[64];
    json_t *events; /* taken from Redis, not yet asked for */
    int64_t message;
    bool ack; /* acknowledge numbered events as they come */
};

static char self[512]; /* this program */

static inline void world_connect(struct world *world)
{
    if (world->client != NULL) {
        redisFree(world->client);
    }
    world->client = redisConnectUnix(world->redis.address + 5);
    assert_true(world->client != NULL && world->client->err == 0);
    snprintf(world->after, sizeof(world->after), "0");
}

static inline void say_quietly(struct world *world, json_t *message)
{
    struct buf bytes;
    struct err err;
    buf_init(&bytes, 1 << 20);
    assert_int_equal(frame_encode(message, &bytes, &err), 0);
    redisReply *reply = redisCommand(world->client, "XADD motley:agent:left * m %b", bytes.data, bytes.size);
    assert_true(reply != NULL && reply->type != REDIS_REPLY_ERROR);
    freeReplyObject(reply);
    buf_fini(&bytes);
    json_decref(message);
}

/* Takes the message, gives it an id, returns the id. */
static inline int64_t say(struct world *world, json_t *message)
{
    json_object_set_new(message, "id", json_integer(++world->message));
    say_quietly(world, message);
    return world->message;
}

static inline void event_ack(struct world *world, const json_t *event)
{
    if (json_integer_value(json_object_get(event, "seq")) == 0) {
        return;
    }
    json_t *ack = json_pack("{s:s}", "type", "ack");
    static const char *const keys[] = {"run", "epoch", "rank", "boot", "seq"};
    for (int i = 0; i < 5; i++) {
        json_object_set(ack, keys[i], json_object_get(event, keys[i]));
    }
    say_quietly(world, ack);
}

static inline bool event_is(const json_t *event, const char *type, int64_t run)
{
    return strcmp(json_string_value(json_object_get(event, "type")), type) == 0 &&
           (run < 0 || json_integer_value(json_object_get(event, "run")) == run);
}

/* Take what Redis has (waiting up to block_ms for the first). */
static inline void events_take(struct world *world, int block_ms)
{
    redisReply *reply = redisCommand(world->client, "XREAD COUNT 1000 BLOCK %d STREAMS motley:events %s",
                                     block_ms, world->after);
    assert_true(reply != NULL && reply->type != REDIS_REPLY_ERROR);
    if (reply->type == REDIS_REPLY_ARRAY) {
        redisReply *entries = reply->element[0]->element[1];
        for (size_t i = 0; i < entries->elements; i++) {
            struct err err;
            redisReply *payload = entries->element[i]->element[1]->element[1];
            snprintf(world->after, sizeof(world->after), "%s", entries->element[i]->element[0]->str);
            json_t *event = frame_decode(payload->str, (size_t)payload->len, &frame_limits_default, &err);
            assert_non_null(event);
            if (world->ack) {
                event_ack(world, event);
            }
            json_array_append_new(world->events, event);
        }
    }
    freeReplyObject(reply);
}

/* The next event of 'type' (of 'run' unless < 0), taking it and all before it of other kinds stay. New. */
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
        if (found) {
            return;
        }
    }
}

static inline void agent_start(struct world *world)
{
    char program[600], log[200];
    const char *bin = getenv("MOTLEY_BIN");
    snprintf(program, sizeof(program), "%s/motley-agent", bin != NULL ? bin : "build/bin");
    snprintf(log, sizeof(log), "%s/agent.log", world->dir.path);
    const char *join = world->token[0] != '\0' ? "--join" : NULL;
    const char *argv[] = {program,       "--api",    world->api.url, "--home", world->home,  "--config",
                          world->config, "--worker", self,           join,     world->token, NULL};
    world->agent = test_spawn(argv, log, NULL);
}

/* SIGTERM must end it in order (and, under sanitizers, without a finding); SIGKILL just ends it. */
static inline void agent_kill(struct world *world, int number)
{
    int status = 0;
    uint64_t deadline_ns = clock_mono_ns() + 15000000000u;
    assert_int_equal(kill(world->agent, number), 0);
    while (waitpid(world->agent, &status, WNOHANG) != world->agent) {
        assert_true(clock_left_ms(deadline_ns, 1) > 0);
        poll(NULL, 0, 2);
    }
    assert_true(number == SIGKILL || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    world->agent = 0;
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
    char text[200];
    int size = snprintf(text, sizeof(text),
                        "name: %s\ndevices: [{kind: cpu, threads: 1, memory: 64MiB, isa: sse42},"
                        " {kind: cpu, threads: 1, memory: 64MiB}]\n",
                        name);
    assert_int_equal(file_write_atomic(world->config, text, (size_t)size, 0600, &err), 0);
    assert_int_equal(tls_fingerprint(buf_str(&world->cluster.ca_cert), fingerprint, &err), 0);
    assert_int_equal(tls_join_token_format("secret", fingerprint, world->token, &err), 0);
    world->events = json_array();
    world->ack = true;
    world_connect(world);
    return world;
}

static inline int world_up(void **state)
{
    struct world *world = world_make("left");
    *state = world;
    agent_start(world);
    json_decref(await(world, "node_hello", -1));
    return 0;
}

static inline int processes_of(const char *home)
{
    char path[300];
    int count = 0;
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        struct buf text;
        struct err err;
        buf_init(&text, 65536);
        snprintf(path, sizeof(path), "/proc/%.32s/cmdline", entry->d_name);
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
            file_read_all(path, 65535, &text, &err) == 0) {
            for (size_t i = 0; i < text.size; i++) {
                text.data[i] = text.data[i] == '\0' ? ' ' : text.data[i];
            }
            count += strstr(buf_str(&text), home) != NULL;
        }
        buf_fini(&text);
    }
    closedir(folder);
    return count;
}

static inline int world_down(void **state)
{
    struct world *world = *state;
    if (world->agent > 0) {
        agent_kill(world, SIGTERM);
    }
    int left = processes_of(world->home);
    world->api.stopping = true;
    pthread_join(world->api.thread, NULL);
    close(world->api.listener);
    redisFree(world->client);
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

/* To be called first by main: runs as the agent's worker when asked to, and finds this program. */
static inline void daemon_begin(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], "--socket") == 0) {
            _exit(fake_main(argv[i + 1])); /* without a leak check, which would change the status */
        }
    }
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[length > 0 ? length : 0] = '\0';
}
