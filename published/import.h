/* Importers of other projects' planning cases: one file each, listed in the table of cases.c. Only the files
 * of published/ include this header. */
#ifndef MOTLEY_PUBLISHED_IMPORT_H
#define MOTLEY_PUBLISHED_IMPORT_H

#include <jansson.h>

#include "common/err.h"

struct importer {
    const char *name;
    const char *const *files; /* names of the files in --data that it needs, NULL-terminated */
    /* Prepares what all cases need from the documents: returns new (freed by `end`), or NULL with file and
     * path. */
    void *(*begin)(const json_t *documents, struct err *err);
    /* Turns one case into its line of the output (JSON), to which the caller adds plan_s, the seconds of
     * planning. Returns new, or NULL: ERR_INVALID for an invalid case, naming the key. */
    json_t *(*line)(void *state, const json_t *one, struct err *err);
    void (*end)(void *state);
};

extern const struct importer import_cephalo, import_zorse, import_sailor;

#endif
