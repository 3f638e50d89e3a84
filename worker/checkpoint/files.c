#include "worker/checkpoint/files.h"

#include <stdlib.h>

#include "model/files/fetch.h"

enum { FETCH_IDLE_S = 60 };

bool state_is_full(const struct session *session)
{
    return session->assignment->spec.method.kind == SPEC_METHOD_FULL;
}

static uint32_t source_count(void *arg)
{
    return stages_piece_count(arg);
}

static struct shard_piece source_at(void *arg, uint32_t index)
{
    return stages_piece_at(arg, index);
}

static int source_read(void *arg, const struct shard_part *part, float *dst, struct err *err)
{
    return stages_piece_read(arg, part, dst, err);
}

static int source_write(void *arg, const struct shard_part *part, const float *src, struct err *err)
{
    return stages_piece_write(arg, part, src, err);
}

struct piece_source checkpoint_source(struct session *session)
{
    return (struct piece_source){source_count, source_at, source_read, source_write, &session->stages};
}

/* Returns a file's SHA-256, or NULL with an error when there is no such file. */
static const char *sha256_of(const json_t *blobs, const char *name, struct err *err)
{
    const json_t *value = json_object_get(blobs, name);
    const char *sha256 =
        blob_name(json_string_value(json_is_object(value) ? json_object_get(value, "sha256") : value));
    if (!sha256)
        err_set(err, ERR_NOT_FOUND, "there is no %s", name);
    return sha256;
}

int checkpoint_fetch(struct session *session, const json_t *blobs, const char *name, uint64_t limit,
                     struct buf *out, struct err *err)
{
    const char *sha256 = sha256_of(blobs, name, err);
    buf_init(out, limit);
    if (!sha256)
        return -1;
    return blobs_get(session->blobs, sha256, out, err) < 0 ? err_wrap(err, "%s", name) : 0;
}

int checkpoint_fetch_range(void *from, const char *name, uint64_t offset, size_t size, void *dst,
                           struct err *err)
{
    const struct checkpoint_files *files = from;
    const char *sha256 = sha256_of(files->blobs, name, err);
    return sha256 ? blobs_get_range(files->client, sha256, offset, size, dst, err) : -1;
}

int checkpoint_add(json_t *blobs, const char *name, const char *sha256, uint64_t size, struct err *err)
{
    if (json_object_set_new(blobs, name,
                            json_pack("{s:s, s:I}", "sha256", sha256, "size", (json_int_t)size)) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    return 0;
}

int checkpoint_put(struct session *session, json_t *blobs, const char *name, const void *data, size_t size,
                   struct err *err)
{
    char sha256[DIGEST_HEX_SIZE];
    if (blobs_put(session->blobs, data, size, sha256, err) < 0)
        return err_wrap(err, "%s", name);
    return checkpoint_add(blobs, name, sha256, size, err);
}

int checkpoint_open(struct session *session, const json_t *blobs, bool (*wanted)(const char *name),
                    struct model_source **source, struct err *err)
{
    const struct local_part *local = &session->assignment->local;
    struct fetch_file *files = calloc(json_object_size(blobs) + 1, sizeof(*files));
    struct fetch_options options = {
        .files = files, .patience_s = SESSION_FETCH_PATIENCE_S, .stop = &session->stop->kill};
    struct fetch_transport transport;
    const char *name;
    json_t *value;
    int result = files ? 0 : err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    json_object_foreach ((json_t *)blobs, name, value) {
        if (result < 0 || !wanted(name))
            continue;
        const char *sha256 = sha256_of(blobs, name, err);
        files[options.file_count++] =
            (struct fetch_file){.name = name, .size = FETCH_SIZE_ANY, .sha256 = sha256};
        result = sha256 ? 0 : -1;
    }
    if (result == 0)
        result = fetch_transport_http(local->api, local->token, local->api_ca, FETCH_IDLE_S, &transport, err);
    if (result == 0)
        result = model_source_open_fetched(&options, &transport, source, err);
    free(files);
    return result;
}
