/* Tests what the agent daemon does for its scheduler and its workers. */
#include "agent/child.h"
#include "agent/daemon_world.h"
#include "common/release.h"

static void it_joins_once_and_tells_what_it_has(void **state)
{
    struct world *world = *state;
    char path[256];
    struct stat status;
    snprintf(path, sizeof(path), "%s/agent.json", world->home);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    snprintf(path, sizeof(path), "%s/tls/node.key", world->home);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    json_decref(await(world, "heartbeat", -1));
    agent_kill(world, SIGTERM);
    world->without_api = true; /* from now on: the home knows it */
    agent_start(world);
    json_t *hello = await(world, "node_hello", -1);
    assert_int_equal(world->api.enrolments, 1);
    assert_string_equal(json_string_value(json_object_get(hello, "node")), "left");
    assert_string_equal(json_string_value(json_object_get(hello, "release")), motley_version);
    assert_int_equal(json_array_size(json_object_get(hello, "devices")), 2);
    const json_t *device = json_array_get(json_object_get(hello, "devices"), 0);
    assert_string_equal(json_string_value(json_object_get(device, "name")), "left/cpu0");
    assert_string_equal(json_string_value(json_object_get(device, "isa")), "sse42");
    assert_int_equal(json_integer_value(json_object_get(device, "memory_limit_bytes")), 64 << 20);
    assert_true(json_integer_value(json_object_get(hello, "cores")) > 0);
    assert_true(json_is_array(json_object_get(hello, "gpus")));
    assert_non_null(strstr(json_string_value(json_object_get(hello, "address")), "127.0.0.1:"));
    json_decref(hello);
    say_quietly(world, json_pack("{s:s}", "type", "hello"));
    json_decref(await(world, "node_hello", -1));
}

static bool folder_gone(void *arg)
{
    return access(arg, F_OK) != 0;
}

static void an_assignment_runs_and_leaves_nothing(void **state)
{
    struct world *world = *state;
    uint64_t start_ns = clock_mono_ns();
    int64_t id = say(world, assign(1, 1, "left/cpu0", "steps:300"));
    await_received(world, id);
    json_decref(await(world, "worker_ready", 1));
    print_message("assignment to worker_ready: %.1f ms\n", (double)(clock_mono_ns() - start_ns) / 1e6);
    json_array_insert_new(world->events, 0,
                          json_pack("{s:s, s:i, s:i}", "type", "worker_ready", "run", 1, "seq", 1));
    await_whole_run(world, 1, "done", 300);
    char path[256], journal[256];
    snprintf(path, sizeof(path), "%s/run/1-0", world->home);
    snprintf(journal, sizeof(journal), "%s/journal/run-1-1-0.events", world->home);
    assert_true(test_wait_until(folder_gone, path, 5000));
    assert_true(test_wait_until(folder_gone, journal, 5000));
}

static void a_worker_that_writes_and_ends_at_once_loses_no_event(void **state)
{
    struct world *world = *state;
    say(world, assign(2, 2, "left/cpu0", "quick-exit"));
    await_whole_run(world, 2, "done", 500);
}

static void an_assignment_is_executed_once_an_epoch(void **state)
{
    struct world *world = *state;
    json_t *message = assign(3, 3, "left/cpu0", "steps:5");
    int64_t id = say(world, json_deep_copy(message));
    await_whole_run(world, 3, "done", 5);
    json_object_set_new(message, "id", json_integer(id));
    say_quietly(world, json_deep_copy(message)); /* the same message again */
    await_received(world, id);
    id = say(world, json_deep_copy(message)); /* the same assignment in another message */
    await_received(world, id);
    id = say(world, assign(4, 2, "left/cpu0", "steps:5")); /* an older epoch */
    await_received(world, id);
    /* No event of runs 3 and 4 may come before those of run 5, except a `failed` event of run 3, whose number
     * the scheduler would ignore. */
    say(world, assign(5, 5, "left/cpu0", "steps:1"));
    await_whole_run(world, 5, "done", 1);
    for (size_t i = 0; i < json_array_size(world->events); i++) {
        const json_t *event = json_array_get(world->events, i), *run = json_object_get(event, "run");
        assert_false(run && (json_integer_value(run) == 3 || json_integer_value(run) == 4) &&
                     !event_is(event, "failed", 3));
    }
    json_decref(message);
}

