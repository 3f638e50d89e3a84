/* Reads and checks an assignment. Unknown keys are ignored, because the scheduler may be newer; every key
 * that is read is checked. */
#include "worker/session/assign.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "program/check/check.h"
#include "program/codec.h"

enum { TEXT_MAX = 4096, RANKS_MAX = 16384, CHECKPOINT_BYTES_MIN = 1024, CHECKPOINT_BYTES_MAX = 32 << 20 };
#define BYTES_MAX ((uint64_t)1 << 60)
#define EPOCH_MAX ((int64_t)1 << 62)

const char *blob_name(const char *text)
{
    static const char prefix[] = "sha256:";
    if (!text)
        return NULL;
    if (strncmp(text, prefix, sizeof(prefix) - 1) == 0)
        text += sizeof(prefix) - 1;
    return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64 ? text : NULL;
}

static int read_blob(struct json_reader *reader, const char *key, enum jr_need need, const char **out)
{
    const char *text = NULL;
    if (jr_str(reader, key, need, 64, 80, &text) <= 0)
        return 0;
    *out = blob_name(text);
    return *out ? 0 : jr_fail(reader, key, "\"%s\" is no SHA-256 in hex", text);
}

/* Reads {file name: sha256}: plain names, valid hashes. A document that has them under "blobs" is
 * accepted too. */
static int read_blobs(struct json_reader *reader, const char *key, const json_t **out)
{
    const json_t *object = NULL;
    if (jr_object(reader, key, JR_OPTIONAL, &object) <= 0)
        return 0;
    const json_t *inner = json_object_get(object, "blobs");
    if (json_is_object(inner))
        object = inner;
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)object, name, value) {
        if (!*name || strlen(name) > 200 || strchr(name, '/') || !blob_name(json_string_value(value)))
            return jr_fail(reader, key, "\"%.60s\" is no plain file name with a SHA-256", name);
    }
    *out = json_object_size(object) > 0 ? object : NULL;
    return 0;
}

static void assign_pace_read(struct json_reader *device, struct device_pace *pace)
{
    struct json_reader rates;
    jr_sub(device, "pace", JR_REQUIRED, &rates);
    jr_f64(&rates, "flops", JR_REQUIRED, 1, 1e18, &pace->flops);
    jr_f64(&rates, "flops_16", JR_REQUIRED, 1, 1e18, &pace->flops_16);
    jr_f64(&rates, "bytes_per_s", JR_REQUIRED, 1, 1e18, &pace->bytes_per_s);
    jr_f64(&rates, "bus_bytes_per_s", JR_REQUIRED, 1, 1e18, &pace->bus_bytes_per_s);
    jr_f64(&rates, "launch_s", JR_REQUIRED, 0, 1, &pace->launch_s);
}

int local_read(const json_t *message, struct local_part *local, struct err *err)
{
    static const char *const sandboxes[] = {"auto", "required", "off", NULL}; /* enum local_sandbox */
    struct json_reader top, reader, device;
    memset(local, 0, sizeof(*local));
    local->kind = "cpu";
    local->threads = 1;
    local->cache_limit_bytes = (uint64_t)8 << 30;
    jr_init(&top, message, "", err);
    jr_sub(&top, "local", JR_REQUIRED, &reader);
    jr_sub(&reader, "device", JR_REQUIRED, &device);
    jr_str(&device, "name", JR_REQUIRED, 1, 255, &local->device);
    jr_str(&device, "kind", JR_OPTIONAL, 1, 64, &local->kind);
    jr_str(&device, "isa", JR_OPTIONAL, 1, 64, &local->isa);
    if (strcmp(local->kind, "paced") == 0)
        assign_pace_read(&device, &local->pace);
    jr_u32(&device, "threads", JR_OPTIONAL, 1, 64, &local->threads);
    jr_u32(&device, "index", JR_OPTIONAL, 0, 255, &local->index);
    jr_bytes(&device, "memory_limit_bytes", JR_OPTIONAL, 0, BYTES_MAX, &local->memory_limit_bytes);
    jr_str(&reader, "listen", JR_OPTIONAL, 1, 255, &local->listen);
    jr_str(&reader, "advertise", JR_OPTIONAL, 1, 255, &local->advertise);
    jr_str(&reader, "identity", JR_OPTIONAL, 1, 255, &local->identity);
    jr_str(&reader, "cert", JR_OPTIONAL, 1, TEXT_MAX, &local->cert);
    jr_str(&reader, "key", JR_OPTIONAL, 1, TEXT_MAX, &local->key);
    jr_str(&reader, "ca", JR_OPTIONAL, 1, TEXT_MAX, &local->ca);
    jr_str(&reader, "api", JR_REQUIRED, 1, TEXT_MAX, &local->api);
    jr_str(&reader, "api_ca", JR_OPTIONAL, 1, TEXT_MAX, &local->api_ca);
    jr_str(&reader, "token", JR_OPTIONAL, 1, TEXT_MAX, &local->token);
    jr_str(&reader, "cache", JR_OPTIONAL, 1, TEXT_MAX, &local->cache);
    jr_bytes(&reader, "cache_limit_bytes", JR_OPTIONAL, (uint64_t)64 << 20, BYTES_MAX,
             &local->cache_limit_bytes);
    jr_str(&reader, "home", JR_OPTIONAL, 1, TEXT_MAX, &local->home);
    jr_choice(&reader, "sandbox", JR_OPTIONAL, sandboxes, &local->sandbox);
    jr_i64(&reader, "start_ns", JR_OPTIONAL, 0, INT64_MAX, &local->start_ns);
    if (jr_finish_loose(&device) < 0 || jr_finish_loose(&reader) < 0 || jr_finish_loose(&top) < 0) {
        err->code = ERR_NODE; /* the node's agent wrote it */
        return -1;
    }
    return 0;
}

