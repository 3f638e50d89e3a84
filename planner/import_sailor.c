/* In the making. */
#include "planner/import.h"

#include <stddef.h>

static const char *const files[] = {NULL};

static void *begin(const json_t *documents, struct err *err)
{
    (void)documents;
    err_set(err, ERR_UNSUPPORTED, "replay --from sailor is not built yet");
    return NULL;
}

const struct importer import_sailor = {.name = "sailor", .files = files, .begin = begin};
