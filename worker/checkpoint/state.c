/* Checkpoints: the state that a run needs to resume, by parameter name and never by rank.
 *
 * Files of an adapter: adapter_model.safetensors and adapter_config.json exactly as peft writes them;
 * optimizer-R.safetensors, one for each rank R, with `<name>.exp_avg` and `<name>.exp_avg_sq`; state.json
 * with the next step, the optimiser's update count, the seed and, in fp16, the loss scale. The position in
 * the data and every random number follow from (seed, step), so nothing else is stored.
 *
 * Full fine-tuning: model-R-K.safetensors and optimizer-R-K.safetensors, where R is the rank and K numbers
 * files of about 64 MiB. The main thread stores them one after another, so memory holds no second copy of the
 * state. Replicas hold the same state, so only the first of them stores it.
 *
 * Adapters are small: they travel up the tree of group 0 to rank 0, which writes the one adapter. A message
 * to the parent is a safetensors file with the adapters of the subtree; its metadata lists the blobs that the
 * ranks of the subtree uploaded. So rank 0 knows of every part before it reports the checkpoint as complete.
 * The main thread copies the state first; another thread does the rest with the copy (saver.h).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/json.h"
#include "model/files/safetensors.h"
#include "worker/checkpoint/adapter.h"
#include "worker/checkpoint/state.h"

enum {
    NAME_MAX_BYTES = 256,
    PARTS_MAX = 1 << 20,
    STREAM_BYTES = 64 << 20 /* size of a file of a fully trained model, exceeded by at most one tensor */
};
#define PART_BYTES_MAX ((uint64_t)2 << 30)

/* Tensors to be written to a file. */
struct items {
    struct safetensors_item *items;
    uint32_t count;
    size_t capacity;
    void **owned; /* [owned_count] memory blocks that the items point into */
    size_t owned_count, owned_capacity;
    struct safetensors *children[2];
    struct buf received[2];
};

static void items_fini(struct items *items)
{
    for (size_t i = 0; i < items->owned_count; i++)
        free(items->owned[i]);
    for (int c = 0; c < 2; c++) {
        safetensors_close(items->children[c]);
        buf_fini(&items->received[c]);
    }
    free(items->owned);
    free(items->items);
}

static void *items_alloc(struct items *items, size_t size, struct err *err)
{
    if (ARRAY_RESERVE(items->owned, items->owned_capacity, items->owned_count + 1, err) < 0)
        return NULL;
    void *memory = malloc(size ? size : 1);
    if (!memory)
        err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    else
        items->owned[items->owned_count++] = memory;
    return memory;
}

static int items_add(struct items *items, const struct safetensors_item *item, struct err *err)
{
    if (items->count >= PARTS_MAX)
        return err_set(err, ERR_NOMEM, "no memory for a checkpoint of %u tensors", items->count);
    if (ARRAY_RESERVE(items->items, items->capacity, (size_t)items->count + 1, err) < 0)
        return -1;
    items->items[items->count++] = *item;
    return 0;
}

static bool items_have(const struct items *items, const char *name)
{
    for (uint32_t i = 0; i < items->count; i++)
        if (strcmp(items->items[i].name, name) == 0)
            return true;
    return false;
}

