/* Runs a job of a golden tiny model through real workers on threads. The fixture is the agent and scheduler
 * at the other end of their sockets, and an artifact store. */
#ifndef MOTLEY_TESTS_WORKER_FIXTURE_H
#define MOTLEY_TESTS_WORKER_FIXTURE_H

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/frame.h"
#include "common/process.h"
#include "model/shape/config.h"
#include "model/rows/rows.h"
#include "model/files/safetensors.h"
#include "support/cluster.h"
#include "support/formula_model.h"
#include "support/scratch.h"
#include "worker/blob_server.h"
#include "worker/hand_plan.h"
#include "worker/worker.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { FIX_SECONDS = 600 }; /* instrumented code is ten times slower */
#else
enum { FIX_SECONDS = 120 };
#endif
enum { FIX_RANKS = 8, FIX_STEPS = 4096 };

#define must(call) fix_must((call), #call, &err, __LINE__)
static inline void fix_must(int result, const char *what, const struct err *err, int line)
{
    if (result < 0)
        fail_msg("line %d: %s: %s", line, what, err->text);
}

struct fix_worker {
    struct worker *worker;
    pthread_t thread;
    pid_t pid; /* process, if the worker is one instead of a thread */
    int fd, result;
    struct err err;
    char dir[300], socket[320];
    json_int_t last_seq;
    char end[16]; /* "done", "failed", "stopped" */
};

struct fixture {
    struct scratch scratch;
    struct blob_server store;
    struct test_cluster cluster;
    struct test_cert certs[FIX_RANKS];
    struct model_config config;
    json_t *model;               /* the assignment's model object */
    json_t *expected;            /* content of expected.json */
    const json_t *lora;          /* the method's settings in `expected` */
    const char *program;         /* path of motley-worker to run as processes, or NULL to use threads */
    const char *isa[FIX_RANKS];  /* instruction set of a rank's device, or NULL */
    const char *kind[FIX_RANKS]; /* kind of a rank's device; NULL: MOTLEY_TEST_DEVICE, else "cpu" */
    json_t *adapter;             /* {file: sha256} of adapter_init */
    char train[65], eval[65];
    uint32_t tokens_bound, labelled_bound; /* bounds for a batch of 4 rows */
    uint32_t batch_rows;
};

/* What a run reported. */
struct outcome {
    uint32_t steps;
    double loss[FIX_STEPS], norm[FIX_STEPS], rate[FIX_STEPS];
    uint64_t first_step;
    double eval[8];
    uint64_t eval_step[8];
    uint32_t evals;
    json_t *samples;     /* array of `sample` events */
    json_t *checkpoints; /* array of `checkpoint` events */
    json_t *artifacts;   /* artifacts in `done` of rank 0, or NULL */
    json_t *failures;    /* array of `failed` events */
    json_t *stopped;     /* array of `stopped` events */
    char warnings[1000]; /* of `done`, all ranks' one after the other */
    uint32_t done, traces, ranks, memories;
    uint64_t ready_ns; /* time from `assign` to the last `worker_ready` */
};

static inline void outcome_fini(struct outcome *outcome)
{
    json_decref(outcome->samples);
    json_decref(outcome->checkpoints);
    json_decref(outcome->artifacts);
    json_decref(outcome->failures);
    json_decref(outcome->stopped);
}

/* --- the job's files --- */

static inline void fix_add_file(struct fixture *fix, const char *path, char sha256[65], uint64_t *size)
{
    struct err err;
    struct buf bytes;
    buf_init(&bytes, (size_t)1 << 30);
    must(file_read_all(path, bytes.limit, &bytes, &err));
    must(blob_server_add(&fix->store, bytes.data, bytes.size, sha256));
    if (size)
        *size = bytes.size;
    buf_fini(&bytes);
}

