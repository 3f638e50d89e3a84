/* Reads the input of the three importers of published cases: {"documents": {file: …}, "cases": […]}. */
#ifndef MOTLEY_TEST_FUZZ_IMPORT_H
#define MOTLEY_TEST_FUZZ_IMPORT_H

#include "fuzz/fuzz.h"
#include <stdbool.h>

#include "published/cases.h"

static int fuzz_line(void *context, const json_t *line, struct err *err)
{
    (void)context;
    (void)err;
    if (!json_is_string(json_object_get(line, "status")))
        __builtin_trap();
    return 0;
}

static inline void fuzz_import(const char *from, const json_t *document)
{
    struct err err;
    struct replay_sink sink = {.line = fuzz_line};
    replay_import(from, json_object_get(document, "documents"), json_object_get(document, "cases"), &sink,
                  &err);
}

#endif
