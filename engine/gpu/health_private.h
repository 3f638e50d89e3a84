/* Shared by health.c and the files of the management libraries. */
#ifndef MOTLEY_ENGINE_GPU_HEALTH_PRIVATE_H
#define MOTLEY_ENGINE_GPU_HEALTH_PRIVATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

enum { HEALTH_CARDS_MAX = 64, HEALTH_VERSION_SIZE = 96 };

/* A vendor's management library. `open` makes *state or fails with the reason (ERR_NOT_FOUND,
 * ERR_UNSUPPORTED); `read` appends the library's cards. */
struct health_source {
    const char *kind;
    int (*open)(void **state, char version[HEALTH_VERSION_SIZE], struct err *err);
    int (*read)(void *state, json_t *cards, struct err *err);
    void (*close)(void *state);
};

extern const struct health_source health_nvml, health_rocm_smi;

/* A function of a library and the offset of its pointer in the struct of calls. `older` is its former name
 * with the same arguments, or NULL. */
struct health_symbol {
    const char *name, *older;
    size_t at;
    bool needed;
};

/* Open the file that the environment variable names, else the first of `files` (NULL ends) that opens, and
 * store the addresses of its symbols in `api`. `least` is the oldest release that has all needed symbols, for
 * messages. *handle is never closed, because such libraries start threads. */
int health_library(const char *what, const char *least, const char *environment, const char *const *files,
                   const struct health_symbol *symbols, size_t count, void *api, struct err *err);

/* card[key] = value, unless the value is too large for a JSON number. */
void health_set(json_t *card, const char *key, uint64_t value);

#endif
