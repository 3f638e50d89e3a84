/* The list of names is sorted once and then searched with bsearch. */
#include "model/files/by_name.h"

#include <stdlib.h>
#include <string.h>

static int by_name_compare(const void *a, const void *b)
{
    return strcmp(((const struct by_name *)a)->name, ((const struct by_name *)b)->name);
}

void by_name_sort(struct by_name *names, uint32_t count)
{
    qsort(names, count, sizeof(*names), by_name_compare);
}

int by_name_unique(const struct by_name *names, uint32_t count, const char *format, const char *what,
                   struct err *err)
{
    for (uint32_t i = 1; i < count; i++)
        if (strcmp(names[i].name, names[i - 1].name) == 0)
            return err_set(err, ERR_CORRUPT, "%s: the %s \"%.200s\" is there twice", format, what,
                           names[i].name);
    return 0;
}

uint32_t by_name_find(const struct by_name *names, uint32_t count, const char *name)
{
    const struct by_name wanted = {.name = name};
    const struct by_name *found = bsearch(&wanted, names, count, sizeof(*names), by_name_compare);
    return found ? found->index : UINT32_MAX;
}