static inline void fix_model(struct fixture *fix, const char *dir)
{
    struct err err;
    struct model_source *source = NULL;
    fix->model = json_pack("{s:s, s:[]}", "name", "tiny", "files");
    must(model_source_open_local(dir, &source, &err));
    for (uint32_t f = 0; f < model_source_file_count(source); f++) {
        const struct model_file *file = model_source_file(source, f);
        char path[1024], sha256[65];
        snprintf(path, sizeof(path), "%s/%s", dir, file->name);
        if (!file_exists(path))
            snprintf(path, sizeof(path), "%s", dir); /* the model is a single file */
        fix_add_file(fix, path, sha256, NULL);
        json_array_append_new(json_object_get(fix->model, "files"),
                              json_pack("{s:s, s:I, s:s}", "name", file->name, "size", (json_int_t)file->size,
                                        "sha256", sha256));
    }
    model_source_close(source);
    must(model_config_load(dir, &fix->config, &err));
}

/* Makes the rows of all golden batches, one after the other. */
static inline void fix_rows(struct fixture *fix)
{
    struct err err;
    const json_t *batches = json_object_get(fix->expected, "batches");
    uint64_t offset[256] = {0};
    int32_t *ids = calloc(1 << 16, sizeof(*ids)), *labels = calloc(1 << 16, sizeof(*labels));
    uint32_t rows = 0;
    for (size_t b = 0; b < json_array_size(batches); b++) {
        const json_t *batch = json_array_get(batches, b), *all = json_object_get(batch, "ids");
        uint32_t tokens = 0, learnt = 0;
        fix->batch_rows = (uint32_t)json_array_size(all);
        for (size_t r = 0; r < json_array_size(all); r++, rows++) {
            const json_t *row = json_array_get(all, r),
                         *learn = json_array_get(json_object_get(batch, "labels"), r);
            offset[rows + 1] = offset[rows] + json_array_size(row);
            for (size_t t = 0; t < json_array_size(row); t++, tokens++) {
                int32_t label = (int32_t)json_integer_value(json_array_get(learn, t));
                ids[offset[rows] + t] = (int32_t)json_integer_value(json_array_get(row, t));
                labels[offset[rows] + t] = t == 0 ? ROWS_IGNORE : label;
                learnt += t > 0 && label != ROWS_IGNORE;
            }
        }
        fix->tokens_bound = tokens > fix->tokens_bound ? tokens : fix->tokens_bound;
        fix->labelled_bound = learnt > fix->labelled_bound ? learnt : fix->labelled_bound;
    }
    struct rows train = {.count = rows, .offset = offset, .ids = ids, .labels = labels}, eval = train;
    eval.count = 6; /* not a multiple of the batch, so the last batch is short */
    struct buf file;
    buf_init(&file, 1 << 24);
    must(rows_save(&train, &file, &err));
    must(blob_server_add(&fix->store, file.data, file.size, fix->train));
    buf_clear(&file);
    must(rows_save(&eval, &file, &err));
    must(blob_server_add(&fix->store, file.data, file.size, fix->eval));
    buf_fini(&file);
    free(ids);
    free(labels);
}

/* Opens a model (a folder or a file), the golden file of its training, and the adapter that it starts from.
 */
