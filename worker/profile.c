/* Profile mode. If the scheduler has the model's `config`, the request contains it and no weights are needed:
 * the engine measures with random ones. All devices of a machine are asked to begin at the same moment and to
 * run for the same time, so that each is measured beside busy neighbours. */
#include "worker/profile.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/json.h"
#include "engine/profile.h"
#include "model/shape/blocks.h"
#include "model/files/manifest.h"
#include "model/job/spec.h"
#include "worker/session/method.h"
#include "worker/session/report.h"

enum { SECONDS_MAX = 600, PAUSE_MS = 5 };

struct profile_job {
    struct local_part local;
    struct model_config config;
    struct stage_options method; /* the stage options that the method decides */
    const json_t *request;
    uint32_t sequence_tokens, tokens_max;
    uint64_t start_ns; /* common start, on this machine's monotonic clock; 0: start now */
    double seconds;
};

/* One layer is measured in place of all. Where patterns give layers different LoRA ranks, that layer gets the
 * mean rank. */
static int profile_sites_set(const struct lora_rules *rules, const struct model_config *config,
                             struct lora_options *lora, struct err *err)
{
    const struct lora_defaults defaults = {
        .rank = lora->rank, .alpha = lora->alpha, .where = "method", .targets = "targets"};
    struct lora_sites sites;
    if (lora_sites_of(rules, &defaults, config, &sites, err) < 0)
        return -1;
    lora->targets = lora_sites_targets(&sites);
    lora_sites_mean(&sites, config->layers, lora->ranks);
    return 0;
}

/* Reads `method`: an object as in a specification, or its kind as text with rank, alpha and targets beside
 * it. */
static int read_lora(const json_t *message, const struct model_config *config, struct lora_options *lora,
                     struct err *err)
{
    const json_t *method = json_object_get(message, "method");
    struct lora_rules rules = {0};
    struct json_reader reader;
    const char *name = NULL;
    int64_t rank = 16;
    const uint32_t attention = LORA_Q | LORA_K | LORA_V | LORA_O | LORA_QKV | LORA_Q_A | LORA_Q_B;
    *lora = (struct lora_options){.alpha = 32, .targets = attention & model_lora_targets(config)};
    jr_init(&reader, json_is_object(method) ? method : message, "method", err);
    if (json_is_object(method))
        jr_str(&reader, "kind", JR_OPTIONAL, 1, 32, &name);
    else
        name = json_string_value(method);
    jr_i64(&reader, "rank", JR_OPTIONAL, 1, 1024, &rank);
    jr_f64(&reader, "alpha", JR_OPTIONAL, 0, 1e6, &lora->alpha);
    jr_f64(&reader, "dropout", JR_OPTIONAL, 0, 0.999999, &lora->dropout);
    lora_rules_read(&reader, "targets", 1024, 0, 1e6, &rules);
    lora->rank = (uint32_t)rank;
    int result = jr_finish_loose(&reader);
    if (result == 0 && name && strcmp(name, "lora") != 0)
        result = err_set(err, ERR_UNSUPPORTED, "method: this worker measures lora, not %.40s", name);
    if (result == 0 && (rules.all_linear || rules.targets.expression || rules.targets.names.count > 0))
        result = profile_sites_set(&rules, config, lora, err);
    lora_rules_fini(&rules);
    return result;
}

/* Takes the method, base dtype, compute dtype and so on from the job's specification. A request without one
 * measures LoRA on fp32 with the request's compute dtype. */
static int read_method(const json_t *message, const json_t *spec, struct profile_job *job, struct err *err)
{
    const struct model_config *config = &job->config;
    struct lora_options *lora = &job->method.lora;
    struct job_spec parsed;
    if (!spec)
        return read_lora(message, config, lora, err);
    if (spec_parse(spec, &parsed, err) < 0)
        return err_wrap(err, "spec");
    job->method = (struct stage_options){.config = config};
    int result = method_options(&parsed, &job->method, err);
    if (result == 0 && !job->method.full) {
        struct lora_sites sites = lora->sites; /* one layer is measured in place of all */
        memset(&lora->sites, 0, sizeof(lora->sites));
        lora_sites_mean(&sites, config->layers, lora->ranks);
    }
    spec_fini(&parsed);
    return result;
}