static void a_killed_worker_is_reported_at_once_with_its_last_words(void **state)
{
    struct world *world = *state;
    say(world, assign(6, 6, "left/cpu1", "crash"));
    uint64_t start_ns = clock_mono_ns();
    json_t *failed = await(world, "failed", 6);
    assert_true(clock_mono_ns() - start_ns < 2000000000u);
    const char *text = json_string_value(json_object_get(failed, "text"));
    assert_string_equal(json_string_value(json_object_get(failed, "code")), "peer");
    assert_false(json_is_true(json_object_get(failed, "own_fault")));
    assert_non_null(strstr(text, "killed by signal 9"));
    assert_non_null(strstr(text, "the tensor was on fire"));
    assert_int_equal(json_integer_value(json_object_get(failed, "seq")), 2);
    json_decref(failed);
}

static void a_worker_that_sends_a_frame_beyond_its_bound_is_ended(void **state)
{
    struct world *world = *state;
    say(world, assign(20, 7, "left/cpu1", "liar"));
    json_t *failed = await(world, "failed", 20);
    const char *text = json_string_value(json_object_get(failed, "text"));
    assert_string_equal(json_string_value(json_object_get(failed, "code")), "peer");
    assert_non_null(strstr(text, "a frame of 4294967295 bytes, the limit is"));
    json_decref(failed);
}

static void an_unknown_device_fails_the_rank(void **state)
{
    struct world *world = *state;
    say(world, assign(7, 7, "left/cpu9", "steps:1"));
    json_t *failed = await(world, "failed", 7);
    assert_string_equal(json_string_value(json_object_get(failed, "code")), "not-found");
    json_decref(failed);
}

static void await_one_worker(const char *folder)
{
    const uint64_t deadline_ns = clock_mono_ns() + 15000000000u;
    for (size_t count = 0; count != 1;) {
        json_t *limits = child_limits(folder);
        count = json_object_size(limits);
        json_decref(limits);
        assert_true(clock_left_ms(deadline_ns, 1) > 0);
        poll(NULL, 0, 5);
    }
}

static void living_workers_are_adopted_by_the_next_agent(void **state)
{
    struct world *world = *state;
    say(world, assign(8, 8, "left/cpu0", "wait"));
    json_decref(await(world, "worker_ready", 8));
    say(world, of_run("peers", 8, 8));
    json_decref(await(world, "started", 8));
    char folder[200]; /* the next agent finds the device's limit beside its worker */
    snprintf(folder, sizeof(folder), "%s/run", world->home);
    await_one_worker(folder); /* the other device may be under trial after what its last worker did */
    agent_kill(world, SIGKILL);
    events_forget(world);
    json_t *limits = child_limits(folder);
    assert_int_equal(json_object_size(limits), 1);
    assert_int_equal(json_integer_value(json_object_get(limits, "left/cpu0")), 64 << 20);
    json_decref(limits);
    agent_start(world);
    json_t *hello = await(world, "node_hello", -1);
    const json_t *workers = json_object_get(hello, "workers");
    assert_int_equal(json_array_size(workers), 1);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(workers, 0), "run")), 8);
    json_decref(hello);
    int64_t id = say(world, of_run("stop", 8, 8));
    await_received(world, id);
    /* The next agent sent `peers` to the worker again: the worker did ten more steps, or none if the first
     * `peers` had arrived. */
    json_decref(await(world, "stopped", 8));
}

