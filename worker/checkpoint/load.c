/* Loads a checkpoint or an adapter into the stages. */
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "worker/checkpoint/adapter.h"
#include "worker/checkpoint/state.h"

enum { READ_PARTS = 8, INDEX_BYTES_MAX = 24 << 20 };

static const char index_prefix[] = "pieces-";

/* --- a checkpoint with indexes --- */

/* Names and areas of the parts of parameters that this rank keeps (pieces), in the order of names. */
struct own_piece {
    const char *name;
    struct area area;
};

struct own_pieces {
    struct own_piece *list; /* [count] */
    uint32_t count;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct own_piece *)a)->name, ((const struct own_piece *)b)->name);
}

static int own_pieces_list(struct session *session, struct own_pieces *own, struct err *err)
{
    own->count = stages_piece_count(&session->stages);
    own->list = calloc((size_t)own->count + 1, sizeof(*own->list));
    if (!own->list)
        return err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    for (uint32_t p = 0; p < own->count; p++) {
        struct shard_piece piece = stages_piece_at(&session->stages, p);
        own->list[p] = (struct own_piece){piece.of.name, area_of_piece(&piece)};
    }
    if (own->count > 0)
        qsort(own->list, own->count, sizeof(*own->list), by_name);
    return 0;
}

/* Whether this rank needs any value of a stored piece. Pieces of a tensor of another shape count as needed,
 * so that an error names them. */
static bool is_needed(void *arg, const struct stored_piece *piece)
{
    const struct own_pieces *own = arg;
    uint32_t low = 0, high = own->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (strcmp(own->list[middle].name, piece->tensor) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < own->count && strcmp(own->list[low].name, piece->tensor) == 0; low++)
        if (area_copy(&piece->area, NULL, &own->list[low].area, NULL) > 0)
            return true;
    return false;
}

int state_read_indexes(struct session *session, const json_t *blobs, struct piece_reader *reader,
                       piece_filter_fn *filter, void *arg, struct err *err)
{
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)blobs, name, value) {
        struct buf lines;
        if (strncmp(name, index_prefix, sizeof(index_prefix) - 1) != 0)
            continue;
        int result = checkpoint_fetch(session, blobs, name, INDEX_BYTES_MAX, &lines, err);
        if (result == 0 && piece_reader_add(reader, buf_str(&lines), lines.size, filter, arg, err) < 0)
            result = err_wrap(err, "%s", name);
        buf_fini(&lines);
        if (result < 0)
            return -1;
    }
    return piece_reader_ready(reader, err);
}

static int load_pieces(struct session *session, const json_t *blobs, struct err *err)
{
    static const enum stage_state states[] = {STATE_VALUE, STATE_MOMENT1, STATE_MOMENT2};
    struct checkpoint_files files = {session->blobs, blobs};
    struct piece_source source = checkpoint_source(session);
    struct piece_reader *reader = NULL;
    struct own_pieces own = {0};
    int result = own_pieces_list(session, &own, err);
    if (result == 0)
        result = piece_reader_create(checkpoint_fetch_range, &files, READ_PARTS, &reader, err);
    if (result == 0)
        result = state_read_indexes(session, blobs, reader, is_needed, &own, err);
    if (result == 0)
        result = pieces_read(reader, &source, states, sizeof(states) / sizeof(*states), err);
    piece_reader_destroy(reader);
    free(own.list);
    return result;
}

/* --- a whole checkpoint --- */

static int load_position(struct session *session, const json_t *blobs, struct err *err)
{
    struct buf text;
    struct json_reader reader;
    struct loss_scale *scale = &session->scale;
    double value = LOSS_SCALE_FIRST;
    uint32_t good = 0;
    int64_t version = 0, step = 0, updates = 0, seed = 0;
    int result = checkpoint_fetch(session, blobs, "state.json", 1 << 20, &text, err);
    json_t *state = result == 0 ? json_parse_limited(buf_str(&text), text.size, 8, err) : NULL;
    buf_fini(&text);
    if (!state)
        return -1;
    jr_init(&reader, state, "state", err);
    jr_i64(&reader, "version", JR_REQUIRED, 2, 2, &version);
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

static int load_checkpoint(struct session *session, const json_t *blobs, struct err *err)
{
    return load_pieces(session, blobs, err) < 0 ? -1 : load_position(session, blobs, err);
}

static bool is_tensors(const char *name)
{
    return strcmp(name, "adapter_model.safetensors") == 0;
}

static int load_adapter(struct session *session, const json_t *blobs, struct err *err)
{
    struct buf config;
    struct model_source *source = NULL;
    struct safetensors *tensors = NULL;
    struct peft *peft = NULL;
    int result = checkpoint_fetch(session, blobs, "adapter_config.json", 1 << 20, &config, err);
    if (result == 0)
        result = checkpoint_open(session, blobs, is_tensors, &source, err);
    if (result == 0 && model_source_file_count(source) == 0)
        result = err_set(err, ERR_NOT_FOUND, "there is no adapter_model.safetensors");
    if (result == 0 && safetensors_open(source, 0, &tensors, err) < 0)
        result = err_wrap(err, "adapter_model.safetensors");
    if (result == 0)
        result = adapter_open(&config, tensors, &session->config, &session->assignment->spec, &peft, err);
    if (result == 0)
        result = state_load_adapter(session, peft_tensors(peft), err);
    peft_close(peft);
    model_source_close(source);
    buf_fini(&config);
    return result;
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
    return load_adapter(session, assignment->adapter, err) < 0 ? err_wrap(err, "adapter to start from") : 0;
}