/* Adds one state of parameter `index`, named parameter name + suffix, or as the adapter of a model has it. */
static int items_add_state(struct items *items, struct stages *stages, uint32_t index, enum stage_state state,
                           const struct model_config *model, const char *suffix, struct err *err)
{
    struct parameter parameter = stages_parameter_at(stages, index);
    size_t count = (size_t)parameter.rows * parameter.columns;
    char *name = items_alloc(items, NAME_MAX_BYTES, err);
    float *values = name ? items_alloc(items, count * sizeof *values, err) : NULL;
    if (!values || stages_state_read(stages, index, state, values, err) < 0)
        return -1;
    if (model ? peft_name(model, parameter.name, name, NAME_MAX_BYTES) < 0
              : snprintf(name, NAME_MAX_BYTES, "%s%s", parameter.name, suffix) >= NAME_MAX_BYTES)
        return err_set(err, ERR_TOO_BIG, "the parameter name %.64s… is too long", parameter.name);
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return err_set(err, ERR_NOT_FINITE, "%s holds a value that is not finite", name);
    struct safetensors_item item = {.name = name,
                                    .type = TENSOR_F32,
                                    .rank = parameter.vector ? 1 : 2,
                                    .shape = {parameter.rows, parameter.vector ? 0 : parameter.columns},
                                    .data = values};
    return items_add(items, &item, err);
}

static int items_by_name(const void *a, const void *b)
{
    return strcmp(((const struct safetensors_item *)a)->name, ((const struct safetensors_item *)b)->name);
}