static void a_worker_that_died_while_the_agent_was_away_or_was_never_started_is_reported(void **state)
{
    struct world *world = *state;
    say(world, assign(9, 9, "left/cpu1", "wait"));
    json_decref(await(world, "worker_ready", 9));
    char path[256];
    struct buf text;
    struct err err;
    buf_init(&text, 4096);
    snprintf(path, sizeof(path), "%s/run/9-0/state.json", world->home);
    assert_int_equal(file_read_all(path, 4095, &text, &err), 0);
    json_t *child = json_parse_limited(buf_str(&text), text.size, 4, &err);
    agent_kill(world, SIGKILL);
    pid_t pid = (pid_t)json_integer_value(json_object_get(child, "pid"));
    kill(pid, SIGKILL);
    for (int turn = 0; turn < 500 && kill(pid, 0) == 0;
         turn++) /* the process ends some time after the signal */
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    /* The history is changed as if the agent had also recorded run 90's epoch and ended before it started
     * that worker. */
    snprintf(path, sizeof(path), "%s/journal/past.json", world->home);
    buf_clear(&text);
    assert_int_equal(file_read_all(path, 4095, &text, &err), 0);
    json_t *history = json_parse_limited(buf_str(&text), text.size, 6, &err);
    json_object_set_new(json_object_get(history, "epochs"), "left/cpu1", json_integer(10));
    buf_clear(&text);
    assert_int_equal(json_print(history, true, &text, &err), 0);
    assert_int_equal(file_write_atomic(path, text.data, text.size, 0600, &err), 0);
    json_decref(history);
    say(world, assign(90, 10, "left/cpu1", "wait"));
    agent_start(world);
    json_t *failed = await(world, "failed", 9);
    assert_non_null(strstr(json_string_value(json_object_get(failed, "text")), "while the agent was away"));
    assert_int_equal(json_integer_value(json_object_get(failed, "seq")), 2);
    json_decref(failed);
    json_decref(await(world, "failed", 90));
    json_decref(child);
    buf_fini(&text);
}

static void a_wiped_redis_loses_nothing(void **state)
{
    struct world *world = *state;
    world->ack = false;
    say(world, assign(10, 10, "left/cpu0", "wait"));
    json_decref(await(world, "worker_ready", 10));
    test_redis_kill(&world->redis);
    json_array_clear(world->events); /* of the Redis that is gone; the next one has nothing to forget */
    world->ack = true;
    test_redis_start(&world->redis, world->dir.path);
    world_connect(world);
    json_decref(await(world, "node_hello", -1));
    say(world, of_run("peers", 10, 10));
    say(world, of_run("stop", 10, 10));
    await_whole_run(world, 10, "stopped", 10); /* event 1 comes again, too, because Redis lost it */
}

static void unacknowledged_events_come_again_after_an_agents_restart(void **state)
{
    struct world *world = *state;
    world->ack = false;
    say(world, assign(11, 11, "left/cpu0", "steps:50"));
    json_decref(await(world, "done", 11));
    agent_kill(world, SIGKILL);
    events_forget(world);
    world->ack = true;
    agent_start(world);
    await_whole_run(world, 11, "done", 50);
}

static json_t *forged(int64_t id)
{
    json_t *message = assign(660, 660, "left/cpu0", "steps:3");
    json_object_set_new(message, "id", json_integer(id));
    return message;
}

static void messages_without_the_schedulers_seal_do_nothing(void **state)
{
    struct world *world = *state;
    uint8_t key[SEAL_KEY_SIZE];
    struct err err;
    assert_int_equal(digest_unhex(seal_hex, key, sizeof(key)), 0);
    struct seal *right = seal_create(key, "right", &err);
    key[0] ^= 1;
    struct seal *other = seal_create(key, "left", &err);
    say_sealed(world, forged(6601), NULL, SEAL_MESSAGES);
    say_sealed(world, forged(6602), other, SEAL_MESSAGES);
    say_sealed(world, forged(6603), right, SEAL_MESSAGES);     /* sealed for another node */
    say_sealed(world, forged(6604), world->seal, SEAL_EVENTS); /* a node's own event returned to it */
    redisReply *reply = redisCommand(world->client, "XADD motley:agent:left * m %s", "no seal at all");
    freeReplyObject(reply);
    int64_t id = say(world, assign(914, 914, "left/cpu1", "steps:3"));
    for (bool found = false; !found;) { /* earlier messages in the inbox have been read by then */
        json_t *event = await(world, "received", -1);
        int64_t message = json_integer_value(json_object_get(event, "message"));
        assert_false(message >= 6601 && message <= 6604);
        found = message == id;
        json_decref(event);
    }
    await_whole_run(world, 914, "done", 3);
    char path[256];
    snprintf(path, sizeof(path), "%s/journal/run-660-660-0.events", world->home);
    assert_int_not_equal(access(path, F_OK), 0);
    seal_destroy(right);
    seal_destroy(other);
}

