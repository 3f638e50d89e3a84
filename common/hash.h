/* FNV-1a (Fowler, Noll, Vo), a hash of bytes for tables and for telling changes apart. It is not safe against
 * keys that somebody chooses. Pure. */
#ifndef MOTLEY_COMMON_HASH_H
#define MOTLEY_COMMON_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HASH_BEGIN 14695981039346656037u /* the hash of no bytes */

/* Returns the hash of what `hash` is the hash of and `size` more bytes. */
static inline uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * 1099511628211u;
    return hash;
}

/* Does so for a text and its final NUL, so that successive texts stay apart. */
static inline uint64_t hash_text(uint64_t hash, const char *text)
{
    return hash_bytes(hash, text, strlen(text) + 1);
}

#endif
