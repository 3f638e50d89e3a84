/* Identifies a file, and a model, by content.
 *
 * A file's manifest is its size, its SHA-256 and the SHA-256 of each of its 4 MiB chunks (the last may be
 * short), so that any range can be verified without the rest. A model's content id is the SHA-256 over its
 * files in order of name: for each, name, NUL, size as 8 bytes little-endian, then its chunk hashes. Two
 * folders with equal content ids hold the same model.
 *
 * A manifest's JSON document is {"size": N, "sha256": HEX, "chunk_bytes": 4194304, "chunks": [HEX, …]}. */
#ifndef MOTLEY_MODEL_FILES_MANIFEST_H
#define MOTLEY_MODEL_FILES_MANIFEST_H

#include <jansson.h>
#include <stdint.h>

#include "common/err.h"
#include "model/files/source.h"

enum {
    MANIFEST_CHUNK_BYTES = 4 << 20,
    MANIFEST_CHUNKS_MAX = 1 << 20 /* 2^20 chunks bound a file to 4 TiB */
};

struct manifest {
    uint64_t size;         /* bytes */
    uint8_t sha256[32];    /* hash of the whole file */
    uint32_t chunk_count;  /* ceil(size / MANIFEST_CHUNK_BYTES) */
    uint8_t (*chunks)[32]; /* [chunk_count][32] */
};

/* Reads a file of a source once and hashes it. manifest_fini() releases the result. */
int manifest_make(struct model_source *source, uint32_t file, struct manifest *manifest, struct err *err);

/* Reads a manifest's document. ERR_INVALID when sizes and counts contradict each other or a hash is
 * malformed. */
int manifest_parse(const json_t *document, struct manifest *manifest, struct err *err);
/* Returns the manifest's document, which is new. */
json_t *manifest_to_json(const struct manifest *manifest, struct err *err);

void manifest_fini(struct manifest *manifest);

/* Returns ERR_CORRUPT unless the hash of 'data' [size] is that of chunk 'chunk'. */
int manifest_verify_chunk(const struct manifest *manifest, uint32_t chunk, const void *data, size_t size,
                          struct err *err);

/* Computes a model's content id from its files' names and manifests, parallel arrays in any order. */
int manifest_content_id(const char *const *names, const struct manifest *manifests, uint32_t count,
                        uint8_t content[32], struct err *err);

#endif