static size_t of_run_waiting(struct world *world, int64_t run)
{
    size_t i, count = 0;
    json_t *event;
    json_array_foreach (world->events, i, event) {
        const json_t *of = json_object_get(event, "run");
        count += of && json_integer_value(of) == run;
    }
    return count;
}

/* Perhaps no scheduler is running, so the agent must not fill its Redis stream with repeated events. */
static void while_nobody_acknowledges_one_event_alone_comes_again(void **state)
{
    struct world *world = *state;
    world->ack = false;
    say(world, assign(915, 915, "left/cpu1", "steps:500"));
    json_decref(await(world, "done", 915));
    events_forget(world);
    uint64_t deadline_ns = clock_mono_ns() + 10000000000u;
    while (of_run_waiting(world, 915) == 0) {
        assert_true(clock_left_ms(deadline_ns, 1) > 0);
        events_take(world, 500);
    }
    json_decref(await(world, "heartbeat", -1)); /* events sent before it have arrived, too */
    assert_int_equal(of_run_waiting(world, 915), 1);
    world->ack = true;
    await_whole_run(world, 915, "done", 500); /* after one answer all events are sent */
}

static void a_newer_epoch_replaces_the_worker_of_a_device(void **state)
{
    struct world *world = *state;
    say(world, assign(12, 12, "left/cpu0", "stubborn"));
    json_decref(await(world, "worker_ready", 12));
    say(world, assign(13, 13, "left/cpu0", "steps:3"));
    await_whole_run(world, 13, "done", 3);
    json_t *failed = await(world, "failed", 12);
    assert_string_equal(json_string_value(json_object_get(failed, "code")), "cancelled");
    json_decref(failed);
}

static void kill_ends_a_worker_that_does_not_listen(void **state)
{
    struct world *world = *state;
    say(world, assign(14, 14, "left/cpu0", "stubborn"));
    json_decref(await(world, "worker_ready", 14));
    json_t *stop = of_run("stop", 14, 14);
    json_object_set_new(stop, "kill", json_true());
    say(world, stop);
    json_t *failed = await(world, "failed", 14);
    assert_string_equal(json_string_value(json_object_get(failed, "code")), "cancelled");
    json_decref(failed);
}

static void profiles_are_measured_by_a_worker_of_the_device(void **state)
{
    struct world *world = *state;
    json_t *ask = json_pack("{s:s, s:i, s:s, s:s, s:i}", "type", "profile", "request", 77, "device",
                            "left/cpu0", "method", "lora", "start_in_ms", 60000);
    const json_int_t asked_ns = (json_int_t)clock_mono_ns();
    say(world, json_deep_copy(ask));
    json_t *profile = await(world, "profile", -1);
    assert_int_equal(json_integer_value(json_object_get(profile, "request")), 77);
    assert_non_null(json_object_get(profile, "boot"));
    const json_t *local = json_object_get(json_object_get(profile, "document"), "local");
    assert_string_equal(json_string_value(json_object_get(local, "identity")), "agent:left:1");
    assert_string_equal(json_string_value(json_object_get(local, "api")), world->api.url);
    const json_int_t start_ns = json_integer_value(json_object_get(local, "start_ns"));
    assert_true(start_ns - asked_ns > 60000000000 && start_ns - (json_int_t)clock_mono_ns() < 60000000000);
    assert_string_equal(json_string_value(json_object_get(json_object_get(local, "device"), "isa")), "sse42");
    json_decref(profile);
    json_object_set_new(ask, "method", json_string("crash"));
    json_object_set_new(ask, "request", json_integer(78));
    json_object_set_new(ask, "device", json_string("left/cpu1"));
    say(world, ask);
    json_t *failed = await(world, "failed", -1);
    assert_int_equal(json_integer_value(json_object_get(failed, "request")), 78);
    assert_non_null(strstr(json_string_value(json_object_get(failed, "text")), "status 9"));
    json_decref(failed);
}

