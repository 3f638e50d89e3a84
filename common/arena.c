#include "common/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>

struct arena_block {
    struct arena_block *before;
    alignas(max_align_t) char bytes[];
};

void *arena_get(struct arena *arena, size_t count, size_t size)
{
    bool fits = size == 0 || count <= (SIZE_MAX - sizeof(struct arena_block)) / size;
    struct arena_block *block = fits ? calloc(1, sizeof(*block) + count * size) : NULL;
    if (!block) {
        arena->failed = true;
        return NULL;
    }
    block->before = arena->last;
    arena->last = block;
    return block->bytes;
}

void arena_fini(struct arena *arena)
{
    while (arena->last) {
        struct arena_block *block = arena->last;
        arena->last = block->before;
        free(block);
    }
    arena->failed = false;
}