static inline void fix_open_files(struct fixture *fix, const char *model, const char *expected,
                                  const char *adapter)
{
    /* as motley-worker does: the store of files and the workers that are threads here may write to a killed
     * peer */
    signal(SIGPIPE, SIG_IGN);
    struct err err;
    char path[1024], sha256[65];
    json_error_t error;
    memset(fix, 0, sizeof(*fix));
    assert_int_equal(scratch_make(&fix->scratch), 0);
    must(file_mkdirs(scratch_path(&fix->scratch, "blobs"), 0700, &err));
    assert_int_equal(blob_server_start(&fix->store, scratch_path(&fix->scratch, "blobs")), 0);
    char certs[96]; /* short enough for cluster.h's names */
    assert_true(snprintf(certs, sizeof(certs), "%.80s", fix->scratch.dir) == (int)strlen(fix->scratch.dir));
    test_cluster_make(&fix->cluster, certs, "lab");
    for (int r = 0; r < FIX_RANKS; r++) {
        char identity[48];
        snprintf(identity, sizeof(identity), "agent:node%d", r);
        test_cert_make(&fix->certs[r], &fix->cluster, certs, identity);
    }
    fix_model(fix, model);
    fix->expected = json_load_file(expected, 0, &error);
    assert_non_null(fix->expected);
    fix->lora = json_object_get(fix->expected, "lora");
    if (!fix->lora)
        fix->lora = fix->expected;
    fix_rows(fix);
    fix->adapter = json_object();
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    for (int f = 0; f < 2; f++) {
        snprintf(path, sizeof(path), "%s/%s", adapter, files[f]);
        fix_add_file(fix, path, sha256, NULL);
        json_object_set_new(fix->adapter, files[f], json_string(sha256));
    }
}

/* Opens one of the tiny golden models. */
static inline void fix_open(struct fixture *fix, const char *name)
{
    char dir[300], expected[400], adapter[400];
    golden_folder(name, dir, sizeof(dir));
    snprintf(expected, sizeof(expected), "%s/expected.json", dir);
    snprintf(adapter, sizeof(adapter), "%s/adapter_init", dir);
    fix_open_files(fix, dir, expected, adapter);
}

static inline void fix_close(struct fixture *fix)
{
    blob_server_stop(&fix->store);
    test_cluster_fini(&fix->cluster);
    json_decref(fix->model);
    json_decref(fix->expected);
    json_decref(fix->adapter);
    scratch_remove(&fix->scratch);
}

/* --- assignments --- */

static inline double fix_golden(const struct fixture *fix, const char *what, uint64_t step)
{
    const json_t *of = json_object_get(json_object_get(fix->expected, "lora_fp64"), what);
    return json_number_value(json_array_get(of, step));
}

/* Returns the specification of the golden LoRA run. */
static inline json_t *fix_spec(const struct fixture *fix)
{
    const json_t *lora = fix->lora, *betas = json_object_get(fix->expected, "betas");
    char train[80], eval[80];
    snprintf(train, sizeof(train), "sha256:%s", fix->train);
    snprintf(eval, sizeof(eval), "sha256:%s", fix->eval);
    json_t *spec = json_pack(
        "{s:s, s:{s:s, s:O, s:O, s:f, s:O}, s:{s:s, s:s, s:s, s:b}, s:{s:i, s:O, s:O, s:O, s:f, s:O, s:O, "
        "s:O}, s:{s:i}}",
        "model", "tiny", "method", "kind", "lora", "rank", json_object_get(lora, "r"), "alpha",
        json_object_get(lora, "alpha"), "dropout", 0.0, "targets", json_object_get(lora, "targets"), "data",
        "train", train, "eval", eval, "format", "tokens", "shuffle", 0, "train", "batch_rows",
        (int)fix->batch_rows, "steps", json_object_get(fix->expected, "steps"), "learning_rate",
        json_object_get(lora, "peak_lr"), "warmup_steps", json_object_get(fix->expected, "warmup"),
        "final_fraction", 0.1, "betas", betas, "eps", json_object_get(fix->expected, "eps"), "clip_norm",
        json_object_get(fix->expected, "clip"), "checkpoint", "every_steps", 0);
    static const char *const more[] = {"target_parameters", "rank_pattern", "alpha_pattern", "rslora"};
    for (size_t i = 0; i < sizeof(more) / sizeof(*more); i++)
        if (json_object_get(lora, more[i]))
            json_object_set(json_object_get(spec, "method"), more[i], json_object_get(lora, more[i]));
    return spec;
}

static inline const char *fix_kind(const struct fixture *fix, uint32_t rank)
{
    const char *all = getenv("MOTLEY_TEST_DEVICE");
    return fix->kind[rank] ? fix->kind[rank] : all ? all : "cpu";
}

