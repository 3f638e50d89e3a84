/* Shows whether the scheduler and the api keep to their memory over many short jobs: real motley-scheduler,
 * motley-api, PostgreSQL and Redis, agents that are played (tests/scheduler/fake_agent.h), and one person who
 * submits jobs of many classes over HTTP and looks at the queue, at jobs, at their logs and at plans.
 *
 *     bench_scheduler_soak [JOBS [EVERY]]       default: 10000 jobs, a line every 500
 *     bench_scheduler_soak JOBS EVERY AGENTS PROGRAMS
 *
 * Memory is RssAnon: the pages of a process that no file holds. Exit status 1 if one of the two processes has
 * more than LIMIT_SHARE of what it had at half of the jobs.
 *
 * With AGENTS and PROGRAMS it upgrades instead: all jobs are submitted, and when a tenth of them have ended
 * both services are replaced by the programs of that folder. Exit status 1 if a job has not succeeded in its
 * first run and attempt, a step was told twice or is missing, or the api did not answer for AWAY_MS.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/digest.h"
#include "common/http.h"
#include "store/enrol.h"
#include "tests/scheduler/fake_agent.h"
#include "tests/support/services.h"

/* Jobs n and n + STEPS * BATCHES * DATA are alike; no others are. */
enum { AGENTS = 4, AGENTS_MAX = 200, OPEN_MAX = 24, STEPS = 5, BATCHES = 8, DATA = 64, AWAY_MS = 5000 };
/* Most memory at the end, in units of that at half of the jobs. */
#define LIMIT_SHARE 1.1

struct soak {
    struct test_dir dir;
    struct test_postgres postgres;
    struct test_redis redis;
    pid_t api, scheduler;
    char api_address[160], url[96], token[65], train[DATA][80];
    struct event_base *base;
    struct store *store;
    struct fake_agent *agents[AGENTS_MAX];
    int agent_count, jobs, every;
    const char *programs; /* of the release to come; NULL: none comes */
    char api_text[800], scheduler_text[800], token_file[160];
    atomic_int submitted;
    uint64_t away_ms; /* the longest time in which the api did not answer */
    atomic_int done;  /* jobs that have ended */
    atomic_bool over;
    bool answered;  /* the call of the store that main waits for has ended */
    bool upgrading; /* programs that start are those of the release to come */
};

static void stop(const char *what, const char *why)
{
    fprintf(stderr, "bench_scheduler_soak: %s: %s\n", what, why);
    exit(2);
}

static void check(int rc, const char *what, const struct err *err)
{
    if (rc < 0)
        stop(what, err->text);
}

/* ---- the service ---- */

static bool api_listens(void *arg)
{
    struct soak *soak = arg;
    if (waitpid(soak->api, NULL, WNOHANG) == soak->api)
        stop("motley-api", "ended at start");
    return access(soak->api_address, R_OK) == 0;
}

/* Starts a program of the build with a configuration of the soak's folder. */
static pid_t spawn(struct soak *soak, const char *name, const char *config, const char *more,
                   const char *token_file)
{
    char program[256], path[160], log[160];
    struct err err;
    snprintf(path, sizeof(path), "%s/%s.yaml", soak->dir.path, name);
    snprintf(log, sizeof(log), "%s/%s.log", soak->dir.path, name);
    check(file_write_atomic(path, config, strlen(config), 0600, &err), path, &err);
    if (soak->programs && soak->upgrading)
        snprintf(program, sizeof(program), "%s/%s", soak->programs, name);
    else
        check(process_sibling(name, program, sizeof(program), &err), name, &err);
    const char *argv[] = {program,    "--config", path, more, token_file ? "--admin-token-file" : NULL,
                          token_file, NULL};
    return test_spawn(argv, log, NULL);
}

