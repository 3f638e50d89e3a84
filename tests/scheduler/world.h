/* A whole control plane for tests: private PostgreSQL and Redis, schedulers as processes of their own (this
 * program again, with --scheduler), and fake agents on the test's loop. */
#ifndef MOTLEY_TESTS_WORLD_H
#define MOTLEY_TESTS_WORLD_H

#include <signal.h>

#include "common/digest.h"
#include "scheduler/fake_agent.h"
#include "scheduler/leader/scheduler.h"
#include "store/enrol.h"
#include "store/store_fixture.h"
#include "support/must.h"

enum { WORLD_AGENTS = 2, WORLD_SCHEDULERS = 2 };

enum { WORLD_PATIENT_MS = 30000 };

struct world {
    struct fixture *fixture;
    struct test_redis redis;
    pid_t schedulers[WORLD_SCHEDULERS];
    struct fake_agent *agents[WORLD_AGENTS];
    char program[512];
    /* limits.lost_ms of the schedulers, 0: 2000; limits.unreachable_ms is 3/10 of it. Tests that lose no node
     * take WORLD_PATIENT_MS, as a busy machine may well keep their agents silent for 2 s. */
    unsigned lost_ms;
    unsigned look_ms;  /* limits.look_ms of the schedulers, 0: 50 */
    unsigned aside_ms; /* limits.aside_ms of the schedulers, 0: 30000 */
    bool unchecked;    /* the schedulers compare their queue with the database as rarely as by default */
    const char *more;  /* further members of the schedulers' configuration, or NULL */
};

static const char world_key[] = "00000000000000000000000000000000000000000000000000000000000000aa";

/* ---- the tests' placer: it plans on the devices that the specification names, or on the first ---- */

static bool world_named(const json_t *devices, const char *name)
{
    size_t i;
    json_t *item;
    json_array_foreach ((json_t *)devices, i, item) {
        if (strcmp(json_string_value(item), name) == 0)
            return true;
    }
    return false;
}

/* Seconds of computing per step that the tests' plans predict. */
#define WORLD_BUSY_S 0.01
/* The digest of the tests' plans and of their programs; nothing here computes or compares digests. */
#define WORLD_DIGEST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* Decides to move when a device was slow in two windows (throttled, or slower than planned by its measured
 * times) and more than 50 steps are left. */
static int world_weigh(const struct placer_request *request, struct placer_answer *answer)
{
    const struct placer_move *move = request->move;
    double slowest = 1;
    json_t *speeds = json_object();
    for (size_t i = 0; i < request->device_count; i++)
        slowest = request->devices[i].heat < slowest ? request->devices[i].heat : slowest;
    for (size_t k = 0; k < move->rank_count; k++) {
        const char *device = json_string_value(
            json_object_get(json_array_get(json_object_get(move->plan, "ranks"), k), "device"));
        if (move->compute_s[k] > 0) {
            const double speed = WORLD_BUSY_S / move->compute_s[k];
            slowest = speed < slowest ? speed : slowest;
            json_object_set_new(speeds, device, json_real(speed));
        }
    }
    const unsigned windows = slowest < 0.9 ? move->windows + 1 : 0;
    const bool moves = windows >= 2 && move->steps_left > 50;
    answer->fits = true;
    answer->answer = json_pack(
        "{s:s, s:i, s:f, s:{s:s, s:[s]}, s:o, s:o}", "verdict", moves ? "move" : "stay", "windows",
        (int)windows, "old_step_s", WORLD_BUSY_S / slowest, "new", "placement", "single", "devices",
        "right/cpu0", "words",
        json_sprintf("%s: slowest %.2f, look %u, %llu steps left, %zu devices", moves ? "Move" : "Stay",
                     slowest, windows, (unsigned long long)move->steps_left, request->device_count),
        "speeds", speeds);
    return 0;
}

/* Answers any request with the plan of a file. */
static int world_plan_of_file(const char *path, struct placer_answer *answer, struct err *err)
{
    size_t i;
    json_t *rank;
    answer->plan = json_load_file(path, 0, NULL);
    const json_t *ranks = json_object_get(answer->plan, "ranks");
    answer->answer = json_pack("{s:s}", "verdict", "fits");
    answer->ranks = calloc(json_array_size(ranks) + 1, sizeof(*answer->ranks));
    json_array_foreach (ranks, i, rank)
        answer->ranks[answer->rank_count++].device =
            strdup(json_string_value(json_object_get(rank, "device")));
    answer->fits = answer->rank_count > 0;
    return answer->fits ? 0 : err_set(err, ERR_INVALID, "%s holds no plan", path);
}