/* A node that is told of the cluster measures what its CPU takes for a byte on the wire, which its profiles
 * say. */
static void profiles_say_what_a_byte_on_the_wire_takes(void **state)
{
    struct world *world = *state;
    const uint64_t until_ns = clock_mono_ns() + 10000000000u;
    double seconds = 0;
    say_quietly(world, json_pack("{s:s, s:{s:i}}", "type", "nodes", "nodes", "left", 1));
    for (int request = 500; seconds == 0 && clock_mono_ns() < until_ns; request++) {
        events_forget(world); /* until the next heartbeat it measures, and an earlier worker ends */
        json_decref(await(world, "heartbeat", -1));
        json_t *ask = json_pack("{s:s, s:i, s:s, s:s}", "type", "profile", "request", request, "device",
                                "left/cpu0", "method", "lora");
        say(world, ask);
        json_t *profile = await(world, "profile", -1);
        const json_t *document = json_object_get(profile, "document");
        seconds = json_number_value(json_object_get(document, "wire_s_per_byte"));
        json_decref(profile);
    }
    assert_true(seconds > 1e-11 && seconds < 1e-6); /* no AES is faster, and none of ours so slow */
}

static void links_are_measured_through_tls(void **state)
{
    struct world *world = *state;
    say_quietly(world, json_pack("{s:s}", "type", "hello"));
    json_t *hello = await(world, "node_hello", -1);
    json_t *ask = json_pack("{s:s, s:i, s:[{s:s, s:O}, {s:s, s:s}]}", "type", "links", "request", 5, "to",
                            "node", "left", "address", json_object_get(hello, "address"), "node", "right",
                            "address", "127.0.0.1:1");
    say_quietly(world, json_pack("{s:s, s:{s:i, s:i}}", "type", "nodes", "nodes", "left", 1, "right", 1));
    /* Connections that say nothing, as many as there are threads, do not keep nodes from being measured. */
    int idle[4];
    const char *port = strrchr(json_string_value(json_object_get(hello, "address")), ':') + 1;
    struct sockaddr_in where = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons((uint16_t)strtol(port, NULL, 10))};
    for (int i = 0; i < 4; i++) {
        idle[i] = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(idle[i], (struct sockaddr *)&where, sizeof(where)), 0);
    }
    say(world, ask);
    json_t *link = await(world, "link", -1);
    for (int i = 0; i < 4; i++)
        close(idle[i]);
    const json_t *document = json_object_get(link, "document");
    assert_string_equal(json_string_value(json_object_get(document, "from")), "left");
    assert_true(json_real_value(json_object_get(document, "latency_s")) > 0);
    assert_true(json_real_value(json_object_get(document, "latency_s")) < 0.1);
    assert_true(json_real_value(json_object_get(document, "bytes_per_s")) > 1e6);
    assert_true(json_real_value(json_object_get(document, "duplex_bytes_per_s")) > 1e6);
    print_message("loopback link: %.1f us, %.0f MB/s\n",
                  json_real_value(json_object_get(document, "latency_s")) * 1e6,
                  json_real_value(json_object_get(document, "bytes_per_s")) / 1e6);
    json_t *failed = await(world, "failed", -1);
    assert_int_equal(json_integer_value(json_object_get(failed, "request")), 5);
    json_decref(failed);
    json_decref(link);
    json_decref(hello);
}

/* Nodes that nothing connects to, as behind a firewall that drops packets, are found out together, and do not
 * keep one that can be from being measured. */