static int put_file(struct session *session, json_t *blobs, const char *name, const void *data, size_t size,
                    struct err *err)
{
    char sha256[DIGEST_HEX_SIZE];
    if (blobs_put(session->blobs, data, size, sha256, err) < 0)
        return err_wrap(err, "%s", name);
    if (json_object_set_new(blobs, name,
                            json_pack("{s:s, s:I}", "sha256", sha256, "size", (json_int_t)size)) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    return 0;
}

/* --- the copy --- */

/* A rank's state at one moment. Storing it needs nothing else, so the stages may go on. */
struct snapshot {
    uint64_t step, updates;
    struct loss_scale scale;
    struct items moments, values;
    json_t *blobs; /* files that are stored already */
    int result; /* result of snapshot_take; a failed copy is sent too, because the other ranks wait for it */
    struct err err;
};

struct snapshot *snapshot_create(void)
{
    return calloc(1, sizeof(struct snapshot));
}

static void snapshot_clear(struct snapshot *snapshot)
{
    items_fini(&snapshot->moments);
    items_fini(&snapshot->values);
    json_decref(snapshot->blobs);
    memset(snapshot, 0, sizeof *snapshot);
}

void snapshot_destroy(struct snapshot *snapshot)
{
    if (snapshot)
        snapshot_clear(snapshot);
    free(snapshot);
}

/* Stores the items as file number `part` of this rank and empties the list. */
static int flush_part(struct session *session, struct items *items, const char *kind, uint32_t *part,
                      json_t *blobs, struct err *err)
{
    struct buf file;
    struct safetensors_meta meta = {.key = "format", .value = "pt"};
    char name[64];
    int result = 0;
    buf_init(&file, PART_BYTES_MAX);
    snprintf(name, sizeof name, "%s-%u-%u.safetensors", kind, session->assignment->rank, *part);
    if (items->count > 0 && (safetensors_encode(items->items, items->count, &meta, 1, &file, err) < 0 ||
                             put_file(session, blobs, name, file.data, file.size, err) < 0))
        result = -1;
    *part += items->count > 0;
    buf_fini(&file);
    items_fini(items);
    *items = (struct items){0};
    return result;
}

/* Stores one state of every parameter in files of about STREAM_BYTES. */
static int stream_state(struct session *session, const char *kind, uint32_t *part, enum stage_state state,
                        const char *suffix, json_t *blobs, struct err *err)
{
    struct items items = {0};
    uint64_t bytes = 0;
    int result = 0;
    for (uint32_t p = 0; p < stages_parameter_count(&session->stages) && result == 0; p++) {
        struct parameter parameter = stages_parameter_at(&session->stages, p);
        bytes += 4ull * parameter.rows * parameter.columns;
        result = items_add_state(&items, &session->stages, p, state, NULL, suffix, err);
        if (result == 0 && bytes >= STREAM_BYTES) {
            result = flush_part(session, &items, kind, part, blobs, err);
            bytes = 0;
        }
    }
    if (result == 0)
        result = flush_part(session, &items, kind, part, blobs, err);
    items_fini(&items);
    return result;
}

static bool holds_same_blocks(const struct plan_rank *a, const struct plan_rank *b)
{
    bool same =
        a->block_begin == b->block_begin && a->block_end == b->block_end && a->range_count == b->range_count;
    for (uint32_t i = 0; same && i < a->range_count; i++)
        same = a->ranges[i].begin == b->ranges[i].begin && a->ranges[i].end == b->ranges[i].end;
    return same;
}

/* Whether no earlier rank holds the same blocks. Replicas have equal state, because plan_check requires that
 * every rank that keeps a gradient steps with its sum. */
static bool is_first_replica(const struct session *session)
{
    const struct plan_rank *ranks = session->assignment->plan->ranks;
    for (uint32_t r = 0; r < session->assignment->rank; r++)
        if (holds_same_blocks(&ranks[r], &ranks[session->assignment->rank]))
            return false;
    return true;
}

/* Stores a whole model's state while the steps wait, so that it is not in memory twice. */
static int stream_all(struct session *session, struct snapshot *snapshot, struct err *err)
{
    uint32_t model = 0, optimizer = 0;
    snapshot->blobs = json_object();
    if (snapshot->blobs == NULL)
        return err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    if (!is_first_replica(session))
        return 0;
    if (stream_state(session, "model", &model, STATE_VALUE, "", snapshot->blobs, err) < 0 ||
        stream_state(session, "optimizer", &optimizer, STATE_MOMENT1, ".exp_avg", snapshot->blobs, err) < 0)
        return -1;
    return stream_state(session, "optimizer", &optimizer, STATE_MOMENT2, ".exp_avg_sq", snapshot->blobs, err);
}

static bool is_full(const struct session *session)
{
    return session->assignment->spec.method.kind == SPEC_METHOD_FULL;
}

/* Counts the tensors of a file and the encoded file; the largest tensor is the embedding. */
uint64_t state_streamed_bytes(const struct session *session)
{
    uint64_t table = 4ull * session->config.vocab * session->config.hidden;
    return is_full(session) ? 2 * (STREAM_BYTES + table) : 0;
}

void snapshot_take(struct session *session, uint64_t step, struct snapshot *snapshot)
{
    struct err *err = &snapshot->err;
    int result = 0;
    snapshot_clear(snapshot);
    snapshot->step = step;
    snapshot->updates = stages_update_count(&session->stages);
    snapshot->scale = session->scale;
    if (is_full(session)) {
        snapshot->result = stream_all(session, snapshot, err);
        return;
    }
    for (uint32_t p = 0; p < stages_parameter_count(&session->stages) && result == 0; p++) {
        result =
            items_add_state(&snapshot->moments, &session->stages, p, STATE_MOMENT1, NULL, ".exp_avg", err);
        if (result == 0)
            result = items_add_state(&snapshot->moments, &session->stages, p, STATE_MOMENT2, NULL,
                                     ".exp_avg_sq", err);
        if (result == 0)
            result = items_add_state(&snapshot->values, &session->stages, p, STATE_VALUE, &session->config,
                                     "", err);
    }
    snapshot->result = result;
}

/* Uploads this rank's optimiser moments. */
static int put_optimizer(struct session *session, struct items *moments, json_t *blobs, struct err *err)
{
    struct buf file;
    char name[48];
    buf_init(&file, PART_BYTES_MAX);
    int result = 0;
    snprintf(name, sizeof name, "optimizer-%u.safetensors", session->assignment->rank);
    if (moments->count > 0 && (safetensors_encode(moments->items, moments->count, NULL, 0, &file, err) < 0 ||
                               put_file(session, blobs, name, file.data, file.size, err) < 0))
        result = -1;
    buf_fini(&file);
    items_fini(moments);
    *moments = (struct items){0};
    return result;
}

/* --- over the tree --- */

/* A message about a checkpoint's part, to or from a rank. */
static struct mesh_post part_post(const struct session *session, uint32_t rank)
{
    return (struct mesh_post){.peer = rank,
                              .queue = OPS_QUEUE_WORKER,
                              .deadline_ns = clock_mono_ns() + session->assignment->save_wait_ns};
}

static int receive_part(struct session *session, uint32_t child, struct buf *out, struct err *err)
{
    uint64_t size = 0;
    struct mesh_post post = part_post(session, child);
    struct mesh_done done;
    if (mesh_recv_wait(session->mesh, &post, 1, &size, sizeof size, &done, err) < 0)
        return -1;
    if (done.size == sizeof size && size == 0)
        return err_set(err, ERR_IO, "rank %u could not write its part", child);
    if (done.size != sizeof size || size < 8 || size > PART_BYTES_MAX)
        return err_set(err, ERR_PEER, "rank %u announced a checkpoint part of %llu bytes, the limit is %llu",
                       child, (unsigned long long)size, (unsigned long long)PART_BYTES_MAX);
    buf_init(out, size);
    if (buf_reserve(out, size, err) < 0 ||
        mesh_recv_wait(session->mesh, &post, 2, out->data, size, &done, err) < 0)
        return -1;
    if (done.size != size)
        return err_set(err, ERR_PEER, "rank %u announced %llu bytes and sent %zu", child,
                       (unsigned long long)size, done.size);
    out->size = size;
    return 0;
}

/* Receives the part of a child's subtree: adds its tensors to items and its blobs to blobs. */
static int take_part(struct session *session, int which, struct items *items, json_t *blobs, struct err *err)
{
    uint32_t child = (uint32_t)session->tree.children[which];
    struct buf *bytes = &items->received[which];
    if (receive_part(session, child, bytes, err) < 0 ||
        safetensors_open_memory(bytes->data, bytes->size, &items->children[which], err) < 0)
        return err_wrap(err, "checkpoint part of rank %u", child);
    const char *text = safetensors_metadata(items->children[which], "blobs");
    json_t *more = text ? json_parse_limited(text, strlen(text), 4, err) : NULL;
    const char *name;
    json_t *value;
    json_object_foreach(more, name, value) json_object_set(blobs, name, value);
    bool good = json_is_object(more);
    json_decref(more);
    if (!good)
        return err_set(err, ERR_PEER, "the checkpoint part of rank %u names no blobs", child);
    for (uint32_t t = 0; t < safetensors_count(items->children[which]); t++) {
        const struct safetensors_tensor *tensor = safetensors_at(items->children[which], t);
        if (items_have(items, tensor->name)) /* a replica sent the same bytes */
            continue;
        struct safetensors_item item = {.name = tensor->name,
                                        .type = tensor->type,
                                        .rank = tensor->rank,
                                        .data = bytes->data + tensor->offset};
        memcpy(item.shape, tensor->shape, sizeof item.shape);
        if (items_add(items, &item, err) < 0)
            return -1;
    }
    return 0;
}

/* Sorts items by name and keeps each name once: replicas hold equal values of the same parameters. */
static void items_unique(struct items *items)
{
    uint32_t out = 0;
    if (items->count > 0)
        qsort(items->items, items->count, sizeof *items->items, items_by_name);
    for (uint32_t i = 0; i < items->count; i++)
        if (out == 0 || strcmp(items->items[out - 1].name, items->items[i].name) != 0)
            items->items[out++] = items->items[i];
    items->count = out;
}

/* Tells the child that it may end: its part has arrived, or is no longer expected. */
static void acknowledge_part(struct session *session, uint32_t child)
{
    struct err ignored; /* fails only when the child is gone and does not wait */
    uint64_t taken = 1;
    struct mesh_meta meta = {.tag = 3};
    struct mesh_post post = part_post(session, child);
    (void)mesh_send_wait(session->mesh, &post, &meta, &taken, sizeof taken, NULL, &ignored);
}

/* Sends the parent the size of our part (0: there is none) and the part, then waits for its acknowledgement.
 * Only then may this rank end, because unsent bytes would be lost with it. */
static int send_bytes(struct session *session, const struct buf *file, struct err *err)
{
    uint64_t size = file ? file->size : 0, taken = 0;
    struct mesh_meta first = {.tag = 1}, second = {.tag = 2};
    struct mesh_post post = part_post(session, (uint32_t)session->tree.parent);
    if (mesh_send_wait(session->mesh, &post, &first, &size, sizeof size, NULL, err) < 0 ||
        (file && mesh_send_wait(session->mesh, &post, &second, file->data, file->size, NULL, err) < 0))
        return -1;
    return mesh_recv_wait(session->mesh, &post, 3, &taken, sizeof taken, NULL, err);
}

/* Sends this subtree's part to the parent. With result < 0 it tells the parent that there is no part. */
static int send_part(struct session *session, int result, struct items *items, const json_t *blobs,
                     struct err *err)
{
    struct buf file, text;
    struct err unsent;
    buf_init(&file, PART_BYTES_MAX);
    buf_init(&text, 1 << 24);
    if (result == 0)
        result = json_print(blobs, true, &text, err);
    struct safetensors_meta meta = {.key = "blobs", .value = buf_str(&text)};
    items_unique(items);
    if (result == 0)
        result = safetensors_encode(items->items, items->count, &meta, 1, &file, err);
    if (result < 0)
        (void)send_bytes(session, NULL, &unsent); /* the earlier failure is the one to report */
    else
        result = send_bytes(session, &file, err);
    buf_fini(&file);
    buf_fini(&text);
    return result;
}

/* --- rank 0 --- */

static int put_json(struct session *session, json_t *blobs, const char *name, json_t *document,
                    struct err *err)
{
    struct buf text;
    buf_init(&text, 1 << 20);
    int result = document ? json_print(document, false, &text, err) : -1;
    if (result == 0)
        result = put_file(session, blobs, name, text.data, text.size, err);
    buf_fini(&text);
    json_decref(document);
    return result;
}

/* Makes state.json. */
static json_t *position_json(const struct session *session, const struct snapshot *snapshot)
{
    json_t *state =
        json_pack("{s:i, s:I, s:I, s:I, s:i}", "version", 1, "step", (json_int_t)snapshot->step, "updates",
                  (json_int_t)snapshot->updates, "seed", (json_int_t)session->assignment->spec.train.seed,
                  "ranks", (int)session->assignment->rank_count);
    if (state && snapshot->scale.on) {
        json_object_set_new(state, "loss_scale", json_real(snapshot->scale.value));
        json_object_set_new(state, "good_steps", json_integer((json_int_t)snapshot->scale.good));
    }
    return state;
}

/* Adds the trained head of a model with tied embeddings under the name that peft expects. */
static int items_add_head(const struct session *session, struct items *items, struct err *err)
{
    const struct peft_config config = peft_config_of(&session->assignment->spec, &session->config);
    const struct safetensors_item none = {.name = ""};
    if (items_add(items, &none, err) < 0) /* reserves room for one more item */
        return -1;
    items->count--;
    items->count += peft_add_head(&config, items->items, items->count);
    return 0;
}

static int put_adapter_and_state(struct session *session, struct snapshot *snapshot, json_t *blobs,
                                 struct err *err)
{
    struct buf file;
    buf_init(&file, PART_BYTES_MAX);
    struct safetensors_meta meta = {.key = "format", .value = "pt"};
    struct items *items = &snapshot->values;
    items_unique(items);
    int result = is_full(session) ? 0 : items_add_head(session, items, err);
    if (result == 0 && !is_full(session))
        result = safetensors_encode(items->items, items->count, &meta, 1, &file, err);
    if (result == 0 && !is_full(session))
        result = put_file(session, blobs, "adapter_model.safetensors", file.data, file.size, err);
    buf_fini(&file);
    if (result < 0)
        return -1;
    json_t *state = position_json(session, snapshot);
    if (!state)
        return err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    if (!is_full(session) && put_json(session, blobs, "adapter_config.json",
                                      adapter_config(&session->assignment->spec, &session->config,
                                                     session->assignment->model.name, err),
                                      err) < 0) {
        json_decref(state);
        return -1;
    }
    return put_json(session, blobs, "state.json", state, err);
}

int snapshot_store(struct session *session, struct snapshot *snapshot, json_t **out, struct err *err)
{
    uint64_t step = snapshot->step;
    json_t *blobs = snapshot->blobs ? json_incref(snapshot->blobs) : json_object();
    int result = snapshot->result;
    *out = NULL;
    *err = snapshot->err;
    if (result == 0 && !is_full(session))
        result = blobs ? put_optimizer(session, &snapshot->moments, blobs, err)
                       : err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    for (int c = 0; c < 2; c++) {
        /* parts are received also after a failure: one left in the queue would be taken for the next
         * checkpoint's */
        struct err more;
        if (session->tree.children[c] == PLAN_NONE)
            continue;
        if (take_part(session, c, &snapshot->values, blobs, &more) < 0 && result == 0) {
            *err = more;
            result = -1;
        }
        acknowledge_part(session, (uint32_t)session->tree.children[c]);
    }
    if (session->tree.parent != PLAN_NONE)
        result = send_part(session, result, &snapshot->values, blobs, err);
    else if (result == 0)
        result = put_adapter_and_state(session, snapshot, blobs, err);
    snapshot_clear(snapshot);
    if (result == 0 && session->tree.parent == PLAN_NONE) {
        *out = blobs;
        return 0;
    }
    json_decref(blobs);
    return result < 0 ? err_wrap(err, "checkpoint of step %llu", (unsigned long long)step) : 0;
}

/* --- loading --- */

/* Loads one state of parameter `index` from a file. Returns 1 when the file has it, 0 when not, -1 on error.
 */
static int load_state(struct session *session, struct safetensors *file, uint32_t index,
                      enum stage_state state, const char *prefix, const char *suffix, struct err *err)
{
    struct parameter parameter = stages_parameter_at(&session->stages, index);
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "%s%s%s", prefix, parameter.name, suffix);
    const struct safetensors_tensor *tensor = peft_find(file, name);
    if (!tensor)
        return 0;
    bool fits = tensor->rank == (parameter.vector ? 1u : 2u) && tensor->shape[0] == parameter.rows &&
                (parameter.vector || tensor->shape[1] == parameter.columns);
    if (!fits)
        return err_set(err, ERR_CORRUPT, "%s has another shape than this model's [%u, %u]", name,
                       parameter.rows, parameter.columns);
    size_t count = (size_t)parameter.rows * parameter.columns;
    float *values = malloc(count * sizeof *values);
    if (!values)
        return err_set(err, ERR_NOMEM, "no memory for %s", name);
    int result = safetensors_read_f32(file, tensor, values, count, err);
    for (size_t i = 0; i < count && result == 0; i++)
        if (!isfinite(values[i]))
            result = err_set(err, ERR_NOT_FINITE, "%s holds a value that is not finite", name);
    if (result == 0)
        result = stages_state_write(&session->stages, index, state, values, err);
    free(values);
    return result < 0 ? -1 : 1;
}