/* The digest of the plan on right/cpu0 that jobs of the model "tried" have beside their first one. */
#define WORLD_RIVAL_DIGEST "1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* Answers for a job of the model "tried": the plan on left/cpu0, with one on right/cpu0 that may be as fast;
 * or the pinned one of these. */
static void world_try(const struct placer_request *request, struct placer_answer *answer)
{
    const char *const pinned = json_string_value(json_object_get(request->pinned, "digest"));
    json_t *rival = json_deep_copy(answer->plan);
    json_object_set_new(json_array_get(json_object_get(rival, "ranks"), 0), "device",
                        json_string("right/cpu0"));
    json_object_set_new(rival, "digest", json_string(WORLD_RIVAL_DIGEST));
    json_object_update_new(answer->answer,
                           json_pack("{s:s, s:s, s:f, s:f}", "digest", pinned ? pinned : WORLD_DIGEST,
                                     "placement", "single", "step_s", WORLD_BUSY_S, "tokens_per_s", 0.0));
    if (pinned) {
        json_object_set_new(answer->answer, "repeats", json_string(pinned));
        if (strcmp(pinned, WORLD_RIVAL_DIGEST) == 0) {
            json_decref(answer->plan);
            answer->plan = json_incref(rival);
            free(answer->ranks[0].device);
            answer->ranks[0].device = strdup("right/cpu0");
        }
    } else {
        answer->rivals =
            json_pack("[{s:s, s:s, s:[s], s:f, s:O}]", "digest", WORLD_RIVAL_DIGEST, "placement", "single",
                      "devices", "right/cpu0", "step_s", 1.2 * WORLD_BUSY_S, "plan", rival);
    }
    json_decref(rival);
}

static int world_plan(const struct placer_request *request, struct placer_answer *answer, struct err *err)
{
    const json_t *devices = json_object_get(json_object_get(request->spec, "placement"), "devices");
    const char *name = json_string_value(json_object_get(request->spec, "model"));
    *answer = (struct placer_answer){0};
    if (request->move)
        return world_weigh(request, answer);
    if (strcmp(name, "long-search") == 0) { /* as a search over many devices; the test's patience is 30 s */
        const struct timespec pause = {.tv_sec = 5};
        nanosleep(&pause, NULL);
    }
    if (strcmp(name, "short-search") == 0) {
        const struct timespec pause = {.tv_sec = 1};
        nanosleep(&pause, NULL);
    }
    if (strcmp(name, "planned") == 0)
        return world_plan_of_file(getenv("WORLD_PLAN"), answer, err);
    if (strcmp(name, "unplannable") == 0)
        return err_set(err, ERR_INVALID, "placement.stages: 99 stages are more than the model has layers");
    uint64_t least = UINT64_MAX;
    const char *kind =
        json_string_value(json_object_get(json_object_get(request->spec, "placement"), "kind"));
    const bool pipeline = kind && strcmp(kind, "pipeline") == 0;
    size_t wanted = json_is_array(devices) ? json_array_size(devices) : pipeline ? 2 : 1;
    answer->ranks = calloc(wanted, sizeof(*answer->ranks));
    answer->answer = json_pack("{s:s}", "verdict", "fits");
    for (size_t i = 0; i < request->device_count && answer->rank_count < wanted; i++) {
        const char *device = request->devices[i].device->name;
        bool hot = !json_is_array(devices) && i + 1 < request->device_count &&
                   (request->devices[i].heat < 1 ||
                    (request->devices[i].speed > 0 && request->devices[i].speed < 0.9));
        if (!hot && (!json_is_array(devices) || world_named(devices, device))) {
            if (strcmp(name, "unpriced") == 0 && !request->devices[i].profile) {
                placer_answer_fini(answer);
                return err_set(err, ERR_BUSY, "%s: nothing is known of its speed", device);
            }
            least = request->devices[i].memory_bytes < least ? request->devices[i].memory_bytes : least;
            answer->ranks[answer->rank_count++].device = strdup(device);
        }
    }
    if ((pipeline || strcmp(name, "needs-two") == 0) && answer->rank_count < 2) {
        placer_answer_fini(answer);
        return err_set(err, ERR_UNSUPPORTED, "a pipeline needs two devices; %zu can be used",
                       request->device_count);
    }
    answer->fits = answer->rank_count == wanted && strcmp(name, "too-big") != 0 &&
                   (strcmp(name, "needs-400-MiB") != 0 || least >= (uint64_t)400 << 20);
    snprintf(answer->words, sizeof(answer->words), "needs 9.0 GiB, the largest device has 450 MiB");
    json_t *ranks = json_array();
    for (size_t i = 0; i < answer->rank_count; i++)
        json_array_append_new(ranks,
                              json_pack("{s:s, s:f, s:s, s:{s:[{s:s}]}}", "device", answer->ranks[i].device,
                                        "busy_s", WORLD_BUSY_S, "programs_digest", WORLD_DIGEST, "programs",
                                        "train", "op", "STEP"));
    answer->plan = json_pack("{s:s, s:s, s:s, s:o}", "fake", "plan", "digest", WORLD_DIGEST, "placement",
                             answer->rank_count < 2                ? "single"
                             : kind && strcmp(kind, "tensor") == 0 ? "tensor"
                                                                   : "pipeline",
                             "ranks", ranks);
    if (strcmp(name, "tried") == 0 && answer->rank_count == 1)
        world_try(request, answer);
    return 0;
}

