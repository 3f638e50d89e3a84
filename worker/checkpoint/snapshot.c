/* Copies a rank's state into files in the spool, and uploads these files. */
#include <stdio.h>
#include <stdlib.h>

#include "worker/checkpoint/gather.h"
#include "worker/checkpoint/keeper.h"
#include "worker/checkpoint/state.h"

enum { FILE_GRAIN_BYTES = 1024 /* file sizes are multiples of 1,024 bytes (write.h) */ };

/* --- the copy --- */

struct taking {
    struct session *session;
    struct snapshot *snapshot;
};

static int file_take(void *arg, const struct made_file *file, struct err *err)
{
    const struct taking *taking = arg;
    if (snapshot_index_add(taking->snapshot, taking->session, file->lines->data, file->lines->size, err) < 0)
        return -1;
    return snapshot_wait(taking->snapshot, taking->session, file->name, file->bytes, err);
}

static int adapter_take(void *arg, const struct made_file *file, struct err *err)
{
    return snapshot_wait_adapter(((const struct taking *)arg)->snapshot, file, err);
}

static int states_copy(struct taking *taking, const bool *stores, struct err *err)
{
    static const enum stage_state values[] = {STATE_VALUE}, moments[] = {STATE_MOMENT1, STATE_MOMENT2};
    struct piece_source source = checkpoint_source(taking->session);
    char model[32], optimizer[32];
    snprintf(model, sizeof(model), "model-%u", taking->session->assignment->rank);
    snprintf(optimizer, sizeof(optimizer), "optimizer-%u", taking->session->assignment->rank);
    struct piece_writer writer = {.source = &source,
                                  .stores = stores,
                                  .prefix = model,
                                  .file_bytes =
                                      taking->snapshot->memory_bytes / FILE_GRAIN_BYTES * FILE_GRAIN_BYTES,
                                  .take = state_is_full(taking->session) ? file_take : adapter_take,
                                  .arg = taking};
    if (pieces_write(&writer, values, 1, err) < 0)
        return -1;
    writer.prefix = optimizer;
    writer.number = 0;
    writer.take = file_take;
    return pieces_write(&writer, moments, 2, err);
}

static int snapshot_copy(struct session *session, struct snapshot *snapshot, struct err *err)
{
    struct taking taking = {session, snapshot};
    struct piece_source source = checkpoint_source(session);
    uint32_t count = source.count(source.arg);
    bool *stores = calloc((size_t)count + 1, sizeof(*stores));
    snapshot->blobs = json_object();
    int result = stores && snapshot->blobs ? 0 : err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    for (uint32_t p = 0; p < count && result == 0; p++) {
        struct shard_piece piece = source.at(source.arg, p);
        stores[p] = piece_is_stored_by(session->assignment->plan, session->assignment->rank, &piece);
    }
    if (result == 0)
        result = states_copy(&taking, stores, err);
    free(stores);
    return result;
}

void snapshot_take(struct session *session, uint64_t step, struct snapshot *snapshot)
{
    snapshot_clear(snapshot);
    snapshot->step = step;
    snapshot->updates = stages_update_count(&session->stages);
    snapshot->scale = session->scale;
    snapshot->result = snapshot_copy(session, snapshot, &snapshot->err);
}

/* --- storing --- */

int snapshot_store(struct session *session, struct snapshot *snapshot, json_t **out, struct err *err)
{
    uint64_t step = snapshot->step;
    int result = snapshot->result;
    *out = NULL;
    *err = snapshot->err;
    /* Rank 0 adds the adapter file's index lines before it stores the index. */
    if (result == 0 && session->tree.parent != PLAN_NONE)
        result = snapshot_index_end(snapshot, session, err);
    if (result == 0)
        result = snapshot_put_waiting(snapshot, session, err);
    result = gather_parts(session, snapshot, result, err);
    if (result == 0 && session->tree.parent == PLAN_NONE)
        *out = json_incref(snapshot->blobs);
    snapshot_clear(snapshot);
    return result < 0 ? err_wrap(err, "checkpoint of step %llu", (unsigned long long)step) : 0;
}