/* Makes the `assign` of one rank. Borrows everything. */
static inline json_t *fix_assign(const struct fixture *fix, const struct plan *plan, const json_t *spec,
                                 uint32_t rank, json_int_t epoch)
{
    struct err err;
    json_t *ranks = json_array(), *codec = plan_to_json(plan, &err);
    char cache[600];
    assert_non_null(codec);
    json_t *slices = plan_slices(codec, &err);
    assert_non_null(slices);
    json_decref(codec);
    codec = json_deep_copy(json_array_get(slices, rank));
    json_decref(slices);
    for (uint32_t r = 0; r < plan->rank_count; r++)
        json_array_append_new(ranks, json_pack("{s:i, s:s, s:s}", "rank", (int)r, "node", plan->ranks[r].node,
                                               "device", plan->ranks[r].device));
    char identity[48];
    snprintf(identity, sizeof(identity), "agent:node%u", rank);
    snprintf(cache, sizeof(cache), "%s/cache", fix->scratch.dir);
    json_t *assign = json_pack(
        "{s:s, s:i, s:i, s:I, s:i, s:o, s:o, s:s, s:O, s:O, s:{s:s, s:s}, s:{s:i, s:O}, s:{s:i}}", "type",
        "assign", "job", 7, "run", 70, "epoch", epoch, "rank", (int)rank, "ranks", ranks, "plan", codec,
        "plan_digest", plan->digest, "spec", spec, "model", fix->model, "data", "train", fix->train, "eval",
        fix->eval, "start", "step", 0, "adapter", fix->adapter, "limits", "wait", FIX_SECONDS);
    json_object_set_new(assign, "local",
                        json_pack("{s:{s:s, s:s, s:i, s:I}, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I}",
                                  "device", "name", plan->ranks[rank].device, "kind", fix_kind(fix, rank),
                                  "threads", 1, "memory_limit_bytes",
                                  (json_int_t)plan->ranks[rank].memory_limit_bytes, "listen", "127.0.0.1:0",
                                  "identity", identity, "cert", fix->certs[rank].cert_file, "key",
                                  fix->certs[rank].key_file, "ca", fix->cluster.ca_file, "api",
                                  fix->store.url, "cache", cache, "cache_limit_bytes", (json_int_t)1 << 30));
    if (fix->isa[rank])
        json_object_set_new(json_object_get(json_object_get(assign, "local"), "device"), "isa",
                            json_string(fix->isa[rank]));
    return assign;
}

/* --- the other end of the socket --- */

static inline void *fix_worker_main(void *arg)
{
    struct fix_worker *w = arg;
    w->result = worker_main(w->worker, &w->err);
    return NULL;
}

/* Sends and frees a message. Sending to a worker that a hook has killed may fail; tests look at what it
 * reported. */
static inline void fix_send(const struct fix_worker *w, json_t *message)
{
    struct err err;
    if (frame_send(w->fd, message, clock_mono_ns() + 10000000000u, &err) != 0 && errno != EPIPE)
        fail_msg("%s", err.text);
    json_decref(message);
}

static inline int fix_try_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    close(fd);
    return -1;
}

static inline int fix_connect(const char *path)
{
    int fd = fix_try_connect(path);
    if (fd < 0)
        fail_msg("could not connect to %s: %s", path, strerror(errno));
    return fd;
}

static inline json_t *fix_receive(const struct fix_worker *w)
{
    struct err err;
    json_t *message = NULL;
    must(frame_recv(w->fd, &frame_limits_default, clock_mono_ns() + FIX_SECONDS * 1000000000ull, &message,
                    &err));
    return message;
}

