/* A sorted list of the names in a file, of tensors or of keys, searched by bisection. */
#ifndef MOTLEY_MODEL_FILES_BY_NAME_H
#define MOTLEY_MODEL_FILES_BY_NAME_H

#include <stdint.h>

#include "common/err.h"

struct by_name {
    const char *name; /* borrowed */
    uint32_t index;   /* the owner's index of the named tensor or key */
};

/* Sorts `names`, as by_name_unique() and by_name_find() require. */
void by_name_sort(struct by_name *names, uint32_t count);

/* Returns 0, or -1 with ERR_CORRUPT when a name occurs twice: "FORMAT: the WHAT "NAME" is there twice". */
int by_name_unique(const struct by_name *names, uint32_t count, const char *format, const char *what,
                   struct err *err);

/* Returns the index stored with `name`, or UINT32_MAX when the name is not in the list. */
uint32_t by_name_find(const struct by_name *names, uint32_t count, const char *name);

#endif