static int load_adapter(struct session *session, const struct buf *bytes, struct err *err)
{
    struct safetensors *file = NULL;
    if (safetensors_open_memory(bytes->data, bytes->size, &file, err) < 0)
        return -1;
    int result = 1;
    for (uint32_t p = 0; p < stages_parameter_count(&session->stages) && result > 0; p++) {
        result = load_state(session, file, p, STATE_VALUE, "base_model.model.", "", err);
        if (result == 0)
            err_set(err, ERR_CORRUPT, "it has no base_model.model.%s",
                    stages_parameter_at(&session->stages, p).name);
    }
    safetensors_close(file);
    return result > 0 ? 0 : -1;
}

/* The states of a parameter that a checkpoint holds, each with its files and a bit. */
struct state_kind {
    const char *file; /* prefix of the names of its files */
    enum stage_state state;
    const char *suffix;
    uint8_t bit;
};
static const struct state_kind state_kinds[] = {{"optimizer-", STATE_MOMENT1, ".exp_avg", 1},
                                                {"optimizer-", STATE_MOMENT2, ".exp_avg_sq", 2},
                                                {"model-", STATE_VALUE, "", 4}};
enum { STATE_KINDS = sizeof state_kinds / sizeof *state_kinds, HAS_MOMENTS = 3, HAS_ALL = 7 };