static inline void fix_start_worker(const struct fixture *fix, struct fix_worker *w, uint32_t rank)
{
    struct err err;
    memset(w, 0, sizeof(*w));
    snprintf(w->dir, sizeof(w->dir), "%s/w%u", fix->scratch.dir, rank);
    must(file_mkdirs(w->dir, 0700, &err));
    snprintf(w->socket, sizeof(w->socket), "%s/w%u/s", fix->scratch.dir, rank);
    if (fix->program) {
        const char *argv[] = {fix->program, "--socket", w->socket, "--dir", w->dir, NULL};
        struct process_options process = {.argv = argv, .stderr_path = "-", .die_with_parent = true};
        must(process_spawn(&process, &w->pid, &err));
        uint64_t deadline_ns = clock_mono_ns() + 10000000000u;
        while ((w->fd = fix_try_connect(w->socket)) < 0 && clock_mono_ns() < deadline_ns)
            sched_yield();
        return;
    }
    struct worker_options options = {.socket = w->socket, .dir = w->dir};
    must(worker_create(&options, &w->worker, &err));
    w->fd = fix_connect(w->socket);
    assert_int_equal(pthread_create(&w->thread, NULL, fix_worker_main, w), 0);
}

static inline void fix_ack(const struct fix_worker *w, json_int_t epoch)
{
    fix_send(w,
             json_pack("{s:s, s:i, s:I, s:I}", "type", "ack", "run", 70, "epoch", epoch, "seq", w->last_seq));
}

static inline void fix_note_step(struct outcome *out, const json_t *event)
{
    uint64_t step = (uint64_t)json_integer_value(json_object_get(event, "step"));
    if (out->steps == 0)
        out->first_step = step;
    assert_true(step < FIX_STEPS);
    assert_int_equal(step, out->first_step + out->steps);
    out->loss[step] = json_number_value(json_object_get(event, "loss"));
    out->norm[step] = json_number_value(json_object_get(event, "grad_norm"));
    out->rate[step] = json_number_value(json_object_get(event, "learning_rate"));
    out->steps++;
}

/* Adds an event of one rank to the outcome; its last event sets `end`. */
static inline void fix_note(struct outcome *out, struct fix_worker *w, const json_t *event)
{
    const char *type = json_string_value(json_object_get(event, "type"));
    if (strcmp(type, "worker_hello") == 0)
        return;
    assert_int_equal(json_integer_value(json_object_get(event, "seq")), w->last_seq + 1);
    w->last_seq++;
    if (strcmp(type, "step") == 0) {
        fix_note_step(out, event);
    } else if (strcmp(type, "eval") == 0 && out->evals < 8) {
        out->eval_step[out->evals] = (uint64_t)json_integer_value(json_object_get(event, "step"));
        out->eval[out->evals++] = json_number_value(json_object_get(event, "loss"));
    } else if (strcmp(type, "sample") == 0) {
        json_array_append(out->samples, (json_t *)event);
    } else if (strcmp(type, "checkpoint") == 0) {
        const size_t count = json_array_size(out->checkpoints);
        const json_t *before = json_array_get(out->checkpoints, count - 1);
        if (before && json_equal(json_object_get(before, "step"), json_object_get(event, "step")))
            json_array_remove(out->checkpoints, count - 1); /* it has turned out to be the best one */
        json_array_append(out->checkpoints, (json_t *)event);
    } else if (strcmp(type, "done") == 0) {
        out->done++;
        const char *warnings = json_string_value(json_object_get(event, "warnings"));
        const size_t used = strlen(out->warnings);
        snprintf(out->warnings + used, sizeof(out->warnings) - used, "%s", warnings ? warnings : "");
        if (json_object_get(event, "artifacts"))
            out->artifacts = json_incref(json_object_get(event, "artifacts"));
    } else if (strcmp(type, "failed") == 0) {
        json_array_append(out->failures, (json_t *)event);
    } else if (strcmp(type, "stopped") == 0) {
        json_array_append(out->stopped, (json_t *)event);
    }
    out->traces += strcmp(type, "trace") == 0;
    out->ranks += strcmp(type, "ranks") == 0;
    out->memories += strcmp(type, "memory") == 0;
    bool last = strcmp(type, "done") == 0 || strcmp(type, "failed") == 0 || strcmp(type, "stopped") == 0;
    if (last)
        snprintf(w->end, sizeof(w->end), "%s", type);
}

