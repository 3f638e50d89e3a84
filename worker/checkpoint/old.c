/* Loads checkpoints of the format before indexes, and adapters.
 *
 * Their files are adapter_model.safetensors and optimizer-R.safetensors, one for each rank R; or, of a model
 * that is trained in full, model-R-K.safetensors and optimizer-R-K.safetensors. Each tensor is whole in one
 * of them, under its name. Ranges are fetched as they are read.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/adapters/peft.h"
#include "model/files/gguf.h"
#include "model/files/safetensors.h"
#include "worker/checkpoint/files.h"
#include "worker/checkpoint/old.h"

static const char adapter_name[] = "adapter_model.safetensors";

enum { NAME_MAX_BYTES = 256, WINDOW_VALUES = 1 << 20, CHUNK_VALUES = 1 << 16, VALUE_BYTES_MAX = 8 };

/* A chunk of a tensor's values that is read at once. */
struct tensor_chunk {
    uint8_t stored[CHUNK_VALUES * VALUE_BYTES_MAX];
    float values[CHUNK_VALUES];
};

/* Reads a range of the values of a piece (the part of a parameter on this rank) from a file that has the
 * whole tensor. */
static int window_read(struct safetensors *file, const struct safetensors_tensor *tensor,
                       const struct area *all, const struct area *window, struct tensor_chunk *chunk,
                       float *dst, struct err *err)
{
    uint64_t bytes = tensor_type_block_bytes(tensor->type), last = window->first + window->count - 1;
    uint64_t at = (window->row + window->first / window->columns) * (uint64_t)all->columns,
             end = (window->row + last / window->columns + 1) * (uint64_t)all->columns;
    for (uint64_t count; at < end; at += count) {
        struct area part = *all;
        count = end - at < CHUNK_VALUES ? end - at : CHUNK_VALUES;
        part.first = at;
        part.count = count;
        if (area_copy(&part, NULL, window, NULL) == 0)
            continue;
        if (safetensors_read(file, tensor, at * bytes, count * bytes, chunk->stored, err) < 0 ||
            tensor_dequantise(tensor->type, chunk->stored, count, chunk->values, err) < 0)
            return err_wrap(err, "%s", tensor->name);
        for (uint64_t i = 0; i < count; i++)
            if (!isfinite(chunk->values[i]))
                return err_set(err, ERR_NOT_FINITE, "%s holds a value that is not finite", tensor->name);
        (void)area_copy(&part, chunk->values, window, dst);
    }
    return 0;
}

/* Loads a piece (the part of a parameter on this rank) from a file that has the whole tensor. */
static int piece_load(struct session *session, struct safetensors *file,
                      const struct safetensors_tensor *tensor, uint32_t index, enum stage_state state,
                      struct err *err)
{
    struct shard_piece piece = stages_piece_at(&session->stages, index);
    struct area all = area_whole(piece.of.whole_rows, piece.of.whole_columns), own = area_of_piece(&piece);
    struct tensor_chunk *chunk = malloc(sizeof(*chunk));
    float *values = malloc(WINDOW_VALUES * sizeof(*values));
    int result = chunk && values ? 0 : err_set(err, ERR_NOMEM, "no memory for %s", tensor->name);
    for (uint64_t first = 0; first < piece.count && result == 0; first += WINDOW_VALUES) {
        uint64_t left = piece.count - first, count = left < WINDOW_VALUES ? left : WINDOW_VALUES;
        struct shard_part part = {.piece = index, .state = state, .first = first, .count = count};
        struct area window = own;
        window.first += first;
        window.count = count;
        result = window_read(file, tensor, &all, &window, chunk, values, err);
        if (result == 0)
            result = stages_piece_write(&session->stages, &part, values, err);
    }
    free(chunk);
    free(values);
    return result;
}

/* Loads one state of piece `index` from a file. Returns 1 when the file has it, 0 when not, -1 on error. */
static int load_state(struct session *session, struct safetensors *file, uint32_t index,
                      enum stage_state state, const char *prefix, const char *suffix, struct err *err)
{
    struct parameter of = stages_piece_at(&session->stages, index).of;
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof(name), "%s%s%s", prefix, of.name, suffix);
    const struct safetensors_tensor *tensor = peft_find(file, name);
    if (!tensor)
        return 0;
    bool fits = tensor->rank == (of.vector ? 1u : 2u) && tensor->shape[0] == of.whole_rows &&
                (of.vector || tensor->shape[1] == of.whole_columns);
    if (!fits)
        return err_set(err, ERR_CORRUPT, "%s has another shape than this model's [%u, %u]", name,
                       of.whole_rows, of.whole_columns);
    return piece_load(session, file, tensor, index, state, err) < 0 ? -1 : 1;
}

