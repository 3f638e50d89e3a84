/* What health.c and the management libraries' files share. */
#ifndef MOTLEY_ENGINE_GPU_HEALTH_PRIVATE_H
#define MOTLEY_ENGINE_GPU_HEALTH_PRIVATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

enum { HEALTH_CARDS_MAX = 64, HEALTH_VERSION_SIZE = 96 };

/* A library: `open` makes *state or says why not (ERR_NOT_FOUND, ERR_UNSUPPORTED); `read` appends its cards.
 */
struct health_source {
    const char *kind;
    int (*open)(void **state, char version[HEALTH_VERSION_SIZE], struct err *err);
    int (*read)(void *state, json_t *cards, struct err *err);
    void (*close)(void *state);
};

extern const struct health_source health_nvml, health_rocm_smi;

/* A function of a library, and where its pointer goes; `older`: what it was called before, with the same
 * arguments, or NULL. */
struct health_symbol {
    const char *name, *older;
    size_t at;
    bool needed;
};

/* `least`: the release that has all symbols that are needed. Opens the file that the environment names, else
 * the first of `files` (NULL at the end) that opens, and fills `api` with what it finds of the symbols.
 * *handle is never closed again: such libraries start threads. */
int health_library(const char *what, const char *least, const char *environment, const char *const *files,
                   const struct health_symbol *symbols, size_t count, void *api, struct err *err);

/* card[key] = value, where that is a number that JSON has. */
void health_set(json_t *card, const char *key, uint64_t value);

#endif