static int profile_read_config(const json_t *model, const struct local_part *local,
                               struct model_config *config, struct err *err)
{
    const json_t *document = json_object_get(model, "config");
    if (json_is_object(document))
        return model_config_parse(document, config, err);
    struct model_part part;
    struct fetch_transport transport;
    struct model_source *source = NULL;
    struct model *opened = NULL;
    if (model_part_read(model, &part, err) < 0)
        return -1;
    struct fetch_options options = {.files = part.files,
                                    .file_count = part.file_count,
                                    .content = part.content,
                                    .cache_dir = local->cache,
                                    .cache_limit_bytes = local->cache_limit_bytes};
    int result = fetch_transport_http(local->api, local->token, local->api_ca, 60, &transport, err);
    if (result == 0)
        result = model_source_open_fetched(&options, &transport, &source, err);
    if (result == 0)
        result = model_open(source, &opened, err);
    if (result == 0)
        *config = *model_get_config(opened);
    model_close(opened);
    free(part.files);
    return result;
}

static int profile_read_job(const json_t *message, struct profile_job *job, struct err *err)
{
    struct json_reader reader;
    const json_t *model = NULL;
    static const char *const computes[] = {"fp32", "bf16", "fp16", NULL};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    const json_t *spec = NULL;
    int compute = 0;
    memset(job, 0, sizeof(*job));
    job->sequence_tokens = 512;
    job->seconds = 3;
    jr_init(&reader, message, "", err);
    jr_any(&reader, "request", JR_OPTIONAL, &job->request);
    jr_object(&reader, "model", JR_REQUIRED, &model);
    jr_choice(&reader, "compute", JR_OPTIONAL, computes, &compute);
    jr_object(&reader, "spec", JR_OPTIONAL, &spec);
    jr_u32(&reader, "sequence_tokens", JR_OPTIONAL, 1, 1 << 20, &job->sequence_tokens);
    jr_u32(&reader, "tokens_max", JR_OPTIONAL, 1, 1 << 24, &job->tokens_max);
    jr_f64(&reader, "seconds", JR_OPTIONAL, 0, SECONDS_MAX, &job->seconds);
    if (jr_finish_loose(&reader) < 0 || local_read(message, &job->local, err) < 0)
        return -1;
    job->start_ns = (uint64_t)job->local.start_ns;
    if (profile_read_config(model, &job->local, &job->config, err) < 0 ||
        model_config_runnable(&job->config, err) < 0)
        return err_wrap(err, "model");
    if (read_method(message, spec, job, err) < 0)
        return -1;
    if (!spec || spec_compute_is_open(spec))
        job->method.compute = dtypes[compute];
    return 0;
}

static bool stopped(void *context)
{
    const struct stop_request *stop = context;
    return atomic_load(&stop->asked);
}

/* Waits for the common start. A start in the past does not wait. */
static int wait_for_start(const struct profile_job *job, const struct stop_request *stop, struct err *err)
{
    while (clock_mono_ns() < job->start_ns) {
        if (atomic_load(&stop->asked))
            return err_set(err, ERR_CANCELLED, "told to stop before measuring");
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000L}, NULL);
    }
    return 0;
}

/* Returns how long this process's threads have been ready to run without a CPU: the second figure of each
 * thread's schedstat (the kernel's Documentation/scheduler/sched-stats.rst). 0 where the kernel does not
 * count it. */
static uint64_t threads_waited_ns(void)
{
    uint64_t sum_ns = 0;
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *entry; threads && (entry = readdir(threads));) {
        char path[64];
        unsigned long long waited_ns = 0;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/proc/self/task/%.20s/schedstat", entry->d_name);
        FILE *file = fopen(path, "re");
        if (file && fscanf(file, "%*u %llu", &waited_ns) == 1)
            sum_ns += waited_ns;
        if (file)
            fclose(file);
    }
    if (threads)
        closedir(threads);
    return sum_ns;
}