static void nodes_that_do_not_answer_delay_no_others(void **state)
{
    enum { SILENT = 6 };
    struct world *world = *state;
    /* The backlog of this socket is full, so further connections to it get no answer. */
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(where);
    int full[4] = {socket(AF_INET, SOCK_STREAM, 0)};
    assert_int_equal(bind(full[0], (struct sockaddr *)&where, size), 0);
    assert_int_equal(listen(full[0], 0), 0);
    assert_int_equal(getsockname(full[0], (struct sockaddr *)&where, &size), 0);
    for (int i = 1; i < 4; i++) {
        full[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(full[i], (struct sockaddr *)&where, sizeof(where));
    }
    say_quietly(world, json_pack("{s:s}", "type", "hello"));
    json_t *hello = await(world, "node_hello", -1);
    char address[40];
    snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(where.sin_port));
    json_t *nodes = json_pack("{s:i, s:i}", "left", 1, "right", 1);
    say_quietly(world, json_pack("{s:s, s:O}", "type", "nodes", "nodes", nodes));
    const uint64_t begin_ns = clock_mono_ns();
    for (int i = 0; i <= SILENT; i++)
        say(world,
            json_pack("{s:s, s:i, s:[{s:s, s:o}]}", "type", "links", "request", 100 + i, "to", "node",
                      i < SILENT ? "right" : "left", "address",
                      i < SILENT ? json_string(address) : json_incref(json_object_get(hello, "address"))));
    json_decref(await(world, "link", -1));
    assert_true(clock_mono_ns() - begin_ns < 4000000000u);
    for (int i = 0; i < SILENT; i++) {
        json_t *failed = await(world, "failed", -1);
        assert_true(json_is_true(json_object_get(failed, "unreachable")));
        json_decref(failed);
    }
    assert_true(clock_mono_ns() - begin_ns < 12000000000u);
    for (int i = 0; i < 4; i++)
        close(full[i]);
    json_decref(nodes);
    json_decref(hello);
}

/* A node on which no worker can be started says what is lacking, and so does the rank that was sent there all
 * the same. Once it is mended, the node says so by itself. */
static void what_a_worker_lacks_is_told_and_heals(void **state)
{
    struct world *world = *state;
    char script[200], mended[200], text[700];
    struct err err;
    snprintf(script, sizeof(script), "%s/worker.sh", world->dir.path);
    snprintf(mended, sizeof(mended), "%s/mended", world->dir.path);
    int size =
        snprintf(text, sizeof(text),
                 "#!/bin/sh\n[ -e %s ] && exec %s \"$@\"\necho error while loading libopenblas.so.0 >&2\n"
                 "exit 127\n",
                 mended, self);
    assert_int_equal(file_write_atomic(script, text, (size_t)size, 0700, &err), 0);
    agent_kill(world, SIGTERM);
    events_forget(world);
    world->worker = script;
    agent_start(world);
    await_lacking(world, "libopenblas.so.0");
    say(world, assign(1000, 1000, "left/cpu0", "steps:3"));
    json_t *failed = await(world, "failed", 1000);
    assert_string_equal(json_string_value(json_object_get(failed, "code")), "node-fault");
    assert_false(json_is_true(json_object_get(failed, "own_fault")));
    assert_non_null(strstr(json_string_value(json_object_get(failed, "text")), "libopenblas.so.0"));
    json_decref(failed);
    assert_int_equal(file_write_atomic(mended, "", 0, 0600, &err), 0);
    await_lacking(world, NULL);
    say(world, assign(1001, 1001, "left/cpu0", "steps:3"));
    await_whole_run(world, 1001, "done", 3);
}

/* A measurement and a job of its device are read together while a trial is still being ended. */
static void a_measurement_that_a_job_replaces_is_answered(void **state)
{
    struct world *world = *state;
    char script[200], text[700];
    struct err err;
    snprintf(script, sizeof(script), "%s/slow.sh", world->dir.path);
    int size = snprintf(text, sizeof(text), "#!/bin/sh\n[ -e %s.go ] && exec %s \"$@\"\nexec sleep 60\n",
                        script, self);
    assert_int_equal(file_write_atomic(script, text, (size_t)size, 0700, &err), 0);
    agent_kill(world, SIGTERM);
    events_forget(world);
    world->worker = script;
    agent_start(world);
    await_lacking(world, ""); /* it is being tried */
    snprintf(text, sizeof(text), "%s.go", script);
    assert_int_equal(file_write_atomic(text, "", 0, 0600, &err), 0);
    freeReplyObject(redisCommand(world->client, "MULTI"));
    say(world, json_pack("{s:s, s:i, s:s, s:s, s:i}", "type", "profile", "request", 79, "device", "left/cpu0",
                         "method", "lora", "start_in_ms", 60000));
    say(world, assign(1002, 1002, "left/cpu0", "steps:3"));
    freeReplyObject(redisCommand(world->client, "EXEC"));
    json_t *failed = await(world, "failed", -1);
    while (json_integer_value(json_object_get(failed, "request")) != 79) { /* an earlier one comes again */
        json_decref(failed);
        failed = await(world, "failed", -1);
    }
    assert_string_equal(json_string_value(json_object_get(failed, "code")), "busy");
    json_decref(failed);
    await_whole_run(world, 1002, "done", 3);
}