int state_load_adapter(struct session *session, struct safetensors *file, struct err *err)
{
    int result = 1;
    for (uint32_t p = 0; p < stages_piece_count(&session->stages) && result > 0; p++) {
        result = load_state(session, file, p, STATE_VALUE, "base_model.model.", "", err);
        if (result == 0)
            err_set(err, ERR_CORRUPT, "it has no base_model.model.%s",
                    stages_piece_at(&session->stages, p).of.name);
    }
    return result > 0 ? 0 : -1;
}

/* The states of a parameter (value, two moments): the files of the checkpoint in which each is stored, and
 * its bit in masks of states that were found. */
struct state_kind {
    const char *file; /* prefix of the names of its files */
    enum stage_state state;
    const char *suffix;
    uint8_t bit;
};
static const struct state_kind state_kinds[] = {{"optimizer-", STATE_MOMENT1, ".exp_avg", 1},
                                                {"optimizer-", STATE_MOMENT2, ".exp_avg_sq", 2},
                                                {"model-", STATE_VALUE, "", 4}};
enum { STATE_KINDS = sizeof(state_kinds) / sizeof(*state_kinds), HAS_MOMENTS = 3, HAS_ALL = 7 };

static bool state_complete(const struct session *session, const uint8_t *has, uint8_t wanted)
{
    for (uint32_t p = 0; p < stages_piece_count(&session->stages); p++)
        if ((has[p] & wanted) != wanted)
            return false;
    return true;
}

/* Loads the states that this file holds. Replicas wrote files of the same names, so a state that was loaded
 * already is not read again. */
static int load_part(struct session *session, const char *name, struct safetensors *file, uint8_t *has,
                     struct err *err)
{
    int result = 0;
    for (uint32_t p = 0; p < stages_piece_count(&session->stages) && result >= 0; p++)
        for (size_t k = 0; k < STATE_KINDS && result >= 0; k++) {
            const struct state_kind *kind = &state_kinds[k];
            if ((has[p] & kind->bit) || strncmp(name, kind->file, strlen(kind->file)) != 0)
                continue;
            result = load_state(session, file, p, kind->state, "", kind->suffix, err);
            if (result > 0)
                has[p] |= kind->bit;
        }
    return result < 0 ? -1 : 0;
}

static int check_state(const struct session *session, const uint8_t *has, uint8_t wanted, struct err *err)
{
    for (uint32_t p = 0; p < stages_piece_count(&session->stages); p++)
        for (size_t k = 0; k < STATE_KINDS; k++)
            if (state_kinds[k].bit & wanted & ~has[p])
                return err_set(err, ERR_CORRUPT, "none of the %s parts holds %s%s", state_kinds[k].file,
                               stages_piece_at(&session->stages, p).of.name, state_kinds[k].suffix);
    return 0;
}

static bool holds_state(const char *name)
{
    return strncmp(name, "optimizer-", 10) == 0 || strncmp(name, "model-", 6) == 0 ||
           strcmp(name, adapter_name) == 0;
}

/* Reads the files until all wanted states are loaded. */
static int load_parts(struct session *session, struct model_source *source, uint8_t *has, uint8_t wanted,
                      struct err *err)
{
    for (uint32_t f = 0; f < model_source_file_count(source); f++) {
        const char *name = model_source_file(source, f)->name;
        struct safetensors *file = NULL;
        bool adapter = strcmp(name, adapter_name) == 0;
        if (!adapter && state_complete(session, has, wanted))
            continue;
        int result = safetensors_open(source, f, &file, err);
        if (result == 0)
            result =
                adapter ? state_load_adapter(session, file, err) : load_part(session, name, file, has, err);
        safetensors_close(file);
        if (result < 0)
            return err_wrap(err, "%s", name);
    }
    return check_state(session, has, wanted, err);
}

int state_load_old(struct session *session, const json_t *blobs, struct err *err)
{
    bool full = state_is_full(session);
    uint8_t *has = calloc((size_t)stages_piece_count(&session->stages) + 1, 1);
    struct model_source *source = NULL;
    int result = has ? 0 : err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    if (result == 0 && !full && !json_object_get(blobs, adapter_name))
        result = err_set(err, ERR_NOT_FOUND, "there is no %s", adapter_name);
    if (result == 0)
        result = checkpoint_open(session, blobs, holds_state, &source, err);
    if (result == 0)
        result = load_parts(session, source, has, full ? HAS_ALL : HAS_MOMENTS, err);
    model_source_close(source);
    free(has);
    return result;
}
