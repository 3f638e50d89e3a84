/* Where a model's bytes come from: a folder or file on this machine, or an artifact store read by ranges.
 *
 * A source is a list of named files of known size and one operation, read. Offsets and sizes are checked
 * against the file before anything is touched. Reads may be issued by several threads at once. A source never
 * writes into what it reads.
 */
#ifndef MOTLEY_MODEL_FILES_SOURCE_H
#define MOTLEY_MODEL_FILES_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct model_source;

enum { MODEL_FILES_MAX = 4096, MODEL_FILE_NAME_MAX = 255 };

/* Names of files have no slash: additional_chat_templates/NAME.jinja of a folder is a file of this name. */
#define MODEL_TEMPLATES_PREFIX "additional_chat_templates."

/* Where in folder 'dir' the file of that name lies, into path[0..size). ERR_TOO_BIG. */
int model_source_path(const char *dir, const char *name, char *path, size_t size, struct err *err);

struct model_file {
    char name[MODEL_FILE_NAME_MAX + 1]; /* plain name, no slash */
    uint64_t size;                      /* bytes */
};

/* Counters since open, for tests, traces and the live view. */
struct model_source_stats {
    uint64_t read_bytes;    /* asked for by readers */
    uint64_t fetched_bytes; /* that came over the network */
    uint64_t fetched_chunks;
    uint64_t cached_chunks;   /* served from the node's cache on disk */
    uint64_t verified_chunks; /* whose hash was compared */
};

/* The implementer's side; all members required but 'stats' (default: read_bytes alone). */
struct model_source_ops {
    int (*read)(void *self, uint32_t file, uint64_t offset, size_t size, void *dst, struct err *err);
    void (*stats)(void *self, struct model_source_stats *stats);
    void (*destroy)(void *self);
};

/* Wrap an implementation. Takes 'self' (destroyed with the source, or at once on error); copies 'files'. */
int model_source_create(const struct model_source_ops *ops, void *self, const struct model_file *files,
                        uint32_t file_count, struct model_source **source, struct err *err);

/* The folder whose files are meant by 'path', into out[size]: itself, or of a hub's cache ("models--x--y",
 * with refs/ and snapshots/) the snapshot that refs/main names, or its only one. ERR_INVALID: several. */
int model_source_folder(const char *path, char *out, size_t size, struct err *err);

/* Open what lies at 'path', mapped read-only: a Hugging Face folder (its config.json, tokenizer and template
 * files, and the weights: model.safetensors, or the shards its index names, or its only .gguf, or its only
 * .safetensors of another name) or a hub's cache of one, or a .gguf file, or any one file. Other files of a
 * folder are not part of the model. Errors: ERR_NOT_FOUND, ERR_IO, ERR_INVALID (an index that names a file
 * outside the folder). A file that shrinks while it is open ends the reading process with SIGBUS, as mmap
 * does; a worker is expendable in that way. */
int model_source_open_local(const char *path, struct model_source **source, struct err *err);

/* The files at these paths as a model's, by these names (plain, no slash), mapped read-only and closed again:
 * nothing is opened later. An error names the file, never its path. */
struct model_path {
    const char *name, *path;
};
int model_source_open_files(const struct model_path *paths, uint32_t count, struct model_source **source,
                            struct err *err);

/* One file that lies in memory, borrowed until close. */
int model_source_open_memory(const char *name, const void *data, size_t size, struct model_source **source,
                             struct err *err);

/* Number of files. */
uint32_t model_source_file_count(const struct model_source *source);
/* Borrowed until close. */
const struct model_file *model_source_file(const struct model_source *source, uint32_t file);
/* Index of a file by name, or -1. */
int model_source_find(const struct model_source *source, const char *name);

/* Read bytes [offset, offset + size) of a file into dst. ERR_INVALID beyond its end; ERR_IO, ERR_NET,
 * ERR_PEER (a fetched chunk that does not hash as the manifest says), ERR_TIMEOUT. */
int model_source_read(struct model_source *source, uint32_t file, uint64_t offset, size_t size, void *dst,
                      struct err *err);

/* Read a whole small file and append it to 'out'. ERR_NOT_FOUND, ERR_TOO_BIG above 'limit' bytes. */
int model_source_read_file(struct model_source *source, const char *name, uint64_t limit, struct buf *out,
                           struct err *err);

/* The counters as they are now; any thread. */
void model_source_stats(const struct model_source *source, struct model_source_stats *stats);

/* NULL is a no-op. No read may be under way. */
void model_source_close(struct model_source *source);

#endif