int local_device_open(const struct local_part *local, struct device **out, struct err *err)
{
    const struct device_options options = {.kind = local->kind,
                                           .index = local->index,
                                           .name = local->device,
                                           .threads = local->threads,
                                           .isa = local->isa,
                                           .pace = &local->pace,
                                           .memory_limit_bytes = local->memory_limit_bytes};
    if (device_open(&options, out, err) == 0)
        return 0;
    if (err->code == ERR_INVALID || err->code == ERR_UNSUPPORTED)
        err->code = ERR_NODE;
    return -1;
}

int model_part_read(const json_t *object, struct model_part *model, struct err *err)
{
    struct json_reader reader, base;
    const json_t *files = NULL;
    memset(model, 0, sizeof(*model));
    jr_init(&reader, object, "model", err);
    jr_str(&reader, "name", JR_OPTIONAL, 1, 255, &model->name);
    jr_str(&reader, "path", JR_OPTIONAL, 1, TEXT_MAX, &model->path);
    model->base = model->name;
    jr_sub(&reader, "base", JR_OPTIONAL, &base);
    jr_str(&base, "name", JR_OPTIONAL, 1, TEXT_MAX, &model->base);
    jr_str(&base, "revision", JR_OPTIONAL, 1, TEXT_MAX, &model->revision);
    jr_finish_loose(&base);
    read_blob(&reader, "content", JR_OPTIONAL, &model->content);
    jr_array(&reader, "files", JR_REQUIRED, 1, MODEL_FILES_MAX, &files);
    if (jr_finish_loose(&reader) < 0)
        return -1;
    size_t count = json_array_size(files);
    model->files = calloc(count, sizeof(*model->files));
    if (!model->files)
        return err_set(err, ERR_NOMEM, "no memory for a model of %zu files", count);
    for (size_t f = 0; f < count; f++) {
        struct json_reader item;
        struct fetch_file *file = &model->files[f];
        jr_item(&reader, "files", files, f, &item);
        jr_str(&item, "name", JR_REQUIRED, 1, MODEL_FILE_NAME_MAX, &file->name);
        jr_bytes(&item, "size", JR_REQUIRED, 0, BYTES_MAX, &file->size);
        read_blob(&item, "sha256", JR_REQUIRED, &file->sha256);
        jr_str(&item, "path", JR_OPTIONAL, 1, TEXT_MAX, &file->path);
        if (jr_finish_loose(&item) < 0) {
            free(model->files);
            model->files = NULL;
            return -1;
        }
    }
    model->file_count = (uint32_t)count;
    return 0;
}

