/* Stores and fetches a session's files in the artifact store by their names in a checkpoint, and offers the
 * session's stages as a source of pieces. */
#ifndef MOTLEY_WORKER_CHECKPOINT_FILES_H
#define MOTLEY_WORKER_CHECKPOINT_FILES_H

#include "model/files/source.h"
#include "worker/checkpoint/write.h"
#include "worker/session/session.h"

/* Whether the model's own parameters are trained, rather than adapters. */
bool state_is_full(const struct session *session);
/* Returns the session's stages as a source of pieces. */
struct piece_source checkpoint_source(struct session *session);

/* Adds a stored file to {name: {sha256, size}}. */
int checkpoint_add(json_t *blobs, const char *name, const char *sha256, uint64_t size, struct err *err);
/* Stores a file and adds it to `blobs`. */
int checkpoint_put(struct session *session, json_t *blobs, const char *name, const void *data, size_t size,
                   struct err *err);
/* Fetches a file by its name in a checkpoint, {name: sha256 or {sha256, size}}. */
int checkpoint_fetch(struct session *session, const json_t *blobs, const char *name, uint64_t limit,
                     struct buf *out, struct err *err);

/* Opens those files of a checkpoint for which wanted() is true; their ranges are fetched and verified as they
 * are read. */
int checkpoint_open(struct session *session, const json_t *blobs, bool (*wanted)(const char *name),
                    struct model_source **source, struct err *err);

/* The argument of checkpoint_fetch_range: the session and the files of a checkpoint. */
struct checkpoint_files {
    struct blobs *client;
    const json_t *blobs;
};
/* Copies a range of a file; `from` is a struct checkpoint_files. */
int checkpoint_fetch_range(void *from, const char *name, uint64_t offset, size_t size, void *dst,
                           struct err *err);

#endif
