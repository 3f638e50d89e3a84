/* A node's cache of verified chunks: a folder of files named by hash, shared by processes, bounded in bytes.
 *
 * DIR/ab/abcd… holds one chunk. DIR/usage holds the number of bytes kept and is written under an exclusive
 * lock on DIR/lock. Files appear by rename and never change; when a new one would not fit, the least recently
 * used are removed. Correctness does not depend on the cache: after any failure the chunk counts as not
 * cached. One cache object belongs to one thread at a time. */
#ifndef MOTLEY_MODEL_FILES_CHUNK_CACHE_H
#define MOTLEY_MODEL_FILES_CHUNK_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct chunk_cache;

/* Opens the cache and creates the folder if it does not exist. limit is in bytes, at least 64 MiB. */
int chunk_cache_open(const char *dir, uint64_t limit, struct chunk_cache **cache, struct err *err);
void chunk_cache_close(struct chunk_cache *cache);

/* Reads the chunk of this hash, exactly 'size' bytes, into dst. Returns false when the cache does not hold
 * it. The caller verifies the bytes. */
bool chunk_cache_get(struct chunk_cache *cache, const uint8_t hash[32], void *dst, size_t size);

/* Stores a chunk and first removes old ones to make room. Returns false when the chunk could not
 * be stored. */
bool chunk_cache_put(struct chunk_cache *cache, const uint8_t hash[32], const void *data, size_t size);

/* Removes a chunk whose bytes did not match its hash. */
void chunk_cache_drop(struct chunk_cache *cache, const uint8_t hash[32]);

#endif