static int read_start(struct json_reader *top, struct assignment *assignment)
{
    struct json_reader start;
    int64_t step = 0, reported = 0;
    assignment->best_loss = INFINITY;
    jr_sub(top, "start", JR_OPTIONAL, &start);
    jr_i64(&start, "step", JR_OPTIONAL, 0, (int64_t)1 << 40, &step);
    jr_i64(&start, "reported", JR_OPTIONAL, 0, (int64_t)1 << 40, &reported);
    jr_f64(&start, "best_loss", JR_OPTIONAL, 0, 1e30, &assignment->best_loss);
    read_blobs(&start, "checkpoint", &assignment->checkpoint);
    read_blobs(&start, "adapter", &assignment->adapter);
    assignment->start_step = (uint64_t)step;
    assignment->reported_steps = (uint64_t)reported;
    if (step > 0 && !assignment->checkpoint && !start.failed)
        jr_fail(&start, "checkpoint", "starting at step %lld needs one", (long long)step);
    return jr_finish_loose(&start);
}

static int read_ranks(struct json_reader *top, struct assignment *assignment, struct err *err)
{
    const json_t *ranks = NULL;
    if (jr_array(top, "ranks", JR_REQUIRED, 1, RANKS_MAX, &ranks) <= 0)
        return -1;
    size_t count = json_array_size(ranks);
    assignment->nodes = calloc(count, sizeof(*assignment->nodes));
    if (!assignment->nodes)
        return err_set(err, ERR_NOMEM, "no memory for %zu ranks", count);
    assignment->rank_count = (uint32_t)count;
    for (size_t r = 0; r < count; r++) {
        struct json_reader item;
        const char *node = NULL;
        uint32_t rank = 0;
        jr_item(top, "ranks", ranks, r, &item);
        jr_u32(&item, "rank", JR_REQUIRED, 0, (uint32_t)count - 1, &rank);
        jr_str(&item, "node", JR_REQUIRED, 1, 255, &node);
        if (jr_finish_loose(&item) < 0)
            return -1;
        assignment->nodes[rank] = node;
    }
    for (size_t r = 0; r < count; r++)
        if (!assignment->nodes[r])
            return err_set(err, ERR_INVALID, "ranks: rank %zu is missing", r);
    return 0;
}

/* Reads this rank's slice. A slice that is mixed up is not the job's fault. */
static int read_slice(const json_t *document, const char *digest, struct assignment *assignment,
                      struct err *err)
{
    if (!document)
        return err_set(err, ERR_PEER, "plan: it is missing");
    assignment->plan = plan_slice_from_json(document, err);
    if (!assignment->plan) {
        err->code = err->code == ERR_CORRUPT ? ERR_PEER : err->code; /* it changed in transit */
        return -1;
    }
    const struct plan *plan = assignment->plan;
    if (plan->slice_rank != (int32_t)assignment->rank)
        return err_set(err, ERR_PEER, "plan.slice: it is the slice of rank %d, and this is rank %u",
                       (int)plan->slice_rank, assignment->rank);
    if (digest && strcmp(digest, plan->digest) != 0)
        return err_set(err, ERR_PEER, "plan.digest: it is a slice of plan %.12s…, and the run's is %.12s…",
                       plan->digest, digest);
    return 0;
}

static int assign_read_plan(const json_t *document, const char *digest, struct assignment *assignment,
                            struct err *err)
{
    if (read_slice(document, digest, assignment, err) < 0)
        return -1;
    if (plan_check(assignment->plan, err) < 0)
        return err_wrap(err, "the plan cannot be executed");
    if (assignment->plan->rank_count != assignment->rank_count)
        return err_set(err, ERR_INVALID, "the plan has %u ranks and the assignment %u",
                       assignment->plan->rank_count, assignment->rank_count);
    if (assignment->rank >= assignment->rank_count)
        return err_set(err, ERR_INVALID, "rank: there is no rank %u among %u", assignment->rank,
                       assignment->rank_count);
    const struct plan_rank *me = &assignment->plan->ranks[assignment->rank];
    if (me->device && strcmp(me->device, assignment->local.device) != 0)
        return err_set(err, ERR_INVALID, "rank %u belongs on %s and this is %s", assignment->rank, me->device,
                       assignment->local.device);
    return 0;
}