static bool state_complete(const struct session *session, const uint8_t *has, uint8_t wanted)
{
    for (uint32_t p = 0; p < stages_parameter_count(&session->stages); p++)
        if ((has[p] & wanted) != wanted)
            return false;
    return true;
}

/* Loads the states that this file holds. Replicas wrote the same names: a state that was loaded already is
 * not read again. */
static int load_part(struct session *session, const char *name, const struct buf *bytes, uint8_t *has,
                     struct err *err)
{
    struct safetensors *file = NULL;
    if (safetensors_open_memory(bytes->data, bytes->size, &file, err) < 0)
        return -1;
    int result = 0;
    for (uint32_t p = 0; p < stages_parameter_count(&session->stages) && result >= 0; p++)
        for (size_t k = 0; k < STATE_KINDS && result >= 0; k++) {
            const struct state_kind *kind = &state_kinds[k];
            if ((has[p] & kind->bit) || strncmp(name, kind->file, strlen(kind->file)) != 0)
                continue;
            result = load_state(session, file, p, kind->state, "", kind->suffix, err);
            if (result > 0)
                has[p] |= kind->bit;
        }
    safetensors_close(file);
    return result < 0 ? -1 : 0;
}

static int check_state(const struct session *session, const uint8_t *has, uint8_t wanted, struct err *err)
{
    for (uint32_t p = 0; p < stages_parameter_count(&session->stages); p++)
        for (size_t k = 0; k < STATE_KINDS; k++)
            if (state_kinds[k].bit & wanted & ~has[p])
                return err_set(err, ERR_CORRUPT, "none of the %s parts holds %s%s", state_kinds[k].file,
                               stages_parameter_at(&session->stages, p).name, state_kinds[k].suffix);
    return 0;
}

