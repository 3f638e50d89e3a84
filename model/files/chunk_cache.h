/* A node's cache of verified chunks: a folder of files named by hash, shared by processes, bounded in bytes.
 *
 * DIR/ab/abcd…: one chunk. DIR/usage: bytes held, written under an exclusive lock on DIR/lock. Files appear
 * by rename and never change; the least recently used are removed when a new one would not fit. Nothing here
 * is needed for correctness: every failure means "not cached". One cache object belongs to one thread at a
 * time.
 */
#ifndef MOTLEY_MODEL_FILES_CHUNK_CACHE_H
#define MOTLEY_MODEL_FILES_CHUNK_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct chunk_cache;

/* Make the folder if need be. limit in bytes, >= 64 MiB. */
int chunk_cache_open(const char *dir, uint64_t limit, struct chunk_cache **cache, struct err *err);
void chunk_cache_close(struct chunk_cache *cache);

/* Read the chunk of this hash, exactly 'size' bytes, into dst. False when it is not there. The caller
 * verifies. */
bool chunk_cache_get(struct chunk_cache *cache, const uint8_t hash[32], void *dst, size_t size);

/* Keep a chunk, making room first. False when it could not be kept. */
bool chunk_cache_put(struct chunk_cache *cache, const uint8_t hash[32], const void *data, size_t size);

/* Forget a chunk that turned out damaged. */
void chunk_cache_drop(struct chunk_cache *cache, const uint8_t hash[32]);

#endif
