/* Memory that ends together.
 *
 * An object that needs several arrays takes them from one arena, looks once whether all were there, and
 * releases them with one call. An arena of zeros is empty; one thread at a time.
 *
 *     ARENA_ARRAY(&x->arena, x->begin, total);
 *     ARENA_ARRAY(&x->arena, x->end, total);
 *     if (x->arena.failed)
 *         return err_set(err, ERR_NOMEM, "replay: out of memory");
 *     …
 *     arena_fini(&x->arena);
 */
#ifndef MOTLEY_COMMON_ARENA_H
#define MOTLEY_COMMON_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena {
    struct arena_block *last; /* the newest of a list of blocks */
    bool failed;              /* some block was refused: memory is short, or its size overflows */
};

/* Points `array` to `count` new items of zeros, which live as long as the arena. NULL, with arena->failed
 * set, if memory is short; never NULL for 0 items. */
#define ARENA_ARRAY(arena, array, count) ((array) = arena_get((arena), (count), sizeof(*(array))))
void *arena_get(struct arena *arena, size_t count, size_t size);
/* Releases all blocks; the arena is empty again. */
void arena_fini(struct arena *arena);

#endif
