/* Named things of a file, found by halving: tensors and keys. */
#ifndef MOTLEY_MODEL_FILES_BY_NAME_H
#define MOTLEY_MODEL_FILES_BY_NAME_H

#include <stdint.h>

#include "common/err.h"

struct by_name {
    const char *name; /* borrowed */
    uint32_t index;   /* of the thing so named, as its owner counts */
};

/* Sorts `names` for the two below. */
void by_name_sort(struct by_name *names, uint32_t count);

/* 0; or -1 with ERR_CORRUPT when a name stands twice: "FORMAT: the WHAT "NAME" is there twice". */
int by_name_unique(const struct by_name *names, uint32_t count, const char *format, const char *what,
                   struct err *err);

/* The index that goes with `name`; UINT32_MAX: there is none. */
uint32_t by_name_find(const struct by_name *names, uint32_t count, const char *name);

#endif