/* Called for every event (borrowed) before it is recorded, so that a test can act on it. */
typedef void fix_hook(void *arg, struct fix_worker *workers, uint32_t rank, const json_t *event);

static inline bool fix_ended(const struct fix_worker *workers, uint32_t count)
{
    uint32_t r = 0;
    while (r < count && workers[r].end[0])
        r++;
    return r == count;
}

/* Reads and acknowledges events until every rank has sent its last one, or a hook has set `end`. */
static inline void fix_watch(struct fix_worker *workers, uint32_t count, json_int_t epoch,
                             struct outcome *out, fix_hook *hook, void *arg)
{
    uint64_t deadline_ns = clock_mono_ns() + FIX_SECONDS * 1000000000ull;
    uint32_t ready = 0;
    json_t *peers = json_array();
    while (!fix_ended(workers, count)) {
        struct pollfd fds[FIX_RANKS];
        for (uint32_t r = 0; r < count; r++)
            fds[r] = (struct pollfd){.fd = workers[r].end[0] ? -1 : workers[r].fd, .events = POLLIN};
        if (poll(fds, count, clock_left_ms(deadline_ns, FIX_SECONDS * 1000)) <= 0)
            fail_msg("no rank said anything before the deadline");
        for (uint32_t r = 0; r < count; r++) {
            if (!fds[r].revents || workers[r].end[0])
                continue;
            json_t *event = fix_receive(&workers[r]);
            deadline_ns = clock_mono_ns() + FIX_SECONDS * 1000000000ull; /* progress was made */
            if (hook)
                hook(arg, workers, r, event);
            if (strcmp(json_string_value(json_object_get(event, "type")), "worker_ready") == 0) {
                json_array_append_new(peers, json_pack("{s:i, s:O, s:O}", "rank", (int)r, "address",
                                                       json_object_get(event, "address"), "identity",
                                                       json_object_get(event, "identity")));
                ready++;
                out->ready_ns = clock_mono_ns() - out->ready_ns;
                for (uint32_t p = 0; ready == count && p < count; p++)
                    fix_send(&workers[p], json_pack("{s:s, s:i, s:I, s:O}", "type", "peers", "run", 70,
                                                    "epoch", epoch, "peers", peers));
            }
            fix_note(out, &workers[r], event);
            fix_ack(&workers[r], epoch);
            json_decref(event);
        }
    }
    json_decref(peers);
}

static inline void outcome_init(struct outcome *out)
{
    memset(out, 0, sizeof(*out));
    out->samples = json_array();
    out->checkpoints = json_array();
    out->failures = json_array();
    out->stopped = json_array();
}

static inline void fix_join(struct fix_worker *workers, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++) {
        if (workers[r].pid > 0) {
            int status = 0;
            waitpid(workers[r].pid, &status, 0);
            workers[r].result = WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
        } else {
            pthread_join(workers[r].thread, NULL);
            worker_destroy(workers[r].worker);
        }
        close(workers[r].fd);
    }
}

/* Runs a job with one worker for each rank. `change` (may be NULL) edits each rank's assignment. */
static inline void fix_run(const struct fixture *fix, const struct plan *plan, const json_t *spec,
                           void (*change)(void *arg, json_t *assign), fix_hook *hook, void *arg,
                           struct outcome *out)
{
    struct fix_worker workers[FIX_RANKS];
    outcome_init(out);
    for (uint32_t r = 0; r < plan->rank_count; r++)
        fix_start_worker(fix, &workers[r], r);
    out->ready_ns = clock_mono_ns();
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        json_t *assign = fix_assign(fix, plan, spec, r, 1);
        if (change)
            change(arg, assign);
        fix_send(&workers[r], assign);
    }
    fix_watch(workers, plan->rank_count, 1, out, hook, arg);
    fix_join(workers, plan->rank_count);
}

