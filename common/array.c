#include "common/array.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ARRAY_FIRST_CAPACITY = 8 }; /* in items; avoids the first reallocations of short arrays */

int array_reserve(void *items_pointer, size_t *capacity, size_t need, size_t item_size, struct err *err)
{
    if (need <= *capacity)
        return 0;
    size_t wanted = *capacity > SIZE_MAX / 2 ? need : *capacity * 2;
    wanted = wanted < ARRAY_FIRST_CAPACITY ? ARRAY_FIRST_CAPACITY : wanted;
    wanted = wanted < need ? need : wanted;
    void *items; /* memcpy, because the caller's pointer may have any type */
    memcpy(&items, items_pointer, sizeof(items));
    void *grown = wanted <= SIZE_MAX / item_size ? realloc(items, wanted * item_size) : NULL;
    if (!grown)
        return err_set(err, ERR_NOMEM, "no memory for %zu items of %zu bytes", wanted, item_size);
    memcpy(items_pointer, &grown, sizeof(grown));
    *capacity = wanted;
    return 0;
}
