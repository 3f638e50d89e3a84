/* Room in a growing array.
 *
 * The owner keeps the array as three fields of its own (items, count and a size_t capacity) and frees the
 * items with free(). Start from NULL and 0. Growth at least doubles the capacity, so appending n items copies
 * O(n) items in all.
 *
 *     if (ARRAY_RESERVE(list->items, list->capacity, list->count + 1, err) < 0) {
 *         return -1;
 *     }
 *     list->items[list->count++] = item;
 */
#ifndef MOTLEY_COMMON_ARRAY_H
#define MOTLEY_COMMON_ARRAY_H

#include <stddef.h>

#include "common/err.h"

/* Makes room for at least `need` items: `items` is a pointer variable to any object type, `capacity` a size_t
 * variable. Both are evaluated more than once. New items are not initialised. Returns 0, or -1 with ERR_NOMEM
 * when memory is short or the size in bytes overflows; the array then stays as it was. */
#define ARRAY_RESERVE(items, capacity, need, err)                                                            \
    array_reserve(&(items), &(capacity), (need), sizeof(*(items)), (err))

/* ARRAY_RESERVE calls this function. items_pointer is the address of the caller's pointer, whatever its type.
 */
int array_reserve(void *items_pointer, size_t *capacity, size_t need, size_t item_size, struct err *err);

#endif
