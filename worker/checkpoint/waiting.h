/* A snapshot of a rank's state: files that wait to be uploaded to the artifact store. */
#ifndef MOTLEY_WORKER_CHECKPOINT_WAITING_H
#define MOTLEY_WORKER_CHECKPOINT_WAITING_H

#include "worker/checkpoint/files.h"
#include "worker/checkpoint/spool.h"

/* A file that waits to be stored. */
struct waiting_file {
    char name[PIECE_FILE_NAME_MAX];
    uint64_t at, size; /* offset and size of the file's bytes in the spool */
};

/* A file with values of adapters, which waits to be sent to rank 0. Its index lines stand before it in the
 * spool. */
struct adapter_file {
    uint64_t at, lines_size, size;
};

/* A copy of a rank's state at one step, as files. It does not refer to the stages' memory, so training goes
 * on while it is uploaded. */
struct snapshot {
    uint64_t step, updates;
    struct loss_scale scale;
    /* most bytes of waiting files in memory; the rest waits in a file on the disk */
    uint64_t memory_bytes;
    struct spool *spool;
    struct waiting_file *waiting;
    size_t waiting_count, waiting_capacity;
    struct adapter_file *adapters;
    size_t adapter_count, adapter_capacity;
    struct buf index; /* index lines, until a file is made of them */
    uint32_t index_number;
    json_t *blobs; /* files that are stored: {name: {sha256, size}} */
    int result; /* result of snapshot_take; the other ranks, which wait for the copy, are told of a failure */
    struct err err;
};

/* Makes an empty snapshot whose files wait in the folder `dir`. */
int snapshot_create(const char *dir, uint64_t memory_bytes, struct snapshot **out, struct err *err);
void snapshot_destroy(struct snapshot *snapshot);
/* Removes all files. */
void snapshot_clear(struct snapshot *snapshot);

/* Adds a file to the spool. If the spool has no room, the file is uploaded at once, while training waits. */
int snapshot_wait(struct snapshot *snapshot, struct session *session, const char *name,
                  const struct buf *bytes, struct err *err);
/* Adds a file with values of adapters, and its index lines, to the spool. */
int snapshot_wait_adapter(struct snapshot *snapshot, const struct made_file *file, struct err *err);
/* Adds lines about stored files to the snapshot's index. */
int snapshot_index_add(struct snapshot *snapshot, struct session *session, const void *lines, size_t size,
                       struct err *err);
/* Writes the snapshot's index lines as one more file into the spool. */
int snapshot_index_end(struct snapshot *snapshot, struct session *session, struct err *err);
/* Uploads the files in the spool. */
int snapshot_put_waiting(struct snapshot *snapshot, struct session *session, struct err *err);

#endif
