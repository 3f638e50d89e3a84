/* Where a model's bytes come from: a folder or file on this machine, or an artifact store read by ranges.
 *
 * A source is a list of named files of known size and one operation, read. Offsets and sizes are checked
 * against the file before the implementation is called. Several threads may read at once. A source never
 * writes into what it reads.
 */
#ifndef MOTLEY_MODEL_FILES_SOURCE_H
#define MOTLEY_MODEL_FILES_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct model_source;

enum { MODEL_FILES_MAX = 4096, MODEL_FILE_NAME_MAX = 255 };

/* File names have no slash. A folder's additional_chat_templates/NAME.jinja is listed as this prefix and
 * NAME.jinja. */
#define MODEL_TEMPLATES_PREFIX "additional_chat_templates."

/* Writes the path of the file with that name in folder 'dir' to path[0..size). ERR_TOO_BIG when it does not
 * fit. */
int model_source_path(const char *dir, const char *name, char *path, size_t size, struct err *err);

struct model_file {
    char name[MODEL_FILE_NAME_MAX + 1]; /* plain name, no slash */
    uint64_t size;                      /* bytes */
};

/* Counters since open, for tests, traces and the live view. */
struct model_source_stats {
    uint64_t read_bytes;    /* bytes that readers asked for */
    uint64_t fetched_bytes; /* bytes that came over the network */
    uint64_t fetched_chunks;
    uint64_t cached_chunks;   /* chunks served from the node's cache on disk */
    uint64_t verified_chunks; /* chunks whose hash was compared */
};

/* What an implementation provides. All members are required but 'stats', whose default counts read_bytes
 * alone. */
struct model_source_ops {
    int (*read)(void *self, uint32_t file, uint64_t offset, size_t size, void *dst, struct err *err);
    void (*stats)(void *self, struct model_source_stats *stats);
    void (*destroy)(void *self);
};

/* Wraps an implementation. Takes 'self' (destroyed with the source, or at once on error); copies 'files'. */
int model_source_create(const struct model_source_ops *ops, void *self, const struct model_file *files,
                        uint32_t file_count, struct model_source **source, struct err *err);

/* Writes the folder that 'path' means to out[size]: the path itself or, for a hub's cache ("models--x--y",
 * with refs/ and snapshots/), the snapshot that refs/main names, or its only snapshot. ERR_INVALID when a
 * cache has several and no refs/main. */
int model_source_folder(const char *path, char *out, size_t size, struct err *err);

/* Opens what lies at 'path', mapped read-only: a Hugging Face folder, a hub's cache of one, a .gguf file, or
 * any single file. Of a folder, the model is config.json, the tokenizer's and template files, and the
 * weights: model.safetensors, or the shards that its index names, or its only .gguf, or its only .safetensors
 * of another name; other files are ignored. Errors: ERR_NOT_FOUND, ERR_IO, ERR_INVALID (an index names a file
 * outside the folder). When a file shrinks while it is open, reading it ends the process with SIGBUS, as mmap
 * does; a job survives the loss of a worker in that way. */
int model_source_open_local(const char *path, struct model_source **source, struct err *err);

/* The files of a hub's repository, of which a folder has some. */
struct model_repository {
    const char *name;         /* what errors call it */
    const char *const *files; /* [file_count] paths with '/' */
    size_t file_count;
    const char *folder;
};
/* Chooses by the rules of model_source_open_local which files of a repository to fetch: wanted[file_count].
 * Without 'weights' they are those that describe the model. *more becomes true when the index of the weights
 * must be in the folder first, which then is among those wanted. ERR_INVALID, ERR_UNSUPPORTED, ERR_NOT_FOUND
 * when the repository is no model that can be read. */
int model_source_choose(const struct model_repository *repository, bool weights, bool *wanted, bool *more,
                        struct err *err);

/* Opens the files at these paths as those of one model, under these names (plain, no slash). The files are
 * mapped read-only and closed again, so nothing is opened later. An error names the file, never its path. */
struct model_path {
    const char *name, *path;
};
int model_source_open_files(const struct model_path *paths, uint32_t count, struct model_source **source,
                            struct err *err);

/* Opens one file that lies in memory, borrowed until close. */
int model_source_open_memory(const char *name, const void *data, size_t size, struct model_source **source,
                             struct err *err);

/* Returns the number of files. */
uint32_t model_source_file_count(const struct model_source *source);
/* The result is borrowed until close. */
const struct model_file *model_source_file(const struct model_source *source, uint32_t file);
/* Returns the index of a file by name, or -1. */
int model_source_find(const struct model_source *source, const char *name);

/* Reads bytes [offset, offset + size) of a file into dst. Errors: ERR_INVALID beyond the file's end; ERR_IO,
 * ERR_NET, ERR_TIMEOUT; ERR_PEER when a fetched chunk does not match its hash in the manifest. */
int model_source_read(struct model_source *source, uint32_t file, uint64_t offset, size_t size, void *dst,
                      struct err *err);

/* Reads a whole small file and appends it to 'out'. Errors: ERR_NOT_FOUND, ERR_TOO_BIG above
 * 'limit' bytes. */
int model_source_read_file(struct model_source *source, const char *name, uint64_t limit, struct buf *out,
                           struct err *err);

/* Copies the current counters; any thread may call it. */
void model_source_stats(const struct model_source *source, struct model_source_stats *stats);

/* Closes the source; NULL is a no-op. No thread may be reading. */
void model_source_close(struct model_source *source);

#endif