/* Brings the database to the programs' schema, and starts api and scheduler. */
static void start_programs(struct soak *soak)
{
    int status = 0;
    const pid_t migrate = spawn(soak, "motley-api", soak->api_text, "--migrate", soak->token_file);
    if (waitpid(migrate, &status, 0) != migrate || status != 0)
        stop("motley-api --migrate", "failed");
    unlink(soak->api_address);
    soak->api = spawn(soak, "motley-api", soak->api_text, NULL, NULL);
    soak->scheduler = spawn(soak, "motley-scheduler", soak->scheduler_text, NULL, NULL);
    if (!test_wait_until(api_listens, soak, 15000))
        stop("motley-api", "does not listen");
}

static void start_service(struct soak *soak)
{
    struct err err;
    const int port = test_free_port();
    test_dir_make(&soak->dir);
    test_postgres_start(&soak->postgres, soak->dir.path);
    test_redis_start(&soak->redis, soak->dir.path);
    snprintf(soak->api_address, sizeof(soak->api_address), "%s/address", soak->dir.path);
    snprintf(soak->token_file, sizeof(soak->token_file), "%s/token", soak->dir.path);
    snprintf(soak->url, sizeof(soak->url), "http://127.0.0.1:%d", port);
    snprintf(soak->api_text, sizeof(soak->api_text),
             "{\"listen\": \"127.0.0.1:%d\", \"address_file\": \"%s\", \"postgres\": \"%s\", \"blobs\": "
             "\"%s/blobs\"}",
             port, soak->api_address, soak->postgres.conninfo, soak->dir.path);
    snprintf(soak->scheduler_text, sizeof(soak->scheduler_text),
             "name: soak\npostgres: \"%s\"\nredis: {address: \"%s\"}\n"
             "limits: {profile_start_ms: 1, profile_ms: 50, unreachable_ms: 20000, lost_ms: 60000}\n",
             soak->postgres.conninfo, soak->redis.address);
    check(random_hex(soak->token, 32, &err), "token", &err);
    check(file_write_atomic(soak->token_file, soak->token, 64, 0600, &err), "token", &err);
    start_programs(soak);
}

static void stop_programs(const struct soak *soak)
{
    struct err err;
    process_stop(soak->scheduler, 0, SIGTERM, 10000, &err);
    process_stop(soak->api, 0, SIGTERM, 10000, &err);
}

static void stop_service(struct soak *soak)
{
    stop_programs(soak);
    for (int i = 0; i < soak->agent_count; i++)
        fake_agent_end(soak->agents[i]);
    store_destroy(soak->store);
    event_base_free(soak->base);
    test_redis_kill(&soak->redis);
    test_postgres_stop(&soak->postgres);
    test_dir_remove(&soak->dir);
}

/* ---- the agents ---- */

static void on_done(void *arg, const struct err *err)
{
    if (err)
        stop("store", err->text);
    *(bool *)arg = true;
}

static void on_id(void *arg, const struct err *err, int64_t id)
{
    (void)id;
    on_done(arg, err);
}

static void await(struct soak *soak)
{
    while (!soak->answered)
        event_base_loop(soak->base, EVLOOP_ONCE);
    soak->answered = false;
}

static void enrol(struct soak *soak, const char *node, uint8_t mark)
{
    const uint8_t join[32] = {mark, 7}, token[32] = {mark, 8};
    uint8_t key[SEAL_KEY_SIZE], hash[32];
    struct err err;
    fake_key(node, key);
    check(digest_sha256(node, strlen(node), hash, &err), "digest", &err);
    const struct store_join_token joins = {.hash = join, .expires_us = clock_wall_us() + 60000000};
    const struct store_enrol enrol = {.join_hash = join,
                                      .node = node,
                                      .address = "",
                                      .agent_hash = token,
                                      .redis_hash = hash,
                                      .seal_key = key,
                                      .key_hash = token,
                                      .generation = 1,
                                      .certified_until_s = INT32_MAX};
    check(store_join_token_put(soak->store, &principal_service, &joins, on_done, &soak->answered, &err), node,
          &err);
    await(soak);
    check(store_enrol(soak->store, &enrol, on_id, &soak->answered, &err), node, &err);
    await(soak);
}