static void sigterm_leaves_no_process(void **state)
{
    struct world *world = *state;
    say(world, assign(1018, 1018, "left/cpu0", "wait"));
    say(world, assign(1016, 1016, "left/cpu1", "stubborn"));
    json_decref(await(world, "worker_ready", 1018));
    json_decref(await(world, "worker_ready", 1016));
    agent_kill(world, SIGTERM);
    assert_int_equal(processes_of(world->home), 0);
}

/* An agent of a copied home began later: this one ends with its workers, for good, and not for an older one.
 */
static void another_agent_of_this_node_ends_it(void **state)
{
    struct world *world = *state;
    events_forget(world);
    world->worker = NULL;
    agent_start(world);
    json_t *hello = await(world, "node_hello", -1);
    say(world, assign(1020, 1020, "left/cpu0", "wait"));
    json_decref(await(world, "worker_ready", 1020));
    say_quietly(world, json_pack("{s:s, s:s}", "type", "replaced", "boot", "0"));
    say_quietly(world, json_pack("{s:s, s:O}", "type", "replaced", "boot", json_object_get(hello, "boot")));
    say_quietly(world, json_pack("{s:s}", "type", "hello"));
    json_decref(await(world, "node_hello", -1));
    say_quietly(world, json_pack("{s:s, s:s}", "type", "replaced", "boot", "f"));
    assert_int_equal(agent_wait(world), 4);
    assert_int_equal(processes_of(world->home), 0);
    json_decref(hello);
}

int main(int argc, char **argv)
{
    world_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_joins_once_and_tells_what_it_has),
        cmocka_unit_test(an_assignment_runs_and_leaves_nothing),
        cmocka_unit_test(a_worker_that_writes_and_ends_at_once_loses_no_event),
        cmocka_unit_test(an_assignment_is_executed_once_an_epoch),
        cmocka_unit_test(a_killed_worker_is_reported_at_once_with_its_last_words),
        cmocka_unit_test(a_worker_that_sends_a_frame_beyond_its_bound_is_ended),
        cmocka_unit_test(an_unknown_device_fails_the_rank),
        cmocka_unit_test(living_workers_are_adopted_by_the_next_agent),
        cmocka_unit_test(a_worker_that_died_while_the_agent_was_away_or_was_never_started_is_reported),
        cmocka_unit_test(a_wiped_redis_loses_nothing),
        cmocka_unit_test(unacknowledged_events_come_again_after_an_agents_restart),
        cmocka_unit_test(messages_without_the_schedulers_seal_do_nothing),
        cmocka_unit_test(while_nobody_acknowledges_one_event_alone_comes_again),
        cmocka_unit_test(a_newer_epoch_replaces_the_worker_of_a_device),
        cmocka_unit_test(kill_ends_a_worker_that_does_not_listen),
        cmocka_unit_test(profiles_are_measured_by_a_worker_of_the_device),
        cmocka_unit_test(profiles_say_what_a_byte_on_the_wire_takes),
        cmocka_unit_test(links_are_measured_through_tls),
        cmocka_unit_test(nodes_that_do_not_answer_delay_no_others),
        cmocka_unit_test(what_a_worker_lacks_is_told_and_heals),
        cmocka_unit_test(a_measurement_that_a_job_replaces_is_answered),
        cmocka_unit_test(sigterm_leaves_no_process),
        cmocka_unit_test(another_agent_of_this_node_ends_it),
    };
    return cmocka_run_group_tests(tests, world_up, world_down);
}