static int worker_measure(const struct profile_job *job, struct device *device,
                          const struct stop_request *stop, json_t **document, struct err *err)
{
    double left_s = job->seconds;
    if (job->start_ns > 0)
        left_s = ((double)job->start_ns - (double)clock_mono_ns()) * 1e-9 + job->seconds;
    struct profile_request request = {.config = &job->config,
                                      .method = job->method,
                                      .sequence_tokens = job->sequence_tokens,
                                      .tokens_max = job->tokens_max,
                                      .seconds = left_s > 0.1 ? left_s : 0.1,
                                      .now_ns = clock_mono_ns,
                                      .waited_ns = threads_waited_ns,
                                      .stop = stopped,
                                      .context = (void *)stop};
    return profile_measure(device, &request, document, err);
}

/* Memory that a run needs while its weights are loaded and profiling does not: the resident chunks, the part
 * of a GGUF header that stays (6 MiB, mostly the vocabulary), and 4 MiB of connections to peers and the
 * store. Measured with SmolLM2 and tiny models. */
enum { GGUF_HEADER_BYTES = 6 << 20, CONNECTION_BYTES = 4 << 20 };

static uint64_t loading_bytes(const json_t *message)
{
    uint64_t sizes = 0, chunks = (uint64_t)SESSION_RESIDENT_CHUNKS * MANIFEST_CHUNK_BYTES, header = 0;
    size_t index;
    json_t *file;
    json_array_foreach (json_object_get(json_object_get(message, "model"), "files"), index, file) {
        const char *name = json_string_value(json_object_get(file, "name"));
        json_int_t size = json_integer_value(json_object_get(file, "size"));
        sizes += size > 0 ? (uint64_t)size : 0;
        if (name && strlen(name) > 5 && strcmp(name + strlen(name) - 5, ".gguf") == 0)
            header = GGUF_HEADER_BYTES;
    }
    return (sizes < chunks ? sizes : chunks) + header + CONNECTION_BYTES;
}

/* Adds the figures of this process. The base is the worker's memory besides its device's: libraries, the
 * matrix library's own buffers, this program's heap, and what loading needs. */
static void profile_complete(const struct profile_job *job, const json_t *message, struct device *device,
                             uint64_t resident, json_t *document)
{
    struct mem_account account;
    char when[32];
    device_memory(device, &account);
    uint64_t peak = process_peak_bytes();
    uint64_t base = peak > account.peak_total + resident ? peak - account.peak_total : resident;
    json_object_set_new(document, "device", json_string(job->local.device));
    json_object_set_new(document, "base_process_bytes",
                        json_integer((json_int_t)(base + loading_bytes(message))));
    json_object_set_new(document, "neighbours_busy", json_boolean(job->start_ns > 0));
    json_object_set_new(document, "measured_at", json_string(clock_rfc3339(clock_wall_us(), when)));
}

int profile_run(struct worker_link *link, const json_t *message, const struct stop_request *stop,
                struct err *err)
{
    struct profile_job job;
    struct device *device = NULL;
    json_t *document = NULL;
    if (profile_read_job(message, &job, err) < 0)
        return err_wrap(err, "profile");
    uint64_t resident = process_resident_bytes();
    int result = local_device_open(&job.local, &device, err);
    if (result == 0)
        result = wait_for_start(&job, stop, err);
    if (result == 0)
        result = worker_measure(&job, device, stop, &document, err);
    if (result == 0)
        profile_complete(&job, message, device, resident, document);
    device_close(device);
    if (result < 0)
        return err_wrap(err, "profile of %s", job.local.device);
    json_t *event = json_pack("{s:o}", "document", document);
    if (event && job.request)
        json_object_set(event, "request", (json_t *)job.request);
    return worker_link_emit(link, "profile", event, err);
}