static void start_agents(struct soak *soak)
{
    char name[16];
    const struct store_config config = {.conninfo = soak->postgres.conninfo};
    struct err err;
    soak->base = event_base_new();
    check(store_create(soak->base, &config, &soak->store, &err), "store", &err);
    struct pg_conn *conn = pg_connect(soak->postgres.conninfo, 5000, &err);
    /* A checkpoint is accepted only with its files, which are those of fake_blobs. */
    check(conn ? pg_script(conn,
                           "INSERT INTO blobs (sha256, size) SELECT lpad(to_hex(n), 64, '0'), 1 FROM "
                           "generate_series(0, 500) n",
                           &err)
               : -1,
          "blobs", &err);
    pg_disconnect(conn);
    for (int i = 0; i < soak->agent_count; i++) {
        snprintf(name, sizeof(name), "n%d", i);
        enrol(soak, name, (uint8_t)(i + 1));
        soak->agents[i] = fake_agent_start(soak->base, soak->redis.address, name, 1, (uint64_t)i + 1);
        soak->agents[i]->beat_ms = soak->programs ? 1000 : 0;
    }
}

/* Drops the agent's workers that have ended and whose events are all acknowledged. Returns how many led their
 * run. */
static int take_ended(struct fake_agent *agent)
{
    int kept = 0, ended = 0;
    for (int i = 0; i < agent->worker_count; i++) {
        struct fake_worker *worker = &agent->workers[i];
        if (worker->phase != FAKE_ENDED || json_array_size(worker->journal) > 0) {
            agent->workers[kept++] = *worker;
            continue;
        }
        ended += worker->rank == 0 ? 1 : 0;
        json_decref(worker->journal);
    }
    agent->worker_count = kept;
    if (json_object_size(agent->acted) > 10000)
        json_object_clear(agent->acted);
    return ended;
}

/* ---- the person ---- */

static json_t *body_of(const struct soak *soak, int n)
{
    char name[32], device[32];
    snprintf(device, sizeof(device), "n%d/cpu0", n % soak->agent_count);
    snprintf(name, sizeof(name), "soak-%d", n);
    json_t *spec = json_pack(
        "{s:s, s:s, s:{s:s, s:s}, s:{s:i, s:i, s:f}, s:{s:[s]}}", "name", name, "model", "soak", "data",
        "train", soak->train[soak->programs ? 0 : n / (STEPS * BATCHES) % DATA], "format", "tokens", "train",
        "batch_rows", soak->programs ? 2 : 1 + n / STEPS % BATCHES, "steps",
        soak->programs ? 100 : 1 + n % STEPS, "learning_rate", 1e-3, "placement", "devices", device);
    if (soak->programs) /* one class of jobs, which may run anywhere */
        json_object_set_new(spec, "placement", json_pack("{s:s}", "kind", "single"));
    return spec;
}

/* Asks for a page or a document; its content does not matter here. */
static void look(struct http *http, const char *path)
{
    struct err err;
    json_t *doc = NULL;
    if (http_json(http, "GET", path, NULL, 30000, &doc, &err) < 0 && err.code != ERR_NOT_FOUND)
        stop(path, err.text);
    json_decref(doc);
}

static void look_around(struct http *http, long long job)
{
    static const char *const views[] = {"/v1/jobs/%lld", "/v1/jobs/%lld/logs", "/v1/jobs/%lld/metrics",
                                        "/v1/jobs/%lld/plan", "/v1/jobs/%lld/runs"};
    char path[96];
    for (size_t i = 0; i < sizeof(views) / sizeof(views[0]); i++) {
        snprintf(path, sizeof(path), views[i], job);
        look(http, path);
    }
    snprintf(path, sizeof(path), "/v1/jobs/%lld/why", job); /* waits for the planner, for 10 s at most */
    if (job % 8 == 0)
        look(http, path);
    look(http, "/v1/queue");
    look(http, "/v1/jobs?limit=50");
    look(http, "/v1/devices");
    look(http, "/v1/nodes");
    look(http, "/v1/shares");
}