/* Makes a pipeline of `stages` stages over the golden batches. */
static inline struct plan *fix_plan(const struct fixture *fix, uint32_t stages, uint32_t micro_rows)
{
    struct err err;
    struct hand_shape shape = {.stages = stages,
                               .batch_rows = fix->batch_rows,
                               .micro_rows = micro_rows,
                               .tokens_bound = fix->tokens_bound,
                               .labelled_bound = fix->labelled_bound,
                               .rows_bound = fix->batch_rows,
                               .sequence_bound = 128,
                               .samples = true,
                               .memory_limit_bytes = (uint64_t)1 << 30};
    struct plan *plan = hand_plan(&fix->config, &shape, &err);
    if (!plan)
        fail_msg("the hand-written plan is refused: %s", err.text);
    return plan;
}

/* Makes the last `last` values of one tensor (0: all) so large that its products overflow. */
static inline void fix_spoil_values(struct fixture *fix, const char *tensor_name, uint64_t last)
{
    struct err err;
    struct buf bytes;
    struct safetensors *file = NULL;
    char path[400], sha256[65];
    size_t index;
    json_t *item;
    json_array_foreach (json_object_get(fix->model, "files"), index, item) {
        if (strcmp(json_string_value(json_object_get(item, "name")), "model.safetensors") != 0)
            continue;
        buf_init(&bytes, 1 << 28);
        snprintf(path, sizeof(path), "%s/%s", fix->store.dir,
                 json_string_value(json_object_get(item, "sha256")));
        must(file_read_all(path, bytes.limit, &bytes, &err));
        must(safetensors_open_memory(bytes.data, bytes.size, &file, &err));
        const struct safetensors_tensor *tensor = safetensors_find(file, tensor_name);
        assert_non_null(tensor);
        float huge = 3e38f;
        uint64_t spoilt = last > 0 ? last * sizeof(huge) : tensor->size;
        for (uint64_t at = tensor->size - spoilt; at < tensor->size; at += sizeof(huge))
            memcpy(bytes.data + tensor->offset + at, &huge, sizeof(huge));
        safetensors_close(file);
        must(blob_server_add(&fix->store, bytes.data, bytes.size, sha256));
        json_object_set_new(item, "sha256", json_string(sha256));
        buf_fini(&bytes);
    }
}

/* Makes all values of one tensor so large that its products overflow. */
static inline void fix_spoil_model(struct fixture *fix, const char *tensor_name)
{
    fix_spoil_values(fix, tensor_name, 0);
}

/* --- going on from a checkpoint --- */

/* The checkpoint that a run resumes. */
struct resume {
    uint64_t step;
    json_t *blobs; /* {name: {sha256, size}} */
};

/* A `change` that makes `assign` resume; arg is a struct resume. */
static inline void start_there(void *arg, json_t *assign)
{
    const struct resume *resume = arg;
    json_t *files = json_object();
    const char *name;
    json_t *value;
    json_object_foreach (resume->blobs, name, value)
        json_object_set(files, name, json_object_get(value, "sha256"));
    json_object_set_new(assign, "start",
                        json_pack("{s:I, s:o, s:I}", "step", (json_int_t)resume->step, "checkpoint", files,
                                  "reported", (json_int_t)resume->step + 2));
}

static inline const json_t *checkpoint_at(const struct outcome *out, uint64_t step)
{
    for (size_t c = 0; c < json_array_size(out->checkpoints); c++)
        if ((uint64_t)json_integer_value(json_object_get(json_array_get(out->checkpoints, c), "step")) ==
            step)
            return json_array_get(out->checkpoints, c);
    fail_msg("there is no checkpoint of step %llu", (unsigned long long)step);
    return NULL;
}

#endif
