/* Loads the values of adapters from a safetensors file, of which ranges are fetched as they are read. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/adapters/peft.h"
#include "model/files/gguf.h"
#include "model/files/safetensors.h"
#include "worker/checkpoint/files.h"
#include "worker/checkpoint/state.h"

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
                      const struct safetensors_tensor *tensor, uint32_t index, struct err *err)
{
    struct shard_piece piece = stages_piece_at(&session->stages, index);
    struct area all = area_whole(piece.of.whole_rows, piece.of.whole_columns), own = area_of_piece(&piece);
    struct tensor_chunk *chunk = malloc(sizeof(*chunk));
    float *values = malloc(WINDOW_VALUES * sizeof(*values));
    int result = chunk && values ? 0 : err_set(err, ERR_NOMEM, "no memory for %s", tensor->name);
    for (uint64_t first = 0; first < piece.count && result == 0; first += WINDOW_VALUES) {
        uint64_t left = piece.count - first, count = left < WINDOW_VALUES ? left : WINDOW_VALUES;
        struct shard_part part = {.piece = index, .state = STATE_VALUE, .first = first, .count = count};
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

int state_load_adapter(struct session *session, struct safetensors *file, struct err *err)
{
    for (uint32_t p = 0; p < stages_piece_count(&session->stages); p++) {
        struct parameter of = stages_piece_at(&session->stages, p).of;
        char name[NAME_MAX_BYTES];
        snprintf(name, sizeof(name), "base_model.model.%s", of.name);
        const struct safetensors_tensor *tensor = peft_find(file, name);
        if (!tensor)
            return err_set(err, ERR_CORRUPT, "it has no %s", name);
        bool fits = tensor->rank == (of.vector ? 1u : 2u) && tensor->shape[0] == of.whole_rows &&
                    (of.vector || tensor->shape[1] == of.whole_columns);
        if (!fits)
            return err_set(err, ERR_CORRUPT, "%s has another shape than this model's [%u, %u]", name,
                           of.whole_rows, of.whole_columns);
        if (piece_load(session, file, tensor, p, err) < 0)
            return -1;
    }
    return 0;
}