static const struct placer world_placer = {.plan = world_plan};

static inline void world_term(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    event_base_loopbreak(arg);
}

/* Runs a scheduler: the body of `PROGRAM --scheduler CONFIG`. */
struct world_scheduler {
    struct scheduler *scheduler;
    struct scheduler_config *config;
    const char *path;
};

static inline void world_reload(evutil_socket_t fd, short what, void *arg)
{
    struct world_scheduler *of = arg;
    struct err err;
    (void)fd;
    (void)what;
    if (scheduler_config_reload(of->path, of->config, &err) == 0)
        scheduler_reconfigured(of->scheduler);
    else
        fprintf(stderr, "%s\n", err.text);
}

static inline int world_scheduler_main(const char *path)
{
    struct scheduler_config config;
    struct err err;
    struct event_base *base = event_base_new();
    struct event *term = evsignal_new(base, SIGTERM, world_term, base);
    event_add(term, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (scheduler_config_load(path, &config, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    struct scheduler *scheduler = scheduler_create(base, &config, &world_placer, &err);
    if (!scheduler) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    struct world_scheduler of = {scheduler, &config, path};
    struct event *hangup = evsignal_new(base, SIGHUP, world_reload, &of);
    event_add(hangup, NULL);
    event_base_dispatch(base);
    scheduler_destroy(scheduler);
    event_free(term);
    event_free(hangup);
    event_base_free(base);
    scheduler_config_fini(&config);
    return 0;
}

/* ---- the world ---- */

/* Writes the configuration of scheduler i, and its path to `path`. */
static inline void world_configure(const struct world *world, int i, char path[160])
{
    const unsigned lost_ms = world->lost_ms > 0 ? world->lost_ms : 2000;
    struct err err;
    snprintf(path, 160, "%s/scheduler-%d.yaml", world->fixture->dir.path, i);
    char text[1024];
    int size =
        snprintf(text, sizeof(text),
                 "name: s%d\npostgres: \"%s\"\nredis: {address: \"%s\"}\n"
                 "limits: {unreachable_ms: %u, lost_ms: %u, missing_ms: 500, stop_ms: 1500, kill_ms: 1000, "
                 "checkpoint_stop_ms: 1500, retry_ms_min: 20, retry_ms_max: 100, redeliver_ms: 150, "
                 "profile_start_ms: 1, profile_ms: 50, profile_grace_ms: 1500, links_ms: 500, "
                 "look_ms: %u, queue_check_ms: %u, lease_idle_ms: 400, remeasure_ms: 300, leader_poll_ms: "
                 "50, leader_silent_ms: 1500, aside_ms: %u}\n%s",
                 i, world->fixture->postgres.conninfo, world->redis.address, lost_ms * 3 / 10, lost_ms,
                 world->look_ms > 0 ? world->look_ms : 50, world->unchecked ? 600000u : 0u,
                 world->aside_ms > 0 ? world->aside_ms : 30000u, world->more ? world->more : "");
    if (file_write_atomic(path, text, (size_t)size, 0600, &err) < 0)
        test_services_fail("scheduler", err.text);
}

static inline void world_spawn(struct world *world, int i)
{
    char path[160], log[160];
    struct err err;
    world_configure(world, i, path);
    snprintf(log, sizeof(log), "%s/scheduler-%d.log", world->fixture->dir.path, i);
    const char *argv[] = {world->program, "--scheduler", path, NULL};
    const struct process_options options = {
        .argv = argv, .stdout_path = log, .stderr_path = log, .own_group = true, .die_with_parent = true};
    if (process_spawn(&options, &world->schedulers[i], &err) < 0)
        test_services_fail("scheduler", err.text);
}

static inline void world_logs(struct world *world)
{
    for (int i = 0; i < WORLD_SCHEDULERS; i++) {
        char log[160];
        struct err err;
        struct buf text;
        snprintf(log, sizeof(log), "%s/scheduler-%d.log", world->fixture->dir.path, i);
        buf_init(&text, 1 << 22);
        if (file_read_all(log, 1 << 22, &text, &err) == 0) {
            size_t from = text.size > 6000 ? text.size - 6000 : 0;
            fprintf(stderr, "---- scheduler %d\n%s\n", i, buf_str(&text) + from);
        }
        buf_fini(&text);
    }
}

static inline void world_kill(struct world *world, int i, int signal_number)
{
    if (world->schedulers[i] > 0) {
        int status = 0;
        kill(world->schedulers[i], signal_number);
        waitpid(world->schedulers[i], &status, 0);
        world->schedulers[i] = 0;
        /* Sanitizers report through the exit status too. */
        if (signal_number == SIGTERM && status != 0) {
            world_logs(world);
            test_services_fail("scheduler", "did not end well when asked to");
        }
    }
}

static inline void world_turn(struct world *world)
{
    const struct timeval slice = {.tv_usec = 5000};
    event_base_loopexit(world->fixture->base, &slice);
    event_base_loop(world->fixture->base, EVLOOP_ONCE);
}

/* Runs the loop until `condition` holds, and fails after 30 s. */
#define WORLD_UNTIL(world, condition)                                                                        \
    do {                                                                                                     \
        uint64_t until_ = clock_mono_ns() + 30000000000u;                                                    \
        while (!(condition)) {                                                                               \
            if (clock_mono_ns() > until_) {                                                                  \
                world_logs(world);                                                                           \
                fail_msg("never came: %s", #condition);                                                      \
            }                                                                                                \
            world_turn(world);                                                                               \
        }                                                                                                    \
    } while (0)

static inline void world_enrol(struct world *world, const char *node, uint8_t mark)
{
    struct answer answer;
    uint8_t join[32] = {mark, 7}, token[32] = {mark, 8}, key[32], hash[32];
    fake_key(node, key);
    struct err err;
    /* The node's Redis password is its name. */
    assert_int_equal(digest_sha256(node, strlen(node), hash, &err), 0);
    AWAIT_OK(world->fixture, answer,
             store_join_token_put(
                 world->fixture->store, &principal_service,
                 &(struct store_join_token){.hash = join, .expires_us = clock_wall_us() + 60000000}, on_done,
                 &answer, E));
    const struct store_enrol enrol = {.join_hash = join,
                                      .node = node,
                                      .address = "",
                                      .agent_hash = token,
                                      .redis_hash = hash,
                                      .seal_key = key,
                                      .key_hash = token,
                                      .generation = 1,
                                      .certified_until_s = INT32_MAX};

    AWAIT_OK(world->fixture, answer, store_enrol(world->fixture->store, &enrol, on_id, &answer, E));
}

static inline void world_data(struct world *world)
{
    struct answer answer;
    json_t *config = json_pack("{s:s}", "architecture", "llama");
    json_t *files = json_array();
    json_t *stats = json_pack("{s:i}", "rows", 2);
    const uint8_t sizes[16] = {5, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0, 4, 0, 0, 0};
    const struct store_model_new model = {
        .name = "m", .content = "content-m", .config = config, .files = files};
    const struct store_dataset_new data = {
        .key = world_key, .blob = world_key, .sizes = sizes, .sizes_bytes = sizeof(sizes), .stats = stats};
    AWAIT_OK(world->fixture, answer,
             store_model_put(world->fixture->store, &world->fixture->user, &model, on_done, &answer, E));
    AWAIT_OK(world->fixture, answer, store_dataset_put(world->fixture->store, &data, on_done, &answer, E));
    /* The database gets the files that fake_blobs() names, because a checkpoint is accepted only with its
     * files. */
    struct err err;
    struct pg_conn *conn = pg_connect(world->fixture->postgres.conninfo, 5000, &err);
    must(pg_script(conn,
                   "INSERT INTO blobs (sha256, size) SELECT lpad(to_hex(n), 64, '0'), 1 FROM "
                   "generate_series(0, 500) n",
                   &err),
         &err);
    pg_disconnect(conn);
    json_decref(config);
    json_decref(files);
    json_decref(stats);
}

static inline void world_agents(struct world *world, uint64_t seed)
{
    static const char *const names[WORLD_AGENTS] = {"left", "right"};
    for (int i = 0; i < WORLD_AGENTS; i++) {
        world->agents[i] = fake_agent_start(world->fixture->base, world->redis.address, names[i], 1,
                                            seed * 10 + (uint64_t)i + 1);
    }
}

/* The schedulers are this same program (`world_scheduler_main`). */
static inline void world_make(struct world *world, void **state)
{
    fixture_setup(state);
    world->fixture = *state;
    ssize_t size = readlink("/proc/self/exe", world->program, sizeof(world->program) - 1);
    world->program[size > 0 ? size : 0] = '\0';
    signal(SIGPIPE, SIG_IGN);
    test_redis_start(&world->redis, world->fixture->dir.path);
    world_data(world);
    world_enrol(world, "left", 1);
    world_enrol(world, "right", 2);
    world_agents(world, 1);
    world_spawn(world, 0);
}

/* Whether a scheduler's log has the words. */
static inline bool world_has_logged(const struct world *world, const char *words)
{
    bool has = false;
    for (int i = 0; i < WORLD_SCHEDULERS; i++) {
        char log[160];
        struct err err;
        struct buf text;
        snprintf(log, sizeof(log), "%s/scheduler-%d.log", world->fixture->dir.path, i);
        buf_init(&text, 1 << 26);
        if (file_read_all(log, 1 << 26, &text, &err) == 0 && strstr(buf_str(&text), words)) {
            fprintf(stderr, "scheduler %d: %.300s\n", i, strstr(buf_str(&text), words));
            has = true;
        }
        buf_fini(&text);
    }
    return has;
}

/* Fails when a scheduler found that its queue differed from the database. */
static inline void world_check_queue(const struct world *world)
{
    if (world_has_logged(world, "queue_differs"))
        test_services_fail("scheduler", "its queue differed from the database");
}

static inline void world_end(struct world *world)
{
    void *state = world->fixture;
    for (int i = 0; i < WORLD_SCHEDULERS; i++)
        world_kill(world, i, SIGTERM);
    world_check_queue(world);
    for (int i = 0; i < WORLD_AGENTS; i++)
        fake_agent_end(world->agents[i]);
    test_redis_kill(&world->redis);
    fixture_teardown(&state);
}

/* ---- jobs ---- */

struct world_job {
    const char *name, *devices;         /* such as "left/cpu0 right/cpu0"; NULL: any device */
    const char *kind, *fallback, *move; /* members of the specification's `placement`; NULL: left out */
    int steps, every, retries, priority;
    int tokens; /* sequence_tokens; 0: 64. Another length needs another profile. */
    int64_t time_limit_ms;
    bool held;
    const struct principal *owner; /* NULL: ada */
    const char *account;           /* NULL: the owner's default */
    int service;                   /* enum policy_service - 1; 0: normal */
    int64_t begin_us;              /* 0: at once */
    int64_t after, after_any;      /* id of the job that this one waits for; 0: none */
    const char *array;             /* {path: values} as JSON; NULL: no array */
    unsigned elements, at_most;    /* number of the array's elements, and how many may run at a time */
};

static inline int64_t world_submit(struct world *world, const struct world_job *wanted)
{
    struct answer answer;
    json_t *devices = json_null();
    if (wanted->devices) {
        char text[200];
        char *rest = NULL;
        snprintf(text, sizeof(text), "%s", wanted->devices);
        devices = json_array();
        for (char *name = strtok_r(text, " ", &rest); name != NULL; name = strtok_r(NULL, " ", &rest))
            json_array_append_new(devices, json_string(name));
    }
    json_t *spec = json_pack(
        "{s:s, s:s, s:{s:s, s:i, s:[s], s:s}, s:{s:s, s:i}, s:{s:i, s:s}, s:{s:i, s:i}, s:{s:o}}", "name",
        wanted->name, "model", wanted->name, "method", "kind", "lora", "rank", 16, "targets", "q_proj",
        "base", "fp32", "data", "train", "rows", "sequence_tokens", wanted->tokens > 0 ? wanted->tokens : 64,
        "train", "steps", wanted->steps, "compute", "fp32", "checkpoint", "every_steps", wanted->every,
        "keep", 2, "placement", "devices", devices);
    const char *const words[][2] = {
        {"kind", wanted->kind}, {"fallback", wanted->fallback}, {"move", wanted->move}};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (words[i][1])
            json_object_set_new(json_object_get(spec, "placement"), words[i][0], json_string(words[i][1]));
    if (wanted->array)
        json_object_set_new(spec, "array", json_loads(wanted->array, 0, NULL));
    if (wanted->after)
        json_object_set_new(spec, "after", json_pack("[I]", (json_int_t)wanted->after));
    if (wanted->after_any)
        json_object_set_new(spec, "after_any", json_pack("[I]", (json_int_t)wanted->after_any));
    json_t *inputs = json_pack("{s:s, s:s}", "model", "content-m", "train", world_key);
    struct store_job_new job = fixture_job(world->fixture, wanted->name, spec, inputs);
    job.steps = wanted->steps;
    job.retries_max = (uint32_t)wanted->retries;
    job.priority = wanted->priority;
    job.time_limit_ms = wanted->time_limit_ms;
    job.held = wanted->held;
    job.owner = wanted->owner ? wanted->owner : job.owner;
    job.account = wanted->account;
    job.service = (unsigned)(wanted->service + 1);
    job.begin_us = wanted->begin_us;
    job.array_size = wanted->elements;
    job.at_most = wanted->at_most;
    AWAIT_OK(world->fixture, answer, store_job_insert(world->fixture->store, &job, on_made, &answer, E));
    json_decref(spec);
    json_decref(inputs);
    return answer.made.id;
}

/* Returns the job's document as a new reference. Asks again after errors of a database that restarts. */
static inline json_t *world_job(struct world *world, int64_t id)
{
    struct answer answer;
    do {
        AWAIT(world->fixture, answer,
              store_job_get(world->fixture->store, &principal_service, id, on_doc, &answer, E));
    } while (answer.err.code == ERR_NET || answer.err.code == ERR_TIMEOUT || answer.err.code == ERR_BUSY);
    assert_int_equal(answer.err.code, ERR_NONE);
    return answer.doc;
}

static inline bool world_is(struct world *world, int64_t id, const char *state)
{
    json_t *doc = world_job(world, id);
    bool is = strcmp(json_string_value(json_object_get(doc, "state")), state) == 0;
    json_decref(doc);
    return is;
}

static inline int64_t world_number(struct world *world, int64_t id, const char *key)
{
    json_t *doc = world_job(world, id);
    int64_t value = json_integer_value(json_object_get(doc, key));
    json_decref(doc);
    return value;
}

static inline bool world_says(struct world *world, int64_t id, const char *part)
{
    json_t *doc = world_job(world, id);
    const char *why = json_string_value(json_object_get(doc, "why"));
    bool says = why && strstr(why, part);
    json_decref(doc);
    return says;
}

/* Checks that every step 0..steps-1 was reported exactly once, with the right loss, to the database and to
 * followers. */
static inline void world_check_metrics(struct world *world, int64_t id, int64_t steps)
{
    struct answer answer;
    size_t i;
    json_t *line;
    AWAIT_OK(world->fixture, answer,
             store_job_metrics(world->fixture->store, id, "step", -1, 10000, on_doc, &answer, E));
    json_t *lines = json_object_get(answer.doc, "lines");
    assert_int_equal(json_array_size(lines), steps);
    json_array_foreach (lines, i, line) {
        assert_int_equal(json_integer_value(json_object_get(line, "step")), (int64_t)i);
        assert_true(json_real_value(json_object_get(line, "loss")) == fake_loss((int64_t)i));
    }
    json_decref(answer.doc);
    AWAIT_OK(world->fixture, answer,
             store_event_list(world->fixture->store, id, "step", 0, 1000, on_doc, &answer, E));
    assert_int_equal(json_array_size(json_object_get(answer.doc, "events")), steps < 1000 ? steps : 1000);
    json_decref(answer.doc);
}

/* True when the job's log has a line with `part`. */
static inline bool world_logged(struct world *world, int64_t id, const char *part)
{
    struct answer answer;
    json_t *event;
    size_t i;
    bool found = false;
    AWAIT_OK(world->fixture, answer,
             store_event_list(world->fixture->store, id, "log", 0, 1000, on_doc, &answer, E));
    json_array_foreach (json_object_get(answer.doc, "events"), i, event) {
        const char *text = json_string_value(json_object_get(json_object_get(event, "body"), "text"));
        found = found || (text && strstr(text, part));
    }
    json_decref(answer.doc);
    return found;
}

/* The node's agent reports the health of its first device. */
static inline void world_health(struct world *world, int agent, double heat, uint64_t usable)
{
    struct fake_agent *of = world->agents[agent];
    char name[80];
    snprintf(name, sizeof(name), "%s/cpu0", of->node);
    json_t *health = json_pack("{s:f, s:i, s:[s*], s:I, s:I}", "heat", heat, "temperature_c", 93, "throttle",
                               heat < 1 ? "thermal" : NULL, "usable_bytes", (json_int_t)usable,
                               "others_bytes", (json_int_t)(((uint64_t)450 << 20) - usable));
    fake_pass(of, "health", json_pack("{s:s, s:{s:o}}", "boot", of->boot, "devices", name, health));
}

static inline json_t *world_command(struct world *world, int64_t id, enum job_event event, int64_t more)
{
    struct answer answer;
    AWAIT_OK(
        world->fixture, answer,
        store_job_command(world->fixture->store, &principal_service, id, event, more, on_doc, &answer, E));
    return answer.doc;
}

static inline void world_drain(struct world *world, const char *device, bool drained)
{
    struct answer answer;
    AWAIT_OK(world->fixture, answer,
             store_device_drain(world->fixture->store, &principal_service,
                                &(struct store_drain){.name = device, .drained = drained}, on_doc, &answer,
                                E));
    json_decref(answer.doc);
}

/* Sets *arg, a bool, when Redis has answered a command that the test waits for. */
static inline void world_redis_replied(void *arg, const redisReply *reply, const struct err *err)
{
    (void)reply;
    (void)err;
    *(bool *)arg = true;
}

static inline void world_flush(struct world *world)
{
    static const char *const argv[] = {"FLUSHALL"};
    static const size_t lengths[] = {8};
    bool done = false;
    struct err err;
    assert_int_equal(
        redis_command(world->agents[0]->commands, 0, world_redis_replied, &done, 1, argv, lengths, &err), 0);
    WORLD_UNTIL(world, done);
}

/* Runs SQL. */
static inline void world_sql(struct world *w, const char *text)
{
    struct err err;
    struct pg_conn *conn = pg_connect(w->fixture->postgres.conninfo, 5000, &err);
    assert_non_null(conn);
    must(pg_script(conn, text, &err), &err);
    pg_disconnect(conn);
}

/* Returns the number that a statement selects. */
static inline int64_t world_select(struct world *w, const char *select)
{
    struct err err;
    int64_t value = 0;
    struct pg_conn *conn = pg_connect(w->fixture->postgres.conninfo, 5000, &err);
    assert_non_null(conn);
    must(pg_ask(conn, select, &value, &err), &err);
    pg_disconnect(conn);
    return value;
}

#endif