static int fetch_named(struct session *session, const json_t *blobs, const char *name, uint64_t limit,
                       struct buf *out, struct err *err)
{
    const char *sha256 = blob_name(json_string_value(json_object_get(blobs, name)));
    buf_init(out, limit);
    if (!sha256)
        return err_set(err, ERR_NOT_FOUND, "there is no %s", name);
    return blobs_get(session->blobs, sha256, out, err) < 0 ? err_wrap(err, "%s", name) : 0;
}

static int load_position(struct session *session, const json_t *blobs, struct err *err)
{
    struct buf text;
    struct json_reader reader;
    struct loss_scale *scale = &session->scale;
    double value = LOSS_SCALE_FIRST;
    uint32_t good = 0;
    int64_t version = 0, step = 0, updates = 0, seed = 0;
    int result = fetch_named(session, blobs, "state.json", 1 << 20, &text, err);
    json_t *state = result == 0 ? json_parse_limited(buf_str(&text), text.size, 8, err) : NULL;
    buf_fini(&text);
    if (!state)
        return -1;
    jr_init(&reader, state, "state", err);
    jr_i64(&reader, "version", JR_REQUIRED, 1, 1, &version);
    jr_i64(&reader, "step", JR_REQUIRED, 0, (int64_t)1 << 40, &step);
    jr_i64(&reader, "updates", JR_REQUIRED, 0, (int64_t)1 << 40, &updates);
    jr_i64(&reader, "seed", JR_REQUIRED, 0, INT64_MAX, &seed);
    jr_f64(&reader, "loss_scale", JR_OPTIONAL, 1, LOSS_SCALE_MAX, &value);
    jr_u32(&reader, "good_steps", JR_OPTIONAL, 0, LOSS_SCALE_GROWS_AFTER - 1, &good);
    result = jr_finish_loose(&reader);
    json_decref(state);
    if (result < 0)
        return -1;
    if ((uint64_t)step != session->assignment->start_step)
        return err_set(err, ERR_CORRUPT, "the checkpoint is of step %lld and the assignment starts at %llu",
                       (long long)step, (unsigned long long)session->assignment->start_step);
    stages_update_count_set(&session->stages, (uint64_t)updates);
    if (scale->on) { /* a checkpoint without a loss scale starts at the default */
        scale->value = value;
        scale->good = good;
    }
    return 0;
}

