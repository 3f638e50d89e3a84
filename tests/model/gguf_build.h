/* Makes GGUF files in memory, valid or with false claims. Ends the test (assert) when memory runs out. */
#pragma once

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct gguf_build {
    uint8_t *data;
    size_t size;
};

static inline void gb_bytes(struct gguf_build *b, const void *data, size_t size)
{
    b->data = realloc(b->data, b->size + size + 1);
    assert(b->data);
    if (data)
        memcpy(b->data + b->size, data, size);
    else
        memset(b->data + b->size, 0, size);
    b->size += size;
}

static inline void gb_u32(struct gguf_build *b, uint32_t v)
{
    gb_bytes(b, &v, 4);
}

static inline void gb_u64(struct gguf_build *b, uint64_t v)
{
    gb_bytes(b, &v, 8);
}

static inline void gb_text(struct gguf_build *b, const char *text)
{
    gb_u64(b, strlen(text));
    gb_bytes(b, text, strlen(text));
}

static inline void gb_begin(struct gguf_build *b, uint32_t version, uint64_t tensors, uint64_t keys)
{
    memset(b, 0, sizeof(*b));
    gb_bytes(b, "GGUF", 4);
    gb_u32(b, version);
    gb_u64(b, tensors);
    gb_u64(b, keys);
}

static inline void gb_key_u32(struct gguf_build *b, const char *key, uint32_t v)
{
    gb_text(b, key);
    gb_u32(b, 4);
    gb_u32(b, v);
}

static inline void gb_key_f32(struct gguf_build *b, const char *key, float v)
{
    gb_text(b, key);
    gb_u32(b, 6);
    gb_bytes(b, &v, 4);
}

static inline void gb_key_text(struct gguf_build *b, const char *key, const char *v)
{
    gb_text(b, key);
    gb_u32(b, 8);
    gb_text(b, v);
}

/* Adds a tensor's description. Its dimensions are in GGUF's order, fastest first; cols 0: a vector of 'rows'.
 */
static inline void gb_tensor(struct gguf_build *b, const char *name, uint64_t rows, uint64_t cols,
                             uint32_t type, uint64_t offset)
{
    gb_text(b, name);
    gb_u32(b, cols ? 2 : 1);
    if (cols)
        gb_u64(b, cols);
    gb_u64(b, rows);
    gb_u32(b, type);
    gb_u64(b, offset);
}

static inline void gb_align(struct gguf_build *b, size_t alignment)
{
    gb_bytes(b, NULL, (alignment - b->size % alignment) % alignment);
}