static int read_fields(struct assignment *assignment, struct err *err)
{
    struct json_reader top, data, limits, sample;
    const json_t *plan = NULL, *spec = NULL, *model = NULL;
    const char *digest = NULL;
    double wait_s = 600, save_s = 3600;
    jr_init(&top, assignment->document, "", err);
    jr_i64(&top, "job", JR_REQUIRED, 0, EPOCH_MAX, &assignment->job);
    jr_i64(&top, "run", JR_REQUIRED, 0, EPOCH_MAX, &assignment->run);
    jr_i64(&top, "attempt", JR_OPTIONAL, 0, EPOCH_MAX, &assignment->attempt);
    jr_i64(&top, "epoch", JR_REQUIRED, 0, EPOCH_MAX, &assignment->epoch);
    jr_u32(&top, "rank", JR_REQUIRED, 0, RANKS_MAX - 1, &assignment->rank);
    jr_object(&top, "plan", JR_OPTIONAL, &plan);
    jr_str(&top, "plan_digest", JR_OPTIONAL, PLAN_DIGEST_HEX - 1, PLAN_DIGEST_HEX - 1, &digest);
    jr_object(&top, "spec", JR_REQUIRED, &spec);
    jr_object(&top, "model", JR_REQUIRED, &model);
    jr_sub(&top, "data", JR_REQUIRED, &data);
    read_blob(&data, "train", JR_REQUIRED, &assignment->train);
    read_blob(&data, "eval", JR_OPTIONAL, &assignment->eval);
    jr_str(&data, "format", JR_OPTIONAL, 1, 32, &assignment->format);
    jr_str(&data, "said", JR_OPTIONAL, 1, 1024, &assignment->rows_said);
    jr_str(&data, "first", JR_OPTIONAL, 0, 1 << 20, &assignment->rows_first);
    jr_sub(&top, "sample", JR_OPTIONAL, &sample);
    jr_array(&sample, "ids", JR_OPTIONAL, 1, 1 << 20, &assignment->sample_ids);
    jr_sub(&top, "limits", JR_OPTIONAL, &limits);
    jr_seconds(&limits, "wait", JR_OPTIONAL, 1, 86400, &wait_s);
    jr_seconds(&limits, "save", JR_OPTIONAL, 1, 86400, &save_s);
    assignment->checkpoint_bytes = CHECKPOINT_BYTES_MAX;
    jr_bytes(&limits, "checkpoint", JR_OPTIONAL, CHECKPOINT_BYTES_MIN, CHECKPOINT_BYTES_MAX,
             &assignment->checkpoint_bytes);
    if (jr_finish_loose(&data) < 0 || jr_finish_loose(&sample) < 0 || jr_finish_loose(&limits) < 0 ||
        read_start(&top, assignment) < 0 || read_ranks(&top, assignment, err) < 0 ||
        jr_finish_loose(&top) < 0)
        return -1;
    assignment->wait_ns = (uint64_t)(wait_s * 1e9);
    assignment->save_wait_ns = (uint64_t)((save_s > wait_s ? save_s : wait_s) * 1e9);
    if (local_read(assignment->document, &assignment->local, err) < 0 ||
        model_part_read(model, &assignment->model, err) < 0)
        return -1;
    if (spec_parse(spec, &assignment->spec, err) < 0)
        return err_wrap(err, "spec");
    return assign_read_plan(plan, digest, assignment, err);
}

int assignment_read(json_t *document, struct assignment **out, struct err *err)
{
    struct assignment *assignment = calloc(1, sizeof(*assignment));
    if (!assignment) {
        json_decref(document);
        return err_set(err, ERR_NOMEM, "no memory for an assignment");
    }
    assignment->document = document;
    if (read_fields(assignment, err) < 0) {
        assignment_destroy(assignment);
        return err_wrap(err, "assignment");
    }
    *out = assignment;
    return 0;
}

void assignment_destroy(struct assignment *assignment)
{
    if (!assignment)
        return;
    plan_destroy(assignment->plan);
    spec_fini(&assignment->spec);
    free(assignment->model.files);
    free(assignment->nodes);
    json_decref(assignment->document);
    free(assignment);
}

struct mesh_link assignment_link(const struct assignment *assignment, uint32_t peer)
{
    struct mesh_link link = {0, 0};
    const json_t *links = json_object_get(assignment->document, "links");
    const char *from = assignment->nodes[assignment->rank], *to = assignment->nodes[peer];
    size_t index;
    json_t *item;
    json_array_foreach ((json_t *)links, index, item) {
        const char *a = json_string_value(json_object_get(item, "from"));
        const char *b = json_string_value(json_object_get(item, "to"));
        if (!a || !b || strcmp(a, from) != 0 || strcmp(b, to) != 0)
            continue;
        double rate = json_number_value(json_object_get(item, "bytes_per_s"));
        double latency = json_number_value(json_object_get(item, "latency_s"));
        if (isfinite(rate) && rate >= 0 && isfinite(latency) && latency >= 0)
            link = (struct mesh_link){.bytes_per_s = rate, .latency_s = latency};
    }
    return link;
}