/* Reads the files that may hold states of this rank until all wanted states are loaded. */
static int load_parts(struct session *session, const json_t *blobs, uint8_t wanted, struct err *err)
{
    uint8_t *has = calloc((size_t)stages_parameter_count(&session->stages) + 1, 1);
    int result = has ? 0 : err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)blobs, name, value)
    {
        struct buf bytes;
        bool mine = strncmp(name, "optimizer-", 10) == 0 ||
                    ((wanted & ~HAS_MOMENTS) != 0 && strncmp(name, "model-", 6) == 0);
        if (result < 0 || !mine || state_complete(session, has, wanted))
            continue;
        result = fetch_named(session, blobs, name, PART_BYTES_MAX, &bytes, err);
        if (result == 0 && load_part(session, name, &bytes, has, err) < 0)
            result = err_wrap(err, "%s", name);
        buf_fini(&bytes);
    }
    if (result == 0)
        result = check_state(session, has, wanted, err);
    free(has);
    return result;
}

static int load_checkpoint(struct session *session, const json_t *blobs, struct err *err)
{
    struct buf bytes;
    if (is_full(session))
        return load_parts(session, blobs, HAS_ALL, err) < 0 ? -1 : load_position(session, blobs, err);
    int result = fetch_named(session, blobs, "adapter_model.safetensors", PART_BYTES_MAX, &bytes, err);
    if (result == 0)
        result = load_adapter(session, &bytes, err);
    buf_fini(&bytes);
    if (result < 0 || load_parts(session, blobs, HAS_MOMENTS, err) < 0)
        return -1;
    return load_position(session, blobs, err);
}

int state_load(struct session *session, struct err *err)
{
    const struct assignment *assignment = session->assignment;
    if (assignment->checkpoint) {
        if (load_checkpoint(session, assignment->checkpoint, err) < 0)
            return err_wrap(err, "checkpoint of step %llu", (unsigned long long)assignment->start_step);
        return 0;
    }
    if (!assignment->adapter)
        return 0;
    struct buf config, tensors;
    buf_init(&tensors, PART_BYTES_MAX);
    int result = fetch_named(session, assignment->adapter, "adapter_config.json", 1 << 20, &config, err);
    if (result == 0)
        result = fetch_named(session, assignment->adapter, "adapter_model.safetensors", PART_BYTES_MAX,
                             &tensors, err);
    if (result == 0)
        result = adapter_check(&config, &tensors, &session->config, &assignment->spec, err);
    if (result == 0)
        result = load_adapter(session, &tensors, err);
    buf_fini(&config);
    buf_fini(&tensors);
    return result < 0 ? err_wrap(err, "adapter to start from") : 0;
}
