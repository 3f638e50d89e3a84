#include "agent/worker_start.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"

static const uint64_t CARD_HOST_BYTES = (uint64_t)16 << 30;

static const char *worker_start_core_type(const char *isa)
{
    return strncmp(isa, "avx512", 6) == 0 || strcmp(isa, "amx") == 0 ? "SKYLAKEX"
           : strcmp(isa, "avx2") == 0                                ? "HASWELL"
           : strcmp(isa, "sse42") == 0                               ? "NEHALEM"
                                       : NULL; /* native: OpenBLAS detects the CPU by itself */
}

static void worker_start_add(struct worker_env *env, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void worker_start_add(struct worker_env *env, const char *fmt, ...)
{
    size_t count = 0;
    while (env->list[count])
        count++;
    va_list args;
    va_start(args, fmt);
    vsnprintf(env->text[count], WORKER_ENV_SIZE, fmt, args);
    va_end(args);
    env->list[count] = env->text[count];
}

void worker_env_make(struct worker_env *env, const struct worker_place *place)
{
    const struct agent_device *device = place->device;
    const char *type = worker_start_core_type(device->isa);
    memset(env->list, 0, sizeof(env->list));
    worker_start_add(env,
                     "OPENBLAS_NUM_THREADS=1"); /* the engine itself divides products among its threads */
    worker_start_add(env, "OMP_NUM_THREADS=%u", device->threads);
    /* The isa of an emulated card (warp32, warp64) is none of the CPU's kernels. */
    worker_start_add(env, "MOTLEY_ISA=%s", strcmp(device->kind, "cpu") == 0 ? device->isa : "native");
    worker_start_add(env, "OPENBLAS_CORETYPE%s%s", !type ? "" : "=", !type ? "" : type);
    /* The driver keeps translated kernels in the home folder of the user unless it is told otherwise, and an
     * agent that runs as a service cannot write there. */
    if (strcmp(device->kind, "cuda") == 0 && !getenv("CUDA_CACHE_PATH"))
        worker_start_add(env, "CUDA_CACHE_PATH=%s/cuda-cache", place->home);
    if (device->visible[0] != '\0')
        worker_start_add(env, "CUDA_VISIBLE_DEVICES=%s", device->visible);
}

/* Writes "host", or "[v6]" for an IPv6 address. */
static void host_text(const char *host, char *out, size_t size)
{
    snprintf(out, size, strchr(host, ':') ? "[%s]" : "%s", host);
}

json_t *worker_document(const struct worker_place *place, const json_t *message)
{
    const struct agent_device *device = place->device;
    const struct agent_identity *identity = place->identity;
    char host[300], listen[320], cache[WORKER_ENV_SIZE];
    host_text(place->config->listen, host, sizeof(host));
    snprintf(listen, sizeof(listen), "%s:%u-%u", host, place->config->port_first, place->config->port_last);
    snprintf(cache, sizeof(cache), "%s/cache", place->home);
    json_t *local = json_pack(
        "{s:{s:s, s:s, s:s, s:I, s:I, s:I}, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s?, s:s, s:s, s:I, s:s*, "
        "s:s}",
        "device", "name", device->name, "kind", device->kind, "isa", device->isa, "threads",
        (json_int_t)device->threads, "memory_limit_bytes", (json_int_t)device->memory_limit_bytes, "index",
        (json_int_t)(device->visible[0] != '\0' ? 0 : device->index), "listen", listen, "advertise",
        place->config->host, "identity", identity->certificate.identity, "cert", identity->cert_file, "key",
        identity->key_file, "ca", identity->trust_file, "api", identity->api, "api_ca",
        strncmp(identity->api, "https", 5) == 0 ? identity->trust_file : NULL, "token", identity->token,
        "cache", cache, "cache_limit_bytes", (json_int_t)place->config->cache_limit_bytes, "home",
        place->config->private ? place->config->private : place->home, "sandbox",
        agent_sandboxes[place->config->sandbox]);
    const struct agent_pace *pace = &device->pace;
    if (local && strcmp(device->kind, "paced") == 0)
        json_object_set_new(json_object_get(local, "device"), "pace",
                            json_pack("{s:f, s:f, s:f, s:f, s:f}", "flops", pace->flops, "flops_16",
                                      pace->flops_16, "bytes_per_s", pace->bytes_per_s, "bus_bytes_per_s",
                                      pace->bus_bytes_per_s, "launch_s", pace->launch_s));
    json_t *document = !local ? NULL : json_copy((json_t *)(uintptr_t)message);
    const json_t *start = json_object_get(message, "start_in_ms");
    if (document && json_is_integer(start))
        json_object_set_new(local, "start_ns",
                            json_integer((json_int_t)place->read_ns + json_integer_value(start) * 1000000));
    if (!document || json_object_set_new(document, "local", local) < 0) {
        json_decref(document);
        return NULL;
    }
    return document;
}

uint64_t worker_host_bytes(const struct agent_device *device, const json_t *message)
{
    bool card = strcmp(device->kind, "cuda") == 0 || strcmp(device->kind, "hip") == 0;
    const json_t *ranks = json_object_get(json_object_get(message, "plan"), "ranks");
    size_t rank = (size_t)json_integer_value(json_object_get(message, "rank"));
    json_int_t moments =
        json_integer_value(json_object_get(json_array_get(ranks, rank), "moments_host_bytes"));
    return (card ? CARD_HOST_BYTES : device->memory_limit_bytes) + (moments > 0 ? (uint64_t)moments : 0);
}

int worker_work_read(const json_t *message, struct child_work *work, struct err *err)
{
    struct json_reader reader;
    const char *type = json_string_value(json_object_get(message, "type")), *device = "";
    *work = (struct child_work){.run = -1, .epoch = -1, .rank = -1, .request = -1};
    jr_init(&reader, message, type ? type : "", err);
    if (type && strcmp(type, "assign") == 0) {
        jr_i64(&reader, "run", JR_REQUIRED, 0, INT64_MAX, &work->run);
        jr_i64(&reader, "epoch", JR_REQUIRED, 0, INT64_MAX, &work->epoch);
        jr_i64(&reader, "rank", JR_REQUIRED, 0, 1 << 20, &work->rank);
    } else {
        jr_i64(&reader, "request", JR_REQUIRED, 0, INT64_MAX, &work->request);
    }
    jr_str(&reader, "device", JR_REQUIRED, 1, sizeof(work->device) - 1, &device);
    snprintf(work->device, sizeof(work->device), "%s", device);
    return jr_finish_loose(&reader);
}

enum err_code worker_loss_code(const char *kind, const char *why)
{
    static const char aborted[] = "killed by signal 6 ";
    return strcmp(kind, "hip") == 0 && strncmp(why, aborted, sizeof(aborted) - 1) == 0 ? ERR_DEVICE_FAULT
                                                                                       : ERR_PEER;
}