/* Uploads the data set with this number. */
static void put_rows(struct soak *soak, struct http *http, int number)
{
    struct err err;
    char rows[200], hex[65], path[96];
    const int size = snprintf(rows, sizeof(rows),
                              "{\"ids\":[1,2,3,%d],\"labels\":[-100,2,3,4]}\n"
                              "{\"ids\":[5,2,3,4],\"labels\":[-100,2,3,4]}\n",
                              number + 1);
    check(digest_sha256_hex(rows, (size_t)size, hex, &err), "rows", &err);
    snprintf(path, sizeof(path), "/v1/blobs/%s", hex);
    const struct http_request put = {.method = "PUT", .path = path, .body = rows, .body_bytes = (size_t)size};
    check(http_perform(http, &put, NULL, &err), "rows", &err);
    snprintf(soak->train[number], sizeof(soak->train[number]), "sha256:%s", hex);
}

static void prepare(struct soak *soak, struct http *http)
{
    struct err err;
    char *real = realpath("tests/data/golden/llama", NULL);
    json_t *body = json_pack("{s:s, s:s}", "name", "soak", "path", real ? real : "");
    check(http_json(http, "POST", "/v1/models", body, 30000, NULL, &err), "model", &err);
    json_decref(body);
    free(real);
    for (int i = 0; i < DATA; i++)
        put_rows(soak, http, i);
}

/* Asks the api whether it lives, 100 times a second, and notes for how long it did not say so. */
static void watch(struct soak *soak, struct http *http)
{
    static uint64_t heard_ns;
    struct err err;
    if (http_json(http, "GET", "/healthz", NULL, 1000, NULL, &err) == 0) {
        const uint64_t now_ns = clock_mono_ns(), ms = heard_ns ? (now_ns - heard_ns) / 1000000 : 0;
        soak->away_ms = ms > soak->away_ms ? ms : soak->away_ms;
        heard_ns = now_ns;
    }
    poll(NULL, 0, 10);
}

/* Submits all jobs, at most OPEN_MAX beyond those that have ended, and looks around every 20 jobs. */
static void *be_a_person(void *arg)
{
    struct soak *soak = arg;
    struct err err;
    const struct http_options options = {.url = soak->url, .bearer = soak->token};
    struct http *http = http_create(&options, &err);
    check(http ? 0 : -1, "client", &err);
    prepare(soak, http);
    for (int n = 0; n < soak->jobs && !atomic_load(&soak->over); n++) {
        while (!soak->programs && n - atomic_load(&soak->done) >= OPEN_MAX)
            poll(NULL, 0, 5);
        json_t *body = body_of(soak, n), *made = NULL;
        check(http_json(http, "POST", "/v1/jobs", body, 30000, &made, &err), "submit", &err);
        atomic_store(&soak->submitted, n + 1);
        if (!soak->programs && n % 20 == 0)
            look_around(http, json_integer_value(json_object_get(made, "id")));
        if (!soak->programs && n % 100 == 50) {
            json_t *asked = json_pack("{s:O}", "spec", body);
            check(http_json(http, "POST", "/v1/plans", asked, 60000, NULL, &err), "plan", &err);
            json_decref(asked);
        }
        json_decref(made);
        json_decref(body);
    }
    while (soak->programs && !atomic_load(&soak->over))
        watch(soak, http);
    http_destroy(http);
    return NULL;
}

/* ---- memory ---- */

static long anon_kb(pid_t pid)
{
    char path[64], line[128];
    long kb = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "RssAnon: %ld", &kb) == 1)
            break;
    if (!file || kb == 0)
        stop(path, "the process has ended");
    fclose(file);
    return kb;
}

static void print_memory(const struct soak *soak, int done, uint64_t began_ns, long kb[2])
{
    kb[0] = anon_kb(soak->scheduler);
    kb[1] = anon_kb(soak->api);
    printf("%8d %12ld %8ld %8.0f\n", done, kb[0], kb[1], 1e-9 * (double)(clock_mono_ns() - began_ns));
    fflush(stdout);
}

/* ---- the upgrade ---- */

/* Whether each job has succeeded in its only run, and told each of its steps once. */
static bool all_once(const struct soak *soak)
{
    static const char *const counts[][2] = {
        {"jobs", "SELECT count(*) FROM jobs"},
        {"jobs that succeeded", "SELECT count(*) FROM jobs WHERE state = 'succeeded'"},
        {"runs", "SELECT count(*) FROM runs"},
        {"jobs that told each of their steps once",
         "SELECT count(*) FROM jobs j WHERE steps = (SELECT count(*) FROM metrics m WHERE m.job = j.id AND "
         "m.kind = 'step')"}};
    struct err err;
    bool all = true;
    struct pg_conn *conn = pg_connect(soak->postgres.conninfo, 5000, &err);
    check(conn ? 0 : -1, "jobs", &err);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        int64_t n = 0;
        check(pg_ask(conn, counts[i][1], &n, &err), counts[i][0], &err);
        printf("%s: %lld of %d\n", counts[i][0], (long long)n, soak->jobs);
        all = all && n == soak->jobs;
    }
    pg_disconnect(conn);
    return all;
}

static void upgrade(struct soak *soak)
{
    const uint64_t began_ns = clock_mono_ns();
    stop_programs(soak);
    soak->upgrading = true;
    start_programs(soak);
    printf("upgraded in %.2f s\n", 1e-9 * (double)(clock_mono_ns() - began_ns));
}

int main(int argc, char **argv)
{
    struct soak *soak = calloc(1, sizeof(*soak));
    pthread_t person;
    long half[2] = {0}, now[2] = {0};
    soak->jobs = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 10000;
    soak->every = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 500;
    soak->programs = argc > 4 ? argv[4] : NULL;
    soak->agent_count = soak->programs ? (int)strtol(argv[3], NULL, 10) : AGENTS;
    if (soak->agent_count < 1 || soak->agent_count > AGENTS_MAX)
        stop("AGENTS", "must be 1 to 200");
    signal(SIGPIPE, SIG_IGN);
    start_service(soak);
    start_agents(soak);
    printf("pids: scheduler %d, api %d\n%8s %12s %8s %8s\n", (int)soak->scheduler, (int)soak->api, "jobs",
           "scheduler kB", "api kB", "seconds");
    print_memory(soak, 0, clock_mono_ns(), now);
    const uint64_t began_ns = clock_mono_ns();
    pthread_create(&person, NULL, be_a_person, soak);
    int next = soak->every, done = 0;
    while (done < soak->jobs) {
        const struct timeval slice = {.tv_usec = 20000};
        event_base_loopexit(soak->base, &slice);
        event_base_loop(soak->base, 0);
        for (int i = 0; i < soak->agent_count; i++)
            done += take_ended(soak->agents[i]);
        atomic_store(&soak->done, done);
        if (soak->programs && !soak->upgrading && atomic_load(&soak->submitted) == soak->jobs &&
            done >= soak->jobs / 10)
            upgrade(soak);
        if (done < next)
            continue;
        print_memory(soak, done, began_ns, now);
        if (next <= soak->jobs / 2)
            memcpy(half, now, sizeof(half));
        next += soak->every;
    }
    atomic_store(&soak->over, true);
    pthread_join(person, NULL);
    const bool once = !soak->programs || all_once(soak);
    stop_service(soak);
    if (soak->programs) {
        printf("the api was away for %llu ms at most\n", (unsigned long long)soak->away_ms);
        return once && soak->away_ms < AWAY_MS ? 0 : 1;
    }
    const bool holds =
        (double)now[0] <= LIMIT_SHARE * (double)half[0] && (double)now[1] <= LIMIT_SHARE * (double)half[1];
    printf("%s: at most %.2f of the memory at half of the jobs\n", holds ? "holds" : "DOES NOT HOLD",
           LIMIT_SHARE);
    free(soak);
    return holds ? 0 : 1;
}
